"""The checkers of processors' ends, of gaps, and of what comes again, each fed what breaks its guarantee."""

from contextlib import suppress

import pytest

from pykcl.errors import TemporaryError
from pykcl.events import BatchSkipped, DataLost, UnreadShardLost
from pykcl.model.record import Record
from pykcl.processor import Batch
from pykcl.testing.simulation import Guarantee
from pykcl.testing.simulation.delivery import Ownership, RecordLog, position_of
from pykcl.testing.simulation.guarantees import Violations
from pykcl.testing.simulation.processors import Skips, claiming
from tests.simulation.checkers.duplicates import DuplicateChecker
from tests.simulation.checkers.lifecycle import REPORTED_WITHIN, LifecycleChecker
from tests.simulation.checkers.losses import DeletedRows, LossChecker
from tests.simulation.checking import broken_by, delivery_checker, given, row
from tests.simulation.world import left_without_user_code


@pytest.fixture
def delivery():
    return delivery_checker()


# -- the ends of processors ------------------------------------------------------------------------------------


@pytest.fixture
def lives():
    """A checker of one processor, `owning`, whose host `believes`, has `threads`, and was `frozen` or `struck` or not."""
    violations = Violations()
    checker = LifecycleChecker(
        violations, now=lambda: checker.time, believes=lambda host, key: checker.believed,
        doubts=lambda host, key: False,
        threads=lambda host: checker.threads, cannot_report=lambda host, since: checker.frozen,
        struck=lambda host, since: checker.struck,
    )  # fmt: skip
    checker.violations, checker.time, checker.believed, checker.frozen, checker.struck = (
        violations,
        0.0,
        True,
        False,
        False,
    )
    checker.threads = ["pykcl-parent"]
    checker.owning = Ownership("w1", "parent", (0, 0))
    checker.starts(checker.owning)
    return checker


def _waits(lives, seconds):
    for _ in range(2):
        lives.poll()
        lives.time += seconds
    lives.poll()
    return broken_by(lives.violations)


def test_a_processor_hears_of_the_loss_of_its_lease_within_a_time(lives):
    assert _waits(lives, 100.0) is None
    lives.believed = False
    assert _waits(lives, REPORTED_WITHIN / 2 - 1) is None
    assert _waits(lives, REPORTED_WITHIN) is Guarantee.LIFE_CYCLE


@pytest.mark.parametrize(("name", "value"), [("frozen", True), ("struck", True)])
def test_a_host_that_stands_still_and_a_thread_that_died_report_nothing(lives, name, value):
    lives.believed = False
    setattr(lives, name, value)
    lives.threads = [] if name == "struck" else lives.threads
    assert _waits(lives, REPORTED_WITHIN * 2) is None


@pytest.mark.parametrize("state", ["lost", "shut down"])
def test_who_was_called_is_waited_for_no_more(lives, state):
    lives.believed = False
    lives.owning.state = state
    lives.host_stopped("w1", [])
    assert _waits(lives, REPORTED_WITHIN * 2) is None


def test_a_thread_that_ends_without_calling_its_processor(lives):
    lives.believed, lives.threads = False, []
    assert _waits(lives, 0.0) is Guarantee.LIFE_CYCLE


def test_an_end_that_was_reported_counts_once_it_is_in_the_row(lives):
    lives.owning.state = "ended"
    lives.ended_in_row("w1", "parent")
    lives.host_stopped("w1", [])
    assert broken_by(lives.violations) is None


@pytest.mark.parametrize(("left", "fine"), [(["pykcl-parent"], True), (["pykcl-child"], False)])
def test_a_stop_ends_the_processors_of_all_threads_but_those_it_says_it_left(lives, left, fine):
    lives.host_stopped("w1", left)
    assert broken_by(lives.violations) is (None if fine else Guarantee.LIFE_CYCLE)


def test_a_processor_whose_successor_starts_before_it_was_called(lives):
    lives.starts(Ownership("w1", "parent", (0, 0)))
    assert broken_by(lives.violations) is Guarantee.LIFE_CYCLE


