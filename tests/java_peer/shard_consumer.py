"""The shards of a Java worker: its leases in memory, their renewals, and a consumer that reads and delivers each.

Java KCL 2.7.3 `leases/dynamodb/DynamoDBLeaseRenewer.java`, `lifecycle/` (BlockOnParentShardTask, InitializeTask,
ProcessTask, ShutdownTask) and `retrieval/polling/KinesisDataFetcher.java`. Three differences, so that what a simulation
misses is never Java's own doing: renewals come one after the other (Java has up to twenty threads), an iterator that
expires before its first use is opened at the checkpoint again (Java skips the rest of an aggregated record there), and
a damaged aggregated record is delivered as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from pykcl.errors import IteratorExpired, SetupError, ShardGone, TemporaryError
from pykcl.interfaces import Stream
from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint, ReadFrom
from pykcl.model.kpl import deaggregate_batch
from pykcl.model.record import Record
from pykcl.model.shard import Shard
from pykcl.runtime import Lock, Runtime
from tests.java_peer.lease import DependencyFailed, JavaLease, new_lease
from tests.java_peer.lease_table import JavaTable
from tests.java_peer.options import JavaAction, JavaOptions


@dataclass(slots=True, eq=False)
class Held:
    """The lease as its holder last wrote it. Being this very object is Java's concurrency token.

    throughput: (3.x) KB/s of what was read, a moving average; None before there was anything. unreported: bytes read
    since the last renewal.
    """

    lease: JavaLease
    moved_at: float
    lock: Lock
    throughput: float | None = None
    unreported: int = 0

    def average(self, seconds: float) -> float | None:
        """The throughput as of now, `seconds` after the last renewal."""
        if self.unreported or self.throughput is not None:
            latest = self.unreported / 1024 / max(seconds, 1.0)
            before = latest if self.throughput is None else self.throughput
            self.throughput = (before + latest) / 2
        self.unreported = 0
        return self.throughput


class LeaseRenewer:
    """All writes of the holder go through here. Any task may call."""

    def __init__(
        self, table: JavaTable, runtime: Runtime, failover: float, on_lost: Callable[[JavaLease], None]
    ) -> None:
        self._table = table
        self._runtime = runtime
        self._failover = failover
        self._on_lost = on_lost
        self._held: dict[str, Held] = {}

    def adopt_own(self, worker: str) -> None:
        """Renew at start the rows that already name this worker, expired or not. Raises as `scan`."""
        for lease in self._table.scan():
            if lease.owner == worker and lease.checkpoint_owner is None and self._table.renew(lease):
                self.add(lease.with_(counter=lease.counter + 1))

    def add(self, lease: JavaLease) -> None:
        """A lease just taken, as the row is now."""
        self._held[lease.key] = Held(lease, self._runtime.monotonic(), self._runtime.lock())

    def drop(self, held: Held) -> None:
        """Forget it, and let its row expire."""
        if self._held.get(held.lease.key) is held:
            del self._held[held.lease.key]
            self._on_lost(held.lease)

    def clear(self) -> None:
        self._held.clear()

    def current(self) -> list[Held]:
        """Leases that are held and, by our own clock, not expired."""
        return [held for held in list(self._held.values()) if self.is_held(held)]

    def is_held(self, held: Held) -> bool:
        fresh = self._runtime.monotonic() - held.moved_at <= self._failover
        return fresh and self._held.get(held.lease.key) is held

    def renew_all(self) -> None:
        for held in list(self._held.values()):
            self._renew(held)

    def _renew(self, held: Held) -> None:
        with held.lock:
            if not self.is_held(held):
                self.drop(held)
                return
            try:
                renewed = self._send(held, held.average(self._runtime.monotonic() - held.moved_at))
            except DependencyFailed:
                # Applied until it expires by our own clock; the next round tries again.
                return
            if renewed:
                self._moved_on(held, held.lease)
            else:
                self.drop(held)

    def _send(self, held: Held, throughput: float | None) -> bool:
        """Send one renewal; False: the lease is lost. Raises DependencyFailed."""
        return self._table.renew(held.lease, throughput)

    def update(self, held: Held, change: Callable[[JavaLease], JavaLease]) -> bool:
        """Write a changed lease; False when the lease is lost. Raises DependencyFailed.

        As in Java the lease in memory is changed even if the write then fails: the next write carries it along.
        """
        with held.lock:
            if not self.is_held(held):
                return False
            held.lease = change(held.lease)
            if self._table.update(held.lease):
                self._moved_on(held, held.lease)
                return True
            self.drop(held)
            return False

    def _moved_on(self, held: Held, lease: JavaLease) -> None:
        held.lease = lease.with_(counter=lease.counter + 1)
        held.moved_at = self._runtime.monotonic()


Deliver = Callable[[str, Sequence[Record]], Checkpoint | None]
Report = Callable[[JavaAction, str, Checkpoint | None], None]

_GIVES_UP_ONE_IN = 30


class State(Enum):
    """State of a consumer; DONE and LOST are final."""

    WAITING = auto()
    INITIALIZING = auto()
    PROCESSING = auto()
    ENDING = auto()
    DONE = auto()
    LOST = auto()


class _LeaseDropped(Exception):
    """Java's InvalidStateException in a shutdown task: the lease is let go, another worker tries again."""


