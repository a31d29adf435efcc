"""The end of a shard: shard_ended, its children's leases, then SHARD_END and the removal of the owner in one write."""

from __future__ import annotations

from functools import partial

from pykcl.errors import FatalError, SetupError, TemporaryError
from pykcl.events import DataLost, ShardEnded, ShardEndNotCheckpointed
from pykcl.metrics import catalog
from pykcl.model import lease_writes
from pykcl.model.absence import Absence
from pykcl.model.lease import Lease
from pykcl.model.shard import Shard
from pykcl.planning.lease_creation import leases_before_end, started_at_latest, unread_shards
from pykcl.planning.lifecycle import Signal
from pykcl.planning.read_schedule import backoff
from pykcl.planning.run_end import chosen_part
from pykcl.planning.shard_graph import FamilyTree, is_youngest
from pykcl.processor import RecordProcessor, ShardEndedInput
from pykcl.status import Activity
from pykcl.worker.checkpointer import EndCheckpointer
from pykcl.worker.context import Context
from pykcl.worker.held_leases import HeldLease
from pykcl.worker.lease_scope import LeaseScope
from pykcl.worker.processor_calls import CallResult
from pykcl.worker.shard_sync import create_lease, report_unread
from pykcl.worker.stream_identity import denied_once

NOT_RETURNED = {
    CallResult.STOPPED: Signal.STOP,
    CallResult.PAUSED: Signal.PAUSE,
    CallResult.RETRIES_EXHAUSTED: Signal.GIVE_UP,
    CallResult.RESTART: Signal.RESTART,
}
"""What it means for the lease worker that a call of the processor did not return normally."""

_NEW_FOR = 600.0
"""Seconds for which a shard may be unknown to some hosts of Kinesis because it is new: usually a few."""


def end(scope: LeaseScope) -> Signal:
    """The state ENDING: call shard_ended, then write the children's leases and SHARD_END."""
    processor, progress = scope.initialized
    stream, events = scope.context.stream.name, scope.context.events
    children = tuple(sorted(child.shard_id for child in scope.children))
    progress.update = catalog.UPDATE_LEASE_AT_END
    scope.begins_to_end()
    attempt = 0
    while True:
        checkpointer = EndCheckpointer(progress)
        shard_end = ShardEndedInput(scope.key, stream, children, checkpointer)
        result = scope.calls.until_it_returns("shard_ended", processor.shard_ended, shard_end)
        if result in NOT_RETURNED:
            return NOT_RETURNED[result]
        if checkpointer.confirmed or not _needs_confirmation(scope):
            return _write_end(scope)
        attempt += 1
        events.emit(ShardEndNotCheckpointed(shard=scope.key))
        scope.stands(ShardEndNotCheckpointed.CODE, "shard_ended returned without checkpoint()")
        if scope.pause(backoff(attempt, scope.context.runtime.random(), first=1.0)):
            return Signal.STOP


def _needs_confirmation(scope: LeaseScope) -> bool:
    """SHARD_END says that everything is done. Who checkpoints by hand, or has a prepared checkpoint, says so."""
    processor, progress = scope.initialized
    if scope.context.config.checkpoint_mode != "manual":
        return progress.is_prepared
    if type(processor).shard_ended is not RecordProcessor.shard_ended:
        return True
    return not progress.all_durable


def _write_end(scope: LeaseScope) -> Signal:
    attempt = 0
    while True:
        try:
            end_shard(scope.context, scope.mine, scope.children)
            scope.context.failures.worked(Activity.ENDING, shard=scope.key)
            return Signal.DONE
        except FatalError:
            raise
        except (TemporaryError, SetupError) as error:
            # A refused permission too: letting the lease go would only call shard_ended again and again.
            attempt += 1
            scope.stands(error.code, f"its end cannot be written ({type(error).__name__})")
            if scope.failed(Activity.ENDING, error, attempt):
                return Signal.STOP


def end_shard(context: Context, held: HeldLease, children: tuple[Shard, ...]) -> None:
    """Make sure of the children's leases, then end `held`. Raises LeaseLostError, TemporaryError: call again."""
    for child in children:
        _ensure_lease(context, held, child)
    listed = tuple(sorted(child.shard_id for child in children))
    with context.meter.timed(catalog.UPDATE_LEASE_AT_END, held.key):
        write = partial(lease_writes.end_shard, children=listed, keeps_owner=context.fleet.follows)
        held.write(write)
    context.events.emit(ShardEnded(shard=held.key, children=listed))


