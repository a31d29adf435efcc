"""The checkers of deliveries, processors' lives, gaps and repetitions, each fed what breaks its guarantee."""

import pytest

from pykcl.testing.simulation import Guarantee
from pykcl.testing.simulation.delivery import position_of
from tests.simulation.checking import broken_by, delivery_checker, given


@pytest.fixture
def delivery():
    return delivery_checker()


def test_a_life_in_order_breaks_nothing(delivery):
    parent = delivery.ownership_starts("w1", "parent", position_of("TRIM_HORIZON", 0))
    given(delivery, parent, 1, 2)
    given(delivery, parent, 3, 4)
    delivery.called(parent, "shard_ended")
    delivery.shard_ends(parent)
    child = delivery.ownership_starts("w2", "child", position_of("TRIM_HORIZON", 0))
    given(delivery, child, 9)
    delivery.called(child, "lease_lost")
    delivery.ownership_lost(child)
    assert broken_by(delivery.violations) is None


@pytest.mark.parametrize("numbers", [(2,), (1, 3), (2, 1), (1, 1), (7,)])
def test_a_batch_with_a_gap_a_repeat_or_another_order(delivery, numbers):
    given(delivery, delivery.ownership_starts("w1", "parent", (0, 0)), *numbers)
    assert broken_by(delivery.violations) is Guarantee.NO_GAP


@pytest.mark.parametrize(
    ("starts", "guarantee"),
    [("TRIM_HORIZON", None), ("LATEST", Guarantee.NO_GAP), ("AT_TIMESTAMP", Guarantee.NO_GAP)],
)
def test_what_was_put_before_the_start_is_read_from_the_trim_horizon_only(delivery, starts, guarantee):
    """A row put back at TRIM_HORIZON, such as a missing parent's, has the whole shard read: nobody knows where it was."""
    delivery.record_log.shard("parent").before.add((0, 5))
    owning = delivery.ownership_starts("w1", "parent", position_of(starts, 0))
    with owning.call(delivery, "process_records"):
        delivery.batch_starts(owning, [(0, 5), (1, 0), (2, 0)])
    assert broken_by(delivery.violations) is guarantee


@pytest.mark.parametrize(("may_start_early", "guarantee"), [(False, Guarantee.NO_GAP), (True, None)])
def test_what_was_put_before_the_start_is_read_by_a_clock_that_is_behind(
    delivery, may_start_early, guarantee
):
    """And a reader that got that far goes on from there."""
    delivery.may_start_early = may_start_early
    delivery.record_log.shard("parent").before |= {(0, 5), (0, 6)}
    for after, records in (((0, 5), [(0, 6), (1, 0)]), (position_of("LATEST", 0), [(0, 5), (0, 6), (1, 0)])):
        owning = delivery.ownership_starts("w1", "parent", after)
        with owning.call(delivery, "process_records"):
            delivery.batch_starts(owning, records)
    assert broken_by(delivery.violations) is guarantee


def test_the_end_of_a_shard_that_still_owes(delivery):
    delivery.shard_ends(delivery.ownership_starts("w1", "parent", (0, 0)))
    assert broken_by(delivery.violations) is Guarantee.NO_GAP


@pytest.mark.parametrize(
    ("starts", "delivered", "guarantee"),
    [
        ("LATEST", (1, 2, 3, 4), None),
        ("LATEST", (1, 2, 3), Guarantee.NO_GAP),
        ("TRIM_HORIZON", (1, 2, 3, 4), Guarantee.NO_GAP),
    ],
)
def test_the_end_of_a_shard_whose_lease_was_made_once_more(delivery, starts, delivered, guarantee):
    """1) A shard has been read, its lease is deleted; 2) a listing that is some seconds old shows it open, and its
    children have no lease any more: it is started again, at LATEST behind all that has been delivered."""
    given(delivery, delivery.ownership_starts("w1", "parent", position_of("LATEST", 0)), *delivered)
    delivery.shard_ends(delivery.ownership_starts("w2", "parent", position_of(starts, 0)))
    assert broken_by(delivery.violations) is guarantee


def test_a_child_before_its_parent(delivery):
    given(delivery, delivery.ownership_starts("w1", "parent", (0, 0)), 1, 2, 3)
    given(delivery, delivery.ownership_starts("w2", "child", (0, 0)), 9)
    assert broken_by(delivery.violations) is Guarantee.PARENTS_FIRST


def test_two_calls_at_once(delivery):
    owning = delivery.ownership_starts("w1", "parent", (0, 0))
    with owning.call(delivery, "process_records"), owning.call(delivery, "shard_ended"):
        pass
    assert broken_by(delivery.violations) is Guarantee.LIFE_CYCLE


