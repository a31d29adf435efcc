"""Deletes leases nobody needs any more, on evidence: Java's rule for ended ones, Kinesis' own word for gone ones."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from pykcl.errors import ShardGone
from pykcl.events import DataLost, LeaseDeleted
from pykcl.model import lease_writes
from pykcl.model.checkpoint import Checkpoint, ReadFrom
from pykcl.model.lease import Lease
from pykcl.model.shard import ShardListing
from pykcl.planning.lease_deletion import Deletion, garbage_candidates, plan_deletions
from pykcl.planning.lease_view import LeaseView
from pykcl.ports import Kept
from pykcl.worker.context import Context

MOST_QUESTIONS = 10
"""Shards asked about per pass: each costs a GetShardIterator call."""


class LeaseCleaner:
    """Used by the LeaseManager's thread only. stopping: whether that shall end: a pass is then broken off."""

    def __init__(self, context: Context, stopping: Callable[[], bool]) -> None:
        self._context = context
        self._stopping = stopping
        self._listing = ShardListing((), complete=False)
        self._last_asked = ""
        self._told_lost: set[str] = set()
        # The first pass waits: a worker that has just started knows the table from one look.
        self._next_pass = context.runtime.monotonic() + context.config.cleanup_interval

    def listed(self, listing: ShardListing) -> None:
        self._listing = listing

    def clean(self, view: LeaseView) -> None:
        """One pass, if it is due. Raises TemporaryError, SetupError."""
        context = self._context
        now = context.runtime.monotonic()
        if context.config.cleanup_interval == 0 or now < self._next_pass:
            return
        self._next_pass = now + context.config.cleanup_interval * context.runtime.random().uniform(0.9, 1.1)
        gone = self._ask(garbage_candidates(view.leases, self._listing, context.identity.description))
        if gone:
            # 1) The stream is deleted and made again; 2) its old shards are unknown, rightly; 3) deleting their leases
            # would erase the only sign that a person must look. So the identity is checked after the questions.
            context.identity.confirm()
        deletions = plan_deletions(
            view.leases,
            listing=self._listing,
            gone=gone,
            unreadable=view.unreadable.keys(),
            stream=context.identity.description,
        )
        for deletion in deletions:
            # Each may take as long as a write is tried; a stop must not wait for all of them.
            if self._stopping():
                return
            self._delete(deletion)

    def _ask(self, candidates: list[str]) -> set[str]:
        """Those of the candidates (sorted) that Kinesis does not know; in turns, where they are too many for a pass."""
        gone: set[str] = set()
        first = bisect_right(candidates, self._last_asked)
        for shard_id in (candidates[first:] + candidates[:first])[:MOST_QUESTIONS]:
            if self._stopping():
                break
            # Noted before the answer: one that always fails must not keep the others from being asked.
            self._last_asked = shard_id
            try:
                self._context.stream.open(shard_id, ReadFrom("TRIM_HORIZON"))
            except ShardGone:
                gone.add(shard_id)
        return gone

    def _delete(self, deletion: Deletion) -> None:
        context, seen = self._context, deletion.seen
        if not seen.is_ended and not self._tell_of_loss(seen):
            return
        until = context.runtime.monotonic() + context.config.write_timeout
        answer = context.table.write(lease_writes.delete(seen, ended=seen.is_ended), until=until)
        if isinstance(answer, Kept):
            context.events.emit(LeaseDeleted(shard=seen.key, reason=deletion.reason))

    def _tell_of_loss(self, seen: Lease) -> bool:
        """Tell, once, that nobody can read on from there; False: the row has changed, so whoever changed it tells.

        Before the row is deleted: 1) the deletion takes effect; 2) its answer is lost for as long as a write is tried,
        or this process stands still for so long, or dies; 3) nobody finds the row any more, and none would tell.
        """
        row = self._context.table.read(seen.key)
        if not isinstance(row, Lease) or _standing(row) != _standing(seen):
            return False
        if seen.key not in self._told_lost:
            self._told_lost.add(seen.key)
            self._context.events.emit(
                DataLost(shard=seen.key, checkpoint=str(seen.checkpoint), resumed_at=None)
            )
        return True


def _standing(lease: Lease) -> tuple[str | None, int, Checkpoint]:
    return lease.owner, lease.counter, lease.checkpoint
