"""Workers of a simulation and all that surrounds them: stream, lease table, clocks, and the checker of deliveries.

Checkers of other guarantees are added in subclasses of World and SimulatedFleet.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.errors import PyKclError, StopTimedOut
from pykcl.events import BatchSkipped, Event
from pykcl.interfaces import Stream
from pykcl.local.shards import HOUR_MILLIS
from pykcl.local.stream import LocalKinesis, ReadSpan
from pykcl.model.shard import ShardListing
from pykcl.processor import RecordProcessor
from pykcl.runtime import Runtime
from pykcl.testing.fleet import STREAM, TABLE, SwitchingClient
from pykcl.testing.memory.dynamodb import Change, Fault, MemoryDynamoDB, Params
from pykcl.testing.memory.expressions import Item
from pykcl.testing.runtime import EPOCH_MILLIS, SimTask, Simulation
from pykcl.testing.simulation.delivery import DeliveryChecker, RecordLog, checkpoint_position
from pykcl.testing.simulation.faults import Faults
from pykcl.testing.simulation.guarantees import Violations
from pykcl.testing.simulation.processors import FaultyProcessor, Skips
from pykcl.testing.simulation.service_faults import (
    REQUEST_SECONDS,
    DynamoFaults,
    FaultyStream,
    Outages,
    ShortNumbers,
    StaleScan,
)
from pykcl.worker.options import WorkerSeams
from pykcl.worker.worker import Worker

FAILOVER = 10.0
GRACE = 25.0
LONG_RETENTION_HOURS = 168
MOST_SHARDS = 8
_POLL_SECONDS = 1.0
_PAGE_BYTES_PER_SHARD = 600
_DESCRIBES_UNTIL_ACTIVE = 3
_PROXY_AT_START = 0.5
_ASKED_BY_PROCESSORS = (
    "ownership_starts", "called", "batch_starts", "delivered", "shard_ends", "ownership_lost",
)  # fmt: skip


class Host(Protocol):
    """name: of the process and of its threads' group. worker_id: in the lease table."""

    name: str
    worker_id: str

    @property
    def is_over(self) -> bool:
        """True if it has stopped, by itself or because it was asked to."""

    def ask_to_stop(self) -> None: ...


class WorkerHost:
    """A pykcl worker in a process of its own. on_end: called when it ended, with the seconds its stop took.

    fine_at: when it was last seen not to have failed. had_joined: whether it had joined its fleet by then.
    """

    def __init__(
        self,
        name: str,
        worker: Worker,
        simulation: Simulation,
        on_end: Callable[[WorkerHost, float], None],
    ) -> None:
        self.name = name
        self.worker = worker
        self.worker_id = worker.worker_id
        self.failure: Exception | None = None
        self.timed_out = False
        self.has_started = False
        self.was_asked = False
        self.fine_at = simulation.now
        self.had_joined = False
        self._simulation = simulation
        self._on_end = on_end
        self._asked = simulation.runtime(name).event()
        self.task: SimTask = simulation.spawn(f"{name}-main", name, self._run)

    @property
    def is_over(self) -> bool:
        return self.task.finished

    def ask_to_stop(self) -> None:
        self.was_asked = True
        self._asked.set()
        if not self.has_started:
            # As a signal handler would: a start that waits for something gives up.
            self._simulation.spawn(f"{self.name}-signal", self.name, self._stop_quietly)

    def stop_again(self) -> None:
        """A second call of stop while the first one runs."""
        self._simulation.spawn(f"{self.name}-again", self.name, self._stop_quietly)

    def _run(self) -> None:
        try:
            self.worker.start()
        except PyKclError as error:
            self.failure = error
            return
        self.has_started = True
        while not self._asked.is_set() and self.worker.failure is None:
            self.fine_at, self.had_joined = self._simulation.now, self.worker.initialized
            self._asked.wait(_POLL_SECONDS)
        # It has reported it by now, while the stop may wait long for a processor. That may fail, too.
        self.failure = self.worker.failure
        started = self._simulation.now
        self._stop_quietly()
        self.failure = self.worker.failure
        self._on_end(self, self._simulation.now - started)

    def _stop_quietly(self) -> None:
        try:
            self.worker.stop()
        except StopTimedOut:
            self.timed_out = True