def test_a_batch_after_the_end_of_the_shard(delivery):
    owning = delivery.ownership_starts("w1", "parent", (0, 0))
    owning.state = "ended"
    delivery.called(owning, "process_records")
    assert broken_by(delivery.violations) is Guarantee.LIFE_CYCLE


def test_a_call_after_the_lease_was_lost(delivery):
    owning = delivery.ownership_starts("w1", "parent", (0, 0))
    delivery.ownership_lost(owning)
    delivery.called(owning, "lease_lost")
    assert broken_by(delivery.violations) is Guarantee.SILENT_AFTER_LOSS


def test_a_batch_without_belief_in_the_lease(delivery):
    delivery.believes = lambda host, shard_id: False
    given(delivery, delivery.ownership_starts("w1", "parent", (0, 0)), 1)
    assert broken_by(delivery.violations) is Guarantee.SILENT_AFTER_LOSS


def _starts(delivery, host, *, as_owner):
    delivery.owns = lambda other, shard_id: as_owner and other == host
    return delivery.ownership_starts(host, "parent", (0, 0))


def test_a_batch_without_faults_after_the_thief_started(delivery):
    old = _starts(delivery, "w1", as_owner=True)
    _starts(delivery, "w2", as_owner=True)
    delivery.is_healed = True
    given(delivery, old, 1)
    assert broken_by(delivery.violations) is Guarantee.ONE_OWNER


def test_who_starts_late_and_has_lost_the_lease_already_robs_nobody(delivery):
    owner = _starts(delivery, "w1", as_owner=True)
    _starts(delivery, "w2", as_owner=False)
    delivery.is_healed = True
    given(delivery, owner, 1)
    # A third one has just taken the lease, and waits: until then the owner may go on.
    _starts(delivery, "w3", as_owner=False)
    given(delivery, owner, 2)
    assert broken_by(delivery.violations) is None


@pytest.mark.parametrize(("is_lost", "cause"), [(False, "clean stop"), (True, "other")])
def test_a_lease_that_was_lost_before_it_was_released_was_not_handed_back_in_order(delivery, is_lost, cause):
    owner = delivery.ownership_starts("w1", "parent", (0, 0))
    given(delivery, owner, 1, 2)
    if is_lost:
        delivery.ownership_lost(owner)
    delivery.fates["w1"] = "clean stop"
    delivery.released.add(("w1", "parent"))
    delivery.ownership_starts("w2", "parent", (0, 0))
    assert delivery.duplicates == {cause: 2}


def test_what_comes_again_after_a_clean_stop_and_after_a_crash(delivery):
    given(delivery, delivery.ownership_starts("w1", "parent", (0, 0)), 1, 2)
    delivery.fates["w1"] = "crash"
    delivery.ownership_starts("w2", "parent", (0, 0))
    assert broken_by(delivery.violations) is None
    assert delivery.duplicates == {"crash": 2}
    given(delivery, delivery.ownership_starts("w2", "parent", (2, 0)), 3)
    delivery.fates["w2"] = "clean stop"
    delivery.released.add(("w2", "parent"))
    delivery.ownership_starts("w3", "parent", (2, 0))
    assert broken_by(delivery.violations) is Guarantee.NO_DUPLICATES


def test_the_end_of_a_shard_of_which_this_owner_was_not_given_all(delivery):
    given(delivery, delivery.ownership_starts("w1", "parent", (0, 0)), 1, 2, 3, 4)
    owning = delivery.ownership_starts("w2", "parent", (1, 0))
    given(delivery, owning, 2, 3)
    delivery.shard_ends(owning)
    assert broken_by(delivery.violations) is Guarantee.NO_GAP


def test_a_java_worker_that_is_given_a_child_before_its_parent(delivery):
    delivery.record_log.delivered("parent", [(1, 0), (2, 0), (3, 0), (4, 0)])
    delivery.java_delivers("java1", "child", [(9, 0)])
    assert broken_by(delivery.violations) is None
    delivery.record_log.shard("parent").add((5, 0), 0)
    delivery.java_delivers("java1", "child", [(9, 0)])
    assert broken_by(delivery.violations) is Guarantee.PARENTS_FIRST


@pytest.mark.parametrize("method", ["process_records", "shard_ended", "shutdown_requested"])
def test_a_call_after_the_processor_was_asked_to_shut_down(delivery, method):
    owning = delivery.ownership_starts("w1", "parent", (0, 0))
    delivery.called(owning, "shutdown_requested")
    delivery.called(owning, "lease_lost")
    assert broken_by(delivery.violations) is None
    delivery.called(owning, method)
    assert broken_by(delivery.violations) is Guarantee.LIFE_CYCLE
