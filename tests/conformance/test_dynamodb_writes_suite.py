"""The writes of pykcl and of real Java workers: what DynamoDB answers and which row is there afterwards.

What AWS does is taken from its developer guide and API reference; messages are compared only where pykcl reads them.
"""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from lease_writes import KEY as LEASE
from lease_writes import WRITES, plain, taken_over
from requests_backend import (
    ITEM,
    KEY,
    REFUSAL,
    asking,
    changed,
    code_of,
    refused,
)

from pykcl.model.lease_writes import to_item

FIXTURES = Path(__file__).parents[1] / "fixtures"


# -- pykcl's own writes ------------------------------------------------------------------------------------------

EVERY = pytest.mark.parametrize("name", WRITES)
UPDATES = [name for name, write in WRITES.items() if write.kind not in ("create", "delete")]


@EVERY
def test_a_write_whose_condition_holds_makes_the_row_it_says_and_an_update_answers_with_it(service, name):
    write = WRITES[name]
    if write.kind != "create":
        service.put(write.seen)
    operation, params = write.request()
    answer = asking(service)(operation, **params)
    made = None if write.after is None else plain(to_item(write.after))
    assert plain(service.item(LEASE)) == made
    assert answer.get("Attributes") == (made if operation == "update_item" else None)


@pytest.mark.parametrize(
    # A hash range is filled in whatever the owner does meanwhile: it is not the owner's.
    "name",
    [name for name, write in WRITES.items() if write.kind != "fill"],
)
@pytest.mark.parametrize("change", ["counter", "owner", "both"])
def test_a_write_on_a_row_that_changed_is_refused_and_changes_nothing(service, name, change):
    write = WRITES[name]
    there = taken_over(write)
    if change == "counter":
        there = there.with_(owner=write.seen.owner)
    elif change == "owner":
        there = there.with_(counter=write.seen.counter)
    service.put(there)
    operation, params = write.request()
    assert code_of(refused(asking(service), operation, **params)) == REFUSAL
    assert plain(service.item(LEASE)) == plain(to_item(there))


@pytest.mark.parametrize("name", [name for name in WRITES if name != "create"])
def test_a_write_without_its_row_is_refused_and_creates_none(service, name):
    operation, params = WRITES[name].request()
    answer = refused(asking(service), operation, **params)
    assert code_of(answer) == REFUSAL
    assert "Item" not in answer
    assert service.items() == {}


@pytest.mark.parametrize(
    "owner", [{"NULL": True}, {"S": ""}, {"N": "7"}, {"L": []}], ids=["null", "empty", "number", "list"]
)
def test_a_missing_owner_is_not_the_same_as_an_odd_one(service, owner):
    write = WRITES["take-unowned"]
    service.put_item({**to_item(write.seen), "leaseOwner": owner})
    operation, params = write.request()
    assert code_of(refused(asking(service), operation, **params)) == REFUSAL


def test_a_hand_off_under_way_stops_a_renewal(service):
    write = WRITES["renew"]
    service.put_item({**to_item(write.seen), "checkpointOwner": {"S": "me"}})
    operation, params = write.request()
    assert code_of(refused(asking(service), operation, **params)) == REFUSAL


@pytest.mark.parametrize(
    "change", [{"checkpoint": {"S": "5"}}, {"entityType": {"S": "STREAM"}}], ids=["checkpoint", "entity"]
)
def test_an_ended_lease_is_deleted_only_while_it_is_ended_and_a_lease(service, change):
    write = WRITES["delete-ended"]
    service.put_item({**to_item(write.seen), **change})
    operation, params = write.request()
    assert code_of(refused(asking(service), operation, **params)) == REFUSAL
    assert service.item(LEASE) is not None


@pytest.mark.parametrize(
    ("operation", "params"),
    [
        ("put_item", {"Item": {**ITEM, "n": {"N": "9"}}}),
        ("delete_item", {"Key": KEY}),
        ("update_item", {"Key": KEY, "UpdateExpression": "REMOVE n"}),
    ],
    ids=["put", "delete", "update"],
)
def test_a_refusal_shows_the_row_where_it_is_asked_to(ask, operation, params):
    params = {**params, "ConditionExpression": "attribute_exists(nothing)"}
    answer = refused(ask, operation, **params, ReturnValuesOnConditionCheckFailure="ALL_OLD")
    assert plain(answer.get("Item")) == plain(ITEM)


