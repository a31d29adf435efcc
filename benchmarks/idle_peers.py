"""What polls cost that bring nothing: all readers side by side, since none of them takes more than a few percent of a core.

The figure is the CPU of the whole process by the number of GetRecords requests, which the server counts: for pykcl with its
heartbeats, checks and scans. At rest: caught up, with each reader's own pause (pykcl and, beside it, raw boto3: a second). Behind:
empty pages for a reader that is behind, five times a second. async-kinesis has one rhythm: a shard every two seconds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks import peer_goals
from benchmarks.canned import Shape
from benchmarks.figures import Spread, paired_ratio
from benchmarks.live_shards import Control
from benchmarks.processes import Child
from benchmarks.readers import ASYNC, BOTO3, DIRECT_CBOR, PYKCL
from benchmarks.results import Results

if TYPE_CHECKING:
    from benchmarks.peers import Run

FLAT_OUT = "raw boto3, flat out"
PACES = {peer_goals.AT_REST: 1.0, peer_goals.BEHIND: 0.2}
"""Seconds between two reads of a shard by raw boto3: as often as pykcl reads."""
SETTLE = 3.0


def measure_idle(results: Results, run: Run, empty: Shape, rounds: int, window: float) -> None:
    """Prints two tables and keeps the ratios. window: seconds of a round at rest; a third of it behind."""
    for what, seconds in ((peer_goals.AT_REST, window), (peer_goals.BEHIND, window / 3)):
        serving = empty.name if what == peer_goals.BEHIND else ""
        times = _measured(run, what, serving, rounds, seconds)
        print(f"\n{what}: whole process, per GetRecords request")
        _show(results, what, times)
        if what == peer_goals.AT_REST:
            _draw(results, times)


def _measured(run: Run, what: str, serving: str, rounds: int, seconds: float) -> dict[str, list[float]]:
    readers: dict[str, tuple[Child, Control]] = {BOTO3: (run.boto3.child, run.boto3.control)}
    readers |= {
        name: (reader.child, reader.control) for name, reader in run.pykcl.items() if name not in run.missing
    }
    is_there = run.async_kinesis is not None and ASYNC not in run.missing
    if is_there and what == peer_goals.AT_REST:
        readers[ASYNC] = (run.async_kinesis.start("plain"), run.async_kinesis.control)
    for _, control in readers.values():
        control.serve(serving)
    run.boto3.child.ask(f"paced {PACES[what]}")
    time.sleep(SETTLE)
    times: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(rounds):
        before = {name: (child.cpu, control.polls()) for name, (child, control) in readers.items()}
        time.sleep(seconds)
        for name, (child, control) in readers.items():
            cpu, polls = before[name]
            # At least one: a reader that asked for nothing in all this time is told to have asked once.
            times[name].append((child.cpu - cpu) / max(1, control.polls() - polls) * 1e6)
    run.boto3.child.ask("rest")
    times[FLAT_OUT] = [run.boto3.flat_out_polls(0.5) * 1e6 for _ in range(rounds)]
    for _, control in readers.values():
        control.serve("")
    if run.async_kinesis is not None:
        run.async_kinesis.end()
    return times


def _show(results: Results, what: str, times: dict[str, list[float]]) -> None:
    others = [name for name in (BOTO3, FLAT_OUT, ASYNC) if name in times]
    print(f"  {'':32}{'median':>10}{'quartiles':>18}" + "".join(f"{'than ' + name:>27}" for name in others))
    for name, found in times.items():
        spread = Spread.of(found)
        line = f"  {name:32}{spread.median:8.0f}us{spread.low:10.0f}-{spread.high:.0f}"
        line = f"{line:<62}"
        for other in others if name in PYKCL else ():
            ratio = paired_ratio(times[other], found)
            results.ratios[peer_goals.key(what, name, other)] = ratio
            line += f"{ratio!s:>27}"
        print(line, flush=True)


def _draw(results: Results, times: dict[str, list[float]]) -> None:
    chosen = [name for name in (BOTO3, ASYNC, DIRECT_CBOR) if name in times]
    results.pictures["idle"] = {
        "title": "CPU of a poll that brings nothing", "unit": " us", "groups": {"": [
            {"label": name, "value": Spread.of(times[name]).median, "is_ours": name in PYKCL,
             "low": Spread.of(times[name]).low, "high": Spread.of(times[name]).high}
            for name in chosen
        ]},
        "note": "at rest, whole process by GetRecords requests; for pykcl with heartbeats and scans",
    }  # fmt: skip
