"""The MultiLang protocol: one JSON object a line, to a child and from it.

Fields, values and their order are those of `software.amazon.kinesis.multilang.messages` (multilang 2.7.2 and 3.1.3),
as Jackson writes them, but in ASCII only: the same JSON, which no child misreads because of its locale, or because of a
line separator in a partition key.

A checkpoint that a child asks for has Java's meaning, and its error Java's name: `JavaCheckpoints`, which serves the
programs of amazon_kclpy in this process, too.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import Any

from pykcl.errors import (
    CheckpointRefused,
    LeaseLostError,
    PyKclError,
    SetupError,
    TableGone,
    TemporaryError,
    Throttled,
)
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.metered_json import read_json
from pykcl.model.record import Record
from pykcl.processor import Checkpointer

INITIALIZE = "initialize"
PROCESS_RECORDS = "processRecords"
LEASE_LOST = "leaseLost"
SHARD_ENDED = "shardEnded"
SHUTDOWN_REQUESTED = "shutdownRequested"

CHUNK_BYTES = 256 * 1024
"""A line of records is encoded in pieces of about this size, so that it never exists as a whole."""

_STATUS_FIELDS = {"action", "responseFor"}
_CHECKPOINT_FIELDS = {"action", "sequenceNumber", "subSequenceNumber", "error"}
_LONGEST_NUMBER = 100


@dataclass(frozen=True, slots=True)
class CheckpointAsked:
    """A checkpoint request. Both numbers None: the largest delivered position, or the end of the shard.

    wrong: the field with an invalid value (None here): refuse the request. early: the request was sent before the
    pending action had been written to the child, so it is not for the records of that action.
    """

    sequence_number: str | None
    sub_sequence_number: int | None
    wrong: str | None = None
    early: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """The child has finished an action. response_for: that action; None if the line names none."""

    response_for: str | None


@dataclass(frozen=True, slots=True)
class Noise:
    """A line that is not a message of the protocol, such as a print of the program."""


Message = CheckpointAsked | Status


def initialize(shard_id: str, position: Checkpoint) -> bytes:
    """position: the lease's checkpoint; a sentinel is sent by its name."""
    return _line(
        {
            "action": INITIALIZE,
            "shardId": shard_id,
            "sequenceNumber": position.sequence_number,
            "subSequenceNumber": position.sub_sequence_number,
        }
    )


def process_records(records: Iterable[Record], millis_behind_latest: int | None) -> Iterator[bytes]:
    """Yield one line in pieces of about CHUNK_BYTES."""
    pieces = [b'{"action":"processRecords","records":[']
    size, comma = 0, b""
    for record in records:
        piece = b'%b{"data":"%b","partitionKey":%b,"sequenceNumber":"%b",%b,"action":"record"}' % (
            comma,
            b2a_base64(record.data, newline=False),
            encode_basestring_ascii(record.partition_key).encode("ascii"),
            record.sequence_number.encode("ascii"),
            _arrival_and_sub(record),
        )
        comma = b","
        pieces.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            yield b"".join(pieces)
            pieces, size = [], 0
    behind = b"null" if millis_behind_latest is None else b"%d" % millis_behind_latest
    pieces.append(b'],"millisBehindLatest":%b}\n' % behind)
    yield b"".join(pieces)


def _arrival_and_sub(record: Record) -> bytes:
    # No arrival is 0.0 in a Record, and nothing arrived in 1970.
    arrival = b"%d" % round(record.arrived_at_millis) if record.arrived_at_millis else b"null"
    return b'"approximateArrivalTimestamp":%b,"subSequenceNumber":%d' % (arrival, record.sub_sequence_number)


def bare(action: str) -> bytes:
    """Return leaseLost, shardEnded or shutdownRequested, which have no other field."""
    return _line({"action": action})


def checkpoint_answer(asked: CheckpointAsked, error: str | None) -> bytes:
    """Return the answer with the requested position. error: simple name of Java's exception; None for success."""
    return _line(
        {
            "action": "checkpoint",
            "sequenceNumber": asked.sequence_number,
            "subSequenceNumber": asked.sub_sequence_number,
            "error": error,
        }
    )


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


class _Number(str):
    """The text of a number: Jackson passes it on for a field that is a text."""

    __slots__ = ()


