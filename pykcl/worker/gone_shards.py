"""Whether a listing may be believed. What it lacks proves nothing; what Kinesis says of that very shard does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pykcl.errors import ShardGone, TemporaryError
from pykcl.model.checkpoint import LATEST, ReadFrom
from pykcl.model.shard import ShardListing
from pykcl.planning.lease_creation import CreationReason, LeaseCreation
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.shard_graph import FamilyTree, without_successors
from pykcl.ports import Stream
from pykcl.runtime import Runtime


class GoneShards:
    """The shards that Kinesis does not know any more. Asks once for each, with GetShardIterator. Thread-safe."""

    def __init__(self, stream: Stream, runtime: Runtime) -> None:
        self._stream = stream
        self._lock = runtime.lock()
        self._known: set[str] = set()

    def __len__(self) -> int:
        """How many shards are known to be gone."""
        with self._lock:
            return len(self._known)

    def confirm(self, shard_ids: Iterable[str]) -> None:
        """Raise TemporaryError if Kinesis still knows one of them: the listing that lacks it was old or incomplete.

        A parent without a lease and without a shard counts as read. If it only looks so, 1) its child gets a lease,
        2) the child is read, 3) no shard with a leased descendant is ever begun: the parent's records are skipped.
        """
        with self._lock:
            unknown = sorted(set(shard_ids) - self._known)
        for shard_id in unknown:
            try:
                self._stream.open(shard_id, ReadFrom("TRIM_HORIZON"))
            except ShardGone:
                with self._lock:
                    self._known.add(shard_id)
            else:
                raise TemporaryError(
                    f"The list of shards lacks {shard_id}, which Kinesis knows; it is asked for again."
                )


def refuse_part_of_a_listing(
    gone: GoneShards,
    listing: ShardListing,
    creations: Sequence[LeaseCreation],
    view: LeaseView,
    stopping: Callable[[], bool],
) -> None:
    """Raise TemporaryError when Kinesis knows shards that its listing lacks, and new leases depend on them.

    view: the rows the creations were planned with. stopping: True ends the questions; nothing is proved then.
    """
    keys = {plan.lease.key for plan in creations}
    at_latest = {plan.lease.key for plan in creations if plan.lease.checkpoint.sequence_number == LATEST}
    torn = without_successors(listing.shards) & (keys | FamilyTree.of(listing.shards).descendants_of(keys))
    if torn:
        # 1) A shard was read and its row deleted; 2) the listing lacks its child; 3) nothing leads from it to what is
        # read now: it looks as if nobody had ever read it, and all its records would come again.
        raise TemporaryError(f"Kinesis does not list all children of {min(torn)}; asking again.")
    # A start at LATEST reads no ancestor, whether listed or not.
    passed_over = {plan.lease.key for plan in creations if plan.reason == CreationReason.START} & at_latest
    tree = FamilyTree.of(listing.shards, view.leases)
    leased = view.leases.keys() | view.unreadable.keys()
    for shard_id in sorted(tree.unaccounted(keys - passed_over, leased)):
        # After a reshard long ago there are as many of them as shards: a stop must not wait for all the answers.
        if stopping():
            return
        gone.confirm([shard_id])