# -- gaps ------------------------------------------------------------------------------------------------------


@pytest.fixture
def gaps(delivery):
    """A checker of losses beside the checker of deliveries, records 1 to 4 of "parent" put at those moments; `horizon` is
    what retention has come to."""
    horizon = [0]
    record_log = RecordLog(lambda: horizon[0])
    for number in (1, 2, 3, 4):
        record_log.shard("parent").add((number, 0), number)
    delivery.record_log = record_log
    checker = LossChecker(record_log, delivery.violations, is_gone=lambda key: False)
    delivery.on_starts, delivery.on_batch, delivery.on_returned = (
        checker.starts,
        checker.reads_on,
        checker.batch_is_over,
    )
    delivery.on_skipped = checker.batch_is_over
    checker.horizon, checker.violations, checker.record_log = horizon, delivery.violations, record_log
    return checker


KNOWN = {"first_key": None, "last_key": None, "before": (), "after": ("child",)}


def _lost(at="1:0"):
    return DataLost(shard="parent", checkpoint=at, resumed_at=None)


@pytest.mark.parametrize(("reported", "fine"), [(0, False), (1, True), (2, False)])
def test_each_gap_is_reported_once(delivery, gaps, reported, fine):
    owning = delivery.ownership_starts("w1", "parent", (0, 0))
    given(delivery, owning, 1)
    gaps.horizon[0] = 3
    for _ in range(reported):
        gaps.heard("w1", _lost())
    given(delivery, owning, 3)
    assert broken_by(gaps.violations) is (None if fine else Guarantee.LOSS_REPORTED)


@pytest.mark.parametrize(("latest", "fine"), [((1, 0), True), ((2, 0), False)])
def test_who_begins_at_a_time_knows_of_no_gap_before_its_first_record(delivery, gaps, latest, fine):
    """Seed 700091. 1) An operator puts a lease to LATEST; 2) retention overtakes the time at which that was read."""
    gaps.is_at_latest = lambda shard_id, position: (shard_id, position) == ("parent", latest)
    owning = delivery.ownership_starts("w1", "parent", (1, 0))
    gaps.horizon[0] = 3
    given(delivery, owning, 3)
    assert broken_by(gaps.violations) is (None if fine else Guarantee.LOSS_REPORTED)


def test_a_gap_counts_as_reported_when_the_batch_behind_it_comes_again(delivery, gaps):
    """Seed 71474: all of it was delivered, then the processor's checkpoint was not permitted."""
    owning = delivery.ownership_starts("w1", "parent", (0, 0))
    given(delivery, owning, 1)
    gaps.horizon[0] = 3
    gaps.heard("w1", _lost())
    with suppress(ValueError), owning.tried_again_if_it_raises():
        given(delivery, owning, 3)
        raise ValueError
    given(delivery, owning, 3)
    assert broken_by(gaps.violations) is None


@pytest.mark.parametrize(("reported", "fine"), [(True, True), (False, False)])
def test_a_gap_may_be_reported_before_gathered_records_that_lie_before_it(delivery, gaps, reported, fine):
    """Seed 204114134022, with policies: a window holds record 2 while the next read finds that 3 is gone."""
    gaps.reads_ahead = True
    owning = delivery.ownership_starts("w1", "parent", (0, 0))
    given(delivery, owning, 1)
    gaps.horizon[0] = 4
    if reported:
        gaps.heard("w1", _lost())
    given(delivery, owning, 2)
    given(delivery, owning, 4)
    assert broken_by(gaps.violations) is (None if fine else Guarantee.LOSS_REPORTED)


@pytest.mark.parametrize("both", [True, False])
def test_two_gaps_may_be_reported_before_the_batch_behind_the_first_of_them(delivery, gaps, both):
    """Seed 807, with policies and a window: the batch was split, and its first part given up."""
    gaps.reads_ahead = True
    owning = delivery.ownership_starts("w1", "parent", (0, 0))
    gaps.horizon[0] = 2
    gaps.heard("w1", DataLost(shard="parent", checkpoint="1:0", resumed_at="2:0"))
    gaps.horizon[0] = 4
    if both:
        gaps.heard("w1", DataLost(shard="parent", checkpoint="2:0", resumed_at="4:0"))
    # As if read from an earlier record on.
    owning.after = (0, 1)
    given(delivery, owning, 2)
    given(delivery, owning, 4)
    assert broken_by(gaps.violations) is (None if both else Guarantee.LOSS_REPORTED)


