"""One subscription, whatever carries it: bytes go in by one thread, decoded events come out by another.

Only whole messages are cut where the bytes come in; checksums, JSON, CBOR and records are for the thread that asks for
them, so that one thread can serve many subscriptions. What was received and not taken yet is counted: whoever receives
stops at `is_full`, and the service stops in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from botocore.exceptions import ClientError

from pykcl.aws.kinesis import NotFoundError, refusal_of
from pykcl.aws.kinesis_decode import CONTINUATION, page_of_body, page_of_cbor
from pykcl.aws.push.frames import MessageCutter, decode
from pykcl.errors import PyKclError, SubscriptionOver, TemporaryError
from pykcl.interfaces import Fetched

MAX_UNREAD = 512 * 1024
"""Bytes that are held while nobody takes them, beside one message that is longer."""
MAX_FULL = 20.0
"""Seconds for which a subscription is kept that is full and that nobody reads. The service would end it, too."""


class Source(Protocol):
    """The connection below a subscription. Its methods are called by the thread that polls, and do not wait."""

    def taken(self, size: int) -> None:
        """Note that so many bytes are held no more."""

    def close(self) -> None:
        """End the subscription at the service."""


class NoSource:
    """The source of a subscription that is not answered yet, or has ended."""

    def taken(self, size: int) -> None:
        """Nothing waits for it."""

    def close(self) -> None:
        """Nothing is open."""


class PushedEvents:
    """An `interfaces.Subscription`. `receive` and `end` are for the one thread that receives.

    event_of: decodes a message; None for one that is no event with records. on_ready: as in `PushStream.subscribe`.
    """

    def __init__(self, event_of: Callable[[bytes], Fetched | None], on_ready: Callable[[], None]) -> None:
        self.source: Source = NoSource()
        self._event_of, self._on_ready = event_of, on_ready
        self._cutter = MessageCutter()
        # `append` and `popleft` are atomic, and each counter has one thread that writes it: no lock is needed.
        self._messages: deque[bytes] = deque()
        self._received = self._taken = 0
        self._end: PyKclError | None = None
        self._is_closed = self._is_given_up = self._has_brought_events = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_full(self) -> bool:
        """True while more is held than should be. Never before there is a whole message: that could not be taken."""
        return bool(self._messages) and self._received - self._taken >= MAX_UNREAD

    @property
    def held_bytes(self) -> int:
        """See `interfaces.HoldsBytes`."""
        return 0 if self._is_given_up else self._received - self._taken

    @property
    def unread_behind_first(self) -> int:
        """Bytes that wait for the reader: 0 while there is no whole message, as the rest of the first has to come."""
        return self._received - self._taken if self._messages else 0

    @property
    def is_first_cut(self) -> bool:
        """True while the beginning of a message is all there is."""
        return not self._messages and self._received > self._taken

    def receive(self, data: bytes) -> None:
        """Take in what has come. Raises AnswerRefused where that is no event stream; `end` has to follow."""
        self._received += len(data)
        try:
            self._messages.extend(self._cutter.cut(data))
        finally:
            if self._messages:
                self._on_ready()

    def end(self, failure: PyKclError | None = None) -> None:
        """Note that nothing follows. failure: None where the service has ended it in good order."""
        if self._end is not None:
            return
        if failure is None and self._cutter.held:
            failure = TemporaryError("A subscription was cut off within an event. Subscribing again.")
        self._end = failure or SubscriptionOver("Kinesis has ended the subscription. Subscribing again.")
        self._on_ready()

    def give_up(self) -> None:
        """Drop what was not taken for MAX_FULL, and end: it comes again by the next subscription."""
        self._is_given_up = True
        self._messages.clear()
        self._end = self._end or SubscriptionOver(
            "Nobody has read the subscription for long. Subscribing again."
        )
        self._on_ready()

    def poll(self) -> Fetched | None:
        """See `interfaces.Subscription`."""
        # Read first: what comes before the end is in the queue once the end is set.
        end = self._end
        while not self._is_closed:
            try:
                message = self._messages.popleft()
            except IndexError:
                break
            self._taken += len(message)
            self.source.taken(len(message))
            try:
                event = self._event_of(message)
            except PyKclError:
                self.close()
                raise
            if event is not None:
                self._has_brought_events = True
                return event
        if self._is_closed:
            raise SubscriptionOver("The subscription was closed. Subscribe again.")
        if end is None:
            return None
        self.close()
        if isinstance(end, SubscriptionOver) and not (self._has_brought_events or self._is_given_up):
            # Kinesis reports progress at once. As an end in good order it would be repeated for ever, and unreported.
            end = TemporaryError("A subscription ended before its first event. Subscribing again.")
        try:
            raise end
        finally:
            del end  # its traceback holds this frame: no cycle

    def close(self) -> None:
        """See `interfaces.Subscription`."""
        self._is_closed = True
        self._messages.clear()
        source, self.source = self.source, NoSource()
        source.close()


def event_of(message: bytes, shard_id: str, stream: str) -> Fetched | None:
    """Return the event in a whole message; None for a message of another kind, such as the first one.

    Raises AnswerRefused; for an error in the place of an event SubscriptionTaken, Throttled, TemporaryError and
    SetupError.
    """
    headers, body = decode(message)
    if headers.get(":message-type") != "event":
        failure = _failure_in(headers, f"Reading {shard_id} of stream {stream!r} by a subscription")
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: no cycle
    if headers.get(":event-type") != "SubscribeToShardEvent":
        return None
    read = page_of_body if body.startswith(b"{") else page_of_cbor
    return read(body, shard_id, stream, place=CONTINUATION)


def _failure_in(headers: dict[str, str], doing: str) -> PyKclError:
    """Return the error that came in the place of an event.

    What no longer exists is not decided here: subscribing again asks whether it is the consumer, the shard or the
    stream, and a wrong guess would be taken for the end of the shard.
    """
    code = headers.get(":exception-type") or headers.get(":error-code") or "unknown"
    answer: Any = {
        "Error": {"Code": code, "Message": ""},
        "ResponseMetadata": {"HTTPStatusCode": 200},
    }
    failure = refusal_of(ClientError(answer, "SubscribeToShard"), doing)
    if isinstance(failure, NotFoundError):
        return TemporaryError(f"{failure}. Subscribing again shows what is gone.")
    return failure
