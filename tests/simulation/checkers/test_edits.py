"""Checkpoints that an operator moves under the owner of a lease: what is excused, and what is not."""

import pytest

from pykcl.events import Checkpointed, CheckpointOverwritten, LeaseLost, LossReason
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.simulation import Guarantee
from pykcl.testing.simulation.delivery import AT_LATEST, RecordLog, checkpoint_position
from pykcl.testing.simulation.guarantees import Violations
from tests.simulation.checkers.edits import EditedCheckpoints
from tests.simulation.checkers.rows import RowChecker
from tests.simulation.checking import broken_by, row

NOW = [1000.0]
BEAT = {"UpdateExpression": "SET leaseCounter = :leaseCounter"}
ASSIGN = {"UpdateExpression": "SET leaseOwner = :leaseOwner ADD leaseCounter :one"}
RELEASE = {"UpdateExpression": "SET leaseCounter = :leaseCounter REMOVE leaseOwner"}
TAKE = {"ExpressionAttributeValues": {":leaseOwner": {"S": "w2"}}}


class Table:
    """The row of one lease at record 2 of 4, of which two were delivered; its owner is w1."""

    def __init__(self):
        self.log, self.violations = RecordLog(lambda: 0), Violations()
        self.log.parents["parent"] = ()
        for number in (1, 2, 3, 4):
            self.log.shard("parent").add((number, 0), number * 1000)
        self.log.delivered("parent", [(1, 0), (2, 0)])
        self.lost = {"parent": {(3, 0), (4, 0)}}
        self.row = row("2", 7)
        NOW[0] = 1000.0
        self.excused, self.cut_off, self.believes = [], [], True
        self.edits = EditedCheckpoints(
            self.log,
            self.violations,
            self.lost,
            now=lambda: NOW[0],
            kinesis_millis=lambda: 3500,
            worker_ids={"w1": "w1", "w2": "w2"},
            is_excused=lambda host, since: host in self.excused,
            is_cut_off=lambda host: host in self.cut_off,
            believes=lambda host, key: self.believes,
        )
        self.rows = RowChecker(
            self.log, self.violations, is_peer=lambda host: False, rows=dict, is_gone=lambda key: False
        )

    def edit(self, place, step=0):
        own, self.row = self.row, row(place, 7 + step)
        self.edits.edit("parent", own, self.row)

    def write(self, place, params=BEAT, author="w1", **more):
        after = row(place, int(self.row["leaseCounter"]["N"]) + 1, **more)
        change = Change("UpdateItem", "t", "parent", self.row, after, author, params)
        self.row = after
        self.rows.row_changed(self.edits.row_changed(change))

    def take(self, place, **more):
        self.write(place, TAKE, "w2", leaseOwner={"S": "w2"}, **more)

    @property
    def known(self):
        return checkpoint_position(self.edits.as_known("parent", self.row))

    @property
    def broken(self):
        return broken_by(self.violations)


@pytest.fixture
def table():
    return Table()


@pytest.mark.parametrize("place", ["4", "1", "TRIM_HORIZON", "SHARD_END"])
def test_an_owner_that_puts_its_own_checkpoint_back_and_says_so(table, place):
    table.edit(place)
    assert table.known == (2, 0)
    table.write("2")
    table.edits.heard("w1", CheckpointOverwritten(shard="parent", checkpoint="2:0", found=place))
    NOW[0] += 60
    table.edits.poll()
    assert (table.broken, table.log.owed(), table.known) == (None, {"parent": 2}, (2, 0))
    assert not table.edits.pending


@pytest.mark.parametrize(
    ("place", "guarantee"),
    [("4", Guarantee.CHECKPOINT_AFTER_DELIVERY), ("1", Guarantee.CHECKPOINT_FORWARD)],
)
def test_an_owner_that_adopts_it(table, place, guarantee):
    table.edit(place)
    table.write(place)
    assert table.broken is guarantee


@pytest.mark.parametrize(("is_excused", "guarantee"), [(False, Guarantee.NO_FALSE_ALARM), (True, None)])
def test_an_owner_that_overwrites_it_without_a_word(table, is_excused, guarantee):
    table.edit("4")
    table.write("2")
    table.excused += ["w1"] if is_excused else []
    NOW[0] += 5
    table.edits.poll()
    assert table.broken is guarantee


