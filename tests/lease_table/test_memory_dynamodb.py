"""The in-memory DynamoDB client refuses what AWS refuses and evaluates what it is sent; the local AWS agrees."""

import json
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, ParamValidationError

from pykcl.testing.memory.dynamodb import Fault, MemoryDynamoDB
from pykcl.testing.memory.faults import timed_out

FIXTURES = Path(__file__).parents[1] / "fixtures"
ITEM = {
    "leaseKey": {"S": "k"},
    "n": {"N": "5"},
    "s": {"S": "shard-7"},
    "b": {"B": b"ab"},
    "ss": {"SS": ["a", "b"]},
    "ns": {"NS": ["1", "2"]},
    "flag": {"BOOL": True},
    "nulled": {"NULL": True},
    "m": {"M": {"innermost": {"N": "1"}, "deep": {"L": [{"S": "x"}, {"S": "y"}]}}},
    "l": {"L": [{"N": "1"}]},
}
KEY = {"leaseKey": {"S": "k"}}


@pytest.fixture
def ask(bench):
    """ask("update_item", …) on the table that holds ITEM."""
    bench.put_item(ITEM)
    return lambda operation, **params: getattr(bench.direct, operation)(TableName=bench.name, **params)


def holds(ask, condition, values=None, names=None):
    params = {"Key": KEY, "UpdateExpression": "SET touched = :t", "ConditionExpression": condition}
    params["ExpressionAttributeValues"] = {":t": {"S": "x"}, **(values or {})}
    if names:
        params["ExpressionAttributeNames"] = names
    try:
        ask("update_item", **params)
    except ClientError as error:
        if error.response["Error"]["Code"] == "ConditionalCheckFailedException":
            return False
        raise
    return True


@pytest.mark.parametrize(
    ("condition", "values", "expected"),
    [
        ("n = :v", {":v": {"N": "5.0"}}, True),
        ("n = :v", {":v": {"S": "5"}}, False),
        ("n <> :v", {":v": {"N": "5"}}, False),
        ("nothing = :v", {":v": {"N": "5"}}, False),
        ("nothing <> :v", {":v": {"N": "5"}}, True),
        ("n < :v", {":v": {"N": "10"}}, True),
        ("n >= :v AND n <= :v", {":v": {"N": "5"}}, True),
        ("n > :v", {":v": {"N": "5"}}, False),
        ("s > :v", {":v": {"S": "shard-10"}}, True),
        ("n BETWEEN :a AND :b", {":a": {"N": "4"}, ":b": {"N": "6"}}, True),
        ("n IN (:a, :b)", {":a": {"N": "4"}, ":b": {"N": "5"}}, True),
        ("attribute_exists(n) AND attribute_not_exists(nothing)", None, True),
        ("attribute_exists(nothing) OR attribute_not_exists(n)", None, False),
        ("NOT attribute_exists(nothing)", None, True),
        ("attribute_type(nulled, :v)", {":v": {"S": "NULL"}}, True),
        ("attribute_type(n, :v)", {":v": {"S": "S"}}, False),
        ("begins_with(s, :v)", {":v": {"S": "shard"}}, True),
        ("contains(ss, :v)", {":v": {"S": "b"}}, True),
        ("contains(s, :v)", {":v": {"S": "rd-"}}, True),
        ("size(s) = :v", {":v": {"N": "7"}}, True),
        ("size(ss) < :v", {":v": {"N": "2"}}, False),
        ("ss = :v", {":v": {"SS": ["b", "a"]}}, True),
        ("m.innermost = :v", {":v": {"N": "1"}}, True),
        ("m.deep[1] = :v", {":v": {"S": "y"}}, True),
        ("flag = :v", {":v": {"BOOL": True}}, True),
        # AND binds more tightly than OR, NOT more tightly than both.
        ("attribute_exists(n) OR attribute_exists(x) AND attribute_exists(y)", None, True),
        ("(attribute_exists(n) OR attribute_exists(x)) AND attribute_exists(y)", None, False),
        ("NOT attribute_exists(x) AND attribute_exists(n)", None, True),
        ("not attribute_exists(x) and (n = :v or s = :v)", {":v": {"N": "5"}}, True),
    ],
)
def test_conditions_are_evaluated(ask, condition, values, expected):
    assert holds(ask, condition, values) is expected


