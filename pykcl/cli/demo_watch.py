"""The demo's eyes: ledgers, lease table, shards and processes, looked at again and again while something is awaited."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from pykcl.cli.demo_board import Board, Entry, ShardLine, View, WorkerLine, short
from pykcl.cli.demo_crew import DemoBroken, WorkerProcess
from pykcl.cli.demo_ledger import Delivery, Ledgers
from pykcl.cli.demo_producer import Producer
from pykcl.cli.demo_worker import STREAM
from pykcl.interfaces import LeaseTable
from pykcl.local.stream import LocalKinesis
from pykcl.model.lease import Lease
from pykcl.model.shard import Shard

STEP_SECONDS = 30.0
_LOOK_SECONDS = 0.02
_SCAN_SECONDS = 0.25
_DRAW_SECONDS = 0.15
_ALARMS = {
    "DataLost": "records were trimmed before they were read",
    "ProcessorRaised": "a record processor raised",
    "AggregateRefused": "an aggregate was refused",
    "AggregateOfAnotherShard": "an aggregate reached another shard",
    "RowRefused": "a row of the lease table was refused",
}
"""What no worker of the demo has a reason to report."""


class Watch:
    """What is known of the fleet. Used by one thread; troubles: what went wrong, as texts for the verdict."""

    def __init__(
        self, kinesis: LocalKinesis, table: LeaseTable, producer: Producer, view: View, board: Board
    ) -> None:
        self.kinesis = kinesis
        self.producer = producer
        self.ledgers = Ledgers()
        self.leases: dict[str, Lease] = {}
        self.workers: dict[str, WorkerProcess] = {}
        self.troubles: list[str] = []
        self._table = table
        self._view = view
        self._board = board
        self._begun = time.monotonic()
        self._next_scan = self._next_draw = 0.0
        self._alarms = 0

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait(
        self, condition: Callable[[], bool], what: str, *, quick: bool = False, seconds: float = STEP_SECONDS
    ) -> bool:
        """Look on until the condition holds; False, and a trouble noted, when it does not in time.

        quick: only read the ledgers, when every millisecond counts.
        """
        deadline = time.monotonic() + seconds
        while True:
            self.ledgers.poll() if quick else self.look()
            if condition():
                return True
            if time.monotonic() >= deadline:
                self.troubles.append(f"waited {seconds:g} s in vain for {what}")
                return False
            time.sleep(_LOOK_SECONDS)

    def watch_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            time.sleep(_LOOK_SECONDS)

    def look(self) -> None:
        """Raises DemoBroken when a worker or the producer has failed."""
        now = time.monotonic()
        self.ledgers.poll()
        self._refuse_failures()
        self._sound_alarms()
        if now >= self._next_scan:
            self._next_scan = now + _SCAN_SECONDS
            self.scan()
        if now >= self._next_draw:
            self._next_draw = now + _DRAW_SECONDS
            self._draw()

    def scan(self) -> None:
        # Before the first worker has made it, there is no table.
        if self.ledgers.notes:
            rows = self._table.scan().rows
            self.leases = {row.key: row for row in rows if isinstance(row, Lease)}

    # -- telling -------------------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._begun

    def phase(self, text: str) -> None:
        self._board.phase = text
        self._draw()

    def log(self, what: str, detail: str, outcome: str, *, at: float | None = None, tone: str = "") -> None:
        entry = Entry(self.elapsed if at is None else at, what, detail, outcome, tone)
        self._board.entries.append(entry)
        self._view.entry(entry)

    # -- questions -----------------------------------------------------------------------------------------------

    def running(self) -> list[str]:
        return [name for name, worker in self.workers.items() if worker.state == "running"]

    def owned_by(self, name: str) -> list[Lease]:
        return [lease for lease in self.leases.values() if lease.owner == name and not lease.is_ended]

    def loads(self) -> Counter[str]:
        """Worker -> leases it owns."""
        return Counter(lease.owner for lease in self.leases.values() if lease.owner and not lease.is_ended)

    def shards(self) -> list[Shard]:
        return self.kinesis.list_shards(STREAM, operation=None)

    def open_shards(self) -> list[Shard]:
        return [shard for shard in self.shards() if shard.is_open]

    def children_of(self, parent: str) -> tuple[str, ...]:
        return tuple(shard.shard_id for shard in self.shards() if parent in shard.parents)

    def neighbours(self) -> list[tuple[Shard, Shard]]:
        """Pairs of open shards side by side on the ring; original shards only, while there are such pairs."""
        ranged = [
            (int(shard.hash_range.starting_hash_key), shard)
            for shard in self.open_shards()
            if shard.hash_range
        ]
        pairs = list(pairwise(shard for _, shard in sorted(ranged, key=lambda pair: pair[0])))
        return [pair for pair in pairs if not pair[0].parents and not pair[1].parents] or pairs

    def firsts(self, shards: Sequence[str], mark: int, *, not_by: str | None = None) -> list[Delivery]:
        """The first delivery from each shard, from index `mark` on, by anybody but `not_by`; where there is one."""
        found: dict[str, Delivery] = {}
        for delivery in self.ledgers.deliveries[mark:]:
            if delivery.shard in shards and delivery.worker != not_by:
                found.setdefault(delivery.shard, delivery)
        return list(found.values())

    def is_shared(self, names: Sequence[str], most: int) -> bool:
        """Every worker owns at least one and at most `most` leases, and has delivered from each."""
        loads = self.loads()
        if any(not 1 <= loads[name] <= most for name in names):
            return False
        owners = {(lease.owner, key) for key, lease in self.leases.items()}
        return owners <= {(delivery.worker, delivery.shard) for delivery in self.ledgers.deliveries}

    def is_drained(self) -> bool:
        """Nothing is left to deliver, as far as the fleet believes: every shard ended, or checkpointed to its tip.

        What the fleet believes, not what was delivered: a fleet that is wrong about it must come to its verdict too.
        """
        for shard in self.shards():
            lease = self.leases.get(shard.shard_id)
            last = self.producer.last_sequence(shard.shard_id)
            if lease is None or lease.is_ended or (shard.is_open and last is None):
                continue
            if not shard.is_open or lease.checkpoint.sequence_number != last:
                return False
        return not any(self.ledgers.in_hand(name) for name in self.running())

    # -- looking -------------------------------------------------------------------------------------------------

    def _refuse_failures(self) -> None:
        failure = self.producer.failure
        if failure is not None:
            raise DemoBroken(f"the producer failed with {type(failure).__name__}: {failure}") from failure
        for worker in self.workers.values():
            worker.require_alive()

    def _sound_alarms(self) -> None:
        for note in self.ledgers.notes[self._alarms :]:
            if note.kind in _ALARMS:
                self.troubles.append(f"{note.worker}: {_ALARMS[note.kind]} ({note.shard or '-'})")
                self.log(note.kind, f"{note.worker} {short(note.shard)}", _ALARMS[note.kind], tone="bad")
        self._alarms = len(self.ledgers.notes)

    def _draw(self) -> None:
        board, ledgers, loads = self._board, self.ledgers, self.loads()
        counts = self.kinesis.put_counts(STREAM)
        board.elapsed = self.elapsed
        board.shards = [self._shard_line(shard, counts.get(shard.shard_id, 0)) for shard in self.shards()]
        board.workers = [
            WorkerLine(name, worker.state, loads[name], ledgers.by_worker.get(name, 0))
            for name, worker in self.workers.items()
        ]
        board.produced = len(self.producer.placed)
        board.processed = len(ledgers.ids)
        board.duplicates = len(ledgers.deliveries) - len(ledgers.ids)
        board.steals = sum(note.fields.get("reason") == "rebalance" for note in ledgers.notes)
        self._view.refresh(board)

    def _shard_line(self, shard: Shard, put: int) -> ShardLine:
        key = shard.shard_id
        lease = self.leases.get(key)
        ended = lease is not None and lease.is_ended
        checkpointed = put if ended else 0
        if lease is not None and not lease.checkpoint.is_sentinel:
            checkpointed = self.producer.put_up_to(key, lease.checkpoint.sequence_number)
        state = "ended" if ended else "open" if shard.is_open else "closed"
        delivered = len(self.ledgers.sequences.get(key, ()))
        owner = lease.owner if lease is not None else None
        return ShardLine(key, shard.parents, state, owner, put, delivered, checkpointed)
