"""Everything a run leaves behind, as values: read from its folder when it is over."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet_recording import complete_lines
from fleet_rows import LeaseRows, Position, RowWrite, position

from pykcl.events import LeaseLost, LeaseTaken, ReleaseUnacknowledged

TABLE = "fleet-app"
STREAM = "fleet"
REQUESTS = "requests.jsonl"
HARNESS = "harness.jsonl"
PUTS = "puts.jsonl"
END = "end.json"

MAY_FOLLOW = {"ended": ("shutdown", "lost"), "shutdown": ("lost",), "lost": ()}
"""What a processor may be told after its end: a stop or a loss may come while the end is being written down."""
ENDINGS = tuple(MAY_FOLLOW)


@dataclass(frozen=True, slots=True)
class Item:
    """One user record. number: given by the producer, unique in the run."""

    at: Position
    number: int

    def __str__(self) -> str:
        return f"record {self.number} ({self.at[0]}:{self.at[1]})"


@dataclass(slots=True)
class Life:
    """One instance of the processor: from initialize to its end, under one ownership. Times in milliseconds.

    given: batches with the time at which process_records was called. done: records it had finished. ends: what
    ended it: "ended", "lost", "shutdown". ended_at: the time of the first of them, None without any. after_end: what was
    called after that.
    """

    worker: str
    shard: str
    token: int
    start: Position
    t: int
    given: list[tuple[int, list[Item]]] = field(default_factory=list)
    done: list[tuple[int, Item]] = field(default_factory=list)
    confirmed: list[tuple[int, Position]] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    ended_at: int | None = None
    after_end: list[str] = field(default_factory=list)
    hung: bool = False

    def __str__(self) -> str:
        return f"{self.worker} on {self.shard} under token {self.token}"


@dataclass(slots=True)
class Process:
    """One `pykcl run`. What was done to it and when; code: its exit code; None while it runs.

    takes: (shard, counter) of the leases it says it took. excused: shards it says it lost or could not release.
    """

    worker: str
    started: int
    killed: int | None = None
    terminated: int | None = None
    forced: int | None = None
    freezes: list[tuple[int, int]] = field(default_factory=list)
    exited: int | None = None
    code: int | None = None
    takes: set[tuple[str, int]] = field(default_factory=set)
    excused: set[str] = field(default_factory=set)
    crashed: bool = False
    last_words: str = ""


@dataclass(slots=True)
class Evidence:
    """records: what was put, by shard, in order. parents: of every shard. actions: what was done to the fleet.

    faults: how many of each kind were injected. unsettled: what had not come to rest when the run gave up waiting.
    elsewhere: tables that pykcl wrote into beside the lease table.
    """

    records: dict[str, list[Item]]
    parents: dict[str, tuple[str, ...]]
    lives: list[Life]
    processes: dict[str, Process]
    writes: list[RowWrite]
    actions: Counter[str]
    faults: dict[str, int]
    unsettled: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


def load(folder: Path) -> Evidence:
    """Read what a run left. Raises OSError or KeyError for a folder that is none of a run's."""
    rows = LeaseRows(folder / REQUESTS, TABLE)
    rows.poll()
    end = json.loads((folder / END).read_text("utf-8"))
    processes, actions = _processes(folder)
    lives = [life for worker in processes for life in lives_of(worker, folder / f"{worker}.jsonl")]
    return Evidence(
        records=_records(folder / PUTS),
        parents={shard: tuple(parents) for shard, parents in end["parents"].items()},
        lives=lives,
        processes=processes,
        writes=rows.writes,
        actions=actions,
        faults=end["faults"],
        unsettled=tuple(end["unsettled"]),
        elsewhere=tuple(rows.elsewhere),
    )


def _records(path: Path) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for put in complete_lines(path):
        items = [Item((int(put["sequence"]), sub), number) for sub, number in enumerate(put["numbers"])]
        found.setdefault(put["shard"], []).extend(items)
    return {shard: sorted(items, key=lambda item: item.at) for shard, items in found.items()}


def lives_of(worker: str, path: Path) -> list[Life]:
    """The processors of one worker, from the file it wrote."""
    lives: list[Life] = []
    current: dict[tuple[str, int], Life] = {}
    for line in complete_lines(path):
        if line["what"] in ("start", "end"):
            continue
        key = (line["shard"], line["token"])
        if line["what"] == "init":
            current[key] = Life(worker, *key, position(line["at"]), line["t"])
            lives.append(current[key])
        else:
            _told(current[key], line)
    return lives


def _told(life: Life, line: Mapping[str, Any]) -> None:
    what, t = line["what"], line["t"]
    if what == "given":
        if life.ends:
            life.after_end.append("a batch")
        life.given.append((t, [_item(one) for one in line["records"]]))
    elif what == "done":
        life.done.append((t, _item(line["record"])))
    elif what == "checkpoint":
        life.confirmed.append((t, position(line["at"])))
    elif what == "hanging":
        life.hung = True
    elif what in ENDINGS:
        if any(what not in MAY_FOLLOW[end] for end in life.ends):
            life.after_end.append(what)
        life.ends.append(what)
        life.ended_at = t if life.ended_at is None else life.ended_at


def _item(fields: list[Any]) -> Item:
    sequence, sub, number = fields
    return Item((int(sequence), sub), number)


def _processes(folder: Path) -> tuple[dict[str, Process], Counter[str]]:
    processes: dict[str, Process] = {}
    actions: Counter[str] = Counter()
    frozen: dict[str, int] = {}
    for line in complete_lines(folder / HARNESS):
        what, t = line["what"], line["t"]
        if what == "did":
            actions[line["action"]] += 1
            continue
        worker = line["worker"]
        if what == "started":
            processes[worker] = Process(worker, t)
            _read_log(processes[worker], folder / f"{worker}.err")
        elif what == "frozen":
            frozen[worker] = t
        elif what == "thawed":
            processes[worker].freezes.append((frozen.pop(worker), t))
        elif what == "exited":
            processes[worker].exited, processes[worker].code = t, line["code"]
        else:
            setattr(processes[worker], what, t)
    return processes, actions


def _read_log(process: Process, path: Path) -> None:
    """What a worker says about its leases: only it can know that an answer never reached it."""
    text = path.read_text("utf-8", "replace") if path.exists() else ""
    taken = re.compile(rf"{re.escape(LeaseTaken.TEXT)} shard=(\S+) .*counter=(\d+)$", re.MULTILINE)
    process.takes = {(shard, int(counter)) for shard, counter in taken.findall(text)}
    for event in (LeaseLost, ReleaseUnacknowledged):
        process.excused |= set(re.findall(rf"{re.escape(event.TEXT)} shard=(\S+)", text))
    process.crashed = "Traceback" in text
    process.last_words = text.strip().rpartition("\n")[2][-300:]
