"""Scans of a lease table as values: what one shows, and which counters move between several.

Rows carry no time. Only a counter that moves between two scans shows that its owner is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pykcl.errors import printable
from pykcl.model.lease import AttributeValue, ForeignRow, Lease, Row, UnreadableRow
from pykcl.model.lease_item import LEASE_KEY, parse_row
from pykcl.planning.fleet_protocol import MULTI_STREAM_LEASE
from pykcl.planning.leader_lock import LeaderWatch
from pykcl.planning.lease_view import LeaseView
from pykcl.runtime import Runtime

MAX_SHOWN = 200
"""Characters of a name in output."""


def shown(name: str) -> str:
    """Return a name from the table for output: on one line, without control characters, and not too long."""
    text = printable(name)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


_STREAM_NAME = "streamName"
_SHARD_ID = "shardId"
_MAX_CACHED = 50_000


@dataclass(frozen=True, slots=True)
class OwnTables:
    """The rows of the tables that KCL 3.0-3.4 has beside the lease table.

    rows: client version, lock and metrics. unread: the reason for which some may be missing; "" if all were read, or
    if there are no such tables.
    """

    rows: tuple[ForeignRow, ...] = ()
    unread: str = ""


NO_OWN_TABLES = OwnTables()


@dataclass(frozen=True)
class TableSnapshot:
    """One complete scan.

    leases: by lease key. streams: lease key -> its stream, only for leases of several streams in one table (KCL's
    multi-stream mode): there keys, parents and children all contain the stream. rows: every row as `parse_row` returns
    it. read_units: cost of the scan. server_time: epoch seconds by the clock of the answer; None without one.
    """

    leases: Mapping[str, Lease] = field(default_factory=dict)
    streams: Mapping[str, str] = field(default_factory=dict)
    foreign: tuple[ForeignRow, ...] = ()
    unreadable: Mapping[str, UnreadableRow] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    read_units: float = 0.0
    server_time: float | None = None
    own_tables: OwnTables = NO_OWN_TABLES

    @property
    def fleet_rows(self) -> tuple[ForeignRow, ...]:
        """The rows that are not leases, wherever KCL 3.x keeps them."""
        return (*self.foreign, *self.own_tables.rows)

    @property
    def schema(self) -> str:
        """The kind of table, as text."""
        if self.streams:
            return "KCL, several streams"
        if any(row.kind != MULTI_STREAM_LEASE for row in self.fleet_rows):
            return "KCL 3.x"
        if not self.leases:
            return "empty" if not self.unreadable else "unknown"
        if all(lease.hash_range is None and not lease.children for lease in self.leases.values()):
            return "KCL 1.x or 2.x before 2.3"
        return "KCL 2.x"

    @property
    def stream_arns(self) -> tuple[str, ...]:
        """The streams that pykcl workers noted on their leases."""
        notes = (lease.metadata for lease in self.leases.values())
        return tuple(sorted({note.stream_arn for note in notes if note is not None and note.stream_arn}))

    @property
    def stream_arn(self) -> str | None:
        """The stream that the leases name; None if they name none, or several."""
        arns = self.stream_arns
        return arns[0] if len(arns) == 1 else None

    @property
    def stream_name(self) -> str | None:
        return self.stream_arn.rpartition("/")[2] if self.stream_arn is not None else None


class RowCache:
    """Parses only rows that changed since the scan before: a second later, most of a table has not."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Mapping[str, AttributeValue], Row]] = {}

    def parse(self, item: Mapping[str, AttributeValue]) -> Row:
        """Parse a row as `parse_row` does."""
        key = str(item.get(LEASE_KEY))
        known = self._known.get(key)
        if known is not None and known[0] == item:
            return known[1]
        row = parse_row(item)
        if len(self._known) >= _MAX_CACHED:
            # Deleted rows are never removed one by one; instead all are parsed anew, once.
            self._known.clear()
        self._known[key] = (item, row)
        return row


