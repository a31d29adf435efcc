"""Dead letters in SQS, SNS, S3 and Kinesis: what counts as kept, what is an error, and what is sent (A3, acceptance 1)."""

import json
from hashlib import md5
from pathlib import Path
from random import Random

import boto3
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from pykcl.aws.dead_letters import (
    BucketOwner,
    KinesisDestination,
    S3Destination,
    SnsDestination,
    SqsDestination,
    aws_destination,
    destination_of,
)
from pykcl.config import Config
from pykcl.errors import SetupError, TemporaryError, Throttled
from pykcl.local import local_environment
from pykcl.local.faults import FaultRule
from pykcl.local.server import LocalAws
from pykcl.model.dead_letter import Address
from pykcl.model.letter_json import read_letter
from pykcl.operate.aws.clients import OperatorClients
from pykcl.operate.aws.letter_sources import aws_source
from pykcl.runtime import SystemRuntime
from tests.letters import SECRET, letter, record

QUEUE = Address.parse("arn:aws:sqs:us-east-1:123456789012:dlq")
FIFO = Address.parse("arn:aws:sqs:us-east-1:123456789012:dlq.fifo")
TOPIC = Address.parse("arn:aws:sns:us-east-1:123456789012:letters.fifo")
BUCKET = Address.parse("s3://letters/team?owner=123456789012")
STREAM = Address.parse("arn:aws:kinesis:us-east-1:123456789012:stream/dlq")


class Client:
    """A boto3 client whose answers a test decides. calls: (method, parameters)."""

    def __init__(self, **answers):
        self.calls = []
        self._answers = {
            "get_queue_url": {"QueueUrl": "https://queue"},
            "get_queue_attributes": {"Attributes": {"MaximumMessageSize": "262144"}},
            "send_message_batch": self.kept,
            "publish": {"MessageId": "1"},
            "put_object": {"ETag": '"1"'},
            "get_caller_identity": {"Account": "123456789012"},
            **answers,
        }

    def __getattr__(self, method):
        def call(**parameters):
            self.calls.append((method, parameters))
            answer = self._answers[method]
            if isinstance(answer, Exception):
                raise answer
            return answer(**parameters) if callable(answer) else answer

        return call

    def sent(self, method):
        return [parameters for name, parameters in self.calls if name == method]

    @staticmethod
    def kept(**request):
        return {
            "Successful": [
                {"Id": one["Id"], "MD5OfMessageBody": md5(one["MessageBody"].encode()).hexdigest()}
                for one in request["Entries"]
            ]
        }


def refused(code, status=400):
    answer = {
        "Error": {"Code": code, "Message": f"about {SECRET}"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(answer, "Something")


def destinations(**answers):
    client = Client(**answers)
    return client, {
        "sqs": SqsDestination(client, QUEUE),
        "sns": SnsDestination(client, TOPIC),
        "s3": S3Destination(client, BucketOwner(None, BUCKET), BUCKET),
        "kinesis": KinesisDestination(client, STREAM, SystemRuntime()),
    }


METHODS = {"sqs": "send_message_batch", "sns": "publish", "s3": "put_object", "kinesis": "put_records"}
ERRORS = [
    (refused("AccessDenied", 403), SetupError),
    (refused("ThrottlingException"), Throttled),
    (refused("InternalFailure", 500), TemporaryError),
    (refused("SomethingNew"), TemporaryError),
    (ReadTimeoutError(endpoint_url="https://x"), TemporaryError),
    (KeyError("Body"), TemporaryError),
]


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize(("error", "expected"), ERRORS, ids=lambda value: getattr(value, "__name__", None))
def test_every_error_is_sorted_and_quotes_nothing(kind, error, expected):
    _, found = destinations(**{METHODS[kind]: error})
    with pytest.raises(expected) as caught:
        found[kind].send([letter()])
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("sqs", refused("AWS.SimpleQueueService.NonExistentQueue"), "the queue does not exist"),
        ("sns", refused("NotFound", 404), "the topic does not exist"),
        ("sns", refused("AuthorizationError", 403), "sns:Publish"),
        ("s3", refused("NoSuchBucket", 404), "the bucket does not exist"),
        ("s3", refused("PermanentRedirect", 301), "another region"),
        ("kinesis", refused("ResourceNotFoundException"), "the stream does not exist"),
    ],
)
def test_what_only_somebody_can_change_is_a_set_up_error(kind, error, text):
    _, found = destinations(**{METHODS[kind]: error})
    with pytest.raises(SetupError, match=text):
        found[kind].send([letter()])


