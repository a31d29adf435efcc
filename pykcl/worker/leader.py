"""The duties of Java's leader: audit the leases, report hash keys that nobody reads, fill in missing hash ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pykcl.errors import FatalError, SetupError, TemporaryError
from pykcl.events import (
    HashRangeFilled,
    LeaderElected,
    LeadershipMoved,
    UncoveredHashRangeClosed,
    UncoveredHashRangeFound,
)
from pykcl.interfaces import Applied, Unknown
from pykcl.metrics import catalog
from pykcl.model import lease_writes
from pykcl.model.lease import Row, UnreadableRow
from pykcl.model.shard import Shard
from pykcl.planning.leader import (
    FIRST_AUDIT_AFTER,
    Audit,
    Findings,
    HashRangeFill,
    is_leader,
    leader,
    owners_of,
)
from pykcl.planning.lease_view import LeaseView
from pykcl.status import Activity
from pykcl.worker.context import Context

_DEAD_AFTER = 8
"""Failover times. A Java worker takes what has not moved between two of its scans, which are two of these apart."""


class Leader:
    """Used by the LeaseManager's thread only. stopping: whether that shall end: an audit is then broken off.

    Every worker audits, and the one that Java's rule elects acts on it. Who that is, is worked out with each audit from
    the last scan; Java needs a scan for it and believes the answer for five minutes. So two may take themselves for the
    leader meanwhile, or nobody. Neither does harm. Two: both write the same hash range, under a condition, and report
    the same hole. Nobody: all of that comes some minutes later, and creating leases waits for no leader here.

    Java elects the dead as well, for as long as a row names them, since its workers soon take whatever a dead one had.
    Not so where there is no other Java worker: pykcl takes neither ended leases nor rows it cannot understand, and such
    a row may stand for days. So an owner none of whose rows anybody has taken in all that time counts no more.
    """

    def __init__(self, context: Context, stopping: Callable[[], bool]) -> None:
        self._context = context
        self._stopping = stopping
        self._rows: Iterable[Row] = ()
        self._unreadable_since: dict[UnreadableRow, float] = {}
        self._leads = False
        self._audit = Audit(context.config.audit_confidence_threshold)
        self._next_audit = context.runtime.monotonic() + min(FIRST_AUDIT_AFTER, context.config.audit_interval)

    def scanned(self, rows: Iterable[Row]) -> None:
        """rows: of one whole scan, nothing left out: Java counts the owners of leases of other streams too."""
        self._rows = rows

    def audit(self, view: LeaseView, shards: Mapping[str, Shard], *, holds_lock: bool | None = None) -> bool:
        """One audit, if it is due; returns whether the shards are to be listed at once.

        view: of the rows last scanned. shards: as last listed, by id. holds_lock: in a fleet of KCL 3.x, where the
        owner of the lock leads; None: the leader is elected by the rule of KCL 2.x. Raises FatalError; other trouble
        is reported and left to the next audit: leases are managed without this.
        """
        config, now = self._context.config, self._context.runtime.monotonic()
        # The shards that a run with an end has finished leave hash keys that nobody reads.
        if config.audit_interval == 0 or config.until is not None or now < self._next_audit:
            return False
        self._next_audit = now + config.audit_interval
        if holds_lock is None:
            self._elect(view)
        else:
            self._leads = holds_lock
        audit, found = self._audit.next(view.leases, shards, view.unreadable.keys())
        if not self._leads:
            self._audit = audit.unreported()
            self._context.failures.worked(
                Activity.FILLING_HASH_RANGES
            )  # whatever it was, it is another worker's now
            return False
        self._audit = audit
        meter = self._context.meter
        meter.measure(
            "",
            (catalog.NUM_STREAMS_TO_SYNC, float(found.must_sync)),
            (catalog.PARTIAL_LEASES, float(bool(found.holes))),
        )
        with meter.timed(catalog.PERIODIC_SHARD_SYNC):
            self._report(found)
            self._fill(found.fills)
        return found.must_sync

    def _elect(self, view: LeaseView) -> None:
        me, events = self._context.worker_id, self._context.events
        now = self._context.runtime.monotonic()
        self._unreadable_since = {
            row: self._unreadable_since.get(row, now) for row in view.unreadable.values()
        }
        patience = _DEAD_AFTER * self._context.config.failover_time
        given_up = {key for key in view.leases if view.is_expired(key, patience)}
        given_up |= {row.key for row, since in self._unreadable_since.items() if now - since > patience}
        owners = owners_of(row for row in self._rows if row.key not in given_up)
        leads = is_leader(me, owners)
        if leads and not self._leads:
            events.emit(LeaderElected(worker_id=me, owners=len(owners)))
        elif self._leads and not leads:
            events.emit(LeadershipMoved(leader=leader(owners)))
        self._leads = leads

    def _report(self, found: Findings) -> None:
        for hole in found.closed:
            self._context.events.emit(UncoveredHashRangeClosed(first=str(hole.first), last=str(hole.last)))
        for confirmed in found.confirmed:
            hole = confirmed.hole
            self._context.events.emit(
                UncoveredHashRangeFound(
                    first=str(hole.first),
                    last=str(hole.last),
                    audits=confirmed.audits,
                    shards=confirmed.shards,
                )
            )

    def _fill(self, fills: Sequence[HashRangeFill]) -> None:
        context = self._context
        try:
            if fills:
                # 1) The stream is deleted and made again; 2) it is listed, before anybody has noticed; 3) shards of the
                # same names may have other ranges. What is asked now was true of the listing, too.
                context.identity.confirm()
            # One deadline for all: a thousand rows, or a slow table, must not keep leases from being taken over.
            until = context.runtime.monotonic() + context.config.write_timeout
            for fill in fills:
                if self._stopping() or context.runtime.monotonic() >= until:
                    return
                self._fill_one(fill, until)
        except FatalError:
            raise
        except (TemporaryError, SetupError) as error:
            context.failures.failed(Activity.FILLING_HASH_RANGES, error)
        else:
            context.failures.worked(Activity.FILLING_HASH_RANGES)

    def _fill_one(self, fill: HashRangeFill, until: float) -> None:
        context, key, found = self._context, fill.seen.key, fill.hash_range
        answer = context.table.write(lease_writes.fill_hash_range(fill.seen, found), until=until)
        if isinstance(answer, Unknown):
            raise TemporaryError(f"The lease table did not answer to the hash range of {key}: {answer.cause}")
        # Rejected: the row has changed, so the next audit sees another one, or none.
        if isinstance(answer, Applied):
            context.events.emit(HashRangeFilled(shard=key, first=str(found.first), last=str(found.last)))