def snapshot_of(
    items: Iterable[Mapping[str, AttributeValue]],
    read_units: float = 0.0,
    parse: Callable[[Mapping[str, AttributeValue]], Row] = parse_row,
    server_time: float | None = None,
) -> TableSnapshot:
    """Sort the rows of one scan; never raises for a row. parse: `parse_row`, or that of a `RowCache`."""
    leases: dict[str, Lease] = {}
    streams: dict[str, str] = {}
    foreign: list[ForeignRow] = []
    unreadable: dict[str, UnreadableRow] = {}
    rows: list[Row] = []
    for item in items:
        row = parse(item)
        rows.append(row)
        if isinstance(row, ForeignRow) and row.kind == MULTI_STREAM_LEASE:
            found = _of_several_streams(row.key, item)
            if isinstance(found, UnreadableRow):
                unreadable[row.key] = found
            else:
                leases[row.key], streams[row.key] = found
        elif isinstance(row, Lease):
            leases[row.key] = row
        elif isinstance(row, ForeignRow):
            foreign.append(row)
        else:
            unreadable[row.key] = row
    return TableSnapshot(leases, streams, tuple(foreign), unreadable, tuple(rows), read_units, server_time)


def _of_several_streams(key: str, item: Mapping[str, AttributeValue]) -> tuple[Lease, str] | UnreadableRow:
    """Return the lease and its stream. Its attributes name bare shards (KCL: ShardInfo.java); here the stream is
    added."""
    stream, _, shard = key.rpartition(":")
    if not stream or not shard:
        return UnreadableRow(key, "its key names no stream and shard")
    plain = {name: value for name, value in item.items() if name not in (_STREAM_NAME, _SHARD_ID)}
    row = parse_row({**plain, LEASE_KEY: {"S": shard}})
    if not isinstance(row, Lease):
        return UnreadableRow(key, row.problem if isinstance(row, UnreadableRow) else f"a row of {row.kind}")
    return (
        row.with_(
            key=key,
            parents=tuple(f"{stream}:{parent}" for parent in row.parents),
            children=tuple(f"{stream}:{child}" for child in row.children),
        ),
        stream,
    )


DEFAULT_FAILOVER = 60.0
"""Seconds, where the fleet's failover time is unknown: every fleet met so far renews within it."""
_PLAUSIBLE_FAILOVER = range(1_000, 3_600_001)
"""Milliseconds. Any other value in a row was not written by pykcl, and could make a command wait for days."""
_DEFAULT_SAMPLING = 6.0
"""Seconds, where the failover time is unknown: workers renew twice per failover time (Java three times), and Java's
default is 10 s."""
_MAX_SAMPLING = 20.0


def known_failover(given: float | None, leases: Iterable[Lease]) -> tuple[float, bool]:
    """Return the fleet's failover time in seconds, and True if it is known; else DEFAULT_FAILOVER and False.

    given: by flag or file; it wins. Without it, the longest one that pykcl workers noted on their leases counts, if
    every owner noted one: an owner without a note, such as a Java worker, may have a longer one.
    """
    if given is not None:
        return given, True
    longest = 0
    for lease in leases:
        note = lease.metadata
        millis = note.failover_millis if note is not None else None
        is_of_owner = note is not None and note.owner == lease.actual_owner
        if lease.actual_owner is not None and (millis is None or not is_of_owner):
            return DEFAULT_FAILOVER, False
        if millis is not None and millis not in _PLAUSIBLE_FAILOVER:
            return DEFAULT_FAILOVER, False
        longest = max(longest, millis or 0)
    return (longest / 1000, True) if longest else (DEFAULT_FAILOVER, False)


@dataclass(frozen=True)
class Observation:
    """The result of all scans so far.

    snapshot: the latest scan. moved: lease key -> change of its counter since the scan before, or since the first one
    of `poll_until_moved`; absent for a lease that was not there then. alive: leases whose counter ever moved.
    renewed_after_end: leases that had ended, with an owner, and that this owner renewed once more.
    unmoved_for: seconds for which each lease was seen unchanged, up to the last scan. span: seconds from the first scan
    to the last. samples: number of scans. leader: the lock of a fleet of KCL 3.x. leader_beats: its version changed
    between scans. at: epoch seconds of the last scan, by AWS' clock if its answer has the time.
    """

    snapshot: TableSnapshot
    moved: Mapping[str, int] = field(default_factory=dict)
    alive: frozenset[str] = frozenset()
    renewed_after_end: frozenset[str] = frozenset()
    unmoved_for: Mapping[str, float] = field(default_factory=dict)
    span: float = 0.0
    samples: int = 1
    leader: LeaderWatch | None = None
    leader_beats: bool = False
    at: float = 0.0


