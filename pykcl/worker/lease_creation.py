"""Puts one row into the lease table: for a shard that was listed, or for a child before its parent is ended."""

from __future__ import annotations

from pykcl.errors import TemporaryError
from pykcl.events import LeaseCreated
from pykcl.metrics import catalog
from pykcl.model import lease_writes
from pykcl.planning.lease_creation import LeaseCreation
from pykcl.ports import Kept, Unknown
from pykcl.worker.context import Context


def create_lease(
    context: Context, creation: LeaseCreation, what: catalog.Timed = catalog.CREATE_LEASE
) -> bool:
    """Put one row if its key is free; return whether this call did. what: as what it is measured. Raises
    TemporaryError, SetupError."""
    lease = creation.lease
    noted = lease.with_(note=context.note_for(lease))
    until = context.runtime.monotonic() + context.config.write_timeout
    with context.meter.timed(what):
        answer = context.table.write(lease_writes.create(noted), until=until)
        if isinstance(answer, Unknown):
            raise TemporaryError(
                f"The lease table did not answer to the creation of {lease.key}: {answer.cause}"
            )
    # An identical row that a peer put a moment earlier serves as well, and is told by the name in its note.
    note = answer.lease.note if isinstance(answer, Kept) and answer.lease else None
    if note is None or note.owner != context.worker_id:
        return False
    context.events.emit(
        LeaseCreated(shard=lease.key, checkpoint=str(lease.checkpoint), reason=creation.reason.value)
    )
    return True
