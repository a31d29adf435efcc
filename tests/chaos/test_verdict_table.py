"""As test_verdict.py: duplicates, the lease table and the processes."""

import copy

import pytest
from chaos_story import Story, red
from fleet_evidence import REQUESTS, TABLE
from fleet_rows import LeaseRows, position

from pykcl.model import lease_writes
from pykcl.model.checkpoint import Checkpoint

# -- duplicates ------------------------------------------------------------------------------------------------


def test_a_duplicate_after_a_release_is_found(judge):
    story = Story()
    story.shard("B")
    records = [*story.put("B", 201), *story.put("B", 202)]
    story.start("w1", "w2")
    story.create("B")
    story.take("w1", "B")
    story.batch("w1", "B", records[:1])
    story.batch("w1", "B", records[1:], checkpoint=False)
    story.release("w1", "B")
    story.take("w2", "B")
    story.batch("w2", "B", records[1:])
    names, text = red(judge, story)
    assert "no duplicates on clean stop" in names
    assert "record 2 (202:0) and 0 more of B were repeated by w2 though w1 had released the lease" in text


def test_duplicates_from_more_than_the_running_batch_are_found(judge):
    """It was killed with two batches behind its last checkpoint."""
    story = Story()
    story.shard("B")
    records = [*story.put("B", 201), *story.put("B", 202), *story.put("B", 203)]
    story.start("w1", "w2")
    story.create("B")
    story.take("w1", "B")
    for record in records:
        story.batch("w1", "B", [record], checkpoint=record is records[0])
    story.leave("w1", "killed", -9)
    story.take("w2", "B")
    story.batch("w2", "B", records[1:])
    names, text = red(judge, story)
    assert names >= {"duplicates within one batch"}
    assert "repeated 2 records from 2 batches of w1" in text


# -- the table -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 2, -1])
def test_a_counter_that_does_not_grow_by_one_is_found(judge, story, step):
    (renewal,) = [
        r
        for r in story.updates("A")
        if r["parameters"]["UpdateExpression"] == "SET leaseCounter = :leaseCounter"
    ]
    values = renewal["parameters"]["ExpressionAttributeValues"]
    values[":leaseCounter"] = {"N": str(int(values[":seenCounter"]["N"]) + step)}
    names, text = red(judge, story)
    assert "lease counters grow by one" in names
    assert f"renew of A by w1 moved the counter from 2 to {2 + step}" in text


def test_a_row_put_over_another_is_found(judge, story):
    story.requests.append(copy.deepcopy(story.requests[0]))
    assert "lease counters grow by one" in red(judge, story)[0]


def test_a_row_made_again_after_its_deletion_is_found(judge, story):
    story.write(lease_writes.delete(story.leases["A"], ended=True))
    story.requests.append(copy.deepcopy(story.requests[0]))
    names, text = red(judge, story)
    assert names == {"lease counters grow by one"}
    assert text == "the row of A was made 2 times"


@pytest.mark.parametrize("condition", ["", "leaseCounter = :seenCounter", "leaseOwner = :seenOwner"])
def test_a_write_without_its_whole_condition_is_found(judge, story, condition):
    story.updates("B")[1]["parameters"]["ConditionExpression"] = condition
    names, text = red(judge, story)
    assert names == {"every write conditional"}
    assert f"had the condition {condition!r}" in text


def test_a_creation_that_could_overwrite_is_found(judge, story):
    del story.requests[0]["parameters"]["ConditionExpression"]
    assert red(judge, story)[0] == {"every write conditional"}


@pytest.mark.parametrize("operation", ["BatchWriteItem", "TransactWriteItems"])
def test_a_write_of_another_kind_is_found(judge, story, operation):
    story.requests.append({**story.requests[-1], "operation": operation, "parameters": {"RequestItems": {}}})
    assert "every write conditional" in red(judge, story)[0]


def test_a_write_by_somebody_else_than_the_owner_is_found(judge, story):
    values = story.updates("B", sets="checkpoint")[-1]["parameters"]["ExpressionAttributeValues"]
    values[":seenOwner"] = {"S": "w1"}
    names, text = red(judge, story)
    assert "only owners write" in names
    assert "checkpoint of B by w1 was applied while the row named w4" in text


