"""The end of a run that ends by itself: the records that lie before it, and the moment at which nothing more can.

Kinesis stamps each record with the time of its arrival, and a shard has its records in nearly that order. So a run up
to a time passes over the records at or after it, and reads a little further: a record before that time may stand behind
one that is not. A shard is finished once its reading has come so far beyond the end that none can follow. Its children
were made later still, so that a finished shard and one that was read to its own end are the same for them: both have
the checkpoint SHARD_END. A run is over when every lease has ended and every shard has a lease.

All times are of Kinesis' clock, in epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pykcl.model.lease import Lease, Row
from pykcl.model.record import PlainRecords, Record

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


def row_of_another_run(rows: Iterable[Row], until: int | None) -> Row | None:
    """Return a row that does not belong to the run with this end; None: there is none.

    until: None for a worker whose run has no end. The rows of a run carry its end, so that neither the checkpoints of
    an application that works are used up by a run, nor those of a run by an application, nor two runs are mixed. A
    worker of Java keeps the mark, and would read beyond the end.
    """
    for row in rows:
        if isinstance(row, Lease):
            if end_of(row) != until or (until is not None and has_other_owner(row)):
                return row
        elif until is not None:
            return row
    return None


def end_of(lease: Lease) -> int | None:
    """Return the end of the run that the lease belongs to; None: it has none."""
    return lease.metadata.until if lease.metadata is not None else None


def has_other_owner(lease: Lease) -> bool:
    """Return whether a worker that is none of pykcl has the lease: each of pykcl leaves its name in the private map."""
    note = lease.metadata
    return lease.owner is not None and (note is None or note.owner != lease.owner)


def _arrivals(records: Sequence[Record]) -> Sequence[float]:
    if isinstance(records, PlainRecords):
        return records.arrivals
    return [record.arrived_at_millis for record in records]
