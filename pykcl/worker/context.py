"""What every thread of one worker shares: configuration, adapters, and who this worker is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pykcl.config import Config
from pykcl.model.checkpoint import LATEST
from pykcl.model.lease import Lease, PrivateNote
from pykcl.ports import Events, LeaseTable, Stream
from pykcl.processor import ProcessorFactory
from pykcl.runtime import Event, Runtime
from pykcl.worker.buffer_gate import BufferGate
from pykcl.worker.held_leases import HeldLeases
from pykcl.worker.identity import StreamIdentity
from pykcl.worker.trouble import Trouble


@dataclass(frozen=True, slots=True)
class Context:
    """Made once by Worker.
    on_fatal: called with an error that the whole worker must stop for. has_taken, has_read: set once a lease was taken
    or a shard read, by any thread: from then on a set-up error is trouble that may pass.
    """

    config: Config
    worker_id: str
    session: str
    version: str
    identity: StreamIdentity
    table: LeaseTable
    stream: Stream
    runtime: Runtime
    events: Events
    trouble: Trouble
    held: HeldLeases
    gate: BufferGate
    processor: ProcessorFactory
    on_fatal: Callable[[Exception], None]
    has_taken: Event
    has_read: Event

    def note_for(self, lease: Lease, *, owner: str | None) -> PrivateNote:
        """The private attribute for a row this worker creates or takes."""
        before = lease.note
        latest_from = before.latest_from if before else None
        if latest_from is None and lease.checkpoint.sequence_number == LATEST:
            latest_from = self.stream.server_time_millis()
        return PrivateNote(
            stream_arn=self.identity.description.arn,
            stream_created_at=self.identity.description.created_at,
            owner=owner,
            version=self.version,
            latest_from=latest_from,
            session=self.session,
            extra=before.extra if before else {},
        )
