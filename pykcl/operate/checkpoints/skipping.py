"""Stepping over the next records of one shard, such as one that no processor can digest."""

from __future__ import annotations

from itertools import islice

from pykcl.errors import Refused
from pykcl.model.checkpoint import AT_TIMESTAMP, LATEST, StartPosition
from pykcl.model.kpl import deaggregate_batch
from pykcl.model.lease import Lease, first_read
from pykcl.model.record import Record
from pykcl.model.shard import HashRange
from pykcl.operate.checkpoints.places import Look, Place
from pykcl.operate.checkpoints.search import ShardSearch

MOST_RECORDS = 10_000


def step_over(
    search: ShardSearch, lease: Lease, hash_range: HashRange | None, count: int
) -> tuple[Look, tuple[Record, ...]]:
    """The place behind the next `count` user records that a worker would be given, and those records.

    Raises Refused where there are fewer, or where nobody knows which they are; TemporaryError, SetupError, ShardGone.
    """
    at = lease.checkpoint
    if lease.is_ended:
        raise Refused(f"{lease.key} was read to its end: there is nothing to skip. Nothing was written.")
    if at.sequence_number == AT_TIMESTAMP or (at.sequence_number == LATEST and lease.latest_from is None):
        raise Refused(
            f"{lease.key} begins at {at}, so which records come next is known to its workers only. Nothing was "
            "written. Do: use `checkpoints reset` with a time or a sequence number."
        )
    start = first_read(lease, StartPosition("TRIM_HORIZON"))
    users = deaggregate_batch(search.walk(start), hash_range, after=None if at.is_sentinel else at)
    skipped = tuple(islice(users, count))
    if len(skipped) < count:
        have = "no record" if not skipped else f"only {len(skipped)} of {count} records"
        raise Refused(f"Behind the checkpoint of {lease.key} there is {have}. Nothing was written.")
    following = next(users, None)
    resumes = following.arrived_at_millis if following is not None else None
    place = Place(skipped[-1].position, resumes, has_later=following is not None)
    return Look(place, current_at=skipped[0].arrived_at_millis), skipped
