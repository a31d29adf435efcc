"""Dead letters in SQS and S3, as an operator reads and settles them. Those of Lambda are read, too.

Receiving a message hides it from others for a while, and counts towards the maxReceiveCount of a queue that has a
redrive policy of its own. ListObjectsV2 lists at most 1,000 keys a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import md5
from typing import TYPE_CHECKING, Any, Protocol

from pykcl.aws.dead_letters import BucketOwner, call, queue_url
from pykcl.aws.errors import answer_of
from pykcl.errors import PyKclError, Refused, SetupError, TemporaryError
from pykcl.model.dead_letter import Address
from pykcl.model.letter_json import MAX_LETTER_BYTES
from pykcl.operate.dead_letters.sources import Found, LetterSource, parsed

if TYPE_CHECKING:
    from pykcl.operate.aws.clients import OperatorClients

MAX_SAMPLE = 1000
"""Messages that one command receives from a queue to list them."""
MAX_RECEIVE = 10
_ATTEMPTS = 4
REDRIVEN = "redriven/"
"""Put in front of the key of an object, behind the prefix, when its letter was redriven."""
LOCK = ".lock"
_IS_THERE = frozenset({"PreconditionFailed", "ConditionalRequestConflict"})


def aws_source(address: Address, clients: OperatorClients, *, hold: int) -> LetterSource:
    """Return the source. hold: seconds for which messages that are received are hidden from others."""
    if address.kind == "sqs":
        return QueueSource(clients.client("sqs", attempts=_ATTEMPTS), address, hold=hold)
    sts = None if address.account else clients.client("sts", attempts=_ATTEMPTS)
    return BucketSource(clients.client("s3", attempts=_ATTEMPTS), BucketOwner(sts, address), address)


class QueueSource:
    """Messages of a queue. Each is received once; what was not settled is visible again after `close`."""

    def __init__(self, client: Any, address: Address, *, hold: int) -> None:
        self._client, self._address, self._hold = client, address, hold
        self._url = ""
        self._held: dict[str, str] = {}
        self._seen = 0
        self._about = 0

    @property
    def note(self) -> str:
        if self._about <= self._seen:
            return ""
        return f"A sample of about {self._about} messages: some are hidden, or were not sent to this command."

    def chunks(self, *, alone: bool = False) -> Iterator[list[Found]]:
        self._url = queue_url(self._client, self._address)
        self._about = self._count()
        while self._seen < MAX_SAMPLE:
            chunk = self._receive()
            if not chunk:
                return
            self._seen += len(chunk)
            yield chunk

    def settle(self, found: Sequence[Found]) -> None:
        for one in found:
            call(
                f"Deleting a message of queue {self._address.name!r}",
                self._client.delete_message,
                QueueUrl=self._url,
                ReceiptHandle=self._held[one.place],
            )
            del self._held[one.place]

    def close(self) -> None:
        """Make the messages visible again; where that fails, they are after their time."""
        held, self._held = self._held, {}
        for receipt in held.values():
            try:
                call(
                    f"Releasing a message of queue {self._address.name!r}",
                    self._client.change_message_visibility,
                    QueueUrl=self._url,
                    ReceiptHandle=receipt,
                    VisibilityTimeout=0,
                )
            except (SetupError, TemporaryError):
                return

    def _receive(self) -> list[Found]:
        doing = f"Receiving dead letters from queue {self._address.name!r}"
        # A short poll asks some of the servers only, and may find nothing where there is something.
        answer = call(
            doing,
            self._client.receive_message,
            QueueUrl=self._url,
            MaxNumberOfMessages=MAX_RECEIVE,
            VisibilityTimeout=self._hold,
            WaitTimeSeconds=1,
        )
        chunk = []
        for message in answer.get("Messages") or ():
            place, body, receipt = (message.get(name) for name in ("MessageId", "Body", "ReceiptHandle"))
            if not (isinstance(place, str) and isinstance(body, str) and isinstance(receipt, str)):
                raise TemporaryError(f"{doing} returned a message without text. Ask again.")
            is_new = place not in self._held
            self._held[place] = receipt
            if message.get("MD5OfBody") != md5(body.encode(), usedforsecurity=False).hexdigest():
                chunk.append(Found(place, None, "its text arrived damaged: ask again"))
            elif is_new:
                chunk.append(parsed(body, place))
        return chunk

    def _count(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = call(
            f"Reading the attributes of queue {self._address.name!r}",
            self._client.get_queue_attributes,
            QueueUrl=self._url,
            AttributeNames=names,
        )
        found = [str(answer.get("Attributes", {}).get(name, "0")) for name in names]
        return sum(int(one) for one in found if one.isdigit())


class _Body(Protocol):
    def read(self, amount: int) -> bytes: ...


class BucketSource:
    """Objects of pykcl and of Lambda below a prefix. A redriven one is moved below `redriven/` there.

    An object that is put only where there is none keeps other redrives of the prefix away. A command that is killed
    leaves it behind.
    """

    note = ""

    def __init__(self, client: Any, owner: BucketOwner, address: Address) -> None:
        self._client, self._owner, self._address = client, owner, address
        self._lock = f"{address.prefix}{REDRIVEN}{LOCK}"
        self._has_lock = False

    def chunks(self, *, alone: bool = False) -> Iterator[list[Found]]:
        if alone:
            self._take_lock()
        for folder in ("pykcl/", "aws/lambda/"):
            for key, size in self._keys(self._address.prefix + folder):
                yield [self._found(key, size)]

    def settle(self, found: Sequence[Found]) -> None:
        prefix = self._address.prefix
        for one in found:
            to = f"{prefix}{REDRIVEN}{one.place.removeprefix(prefix)}"
            bucket, owner = self._address.name, self._owner.account()
            call(
                f"Copying an object of bucket {bucket!r} below {prefix}{REDRIVEN}",
                self._client.copy_object,
                Bucket=bucket,
                Key=to,
                CopySource={"Bucket": bucket, "Key": one.place},
                ExpectedBucketOwner=owner,
                ExpectedSourceBucketOwner=owner,
                **({"CopySourceIfMatch": one.handle} if one.handle else {}),
            )
            self._call("Deleting a redriven object", self._client.delete_object, Key=one.place)

    def close(self) -> None:
        """Let others redrive the prefix; where that fails, somebody has to delete the object."""
        if self._has_lock:
            self._has_lock = False
            with suppress(SetupError, TemporaryError):
                self._call("Ending the redrive", self._client.delete_object, Key=self._lock)

    def _take_lock(self) -> None:
        """Raises Refused while another command has it."""

        def refusal(code: str | None, failure: PyKclError) -> PyKclError:
            if code not in _IS_THERE:
                return failure
            return Refused(
                f"s3://{self._address.name}/{self._address.prefix} is being redriven by another command. Do: wait "
                f"until it has ended; if it was killed: aws s3 rm s3://{self._address.name}/{self._lock}."
            )

        answer_of(
            f"Beginning the redrive of bucket {self._address.name!r}",
            self._client.put_object,
            {
                "Bucket": self._address.name,
                "Key": self._lock,
                "Body": b"",
                "IfNoneMatch": "*",
                "ExpectedBucketOwner": self._owner.account(),
            },
            refusal=refusal,
        )
        self._has_lock = True

    def _keys(self, prefix: str) -> Iterator[tuple[str, int]]:
        more: dict[str, str] = {}
        while True:
            answer = self._call(
                "Listing the dead letters", self._client.list_objects_v2, Prefix=prefix, **more
            )
            for entry in answer.get("Contents") or ():
                key, size = entry.get("Key"), entry.get("Size")
                if not isinstance(key, str) or not isinstance(size, int):
                    raise TemporaryError("A listing of S3 lacks a key or a size. Ask again.")
                yield key, size
            token = answer.get("NextContinuationToken")
            if not answer.get("IsTruncated"):
                return
            if not token or token == more.get("ContinuationToken"):
                raise TemporaryError("A listing of S3 does not end: a page repeated.")
            more = {"ContinuationToken": token}

    def _found(self, key: str, size: int) -> Found:
        if size > MAX_LETTER_BYTES:
            return Found(key, None, f"it is no letter: it has {size:,} bytes, more than {MAX_LETTER_BYTES:,}")
        answer = self._call("Reading a dead letter", self._client.get_object, Key=key)
        body: _Body = answer["Body"]
        text = bytes(call("Reading a dead letter", _reader(body))["text"])
        return parsed(text, key, answer.get("ETag"))

    def _call(self, doing: str, method: Callable[..., Any], **request: Any) -> Any:
        name = self._address.name
        return call(
            f"{doing} of bucket {name!r}",
            method,
            Bucket=name,
            ExpectedBucketOwner=self._owner.account(),
            **request,
        )


def _reader(body: _Body) -> Callable[[], dict[str, bytes]]:
    return lambda: {"text": body.read(MAX_LETTER_BYTES + 1)}