class Sampler:
    """Scans a table and compares each scan with those before. Used by one thread."""

    def __init__(self, scan: Callable[[], TableSnapshot], runtime: Runtime) -> None:
        self._scan, self._runtime = scan, runtime
        self._fold = LeaseView()
        self._first_seen: dict[str, float] = {}
        self._renewed: frozenset[str] = frozenset()
        self._started: float | None = None
        self._samples = 0
        self._leader: LeaderWatch | None = None
        self._leader_beats = False

    def poll(self, since: Mapping[str, Lease] | None = None) -> Observation:
        """Scan once more. since: the leases that `moved` is measured from, by default those of the scan before.

        Raises as the scan does; the result then stays as it was.
        """
        snapshot = self._scan()
        now = self._runtime.monotonic()
        before = self._fold.leases
        since = before if since is None else since
        fold = self._fold.observe(snapshot.leases.values(), now)
        self._started = now if self._started is None else self._started
        self._samples += 1
        self._fold = fold
        self._renewed |= {
            key
            for key, lease in fold.leases.items()
            if key in before and _renewed_an_ended(before[key], lease)
        }
        self._first_seen = {key: self._first_seen.get(key, now) for key in fold.leases}
        self._watch_leader(snapshot, now)
        return Observation(
            snapshot=snapshot,
            moved={
                key: lease.counter - since[key].counter for key, lease in fold.leases.items() if key in since
            },
            alive=frozenset(
                key for key, since in fold.unchanged_since.items() if since > self._first_seen[key]
            ),
            renewed_after_end=self._renewed,
            unmoved_for={key: fold.unchanged_for(key) for key in fold.leases},
            span=now - self._started,
            samples=self._samples,
            leader=self._leader,
            leader_beats=self._leader_beats,
            at=time_of(snapshot, self._runtime),
        )

    def _watch_leader(self, snapshot: TableSnapshot, now: float) -> None:
        before, rows = self._leader, snapshot.fleet_rows
        self._leader = watch = LeaderWatch.first(rows, now) if before is None else before.observe(rows, now)
        lock = before.lock if before is not None else None
        if watch.lock is not None and lock is not None and watch.lock.version != lock.version:
            self._leader_beats = True

    def poll_until_moved(
        self,
        failover: float | None,
        *,
        longest: float | None = None,
        until: Callable[[Observation], bool] | None = None,
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> Observation:
        """Poll until every owned lease has moved, or long enough to see that some do not. Return the last observation.

        failover: seconds, None where unknown. longest: seconds; by default the failover time, if it is known and
        short, else the time of a renewal or two. until: another condition to wait for. on_wait: called with the seconds
        of the first wait, before it.
        """
        enough = until or everybody_moved
        renewal = (failover or 10.0) / 2
        pause = max(0.2, renewal * 1.2)
        if longest is None:
            longest = _DEFAULT_SAMPLING if failover is None else failover + 0.2
            if longest > _MAX_SAMPLING:
                longest = pause
        found = self.poll()
        first = found.snapshot.leases
        end = self._runtime.monotonic() + longest
        has_waited = False
        while not enough(found):
            left = end - self._runtime.monotonic()
            if left <= 0:
                break
            # The last scan must come after the end: a lease is stale once it was unchanged for all of it.
            wait = left if left < 1.5 * pause else pause
            if not has_waited:
                on_wait(wait)
            has_waited = True
            self._runtime.event().wait(wait)
            found = self.poll(since=first)
        return found


def time_of(snapshot: TableSnapshot, runtime: Runtime) -> float:
    """Return the epoch seconds of a scan: by AWS' clock if its answer has the time, else by this machine's."""
    return runtime.utcnow_millis() / 1000 if snapshot.server_time is None else snapshot.server_time


def _renewed_an_ended(before: Lease, lease: Lease) -> bool:
    """Return True for an ended lease with the same owner in both scans whose counter moved."""
    same = before.owner is not None and before.owner == lease.owner
    return same and before.is_ended and lease.is_ended and lease.counter > before.counter


def everybody_moved(found: Observation) -> bool:
    """Return True when every open lease with an owner was seen moving: more scans would show nothing new."""
    return all(
        key in found.alive or lease.actual_owner is None or lease.is_ended
        for key, lease in found.snapshot.leases.items()
    )
