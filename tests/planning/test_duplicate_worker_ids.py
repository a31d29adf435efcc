"""Another living process under one's own worker identifier is told from the rows that a dead one left."""

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.planning.peer_anomalies import DuplicateWorkerIdDetector


def row(counter, session="other", owner="me", noted="me", key="shardId-0"):
    metadata = PykclMetadata(owner=noted, process_token=session) if noted else None
    return Lease(key, Checkpoint("TRIM_HORIZON"), counter, owner, metadata=metadata)


def watch(rows, every=1.0):
    """Each row is what one scan shows; the lease that tells of a twin, per scan."""
    twins = DuplicateWorkerIdDetector("me", "mine", 10.0)
    return [twins.observe([one], number * every) for number, one in enumerate(rows)]


def test_a_row_of_ours_that_another_session_keeps_moving_is_told_once():
    told = watch([row(number // 3) for number in range(60)])
    assert [key for key in told if key] == ["shardId-0"]


def test_each_other_session_is_told_of():
    rows = [row(number // 3) for number in range(30)] + [
        row(50 + number // 3, "third") for number in range(30)
    ]
    assert len([key for key in watch(rows) if key]) == 2


def test_java_under_our_name_leaves_no_session_and_is_told():
    assert any(watch([row(number // 3, noted=None) for number in range(30)]))
    assert any(watch([row(number // 3, noted="before") for number in range(30)]))


def test_rows_that_stand_still_move_once_more_or_are_ours_are_no_twin():
    assert not any(watch([row(5)] * 60))
    assert not any(watch([row(5)] * 20 + [row(6)] * 40))
    assert not any(watch([row(5)] * 5 + [row(6)] * 20 + [row(7)] * 20))
    assert not any(watch([row(number, session="mine") for number in range(60)]))
    assert not any(watch([row(number, owner="somebody") for number in range(60)]))


def test_a_predecessor_that_ends_within_the_fail_over_time_is_no_twin():
    assert not any(watch([row(number) for number in range(9)] + [row(8)] * 40))


def test_answers_that_are_old_by_turns_are_no_movement():
    assert not any(watch([row(5 + number % 2) for number in range(60)]))
