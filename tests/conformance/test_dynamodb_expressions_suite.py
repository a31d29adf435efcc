"""Conditions and updates, those that hold and those that are none, and what an update returns.

What AWS does is taken from its developer guide and API reference; messages are compared only where pykcl reads them.
"""

import pytest
from botocore.exceptions import ClientError
from lease_writes import plain
from requests_backend import INVALID, ITEM, KEY, REFUSAL, VALUE, asking, changed, code_of, refused

# -- expressions -----------------------------------------------------------------------------------------------


def holds(ask, condition, values=None):
    params = {"Key": KEY, "UpdateExpression": "SET touched = :t", "ConditionExpression": condition}
    params["ExpressionAttributeValues"] = {":t": {"S": "x"}, **(values or {})}
    try:
        ask("update_item", **params)
    except ClientError as error:
        if error.response["Error"]["Code"] == REFUSAL:
            return False
        raise
    return True


CONDITIONS = [
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
    ("size(nothing) < :v", {":v": {"N": "2"}}, False),
    ("attribute_exists(s) AND size(s) < :v", {":v": {"N": "8"}}, True),
    ("size(b) = :v", {":v": {"N": "2"}}, True),
    ("contains(l, :v)", {":v": {"N": "1"}}, True),
    ("contains(ns, :v)", {":v": {"N": "1.0"}}, True),
    ("NOT n = :v", {":v": {"S": "5"}}, True),
    ("NOT s IN (:v)", {":v": {"S": "x"}}, True),
    ("nothing < :v", {":v": {"N": "1"}}, False),
    ("s < :v", {":v": {"S": "shard-70"}}, True),
    ("nulled = :v", {":v": {"NULL": True}}, True),
    ("nulled = :v", {":v": {"S": ""}}, False),
]


def in_full(condition, values):
    """The condition with its values in it."""
    for name, value in (values or {}).items():
        ((kind, content),) = value.items()
        condition = condition.replace(
            name, f"{kind} {content if isinstance(content, str | bool) else ' '.join(content)}"
        )
    return condition


@pytest.mark.parametrize(
    ("condition", "values", "expected"), CONDITIONS, ids=[in_full(*one[:2]) for one in CONDITIONS]
)
def test_conditions_are_evaluated(ask, condition, values, expected):
    assert holds(ask, condition, values) is expected


CHANGES = [
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
]


@pytest.mark.parametrize(("update", "values", "expected"), CHANGES, ids=[change[0] for change in CHANGES])
def test_updates_are_applied_and_returned(ask, service, update, values, expected):
    params = {"ExpressionAttributeValues": values} if values else {}
    answer = ask("update_item", Key=KEY, UpdateExpression=update, ReturnValues="ALL_NEW", **params)
    assert answer["Attributes"] == changed(expected)
    assert plain(service.item("k")) == changed(expected)


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
def test_invalid_requests_are_refused_and_change_nothing(ask, service, params):
    assert code_of(refused(ask, "update_item", Key=KEY, **params)) == INVALID
    assert plain(service.item("k")) == plain(ITEM)


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        ("n = :w", {}),
        ("n := :v", VALUE),
        ("n = :v AND", VALUE),
        ("(n = :v", VALUE),
        ("frobnicate(n, :v)", VALUE),
        ("begins_with(n)", VALUE),
        ("n = :v AND #missing = :v", VALUE),
        ("", VALUE),
        ("n = n AND s = :v", VALUE),
    ],
    ids=[
        "undefined value",
        "wrong operator",
        "nothing after AND",
        "parenthesis",
        "function",
        "operands",
        "name",
        "empty",
        "one operand twice",
    ],
)
def test_an_invalid_condition_is_refused(ask, service, condition, values):
    values = {":t": {"S": "x"}, **values}
    params = {"UpdateExpression": "SET touched = :t", "ExpressionAttributeValues": values}
    assert code_of(refused(ask, "update_item", Key=KEY, ConditionExpression=condition, **params)) == INVALID
    assert plain(service.item("k")) == plain(ITEM)


# -- what is returned ------------------------------------------------------------------------------------------

CHANGE = {"UpdateExpression": "SET n = :v, x = :v REMOVE s", "ExpressionAttributeValues": VALUE}
AFTER = {"n": {"N": "1"}, "x": {"N": "1"}, "s": None}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("NONE", None),
        ("ALL_OLD", changed({})),
        ("ALL_NEW", changed(AFTER)),
        ("UPDATED_OLD", {"n": ITEM["n"], "s": ITEM["s"]}),
        ("UPDATED_NEW", {"n": {"N": "1"}, "x": {"N": "1"}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_update_returns_what_it_is_asked_for(ask, values, expected):
    assert ask("update_item", Key=KEY, **CHANGE, ReturnValues=values).get("Attributes") == expected


@pytest.mark.parametrize("values", ["ALL_OLD", "UPDATED_OLD"])
def test_an_update_that_makes_the_row_has_nothing_old_to_return(service, values):
    update = {"UpdateExpression": "SET n = :v", "ExpressionAttributeValues": VALUE}
    assert "Attributes" not in asking(service)("update_item", Key=KEY, **update, ReturnValues=values)
    assert service.item("k") == {**KEY, "n": {"N": "1"}}


def test_put_and_delete_return_the_old_row_where_asked(ask):
    new = {**KEY, "n": {"N": "1"}}
    assert ask("put_item", Item=new, ReturnValues="ALL_OLD")["Attributes"] == plain(ITEM)
    assert "Attributes" not in ask("put_item", Item=new)
    assert ask("delete_item", Key=KEY, ReturnValues="ALL_OLD")["Attributes"] == new
    assert "Attributes" not in ask("delete_item", Key=KEY, ReturnValues="ALL_OLD")


@pytest.mark.parametrize("values", ["ALL_NEW", "UPDATED_OLD", "UPDATED_NEW"])
@pytest.mark.parametrize(
    ("operation", "params"),
    [("put_item", {"Item": ITEM}), ("delete_item", {"Key": KEY})],
    ids=["put", "delete"],
)
def test_put_and_delete_refuse_to_return_anything_else(ask, operation, params, values):
    assert code_of(refused(ask, operation, **params, ReturnValues=values)) == INVALID
