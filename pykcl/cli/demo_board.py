"""What the demo shows, as values: the views only draw them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from pykcl.cli.demo_verdict import Verdict


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the event log. at: seconds since the start. tone: "", "bad" or "good"."""

    at: float
    what: str
    detail: str
    outcome: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class ShardLine:
    """put, delivered, checkpointed: Kinesis records. state: "open", "closed" (draining) or "ended"."""

    shard: str
    parents: tuple[str, ...]
    state: str
    owner: str | None
    put: int
    delivered: int
    checkpointed: int


@dataclass(frozen=True, slots=True)
class WorkerLine:
    name: str
    state: str
    leases: int
    delivered: int


@dataclass(slots=True)
class Board:
    """The whole picture at one moment. java: the version of the Java worker in the fleet, if there is one."""

    url: str
    seed: int
    shards_at_start: int
    broken: str | None = None
    java: str | None = None
    elapsed: float = 0.0
    phase: str = "starting"
    shards: list[ShardLine] = field(default_factory=list)
    workers: list[WorkerLine] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    produced: int = 0
    processed: int = 0
    duplicates: int = 0
    steals: int = 0
    verdict: Verdict | None = None


class View(Protocol):
    """Something to look at."""

    def begin(self, board: Board) -> None: ...

    def refresh(self, board: Board) -> None:
        """Called several times a second; cheap when there is nothing to draw."""

    def entry(self, entry: Entry) -> None:
        """Something has happened."""

    def end(self, board: Board) -> None:
        """The last picture. Called once, also after a failure."""

    def say(self, text: str) -> None:
        """A plain line after the end."""


def short(shard: str) -> str:
    """shardId-000000000004 as 004."""
    return shard.removeprefix("shardId-")[-3:]


def grouped(number: int) -> str:
    """48000 as 48 000."""
    return f"{number:,}".replace(",", " ")


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def headline(board: Board) -> str:
    fleet = f"with Java KCL {board.java}" if board.java else f"stream demo ({board.shards_at_start} shards)"
    return f"pykcl demo · {fleet} · table pykcl-demo · seed {board.seed}"


def why_duplicates(board: Board) -> str:
    kills = sum(line.state == "killed" for line in board.workers)
    return f"at-least-once: {counted(kills, 'kill')}, {counted(board.steals, 'steal')}"


def totals(verdict: Verdict, why: str) -> str:
    return (
        f"produced {grouped(verdict.produced)} in {grouped(verdict.kinesis_records)} Kinesis records · "
        f"processed {grouped(verdict.processed)} distinct · "
        f"duplicates {grouped(verdict.duplicates)} ({why}) · "
        f"lost {grouped(verdict.lost)} · out of order {grouped(verdict.out_of_order)}"
    )


NEXT_STEPS = "try next:  pykcl demo --ui   ·   pykcl run --help   ·   docs/tutorial.md"
