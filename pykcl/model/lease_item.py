"""One row of the lease table ⇄ its parsed value. Pure, strict, and never raising for what a table may hold.

Attribute names and their absence rules are Java KCL's (v3.5.1
`leases/dynamodb/DynamoDBLeaseSerializer.java`); rows that are not leases are distinguished as KCL 3.5 does
(`entityType`), and by shape where older versions set none. A row is input from outside: types and sizes are
checked before anything is converted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import (
    AttributeValue,
    ForeignRow,
    Lease,
    PendingCheckpoint,
    PykclMetadata,
    Row,
    Standstill,
    UnreadableRow,
)
from pykcl.model.shard import HashRange

LEASE_KEY = "leaseKey"
LEASE_OWNER = "leaseOwner"
LEASE_COUNTER = "leaseCounter"
OWNER_SWITCHES = "ownerSwitchesSinceCheckpoint"
CHECKPOINT = "checkpoint"
CHECKPOINT_SUB = "checkpointSubSequenceNumber"
PARENTS = "parentShardId"
CHILDREN = "childShardIds"
STARTING_HASH_KEY = "startingHashKey"
ENDING_HASH_KEY = "endingHashKey"
PENDING = "pendingCheckpoint"
PENDING_SUB = "pendingCheckpointSubSequenceNumber"
PENDING_STATE = "pendingCheckpointState"
CHECKPOINT_OWNER = "checkpointOwner"
ENTITY_TYPE = "entityType"
METADATA = "pykcl"
THROUGHPUT = "throughputKBps"

ENTITY_LEASE = "LEASE"

MAX_NAME = 256
"""Longest lease key, owner or shard id that is believed."""
MAX_COUNTER = 2**63 - 1
_MAX_CHILDREN = 16  # Kinesis makes at most two; a longer list is nobody's
_is_number = re.compile(r"(?:0|[1-9][0-9]{0,18})\Z").match
_is_decimal = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,38})?(?:E[+-]?[0-9]{1,3})?\Z").match
_MULTI_STREAM_KEY = re.compile(r"[0-9]{12}:[A-Za-z0-9_.-]{1,128}:[0-9]{1,19}:.")

_LEASE_NAME = re.compile(r"(?:.*:)?shardId-[0-9]+\Z")

MIGRATION_KEY, LEADER_KEY, TABLE_MIGRATION_KEY = "Migration3.0", "Leader", "TableMigration3.5"
MIGRATION_KIND = "CLIENT_VERSION_MIGRATION"
TABLE_MIGRATION_KIND = "TABLE_MIGRATION"
METRICS_KIND = "WORKER_METRIC_STATS"
LEADER_KIND = "LEADER"
# Rows of KCL 3.x without entityType, by an attribute no lease has: coordinator state, worker metrics, leader
# lock, stream info (coordinator/, worker/metricstats/ and leader/ of v3.x; the lock is
# amazon-dynamodb-lock-client's).
_FOREIGN_MARKS = {
    "cv": MIGRATION_KIND,
    "tm": TABLE_MIGRATION_KIND,
    "lut": METRICS_KIND,
    "wid": METRICS_KIND,
    "recordVersionNumber": LEADER_KIND,
    "leaseDuration": LEADER_KIND,
    "streamId": "STREAM",
}
OWNER_INDEX = "LeaseOwnerToLeaseKeyIndex"
"""KCL 3.x's index of the lease table (`leases/dynamodb/DynamoDBLeaseRefresher.java`)."""
_FLEET_KINDS = frozenset({METRICS_KIND, LEADER_KIND, TABLE_MIGRATION_KIND})
_CLIENT_VERSION = re.compile(r"CLIENT_VERSION_[A-Z0-9_]{1,48}\Z")
_FOREIGN_KEYS = {
    LEADER_KEY: LEADER_KIND,
    MIGRATION_KEY: MIGRATION_KIND,
    TABLE_MIGRATION_KEY: TABLE_MIGRATION_KIND,
}

