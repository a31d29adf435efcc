"""A fleet becomes even, whatever it began with, and then moves nothing."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykcl.model.checkpoint import AT_SHARD_END, Checkpoint
from pykcl.model.lease import Lease
from pykcl.planning.lease_assignment import Fleet
from pykcl.planning.lease_view import LeaseView

FAILOVER = 10.0
SCAN_EVERY = 4.0
CALM = 8
"""Rounds without any move after which a fleet counts as settled (longer than the failover time)."""


class Workers:
    """Workers that renew, scan, plan and take with the conditions of the real writes, round by round."""

    def __init__(
        self, rng: Random, leases: int, workers: list[str], owners: list[str], max_leases: int, max_steal: int
    ) -> None:
        self.rng = rng
        self.now = 0.0
        self.max_leases = max_leases
        self.max_steal = max_steal
        self.views = {worker: LeaseView() for worker in workers}
        self.moves = 0
        self.rows: dict[str, Lease] = {}
        for number in range(leases):
            owner = rng.choice([None, *owners])
            row = Lease(f"s{number:03}", Checkpoint("7"), counter=rng.randint(0, 5), owner=owner)
            self.rows[row.key] = row
        self._add_leases_nobody_works_on()

    def _add_leases_nobody_works_on(self) -> None:
        """Ended ones and children of unfinished parents, all on the same worker: they must not count."""
        for number in range(self.rng.randint(0, 4)):
            self.rows[f"ended{number}"] = Lease(f"ended{number}", AT_SHARD_END, owner="hoarder")
        for number in range(self.rng.randint(0, 4)):
            parent = self.rng.choice([*self.rows])
            if not self.rows[parent].is_ended:
                key = f"child{number}"
                self.rows[key] = Lease(key, Checkpoint("TRIM_HORIZON"), owner="hoarder", parents=(parent,))

    def round(self, *, same_snapshot: bool) -> int:
        """One scan and one plan of every worker. Returns how many leases changed hands."""
        before = self.moves
        self.now += SCAN_EVERY
        for key, row in self.rows.items():
            if row.owner in self.views:
                self.rows[key] = row.with_(counter=row.counter + 1)
        workers = list(self.views)
        self.rng.shuffle(workers)
        if same_snapshot:
            writes = [(worker, seen) for worker in workers for seen in self._plan(worker)]
            self.rng.shuffle(writes)
            for worker, seen in writes:
                self._take(worker, seen)
        else:
            for worker in workers:
                for seen in self._plan(worker):
                    self._take(worker, seen)
        return self.moves - before

    def _plan(self, worker: str) -> list[Lease]:
        view = self.views[worker] = self.views[worker].observe(self.rows.values(), self.now)
        held = {key for key, row in self.rows.items() if row.owner == worker}
        fleet = Fleet.seen_by(worker, view, failover_time=FAILOVER, in_hand=held)
        share = fleet.share(self.max_leases)
        plans = fleet.choose(
            share - len(held), self.rng, max_leases=self.max_leases, max_steal=self.max_steal
        )
        assert len(held) + len(plans) <= max(share, len(held))
        assert sum(plan.is_steal for plan in plans) <= self.max_steal
        return [plan.seen for plan in plans]

    def _take(self, worker: str, seen: Lease) -> None:
        row = self.rows[seen.key]
        if (row.counter, row.owner) == (seen.counter, seen.owner):
            self.rows[row.key] = row.with_(counter=row.counter + 1, owner=worker)
            self.moves += 1

    def loads(self) -> dict[str, int]:
        counted = Counter(row.owner for key, row in self.rows.items() if key.startswith("s"))
        return {worker: counted[worker] for worker in self.views}

    def settle(self, *, same_snapshot: bool, within: int = 400) -> None:
        calm = 0
        for _ in range(within):
            calm = 0 if self.round(same_snapshot=same_snapshot) else calm + 1
            if calm == CALM:
                return
        pytest.fail(f"still moving after {within} rounds: {self.loads()}")

    def check_even(self) -> None:
        loads = self.loads()
        working_on = [row for key, row in self.rows.items() if key.startswith("s")]
        assert all(row.owner in self.views for row in working_on), "a lease nobody works on"
        assert max(loads.values()) - min(loads.values()) <= 1, loads


fleets = st.builds(
    lambda rng, leases, workers, busy, slack, max_steal: Workers(
        rng,
        leases,
        [f"w{number}" for number in range(workers)],
        [f"w{number}" for number in range(busy)],
        -(-leases // workers) + slack,
        max_steal,
    ),
    st.randoms(use_true_random=False),
    leases=st.integers(1, 40),
    workers=st.integers(1, 9),
    # Owners beyond the workers are dead; with slack 0 nobody may hold more than the even share.
    busy=st.integers(0, 11),
    slack=st.sampled_from([0, 1, 1000]),
    max_steal=st.integers(1, 5),
)
some = settings(max_examples=80)


@some
@given(fleet=fleets, same_snapshot=st.booleans())
def test_a_fleet_becomes_even_and_then_moves_nothing(fleet, same_snapshot):
    fleet.settle(same_snapshot=same_snapshot)
    fleet.check_even()


@some
@given(fleet=fleets, same_snapshot=st.booleans(), dead=st.integers(1, 8), joining=st.integers(0, 4))
def test_a_fleet_becomes_even_again_after_workers_died_and_joined(fleet, same_snapshot, dead, joining):
    for _ in range(fleet.rng.randint(0, 5)):
        fleet.round(same_snapshot=same_snapshot)
    for worker in list(fleet.views)[1 : 1 + dead]:
        del fleet.views[worker]
    for number in range(joining):
        fleet.views[f"new{number}"] = LeaseView()
    fleet.max_leases = 1000
    fleet.settle(same_snapshot=same_snapshot)
    fleet.check_even()


@some
@given(
    rng=st.randoms(use_true_random=False),
    leases=st.integers(1, 40),
    workers=st.integers(1, 6),
    limit=st.integers(0, 5),
)
def test_nobody_ever_holds_more_than_max_leases(rng, leases, workers, limit):
    fleet = Workers(rng, leases, [f"w{number}" for number in range(workers)], [], limit, 5)
    for _ in range(15):
        fleet.round(same_snapshot=rng.random() < 0.5)
        assert max(fleet.loads().values()) <= limit
    assert sum(fleet.loads().values()) == min(leases, limit * workers)


@pytest.mark.parametrize("max_steal", [1, 5])
def test_a_fleet_that_grows_from_one_worker_to_ten_moves_little_more_than_it_must(max_steal):
    fleet = Workers(Random(7), 0, [f"w{number}" for number in range(10)], [], 1000, max_steal)
    fleet.rows = {f"s{n:03}": Lease(f"s{n:03}", Checkpoint("7"), owner="w0") for n in range(100)}
    fleet.settle(same_snapshot=True)
    fleet.check_even()
    assert 90 <= fleet.moves <= 110


def test_the_same_input_and_seed_give_the_same_plan_whatever_the_order_of_the_rows():
    rows = [Lease(f"s{n}", Checkpoint("7"), owner=("x", "y", None)[n % 3]) for n in range(30)]
    plans = []
    for seed in range(5):
        Random(seed).shuffle(rows)
        view = LeaseView().observe(rows, 0.0)
        fleet = Fleet.seen_by("me", view, failover_time=10)
        plans.append(fleet.choose(4, Random(1), max_leases=9, max_steal=1))
    assert all(plan == plans[0] for plan in plans)
    assert [plan.lease_key for plan in plans[0]] == sorted(plan.lease_key for plan in plans[0])


def test_a_plan_carries_what_it_saw():
    row = Lease("a", Checkpoint("7"), counter=12, owner="x")
    view = LeaseView().observe([row], 0.0).observe([row], 11.0)
    fleet = Fleet.seen_by("me", view, failover_time=10)
    (plan,) = fleet.choose(1, Random(0), max_leases=1, max_steal=1)
    assert plan.seen is row
    assert (plan.reason, plan.is_steal) == ("expired", False)
