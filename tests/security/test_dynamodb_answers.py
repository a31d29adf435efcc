"""Whatever stands where DynamoDB should be may answer anything: never a raw exception, never a write believed on no proof."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hostile_json import ABSURD, anything, bodies, cut, disjointed
from hostile_wire import Answer, HostileWire, ImpatientRuntime, NoSockets, assert_ours
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.aws.transport.table_requests import METHODS
from pykcl.errors import PyKclError
from pykcl.interfaces import Applied, Rejected, Unknown
from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, PendingCheckpoint
from pykcl.model.lease_item import to_item
from pykcl.model.shard import HashRange

CORPUS = sorted((Path(__file__).parent / "corpus" / "dynamodb").glob("*.json"))
KEY = "shardId-000000000000"
HELD = Lease(KEY, Checkpoint("10"), counter=7, owner="me", parents=("shardId-000000000009",))
PLAIN = to_item(HELD)
TABLE = {
    "TableName": "orders-app",
    "TableStatus": "ACTIVE",
    "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "leaseKey", "AttributeType": "S"}],
}
GOOD: dict[str, Any] = {
    "prepare": {"Table": TABLE},
    "scan": {"Items": [PLAIN], "Count": 1, "ScannedCount": 1, "ConsumedCapacity": {"CapacityUnits": 0.5}},
    "read": {"Item": PLAIN},
    "write": {"Attributes": PLAIN},
}
WRITES = {
    "create": lease_writes.create(Lease(KEY, AT_TRIM_HORIZON)),
    "take": lease_writes.take(HELD.with_(owner="you"), "me"),
    "renew": lease_writes.renew(HELD),
    "checkpoint": lease_writes.checkpoint(HELD, Checkpoint("11")),
    "prepare": lease_writes.prepare(HELD, PendingCheckpoint(Checkpoint("11"), b"state")),
    "end": lease_writes.end_shard(HELD, ("shardId-000000000001",)),
    "release": lease_writes.release(HELD),
    "hand-over": lease_writes.hand_over(HELD.with_(owner="you", checkpoint_owner="me")),
    "delete": lease_writes.delete(HELD, ended=False),
    "reset": lease_writes.reset(HELD, Checkpoint("9")),
    "fill": lease_writes.fill_hash_range(HELD, HashRange(0, 9)),
}
CODES = [
    "ConditionalCheckFailedException",
    "ResourceNotFoundException",
    "ValidationException",
    "X\nforged",
    "",
]


@pytest.fixture(params=["boto3", "direct"])
def way(request):
    """What the frequent calls go over."""
    return request.param


def use(wire: HostileWire, way: str, call: str, *told: Answer) -> Any:
    """What the call gave, or the error of ours that it raised."""
    wire.say(*told)
    table = DynamoDBLeaseTable(wire.dynamodb, "orders-app", ImpatientRuntime())
    if way == "direct":
        table._requests._selector._transports = {
            one: ("orders-app", NoSockets(wire, "1.0")) for one in METHODS
        }
    try:
        if call == "prepare":
            return table.prepare(create=True)
        if call == "scan":
            scan = table.scan()
            assert scan.read_units >= 0
            assert all(isinstance(row.key, str) for row in scan.rows)
            return scan
        if call == "read":
            return table.read(KEY)
        answer = table.write(WRITES[call.removeprefix("write ")], until=1010.0)
        assert isinstance(answer, Applied | Rejected | Unknown)
        return answer
    except PyKclError as error:
        assert_ours(error)
        return error
    finally:
        assert len(wire.asked) < 60, "asked again and again"


CALLS = ["prepare", "scan", "read", *(f"write {kind}" for kind in WRITES)]


def answers(call: str) -> st.SearchStrategy[Answer]:
    good = GOOD[call.split()[0]]
    body = st.one_of(
        disjointed(good).map(lambda document: json.dumps(document).encode()),
        disjointed(good).map(lambda document: json.dumps(document).encode()),
        st.builds(cut, st.just(good), st.integers(0, 2000)),
        bodies,
    )
    error = st.fixed_dictionaries(
        {"__type": st.sampled_from(CODES) | anything},
        optional={"message": anything, "Item": disjointed(PLAIN) | st.sampled_from(ABSURD)},
    ).map(lambda document: json.dumps(document).encode())
    kind = st.sampled_from(
        [
            {},
            {},
            {"content-type": "text/html"},
            {"content-type": ""},
            {"x-amz-crc32": "1"},
            {"x-amz-crc32": "٣"},
        ]
    )
    return st.one_of(
        st.builds(Answer, body, st.just(200), kind),
        st.builds(Answer, body | error, st.sampled_from([204, 301, 400, 403, 500, 503]), kind),
    )


@pytest.mark.parametrize("call", CALLS)
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_answer_is_a_good_value_or_an_error_of_ours(hostile_wire, way, call, data):
    use(hostile_wire, way, call, *data.draw(st.lists(answers(call), min_size=1, max_size=3)))


@pytest.mark.parametrize("call", ["scan", "read", "prepare"])
def test_the_good_answers_are_good(hostile_wire, way, call):
    assert not isinstance(use(hostile_wire, way, call, Answer(GOOD[call])), PyKclError)


UNPROVEN = {
    "a proxy's page": Answer(b"<html>blocked</html>", headers={"content-type": "text/html"}),
    "no content type": Answer(b"", headers={"content-type": ""}),
    "a proxy's JSON": Answer({"error": "blocked"}, headers={"content-type": "application/json"}),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("told", UNPROVEN)
def test_what_dynamodb_did_not_write_proves_nothing(hostile_wire, way, call, told):
    """botocore makes an empty answer of it: to a read that would be "no such row", to a write "done"."""
    found = use(hostile_wire, way, call, UNPROVEN[told])
    assert isinstance(found, PyKclError | Unknown)


@pytest.mark.parametrize("kind", sorted(WRITES.keys() - {"create", "delete"}))
def test_an_update_answered_without_the_row_is_not_believed(hostile_wire, way, kind):
    assert isinstance(use(hostile_wire, way, f"write {kind}", Answer({})), Unknown)


def test_a_scan_that_goes_round_in_a_circle_ends(hostile_wire, way):
    pages = [Answer({**GOOD["scan"], "LastEvaluatedKey": {"leaseKey": {"S": key}}}) for key in "abab"]
    assert isinstance(use(hostile_wire, way, "scan", *pages), PyKclError)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_once_broke_it_does_not_any_more(hostile_wire, way, path):
    """Each file: the call, and the answers it got, as status, headers and body."""
    case = json.loads(path.read_text("utf-8"))
    told = [
        Answer(
            one["body"].encode() if isinstance(one["body"], str) else one["body"],
            one.get("status", 200),
            one.get("headers", {}),
        )
        for one in case["answers"]
    ]
    use(hostile_wire, way, case["call"], *told)
