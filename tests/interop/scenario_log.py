"""`Told`: what a story with real Java workers left, and the writes to its lease table with who sent them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet_evidence import REQUESTS, TABLE, Evidence, Life
from fleet_recording import complete_lines
from fleet_rows import LeaseRows, RowWrite, sender


@dataclass(frozen=True, slots=True)
class Sent:
    """One write to a row of the lease table. sender: the worker that sent it, as it calls itself. params: as sent."""

    sender: str
    write: RowWrite
    params: Mapping[str, Any]


@dataclass(slots=True, repr=False)
class Told:
    """What a story left. lines: the log of the local AWS about DynamoDB. sent: the writes in it. said: what each worker
    wrote down. notes: what was seen or chosen on the way, by names of the story's own."""

    evidence: Evidence
    lines: list[dict[str, Any]]
    sent: list[Sent]
    said: dict[str, list[dict[str, Any]]]
    notes: dict[str, Any]

    def applied(self, key: str) -> list[Sent]:
        """To one row, in order."""
        return [one for one in self.sent if one.write.key == key and one.write.applied]

    def lives_of(self, worker: str, shard: str) -> list[Life]:
        return [life for life in self.evidence.lives if (life.worker, life.shard) == (worker, shard)]


def told_by(folder: Path, evidence: Evidence, notes: Mapping[str, Any]) -> Told:
    lines = [line for line in complete_lines(folder / REQUESTS) if line["service"] == "dynamodb"]
    said = {worker: list(complete_lines(folder / f"{worker}.jsonl")) for worker in evidence.processes}
    return Told(evidence, lines, sent_in(lines), said, dict(notes))


def sent_in(lines: Iterable[Mapping[str, Any]]) -> list[Sent]:
    rows, found = LeaseRows(Path(), TABLE), []
    for line in lines:
        before = len(rows.writes)
        rows.take(line)
        found += [Sent(sender(line), write, line["parameters"]) for write in rows.writes[before:]]
    return found


def is_pykcl(worker: str) -> bool:
    """By the first letter: Java workers of the stories are j1, j2 and so on."""
    return bool(worker) and not worker.startswith("j")


def ender_of(told: Told, shard: str) -> str:
    """Who ended it; empty for nobody."""
    return next((one.sender for one in told.applied(shard) if one.write.kind == "end"), "")
