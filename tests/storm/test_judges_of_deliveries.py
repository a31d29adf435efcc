"""The judges of deliveries, processors' lives, gaps and repetitions, each fed what breaks its promise."""

import pytest
from judging import broken_by, delivery_judge, given

from pykcl.testing.storm import Promise
from pykcl.testing.storm.places import place_of


@pytest.fixture
def delivery():
    return delivery_judge()


def test_a_life_in_order_breaks_nothing(delivery):
    parent = delivery.ownership_begins("w1", "parent", place_of("TRIM_HORIZON", 0))
    given(delivery, parent, 1, 2)
    given(delivery, parent, 3, 4)
    delivery.called(parent, "shard_ended")
    delivery.shard_ends(parent)
    child = delivery.ownership_begins("w2", "child", place_of("TRIM_HORIZON", 0))
    given(delivery, child, 9)
    delivery.called(child, "lease_lost")
    delivery.ownership_lost(child)
    assert broken_by(delivery.verdict) is None


@pytest.mark.parametrize("numbers", [(2,), (1, 3), (2, 1), (1, 1), (7,)])
def test_a_batch_with_a_gap_a_repeat_or_another_order(delivery, numbers):
    given(delivery, delivery.ownership_begins("w1", "parent", (0, 0)), *numbers)
    assert broken_by(delivery.verdict) is Promise.NO_GAP


@pytest.mark.parametrize(
    ("begins", "promise"),
    [("TRIM_HORIZON", None), ("LATEST", Promise.NO_GAP), ("AT_TIMESTAMP", Promise.NO_GAP)],
)
def test_what_was_put_before_the_start_is_read_from_the_trim_horizon_only(delivery, begins, promise):
    """A row put back at TRIM_HORIZON, such as a missing parent's, has the whole shard read: nobody knows where it was."""
    delivery.ledger.shard("parent").before.add((0, 5))
    owning = delivery.ownership_begins("w1", "parent", place_of(begins, 0))
    with owning.call(delivery, "process_records"):
        delivery.batch_begins(owning, [(0, 5), (1, 0), (2, 0)])
    assert broken_by(delivery.verdict) is promise


def test_the_end_of_a_shard_that_still_owes(delivery):
    delivery.shard_ends(delivery.ownership_begins("w1", "parent", (0, 0)))
    assert broken_by(delivery.verdict) is Promise.NO_GAP


@pytest.mark.parametrize(
    ("begins", "delivered", "promise"),
    [
        ("LATEST", (1, 2, 3, 4), None),
        ("LATEST", (1, 2, 3), Promise.NO_GAP),
        ("TRIM_HORIZON", (1, 2, 3, 4), Promise.NO_GAP),
    ],
)
def test_the_end_of_a_shard_whose_lease_was_made_once_more(delivery, begins, delivered, promise):
    """1) A shard has been read, its lease is deleted; 2) a listing that is some seconds old shows it open, and its
    children have no lease any more: it is begun again, at LATEST behind all that has been delivered."""
    given(delivery, delivery.ownership_begins("w1", "parent", place_of("LATEST", 0)), *delivered)
    delivery.shard_ends(delivery.ownership_begins("w2", "parent", place_of(begins, 0)))
    assert broken_by(delivery.verdict) is promise


def test_a_child_before_its_parent(delivery):
    given(delivery, delivery.ownership_begins("w1", "parent", (0, 0)), 1, 2, 3)
    given(delivery, delivery.ownership_begins("w2", "child", (0, 0)), 9)
    assert broken_by(delivery.verdict) is Promise.PARENTS_FIRST


def test_two_calls_at_once(delivery):
    owning = delivery.ownership_begins("w1", "parent", (0, 0))
    with owning.call(delivery, "process_records"), owning.call(delivery, "shard_ended"):
        pass
    assert broken_by(delivery.verdict) is Promise.LIFE_CYCLE


