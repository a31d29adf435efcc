"""FilterCriteria: Lambda's table of operators, data by pattern, refused patterns, and moto's EventPattern as oracle."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.events.models import EventPattern

from pykcl.errors import ConfigError
from pykcl.handlers.filters import criteria_of
from pykcl.model.lambda_event import EventSource
from pykcl.model.record import Record

SOURCE = EventSource(
    "arn:aws:kinesis:eu-west-1:123456789012:stream/orders", "arn:aws:iam::123456789012:role/orders"
)
DATA = {
    "UserID": None,
    "LastName": "",
    "Name": "Alice",
    "Location": "New York",
    "Day": "Monday",
    "WeatherToday": "Raining",
    "Price": 100,
    "Weight": 17.5,
    "Paid": True,
    "Product": {"Name": "Disk", "Tags": ["new", "fast"]},
    "Lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": 20}],
    "File": "invoice.png",
}


def record(data, **fields):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    return Record(
        data, fields.pop("partition_key", "1"), "495903", 1545084650987.4, "shardId-6", "orders", **fields
    )


def criteria(*patterns):
    return {"Filters": [{"Pattern": json.dumps(pattern)} for pattern in patterns]}


def passes(pattern, data=DATA, **fields):
    return criteria_of(criteria(pattern))(record(data, **fields), SOURCE)


MATCHES = [
    {"UserID": [None]},
    {"LastName": [""]},
    {"Name": ["Alice"]},
    {"Name": [{"equals-ignore-case": "aLICE"}]},
    {"Location": ["New York"], "Day": ["Monday"]},
    {"WeatherToday": ["Sunny", "Raining"]},
    {"$or": [{"Location": ["New York"]}, {"Day": ["Sunday"]}]},
    {"Name": ["Alice"], "$or": [{"Day": ["Sunday"]}, {"Product": {"Name": ["Disk"]}}]},
    {"WeatherToday": [{"anything-but": ["Sunny"]}]},
    {"WeatherToday": [{"anything-but": "Sunny"}]},
    {"Price": [{"anything-but": [99, 101]}]},
    {"Name": [{"anything-but": {"prefix": "B"}}]},
    {"Name": [{"anything-but": {"suffix": "x"}}]},
    {"Name": [{"anything-but": {"equals-ignore-case": "bob"}}]},
    {"Price": [{"numeric": ["=", 100]}]},
    {"Price": [100.0]},
    {"Price": [{"numeric": [">", 10, "<=", 100]}]},
    {"Weight": [{"numeric": ["<", 20, ">=", 17.5]}]},
    {"Name": [{"exists": True}]},
    {"UserID": [{"exists": True}]},
    {"Address": [{"exists": False}]},
    {"Product": {"Colour": [{"exists": False}]}},
    {"Location": [{"prefix": "New"}]},
    {"File": [{"suffix": ".png"}]},
    {"Paid": [True]},
    {"Product": {"Tags": ["fast"]}},
    {"Lines": {"sku": ["b"], "count": [20]}},
    {"Name": ["Bob", {"prefix": "Al"}]},
    {},
]
DIFFERS = [
    {"UserID": [""]},
    {"LastName": [None]},
    {"Name": ["alice"]},
    {"Name": [{"equals-ignore-case": "Al"}]},
    {"Location": ["New York"], "Day": ["Sunday"]},
    {"$or": [{"Location": ["Boston"]}, {"Day": ["Sunday"]}]},
    {"Name": ["Bob"], "$or": [{"Day": ["Monday"]}, {"Day": ["Sunday"]}]},
    {"WeatherToday": [{"anything-but": ["Raining"]}]},
    {"Address": [{"anything-but": ["Raining"]}]},
    {"Name": [{"anything-but": {"prefix": "Al"}}]},
    {"Price": ["100"]},
    {"Price": [{"numeric": ["=", 100.5]}]},
    {"Name": [{"numeric": ["=", 100]}]},
    {"Paid": [{"numeric": ["=", 1]}]},
    {"Paid": [1]},
    {"Price": [True]},
    {"Name": [{"exists": False}]},
    {"Address": [{"exists": True}]},
    {"Product": [{"exists": True}]},
    {"Name": {"First": ["Alice"]}},
    {"Location": [{"prefix": "new"}]},
    {"Price": [{"prefix": "1"}]},
    {"File": [{"suffix": ".PNG"}]},
    {"Product": {"Tags": ["slow"]}},
    {"Lines": {"sku": ["a"], "count": [20]}},
]


@pytest.mark.parametrize("pattern", MATCHES, ids=json.dumps)
def test_each_operator_lets_a_record_pass(pattern):
    assert passes({"data": pattern})


@pytest.mark.parametrize("pattern", DIFFERS, ids=json.dumps)
def test_each_operator_refuses_a_record(pattern):
    assert not passes({"data": pattern})


JSON, TEXT = b'{"City": "Seattle"}', b"Seattle"


@pytest.mark.parametrize(
    ("data", "pattern", "is_wanted"),
    [
        (JSON, {"data": {"City": ["Seattle"]}}, True),
        (JSON, {"data": {"City": ["Boston"]}}, False),
        (JSON, {"partitionKey": ["1"]}, True),
        (JSON, {"partitionKey": ["2"]}, False),
        (JSON, {"partitionKey": ["1"], "data": {"City": ["Seattle"]}}, True),
        (JSON, {"partitionKey": ["2"], "data": {"City": ["Seattle"]}}, False),
        (TEXT, {"data": {"City": ["Seattle"]}}, False),
        (TEXT, {"data": {"City": [{"exists": False}]}}, False),
        (TEXT, {"data": {}}, False),
        (TEXT, {"partitionKey": ["1"]}, True),
        (b"\xff\xfe", {"data": {"City": ["Seattle"]}}, False),
        (b'{"City": NaN}', {"data": {"City": [{"exists": True}]}}, False),
        (b"[]", {"data": {"City": [{"exists": False}]}}, True),
        (b'[{"City": "Seattle"}]', {"data": {"City": ["Seattle"]}}, True),
    ],
)
def test_the_table_of_data_and_pattern(data, pattern, is_wanted):
    assert passes(pattern, data) is is_wanted


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("partitionKey", "1"),
        ("sequenceNumber", "495903"),
        ("kinesisSchemaVersion", "1.0"),
        ("approximateArrivalTimestamp", 1545084650.987),
        ("eventID", "shardId-6:495903"),
        ("eventName", "aws:kinesis:record"),
        ("eventSource", "aws:kinesis"),
        ("eventVersion", "1.0"),
        ("eventSourceARN", SOURCE.stream_arn),
        ("awsRegion", "eu-west-1"),
        ("invokeIdentityArn", SOURCE.invoke_identity_arn),
    ],
)
def test_a_pattern_for_each_field_of_the_metadata(field, value):
    assert passes({field: [value]})
    assert not passes({field: ["another"]})


def test_patterns_are_alternatives_and_none_is_no_filter():
    both = criteria_of(criteria({"data": {"a": [1]}}, {"partitionKey": ["2"]}))
    assert both(record({"a": 1}), SOURCE)
    assert both(record(b"no json", partition_key="2"), SOURCE)
    assert not both(record({"a": 2}), SOURCE)
    assert passes({"$or": [{"partitionKey": ["1"]}, {"data": {"a": [1]}}]}, b"no json")
    for nothing in (None, {}, {"Filters": []}, {"Filters": None}):
        assert criteria_of(nothing) is None


def test_a_pattern_may_also_be_given_as_an_object():
    assert criteria_of({"Filters": [{"Pattern": {"data": {"a": [1]}}}]})(record({"a": 1}), SOURCE)


@pytest.mark.parametrize("levels", [201, 900, 1000, 100_000])
@pytest.mark.parametrize("level", [b"[", b'{"a":'])
def test_data_that_is_nested_too_deeply_is_not_valid_json(levels, level):
    """One record of a kilobyte raised RecursionError at each attempt, and its shard stood for good."""
    for data in (level * levels, level * levels + b"1" + {b"[": b"]"}.get(level, b"}") * levels):
        assert not passes({"data": {"a": [1]}}, data)
        assert not passes({"data": {"a": [{"exists": False}]}}, data)
        assert passes({"partitionKey": ["1"]}, data)
        assert passes({"$or": [{"partitionKey": ["1"]}, {"data": {"a": [1]}}]}, data)


def test_lists_within_lists_are_searched_as_deeply_as_they_are_read():
    data = b'{"a":' + b"[" * 199 + b"1" + b"]" * 199 + b"}"
    assert passes({"data": {"a": [1]}}, data)
    assert not passes({"data": {"a": [2]}}, data)
    pattern = {"a": [1]}
    for _ in range(90):
        pattern = {"a": pattern}
    assert passes({"data": pattern}, b'{"a":[' * 91 + b"1" + b"]}" * 91)


def test_data_with_more_values_than_are_read_is_not_valid_json():
    assert not passes({"data": {"a": [{"exists": False}]}}, b'{"b":[' + b"[]," * 500_000 + b"1]}")


AT = "FilterCriteria.Filters[0].Pattern"


@pytest.mark.parametrize(
    ("found", "path"),
    [
        ([], "FilterCriteria "),
        ({"Filter": []}, "FilterCriteria "),
        ({"Filters": {}}, "FilterCriteria.Filters "),
        ({"Filters": ["x"]}, "FilterCriteria.Filters[0] "),
        ({"Filters": [{"Pattern": "{}"}, {"pattern": "{}"}]}, "FilterCriteria.Filters[1] "),
        ({"Filters": [{"Pattern": "{"}]}, f"{AT} is not JSON"),
        ({"Filters": [{"Pattern": "[" * 100_000}]}, f"{AT} is not JSON"),
        ({"Filters": [{"Pattern": "[]"}]}, f"{AT} must"),
        (criteria({"Data": {}}), f"{AT}.Data "),
        (criteria({"kinesis": {"data": {}}}), f"{AT}.kinesis "),
        (criteria({"$or": [{"Data": {}}, {}]}), f"{AT}.Data "),
        (criteria({"data": ["x"]}), f"{AT}.data "),
        (criteria({"data": {"a": "x"}}), f"{AT}.data.a "),
        (criteria({"data": {"a": {"b": 1}}}), f"{AT}.data.a.b "),
        (criteria({"data": {"a": []}}), f"{AT}.data.a "),
        (criteria({"data": {"a": [["x"]]}}), f"{AT}.data.a "),
        (criteria({"data": {"a": [1, {}]}}), f"{AT}.data.a[1] "),
        (criteria({"data": {"a": [{"prefix": "a", "suffix": "b"}]}}), f"{AT}.data.a[0] "),
        (criteria({"data": {"a": [{"prefix": 1}]}}), f"{AT}.data.a[0].prefix "),
        (criteria({"data": {"a": [{"wildcard": "a*"}]}}), f"{AT}.data.a[0].wildcard "),
        (criteria({"data": {"a": [{"exists": 1}]}}), f"{AT}.data.a[0].exists "),
        (criteria({"data": {"a": [{"anything-but": []}]}}), f"{AT}.data.a[0].anything-but "),
        (criteria({"data": {"a": [{"anything-but": [True]}]}}), f"{AT}.data.a[0].anything-but "),
        (criteria({"data": {"a": [{"anything-but": {"numeric": ["=", 1]}}]}}), f"{AT}.data.a[0].anything-but "),
        (criteria({"data": {"a": [{"anything-but": {"prefix": 1}}]}}), f"{AT}.data.a[0].anything-but.prefix "),
        (criteria({"data": {"a": [{"numeric": "=1"}]}}), f"{AT}.data.a[0].numeric "),
        (criteria({"data": {"a": [{"numeric": ["=", "1"]}]}}), f"{AT}.data.a[0].numeric "),
        (criteria({"data": {"a": [{"numeric": ["=", True]}]}}), f"{AT}.data.a[0].numeric "),
        (criteria({"data": {"a": [{"numeric": [">", 1, ">", 2]}]}}), f"{AT}.data.a[0].numeric "),
        (criteria({"data": {"a": [{"numeric": ["=", 1, "<", 2]}]}}), f"{AT}.data.a[0].numeric "),
        (criteria({"data": {"a": [{"numeric": [">", 1, "<"]}]}}), f"{AT}.data.a[0].numeric "),
        (criteria({"data": {"$or": [{"a": [1]}]}}), f"{AT}.data.$or "),
        (criteria({"data": {"$or": {"a": [1]}}}), f"{AT}.data.$or "),
        (criteria({"data": {"$or": [{"a": [1]}, {"a": 1}]}}), f"{AT}.data.$or[1].a "),
    ],
)  # fmt: skip
def test_a_bad_pattern_is_refused_with_its_path(found, path):
    with pytest.raises(ConfigError) as raised:
        criteria_of(found)
    assert str(raised.value).startswith(path)


# -- the oracle ------------------------------------------------------------------------------------------------
# moto keeps apart neither true and 1 nor a missing field and an empty list, and looks into no list of objects: the
# strategies leave those out, and the tests above have them.

texts = st.text("abAB", max_size=3)
numbers = st.integers(-3, 3) | st.sampled_from([0.5, -1.5, 2.0])
leaves = st.none() | texts | numbers
values = leaves | st.lists(leaves, min_size=1, max_size=3)
names = st.sampled_from(["a", "b", "c"])
events = st.dictionaries(names, values | st.dictionaries(names, values, min_size=1, max_size=3), max_size=3)
operators = st.sampled_from(["<", "<=", ">", ">="])
named = st.one_of(
    texts.map(lambda text: {"prefix": text}),
    texts.map(lambda text: {"suffix": text}),
    texts.map(lambda text: {"equals-ignore-case": text}),
    st.lists(texts | numbers, min_size=1, max_size=3).map(lambda found: {"anything-but": found}),
    texts.map(lambda text: {"anything-but": {"prefix": text}}),
    numbers.map(lambda number: {"numeric": ["=", number]}),
    st.tuples(operators, numbers).map(lambda found: {"numeric": list(found)}),
    st.tuples(numbers, numbers).map(lambda found: {"numeric": [">=", found[0], "<", found[1]]}),
)
rules = st.lists(leaves | named, min_size=1, max_size=3)
flat = st.dictionaries(names, rules, min_size=1, max_size=2)
patterns = st.dictionaries(names, rules | flat, max_size=3)
patterns |= st.tuples(patterns, st.lists(flat, min_size=2, max_size=3)).map(
    lambda found: {**found[0], "$or": found[1]}
)


@given(event=events, pattern=patterns)
def test_the_result_is_that_of_moto(event, pattern):
    expected = EventPattern(None, pattern).matches_event(event)
    assert passes({"data": pattern}, event) is expected


@given(event=st.dictionaries(names, leaves, max_size=3), name=names, wanted=st.booleans())
def test_so_is_exists(event, name, wanted):
    pattern = {name: [{"exists": wanted}]}
    assert passes({"data": pattern}, event) is EventPattern(None, pattern).matches_event(event)


@pytest.mark.parametrize(("sign", "is_wanted"), [("", True), ("-", False)])
def test_a_number_of_more_digits_than_python_converts_is_json(sign, is_wanted):
    data = b'{"Paid": true, "Price": %b}' % (sign.encode() + b"9" * 5000)
    assert passes({"data": {"Paid": [True]}}, data)
    assert passes({"data": {"Price": [{"numeric": [">", 0]}]}}, data) is is_wanted
    assert not passes({"data": {"Price": [9]}}, data)
