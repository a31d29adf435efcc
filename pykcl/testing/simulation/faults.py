"""Kinds of faults, those that one simulation has, and when each happened."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass


class Marks:
    """Times at which something was done to a host. now: virtual seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._last: dict[str, float] = {}

    def add(self, host: str) -> None:
        self._last[host] = self._now()

    def __contains__(self, host: str) -> bool:
        """Return whether it was ever done."""
        return host in self._last

    def since(self, host: str, then: float) -> bool:
        """Return whether it was done at that time or later."""
        return self._last.get(host, float("-inf")) >= then


class Freezes:
    """Times at which a host stood still. A host that stands still is not frozen once more."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._times: dict[str, list[tuple[float, float]]] = {}

    def add(self, host: str, seconds: float) -> None:
        """Note that the host stands still from now on for so many seconds."""
        self._times.setdefault(host, []).append((self._now(), self._now() + seconds))

    def just_ended(self, host: str) -> bool:
        """Return whether the host continues at this very moment."""
        return any(end == self._now() for _, end in self._times.get(host, ()))

    def seconds_since(self, host: str, then: float) -> float:
        """Number of the seconds since `then` in which it stood still; later ones do not count."""
        now = self._now()
        return sum(max(0.0, min(end, now) - max(start, then)) for start, end in self._times.get(host, ()))

    def awake_seconds_before(self, host: str, then: float, seconds: float) -> float:
        """The time so many seconds before `then`, of those in which it did not stand still."""
        for start, end in reversed(self._times.get(host, ())):
            if start < then and end > then - seconds:
                seconds += min(end, then) - start
        return then - seconds


@dataclass(frozen=True, slots=True)
class Kind:
    """name: such as "F6.take". rates: how probable it is at each occasion; a simulation draws one of them.

    is_harmless: it must not change the course of anything at all.
    """

    name: str
    what: str
    rates: tuple[float, ...]
    is_harmless: bool = False


PER_STEP = (0.01, 0.03, 0.06)
_PER_CALL = (0.01, 0.05, 0.2)
_PER_BATCH = (0.02, 0.1, 0.3)

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("F1", "a worker is killed", PER_STEP),
        Kind("F2", "one thread of a worker dies", PER_STEP),
        Kind("F3", "a worker is suspended for up to five failover times", PER_STEP),
        Kind("F4.rate", "a worker's clock runs up to 10 % fast or slow", (0.5, 1.0)),
        Kind("F4.wall", "a worker's wall clock jumps by hours", PER_STEP, is_harmless=True),
        Kind("F5.dynamodb", "DynamoDB throttles, fails or does not answer", _PER_CALL),
        Kind("F5.kinesis", "Kinesis throttles or fails", _PER_CALL),
        Kind("F5.outage", "DynamoDB or Kinesis is down for up to 40 s, for all or for one worker", PER_STEP),
        Kind("F5.absent", "DynamoDB denies once that the lease table exists", (0.005, 0.02)),
        Kind("F5.slow", "DynamoDB answers after up to 2 s", _PER_CALL),
        Kind(
            "F5.date",
            "a proxy before Kinesis, up to 5 min ahead or behind, writes the Date headers for up to 2 min",
            PER_STEP,
        ),
        Kind("F6.create", "a lease was created, the answer is lost", _PER_BATCH),
        Kind("F6.take", "a lease was taken, the answer is lost", _PER_BATCH),
        Kind("F6.renew", "a lease was renewed, the answer is lost", _PER_BATCH),
        Kind("F6.checkpoint", "a checkpoint was written, the answer is lost", _PER_BATCH),
        Kind("F6.shard_end", "SHARD_END was written, the answer is lost", _PER_BATCH),
        Kind("F6.release", "a lease was released, the answer is lost", _PER_BATCH),
        Kind("F6.delete", "a lease was deleted, the answer is lost", _PER_BATCH),
        Kind("F6.fill", "a hash range was filled in, the answer is lost", (0.3, 0.6)),
        Kind("F7", "a write reaches the table after its sender gave up", _PER_CALL),
        Kind("F8.broken", "a scan fails between two pages", _PER_CALL),
        Kind(
            "F8.stale", "a page of a scan shows rows as they were up to 2 s ago, deleted ones too", _PER_CALL
        ),
        Kind("F9.stale", "ListShards shows the shards of up to 5 s ago", _PER_BATCH),
        Kind("F9.part", "ListShards fails after its first page", _PER_BATCH),
        Kind("F9.denied", "Kinesis denies once that a shard exists", (0.005, 0.02)),
        Kind("F9.missing", "ListShards misses one shard", _PER_BATCH),
        Kind("F10.expired", "a shard iterator is refused", (0.005, 0.02, 0.1)),
        Kind("F10.empty", "GetRecords answers with an empty page", _PER_CALL),
        Kind("F10.refused", "GetRecords ends a shard that has not ended", _PER_CALL),
        Kind("F10.slow", "GetRecords lets a worker wait that asked for many pages at a time", _PER_CALL),
        Kind("F10.kms", "GetRecords is refused for its encryption key for up to 40 s", PER_STEP),
        Kind("F11", "a burst of splits and merges, nested up to six deep", PER_STEP),
        Kind("F12", "retention overtakes the fleet", (0.004, 0.01)),
        Kind(
            "F12.lowered", "the retention period is lowered while the fleet lags, and raised", (0.004, 0.01)
        ),
        Kind("F14.start", "a worker is not allowed one action from its start", PER_STEP),
        Kind("F14.while", "one action is forbidden to a worker for up to 40 s", PER_STEP),
        Kind(
            "F14.credentials",
            "every action is refused to a worker, or to all, for its credentials, for up to 40 s",
            PER_STEP,
        ),
        Kind("F16", "malformed aggregates and aggregates of other shards", (0.05, 0.3)),
        Kind("F17.raises", "the processor raises", _PER_BATCH),
        Kind("F17.hangs", "the processor works for longer than the lease", (0.01, 0.05)),
        Kind(
            "F17.drops",
            "the processor returns late, with its work not done, as it has lost the lease",
            (0.3, 1.0),
        ),
        Kind("F17.twice", "the processor checkpoints twice", _PER_BATCH),
        Kind("F17.backwards", "the processor checkpoints backwards", _PER_BATCH),
        Kind("F17.ahead", "the processor checkpoints what it was not given", _PER_BATCH),
        Kind("F17.thread", "the processor checkpoints from another thread", _PER_BATCH),
        Kind("F17.lost", "the processor checkpoints after it lost the lease", (0.3, 1.0)),
        Kind("F17.never", "the processor never checkpoints", (0.2, 0.5)),
        Kind("F18.stop", "a worker is stopped, in whatever phase it is", PER_STEP),
        Kind("F18.starting", "a worker is stopped while it starts", PER_STEP),
        Kind("F18.busy", "a worker is stopped while a processor works", PER_STEP),
        Kind("F18.waiting", "a worker is stopped while a shard waits for its parents", (0.3, 0.6)),
        Kind("F18.ending", "a worker is stopped while a shard ends", (0.3, 0.6)),
        Kind("F18.creating", "a worker is stopped while it creates the lease table", (0.5,)),
        Kind("F18.initialize", "a worker is stopped while initialize runs", (0.02, 0.1)),
        Kind("F18.losing", "a worker is stopped while lease_lost runs", (0.1, 0.3)),
        Kind("F18.checkpoint", "a worker is stopped while it writes a checkpoint", (0.01, 0.03)),
        Kind("F18.releasing", "a worker is stopped, or stopped again, while it releases a lease", (0.1, 0.3)),
        Kind("F18.twice", "a worker is stopped twice at the same time", PER_STEP),
        Kind("F18.processor", "a processor stops its worker", (0.01, 0.03)),
        Kind("F19.rolling", "every worker is replaced, one after the other", (0.01, 0.02)),
        Kind("F19.same", "two workers run under one worker identifier", PER_STEP),
    )
}


def known(names: Iterable[str], kinds: Iterable[str] = KINDS) -> frozenset[str]:
    """The names, checked; a family such as "F6" stands for all of its kinds. Raises ValueError."""
    chosen: set[str] = set()
    for name in names:
        family = {kind for kind in kinds if kind == name or kind.startswith(f"{name}.")}
        if not family:
            raise ValueError(f"There is no kind of fault called {name!r}. Known: {', '.join(kinds)}.")
        chosen |= family
    return frozenset(chosen)


class Faults:
    """The faults of one simulation. Each kind draws from its own generator, so that leaving one out moves no other.

    off: kinds this simulation does not have. everything: it has all others, instead of about half of them; `always`:
    those that every simulation has. remark: called with each that happened. healed: nothing goes wrong from now on.
    strained: and yet answers to heartbeats get lost, and processors take longer than a lease lasts: nobody is dead, so
    nothing may move. far_away: a host to which every answer takes almost as long as a client waits.
    """

    kinds: Mapping[str, Kind] = KINDS
    always: frozenset[str] = frozenset()

    def __init__(
        self,
        seed: int,
        *,
        off: frozenset[str] = frozenset(),
        everything: bool = False,
        remark: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.injected: Counter[str] = Counter()
        self.healed = False
        self.strained = False
        self.far_away = ""
        self._remark = remark
        self._rngs = {name: random.Random(f"{seed}/{name}") for name in self.kinds}  # noqa: S311 - reproducible
        self._rates: dict[str, float] = {}
        for name, kind in self.kinds.items():
            rng = self._rngs[name]
            rate = rng.choice(kind.rates)
            if rng.random() < 0.5 or everything or name in self.always:
                self._rates[name] = rate
        for some, others in self.exclusive(everything=everything):
            self._have_one_of(some, others)
        for name in off:
            self._rates.pop(name, None)

    def exclusive(self, *, everything: bool) -> Sequence[tuple[set[str], set[str]]]:
        """Return pairs of sets of kinds of which a simulation has one at most."""
        del everything
        # Where a week is kept, a day takes nothing.
        return [({"F12"}, {"F12.lowered"})]

    def _have_one_of(self, some: set[str], others: set[str]) -> None:
        if some & self._rates.keys() and others & self._rates.keys():
            left_out = self._rngs[min(some)].choice([some, others])
            self._rates = {name: rate for name, rate in self._rates.items() if name not in left_out}

    def has(self, name: str) -> bool:
        """Return whether this simulation has faults of this kind."""
        return name in self._rates

    def rng(self, name: str) -> random.Random:
        return self._rngs[name]

    def happens(self, name: str, about: str = "") -> bool:
        """Return whether it happens on this occasion. about: its target, for the log."""
        rate = self._rates.get(name)
        if rate is None or self.healed or self._rngs[name].random() >= rate:
            return False
        self.note(name, about)
        return True

    def is_due(self, name: str) -> bool:
        """Decide as `happens` does, for a fault that may prove impossible: the caller notes it when it was done."""
        rate = self._rates.get(name)
        return rate is not None and not self.healed and self._rngs[name].random() < rate

    def note(self, name: str, about: str = "") -> None:
        self.injected[name] += 1
        self._remark(f"{name}: {self.kinds[name].what}{' - ' if about else ''}{about}")