def test_an_answer_that_does_not_confirm_the_text_is_temporary():
    wrong = {"Successful": [{"Id": "0", "MD5OfMessageBody": md5(b"other").hexdigest()}]}
    for answer in (wrong, {}, {"Successful": []}):
        _, found = destinations(send_message_batch=answer)
        with pytest.raises(TemporaryError, match="did not confirm"):
            found["sqs"].send([letter()])
    _, found = destinations(publish={}, put_object={})
    for kind in ("sns", "s3"):
        with pytest.raises(TemporaryError, match="did not confirm"):
            found[kind].send([letter()])


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"Id": "0", "Code": "InternalError", "SenderFault": False}, TemporaryError),
        ({"Id": "0", "Code": "KmsAccessDenied", "SenderFault": True}, SetupError),
        ({"Id": "0", "Code": "RequestThrottled", "SenderFault": True}, Throttled),
    ],
)
def test_one_failed_entry_fails_the_batch(entry, expected):
    _, found = destinations(send_message_batch={"Failed": [entry]})
    with pytest.raises(expected):
        found["sqs"].send([letter()])


def test_a_batch_has_ten_messages_and_the_bytes_of_one_at_most():
    client, found = destinations(get_queue_attributes={"Attributes": {"MaximumMessageSize": "5000"}})
    found["sqs"].send([letter(record(number, b"x" * 500)) for number in range(25)])
    batches = [[one["MessageBody"] for one in call["Entries"]] for call in client.sent("send_message_batch")]
    assert all(len(batch) <= 10 and sum(map(len, batch)) <= 5000 for batch in batches)
    assert sum(map(len, batches)) == 25
    assert [len(client.sent(name)) for name in ("get_queue_url", "get_queue_attributes")] == [1, 1]
    client, found = destinations()
    found["sqs"].send([letter(record(number)) for number in range(25)])
    assert [len(call["Entries"]) for call in client.sent("send_message_batch")] == [10, 10, 5]


def test_a_queue_that_was_made_anew_is_found_again():
    client, found = destinations(send_message_batch=refused("QueueDoesNotExist"))
    for _ in range(2):
        with pytest.raises(SetupError):
            found["sqs"].send([letter()])
    assert len(client.sent("get_queue_url")) == 2
    assert client.sent("get_queue_url")[0] == {"QueueName": "dlq", "QueueOwnerAWSAccountId": "123456789012"}


def test_a_fifo_queue_and_topic_get_the_shard_and_the_id():
    client = Client()
    SqsDestination(client, FIFO).send([letter()])
    SnsDestination(client, TOPIC).send([letter()])
    SqsDestination(client, QUEUE).send([letter()])
    fifo, standard = (call["Entries"][0] for call in client.sent("send_message_batch"))
    order = {"MessageGroupId": letter().shard_id, "MessageDeduplicationId": letter().id}
    assert order.items() <= fifo.items()
    assert order.items() <= client.sent("publish")[0].items()
    assert set(standard) == {"Id", "MessageBody"}


def test_a_record_that_no_message_holds_says_use_s3_and_s3_holds_it():
    noise = Random(7).randbytes(300_000)
    client, found = destinations()
    for kind in ("sqs", "sns"):
        with pytest.raises(SetupError, match="dead_letters=s3://BUCKET/PREFIX"):
            found[kind].send([letter(record(100, noise))])
    assert client.sent("publish") == client.sent("send_message_batch") == []
    found["s3"].send([letter(record(100, noise))])
    assert read_letter(client.sent("put_object")[0]["Body"]).records()[0].data == noise


def test_an_object_has_its_key_by_arrival_and_its_owner_is_expected():
    client, found = destinations()
    found["s3"].send([letter()])
    found["s3"].send([letter(worker_id="another", created_at=5)])
    first, again = client.sent("put_object")
    assert (
        first["Key"]
        == again["Key"]
        == (f"team/pykcl/orders-app/shardId-000000000001/2025/11/23/2025-11-23T05.38.04-{letter().id}")
    )
    assert first["ExpectedBucketOwner"] == "123456789012"
    assert client.sent("get_caller_identity") == []
    mine = Address.parse("s3://letters")
    target = S3Destination(client, BucketOwner(client, mine), mine)
    target.send([letter()])
    target.send([letter()])
    assert client.sent("put_object")[-1]["ExpectedBucketOwner"] == "123456789012"
    assert len(client.sent("get_caller_identity")) == 1


