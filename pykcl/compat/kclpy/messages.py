"""Arguments of a record processor: one class for each message of the MultiLang protocol, and Record.

Every class is made from the message's JSON object. Names of attributes, also of those with an underscore, are
amazon_kclpy's: programs and their tests use them.
"""

from __future__ import annotations

from abc import abstractmethod
from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

from pykcl.compat.kclpy.checkpoint_error import CheckpointError
from pykcl.model.record import Record as UserRecord


def unwritten(instance: object, method: str) -> NotImplementedError:
    """Return the error that the method of a base class raises."""
    return NotImplementedError(f"{type(instance).__name__} has no {method}() of its own.")


class MessageDispatcher:
    """A message that knows which method of a (version 3) record processor it is for."""

    @abstractmethod
    def dispatch(self, checkpointer: Any, record_processor: Any) -> Any:
        """Call that method with this message; `checkpointer` is what it offers the processor. Returns what it does."""
        raise unwritten(self, "dispatch")

    @property
    @abstractmethod
    def action(self) -> str:
        """The message's name on the wire, such as "processRecords"."""
        raise unwritten(self, "action")


class _Message(MessageDispatcher):
    def __init__(self, json_dict: Mapping[str, Any]) -> None:
        self._action: str = json_dict["action"]

    @property
    def action(self) -> str:
        """The message's name on the wire, such as "processRecords"."""
        return self._action


class _MessageWithCheckpointer(_Message):
    def __init__(self, json_dict: Mapping[str, Any]) -> None:
        super().__init__(json_dict)
        self._checkpointer: Any = None

    @property
    def checkpointer(self) -> Any:
        """A `kcl.Checkpointer`; None before the message was dispatched."""
        return self._checkpointer


class InitializeInput(_Message):
    """The first message. sequence_number: digits, a word such as "TRIM_HORIZON", or None."""

    def __init__(self, json_dict: Mapping[str, Any]) -> None:
        super().__init__(json_dict)
        self._shard_id: str = json_dict["shardId"]
        self._sequence_number: str | None = json_dict["sequenceNumber"]
        self._sub_sequence_number: int | None = json_dict["subSequenceNumber"]

    @property
    def shard_id(self) -> str:
        """The shard that this processor reads."""
        return self._shard_id

    @property
    def sequence_number(self) -> str | None:
        """The checkpoint at which reading resumes."""
        return self._sequence_number

    @property
    def sub_sequence_number(self) -> int | None:
        """Its sub-sequence number."""
        return self._sub_sequence_number

    def dispatch(self, checkpointer: Any, record_processor: Any) -> Any:
        return record_processor.initialize(self)


class ProcessRecordsInput(_MessageWithCheckpointer):
    """A batch of records of one shard, in order."""

    def __init__(self, json_dict: Mapping[str, Any]) -> None:
        super().__init__(json_dict)
        self._records: list[Record] = json_dict["records"]
        self._millis_behind_latest: int | None = json_dict["millisBehindLatest"]

    @property
    def records(self) -> list[Record]:
        """The batch."""
        return self._records

    @property
    def millis_behind_latest(self) -> int | None:
        """Lag of the batch behind the tip of the shard, in milliseconds."""
        return self._millis_behind_latest

    def dispatch(self, checkpointer: Any, record_processor: Any) -> Any:
        self._checkpointer = checkpointer
        return record_processor.process_records(self)


class LeaseLostInput(_Message):
    """Another worker has the shard's lease, or soon will. There is nothing to checkpoint."""

    def dispatch(self, checkpointer: Any, record_processor: Any) -> Any:
        return record_processor.lease_lost(self)


class ShardEndedInput(_MessageWithCheckpointer):
    """Every record of the shard was delivered: checkpoint, else its children do not start."""

    def dispatch(self, checkpointer: Any, record_processor: Any) -> Any:
        self._checkpointer = checkpointer
        return record_processor.shard_ended(self)


class ShutdownRequestedInput(_MessageWithCheckpointer):
    """The worker is stopping: the last chance to checkpoint."""

    def dispatch(self, checkpointer: Any, record_processor: Any) -> Any:
        self._checkpointer = checkpointer
        return record_processor.shutdown_requested(self)


class LeaseLostCheckpointer:
    """Checkpointer of `shutdown` of versions 1 and 2 with the reason ZOMBIE: it always refuses."""

    def checkpoint(self, sequence_number: Any = None, sub_sequence_number: Any = None) -> None:
        # The text is part of the interface: programs compare it.
        raise CheckpointError("Checkpointing is not allowed when the lease is lost")


class ShutdownInput:
    """Input of shutdown in versions 1 and 2.

    reason: "ZOMBIE", the lease is lost; "TERMINATE", the shard has ended: checkpoint.
    """

    def __init__(self, reason: str, checkpointer: Any) -> None:
        self._action = "shutdown"
        self._reason = reason
        self._checkpointer = checkpointer

    @staticmethod
    def zombie() -> ShutdownInput:
        return ShutdownInput("ZOMBIE", LeaseLostCheckpointer())

    @staticmethod
    def terminate(checkpointer: Any) -> ShutdownInput:
        return ShutdownInput("TERMINATE", checkpointer)

    @property
    def action(self) -> str:
        """Always "shutdown"."""
        return self._action

    @property
    def reason(self) -> str:
        """ "ZOMBIE" or "TERMINATE"."""
        return self._reason

    @property
    def checkpointer(self) -> Any:
        """A `kcl.Checkpointer` with TERMINATE, one that refuses with ZOMBIE."""
        return self._checkpointer


