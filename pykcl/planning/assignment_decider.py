"""Assignment decisions of the leader of a KCL 3.x fleet: who gets which lease, and which lease moves to whom.

In that mode one worker holds a lock and decides for all. Members of both libraries lead in turn, so decisions are made
by the rules of Java KCL 3.5.1 (`coordinator/assignment/LeaseAssignmentManager.java` and the two classes beside it);
otherwise a change of the leader would move leases back and forth. For the same order of rows the arithmetic is Java's
to the last bit: with equal loads the last bit decides if a worker is above the average. Where Java's result hangs on
the order of a hash map or on a shuffle, the choice here is made by the `rng` or by the order of the rows. Its flaws are
kept, too: see `_Queue`, `_Fleet.give`, `_ByCount`. Three are not: see `give_left`, `AssignmentMemory.given` and
`worker_load.Load`; with `AssignmentSettings.steady` off, each decision is one that Java 3.5.1 could take.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from random import Random
from typing import Final, Protocol

from pykcl.model.checkpoint import AT_SHARD_END
from pykcl.model.fleet_rows import WorkerMetrics
from pykcl.model.lease import Lease
from pykcl.model.lease_writes import LeaseWrite, assign, begin_hand_over
from pykcl.planning.worker_load import (
    BAND_POINTS,
    FAILED,
    Load,
    in_hash_order,
    mean,
    moving_average,
    points_by_chance,
    rank,
    ratio,
    smaller,
    standing,
)

ACTIVE_PERIODS: Final = 2
"""Periods of the reporter after which a worker that has not reported counts as gone."""
_DEFAULT_MARK, _DEFAULT_METRIC, _DEFAULT_LIMIT = "THROUGHPUT", "T", 100.0
_LEASE_COST: Final = 10.0
"""KiB a second that are added for each lease, so that their number counts where hardly anything flows."""


class Strategy(Enum):
    """Java's `leaseAssignmentStrategy`."""

    WORKER_UTILIZATION_AWARE = auto()
    LEASE_COUNT_BASED = auto()


class AssignmentKind(Enum):
    """ASSIGN: the new owner may begin at once. HAND_OVER: the present owner finishes first."""

    ASSIGN = auto()
    HAND_OVER = auto()


class AssignmentReason(Enum):
    """UNOWNED, EXPIRED: nobody works on the lease. BALANCE: it goes from a worker with more load to one with less."""

    UNOWNED = auto()
    EXPIRED = auto()
    BALANCE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentSettings:
    """Settings of the decisions, with Java's defaults. Times in seconds.

    max_throughput: KiB a second of one worker. ema_alpha: weight of the newer value in the average of a metric.
    dampening: percent of the difference to the average that one balancing moves. rebalance_threshold: percent around
    the average within which nothing moves. allow_overshoot: a worker gives its smallest lease where every lease is
    more than it has to give. balance_every: runs from one balancing to the next. graceful_handoff: the owner of a lease
    that moves may finish; handoff_timeout: for how long, beside the failover time. report_period: of Java's reporters.
    steady: no lease moves for differences that come and go in a quiet fleet, see `worker_load.Load`.
    """

    failover_time: float = 10.0
    strategy: Strategy = Strategy.WORKER_UTILIZATION_AWARE
    max_leases: int = 2**31 - 1
    max_throughput: float = math.inf
    ema_alpha: float = 0.5
    dampening: int = 60
    rebalance_threshold: int = 10
    allow_overshoot: bool = True
    balance_every: int = 3
    graceful_handoff: bool = True
    handoff_timeout: float = 30.0
    report_period: float = 30.0
    steady: bool = True


@dataclass(frozen=True, slots=True)
class HandOver:
    """A graceful hand-over that is under way. since: when this leader began it, or saw it first."""

    owner: str | None
    checkpoint_owner: str
    since: float


