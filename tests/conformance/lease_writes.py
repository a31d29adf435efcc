"""One write of every kind the lease protocol has, with the rows they are made for."""

from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, PendingCheckpoint, PykclMetadata
from pykcl.model.shard import HashRange

KEY = "shardId-000000000000"
NOTE = PykclMetadata(
    stream_arn="arn:aws:kinesis:us-east-1:123456789012:stream/s", owner="me", version="0.1.0"
)
NEW = Lease(KEY, AT_TRIM_HORIZON, parents=("p1", "p2"), hash_range=HashRange(0, 9), metadata=NOTE)
HELD = Lease(
    KEY,
    Checkpoint("10", 3),
    counter=7,
    owner="me",
    owner_switches=2,
    parents=("p1", "p2"),
    hash_range=HashRange(0, 9),
    pending=PendingCheckpoint(Checkpoint("11"), b"\x00\xff"),
    entity_type="LEASE",
    throughput="1.5",
    extra={"foreign": {"M": {"deep": {"L": [{"BOOL": True}]}}}},
)
FREE = HELD.with_(owner=None)
THEIRS = HELD.with_(owner="you", checkpoint_owner="before")
BARE = THEIRS.with_(hash_range=None, checkpoint_owner=None)
HANDED = HELD.with_(owner="next", checkpoint_owner="me")
"""A leader of KCL 3.x has begun to hand it over."""
ENDED = FREE.with_(checkpoint=AT_SHARD_END, pending=None)

WRITES = {
    "create": lease_writes.create(NEW),
    "take-unowned": lease_writes.take(FREE, "me", NOTE),
    "take-from-owner": lease_writes.take(THEIRS, "me", NOTE),
    "take-own-orphan": lease_writes.take(HELD, "me", NOTE),
    "adopt": lease_writes.adopt(HELD, NOTE),
    "renew": lease_writes.renew(HELD),
    "renew-with-throughput": lease_writes.renew(HELD, "76.173065"),
    "checkpoint": lease_writes.checkpoint(HELD, Checkpoint("12", 1)),
    "prepare": lease_writes.prepare(HELD, PendingCheckpoint(Checkpoint("13", 2), b"state")),
    "prepare-without-state": lease_writes.prepare(HELD, PendingCheckpoint(Checkpoint("13"))),
    "end": lease_writes.end_shard(HELD, ["c1", "c2"]),
    "release": lease_writes.release(HELD),
    "delete-ended": lease_writes.delete(ENDED, ended=True),
    "delete-gone": lease_writes.delete(FREE, ended=False),
    "renew-asked": lease_writes.renew(HANDED),
    "checkpoint-asked": lease_writes.checkpoint(HANDED, Checkpoint("12", 1)),
    "end-asked": lease_writes.end_shard(HANDED, ["c1", "c2"]),
    "hand-over": lease_writes.hand_over(HANDED),
    "reset": lease_writes.reset(THEIRS, Checkpoint("3", 2)),
    "reset-unowned": lease_writes.reset(FREE, AT_TRIM_HORIZON),
    "reset-ended": lease_writes.reset(ENDED.with_(children=("c1",)), Checkpoint("3")),
    "fill": lease_writes.fill_hash_range(BARE, HashRange(0, 9)),
}


def plain(item):
    """An item with its sets in order, so that == is DynamoDB's equality."""
    if item is None:
        return None
    return {
        name: {kind: sorted(content) if kind in ("SS", "NS", "BS") else content}
        for name, value in item.items()
        for kind, content in value.items()
    }


def taken_over(write):
    """The row once another worker was faster."""
    if write.kind == "create":
        return write.seen.with_(owner="you", counter=1)
    return write.seen.with_(owner="you", counter=write.seen.counter + 1, checkpoint_owner=None)
