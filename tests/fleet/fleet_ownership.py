"""Who owned which lease from which write to which, and how it ended: read from the writes and the processes' fates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet_evidence import Evidence, Life, Process
from fleet_rows import Position, RowWrite

FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Ownership:
    """token: the counter right after the take. checkpoint: of the row at that moment.

    closing: index of the write that ended it; until: its time; both FOREVER while it lasts. how: D0 ended in order
    (released, shard ended, or still lasting), D1 its process was killed, D2 taken while it ran, D3 taken while it was
    frozen or just woken. successor: who took it over, if anybody did. next_by_same: index of the next take of that
    lease by the same worker.
    """

    shard: str
    worker: str
    token: int
    checkpoint: Position
    since: int
    until: int
    closing: int
    how: str
    successor: str | None
    next_by_same: int

    @property
    def closed(self) -> bool:
        return self.closing < FOREVER


def ownerships(evidence: Evidence) -> list[Ownership]:
    """In the order of the takes."""
    by_key: dict[str, list[RowWrite]] = {}
    for write in evidence.writes:
        if write.applied:
            by_key.setdefault(write.key, []).append(write)
    found = [
        _ownership(write, writes[number + 1 :], evidence)
        for writes in by_key.values()
        for number, write in enumerate(writes)
        if write.kind == "take"
    ]
    return sorted(found, key=lambda own: own.since)


def ownership_of(life: Life, owned: Sequence[Ownership]) -> Ownership | None:
    """Of a processor: a pykcl worker's knows its token, a Java worker's was begun after the take. owned: see above."""
    taken = [own for own in owned if own.shard == life.shard and own.worker == life.worker]
    exact = [own for own in taken if own.token == life.token]
    earlier = [own for own in taken if own.since <= life.t]
    return next(iter(exact or earlier[-1:]), None)


def _ownership(take: RowWrite, later: list[RowWrite], evidence: Evidence) -> Ownership:
    worker = str(take.writer)
    closing = next((w for w in later if w.kind in ("take", "release", "end", "delete")), None)
    again = next((w for w in later if w.kind == "take" and w.writer == worker), None)
    assert take.after is not None
    return Ownership(
        shard=take.key,
        worker=worker,
        token=take.after.counter,
        checkpoint=take.after.checkpoint,
        since=take.t,
        until=closing.t if closing else FOREVER,
        closing=closing.index if closing else FOREVER,
        how=_how(closing, worker, evidence.processes.get(worker)),
        successor=closing.writer if closing and closing.kind == "take" else None,
        next_by_same=again.index if again else FOREVER,
    )


def _how(closing: RowWrite | None, worker: str, process: Process | None) -> str:
    if closing is None or closing.kind != "take":
        return "D0"
    if process is None:
        return "D2"
    if any(frozen <= closing.t for frozen in _deaths(process)):
        return "D1"
    # Until it has looked at its lease again, a woken worker is as good as frozen.
    return "D3" if any(begin <= closing.t <= end for begin, end in process.freezes) else "D2"


def _deaths(process: Process) -> list[int]:
    return [t for t in (process.killed, process.forced, process.exited) if t is not None]
