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
    """Create records from bytes, text (as UTF-8) and whatever JSON can hold.

    partition_key: one key for all, or a function from the value to its key; by default each has its own, "key-0",
    "key-1" and so on. aggregated: put all of them into one KPL aggregate, or one per shard. arrived: when they arrive
    at Kinesis; `run_processor` then sets its clocks accordingly. Raises ConfigError for what cannot be a record.
    """
    moment: Any = arrived
    if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
        raise ConfigError(
            f"arrived={arrived!r} is not an aware datetime. "
            "Do: give one, such as datetime(2026, 1, 2, tzinfo=timezone.utc)."
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
        # A record of another run is put again.
        data = value.data if isinstance(value, Record) else value
        found += [data] if isinstance(data, InputRecord) else records(data, partition_key=f"key-{number}")
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
        if set_arrival is not None:
            set_arrival(each.arrived)
        elif each.arrived is not None:
            raise ConfigError("arrived= needs simulated time. Do: use run_processor, or leave arrived= out.")
        try:
            # A consumer drops an aggregate whole when one of its records belongs to another shard.
            for parts in _by_shard(kinesis, stream, each.parts) if each.aggregated else [each.parts]:
                found += _put(kinesis, stream, parts, aggregated=each.aggregated)
        except AwsError as error:
            raise ConfigError(f"Record {len(found) + 1} cannot be put: {error}") from None
    if set_arrival is not None:
        set_arrival(None)
    return found


def _put(
    kinesis: LocalKinesis, stream: str, parts: Sequence[tuple[bytes, str]], *, aggregated: bool
) -> list[Record]:
    blob, blob_key = parts[0]
    if aggregated:
        try:
            blobs = list(aggregate((key, None, data) for data, key in parts))
        except ValueError as error:
            raise ConfigError(f"A record fits into no aggregate: {error}. Do: put it alone.") from None
        if len(blobs) > 1:
            raise ConfigError(
                f"{len(parts)} records are too large for one aggregate. Do: put several aggregates."
            )
        blob, blob_key = blobs[0].data, blobs[0].partition_key
    put = kinesis.put_record(stream, blob, blob_key)
    found = [
        Record(data, key, put.sequence_number, shard_id=put.shard_id, stream=stream, aggregated=aggregated)
        for data, key in parts
    ]
    for number, record in enumerate(found):
        record.sub_sequence_number = number
    return found


def _by_shard(
    kinesis: LocalKinesis, stream: str, parts: Iterable[tuple[bytes, str]]
) -> list[list[tuple[bytes, str]]]:
    shards = kinesis.list_shards(stream, operation=None)
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
    if callable(key):
        key = key(value)
    if not isinstance(key, str) or not 1 <= len(key) <= 256:
        raise ConfigError(
            f"The partition key {key!r:.80} is not text of 1 to 256 characters. Do: give such a key."
        )
    return key


def refuse_number(name: str, value: Any, lowest: int | None = None, highest: int | None = None) -> None:
    """Raise ConfigError for an argument that is not a whole number in this range."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number and (lowest is None or value >= lowest) and (highest is None or value <= highest):
        return
    bounds = ("" if lowest is None else f" from {lowest}") + ("" if highest is None else f" to {highest}")
    raise ConfigError(f"{name}={value!r:.80} is not a whole number{bounds}. Do: give one.")


def names_in(name: str, value: Any) -> list[Any]:
    """Return the names that an argument lists; None lists none. Raises ConfigError for one text, say."""
    if value is not None and (isinstance(value, str) or not isinstance(value, Iterable)):
        raise ConfigError(f"{name}={value!r:.80} is not a list of names. Do: write {name}=({value!r:.80},).")
    return list(value or ())
