"""DynamoDB and CloudWatch of the local AWS, as boto3 sees them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import ClientError

TABLE = {
    "TableName": "leases",
    "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "leaseKey", "AttributeType": "S"}],
    "BillingMode": "PAY_PER_REQUEST",
}


@pytest.fixture
def d(client):
    """A DynamoDB client, and a table "leases"."""
    made = client("dynamodb")
    made.create_table(**TABLE)
    return made


def key(name: str) -> dict:
    return {"leaseKey": {"S": name}}


def row(name: str, counter: int) -> dict:
    return {**key(name), "leaseCounter": {"N": str(counter)}}


def count_up(d, name: str, seen: int) -> dict:
    return d.update_item(
        TableName="leases",
        Key=key(name),
        UpdateExpression="SET leaseCounter = :new",
        ConditionExpression="leaseCounter = :seen",
        ExpressionAttributeValues={":new": {"N": str(seen + 1)}, ":seen": {"N": str(seen)}},
        ReturnValuesOnConditionCheckFailure="ALL_OLD",
        ReturnConsumedCapacity="TOTAL",
    )


def test_a_table_is_described_and_listed(d):
    table = d.describe_table(TableName="leases")["Table"]
    assert (table["TableStatus"], table["BillingModeSummary"]["BillingMode"]) == ("ACTIVE", "PAY_PER_REQUEST")
    assert d.list_tables()["TableNames"] == ["leases"]
    with pytest.raises(d.exceptions.ResourceInUseException):
        d.create_table(**TABLE)
    d.delete_table(TableName="leases")
    with pytest.raises(d.exceptions.ResourceNotFoundException):
        d.describe_table(TableName="leases")


def test_a_refused_condition_shows_the_row_that_stands_there(d):
    d.put_item(TableName="leases", Item=row("a", 7), ConditionExpression="attribute_not_exists(leaseKey)")
    count_up(d, "a", 7)
    with pytest.raises(ClientError) as refused:
        count_up(d, "a", 7)
    assert refused.value.response["Error"]["Code"] == "ConditionalCheckFailedException"
    assert refused.value.response["Item"] == row("a", 8)
    with pytest.raises(ClientError) as refused:
        d.put_item(
            TableName="leases",
            Item=row("a", 0),
            ConditionExpression="attribute_not_exists(leaseKey)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    assert refused.value.response["Item"] == row("a", 8)
    with pytest.raises(ClientError) as refused:
        d.delete_item(
            TableName="leases",
            Key=key("a"),
            ConditionExpression="leaseCounter = :n",
            ExpressionAttributeValues={":n": {"N": "7"}},
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    assert refused.value.response["Item"] == row("a", 8)


def test_a_row_is_read_and_deleted(d):
    d.put_item(TableName="leases", Item=row("a", 7))
    answer = d.get_item(TableName="leases", Key=key("a"), ConsistentRead=True, ReturnConsumedCapacity="TOTAL")
    assert answer["Item"] == row("a", 7)
    assert answer["ConsumedCapacity"]["CapacityUnits"] > 0
    d.delete_item(TableName="leases", Key=key("a"))
    assert "Item" not in d.get_item(TableName="leases", Key=key("a"))


def test_writes_tell_their_capacity(d):
    d.put_item(TableName="leases", Item=row("a", 0))
    assert count_up(d, "a", 0)["ConsumedCapacity"]["CapacityUnits"] > 0


def test_a_scan_goes_in_pages(d):
    for number in range(25):
        d.put_item(TableName="leases", Item=row(f"{number:02}", number))
    pages, start = [], {}
    while True:
        page = d.scan(TableName="leases", Limit=10, ReturnConsumedCapacity="TOTAL", **start)
        pages.append(page)
        if "LastEvaluatedKey" not in page:
            break
        start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
    assert [len(page["Items"]) for page in pages] == [10, 10, 5]
    assert len({item["leaseKey"]["S"] for page in pages for item in page["Items"]}) == 25
    assert all(page["ConsumedCapacity"]["CapacityUnits"] > 0 for page in pages)


@pytest.mark.parametrize("more", [{}, {"Exists": True}])
def test_the_old_style_conditions_of_java_kcl_work(d, more):
    d.put_item(TableName="leases", Item=row("a", 1))
    change = {"leaseCounter": {"Action": "PUT", "Value": {"N": "2"}}}
    expected = {"leaseCounter": {"Value": {"N": "1"}, **more}, "leaseOwner": {"Exists": False}}
    d.update_item(TableName="leases", Key=key("a"), AttributeUpdates=change, Expected=expected)
    for name in ("a", "no such row"):
        with pytest.raises(d.exceptions.ConditionalCheckFailedException):
            d.update_item(TableName="leases", Key=key(name), AttributeUpdates=change, Expected=expected)
        with pytest.raises(d.exceptions.ConditionalCheckFailedException):
            d.delete_item(TableName="leases", Key=key(name), Expected=expected)
    with pytest.raises(d.exceptions.ConditionalCheckFailedException):
        d.put_item(TableName="leases", Item=row("a", 1), Expected={"leaseKey": {"Exists": False}})
    d.delete_item(TableName="leases", Key=key("a"), Expected={"leaseCounter": {"Value": {"N": "2"}}})
    assert d.scan(TableName="leases")["Count"] == 0


def test_sixteen_threads_of_conditional_increments_lose_none(d):
    d.put_item(TableName="leases", Item=row("a", 0))

    def increments(wanted: int) -> None:
        done, seen = 0, 0
        while done < wanted:
            try:
                count_up(d, "a", seen)
                done += 1
                seen += 1
            except d.exceptions.ConditionalCheckFailedException as refused:
                seen = int(refused.response["Item"]["leaseCounter"]["N"])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(increments, [5] * 16))
    assert d.get_item(TableName="leases", Key=key("a"))["Item"] == row("a", 80)


def test_every_region_sees_the_same_data(d, client):
    d.put_item(TableName="leases", Item=row("a", 1))
    elsewhere = client("dynamodb", region="eu-west-1")
    assert elsewhere.get_item(TableName="leases", Key=key("a"))["Item"] == row("a", 1)


def test_two_local_aws_in_one_process_share_nothing(d):
    import boto3

    from pykcl.local.server import LocalAws

    with LocalAws() as other:
        session = boto3.session.Session(
            aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
        )
        second = session.client("dynamodb", endpoint_url=other.url)
        assert second.list_tables()["TableNames"] == []
        second.close()
    assert d.list_tables()["TableNames"] == ["leases"]


def test_an_operation_nobody_knows_is_refused(aws):
    import requests

    answer = requests.post(
        aws.url, data=b"{}", headers={"X-Amz-Target": "DynamoDB_20120810.Nonsense"}, timeout=10
    )
    assert (answer.status_code, answer.json()["__type"]) == (400, "UnknownOperationException")


def test_metrics_are_kept(client):
    cloudwatch = client("cloudwatch")
    now = datetime.now(tz=UTC)
    for value in (1.0, 3.0):
        cloudwatch.put_metric_data(
            Namespace="app",
            MetricData=[{"MetricName": "Lag", "Value": value, "Timestamp": now, "Unit": "Count"}],
        )
    assert {metric["MetricName"] for metric in cloudwatch.list_metrics(Namespace="app")["Metrics"]} == {"Lag"}
    (point,) = cloudwatch.get_metric_statistics(
        Namespace="app",
        MetricName="Lag",
        StartTime=now - timedelta(minutes=5),
        EndTime=now + timedelta(minutes=5),
        Period=3600,
        Statistics=["Sum"],
    )["Datapoints"]
    assert point["Sum"] == 4.0


def test_big_metric_requests_come_compressed(client):
    cloudwatch = client("cloudwatch")
    data = [
        {"MetricName": f"metric-number-{n}", "Values": [1.0, 2.0], "Counts": [3.0, 4.0]} for n in range(300)
    ]
    sent = []
    cloudwatch.meta.events.register("before-send", lambda request, **_: sent.append(request.headers))
    cloudwatch.put_metric_data(Namespace="app", MetricData=data)
    assert sent[0]["Content-Encoding"] in (b"gzip", "gzip")
    pages = cloudwatch.get_paginator("list_metrics").paginate()
    assert len({metric["MetricName"] for page in pages for metric in page["Metrics"]}) == 300


def test_the_query_protocol_of_older_clients_works(aws):
    import requests

    form = {"Action": "PutMetricData", "Version": "2010-08-01", "Namespace": "app"}
    form |= {"MetricData.member.1.MetricName": "Lag", "MetricData.member.1.Value": "1"}
    assert requests.post(aws.url, data=form, timeout=300).status_code == 200
    listed = requests.post(aws.url, data={"Action": "ListMetrics", "Version": "2010-08-01"}, timeout=300)
    assert "<MetricName>Lag</MetricName>" in listed.text
