"""The writes that docs/lease-table.md prints: one life of one row, from its creation to its deletion."""

from __future__ import annotations

from typing import Any

from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, PendingCheckpoint, PrivateNote
from pykcl.model.lease_row import (
    LeaseWrite,
    checkpoint,
    create,
    delete,
    end_shard,
    prepare,
    release,
    renew,
    take,
)
from pykcl.model.shard import HashRange

STREAM = PrivateNote(
    stream_arn="arn:aws:kinesis:us-east-1:123456789012:stream/orders",
    stream_created_at=1_790_000_000_000,
    version="0.1.0",
)
NEW = Lease(
    "shardId-000000000002",
    AT_TRIM_HORIZON,
    parents=("shardId-000000000000",),
    hash_range=HashRange("0", "170141183460469231731687303715884105727"),
    note=STREAM,
)


def _after(write: LeaseWrite) -> Lease:
    if write.after is None:
        raise ValueError("nothing is left after a delete")
    return write.after


def by_heading() -> dict[str, LeaseWrite]:
    """Heading of the section -> the write it prints."""
    created = create(NEW)
    taken = take(_after(created), "host-a:17:c0ffee", _note("host-a:17:c0ffee"))
    renewed = renew(_after(taken))
    here = Checkpoint("49668965000000000000000000000000000000000000000000000018", 3)
    checkpointed = checkpoint(_after(renewed), here)
    prepared = prepare(_after(checkpointed), PendingCheckpoint(here, b"state"))
    stolen = take(_after(prepared), "host-b:9:decade", _note("host-b:9:decade"))
    ended = end_shard(_after(stolen), ["shardId-000000000005", "shardId-000000000006"])
    return {
        "create": created,
        "take an unowned lease": taken,
        "take an owned lease": stolen,
        "renew": renewed,
        "checkpoint": checkpointed,
        "prepare": prepared,
        "end": ended,
        "release": release(_after(prepared)),
        "delete an ended lease": delete(_after(ended), ended=True),
        "delete the lease of a shard that is gone": delete(_after(prepared), ended=False),
    }


def printable(write: LeaseWrite) -> dict[str, Any]:
    """The request as JSON can show it: bytes as text."""
    operation, params = write.request()

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        return [plain(one) for one in value] if isinstance(value, list) else value

    return {"operation": operation, **plain(params)}


def _note(owner: str) -> PrivateNote:
    return PrivateNote(STREAM.stream_arn, STREAM.stream_created_at, owner, STREAM.version)
