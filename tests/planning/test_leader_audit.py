"""Holes are exactly the hash keys of no open lease, and are believed only after several audits. See also audit.json."""

import itertools
import json

import pytest
from election_vectors import FIXTURE, tables
from hypothesis import given
from hypothesis import strategies as st

from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON, StartPosition
from pykcl.model.lease import Lease
from pykcl.model.shard import HashRange, Shard, gaps
from pykcl.planning.leader import Audit
from pykcl.planning.lease_creation import create_new_leases

TOP = 2**128 - 1
JAVA = json.loads(FIXTURE.read_text("ascii"))["tables"]


def lease(key, first, last, checkpoint=AT_TRIM_HORIZON):
    return Lease(key, checkpoint, hash_range=HashRange(first, last))


@st.composite
def partitions(draw, least=1):
    """Leases that cover every hash key once."""
    cuts = draw(st.sets(st.integers(1, 2**64 - 1), min_size=least - 1, max_size=8))
    edges = [0, *(cut * 2**64 for cut in sorted(cuts)), TOP + 1]
    rows = [lease(f"s{n}", low, high - 1) for n, (low, high) in enumerate(itertools.pairwise(edges))]
    return {row.key: row for row in draw(st.permutations(rows))}


def holes_of(leases, shards=()):
    _, findings = Audit().next(leases, {shard.shard_id: shard for shard in shards})
    return list(findings.holes)


def span(row):
    return row.hash_range


@given(partitions())
def test_a_covered_space_has_no_hole(leases):
    assert holes_of(leases) == []


@given(partitions(least=2), st.data())
def test_removing_any_one_lease_of_a_partition_makes_exactly_its_keys_a_hole(leases, data):
    gone = data.draw(st.sampled_from(sorted(leases)))
    rest = {key: row for key, row in leases.items() if key != gone}
    assert holes_of(rest) == [span(leases[gone])]


@given(partitions(), st.data())
def test_ending_any_one_lease_of_a_partition_makes_exactly_its_keys_a_hole(leases, data):
    ended = data.draw(st.sampled_from(sorted(leases)))
    rows = leases | {ended: leases[ended].with_(checkpoint=AT_SHARD_END)}
    assert holes_of(rows) == [span(leases[ended])]


@given(partitions(least=3), st.data())
def test_neighbouring_gaps_are_one_hole_and_others_are_not(leases, data):
    ordered = sorted(leases.values(), key=span)
    gone = data.draw(st.sets(st.integers(0, len(ordered) - 1), max_size=len(ordered) - 1))
    expected = []
    for index in sorted(gone):
        row = span(ordered[index])
        if expected and expected[-1].last + 1 == row.first:
            row = HashRange(expected.pop().first, row.last)
        expected.append(row)
    rest = {row.key: row for index, row in enumerate(ordered) if index not in gone}
    assert holes_of(rest) == expected


few = st.integers(0, 30)
spans = st.tuples(few, few).map(sorted).map(tuple)


@given(st.lists(spans))
def test_overlapping_ranges_leave_what_is_in_none_of_them(ranges):
    holes = gaps(HashRange(*one) for one in ranges)
    free = {key for hole in holes for key in range(hole.first, min(hole.last, 40) + 1)}
    assert free == {key for key in range(41) if not any(low <= key <= high for low, high in ranges)}
    assert all(one.last + 1 < after.first for one, after in itertools.pairwise(holes))
    assert holes[-1].last == TOP


@given(st.lists(st.lists(spans, min_size=1, max_size=4), min_size=1, max_size=8), st.integers(1, 4))
def test_what_is_told_was_seen_in_so_many_audits_in_a_row_and_is_told_closed_once_it_is(
    history, confirmations
):
    audit, uncovered, told = Audit(confirmations), [], set()
    for ranges in history:
        rows = {f"s{n}": lease(f"s{n}", low, high) for n, (low, high) in enumerate(ranges)}
        audit, findings = audit.next(rows, {})
        free = {key for key in range(41) if not any(low <= key <= high for low, high in ranges)}
        uncovered.append(free)
        always = set.intersection(*uncovered[-confirmations:]) if len(uncovered) >= confirmations else set()
        for found in findings.confirmed:
            assert found.audits >= confirmations
            assert {key for key in range(41) if found.hole.first <= key <= found.hole.last} <= always
            told.add(found.hole)
        assert set(findings.closed) == {
            hole for hole in told if not any(hole.first <= key <= hole.last for key in free)
        }
        told -= set(findings.closed)
        assert findings.must_sync == any(audit.audits_of[hole] >= confirmations for hole in findings.holes)