def test_records_that_kinesis_refuses_are_put_again_and_those_it_took_are_not():
    refusals = iter([{0, 2}, {1}, set()])

    def put(**request):
        left = next(refusals)
        return {
            "Records": [
                {"ErrorCode": "ProvisionedThroughputExceededException"}
                if number in left
                else {"ShardId": "s"}
                for number in range(len(request["Records"]))
            ]
        }

    client, found = destinations(put_records=put)
    found["kinesis"].send([letter(record(1, b"a"), record(2, b"b")), letter(record(3, b"c"))])
    sent = [[one["Data"] for one in call["Records"]] for call in client.sent("put_records")]
    assert sent == [[b"a", b"b", b"c"], [b"a", b"c"], [b"c"]]
    _, found = destinations(
        put_records=lambda **request: {"Records": [{"ErrorCode": "Throttled"}] * len(request["Records"])}
    )
    with pytest.raises(TemporaryError):
        found["kinesis"].send([letter()])
    _, found = destinations(put_records={"Records": []})
    with pytest.raises(TemporaryError, match="answered for 0 of 1"):
        found["kinesis"].send([letter()])


def test_a_request_to_kinesis_has_500_records_and_5_mib_at_most():
    client, found = destinations(
        put_records=lambda **request: {"Records": [{"ShardId": "s"}] * len(request["Records"])}
    )
    found["kinesis"].send([letter(*(record(number) for number in range(501)))])
    found["kinesis"].send([letter(*(record(number, bytes(2**20)) for number in range(6)))])
    assert [len(call["Records"]) for call in client.sent("put_records")] == [500, 1, 4, 2]


# -- against the local AWS -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    with LocalAws() as aws:
        yield aws


@pytest.fixture
def aws(server, monkeypatch):
    server.reset()
    for name, value in local_environment(server.url).items():
        monkeypatch.setenv(name, value)
    boto3.setup_default_session()
    return server


def made(kind):
    """Make the resource; return its address."""
    if kind == "s3":
        boto3.client("s3").create_bucket(Bucket="letters")
        return Address.parse("s3://letters/team")
    sqs = boto3.client("sqs")
    name, attributes = ("dlq.fifo", {"FifoQueue": "true"}) if kind == "fifo" else ("dlq", {})
    url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    return Address.parse(arn)


def opened(address):
    return aws_destination(address, Config(application="orders-app", stream="orders"), SystemRuntime())


def source(address, hold=30):
    return aws_source(address, OperatorClients(), hold=hold)


def read(found):
    return [one for chunk in found.chunks() for one in chunk]


@pytest.mark.parametrize("kind", ["sqs", "fifo", "s3"])
def test_letters_come_back_and_settled_ones_do_not(aws, kind):
    address = made(kind)
    letters = [
        letter(record(number, b"\xff%d" % number, partition_key="\U0001f600" * 256)) for number in range(12)
    ]
    opened(address).send(letters)
    letters_there = source(address)
    found = read(letters_there)
    if kind != "fifo":
        assert sorted(one.letter.id for one in found) == sorted(one.id for one in letters)
    assert {one.letter.id: one.letter.records() for one in found}.items() <= {
        one.id: one.records for one in letters
    }.items()
    letters_there.settle(found[:3])
    letters_there.close()
    left = {one.id for one in letters} - {one.letter.id for one in found[:3]}
    again = {one.letter.id for one in read(source(address))}
    assert again == left or (kind == "fifo" and again <= left)
    if kind == "s3":
        keys = [one["Key"] for one in boto3.client("s3").list_objects_v2(Bucket="letters")["Contents"]]
        assert len([key for key in keys if key.startswith("team/redriven/pykcl/orders-app/")]) == 3


def test_a_letter_sent_twice_is_one_object_and_one_message_of_a_fifo_queue(aws):
    for kind in ("fifo", "s3"):
        address = made(kind)
        for _ in range(2):
            opened(address).send([letter()])
        assert len(read(source(address))) == 1