_METADATA_NAMES = (
    "streamArn",
    "streamCreatedAt",
    "owner",
    "version",
    "latestFrom",
    "session",
    "failoverMillis",
    "latestDone",
    "consumer",
    "until",
    "from",
    "latestReset",
    "shards",
)
_STANDSTILL = "standstill"
MAX_CAUSE = 200
"""Characters of the cause, and of the error code, in a note of a standstill."""
_MAX_METADATA_TEXT = 2048
_MAX_TIME_DIGITS = 14  # epoch milliseconds until the year 5138
_NULL: AttributeValue = {"NULL": True}
_EMPTY: AttributeValue = {"S": ""}
_OURS: tuple[AttributeValue, ...] = ({"S": ENTITY_LEASE}, _NULL)


class _BadValueError(ValueError):
    """A value that a lease row must not have; its text becomes the problem of an UnreadableRow."""


def is_lease_key(text: str) -> bool:
    """Return whether KCL may give a row that key to keep a lease in it, of one stream or of several."""
    return _LEASE_NAME.match(text) is not None


def parse_row(item: Mapping[str, AttributeValue]) -> Row:
    """The row as a value. `item` is in wire form, as boto3's client returns it ({"S": …}, binary as bytes).

    Never raises: what is not a lease becomes ForeignRow, a lease that cannot be understood UnreadableRow.
    Optional attributes of type NULL count as absent, as for Java; they are kept in `extra`.
    """
    key = _text_of(item.get(LEASE_KEY))
    foreign = _foreign_kind(item, key)
    if foreign is not None:
        content = item if foreign in _FLEET_KINDS else {}
        return ForeignRow(_shown_key(item, key), foreign, _client_version(item, foreign), content)
    if key is None or not 0 < len(key) <= MAX_NAME:
        return UnreadableRow(
            key=(key or "")[:MAX_NAME],
            problem=f"leaseKey is not text of 1 to {MAX_NAME} characters",
            owner=_text_of(item.get(LEASE_OWNER)),
        )
    try:
        return _parse_lease(key, item)
    except _BadValueError as bad:
        return UnreadableRow(key=key, problem=str(bad), owner=_text_of(item.get(LEASE_OWNER)))


def to_item(lease: Lease) -> dict[str, AttributeValue]:
    """The whole row of `lease` in wire form, including what only `extra` knows. For creating rows, and for
    tests.
    """
    item: dict[str, AttributeValue] = {LEASE_KEY: {"S": lease.key}}
    for field in FIELD_ATTRIBUTES:
        item.update({name: value for name, value in field_item(lease, field).items() if value is not None})
    return {**lease.extra, **item}


FIELD_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "counter": (LEASE_COUNTER,),
    "owner": (LEASE_OWNER,),
    "owner_switches": (OWNER_SWITCHES,),
    "checkpoint": (CHECKPOINT, CHECKPOINT_SUB),
    "parents": (PARENTS,),
    "children": (CHILDREN,),
    "hash_range": (STARTING_HASH_KEY, ENDING_HASH_KEY),
    "pending": (PENDING, PENDING_SUB, PENDING_STATE),
    "checkpoint_owner": (CHECKPOINT_OWNER,),
    "entity_type": (ENTITY_TYPE,),
    "metadata": (METADATA,),
    "throughput": (THROUGHPUT,),
}
"""Which attributes of the row hold which field of a Lease."""

_KNOWN = frozenset({LEASE_KEY, *(name for names in FIELD_ATTRIBUTES.values() for name in names)})


def field_item(lease: Lease, field: str) -> dict[str, AttributeValue | None]:
    """The attributes that hold one field of `lease`, in wire form; None: to be absent."""
    value: Any = getattr(lease, field)
    names = FIELD_ATTRIBUTES[field]
    if value is None or value == ():
        return dict.fromkeys(names)
    return dict(zip(names, _ENCODERS[field](value), strict=True))


def _position_values(position: Checkpoint) -> tuple[AttributeValue, AttributeValue]:
    return {"S": position.sequence_number}, {"N": str(position.sub_sequence_number)}


def _metadata_map(metadata: PykclMetadata) -> dict[str, AttributeValue]:
    known = (
        metadata.stream_arn,
        metadata.stream_created_at,
        metadata.owner,
        metadata.version,
        metadata.latest_from,
        metadata.process_token,
        metadata.failover_millis,
        metadata.latest_done,
        metadata.consumer,
        metadata.until,
        metadata.begin,
        metadata.latest_reset,
        metadata.shards,
    )
    written: dict[str, AttributeValue] = {
        name: {"N": str(one)} if isinstance(one, int) else {"S": one}
        for name, one in zip(_METADATA_NAMES, known, strict=True)
        if one is not None
    }
    if metadata.standstill is not None:
        written[_STANDSTILL] = {"M": _standstill_map(metadata.standstill)}
    return {**metadata.extra, **written}


