"""Whatever happens to a stream: every shard is read once, after its parents, and none is forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykcl.model.checkpoint import AT_SHARD_END, Checkpoint, StartPosition
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.model.shard import HashRange, Shard, ShardListing
from pykcl.planning.lease_creation import create_new_leases, leases_before_end
from pykcl.planning.lease_deletion import garbage_candidates, plan_deletions
from pykcl.planning.shard_graph import FamilyTree

KEYS = 64
"""Hash keys of the modelled stream: 0..63."""

START = {
    "TRIM_HORIZON": StartPosition("TRIM_HORIZON"),
    "LATEST": StartPosition("LATEST"),
    "AT_TIMESTAMP": StartPosition("AT_TIMESTAMP", at_millis=1_700_000_000_000),
}


@dataclass
class Model:
    """A stream that is split, merged and trimmed, and an application that reads it, all one step at a time.

    history: every shard there ever was. listed: those Kinesis still lists. read: keys in the order in which their
    lease ended. leased: every key that was ever put. unread: shards trimmed before they were read.
    """

    rng: Random
    start: StartPosition
    history: dict[str, Shard] = field(default_factory=dict)
    listed: dict[str, Shard] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    rows: dict[str, Lease] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    leased: list[str] = field(default_factory=list)
    first_position: dict[str, str] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        cuts = sorted(self.rng.sample(range(1, KEYS), self.rng.randint(0, 3)))
        for low, high in zip([0, *cuts], [*cuts, KEYS], strict=True):
            self._add((), low, high - 1)

    def _add(self, parents: tuple[str, ...], low: int, high: int) -> None:
        number = len(self.history)
        shard = Shard(f"s{number:03}", parents, HashRange(low, high), str(1000 + number))
        self.history[shard.shard_id] = self.listed[shard.shard_id] = shard

    def open_shards(self) -> list[Shard]:
        found = [shard for key, shard in self.history.items() if key not in self.closed]
        return sorted(found, key=_low)

    # --- what the outside world does

    def reshard(self) -> None:
        shards = self.open_shards()
        index = self.rng.randrange(len(shards))
        shard = shards[index]
        low, high = _low(shard), _high(shard)
        if self.rng.random() < 0.5 and index + 1 < len(shards):
            other = shards[index + 1]
            self.closed |= {shard.shard_id, other.shard_id}
            self._add((shard.shard_id, other.shard_id), low, _high(other))
        elif low < high:
            middle = self.rng.randint(low, high - 1)
            self.closed.add(shard.shard_id)
            self._add((shard.shard_id,), low, middle)
            self._add((shard.shard_id,), middle + 1, high)

    def trim(self) -> None:
        """The oldest closed shard expires; a shard never expires before its ancestors."""
        oldest = next(iter(self.listed), None)
        if oldest in self.closed:
            del self.listed[oldest]
            if oldest not in self.read:
                self.unread.add(oldest)

    # --- what workers do

    def create(self, *, crash: bool = False) -> None:
        plans = create_new_leases(self.start, list(self.listed.values()), self.rows)
        assert [plan.lease.key for plan in plans] == sorted(plan.lease.key for plan in plans)
        if crash:
            plans = plans[: self.rng.randint(0, len(plans))]
        for plan in plans:
            self._put(plan.lease)

    def _put(self, row: Lease, *, waits: bool = False) -> None:
        key = row.key
        assert key in self.listed
        assert key not in self.leased, f"{key} is read twice"
        assert not FamilyTree.of(self.history.values()).descendants_of([key]) & self.rows.keys()
        for parent in self.history[key].parents:
            if self.start.kind != "LATEST" or parent in self.leased:
                over = parent in self.read or parent in self.unread
                assert over or (waits and parent in self.rows), f"{key} before its parent {parent}"
        if row.checkpoint.sequence_number == "LATEST":
            row = row.with_(metadata=row.metadata or PykclMetadata(latest_from=1))
        self.rows[key] = row
        self.leased.append(key)
        self.first_position[key] = row.checkpoint.sequence_number

    def make_progress(self) -> None:
        started = [key for key, row in self.rows.items() if not row.is_ended and self._may_read(key)]
        if started:
            key = self.rng.choice(started)
            self.rows[key] = self.rows[key].with_(checkpoint=Checkpoint("5000"))

    def end_one(self) -> bool:
        ready = [
            key
            for key, row in self.rows.items()
            if key in self.closed and key in self.listed and not row.is_ended and self._may_read(key)
        ]
        if not ready:
            return False
        key = self.rng.choice(ready)
        if self.rng.random() < 0.7:  # Java leaves the rest to others, when its worker dies.
            self._put_children(key)
        self.rows[key] = self.rows[key].with_(checkpoint=AT_SHARD_END)
        self.read.append(key)
        return True

    def meet_gone(self) -> bool:
        """A reader opens a shard that has expired: its listed children get their leases, then it ends."""
        gone = [
            key
            for key, row in self.rows.items()
            if key not in self.listed and not row.is_ended and self._parents_ended(row)
        ]
        if not gone:
            return False
        key = self.rng.choice(gone)
        self._put_children(key)
        self.rows[key] = self.rows[key].with_(checkpoint=AT_SHARD_END)
        return True

    def _put_children(self, key: str) -> None:
        for child in [shard for shard in self.listed.values() if key in shard.parents]:
            if child.shard_id not in self.rows:
                for plan in leases_before_end(child, self.start, self.listed, self.rows.keys()):
                    self._put(plan.lease, waits=True)

    def _may_read(self, key: str) -> bool:
        return key in self.listed and self._parents_ended(self.rows[key])

    def _parents_ended(self, row: Lease) -> bool:
        return all(parent not in self.rows or self.rows[parent].is_ended for parent in row.parents)

    def clean_up(self) -> bool:
        listing = ShardListing(tuple(self.listed.values()))
        gone = garbage_candidates(self.rows, listing)
        deletions = plan_deletions(self.rows, listing=listing, gone=gone)
        for deletion in deletions:
            row = self.rows.pop(deletion.seen.key)
            assert row.is_ended or row.key not in self.listed
        return bool(deletions)

    def settle(self) -> None:
        """Nothing happens to the stream any more; the application reads on until there is nothing left to do."""
        for _ in range(10 * len(self.history) + 10):
            before = len(self.leased)
            self.create()
            busy = self.end_one() or self.meet_gone()
            for key in [key for key in self.rows if self._may_read(key) and not self.rows[key].is_ended]:
                self.rows[key] = self.rows[key].with_(checkpoint=Checkpoint("5000"))
            busy = self.clean_up() or busy
            if not busy and len(self.leased) == before:
                return
        pytest.fail("the application never comes to rest")


def _low(shard: Shard) -> int:
    return shard.hash_range.first


def _high(shard: Shard) -> int:
    return shard.hash_range.last


def live_through(model: Model, steps: int, *, trims: bool, crashes: bool) -> None:
    actions = [
        model.reshard,
        model.end_one,
        model.make_progress,
        model.clean_up,
        model.create,
        model.meet_gone,
    ]
    if trims:
        actions.append(model.trim)
    if crashes:
        actions.append(lambda: model.create(crash=True))
    for _ in range(steps):
        model.rng.choice(actions)()
    model.settle()


def check_open_shards_are_covered(model: Model) -> None:
    readers = sorted(
        (_low(model.history[key]), _high(model.history[key])) for key in model.rows if key not in model.closed
    )
    assert [low for low, _ in readers] == [0, *(high + 1 for _, high in readers[:-1])], "a gap or an overlap"
    assert readers[-1][1] == KEYS - 1


def check_order(model: Model) -> None:
    place = {key: index for index, key in enumerate(model.read)}
    for key in model.read:
        for parent in model.history[key].parents:
            if parent in model.leased and parent not in model.unread:
                assert place[parent] < place[key]


steps = st.integers(min_value=0, max_value=60)
randoms = st.randoms(use_true_random=False)
many = settings(max_examples=150)


@many
@given(
    rng=randoms,
    steps=steps,
    kind=st.sampled_from(["TRIM_HORIZON", "AT_TIMESTAMP"]),
    before=st.integers(0, 12),
)
def test_from_the_oldest_record_every_shard_is_read_exactly_once_and_in_order(rng, steps, kind, before):
    model = Model(rng, START[kind])
    for _ in range(before):
        model.reshard()
    live_through(model, steps, trims=False, crashes=True)
    assert sorted(model.leased) == sorted(model.history)
    assert set(model.read) == model.closed
    check_open_shards_are_covered(model)
    check_order(model)


@many
@given(rng=randoms, steps=steps, kind=st.sampled_from(sorted(START)), before=st.integers(0, 12))
def test_trimming_loses_only_what_expired_unread(rng, steps, kind, before):
    model = Model(rng, START[kind])
    for _ in range(before):
        model.rng.choice([model.reshard, model.trim])()
    live_through(model, steps, trims=True, crashes=True)
    if kind != "LATEST":
        assert set(model.history) - set(model.leased) <= model.unread
    check_open_shards_are_covered(model)
    check_order(model)


@many
@given(rng=randoms, steps=steps, before=st.integers(0, 12))
def test_from_latest_everything_after_the_start_is_read_exactly_once_and_in_order(rng, steps, before):
    model = Model(rng, START["LATEST"])
    for _ in range(before):
        model.reshard()
    first = {shard.shard_id for shard in model.open_shards()}
    model.create()
    assert set(model.leased) == first
    wanted = first | (FamilyTree.of(model.history.values()).descendants_of(first))
    live_through(model, steps, trims=False, crashes=True)
    wanted |= FamilyTree.of(model.history.values()).descendants_of(first)
    assert set(model.leased) == wanted
    assert {key for key, position in model.first_position.items() if position == "LATEST"} == first
    check_open_shards_are_covered(model)
    check_order(model)


@many
@given(rng=randoms, before=st.integers(0, 12), workers=st.integers(2, 4))
def test_a_start_at_latest_that_breaks_off_is_completed_at_the_time_of_its_start(rng, before, workers):
    """Whoever comes later sees a part of the rows, and must not take the skipped parents for read ones."""
    model = Model(rng, START["LATEST"])
    for _ in range(before):
        model.reshard()
    for _ in range(workers):
        model.create(crash=True)
        model.make_progress()
    model.settle()
    assert set(model.leased) == {shard.shard_id for shard in model.open_shards()}
    assert set(model.first_position.values()) == {"LATEST"}


@many
@given(rng=randoms, steps=steps)
def test_planning_is_deterministic_and_does_not_depend_on_the_order_of_its_input(rng, steps):
    model = Model(rng, START[rng.choice(sorted(START))])
    live_through(model, steps, trims=True, crashes=True)
    shards, rows = list(model.listed.values()), list(model.rows.items())
    for key in list(model.rows):
        if rng.random() < 0.4:
            rows = [row for row in rows if row[0] != key]
    once = create_new_leases(model.start, shards, dict(rows))
    rng.shuffle(shards)
    rng.shuffle(rows)
    assert create_new_leases(model.start, shards, dict(rows)) == once
