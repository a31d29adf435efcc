"""Puts numbered lines of input into one stream with a `Producer`, at a given rate, and tracks which of them are in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from pykcl.errors import BufferFull, FlushTimedOut, PyKclError, TemporaryError
from pykcl.events import Event as EventOfStream
from pykcl.events import KeysIgnored
from pykcl.model.new_record import NewRecord, PutAnswer
from pykcl.model.shard import Shard, ShardListing, StreamDescription
from pykcl.operate.aws.streams import StreamAdmin, StreamSummary
from pykcl.producer.accumulator import LISTING_PAUSE, PutResult
from pykcl.producer.delivery import PutsDelayed
from pykcl.producer.producer import Producer, ProducerSeams, PutFailed
from pykcl.runtime import Event, Future, Runtime

LINGER = 0.2
"""Seconds that a record waits for more of its batch."""
_BURST = 0.1
_PATIENCE = 0.2
"""Seconds after which whoever waits checks whether it is to give up."""
_NOTICE_EVERY = 10.0


class GivenUp(PyKclError):
    """The user ended the command while records were still being rejected."""


@dataclass(slots=True)
class Tally:
    """put: records that are in, each counted once. sent_again: how often any of them was sent again. perhaps_twice:
    records that were sent again after a request with an unknown outcome."""

    put: int = 0
    bytes: int = 0
    sent_again: int = 0
    perhaps_twice: int = 0


@dataclass(frozen=True, slots=True)
class Outlet:
    """The stream to write to. put: `StreamAdmin.put` of one stream. shards: lists open and closed shards.

    largest_record: bytes. ignores_keys: as in StreamDescription.
    """

    put: Callable[[Sequence[NewRecord]], Sequence[PutAnswer]]
    shards: Callable[[], Sequence[Shard]]
    largest_record: int
    ignores_keys: bool = False
    name: str = "stream"

    @classmethod
    def of(cls, admin: StreamAdmin, stream: str, summary: StreamSummary) -> Outlet:
        """Return the outlet to the stream of this name or ARN. summary: of it."""
        return cls(
            partial(admin.put, stream),
            partial(admin.shards, stream),
            summary.largest_record,
            summary.distribution == "AUTO",
            summary.name,
        )


class _OutletStream:
    """The `interfaces.PutStream` of an outlet."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet, self.name = outlet, outlet.name
        self.put = outlet.put

    def describe(self) -> StreamDescription:
        return StreamDescription(
            self.name,
            "",
            0,
            "ACTIVE",
            ignores_keys=self._outlet.ignores_keys,
            largest_record=self._outlet.largest_record,
        )

    def list_shards(self) -> ShardListing:
        return ShardListing(tuple(self._outlet.shards()))


_PLAIN = (
    "records go plain, without --aggregate: the stream puts them into any shard, whatever their partition key, and "
    "consumers open aggregates of one shard alone"
)


class _Heard:
    """The events of a producer; in the place of the log, which a command does not have. error: the reason for which
    records are sent again."""

    def __init__(self, on_notice: Callable[[str], None]) -> None:
        self.error, self._on_notice = "no answer yet", on_notice

    def emit(self, event: EventOfStream) -> None:
        if isinstance(event, PutsDelayed):
            self.error = event.error
        elif isinstance(event, KeysIgnored):
            self._on_notice(_PLAIN)


