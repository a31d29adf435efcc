"""A dead letter as JSON: the invocation record that Lambda sends to an on-failure destination, extended, and back.

Names and forms are Lambda's. Added are `payload` with the records (a Lambda event as text, which Lambda itself keeps in
S3 only), `payloadEncoding` where that is compressed, and `pykcl`. Lambda's own letters are read, too.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.dead_letter import DeadLetter
from pykcl.model.lambda_event import EventSource, event_of, records_of
from pykcl.model.metered_json import NotJson, read_json
from pykcl.model.record import Record
from pykcl.model.shard import STREAM_ARN

MAX_LETTER_BYTES = 64 * 1024 * 1024
"""Of a letter that is read: four times a record of 10 MiB."""
_MAX_DECOMPRESSED_BYTES = 16 * 1024 * 1024
"""Of a payload: only that of a single record is compressed, which has 10 MiB at most, or 14 in base64."""
MAX_LETTER_RECORDS = 10_000
"""Of a letter that is written: as many as a batch of Lambda. Those that read letters count their values."""
MAX_PART_BYTES = MAX_LETTER_BYTES // 2
"""Of a letter to a destination without a limit of its own."""
MAX_MESSAGE = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GZIP = 31
_LONGEST_NAME = 1024
_POSITION = re.compile(r"(0|[1-9][0-9]{0,128})(?::([0-9]{1,19}))?\Z")
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
_SHARD_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")


class NotALetter(ValueError):
    """A text that is no letter, or one that contradicts itself. The message shows nothing of its content."""


class LetterTooLarge(ValueError):
    """A letter of one record is larger than the limit, even compressed. size: bytes."""

    def __init__(self, letter: DeadLetter, size: int, limit: int) -> None:
        super().__init__(f"the letter of record {letter.records[0].position} has {size:,} bytes of {limit:,}")
        self.letter, self.size, self.limit = letter, size, limit


# -- writing ---------------------------------------------------------------------------------------------------


def letter_text(letter: DeadLetter, *, compressed: bool = False) -> str:
    """Return the letter as one line of JSON in ASCII, the same each time."""
    first, last = letter.records[0], letter.records[-1]
    event = _json(event_of(letter.records, EventSource(letter.stream_arn)))
    payload = {"payload": event}
    if compressed:
        payload = {"payload": b64encode(_compressed(event)).decode("ascii"), "payloadEncoding": "gzip"}
    return _json(
        {
            "requestContext": {
                "requestId": letter.id,
                "functionArn": f"pykcl:{letter.application}:{letter.processor}",
                "condition": letter.condition.value,
                "approximateInvokeCount": letter.attempts,
            },
            "responseContext": {
                "statusCode": 200,
                "executedVersion": "$LATEST",
                "functionError": "Unhandled",
            },
            "version": "1.0",
            "timestamp": _time(letter.created_at),
            "KinesisBatchInfo": {
                "shardId": letter.shard_id,
                "startSequenceNumber": first.sequence_number,
                "endSequenceNumber": last.sequence_number,
                "approximateArrivalOfFirstRecord": _time(first.arrived_at_millis),
                "approximateArrivalOfLastRecord": _time(last.arrived_at_millis),
                "batchSize": len(letter.records),
                "streamArn": letter.stream_arn,
            },
            **payload,
            "pykcl": {
                "id": letter.id,
                "application": letter.application,
                "processor": letter.processor,
                "worker": letter.worker_id,
                "first": str(first.position),
                "last": str(last.position),
                "error": letter.error,
                "where": letter.where,
                "message": letter.message[:MAX_MESSAGE],
                "reason": letter.reason[:MAX_MESSAGE],
                "first_failed_at": None if letter.first_failed_at is None else _time(letter.first_failed_at),
                "stream_created_at": letter.stream_created_at,
            },
        }
    )


def letters_within(letter: DeadLetter, max_bytes: int) -> Iterator[tuple[DeadLetter, str]]:
    """Divide a letter into letters of at most `max_bytes` and 10,000 records, each with its text; the same parts each
    time.

    A single record that is too large is compressed. Raises LetterTooLarge if that is not enough.
    """
    count = len(letter.records)
    text = letter_text(letter) if count <= MAX_LETTER_RECORDS else ""
    if 0 < len(text) <= max_bytes:
        yield letter, text
        return
    if count > 1:
        yield from letters_within(replace(letter, records=letter.records[: count // 2]), max_bytes)
        yield from letters_within(replace(letter, records=letter.records[count // 2 :]), max_bytes)
        return
    text = letter_text(letter, compressed=True)
    if len(text) > max_bytes:
        raise LetterTooLarge(letter, len(text), max_bytes)
    yield letter, text


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _compressed(text: str) -> bytes:
    # zlib writes no time into the header of gzip, so that the same text gives the same bytes.
    stream = zlib.compressobj(wbits=_GZIP)
    return stream.compress(text.encode("ascii")) + stream.flush()


def _time(millis: float) -> str:
    moment = (_EPOCH + timedelta(milliseconds=round(millis))).replace(tzinfo=None)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


# -- reading ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeptLetter:
    """A letter as it was read: of pykcl, or of Lambda, which has no `application` and no sub-sequence numbers.

    first, last: positions of its records. count: how many (of Lambda: Kinesis records, in which there may be several
    user records). Times are epoch milliseconds, None where they cannot be read. message, reason: may quote a payload.
    payload: None where the destination has no records, as SQS and SNS of Lambda.
    """

    id: str
    condition: str
    function: str
    attempts: int
    created_at: int | None
    stream_arn: str
    shard_id: str
    first: Checkpoint
    last: Checkpoint
    count: int
    first_arrived_at: int | None
    last_arrived_at: int | None
    application: str = ""
    worker_id: str = ""
    error: str = ""
    where: str = ""
    stream_created_at: int | None = None
    message: str = field(default="", repr=False)
    reason: str = field(default="", repr=False)
    payload: str | None = field(default=None, repr=False)
    encoding: str = ""

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self.stream_arn.rpartition("/")[2]

    def records(self) -> tuple[Record, ...]:
        """Return the records of a letter with a payload. Raises NotALetter for those that contradict the rest of it."""
        if self.payload is None:
            raise NotALetter("it has no payload")
        text = self.payload if not self.encoding else _decompressed(self.payload, self.encoding)
        try:
            found = records_of(_parsed(text))
        except ValueError as error:
            problem = f"its payload is no Lambda event: {error}"
        else:
            self._refuse_others(found)
            return found
        raise NotALetter(problem)

    def _refuse_others(self, found: tuple[Record, ...]) -> None:
        if len(found) != self.count:
            raise NotALetter(f"its payload has {len(found)} records, and it says {self.count}")
        if any(record.shard_id != self.shard_id or record.stream != self.stream for record in found):
            raise NotALetter("its payload has records of another shard or stream than it says")
        positions = [record.position for record in found]
        if sorted(set(positions)) != positions:
            raise NotALetter("the records of its payload are not in order")
        if (positions[0], positions[-1]) != (self.first, self.last) and (
            self.application
            or (positions[0].sequence_number, positions[-1].sequence_number)
            != (self.first.sequence_number, self.last.sequence_number)
        ):
            raise NotALetter("the records of its payload begin or end elsewhere than it says")


def read_letter(text: str | bytes) -> KeptLetter:
    """Return the letter in a text that anybody may have written: JSON of pykcl or of Lambda, also as SNS passes it on
    to a queue. Raises NotALetter. The payload is not read before `records` is called."""
    found = _parsed(text)
    if isinstance(found, Mapping) and found.get("Type") == "Notification" and "Message" in found:
        found = _parsed(_text(found, "Message", MAX_LETTER_BYTES))
    if not isinstance(found, Mapping) or not isinstance(found.get("KinesisBatchInfo"), Mapping):
        raise NotALetter("it has no KinesisBatchInfo")
    batch, context = found["KinesisBatchInfo"], found.get("requestContext")
    if not isinstance(context, Mapping):
        raise NotALetter("it has no requestContext")
    ours = found.get("pykcl", {})
    if not isinstance(ours, Mapping):
        raise NotALetter("its pykcl is no object")
    letter_id, shard_id, stream_arn = (
        _text(context, "requestId"), _text(batch, "shardId"), _text(batch, "streamArn"),
    )  # fmt: skip
    if not _ID.match(letter_id):
        raise NotALetter("its requestId is no identifier")
    if not _SHARD_ID.match(shard_id) or not STREAM_ARN.match(stream_arn):
        raise NotALetter("its shardId or its streamArn is none")
    payload = found.get("payload")
    if payload is not None and not isinstance(payload, str):
        raise NotALetter("its payload is no text")
    first = _position(ours.get("first", batch.get("startSequenceNumber")))
    last = _position(ours.get("last", batch.get("endSequenceNumber")))
    if last < first:
        raise NotALetter("it ends before it begins")
    return KeptLetter(
        id=letter_id,
        condition=_text(context, "condition", 100),
        function=_text(context, "functionArn"),
        attempts=_count(context, "approximateInvokeCount", least=0),
        created_at=_millis(found.get("timestamp")),
        stream_arn=stream_arn,
        shard_id=shard_id,
        first=first,
        last=last,
        count=_count(batch, "batchSize", least=1),
        first_arrived_at=_millis(batch.get("approximateArrivalOfFirstRecord")),
        last_arrived_at=_millis(batch.get("approximateArrivalOfLastRecord")),
        application=_optional(ours, "application"),
        worker_id=_optional(ours, "worker"),
        error=_optional(ours, "error"),
        where=_optional(ours, "where"),
        stream_created_at=_count(ours, "stream_created_at", least=0)
        if ours.get("stream_created_at") is not None
        else None,
        message=_optional(ours, "message"),
        reason=_optional(ours, "reason"),
        payload=payload,
        encoding=_optional(found, "payloadEncoding"),
    )


def _parsed(text: str | bytes) -> Any:
    if len(text) > MAX_LETTER_BYTES:
        raise NotALetter(f"it has {len(text):,} bytes, more than {MAX_LETTER_BYTES:,}")
    try:
        return read_json(text)
    except NotJson as error:
        problem = str(error)
    raise NotALetter(problem)


def _decompressed(payload: str, encoding: str) -> bytes:
    if encoding != "gzip":
        raise NotALetter("its payloadEncoding is not gzip")
    stream = zlib.decompressobj(_GZIP)
    try:
        text = stream.decompress(b64decode(payload, validate=True), _MAX_DECOMPRESSED_BYTES + 1)
    except (ValueError, zlib.error):
        text = b""
    if not stream.eof or len(text) > _MAX_DECOMPRESSED_BYTES:
        raise NotALetter("its payload is not compressed with gzip, is cut off, or is too large")
    return text


def _text(fields: Mapping[str, Any], name: str, longest: int = _LONGEST_NAME) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise NotALetter(f"its {name} is missing, is no text or is too long")
    return value


def _optional(fields: Mapping[str, Any], name: str) -> str:
    return _text(fields, name, 2 * MAX_MESSAGE) if fields.get(name) else ""


def _count(fields: Mapping[str, Any], name: str, *, least: int) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise NotALetter(f"its {name} is no number from {least} on")
    return value


def _position(value: Any) -> Checkpoint:
    found = _POSITION.match(value) if isinstance(value, str) else None
    sub = int(found[2] or 0) if found is not None else 0
    if found is None or sub >= 2**63:
        raise NotALetter("its first or last position is none")
    return Checkpoint(found[1], sub)


def _millis(value: Any) -> int | None:
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, TypeError, OverflowError):
        return None
