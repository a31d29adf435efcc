"""A Java worker among the pykcl workers of a simulated fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import Record
from pykcl.testing.fleet import STREAM, TABLE, Fleet
from pykcl.testing.java.options import JavaEvent, JavaOptions
from pykcl.testing.java.peer import JavaPeer
from pykcl.testing.memory.stream import MemoryStream

Application = Callable[[str, str, Sequence[Record]], Checkpoint | None]


def java_peer(
    fleet: Fleet,
    name: str,
    *,
    application: Application | None = None,
    on_event: Callable[[JavaEvent], None] | None = None,
    **options: Any,
) -> JavaPeer:
    """Not started. What it delivers goes into the fleet's ledger once `application` returned.

    application: see `JavaPeer.on_records`. options: fields of JavaOptions.
    """
    runtime = fleet.simulation.runtime(name)

    def deliver(peer: str, shard: str, records: Sequence[Record]) -> Checkpoint | None:
        chosen = application(peer, shard, records) if application is not None else None
        fleet.ledger.delivered.extend((peer, record) for record in records)
        return chosen

    return JavaPeer(
        name,
        runtime=runtime,
        client=fleet.dynamodb,
        table=TABLE,
        stream=MemoryStream(fleet.kinesis, STREAM, runtime, fleet.simulation.switch),
        on_records=deliver,
        on_event=on_event,
        options=JavaOptions(**options),
    )
