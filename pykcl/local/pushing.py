"""Answers that are a stream of events (`application/vnd.amazon.eventstream`): SubscribeToShard.

A message is a prelude (its length, that of its headers, their CRC), headers, a payload and a CRC of all of it, as
botocore's `eventstream` reads it. The first one is the `initial-response`, without which botocore refuses the others.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol
from zlib import crc32

from pykcl.local.consumers import Subscription
from pykcl.local.errors import AwsError
from pykcl.local.wire import JSON, Response, WireFormat

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_TEXT = 7
"""Type of a header's value."""
_LONGEST_WAIT = 1.0
"""Seconds between two readings of an injected clock."""

PUSH_FAULTS = {
    "push-cut": "SubscribeToShard: connection reset within the first message that has records",
    "push-error": "SubscribeToShard: an InternalFailureException instead of the first event that has records",
    "push-garbage": "SubscribeToShard: a wrong checksum in the first message that has records",
    "push-silent": "SubscribeToShard: no event, and the connection stays open",
}
"""Kinds of faults that a subscription may have."""


class Cut(Exception):
    """A fault: the connection is to be reset here."""


class Source(Protocol):
    """`KinesisApi`, as far as it pushes."""

    def next_event(self, subscription: Subscription) -> Response | None: ...
    def seconds_until_due(self, subscription: Subscription) -> float: ...
    def end(self, subscription: Subscription) -> None: ...


@dataclass(frozen=True, slots=True)
class EventStream:
    """The answer to one SubscribeToShard. fault: one of PUSH_FAULTS."""

    subscription: Subscription
    source: Source
    wire: WireFormat
    fault: str | None = None

    async def send(
        self, send: Callable[[bytes], Awaitable[None]], gone: Callable[[], Awaitable[None]]
    ) -> None:
        """Send all messages until the subscription ends or its client is gone. gone: returns then.

        Raises Cut for a fault that resets the connection.
        """
        client = asyncio.create_task(_coroutine(gone))
        try:
            await self._send(send, client)
        finally:
            client.cancel()
            self.source.end(self.subscription)

    async def _send(self, send: Callable[[bytes], Awaitable[None]], client: asyncio.Task[None]) -> None:
        await send(_event("initial-response", {}, self.wire))
        changed, loop, own = asyncio.Event(), asyncio.get_running_loop(), threading.get_ident()

        def wake() -> None:
            if threading.get_ident() == own:
                changed.set()
            else:
                loop.call_soon_threadsafe(changed.set)

        self.subscription.on_change = wake
        while not client.done():
            changed.clear()
            try:
                members = self.source.next_event(self.subscription)
                if members is not None:
                    await self._push(send, members)
                elif self.subscription.ended:
                    return
                else:
                    await self._wait(changed, client)
            except AwsError as error:
                await send(_exception(error, self.wire))
                return

    async def _push(self, send: Callable[[bytes], Awaitable[None]], members: Response) -> None:
        """Send an event. Raises Cut, and AwsError for an error in its place."""
        if self.fault == "push-silent":
            return
        whole = _event("SubscribeToShardEvent", members, self.wire)
        fault = self.fault if members["Records"] else None
        if fault == "push-error":
            raise AwsError("InternalFailureException", "Failed on purpose: a fault rule of the local AWS.")
        if fault == "push-garbage":
            whole = whole[:-1] + bytes([whole[-1] ^ 1])
        if fault == "push-cut":
            await send(whole[: len(whole) // 2])
            raise Cut
        await send(whole)

    async def _wait(self, changed: asyncio.Event, client: asyncio.Task[None]) -> None:
        waiting = asyncio.create_task(_coroutine(changed.wait))
        seconds = max(0.0, min(self.source.seconds_until_due(self.subscription), _LONGEST_WAIT))
        try:
            await asyncio.wait((waiting, client), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()


async def _coroutine(call: Callable[[], Awaitable[Any]]) -> None:
    await call()


def _message(headers: dict[str, str], payload: bytes) -> bytes:
    encoded = b"".join(
        bytes((len(name),)) + name.encode() + struct.pack(">BH", _TEXT, len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 16 + len(encoded) + len(payload), len(encoded))
    whole = prelude + struct.pack(">I", crc32(prelude)) + encoded + payload
    return whole + struct.pack(">I", crc32(whole))


def _event(kind: str, members: Response, wire: WireFormat) -> bytes:
    headers = {":message-type": "event", ":event-type": kind, ":content-type": _content_type(wire)}
    return _message(headers, wire.encode(members))


def _exception(error: AwsError, wire: WireFormat) -> bytes:
    headers = {
        ":message-type": "exception",
        ":exception-type": error.code,
        ":content-type": _content_type(wire),
    }
    return _message(headers, wire.encode({"message": error.message}))


def _content_type(wire: WireFormat) -> str:
    return "application/cbor" if wire is not JSON else "application/json"