def test_an_owner_that_dynamodb_does_not_answer_reports_it_afterwards(table):
    """Seed 10149174297: its write was applied, the answer is lost, and so are those to the reads that look for it."""
    table.edit("4")
    table.write("2")
    table.cut_off += ["w1"]
    NOW[0] += 5
    table.edits.poll()
    assert table.broken is None

    table.cut_off.clear()
    NOW[0] += 2
    table.edits.poll()
    assert table.broken is None

    NOW[0] += 2
    table.edits.poll()
    assert table.broken is Guarantee.NO_FALSE_ALARM


@pytest.mark.parametrize(("deleted", "guarantee"), [("parent", None), ("child", Guarantee.NO_FALSE_ALARM)])
def test_whose_row_is_deleted_before_it_was_answered_owes_no_report(table, deleted, guarantee):
    table.edit("4")
    table.write("2")
    table.edits.deleted(deleted)
    NOW[0] += 5
    table.edits.poll()
    assert table.broken is guarantee


def test_a_dead_owner_owes_no_report(table):
    table.edit("4")
    table.write("2")
    table.edits.forget("w1")
    NOW[0] += 5
    table.edits.poll()
    assert table.broken is None


def test_a_write_that_arrives_after_its_sender_gave_the_lease_up_owes_no_report(table):
    """Seed 880020: its sender was dead by then."""
    table.edit("4")
    table.believes = False
    table.write("2")
    NOW[0] += 5
    table.edits.poll()
    assert table.broken is None


def test_a_report_may_come_before_the_write_of_which_it_tells(table):
    """Seed 209038592097: no answer came to the write, its next attempt was refused, and it arrived after that."""
    table.edit("4")
    table.edits.heard("w1", CheckpointOverwritten(shard="parent", checkpoint="2:0", found="4:0"))
    table.write("2")
    NOW[0] += 5
    table.edits.poll()
    assert table.broken is None


@pytest.mark.parametrize(("starts_before", "known"), [(False, (4, 0)), (True, (2, 0))])
def test_a_taker_that_reads_the_row_because_no_answer_came_may_begin_at_the_edit(table, starts_before, known):
    """Seed 265048145391: the checkpoint was edited between the take and the read that proved it."""
    table.take("2")
    if starts_before:
        table.edits.start_of("w2", "parent", (2, 0))
    table.edit("4", step=1)
    table.edits.start_of("w2", "parent", (4, 0))
    assert table.known == known
    assert bool(table.edits.pending) is starts_before


@pytest.mark.parametrize(
    ("place", "is_answered", "guarantee"),
    [
        ("1", False, None),
        ("1", True, Guarantee.NO_FALSE_ALARM),
        ("TRIM_HORIZON", False, Guarantee.NO_FALSE_ALARM),
    ],
)
def test_what_a_write_without_an_answer_replaced_may_be_put_back_without_a_report(
    table, place, is_answered, guarantee
):
    """Seed 47810107111: the next attempt found what a heartbeat before it would have left."""
    table.row = row("1", 6)
    table.write("2")
    if is_answered:
        table.edits.heard("w1", Checkpointed(shard="parent", checkpoint="2:0", counter=7))
    table.edit(place)
    table.write("2")
    NOW[0] += 5
    table.edits.poll()
    assert table.broken is guarantee


@pytest.mark.parametrize(
    ("place", "guarantee"), [("1", None), ("TRIM_HORIZON", Guarantee.CHECKPOINT_FORWARD)]
)
def test_a_heartbeat_may_leave_what_was_put_back_of_a_write_that_its_sender_does_not_know_of(
    table, place, guarantee
):
    """Simulation 152419860112: 1) a checkpoint lands late, its sender has no answer; 2) the one before is put back."""
    table.row = row("1", 6)
    table.write("2")
    table.edit(place)
    table.write(place)
    assert table.broken is guarantee


