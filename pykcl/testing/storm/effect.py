"""Whether a kind of fault mattered: without it the same seed must take another course; or the same, if harmless."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from pykcl.testing.storm.faults import KINDS
from pykcl.testing.storm.runner import Job, SeedResult

ENOUGH = 3
"""How often a kind has to be shown effective in a long run; then it is not tried any more."""

MANY_SEEDS = 500
"""From so many seeds on, a kind of fault that was never injected, or never changed anything, fails the run."""

_MOST_TRIES = 40
_OF_ONE_STORM = 4


class Effects:
    """Counts injections, plans the storms that are run again without one kind, and judges what they show.

    seeds: how many the run will have: short ones spend at most a quarter more on it.
    """

    def __init__(self, seeds: int, off: Collection[str] = ()) -> None:
        is_long = seeds >= MANY_SEEDS
        self._noted = 0
        self._enough = ENOUGH if is_long else 1
        self._left = len(KINDS) * _MOST_TRIES if is_long else seeds // 4
        self._kinds = [name for name in KINDS if name not in off]
        self.injected: Counter[str] = Counter()
        self.seeds: Counter[str] = Counter()
        self.effective: Counter[str] = Counter()
        self.tried: Counter[str] = Counter()
        self._shown: Counter[str] = Counter()
        self._pending: dict[tuple[int, str], tuple[str, str]] = {}

    def note(self, result: SeedResult) -> list[Job]:
        """A storm as it is; returns the storms to compare it with."""
        self._noted += 1
        self.injected.update(result.injected)
        self.seeds.update(result.injected.keys())
        if not result.kept:
            # Cut short where it broke: with a fault left out it would break elsewhere.
            return []
        # A few of each storm, so that every kind is tried in different ones.
        wanted = [name for name in self._kinds if name in result.injected and self._is_wanted(name)]
        wanted.sort(key=lambda name: self.tried[name])
        return [self._without(name, result) for name in wanted[: min(_OF_ONE_STORM, self._left)]]

    def _is_wanted(self, name: str) -> bool:
        under_way = sum(kind == name for kind, _ in self._pending.values())
        return (
            self._left > 0 and self.tried[name] < _MOST_TRIES and self._shown[name] + under_way < self._enough
        )

    def _without(self, name: str, result: SeedResult) -> Job:
        self._left -= 1
        self.tried[name] += 1
        job = replace(result.job, off=result.job.off | {name})
        self._pending[_mark(job)] = (name, result.digest)
        return job

    def is_comparison(self, job: Job) -> bool:
        return _mark(job) in self._pending

    def compare(self, result: SeedResult) -> str | None:
        """A storm run again; returns what is wrong, if a fault that must not matter did."""
        name, digest = self._pending.pop(_mark(result.job))
        if not result.digest:
            return None
        differs = result.digest != digest
        self.effective[name] += differs
        if not KINDS[name].is_harmless:
            self._shown[name] += differs
            return None
        self._shown[name] += 1
        return (
            f"{name} ({KINDS[name].what}) changed the course of the storm, and must not" if differs else None
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


def _mark(job: Job) -> tuple[int, str]:
    return job.seed, ",".join(sorted(job.off))
