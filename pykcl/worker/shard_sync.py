"""Shard sync: create the leases that the shards need, restore deleted rows, delete the leases that have ended."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pykcl.errors import ShardGone, TemporaryError
from pykcl.events import (
    DataLost,
    HashRangeRefused,
    LeaseCreated,
    LeaseDeleted,
    LeaseRestored,
    StartingAtLatest,
    UnreadShardLost,
)
from pykcl.interfaces import Applied, Rejected, Unknown
from pykcl.metrics import catalog
from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_TRIM_HORIZON, LATEST, Checkpoint, ReadFrom
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.model.shard import Shard, ShardListing
from pykcl.planning.lease_assignment import Acquisition
from pykcl.planning.lease_creation import (
    CreationReason,
    LeaseCreation,
    UnreadShard,
    create_new_leases,
    unread_shards,
)
from pykcl.planning.lease_deletion import Deletion, garbage_candidates, plan_deletions
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.read_schedule import backoff
from pykcl.planning.run_end import chosen_part
from pykcl.planning.shard_graph import FamilyTree, cover_every_key, without_successors
from pykcl.status import Activity
from pykcl.worker.context import Context
from pykcl.worker.stream_identity import ShardKnown
from pykcl.worker.table_scanner import TableScanner
from pykcl.worker.threads import ThreadHeartbeat
from pykcl.worker.write_gate import Rank

_STARTS = (CreationReason.START, CreationReason.OLDEST_LISTED)
"""Reasons of creations that start the application; the second as well, for it completes a start that was broken off."""


class ShardSync:
    """Used by the LeaseManager's thread only: `list_if_due`, then `create` after a scan younger than the listing.

    scanner: gives the leases as last scanned. scan: scans the whole table, consistently if asked, and calls `scanned`.
    must_stop: asked between two pieces of work; True breaks them off.

    shards: as last listed, by id. next_listing: monotonic seconds. start_is_unfinished: as far as is known, not every
    lease that the application starts with was created. That is so until the first listing: another worker may just have
    started to create them.
    """

    def __init__(
        self,
        context: Context,
        scanner: TableScanner,
        pulse: ThreadHeartbeat,
        *,
        scan: Callable[[bool], None],
        must_stop: Callable[[], bool],
    ) -> None:
        self._context = context
        self._scanner = scanner
        self._pulse = pulse
        self._scan = scan
        self._must_stop = must_stop
        self._latest = LatestStart(context, must_stop)
        self._restorer = DeletedLeaseRestorer(context.config.loss_noticed_within, self._report_loss)
        self._cleaner = LeaseCleaner(context, must_stop)
        self._reported_unread: set[str] = set()
        self._listing_failures = 0
        self._listed: frozenset[str] = frozenset()
        self.next_listing = 0.0
        self.shards: Mapping[str, Shard] = {}
        self.start_is_unfinished = True

    @property
    def _view(self) -> LeaseView:
        return self._scanner.view

    # -- list --------------------------------------------------------------------------------------------------

    def list_if_due(self, now: float) -> ShardListing | None:
        """A complete listing of what the worker reads of the stream it started with; None: none is due or can be had.

        A failure here must not keep the leases of dead workers from being found and taken.
        """
        if not (self._restorer.is_due(now) or now >= self.next_listing):
            return None
        context = self._context
        # Until everything that follows from the listing is done, it has to be repeated: soon, then ever more slowly.
        self._listing_failures += 1
        self.next_listing = now + backoff(
            self._listing_failures,
            context.runtime.random(),
            first=min(2.0, context.config.shard_sync_interval),
            longest=min(30.0, context.config.shard_sync_interval),
        )
        try:
            context.identity.confirm()
            self._pulse.beat()
            listing = context.stream.list_shards()
            if not listing.complete:
                raise TemporaryError("A page of the listing failed; no leases are created from a part of it.")
        except TemporaryError as error:
            context.failures.failed(Activity.LISTING_SHARDS, error)
            self._measure(now, False)
            return None
        context.failures.worked(Activity.LISTING_SHARDS)
        self._listed = frozenset(listing.by_id)
        listing = replace(listing, shards=chosen_part(listing.shards, context.chosen, self._view.leases))
        self._cleaner.listed(listing)
        self.shards = listing.by_id
        return listing

    def list_at_once(self) -> None:
        # While listing fails its own pauses hold: what no listing mends must not cost more than one for each audit.
        if self._listing_failures == 0:
            self.next_listing = self._context.runtime.monotonic()

    def _listing_done(self) -> None:
        context = self._context
        self._listing_failures = 0
        interval = context.config.shard_sync_interval * context.runtime.random().uniform(0.9, 1.1)
        self.next_listing = context.runtime.monotonic() + interval

    def _measure(self, started: float, worked: bool) -> bool:
        """Measure one sync: the listing and all that follows from it. started: monotonic seconds. Return `worked`."""
        meter = self._context.meter
        if meter.is_on:
            meter.measure(
                "",
                (catalog.SHARD_SYNC.success, float(worked)),
                (catalog.SHARD_SYNC.time, meter.since(started)),
                (catalog.SYNC_SHARDS, float(worked)),
            )
        return worked

    # -- plan --------------------------------------------------------------------------------------------------

    def is_needed(self, listing: ShardListing, now: float) -> bool:
        """True if the last scan seems to lack a lease: `create` then needs a new scan."""
        return self.start_is_unfinished or bool(self._plan(listing, now))

    def skip(self, now: float) -> None:
        """There is nothing to create."""
        self._context.failures.worked(Activity.CHECKING_LISTING)
        self._measure(now, True)
        self._listing_done()

    def _plan(self, listing: ShardListing, now: float) -> list[LeaseCreation]:
        """The leases that seem to be missing at `now`, by the last scan: deleted ones first, then new ones."""
        config, view = self._context.config, self._view
        leases = self._known_leases(listing)
        missing = create_new_leases(config.start_position, listing.shards, leases, view.unreadable.keys())
        return self._restorer.to_restore(now) + missing

    def _known_leases(self, listing: ShardListing) -> dict[str, Lease]:
        return {**self._view.leases, **self._restorer.remembered(listing.shards, self._view)}

    def _checked_plan(self, listing: ShardListing) -> list[LeaseCreation] | None:
        """The leases to create, by the last scan; None: the listing is incomplete, or cannot be trusted."""
        context, view = self._context, self._view
        creations = self._plan(listing, view.observed_at)
        starts_a_shard = any(plan.reason in _STARTS for plan in creations)
        at_latest = context.config.start_position.kind == "LATEST"
        # 1) Two of three shards get leases at LATEST, then creating fails; 2) the next listing lacks the third: nothing
        # seems to be missing, though the start is not finished, nor the application ready.
        lacks_a_shard = at_latest and not cover_every_key(listing.shards)
        self.start_is_unfinished = starts_a_shard or lacks_a_shard
        answered = len(context.expired_shards)
        try:
            if lacks_a_shard:
                # It would be begun later, and LATEST would then be a later time.
                raise TemporaryError(
                    "The open shards that Kinesis lists do not cover every hash key; asking again."
                )
            self._reject_incomplete_listing(listing, creations)
        except TemporaryError as error:
            if len(context.expired_shards) > answered:
                # Kinesis answers so many questions a second: the others shall not wait ever longer for their turn.
                self._listing_failures = 0
            context.failures.failed(Activity.CHECKING_LISTING, error)
            return None
        context.failures.worked(Activity.CHECKING_LISTING)
        return creations

    def _reject_incomplete_listing(self, listing: ShardListing, creations: Sequence[LeaseCreation]) -> None:
        """Raise TemporaryError when Kinesis knows shards that its listing lacks, and new leases depend on them.

        A stop ends the questions to Kinesis; nothing is proved then.
        """
        view = self._view
        keys = {plan.lease.key for plan in creations}
        at_latest = {plan.lease.key for plan in creations if plan.lease.checkpoint.sequence_number == LATEST}
        torn = without_successors(listing.shards) & (
            keys | FamilyTree.of(listing.shards).descendants_of(keys)
        )
        if torn:
            # 1) A shard was read and its row deleted; 2) the listing lacks its child; 3) nothing leads from it to what
            # is read now: it looks as if nobody had ever read it, and all its records would come again.
            raise TemporaryError(f"Kinesis does not list all children of {min(torn)}; asking again.")
        # A start at LATEST reads no ancestor, whether listed or not.
        passed_over = {
            plan.lease.key for plan in creations if plan.reason == CreationReason.START
        } & at_latest
        tree = FamilyTree.of(listing.shards, view.leases)
        leased = view.leases.keys() | view.unreadable.keys()
        # After a reshard long ago there are as many of them as shards: a stop must not wait for all the answers.
        expired = tree.unaccounted(keys - passed_over, leased)
        self._context.expired_shards.confirm(expired, self._must_stop)

    # -- create and restore ------------------------------------------------------------------------------------

    def create(self, listing: ShardListing, now: float) -> None:
        """Create what the last scan lacks, and restore what was deleted. now: when the listing was asked for.

        If not all of it could be done, another listing is due soon. Raises TemporaryError, SetupError, and FatalError
        for a shard that the run was given and that is unknown.
        """
        if self._measure(now, self._create_missing(listing)):
            self._listing_done()

    def _create_missing(self, listing: ShardListing) -> bool:
        """False: not all of it was done; it shall be done again with another listing."""
        self._context.refuse_unknown_shards(self._listed, self._view.leases.keys())
        creations = self._checked_plan(listing)
        self._latest.fix_positions(creations or ())
        if creations and self._context.config.start_position.kind == "LATEST":
            self._scan(True)
            creations = self._checked_plan(listing)
        # A stop breaks off the questions to Kinesis. Then nothing is proved, and an unlisted shard seems lost.
        if creations is None or self._must_stop():
            return False
        at_latest = sum(plan.lease.checkpoint.sequence_number == LATEST for plan in creations)
        if at_latest and not self._known_leases(listing):
            since = self._latest.since
            self._context.events.emit(StartingAtLatest(shards=at_latest, server_time_millis=since))
        self._report_unread(listing, creations)
        for plan in creations:
            if self._must_stop():
                return False
            self._latest.create(plan)
        self.start_is_unfinished = False
        if creations:
            self._scan(False)
        return True

    def _report_unread(self, listing: ShardListing, creations: Sequence[LeaseCreation]) -> None:
        """Report shards whose rest, or all, nobody can read, before the leases after them: those hide it for good."""
        # Of what an operator deleted first, the rest is lost.
        begun = (plan.lease for plan in creations if plan.reason is not CreationReason.ROW_DELETED)
        for parent in sorted({key for lease in begun for key in lease.parents} - listing.by_id.keys()):
            lost = self._restorer.forget(parent)
            if lost is not None:
                self._reported_unread.add(parent)
                self._report_loss(lost)
        leases, unreadable = self._known_leases(listing), self._view.unreadable.keys()
        for one in unread_shards(creations, listing.by_id, leases, unreadable):
            if one.key not in self._reported_unread:
                self._reported_unread.add(one.key)
                report_unread(self._context, one)

    @property
    def must_finish_the_start(self) -> bool:
        """Nobody reads from half a start: Java would take the rest for shards that need no lease.

        That counts only until somebody has read. From then on what has expired is taken over, even if this worker
        never comes to list the shards again.
        """
        untouched = all(lease.owner is None and lease.counter == 0 for lease in self._view.leases.values())
        return self.start_is_unfinished and untouched

    def iterator_for(self, plan: Acquisition) -> str | None:
        """The iterator that was opened at LATEST when this worker put the row, if nobody has had the lease since."""
        return self._latest.opened.pop(plan.lease_key, None) if plan.seen.counter == 0 else None

    def scanned(self, before: LeaseView) -> None:
        """A scan of the whole table is in the view, which was `before`."""
        self._restorer.observe(before, self._view)
        # What is not in the scan yet may be of our own making.
        self._latest.forget(key for key, lease in self._view.leases.items() if lease.counter > 0)

    def row_was_deleted(self, lease: Lease) -> None:
        """Somebody deleted the row of a lease that this worker held: restore it, with the next listing."""
        self._restorer.was_held(lease)

    def _report_loss(self, lease: Lease) -> None:
        self._context.events.emit(
            DataLost(shard=lease.key, checkpoint=str(lease.checkpoint), resumed_at=None)
        )

    # -- delete ------------------------------------------------------------------------------------------------

    def delete(self) -> None:
        """Delete the leases that have ended or expired, if that is due. Raises TemporaryError, SetupError."""
        self._cleaner.clean(self._view)


def create_lease(
    context: Context,
    creation: LeaseCreation,
    what: catalog.Timed = catalog.CREATE_LEASE,
    *,
    is_wanted: Callable[[], bool] = lambda: True,
) -> bool:
    """Put one row if its key is free; return whether this call did.

    Raises TemporaryError, SetupError, and FatalError if the row that is there is of another run: of two that begin in
    an empty table at once the one that puts the first row goes on, as both put the rows in one order.

    what: the operation it is measured as. is_wanted: as of `WriteGate.passed`.
    """
    lease = creation.lease
    noted = lease.with_(metadata=context.metadata_for(lease))
    gate = context.held.gate
    with gate.passed(Rank.CHECKPOINT, is_wanted=is_wanted) as may_send, context.meter.timed(what):
        if not may_send:
            return False
        until = context.runtime.monotonic() + context.config.write_timeout
        answer = context.table.write(lease_writes.create(noted), until=until)
        if isinstance(answer, Unknown):
            raise TemporaryError(
                f"The lease table did not answer to the creation of {lease.key}: {answer.cause}"
            )
    present = answer.row if isinstance(answer, Rejected) else answer.lease
    if present is not None:
        context.refuse_other_runs([present])
    # An identical row that a peer put a moment earlier serves as well; the name in its note says whose it is.
    metadata = answer.lease.metadata if isinstance(answer, Applied) and answer.lease else None
    if metadata is None or metadata.owner != context.worker_id:
        return False
    kind = LeaseRestored if creation.reason is CreationReason.ROW_DELETED else LeaseCreated
    context.events.emit(kind(shard=lease.key, checkpoint=str(lease.checkpoint), reason=creation.reason.value))
    if creation.refused_range:
        context.events.emit(HashRangeRefused(shard=lease.key, said=creation.refused_range))
    return True


def report_unread(context: Context, found: UnreadShard) -> None:
    """Report a shard that nobody has read and nobody can."""
    keys = found.keys
    context.events.emit(
        UnreadShardLost(
            shard=found.key,
            checkpoint=str(AT_TRIM_HORIZON),
            resumed_at=None,
            first_key=None if keys is None else str(keys.first),
            last_key=None if keys is None else str(keys.last),
            before=found.before,
            after=found.after,
        )
    )


class LatestStart:
    """Used by the LeaseManager's thread only.

    A lease at LATEST skips whatever its shard held before. That is right only if the application had not begun yet, and
    a scan that may be a moment old does not show that. 1) A peer creates the first leases, and the application is
    called ready; 2) a shard is split, and records are put into its children; 3) our scan shows the table as it was
    before 1: the children look like shards to start with, and LATEST is behind those records. So where the start is
    LATEST, nothing is created before one more scan, a consistent one.

    Nor would that be enough alone: the peer, whose listing is older than the split, may create its leases between our
    scan and our creations. So reading begins where the shards stood *before* that scan: had the application been ready
    by then, its leases would have been there.

    since: Kinesis' clock at that place, epoch milliseconds. opened: iterators that wait for a reader, by shard.
    """

    def __init__(self, context: Context, stopping: Callable[[], bool]) -> None:
        self._context, self._stopping = context, stopping
        self._fixed: dict[str, str] = {}
        self.since = 0
        self.opened: dict[str, str] = {}

    def fix_positions(self, creations: Iterable[LeaseCreation]) -> None:
        """Fix where those of these leases begin that are at LATEST. Then scan consistently, and plan again.

        Whoever takes a lease can start at the server time in its row, which is rounded down to a second; the worker
        that put the row starts at the very place, however much later it comes to read. Raises TemporaryError,
        SetupError.
        """
        self._fixed = {}
        self.since = self._context.stream.server_time_millis()
        for lease in (plan.lease for plan in creations if _begins_now(plan.lease)):
            if self._stopping():
                return
            try:
                self._fixed[lease.key] = self._context.stream.open(lease.key, ReadFrom("LATEST"))
            except ShardGone:
                # It was listed a moment ago. Its reader finds out; until then the server time in the row will do.
                continue

    def create(self, plan: LeaseCreation) -> None:
        """Put the row, at LATEST or not; `fix_positions` came before. Raises TemporaryError, SetupError."""
        lease = plan.lease
        if not _begins_now(lease):
            create_lease(self._context, plan, is_wanted=self._goes_on)
            return
        noted = replace(plan, lease=lease.with_(metadata=PykclMetadata(latest_from=self.since)))
        is_new = create_lease(self._context, noted, is_wanted=self._goes_on)
        if is_new and lease.key in self._fixed:
            self.opened[lease.key] = self._fixed[lease.key]

    def _goes_on(self) -> bool:
        return not self._stopping()

    def forget(self, keys: Iterable[str]) -> None:
        """Forget leases that a worker has taken: reading continues from the row."""
        for key in keys:
            self.opened.pop(key, None)


def _begins_now(lease: Lease) -> bool:
    """One with metadata completes a start that was broken off, and begins when that start did: not "now"."""
    return lease.checkpoint.sequence_number == LATEST and lease.metadata is None


_MORE_WRITES = 1000
"""More than an owner has sent since its row was last seen."""
_UNLISTED_FOR = 900.0
"""Seconds after which a shard that no listing has shown meanwhile counts as expired: a single one may lack it."""


class DeletedLeaseRestorer:
    """Used by the LeaseManager's thread only. Leases that had ended are not of interest: those are deleted in order.

    Without this a deleted row is one that never was. 1) An operator deletes the only row of an application that
    started at LATEST; 2) records are put; 3) the shard gets a new lease, at LATEST: they are skipped. Or: 1) of the two
    parents of a merge one has ended, and their child has a lease; 2) the row of the other, which is still being read,
    is deleted; 3) it has a leased descendant and no row, as if it had been read and cleaned up: nobody reads its rest.

    patience: seconds in which its owner, who knows its position best, notices the loss and puts the row back itself.
    on_expired: called with each lease whose shard expired before its row was back: nobody can read its rest.
    """

    def __init__(self, patience: float, on_expired: Callable[[Lease], None]) -> None:
        self._patience, self._on_expired = patience, on_expired
        self._seen: dict[str, tuple[Lease, float]] = {}
        self._held: dict[str, Lease] = {}
        self._unlisted: dict[str, float] = {}
        self._again_at = 0.0

    def observe(self, before: LeaseView, after: LeaseView) -> None:
        """Note which leases that had not ended are missing, and which are there again."""
        there = _keys(after)
        for key in sorted(before.leases.keys() - there):
            if not before.leases[key].is_ended:
                self._seen[key] = (before.leases[key], after.observed_at)
        self._seen = {key: seen for key, seen in self._seen.items() if key not in there}
        self._held = {key: lease for key, lease in self._held.items() if key not in there}

    def is_due(self, now: float) -> bool:
        """True if a lease can be restored; the shards have to be listed for it. At most once in `patience` seconds."""
        # For what the last listing lacked the regular ones are soon enough: it may have expired.
        due = not self._held.keys() <= self._unlisted.keys() or any(
            now - since >= self._patience
            for key, (_, since) in self._seen.items()
            if key not in self._unlisted
        )
        if not due or now < self._again_at:
            return False
        self._again_at = now + self._patience
        return True

    def forget(self, key: str) -> Lease | None:
        """Return the lease, if its row is missing and had not ended: whoever asks reports the loss of its rest."""
        seen, _ = self._seen.pop(key, (None, 0.0))
        self._unlisted.pop(key, None)
        return self._held.pop(key, seen)

    def was_held(self, lease: Lease) -> None:
        """This worker was its owner: nobody else can have moved it since."""
        self._held[lease.key] = lease

    def remembered(self, shards: Iterable[Shard], view: LeaseView) -> dict[str, Lease]:
        """The leases that are missing in `view` and must not be taken for new ones, by key.

        shards: a complete listing; what none has shown for long has expired. What was only seen may have been read to
        its end and cleaned up since, unless nobody has gone on from it.
        """
        if not self._seen and not self._held:
            self._unlisted.clear()
            return {}
        tree = FamilyTree.of(shards, view.leases)
        followed = tree.ancestors_of(_keys(view))
        self._note_unlisted(tree.listed, view.observed_at)
        self._seen = {k: seen for k, seen in self._seen.items() if k not in followed}
        known = {**{key: lease for key, (lease, _) in self._seen.items()}, **self._held}
        return {key: lease for key, lease in known.items() if key in tree.listed}

    def _note_unlisted(self, listed: Collection[str], now: float) -> None:
        """1) The row of a shard is deleted; 2) a listing lacks the shard, and its lease is forgotten; 3) the next one
        has it: it would get a new lease, at LATEST perhaps."""
        missing = (self._seen.keys() | self._held.keys()) - set(listed)
        self._unlisted = {key: self._unlisted.get(key, now) for key in missing}
        for key in [key for key, since in self._unlisted.items() if now - since > _UNLISTED_FOR]:
            lease = self.forget(key)
            if lease is not None:
                self._on_expired(lease)

    def to_restore(self, now: float) -> list[LeaseCreation]:
        """Return the leases to restore by now (monotonic seconds), at the last known checkpoint."""
        due = {key: lease for key, (lease, since) in self._seen.items() if now - since >= self._patience}
        known = {**due, **self._held}
        # In `_unlisted` is what the last listing lacked.
        return [
            LeaseCreation(_put_back(known[key]), CreationReason.ROW_DELETED)
            for key in sorted(known.keys() - self._unlisted.keys())
        ]


def _keys(view: LeaseView) -> set[str]:
    return view.leases.keys() | view.unreadable.keys()


def _put_back(lease: Lease) -> Lease:
    """Its counter goes on. 1) A checkpoint under counter 2 is delayed in the network, and sent again; 2) the row is
    deleted and put back; 3) were it to begin at 0, its owner would come to counter 2 once more; 4) the delayed write
    lands, and moves the checkpoint back.
    """
    return Lease(
        key=lease.key,
        checkpoint=lease.checkpoint,
        counter=lease.counter + _MORE_WRITES,
        parents=lease.parents,
        children=lease.children,
        hash_range=lease.hash_range,
        pending=lease.pending,
        entity_type=lease.entity_type,
        metadata=lease.metadata,
    )


MAX_QUESTIONS = 10
"""Shards asked about per pass: each costs a GetShardIterator call."""


class LeaseCleaner:
    """Used by the LeaseManager's thread only. stopping: whether that shall end: a pass is then broken off."""

    def __init__(self, context: Context, stopping: Callable[[], bool]) -> None:
        self._context = context
        self._stopping = stopping
        self._listing = ShardListing((), complete=False)
        self._last_asked = ""
        self._reported_lost: set[str] = set()
        # The first pass waits: a worker that has just started knows the table from one scan.
        self._next_pass = context.runtime.monotonic() + context.config.cleanup_interval

    def listed(self, listing: ShardListing) -> None:
        self._listing = listing

    def clean(self, view: LeaseView) -> None:
        """One pass, if it is due. Raises TemporaryError, SetupError."""
        context = self._context
        now = context.runtime.monotonic()
        # The rows of a run with an end show how far it came, until somebody removes its table.
        if context.config.cleanup_interval == 0 or context.config.until is not None or now < self._next_pass:
            return
        self._next_pass = now + context.config.cleanup_interval * context.runtime.random().uniform(0.9, 1.1)
        gone = self._ask(garbage_candidates(view.leases, self._listing, context.identity.description))
        if gone:
            # 1) The stream is deleted and made again; 2) its old shards are unknown, rightly; 3) deleting their leases
            # would erase the only sign that a person must act. So the identity is checked after the questions.
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
        for shard_id in (candidates[first:] + candidates[:first])[:MAX_QUESTIONS]:
            if self._stopping():
                break
            # Noted before the answer: one that always fails must not keep the others from being asked.
            self._last_asked = shard_id
            try:
                if self._context.expired_shards.is_gone(shard_id):
                    gone.add(shard_id)
            except ShardKnown:
                continue
        return gone

    def _delete(self, deletion: Deletion) -> None:
        context, seen = self._context, deletion.seen
        if not seen.is_ended and not self._report_loss(seen):
            return
        until = context.runtime.monotonic() + context.config.write_timeout
        answer = context.table.write(lease_writes.delete(seen, ended=seen.is_ended), until=until)
        if isinstance(answer, Applied):
            context.events.emit(LeaseDeleted(shard=seen.key, reason=deletion.reason))

    def _report_loss(self, seen: Lease) -> bool:
        """Report, once, that nobody can read on from there; False: the row has changed, whoever changed it reports.

        Before the row is deleted: 1) the deletion takes effect; 2) its answer is lost for as long as a write is tried,
        or this process stands still for so long, or dies; 3) nobody finds the row any more, and none would report it.
        """
        row = self._context.table.read(seen.key)
        if not isinstance(row, Lease) or _standing(row) != _standing(seen):
            return False
        if seen.key not in self._reported_lost:
            self._reported_lost.add(seen.key)
            self._context.events.emit(
                DataLost(shard=seen.key, checkpoint=str(seen.checkpoint), resumed_at=None)
            )
        return True


def _standing(lease: Lease) -> tuple[str | None, int, Checkpoint]:
    return lease.owner, lease.counter, lease.checkpoint