@pytest.mark.parametrize(("place", "guarantee"), [("3", Guarantee.CHECKPOINT_AFTER_DELIVERY), ("2", None)])
def test_a_heartbeat_that_finds_what_its_sender_had_sent_without_an_answer_goes_on_there(
    table, place, guarantee
):
    """Seed 108626500066: nobody can distinguish it from what an operator writes at that moment, with the counter."""
    table.row = row("1", 7)
    table.edit(place, step=1)
    table.write(place)
    assert not table.edits.pending
    assert table.broken is guarantee


@pytest.mark.parametrize("starts_before", [False, True])
def test_a_taker_lets_a_lease_go_that_was_ended_before_it_started(table, starts_before):
    """Seed 47810107159: what comes into the shard after that is skipped as well."""
    table.take("2")
    if starts_before:
        table.edits.start_of("w2", "parent", (2, 0))
    table.edit("SHARD_END", step=1)
    table.row["leaseOwner"] = {"S": "w2"}
    table.write("SHARD_END", author="w2")
    table.log.shard("parent").add((5, 0), 5000)
    assert table.log.owed() == ({"parent": 3} if starts_before else {})


def test_an_owner_that_lost_the_lease_before_it_was_answered_owes_no_report(table):
    """Seed 35536264103: its release was applied, the answer was lost, and another process of its name took the lease."""
    table.edit("4")
    table.write("2")
    table.edits.heard("w1", LeaseLost(shard="parent", cause="", new_owner="w2", reason=LossReason.TAKEN))
    NOW[0] += 5
    table.edits.poll()
    assert table.broken is None


@pytest.mark.parametrize("step", [0, 1, 5])
def test_the_next_owner_begins_there_and_what_that_skips_is_excused(table, step):
    table.edit("3", step)
    table.take("3")
    assert (table.known, table.log.owed(), table.lost["parent"]) == ((3, 0), {"parent": 1}, {(4, 0)})
    table.write("4", author="w2", leaseOwner={"S": "w2"})
    assert table.broken is Guarantee.CHECKPOINT_AFTER_DELIVERY


def test_a_step_back_excuses_nothing(table):
    table.edit("1", 1)
    table.take("1")
    assert (table.known, table.log.owed(), table.lost["parent"]) == ((1, 0), {"parent": 2}, {(3, 0), (4, 0)})
    assert table.broken is None


def test_who_begins_at_the_oldest_record_cannot_know_what_retention_took(table):
    table.edit("TRIM_HORIZON", 1)
    table.take("TRIM_HORIZON")
    assert (table.log.owed(), table.lost["parent"]) == ({"parent": 2}, set())


def _noted(since):
    return {"M": {"latestFrom": {"N": str(since)}}}


def test_an_owner_at_latest_that_puts_latest_back(table):
    """Seed 217214343276: the row of an owner that begins at LATEST was edited once more."""
    table.edit("LATEST", 1)
    table.write("LATEST", TAKE, pykcl=_noted(3500))
    table.edit("SHARD_END", 2)
    table.write("LATEST")
    assert (table.broken, table.known) == (None, (3, 0))


def test_latest_is_the_time_that_its_next_owner_notes(table):
    table.edit("LATEST", 1)
    table.take("LATEST", pykcl=_noted(3500))
    assert (table.log.owed(), table.known) == ({"parent": 1}, (3, 0))
    assert table.edits.start_of("w2", "parent", AT_LATEST) == (3, 0)
    assert table.edits.start_of("w2", "parent", (1, 0)) == (1, 0)
    assert table.edits.is_at_latest("parent", (3, 0))
    assert checkpoint_position(table.edits.with_own_checkpoint("parent", table.row)) == AT_LATEST
    table.log.delivered("parent", [(4, 0)])
    table.write("4", author="w2", leaseOwner={"S": "w2"}, pykcl=_noted(3500))
    assert (table.broken, table.known) == (None, (4, 0))
    assert table.edits.start_of("w2", "parent", AT_LATEST) == AT_LATEST


