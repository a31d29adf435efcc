"""One look at a lease table, sorted: leases of one stream or of several, rows of KCL 3.x, rows nobody can read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pykcl.model.lease import AttributeValue, ForeignRow, Lease, Row, UnreadableRow
from pykcl.model.lease_item import LEASE_KEY, parse_row
from pykcl.planning.fleet_protocol import MULTI_STREAM_LEASE

_STREAM_NAME = "streamName"
_SHARD_ID = "shardId"
_MOST_KNOWN = 50_000


@dataclass(frozen=True)
class TableView:
    """One complete scan.

    leases: by lease key. streams: lease key -> the stream in it, for leases of several streams in one table only (KCL's
    multi-stream mode): their keys, parents and children all carry the stream here. rows: what `parse_row` says of every
    row, for who asks about the fleet as a whole. read_units: what the scan cost.
    """

    leases: Mapping[str, Lease] = field(default_factory=dict)
    streams: Mapping[str, str] = field(default_factory=dict)
    foreign: tuple[ForeignRow, ...] = ()
    unreadable: Mapping[str, UnreadableRow] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    read_units: float = 0.0

    @property
    def schema(self) -> str:
        """What kind of table it is, for people."""
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


class ParsedRows:
    """Parses the rows of scan after scan, each only where it has changed: most of a table has not, a second later."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Mapping[str, AttributeValue], Row]] = {}

    def parse(self, item: Mapping[str, AttributeValue]) -> Row:
        """As `parse_row`."""
        key = str(item.get(LEASE_KEY))
        known = self._known.get(key)
        if known is not None and known[0] == item:
            return known[1]
        row = parse_row(item)
        if len(self._known) >= _MOST_KNOWN:
            # Rows that were deleted are not told apart from others; all are parsed anew, once.
            self._known.clear()
        self._known[key] = (item, row)
        return row


def view_of(
    items: Iterable[Mapping[str, AttributeValue]],
    read_units: float = 0.0,
    parse: Callable[[Mapping[str, AttributeValue]], Row] = parse_row,
) -> TableView:
    """Sort the rows of one scan; never raises for what a table may hold. parse: `parse_row`, or one that remembers."""
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
    return TableView(leases, streams, tuple(foreign), unreadable, tuple(rows), read_units)


def _of_several_streams(key: str, item: Mapping[str, AttributeValue]) -> tuple[Lease, str] | UnreadableRow:
    """The lease and its stream. Its attributes name bare shards (KCL: ShardInfo.java); here they get the stream."""
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
