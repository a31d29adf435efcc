"""The scripted worker's requests are those that real Java KCL 2.7.2 workers were recorded sending."""

import json
from pathlib import Path
from typing import Any

import pytest

from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.shard import HashRange
from tests.java_peer.lease import JavaLease, RowUnreadable, read_row
from tests.java_peer.lease_table import JavaRequests

FIXTURES = Path(__file__).parents[1] / "fixtures"
RECORDED = [json.loads(line) for line in (FIXTURES / "requests-java-2.7.2.jsonl").read_text().splitlines()]
TABLE = "r272"
REQUESTS = JavaRequests(TABLE)
ALL = HashRange(0, 340282366920938463463374607431768211455)
FIRST_THIRD = HashRange(0, 113427455640312821154458202477256070484)
LAST_THIRDS = HashRange(113427455640312821154458202477256070485, 340282366920938463463374607431768211455)


def shard(number: int) -> str:
    return f"shardId-{number:012d}"


def lease(number: int, counter: int = 0, **fields: Any) -> JavaLease:
    return JavaLease(shard(number), AT_TRIM_HORIZON, counter=counter, **fields)


BUILT = {
    "describe": ("DescribeTable", REQUESTS.describe_table()),
    "create table": ("CreateTable", REQUESTS.create_table()),
    "is empty": ("Scan", REQUESTS.is_empty()),
    "scan": ("Scan", REQUESTS.scan()),
    "create": ("PutItem", REQUESTS.create(lease(0, hash_range=FIRST_THIRD))),
    "create child of a split": (
        "PutItem",
        REQUESTS.create(
            lease(
                3,
                parents=(shard(0),),
                hash_range=HashRange(0, 56713727820156410577229101238628035241),
            )
        ),
    ),
    "create child of a merge": (
        "PutItem",
        REQUESTS.create(lease(5, parents=(shard(1), shard(2)), hash_range=LAST_THIRDS)),
    ),
    "take": ("UpdateItem", REQUESTS.take(lease(0), "w1-k272")),
    "steal": ("UpdateItem", REQUESTS.take(lease(1, 6, owner="w1-k272"), "w2-k272")),
    "renew": ("UpdateItem", REQUESTS.renew(lease(1, 1, owner="w1-k272"))),
    "renew after the steal": ("UpdateItem", REQUESTS.renew(lease(1, 6, owner="w1-k272"))),
    "get": ("GetItem", REQUESTS.get(shard(2))),
    "checkpoint": (
        "UpdateItem",
        REQUESTS.checkpoint(
            lease(0, 3, owner="w1-k272", hash_range=FIRST_THIRD, owner_switches=1),
            Checkpoint("49680416565319915036303109152422110512342155404937003010"),
        ),
    ),
    "checkpoint of a lease taken with its children": (
        "UpdateItem",
        JavaRequests("fleet-app").checkpoint(
            lease(0, 7, owner="j2", hash_range=ALL, owner_switches=1, children=(shard(1), shard(2))),
            Checkpoint("49179537336420200000000000000000000000000001300000000000"),
        ),
    ),
    "children of a split": ("UpdateItem", REQUESTS.child_shards(shard(0), [shard(3), shard(4)])),
    "children of a merge": ("UpdateItem", REQUESTS.child_shards(shard(2), [shard(5)])),
}
"""Every recorded kind. Not recorded, hence built by the protocol's description alone: prepareCheckpoint, the
back-fill of hash ranges and delete."""


def comparable(value: Any) -> Any:
    """DynamoDB's string sets have no order."""
    if isinstance(value, dict):
        return {key: sorted(each) if key == "SS" else comparable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return value


@pytest.mark.parametrize("kind", BUILT)
def test_what_is_built_equals_a_recorded_request(kind):
    operation, params = BUILT[kind]
    found = [comparable(each["request"]) for each in RECORDED if each["operation"] == operation]
    assert comparable(params) in found


def test_every_recorded_kind_of_request_can_be_built():
    built = [(operation, comparable(params)) for operation, params in BUILT.values()]
    # Whoever recorded asked for the tables to see whether the service was up.
    lacking = [each for each in RECORDED if (each["operation"], comparable(each["request"])) not in built]
    assert [each["operation"] for each in lacking] == ["ListTables"]


def test_the_end_of_a_shard_is_a_checkpoint_that_leaves_the_owner_alone():
    params = REQUESTS.checkpoint(lease(0, 33, owner="w1", hash_range=FIRST_THIRD), AT_SHARD_END)
    assert params["AttributeUpdates"]["checkpoint"]["Value"] == {"S": "SHARD_END"}
    assert params["AttributeUpdates"]["checkpointSubSequenceNumber"]["Value"] == {"N": "0"}
    assert "leaseOwner" not in params["AttributeUpdates"]
    assert params["Expected"] == {"leaseCounter": {"Value": {"N": "33"}}}


def test_a_prepared_checkpoint_writes_the_remembered_checkpoint_back():
    held = lease(0, 3, owner="w1", owner_switches=2, children=(shard(3),)).with_(
        checkpoint=Checkpoint("7", 2)
    )
    updates = REQUESTS.prepare_checkpoint(held, Checkpoint("9", 1), b"state")["AttributeUpdates"]
    assert updates["pendingCheckpoint"] == {"Value": {"S": "9"}, "Action": "PUT"}
    assert updates["pendingCheckpointSubSequenceNumber"] == {"Value": {"N": "1"}, "Action": "PUT"}
    assert updates["pendingCheckpointState"] == {"Value": {"B": b"state"}, "Action": "PUT"}
    assert updates["checkpoint"] == {"Value": {"S": "7"}, "Action": "PUT"}
    assert updates["checkpointSubSequenceNumber"] == {"Value": {"N": "2"}, "Action": "PUT"}
    assert updates["ownerSwitchesSinceCheckpoint"] == {"Value": {"N": "2"}, "Action": "PUT"}
    assert updates["childShardIds"] == {"Value": {"SS": [shard(3)]}, "Action": "PUT"}


def test_back_fill_and_delete_do_not_ask_for_the_counter():
    filled = REQUESTS.hash_range(shard(0), FIRST_THIRD)
    assert filled["Expected"] == {"leaseKey": {"Value": {"S": shard(0)}, "Exists": True}}
    assert filled["AttributeUpdates"].keys() == {"startingHashKey", "endingHashKey"}
    assert REQUESTS.delete(shard(0)) == {"TableName": TABLE, "Key": {"leaseKey": {"S": shard(0)}}}


def test_every_row_of_a_recorded_java_fleet_is_read():
    rows = [json.loads(line)["item"] for line in (FIXTURES / "java-2.7.2.jsonl").read_text().splitlines()]
    leases = [read_row(row) for row in rows]
    assert {each.key for each in leases} == {shard(number) for number in range(6)}
    assert any(each.is_ended and each.children for each in leases)
    assert any(len(each.parents) == 2 for each in leases)


@pytest.mark.parametrize("name", ["leaseCounter", "ownerSwitchesSinceCheckpoint", "checkpoint"])
def test_a_row_without_a_mandatory_attribute_cannot_be_read(name):
    row = dict(REQUESTS.create(lease(0))["Item"])
    assert read_row(row) == lease(0)
    del row[name]
    with pytest.raises(RowUnreadable):
        read_row(row)


def test_a_sub_sequence_number_at_shard_end_hides_the_end_from_java():
    assert lease(0).with_(checkpoint=AT_SHARD_END).is_ended
    assert not lease(0).with_(checkpoint=Checkpoint("SHARD_END", 3)).is_ended
