"""Lanes: several records of a shard at a time, those of one partition key in order.

The records of a batch are dealt to lanes by their partition key. Each lane calls the handler for one record after the
other, in a thread or in a task of the event loop, and settles each one as its call returns. `process_records` returns
once all lanes have ended.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from types import coroutine
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

from pykcl.errors import ConfigError, NotAProcessor, RestartShard, TableGone, TemporaryError
from pykcl.events import Event, EventLoopBlocked
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import Key, Record, keys_of
from pykcl.processor import (
    Batch,
    FailedAt,
    InitializationInput,
    LanesStopped,
    LaneStop,
    LeaseLostInput,
    RecordProcessor,
    ShutdownRequestedInput,
    StoppedAt,
)
from pykcl.runtime import EndsThread, Runtime, SystemRuntime, Task
from pykcl.worker.lane_delivery import STEP
from pykcl.worker.processor_calls import index_of
from pykcl.worker.processor_factory import must_have_run
from pykcl.worker.threads import Helpers

if TYPE_CHECKING:
    from pykcl.handlers.loop import HandlerLoop
    from pykcl.worker.turns import Standing

MOST = 256
"""Most lanes of a shard."""


def checked_concurrency(concurrency: object) -> int:
    """Raises ConfigError."""
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= MOST:
        raise ConfigError(
            f"concurrency={concurrency!r:.80} is not a whole number from 1 to {MOST}: so many records of a shard, of "
            "different partition keys, are processed at a time. Do: concurrency=8, for example."
        )
    return concurrency


class Caller(Protocol):
    """The handler, as one lane calls it; one instance for each lane.

    takes_each: it is called with single records. is_async: a call returns an awaitable, or None if there is nothing to
    wait for.
    """

    takes_each: bool
    is_async: bool
    handler_name: str
    records_filtered: int

    def initialize(self, init: InitializationInput) -> None: ...
    def call_one(self, record: Record, batch: Batch) -> object: ...
    def call_all(self, batch: Batch) -> object:
        """batch: of the records of one call. Raises what process_records would raise."""

    def failed(self, records: Sequence[Record]) -> None:
        """Note the records of a call of `call_one` that failed."""


class Settles(Protocol):
    """A `pykcl.worker.lane_delivery.Settling`, or what stands for it where there is no worker."""

    ends: frozenset[Key]
    runtime: Runtime
    helpers: Helpers

    @property
    def shard_id(self) -> str: ...
    def goes_on(self) -> bool: ...
    def may_end(self) -> bool: ...
    def settle(self, key: Key, /) -> object: ...
    def halt(self) -> None: ...
    def failed(self) -> None: ...
    def is_here(self) -> bool: ...
    def run(self, body: Callable[[], None]) -> None: ...
    def alone_leaves(self) -> AbstractContextManager[None]: ...
    def wake(self) -> None: ...
    def emit(self, event: Event) -> None: ...
    def show(self, standing: Callable[[], Standing | None] | None) -> None: ...
    def wait(
        self,
        is_over: Callable[[], bool],
        *,
        step: Callable[[], None] = ...,
        cancel: Callable[[], None] | None = ...,
    ) -> None: ...


_FATAL = (RestartShard, TableGone, NotAProcessor)
"""Errors that are about no record: the whole batch ends with them."""


_TURN = 0.01
"""Seconds after which a lane in the event loop lets the others have a turn, though none of its calls has waited."""


@coroutine
def _give_way() -> Generator[None, None, None]:
    """Let everything else that is due in the loop run first."""
    yield


class Lane:
    """The records of some partition keys. Used by one thread at a time.

    places: of the records in the batch. reached: the greatest place that it has begun, or is about to. done: how many
    of them are settled. stop: the call that failed. error: what ends the whole batch. standing: see Standing.
    is_broken_off: its call was cancelled, and is not done, in whatever way it ends.
    """

    def __init__(self, caller: Caller, records: list[Record], places: list[int]) -> None:
        self.caller, self.records, self.places = caller, records, places
        self.reached = -1
        self.done = 0
        self.stop: LaneStop | None = None
        self.error: BaseException | None = None
        self.standing: Callable[[], Standing] | None = None
        self.is_broken_off = False

    def broken_off(self) -> None:
        """Note that its task is cancelled. Called in the thread of the loop, before the call goes on."""
        self.is_broken_off = True


class Round:
    """One call of process_records, as its lanes see it."""

    def __init__(self, lanes: Sequence[Lane], batch: Batch, settling: Settles) -> None:
        self.lanes, self._batch, self._settling = lanes, batch, settling
        self._ended: deque[Lane] = deque()
        self._lock = settling.runtime.lock()
        self._last: int | None = None

    @property
    def is_over(self) -> bool:
        return len(self._ended) == len(self.lanes)

    def ended(self, lane: Lane) -> None:
        # Not counted by a number: two lanes that end at once would each read the same one.
        self._ended.append(lane)
        if self.is_over:
            self._settling.wake()

    def begin(self, lane: Lane, how: Callable[[], Callable[[], Standing]]) -> None:
        """Start a lane by `how`, which returns a function for its standing; note an error of that."""
        try:
            lane.standing = how()
        except Exception as error:  # noqa: BLE001 - no thread is left, say
            # Not raised: 1) the lanes before it run; 2) the batch would count as failed; 3) it is delivered again, and
            # other lanes would have the same keys beside those.
            unknown = TemporaryError(f"a lane could not be started: {error}")
            unknown.__cause__ = error
            lane.stop = LaneStop(tuple(lane.records[:1] if lane.caller.takes_each else lane.records), unknown)
            self.ended(lane)

    def standing(self) -> Standing | None:
        """Return where the lane stands that holds up the checkpoint; None if none does. Called by another thread."""
        ended = set(map(id, self._ended))
        open_lanes = [
            lane
            for lane in self.lanes
            if id(lane) not in ended and lane.standing and lane.done < len(lane.places)
        ]
        first = min(open_lanes, key=lambda lane: lane.places[lane.done], default=None)
        return None if first is None or first.standing is None else first.standing()

    def run(self, lane: Lane) -> None:
        """Run a lane in this thread."""
        try:
            self._settling.run(lambda: self._work(lane))
        finally:
            self.ended(lane)

    def _work(self, lane: Lane) -> None:
        calls, name = self._calls(lane), lane.caller.handler_name
        for returned in calls:
            try:
                must_have_run(name, returned)
            except Exception as error:  # noqa: BLE001 - of this call
                with suppress(StopIteration):
                    calls.throw(error)

    async def work(self, lane: Lane) -> None:
        """Run a lane in this task."""
        calls, name = self._calls(lane), lane.caller.handler_name
        with self._settling.alone_leaves():
            for returned in calls:
                try:
                    result = await returned
                    if result is not None:
                        must_have_run(name, result)
                except BaseException as error:  # noqa: BLE001 - user code may raise anything
                    with suppress(StopIteration):
                        calls.throw(error)

    def _calls(self, lane: Lane) -> Generator[Any, None, None]:
        """Call the handler for one record, or some records, after the other, and settle them.

        Yields what a call returned unless that is None; an error of whoever runs that is thrown in here.
        """
        settling, caller, batch = self._settling, lane.caller, self._batch
        settle, takes_each = settling.settle, caller.takes_each
        parts: Iterator[Sequence[Record]] = iter(
            ((r,) for r in lane.records) if takes_each else self._parts(lane)
        )
        clock = settling.runtime.monotonic if caller.is_async else None
        since = clock() if clock else 0.0
        for part in parts:
            if clock and clock() - since >= _TURN:
                yield _give_way()
                since = clock()
            if not self._may_begin(lane, len(part)):
                return
            try:
                returned = (
                    caller.call_one(part[0], batch)
                    if takes_each
                    else caller.call_all(replace(batch, records=part))
                )
                if returned is not None:
                    yield returned
            except EndsThread:
                raise
            except _FATAL as error:
                lane.error = error
                settling.halt()
                return
            except BaseException as error:  # user code may raise anything; it is reported
                if not settling.is_here():
                    raise
                if not lane.is_broken_off:
                    self._stop(lane, part, error)
                return
            if not settling.is_here():
                # A process that the handler has forked: to settle it may wait for a lock for ever that another thread
                # had at the fork, and the lane would go on here, too. It ends where it leaves the lane.
                return
            if lane.is_broken_off:
                # 1) A stop cancels the call; 2) the handler swallows that, or something that it waits in turns it into
                # a result; 3) the call returns, and nobody has done its work.
                return
            for record in part:
                settle((record.sequence_number, record.sub_sequence_number))
            lane.done += len(part)

    def _may_begin(self, lane: Lane, count: int) -> bool:
        """Return True if the lane may begin its next records, so many of them.

        When the worker stops, lanes still do what lies before the last record that one of them has begun: else the
        checkpoint would stand before a record that is not done, and those behind it would come again.
        """
        begun, place = lane.reached, lane.places[lane.done + count - 1] if lane.records else -1
        lane.reached = place
        if self._settling.goes_on():
            return True
        with self._lock:
            if self._last is None:
                # None is missed, though lanes go on meanwhile. 1) A lane reaches 500, and only then sees no stop; 2)
                # another one sees the stop, and comes here: it finds the 500. What it has not begun itself, it leaves.
                lane.reached = begun
                self._last = max(each.reached for each in self.lanes)
        return place <= self._last and self._settling.may_end()

    def _parts(self, lane: Lane) -> Iterator[Sequence[Record]]:
        """Yield the records of each call."""
        part: list[Record] = []
        for record, key in zip(lane.records, keys_of(lane.records), strict=True):
            part.append(record)
            if key in self._settling.ends:
                yield tuple(part)
                part = []
        if part or not lane.records:
            yield tuple(part)

    def _stop(self, lane: Lane, part: Sequence[Record], error: BaseException) -> None:
        """Note a failed call, and settle what it has done."""
        if lane.caller.takes_each:
            lane.caller.failed(part)
            stopped = StoppedAt(part[0], error)
            stopped.__cause__ = error
            error = stopped
        elif isinstance(error, FailedAt):
            done = index_of(error.record, part) or 0
            for key in keys_of(part[:done]):
                self._settling.settle(key)
            lane.done += done
            part = part[done:]
        lane.stop = LaneStop(tuple(part), error)
        self._settling.failed()


class LaneProcessor(RecordProcessor):
    """Runs a handler in lanes. make: makes one Caller for each lane.

    The worker gives what it settles records by to `settle_by`. Without a worker of its own, in a redrive say, there is
    one lane, in the thread of the caller.
    settles_because: what of the handler makes it so, for messages. lane_share: part of the last batch that was in its
    largest lane; None where there is one lane only.
    """

    def __init__(self, make: Callable[[], Caller], concurrency: int) -> None:
        self._callers = [make() for _ in range(concurrency)]
        first = self._callers[0]
        self._is_async = first.is_async
        self.handler_name = first.handler_name
        self.remark = getattr(first, "remark", None)
        self.settles_because = f"concurrency={concurrency}" if concurrency > 1 else "async def"
        self._settling: Settles | None = None
        self._alone: Alone | None = None
        self.lane_share: float | None = None
        self._dealt_upto: Checkpoint | None = None

    @property
    def records_filtered(self) -> int:
        return sum(caller.records_filtered for caller in self._callers)

    def settle_by(self, settling: Settles) -> None:
        self._settling = settling

    def initialize(self, init: InitializationInput) -> None:
        for caller in self._callers:
            caller.initialize(init)

    def process_records(self, batch: Batch) -> None:
        """Raises LanesStopped, or without a worker what a single lane stopped at; and RestartShard and its like."""
        settling = self._settling or self._alone
        if settling is None:
            settling = self._alone = Alone(batch.shard_id)
        lanes = self._dealt(batch)
        round_ = Round(lanes, batch, settling)
        if self._is_async:
            self._run_in_the_loop(round_, settling)
        elif self._settling is None:
            round_.run(lanes[0])
        else:
            pool = settling.helpers.get(LanePool)
            settling.show(round_.standing)
            for lane in lanes:
                body = functools.partial(round_.run, lane)
                round_.begin(lane, functools.partial(pool.run, body))
            settling.wait(lambda: round_.is_over)
        settling.show(None)
        self._report(lanes)

    def lease_lost(self, loss: LeaseLostInput) -> None:
        self._over()

    def shutdown_requested(self, request: ShutdownRequestedInput) -> None:
        self._over()

    def _over(self) -> None:
        if self._alone is not None:
            self._alone.close()
            self._alone = None

    def _dealt(self, batch: Batch) -> list[Lane]:
        """Return the lanes that have records; one for a batch without any."""
        count = len(self._callers)
        if count == 1 or self._alone is not None or not batch:
            return [Lane(self._callers[0], list(batch.records), list(range(len(batch))))]
        lanes = [Lane(caller, [], []) for caller in self._callers]
        for place, record in enumerate(batch.records):
            # Of a sub-record its own key, not that of the aggregate.
            lane = lanes[crc32(record.partition_key.encode("utf-8", "surrogatepass")) % count]
            lane.records.append(record)
            lane.places.append(place)
        last = batch[-1].position
        if self._dealt_upto is None or self._dealt_upto < last:
            # Not of what is tried again: that is mostly one lane, and says nothing about the keys.
            self._dealt_upto = last
            self.lane_share = max(len(lane.records) for lane in lanes) / len(batch)
        return [lane for lane in lanes if lane.records]

    def _run_in_the_loop(self, round_: Round, settling: Settles) -> None:
        from pykcl.handlers.loop import LoopUser

        loop: HandlerLoop = settling.helpers.get(LoopUser.of).loop
        tasks: list[Any] = []

        def begin(lane: Lane) -> Callable[[], Standing]:
            task = loop.start(round_.work(lane), lane.broken_off)
            # Also of one that is cancelled before it has begun.
            task.add_done_callback(lambda _: round_.ended(lane))
            tasks.append(task)
            return functools.partial(loop.standing, task, Round._calls.__code__)

        def start() -> None:
            for lane in round_.lanes:
                round_.begin(lane, functools.partial(begin, lane))

        def cancel() -> None:
            loop.call(lambda: loop.cancel(tasks))

        def check() -> None:
            found = loop.blocked()
            if found is not None:
                seconds, stack = found
                settling.emit(EventLoopBlocked(shard=settling.shard_id, seconds=seconds, stack=stack))

        settling.show(round_.standing)
        loop.call(start)
        settling.wait(lambda: round_.is_over or not loop.is_alive, step=check, cancel=cancel)

    def _report(self, lanes: Sequence[Lane]) -> None:
        """Raise unless all is settled."""
        for lane in lanes:
            if lane.error is not None:
                raise lane.error
        stops = [lane.stop for lane in lanes if lane.stop is not None]
        if stops and (self._alone is not None or not lanes[0].records):
            raise stops[0].error
        left = [record for lane in lanes for record in lane.records[lane.done :]]
        if left:
            left.sort(key=lambda record: record.position)
            raise LanesStopped(stops, left, len(lanes))


class Alone:
    """Stands for the worker where there is none: the caller of process_records settles what is done."""

    ends: frozenset[Key] = frozenset()

    def __init__(self, shard_id: str) -> None:
        self.shard_id = shard_id
        self.runtime: Runtime = SystemRuntime()
        self.helpers = Helpers(self.runtime, lambda error: None)
        self._wake = self.runtime.event()

    def goes_on(self) -> bool:
        return True

    may_end = goes_on

    def settle(self, key: Key, /) -> None:
        del key

    def halt(self) -> None:
        return

    def failed(self) -> None:
        return

    def is_here(self) -> bool:
        return True

    def run(self, body: Callable[[], None]) -> None:
        body()

    def alone_leaves(self) -> AbstractContextManager[None]:
        return nullcontext()

    def wake(self) -> None:
        self._wake.set()

    def emit(self, event: Event) -> None:
        del event

    def show(self, standing: Callable[[], Standing | None] | None) -> None:
        del standing

    def wait(
        self,
        is_over: Callable[[], bool],
        *,
        step: Callable[[], None] = lambda: None,
        cancel: Callable[[], None] | None = None,
    ) -> None:
        del cancel
        while not is_over():
            self._wake.wait(STEP)
            self._wake.clear()
            step()

    def close(self) -> None:
        self.helpers.close(self.runtime.monotonic() + STEP)


class LanePool:
    """Threads of the lanes of one worker: as many as lanes have run at the same time. A `Helper`."""

    def __init__(self, helpers: Helpers) -> None:
        self._helpers = helpers
        self._lock = helpers.runtime.lock()
        self._idle: list[_LaneThread] = []
        self._all: list[_LaneThread] = []
        self._count = 0
        self._is_closed = False

    def run(self, body: Callable[[], None]) -> Callable[[], Standing]:
        """Run it in a thread that has nothing to do, or in a new one; return a function for its standing."""
        with self._lock:
            found = self._idle.pop() if self._idle else None
            self._count += found is None
            name = f"pykcl-lane-{self._count}"
        if found is None:
            found = _LaneThread(self._helpers, name, self._rests)
            with self._lock:
                self._all.append(found)
        found.begin(body)
        return functools.partial(self._standing, found.task)

    def _standing(self, task: Task) -> Standing:
        return task.name, self._helpers.runtime.stack(task, below=Round._calls.__code__)

    def _rests(self, thread: _LaneThread) -> bool:
        with self._lock:
            if not self._is_closed:
                self._idle.append(thread)
            return not self._is_closed

    def close(self, until: float) -> list[str]:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            threads = list(self._all)
        for thread in idle:
            thread.end()
        for thread in threads:
            thread.task.join(max(0.0, until - self._helpers.runtime.monotonic()))
        return [thread.task.name for thread in threads if thread.task.is_alive()]


class _LaneThread:
    """rests: called once a body has returned; False: end."""

    def __init__(self, helpers: Helpers, name: str, rests: Callable[[_LaneThread], bool]) -> None:
        self._wake = helpers.runtime.event()
        self._body: Callable[[], None] | None = None
        self._rests = rests
        self.task: Task = helpers.spawn(name, self._live)

    def begin(self, body: Callable[[], None]) -> None:
        self._body = body
        self._wake.set()

    def end(self) -> None:
        self._body = None
        self._wake.set()

    def _live(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            body = self._body
            if body is None:
                return
            body()
            if not self._rests(self):
                return
