"""The end of a run that ends by itself: the records that lie before it, and the moment at which nothing more can.

Kinesis stamps each record with the time of its arrival, and a shard has its records in nearly that order. So a run up
to a time passes over the records at or after it, and reads a little further: a record before that time may stand behind
one that is not. A shard is finished once its reading has come so far beyond the end that none can follow. Its children
were made later still, so that a finished shard and one that was read to its own end are the same for them: both have
the checkpoint SHARD_END. A run is over when every lease has ended and every shard has a lease.

All times are of Kinesis' clock, in epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pykcl.model.lease import Lease, Row
from pykcl.model.record import PlainRecords, Record
from pykcl.model.shard import Shard, shards_named
from pykcl.planning.shard_graph import FamilyTree

Range = tuple[str | None, int | None, str | None]
"""Where a run begins, its end, epoch milliseconds, and its shards, as in `PykclMetadata`."""
NO_END: Range = (None, None, None)
"""Of an application, whose run has no end."""
OUT_OF_ORDER_MILLIS = 5_000
"""Neighbours in a shard may be out of order by less than this."""


def records_before(records: Sequence[Record], until: int) -> Sequence[Record]:
    """Return the Kinesis records of a page that arrived before `until`, in order."""
    arrivals = _arrivals(records)
    if max(arrivals, default=0) < until:
        return records
    return [records[index] for index, arrived in enumerate(arrivals) if arrived < until]


def is_finished(
    records: Sequence[Record], millis_behind: int | None, *, until: int, requested_after: int
) -> bool:
    """Return whether no record before `until` can follow a page with these records.

    millis_behind: of the page; 0 at the tip of the shard. requested_after: a time at which the page had not been
    requested yet. That of its answer would not do: 1) a page is fetched ahead, at the tip; 2) the processor works for a
    minute, while a record arrives and `until` passes; 3) the page seems to show, after `until`, that there is none.
    """
    beyond = until + OUT_OF_ORDER_MILLIS
    if max(_arrivals(records), default=0) >= beyond:
        return True
    return millis_behind == 0 and requested_after >= beyond


def is_over(leases: Mapping[str, Lease]) -> bool:
    """Return whether every lease has ended, at least one. It says nothing of shards that have none yet."""
    return bool(leases) and all(lease.is_ended for lease in leases.values())


def row_of_another_run(rows: Iterable[Row], own: Range) -> Row | None:
    """Return a row that does not belong to the run over this range; None: there is none.

    The rows of a run carry its range, so that neither the checkpoints of an application that works are used up by a
    run, nor those of a run by an application, nor two runs are mixed. A worker of Java keeps the mark, and would read
    beyond the end. Nor may the beginning change: 1) a run dies before its first checkpoint; 2) started again with a
    later one, it would skip what lies between the two.
    """
    has_end = own != NO_END
    for row in rows:
        if isinstance(row, Lease):
            if range_of(row) != own or (has_end and has_other_owner(row)):
                return row
        elif has_end:
            return row
    return None


def range_of(lease: Lease) -> Range:
    """Return the range of the run that the lease belongs to."""
    note = lease.metadata
    return (note.begin, note.until, note.shards) if note is not None and note.until is not None else NO_END


def chosen_part(
    shards: Iterable[Shard], chosen: Collection[str], leases: Mapping[str, Lease]
) -> tuple[Shard, ...]:
    """Return the chosen shards and all that come after them; all shards if none is chosen.

    Each has those parents alone that are among them: the others are as if they had never been, so that nothing waits
    for them and nobody misses them. leases: of the run; they show what is no longer listed.
    """
    every = tuple(shards)
    if not chosen:
        return every
    kept = set(chosen) | FamilyTree.of(every, leases).descendants_of(chosen)
    return tuple(
        replace(shard, parents=tuple(parent for parent in shard.parents if parent in kept))
        for shard in every
        if shard.shard_id in kept
    )


def part_of_run(shards: Iterable[Shard], leases: Mapping[str, Lease]) -> tuple[Shard, ...]:
    """Return the shards that the run reads to which these rows belong; all of them for any other application."""
    _, _, names = next(map(range_of, leases.values()), NO_END)
    return chosen_part(shards, shards_named(names), leases)


def has_other_owner(lease: Lease) -> bool:
    """Return whether a worker that is none of pykcl has the lease: each of pykcl leaves its name in the private map."""
    note = lease.metadata
    return lease.owner is not None and (note is None or note.owner != lease.owner)


def _arrivals(records: Sequence[Record]) -> Sequence[float]:
    if isinstance(records, PlainRecords):
        return records.arrivals
    return [record.arrived_at_millis for record in records]
