"""The adapter over the Kinesis client: pages, filters, partial answers, and answers that cannot be true."""

from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError

from pykcl.errors import AnswerRefused, SetupError, TemporaryError, Throttled
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.new_record import NewRecord, PutAnswer
from pykcl.operate.aws.streams import StreamAdmin

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"


class Client:
    """Answers every operation from a list, and keeps the requests."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    def __getattr__(self, name):
        def call(**request):
            self.requests.append((name, request))
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def refused(code, message=""):
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 400}}, "X"
    )


def test_streams_are_listed_over_pages_also_where_only_names_are_told():
    client = Client(
        {"StreamNames": ["b"], "StreamSummaries": [{"StreamName": "b", "StreamStatus": "ACTIVE"}], "HasMoreStreams": True, "NextToken": "t"},
        {"StreamNames": ["a"], "HasMoreStreams": True},
        {"StreamNames": ["c"], "HasMoreStreams": False},
    )  # fmt: skip
    found = StreamAdmin(client).streams()
    assert [(one.name, one.status) for one in found] == [("a", None), ("b", "ACTIVE"), ("c", None)]
    assert [request for _, request in client.requests] == [
        {},
        {"NextToken": "t"},
        {"ExclusiveStartStreamName": "b"},
    ]


def test_listings_that_go_round_in_a_circle_are_refused():
    again = {"StreamNames": ["a"], "HasMoreStreams": True, "NextToken": "t"}
    with pytest.raises(AnswerRefused):
        StreamAdmin(Client(again, again)).streams()
    shards = {"Shards": [{"ShardId": "shardId-0"}], "NextToken": "t"}
    with pytest.raises(AnswerRefused):
        StreamAdmin(Client(shards, shards)).shards("orders")
    consumers = {
        "Consumers": [{"ConsumerName": "c", "ConsumerARN": "a", "ConsumerStatus": "ACTIVE"}],
        "NextToken": "t",
    }
    with pytest.raises(AnswerRefused):
        StreamAdmin(Client(consumers, consumers)).consumers(ARN)


def test_a_summary_is_read_whole():
    told = {
        "StreamName": "orders",
        "StreamARN": ARN,
        "StreamStatus": "ACTIVE",
        "StreamModeDetails": {"StreamMode": "ON_DEMAND"},
        "StreamCreationTimestamp": datetime.fromtimestamp(1_795_165_200, tz=UTC),
        "RetentionPeriodHours": 48,
        "OpenShardCount": 4,
        "ConsumerCount": 2,
        "EncryptionType": "KMS",
        "KeyId": "alias/aws/kinesis",
        "MaxRecordSizeInKiB": 10240,
        "EnhancedMonitoring": [{"ShardLevelMetrics": ["OutgoingBytes", "IncomingBytes"]}],
    }
    client = Client({"StreamDescriptionSummary": told})
    found = StreamAdmin(client).summary(ARN)
    assert client.requests == [("describe_stream_summary", {"StreamARN": ARN})]
    assert (found.mode, found.retention_hours, found.open_shards, found.consumers) == ("ON_DEMAND", 48, 4, 2)
    assert (found.encryption, found.key_id, found.largest_record) == (
        "KMS",
        "alias/aws/kinesis",
        10 * 1024 * 1024,
    )
    assert (found.created_at, found.shard_metrics) == (1_795_165_200_000, ("IncomingBytes", "OutgoingBytes"))


@pytest.mark.parametrize(
    ("since", "shard_filter"),
    [
        (None, None),
        (ReadFrom("TRIM_HORIZON"), None),
        (ReadFrom("LATEST"), {"Type": "AT_LATEST"}),
        (
            ReadFrom("AT_TIMESTAMP", at_millis=1_500),
            {"Type": "FROM_TIMESTAMP", "Timestamp": datetime.fromtimestamp(1.5, tz=UTC)},
        ),
    ],
)
def test_only_shards_with_something_to_read_are_listed_and_a_token_goes_alone(since, shard_filter):
    client = Client({"Shards": [{"ShardId": "b"}], "NextToken": "t"}, {"Shards": [{"ShardId": "a"}]})
    assert [one.shard_id for one in StreamAdmin(client).shards("orders", since)] == ["a", "b"]
    first = {"StreamName": "orders", **({"ShardFilter": shard_filter} if shard_filter else {})}
    assert [request for _, request in client.requests] == [first, {"NextToken": "t"}]


def test_put_tells_which_records_are_in():
    client = Client(
        {
            "Records": [
                {"ShardId": "s-1", "SequenceNumber": "5"},
                {"ErrorCode": "InternalFailure", "ErrorMessage": "x"},
            ]
        }
    )
    answers = StreamAdmin(client).put("orders", [NewRecord(b"a", "k", "5"), NewRecord(b"b", "k")])
    assert answers == [PutAnswer("s-1", sequence_number="5"), PutAnswer(None, "InternalFailure")]
    assert client.requests[0][1]["Records"] == [
        {"Data": b"a", "PartitionKey": "k", "ExplicitHashKey": "5"},
        {"Data": b"b", "PartitionKey": "k"},
    ]


@pytest.mark.parametrize("records", [None, [], [{"ShardId": "s"}], [{"ShardId": "s"}] * 3])
def test_an_answer_that_does_not_say_which_are_in_is_refused(records):
    with pytest.raises(AnswerRefused, match="it is unknown which"):
        StreamAdmin(Client({"Records": records})).put("orders", [NewRecord(b"a", "k")] * 2)


def test_a_record_that_is_neither_in_nor_refused_counts_as_refused():
    assert StreamAdmin(Client({"Records": [{}]})).put("orders", [NewRecord(b"a", "k")])[0].shard_id is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (refused("ProvisionedThroughputExceededException"), Throttled),
        (refused("InternalFailure"), TemporaryError),
        (
            refused("AccessDeniedException", "not authorized to perform: kinesis:PutRecords on hunter2"),
            SetupError,
        ),
        (refused("ResourceNotFoundException"), SetupError),
        (KeyError("hunter2"), AnswerRefused),
    ],
)
def test_failures_are_sorted_and_quote_nothing(error, kind):
    with pytest.raises(kind) as found:
        StreamAdmin(Client(error)).put("orders", [NewRecord(b"hunter2", "hunter2")])
    assert "hunter2" not in str(found.value)
    assert found.value.__context__ is None


def test_no_repr_shows_what_is_put():
    assert "hunter2" not in repr(NewRecord(b"hunter2", "hunter2"))


def test_a_stream_that_is_named_is_asked_for_by_name_where_its_arn_is_refused():
    """kinesalite gives an ARN, and takes none."""
    described = {"StreamDescriptionSummary": {"StreamName": "orders", "StreamARN": ARN}}
    no_name = refused("InvalidArgumentException", "Either NextToken or StreamName should be provided.")
    put = {"Records": [{"ShardId": "a", "SequenceNumber": "1"}]}
    client = Client(described, no_name, {"Shards": [{"ShardId": "a"}]}, put)
    admin = StreamAdmin(client)
    arn = admin.summary("orders").arn
    assert [one.shard_id for one in admin.shards(arn)] == ["a"]
    assert admin.put(arn, [NewRecord(b"a", "k")]) == [PutAnswer("a", sequence_number="1")]
    assert [request.get("StreamARN", request.get("StreamName")) for _, request in client.requests] == [
        "orders",
        ARN,
        "orders",
        "orders",
    ]


def test_an_arn_that_somebody_gave_is_never_replaced_by_a_name():
    described = {"StreamDescriptionSummary": {"StreamName": "orders", "StreamARN": ARN}}
    admin = StreamAdmin(Client(described, refused("ValidationException")))
    with pytest.raises(SetupError, match="invalid"):
        admin.shards(admin.summary(ARN).arn)
