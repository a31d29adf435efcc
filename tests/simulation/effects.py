"""Whether a kind of fault mattered: without it the same seed must take another course; or the same, if harmless."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from pykcl.testing.simulation.faults import Kind
from tests.simulation.faults import KINDS
from tests.simulation.runner import Job, SeedResult

MANY_SEEDS = 100
"""From so many seeds on, a kind of fault that was never injected, or never changed anything, fails the run.

The rarest kinds happen in one simulation of eight: that a hundred simulations have none of one is a chance of one in a million.
"""

VERY_MANY_SEEDS = 500
_ENOUGH = 3
_MAX_TRIES = 40
_OF_ONE_SIMULATION = 4


class Effects:
    """Counts injections, plans the simulations that are run again without one kind, and checkers what they show.

    seeds: how many the run will have. Short ones spend at most a quarter more on it, and fail for nothing it shows.
    kinds: that its simulations may have.
    """

    def __init__(self, seeds: int, off: Collection[str] = (), kinds: Mapping[str, Kind] = KINDS) -> None:
        self.kinds = kinds
        self._noted = 0
        self._enough = enough(seeds)
        self._left = len(kinds) * _MAX_TRIES if seeds >= MANY_SEEDS else seeds // 4
        self._kinds = [name for name in kinds if name not in off]
        self.injected: Counter[str] = Counter()
        self.seeds: Counter[str] = Counter()
        self.effective: Counter[str] = Counter()
        self.tried: Counter[str] = Counter()
        self._shown: Counter[str] = Counter()
        self._pending: dict[tuple[int, str], tuple[str, str]] = {}

    def note(self, result: SeedResult) -> list[Job]:
        """A simulation as it is; returns the simulations to compare it with."""
        self._noted += 1
        self.injected.update(result.injected)
        self.seeds.update(result.injected.keys())
        if not result.kept:
            # Cut short where it broke: with a fault left out it would break elsewhere.
            return []
        # A few of each simulation, so that every kind is tried in different ones: first those that seldom happen, for the
        # others there will be another.
        wanted = [name for name in self._kinds if name in result.injected and self._is_wanted(name)]
        wanted.sort(key=lambda name: (self._shown[name] + self._under_way(name), self.seeds[name]))
        return [self._without(name, result) for name in wanted[: min(_OF_ONE_SIMULATION, self._left)]]

    def _is_wanted(self, name: str) -> bool:
        shown = self._shown[name] + self._under_way(name)
        return self._left > 0 and self.tried[name] < _MAX_TRIES and shown < self._enough

    def _under_way(self, name: str) -> int:
        return sum(kind == name for kind, _ in self._pending.values())

    def _without(self, name: str, result: SeedResult) -> Job:
        self._left -= 1
        self.tried[name] += 1
        job = replace(result.job, off=result.job.off | {name})
        self._pending[_mark(job)] = (name, result.digest)
        return job

    def is_comparison(self, job: Job) -> bool:
        return _mark(job) in self._pending

    def compare(self, result: SeedResult) -> str | None:
        """A simulation run again; returns what is wrong, if a fault that must not matter did."""
        name, digest = self._pending.pop(_mark(result.job))
        if not result.digest:
            return None
        differs = result.digest != digest
        self.effective[name] += differs
        if not self.kinds[name].is_harmless:
            self._shown[name] += differs
            return None
        self._shown[name] += 1
        return (
            f"{name} ({self.kinds[name].what}) changed the course of the simulation, and must not"
            if differs
            else None
        )

    def not_exercised(self) -> dict[str, list[str]]:
        """Kinds of which nothing was shown, by the reason why."""
        reasons: dict[str, list[str]] = {}
        for name in self._kinds:
            if not self.injected[name]:
                reasons.setdefault("never injected", []).append(name)
            elif not self.tried[name]:
                reasons.setdefault("never left out for comparison", []).append(name)
            elif not self._shown[name]:
                reasons.setdefault("never effective", []).append(name)
        return reasons

    @property
    def fails_the_run(self) -> bool:
        """Only a long run does: in a short one chance leaves out too much."""
        return self._noted >= MANY_SEEDS and bool(self.not_exercised())


def enough(seeds: int) -> int:
    """How often a kind has to be shown effective in a run of so many seeds; then it is not tried any more."""
    return _ENOUGH if seeds >= VERY_MANY_SEEDS else 1


def _mark(job: Job) -> tuple[int, str]:
    return job.seed, ",".join(sorted(job.off))
