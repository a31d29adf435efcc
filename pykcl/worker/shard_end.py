"""Ending a shard: children first, then SHARD_END, children's names and the removal of the owner in one write."""

from __future__ import annotations

from functools import partial

from pykcl.errors import TemporaryError
from pykcl.events import DataLost, LeaseCreated, ShardEnded
from pykcl.model import lease_row
from pykcl.model.shard import Shard
from pykcl.planning.plans import LeaseCreation
from pykcl.planning.shard_end import leases_before_end
from pykcl.ports import Kept, Unknown
from pykcl.worker.context import Context
from pykcl.worker.held_leases import HeldLease


def end_shard(context: Context, held: HeldLease, children: tuple[Shard, ...]) -> None:
    """Make sure of the children's leases, then end `held`. Raises LeaseLost, TemporaryError: call again."""
    for child in children:
        _ensure_lease(context, held, child)
    names = tuple(sorted(child.shard_id for child in children))
    held.write(partial(lease_row.end_shard, children=names))
    context.events.emit(ShardEnded(shard=held.key, children=names))


def create_lease(context: Context, creation: LeaseCreation) -> bool:
    """Put one row if its key is free; return whether this call did. Raises TemporaryError, SetupError."""
    lease = creation.lease
    noted = lease.with_(note=context.note_for(lease, owner=context.worker_id))
    until = context.runtime.monotonic() + context.config.write_timeout
    answer = context.table.write(lease_row.create(noted), until=until)
    if isinstance(answer, Unknown):
        raise TemporaryError(f"The lease table did not answer to the creation of {lease.key}: {answer.cause}")
    # An identical row that a peer put a moment earlier serves as well, and is told by the name in its note.
    note = answer.lease.note if isinstance(answer, Kept) and answer.lease else None
    if note is None or note.owner != context.worker_id:
        return False
    context.events.emit(
        LeaseCreated(shard=lease.key, checkpoint=str(lease.checkpoint), reason=creation.reason)
    )
    return True


def children_of_a_gone_shard(context: Context, held: HeldLease) -> tuple[Shard, ...]:
    """What continues a shard that Kinesis does not know any more, provided that the stream is still the same one.

    Raises WrongStream when the stream was made again, TemporaryError while the evidence is incomplete.
    """
    context.identity.confirm()
    listing = context.stream.list_shards()
    if not listing.complete or not listing.shards or held.key in listing.by_id:
        raise TemporaryError(f"Kinesis gave contradicting answers about {held.key}; it will be asked again.")
    context.events.emit(DataLost(shard=held.key, checkpoint=str(held.lease.checkpoint), resumed_at=None))
    return tuple(shard for shard in listing.shards if held.key in shard.parents)


def _ensure_lease(context: Context, held: HeldLease, child: Shard) -> None:
    if context.table.read(child.shard_id) is not None:
        return
    others = [parent for parent in child.parents if parent != held.key]
    shards: dict[str, Shard] = {}
    leased = {held.key}
    if any(context.table.read(parent) is None for parent in others):
        listing = context.stream.list_shards()
        if not listing.complete:
            raise TemporaryError(f"The shards could not be listed completely before ending {held.key}.")
        shards = listing.by_id
        # In this order: a scan older than the listing could miss the lease of a listed shard's ancestor.
        leased |= {row.key for row in context.table.scan().rows}
    for creation in leases_before_end(child, context.config.start_position, shards, leased):
        # Creations are not fenced by our counter. A reader that froze before this line would put a row that others
        # have read and deleted since, and its records would come a second time; whoever wakes up here finds that the
        # time it may believe in its lease has run out. What remains is a freeze while the request is on its way.
        held.check()
        create_lease(context, creation)