class World:
    """All services around the workers. processor: of the user, or None for one that only misbehaves."""

    streams: type[FaultyStream] = FaultyStream

    def __init__(
        self,
        simulation: Simulation,
        faults: Faults,
        options: dict[str, Any],
        violations: Violations,
        *,
        shards: int,
        processor: Callable[[], RecordProcessor] | None,
    ) -> None:
        self.simulation, self.faults, self.options = simulation, faults, options
        self.processor = processor
        self.violations = violations
        self.retention_hours = 24
        self.record_log = RecordLog(lambda: self.kinesis_millis() - self.retention_hours * HOUR_MILLIS)
        self.outages = Outages()
        if faults.has("F5.date") and faults.rng("F5.date").random() < _PROXY_AT_START:
            self.outages.put_proxy("", simulation.now, faults.rng("F5.date"))
            faults.note("F5.date", "from the start")
        self.malformed: set[tuple[str, str]] = set()
        self.on_request: Callable[[str, Params, str], None] = lambda operation, params, host: None
        self.kinesis_skew = 0
        self.numbers = ShortNumbers(EPOCH_MILLIS + int(simulation.now * 1000))
        self.kinesis = _kinesis(simulation.seed, self.kinesis_millis)
        self.kinesis.create_stream(STREAM, shards)
        if faults.has("F12.lowered"):
            self.set_retention(LONG_RETENTION_HOURS)
        self._listings: deque[tuple[float, ShardListing]] = deque(maxlen=50)
        self.note_shards()
        self.dynamodb = MemoryDynamoDB(
            runtime=simulation.runtime("dynamodb"),
            describes_until_active=_DESCRIBES_UNTIL_ACTIVE if faults.has("F18.creating") else 0,
            page_bytes=_page_bytes(faults, shards),
            author=lambda: simulation.current_group,
            on_change=simulation.insist(self._row_changed),
        )
        self.dynamo_faults = DynamoFaults(
            faults,
            self.outages,
            host=lambda: simulation.current_group,
            now=lambda: simulation.now,
            spares=lambda host: not host.startswith("w"),
            rows=self.rows,
        )
        self.dynamodb.fault = simulation.insist(self._request)
        self.healed_at = float("inf")
        self._recent: deque[tuple[float, Change]] = deque(maxlen=100)
        self._create_checkers()
        self.skips = Skips(self.delivery)

    def _create_checkers(self) -> None:
        self.delivery = DeliveryChecker(self.record_log, self.violations)
        self.delivery.may_start_early = self.faults.has("F5.date")
        for asked in _ASKED_BY_PROCESSORS:
            # A worker takes an error for its processor's own and tries again: one of a checker must not pass for that.
            setattr(self.delivery, asked, self.simulation.insist(getattr(self.delivery, asked)))

    # -- time and shards ---------------------------------------------------------------------------------------

    def kinesis_millis(self) -> int:
        return EPOCH_MILLIS + int(self.simulation.now * 1000) + self.kinesis_skew

    def note_shards(self) -> None:
        shards = self.kinesis.list_shards(STREAM, operation=None)
        self._listings.append((self.simulation.now, ShardListing(tuple(shards))))
        for shard in shards:
            self.record_log.parents[shard.shard_id] = tuple(shard.parents)
            if shard.hash_range is not None:
                self.record_log.ranges[shard.shard_id] = shard.hash_range

    def listing_before(self, seconds: float) -> ShardListing:
        """Return the answer of ListShards so many seconds ago."""
        then = self.simulation.now - seconds
        return next((listing for at, listing in reversed(self._listings) if at <= then), self._listings[0][1])

    def is_gone(self, shard_id: str) -> bool:
        return shard_id not in {s.shard_id for s in self.kinesis.list_shards(STREAM, operation=None)}

    def open_shards(self) -> list[str]:
        return [s.shard_id for s in self.kinesis.list_shards(STREAM, operation=None) if s.is_open]

    def set_retention(self, hours: int) -> None:
        """Set the retention period; what a shorter one takes is gone for good."""
        self.kinesis.set_retention(STREAM, hours)
        self.retention_hours = hours
        for shard_id in list(self.record_log.shards):
            self.record_log.shard(shard_id)

    def note_trimming(self) -> None:
        """Note that retention has taken records; for checkers of that."""

    def rows(self) -> dict[str, Any]:
        """The lease rows of this stream by key; without taking a lock, and not to be changed."""
        table = self.dynamodb.tables.get(TABLE)
        rows = table.rows if table else {}
        return {key: row for key, row in rows.items() if key in self.record_log.parents}

    def row(self, key: str) -> Any:
        """One of them, or None."""
        table = self.dynamodb.tables.get(TABLE)
        return table.rows.get(key) if table else None

    def owners(self) -> dict[str, str | None]:
        return {key: row.get("leaseOwner", {}).get("S") for key, row in self.rows().items()}

    # -- requests and events -----------------------------------------------------------------------------------

    def _request(self, operation: str, params: Params) -> Fault | None:
        self.on_request(operation, params, self.simulation.current_group)
        return self.dynamo_faults(operation, params)

    def _row_changed(self, change: Change) -> None:
        self._recent.append((self.simulation.now, change))
        if change.table == TABLE:
            shown = _short(change.after)
            self.simulation.trace.add(
                self.simulation.now, f"{change.author}: {change.operation} {change.key} -> {shown}"
            )

    def _rows_before(self, table: str, seconds: float) -> dict[str, Item | None]:
        """Return what changed in the last `seconds`, as it was before."""
        since = self.simulation.now - seconds
        before: dict[str, Item | None] = {}
        for at, change in reversed(self._recent):
            if at < since:
                break
            if change.table == table:
                before[change.key] = change.before
        return before

    def _heard(self, host: str, event: Event) -> None:
        if isinstance(event, BatchSkipped):
            self.skips.heard(host, event)
        self.simulation.trace.add(self.simulation.now, f"{host}: {event}")

    # -- hosts -------------------------------------------------------------------------------------------------

    def worker(
        self, name: str, *, worker_id: str | None = None, table: str = TABLE, stop: Callable[[], bool]
    ) -> Worker:
        """A pykcl worker of host `name`, not started. stop: what its processors call to stop it; whether it was new."""
        runtime = self.simulation.runtime(name)
        scan = StaleScan(self.dynamodb, self.faults, name, partial(self._rows_before, table))
        lease_table = DynamoDBLeaseTable(
            self._client(name, scan), table, runtime, request_timeout=REQUEST_SECONDS
        )
        seams = WorkerSeams(
            adapters=(lease_table, self._stream(name, runtime)),
            listeners=[self.simulation.insist(lambda event: self._heard(name, event))],
            runtime=runtime,
        )
        return Worker._with(
            seams,
            TABLE,
            stream=STREAM,
            table_name=table,
            processor=lambda: self._processor(name, stop),
            worker_id=worker_id or name,
            failover_time=FAILOVER,
            **self.options_of(name),
        )

    def options_of(self, name: str) -> dict[str, Any]:
        """Return the options of the worker of host `name`: by default those of all."""
        del name
        return self.options

    def _client(self, name: str, scan: StaleScan) -> SwitchingClient:
        del name
        return SwitchingClient(self.dynamodb, self.simulation.switch, scan=scan)

    def _stream(self, name: str, runtime: Runtime) -> Stream:
        return self._faulty_stream(name, runtime)

    def _faulty_stream(
        self, name: str, runtime: Runtime, over_budget: Callable[[str], None] = lambda shard: None
    ) -> FaultyStream:
        return self.streams(
            self.kinesis,
            runtime,
            host=name,
            numbers=self.numbers,
            faults=self.faults,
            outages=self.outages,
            now=lambda: self.simulation.now,
            kinesis_millis=self.kinesis_millis,
            switch=self.simulation.switch,
            over_budget=over_budget,
            listing_before=self.listing_before,
            on_fetch=self._fetched,
            pushes_in=lambda: self.simulation.runtime("kinesis"),
        )

    def _processor(self, name: str, stop: Callable[[], bool]) -> FaultyProcessor:
        return FaultyProcessor(
            name,
            self.simulation,
            self.faults,
            self.delivery,
            by_hand=self.options["checkpoint_mode"] == "manual",
            inner=self.processor() if self.processor else None,
            stop_worker=stop,
            skips=self.skips if self.options.get("on_error") == "skip" else None,
        )

    def _fetched(self, shard_id: str, sequence_number: str) -> None:
        if (shard_id, sequence_number) in self.malformed:
            self.malformed.discard((shard_id, sequence_number))
            self.faults.note("F16", f"{shard_id} {sequence_number}")