def children_of_a_gone_shard(context: Context, held: HeldLease, absence: Absence) -> tuple[Shard, ...]:
    """Return the children of a shard that Kinesis does not know any more, provided that the stream is the same one.

    absence: of the shard, as `ReadingPlace` keeps it. The present denial is noted here.

    A shard may be unknown because it is new: 1) GetRecords names the children of a shard; 2) their leases are made, and
    perhaps read by a worker that asks another host; 3) GetShardIterator and ListShards are answered by a host that has
    not heard of them. Ended now, all their records would be lost. In a stream that was made anew, a row of the stream
    before looks the same; only time distinguishes them.

    Raises WrongStream when the stream was made again, TemporaryError while the evidence is incomplete.
    """
    now = context.runtime.monotonic()
    is_proven = absence.is_proven(now)
    context.identity.confirm()
    if not is_proven:
        raise denied_once(held.key)
    listing = context.stream.list_shards()
    if not listing.complete or not listing.shards or held.key in listing.by_id:
        raise TemporaryError(f"Kinesis gave contradicting answers about {held.key}; it will be asked again.")
    if absence.seconds(now) < _NEW_FOR and is_youngest(held.key, listing.by_id):
        raise TemporaryError(
            f"Kinesis does not know {held.key}, and lists only older shards: it may be too new. It will be asked "
            f"again, and counts as lost if that goes on for {_NEW_FOR / 60:g} minutes."
        )
    context.events.emit(DataLost(shard=held.key, checkpoint=str(held.lease.checkpoint), resumed_at=None))
    return tuple(shard for shard in listing.shards if held.key in shard.parents)


def _ensure_lease(context: Context, held: HeldLease, child: Shard) -> None:
    if context.table.read(child.shard_id) is not None:
        return
    child, shards, leased, started_at, leases = _surroundings(context, held, child)
    creations = leases_before_end(child, context.config.start_position, shards, leased, started_at)
    unread = unread_shards(creations, shards, leases, leased)
    for creation in creations:
        # Creations are not fenced by our counter. A reader that froze before this line would put a row that others
        # have read and deleted since, and its records would come a second time; whoever wakes up here finds that the
        # time it may believe in its lease has run out. What remains is a freeze while the request is on its way.
        held.check()
        if create_lease(context, creation, catalog.CREATE_LEASE_AT_END, is_wanted=held.still_held):
            # By whoever created the lease, and so once: what fails here is tried again and again.
            for one in unread:
                if creation.lease.key == one.after[0]:
                    report_unread(context, one)


def _surroundings(
    context: Context, held: HeldLease, child: Shard
) -> tuple[Shard, dict[str, Shard], set[str], int | None, dict[str, Lease]]:
    """Facts that the lease of `child` depends on: the shards, the leased keys, the time of a start at LATEST, the rows.

    And the child itself, with those parents alone that the run reads.
    Without other parents to read, none of it does.
    """
    leased = {held.key}
    others = [parent for parent in child.parents if parent != held.key]
    if all(context.table.read(parent) is not None for parent in others):
        return child, {}, leased, None, {}
    listing = context.stream.list_shards()
    if not listing.complete:
        raise TemporaryError(f"The shards could not be listed completely before ending {held.key}.")
    # In this order, and consistently: a scan older than the listing could miss the lease of a listed shard's ancestor.
    rows = context.table.scan(consistent=True).rows
    leased |= {row.key for row in rows}
    leases = {row.key: row for row in rows if isinstance(row, Lease)}
    known = {child.shard_id: child, **listing.by_id}
    part = chosen_part(known.values(), context.chosen, leases)
    child = next(shard for shard in part if shard.shard_id == child.shard_id)
    shards = {shard.shard_id: shard for shard in part if shard.shard_id in listing.by_id}
    tree = FamilyTree.of([child, *shards.values()])
    context.expired_shards.confirm(tree.unaccounted([child.shard_id], leased))
    return child, shards, leased, started_at_latest(rows), leases