def test_a_lost_answer_is_temporary_and_the_letter_is_there_with_the_same_id(aws):
    address = made("sqs")
    aws.faults.replace([FaultRule("error-after", "sqs", "SendMessageBatch", times=1)])
    target = opened(address)
    with pytest.raises(TemporaryError):
        target.send([letter()])
    target.send([letter()])
    assert [one.letter.id for one in read(source(address))] == [letter().id] * 2


def test_a_bucket_of_somebody_else_is_refused(aws):
    boto3.client("s3").create_bucket(Bucket="letters")
    address = Address.parse("s3://letters?owner=999999999999")
    with pytest.raises(SetupError, match="not permitted"):
        opened(address).send([letter()])
    with pytest.raises(SetupError, match="not permitted"):
        read(source(address))


def test_a_queue_and_a_bucket_that_do_not_exist(aws):
    for text in ("arn:aws:sqs:us-east-1:000000000000:nothing", "s3://nothing-here"):
        with pytest.raises(SetupError, match="does not exist"):
            opened(Address.parse(text)).send([letter()])
        with pytest.raises(SetupError, match="does not exist"):
            read(source(Address.parse(text)))


def test_a_topic_passes_letters_on_to_a_queue_that_is_read(aws):
    queue = made("sqs")
    topic = boto3.client("sns").create_topic(Name="letters")["TopicArn"]
    boto3.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue.text)
    opened(Address.parse(topic)).send([letter()])
    assert [one.letter.id for one in read(source(queue))] == [letter().id]


def test_a_stream_gets_data_and_key_of_each_record(aws):
    aws.kinesis.create_stream("dlq", 1)
    address = Address.parse("arn:aws:kinesis:us-east-1:000000000000:stream/dlq")
    opened(address).send([letter(record(1, b"\xff", partition_key="\U0001f600"))])
    page = aws.kinesis.get_records(
        aws.kinesis.get_shard_iterator("dlq", "shardId-000000000000", "TRIM_HORIZON")
    )
    assert [(one.data, one.partition_key) for one in page.records] == [(b"\xff", "\U0001f600")]


def test_lambdas_own_objects_are_read_and_hostile_ones_are_reported_by_their_key(aws):
    address = made("s3")
    s3 = boto3.client("s3")
    text = json.loads(json.dumps(letter_of_lambda()))
    s3.put_object(
        Bucket="letters", Key="team/aws/lambda/uuid/shardId-1/2026/11/23/x", Body=json.dumps(text).encode()
    )
    s3.put_object(Bucket="letters", Key="team/pykcl/bad", Body=b"{}")
    s3.put_object(Bucket="letters", Key="team/other", Body=b"{}")
    found = {one.place: one for one in read(source(address))}
    assert found["team/aws/lambda/uuid/shardId-1/2026/11/23/x"].letter.function.startswith("arn:aws:lambda")
    assert "no KinesisBatchInfo" in found["team/pykcl/bad"].problem
    assert len(found) == 2


def letter_of_lambda():
    path = Path(__file__).parents[2] / "fixtures" / "lambda_dead_letter.json"
    return json.loads(path.read_text("utf-8"))


def test_a_queue_says_that_it_is_a_sample_while_messages_are_hidden(aws):
    address = made("sqs")
    opened(address).send([letter(record(number)) for number in range(3)])
    first, second = source(address), source(address)
    assert (len(read(first)), first.note) == (3, "")
    assert (read(second), second.note.startswith("A sample of about 3 messages")) == ([], True)
    first.close()
    assert len(read(source(address))) == 3


def test_no_body_is_in_the_request_log(aws):
    opened(made("sqs")).send([letter()])
    logged = [request for request in aws.requests if request.operation == "SendMessageBatch"]
    assert logged[-1].parameters == {}


def test_given_clients_are_used(aws):
    client = Client()
    target = aws_destination(
        QUEUE, Config(application="orders-app", stream="orders"), SystemRuntime(), clients={"sqs": client}
    )
    target.send([letter()])
    assert len(client.sent("send_message_batch")) == 1
    assert isinstance(destination_of(STREAM, lambda _: client, SystemRuntime()), KinesisDestination)
