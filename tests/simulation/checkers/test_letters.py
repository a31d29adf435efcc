"""The checker of dead letters and their shared destination, fed what is in order and what is not."""

import pytest

from pykcl.errors import TemporaryError
from pykcl.events import RecordsDeadLettered, RetriesExhausted
from pykcl.model.dead_letter import Condition
from pykcl.testing.runtime import Simulation
from pykcl.testing.simulation import Guarantee
from tests import letters
from tests.simulation.checking import broken_by, delivery_checker
from tests.simulation.faults import FleetFaults
from tests.simulation.lanes import AckBook, LaneLetters
from tests.simulation.letters import LetterChecker, SharedDestination
from tests.simulation.seeds import NO_FAULTS

POISON, FLAKY = "F21.poison", "F21.flaky"
NOW = 100_000
BLAME = {2: POISON, 3: FLAKY}
OUTAGE, LOST_ANSWER = "F21.down", "F21.unanswered"


def checker(*, exact=True, splits=True, max_age=60_000, believes=True):
    """A checker over the shards of `delivery_checker`, whose records arrived at 0; record 2 is poison, 3 is flaky."""
    return LetterChecker(
        delivery_checker(), blame=lambda shard, position: BLAME.get(position[0]), believes=lambda *_: believes,
        kinesis_millis=lambda: NOW, max_attempts=3, max_age=max_age, exact=exact, splits=splits,
    )  # fmt: skip


def letter(*numbers, **fields):
    records = [letters.record(number, shard_id="parent") for number in numbers]
    return letters.letter(*records, shard_id="parent", **fields)


def broken(checker):
    return broken_by(checker._checker.violations)


def sent(found, **options):
    checked = checker(**options)
    checked.sent("w1", found)
    return broken(checked)


@pytest.mark.parametrize(("numbers", "options", "fields"), [
    ([2], {}, {}),
    ([2], {}, {"condition": Condition.REJECTED, "attempts": 1}),
    ([3], {"splits": False}, {}),
    ([1, 2], {"exact": False, "splits": False}, {}),
    ([1, 2, 3, 4], {}, {"condition": Condition.RECORD_AGE_EXPIRED, "attempts": 0}),
])  # fmt: skip
def test_a_letter_with_a_reason_breaks_nothing(numbers, options, fields):
    assert sent(letter(*numbers, **fields), **options) is None


@pytest.mark.parametrize(("numbers", "options", "fields"), [
    ([1], {}, {}),
    ([3], {}, {}),
    ([1, 2], {}, {}),
    ([2], {}, {"attempts": 2}),
    ([1], {"exact": False, "splits": False}, {}),
    ([2, 4], {"exact": False, "splits": False}, {}),
    ([7], {"exact": False, "splits": False}, {}),
    ([3], {}, {"condition": Condition.REJECTED}),
    ([1], {"max_age": 200_000}, {"condition": Condition.RECORD_AGE_EXPIRED}),
    ([1], {"max_age": None}, {"condition": Condition.RECORD_AGE_EXPIRED}),
])  # fmt: skip
def test_a_letter_of_sound_or_missing_records_or_too_soon(numbers, options, fields):
    assert sent(letter(*numbers, **fields), **options) is Guarantee.NO_GAP


@pytest.mark.parametrize(("trimmed", "fine"), [({2, 3}, True), ({2}, False), (set(), False)])
def test_a_letter_has_every_record_between_its_ends_that_retention_left(trimmed, fine):
    """Seed 500103: records that a window gathered on both sides of a gap expire together."""
    checked = checker()
    checked._record_log.shard("parent").trimmed.update((number, 0) for number in trimmed)
    checked.sent("w1", letter(1, 4, condition=Condition.RECORD_AGE_EXPIRED, attempts=0))
    assert broken(checked) is (None if fine else Guarantee.NO_GAP)


def test_a_letter_of_a_host_without_the_lease():
    assert sent(letter(2), believes=False) is Guarantee.SILENT_AFTER_LOSS


def test_a_second_identifier_for_the_same_records():
    checked = checker()
    checked.sent("w1", letter(2))
    checked.sent("w2", letter(2, worker_id="w2"))
    assert broken(checked) is None
    checked.sent("w2", letter(2, application="other"))
    assert broken(checked) is Guarantee.NO_GAP


def reported(found):
    return RecordsDeadLettered(
        shard="parent", condition="x", records=len(found.records), first="", last="", attempts=3, letter=found.id
    )  # fmt: skip


def test_records_are_settled_once_the_destination_keeps_them_and_the_owner_goes_on_when_it_is_answered():
    checked, found = checker(), letter(2)
    delivery = checked._checker
    owning = checked.owners["w1", "parent"] = delivery.ownership_starts("w1", "parent", (1, 0))
    checked.keep(found)
    assert delivery.record_log.shard("parent").delivered == {(2, 0)}
    assert owning.after == (1, 0)
    checked.heard("w1", reported(found))
    assert owning.after == (2, 0)
    assert broken(checked) is None


@pytest.mark.parametrize(("after", "is_kept"), [(1, False), (0, True)])
def test_an_owner_that_goes_on_without_a_kept_letter_or_over_a_gap(after, is_kept):
    checked, found = checker(), letter(2)
    checked.owners["w1", "parent"] = checked._checker.ownership_starts("w1", "parent", (after, 0))
    if is_kept:
        checked.keep(found)
    checked.heard("w1", reported(found))
    assert broken(checked) is Guarantee.NO_GAP


@pytest.mark.parametrize(("kind", "is_kept"), [(None, True), (OUTAGE, False), (LOST_ANSWER, True)])
def test_the_destination_fails_before_or_after_it_keeps_a_letter(kind, is_kept):
    checked, failed = checker(), 0
    with Simulation(seed=0) as simulation:
        faults = FleetFaults(1, off=NO_FAULTS - {kind}, everything=True)
        destination = SharedDestination(simulation, faults, checked)
        for _ in range(60):
            checked.kept.clear()
            try:
                destination.send([letter(2)])
            except TemporaryError:
                failed += 1
                assert bool(checked.kept) is is_kept
            else:
                assert checked.kept
        faults.healed = True
        destination.send([letter(2)])
    assert (failed > 0) is (kind is not None)
    assert faults.injected.keys() == ({kind} if kind else set())


# -- lanes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_first_done", "worked", "broken_one"),
    [
        (True, [], None),
        (False, [], Guarantee.ALL_DELIVERED),
        (True, [(7, 12.0)], Guarantee.NO_FALSE_ALARM),
        # Before the first letter, of another place, and before the letters that count.
        (True, [(7, 9.0), (12, 12.0), (2, 8.0)], None),
    ],
)
def test_a_lease_that_goes_back_for_failures_in_a_row(is_first_done, worked, broken_one):
    checked = LaneLetters(
        delivery_checker(), blame=lambda *_: None, believes=lambda *_: True, kinesis_millis=lambda: NOW,
        max_attempts=1, max_age=None, exact=True, splits=False,
    )  # fmt: skip
    book = AckBook()
    checked.books = {("w1", "parent"): book}
    book.given([(number, 0) for number in range(1, 20)])
    if is_first_done:
        book.says_done((1, 0))
    book.worked = [((number, 0), at) for number, at in worked]
    book.given_up = [((1, 0), 5.0), ((5, 0), 10.0), ((9, 0), 20.0)]
    checked.handed_back(
        "w1", RetriesExhausted(shard="parent", cause="in a row", checkpoint="1:0", left_alone_for=1), 2
    )
    assert broken(checked) is broken_one