class ShardConsumer:
    """Stepped by one task; each step does one thing and says how long to wait for the next."""

    def __init__(
        self,
        held: Held,
        *,
        table: JavaTable,
        stream: Stream,
        renewer: LeaseRenewer,
        runtime: Runtime,
        options: JavaOptions,
        deliver: Deliver,
        report: Report,
    ) -> None:
        self.held = held
        self.key = held.lease.key
        self.due = 0.0
        # An ended lease is only taken to be cleaned up: its application is never started.
        self.state = State.ENDING if held.lease.is_ended else State.WAITING
        self._table = table
        self._stream = stream
        self._renewer = renewer
        self._runtime = runtime
        self._options = options
        self._deliver = deliver
        self._report = report
        self._iterator: str | None = None
        self._last_fetched: str | None = None
        self._position: Checkpoint = held.lease.checkpoint
        self._to_checkpoint: Checkpoint | None = None
        self._at_end = False
        self._children: tuple[Shard, ...] = ()

    @property
    def owes_a_checkpoint(self) -> bool:
        """Return whether records were delivered whose checkpoint the table has not answered."""
        return self._to_checkpoint is not None

    def step(self) -> float:
        """Seconds until the next step is due."""
        steps = {
            State.WAITING: self._wait_for_parents,
            State.INITIALIZING: self._initialize,
            State.PROCESSING: self._process,
            State.ENDING: self._end,
        }
        if not self._renewer.is_held(self.held):
            self.state = State.LOST
            return 0.0
        try:
            return steps[self.state]()
        except (DependencyFailed, TemporaryError, SetupError):
            return self._options.task_backoff
        except _LeaseDropped:
            self._renewer.drop(self.held)
            self.state = State.LOST
            return 0.0

    def _wait_for_parents(self) -> float:
        """A parent without a row is no obstacle; one with a row must be at SHARD_END, sub-sequence number 0."""
        for parent in self.held.lease.parents:
            row = self._table.get(parent)
            if row is not None and not row.is_ended:
                return self._options.parent_poll
        self.state = State.INITIALIZING
        return 0.0

    def _initialize(self) -> float:
        row = self._table.get(self.key)
        if row is None:
            raise DependencyFailed("no row")
        self._position = row.checkpoint
        self._open()
        self._report("initialized", self.key, row.checkpoint)
        self.state = State.PROCESSING
        return 0.0

    def _open(self) -> None:
        try:
            self._iterator = self._stream.open(self.key, self._read_from())
        except ShardGone:
            self._at_end = True

    def _read_from(self) -> ReadFrom:
        if self._last_fetched is not None:
            return ReadFrom("AFTER_SEQUENCE_NUMBER", sequence_number=self._last_fetched)
        number = self._position.sequence_number
        if number == "TRIM_HORIZON":
            return ReadFrom("TRIM_HORIZON")
        if number == "LATEST":
            return ReadFrom("LATEST")
        if number == "AT_TIMESTAMP":
            # The row never holds the time; each worker has it from its configuration.
            return ReadFrom("AT_TIMESTAMP", at_millis=self._options.start.at_millis)
        return ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=number)

    def _process(self) -> float:
        if self._to_checkpoint is not None:
            self._checkpoint(self._to_checkpoint)
            return 0.0
        if self._at_end:
            self.state = State.ENDING
            return 0.0
        if self._iterator is None:
            raise DependencyFailed("no iterator")
        try:
            fetched = self._stream.fetch(self.key, self._iterator, self._options.max_records)
        except IteratorExpired:
            self._open()
            return self._options.idle
        except ShardGone:
            self._at_end = True
            return 0.0
        if fetched.next_iterator is None and not fetched.children:
            return self._options.task_backoff
        if fetched.records:
            self._last_fetched = fetched.records[-1].sequence_number
        self._iterator, self._children = fetched.next_iterator, fetched.children
        self._at_end = fetched.next_iterator is None
        records = list(deaggregate_batch(fetched.records, self.held.lease.hash_range, after=self._position))
        if records:
            self._hand_over(records)
        # Java pauses between any two reads, behind or not.
        return 0.0 if self._at_end else self._options.idle

    def _hand_over(self, records: list[Record]) -> None:
        """Deliver, then checkpoint: the application's answer says how far, by default everything."""
        self.held.unreported += sum(len(record.data) for record in records)
        chosen = self._deliver(self.key, records)
        self._position = records[-1].position
        self._to_checkpoint = chosen if chosen is not None else self._position
        self._checkpoint(self._to_checkpoint)

    def _checkpoint(self, at: Checkpoint) -> None:
        """Raises DependencyFailed: call again. A lost lease ends the consumer."""
        kept = True
        if self._options.two_phase and self.held.lease.pending != at:
            kept = self._renewer.update(self.held, lambda lease: lease.with_(pending=at))
            if kept:
                self._report("prepared", self.key, at)
        if kept:
            kept = self._renewer.update(self.held, lambda lease: _checkpointed(lease, at))
        if not kept:
            self.state = State.LOST
            return
        self._to_checkpoint = None
        self._report("ended" if at.is_shard_end else "checkpointed", self.key, at)

    def _end(self) -> float:
        """Children first, then their names, then SHARD_END. The owner stays and goes on renewing."""
        if self._children:
            self._create_children()
            self._table.set_children(self.key, tuple(sorted(child.shard_id for child in self._children)))
        row = self._table.get(self.key)
        if row is None:
            raise _LeaseDropped
        if not row.is_ended:
            self._checkpoint(AT_SHARD_END)
        if self.state is State.ENDING:
            self.state = State.DONE
        return 0.0

    def _create_children(self) -> None:
        if len(self._children) == 1:
            self._check_merge(self._children[0])
        for child in self._children:
            if self._table.get(child.shard_id) is not None:
                continue
            if self._table.create(new_lease(child, AT_TRIM_HORIZON)):
                self._report("created", child.shard_id, AT_TRIM_HORIZON)

    def _check_merge(self, child: Shard) -> None:
        """Raises DependencyFailed while only one of the two parents has its row."""
        if len(child.parents) != 2:
            raise _LeaseDropped
        rows = [self._table.get(parent) for parent in child.parents]
        if (rows[0] is None) == (rows[1] is None):
            return
        if self._runtime.random().randrange(_GIVES_UP_ONE_IN) == 0:
            raise _LeaseDropped
        raise DependencyFailed("a parent of the merge has no row")


def _checkpointed(lease: JavaLease, at: Checkpoint) -> JavaLease:
    return lease.with_(checkpoint=at, owner_switches=0, pending=None, pending_state=None)
