"""One user record as a processor gets it, whether it arrived alone or inside an aggregated record."""

from __future__ import annotations

import json as _json
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from pykcl.model.checkpoint import Checkpoint


class Record:
    """One user record. A slotted value, made once per record on the hot path; treat it as read-only.

    data: the payload, bytes. sequence_number: decimal digits. sub_sequence_number: index inside an aggregated
    record, 0 for a plain one. aggregated: whether it came out of an aggregated record.
    explicit_hash_key: decimal digits, or None; Kinesis returns it for aggregated records only.
    arrived_at_millis: server time of arrival, epoch milliseconds (0.0 where Kinesis sent none).
    """

    __slots__ = (
        "aggregated",
        "arrived_at_millis",
        "data",
        "explicit_hash_key",
        "partition_key",
        "sequence_number",
        "shard_id",
        "stream",
        "sub_sequence_number",
    )

    def __init__(
        self,
        data: bytes,
        partition_key: str,
        sequence_number: str,
        arrived_at_millis: float = 0.0,
        shard_id: str = "",
        stream: str = "",
        sub_sequence_number: int = 0,
        explicit_hash_key: str | None = None,
        aggregated: bool = False,
    ) -> None:
        self.data = data
        self.partition_key = partition_key
        self.sequence_number = sequence_number
        self.arrived_at_millis = arrived_at_millis
        self.shard_id = shard_id
        self.stream = stream
        self.sub_sequence_number = sub_sequence_number
        self.explicit_hash_key = explicit_hash_key
        self.aggregated = aggregated

    @property
    def arrived_at(self) -> datetime:
        """Approximate arrival time at Kinesis, aware, UTC."""
        return datetime.fromtimestamp(self.arrived_at_millis / 1000, tz=timezone.utc)

    @property
    def position(self) -> Checkpoint:
        """The position of the record in its shard."""
        return Checkpoint(self.sequence_number, self.sub_sequence_number)

    def text(self, encoding: str = "utf-8") -> str:
        """The payload as text. Raises UnicodeDecodeError when it is not text in that encoding."""
        return self.data.decode(encoding)

    def json(self) -> Any:
        """The payload parsed as JSON. Raises ValueError when it is not JSON."""
        return _json.loads(self.data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in Record.__slots__)

    def __hash__(self) -> int:
        return hash((self.shard_id, self.sequence_number, self.sub_sequence_number))

    def __repr__(self) -> str:
        # Never the payload or the partition key: a repr ends up in logs.
        return (
            f"Record(shard_id={self.shard_id!r}, sequence_number={self.sequence_number!r}, "
            f"sub_sequence_number={self.sub_sequence_number}, {len(self.data)} bytes)"
        )


def data_bytes(records: Iterable[Record]) -> int:
    """Of their data alone. For every page: a list of lengths is summed faster than a generator's, or a map's."""
    return sum([len(record.data) for record in records])