def test_a_batch_after_the_end_of_the_shard(delivery):
    owning = delivery.ownership_begins("w1", "parent", (0, 0))
    owning.state = "ended"
    delivery.called(owning, "process_records")
    assert broken_by(delivery.verdict) is Promise.LIFE_CYCLE


def test_a_call_after_the_lease_was_lost(delivery):
    owning = delivery.ownership_begins("w1", "parent", (0, 0))
    delivery.ownership_lost(owning)
    delivery.called(owning, "lease_lost")
    assert broken_by(delivery.verdict) is Promise.SILENT_AFTER_LOSS


def test_a_batch_without_belief_in_the_lease(delivery):
    delivery.believes = lambda host, shard_id: False
    given(delivery, delivery.ownership_begins("w1", "parent", (0, 0)), 1)
    assert broken_by(delivery.verdict) is Promise.SILENT_AFTER_LOSS


def _begins(delivery, host, *, as_owner):
    delivery.owns = lambda other, shard_id: as_owner and other == host
    return delivery.ownership_begins(host, "parent", (0, 0))


def test_a_batch_in_calm_weather_after_the_thief_began(delivery):
    old = _begins(delivery, "w1", as_owner=True)
    _begins(delivery, "w2", as_owner=True)
    delivery.is_calm = True
    given(delivery, old, 1)
    assert broken_by(delivery.verdict) is Promise.ONE_OWNER


def test_who_begins_late_and_has_lost_the_lease_already_robs_nobody(delivery):
    owner = _begins(delivery, "w1", as_owner=True)
    _begins(delivery, "w2", as_owner=False)
    delivery.is_calm = True
    given(delivery, owner, 1)
    # A third one has just taken the lease, and waits: until then the owner may go on.
    _begins(delivery, "w3", as_owner=False)
    given(delivery, owner, 2)
    assert broken_by(delivery.verdict) is None


def test_what_comes_again_after_a_clean_stop_and_after_a_crash(delivery):
    given(delivery, delivery.ownership_begins("w1", "parent", (0, 0)), 1, 2)
    delivery.fates["w1"] = "crash"
    delivery.ownership_begins("w2", "parent", (0, 0))
    assert broken_by(delivery.verdict) is None
    assert delivery.duplicates == {"crash": 2}
    given(delivery, delivery.ownership_begins("w2", "parent", (2, 0)), 3)
    delivery.fates["w2"] = "clean stop"
    delivery.released.add(("w2", "parent"))
    delivery.ownership_begins("w3", "parent", (2, 0))
    assert broken_by(delivery.verdict) is Promise.NO_DUPLICATES


def test_the_end_of_a_shard_of_which_this_owner_was_not_given_all(delivery):
    given(delivery, delivery.ownership_begins("w1", "parent", (0, 0)), 1, 2, 3, 4)
    owning = delivery.ownership_begins("w2", "parent", (1, 0))
    given(delivery, owning, 2, 3)
    delivery.shard_ends(owning)
    assert broken_by(delivery.verdict) is Promise.NO_GAP


def test_a_java_worker_that_is_given_a_child_before_its_parent(delivery):
    delivery.ledger.delivered("parent", [(1, 0), (2, 0), (3, 0), (4, 0)])
    delivery.java_delivers("java1", "child", [(9, 0)])
    assert broken_by(delivery.verdict) is None
    delivery.ledger.shard("parent").add((5, 0), 0)
    delivery.java_delivers("java1", "child", [(9, 0)])
    assert broken_by(delivery.verdict) is Promise.PARENTS_FIRST


@pytest.mark.parametrize("method", ["process_records", "shard_ended", "shutdown_requested"])
def test_a_call_after_the_processor_was_asked_to_shut_down(delivery, method):
    owning = delivery.ownership_begins("w1", "parent", (0, 0))
    delivery.called(owning, "shutdown_requested")
    delivery.called(owning, "lease_lost")
    assert broken_by(delivery.verdict) is None
    delivery.called(owning, method)
    assert broken_by(delivery.verdict) is Promise.LIFE_CYCLE