def _standstill_map(note: Standstill) -> dict[str, AttributeValue]:
    at, sub = _position_values(note.at)
    texts = {"code": note.code, "cause": note.cause}
    return {
        CHECKPOINT: at,
        CHECKPOINT_SUB: sub,
        "since": {"N": str(note.since)},
        "handedBack": {"N": str(note.handed_back)},
        "records": {"N": str(note.records)},
        **{name: {"S": text} for name, text in texts.items() if text},
    }


_ENCODERS: Mapping[str, Callable[[Any], tuple[AttributeValue | None, ...]]] = {
    "counter": lambda number: ({"N": str(number)},),
    "owner": lambda text: ({"S": text},),
    "owner_switches": lambda number: ({"N": str(number)},),
    "checkpoint": _position_values,
    "parents": lambda names: ({"SS": list(names)},),
    "children": lambda names: ({"SS": list(names)},),
    "hash_range": lambda found: ({"S": str(found.first)}, {"S": str(found.last)}),
    "pending": lambda pending: (
        *_position_values(pending.checkpoint),
        None if pending.state is None else {"B": pending.state},
    ),
    "checkpoint_owner": lambda text: ({"S": text},),
    "entity_type": lambda text: ({"S": text},),
    "metadata": lambda metadata: ({"M": _metadata_map(metadata)},),
    "throughput": lambda text: ({"N": text},),
}


def _foreign_kind(item: Mapping[str, AttributeValue], key: str | None) -> str | None:
    entity = item.get(ENTITY_TYPE)
    if entity is not None and entity not in _OURS:
        kind = entity.get("S") if isinstance(entity, dict) else None
        return kind[:64] if isinstance(kind, str) and kind else "unknown"
    if "streamName" in item or (key is not None and ":" in key and _MULTI_STREAM_KEY.match(key)):
        return "multi-stream lease"
    if LEASE_COUNTER in item or CHECKPOINT in item:
        return None
    for mark, kind in _FOREIGN_MARKS.items():
        if mark in item:
            return kind
    return _FOREIGN_KEYS.get(key) if key is not None else None


def _client_version(item: Mapping[str, AttributeValue], kind: str) -> str | None:
    text = _text_of(item.get("cv")) if kind == MIGRATION_KIND else None
    return text if text is not None and _CLIENT_VERSION.match(text) else None


def _shown_key(item: Mapping[str, AttributeValue], key: str | None) -> str:
    # The auxiliary tables of KCL 3.0-3.4 call their key `key` or `wid`.
    for text in (key, _text_of(item.get("key")), _text_of(item.get("wid"))):
        if text:
            return text[:MAX_NAME]
    return ""


def _parse_lease(key: str, item: Mapping[str, AttributeValue]) -> Lease:
    # Attributes with no place in a Lease; the readers below add known ones that they read as absent.
    extra = {name: value for name, value in item.items() if name not in _KNOWN}
    return Lease(
        key=key,
        checkpoint=_position(CHECKPOINT, item.get(CHECKPOINT), item.get(CHECKPOINT_SUB), CHECKPOINT_SUB),
        counter=_number(LEASE_COUNTER, item.get(LEASE_COUNTER)),
        owner=_name(item, LEASE_OWNER, extra),
        owner_switches=_number(OWNER_SWITCHES, item.get(OWNER_SWITCHES)),
        parents=_names(item, PARENTS, 2, extra),
        children=_names(item, CHILDREN, _MAX_CHILDREN, extra),
        hash_range=_hash_range(item, extra),
        pending=_pending(item, extra),
        checkpoint_owner=_name(item, CHECKPOINT_OWNER, extra),
        entity_type=_name(item, ENTITY_TYPE, extra),
        metadata=_metadata(item, extra),
        throughput=_throughput(item, extra),
        extra=extra,
    )


def _text_of(value: AttributeValue | None) -> str | None:
    text = value.get("S") if isinstance(value, dict) else None
    return text if isinstance(text, str) else None


