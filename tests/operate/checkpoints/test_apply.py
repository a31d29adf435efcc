"""What is told when a write, or the look at it afterwards, does not go as planned."""

import logging

import pytest

from pykcl.errors import PyKclError, Refused, TemporaryError
from pykcl.interfaces import Applied, Rejected, Unknown
from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease
from pykcl.operate.checkpoints.apply import Audit, apply_plan
from pykcl.operate.checkpoints.plan import Plan, Step

ROW = Lease("a", Checkpoint("8"), counter=7, owner="w")
NEW = ROW.with_(checkpoint=AT_TRIM_HORIZON)
PLAN = Plan(
    (
        Step("kept", "keep", ROW.with_(key="kept")),
        Step("a", "reset", ROW, NEW),
        Step("b", "reset", ROW.with_(key="b"), NEW.with_(key="b")),
    )
)
AUDIT = Audit("arn:aws:iam::1:user/ann", "orders-app", "before.jsonl")
DELETION = Plan((Step("a", "delete", ROW),))


class Table:
    """answers, rows: what writes are answered and reads show, in turn; by default that all went well."""

    def __init__(self, answers=(), rows=()):
        self.answers, self.rows, self.written = list(answers), list(rows), []

    def write(self, write, *, until):
        self.written.append(write)
        return self.answers.pop(0) if self.answers else Applied(write.after)

    def read(self, key):
        return self.rows.pop(0) if self.rows else self.written[-1].after

    def monotonic(self):
        return 0.0


def run(plan, **options):
    table = Table(**options)
    done = []
    return apply_plan(plan, table, table, AUDIT, lambda step: done.append(step.key)), done, table


def test_every_change_is_written_in_order_and_read_again():
    count, done, table = run(PLAN)
    assert (count, done) == (2, ["a", "b"])
    assert [write.kind for write in table.written] == ["reset", "reset"]


def test_a_row_that_reads_otherwise_afterwards_stops_it():
    with pytest.raises(PyKclError, match="reads differently now"):
        run(PLAN, rows=[ROW.with_(counter=8)])
    with pytest.raises(PyKclError, match="reads differently now"):
        run(PLAN, rows=[None])
    with pytest.raises(PyKclError, match="reads differently now"):
        run(DELETION, rows=[ROW])


def test_a_worker_that_has_taken_the_lease_since_began_at_what_was_written():
    taken = NEW.with_(counter=9, owner="w2")
    gone_on = taken.with_(counter=12, checkpoint=Checkpoint("3"))
    assert run(PLAN, rows=[taken, gone_on.with_(key="b")])[0] == 2
    assert run(DELETION, rows=[None])[0] == 1
    assert run(DELETION, rows=[Lease("a", AT_TRIM_HORIZON)])[0] == 1, "put anew by a worker"


def test_the_first_write_that_finds_another_row_is_a_refusal_a_later_one_says_how_far_it_got():
    theirs = Rejected(ROW.with_(owner="w2", counter=8))
    with pytest.raises(Refused, match=r"'w2' has it.*Nothing was written"):
        run(PLAN, answers=[theirs])
    with pytest.raises(PyKclError, match="1 of 2 rows were written before") as stopped:
        run(PLAN, answers=[Applied(None), theirs])
    assert not isinstance(stopped.value, Refused)
    assert "run the same command again" in str(stopped.value)
    with pytest.raises(Refused, match="it is gone"):
        run(PLAN, answers=[Rejected(None)])


def test_a_write_whose_outcome_nobody_knows_stops_it_and_says_so():
    with pytest.raises(TemporaryError, match=r"It is unknown whether.*timed out.*0 of 2"):
        run(PLAN, answers=[Unknown("timed out")])


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "pykcl.audit"]


def test_each_move_is_a_line_in_the_audit_log(caplog):
    caplog.set_level(logging.INFO)
    run(PLAN)
    common = "by=arn:aws:iam::1:user/ann backup=before.jsonl"
    assert lines(caplog) == [
        f"checkpoint moved: table=orders-app shard={key} action=reset from=8:0 to=TRIM_HORIZON {common}"
        for key in ("a", "b")
    ]
    caplog.clear()
    run(DELETION, rows=[None])
    run(Plan((Step("c", "create", None, Lease("c", AT_TRIM_HORIZON)),)))
    assert [line.split(" by=")[0].split("action=")[1] for line in lines(caplog)] == [
        "delete from=8:0 to=-",
        "create from=- to=TRIM_HORIZON",
    ]


def test_a_move_that_reads_otherwise_or_of_which_nobody_knows_is_a_line_and_a_refused_one_is_not(caplog):
    with pytest.raises(PyKclError):
        run(PLAN, rows=[None])
    assert [line.split(":")[0] for line in lines(caplog)] == ["checkpoint moved"]
    caplog.clear()
    with pytest.raises(TemporaryError):
        run(PLAN, answers=[Unknown("timed out")])
    assert [line.split(":")[0] for line in lines(caplog)] == ["checkpoint may have been moved"]
    caplog.clear()
    with pytest.raises(Refused):
        run(PLAN, answers=[Rejected(None)])
    assert lines(caplog) == []


def test_hostile_names_do_not_break_the_line(caplog):
    evil = ROW.with_(key="a\n2026 checkpoint moved: \x1b[2J")
    run(Plan((Step(evil.key, "reset", evil, NEW.with_(key=evil.key)),)))
    (line,) = lines(caplog)
    assert line.isprintable()