def test_a_batch_behind_a_gap_that_fails_and_comes_again_needs_no_second_report(delivery, gaps):
    """Seed 700073, with policies and a window."""
    gaps.reads_ahead = True
    owning = delivery.ownership_starts("w1", "parent", (0, 0))
    given(delivery, owning, 1)
    gaps.horizon[0] = 3
    gaps.heard("w1", _lost())
    delivery.batch_starts(owning, [(3, 0)])
    given(delivery, owning, 3)
    assert broken_by(gaps.violations) is None
    gaps.horizon[0] = 5
    delivery.shard_ends(owning)
    assert broken_by(gaps.violations) is Guarantee.LOSS_REPORTED


def test_a_second_gap_is_reported_too(delivery, gaps):
    owning = delivery.ownership_starts("w1", "parent", (0, 0))
    given(delivery, owning, 1)
    gaps.horizon[0] = 3
    gaps.heard("w1", _lost())
    given(delivery, owning, 3)
    gaps.horizon[0] = 5
    delivery.shard_ends(owning)
    assert broken_by(gaps.violations) is Guarantee.LOSS_REPORTED


def test_a_gap_behind_a_batch_that_was_skipped_is_another_one(delivery, gaps):
    owning, skips = delivery.ownership_starts("w1", "parent", (0, 0)), Skips(delivery)
    given(delivery, owning, 1)
    gaps.horizon[0] = 2
    gaps.heard("w1", _lost())
    delivery.batch_starts(owning, [(2, 0)])
    skips.raises(owning, [(2, 0)])
    skips.heard("w1", BatchSkipped(shard="parent", records=1, first="2:0", last="2:0"))
    gaps.horizon[0] = 4
    gaps.heard("w1", _lost("2:0"))
    delivery.batch_starts(owning, [(4, 0)])
    assert broken_by(gaps.violations) is None


class Written:
    """A checkpointer that raises that, if anything."""

    def __init__(self, error):
        self.error = error

    position = None

    def checkpoint(self, at=None, sub_sequence_number=0):
        if self.error is not None:
            raise self.error

    def prepare_checkpoint(self, at, sub_sequence_number=0, *, state=None):
        return self


def _raises_behind_a_checkpoint(delivery, error, *, is_prepared=False):
    """Of records 1 to 3 the first is checkpointed; then the batch raises."""
    owning = delivery.ownership_starts("w1", "parent", (0, 0))
    records = tuple(Record(b"", "", str(number)) for number in (1, 2, 3))
    batch = Batch(records, Written(error), None, "parent", "orders")
    with suppress(ValueError), owning.tried_again_if_it_raises():
        delivery.batch_starts(owning, [(1, 0), (2, 0), (3, 0)])
        with suppress(TemporaryError):
            checkpointer = claiming(batch, owning, delivery).checkpointer
            if is_prepared:
                checkpointer.prepare_checkpoint(records[0]).checkpoint()
            else:
                checkpointer.checkpoint(records[0])
        raise ValueError
    return owning


@pytest.mark.parametrize(
    ("error", "again", "fine"),
    [
        (None, (2, 3), True),
        (None, (1, 2, 3), False),
        (None, (3,), False),
        (TemporaryError("no answer"), (2, 3), True),
        (TemporaryError("no answer"), (1, 2, 3), True),
        (TemporaryError("no answer"), (3,), False),
    ],
)
@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_batch_that_raised_comes_again_behind_what_is_checkpointed(
    delivery, error, again, fine, is_prepared
):
    given(delivery, _raises_behind_a_checkpoint(delivery, error, is_prepared=is_prepared), *again)
    assert broken_by(delivery.violations) is (None if fine else Guarantee.NO_GAP)