def _digits_of(value: AttributeValue | None) -> str | None:
    # The pattern bounds the digits before int() sees them.
    text = value.get("N") if isinstance(value, dict) else None
    return text if isinstance(text, str) and _is_number(text) else None


def _number(name: str, value: AttributeValue | None) -> int:
    digits = _digits_of(value)
    if digits is None or (number := int(digits)) > MAX_COUNTER:
        raise _BadValueError(f"{name} is missing or not a whole number from 0 to 2^63-1")
    return number


def _keep(item: Mapping[str, AttributeValue], name: str, extra: dict[str, AttributeValue]) -> None:
    if name in item:
        extra[name] = item[name]


def _name(item: Mapping[str, AttributeValue], name: str, extra: dict[str, AttributeValue]) -> str | None:
    """Text of 1 to 256 characters. NULL and "" read as absent and are kept, so that a take can match them."""
    value = item.get(name)
    if value is None:
        return None
    text = _text_of(value)
    if text and len(text) <= MAX_NAME:
        return text
    if value not in (_NULL, _EMPTY):
        raise _BadValueError(f"{name} is not text of at most {MAX_NAME} characters")
    extra[name] = value
    return None


def _throughput(item: Mapping[str, AttributeValue], extra: dict[str, AttributeValue]) -> str | None:
    """Text of a number. Nothing is decided by it, so what is of another form is only kept."""
    value = item.get(THROUGHPUT)
    text = value.get("N") if isinstance(value, dict) else None
    if isinstance(text, str) and _is_decimal(text):
        return text
    _keep(item, THROUGHPUT, extra)
    return None


def _names(
    item: Mapping[str, AttributeValue], name: str, most: int, extra: dict[str, AttributeValue]
) -> tuple[str, ...]:
    value = item.get(name)
    if value is None or value == _NULL:
        _keep(item, name, extra)
        return ()
    names = value.get("SS") if isinstance(value, dict) else None
    if not isinstance(names, list | tuple | set) or not 1 <= len(names) <= most:
        raise _BadValueError(f"{name} is not a set of 1 to {most} texts")
    for text in names:
        if not isinstance(text, str) or not 0 < len(text) <= MAX_NAME:
            raise _BadValueError(f"{name} holds something that is not text of 1 to {MAX_NAME} characters")
    return tuple(names)


def _position(
    name: str, value: AttributeValue | None, sub_value: AttributeValue | None, sub_name: str
) -> Checkpoint:
    text = _text_of(value)
    # Java reads a missing sub-sequence number as 0 (ExtendedSequenceNumber.java).
    sub = 0 if sub_value is None or sub_value == _NULL else _number(sub_name, sub_value)
    try:
        return Checkpoint(text or "", sub)
    except ValueError:
        raise _BadValueError(f"{name} is neither a sequence number nor a sentinel") from None


def _pending(
    item: Mapping[str, AttributeValue], extra: dict[str, AttributeValue]
) -> PendingCheckpoint | None:
    value = item.get(PENDING)
    if value is None or value == _NULL:
        for name in (PENDING, PENDING_SUB, PENDING_STATE):
            _keep(item, name, extra)
        return None
    position = _position(PENDING, value, item.get(PENDING_SUB), PENDING_SUB)
    state = item.get(PENDING_STATE)
    if state is None or state == _NULL:
        _keep(item, PENDING_STATE, extra)
        return PendingCheckpoint(position)
    content = state.get("B") if isinstance(state, dict) else None
    if not isinstance(content, bytes):
        raise _BadValueError(f"{PENDING_STATE} is not binary")
    return PendingCheckpoint(position, content)


def _hash_range(item: Mapping[str, AttributeValue], extra: dict[str, AttributeValue]) -> HashRange | None:
    start, end = item.get(STARTING_HASH_KEY), item.get(ENDING_HASH_KEY)
    # Java reads a range only when both ends are there (common/HashKeyRangeForLease.java).
    first, last = _text_of(start), _text_of(end)
    if first is not None and last is not None:
        return _range_between(first, last)
    if not (start is None or end is None or _NULL in (start, end)):
        raise _BadValueError("startingHashKey and endingHashKey are not text")
    _keep(item, STARTING_HASH_KEY, extra)
    _keep(item, ENDING_HASH_KEY, extra)
    return None