def test_a_refusal_shows_nothing_where_it_is_not_asked_to(ask):
    for operation, params in (("put_item", {"Item": ITEM}), ("delete_item", {"Key": KEY})):
        answer = refused(ask, operation, **params, ConditionExpression="attribute_exists(nothing)")
        assert "Item" not in answer


# -- the requests Java workers send ----------------------------------------------------------------------------


def recorded(name):
    """The distinct writes in a recording of real Java workers."""
    found = {}
    for entry in map(json.loads, (FIXTURES / name).read_text().splitlines()):
        request = {key: value for key, value in entry["request"].items() if key != "TableName"}
        if entry["operation"] in ("PutItem", "UpdateItem", "DeleteItem"):
            found.setdefault(json.dumps([entry["operation"], request]), (entry["operation"], request))
    return list(found.values())


JAVA = {
    f"{version}-{number:02d}-{operation}": (operation, request)
    for version in ("2.7.2", "3.5.1-phase1")
    for number, (operation, request) in enumerate(recorded(f"requests-java-{version}.jsonl"), 1)
}
METHODS = {"PutItem": "put_item", "UpdateItem": "update_item", "DeleteItem": "delete_item"}
JAVA_CASES = pytest.mark.parametrize(("operation", "request_"), JAVA.values(), ids=JAVA)


def row_that_fits(request):
    """A row for which the Expected of a request holds; None where it expects none."""
    row = dict(request.get("Key", {}))
    for attribute, expected in request["Expected"].items():
        if "Value" in expected:
            row[attribute] = expected["Value"]
    return row or None


def row_after(operation, request, row):
    """What AttributeUpdates make of a row, done by hand."""
    if operation == "PutItem":
        return request["Item"]
    after = dict(row)
    for name, update in request["AttributeUpdates"].items():
        if update["Action"] == "PUT":
            after[name] = update["Value"]
        elif update["Action"] == "DELETE":
            after.pop(name, None)
        else:
            after[name] = {
                "N": str(Decimal(after.get(name, {"N": "0"})["N"]) + Decimal(update["Value"]["N"]))
            }
    return after


def key_in(request):
    return request.get("Key", request.get("Item"))["leaseKey"]["S"]


@JAVA_CASES
def test_a_java_write_whose_condition_holds_is_applied(service, operation, request_):
    row = row_that_fits(request_)
    if row:
        service.put_item(row)
    asking(service)(METHODS[operation], **request_)
    assert plain(service.item(key_in(request_))) == plain(row_after(operation, request_, row))


@JAVA_CASES
def test_a_java_write_whose_condition_fails_is_refused(service, operation, request_):
    row = {"leaseKey": {"S": key_in(request_)}, "leaseCounter": {"N": "99"}}
    expects_the_row = "Value" in request_["Expected"].get("leaseKey", {})
    if not expects_the_row:
        service.put_item(row)
    assert code_of(refused(asking(service), METHODS[operation], **request_)) == REFUSAL
    assert service.items() == ({} if expects_the_row else {row["leaseKey"]["S"]: row})


def test_a_java_renewal_that_failed_shows_the_row_where_it_is_asked_to(service):
    (request,) = [
        request
        for _, request in JAVA.values()
        if "ReturnValuesOnConditionCheckFailure" in request and "0.009522" in json.dumps(request)
    ]
    row = {**request["Key"], "leaseCounter": {"N": "5"}, "checkpointOwner": {"S": "old"}}
    service.put_item(row)
    assert refused(asking(service), "update_item", **request).get("Item") == row


