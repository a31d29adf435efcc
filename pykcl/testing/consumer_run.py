"""`run_consumer`: a program that iterates, over a stream and a lease table in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from pykcl.errors import ConfigError
from pykcl.handlers.async_consumer import AsyncConsumer
from pykcl.handlers.consumer import Consumer
from pykcl.handlers.record_queue import RecordQueue
from pykcl.local.stream import ReadSpan
from pykcl.model.record import Record
from pykcl.processor import ASYNC, why_it_runs_nothing
from pykcl.testing.fleet import STREAM, Fleet
from pykcl.testing.input_records import checked_records, put_all, refuse_number
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.processor_run import checkpoint_in, log_off
from pykcl.testing.recorder import RecordedLetters, Recorder, id_of
from pykcl.testing.result import Result, RunFailed
from pykcl.testing.runtime import Simulation
from pykcl.testing.runtime.event_loop import run_coroutine
from pykcl.worker.processor_factory import NeverRan, must_have_run

_SET_BY_THE_RUN = {"clients", "initial_position", "on_event", "region", "session", "stream", "table_name"}
"""Options of a consumer that a run gives by itself."""


class _RecordedQueue:
    """Stands between a consumer and its queue, and notes what the program takes and settles."""

    def __init__(self, inner: RecordQueue, recorder: Recorder) -> None:
        self._inner, self._recorder = inner, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def take(self) -> Record | None:
        record = self._inner.take()
        if record is not None:
            self._recorder.delivered.append(record)
            self._recorder.handed.add(id_of(record))
        return record

    def ack(self, record: Record) -> bool:
        # Before it is done: a checkpoint may follow at once.
        is_out = self._inner.is_out(record)
        if is_out:
            self._recorder.done.add(id_of(record))
        return self._inner.ack(record)


def run_consumer(
    program: Callable[[Consumer], object] | Callable[[AsyncConsumer], Awaitable[object]],
    records: Iterable[Any],
    *,
    shards: int = 1,
    idle_timeout: float | None = 5.0,
    auto_ack: bool = True,
    seed: int = 0,
    timeout: float = 600.0,
    **options: Any,
) -> Result:
    """Call a program with a consumer of the records that was entered, in simulated time; return what happened.

    program: a function of a Consumer, or an `async def` of an AsyncConsumer, which runs in an event loop of simulated
    time: asyncio.sleep() takes none of ours, and a socket never answers. records: from `records`, or plain values.
    options: as the consumer takes them. dead_letters: by default they are kept in memory. timeout: simulated seconds
    for all. seed: decides which thread runs first; the same seed takes the same course.

    In the result `delivered` has the records that the program was given, in order, `checkpointed` those that do not
    come again, and `unsettled` those that were neither acked nor rejected.

    Raises what the program raises, RunFailed after `timeout`, ConfigError for arguments that cannot be used.
    """
    __tracebackhide__ = True
    _refuse(program, shards, seed, options)
    given = checked_records(records)
    recorder = Recorder()
    recorder.hears_checkpoints = False
    if not isinstance(options.get("dead_letters"), str):
        options = {**options, "dead_letters": RecordedLetters(recorder, options.get("dead_letters"))}
    arguments = {"idle_timeout": idle_timeout, "auto_ack": auto_ack, **options}
    simulation = Simulation(seed=seed)
    began = simulation.now

    def result() -> Result:
        return Result(recorder, seconds=simulation.now - began, error=None, seed=seed)

    def unfinished() -> RunFailed:
        why = f"The program has not returned within {timeout:g} simulated seconds: {result()!r}"
        return RunFailed(why, result())

    def row_changed(change: Change) -> None:
        before, after = (checkpoint_in(row) for row in (change.before, change.after))
        if before is not None and after is not None and before != after:
            recorder.checkpoint(change.key, after)

    with log_off(), simulation:
        fleet = Fleet(
            simulation, shards, on_event=recorder.hear, read_span=ReadSpan(1e9, 1e9), listing_lag=0.0
        )
        recorder.records = put_all(fleet.kinesis, STREAM, given)
        fleet.dynamodb.on_change = row_changed
        is_async = why_it_runs_nothing(program) == ASYNC
        consumer: Any = fleet.consumer(AsyncConsumer if is_async else Consumer, "worker-1", **arguments)
        consumer._queue = _RecordedQueue(consumer._queue, recorder)
        run = _run_in_a_loop if is_async else _run
        run(program, consumer, simulation, timeout, unfinished)
    return result()


def _refuse(program: object, shards: Any, seed: Any, options: dict[str, Any]) -> None:
    if not callable(program):
        raise ConfigError(f"run_consumer takes a function of a consumer; it got {type(program).__name__}.")
    refuse_number("shards", shards, 1, 100)
    refuse_number("seed", seed)
    for name in sorted(_SET_BY_THE_RUN & options.keys()):
        raise ConfigError(f"{name}= is decided by run_consumer, which provides the stream. Do: drop it.")


def _run(
    program: Any, consumer: Any, simulation: Simulation, timeout: float, unfinished: Callable[[], RunFailed]
) -> None:
    def end_it() -> None:
        simulation.sleep(timeout)
        # Whatever it asks the consumer for is answered by that.
        consumer._failure = unfinished()
        consumer._wake()

    simulation.spawn("timeout", "timeout", end_it)
    with consumer:
        _refuse_what_nobody_runs(program(consumer))


def _refuse_what_nobody_runs(returned: object) -> None:
    """Raise ConfigError for a program that has read nothing, so that a test of it would pass whatever it does."""
    try:
        must_have_run("program", returned)
    except NeverRan:
        raise ConfigError(
            f"The program returned a {type(returned).__name__}, of which nothing has run. Do: pass the async def "
            "itself, or a function that goes through the records."
        ) from None


def _run_in_a_loop(
    program: Any, consumer: Any, simulation: Simulation, timeout: float, unfinished: Callable[[], RunFailed]
) -> None:
    until = simulation.now + timeout

    async def main() -> None:
        async with consumer:
            try:
                await asyncio.wait_for(program(consumer), timeout)
            except TimeoutError:
                if simulation.now < until:
                    raise
                raise unfinished() from None

    run_coroutine(simulation.runtime("program"), main())