@dataclass(frozen=True, slots=True)
class AssignmentMemory:
    """Memory of one leader from run to run; a new leader begins with an empty one.

    runs: the number of regular runs so far. hand_overs: by the key of the lease. given: keys of leases that nobody
    owned, and when they were given away: a worker that cannot work on a lease releases it at once, and would be given
    it with each scan. Java's leader scans each two failover times.
    """

    runs: int = 0
    hand_overs: Mapping[str, HandOver] = field(default_factory=dict)
    given: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Give the lease, provided that its owners are still as `lease` shows them, to another worker."""

    lease: Lease
    new_owner: str
    kind: AssignmentKind
    reason: AssignmentReason

    @property
    def lease_key(self) -> str:
        return self.lease.key

    def write(self) -> LeaseWrite:
        """Return the write that carries it out. A lease on which nobody works must stand still until then."""
        if self.kind is AssignmentKind.HAND_OVER:
            return begin_hand_over(self.lease, self.new_owner)
        return assign(self.lease, self.new_owner, stands_still=self.reason is not AssignmentReason.BALANCE)


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of one run. memory: for the next one. workers: those that count as active, in the order of the rows.
    left: keys of leases without a working owner for which no worker has room.
    """

    assignments: tuple[Assignment, ...]
    memory: AssignmentMemory
    workers: tuple[str, ...]
    left: tuple[str, ...] = ()


def is_valid(metrics: WorkerMetrics) -> bool:
    """Return whether a leader in Java believes the report: every value has a limit, no limit is 0 or a fraction."""
    if any(not limit.is_integer() for limits in metrics.limits.values() for limit in limits):
        return False
    if _is_default(metrics):
        return True
    return metrics.values.keys() <= metrics.limits.keys() and all(
        limits and limits[0] != 0 for limits in metrics.limits.values()
    )


def active_workers(metrics: Iterable[WorkerMetrics], now: float, report_period: float) -> list[WorkerMetrics]:
    """Return the reports of the workers to which leases are given. now: epoch seconds, by the clock of the reports."""
    return [
        one
        for one in metrics
        if is_valid(one) and now - one.reported_at <= ACTIVE_PERIODS * report_period and not is_failing(one)
    ]


def silent_workers(
    metrics: Iterable[WorkerMetrics],
    leases: Iterable[Lease],
    *,
    expired: Collection[str],
    untouched: Collection[str] = (),
    before: Mapping[str, int],
) -> dict[str, int]:
    """Return the workers that are silent, and when each has reported last; see `living`.

    Silent is a worker whose leases have expired, all of which it has worked on. It stays so when others have them,
    until it reports again or works on a lease. untouched: keys of leases that their owners were given and have not
    worked on yet, which is no sign of life, nor of death. before: the answer by the scan before.
    """
    lively: dict[str, bool] = {}
    for lease in leases:
        if lease.actual_owner is not None and (lease.key in expired or lease.key not in untouched):
            lively[lease.actual_owner] = lively.get(lease.actual_owner, False) or lease.key not in expired
    return {
        one.worker: one.reported_at
        for one in metrics
        if not lively.get(one.worker, before.get(one.worker) != one.reported_at)
    }


def living(metrics: Iterable[WorkerMetrics], silent: Collection[str]) -> list[WorkerMetrics]:
    """Return the reports without those of silent workers, unless all are silent.

    Java believes a report for a minute: 1) a worker dies; 2) its leases expire; 3) as it has the most room, they stay
    with it, or it is given more. Or: 3) others are given them; 4) its load is the least now, so the next balancing
    takes leases from the living for it. Here the report of such a worker counts as if it were old.
    """
    reports = list(metrics)
    return [one for one in reports if one.worker not in silent] or reports


def _is_default(metrics: WorkerMetrics) -> bool:
    """Return whether the worker measures nothing, so that its load is the throughput of its leases."""
    return (not metrics.values and not metrics.limits) or _DEFAULT_MARK in metrics.values