def test_nobody_begins_while_a_lease_is_released_by_who_lost_it_or_a_leader_names_the_next_owner(table):
    """Seed 700090: in a fleet of KCL 3.x, where neither of them notes a time."""
    table.edit("LATEST", 5)
    table.write("LATEST", leaseOwner={"S": "w1"})
    assert "parent" in table.edits.pending
    released, table.row = table.row, row("LATEST", 14, leaseOwner={"S": "w2"})
    table.edits.row_changed(Change("UpdateItem", "t", "parent", released, table.row, "w3", ASSIGN))
    assert "parent" in table.edits.pending
    table.write("LATEST", TAKE, "w2", leaseOwner={"S": "w2"}, pykcl=_noted(3500))
    assert (table.broken, table.log.owed(), table.edits.pending) == (None, {"parent": 1}, set())


@pytest.mark.parametrize(
    ("believes", "guarantee"), [(False, None), (True, Guarantee.CHECKPOINT_AFTER_DELIVERY)]
)
def test_who_has_lost_a_lease_and_takes_its_name_off_says_nothing_of_the_checkpoint(
    table, believes, guarantee
):
    """Seed 202158866278: in a fleet of KCL 3.x, by the row that its last scan showed."""
    table.edit("4")
    table.believes = believes
    table.write("4", RELEASE)
    assert table.broken is guarantee


def test_latest_that_is_taken_for_the_first_start_of_the_application(table):
    table.edit("LATEST", 1)
    table.take("LATEST", pykcl=_noted(1000))
    assert table.broken is Guarantee.NO_DUPLICATES


@pytest.mark.parametrize(("step", "guarantee"), [(1, None), (5, Guarantee.SILENT_AFTER_LOSS)])
def test_an_owner_that_overwrites_what_moved_the_counter_by_more_than_a_heartbeat_does(
    table, step, guarantee
):
    table.edit("4", step)
    table.write("2")
    assert table.broken is guarantee


def test_a_hash_range_that_is_filled_in_settles_nothing(table):
    table.edit("4")
    after = {**table.row, "startingHashKey": {"S": "0"}, "endingHashKey": {"S": "9"}}
    table.edits.row_changed(Change("UpdateItem", "t", "parent", table.row, after, "w2", {}))
    assert "parent" in table.edits.pending


@pytest.mark.parametrize(("place", "guarantee"), [("4", Guarantee.CHECKPOINT_AFTER_DELIVERY), ("3", None)])
def test_an_edit_that_is_what_its_owner_was_about_to_write(table, place, guarantee):
    table.edit(place, 1)
    table.log.delivered("parent", [(3, 0)])
    table.edits.heard("w1", Checkpointed(shard="parent", checkpoint=f"{place}:0", counter=8))
    assert (table.broken, table.edits.pending) == (guarantee, set())


def test_an_operator_who_takes_it_back_and_a_row_that_is_deleted(table):
    table.edit("SHARD_END")
    assert table.edits.taken_back("parent")["checkpoint"] == {"S": "2"}
    assert not table.edits.pending
    table.edit("4")
    table.edits.row_changed(Change("DeleteItem", "t", "parent", table.row, None, "w2", {}))
    assert not table.edits.pending


@pytest.mark.parametrize(
    "event",
    [
        CheckpointOverwritten(shard="parent", checkpoint="2:0", found="4:0"),
        LeaseLost(shard="parent", cause="", new_owner=None, reason=LossReason.CHECKPOINT_CHANGED),
    ],
)
def test_a_report_of_what_nobody_did(table, event):
    table.edits.heard("w1", event)
    assert table.broken is Guarantee.NO_FALSE_ALARM


@pytest.mark.parametrize(("author", "expected"), [("w1", Guarantee.CHECKPOINT_AFTER_DELIVERY), ("w2", None)])
def test_a_heartbeat_that_leaves_the_edit_is_of_its_writer_or_begins_what_a_leader_has_assigned(
    author, expected
):
    """Seed 4865627116: the owner lets go of what was edited, and the next one begins by a heartbeat where the row is."""
    table = Table()
    table.edit("4", 1)
    if author == "w2":
        edited, table.row = table.row, row("4", 9, leaseOwner={"S": "w2"})
        table.edits.row_changed(Change("UpdateItem", "t", "parent", edited, table.row, "w3", ASSIGN))
    table.write("4", BEAT, author, leaseOwner={"S": author})
    assert broken_by(table.violations) is expected
