"""The whole world of the project's own simulations: every checker, Java peers, and why a worker may fail."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence, Set

from pykcl.errors import InternalError, ProcessorFailed, SetupError, TableGone
from pykcl.events import DataLost, Event, ThreadsNotStopped
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import Record
from pykcl.runtime import Runtime
from pykcl.testing.fleet import TABLE
from pykcl.testing.memory.dynamodb import Change, Fault, Params
from pykcl.testing.runtime import SimTask, Simulation
from pykcl.testing.simulation.delivery import END, Position, checkpoint_position, position_of
from pykcl.testing.simulation.guarantees import Guarantee
from pykcl.testing.simulation.service_faults import (
    REQUEST_SECONDS,
    FaultyStream,
    Outages,
    StaleScan,
    kind_of_write,
)
from pykcl.testing.simulation.world import FAILOVER, GRACE, Host, SimulatedFleet, WorkerHost, World
from pykcl.worker.worker import Worker
from tests.java_peer.options import JavaOptions
from tests.java_peer.peer import JavaPeer
from tests.simulation.checkers.edits import EditedCheckpoints
from tests.simulation.checkers.losses import DeletedRows
from tests.simulation.checkers.observer import Observer
from tests.simulation.checkers.rows import RowChecker, is_about_the_shard_only
from tests.simulation.checkers.validity import ValidityChecker
from tests.simulation.clients import InstrumentedClient, InstrumentedStream
from tests.simulation.faults import FleetFaults

SETTLING = FAILOVER / 2 + REQUEST_SECONDS
"""Seconds in which a robbed owner notices, and for which its thief waits: a heartbeat, and the answer to it."""
SLOWEST_CLOCK = 0.9
STOP_MARGIN = 6.0
_MOMENT = 0.25
_LAST_ANSWERS = 20.0
"""Seconds after the simulation in which the last of its delayed answers come."""
_SCAN_SECONDS = 2.0
_HELPERS = 8
_OWN_THREADS = 4
_CAUSED_WITHIN = 5.0
"""Seconds between the cause of a failure and the failure."""


class JavaHost:
    """A scripted Java worker."""

    def __init__(self, peer: JavaPeer, simulation: Simulation) -> None:
        self.name = self.worker_id = peer.name
        self.peer = peer
        self._simulation = simulation
        self._stopping: SimTask | None = None
        peer.start()

    @property
    def is_over(self) -> bool:
        return self._stopping is not None and self._stopping.finished

    def ask_to_stop(self) -> None:
        if self._stopping is None:
            self._stopping = self._simulation.spawn(f"{self.name}-stop", self.name, self.peer.stop)


class CheckedWorld(World):
    """The services around workers and Java peers, with the checkers of all guarantees."""

    row_checker: type[RowChecker] = RowChecker
    observers: type[Observer] = Observer

    faults: FleetFaults

    def _create_checkers(self) -> None:
        super()._create_checkers()
        self._streams: dict[str, FaultyStream] = {}
        self.left_behind: dict[str, frozenset[str]] = {}
        self.lost: list[DataLost] = []
        self.must_be_reported: dict[str, set[Position]] = {}
        self.rows_checker = self.row_checker(
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
            is_gone=self.is_gone,
        )
        self.simulation.on_switch = self.beliefs.poll
        self.delivery.believes = self._may_believe
        self.observer = self.observers(
            self.simulation,
            self.record_log,
            self.violations,
            self.delivery,
            self.beliefs,
            options=self.options,
            failover=FAILOVER,
            settling=SETTLING,
            row=lambda key: self.edits.as_known(key, self.row(key)),
            rows=self.rows,
            worker_ids=self.rows_checker.worker_ids,
            is_gone=self.is_gone,
            by_user=self.processor is not None,
        )
        self.deleted_rows = DeletedRows(
            self.must_be_reported, now=lambda: self.simulation.now, joined=self.observer.joined
        )
        self.edits = EditedCheckpoints(
            self.record_log,
            self.violations,
            self.must_be_reported,
            now=lambda: self.simulation.now,
            kinesis_millis=self.kinesis_millis,
            worker_ids=self.rows_checker.worker_ids,
            is_excused=self.observer.could_not_report,
            is_cut_off=lambda host: self.outages.is_down("dynamodb", host, self.simulation.now),
            believes=self.beliefs.believes,
        )
        self.observer.losses.is_at_latest = self.edits.is_at_latest
        self.observer.losses.never_saw = self.deleted_rows.never_saw
        self.delivery.start_of = self.edits.start_of
        self.observer.ownership.on_taken = lambda host, key: self._streams[host].starts_anew(key)

    @property
    def taken(self) -> int:
        """Number of leases that moved to a pykcl worker, as the rows say."""
        return self.observer.ownership.taken

    def note_trimming(self) -> None:
        """Retention took something: from now on its loss has to be reported, where the table says that it was read."""
        # Java steps over what retention took without a word.
        rows = {} if self.faults.has_java else self.rows()
        for key, row in rows.items():
            position = checkpoint_position(self.edits.with_own_checkpoint(key, row))
            # What went before anybody had read that far was never known to anybody. And of the rest a batch that is
            # under way may still come to be delivered.
            unread = {lost for lost in self.record_log.shard(key).never_delivered() if lost > position}
            if 0 < position[0] < END[0] and unread:
                self.must_be_reported.setdefault(key, set()).update(unread)

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
        if params.get("TableName") == TABLE:
            self.rows_checker.request_sent(operation, params, self.simulation.current_group)
        return super()._request(operation, params)

    def _row_changed(self, change: Change) -> None:
        super()._row_changed(change)
        if change.table != TABLE:
            return
        change = self.edits.row_changed(change)
        self.rows_checker.row_changed(change)
        self.deleted_rows.row_changed(change)
        if is_about_the_shard_only(change):
            # It says nothing of who works on the lease, neither to workers nor to the checkers of that.
            return
        self.observer.row_changed(change)
        if change.after and kind_of_write(change.operation, change.params) != "assign":
            owner = change.after.get("leaseOwner", {}).get("S")
            self.beliefs.wrote_owner(change.author, change.key, owner)

    def _heard(self, host: str, event: Event) -> None:
        super()._heard(host, event)
        if isinstance(event, ThreadsNotStopped):
            self.left_behind[host] = frozenset(event.threads)
        if isinstance(event, DataLost):
            self.lost.append(event)
        self.edits.heard(host, event)
        self.observer.heard(host, event)

    # -- hosts -------------------------------------------------------------------------------------------------

    def worker(
        self, name: str, *, worker_id: str | None = None, table: str = TABLE, stop: Callable[[], bool]
    ) -> Worker:
        self.rows_checker.worker_ids[name] = worker_id or name
        worker = super().worker(name, worker_id=worker_id, table=table, stop=stop)
        self.beliefs.watch(name, worker._held)
        return worker

    def _client(self, name: str, scan: StaleScan) -> InstrumentedClient:
        return InstrumentedClient(self.dynamodb, self.simulation.switch, scan, name, self.observer)

    def _stream(self, name: str, runtime: Runtime) -> InstrumentedStream:
        stream = self._streams[name] = self._faulty_stream(
            name,
            runtime,
            lambda shard: self.violations.expect(
                False, Guarantee.BUDGETS, f"{name} reads {shard} more than five times a second"
            ),
        )
        return InstrumentedStream(stream, name, self.observer)

    def java(self, name: str, rng: random.Random) -> JavaHost:
        """A Java worker, started."""
        runtime = self.simulation.runtime(name)
        options = JavaOptions(
            failover=FAILOVER, startup_wait=rng.uniform(1, 5), parent_poll=2.0, two_phase=rng.random() < 0.3
        )
        peer = JavaPeer(
            name,
            runtime=runtime,
            client=self.dynamodb,
            table=TABLE,
            stream=self._java_stream(name, runtime),
            on_records=self._java_delivers,
            options=options,
        )
        return JavaHost(peer, self.simulation)

    def _java_stream(self, name: str, runtime: Runtime) -> FaultyStream:
        return FaultyStream(
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

    def _java_delivers(self, name: str, shard_id: str, records: Sequence[Record]) -> Checkpoint | None:
        positions = [position_of(r.sequence_number, r.sub_sequence_number) for r in records]
        self.delivery.java_delivers(name, shard_id, positions)
        return None


class CheckedFleet(SimulatedFleet):
    """struck: whose threads died, and when. forbidden: hosts that were refused something. Both may fail of it, when it
    happens to them.
    """

    most_java = 2

    def __init__(self, world: CheckedWorld, wanted: int) -> None:
        super().__init__(world, wanted)
        self._world: CheckedWorld = world
        self.struck = world.observer.struck
        self.forbidden = world.outages.refused
        self.stops: dict[str, float] = {}
        self._not_checked: dict[str, WorkerHost] = {}
        self._java_count = 0
        world.observer.ownership.is_stopping = self._is_stopping

    @property
    def started(self) -> int:
        return super().started + self._java_count

    def start_java(self, rng: random.Random) -> bool:
        # Java starts a lease at LATEST when it comes to read it, whatever was put since the lease was made.
        # And it is not given the time of a start at a time.
        from_the_start = self._world.options["initial_position"] == "TRIM_HORIZON"
        if not from_the_start or len(self.java_hosts()) >= self.most_java:
            return False
        self._java_count += 1
        host = self._world.java(f"java{self._java_count}", rng)
        self.alive[host.name] = host
        return True

    def java_hosts(self) -> list[JavaHost]:
        """Return the Java workers that are alive."""
        return [host for _, host in sorted(self.alive.items()) if isinstance(host, JavaHost)]

    def kill(self, name: str) -> None:
        super().kill(name)
        self._world.observer.killed(name)
        self._world.edits.forget(name)
        self._not_checked.pop(name, None)

    def freeze(self, name: str, seconds: float) -> None:
        super().freeze(name, seconds)
        self._world.observer.frozen.add(name, seconds)

    def strike(self, name: str, task: SimTask) -> None:
        self.struck.add(name)
        super().strike(name, task)

    def _leaves(self, host: Host) -> None:
        super()._leaves(host)
        if isinstance(host, WorkerHost):
            self._not_checked[host.name] = host

    def _is_stopping(self, name: str) -> bool:
        host = self.alive.get(name)
        return not isinstance(host, WorkerHost) or host.was_asked or host.worker.failure is not None

    # -- checks -----------------------------------------------------------------------------------------------

    def replace_dead(self) -> None:
        """Hosts that ended by themselves leave the fleet, for a reason; and nobody has threads too many."""
        super().replace_dead()
        for host in self.workers():
            self._check_threads(host)
        for host in [host for host in self._not_checked.values() if host.is_over or not host.was_asked]:
            del self._not_checked[host.name]
            self._check_failure(host)
        self._world.observer.poll()
        self._world.edits.poll()

    def _check_failure(self, host: WorkerHost) -> None:
        """Check what it ended with, whether it was asked to end or not: a failure needs a cause shortly before it."""
        failure = host.failure or host.worker.failure
        fine = host.was_asked if failure is None else self.has_cause(host, failure)
        self._world.violations.expect(fine, Guarantee.NO_FALSE_ALARM, f"{host.name} ended: {failure!r}")

    def has_cause(self, host: WorkerHost, failure: Exception) -> bool:
        """Return whether something that may end a worker with this failure was done to it shortly before."""
        seen = self._world.observer
        since = seen.frozen.awake_seconds_before(host.name, host.fine_at, _CAUSED_WITHIN)
        if isinstance(failure, InternalError):
            return seen.struck.since(host.name, since)
        if isinstance(failure, ProcessorFailed):
            return self._world.options.get("on_error") == "raise" and seen.raised.since(host.name, since)
        if isinstance(failure, TableGone):
            return seen.without_table.since(host.name, since)
        if not isinstance(failure, SetupError) or host.name not in self.forbidden or host.had_joined:
            return False
        # Once it has worked, or has joined as a spare one, a permission that is refused is trouble that may pass.
        worked = max(seen.took.get(host.name, since), seen.read.get(host.name, since))
        return worked >= since and seen.denied.since(host.name, since)

    def _check_threads(self, host: WorkerHost) -> None:
        names = [task.name for task in self._world.simulation.unfinished(host.name)]
        readers = [name for name in names if name.startswith("pykcl-shardId")]
        twice = sorted({name for name in readers if readers.count(name) > 1})
        self._world.violations.expect(not twice, Guarantee.THREADS, f"{host.name} reads twice: {twice}")
        others = [
            name
            for name in names
            if name.startswith("pykcl-") and not name.startswith(("pykcl-shardId", "pykcl-lane"))
        ]
        few = len(others) <= _OWN_THREADS + _HELPERS
        self._world.violations.expect(few, Guarantee.THREADS, f"{host.name} has {others}")

    def _ended(self, host: WorkerHost, seconds: float) -> None:
        """Called by the host's own thread when its worker's stop returned."""
        self.stops[self.phase] = max(self.stops.get(self.phase, 0.0), seconds)
        self._check_failure(host)
        world = self._world
        started = world.simulation.now - seconds
        stood_still = world.observer.frozen.seconds_since(host.name, started)
        longest = (GRACE + STOP_MARGIN) / world.simulation.clock(host.name).rate + stood_still
        world.violations.expect(
            seconds <= longest, Guarantee.STOP, f"{host.name} took {seconds:.1f} s to stop"
        )
        left = [t.name for t in world.simulation.unfinished(host.name) if t.name.startswith("pykcl-")]
        reported = world.left_behind.get(host.name, frozenset())
        world.violations.expect(reported.issuperset(left), Guarantee.THREADS, f"{host.name} left {left}")
        world.observer.lives.host_stopped(host.name, left)
        own = left_without_user_code(
            left, reported, is_struck=bool(world.observer.struck.since(host.name, 0.0))
        )
        world.violations.expect(
            not own or stood_still > 0, Guarantee.STOP, f"{host.name} could not stop {own}"
        )
        super()._ended(host, seconds)


def left_without_user_code(left: Sequence[str], reported: Set[str], *, is_struck: bool = False) -> list[str]:
    """Return the threads that a stop has left and that neither run user code nor wait for it: nothing else may keep a
    stop from ending.

    What reads and delivers runs in threads named after shards. A heartbeat waits for the checkpoint that one of them is
    writing; lanes of a shard, and the event loop, run user code, too. One that the worker reports may end just after.
    is_struck: a thread of the worker has died: that of a shard leaves the lanes that it would have waited for.
    """
    with_user_code = ["pykcl-shardId"]
    if is_struck or any(name.startswith("pykcl-shardId") for name in (*left, *reported)):
        with_user_code += ["pykcl-lane", "pykcl-loop", "pykcl-renewer-"]
    return [name for name in left if not name.startswith(tuple(with_user_code))]


def failover_bound() -> float:
    """Seconds until the leases of a dead worker are read again: they expire, and the next scan of the table finds them.

    Or they are stolen just before: then the thief waits for as long as a robbed owner may take to notice.
    """
    return (FAILOVER + SETTLING) / SLOWEST_CLOCK + _SCAN_SECONDS