def is_failing(metrics: WorkerMetrics) -> bool:
    """Return whether the last measurement of a metric failed: a leader gives such a worker nothing."""
    if _is_default(metrics):
        return False
    return any(values and values[-1] == FAILED for values in metrics.values.values())


def decide(
    leases: Iterable[Lease],
    metrics: Iterable[WorkerMetrics],
    *,
    now: float,
    expired: Collection[str],
    memory: AssignmentMemory,
    settings: AssignmentSettings,
    rng: Random,
    unchanged_since: Mapping[str, float] | None = None,
    is_extra: bool = False,
) -> Decision:
    """Return what the leader is to write now.

    now: epoch seconds, by the clock of the reports. expired: keys of owned leases that nobody has moved for longer than
    the failover time. unchanged_since: since when nobody has moved a lease; the oldest is given away first, after those
    without an owner. is_extra: a run between two regular ones gives away what nobody works on, and balances nothing.
    """
    rows = list(leases)
    active = active_workers(metrics, now, settings.report_period)
    hand_overs = _hand_overs_in(rows, memory, now)
    given_up = {
        key
        for key, one in hand_overs.items()
        if now - one.since >= settings.handoff_timeout + settings.failover_time
    }
    given = {key: at for key, at in memory.given.items() if now - at < settings.failover_time / 2}
    free = [
        lease
        for lease in rows
        if (lease.actual_owner is None and lease.key not in given) or lease.key in expired
    ]
    since = unchanged_since or {}
    free.sort(key=lambda lease: (lease.actual_owner is not None, since.get(lease.key, 0.0)))
    fleet = _Fleet(rows, active, settings, {lease.key for lease in free}, given_up)
    by_count = settings.strategy is Strategy.LEASE_COUNT_BASED
    decider: _Decider = _ByCount(fleet, rng) if by_count else _ByUtilization(fleet, rng)
    left = decider.assign_free(free)
    if not is_extra and memory.runs % settings.balance_every == 0:
        decider.balance()
    assignments = tuple(fleet.assignments())
    begun = {
        one.lease_key: HandOver(one.new_owner, one.lease.owner or "", now)
        for one in assignments
        if one.kind is AssignmentKind.HAND_OVER
    }
    given |= _first_given(assignments, now)
    return Decision(
        assignments,
        AssignmentMemory(memory.runs + (not is_extra), {**hand_overs, **begun}, given),
        tuple(one.worker for one in active),
        tuple(lease.key for lease in left),
    )


def give_left(
    decision: Decision, leases: Iterable[Lease], readable: Collection[str], max_leases: int, now: float
) -> Decision:
    """Return the decision with leases given away, too, for which no worker has room only as others fill it that nobody
    can read.

    1) A worker has as many ended leases, and children that wait for their parents, as its `max_leases`; 2) a child, or
    a parent, is given to nobody; 3) so those stay. Java's leader stays there. readable: keys of leases that have not
    ended, and whose parents have. now: as in `decide`.
    """
    rows = {lease.key: lease for lease in leases}
    owners = {key: lease.actual_owner for key, lease in rows.items()}
    owners |= {one.lease_key: one.new_owner for one in decision.assignments}
    busy = dict.fromkeys(decision.workers, 0)
    for key in readable:
        owner = owners.get(key)
        if owner in busy:
            busy[owner] += 1
    given: list[Assignment] = []
    left = []
    for key in decision.left:
        worker = min(decision.workers, key=busy.__getitem__, default=None)
        if worker is None or key not in readable or busy[worker] >= max_leases:
            left.append(key)
            continue
        busy[worker] += 1
        is_free = owners[key] is None
        reason = AssignmentReason.UNOWNED if is_free else AssignmentReason.EXPIRED
        given.append(Assignment(rows[key], worker, AssignmentKind.ASSIGN, reason))
    memory = replace(decision.memory, given={**decision.memory.given, **_first_given(given, now)})
    return replace(decision, assignments=(*decision.assignments, *given), memory=memory, left=tuple(left))