@pytest.mark.parametrize(
    ("update", "values", "expected"),
    [
        ("SET n = n + :v", {":v": {"N": "2"}}, {"n": {"N": "7"}}),
        ("SET n = n - :v", {":v": {"N": "7"}}, {"n": {"N": "-2"}}),
        ("SET x = if_not_exists(x, :v)", {":v": {"N": "2"}}, {"x": {"N": "2"}}),
        ("SET n = if_not_exists(n, :v) + :v", {":v": {"N": "2"}}, {"n": {"N": "7"}}),
        ("SET x = n, n = :v", {":v": {"N": "2"}}, {"x": {"N": "5"}, "n": {"N": "2"}}),
        ("REMOVE n, nothing", None, {"n": None}),
        ("ADD n :v, fresh :v", {":v": {"N": "2"}}, {"n": {"N": "7"}, "fresh": {"N": "2"}}),
        ("ADD ss :v", {":v": {"SS": ["b", "c"]}}, {"ss": {"SS": ["a", "b", "c"]}}),
        ("DELETE ss :v", {":v": {"SS": ["a", "z"]}}, {"ss": {"SS": ["b"]}}),
        ("DELETE ss :v", {":v": {"SS": ["a", "b"]}}, {"ss": None}),
        ("SET m.more = :v", {":v": {"N": "2"}}, {"m": {"M": {**ITEM["m"]["M"], "more": {"N": "2"}}}}),
        (
            "SET n = :v REMOVE s ADD fresh :v",
            {":v": {"N": "1"}},
            {"n": {"N": "1"}, "s": None, "fresh": {"N": "1"}},
        ),
    ],
)
def test_updates_are_applied_and_returned(ask, update, values, expected):
    params = {"ExpressionAttributeValues": values} if values else {}
    answer = ask("update_item", Key=KEY, UpdateExpression=update, ReturnValues="ALL_NEW", **params)
    found = {
        name: {"SS": sorted(value["SS"])} if "SS" in value else value
        for name, value in answer["Attributes"].items()
    }
    wanted = {name: value for name, value in {**ITEM, **expected}.items() if value is not None}
    assert found == wanted


VALUE = {":v": {"N": "1"}}
REFUSED = {
    "unused value": {
        "UpdateExpression": "SET a = :v",
        "ExpressionAttributeValues": {**VALUE, ":w": {"N": "2"}},
    },
    "undefined value": {"UpdateExpression": "SET a = :w", "ExpressionAttributeValues": VALUE},
    "unused name": {
        "UpdateExpression": "SET a = :v",
        "ExpressionAttributeValues": VALUE,
        "ExpressionAttributeNames": {"#x": "x"},
    },
    "undefined name": {"UpdateExpression": "SET #a = :v", "ExpressionAttributeValues": VALUE},
    "key in update": {
        "UpdateExpression": "SET leaseKey = :v",
        "ExpressionAttributeValues": {":v": {"S": "x"}},
    },
    "clause twice": {"UpdateExpression": "SET a = :v SET b = :v", "ExpressionAttributeValues": VALUE},
    "overlapping paths": {"UpdateExpression": "SET a = :v REMOVE a", "ExpressionAttributeValues": VALUE},
    "add of text": {"UpdateExpression": "ADD n :v", "ExpressionAttributeValues": {":v": {"S": "1"}}},
    "add to text": {"UpdateExpression": "ADD s :v", "ExpressionAttributeValues": VALUE},
    "missing operand": {"UpdateExpression": "SET a = nothing + :v", "ExpressionAttributeValues": VALUE},
    "syntax": {"UpdateExpression": "SET a := :v", "ExpressionAttributeValues": VALUE},
    "empty set": {"UpdateExpression": "SET a = :v", "ExpressionAttributeValues": {":v": {"SS": []}}},
    "not a number": {"UpdateExpression": "SET a = :v", "ExpressionAttributeValues": {":v": {"N": "x"}}},
    "legacy and modern": {
        "UpdateExpression": "SET a = :v",
        "ExpressionAttributeValues": VALUE,
        "Expected": {"a": {"Exists": False}},
    },
    "values without expression": {"AttributeUpdates": {}, "ExpressionAttributeValues": VALUE},
}


@pytest.mark.parametrize("params", REFUSED.values(), ids=REFUSED)
def test_invalid_requests_are_refused_as_aws_refuses_them(memory_bench, params):
    memory_bench.put_item(ITEM)
    with pytest.raises(ClientError) as refusal:
        memory_bench.direct.update_item(TableName="leases", Key=KEY, **params)
    assert refusal.value.response["Error"]["Code"] == "ValidationException"
    assert memory_bench.item("k") == ITEM


@pytest.mark.parametrize(
    "params",
    [{"Key": {"other": {"S": "k"}}}, {"Key": {"leaseKey": {"N": "1"}}}, {"Key": {"leaseKey": {"S": ""}}}],
)
def test_keys_that_do_not_fit_the_schema_are_refused(memory_bench, params):
    with pytest.raises(ClientError, match="ValidationException"):
        memory_bench.direct.delete_item(TableName="leases", **params)


def test_parameters_are_checked_against_botocores_model(memory):
    with pytest.raises(ParamValidationError):
        memory.update_item(TableName="leases", Keys=KEY)
    with pytest.raises(ParamValidationError):
        memory.get_item(TableName="leases", Key={"leaseKey": {"S": 5}})


def test_a_row_over_400_kb_is_refused(memory_bench):
    with pytest.raises(ClientError, match="size"):
        memory_bench.put_item({**ITEM, "big": {"B": b"x" * 410_000}})


