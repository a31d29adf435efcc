"""Which rows change so that the table says what a backup says: the way back from a reset, or from a bad deployment."""

from __future__ import annotations

from dataclasses import replace

from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, PendingCheckpoint
from pykcl.model.lease_item import CHECKPOINT_OWNER, LEASE_OWNER
from pykcl.operate.checkpoints.backup import Backup
from pykcl.operate.checkpoints.plan import (
    Plan,
    Situation,
    Step,
    in_order,
    refuse_what_cannot_be_planned,
    reset_step,
    step_to,
)


def plan_restore(situation: Situation, backup: Backup) -> Plan:
    """Rows of the backup get its checkpoint, pending checkpoint and children, and no owner; a missing one is put back.

    Rows that the reset behind this backup has made are deleted again, last and oldest first: a child waits for its
    parent's row until its own position is what it was. Other rows that the backup does not know: where something above
    them goes back to before its end they begin anew, as they did then; else they stay.
    Raises Refused where rows are unreadable or of another stream, or the listing is incomplete.
    """
    wanted = backup.leases.keys() | backup.absent
    if situation.leases or situation.unreadable:
        refuse_what_cannot_be_planned(situation, wanted)
    leases, listed = situation.leases, situation.listing.by_id
    tree = situation.tree
    reread = tree.descendants_of(key for key, lease in backup.leases.items() if not lease.is_ended)
    steps: list[Step] = []
    deletions: list[Step] = []
    hints: list[str] = []
    for key in in_order(leases.keys() | backup.leases.keys(), tree):
        seen, saved = leases.get(key), backup.leases.get(key)
        if saved is not None and seen is not None:
            steps.append(step_to(seen, _as_saved(saved), None))
        elif saved is not None and key in listed:
            steps.append(Step(key, "create", None, _put_back(saved), None, "its row is put back"))
        elif saved is not None:
            hints.append(f"{key}: Kinesis lists this shard no more, so its row is not put back.")
        elif seen is not None and key in backup.absent:
            deletions.append(Step(key, "delete", seen, None, None, "it had no row then"))
        elif seen is not None and key in reread:
            steps.append(reset_step(seen, AT_TRIM_HORIZON, None, "again from its beginning"))
        elif seen is not None:
            steps.append(Step(key, "keep", seen, None, None, "not in the backup"))
    bare = sorted(key for key, lease in backup.leases.items() if lease.checkpoint.sequence_number == "LATEST")
    if bare:
        hints.append(
            f"{', '.join(bare)}: at LATEST, as then: without a time of start that is when it is taken."
        )
    return Plan((*steps, *deletions), tuple(hints))


def _as_saved(saved: Lease) -> Lease:
    """Sentinels without the sub-sequence number that other libraries leave beside them; children at the end only."""
    at, pending = saved.checkpoint, saved.pending
    plain = Checkpoint(at.sequence_number) if at.is_sentinel else at
    if pending is not None and pending.checkpoint.is_sentinel:
        pending = PendingCheckpoint(Checkpoint(pending.checkpoint.sequence_number), pending.state)
    return replace(
        saved, checkpoint=plain, pending=pending, children=saved.children if plain.is_shard_end else ()
    )


def _put_back(saved: Lease) -> Lease:
    """Unowned, and above the counter of then, so that no write from before fits."""
    extra = {
        name: value for name, value in saved.extra.items() if name not in (LEASE_OWNER, CHECKPOINT_OWNER)
    }
    row = _as_saved(saved)
    return row.with_(
        owner=None, checkpoint_owner=None, owner_switches=0, counter=row.counter + 1000, extra=extra
    )