class SimulatedFleet:
    """alive: hosts that have neither been killed nor asked to stop. leaving: those that were asked to stop, or ended.

    wanted: how many workers there should be. clock_rate: how fast the next worker's clock runs. phase: "faults", or
    "rest" after the last of them.
    """

    def __init__(self, world: World, wanted: int) -> None:
        self._world = world
        self.wanted = wanted
        self.clock_rate: Callable[[], float] = lambda: 1.0
        self.alive: dict[str, Host] = {}
        self.leaving: dict[str, Host] = {}
        self.phase = "faults"
        self._asked_at_rest: set[str] = set()
        self._count = 0

    @property
    def started(self) -> int:
        """Number of workers so far."""
        return self._count

    def next_name(self) -> str:
        return f"w{self._count + 1}"

    def start(self, worker_id: str | None = None) -> WorkerHost:
        name = self.next_name()
        self._count += 1
        self._world.simulation.clock(name).run_at(self.clock_rate(), self._world.simulation.now)
        worker = self._world.worker(name, worker_id=worker_id, stop=lambda: self._stopped_by_processor(name))
        host = WorkerHost(name, worker, self._world.simulation, self._ended)
        self.alive[name] = host
        return host

    def fewest(self) -> int:
        """Return the number of workers that can hold the leases of all shards of a simulation."""
        most = self._world.options.get("max_leases", MOST_SHARDS)
        return int(-(-MOST_SHARDS // most))

    def workers(self) -> list[WorkerHost]:
        return [host for _, host in sorted(self.alive.items()) if isinstance(host, WorkerHost)]

    def awake_workers(self) -> list[WorkerHost]:
        return [host for host in self.workers() if not self._world.simulation.is_frozen(host.name)]

    def kill(self, name: str) -> None:
        self._world.simulation.kill(name)
        self._world.delivery.fates[name] = "crash"
        for hosts in (self.alive, self.leaving):
            hosts.pop(name, None)

    def freeze(self, name: str, seconds: float) -> None:
        self._world.simulation.freeze(name, seconds)
        self._world.delivery.fates[name] = "pause"

    def strike(self, name: str, task: SimTask) -> None:
        """End one thread of this host."""
        del name
        self._world.simulation.strike(task)

    def ask_to_stop(self, host: Host) -> None:
        self.alive.pop(host.name, None)
        self._leaves(host)
        if self.phase == "rest":
            self._asked_at_rest.add(host.name)
        host.ask_to_stop()

    def _stopped_by_processor(self, name: str) -> bool:
        """False: it was asked before."""
        host = self.alive.get(name)
        if not isinstance(host, WorkerHost):
            return False
        # Called by its own processor: the first call only asks, the process then stops in order.
        host.was_asked = True
        host.worker.stop()
        self.alive.pop(name, None)
        self._leaves(host)
        host.ask_to_stop()
        return True

    def _leaves(self, host: Host) -> None:
        self.leaving[host.name] = host

    def all_have_left(self) -> bool:
        return all(host.is_over for host in self.leaving.values())

    def replace_dead(self) -> None:
        """Hosts that ended by themselves leave the fleet."""
        for host in self.workers():
            if host.is_over or host.worker.failure is not None:
                del self.alive[host.name]
                self._leaves(host)

    def _ended(self, host: WorkerHost, seconds: float) -> None:
        """Called by the host's own thread when its worker's stop returned, with the seconds that took."""
        del seconds
        if host.name in self._asked_at_rest and not host.timed_out:
            self._world.delivery.fates[host.name] = "clean stop"


def _page_bytes(faults: Faults, shards: int) -> int:
    """Return the bytes of a page of a scan: small if a fault is to happen between two pages."""
    cut = faults.has("F8.broken") or faults.has("F8.stale")
    return max(1500, _PAGE_BYTES_PER_SHARD * shards) if cut else 1_000_000


def _short(row: Any) -> str:
    """A row in one line for people."""
    if row is None:
        return "deleted"
    try:
        position = checkpoint_position(row)
    except (KeyError, ValueError):
        return "unreadable"
    owner = row.get("leaseOwner", {}).get("S", "-")
    return (
        f"owner {owner} counter {row.get('leaseCounter', {}).get('N')} checkpoint {position[0]}:{position[1]}"
    )


def _kinesis(seed: int, clock: Callable[[], int]) -> LocalKinesis:
    """A Kinesis that answers as AWS does: each call covers some stream time, and ListShards lags."""
    rng = random.Random(f"{seed}/kinesis")  # noqa: S311 - reproducible
    span = ReadSpan(rng.choice([5.0, 60.0, 600.0]), 3600.0, end_alone=rng.choice([0.5, 1.0]))
    return LocalKinesis(clock, read_span=span, listing_lag=rng.choice([0.0, 0.5, 2.0]), seed=seed)
