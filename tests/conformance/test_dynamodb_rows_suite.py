"""Rows and tables: values of every type, scans, keys, tables, indexes.

What AWS does is taken from its developer guide and API reference; messages are compared only where pykcl reads them.
"""

import pytest
from lease_backend import wait_for
from lease_writes import plain
from requests_backend import INVALID, ITEM, KEY, OWN_KEY, OWN_TYPE, REFUSAL, asking, code_of, refused

# -- put, get, delete ------------------------------------------------------------------------------------------


def test_a_put_if_absent_happens_once(service):
    ask = asking(service)
    first, second = {**KEY, "n": {"N": "1"}}, {**KEY, "n": {"N": "2"}}
    assert ask("put_item", Item=first, ConditionExpression="attribute_not_exists(leaseKey)") == {}
    answer = refused(ask, "put_item", Item=second, ConditionExpression="attribute_not_exists(leaseKey)")
    assert code_of(answer) == REFUSAL
    assert service.item("k") == first


def test_a_put_replaces_the_whole_row(ask, service):
    ask("put_item", Item={**KEY, "n": {"N": "1"}})
    assert service.item("k") == {**KEY, "n": {"N": "1"}}


def test_deleting_a_missing_row_without_a_condition_is_fine(ask, service):
    assert ask("delete_item", Key={"leaseKey": {"S": "other"}}) == {}
    assert service.items().keys() == {"k"}


def test_a_get_of_a_missing_row_has_no_item(ask):
    for consistent in (True, False):
        assert "Item" not in ask("get_item", Key={"leaseKey": {"S": "other"}}, ConsistentRead=consistent)


STORED = {
    "text": ({"S": "ünïcode ☃ \U0001f600"}, None),
    "empty text": ({"S": ""}, None),
    "number": ({"N": "0.000009522"}, None),
    "number with zeros": ({"N": "007.50"}, {"N": "7.5"}),
    "number with exponent": ({"N": "1E2"}, {"N": "100"}),
    "negative zero": ({"N": "-0"}, {"N": "0"}),
    "38 digits": ({"N": "12345678901234567890123456789012345678"}, None),
    "binary": ({"B": bytes(range(256))}, None),
    "empty binary": ({"B": b""}, None),
    "true": ({"BOOL": True}, None),
    "false": ({"BOOL": False}, None),
    "null": ({"NULL": True}, None),
    "texts": ({"SS": ["a", "b"]}, None),
    "numbers": ({"NS": ["1.0", "2"]}, {"NS": ["1", "2"]}),
    "binaries": ({"BS": [b"a", b"b"]}, None),
    "empty list": ({"L": []}, None),
    "empty map": ({"M": {}}, None),
    "nested": (
        {"M": {"a": {"L": [{"M": {"b": {"N": "1.0"}}}, {"NULL": True}]}}},
        {"M": {"a": {"L": [{"M": {"b": {"N": "1"}}}, {"NULL": True}]}}},
    ),
}


@pytest.mark.parametrize(("given", "kept"), STORED.values(), ids=STORED)
def test_every_type_is_stored_and_comes_back_the_same_by_every_way(service, given, kept):
    row = {**KEY, "x": given}
    service.put_item(row)
    expected = plain({**KEY, "x": kept or given})
    assert plain(service.item("k")) == expected
    assert plain(service.items()["k"]) == expected
    touched = asking(service)("update_item", Key=KEY, UpdateExpression="SET y = x", ReturnValues="ALL_NEW")[
        "Attributes"
    ]
    assert touched == plain({**expected, "y": expected["x"]})


@pytest.mark.parametrize(
    "value",
    [{"SS": []}, {"SS": ["a", "a"]}, {"N": "x"}, {"N": "1" * 39}, {"N": "1E126"}, {"N": ""}, {"NULL": False}],
    ids=[
        "empty set",
        "set with a member twice",
        "text as number",
        "39 digits",
        "too large",
        "empty number",
        "false null",
    ],
)
def test_values_that_are_none_are_refused(service, value):
    assert code_of(refused(asking(service), "put_item", Item={**KEY, "x": value})) == INVALID
    assert service.items() == {}


def test_a_row_over_400_kb_is_refused_and_one_below_is_kept(service):
    ask = asking(service)
    assert code_of(refused(ask, "put_item", Item={**KEY, "x": {"B": b"x" * 409_600}})) == INVALID
    row = {**KEY, "x": {"B": b"x" * 409_000}}
    ask("put_item", Item=row)
    update = {"UpdateExpression": "SET y = :v", "ExpressionAttributeValues": {":v": {"S": "x" * 1000}}}
    assert code_of(refused(ask, "update_item", Key=KEY, **update)) == INVALID
    assert service.item("k") == row


