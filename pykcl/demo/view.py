"""State of the demo as values, and the view that prints it as plain lines, for pipes, logs and a missing `rich`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from pykcl.demo.verdict import Verdict


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
class DemoState:
    """All that a view shows. java: the version of the Java worker in the fleet, if there is one."""

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
    """Output of the demo."""

    def start(self, state: DemoState) -> None: ...

    def refresh(self, state: DemoState) -> None:
        """Show the present state. Called several times a second."""

    def entry(self, entry: Entry) -> None:
        """Show a new entry."""

    def end(self, state: DemoState) -> None:
        """Show the last state. Called once, also after a failure."""

    def say(self, text: str) -> None:
        """Print a line after the end."""


def short(shard: str) -> str:
    """shardId-000000000004 as 004."""
    return shard.removeprefix("shardId-")[-3:]


def grouped(number: int) -> str:
    """48000 as 48 000."""
    return f"{number:,}".replace(",", " ")


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def headline(state: DemoState) -> str:
    fleet = f"with Java KCL {state.java}" if state.java else f"stream demo ({state.shards_at_start} shards)"
    return f"pykcl demo · {fleet} · table pykcl-demo · seed {state.seed}"


def why_duplicates(state: DemoState) -> str:
    kills = sum(line.state == "killed" for line in state.workers)
    return f"at-least-once: {counted(kills, 'kill')}, {counted(state.steals, 'steal')}"


def totals(verdict: Verdict, why: str) -> str:
    return (
        f"produced {grouped(verdict.produced)} in {grouped(verdict.kinesis_records)} Kinesis records · "
        f"processed {grouped(verdict.processed)} distinct · "
        f"duplicates {grouped(verdict.duplicates)} ({why}) · "
        f"lost {grouped(verdict.lost)} · out of order {grouped(verdict.out_of_order)}"
    )


def letter_totals(verdict: Verdict) -> str:
    """Return an empty text if there was no dead letter."""
    if not verdict.dead_letters:
        return ""
    return f"dead letters {grouped(verdict.dead_letters)}, redriven {grouped(verdict.redriven)}"


NEXT_STEPS = "try next:  pykcl demo --ui   ·   pykcl run --help   ·   docs/index.md"
RULE = "─" * 94


class PlainView:
    """One line per event, the verdict at the end."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def start(self, state: DemoState) -> None:
        self.say(f"{headline(state)} · endpoint {state.url} (local)")
        if state.broken:
            self.say(f"broken on purpose: {state.broken}")

    def refresh(self, state: DemoState) -> None:
        """Do nothing: printed lines do not change."""

    def entry(self, entry: Entry) -> None:
        self.say(f" t+{entry.at:5.1f}s  {entry.what:<16} {entry.detail:<30} → {entry.outcome}")

    def end(self, state: DemoState) -> None:
        verdict = state.verdict
        if verdict is None:
            return
        self.say(RULE)
        self.say(totals(verdict, why_duplicates(state)))
        if letters := letter_totals(verdict):
            self.say(letters)
        for reason in verdict.reasons:
            self.say(f"  because {reason}")
        self.say(f"PASS   {NEXT_STEPS}" if verdict.passed else "FAIL")

    def say(self, text: str) -> None:
        try:
            self._out.write(text + "\n")
        except UnicodeEncodeError:
            plain = text.translate({ord("·"): "-", ord("─"): "-", ord("→"): ">"})
            self._out.write(plain.encode("ascii", "replace").decode() + "\n")
        self._out.flush()