@pytest.mark.parametrize(
    ("error", "first", "fine"), [(None, 2, True), (TemporaryError("no answer"), 1, True), (None, 3, False)]
)
def test_what_is_checkpointed_of_a_batch_is_not_skipped(delivery, error, first, fine):
    skips = Skips(delivery)
    skips.raises(_raises_behind_a_checkpoint(delivery, error), [(1, 0), (2, 0), (3, 0)])
    skips.heard("w1", BatchSkipped(shard="parent", records=4 - first, first=f"{first}:0", last="3:0"))
    assert broken_by(delivery.violations) is (None if fine else Guarantee.NO_GAP)


@pytest.mark.parametrize(
    ("second", "fine"), [("5:9223372036854775807", True), ("1:0", False), ("2:0", False)]
)
def test_a_gap_behind_a_record_that_nobody_is_given_is_another_one(delivery, gaps, second, fine):
    """An aggregate of another shard is read and dropped; then retention takes it, and what came behind it."""
    gaps.record_log.shard("parent").drop(5, 5)
    owning = delivery.ownership_starts("w1", "parent", (0, 0))
    given(delivery, owning, 1)
    gaps.horizon[0] = 5
    gaps.heard("w1", _lost("1:0"))
    gaps.horizon[0] = 6
    gaps.heard("w1", _lost(second))
    delivery.shard_ends(owning)
    assert broken_by(gaps.violations) is (None if fine else Guarantee.LOSS_REPORTED)


def test_what_a_shorter_retention_period_took_stays_gone_when_it_is_longer_again(gaps):
    """Seed 84488938292: the shard began with an aggregate of another shard, which a lowered retention period took."""
    gaps.record_log.shard("child").drop(1, 1)
    gaps.horizon[0] = 2
    gaps.record_log.shard("child")
    gaps.horizon[0] = 1
    gaps.heard("w1", DataLost(shard="child", checkpoint="1:9223372036854775807", resumed_at=None))
    assert broken_by(gaps.violations) is None


def test_nobody_reports_what_went_before_anybody_had_read(delivery, gaps):
    gaps.horizon[0] = 3
    given(delivery, delivery.ownership_starts("w1", "parent", position_of("TRIM_HORIZON", 0)), 3, 4)
    assert broken_by(gaps.violations) is None


@pytest.mark.parametrize(("at", "fine"), [("1:0", True), ("2:5", True), ("3:0", False)])
def test_an_alarm_is_false_while_the_record_of_the_checkpoint_is_retained(gaps, at, fine):
    gaps.horizon[0] = 3
    gaps.heard("w1", _lost(at))
    assert broken_by(gaps.violations) is (None if fine else Guarantee.LOSS_REPORTED)


@pytest.mark.parametrize(("rows", "fine"), [({}, True), ({"child": {}}, False)])
def test_a_shard_whose_row_java_deleted_before_its_child_had_one_passes_for_unread(gaps, rows, fine):
    gaps.record_log.parents["child"] = ("parent",)
    gaps.record_log.delivered("parent", [(1, 0)])
    gaps._is_gone = lambda key: True
    gaps.deleted_by_java("parent", rows)
    gaps.heard("w1", UnreadShardLost(shard="parent", checkpoint="TRIM_HORIZON", resumed_at=None, **KNOWN))
    assert broken_by(gaps.violations) is (None if fine else Guarantee.LOSS_REPORTED)


@pytest.mark.parametrize("key", ["parent", "child"])
@pytest.mark.parametrize(("joined", "fine"), [(5.0, True), (1.0, False)])
def test_a_shard_whose_row_an_operator_deleted_passes_for_unread_with_who_came_later(gaps, joined, fine, key):
    """Seed 108626500065: nobody who knew the row put it back before the shard was gone."""
    deleted = DeletedRows({}, now=lambda: 3.0, joined={"w1": joined})
    deleted.deleted(key, row("1", 7))
    gaps.record_log.delivered("parent", [(1, 0)])
    gaps._is_gone, gaps.never_saw = lambda key: True, deleted.never_saw
    gaps.heard("w1", UnreadShardLost(shard="parent", checkpoint="TRIM_HORIZON", resumed_at=None, **KNOWN))
    assert broken_by(gaps.violations) is (None if fine else Guarantee.LOSS_REPORTED)


