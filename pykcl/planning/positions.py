"""Where reading starts: a pure answer for every checkpoint a lease row can carry."""

from __future__ import annotations

from pykcl.model.checkpoint import AT_TIMESTAMP, LATEST, TRIM_HORIZON, ReadFrom, StartPosition
from pykcl.model.lease import Lease


def first_read(lease: Lease, start: StartPosition) -> ReadFrom:
    """Where the new holder of `lease` opens the shard.

    LATEST with a known server time starts there, not "now": from the moment the row existed producers could be
    told that the application is ready, and a predecessor may have died before its first checkpoint. Numbers are
    read AT, never AFTER: the rest of a half-done aggregated record is in the very record that was checkpointed
    (Java writes sub-sequence 0 for those too).
    """
    sequence_number = lease.checkpoint.sequence_number
    if sequence_number == TRIM_HORIZON:
        return ReadFrom("TRIM_HORIZON")
    if sequence_number == LATEST:
        since = lease.latest_from
        if since is None:
            return ReadFrom("LATEST")
        return ReadFrom("AT_TIMESTAMP", at_millis=since)
    if sequence_number == AT_TIMESTAMP:
        # The row never carries the time (lease-protocol: Java takes it from its configuration). Without one of ours
        # the oldest record is the only start that loses nothing.
        if start.kind == "AT_TIMESTAMP":
            return ReadFrom("AT_TIMESTAMP", at_millis=start.at_millis)
        return ReadFrom("TRIM_HORIZON")
    return ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=sequence_number)