def _first_given(assignments: Iterable[Assignment], now: float) -> dict[str, float]:
    return {one.lease_key: now for one in assignments if one.reason is AssignmentReason.UNOWNED}


def _hand_overs_in(leases: Iterable[Lease], memory: AssignmentMemory, now: float) -> dict[str, HandOver]:
    found: dict[str, HandOver] = {}
    for lease in leases:
        if lease.checkpoint_owner is not None:
            seen = HandOver(lease.owner, lease.checkpoint_owner, now)
            before = memory.hand_overs.get(lease.key, seen)
            found[lease.key] = before if replace(before, since=now) == seen else seen
    return found


class _Worker:
    """One active worker. values: of each metric, with what this run has given to it so far."""

    def __init__(self, metrics: WorkerMetrics, load: float, alpha: float) -> None:
        self.name, self.goes_by_throughput = metrics.worker, _is_default(metrics)
        if self.goes_by_throughput:
            self.values = {_DEFAULT_METRIC: moving_average((load * 100, load * 100), alpha)}
            self.limits = {_DEFAULT_METRIC: _DEFAULT_LIMIT}
        else:
            self.values = {name: moving_average(values, alpha) for name, values in metrics.values.items()}
            self.limits = {name: limits[0] for name, limits in metrics.limits.items()}

    def capacity(self, averages: Mapping[str, float]) -> float:
        """Return the part of its load that it may gain until the first metric reaches the average of the fleet."""
        least = math.nextafter(math.inf, 0.0)
        for name, value in self.values.items():
            least = smaller(least, 1.0 if value == 0 else ratio(averages[name] - value, value))
        return least


class _Fleet:
    """The leases and the workers in one run, with what it has given away so far."""

    def __init__(
        self,
        leases: Sequence[Lease],
        active: Sequence[WorkerMetrics],
        settings: AssignmentSettings,
        free: Collection[str],
        given_up: Collection[str],
    ) -> None:
        self.settings, self.leases = settings, leases
        self._free, self._given_up = free, given_up
        known = {lease.key: float(lease.throughput) for lease in leases if lease.throughput is not None}
        average = mean(known.values())
        self.throughput = {lease.key: known.get(lease.key, average) for lease in leases}
        self.target_throughput = average * len(leases) / max(1, len(active))
        self._target_with_cost = self.target_throughput + _cost(leases) / max(1, len(active))
        self.held: dict[str | None, dict[str, Lease]] = {}
        self._totals: dict[str | None, float] = {}
        for lease in leases:
            self.held.setdefault(lease.actual_owner, {})[lease.key] = lease
            self._add(lease.actual_owner, self.throughput[lease.key])
        self.workers = [
            _Worker(one, ratio(self.total(one.worker), self.target_throughput), settings.ema_alpha)
            for one in active
        ]
        self._given: dict[str, tuple[Lease, str]] = {}

    def total(self, worker: str | None) -> float:
        """Return the throughput of the leases of a worker."""
        return self._totals.get(worker, 0.0)

    def part_with_cost(self, worker: str, *more: Lease) -> float:
        """Return the throughput of the leases of a worker and what they cost, in percent of an equal share.

        more: leases that it might have, too.
        """
        throughput = self.total(worker) + sum(self.throughput[lease.key] for lease in more)
        cost = _cost(self.held.get(worker, {}).values()) + _cost(more)
        return 100 * ratio(throughput + cost, self._target_with_cost)

    def _add(self, worker: str | None, throughput: float) -> None:
        self._totals[worker] = self.total(worker) + throughput

    def has_room(self, worker: str) -> bool:
        held = self.held.get(worker)
        return self.total(worker) <= self.settings.max_throughput and (
            not held or len(held) < self.settings.max_leases
        )

    def give(self, lease: Lease, to: str) -> None:
        """Note an assignment. A lease that is given twice in a run stays with its first new owner, too, in the figures,
        and is taken from its present owner twice; the last one is written.
        """
        before, throughput = lease.actual_owner, self.throughput[lease.key]
        self.held[before].pop(lease.key, None)
        self.held.setdefault(to, {})[lease.key] = lease
        self._add(to, throughput)
        self._add(before, -throughput)
        self._given[lease.key] = (lease, to)

    def is_held_up(self, lease: Lease) -> bool:
        """Return whether a hand-over of the lease is under way, so that it must not be given to anybody else."""
        return (
            lease.key not in self._free
            and lease.checkpoint != AT_SHARD_END
            and lease.checkpoint_owner is not None
            and lease.key not in self._given_up
        )

    def assignments(self) -> Iterable[Assignment]:
        for lease, worker in self._given.values():
            if not self.is_held_up(lease):
                yield Assignment(lease, worker, self._kind(lease), self._reason(lease))

    def _kind(self, lease: Lease) -> AssignmentKind:
        can_finish = (
            lease.key not in self._free
            and lease.checkpoint != AT_SHARD_END
            and lease.checkpoint_owner is None
        )
        is_graceful = self.settings.graceful_handoff and can_finish
        return AssignmentKind.HAND_OVER if is_graceful else AssignmentKind.ASSIGN

    def _reason(self, lease: Lease) -> AssignmentReason:
        if lease.actual_owner is None:
            return AssignmentReason.UNOWNED
        return AssignmentReason.EXPIRED if lease.key in self._free else AssignmentReason.BALANCE