ONE = {"AttributeUpdates": {"x": {"Action": "PUT", "Value": {"N": "1"}}}}
LEGACY = {
    "equal": ({"n": {"Value": {"N": "5.0"}}}, True),
    "of another type": ({"n": {"Value": {"S": "5"}}}, False),
    "exists with its value": ({"n": {"Exists": True, "Value": {"N": "5"}}}, True),
    "exists with another value": ({"n": {"Exists": True, "Value": {"N": "6"}}}, False),
    "missing and expected to be": ({"nothing": {"Exists": False}}, True),
    "there and expected to be missing": ({"n": {"Exists": False}}, False),
    "missing and expected to have a value": ({"nothing": {"Value": {"N": "5"}}}, False),
    "all of several": ({"n": {"Value": {"N": "5"}}, "s": {"Value": {"S": "shard-7"}}}, True),
    "one of several not": ({"n": {"Value": {"N": "5"}}, "s": {"Value": {"S": "x"}}}, False),
    "EQ": ({"n": {"ComparisonOperator": "EQ", "AttributeValueList": [{"N": "5"}]}}, True),
    "NE": ({"n": {"ComparisonOperator": "NE", "AttributeValueList": [{"N": "5"}]}}, False),
    "LT": ({"n": {"ComparisonOperator": "LT", "AttributeValueList": [{"N": "10"}]}}, True),
    "GE": ({"n": {"ComparisonOperator": "GE", "AttributeValueList": [{"N": "10"}]}}, False),
    "NULL": ({"nothing": {"ComparisonOperator": "NULL"}}, True),
    "NOT_NULL": ({"nothing": {"ComparisonOperator": "NOT_NULL"}}, False),
}


@pytest.mark.parametrize(("expected", "holds"), LEGACY.values(), ids=LEGACY)
@pytest.mark.parametrize("operation", ["update_item", "put_item", "delete_item"])
def test_the_old_conditions_are_evaluated(ask, service, operation, expected, holds):
    params = {"update_item": {"Key": KEY, **ONE}, "put_item": {"Item": {**KEY, "x": {"N": "1"}}}}
    params = params.get(operation, {"Key": KEY})
    if holds:
        ask(operation, **params, Expected=expected)
    else:
        assert code_of(refused(ask, operation, **params, Expected=expected)) == REFUSAL
    assert (plain(service.item("k")) == plain(ITEM)) is not holds


@pytest.mark.parametrize("operation", ["update_item", "delete_item"])
def test_an_old_condition_on_a_missing_row_fails(service, operation):
    params = {"Key": KEY, "Expected": {"n": {"Value": {"N": "5"}}}}
    params |= ONE if operation == "update_item" else {}
    assert code_of(refused(asking(service), operation, **params)) == REFUSAL
    assert service.items() == {}


def test_one_old_condition_of_several_is_enough_where_it_is_said_so(ask):
    expected = {"n": {"Value": {"N": "5"}}, "s": {"Value": {"S": "x"}}}
    ask("update_item", Key=KEY, **ONE, Expected=expected, ConditionalOperator="OR")
    neither = {"n": {"Value": {"N": "6"}}, "s": {"Value": {"S": "x"}}}
    answer = refused(ask, "update_item", Key=KEY, **ONE, Expected=neither, ConditionalOperator="OR")
    assert code_of(answer) == REFUSAL


OLD_UPDATES = {
    "put": ({"n": {"Action": "PUT", "Value": {"N": "9"}}}, {"n": {"N": "9"}}),
    "put is the default": ({"n": {"Value": {"N": "9"}}}, {"n": {"N": "9"}}),
    "add": ({"n": {"Action": "ADD", "Value": {"N": "2"}}}, {"n": {"N": "7"}}),
    "add to nothing": ({"x": {"Action": "ADD", "Value": {"N": "2"}}}, {"x": {"N": "2"}}),
    "add to a set": ({"ss": {"Action": "ADD", "Value": {"SS": ["b", "c"]}}}, {"ss": {"SS": ["a", "b", "c"]}}),
    "delete": ({"n": {"Action": "DELETE"}}, {"n": None}),
    "delete nothing": ({"nothing": {"Action": "DELETE"}}, {}),
    "delete from a set": ({"ss": {"Action": "DELETE", "Value": {"SS": ["a", "z"]}}}, {"ss": {"SS": ["b"]}}),
    "binary": ({"b": {"Value": {"B": bytes(range(256))}}}, {"b": {"B": bytes(range(256))}}),
}


@pytest.mark.parametrize(("updates", "expected"), OLD_UPDATES.values(), ids=OLD_UPDATES)
def test_the_old_updates_are_applied_and_returned(ask, updates, expected):
    answer = ask("update_item", Key=KEY, AttributeUpdates=updates, ReturnValues="ALL_NEW")
    assert answer["Attributes"] == changed(expected)
