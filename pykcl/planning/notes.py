"""What the private attribute of a row says, in its one wording for creations and takes."""

from __future__ import annotations

from pykcl.model.checkpoint import LATEST
from pykcl.model.lease import Lease, PrivateNote
from pykcl.model.shard import StreamDescription


def note_for(
    lease: Lease,
    *,
    stream: StreamDescription,
    owner: str,
    version: str,
    process_token: str,
    now_millis: int,
    failover_time: float,
) -> PrivateNote:
    """The private attribute for a row that the worker `owner` creates or takes.

    now_millis: Kinesis' clock, epoch milliseconds. A lease at LATEST without a time counts from then on; a time that
    is there stays, and so do keys of later versions. failover_time: of that worker, in seconds.
    """
    before = lease.note
    latest_from = before.latest_from if before else None
    if latest_from is None and lease.checkpoint.sequence_number == LATEST:
        latest_from = now_millis
    return PrivateNote(
        stream_arn=stream.arn,
        stream_created_at=stream.created_at,
        owner=owner,
        version=version,
        latest_from=latest_from,
        process_token=process_token,
        extra=before.extra if before else {},
        failover_millis=round(failover_time * 1000),
    )
