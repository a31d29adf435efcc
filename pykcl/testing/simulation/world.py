"""Hosts and their surroundings: stream, lease table, clocks and checkers of one simulation."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.errors import PyKclError, StopTimedOut
from pykcl.events import BatchSkipped, DataLost, Event, ThreadsNotStopped
from pykcl.local.shards import HOUR_MILLIS
from pykcl.local.stream import LocalKinesis, ReadSpan
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import Record
from pykcl.model.shard import ShardListing
from pykcl.processor import RecordProcessor
from pykcl.testing.java.options import JavaOptions
from pykcl.testing.java.peer import JavaPeer
from pykcl.testing.memory.dynamodb import Change, Fault, MemoryDynamoDB, Params
from pykcl.testing.memory.values import Item
from pykcl.testing.runtime import EPOCH_MILLIS, SimTask, Simulation
from pykcl.testing.simulation.checkers.delivery import DeliveryChecker
from pykcl.testing.simulation.checkers.losses import DeletedRows
from pykcl.testing.simulation.checkers.observer import Observer
from pykcl.testing.simulation.checkers.rows import RowChecker, is_about_the_shard_only
from pykcl.testing.simulation.checkers.validity import ValidityChecker
from pykcl.testing.simulation.clients import InstrumentedClient, InstrumentedStream
from pykcl.testing.simulation.faults import Faults
from pykcl.testing.simulation.guarantees import Guarantee, Violations
from pykcl.testing.simulation.processors import FaultyProcessor, Skips
from pykcl.testing.simulation.record_log import END, Position, RecordLog, checkpoint_position, position_of
from pykcl.testing.simulation.service_faults import (
    REQUEST_SECONDS,
    STREAM,
    DynamoFaults,
    FaultyStream,
    Outages,
    ShortNumbers,
    StaleScan,
)
from pykcl.worker.options import WorkerSeams
from pykcl.worker.worker import Worker

_POLL_SECONDS = 1.0


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
        started = self._simulation.now
        self._stop_quietly()
        self.failure = self.worker.failure
        self._on_end(self, self._simulation.now - started)

    def _stop_quietly(self) -> None:
        try:
            self.worker.stop()
        except StopTimedOut:
            self.timed_out = True


class JavaHost:
    """A scripted Java KCL 2.x worker."""

    def __init__(self, peer: JavaPeer, simulation: Simulation) -> None:
        self.name = self.worker_id = peer.name
        self._peer = peer
        self._simulation = simulation
        self._stopping: SimTask | None = None
        peer.start()

    @property
    def is_over(self) -> bool:
        return self._stopping is not None and self._stopping.finished

    def ask_to_stop(self) -> None:
        if self._stopping is None:
            self._stopping = self._simulation.spawn(f"{self.name}-stop", self.name, self._peer.stop)


TABLE = "orders-app"
FAILOVER = 10.0
_PAGE_BYTES_PER_SHARD = 600
_DESCRIBES_UNTIL_ACTIVE = 3
LONG_RETENTION_HOURS = 168
SETTLING = FAILOVER / 2 + REQUEST_SECONDS
"""Seconds in which a robbed owner notices, and for which its thief waits: a heartbeat, and the answer to it."""
SLOWEST_CLOCK = 0.9
_MOMENT = 0.25
_ASKED_BY_PROCESSORS = (
    "ownership_starts", "called", "batch_starts", "delivered", "shard_ends", "ownership_lost",
)  # fmt: skip
_LAST_ANSWERS = 20.0
"""Seconds after the simulation in which the last of its delayed answers come."""


class World:
    """All services around the workers. processor: of the user, or None for one that only misbehaves."""

    def __init__(
        self,
        simulation: Simulation,
        faults: Faults,
        options: dict[str, Any],
        *,
        shards: int,
        processor: Callable[[], RecordProcessor] | None,
        blind: bool,
    ) -> None:
        self.simulation, self.faults, self.options = simulation, faults, options
        self.processor = processor
        self.violations = Violations(blind=blind)
        self.retention_hours = 24
        self.record_log = RecordLog(lambda: self.kinesis_millis() - self.retention_hours * HOUR_MILLIS)
        self.outages = Outages()
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
        self._streams: dict[str, FaultyStream] = {}
        self.healed_at = float("inf")
        self.left_behind: dict[str, frozenset[str]] = {}
        self.lost: list[DataLost] = []
        self._recent: deque[tuple[float, Change]] = deque(maxlen=100)
        self.must_be_reported: dict[str, set[Position]] = {}
        self._create_checkers()
        self.skips = Skips(self.delivery)

    def _create_checkers(self) -> None:
        self.delivery = DeliveryChecker(self.record_log, self.violations)
        for asked in _ASKED_BY_PROCESSORS:
            # A worker takes an error for its processor's own and tries again: one of a checker must not pass for that.
            setattr(self.delivery, asked, self.simulation.insist(getattr(self.delivery, asked)))
        self.rows_checker = RowChecker(
            self.record_log,
            self.violations,
            is_peer=lambda h: not h.startswith("w"),
            rows=self.rows,
            is_gone=self.is_gone,
        )
        self.rows_checker.has_ended = self.delivery.has_ended
        self.beliefs = ValidityChecker(
            self.violations,
            now=lambda: self.simulation.now,
            is_frozen=self.simulation.is_frozen,
            steal_overlap=self._steal_overlap,
            drift_overlap=self._drift_overlap,
        )
        self.simulation.on_switch = self.beliefs.poll
        self.delivery.believes = self._may_believe
        self.observer = Observer(
            self.simulation,
            self.record_log,
            self.violations,
            self.delivery,
            self.beliefs,
            options=self.options,
            failover=FAILOVER,
            settling=SETTLING,
            row=self.row,
            rows=self.rows,
            worker_ids=self.rows_checker.worker_ids,
            is_gone=self.is_gone,
            by_user=self.processor is not None,
        )
        self.deleted_rows = DeletedRows(
            self.must_be_reported, now=lambda: self.simulation.now, joined=self.observer.joined
        )
        self.observer.ownership.on_taken = lambda host, key: self._streams[host].starts_anew(key)

    @property
    def taken(self) -> int:
        """Number of leases that moved to a pykcl worker, as the rows say."""
        return self.observer.ownership.taken

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
        """Retention took something: from now on its loss has to be reported, where the table says that it was read."""
        # Java steps over what retention took without a word.
        rows = {} if self.faults.has("F20") else self.rows()
        for key, row in rows.items():
            position = checkpoint_position(row)
            # What went before anybody had read that far was never known to anybody. And of the rest a batch that is
            # under way may still come to be delivered.
            unread = {lost for lost in self.record_log.shard(key).never_delivered() if lost > position}
            if 0 < position[0] < END[0] and unread:
                self.must_be_reported.setdefault(key, set()).update(unread)

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

    def _steal_overlap(self) -> float:
        """Return the seconds until the previous owner notices: its next heartbeat, or its deadline if none succeeds."""
        if self.simulation.now < self.healed_at + _LAST_ANSWERS:
            return FAILOVER
        return SETTLING / SLOWEST_CLOCK + _MOMENT

    def _may_believe(self, host: str, shard_id: str) -> bool:
        # A host that checked its deadline, was frozen and continues cannot know how late it is.
        return self.beliefs.believes(host, shard_id) or self.observer.frozen.just_ended(host)

    def _drift_overlap(self, first: str, second: str) -> float:
        """Return the seconds by which the slower clock lets its worker hold a lease longer than the other waits."""
        rates = [self.simulation.clock(name).rate for name in (first, second)]
        return max(0.0, FAILOVER * (0.9 / min(rates) - 1 / max(rates)))

    # -- requests and events -----------------------------------------------------------------------------------

    def _request(self, operation: str, params: Params) -> Fault | None:
        host = self.simulation.current_group
        if params.get("TableName") == TABLE:
            self.rows_checker.request_sent(operation, params, host)
        self.on_request(operation, params, host)
        return self.dynamo_faults(operation, params)

    def _row_changed(self, change: Change) -> None:
        self._recent.append((self.simulation.now, change))
        if change.table != TABLE:
            return
        shown = _short(change.after)
        self.simulation.trace.add(
            self.simulation.now, f"{change.author}: {change.operation} {change.key} -> {shown}"
        )
        self.rows_checker.row_changed(change)
        self.deleted_rows.row_changed(change)
        if is_about_the_shard_only(change):
            # It says nothing of who works on the lease, neither to workers nor to the checkers of that.
            return
        self.observer.row_changed(change)
        if change.after:
            owner = change.after.get("leaseOwner", {}).get("S")
            self.beliefs.wrote_owner(change.author, change.key, owner)

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
        if isinstance(event, ThreadsNotStopped):
            self.left_behind[host] = frozenset(event.threads)
        if isinstance(event, DataLost):
            self.lost.append(event)
        self.observer.heard(host, event)
        self.simulation.trace.add(self.simulation.now, f"{host}: {event}")

    # -- hosts -------------------------------------------------------------------------------------------------

    def worker(
        self, name: str, *, worker_id: str | None = None, table: str = TABLE, stop: Callable[[], bool]
    ) -> Worker:
        """A pykcl worker of host `name`, not started. stop: what its processors call to stop it; whether it was new."""
        runtime = self.simulation.runtime(name)
        lease_table = DynamoDBLeaseTable(
            InstrumentedClient(
                self.dynamodb,
                self.simulation.switch,
                StaleScan(self.dynamodb, self.faults, name, partial(self._rows_before, table)),
                name,
                self.observer,
            ),
            table,
            runtime,
            request_timeout=REQUEST_SECONDS,
        )
        stream = FaultyStream(
            self.kinesis,
            runtime,
            host=name,
            numbers=self.numbers,
            faults=self.faults,
            outages=self.outages,
            now=lambda: self.simulation.now,
            kinesis_millis=self.kinesis_millis,
            switch=self.simulation.switch,
            over_budget=lambda shard: self.violations.expect(
                False, Guarantee.BUDGETS, f"{name} reads {shard} more than five times a second"
            ),
            listing_before=self.listing_before,
            on_fetch=self._fetched,
        )
        self._streams[name] = stream
        self.rows_checker.worker_ids[name] = worker_id or name
        seams = WorkerSeams(
            adapters=(lease_table, InstrumentedStream(stream, name, self.observer)),
            listeners=[self.simulation.insist(lambda event: self._heard(name, event))],
            runtime=runtime,
        )
        worker = Worker._with(
            seams,
            TABLE,
            stream=STREAM,
            table_name=table,
            processor=lambda: self._processor(name, stop),
            worker_id=worker_id or name,
            failover_time=FAILOVER,
            **self.options,
        )
        self.beliefs.watch(name, worker._held)
        return worker

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

    def java(self, name: str, rng: random.Random) -> JavaHost:
        """A Java worker, started."""
        runtime = self.simulation.runtime(name)
        stream = FaultyStream(
            self.kinesis,
            runtime,
            host=name,
            numbers=self.numbers,
            faults=self.faults,
            outages=Outages(),
            now=lambda: self.simulation.now,
            kinesis_millis=self.kinesis_millis,
            switch=self.simulation.switch,
            over_budget=lambda _: None,
            listing_before=None,
        )
        options = JavaOptions(
            failover=FAILOVER, startup_wait=rng.uniform(1, 5), parent_poll=2.0, two_phase=rng.random() < 0.3
        )
        peer = JavaPeer(
            name,
            runtime=runtime,
            client=self.dynamodb,
            table=TABLE,
            stream=stream,
            on_records=self._java_delivers,
            options=options,
        )
        return JavaHost(peer, self.simulation)

    def _java_delivers(self, name: str, shard_id: str, records: Sequence[Record]) -> Checkpoint | None:
        positions = [position_of(r.sequence_number, r.sub_sequence_number) for r in records]
        self.delivery.java_delivers(name, shard_id, positions)
        return None


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
