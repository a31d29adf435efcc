"""Deliveries: gaps, order, parents first, life cycle, and how many records come twice for which cause.

A log of the records that were put, delivered and taken by retention is the expected state, independent of the lease
table. Positions in it are plain pairs of integers, compared by Python: an order of the checkers' own, not the worker's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from pykcl.model.shard import HashRange
from pykcl.testing.simulation.guarantees import Guarantee, Violations

Position = tuple[int, int]
"""(sequence number, sub-sequence number). Sentinels lie before every number, SHARD_END behind."""

END: Position = (10**200, 0)
LIBRARY = "other-library"
"""Prefix of the names of those who write rows without reading the counter."""
AT_LATEST: Position = (-1, 0)
AT_TRIM_HORIZON: Position = (-2, 0)
_SENTINELS = {
    "AT_TIMESTAMP": (-3, 0), "TRIM_HORIZON": AT_TRIM_HORIZON, "LATEST": AT_LATEST, "SHARD_END": END,
}  # fmt: skip
FIRST: Position = (0, 0)


def position_of(sequence_number: str, sub_sequence_number: int) -> Position:
    """Raises ValueError for what is neither digits nor a sentinel."""
    sentinel = _SENTINELS.get(sequence_number)
    return sentinel if sentinel is not None else (int(sequence_number), sub_sequence_number)


def position_in(text: str) -> Position:
    """Parse a position of an event: "5:2", or a sentinel. Raises ValueError."""
    number, _, sub = text.partition(":")
    return position_of(number, int(sub or 0))


def checkpoint_position(item: Mapping[str, Any]) -> Position:
    """The checkpoint of a row in wire form. Raises ValueError, KeyError."""
    return position_of(item["checkpoint"]["S"], int(item["checkpointSubSequenceNumber"]["N"]))


class ShardRecords:
    """Records of one shard in order of their positions. before: put before the start, and owed to nobody.

    skipped: those that an operator skipped, who moved the checkpoint: owed to nobody, too. is_given_up: to its end, so
    that whatever is put from then on is skipped as well.
    """

    def __init__(self) -> None:
        self.put: list[Position] = []
        self.before: set[Position] = set()
        self.positions: set[Position] = set()
        self.delivered: set[Position] = set()
        self.trimmed: set[Position] = set()
        self.skipped: set[Position] = set()
        self._arrivals: list[int] = []
        self._dropped: dict[int, int] = {}
        self.is_trimmed = False
        self.is_given_up = False
        self._settled = 0

    def add(self, position: Position, arrived_at: int) -> None:
        self.put.append(position)
        self.positions.add(position)
        self._arrivals.append(arrived_at)

    def index(self, position: Position) -> int:
        """Return the place of a record among those that were put."""
        return bisect_left(self.put, position)

    def arrived_at(self, position: Position) -> int:
        """Return when a record arrived, epoch milliseconds."""
        return self._arrivals[self.index(position)]

    def drop(self, sequence_number: int, arrived_at: int) -> None:
        """A record was put that nobody is to be given: an aggregate of another shard."""
        self._dropped[sequence_number] = arrived_at

    def is_dropped(self, sequence_number: int) -> bool:
        return sequence_number in self._dropped

    def trim(self, horizon: int) -> None:
        """Retention took what arrived before `horizon`, epoch milliseconds."""
        count = len(self.trimmed)
        while count < len(self.put) and self._arrivals[count] < horizon:
            self.trimmed.add(self.put[count])
            count += 1
        # A longer retention period brings nothing back.
        self.is_trimmed = (
            self.is_trimmed or count > 0 or any(arrived < horizon for arrived in self._dropped.values())
        )

    def skip(self, position: Position) -> None:
        """An operator moved the checkpoint here: what nobody had up to it is owed no more."""
        self.is_given_up = position == END
        upto = self.put[: bisect_right(self.put, position)]
        self.skipped.update(unread for unread in upto if not self._is_settled(unread))

    def first_owed(self) -> Position | None:
        """The first record that was neither delivered nor trimmed nor skipped."""
        if self.is_given_up:
            return None
        while self._settled < len(self.put) and self._is_settled(self.put[self._settled]):
            self._settled += 1
        return self.put[self._settled] if self._settled < len(self.put) else None

    def owed(self) -> int:
        if self.first_owed() is None:
            return 0
        return sum(not self._is_settled(position) for position in self.put[self._settled :])

    def after(self, position: Position) -> list[Position]:
        return self.put[bisect_right(self.put, position) :]

    def never_delivered(self) -> list[Position]:
        """Return the records that retention took before anybody had them."""
        return sorted(self.trimmed - self.delivered)

    def _is_settled(self, position: Position) -> bool:
        return position in self.delivered or position in self.trimmed or position in self.skipped


class RecordLog:
    """All shards, with their parents, also those that Kinesis has forgotten.

    horizon: retention has taken everything that arrived before it, epoch milliseconds. ranges: the
    hash keys of each shard.
    """

    def __init__(self, horizon: Callable[[], int]) -> None:
        self._horizon = horizon
        self.shards: dict[str, ShardRecords] = defaultdict(ShardRecords)
        self.parents: dict[str, tuple[str, ...]] = {}
        self.ranges: dict[str, HashRange] = {}
        self.deliveries = 0

    def shard(self, shard_id: str) -> ShardRecords:
        """Return the shard as it is now, without the records that retention has removed."""
        shard = self.shards[shard_id]
        shard.trim(self._horizon())
        return shard

    def delivered(self, shard_id: str, positions: list[Position]) -> None:
        self.deliveries += len(positions)
        self.shards[shard_id].delivered.update(positions)

    def owed(self) -> dict[str, int]:
        """Return the number of records that each shard still owes."""
        return {name: owed for name in sorted(self.shards) if (owed := self.shard(name).owed())}

    def records(self) -> int:
        return sum(len(shard.put) for shard in self.shards.values())

    def ancestors(self, shard_id: str) -> set[str]:
        found: set[str] = set()
        ahead = list(self.parents.get(shard_id, ()))
        while ahead:
            parent = ahead.pop()
            if parent not in found:
                found.add(parent)
                ahead += self.parents.get(parent, ())
        return found

    def children(self, shard_id: str) -> list[str]:
        return [child for child, parents in self.parents.items() if shard_id in parents]


class Judging(Protocol):
    """A sink of broken guarantees."""

    def expect(self, holds: bool, guarantee: Guarantee, what: str) -> None: ...


@dataclass(slots=True)
class Ownership:
    """after: what it was last given and returned from, or started at. started: virtual seconds.

    state: initialized, ended (shard_ended was called), shut down or lost. running: the batch last given. returned: when
    which batches returned, by their last positions. reported: how many losses of this shard the host had
    reported. while_healed: whether the last batch was given without faults. is_robbed: whether the next owner of the
    lease has started.
    confirmed: up to where its processor checkpointed inside the running batch. perhaps: the same, but it raised.
    has_failed_in_faults: whether the last batch failed and was given before the faults ended.
    """

    host: str
    shard_id: str
    after: Position
    started: float = 0.0
    state: str = "initialized"
    busy: str = ""
    delivered: set[Position] = field(default_factory=set)
    running: list[Position] = field(default_factory=list)
    returned: list[tuple[float, Position]] = field(default_factory=list)
    reported: int = 0
    while_healed: bool = False
    is_durable_end: bool = False
    is_robbed: bool = False
    has_failed_in_faults: bool = False
    confirmed: Position | None = None
    perhaps: Position | None = None

    @contextmanager
    def call(self, checker: Judging, method: str) -> Iterator[None]:
        where = f"{self.host} {self.shard_id}"
        checker.expect(not self.busy, Guarantee.LIFE_CYCLE, f"{where}: {method} while {self.busy} runs")
        self.busy = method
        try:
            yield
        finally:
            self.busy = ""

    @contextmanager
    def tried_again_if_it_raises(self) -> Iterator[Callable[[], None]]:
        """Keep what was delivered; the batch comes again from its first record that is not checkpointed.

        Yields what to call for a batch that fails without raising.
        """
        before, reported = self.after, self.reported

        def comes_again() -> None:
            # Also where every record was delivered, and only its checkpoint was refused.
            self.after = before if self.confirmed is None else max(before, self.confirmed)
            if self.after == before:
                self.reported = reported

        try:
            yield comes_again
        except BaseException:
            comes_again()
            raise

    def goes_on_with(self, given: list[Position]) -> None:
        """Note the start of a batch, which shows if a checkpoint with an unknown outcome was written."""
        if self.perhaps is not None and given and given[0] > self.perhaps:
            self.after = max(self.after, self.perhaps)
        self.perhaps = self.confirmed = None


class DeliveryChecker:
    """Checker of the delivery of records.

    fates: by host, the end of its last run: "crash", "clean stop", "pause" or none.
    believes: the host believes that it holds the lease, or was frozen until now. owns: the host was the last to take
    the lease, and the row still names it. is_healed: an owner notices a steal before the new owner starts.
    released: (host, shard) that the host released in order, according to the row. reader: last host with records of it.
    start_of: where a shard really begins for an owner whose row says a position, as somebody may have moved it.
    may_start_early: a start at LATEST may have been noted by a clock that is behind.
    on_starts, on_batch, on_returned, on_repeated: calls of other checkers; for a batch also True if records dropped by
    retention are missing before it, for a repetition the previous owner and the reason.
    """

    def __init__(self, record_log: RecordLog, violations: Violations) -> None:
        self.record_log = record_log
        self._violations = violations
        self.fates: dict[str, str] = {}
        self.stolen: set[str] = set()
        self.duplicates: Counter[str] = Counter()
        self.most_duplicates: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.released: set[tuple[str, str]] = set()
        self.reader: dict[str, str] = {}
        self.batches = 0
        self._ended: set[tuple[str, str]] = set()
        self.last: dict[str, Ownership] = {}
        self._owning: dict[str, Ownership] = {}
        self.believes: Callable[[str, str], bool] = lambda host, shard_id: True
        self.owns: Callable[[str, str], bool] = lambda host, shard_id: False
        self.is_made_by_pykcl: Callable[[str], bool] = lambda shard_id: True
        self.start_of: Callable[[str, str, Position], Position] = lambda host, shard_id, position: position
        self.may_start_early = False
        self.is_healed = False
        self.on_starts: Callable[[Ownership], None] = lambda owning: None
        self.on_batch: Callable[[Ownership, bool], None] = lambda owning, lacks: None
        self.on_returned: Callable[[Ownership], None] = lambda owning: None
        self.on_skipped: Callable[[Ownership], None] = lambda owning: None
        self.on_repeated: Callable[[Ownership, list[Position], str], None] = lambda last, repeated, cause: (
            None
        )

    def expect(self, holds: bool, guarantee: Guarantee, what: str) -> None:
        self._violations.expect(holds, guarantee, what)

    def ownership_starts(self, host: str, shard_id: str, position: Position) -> Ownership:
        shard, position = self.record_log.shard(shard_id), self.start_of(host, shard_id, position)
        repeated = [position for position in shard.after(position) if position in shard.delivered]
        if repeated:
            self._check_repetition(host, shard_id, repeated)
        self.stolen.discard(shard_id)
        self.released.discard((host, shard_id))
        owning = self.last[shard_id] = Ownership(host, shard_id, position)
        # A host that starts late, and has lost the lease again already, takes it from no other.
        if self.owns(host, shard_id):
            if shard_id in self._owning:
                self._owning[shard_id].is_robbed = True
            self._owning[shard_id] = owning
        self.on_starts(owning)
        return owning

    def _check_repetition(self, host: str, shard_id: str, repeated: list[Position]) -> None:
        cause = self._cause(shard_id, repeated)
        self.duplicates[cause] += len(repeated)
        self.most_duplicates[cause] = max(self.most_duplicates[cause], len(repeated))
        self.expect(
            cause != "clean stop",
            Guarantee.NO_DUPLICATES,
            f"{len(repeated)} records of {shard_id} come again to {host} after a clean stop",
        )
        if shard_id in self.last:
            self.on_repeated(self.last[shard_id], repeated, cause)

    def _cause(self, shard_id: str, repeated: list[Position]) -> str:
        last = self.last.get(shard_id)
        if shard_id in self.stolen or last is None:
            return "steal" if last is not None else "other"
        fate = self.fates.get(last.host, "other")
        if fate != "clean stop":
            return fate
        # Clean only for what it released, and only it had: what an earlier owner left undone is not its fault. Nor is
        # what lies behind a record that raised while there were faults.
        own = (last.host, shard_id) in self.released and not last.delivered.isdisjoint(repeated)
        # 1) An outage costs it the lease; 2) it stops, and in a fleet of KCL 3.x takes its name off the row.
        own = own and last.state != "lost"
        return fate if own and not last.has_failed_in_faults else "other"

    def called(self, owning: Ownership, method: str) -> None:
        """LIFE_CYCLE: initialized, batches, shard_ended perhaps again, shutdown_requested once, or lease_lost once and
        nothing more."""
        allowed = {
            "process_records": ("initialized",),
            "shard_ended": ("initialized", "ended"),
            "shutdown_requested": ("initialized", "ended"),
            "lease_lost": ("initialized", "ended", "shut down"),
        }[method]
        guarantee = Guarantee.SILENT_AFTER_LOSS if owning.state == "lost" else Guarantee.LIFE_CYCLE
        where = f"{owning.host} {owning.shard_id}"
        self.expect(owning.state in allowed, guarantee, f"{where}: {method} when {owning.state}")
        if method == "shutdown_requested":
            owning.state = "shut down"

    def batch_starts(self, owning: Ownership, given: list[Position]) -> None:
        """NO_GAP, PARENTS_FIRST, and that the host may deliver at all."""
        self.reader[owning.shard_id] = owning.host
        self.batches += 1
        owning.goes_on_with(given)
        where = f"{owning.host} {owning.shard_id} after {owning.after}"
        believed = self.believes(owning.host, owning.shard_id)
        self.expect(believed, Guarantee.SILENT_AFTER_LOSS, f"{where}: a batch without belief in the lease")
        robbed = self.is_healed and owning.is_robbed
        self.expect(not robbed, Guarantee.ONE_OWNER, f"{where}: a batch after its thief had started")
        owning.while_healed = self.is_healed
        self.on_batch(owning, self._lacks(owning, given, where))
        owning.running = given
        self._check_parents(owning.shard_id, where)

    def _lacks(self, owning: Ownership, given: list[Position], where: str) -> bool:
        """NO_GAP. Whether records are missing that retention took; others were just fetched before they went."""
        shard = self.record_log.shard(owning.shard_id)
        ahead = iter(shard.after(owning.after))
        lacks = False
        # Who reads the whole shard is given also what was put before the start, and goes on from there.
        is_early = owning.after == AT_TRIM_HORIZON or owning.after in shard.before
        is_early = is_early or (self.may_start_early and owning.after == AT_LATEST)
        unasked = shard.before if is_early else set()
        for position in (position for position in given if position not in unasked):
            wanted = next(ahead, None)
            while wanted != position and wanted in shard.trimmed:
                lacks, wanted = True, next(ahead, None)
            if wanted != position:
                self.expect(False, Guarantee.NO_GAP, f"{where}: wanted {wanted}, given {position}")
                break
        return lacks

    def _check_parents(self, shard_id: str, where: str) -> None:
        for ancestor in sorted(self.record_log.ancestors(shard_id)):
            owed = self.record_log.shard(ancestor).first_owed()
            self.expect(owed is None, Guarantee.PARENTS_FIRST, f"{where}: {ancestor} still owes {owed}")

    def java_delivers(self, name: str, shard_id: str, positions: list[Position]) -> None:
        """Check the order of a Java worker's records: pykcl may have created the lease of their shard too early.

        Leases that Java created from an incomplete list of shards are not checked.
        """
        if self.is_made_by_pykcl(shard_id):
            self._check_parents(shard_id, f"{name} {shard_id}")
        self.last.pop(shard_id, None)
        self.record_log.delivered(shard_id, positions)

    def delivered(self, owning: Ownership, positions: list[Position]) -> None:
        self.record_log.delivered(owning.shard_id, positions)
        owning.delivered.update(positions)
        owning.after = positions[-1]
        self.on_returned(owning)

    def given_up(self, owning: Ownership, positions: list[Position]) -> None:
        """NO_GAP. The owner goes on behind records that are kept as a dead letter."""
        where = f"{owning.host} {owning.shard_id} after {owning.after}: given up"
        self.on_batch(owning, self._lacks(owning, positions, where))
        owning.delivered.update(positions)
        owning.after = positions[-1]
        self.on_skipped(owning)

    def refused(self, host: str, shard_id: str, error: Exception) -> None:
        """Count a refused checkpoint of the application's own thread."""
        self.refusals[type(error).__name__] += 1

    def shard_ends(self, owning: Ownership) -> None:
        owed = self.record_log.shard(owning.shard_id).first_owed()
        where = f"{owning.host} {owning.shard_id}"
        self.expect(owed is None, Guarantee.NO_GAP, f"{where}: shard_ended, but {owed} is owed")
        shard = self.record_log.shard(owning.shard_id)
        rest = shard.after(owning.after)
        # A start at LATEST is after all records delivered under an earlier, deleted lease of the shard.
        had = shard.delivered if owning.after == AT_LATEST else set()
        left_out = next(
            (position for position in rest if position not in shard.trimmed and position not in had), None
        )
        self.expect(
            left_out is None, Guarantee.NO_GAP, f"{where}: shard_ended, and it was not given {left_out}"
        )
        if owning.state == "initialized":
            self.on_batch(owning, bool(rest))
        owning.state = "ended"
        self._ended.add((owning.host, owning.shard_id))

    def has_ended(self, host: str, shard_id: str) -> bool:
        """Return whether a processor that this host had for the shard was called with its end."""
        return (host, shard_id) in self._ended

    def ownership_lost(self, owning: Ownership) -> None:
        owning.state = "lost"
