"""Answers with rows that are written in one pass say what moto itself would have said."""

import boto3
import pytest

from pykcl.local import services
from pykcl.local.server import LocalAws

ROW = {
    "leaseKey": {"S": "shardId-000000000000 ä\u2028"},
    "number": {"N": "1.50"},
    "binary": {"B": b"\x00\xff"},
    "texts": {"SS": ["b", "a"]},
    "numbers": {"NS": ["1", "2"]},
    "binaries": {"BS": [b"\x01", b"\x02"]},
    "flag": {"BOOL": False},
    "nothing": {"NULL": True},
    "list": {"L": [{"S": ""}, {"B": b"\x03"}, {"M": {"deep": {"L": []}}}]},
    "map": {"M": {"inner": {"N": "7"}, "raw": {"B": b"\x04"}}},
}


def sets_in_order(row):
    return {
        name: {kind: sorted(found) if kind in ("SS", "NS", "BS") else found for kind, found in value.items()}
        for name, value in row.items()
    }


@pytest.fixture(params=["ours", "moto's own"])
def client(request, monkeypatch):
    if request.param == "moto's own":
        from moto.dynamodb.responses import DynamoHandler

        monkeypatch.setattr(services, "fast_handler", lambda: DynamoHandler)
    with LocalAws() as aws:
        found = boto3.client(
            "dynamodb",
            endpoint_url=aws.url,
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",
        )
        found.create_table(
            TableName="t",
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        yield found


def test_every_type_of_value_survives(client):
    client.put_item(TableName="t", Item=ROW)
    answer = client.scan(TableName="t", ReturnConsumedCapacity="TOTAL")
    (found,) = answer["Items"]
    assert sets_in_order(found) == sets_in_order(ROW)
    assert (answer["Count"], answer["ScannedCount"], answer["ConsumedCapacity"]["TableName"]) == (1, 1, "t")
    assert "LastEvaluatedKey" not in answer


def test_pages_filters_projections_and_errors_are_as_ever(client):
    for number in range(5):
        client.put_item(TableName="t", Item={"leaseKey": {"S": f"s{number}"}, "n": {"N": str(number)}})
    page = client.scan(TableName="t", Limit=2)
    assert len(page["Items"]) == 2
    rest = client.scan(TableName="t", ExclusiveStartKey=page["LastEvaluatedKey"])
    assert len(rest["Items"]) == 3
    found = client.scan(
        TableName="t",
        FilterExpression="n >= :n",
        ExpressionAttributeValues={":n": {"N": "3"}},
        ProjectionExpression="leaseKey",
    )
    assert sorted(item["leaseKey"]["S"] for item in found["Items"]) == ["s3", "s4"]
    assert all(set(item) == {"leaseKey"} for item in found["Items"])
    assert (found["Count"], found["ScannedCount"]) == (2, 5)
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.scan(TableName="nowhere")


def test_reads_and_writes_of_one_row_answer_with_every_type_of_value(client):
    assert "Attributes" not in client.put_item(TableName="t", Item=ROW)
    key = {"leaseKey": ROW["leaseKey"]}
    found = client.get_item(TableName="t", Key=key, ReturnConsumedCapacity="TOTAL")
    assert sets_in_order(found["Item"]) == sets_in_order(ROW)
    assert found["ConsumedCapacity"]["TableName"] == "t"
    (queried,) = client.query(
        TableName="t",
        KeyConditionExpression="leaseKey = :k",
        ExpressionAttributeValues={":k": ROW["leaseKey"]},
    )["Items"]
    assert sets_in_order(queried) == sets_in_order(ROW)
    more = {
        "TableName": "t",
        "Key": key,
        "UpdateExpression": "SET #b = :b",
        "ExpressionAttributeNames": {"#b": "binary"},
        "ExpressionAttributeValues": {":b": {"B": b"\xfe"}},
    }
    assert client.update_item(**more, ReturnValues="UPDATED_NEW")["Attributes"] == {"binary": {"B": b"\xfe"}}
    changed = {**ROW, "binary": {"B": b"\xfe"}}
    assert sets_in_order(client.update_item(**more, ReturnValues="ALL_NEW")["Attributes"]) == sets_in_order(
        changed
    )
    assert "Attributes" not in client.update_item(**more)
    with pytest.raises(client.exceptions.ConditionalCheckFailedException) as refused:
        client.update_item(
            **more,
            ConditionExpression="attribute_not_exists(leaseKey)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    assert sets_in_order(refused.value.response["Item"]) == sets_in_order(changed)
    put = client.put_item(TableName="t", Item=ROW, ReturnValues="ALL_OLD")
    assert sets_in_order(put["Attributes"]) == sets_in_order(changed)
    gone = client.delete_item(TableName="t", Key=key, ReturnValues="ALL_OLD")
    assert sets_in_order(gone["Attributes"]) == sets_in_order(ROW)
    assert "Item" not in client.get_item(TableName="t", Key=key)
    assert "Attributes" not in client.delete_item(TableName="t", Key=key)
