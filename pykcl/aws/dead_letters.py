"""Destinations of dead letters in AWS: SQS, SNS, S3 and Kinesis.

Facts this rests on: SendMessageBatch takes at most ten messages, whose bytes together are at most those of one message,
and answers for each of them; a FIFO queue drops a message whose deduplication id it had within five minutes. A queue
says its largest message (MaximumMessageSize); a topic takes 256 KiB. S3 refuses a request whose ExpectedBucketOwner is
not the owner: a bucket that was deleted may be made anew by a stranger. PutRecords may put some of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import md5
from typing import Any

from pykcl.aws.clients import given_clients, open_client, refuse_missing_credentials, region_of, session_for
from pykcl.aws.errors import answer_of
from pykcl.config import Config
from pykcl.errors import PyKclError, SetupError, TemporaryError, Throttled
from pykcl.interfaces import DeadLetterDestination
from pykcl.model.dead_letter import Address, DeadLetter
from pykcl.model.letter_json import MAX_PART_BYTES, LetterTooLarge, letters_within
from pykcl.model.record import Record
from pykcl.runtime import Runtime

MAX_TOPIC_BYTES = 256 * 1024
MAX_BATCH = 10
MAX_PUT_RECORDS = 500
MAX_PUT_BYTES = 5 * 1024 * 1024
_CONNECTIONS = 10
_MISSING = {
    "AWS.SimpleQueueService.NonExistentQueue": "the queue",
    "QueueDoesNotExist": "the queue",
    "NotFound": "the topic",
    "NoSuchBucket": "the bucket",
    "ResourceNotFoundException": "the stream",
}
_REFUSED = {
    "PermanentRedirect": "the bucket is in another region",
    "AuthorizationHeaderMalformed": "the bucket is in another region",
    "InvalidBucketName": "it is no name of a bucket",
    "KMS.DisabledException": "its KMS key is disabled",
    "KMS.NotFoundException": "its KMS key does not exist",
    "KmsDisabled": "its KMS key is disabled",
    "KmsNotFound": "its KMS key does not exist",
    "KmsAccessDenied": "its KMS key may not be used",
    "KMSDisabledException": "its KMS key is disabled",
    "KMSNotFoundException": "its KMS key does not exist",
    "AuthorizationError": "the AWS identity lacks the permission sns:Publish",
    "InvalidMessageContents": "it takes no such text",
}


def aws_destination(
    address: Address,
    config: Config,
    runtime: Runtime,
    *,
    session: Any = None,
    clients: Mapping[str, Any] | None = None,
) -> DeadLetterDestination:
    """Return the destination. clients: as in `open_destination`. Raises ConfigError without a region, SetupError
    without credentials."""
    given = given_clients(clients)
    opened = None

    def client(service: str) -> Any:
        nonlocal opened
        # The client of the stream that is read may be of another region.
        if service in given and (service != "kinesis" or given[service].meta.region_name == address.region):
            return given[service]
        if opened is None:
            opened = session_for(session)
            refuse_missing_credentials(opened)
        region = address.region or region_of(config, opened)
        return open_client(opened, service, config, region=region, connections=_CONNECTIONS)

    return destination_of(address, client, runtime)


def destination_of(
    address: Address, client: Callable[[str], Any], runtime: Runtime
) -> SqsDestination | SnsDestination | S3Destination | KinesisDestination:
    """client: opens the boto3 client of a service, in the region of the address where that has one."""
    if address.kind == "sqs":
        return SqsDestination(client("sqs"), address)
    if address.kind == "sns":
        return SnsDestination(client("sns"), address)
    if address.kind == "s3":
        owner = BucketOwner(None if address.account else client("sts"), address)
        return S3Destination(client("s3"), owner, address)
    return KinesisDestination(client("kinesis"), address, runtime)


def call(doing: str, method: Callable[..., Any], **request: Any) -> Mapping[str, Any]:
    """Call a method of a boto3 client once. Raises TemporaryError, Throttled and SetupError, without what was sent."""
    return answer_of(doing, method, request, refusal=partial(_refusal, doing))


def _refusal(doing: str, code: str | None, failure: PyKclError) -> PyKclError:
    if code in _MISSING:
        return SetupError(
            f"{doing} failed: {_MISSING[code]} does not exist. Check its name, its region and its account."
        )
    return SetupError(f"{doing} failed: {_REFUSED[code]} ({code}).") if code in _REFUSED else failure


def _too_large(error: LetterTooLarge, where: str) -> SetupError:
    return SetupError(
        f"A dead letter is too large for {where}: {error}, even compressed. Its record waits. Do: dead_letters="
        "s3://BUCKET/PREFIX, which takes any record."
    )


def _parts(letters: Iterable[DeadLetter], limit: int, where: str) -> Iterator[tuple[DeadLetter, str]]:
    for letter in letters:
        try:
            yield from letters_within(letter, limit)
        except LetterTooLarge as error:
            failure = _too_large(error, where)
        else:
            continue
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: no cycle


class SqsDestination:
    """A queue, one message per letter. client: a boto3 client of SQS in the region of the queue."""

    def __init__(self, client: Any, address: Address) -> None:
        self._client, self._address = client, address
        self._doing = f"Sending dead letters to queue {address.name!r}"
        self._queue: tuple[str, int] | None = None

    def send(self, letters: Sequence[DeadLetter]) -> None:
        try:
            url, limit = self._queue = self._queue or self._found()
            for batch in _batches(_parts(letters, limit, f"queue {self._address.name!r}"), limit):
                self._send_batch(url, batch)
        except SetupError:
            # The queue may be made anew, with another limit.
            self._queue = None
            raise

    def _found(self) -> tuple[str, int]:
        """Return URL and largest message."""
        url = queue_url(self._client, self._address)
        doing = f"Reading the attributes of queue {self._address.name!r}"
        answer = call(
            doing, self._client.get_queue_attributes, QueueUrl=url, AttributeNames=["MaximumMessageSize"]
        )
        size = str(answer.get("Attributes", {}).get("MaximumMessageSize", ""))
        if not size.isdigit():
            raise TemporaryError(f"{doing} returned no MaximumMessageSize. Ask again.")
        return url, int(size)

    def _send_batch(self, url: str, batch: Sequence[tuple[DeadLetter, str]]) -> None:
        entries = []
        for number, (letter, text) in enumerate(batch):
            entry = {"Id": str(number), "MessageBody": text}
            if self._address.is_fifo:
                entry |= {"MessageGroupId": letter.shard_id, "MessageDeduplicationId": letter.id}
            entries.append(entry)
        answer = call(self._doing, self._client.send_message_batch, QueueUrl=url, Entries=entries)
        for entry in answer.get("Failed") or ():
            raise self._failed(entry)
        sums = {one.get("Id"): one.get("MD5OfMessageBody") for one in answer.get("Successful") or ()}
        for number, (_, text) in enumerate(batch):
            if sums.get(str(number)) != md5(text.encode(), usedforsecurity=False).hexdigest():
                raise TemporaryError(
                    f"{self._doing}: SQS did not confirm a message, or confirmed another text than was sent. "
                    "It is sent again."
                )

    def _failed(self, entry: Mapping[str, Any]) -> PyKclError:
        code = str(entry.get("Code"))[:80]
        if "Throttl" in code:
            return Throttled(f"{self._doing} was throttled by AWS ({code}).")
        if entry.get("SenderFault") is True:
            why = _REFUSED.get(code, "SQS refused a message")
            return SetupError(f"{self._doing} failed: {why} ({code}).")
        return TemporaryError(f"{self._doing} failed at AWS ({code}). It may work later.")


def queue_url(client: Any, address: Address) -> str:
    """Return the URL of the queue. Raises SetupError where it does not exist or may not be seen, TemporaryError."""
    doing = f"Finding queue {address.name!r} of account {address.account}"
    answer = call(doing, client.get_queue_url, QueueName=address.name, QueueOwnerAWSAccountId=address.account)
    url = answer.get("QueueUrl")
    if not isinstance(url, str) or not url:
        raise TemporaryError(f"{doing} returned no URL. Ask again.")
    return url


def _batches(parts: Iterable[tuple[DeadLetter, str]], limit: int) -> Iterator[list[tuple[DeadLetter, str]]]:
    batch: list[tuple[DeadLetter, str]] = []
    size = 0
    for letter, text in parts:
        if batch and (len(batch) == MAX_BATCH or size + len(text) > limit):
            yield batch
            batch, size = [], 0
        batch.append((letter, text))
        size += len(text)
    if batch:
        yield batch


class SnsDestination:
    """A topic, one message per letter. client: a boto3 client of SNS in the region of the topic."""

    def __init__(self, client: Any, address: Address) -> None:
        self._client, self._address = client, address

    def send(self, letters: Sequence[DeadLetter]) -> None:
        name = self._address.name
        for letter, text in _parts(letters, MAX_TOPIC_BYTES, f"topic {name!r}"):
            order = {}
            if self._address.is_fifo:
                order = {"MessageGroupId": letter.shard_id, "MessageDeduplicationId": letter.id}
            doing = f"Publishing dead letters to topic {name!r}"
            answer = call(doing, self._client.publish, TopicArn=self._address.text, Message=text, **order)
            if not answer.get("MessageId"):
                raise TemporaryError(f"{doing}: SNS did not confirm a message. It is sent again.")


class BucketOwner:
    """The account that must own a bucket: the one that the address names, else that of the caller.

    client: a boto3 client of STS, asked once; None where the address names an account.
    """

    def __init__(self, client: Any, address: Address) -> None:
        self._client, self._account = client, address.account

    def account(self) -> str:
        """Raises TemporaryError, SetupError."""
        if self._account is None:
            doing = "Asking STS for the account that must own the bucket of the dead letters"
            found = call(doing, self._client.get_caller_identity).get("Account")
            if not isinstance(found, str) or not found:
                raise TemporaryError(f"{doing} returned none. Ask again.")
            self._account = found
        return self._account


class S3Destination:
    """A bucket, one object per letter. A letter that is sent again replaces its object."""

    def __init__(self, client: Any, owner: BucketOwner, address: Address) -> None:
        self._client, self._owner, self._address = client, owner, address

    def send(self, letters: Sequence[DeadLetter]) -> None:
        owner = self._owner.account()
        for letter, text in _parts(letters, MAX_PART_BYTES, "S3"):
            answer = call(
                f"Putting dead letters into bucket {self._address.name!r} of account {owner}",
                self._client.put_object,
                Bucket=self._address.name,
                Key=self._address.prefix + key_of(letter),
                Body=text.encode("ascii"),
                ContentType="application/json",
                ExpectedBucketOwner=owner,
            )
            if not answer.get("ETag"):
                raise TemporaryError("S3 did not confirm an object. It is put again.")


def key_of(letter: DeadLetter) -> str:
    """Return the key of a letter below its prefix, by the arrival of its last record."""
    arrived = datetime.fromtimestamp(letter.records[-1].arrived_at_millis / 1000, tz=UTC)
    return f"pykcl/{letter.application}/{letter.shard_id}/{arrived:%Y/%m/%d}/{arrived:%Y-%m-%dT%H.%M.%S}-{letter.id}"


class KinesisDestination:
    """A stream, one record per failed record: its data and its partition key, and nothing of the letter."""

    def __init__(self, client: Any, address: Address, runtime: Runtime) -> None:
        self._client, self._address, self._runtime = client, address, runtime

    def send(self, letters: Sequence[DeadLetter]) -> None:
        records = [record for letter in letters for record in letter.records]
        while records:
            taken, size = 0, 0
            for record in records[:MAX_PUT_RECORDS]:
                size += len(record.data) + len(record.partition_key.encode("utf-8", "surrogatepass"))
                if taken and size > MAX_PUT_BYTES:
                    break
                taken += 1
            records = self._put(records[:taken]) + records[taken:]

    def _put(self, records: list[Record]) -> list[Record]:
        """Put records; return those that were refused, if others were not. Raises TemporaryError where all were."""
        doing = f"Putting dead letters into stream {self._address.name!r}"
        answer = call(
            doing,
            self._client.put_records,
            StreamARN=self._address.text,
            Records=[{"Data": record.data, "PartitionKey": record.partition_key} for record in records],
        )
        answers = answer.get("Records") or []
        if len(answers) != len(records):
            raise TemporaryError(f"{doing} answered for {len(answers)} of {len(records)} records.")
        left = [
            record
            for record, one in zip(records, answers, strict=True)
            if one.get("ErrorCode") or not one.get("ShardId")
        ]
        if len(left) == len(records):
            raise Throttled(
                f"{doing} was refused ({str(answers[0].get('ErrorCode'))[:80]}). It may work later."
            )
        return left
