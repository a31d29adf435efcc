"""`JavaPeer`: a scripted Java KCL worker in three tasks of a Runtime: coordinator, renewer, consumers.

It is one of 2.x, or of 3.x configured to behave as 2.x. The leader and the migration of 3.x are in tests/java_compat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pykcl.errors import PyKclError
from pykcl.interfaces import Stream
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import Record
from pykcl.planning.leader import is_leader
from pykcl.runtime import Runtime, Task
from pykcl.testing.fleet import STREAM, TABLE, Fleet
from pykcl.testing.memory.stream import MemoryStream
from tests.java_peer.coordination import (
    LeaseCleanup,
    LeaseTaker,
    first_hole,
    first_leases,
    missing_leases,
    ranges_to_fill,
)
from tests.java_peer.lease import DependencyFailed, JavaLease
from tests.java_peer.lease_table import JavaTable
from tests.java_peer.options import JavaAction, JavaEvent, JavaOptions
from tests.java_peer.shard_consumer import LeaseRenewer, ShardConsumer, State

OnRecords = Callable[[str, str, Sequence[Record]], Checkpoint | None]
Duty = tuple[Callable[[], None], float, float]
"""What the coordinator does, every so many seconds, and the seconds until it does so first."""

EPSILON = 0.025
_RETRY = 1.0
_EMPTY_TABLE_POLL = 3.0
_FAILURES = (DependencyFailed, PyKclError)


class JavaPeer:
    """A worker called `name`, on the table `table` of a boto3 DynamoDB client.

    on_records: the application: (worker, shard, user records) after which Java's checkpoint() is called, or
    checkpoint(there) when it returns a position. It may wait; what it raises ends the consumers' task. on_event: hears
    of everything else; must not wait. Ending it by force is the runtime's business (`Simulation.kill`).
    """

    def __init__(
        self,
        name: str,
        *,
        runtime: Runtime,
        client: Any,
        table: str,
        stream: Stream,
        on_records: OnRecords,
        on_event: Callable[[JavaEvent], None] | None = None,
        options: JavaOptions | None = None,
    ) -> None:
        self.name = name
        self.options = options or JavaOptions()
        self._runtime = runtime
        self._stream = stream
        self._on_records = on_records
        self._on_event = on_event
        self._table = JavaTable(client, table, runtime, self.options.sdk_attempts, self.options.version)
        self._renewer = self._new_renewer()
        self._taker = LeaseTaker(
            name, self.options.failover, self.options.max_leases, self.options.max_leases_to_steal
        )
        self._cleanup = LeaseCleanup(self._table, stream, lambda key: self._report("deleted", key))
        self._consumers: dict[str, ShardConsumer] = {}
        self._tasks: list[Task] = []
        self._stopping = False
        self._stop_coordinator = runtime.event()
        self._stop_renewer = runtime.event()
        self._wake_consumers = runtime.event()
        self._leads = False
        self._elected_at = float("-inf")
        self._hole: tuple[int, int] | None = None
        self._hole_seen = 0

    def _new_renewer(self) -> LeaseRenewer:
        return LeaseRenewer(
            self._table, self._runtime, self.options.failover, lambda lease: self._report("lost", lease.key)
        )

    @property
    def holds(self) -> set[str]:
        """The shards it believes to hold."""
        return {held.lease.key for held in self._renewer.current()}

    @property
    def is_alive(self) -> bool:
        return any(task.is_alive() for task in self._tasks)

    def start(self) -> None:
        self._spawn("coordinator", self._coordinate)

    def request_stop(self) -> None:
        """Ask for Java's shutdown, see `stop`."""
        self._stopping = True
        self._stop_coordinator.set()
        self._wake_consumers.set()

    def stop(self, timeout: float = 60.0) -> None:
        """Java's shutdown: finish the batch, checkpoint it, stop renewing. Rows keep their owner and expire.

        Returns after `timeout` seconds at the latest.
        """
        self.request_stop()
        until = self._runtime.monotonic() + timeout
        while self.is_alive and self._runtime.monotonic() < until:
            for task in list(self._tasks):
                task.join(max(0.0, until - self._runtime.monotonic()))
        self._stop_renewer.set()

    def _spawn(self, role: str, body: Callable[[], None]) -> None:
        self._tasks.append(self._runtime.spawn(f"{self.name}-java-{role}", body))

    def _report(
        self, action: JavaAction, shard: str, position: Checkpoint | None = None, detail: str = ""
    ) -> None:
        if self._on_event is not None:
            self._on_event(JavaEvent(self.name, action, shard, position, detail))

    # -- coordinator -------------------------------------------------------------------------------------------

    def _coordinate(self) -> None:
        self._start_up()
        if self._stopping:
            return
        self._spawn("renewer", self._renew)
        self._spawn("consumers", self._consume)
        now = self._runtime.monotonic()
        duties = self._duties()
        due = [now + first for _, _, first in duties]
        while not self._stopping:
            for number, (duty, period, _) in enumerate(duties):
                if self._runtime.monotonic() >= due[number]:
                    self._attempt(duty)
                    due[number] = self._runtime.monotonic() + period
            self._stop_coordinator.wait(max(0.0, min(due) - self._runtime.monotonic()))

    def _duties(self) -> list[Duty]:
        options = self.options
        return [
            (self._take, 2 * (options.failover + EPSILON), 0.0),
            (self._audit, options.auditor_interval, options.auditor_interval / 2),
            (self._cleanup.run, options.cleanup_interval, options.cleanup_interval),
        ]

    def _attempt(self, duty: Callable[[], None]) -> bool:
        """Java logs what goes wrong and tries again the next time."""
        try:
            duty()
        except _FAILURES as failure:
            self._report("failed", "", detail=f"{type(failure).__name__}: {failure}")
            return False
        return True

    def _start_up(self) -> None:
        steps = [self._table.prepare, self._fill_empty_table, lambda: self._renewer.adopt_own(self.name)]
        while steps and not self._stopping:
            if self._attempt(steps[0]):
                del steps[0]
            else:
                self._stop_coordinator.wait(_RETRY)

    def _fill_empty_table(self) -> None:
        """Fill the table unless another worker does so first, within a random time."""
        longest = self._runtime.random().uniform(1.0, max(1.0, self.options.startup_wait))
        until = self._runtime.monotonic() + longest
        while self._table.is_empty():
            left = until - self._runtime.monotonic()
            if left <= 0:
                self._create(first_leases(self._stream.list_shards().shards, self.options.start))
                return
            if self._stop_coordinator.wait(min(_EMPTY_TABLE_POLL, left)):
                return

    def _create(self, leases: Sequence[JavaLease]) -> None:
        for lease in leases:
            if self._table.create(lease):
                self._report("created", lease.key, lease.checkpoint)

    def _take(self) -> None:
        began = self._runtime.monotonic()
        leases = self._table.scan()
        scanned = self._runtime.monotonic()
        self._taker.observe(leases, scanned)
        chosen, is_steal = self._taker.choose(scanned, self._runtime.random())
        is_stale = scanned - began > self.options.failover / 6
        taken = []
        for seen in chosen:
            lease = self._table.get(seen.key) if is_steal and is_stale else seen
            if self._stopping or lease is None or not self._table.take(lease, self.name):
                continue
            taken.append(self._taken(lease))
            self._report("stolen" if is_steal else "taken", lease.key, detail=lease.owner or "")
        # Java hands them to the renewer when it has tried all of them.
        for lease in taken:
            self._renewer.add(lease)
        if taken:
            self._wake_consumers.set()

    def _taken(self, seen: JavaLease) -> JavaLease:
        switched = seen.owner is not None and seen.owner != self.name
        lease = seen.with_(
            owner=self.name,
            counter=seen.counter + 1,
            owner_switches=seen.owner_switches + (1 if switched else 0),
        )
        self._taker.taken(lease, self._runtime.monotonic())
        return lease

    def _audit(self) -> None:
        """Scan, as the leader, for hash keys that nobody reads, and repair those seen often enough."""
        now = self._runtime.monotonic()
        leases: list[JavaLease] | None = None
        if now - self._elected_at >= self.options.election_interval:
            leases = self._table.scan()
            owners = {lease.owner for lease in leases if lease.owner is not None}
            self._leads, self._elected_at = is_leader(self.name, owners), now
        if not self._leads:
            return
        leases = self._with_ranges(self._table.scan() if leases is None else leases)
        hole = first_hole(leases)
        self._hole_seen = self._hole_seen + 1 if hole is not None and hole == self._hole else 1
        self._hole = hole
        if not leases:
            self._create(first_leases(self._stream.list_shards().shards, self.options.start))
        elif hole is not None and self._hole_seen >= self.options.auditor_threshold:
            leased = {lease.key for lease in leases}
            self._create(missing_leases(self._stream.list_shards().shards, leased, self.options.start))

    def _with_ranges(self, leases: list[JavaLease]) -> list[JavaLease]:
        if all(lease.hash_range is not None for lease in leases):
            return leases
        found = ranges_to_fill(leases, self._stream.list_shards().by_id)
        for key, hash_range in found.items():
            self._table.set_hash_range(key, hash_range)
        return [lease.with_(hash_range=found[lease.key]) if lease.key in found else lease for lease in leases]

    # -- renewer and consumers ---------------------------------------------------------------------------------

    def _renew(self) -> None:
        period = self.options.failover / 3 - EPSILON
        due = self._runtime.monotonic()
        while not self._stop_renewer.wait(max(0.0, due - self._runtime.monotonic())):
            self._attempt(self._renewer.renew_all)
            # At a fixed rate; but what a long pause missed is not made up for.
            due = max(due + period, self._runtime.monotonic() - period)
        self._renewer.clear()

    def _consume(self) -> None:
        try:
            while not self._stopping:
                self._wake_consumers.clear()
                self._match_consumers()
                soonest = self._runtime.monotonic() + self.options.failover
                for consumer in list(self._consumers.values()):
                    self._advance(consumer)
                    if consumer.state not in (State.DONE, State.LOST):
                        soonest = min(soonest, consumer.due)
                if not self._stopping:
                    self._wake_consumers.wait(max(0.0, soonest - self._runtime.monotonic()))
        finally:
            # Renewing goes on until the last batch is checkpointed.
            self._stop_renewer.set()

    def _match_consumers(self) -> None:
        """One for each lease that is held; none for what was lost, even if it was taken again since."""
        held = {each.lease.key: each for each in self._renewer.current()}
        for key, consumer in list(self._consumers.items()):
            if held.get(key) is not consumer.held or consumer.state is State.LOST:
                del self._consumers[key]
        for key, each in held.items():
            if key not in self._consumers:
                self._consumers[key] = ShardConsumer(
                    each,
                    table=self._table,
                    stream=self._stream,
                    renewer=self._renewer,
                    runtime=self._runtime,
                    options=self.options,
                    deliver=lambda shard, records: self._on_records(self.name, shard, records),
                    report=self._report,
                )

    def _advance(self, consumer: ShardConsumer) -> None:
        """Advance the consumer as far as it goes without waiting, one page of records at most."""
        while not self._stopping and consumer.due <= self._runtime.monotonic():
            before = consumer.state
            if before in (State.DONE, State.LOST):
                return
            consumer.due = self._runtime.monotonic() + consumer.step()
            if consumer.state is State.DONE:
                self._cleanup.add(consumer.key)
            if before is State.PROCESSING is consumer.state:
                return


Application = Callable[[str, str, Sequence[Record]], Checkpoint | None]


def java_peer(
    fleet: Fleet,
    name: str,
    *,
    application: Application | None = None,
    on_event: Callable[[JavaEvent], None] | None = None,
    **options: Any,
) -> JavaPeer:
    """Not started. What it delivers goes into the fleet's ledger once `application` returned.

    application: see `JavaPeer.on_records`. options: fields of JavaOptions.
    """
    runtime = fleet.simulation.runtime(name)

    def deliver(peer: str, shard: str, records: Sequence[Record]) -> Checkpoint | None:
        chosen = application(peer, shard, records) if application is not None else None
        fleet.ledger.delivered.extend((peer, record) for record in records)
        return chosen

    return JavaPeer(
        name,
        runtime=runtime,
        client=fleet.dynamodb,
        table=TABLE,
        stream=MemoryStream(fleet.kinesis, STREAM, runtime, fleet.simulation.switch),
        on_records=deliver,
        on_event=on_event,
        options=JavaOptions(**options),
    )
