"""Guarantees, under the names by which checkers report them broken, and the outcome of one simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum


class Guarantee(Enum):
    """The names of the values are I1-I12 (safety) and L1-L5 (liveness) of docs/concepts/guarantees.md.

    P1-P4 are those of producers, in docs/about/verification.md.
    """

    CHECKPOINT_AFTER_DELIVERY = "I1: no checkpoint passes a record that was not delivered"
    ALL_DELIVERED = "I2, L4: once the faults end, every record is delivered"
    LOSS_REPORTED = (
        "I2: each gap that retention tore is reported once by whoever reads across it, and nothing else is"
    )
    CHECKPOINT_FORWARD = "I3: no checkpoint moves back, leaves SHARD_END, or is one the format does not know"
    PARENTS_FIRST = "I4: no record is delivered before all records of the ancestors of its shard"
    ONE_OWNER = "I5: no two workers hold one lease, except for a moment after a steal"
    SILENT_AFTER_LOSS = "I5: who lost a lease is called no more, and writes no more"
    NO_GAP = "I6: an owner is given every record after its checkpoint, in order"
    LIFE_CYCLE = "I6: a processor is called by one thread at a time, in the order of its life, and to its end"
    CONDITIONAL = (
        "I7: every write has a condition, none creates a row by update or overwrites one by creation"
    )
    COUNTER_BY_ONE = (
        "I7: every write raises the lease counter by exactly one, or only adds a missing hash range"
    )
    FOREIGN_KEPT = "I7: rows and attributes that are not pykcl's stay as they are"
    DELETION_BY_EVIDENCE = (
        "I8: a row is deleted only after SHARD_END with children started, or when its shard is gone"
    )
    THREADS = "I9: at most one reader of a lease in a process, and none is left after a stop"
    BUDGETS = (
        "I10: at most five reads a second of a shard, and no request more often than there is a reason for it"
    )
    FOLLOWS_LEADER = (
        "I11: in KCL 3.x's own mode a worker takes no lease from its leader, gives up in time what that asks for, "
        "and reports what is so"
    )
    LEADS_ALONE = (
        "I12: in KCL 3.x's own mode at most one worker believes that it leads, none takes the lock before its time, "
        "and only its owner assigns leases, and none whose worker is alive"
    )
    BALANCE = "L1: leases are spread evenly"
    NO_CHURN = "L2: leases stay where they are when nothing happens"
    FAILOVER = "L3: the leases of a dead worker are read again in time"
    STOP = "L5: a stop ends in time and leaves nothing owned"
    NO_DUPLICATES = (
        "D0: nothing comes twice because of a clean stop, and without faults no more than the running batch"
    )
    PUT_DELIVERED = (
        "P1: the future of a record that was put has its place in the stream, and consumers get it; one that is given "
        "up is reported"
    )
    PUT_COUNTED = (
        "P2: a record is in the stream once for each attempt at most, and its result says if perhaps twice"
    )
    PUT_IN_ORDER = "P3: with ordered=True the first records of each key are in the order of their put calls"
    PUT_BOUNDED = (
        "P4: what waits exceeds max_pending_bytes by a record at most; close is in time and leaves no thread"
    )
    NO_FALSE_ALARM = "no worker fails without a reason, or reports what is not so"


class GuaranteeBroken(AssertionError):
    """guarantee: the first that was broken."""

    def __init__(self, guarantee: Guarantee, what: str) -> None:
        super().__init__(f"{guarantee.name} ({guarantee.value}): {what}")
        self.guarantee = guarantee


class Violations:
    """Threads of workers note what they break; the simulation's own thread raises it from `check`.

    blind: no guarantee counts as broken, to show that the checkers are what catches a broken worker.
    """

    def __init__(self, *, blind: bool = False) -> None:
        self._blind = blind
        self._broken: GuaranteeBroken | None = None

    def expect(self, holds: bool, guarantee: Guarantee, what: str) -> None:
        if not holds and self._broken is None and not self._blind:
            self._broken = GuaranteeBroken(guarantee, what)

    def check(self) -> None:
        """Raise GuaranteeBroken if anything was broken so far."""
        if self._broken is not None:
            raise self._broken


@dataclass(slots=True)
class Figures:
    """Figures of one simulation, in simulated seconds. lost: records never delivered although all faults had ended.

    duplicates: by cause; most_duplicates: of one shard at one time. overlap: longest time two workers believed in one
    lease, "steal" or "expiry". failovers: from a kill without other faults to the first delivery of each of its leases
    by another. to_balance: from the end of all faults. puts: records of producers, by outcome.
    """

    records: int = 0
    deliveries: int = 0
    lost: int = 0
    taken_by_retention: int = 0
    duplicates: Counter[str] = field(default_factory=Counter)
    most_duplicates: Counter[str] = field(default_factory=Counter)
    overlap: dict[str, float] = field(default_factory=dict)
    failovers: list[float] = field(default_factory=list)
    to_balance: float = 0.0
    moves_at_rest: int = 0
    puts: Counter[str] = field(default_factory=Counter)
    stops: dict[str, float] = field(default_factory=dict)
    workers: int = 0
    shards: int = 0


@dataclass(slots=True)
class Outcome:
    """digest: hash of the trace. injected: faults by kind. last_lines: the last 60 events before the end.

    broken: the guarantee that was broken, or another AssertionError such as a deadlock; None: all were kept.
    """

    seed: int
    digest: str
    virtual_seconds: float
    switches: int
    injected: Counter[str]
    figures: Figures
    last_lines: list[str]
    broken: AssertionError | None

    @property
    def summary(self) -> str:
        """One line: what was broken, or "kept"."""
        if self.broken is None:
            return "kept"
        if isinstance(self.broken, GuaranteeBroken):
            return str(self.broken)
        return f"{type(self.broken).__name__}: {self.broken}"
