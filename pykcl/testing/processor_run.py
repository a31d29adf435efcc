"""`run_processor`: one processor under the unmodified worker, over a stream and a lease table in simulated time."""

from __future__ import annotations

import difflib
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from pykcl.config import Config
from pykcl.errors import ConfigError, ProcessorFailed
from pykcl.handlers.functions import processor_of
from pykcl.local.errors import AwsError
from pykcl.local.stream import ReadSpan
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import Record
from pykcl.processor import ProcessorFactory
from pykcl.stores.expressions import Item
from pykcl.stores.requests import Params
from pykcl.testing.fleet import STREAM, TABLE, Fleet
from pykcl.testing.input_records import InputRecord, checked_records, names_in, put_all, refuse_number
from pykcl.testing.memory.dynamodb import Change, Fault, throttled, timed_out, unreachable
from pykcl.testing.recorder import Call, RecordedLetters, Recorder, id_of
from pykcl.testing.result import Result, RunFailed, refuse_unfinished
from pykcl.testing.runtime import EPOCH_MILLIS, Simulation
from pykcl.testing.runtime.watchdog import UserCodeFailed, Watchdog
from pykcl.worker.options import given_destination
from pykcl.worker.processor_factory import checked_processor
from pykcl.worker.worker import Worker

ENDS = ("shard_end", "stop", "lease_lost", "crash", "idle")
FAULTS = {
    "checkpoint_throttled": "DynamoDB throttles half of the checkpoints",
    "lost_answers": "a quarter of the writes to the lease table is done and its answer lost",
    "lease_table_down": "from the first batch on DynamoDB is unreachable, for longer than a lease lasts",
    "throttled_reads": "Kinesis throttles a third of the GetRecords calls",
}
"""Names that `faults` takes, and what each of them does. The seed decides which call it hits."""

_SHARES = {"checkpoint_throttled": 1 / 2, "lost_answers": 1 / 4, "throttled_reads": 1 / 3}
_SET_BY_THE_RUN = {
    "application", "clients", "config", "metrics", "metrics_sinks", "on_event", "processor",
    "region", "session", "initial_position", "stream", "table_name", "http_transport", "record_encoding",
    "worker_id",
}  # fmt: skip
"""Options of Worker that a run gives by itself."""
_LONGEST_RETENTION_HOURS = 8760
_POLL_SECONDS = 0.1
_IDLE_SECONDS = 2.0
_OUTAGE_FAILOVERS = 1.5
_OTHER_WORKER = "another-worker"


def run_processor(
    what: ProcessorFactory | Callable[..., object],
    records: Iterable[Any],
    *,
    shards: int = 1,
    end: str = "shard_end",
    seed: int = 0,
    faults: Iterable[str] | None = (),
    times: int = 1,
    timeout: float = 600.0,
    **options: Any,
) -> Result:
    """Run a processor over records, in simulated time, and return what happened to it.

    what: a RecordProcessor subclass, a zero-argument factory, or a function as `handler` takes it. records: from
    `records`, or plain values.
    options: fields of Config, such as checkpoint_mode="manual". dead_letters: as Worker takes it; by default, if an
    option gives up records, they are kept in memory. timeout: simulated seconds. faults: names in `FAULTS`.
    seed: decides which thread runs first, and which calls the faults hit; the same seed takes the same course.

    end: "shard_end": the shards are closed and read to their end. "stop": the worker is stopped once all records are
    processed. "idle": the worker has nothing more to do. "lease_lost": another worker takes the lease of each shard
    while the processor has its middle record, and lets it expire. "crash": the process dies while the processor has
    the middle record: right after a checkpoint by the processor, else when the batch has returned. After the last two
    the run continues until all records are processed. With windows, records are processed once their window is closed;
    only "stop" does not wait for that. times: how many crashes, or losses of each lease; of "stop",
    how many workers follow one another, each stopped after its part of the records.

    Worker, lease table, stream and time are simulated; user code and threads of its own are not: only SimulatedClock
    lets a call take simulated time, and only the thread that pykcl calls may use that clock and the checkpointer.

    Raises RunFailed when the processor does not get to that end, UserCodeFailed when it hangs, waits for real time or
    checkpoints in a thread of its own, ConfigError for arguments that cannot be used.
    """
    __tracebackhide__ = True
    try:
        given = checked_records(records)
        config = _checked_config(shards, end, seed, times, timeout, options)
        chosen = _checked_faults(faults)
        create = checked_processor(processor_of(what))
        watchdog = Watchdog()

        def body() -> Result:
            recorder = Recorder(watchdog)
            run = _Run(recorder, config, chosen, end=end, seed=seed, times=times, timeout=timeout)
            with log_off():
                return run.run(create, given, shards, _with_recorded_letters(options, recorder))

        return watchdog.run(body)
    except (RunFailed, UserCodeFailed, ConfigError) as error:
        # The frames of the simulation say nothing to its user; those of the processor are with the cause.
        raise error.with_traceback(None)  # noqa: B904 - the same error