_decoder = json.JSONDecoder(parse_int=_Number, parse_float=_Number)


def parse(line: bytes) -> Message | Noise:
    """Parse a line without its end, as strictly as Java's Jackson: a line with an unknown field is noise, text after
    the object is ignored; numbers may be text, and texts numbers.

    Laxer for a checkpoint request with a position that Jackson cannot read, as the child waits for an answer.
    """
    start = line.lstrip(b" \t\r")
    if not start.startswith(b"{"):
        return Noise()
    try:
        found, _ = read_json(start.decode("utf-8"), decode=_decoder.raw_decode)
    except ValueError:
        return Noise()
    action = found.get("action")
    if action == "status" and found.keys() <= _STATUS_FIELDS:
        response_for = found.get("responseFor")
        return Status(response_for) if response_for is None or type(response_for) is str else Noise()
    if action == "checkpoint" and found.keys() <= _CHECKPOINT_FIELDS:
        return _asked(found.get("sequenceNumber"), found.get("subSequenceNumber"))
    return Noise()


def _asked(sequence_number: Any, sub_sequence_number: Any) -> CheckpointAsked:
    if sequence_number is not None and not isinstance(sequence_number, str):
        return CheckpointAsked(None, None, "sequenceNumber")
    number = None if sequence_number is None else str(sequence_number)
    try:
        return CheckpointAsked(number, _whole(sub_sequence_number))
    except (ValueError, OverflowError):
        return CheckpointAsked(number, None, "subSequenceNumber")


def _whole(value: Any) -> int | None:
    """Convert to an int as Jackson does to a Long: a number loses its fraction, a text is parsed. Raises ValueError,
    OverflowError."""
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > _LONGEST_NUMBER:
        raise ValueError("not a number")
    if isinstance(value, _Number) and not value.lstrip("-").isdigit():
        return int(float(value))
    return int(value)


# -- checkpoints -----------------------------------------------------------------------------------------------

SHUTDOWN = "ShutdownException"
THROTTLING = "ThrottlingException"
INVALID_STATE = "InvalidStateException"
DEPENDENCY = "KinesisClientLibDependencyException"
ILLEGAL_ARGUMENT = "IllegalArgumentException"


class JavaCheckpointError(Exception):
    """A checkpoint that was not written. value: the simple name of the exception that Java would have thrown."""

    def __init__(self, value: str, message: str) -> None:
        super().__init__(message)
        self.value = value


class JavaCheckpoints:
    """checkpointer: of the running call; None where Java has none either (initialize, leaseLost)."""

    def __init__(self, checkpointer: Checkpointer | None) -> None:
        self._checkpointer = checkpointer

    def checkpoint(self, sequence_number: str | None = None, sub_sequence_number: int | None = None) -> None:
        """Checkpoint as Java's RecordProcessorCheckpointer does.

        Without a sequence number at the largest delivered position, or at the end of an ended shard; a sub-sequence
        number alone has no effect. A sequence number alone means its first record (sub-sequence number 0).
        Raises JavaCheckpointError; then nothing was written, or after a temporary error possibly so.
        """
        if self._checkpointer is None:
            raise JavaCheckpointError(
                INVALID_STATE, "There is nothing to checkpoint here: no record was delivered."
            )
        try:
            if sequence_number is None:
                self._checkpointer.checkpoint()
            else:
                self._checkpointer.checkpoint(sequence_number, sub_sequence_number or 0)
        except (PyKclError, TypeError, ValueError) as error:
            raise JavaCheckpointError(_name_of(error), str(error)) from error


def _name_of(error: Exception) -> str:
    """Return the simple name of the exception that Java would throw.

    Source: MultiLangDaemon sends the class name of the exception of its checkpointer (2.x, 3.x). Java has one name for
    a lost lease and a stopping worker; a deleted table is an invalid state.
    """
    if isinstance(error, LeaseLostError):
        return SHUTDOWN
    if isinstance(error, Throttled):
        return THROTTLING
    if isinstance(error, TableGone):
        return INVALID_STATE
    if isinstance(error, TemporaryError | SetupError):
        return DEPENDENCY
    if isinstance(error, CheckpointRefused | TypeError | ValueError):
        return ILLEGAL_ARGUMENT
    return INVALID_STATE
