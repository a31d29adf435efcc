"""What one storm leaves behind: its trace, its counters, and the promise it broke, if any."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pykcl.testing.storm.promises import PromiseBroken


@dataclass(slots=True)
class Figures:
    """Of one storm. Seconds are simulated. lost: records that nobody was given although all faults had ended.

    duplicates: by cause; most_duplicates: of one shard at one time. overlap: longest time two workers believed in one
    lease, "steal" or "expiry". failovers: from a kill in calm weather to the first delivery of each of its leases by
    another. to_balance: from the end of all faults.
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
    stops: dict[str, float] = field(default_factory=dict)
    workers: int = 0
    shards: int = 0


@dataclass(slots=True)
class Outcome:
    """digest: hash of the trace. injected: faults by kind. last_lines: the last 60 events before the end.

    broken: the promise that was broken, or another AssertionError such as a deadlock; None: all were kept.
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
    def verdict(self) -> str:
        """One line: what was broken, or "kept"."""
        if self.broken is None:
            return "kept"
        if isinstance(self.broken, PromiseBroken):
            return str(self.broken)
        return f"{type(self.broken).__name__}: {self.broken}"
