"""The leader's decisions about a quiet fleet, for a day: how many leases move, and how soon a hot worker is relieved.

    python tests/planning/quiet_fleet.py

prints the table of docs/guides/mixed-fleet.md, in some minutes. Only the planner runs: every minute, as the leader balances with a
failover time of 10 s, each time about the reports and the throughputs of that minute. "before" is the rule of Java 3.5.1.

Four workers share the leases evenly. What they report is noise around one CPU utilisation; or they report nothing, and records of 1 KiB
come by chance (Poisson), as many to each lease. For the relief, one worker has half of all leases, and more to do for each of these, so that
it uses 90 % CPU, or delivers nine times as much as another one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.fleet_rows import CPU, WorkerMetrics
from pykcl.model.lease import Lease
from pykcl.planning.assignment_decider import AssignmentMemory, AssignmentSettings, decide

WORKERS = ("a", "b", "c", "d")
LEASES = (12, 160, 1000)
DAY = 24 * 60
"""Minutes. The leader balances once in each."""
HOT = 90.0
"""Percent of CPU that the hot worker uses."""
NOW = 1_800_000_000
_HEARTBEATS = 6
"""Times in a minute that a lease reports its throughput, each time averaged with what it has reported before."""


@dataclass(frozen=True)
class Kind:
    """cpu: percent that each worker uses, jitter: its standard deviation from one report to the next. rate: records a second of each
    lease; of a fleet without cpu they come by chance.
    """

    name: str
    rate: float
    cpu: float | None = None
    jitter: float = 0.0


KINDS = (
    Kind("1 % CPU", 5.0, 1.0, 0.3),
    Kind("2 % CPU", 5.0, 2.0, 0.5),
    Kind("5 % CPU", 5.0, 5.0, 1.0),
    Kind("20 % CPU", 5.0, 20.0, 2.0),
    Kind("60 % CPU", 5.0, 60.0, 2.0),
    Kind("no CPU, a record every 100 s", 0.01),
    Kind("no CPU, a record every 10 s", 0.1),
    Kind("no CPU, 5 records a second", 5.0),
)


class Fleet:
    """Leases with their owners and weights, and what each worker has reported in the last five minutes."""

    def __init__(
        self, kind: Kind, owners: list[str], weights: list[float], *, steady: bool, seed: int = 1
    ) -> None:
        self._kind, self._weights = kind, weights
        self._rng, self._settings = Random(seed), AssignmentSettings(steady=steady)
        self._rates = [kind.rate * weight for weight in weights]
        at = Checkpoint("10")
        self._leases = [
            Lease(str(number), at, owner=owner, counter=5, throughput=f"{rate:.6f}")
            for number, (owner, rate) in enumerate(zip(owners, self._rates, strict=True))
        ]
        self._reports: dict[str, list[float]] = {name: [] for name in WORKERS}
        if kind.cpu is not None:
            self._report(10)

    def minute(self) -> int:
        """Let a minute pass, with one decision at its end. Return how many leases moved."""
        if self._kind.cpu is not None:
            self._report(2)
        else:
            self._flow()
        reports = [
            WorkerMetrics(name, NOW, {CPU: tuple(values)}, {CPU: (80.0,)})
            if values
            else WorkerMetrics(name, NOW)
            for name, values in self._reports.items()
        ]
        decision = decide(
            self._leases,
            reports,
            now=NOW,
            expired=(),
            memory=AssignmentMemory(),
            settings=self._settings,
            rng=self._rng,
        )
        for one in decision.assignments:
            self._leases[int(one.lease_key)] = one.lease.with_(owner=one.new_owner)
        return len(decision.assignments)

    def loads(self) -> dict[str, float]:
        """The weight of the leases of each worker beside that of an equal share, without noise."""
        loads, share = dict.fromkeys(WORKERS, 0.0), sum(self._weights) / len(WORKERS)
        for lease, weight in zip(self._leases, self._weights, strict=True):
            loads[lease.owner or ""] += weight / share
        return loads

    def _report(self, times: int) -> None:
        assert self._kind.cpu is not None
        mean = self._kind.cpu * sum(self._weights) / len(self._weights)
        for worker, load in self.loads().items():
            values = self._reports[worker]
            values += [max(0.0, self._rng.gauss(mean * load, self._kind.jitter)) for _ in range(times)]
            del values[:-10]

    def _flow(self) -> None:
        seconds = 60 / _HEARTBEATS
        for number, weight in enumerate(self._weights):
            rate = self._rates[number]
            for _ in range(_HEARTBEATS):
                rate = (rate + _poisson(self._kind.rate * weight * seconds, self._rng) / seconds) / 2
            self._rates[number] = rate
            self._leases[number] = self._leases[number].with_(throughput=f"{rate:.6f}")


def moves(kind: Kind, leases: int, minutes: int, *, steady: bool) -> int:
    """The number of leases that move in a fleet where nothing happens."""
    fleet = Fleet(kind, [WORKERS[number % 4] for number in range(leases)], [1.0] * leases, steady=steady)
    return sum(fleet.minute() for _ in range(minutes))


def relief(kind: Kind, leases: int) -> tuple[int | None, int | None]:
    """The minutes until the hot worker has lost four fifths of what Java 3.5.1 takes from it within an hour, by that rule and by ours.

    None: nothing is taken from it; Java has no worker for a lease that would bring it above the average.
    """
    by_java, ours = (_loads_of_hot(kind, leases, steady=steady) for steady in (False, True))
    enough = by_java[0] - 0.8 * (by_java[0] - min(by_java))
    if enough == by_java[0]:
        return None, None
    first = (
        next((minute for minute, load in enumerate(loads) if load <= enough), None)
        for loads in (by_java, ours)
    )
    return next(first), next(first)


def _loads_of_hot(kind: Kind, leases: int, *, steady: bool) -> list[float]:
    """The load of the hot worker after each minute of an hour; first the one at the start."""
    hot, *others = WORKERS
    owners = [hot if number % 2 else others[number // 2 % 3] for number in range(leases)]
    # It has three times as many leases as another worker.
    weight = 3.0 if kind.cpu is None else HOT / 3 / kind.cpu
    fleet = Fleet(kind, owners, [weight if owner == hot else 1.0 for owner in owners], steady=steady)
    loads = [fleet.loads()[hot]]
    for _ in range(60):
        fleet.minute()
        loads.append(fleet.loads()[hot])
    return loads


def _poisson(mean: float, rng: Random) -> int:
    if mean > 30:
        return max(0, round(rng.gauss(mean, math.sqrt(mean))))
    count, left, least = 0, rng.random(), math.exp(-mean)
    while left > least:
        count += 1
        left *= rng.random()
    return count


def table(minutes: int = DAY) -> str:
    """The rows of all kinds of fleets, as Markdown."""
    lines = [
        "| four workers | leases | moves a day, before | now | hot worker relieved after, before | now |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        for leases in LEASES:
            cells = [
                *(str(moves(kind, leases, minutes, steady=steady)) for steady in (False, True)),
                *map(_minutes, relief(kind, leases)),
            ]
            lines.append(f"| {kind.name} | {leases} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _minutes(found: int | None) -> str:
    return "-" if found is None else f"{found} min"


if __name__ == "__main__":
    print(table())
