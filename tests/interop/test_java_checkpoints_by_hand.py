"""An operator moves the checkpoint in the row of a lease that somebody holds, and leaves its counter: forward, then back.

The owner keeps its own checkpoint and overwrites the other, whether it is Java or pykcl, so that no record is skipped.
"""

import pytest
from fleet_checks import nothing_lost
from fleet_evidence import TABLE
from scenario_stories import JAVA, all_rows, everywhere, made_by_pykcl, table_of

from pykcl.events import CheckpointOverwritten

pytestmark = pytest.mark.timeout(600)


def move(dynamodb, run, checkpoint):
    (key,) = run.open_ranges()
    dynamodb.update_item(
        TableName=TABLE, Key={"leaseKey": {"S": key}}, UpdateExpression="SET checkpoint = :checkpoint",
        ExpressionAttributeValues={":checkpoint": {"S": checkpoint}},
    )  # fmt: skip


def moved_forward_and_back(run, dynamodb):
    """Return the row of the shard, once records that were put after each move are delivered."""
    (key,) = run.open_ranges()
    everywhere(run, 10)
    run.wait_until_delivered()
    for checkpoint in (str(run.producer.last[key][0] + 10**30), "TRIM_HORIZON"):
        move(dynamodb, run, checkpoint)
        everywhere(run, 10)
        run.wait_for("all records", lambda: run.missing() == 0)
        run.wait_for("the owner's checkpoint", lambda: stands_at_the_end(all_rows(dynamodb)[key], run))
    return all_rows(dynamodb)[key]


def stands_at_the_end(row, run):
    return row["checkpoint"] == {"S": str(run.producer.last[row["leaseKey"]["S"]][0])}


def test_java_and_then_pykcl_on_the_row_that_java_wrote_keep_their_own_checkpoint(java, fleet):
    java(JAVA)
    with fleet(shards=1, aggregated=0.0) as run, table_of(run) as dynamodb:
        made_by_pykcl(run)
        first = run.java("j1", JAVA)
        run.wait_for("the lease with j1", run.all_begun)
        assert moved_forward_and_back(run, dynamodb)["leaseOwner"] == {"S": "j1"}
        run.terminate(first)
        second = run.pykcl("p1")
        run.wait_for("the lease with p1", run.all_begun)
        assert moved_forward_and_back(run, dynamodb)["leaseOwner"] == {"S": "p1"}
        assert second.log.read_text().count(CheckpointOverwritten.TEXT) == 2
        run.terminate(second)
        third = run.pykcl("p2")
        run.wait_for("the lease with p2", run.all_begun)
        everywhere(run, 5)
        run.wait_until_delivered()
        assert run.delivered(third) == 5
        assert nothing_lost(run.finish()).problems == ()