@given(partitions(least=2), st.data())
def test_whoever_lists_the_shards_mends_what_the_audit_finds(leases, data):
    gone = data.draw(st.sampled_from(sorted(leases)))
    rest = {key: row for key, row in leases.items() if key != gone}
    shards = [Shard(key, (), row.hash_range, "1") for key, row in leases.items()]
    made = create_new_leases(StartPosition("TRIM_HORIZON"), shards, rest)
    assert holes_of(rest | {plan.lease.key: plan.lease for plan in made}, shards) == []


@pytest.mark.parametrize("kind", ["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"])
def test_the_missing_child_of_an_ended_lease_is_a_hole_that_every_listing_mends(kind):
    """Which Java cannot: its shard sync gives no lease to a shard below one."""
    shards = [
        Shard("p", (), HashRange(0, TOP), "1", "9"),
        Shard("a", ("p",), HashRange(0, 99), "10"),
        Shard("b", ("p",), HashRange(100, TOP), "10"),
    ]
    rows = {"p": lease("p", 0, TOP, AT_SHARD_END), "a": lease("a", 0, 99)}
    assert holes_of(rows, shards) == [HashRange(100, TOP)]
    start = StartPosition(kind, at_millis=7) if kind == "AT_TIMESTAMP" else StartPosition(kind)
    made = create_new_leases(start, shards, rows)
    assert [plan.lease.key for plan in made] == ["b"]
    assert holes_of(rows | {"b": made[0].lease}, shards) == []


def test_the_open_shards_with_the_keys_of_a_hole_are_named():
    shards = {
        "p": Shard("p", (), HashRange(0, TOP), "1", "9"),
        "a": Shard("a", ("p",), HashRange(0, 99), "10"),
        "b": Shard("b", ("p",), HashRange(100, 199), "10"),
        "c": Shard("c", ("p",), HashRange(200, TOP), "10"),
        "d": Shard("d", (), None, "10"),
    }
    audit, findings = Audit(confirmations=1).next({"a": lease("a", 0, 99), "x": lease("x", 300, TOP)}, shards)
    assert [(found.hole, found.shards) for found in findings.confirmed] == [(HashRange(100, 299), ("b", "c"))]
    assert audit.reported == {HashRange(100, 299)}


def test_whoever_comes_to_lead_tells_at_once_of_what_it_has_confirmed_before():
    rows = {"a": lease("a", 0, 99)}
    audit = Audit()
    for _ in range(5):
        audit, _ = audit.next(rows, {})
        audit = audit.unreported()
    audit, findings = audit.next(rows, {})
    assert [(found.hole, found.audits) for found in findings.confirmed] == [(HashRange(100, TOP), 6)]
    _, findings = audit.next(rows, {})
    assert findings.confirmed == ()


def test_a_fill_carries_the_row_it_was_seen_in():
    row = Lease("a", AT_TRIM_HORIZON, counter=7, owner="w1")
    _, findings = Audit().next({"a": row}, {"a": Shard("a", (), HashRange(0, TOP))})
    assert [(fill.seen, fill.hash_range) for fill in findings.fills] == [(row, HashRange(0, TOP))]


def test_java_sees_a_hole_in_the_same_tables():
    """Nothing that Java finds covered is a hole here. The other way round it raises false alarms: it takes the end of
    the range that begins last for the end of all."""
    assert [[tuple(map(int, one)) for one in table["ranges"]] for table in JAVA] == [
        [tuple(one) for one in table] for table in tables()
    ]
    false_alarms = 0
    for table in JAVA:
        ranges = [tuple(map(int, one)) for one in table["ranges"]]
        # Whatever is in no range begins at 0, or where a range ends.
        edges = {0, *(last + 1 for _, last in ranges)} - {TOP + 1}
        is_covered = all(any(low <= edge <= high for low, high in ranges) for edge in edges)
        assert (gaps(HashRange(*one) for one in ranges) == []) == is_covered
        if is_covered and table["has_hole"]:
            false_alarms += 1
            assert max(ranges)[1] != TOP
        else:
            assert table["has_hole"] != is_covered
    assert 0 < false_alarms < len(JAVA) / 4
    assert len({table["has_hole"] for table in JAVA}) == 2


@pytest.mark.parametrize("key", [0, 1, 99, TOP - 1, TOP])
def test_a_hole_may_be_a_single_key(key):
    ranges = [HashRange(0, key - 1)] * (key > 0) + [HashRange(key + 1, TOP)] * (key < TOP)
    assert gaps(ranges) == [HashRange(key, key)]
