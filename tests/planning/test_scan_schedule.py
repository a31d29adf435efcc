"""How often the lease table is looked at: the pace of small and of large fleets, and what makes a worker scan at once."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.scan_schedule import (
    UNITS_PER_LEASE,
    may_be_taken,
    plan_scans,
    shows_news,
    units_per_second,
)

ROW_UNITS = 546 / 8192
OTHERS = [f"w{n:04}" for n in range(1, 1000)]
HELD = Lease("a", Checkpoint("7"), owner="w1", counter=5)
FREE = Lease("a", Checkpoint("7"), counter=6)
ENDED = Lease("a", Checkpoint("SHARD_END"), counter=7)


def looks(leases, workers, mode="auto", worker="w0000", failover_time=10.0):
    units = max(1.0, leases * ROW_UNITS)
    return plan_scans(
        mode=mode,
        worker=worker,
        others=OTHERS[: workers - 1],
        leases=leases,
        read_units=units,
        failover_time=failover_time,
    )


@pytest.mark.parametrize(
    ("leases", "workers", "busy"), [(10, 1, 1.0), (10, 10, 1.0), (1000, 1, 13.3), (10_000, 3, 20.0)]
)
def test_a_small_table_or_fleet_is_scanned_by_each_worker_within_five_read_units_a_second(
    leases, workers, busy
):
    found = looks(leases, workers)
    assert (found.segment_pause, found.idle_pause) == (None, found.busy_pause)
    assert found.busy_pause == pytest.approx(busy, rel=0.01)


def test_a_large_fleet_divides_the_table_and_scans_all_of_it_seldom():
    found = looks(1000, 100)
    assert (found.segments, found.segment_pause) == (32, 2.0)
    assert found.idle_pause == pytest.approx(100 * 1000 * ROW_UNITS / (UNITS_PER_LEASE * 1000))
    assert found.busy_pause == pytest.approx(13.3, rel=0.01)
    assert looks(10_000, 1000).idle_pause == 300.0


def watched_by(names):
    """Which worker looks at which segment, as all of them see it."""
    return {
        name: plan_scans(
            mode="segmented",
            worker=name,
            others=[other for other in names if other != name],
            leases=10_000,
            read_units=667.0,
            failover_time=10.0,
        )
        for name in names
    }


@pytest.mark.parametrize("workers", [10, 11, 100, 999])
def test_each_segment_is_looked_at_by_two_workers(workers):
    found = watched_by(["w0000", *OTHERS[: workers - 1]])
    watched = Counter(segment for looks in found.values() for segment in looks.my_segments)
    (segments,) = {looks.segments for looks in found.values()}
    assert workers / 4 < segments <= workers / 2
    assert watched == dict.fromkeys(range(segments), 2)


def test_who_leaves_changes_nothing_for_those_who_do_not_come_after_it():
    before = watched_by(["w0000", *OTHERS[:99]])
    gone = next(name for name, looks in before.items() if looks.my_segments)
    after = watched_by([name for name in before if name != gone])
    changed = [name for name in after if after[name].my_segments != before[name].my_segments]
    assert len(changed) <= 2 * len(before[gone].my_segments)
    assert all(set(after[name].my_segments) > set(before[name].my_segments) for name in changed)


def test_a_part_is_never_so_small_that_it_costs_more_than_it_shows():
    assert looks(60, 100).segments == 2


@pytest.mark.parametrize(("leases", "workers"), [(300, 4), (1000, 10), (1000, 16), (10_000, 4)])
def test_a_table_is_divided_only_where_that_reads_less(leases, workers):
    found = looks(leases, workers)
    assert (found.segment_pause, found.idle_pause) == (None, found.busy_pause)


@pytest.mark.parametrize(("max_leases", "is_divided"), [(19, False), (20, True)])
def test_a_fleet_that_has_hardly_room_for_all_leases_is_not_divided(max_leases, is_divided):
    found = plan_scans(
        mode="auto",
        worker="w0000",
        others=OTHERS[:99],
        leases=1000,
        read_units=67.0,
        failover_time=10.0,
        max_leases=max_leases,
    )
    assert (found.segment_pause is not None) is is_divided


@given(leases=st.integers(1, 20_000), workers=st.integers(1, 1000))
def test_dividing_never_costs_more_than_each_worker_s_own_scans(leases, workers):
    told = {
        mode: units_per_second(
            mode=mode, workers=workers, leases=leases, read_units=leases * ROW_UNITS, failover_time=10.0
        )
        for mode in ("auto", "full")
    }
    assert told["auto"] <= told["full"]


def test_the_two_modes_are_what_they_are_called_in_a_fleet_of_any_size():
    assert looks(10_000, 1000, mode="full").segment_pause is None
    assert looks(3, 1, mode="segmented").segments == 1
    assert looks(3, 1, mode="segmented").segment_pause == 1.0
    assert looks(3, 1, mode="segmented").my_segments == (0,)
    assert looks(8, 8, mode="segmented").segments == 4


@given(
    leases=st.integers(1, 20_000),
    workers=st.integers(1, 1000),
    failover_time=st.floats(1.0, 120.0),
    mode=st.sampled_from(["auto", "full", "segmented"]),
)
def test_a_calm_worker_is_never_quicker_than_a_busy_one_and_sees_its_part_in_time(
    leases, workers, failover_time, mode
):
    found = looks(leases, workers, mode=mode, failover_time=failover_time)
    assert found.busy_pause <= found.idle_pause
    assert set(found.my_segments) <= set(range(found.segments))
    if found.segment_pause is not None:
        assert found.segment_pause <= max(1.0, failover_time / 2)


def view(*rows, at=0.0):
    return LeaseView().observe(rows, at)


@pytest.mark.parametrize(
    ("before", "row", "is_news"),
    [
        ([HELD], HELD.with_(counter=6), False),
        ([HELD], HELD.with_(counter=6, owner="w2"), False),
        ([HELD], FREE, True),
        ([HELD], ENDED, True),
        ([], FREE, True),
        ([], HELD, False),
        ([FREE], FREE, False),
        ([FREE], HELD, False),
        ([ENDED], ENDED, False),
    ],
    ids=[
        "renewed",
        "taken",
        "released",
        "ended",
        "new",
        "new and taken",
        "free still",
        "taken up",
        "ended still",
    ],
)
def test_what_somebody_may_have_to_act_on_is_news_once(before, row, is_news):
    seen = view(*before)
    assert shows_news(seen, seen.observe_part([row], 1.0), ["a"], 10.0) is is_news


def test_a_lease_is_silent_by_what_two_looks_showed_more_than_the_fail_over_time_apart():
    first = view(HELD, at=100.0)
    second = first.observe_part([HELD], 109.0)
    third = second.observe_part([HELD], 110.1)
    assert not shows_news(first, second, ["a"], 10.0)
    assert shows_news(second, third, ["a"], 10.0)
    assert may_be_taken(third, ["a"], 10.0)
    assert not may_be_taken(second, ["a"], 10.0)
    assert not shows_news(third, third.observe_part([HELD], 112.0), ["a"], 10.0)


def test_what_a_part_does_not_show_is_as_old_as_it_is():
    """1) A scan at 100 s; 2) a part without this row at 111 s: nobody has seen it stand still."""
    seen = view(HELD, at=100.0).observe_part([HELD.with_(key="b")], 111.0)
    assert seen.unchanged_for("a") == 0.0
    assert seen.unchanged_for("b") == 0.0
    whole = seen.observe([HELD, HELD.with_(key="b")], 112.0)
    assert whole.unchanged_for("a") == 12.0
    assert whole.unchanged_for("b") == 1.0
    assert whole.seen_at == {}


def test_what_a_part_shows_moving_is_not_silent_at_the_next_scan():
    moved = HELD.with_(counter=6)
    seen = view(HELD, at=100.0).observe_part([moved], 105.0).observe([moved], 111.0)
    assert seen.unchanged_for("a") == 6.0
    assert not seen.is_expired("a", 10.0)