@contextmanager
def log_off() -> Iterator[None]:
    """Silence the log: a failure says what happened, and the result has every event."""
    log = logging.getLogger("pykcl")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


class _Run:
    """One run: its workers, one after the other, and where they are interrupted."""

    def __init__(
        self,
        recorder: Recorder,
        config: Config,
        faults: frozenset[str],
        *,
        end: str,
        seed: int,
        times: int,
        timeout: float,
    ) -> None:
        self._recorder, self._config = recorder, config
        self._end, self._seed, self._times, self._timeout = end, seed, times, timeout
        self._simulation = Simulation(seed=seed)
        self._started = self._simulation.now
        self._faults = _Faults(faults, self._simulation, recorder, config.failover_time)
        self._interruptions: dict[str, int] = {}
        self._totals: dict[str, int] = {}
        self._worker: Worker | None = None
        self._workers = self._settled = 0
        recorder.is_manual = config.checkpoint_mode == "manual"
        recorder.hears_checkpoints = False
        if end == "lease_lost":
            recorder.before = self._take_the_lease
        elif end == "crash":
            recorder.written = recorder.after = self._crash

    def run(
        self, create: ProcessorFactory, inputs: Sequence[InputRecord], shards: int, options: dict[str, Any]
    ) -> Result:
        self._create, self._options = create, options
        with self._simulation as simulation:
            self._clock = _StreamClock(simulation, inputs)
            self._fleet = fleet = Fleet(
                simulation,
                shards,
                clock=self._clock.millis,
                on_event=self._recorder.hear,
                read_span=ReadSpan(1e9, 1e9),
                listing_lag=0.0,
            )
            self._put(inputs)
            fleet.dynamodb.on_change = self._row_changed
            fleet.dynamodb.fault, fleet.kinesis.fault = self._faults.of_dynamodb, self._faults.of_kinesis
            self._start_worker()
            error = None
            try:
                self._run_to_the_end()
            except ProcessorFailed as failure:
                error = failure
            return self._result(error)

    def _put(self, inputs: Sequence[InputRecord]) -> None:
        kinesis, recorder = self._fleet.kinesis, self._recorder
        kinesis.set_retention(STREAM, _LONGEST_RETENTION_HOURS)
        recorder.shards = set(self._fleet.open_shards())
        recorder.records = put_all(kinesis, STREAM, inputs, self._clock.set_arrival)
        for record in recorder.records:
            self._totals[record.shard_id] = self._totals.get(record.shard_id, 0) + 1
        if self._end == "shard_end":
            for shard in sorted(recorder.shards):
                kinesis.split(STREAM, shard)

    def _row_changed(self, change: Change) -> None:
        before, after = (checkpoint_in(row) for row in (change.before, change.after))
        if before is not None and after is not None and before != after:
            self._recorder.checkpoint(change.key, after)

    def _start_worker(self) -> None:
        self._workers += 1
        name = f"worker-{self._workers}"
        self._simulation.clock(name).wall_offset = self._clock.offset
        create = self._recorder.factory(self._create, name)
        self._worker = self._fleet.start(name, processor=create, **self._options)

    def _result(self, error: Exception | None) -> Result:
        return Result(
            self._recorder, seconds=self._simulation.now - self._started, error=error, seed=self._seed
        )

    # -- the end -----------------------------------------------------------------------------------------------

    def _run_to_the_end(self) -> None:
        total = len(self._recorder.records)
        if self._end == "shard_end":
            shards = self._recorder.shards or ()
            self._wait(lambda: all(map(self._recorder.has_ended, shards)), "The shards did not end")
            return
        parts = self._times if self._end == "stop" else 1
        for part in range(1, parts + 1):
            wanted = -(-total * part // parts)
            self._wait(partial(self._has_settled, wanted), "Not all records were processed")
            if self._end == "stop" and self._worker is not None:
                self._worker.stop()
            if part < parts:
                self._start_worker()
        if self._end != "stop":
            # Long enough for what follows the last record: its checkpoint, and reads that bring nothing.
            interval = self._config.checkpoint_interval if self._config.checkpoint_mode == "interval" else 0.0
            self._simulation.sleep(interval + _IDLE_SECONDS)

    def _wait(self, condition: Callable[[], bool], why: str) -> None:
        while not condition():
            if self._worker is None:
                self._start_worker()
            elif self._worker.failure is not None:
                raise self._worker.failure
            if self._simulation.now - self._started >= self._timeout:
                result = self._result(None)
                why = f"{why} within {self._timeout:g} simulated seconds"
                refuse_unfinished(result, why, missing=result.unsettled)
            self._simulation.sleep(_POLL_SECONDS)

    def _has_settled(self, wanted: int) -> bool:
        """Return whether so many records are settled, counted from the first one on."""
        records = self._recorder.records
        while self._settled < wanted and self._is_past(records[self._settled]):
            self._settled += 1
        return self._settled >= wanted

    def _is_past(self, record: Record) -> bool:
        """Return whether the run may go on after this record. A stop comes before the last window is closed."""
        returned = self._end == "stop" and id_of(record) in self._recorder.returned
        return returned or self._recorder.is_settled(record)

    # -- interruptions, in the thread of the lease ---------------------------------------------------------------

    def _take_the_lease(self, call: Call) -> None:
        handed = sum(1 for shard, _, _ in self._recorder.handed if shard == call.shard)
        if self._is_due(call.shard, handed, self._totals.get(call.shard, 0)):
            rows = self._fleet.dynamodb.tables[TABLE].rows
            counter = int(rows[call.shard]["leaseCounter"]["N"]) + 1
            taken = {"leaseOwner": {"S": _OTHER_WORKER}, "leaseCounter": {"N": str(counter)}}
            rows[call.shard] = {**rows[call.shard], **taken}

    def _crash(self, call: Call) -> None:
        if self._is_due("", len(self._recorder.handed), len(self._recorder.records)):
            self._simulation.kill(call.worker)
            self._worker = None
            # Returns in no thread of a killed group.
            self._simulation.switch()

    def _is_due(self, about: str, handed: int, total: int) -> bool:
        """Return whether to interrupt now: `times` interruptions are spread evenly over the records."""
        before = self._interruptions.get(about, 0)
        if before == self._times or handed <= total * (before + 1) // (self._times + 1):
            return False
        self._interruptions[about] = before + 1
        return True


def checkpoint_in(row: Item | None) -> Checkpoint | None:
    if row is None or "checkpoint" not in row:
        return None
    sub = row.get("checkpointSubSequenceNumber", {}).get("N", "0")
    return Checkpoint(row["checkpoint"]["S"], int(sub))


class _StreamClock:
    """The clock of Kinesis in epoch milliseconds. It starts at the last `arrived` of the records.

    Raises ConfigError for times that go back, or that no stream keeps.
    """

    def __init__(self, simulation: Simulation, inputs: Sequence[InputRecord]) -> None:
        self._simulation = simulation
        self._arrival: int | None = None
        self.offset = 0
        arrivals = [_millis(each.arrived) for each in inputs if each.arrived is not None]
        if not arrivals:
            return
        if arrivals != sorted(arrivals) or any(each.arrived is None for each in inputs[: len(arrivals)]):
            raise ConfigError(
                "The times of arrival go back from one record to a later one. Do: give the records in their order, "
                "those without arrived= last."
            )
        if arrivals[-1] - arrivals[0] >= (_LONGEST_RETENTION_HOURS - 1) * 3_600_000:
            raise ConfigError(
                "The times of arrival span more than a year, which no stream keeps. Do: give later ones."
            )
        self.offset = arrivals[-1] - self.millis()
        self._arrival = arrivals[0]

    def millis(self) -> int:
        if self._arrival is not None:
            return self._arrival
        return EPOCH_MILLIS + int(self._simulation.now * 1000) + self.offset

    def set_arrival(self, arrived: datetime | None) -> None:
        """Show this time, or the simulation's again."""
        self._arrival = None if arrived is None else _millis(arrived)


def _millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


class _Faults:
    """The faults of one run, each with its own generator."""

    def __init__(
        self, names: frozenset[str], simulation: Simulation, recorder: Recorder, failover_time: float
    ) -> None:
        self._names, self._simulation, self._recorder = names, simulation, recorder
        self._outage = failover_time * _OUTAGE_FAILOVERS
        self._down_until: float | None = None
        self._rngs = {name: random.Random(f"{simulation.seed}/{name}") for name in _SHARES}  # noqa: S311

    def of_dynamodb(self, operation: str, params: Params) -> Fault | None:
        if "lease_table_down" in self._names and self._recorder.handed:
            if self._down_until is None:
                self._down_until = self._simulation.now + self._outage
            if self._simulation.now < self._down_until:
                return Fault(before=unreachable())
        if operation != "UpdateItem":
            return None
        if "checkpoint = " in params["UpdateExpression"] and self._hits("checkpoint_throttled"):
            return Fault(before=throttled(operation))
        return Fault(after=timed_out()) if self._hits("lost_answers") else None

    def of_kinesis(self, operation: str, stream: str, shard: str) -> None:
        if operation == "GetRecords" and self._hits("throttled_reads"):
            raise AwsError("ProvisionedThroughputExceededException", f"Rate exceeded for shard {shard}.")

    def _hits(self, name: str) -> bool:
        return name in self._names and self._rngs[name].random() < _SHARES[name]


def _checked_config(
    shards: Any, end: Any, seed: Any, times: Any, timeout: Any, options: dict[str, Any]
) -> Config:
    """Return the configuration of the workers. Raises ConfigError for an argument that cannot be used."""
    _refuse_unknown("end", [end], ENDS)
    refuse_number("shards", shards, 1, 100)
    refuse_number("times", times, 1, 100)
    refuse_number("seed", seed)
    if times > 1 and end in ("shard_end", "idle"):
        raise ConfigError(
            f'times={times} has no meaning with end={end!r}. Do: use "stop", "lease_lost" or "crash", or drop times.'
        )
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ConfigError(
            f"timeout={timeout!r:.80} is not a positive number of simulated seconds. Do: give one."
        )
    for name in sorted(_SET_BY_THE_RUN & options.keys()):
        raise ConfigError(
            f"{name}= is decided by run_processor, which provides the stream and the table. Do: drop it."
        )
    if _is_kept_here(options):
        options = {**options, "dead_letters": "callable"}
    return Config.from_options({"application": TABLE, "stream": STREAM, **options})


def _is_kept_here(options: dict[str, Any]) -> bool:
    """Return whether the dead letters go to an object of the test, or, with such a policy, to nobody that it names."""
    if options.get("dead_letters") is None:
        return any(options.get(name) for name in ("max_attempts", "bisect", "max_record_age"))
    return not isinstance(options["dead_letters"], str)


def _with_recorded_letters(options: dict[str, Any], recorder: Recorder) -> dict[str, Any]:
    if not _is_kept_here(options):
        return options
    given_destination(Config(application=TABLE, stream=STREAM), options.get("dead_letters"))
    return {**options, "dead_letters": RecordedLetters(recorder, options.get("dead_letters"))}


def _checked_faults(faults: Any) -> frozenset[str]:
    names = names_in("faults", faults)
    _refuse_unknown("fault", names, FAULTS)
    return frozenset(names)


def _refuse_unknown(what: str, given: Iterable[Any], known: Iterable[str]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            do = f"Do: write {near[0]!r}" if near else "Do: write one of them"
            raise ConfigError(f"{what}={name!r:.80} is none of {', '.join(map(repr, known))}. {do}.")