class CheckpointInput:
    """The answer to a checkpoint. error: the simple name of a Java exception, or None."""

    def __init__(self, json_dict: Mapping[str, Any]) -> None:
        self._sequence_number: str | None = json_dict["sequenceNumber"]
        self._sub_sequence_number: int | None = json_dict["subSequenceNumber"]
        self._error: str | None = json_dict.get("error")

    @property
    def sequence_number(self) -> str | None:
        """The requested sequence number."""
        return self._sequence_number

    @property
    def sub_sequence_number(self) -> int | None:
        """The requested sub-sequence number."""
        return self._sub_sequence_number

    @property
    def error(self) -> str | None:
        """The simple name of Java's exception; None: it was written."""
        return self._error


class Record:
    """One user record. `record["data"]` and `record.get("data")` know the names of the JSON object."""

    def __init__(self, json_dict: Mapping[str, Any]) -> None:
        self._sequence_number: str = json_dict["sequenceNumber"]
        self._sub_sequence_number: int = json_dict["subSequenceNumber"]
        self._timestamp_millis = int(json_dict["approximateArrivalTimestamp"])
        self._partition_key: str = json_dict["partitionKey"]
        self._data: str = json_dict["data"]
        self._json_dict = json_dict

    @property
    def data(self) -> str:
        """The payload, base64 text."""
        return self._data

    @property
    def binary_data(self) -> bytes:
        """The payload."""
        return b64decode(self._data)

    @property
    def partition_key(self) -> str:
        return self._partition_key

    @property
    def sequence_number(self) -> str:
        """Decimal digits; the records of one aggregate share it."""
        return self._sequence_number

    @property
    def sub_sequence_number(self) -> int:
        """Index inside an aggregate, 0 for a plain record."""
        return self._sub_sequence_number

    @property
    def timestamp_millis(self) -> int:
        """Arrival at Kinesis, epoch milliseconds."""
        return self._timestamp_millis

    @property
    def approximate_arrival_timestamp(self) -> datetime:
        """Arrival at Kinesis in local time, without a time zone (as amazon_kclpy has it)."""
        return datetime.fromtimestamp(self.timestamp_millis / 1000.0)  # noqa: DTZ006 - amazon_kclpy's own

    @property
    def _approximate_arrival_timestamp(self) -> datetime:
        return self.approximate_arrival_timestamp

    def get(self, field: str) -> Any:
        """A field of the JSON object. Raises KeyError for one it does not have."""
        return self._json_dict[field]

    def __getitem__(self, field: str) -> Any:
        return self.get(field)


class DeliveredRecord(Record):
    """A Record around one that pykcl delivered. Nothing is encoded before it is asked for: most programs want the bytes
    only."""

    __slots__ = ("_record",)

    def __init__(self, record: UserRecord) -> None:
        # Not Record's own: it would encode everything. So everything Record answers is answered below.
        self._record = record

    @property
    def data(self) -> str:
        return b2a_base64(self._record.data, newline=False).decode("ascii")

    @property
    def binary_data(self) -> bytes:
        return self._record.data

    @property
    def partition_key(self) -> str:
        return self._record.partition_key

    @property
    def sequence_number(self) -> str:
        return self._record.sequence_number

    @property
    def sub_sequence_number(self) -> int:
        return self._record.sub_sequence_number

    @property
    def timestamp_millis(self) -> int:
        return round(self._record.arrived_at_millis)

    @property
    def _json_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {field: of(self) for field, of in _FIELDS.items()}

    def get(self, field: str) -> Any:
        return _FIELDS[field](self)

    __getitem__ = get


for _name in (
    "data",
    "partition_key",
    "sequence_number",
    "sub_sequence_number",
    "timestamp_millis",
    "approximate_arrival_timestamp",
):
    # To be read under amazon_kclpy's own names; not to be set, as nothing would come of it.
    setattr(DeliveredRecord, f"_{_name}", getattr(DeliveredRecord, _name))

_FIELDS: dict[str, Callable[[DeliveredRecord], Any]] = {
    "action": lambda _: "record",
    "partitionKey": attrgetter("_record.partition_key"),
    "sequenceNumber": attrgetter("_record.sequence_number"),
    "subSequenceNumber": attrgetter("_record.sub_sequence_number"),
    "approximateArrivalTimestamp": attrgetter("timestamp_millis"),
    "data": attrgetter("data"),
}
"""Field of the JSON object: what it holds."""

_AS_WRITTEN = dict(vars(Record))


def record_maker() -> Callable[[UserRecord], Record]:
    """Return the factory of records for a program, for the current state of `Record`.

    amazon_kclpy creates every record from that class. So if the program has replaced an attribute of the class, records
    are created as there, from the whole JSON object.
    """
    now = vars(Record)
    if all(now.get(name) is value for name, value in _AS_WRITTEN.items()):
        return DeliveredRecord
    return lambda record: Record(DeliveredRecord(record)._json_dict)
