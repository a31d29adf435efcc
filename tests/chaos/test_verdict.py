"""Each check is shown a recording in which what it looks for went wrong, and must say so; and one in which all is well."""

import copy
from collections import Counter
from pathlib import Path

import pytest
from chaos_checks import CHECKS, all_checks
from chaos_report import failover_seconds, figure_lines, table
from chaos_story import Story, red
from fleet_duplicates import repeats
from fleet_evidence import Evidence
from fleet_ownership import ownerships

# -- all is well -----------------------------------------------------------------------------------------------


def test_a_run_in_which_all_went_well_is_green_and_everything_was_examined(judge, story):
    checks = judge(story)
    assert [(check.name, check.problems) for check in checks.values() if check.verdict != "ok"] == []
    assert len(checks) == len(CHECKS)


def test_the_figures_of_that_run_are_as_told(tmp_path, story):
    evidence = story.evidence(tmp_path)
    found = {
        (pair.kind, pair.first.worker, pair.second.worker): len(pair.items) for pair in repeats(evidence)
    }
    assert found == {("D1", "w1", "w2"): 2, ("D3", "w3", "w4"): 1}
    hows = [(own.shard, own.worker, own.how) for own in ownerships(evidence)]
    assert hows == [
        ("A", "w1", "D1"), ("B", "w1", "D1"), ("A", "w2", "D0"), ("B", "w2", "D0"), ("C", "w3", "D3"),
        ("B", "w4", "D0"), ("C", "w4", "D1"), ("C", "w5", "D0"), ("B", "w5", "D0"),
    ]  # fmt: skip
    assert len(failover_seconds(evidence)) == 4
    assert all(seconds > 0 for seconds in failover_seconds(evidence))
    assert "duplicates D1, after a crash" in figure_lines(evidence)


def test_an_empty_recording_is_green_nowhere_but_where_nothing_can_be_examined(judge):
    checks = judge(Story())
    assert {check.verdict for check in checks.values() if check.name != "all work done in the end"} == {
        "NOT EXERCISED",
        "ok",
    }
    assert [check.name for check in checks.values() if check.verdict == "ok"] == [
        "all work done in the end",
        "faults injected",
    ]


def test_what_did_not_happen_is_not_exercised(judge, story):
    story.harness = [line for line in story.harness if line.get("action") != "freeze"]
    story.end["faults"]["late"] = 0
    checks = judge(story)
    assert checks["done to the fleet"].verdict == checks["faults injected"].verdict == "NOT EXERCISED"


def test_the_table_names_what_failed_below_its_check(judge, story):
    story.drop("w2", story.lines("w2", "done", "A")[-1])
    lines = table(list(judge(story).values())).splitlines()
    (at,) = [n for n, line in enumerate(lines) if line.startswith("nothing lost")]
    assert "FAILED" in lines[at]
    assert "record 8 (108:0) of A was put and never finished" in lines[at + 1]


# -- records ---------------------------------------------------------------------------------------------------


def test_a_record_nobody_finished_is_lost_and_named(judge, story):
    """A worker that says it is done before it is, is killed in the middle: what the next one starts behind is lost."""
    story.drop("w2", story.lines("w2", "done", "A")[0])
    names, text = red(judge, story)
    assert "order per shard, no gaps" in names  # finished in another order than given
    assert "nothing lost" not in names  # w1 had finished that one
    story.drop("w1", story.lines("w1", "done", "A")[2])
    names, text = red(judge, story)
    assert "nothing lost" in names
    assert "record 3 (103:0) of A was put and never finished; w2 checkpointed 106:0; given to w1, w2" in text


def test_a_record_that_was_never_given_to_anybody_is_a_gap(judge, story):
    story.lines("w2", "given", "A")[0]["records"].pop(1)
    story.drop("w2", story.lines("w2", "done", "A")[1])
    names, text = red(judge, story)
    assert "order per shard, no gaps" in names
    assert "w2 on A under token 4 got record 5 (105:0) where record 4 (104:0) was due" in text


def test_records_in_the_wrong_order_are_found(judge, story):
    records = story.lines("w2", "given", "B")[0]["records"]
    records.reverse()
    assert "order per shard, no gaps" in red(judge, story)[0]


def test_sub_records_of_an_aggregate_have_an_order_too(judge, story):
    given = story.lines("w1", "given", "B")[0]["records"]
    given[0], given[1] = given[1], given[0]
    assert "order per shard, no gaps" in red(judge, story)[0]


def test_a_record_given_twice_to_one_processor_is_found(judge, story):
    given = story.lines("w2", "given", "A")
    given[1]["records"] = [given[0]["records"][-1], *given[1]["records"]]
    assert "order per shard, no gaps" in red(judge, story)[0]


def test_a_record_nobody_put_is_found(judge, story):
    story.lines("w2", "given", "A")[0]["records"][0] = ("102", 1, 99)
    names, text = red(judge, story)
    assert "nothing but what was put" in names
    assert "record 99 (102:1)" in text