# -- scanning --------------------------------------------------------------------------------------------------


def pages_of(service, **params):
    """Every page of a scan."""
    pages, start = [], {}
    while True:
        pages.append(asking(service)("scan", **params, **start))
        if "LastEvaluatedKey" not in pages[-1]:
            return pages
        start = {"ExclusiveStartKey": pages[-1]["LastEvaluatedKey"]}


def keys_in(pages):
    return [item["leaseKey"]["S"] for page in pages for item in page["Items"]]


@pytest.fixture
def seven(service):
    for number in range(7):
        service.put_item({"leaseKey": {"S": f"k{number}"}, "n": {"N": str(number)}})
    return service


def test_a_scan_pages_by_limit(seven):
    pages = pages_of(seven, Limit=3)
    assert [page["Count"] for page in pages] == [3, 3, 1]
    assert sorted(keys_in(pages)) == [f"k{number}" for number in range(7)]


def test_a_page_that_stops_at_its_limit_names_its_last_key_even_at_the_end(seven):
    pages = pages_of(seven, Limit=7)
    assert [page["Count"] for page in pages] == [7, 0]


def test_a_filter_comes_after_the_counting(seven):
    wanted = {"FilterExpression": "n >= :v", "ExpressionAttributeValues": {":v": {"N": "5"}}}
    pages = pages_of(seven, Limit=3, **wanted)
    assert [page["ScannedCount"] for page in pages] == [3, 3, 1]
    assert sum(page["Count"] for page in pages) == 2
    assert sorted(keys_in(pages)) == ["k5", "k6"]


def test_a_whole_scan_repeats_nothing_and_ends_without_a_key(seven):
    (page,) = pages_of(seven)
    assert (page["Count"], page["ScannedCount"], len(set(keys_in([page])))) == (7, 7, 7)


def test_an_empty_table_is_one_empty_page(service):
    (page,) = pages_of(service)
    assert (page["Items"], page["Count"], page["ScannedCount"]) == ([], 0, 0)


def test_two_scans_walk_in_the_same_order(seven):
    assert keys_in(pages_of(seven)) == keys_in(pages_of(seven, Limit=2))


@pytest.mark.parametrize("segments", [1, 3, 5])
def test_parallel_segments_cover_the_table_once(service, segments):
    for number in range(20):
        service.put_item({"leaseKey": {"S": f"k{number:02d}"}})
    found = [
        key
        for segment in range(segments)
        for key in keys_in(pages_of(service, Segment=segment, TotalSegments=segments, Limit=4))
    ]
    assert sorted(found) == [f"k{number:02d}" for number in range(20)]


def test_a_page_ends_at_a_mebibyte(service):
    for number in range(8):
        service.put_item({"leaseKey": {"S": f"k{number}"}, "x": {"B": b"x" * 300_000}})
    pages = pages_of(service)
    assert len(pages) > 1
    assert all(page["Count"] <= 4 for page in pages)
    assert len(set(keys_in(pages))) == len(keys_in(pages)) == 8


def test_a_scan_says_what_it_cost_where_asked(seven):
    ask = asking(seven)
    for number in range(7):
        seven.put_item({"leaseKey": {"S": f"k{number}"}, "x": {"B": b"x" * 3000}})
    eventually = ask("scan", ReturnConsumedCapacity="TOTAL")["ConsumedCapacity"]
    consistent = ask("scan", ReturnConsumedCapacity="TOTAL", ConsistentRead=True)["ConsumedCapacity"]
    assert (eventually["TableName"], consistent["TableName"]) == (seven.name, seven.name)
    # 7 rows of about 3,010 bytes, in units of 4,096 bytes over the whole page, half of one where not consistent.
    assert (eventually["CapacityUnits"], consistent["CapacityUnits"]) == (3.0, 6.0)
    assert "ConsumedCapacity" not in ask("scan")


def test_a_count_has_no_items(seven):
    answer = asking(seven)("scan", Select="COUNT")
    assert (answer["Count"], answer.get("Items", [])) == (7, [])