def test_an_indexed_owner_must_be_text_as_kcl_3_makes_it(memory):
    memory.create_table(
        TableName="leases",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[
            {"AttributeName": "leaseKey", "AttributeType": "S"},
            {"AttributeName": "leaseOwner", "AttributeType": "S"},
        ],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "LeaseOwnerToLeaseKeyIndex",
                "KeySchema": [
                    {"AttributeName": "leaseOwner", "KeyType": "HASH"},
                    {"AttributeName": "leaseKey", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
        BillingMode="PAY_PER_REQUEST",
    )
    for owner in ({"NULL": True}, {"S": ""}):
        with pytest.raises(ClientError, match=r"(?i)index ?key"):
            memory.put_item(TableName="leases", Item={**ITEM, "leaseOwner": owner})
    memory.put_item(TableName="leases", Item={**ITEM, "leaseOwner": {"S": "me"}})


def test_a_failed_condition_returns_the_old_row_only_where_asked_and_there(ask):
    for operation, params in (
        ("put_item", {"Item": {**ITEM, "n": {"N": "9"}}}),
        ("delete_item", {"Key": KEY}),
        ("update_item", {"Key": KEY, "UpdateExpression": "REMOVE n"}),
    ):
        for extra in ({}, {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}):
            with pytest.raises(ClientError) as refusal:
                ask(operation, **params, ConditionExpression="attribute_exists(nothing)", **extra)
            assert ("Item" in refusal.value.response) is bool(extra)
    assert refusal.value.response["Item"]["n"] == {"N": "5"}


def test_items_are_copied_in_and_out(memory_bench):
    given = {**ITEM, "m": {"M": {"innermost": {"N": "1"}}}}
    memory_bench.put_item(given)
    given["m"]["M"]["innermost"] = {"N": "2"}
    got = memory_bench.item("k")
    got["m"]["M"]["innermost"] = {"N": "3"}
    got["ss"]["SS"].append("c")
    assert memory_bench.item("k")["m"] == {"M": {"innermost": {"N": "1"}}}
    assert memory_bench.item("k")["ss"] == {"SS": ["a", "b"]}


def test_a_scan_pages_by_limit_and_filters_after_counting(bench):
    for number in range(7):
        bench.put_item({"leaseKey": {"S": f"k{number}"}, "n": {"N": str(number)}})
    seen, pages, start = [], 0, {}
    while True:
        answer = bench.direct.scan(
            TableName=bench.name,
            Limit=3,
            FilterExpression="n >= :v",
            ExpressionAttributeValues={":v": {"N": "2"}},
            **start,
        )
        pages += 1
        seen.extend(item["leaseKey"]["S"] for item in answer["Items"])
        if "LastEvaluatedKey" not in answer:
            break
        start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}
    assert sorted(seen) == ["k2", "k3", "k4", "k5", "k6"]
    assert pages == 3


def test_parallel_scan_segments_cover_the_table_once(memory_bench):
    for number in range(20):
        memory_bench.put_item({"leaseKey": {"S": f"k{number}"}})
    found = [
        item["leaseKey"]["S"]
        for segment in range(3)
        for item in memory_bench.direct.scan(TableName="leases", Segment=segment, TotalSegments=3)["Items"]
    ]
    assert len(found) == 20
    assert len(set(found)) == 20


def test_faults_strike_before_after_or_much_later():
    client = MemoryDynamoDB()
    client.create_table(
        TableName="leases",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    for kind, applied in (("before", False), ("after", True), ("postponed", False)):
        client.fault = lambda operation, params, kind=kind: Fault(**{kind: timed_out()})
        with pytest.raises(type(timed_out())):
            client.put_item(TableName="leases", Item={"leaseKey": {"S": kind}})
        assert (kind in client.rows("leases")) is applied
    client.fault = None
    client.deliver_postponed()
    assert client.rows("leases").keys() == {"after", "postponed"}
    assert [change.key for change in client.changes] == ["after", "postponed"]


@pytest.mark.parametrize("name", ["requests-java-2.7.2.jsonl", "requests-java-3.5.1-phase1.jsonl"])
def test_the_requests_real_java_workers_sent_are_understood(memory, name):
    """Each is put to a table whose row is made so that the condition holds, and answered as it was then."""
    understood = 0
    for entry in map(json.loads, (FIXTURES / name).read_text().splitlines()):
        operation, params = entry["operation"], dict(entry["request"])
        if operation not in ("PutItem", "UpdateItem", "DeleteItem", "GetItem", "CreateTable"):
            continue
        if operation == "CreateTable":
            memory.create_table(**params)
            continue
        if operation == "UpdateItem" and not entry["error"]:
            _make_condition_hold(memory, params)
        call = getattr(
            memory,
            {
                "PutItem": "put_item",
                "UpdateItem": "update_item",
                "DeleteItem": "delete_item",
                "GetItem": "get_item",
            }[operation],
        )
        if entry["error"]:
            with pytest.raises(ClientError, match=entry["error"]):
                call(**params)
        else:
            call(**params)
        understood += 1
    assert understood >= 9


def _make_condition_hold(memory, params):
    row = {**params["Key"]}
    for attribute, expected in params.get("Expected", {}).items():
        values = [expected["Value"]] if "Value" in expected else expected.get("AttributeValueList", [])
        if expected.get("Exists", True) and values:
            row[attribute] = values[0]
    memory.put_raw(params["TableName"], row)
