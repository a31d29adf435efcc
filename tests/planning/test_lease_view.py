"""Who has gone silent, by this worker's own clock."""

from __future__ import annotations

import pytest

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import ForeignRow, Lease, PendingCheckpoint, PykclMetadata, UnreadableRow
from pykcl.planning.lease_view import LeaseView, Namesakes

A = Lease("a", Checkpoint("7"), counter=5, owner="x")


def seen(*scans: tuple[float, Lease]) -> LeaseView:
    view = LeaseView()
    for now, row in scans:
        view = view.observe([row], now)
    return view


def test_an_owned_lease_counts_as_seen_from_its_first_sight():
    assert seen((100.0, A)).unchanged_for("a") == 0
    assert not seen((100.0, A)).is_expired("a", 10)


def test_a_lease_is_expired_when_seen_unchanged_for_longer_than_the_failover_time():
    assert not seen((100.0, A), (110.0, A)).is_expired("a", 10)
    assert seen((100.0, A), (110.5, A)).is_expired("a", 10)


@pytest.mark.parametrize(
    "change",
    [
        {"counter": 6},
        {"counter": 4},
        {"owner": "y"},
        {"owner_switches": 1},
        {"metadata": PykclMetadata(owner="x", process_token="2")},
        {"checkpoint": Checkpoint("8")},
        {"pending": PendingCheckpoint(Checkpoint("8"), None)},
    ],
    ids=str,
)
def test_a_change_of_counter_owner_session_or_position_starts_the_time_again(change):
    view = seen((100.0, A), (120.0, A.with_(**change)))
    assert view.unchanged_since["a"] == 120.0
    assert not view.is_expired("a", 10)


def test_what_owners_do_not_write_is_no_sign_of_life():
    """A Java worker notes the children of a shard, and its hash keys, without a heartbeat."""
    assert seen((100.0, A), (120.0, A.with_(children=("b",)))).is_expired("a", 10)


def test_time_that_passes_without_a_scan_is_no_evidence():
    view = seen((100.0, A))
    assert view.observed_at == 100.0
    assert view.unchanged_for("a") == 0


def test_an_unowned_lease_does_not_expire():
    assert not seen((100.0, A.with_(owner=None)), (200.0, A.with_(owner=None))).is_expired("a", 10)


def test_a_lease_that_was_to_be_handed_over_expires_though_nobody_is_named_for_it():
    asked = A.with_(owner=None, checkpoint_owner="x")
    assert seen((100.0, asked), (110.5, asked)).is_expired("a", 10)


def test_a_lease_that_vanished_is_forgotten():
    view = seen((100.0, A)).observe([], 105.0)
    assert view.leases == {}
    assert view.observe([A], 111.0).unchanged_for("a") == 0
    assert not view.is_expired("a", 10)


def test_foreign_rows_are_invisible_and_unreadable_ones_are_kept_apart():
    broken = UnreadableRow("b", "no counter")
    view = LeaseView().observe([ForeignRow("Leader", "lock"), broken, A], 100.0)
    assert set(view.leases) == {"a"}
    assert view.unreadable == {"b": broken}


def test_a_view_is_a_value():
    first = seen((100.0, A))
    first.observe([A.with_(counter=6)], 101.0)
    assert first == seen((100.0, A))


B = A.with_(owner="y", counter=6)


@pytest.mark.parametrize("in_parts", [False, True], ids=["whole table", "segments"])
@pytest.mark.parametrize(
    ("rows", "is_untouched"),
    [
        ([A], False),
        ([A, B], True),
        ([A.with_(owner=None), B], True),
        ([A, B, B], True),
        ([A, B, B.with_(counter=7)], False),
        ([A, B.with_(checkpoint_owner="x"), B.with_(checkpoint_owner="x", counter=7)], False),
        ([A, B.with_(checkpoint_owner="x", counter=7), B.with_(counter=8)], True),
        ([A, B, B.with_(owner=None)], False),
    ],
    ids=[
        "first sight",
        "given",
        "was free",
        "stands still",
        "renewed",
        "asked for",
        "handed over",
        "released",
    ],
)
def test_a_lease_is_untouched_from_its_change_of_hands_to_the_first_sign_of_work(
    rows, is_untouched, in_parts
):
    view = LeaseView()
    for number, row in enumerate(rows):
        view = view.observe_part([row], number) if in_parts else view.observe([row], number)
    assert view.untouched == ({"a"} if is_untouched else set())


# -- another process of one's own name -----------------------------------------------------------------------------


def namesakes(*scans):
    """Of scans one second apart, each the lease and whether the scan is consistent; this process is "mine"."""
    view, found = LeaseView(), Namesakes()
    for now, (lease, is_consistent) in enumerate(scans):
        view = view.observe([lease], float(now))
        found = found.observe(
            view, "x", process_token="mine", in_hand=(), failover_time=10.0, is_consistent=is_consistent
        )
    return found


def beat(counter, token="theirs"):
    return A.with_(counter=counter, metadata=PykclMetadata(owner="x", process_token=token))


def test_a_lease_of_my_name_asks_for_a_consistent_scan_and_then_one_heartbeat_is_proof():
    assert namesakes((beat(5), False)).needs_consistent_scan
    after = namesakes((beat(5), False), (beat(5), True))
    assert (after.leases, after.is_in_doubt, after.needs_consistent_scan) == ([], True, False)
    proof = namesakes((beat(5), False), (beat(5), True), (beat(6), False))
    assert (proof.leases, proof.is_in_doubt) == (["a"], False)


def test_one_heartbeat_between_scans_that_may_be_a_moment_old_is_no_proof():
    assert namesakes((beat(5), False), (beat(6), False)).leases == []
    assert namesakes((beat(5), False), (beat(6), False), (beat(7), False)).leases == ["a"]


def test_a_take_of_this_process_that_lands_late_is_no_proof():
    mine = beat(6, token="mine")
    assert namesakes((beat(5), False), (mine, False)).leases == []
    scans = ((beat(5, "mine"), False), (beat(5, "mine"), True), (mine, True))
    assert (namesakes(*scans).leases, namesakes(*scans).needs_consistent_scan) == ([], False)


def test_a_java_worker_of_my_name_is_a_namesake_too():
    assert namesakes((A, False), (A, True), (A.with_(counter=6), False)).leases == ["a"]