@pytest.mark.parametrize(
    "params",
    [
        {"Segment": 0},
        {"TotalSegments": 2},
        {"Segment": 2, "TotalSegments": 2},
        {"ExclusiveStartKey": {"other": {"S": "k"}}},
        {"FilterExpression": "n = :w"},
    ],
    ids=["segment alone", "total alone", "segment beyond", "start key", "filter"],
)
def test_a_scan_that_makes_no_sense_is_refused(seven, params):
    assert code_of(refused(asking(seven), "scan", **params)) == INVALID


# -- keys, tables, indexes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        {"other": {"S": "k"}},
        {"leaseKey": {"N": "1"}},
        {"leaseKey": {"S": ""}},
        {**KEY, "n": {"N": "5"}},
        {"leaseKey": {"S": "x" * 2049}},
    ],
    ids=["name", "type", "empty", "too many", "too long"],
)
@pytest.mark.parametrize("operation", ["get_item", "delete_item", "update_item"])
def test_keys_that_do_not_fit_the_schema_are_refused(ask, operation, key):
    assert code_of(refused(ask, operation, Key=key)) == INVALID


@pytest.mark.parametrize(
    "item",
    [{"n": {"N": "5"}}, {"leaseKey": {"N": "1"}}, {"leaseKey": {"S": ""}}],
    ids=["none", "type", "empty"],
)
def test_a_row_without_a_fitting_key_is_refused(service, item):
    assert code_of(refused(asking(service), "put_item", Item=item)) == INVALID


@pytest.mark.parametrize(
    ("operation", "params"),
    [
        ("describe_table", {}),
        ("delete_table", {}),
        ("scan", {}),
        ("get_item", {"Key": KEY}),
        ("put_item", {"Item": KEY}),
        ("delete_item", {"Key": KEY}),
        ("update_item", {"Key": KEY, "UpdateExpression": "REMOVE n"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_missing_table_is_not_found_by_any_operation(service, operation, params):
    ask = asking(service, f"{service.name}-missing")
    assert code_of(refused(ask, operation, **params)) == "ResourceNotFoundException"


def test_a_table_is_created_once_and_described_as_it_was_asked_for(service):
    wanted = {"KeySchema": OWN_KEY, "AttributeDefinitions": OWN_TYPE, "BillingMode": "PAY_PER_REQUEST"}
    answer = refused(asking(service), "create_table", **wanted)
    assert code_of(answer) == "ResourceInUseException"
    description = asking(service)("describe_table")["Table"]
    assert description["TableName"] == service.name
    assert description["TableStatus"] == "ACTIVE"
    assert description["KeySchema"] == OWN_KEY
    assert description["AttributeDefinitions"] == OWN_TYPE
    assert description["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert description["TableArn"].endswith(f":table/{service.name}")


def test_a_deleted_table_is_gone_and_a_new_one_of_its_name_is_empty(ask, service):
    ask("delete_table")
    wait_for(lambda: service.status(service.name) is None)
    assert service.prepared(service.table) is True
    assert service.items() == {}


@pytest.mark.parametrize("owner", [{"NULL": True}, {"S": ""}, {"N": "1"}], ids=["null", "empty", "number"])
def test_an_indexed_owner_must_be_text_as_kcl_3_makes_it(service, owner):
    ask = asking(service, f"{service.name}-indexed")
    index = {
        "IndexName": "LeaseOwnerToLeaseKeyIndex",
        "KeySchema": [
            {"AttributeName": "leaseOwner", "KeyType": "HASH"},
            {"AttributeName": "leaseKey", "KeyType": "RANGE"},
        ],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
    ask(
        "create_table",
        KeySchema=OWN_KEY,
        AttributeDefinitions=[*OWN_TYPE, {"AttributeName": "leaseOwner", "AttributeType": "S"}],
        GlobalSecondaryIndexes=[index],
        BillingMode="PAY_PER_REQUEST",
    )
    wait_for(lambda: service.status(f"{service.name}-indexed") == "ACTIVE")
    ask("put_item", Item={**ITEM, "leaseOwner": {"S": "me"}})
    assert code_of(refused(ask, "put_item", Item={**ITEM, "leaseOwner": owner})) == INVALID
    update = {"UpdateExpression": "SET leaseOwner = :o", "ExpressionAttributeValues": {":o": owner}}
    assert code_of(refused(ask, "update_item", Key=KEY, **update)) == INVALID
    ask("update_item", Key=KEY, UpdateExpression="REMOVE leaseOwner")
    assert "leaseOwner" not in ask("get_item", Key=KEY)["Item"]
