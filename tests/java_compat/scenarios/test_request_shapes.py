"""The scripted Java worker sends what real daemons were recorded sending, shape by shape, and nothing else.

Not a single request is compared but all that a worker sends in a life: start on a missing table, reading, checkpoints,
steals, a split, a merge, a lost lease. So an actor that sent a recorded form at no time, or another one, shows.
"""

import json
from pathlib import Path

import pytest

from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.shard import HashRange
from tests.java_compat.scenarios.request_shapes import shape
from tests.java_peer.lease import JavaLease
from tests.java_peer.lease_table import JavaRequests

FIXTURES = Path(__file__).parents[2] / "fixtures"
RECORDED = {"2.7.2": "requests-java-2.7.2.jsonl", "3.5.1": "requests-java-3.5.1-phase1.jsonl"}
VERSIONS = pytest.mark.parametrize("version", list(RECORDED))

UNSENT = {
    "ListTables {}": "sent by whoever recorded, to see whether the service was up",
}
_LEASE = JavaLease("shardId-000000000000", AT_TRIM_HORIZON, hash_range=HashRange(0, 9), owner="w1")


def unrecorded(version):
    """What the actor may send though no recording shows it, and why not."""
    requests = JavaRequests("t", version)
    prepared = _LEASE.with_(pending=Checkpoint("1"))
    return {
        shape(
            "DeleteItem", requests.delete("k")
        ): "a daemon deletes after five minutes; the recorded ones lived for less",
        shape("UpdateItem", requests.update(prepared)): "the recorded application prepared no checkpoints",
        shape(
            "UpdateItem", requests.hash_range("k", _LEASE.hash_range)
        ): "the recorded tables lacked no hash range",
    }


def recorded(version):
    lines = (FIXTURES / RECORDED[version]).read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return {shape(each["operation"], each["request"]) for each in found}


@pytest.fixture
def sent(new_fleet, version):
    """The shapes that two workers send from birth to rest."""
    fleet = new_fleet(shards=3)
    options = {"version": version, "cleanup_interval": 30.0}
    fleet.start_java("j1", **options)
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.start_java("j2", two_phase=True, **options)
    fleet.wait_balanced("j1", "j2")
    fleet.split(fleet.open_shards()[0])
    fleet.put_everywhere(2)
    fleet.merge_first_two()
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    # A row from before Java 2.3, which the leader fills up.
    key = fleet.open_shards()[0]
    row = {name: value for name, value in fleet.items()[key].items() if not name.endswith("ingHashKey")}
    fleet.dynamodb.put_raw("orders-app", row)
    fleet.wait(lambda: "startingHashKey" in fleet.items()[key], what="the back-fill")
    fleet.wait(lambda: set(fleet.rows()) == set(fleet.open_shards()), what="deletion of the ended leases")
    fleet.put_everywhere(2)
    fleet.kill_before_shard_end("j2")
    fleet.wait_all_delivered()
    return {shape(operation, params) for operation, params in fleet.dynamodb.requests}


@VERSIONS
@pytest.mark.parametrize("backend", ["memory"])
def test_every_recorded_shape_is_sent_and_every_sent_shape_was_recorded(sent, version):
    assert recorded(version) - sent == set(UNSENT)
    assert sent - recorded(version) == set(unrecorded(version))


def test_both_versions_differ_where_the_recordings_do():
    assert len(recorded("2.7.2") - recorded("3.5.1")) >= 5
    assert len(recorded("3.5.1") - recorded("2.7.2")) >= 6


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"Expected": {"a": {"Value": {"N": "1"}}}}, {"Expected": {"a": {"Value": {"S": "1"}}}}),
        ({"Expected": {"a": {"Value": {"N": "1"}}}}, {"Expected": {"b": {"Value": {"N": "1"}}}}),
        ({"Expected": {"a": {"Exists": False}}}, {"Expected": {"a": {"Exists": True}}}),
        ({"AttributeUpdates": {"a": {"Action": "ADD"}}}, {"AttributeUpdates": {"a": {"Action": "PUT"}}}),
        ({"Item": {"entityType": {"S": "LEASE"}}}, {"Item": {"entityType": {"S": "STREAM"}}}),
        ({"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}, {}),
        ({"Limit": 1}, {"Limit": 2}),
    ],
)
def test_shapes_tell_apart_what_dynamodb_would_treat_differently(one, other):
    assert shape("X", one) != shape("X", other)


def test_shapes_do_not_tell_rows_apart():
    one = {
        "TableName": "t",
        "Key": {"leaseKey": {"S": "a"}},
        "Expected": {"leaseCounter": {"Value": {"N": "1"}}},
    }
    other = {
        "TableName": "u",
        "Key": {"leaseKey": {"S": "b"}},
        "Expected": {"leaseCounter": {"Value": {"N": "2"}}},
    }
    assert shape("X", one) == shape("X", other)
