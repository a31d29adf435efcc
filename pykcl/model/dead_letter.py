"""A dead letter: records that a processor gave up, and why; and the address of the destination that keeps it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from pykcl.errors import ConfigError
from pykcl.model.record import Record


class Condition(Enum):
    """The reason for a dead letter. The first two are Lambda's words."""

    RETRY_ATTEMPTS_EXHAUSTED = "RetryAttemptsExhausted"
    RECORD_AGE_EXPIRED = "RecordAgeExpired"
    REJECTED = "Rejected"
    DECODE_FAILED = "DecodeFailed"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Consecutive records of one shard that are given up together; never empty.

    processor: name of the processor, MODULE:NAME. stream_created_at, first_failed_at, created_at: epoch milliseconds;
    first_failed_at is None where no attempt failed. attempts: calls that failed. error: class name of the last
    exception, where: its file and line, message: its text, at most 1,000 characters; empty where no call failed.
    reason: of a Reject.
    """

    condition: Condition
    application: str
    processor: str
    worker_id: str
    stream: str
    stream_arn: str
    stream_created_at: int
    shard_id: str
    records: tuple[Record, ...]
    attempts: int
    created_at: int
    first_failed_at: int | None = None
    error: str = ""
    where: str = ""
    message: str = ""
    reason: str = ""

    @property
    def id(self) -> str:
        """32 hex digits, the same on every worker that gives up the same records."""
        first, last = self.records[0].position, self.records[-1].position
        parts = (
            self.stream_arn, str(self.stream_created_at), self.application, self.shard_id, str(first), str(last),
        )  # fmt: skip
        return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


FORMS = (
    "file:DIRECTORY, s3://BUCKET/PREFIX, discard, or the ARN of an SQS queue, an SNS topic, an S3 bucket or a Kinesis "
    "stream"
)
Kind = Literal["discard", "file", "kinesis", "s3", "sns", "sqs"]
_ARN = re.compile(
    r"arn:(?P<partition>aws[a-z-]*):(?P<service>sqs|sns|kinesis):(?P<region>[a-z0-9-]+):(?P<account>[0-9]{12}):"
    r"(?P<name>[A-Za-z0-9_./-]{1,256})\Z"
)
_BUCKET_ARN = re.compile(r"arn:aws[a-z-]*:s3:::(.*)\Z")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_OWNER = re.compile(r"owner=([0-9]{12})\Z")


@dataclass(frozen=True, slots=True)
class Address:
    """The destination that a text names, as `dead_letters=` takes it.

    name: of the queue, the topic, the stream or the bucket; the path of a directory. prefix: of the keys in a bucket,
    empty or with a slash at its end. account: None for a bucket whose owner the text does not name, and for a file.
    """

    kind: Kind
    text: str
    name: str = ""
    region: str | None = None
    account: str | None = None
    prefix: str = ""

    @property
    def is_fifo(self) -> bool:
        """Return whether it is a queue or a topic that keeps the order of its messages."""
        return self.name.endswith(".fifo")

    @classmethod
    def parse(cls, text: object) -> Address:
        """Raises ConfigError for a text that names no destination."""
        if not isinstance(text, str):
            raise ConfigError(f"dead_letters={type(text).__name__} is no text. Do: {FORMS}.")
        if text == "discard":
            return cls("discard", text)
        if text.startswith("file:"):
            return _directory(text)
        if text.startswith("s3://") or _BUCKET_ARN.match(text):
            return _bucket(text)
        found = _ARN.match(text)
        if found is not None:
            service, name = found["service"], found["name"]
            if service == "kinesis":
                name = name.removeprefix("stream/")
            if "/" not in name and (service != "kinesis" or name != found["name"]):
                return cls(service, text, name, found["region"], found["account"])  # type: ignore[arg-type]
        raise ConfigError(f"dead_letters={text[:300]!r} names no destination.{_instead(text)} Do: {FORMS}.")


def _directory(text: str) -> Address:
    path = text.removeprefix("file:")
    if path.startswith("//"):
        if not path.startswith("///"):
            raise ConfigError(
                f"dead_letters={text[:300]!r} names a file of another machine. Do: file:/DIRECTORY."
            )
        path = path[2:]
    if not path or "\0" in path:
        raise ConfigError(f"dead_letters={text[:300]!r} names no directory. Do: file:DIRECTORY.")
    return Address("file", text, path)


def _bucket(text: str) -> Address:
    arn = _BUCKET_ARN.match(text)
    place, _, query = (arn[1] if arn else text.removeprefix("s3://")).partition("?")
    bucket, _, prefix = place.partition("/")
    owner = _OWNER.match(query)
    if not _BUCKET.match(bucket) or (query and owner is None) or len(prefix) > 512:
        raise ConfigError(
            f"dead_letters={text[:300]!r} names no S3 bucket. Do: s3://BUCKET/PREFIX, or s3://BUCKET/PREFIX?owner="
            "ACCOUNT for a bucket of another account."
        )
    prefix = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
    return Address("s3", text, bucket, account=owner[1] if owner else None, prefix=prefix)


def _instead(text: str) -> str:
    """Return a sentence, with a space in front, on what was probably meant."""
    if re.match(r"https?://(sqs\.|[a-z0-9-]+\.queue\.)", text):
        return " It is the URL of a queue: name its ARN."
    if re.match(r"arn:aws[a-z-]*:lambda:", text):
        return " pykcl calls no Lambda function."
    if text.startswith(("/", "./", "../", "~")):
        return f" It may be a directory: file:{text[:300]}."
    return ""
