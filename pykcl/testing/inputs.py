"""Records for a test: plain values become records of a stream, alone or in KPL aggregates."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import md5
from typing import Any

from pykcl.errors import ConfigError
from pykcl.local.errors import AwsError
from pykcl.local.stream import LocalKinesis
from pykcl.model.kpl import aggregate
from pykcl.model.record import Record
from pykcl.model.shard import Shard


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A record to put: one user record, or several in one KPL aggregate. See `records`.

    parts: payload and partition key of each user record. arrived: its time of arrival, None for the time of the put.
    """

    parts: tuple[tuple[bytes, str], ...]
    aggregated: bool = False
    arrived: datetime | None = None


def records(
    *data: Any,
    partition_key: str | Callable[[Any], str] | None = None,
    aggregated: bool = False,
    arrived: datetime | None = None,
) -> list[InputRecord]:
    """Make records of bytes, text (as UTF-8) and whatever JSON can hold.

    partition_key: one key for all, or a function from the value to its key; by default each has its own, "key-0",
    "key-1" and so on. aggregated: put all of them into one KPL aggregate, or one per shard. arrived: when they arrive
    at Kinesis; `run_processor` then sets its clocks accordingly. Raises ConfigError for what cannot be a record.
    """
    moment: Any = arrived
    if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
        raise ConfigError(
            f"arrived={arrived!r} does not say which moment is meant. "
            "Do: give an aware datetime, such as datetime(2026, 1, 2, tzinfo=timezone.utc)."
        )
    parts = [
        (_payload(value, number), _key(partition_key, value, number)) for number, value in enumerate(data)
    ]
    if aggregated and parts:
        return [InputRecord(tuple(parts), aggregated=True, arrived=arrived)]
    return [InputRecord((part,), arrived=arrived) for part in parts]


def checked_records(given: Any) -> list[InputRecord]:
    """Return what a caller passed as records; plain values among them are converted. Raises ConfigError."""
    if isinstance(given, str | bytes | dict) or not isinstance(given, Iterable):
        raise ConfigError(
            f"The records are one {type(given).__name__}, not a list. Do: records({given!r:.60}), or [{given!r:.60}]."
        )
    found: list[InputRecord] = []
    for number, value in enumerate(given):
        if isinstance(value, Record):
            value = value.data  # noqa: PLW2901 - a record of another run is put again
        found += [value] if isinstance(value, InputRecord) else records(value, partition_key=f"key-{number}")
    return found


def put_all(
    kinesis: LocalKinesis,
    stream: str,
    inputs: Sequence[InputRecord],
    set_arrival: Callable[[datetime | None], None] | None = None,
) -> list[Record]:
    """Put them in order; return every user record as a processor will be given it, without its time of arrival.

    set_arrival: sets the clock of the stream, None for its own time. Raises ConfigError for what cannot be put.
    """
    __tracebackhide__ = True
    found: list[Record] = []
    for each in inputs:
        if each.arrived is not None and set_arrival is None:
            raise ConfigError("arrived= needs simulated time. Do: use run_processor, or leave arrived= out.")
        if set_arrival is not None:
            set_arrival(each.arrived)
        try:
            found += _put(kinesis, stream, each)
        except AwsError as error:
            raise ConfigError(f"Record {len(found) + 1} cannot be put: {error}") from None
    if set_arrival is not None:
        set_arrival(None)
    return found


def _put(kinesis: LocalKinesis, stream: str, each: InputRecord) -> list[Record]:
    if not each.aggregated:
        ((data, key),) = each.parts
        put = kinesis.put_record(stream, data, key)
        return [Record(data, key, put.sequence_number, shard_id=put.shard_id, stream=stream)]
    found: list[Record] = []
    # A consumer drops an aggregate whole when one of its records belongs to another shard.
    for parts in _by_shard(each.parts, kinesis.list_shards(stream, operation=None)):
        try:
            blobs = list(aggregate((key, None, data) for data, key in parts))
        except ValueError as error:
            raise ConfigError(f"A record fits into no aggregate: {error}. Do: put it alone.") from None
        if len(blobs) > 1:
            raise ConfigError(
                f"{len(parts)} records are too large for one aggregate. Do: make several of them."
            )
        put = kinesis.put_record(stream, blobs[0].data, blobs[0].partition_key)
        for number, (data, key) in enumerate(parts):
            record = Record(
                data, key, put.sequence_number, shard_id=put.shard_id, stream=stream, aggregated=True
            )
            record.sub_sequence_number = number
            found.append(record)
    return found


def _by_shard(parts: Iterable[tuple[bytes, str]], shards: Iterable[Shard]) -> list[list[tuple[bytes, str]]]:
    ranges = [shard.hash_range for shard in shards if shard.is_open and shard.hash_range is not None]
    groups: dict[int, list[tuple[bytes, str]]] = {}
    for data, key in parts:
        hashed = int.from_bytes(md5(key.encode(), usedforsecurity=False).digest(), "big")
        ends = [found.last for found in ranges if found.last >= hashed]
        groups.setdefault(min(ends), []).append((data, key))
    return list(groups.values())


def _payload(value: Any, number: int) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, InputRecord | Record):
        raise ConfigError(
            f"Value {number + 1} is a record already. Do: pass its data, or add the lists of records."
        )
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"Value {number + 1} cannot be a record: {error}. Do: give bytes, text, or what JSON can hold."
        ) from None


def _key(partition_key: str | Callable[[Any], str] | None, value: Any, number: int) -> str:
    key: Any = f"key-{number}" if partition_key is None else partition_key
    if not isinstance(key, str):
        key = key(value) if callable(key) else key
    if not isinstance(key, str) or not 1 <= len(key) <= 256:
        raise ConfigError(
            f"The partition key {key!r:.80} is not text of 1 to 256 characters. Do: give such a key."
        )
    return key