def _cost(leases: Iterable[Lease]) -> float:
    return _LEASE_COST * sum(lease.checkpoint != AT_SHARD_END for lease in leases)


class _Decider(Protocol):
    def assign_free(self, free: Sequence[Lease]) -> list[Lease]:
        """Give away what nobody works on, in that order; return what is left."""
        ...

    def balance(self) -> None: ...


class _Queue:
    """Workers by their capacity, the largest first, in a binary heap.

    A heap and not a sorted list, because the order of equals follows from its steps: where no lease has a throughput
    yet, all capacities are NaN, and of many workers only two get leases in turn. The capacity is that at the time when
    a worker is added, as nothing changes it until it is taken out.
    """

    def __init__(self, averages: Mapping[str, float]) -> None:
        self._averages = averages
        self._heap: list[tuple[tuple[bool, float, float], _Worker]] = []

    def add(self, worker: _Worker) -> None:
        heap, place = self._heap, len(self._heap)
        entry = (rank(worker.capacity(self._averages)), worker)
        heap.append(entry)
        while place and entry[0] > heap[(place - 1) // 2][0]:
            heap[place], place = heap[(place - 1) // 2], (place - 1) // 2
        heap[place] = entry

    def take(self) -> _Worker | None:
        if not self._heap:
            return None
        heap, place = self._heap, 0
        first, last = heap[0], heap.pop()
        if not heap:
            return first[1]
        while (child := 2 * place + 1) < len(heap):
            if child + 1 < len(heap) and heap[child + 1][0] > heap[child][0]:
                child += 1
            if last[0] >= heap[child][0]:
                break
            heap[place], place = heap[child], child
        heap[place] = last
        return first[1]


class _ByUtilization:
    """Balances what the workers measure of themselves, or the throughput of their leases where they measure nothing."""

    def __init__(self, fleet: _Fleet, rng: Random) -> None:
        self._fleet, self._rng = fleet, rng
        self._leases_per_worker = max(len(fleet.leases) // max(1, len(fleet.workers)), 1)
        by_metric: dict[str, list[float]] = {}
        for worker in fleet.workers:
            for name, value in worker.values.items():
                by_metric.setdefault(name, []).append(value)
        self._averages = {name: mean(values) for name, values in by_metric.items()}
        self._average_with_cost = mean(
            [fleet.part_with_cost(worker.name) for worker in fleet.workers if worker.goes_by_throughput]
        )
        self._queue = _Queue(self._averages)
        for worker in fleet.workers:
            if fleet.has_room(worker.name):
                self._queue.add(worker)

    def assign_free(self, free: Sequence[Lease]) -> list[Lease]:
        for number, lease in enumerate(free):
            worker = self._queue.take()
            if worker is None:
                return list(free[number:])
            self._give(lease, worker, is_free=True)
        return []

    def balance(self) -> None:
        taken, with_cost = self._to_take()
        for name in sorted(taken, key=lambda name: rank(taken[name]), reverse=True):
            for lease in self._leases_of(name, taken[name]):
                worker = self._queue.take()
                if worker is not None and self._is_too_much(lease, worker, with_cost=with_cost):
                    break
                if worker is not None:
                    self._give(lease, worker, is_free=False)

    def _give(self, lease: Lease, worker: _Worker, *, is_free: bool) -> None:
        """Give the lease away unless the worker has it. One in an expired hand-over goes to its old owner, too, who
        leaves it alone as long as another one is named for it.
        """
        is_stuck = is_free and lease.checkpoint_owner is not None
        if lease.actual_owner == worker.name and not is_stuck:
            self._queue.add(worker)
            return
        worker.values = {name: self._grown(lease, worker, name) for name in worker.values}
        self._fleet.give(lease, worker.name)
        if self._fleet.has_room(worker.name):
            self._queue.add(worker)

    def _grown(self, lease: Lease, worker: _Worker, metric: str) -> float:
        """Return the value of a metric once the worker has the lease, too."""
        average, target = self._averages[metric], self._fleet.target_throughput
        if target > 0:
            return worker.values[metric] + self._fleet.throughput[lease.key] * average / target
        return worker.values[metric] + average / self._leases_per_worker

    def _is_too_much(self, lease: Lease, worker: _Worker, *, with_cost: bool) -> bool:
        for name in worker.values:
            grown = self._grown(lease, worker, name)
            if grown > self._averages[name] or grown > worker.limits[name]:
                return True
        return with_cost and self._fleet.part_with_cost(worker.name, lease) > self._average_with_cost

    def _to_take(self) -> tuple[dict[str, float], bool]:
        """Return the throughput to take from each worker, by the metric by which most is to be taken, and whether it is
        by the number of leases.
        """
        taken: dict[str, float] = {}
        most, is_with_cost = -1.0, False
        for metric in in_hash_order(self._averages):
            average, total = self._averages[metric], 0.0
            workers, with_cost = self._overloaded(metric, with_cost=False), False
            if not workers and self._fleet.settings.steady and metric == _DEFAULT_METRIC:
                workers, with_cost = self._overloaded(metric, with_cost=True), True
            by_worker: dict[str, float] = {}
            for worker in workers:
                part = ratio(worker.values[metric] - average, worker.values[metric])
                dampened = part * (self._fleet.settings.dampening / 100)
                by_worker[worker.name] = self._fleet.total(worker.name) * dampened
                total += by_worker[worker.name]
            if most < total:
                taken, most, is_with_cost = by_worker, total, with_cost
        return taken, is_with_cost

    def _overloaded(self, metric: str, *, with_cost: bool) -> list[_Worker]:
        """Return the workers to take from: those above the threshold, or the most loaded one where another one is below
        it; none while all are near the average and below their limits.

        with_cost: nor where the most loaded one has so few leases that its load with their cost is not above the
        average. A lease of it would move for a record more in the last minute, and on with the next one.
        """
        workers = [worker for worker in self._fleet.workers if metric in worker.values]
        above, most_loaded, is_needed = [], workers[0], False
        for worker in workers:
            loads = self._loads(worker, metric, with_cost=with_cost)
            found = standing(loads, self._fleet.settings.rebalance_threshold)
            is_needed = is_needed or found.is_hot or found.is_above or found.is_below
            if found.is_hot or found.is_at_top:
                above.append(worker)
            if most_loaded.values[metric] < worker.values[metric]:
                most_loaded = worker
        if (
            not above
            and with_cost
            and self._fleet.part_with_cost(most_loaded.name) <= self._average_with_cost
        ):
            return []
        return (above or [most_loaded]) if is_needed else []

    def _loads(self, worker: _Worker, metric: str, *, with_cost: bool) -> list[Load]:
        """Return the loads by which a worker is compared with the fleet.

        A throughput has no limit, and must be beyond what comes by chance. Where none is, it must be beyond the
        threshold with a constant added for each lease, too: so a new worker gets leases where little flows.
        """
        value, average, limit = worker.values[metric], self._averages[metric], worker.limits[metric]
        if not self._fleet.settings.steady:
            return [Load(value, average, limit)]
        if not worker.goes_by_throughput:
            return [Load(value, average, limit, BAND_POINTS)]
        if not with_cost:
            return [Load(value, average, points=points_by_chance(self._fleet.target_throughput))]
        return [
            Load(value, average),
            Load(self._fleet.part_with_cost(worker.name), self._average_with_cost),
        ]

    def _leases_of(self, worker: str, throughput: float) -> list[Lease]:
        """Return leases of a worker, any of them, that together stay below this throughput."""
        leases = list(self._fleet.held.get(worker, {}).values())
        if not leases:
            return []
        self._rng.shuffle(leases)
        if self._fleet.total(worker) == 0:
            return leases[:1]
        of = self._fleet.throughput
        chosen = []
        for lease in leases:
            if not throughput - of[lease.key] <= 0:
                throughput -= of[lease.key]
                chosen.append(lease)
        if not chosen and self._fleet.settings.allow_overshoot:
            chosen.append(min(leases, key=lambda lease: of[lease.key]))
        return chosen


class _ByCount:
    """Balances the number of leases. A worker that has its share, or its maximum, still gets one lease that nobody
    works on, when it is its turn.
    """

    def __init__(self, fleet: _Fleet, rng: Random) -> None:
        self._fleet, self._rng = fleet, rng
        self._names = list(dict.fromkeys(worker.name for worker in fleet.workers))

    def assign_free(self, free: Sequence[Lease]) -> list[Lease]:
        counts = self._counts()
        waiting = sorted(self._names, key=counts.__getitem__)
        for number, lease in enumerate(free):
            if not waiting:
                return list(free[number:])
            self._fleet.give(lease, waiting[0])
            counts[waiting[0]] += 1
            if counts[waiting[0]] >= self._target():
                del waiting[0]
        return []

    def balance(self) -> None:
        counts, target = self._counts(), self._target()
        movable = {name: self._movable(name) for name in self._names}
        names = sorted(self._names, key=counts.__getitem__)
        low, high = 0, len(names) - 1
        while low < high:
            least, most = names[low], names[high]
            if counts[least] >= target:
                low += 1
            elif counts[most] <= target or not movable[most]:
                high -= 1
            else:
                self._fleet.give(movable[most].pop(), least)
                counts[least] += 1
                counts[most] -= 1

    def _counts(self) -> Counter[str]:
        return Counter({name: len(self._fleet.held.get(name, ())) for name in self._names})

    def _target(self) -> int:
        workers, leases = len(self._names), len(self._fleet.leases)
        if workers == 0 or workers >= leases:
            return 1
        return min(-(-leases // workers), self._fleet.settings.max_leases)

    def _movable(self, worker: str) -> list[Lease]:
        held = self._fleet.held.get(worker, {})
        leases = [lease for lease in held.values() if not self._fleet.is_held_up(lease)]
        self._rng.shuffle(leases)
        return leases
