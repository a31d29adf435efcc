"""The writes that docs/reference/lease-table.md prints: one life of one row, from its creation to its deletion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, PendingCheckpoint, PykclMetadata, Standstill, metadata_for
from pykcl.model.lease_writes import (
    LeaseWrite,
    adopt,
    assign,
    begin_hand_over,
    checkpoint,
    create,
    delete,
    end_shard,
    fill_hash_range,
    hand_over,
    prepare,
    release,
    renew,
    reset,
    take,
)
from pykcl.model.shard import HashRange, StreamDescription

STREAM = StreamDescription(
    "orders",
    "arn:aws:kinesis:us-east-1:123456789012:stream/orders",
    created_at=1_790_000_000_000,
    status="ACTIVE",
)
A, B = ("host-a:17:c0ffee", "3f2a9b6c1d0e"), ("host-b:9:decade", "8e41d7a05b92")
"""Two workers: worker identifier, and the token of its process."""


def _noted(lease: Lease, worker: tuple[str, str]) -> PykclMetadata:
    owner, token = worker
    return metadata_for(
        lease,
        stream=STREAM,
        owner=owner,
        version="0.1.0",
        process_token=token,
        now_millis=1_790_000_100_000,
        failover_time=10.0,
    )


_RANGE = HashRange(0, 170141183460469231731687303715884105727)
_BARE = Lease(
    "shardId-000000000002",
    AT_TRIM_HORIZON,
    parents=("shardId-000000000000",),
    hash_range=_RANGE,
)
NEW = _BARE.with_(metadata=_noted(_BARE, A))


def _after(write: LeaseWrite) -> Lease:
    if write.after is None:
        raise ValueError("nothing is left after a delete")
    return write.after


def by_heading() -> dict[str, LeaseWrite]:
    """Heading of the section -> the write it prints."""
    created = create(NEW)
    taken = take(_after(created), A[0], _noted(_after(created), A))
    renewed = renew(_after(taken))
    standing = Standstill(
        AT_TRIM_HORIZON, 1_790_000_200_000, 1, 10, "E12", "process_records raised KeyError at orders.py:12"
    )
    here = Checkpoint("49668965000000000000000000000000000000000000000000000018", 3)
    checkpointed = checkpoint(_after(renewed), here)
    prepared = prepare(_after(checkpointed), PendingCheckpoint(here, b"state"))
    stolen = take(_after(prepared), B[0], _noted(_after(prepared), B))
    assigned = _after(renewed).with_(owner=B[0], metadata=None)
    ended = end_shard(_after(stolen), ["shardId-000000000005", "shardId-000000000006"])
    return {
        "create": created,
        "take an unowned lease": taken,
        "take an owned lease": stolen,
        "adopt an assigned lease": adopt(assigned, _noted(assigned, B)),
        "assign": assign(_after(renewed), B[0], stands_still=True),
        "assign a lease that moves": assign(
            _after(renewed).with_(owner="host-c:4", checkpoint_owner=A[0]), B[0], stands_still=False
        ),
        "begin to hand over": begin_hand_over(_after(renewed), B[0]),
        "renew": renewed,
        "renew with a note": renew(
            _after(taken), metadata=replace(_noted(_after(taken), A), standstill=standing)
        ),
        "renew in a fleet of KCL 3.x": renew(_after(taken), "76.173065"),
        "checkpoint": checkpointed,
        "prepare": prepared,
        "end": ended,
        "release": release(_after(prepared)),
        "hand over": hand_over(_after(prepared).with_(owner="host-c:4", checkpoint_owner=A[0])),
        "delete an ended lease": delete(_after(ended), ended=True),
        "reset": reset(
            _after(prepared), Checkpoint("49668965000000000000000000000000000000000000000000000007")
        ),
        "fill in a hash range": fill_hash_range(_after(prepared).with_(hash_range=None), _RANGE),
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