class StreamWriter:
    """Writes numbered lines of input and tracks which of them were put. `close` it.

    rate: max records per second. stop: once set, the rate is not waited for. give_up: once set, nothing is waited for.
    Every method may raise SetupError, NotDelivered and GivenUp; `complete_through` is correct even then.
    """

    def __init__(
        self,
        outlet: Outlet,
        runtime: Runtime,
        *,
        stop: Event,
        give_up: Event,
        on_notice: Callable[[str], None],
        aggregate: bool = False,
        rate: float | None = None,
    ) -> None:
        self.tally = Tally()
        self._runtime, self._stop, self._give_up, self._on_notice = runtime, stop, give_up, on_notice
        self._rate, self._started, self._taken = rate, runtime.monotonic(), 0
        self._lock = runtime.lock()
        self._last_line = 0
        # The lines that are not known to be in, in order.
        self._open: dict[int, NewRecord] = {}
        self._trouble: BaseException | None = None
        self._heard = _Heard(on_notice)
        if aggregate and outlet.ignores_keys:
            on_notice(_PLAIN)
        seams = ProducerSeams(
            runtime=runtime, stream=lambda: _OutletStream(outlet), setup_patience=0.0, events=self._heard
        )
        # One request at a time keeps lines in order as far as Kinesis refuses none of them.
        self._producer = Producer._with(seams, outlet.name, aggregate=aggregate, linger=LINGER, connections=1)
        self._start()

    def _start(self) -> None:
        while True:
            try:
                self._producer.start()
            except TemporaryError as error:
                trouble = str(error)
            else:
                return
            if self._give_up.is_set():
                raise GivenUp(f"The shards of the stream could not be listed ({trouble})")
            self._on_notice(f"{trouble} Listing again.")
            self._give_up.wait(LISTING_PAUSE)

    @property
    def complete_through(self) -> int:
        """The last line up to which every added line was put; 0 without one."""
        with self._lock:
            return next(iter(self._open)) - 1 if self._open else self._last_line

    def skip_line(self, line: int) -> None:
        """Count a line without a record."""
        self._last_line = line

    def take(self, line: int, record: NewRecord) -> None:
        """Add the record of a line, no sooner than the rate allows."""
        self._pace()
        self._taken += 1
        with self._lock:
            self._open[line] = record
        self._last_line = line
        self._put(record).add_done_callback(partial(self._settle, line))

    def _put(self, record: NewRecord) -> Future[PutResult]:
        """Put a record as soon as there is room."""
        notified_at = self._runtime.monotonic()
        while True:
            self.raise_trouble()
            try:
                return self._producer.put(
                    record.data, record.partition_key, record.explicit_hash_key, timeout=_PATIENCE
                )
            except BufferFull:
                notified_at = self._waited(self._producer.pending, notified_at)

    def raise_trouble(self) -> None:
        """Raise the error with which a record has failed for good. To be called now and then."""
        if self._trouble is not None:
            raise self._trouble

    def flush(self) -> None:
        """Send everything; all added records were put when this returns."""
        notified_at = self._runtime.monotonic()
        while True:
            try:
                self._producer.flush(_PATIENCE)
            except FlushTimedOut as late:
                notified_at = self._waited(late.pending, notified_at)
            except PutFailed:
                self.raise_trouble()
            else:
                return

    def close(self) -> None:
        """Give up what is not in."""
        # `complete_through` says what that is.
        with suppress(PutFailed):
            self._producer.close(timeout=0.0)

    def _waited(self, pending: int, notified_at: float) -> float:
        """Raise GivenUp if nothing is to be waited for any more; notify now and then; return when that was."""
        if self._give_up.is_set():
            raise GivenUp(f"{pending} records were still being rejected ({self._heard.error}).")
        now = self._runtime.monotonic()
        if now - notified_at < _NOTICE_EVERY:
            return notified_at
        self._on_notice(f"{pending} records are not put yet ({self._heard.error}). Sending them again.")
        return now

    def _settle(self, line: int, future: Future[PutResult]) -> None:
        error = future.exception()
        with self._lock:
            if error is not None:
                self._trouble = self._trouble or error
                return
            record, result = self._open.pop(line), future.result()
            self.tally.put += 1
            self.tally.bytes += record.size
            self.tally.sent_again += result.attempts - 1
            self.tally.perhaps_twice += result.perhaps_twice

    def _pace(self) -> None:
        if self._rate is None or self._stop.is_set():
            return
        due = self._started + self._taken / self._rate
        now = self._runtime.monotonic()
        if due - now > _BURST:
            self.flush()
            self._stop.wait(due - self._runtime.monotonic())
        elif now - due > 1:
            # Sending was slower than the rate: do not catch up with a burst.
            self._started += now - due
