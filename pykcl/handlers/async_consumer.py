"""`AsyncConsumer`: the records of a stream in an `async for` loop. `Consumer` needs no event loop, and loads none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any

from pykcl.awaiting import in_a_thread, resolve
from pykcl.errors import PyKclError
from pykcl.handlers.consumer import END, POLL_SECONDS, ConsumerBase, Ended, Value
from pykcl.model.record import Record
from pykcl.processor import NotDecoded

Asker = asyncio.Task[Any] | None

_MOST_AT_ONCE = 64
"""Records after which other tasks get a turn, though more records are there and the loop's body never waits."""


class AsyncConsumer(ConsumerBase[Asker]):
    """The records of a stream, for an `async for` loop inside of `async with`.

        async with AsyncConsumer("orders-app", stream="orders") as consumer:
            async for record in consumer:
                await save(record)

    Asking for the next record acks the one before. What leaves the loop otherwise, an exception, `break`, `return` or a
    cancellation, leaves the record at hand open: it comes again, in the next loop or from the next owner of its shard;
    those before it do not. Records are fetched by threads; all methods but `stop` and `ack` are for the event loop in
    which the block was entered. It takes no signals: `loop.add_signal_handler(signal.SIGTERM, consumer.stop)`.

    auto_ack: False lets only `ack` settle a record, for several tasks on one consumer. Everything else is as for
    `Consumer`.
    """

    _MANY = "Two tasks"

    def _be_new(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waits: list[asyncio.Future[None]] = []
        self._is_waking = False
        self._at_once = 0
        # Of the owner of the record at hand, when it was given that; and the last record whose body was cancelled.
        self._cancelled = 0
        self._was_cancelled: Record | None = None

    async def __aenter__(self) -> AsyncConsumer:
        """Start to read. Raises what the start raises: SetupError, WrongStream, …"""
        loop = asyncio.get_running_loop()
        self._begin()
        self._loop = loop
        try:
            while not (self._has_started or self._is_over or self._is_ending):
                await self._news(None, lambda: self._has_started or self._is_over or self._is_ending)
            self._raise_failure()
        except BaseException:
            await in_a_thread(self._runtime, "pykcl-consumer-stop", self._stop_worker)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop to read: checkpoint what is acked and release the shards, within `shutdown_grace`.

        In a process that was forked in the block nothing is done.
        """
        if self._is_copy:
            return
        self._refuse_another_loop()
        if not self._is_left:
            await in_a_thread(self._runtime, "pykcl-consumer-stop", self._stop_worker)
        self._left(error)

    async def aclose(self) -> None:
        """Do what leaving the block does, and leave the record at hand open. Called again it does nothing."""
        if not self._is_left:
            await self.__aexit__(None, None, None)

    def __aiter__(self) -> AsyncIterator[Record]:
        self._refuse_another_loop()
        return _Loop(self, self._iterate(asyncio.current_task()))

    async def __anext__(self) -> Record:
        return await self._next(None)

    async def _next(self, loop: int | None) -> Record:
        self._refuse_another_loop()
        me = asyncio.current_task()
        self._leave_open_what_was_cancelled()
        self._ask(me, loop)
        self._at_once += 1
        if self._at_once >= _MOST_AT_ONCE:
            self._at_once = 0
            await asyncio.sleep(0)
        found = self._take(me, loop)
        if found is None:
            found = await self._wait_for_record(me, loop)
        # Nothing is awaited once a record is taken: a cancellation comes before that, or in the body of the loop.
        if isinstance(found, Record):
            self._cancelled = _cancellations(me)
            return found
        raise StopAsyncIteration

    def decoded(self, kind: type[Value]) -> AsyncIterator[tuple[Value, Record]]:
        """Return a loop over pairs of a decoded value and its record: `async for order, record in …`.

        Everything else is as for `Consumer.decoded`.
        """
        return self._decoded(aiter(self), self._decoder(kind))

    async def _decoded(
        self, records: AsyncIterator[Record], decode: Callable[[Record], Value]
    ) -> AsyncIterator[tuple[Value, Record]]:
        async for record in records:
            try:
                value = decode(record)
            except NotDecoded as error:
                await self.reject(record, self._reason_of(error))
                continue
            yield value, record

    async def reject(self, record: Record, reason: str = "") -> bool:
        """Send a record that can never be processed to the dead letters, in a thread, then settle it.

        Returns as `ack`. Raises what the destination raises; then the record is not settled, and comes again after a
        pause, also if the loop goes on to the next one. So it does where the `await` is cancelled, unless the letter
        was kept. Raises ConfigError without `dead_letters`.
        """
        with self._rejecting(record):
            self._refuse_unusable(record)
            self._refuse_no_letters()
            return await in_a_thread(
                self._runtime, "pykcl-consumer-reject", lambda: self._queue.reject(record, reason)
            )

    async def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until every open shard has an owner and those of this consumer are being read.

        From then on nothing that is put is missed, even with initial_position="LATEST". False after `timeout` seconds,
        and once the consumer is asked to end. Raises what has stopped the worker.
        """
        self._refuse_another_loop()
        until = None if timeout is None else self._runtime.monotonic() + timeout
        while (ready := self._is_ready()) is None:
            left = POLL_SECONDS if until is None else until - self._runtime.monotonic()
            if left <= 0:
                return False
            await asyncio.sleep(min(left, POLL_SECONDS))
        return ready

    async def _wait_for_record(self, me: Asker, loop: int | None) -> Record | object:
        until = None
        found: list[Record | object] = []

        def is_over() -> bool:
            taken = self._take(me, loop)
            found.extend(() if taken is None else (taken,))
            return bool(found)

        while True:
            until = self._idle_until(until)
            step = self._step(until)
            await self._news(step, is_over)
            if found:
                return found[0]
            if step is not None and step <= 0:
                self._note_end(Ended.IDLE)
                return END

    async def _news(self, seconds: float | None, is_over: Callable[[], bool]) -> None:
        """Wait for a wake-up, unless `is_over` returns True once none can be missed any more."""
        self._at_once = 0
        loop = asyncio.get_running_loop()
        news: asyncio.Future[None] = loop.create_future()
        self._waits.append(news)
        timer = None
        try:
            if not is_over():
                timer = None if seconds is None else loop.call_later(seconds, resolve, news)
                await news
        finally:
            self._waits.remove(news)
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        # 1) Records come; 2) the event loop is asked for a wake-up; 3) more come before it gets to that: one is enough,
        # as everything is asked anew after it.
        loop = self._loop
        if loop is None or self._is_waking or not self._waits:
            return
        self._is_waking = True
        try:
            loop.call_soon_threadsafe(self._wake_all)
        except RuntimeError:
            # The loop has ended, and nobody waits in it.
            self._is_waking = False

    def _wake_all(self) -> None:
        self._is_waking = False
        for news in self._waits:
            resolve(news)

    def _is_same(self, owner: Asker, asker: Asker) -> bool:
        # A task that was made for one call of anext() has ended, and asks for no more.
        return owner is asker or self._has_ended(owner)

    def _has_ended(self, owner: Asker) -> bool:
        return owner is None or owner.done()

    def _has_failed(self, owner: Asker) -> bool:
        # 1) A task is made for each record; 2) one fails, or is cancelled by a time-out; 3) the next one asks. Not by
        # owner.exception(): asyncio would take the error for noticed, and never log it.
        return owner is not None and owner.done() and (owner.cancelled() or owner._exception is not None)

    def _leave_open_what_was_cancelled(self) -> None:
        """Leave the record at hand open if its body was cancelled.

        1) Ctrl-C cancels the task in the middle of its body; 2) the body swallows that, and asks for the next record.
        Once for each record: there are time-outs that cancel a task, and never withdraw it.
        """
        if self._at_hand is None:
            return
        record, owner, _ = self._at_hand
        if _cancellations(owner) > self._cancelled and record is not self._was_cancelled:
            self._left_open = self._was_cancelled = record

    def _refuse_another_loop(self) -> None:
        self._refuse_unusable()
        if asyncio.get_running_loop() is not self._loop:
            raise PyKclError(
                "This AsyncConsumer was entered in another event loop. Do: make one in each loop, and use it there."
            )


class _Loop(AsyncIterator[Record]):
    """One loop over an AsyncConsumer. As that of a Consumer, a record that it was given is acked for no other one."""

    __slots__ = ("_consumer", "_number")

    def __init__(self, consumer: AsyncConsumer, number: int) -> None:
        self._consumer, self._number = consumer, number

    def __aiter__(self) -> AsyncIterator[Record]:
        return aiter(self._consumer)

    def __anext__(self) -> Coroutine[Any, Any, Record]:
        return self._consumer._next(self._number)


def _cancellations(task: Asker) -> int:
    """Return how often a task was asked to end by a cancellation that nobody has withdrawn."""
    return 0 if task is None else task.cancelling()
