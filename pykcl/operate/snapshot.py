"""One scan of a lease table as values: leases of one stream or of several, rows of KCL 3.x, unreadable rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pykcl.errors import printable
from pykcl.model.lease import AttributeValue, ForeignRow, Lease, Row, UnreadableRow
from pykcl.model.lease_item import LEASE_KEY, parse_row
from pykcl.planning.fleet_protocol import MULTI_STREAM_LEASE

MAX_SHOWN = 200
"""Characters of a name in output."""


def shown(name: str) -> str:
    """Return a name from the table for output: on one line, without control characters, and not too long."""
    text = printable(name)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def short_shard(key: str) -> str:
    """Return "003" for "shardId-000000000003", and any other key unchanged."""
    head, _, digits = key.rpartition("shardId-")
    if len(digits) != 12 or not (digits.isascii() and digits.isdigit()):
        return key
    return head + str(int(digits)).zfill(3)


def full_shard_id(text: str) -> str:
    """Return a shard id; "7" and "007" are short for shardId-000000000007."""
    name = text.strip()
    return f"shardId-{int(name):012d}" if name.isascii() and name.isdigit() and len(name) <= 12 else name


_STREAM_NAME = "streamName"
_SHARD_ID = "shardId"
_MAX_CACHED = 50_000


@dataclass(frozen=True)
class TableSnapshot:
    """One complete scan.

    leases: by lease key. streams: lease key -> its stream, only for leases of several streams in one table (KCL's
    multi-stream mode): there keys, parents and children all contain the stream. rows: every row as `parse_row` returns
    it. read_units: cost of the scan.
    """

    leases: Mapping[str, Lease] = field(default_factory=dict)
    streams: Mapping[str, str] = field(default_factory=dict)
    foreign: tuple[ForeignRow, ...] = ()
    unreadable: Mapping[str, UnreadableRow] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    read_units: float = 0.0

    @property
    def schema(self) -> str:
        """The kind of table, as text."""
        if self.streams:
            return "KCL, several streams"
        if any(row.kind != MULTI_STREAM_LEASE for row in self.foreign):
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
    return TableSnapshot(leases, streams, tuple(foreign), unreadable, tuple(rows), read_units)


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
