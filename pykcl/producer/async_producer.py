"""`AsyncProducer`: a producer for the tasks of an event loop. `Producer` needs none, and loads none."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from types import TracebackType

from pykcl.awaiting import LoopEvent, in_a_thread
from pykcl.errors import PyKclError, TemporaryError
from pykcl.producer.accumulator import PendingRecord, PutResult
from pykcl.producer.delivery import Delivery
from pykcl.producer.producer import ProducerBase

_MOST_AT_ONCE = 64
"""Records that a task puts without a wait before other tasks get a turn."""


class _LoopTicket:
    """Gives the outcome of a record to a future of the event loop, by way of its producer."""

    __slots__ = ("_future", "_producer")

    def __init__(self, producer: AsyncProducer, future: asyncio.Future[PutResult]) -> None:
        self._producer, self._future = producer, future

    def set_result(self, result: PutResult, /) -> None:
        self._producer._settled(self._future, result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._producer._settled(self._future, exception)


class AsyncProducer(ProducerBase):
    """Puts records into a stream, for `async with`.

        async with AsyncProducer("orders") as producer:
            await producer.put(order, partition_key=order.customer)
            await producer.flush()

    Requests are sent by threads; all methods are for the event loop in which it was started. Where there is no room,
    records are taken in the order in which `put` was called. Everything else is as for `Producer`: `on_failure` and
    `on_event` are plain functions, and are called in threads, `on_failure` also in that of the loop.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _puts_by = 0
    _at_once = 0

    async def start(self) -> None:
        """Connect, and start the thread; the `async with` block does it.

        Raises as `Producer.start`. A cancellation is raised once AWS has answered, and closes the producer.
        """
        with self._starting():
            self._loop, self._turn = asyncio.get_running_loop(), asyncio.Lock()
            self._outcomes: deque[tuple[asyncio.Future[PutResult], PutResult | BaseException]] = deque()
            self._is_waking = False
            try:
                await in_a_thread(self._runtime, "pykcl-producer-start", self._start)
            except asyncio.CancelledError:
                if self._delivery is not None:
                    await self.close(0)
                raise

    async def close(self, timeout: float | None = None) -> None:
        """Wait until all records are put, at most `timeout` seconds; give up the others, and end the threads.

        A cancellation gives up the others, too. Raises PutFailed as `Producer.close`.
        """
        if self._delivery is not None:
            self._own_delivery()
            self._refuse_another_loop()
        delivery = self._begin_to_close()
        if delivery is None:
            return
        try:
            await self._outcome_of_all(delivery, timeout)
        finally:
            await self._end(delivery, timeout)
        self._raise_failures(delivery)

    async def __aenter__(self) -> AsyncProducer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def put(
        self,
        data: object,
        partition_key: str | None = None,
        explicit_hash_key: int | str | None = None,
        *,
        timeout: float | None = None,
    ) -> asyncio.Future[PutResult]:
        """Take a record, as soon as there is room; return the future of its place in the stream.

        A put that is cancelled takes nothing. The future may be ignored, or cancelled: the record is put all the same,
        and the next `flush` raises if it is given up. Arguments and errors are those of `Producer.put`.
        """
        delivery = self._own_delivery()
        self._refuse_another_loop()
        found: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()
        record = self._new_record(data, partition_key, explicit_hash_key, _LoopTicket(self, found))
        # Nothing is awaited once the record is taken: a cancellation comes before that.
        await self._take(delivery, record, timeout)
        return found

    async def flush(self, timeout: float | None = None) -> None:
        """Return once all records put so far are in the stream. A flush that is cancelled changes nothing.

        Raises PutFailed and FlushTimedOut as `Producer.flush`.
        """
        delivery = self._own_delivery()
        self._refuse_another_loop()
        is_done = await self._outcome_of_all(delivery, timeout)
        self._resolve_settled()
        self._end_flush(delivery, timeout, is_done=is_done)

    async def _take(self, delivery: Delivery, record: PendingRecord, timeout: float | None) -> None:
        await self._let_others_go_on()
        # Others wait for room: this one waits, too, though it is not its turn to ask for it.
        room = LoopEvent() if self._turn.locked() else None
        try:
            # One after the other: else a small record would get past a large one that was put before it.
            async with asyncio.timeout(timeout), self._turn:
                while not delivery.offer(record, room):
                    if not self._may_wait:
                        raise delivery.full()
                    if room is not None:
                        await room.wait()
                    room = LoopEvent()
        except TimeoutError:
            raise delivery.full() from None
        finally:
            delivery.wait_no_more(room)

    async def _let_others_go_on(self) -> None:
        """Suspend a task that puts many records, and never waits."""
        # Not the task itself, which would be kept. One that gets the number of another is suspended sooner, no more.
        task = id(asyncio.current_task())
        self._at_once = self._at_once + 1 if task == self._puts_by else 1
        self._puts_by = task
        if self._at_once > _MOST_AT_ONCE:
            self._at_once = 1
            await asyncio.sleep(0)

    async def _outcome_of_all(self, delivery: Delivery, timeout: float | None) -> bool:
        done = LoopEvent()
        if not delivery.begin_flush(done):
            return True
        try:
            return await done.wait(timeout)
        finally:
            delivery.end_flush(done)

    async def _end(self, delivery: Delivery, timeout: float | None) -> None:
        end = partial(self._end_delivery, delivery, timeout)
        try:
            await in_a_thread(self._runtime, "pykcl-producer-stop", end)
        except TemporaryError:
            # There is no thread to be had, and futures would wait for ever.
            end()
        self._resolve_settled()

    def _settled(self, future: asyncio.Future[PutResult], outcome: PutResult | BaseException) -> None:
        """Have a future resolved in the event loop; called by the thread that knows its outcome."""
        # 1) Outcomes come; 2) the loop is asked for a wake-up; 3) more come before it gets to that: one is enough.
        self._outcomes.append((future, outcome))
        if self._loop is None or self._is_waking:
            return
        self._is_waking = True
        try:
            self._loop.call_soon_threadsafe(self._resolve_settled)
        except RuntimeError:
            # The loop has ended, and nobody waits in it.
            self._is_waking = False
            self._outcomes.clear()

    def _resolve_settled(self) -> None:
        self._is_waking = False
        while self._outcomes:
            future, outcome = self._outcomes.popleft()
            if future.done():
                continue
            if isinstance(outcome, PutResult):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)
                # Else asyncio would log an error of each future that nobody asks; the next flush raises it.
                future.exception()

    def _refuse_another_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise PyKclError(
                "This AsyncProducer was started in another event loop. Do: make one in each loop, and use it there."
            )