_SHARD, _OTHERS = "pykcl-shardId-0", ["pykcl-renewer-1", "pykcl-loop", "pykcl-lane-1"]


@pytest.mark.parametrize(
    ("left", "reported", "own"),
    [
        ([_SHARD, *_OTHERS], {_SHARD, *_OTHERS}, []),
        (_OTHERS, {_SHARD, *_OTHERS}, []),
        (_OTHERS, set(_OTHERS), _OTHERS),
        ([_SHARD, "pykcl-manager"], {_SHARD, "pykcl-manager"}, ["pykcl-manager"]),
    ],
)
def test_only_a_shard_that_is_worked_on_may_keep_a_stop_from_ending(left, reported, own):
    """Seed 217979279189: the thread of the shard ended just after the worker had waited for it long enough."""
    assert left_without_user_code(left, reported) == own


def test_a_thread_of_a_shard_that_dies_leaves_its_lanes():
    """Seed 235059330029."""
    lanes = ["pykcl-lane-2"]
    assert left_without_user_code(lanes, set(lanes)) == lanes
    assert left_without_user_code(lanes, set(lanes), is_struck=True) == []
    assert left_without_user_code(["pykcl-manager"], set(), is_struck=True) == ["pykcl-manager"]


# -- what comes again ------------------------------------------------------------------------------------------


@pytest.fixture
def debts():
    """A checker of what may be owed at an interval of 5 s, or `interval`; the row is at `row`; writes `failed` or not."""
    violations = Violations()

    def of(interval=5.0, row=(0, 0), failed=False):
        return DuplicateChecker(
            violations, interval=interval, now=lambda: 100.0, durable=lambda host, key: row,
            failed=lambda host, key, since: failed, on_clock=lambda host, seconds: seconds,
        )  # fmt: skip

    of.violations = violations
    return of


def _owner(*times):
    """Returned from batch 1, 2, … at these times; the last one runs without faults."""
    owning = Ownership("w1", "parent", (len(times), 0), while_healed=True)
    owning.returned = [(at, (number, 0)) for number, at in enumerate(times, 1)]
    owning.delivered = {place for _, place in owning.returned}
    owning.running = [(len(times), 0)]
    return owning


@pytest.mark.parametrize(("interval", "row", "failed", "fine"), [
    (0.0, (3, 0), False, True), (0.0, (2, 0), False, False), (0.0, (2, 0), True, True), (0.0, None, False, True),
    (5.0, (1, 0), False, True), (5.0, (0, 0), False, False), (None, (0, 0), False, True),
])  # fmt: skip
def test_what_was_done_is_in_the_row_before_the_next_batch(debts, interval, row, failed, fine):
    debts(interval, row, failed).batch_starts(_owner(90.0, 96.0, 99.0))
    assert broken_by(debts.violations) is (None if fine else Guarantee.NO_DUPLICATES)


@pytest.mark.parametrize(("interval", "repeated", "cause", "fine"), [
    (0.0, [3], "crash", True), (0.0, [2, 3], "crash", False), (0.0, [2, 3], "steal", False),
    (0.0, [2, 3], "other", True), (5.0, [2, 3], "crash", True), (5.0, [1, 2, 3], "crash", False),
    (None, [1, 2, 3], "crash", True),
])  # fmt: skip
def test_after_a_crash_and_a_steal_without_faults_only_the_running_batch_comes_again(
    debts, interval, repeated, cause, fine
):
    positions = [(number, 0) for number in repeated]
    debts(interval).comes_again(_owner(90.0, 96.0, 99.0), positions, cause)
    assert broken_by(debts.violations) is (None if fine else Guarantee.NO_DUPLICATES)
