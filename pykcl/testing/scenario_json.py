"""What a scenario's JSON says about shards and leases, as values, and a planned row in the form of the JSON.

Knows the model only. The form itself is told in `scenarios`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pykcl.model.checkpoint import AT_TIMESTAMP, Checkpoint, StartPosition
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.model.shard import HashRange, Shard

_SHARD_KEYS = {
    *("shard_id", "parent_shard_id", "adjacent_parent_shard_id", "hash_key_range", "sequence_number_range"),
}
_UNUSED_LEASE_KEYS = {"pending_checkpoint", "pending_checkpoint_state", "throughput_kbps"}
_LEASE_KEYS = {
    *("lease_key", "checkpoint", "parent_shard_ids", "child_shard_ids", "lease_owner"),
    *("starting_hash_key", "ending_hash_key", "lease_counter", "owner_switches_since_checkpoint"),
    *("checkpoint_owner", "entity_type", "latest_from"),
    *_UNUSED_LEASE_KEYS,
}
_HASH_KEYS = {"starting_hash_key", "ending_hash_key"}
_SEQUENCE_KEYS = {"starting_sequence_number", "ending_sequence_number"}
_CHECKPOINT_KEYS = {"sequence_number", "sub_sequence_number"}


class ScenarioError(ValueError):
    """A file or scenario that is not in the form above. The text says what is wrong and in which scenario."""


def refuse_unknown(raw: Mapping[str, Any], known: Collection[str], what: str) -> None:
    unknown = sorted(raw.keys() - set(known))
    if unknown:
        raise ScenarioError(f"unknown key {', '.join(map(repr, unknown))} of a {what}")


def or_default(body: Mapping[str, Any], key: str, default: Any) -> Any:
    value = body.get(key)
    return default if value is None else value


def start_of(raw: Any) -> StartPosition:
    if raw in ("TRIM_HORIZON", "LATEST"):
        return StartPosition(raw)
    if isinstance(raw, dict) and raw.keys() == {AT_TIMESTAMP} and isinstance(raw[AT_TIMESTAMP], int):
        return StartPosition(AT_TIMESTAMP, at_millis=raw[AT_TIMESTAMP])  # type: ignore[arg-type]
    raise ScenarioError(
        f'strategy {raw!r} is none of "TRIM_HORIZON", "LATEST", {{"AT_TIMESTAMP": epoch millis}}'
    )


def shards_of(body: Mapping[str, Any]) -> tuple[Shard, ...]:
    return tuple(_shard(raw) for raw in body.get("shards") or ())


def _shard(raw: Mapping[str, Any]) -> Shard:
    refuse_unknown(raw, _SHARD_KEYS, "shard")
    hash_range = raw.get("hash_key_range") or {}
    refuse_unknown(hash_range, _HASH_KEYS, "hash key range")
    sequence_range = raw.get("sequence_number_range") or {}
    refuse_unknown(sequence_range, _SEQUENCE_KEYS, "sequence number range")
    parents = (raw.get("parent_shard_id"), raw.get("adjacent_parent_shard_id"))
    return Shard(
        raw["shard_id"],
        tuple(parent for parent in parents if parent),
        _hash_range(hash_range),
        sequence_range.get("starting_sequence_number"),
        sequence_range.get("ending_sequence_number"),
    )


def _hash_range(raw: Mapping[str, Any]) -> HashRange | None:
    start, end = raw.get("starting_hash_key"), raw.get("ending_hash_key")
    return None if start is None or end is None else HashRange.parse(start, end)


def leases_of(raw: Sequence[Mapping[str, Any]] | None) -> dict[str, Lease]:
    return {lease.key: lease for lease in map(_lease, raw or ())}


def _lease(raw: Mapping[str, Any]) -> Lease:
    refuse_unknown(raw, _LEASE_KEYS, "lease")
    latest_from = raw.get("latest_from")
    return Lease(
        key=raw["lease_key"],
        checkpoint=_checkpoint(raw["checkpoint"]),
        counter=raw.get("lease_counter") or 0,
        owner=raw.get("lease_owner"),
        owner_switches=raw.get("owner_switches_since_checkpoint") or 0,
        parents=tuple(raw.get("parent_shard_ids") or ()),
        children=tuple(raw.get("child_shard_ids") or ()),
        hash_range=_hash_range(raw),
        checkpoint_owner=raw.get("checkpoint_owner"),
        entity_type=raw.get("entity_type"),
        metadata=PykclMetadata(latest_from=latest_from) if latest_from is not None else None,
    )


def _checkpoint(raw: Mapping[str, Any]) -> Checkpoint:
    refuse_unknown(raw, _CHECKPOINT_KEYS, "checkpoint")
    sequence_number = raw["sequence_number"]
    sub = 0 if sequence_number == AT_TIMESTAMP else raw.get("sub_sequence_number") or 0
    return Checkpoint(sequence_number, sub)


def described(lease: Lease, start: StartPosition) -> dict[str, Any]:
    """A planned row in the form of `to_create`, every key given; the checkpoint as two keys of its own."""
    at_timestamp = lease.checkpoint.sequence_number == AT_TIMESTAMP
    return {
        "lease_key": lease.key,
        "sequence_number": lease.checkpoint.sequence_number,
        "sub_sequence_number": start.at_millis if at_timestamp else lease.checkpoint.sub_sequence_number,
        "parent_shard_ids": tuple(sorted(lease.parents)),
        "child_shard_ids": tuple(sorted(lease.children)),
        "lease_owner": lease.owner,
        "starting_hash_key": str(lease.hash_range.first) if lease.hash_range else None,
        "ending_hash_key": str(lease.hash_range.last) if lease.hash_range else None,
        "lease_counter": lease.counter,
        "owner_switches_since_checkpoint": lease.owner_switches,
        "checkpoint_owner": lease.checkpoint_owner,
        "entity_type": lease.entity_type,
        "latest_from": lease.metadata.latest_from if lease.metadata else None,
        "pending_checkpoint": None,
        "pending_checkpoint_state": None,
        "throughput_kbps": None,
    }


def normal(raw: Mapping[str, Any]) -> dict[str, Any]:
    """An expected row, comparable with `_describe`: only the keys given."""
    refuse_unknown(raw, _LEASE_KEYS, "lease")
    row = {key: value for key, value in raw.items() if key != "checkpoint"}
    row["lease_key"] = raw["lease_key"]
    checkpoint = raw.get("checkpoint") or {}
    refuse_unknown(checkpoint, _CHECKPOINT_KEYS, "checkpoint")
    row.update(checkpoint)
    if row.get("sub_sequence_number", 0) is None:
        row["sub_sequence_number"] = 0
    for key in ("parent_shard_ids", "child_shard_ids"):
        if key in row:
            row[key] = tuple(sorted(row[key] or ()))
    return row