def test_a_zombie_whose_write_is_applied_is_found(judge, story):
    (refused,) = [r for r in story.requests if r["error_code"] == "ConditionalCheckFailedException"]
    refused.update(status=200, error_code=None)
    names, text = red(judge, story)
    assert {"zombies write nothing", "only owners write", "lease counters grow by one"} <= names
    assert "renew of C by w3 was applied after w4 had taken it" in text


def test_a_zombie_that_begins_a_second_batch_is_found(judge, story):
    place = story.told["w3"].index(story.lines("w3", "lost")[0])
    late = [{**story.lines("w3", "given")[0], "t": story.t, "records": records} for records in ([], [])]
    story.told["w3"][place:place] = late[:1]
    assert red(judge, story)[0] == set()
    story.told["w3"][place:place] = late[1:]
    names, text = red(judge, story)
    assert names == {"zombies write nothing"}
    assert "w3 on C under token 1 began 2 batches after w4 had taken the lease" in text


def owned_after_stop(story):
    story.requests.remove(story.requests[-1])  # w5 releases C


def test_a_lease_left_behind_by_a_clean_stop_is_found(judge, story):
    owned_after_stop(story)
    names, text = red(judge, story)
    assert names == {"nothing owned after clean stop"}
    assert "w5 stopped with exit code 0 and still owned C" in text


@pytest.mark.parametrize(
    "said",
    [
        "WARNING lease not released, peers take it when it expires shard=C cause='no answer'",
        "WARNING lease lost shard=C cause='no heartbeat succeeded in time' new_owner=-",
    ],
)
def test_a_lease_the_worker_could_not_release_and_said_so_is_excused(judge, story, said):
    owned_after_stop(story)
    story.said["w5"].append(said)
    assert red(judge, story)[0] == set()


def test_a_take_whose_answer_never_came_is_excused(judge, story):
    owned_after_stop(story)
    story.said["w5"] = [line for line in story.said["w5"] if "shard=C" not in line]
    assert red(judge, story)[0] == set()


# -- processes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("worker", "code", "says"),
    [
        ("w2", 70, "w2 (SIGTERM) ended with 70 instead of 0"),
        ("w2", -15, "w2 (SIGTERM) ended with -15 instead of 0"),
        ("w2", None, "w2 (SIGTERM) ended with None instead of 0"),
        ("w4", 0, "w4 (forced) ended with 0 instead of 70"),
        ("w1", 0, "w1 (SIGKILL) ended with 0 instead of -9"),
    ],
)
def test_a_wrong_exit_code_is_found(judge, story, worker, code, says):
    (line,) = [line for line in story.harness if line["what"] == "exited" and line["worker"] == worker]
    line["code"] = code
    names, text = red(judge, story)
    assert "exit codes" in names
    assert says in text


def test_a_worker_that_ends_unasked_is_found_with_its_last_words(judge, story):
    story.harness = [line for line in story.harness if line["what"] != "terminated"]
    story.said["w2"].append("pykcl: InternalError: a thread died")
    names, text = red(judge, story)
    assert names == {"exit codes"}
    assert "w2 (unasked) ended with 0 instead of None: pykcl: InternalError: a thread died" in text


def test_a_traceback_is_found(judge, story):
    story.said["w4"].append("Traceback (most recent call last):")
    assert red(judge, story)[0] == {"no traceback"}


def test_work_that_was_never_done_is_found(judge, story):
    story.end["unsettled"] = ["B has no owner"]
    names, text = red(judge, story)
    assert names == {"all work done in the end"}
    assert text == "B has no owner"


def test_rows_are_replayed_as_they_were(tmp_path, story):
    story.evidence(tmp_path)
    rows = LeaseRows(tmp_path / REQUESTS, TABLE)
    rows.poll()
    assert rows.rows.keys() == story.leases.keys()
    for key, lease in story.leases.items():
        row = rows.rows[key]
        assert (row.owner, row.counter) == (lease.owner, lease.counter)
        assert row.checkpoint == position(
            lease.checkpoint.sequence_number, lease.checkpoint.sub_sequence_number
        )
    story.write(lease_writes.delete(story.leases["A"], ended=True))
    assert story.leases["A"].checkpoint == Checkpoint("SHARD_END")
    rows.take(story.requests[-1])
    assert "A" not in rows.rows