def test_a_record_from_another_shard_is_found(judge, story):
    stray = story.lines("w2", "given", "B")[0]["records"][0]
    story.lines("w2", "given", "A")[1]["records"].append(stray)
    assert "nothing but what was put" in red(judge, story)[0]


def test_a_processor_that_is_told_something_after_its_end_is_found(judge, story):
    lost = story.lines("w3", "lost")[0]
    story.drop("w3", lost)
    story.told["w3"].insert(2, lost)
    names, text = red(judge, story)
    assert names == {"life of a processor"}
    assert "w3 on C under token 1 was told of a batch after its end (lost)" in text


@pytest.mark.parametrize("what", ["init", "shutdown", "lost"])
def test_a_processor_that_begins_or_ends_twice_is_found(judge, story, what):
    worker = "w3" if what == "lost" else "w2"
    line = story.lines(worker, what)[-1]
    story.told[worker].append(copy.deepcopy(line))
    assert "life of a processor" in red(judge, story)[0]


def test_a_stop_or_a_loss_while_a_shard_is_being_ended_is_fine(judge, story):
    story.tell("w2", "A", "shutdown")
    story.tell("w2", "A", "lost")
    assert red(judge, story)[0] == set()
    story.tell("w2", "A", "shutdown")
    assert red(judge, story)[0] == {"life of a processor"}


def test_a_child_that_begins_before_its_parents_end_is_in_the_table_is_found(judge, story):
    (end,) = [r for r in story.updates("A", sets="checkpoint") if "childShardIds" in str(r)]
    end["at_millis"] = story.t
    names, text = red(judge, story)
    assert "parents before children" in names
    assert "w3 on C under token 1 began before the end of its parent A was in the table" in text


def test_a_child_that_begins_before_its_parents_records_are_finished_is_found(judge, story):
    for line in story.lines("w2", "done", "A")[-1:]:
        line["t"] = story.t
    names, text = red(judge, story)
    assert {"parents before children", "checkpoints behind the work"} == names
    assert "before record 8 (108:0) of its parent A was finished" in text


# -- checkpoints -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["101:0", "103:0", "TRIM_HORIZON"])
def test_a_start_elsewhere_than_at_the_checkpoint_is_found(judge, story, at):
    story.lines("w2", "init", "A")[0]["at"] = at
    names, text = red(judge, story)
    assert "start at the durable checkpoint" in names
    assert "its row stood at 102:0" in text


def test_a_start_without_an_ownership_is_found(judge, story):
    for line in story.told["w2"]:
        if line.get("shard") == "A":
            line["token"] += 1
    names, text = red(judge, story)
    assert "start at the durable checkpoint" in names
    assert "w2 on A under token 5 began without an ownership in the table" in text


def test_a_record_at_or_below_the_checkpoint_that_comes_again_is_found(judge, story):
    """The row stood at 102 and so said the worker, and yet record 102 came again."""
    story.lines("w2", "given", "A")[0]["records"].insert(0, ("102", 0, 2))
    names, text = red(judge, story)
    assert "start at the durable checkpoint" in names
    assert "got record 2 (102:0) again, which was checkpointed when it began" in text


def test_a_checkpoint_before_the_work_is_found_and_names_the_record(judge, story):
    checkpoint = story.updates("A", sets="checkpoint")[0]
    checkpoint["at_millis"] = story.lines("w1", "done", "A")[1]["t"] - 1
    names, text = red(judge, story)
    assert names == {"checkpoints behind the work"}
    assert "w1 wrote the checkpoint 102:0 of A before record 2 (102:0) was finished" in text


def test_an_end_of_shard_before_the_work_is_found(judge, story):
    story.lines("w2", "done", "A")[-1]["t"] = story.lines("w2", "ended")[0]["t"] + 11
    assert "checkpoints behind the work" in red(judge, story)[0]


def test_a_checkpoint_that_moves_back_is_found(judge, story):
    back = story.updates("A", sets="checkpoint")[1]
    back["parameters"]["ExpressionAttributeValues"][":checkpoint"] = {"S": "101"}
    names, text = red(judge, story)
    assert "checkpoints behind the work" in names
    assert "A went back from 102:0 to 101:0" in text


def test_a_confirmed_checkpoint_that_is_not_in_the_table_is_found(judge, story):
    story.tell("w5", "C", "checkpoint", at="303:1")
    names, text = red(judge, story)
    assert names == {"confirmed means durable"}
    assert "was told that 303:1 is written" in text


def test_a_checkpoint_confirmed_before_it_was_written_is_found(judge, story):
    (confirmation,) = story.lines("w5", "checkpoint")
    confirmation["t"] -= 15
    assert red(judge, story)[0] == {"confirmed means durable"}


def test_every_check_is_seen_to_fail_by_a_test_of_these_files():
    """A check that cannot fail is none."""
    text = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_verdict*.py"))
    nothing = Evidence({}, {}, [], {}, [], Counter(), {"late": 0})
    assert [check.name for check in all_checks(nothing) if f'"{check.name}"' not in text] == []