@lru_cache(maxsize=4096)
def _range_between(start: str, end: str) -> HashRange:
    """Remembered, because a shard's range is the same in every scan."""
    found = HashRange.parse(start, end)
    if found is None:
        raise _BadValueError("startingHashKey and endingHashKey are not a range of 128-bit numbers")
    return found


def _metadata(item: Mapping[str, AttributeValue], extra: dict[str, AttributeValue]) -> PykclMetadata | None:
    """The private map. What is not as this version writes it is kept aside: bad metadata cost no lease."""
    value = item.get(METADATA)
    content = value.get("M") if isinstance(value, dict) else None
    if not isinstance(content, dict):
        _keep(item, METADATA, extra)
        return None
    standstill = None
    if _STANDSTILL in content:
        standstill = _standstill(content[_STANDSTILL])
        content = {name: raw for name, raw in content.items() if name != _STANDSTILL}
    found = _metadata_without_standstill(content)
    return found if standstill is None else replace(found, standstill=standstill)


def _standstill(value: AttributeValue) -> Standstill | None:
    """The note, or None for one of another form: nothing depends on it, so that it need not be kept."""
    content = value.get("M") if isinstance(value, dict) else None
    if not isinstance(content, dict):
        return None
    try:
        at = _position(CHECKPOINT, content.get(CHECKPOINT), content.get(CHECKPOINT_SUB), CHECKPOINT_SUB)
        since = _number("since", content.get("since"))
        handed_back = _number("handedBack", content.get("handedBack"))
        records = _number("records", content.get("records"))
    except _BadValueError:
        return None
    code, cause = (_text_of(content.get(name)) or "" for name in ("code", "cause"))
    if max(len(str(since)), len(str(handed_back)), len(str(records))) > _MAX_TIME_DIGITS:
        return None
    return Standstill(at, since, handed_back, records, code[:MAX_CAUSE], cause[:MAX_CAUSE])


def _metadata_without_standstill(content: Mapping[str, AttributeValue]) -> PykclMetadata:
    get = content.get
    texts = (
        _short(_text_of(get("streamArn")), _MAX_METADATA_TEXT),
        _short(_digits_of(get("streamCreatedAt")), _MAX_TIME_DIGITS),
        _short(_text_of(get("owner")), MAX_NAME),
        _short(_text_of(get("version")), MAX_NAME),
        _short(_digits_of(get("latestFrom")), _MAX_TIME_DIGITS),
        _short(_text_of(get("session")), MAX_NAME),
        _short(_digits_of(get("failoverMillis")), _MAX_TIME_DIGITS),
        _short(_text_of(get("latestDone")), MAX_NAME),
        _short(_text_of(get("consumer")), MAX_NAME),
        _short(_digits_of(get("until")), _MAX_TIME_DIGITS),
        _short(_text_of(get("from")), MAX_NAME),
        _short(_digits_of(get("latestReset")), _MAX_TIME_DIGITS),
        _short(_text_of(get("shards")), _MAX_METADATA_TEXT),
    )
    if len(content) == len(texts) - texts.count(None):
        return _metadata_from(*texts)
    understood = {name for name, text in zip(_METADATA_NAMES, texts, strict=True) if text is not None}
    later = {name: raw for name, raw in content.items() if name not in understood}
    return replace(_metadata_from(*texts), extra=later)


def _short(text: str | None, most: int) -> str | None:
    return text if text is None or len(text) <= most else None


@lru_cache(maxsize=1024)
def _metadata_from(
    stream_arn: str | None,
    created_at: str | None,
    owner: str | None,
    version: str | None,
    latest_from: str | None,
    process_token: str | None,
    failover_millis: str | None,
    latest_done: str | None,
    consumer: str | None,
    until: str | None,
    begin: str | None,
    latest_reset: str | None,
    shards: str | None,
) -> PykclMetadata:
    """Remembered, because all leases of one worker carry the same metadata."""
    return PykclMetadata(
        stream_arn,
        None if created_at is None else int(created_at),
        owner,
        version,
        None if latest_from is None else int(latest_from),
        process_token=process_token,
        failover_millis=None if failover_millis is None else int(failover_millis),
        latest_done=latest_done,
        consumer=consumer,
        until=None if until is None else int(until),
        begin=begin,
        latest_reset=None if latest_reset is None else int(latest_reset),
        shards=shards,
    )
