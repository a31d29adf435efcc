"""kcl-rs 0.1.4, the Rust port of KCL 3 with Python bindings, beside pykcl: each as the program of its README.

    python -m benchmarks.rust_peer [--rounds 3] [--shapes 0,1,2,3]

Both poll four shards of one local AWS over plain HTTP, each has a stream of its own there, and all options are as they are
by default. CPU per user record is that of a program which catches up: it is paused, records are put, it goes on, and its CPU is
counted from a fifth of them on. The seconds to the first record are measured from the start of the process: with no lease
table, and once more with the leases of the first run. RSS is the highest of the process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import peer_environment, peer_goals
from benchmarks.canned import Shape
from benchmarks.figures import Spread, paired_ratio
from benchmarks.local_stream import Server, Side, local_aws
from benchmarks.machine import busy, described, machine
from benchmarks.peer_goals import EMBEDDED, KCL_RS
from benchmarks.processes import Child
from benchmarks.readers import PROGRAMS, surroundings
from benchmarks.results import NOT_RUN, Results

Unavailable = peer_environment.Unavailable

SHARDS = 4
SHAPES = (
    Shape("1,000 x 100 B", 1000, 100),
    Shape("1,000 x 1 KB", 1000, 1024),
    Shape("KPL 100x100x100 B", 100, 100, 100),
    Shape("KPL 40x50x1 KB", 40, 1024, 50),
)
RECORDS = dict(zip([shape.name for shape in SHAPES], (200_000, 60_000, 800_000, 80_000), strict=True))
"""User records of a round."""
_COUNTED_FROM = 0.2
_RUST_STREAM, _OUR_STREAM = "for-kcl-rs", "for-pykcl"
_IDLE_SECONDS = 20.0
_START_SECONDS = 300.0
_STOP_SECONDS = 60.0


class Program(Side):
    """One of the two programs, and the seconds from its start to its first record."""

    def __init__(
        self, name: str, stream: str, server: Server, start: Callable[[], Child], stack: ExitStack
    ) -> None:
        self._start, self._stack = start, stack
        self.first_records: list[float] = []
        super().__init__(name, stream, server, lambda: self.child.count()[0], lambda: self.child.cpu)

    def start(self, shape: Shape) -> None:
        """Start it with a record of each shard waiting, and wait until it was given one."""
        self._server.put(self.stream, SHARDS * shape.in_each, shape)
        began = time.monotonic()
        self.child = self._start()
        self._stack.callback(self.child.end)
        self.child.wait_for_records(0, _START_SECONDS)
        self.first_records.append(time.monotonic() - began)
        self._total = SHARDS * shape.in_each

    def restart(self, shape: Shape) -> None:
        """End it in order, so that its leases are free, and start it again."""
        self.child.interrupt(_STOP_SECONDS)
        self.start(shape)

    def catch_up(self, count: int, shape: Shape) -> float:
        """Microseconds of CPU per user record."""
        self.child.pause()
        try:
            self._server.put(self.stream, count, shape)
        finally:
            self.child.go_on()
        self._total += count
        began_at = self.child.wait_for_records(self._total - round(count * (1 - _COUNTED_FROM)))
        before = self.cpu()
        self.child.wait_for_records(self._total - 1)
        return (self.cpu() - before) / (self._total - began_at) * 1e6


def measure(results: Results, shapes: Sequence[Shape], rounds: int) -> None:
    """Print the tables and keep the ratios. Raises Unavailable."""
    python = peer_environment.python_of("kcl-rs", peer_environment.KCL_RS)
    results.versions |= peer_environment.versions(python, ("kcl-rs",))
    print(
        f"\n{KCL_RS} {results.versions['kcl-rs']}, polling, and a program with Worker(...).run(); {SHARDS} shards, no TLS"
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(local_aws((_RUST_STREAM, _OUR_STREAM), SHARDS))
        ours_env = surroundings(server.url, None)
        # Its environment is not ours: there is no pykcl in it.
        rust_env = {name: text for name, text in ours_env.items() if name != "PYTHONPATH"}
        rust_command = [str(python), str(PROGRAMS / "kcl_rs_worker.py"), "rust", _RUST_STREAM, server.url]
        our_command = [
            sys.executable, "-m", "benchmarks.peer_programs.pykcl_embedded", "ours", _OUR_STREAM
        ]  # fmt: skip
        rust = Program(
            KCL_RS, _RUST_STREAM, server, lambda: Child(KCL_RS, rust_command, rust_env, folder), stack
        )
        ours = Program(
            EMBEDDED, _OUR_STREAM, server, lambda: Child(EMBEDDED, our_command, ours_env, folder), stack
        )
        try:
            for program in (ours, rust):
                program.start(shapes[0])
                program.restart(shapes[0])
            for number, what in enumerate((peer_goals.FIRST_RECORD, peer_goals.FIRST_RECORD_AGAIN)):
                show(
                    results,
                    what,
                    {each.name: each.first_records[number : number + 1] for each in (rust, ours)},
                    "s",
                )
            for shape in shapes:
                _measure_shape(results, rust, ours, shape, rounds)
            _measure_idle(results, rust, ours, server, rounds)
            memory = {each.name: [each.child.peak_memory / 1e6] for each in (rust, ours)}
            show(results, peer_goals.MEMORY, memory, "MB")
        except RuntimeError as error:
            raise Unavailable(str(error)) from error


def _measure_shape(results: Results, rust: Program, ours: Program, shape: Shape, rounds: int) -> None:
    times: dict[str, list[float]] = {rust.name: [], ours.name: []}
    for _ in range(rounds):
        for program in (rust, ours):
            times[program.name].append(program.catch_up(RECORDS[shape.name], shape))
    show(results, shape.name, times, "us")


def _measure_idle(results: Results, rust: Program, ours: Program, server: Server, rounds: int) -> None:
    """CPU of a poll that brings nothing, with all that a process does meanwhile."""
    time.sleep(3.0)
    times: dict[str, list[float]] = {rust.name: [], ours.name: []}
    for _ in range(rounds):
        before, cpu = server.polls(), (rust.cpu(), ours.cpu())
        time.sleep(_IDLE_SECONDS / rounds)
        after, spent = server.polls(), (rust.cpu() - cpu[0], ours.cpu() - cpu[1])
        for number, program in enumerate((rust, ours)):
            times[program.name].append(spent[number] / max(1, after[number] - before[number]) * 1e6)
    show(results, peer_goals.AT_REST, times, "us")


def show(results: Results, what: str, times: Mapping[str, Sequence[float]], unit: str) -> None:
    """Print a table, and keep the ratio and the bars."""
    print(f"\n{what}, beside {KCL_RS}")
    for name, found in times.items():
        spread = Spread.of(found)
        print(f"  {name:32}{spread.median:8.2f}{unit}{spread.low:10.2f}-{spread.high:.2f}", flush=True)
    try:
        ratio = paired_ratio(times[KCL_RS], times[EMBEDDED])
    except ValueError as problem:
        print(f"  no ratio: {problem}")
        return
    results.ratios[peer_goals.key(what, EMBEDDED, KCL_RS)] = ratio
    print(f"  {EMBEDDED} takes less: {ratio}")
    if unit == "us" and what != peer_goals.AT_REST:
        picture = results.pictures.setdefault(
            "rust",
            {
                "title": "kcl-rs, polling, and pykcl: CPU per user record", "unit": " us", "groups": {},
                "note": "each as the program of its README, same local AWS",
            },
        )  # fmt: skip
        picture["groups"][what] = [
            {"label": name, "value": Spread.of(found).median, "is_ours": name == EMBEDDED}
            for name, found in times.items()
        ]


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument(
        "--window", type=float, default=5.0, help="seconds; longer where 4 N records need it"
    )
    options.add_argument("--shapes", default="0,1,2,3", help="which, by number")
    chosen = options.parse_args()
    shapes = [SHAPES[int(number)] for number in chosen.shapes.split(",")]
    results = Results("rust_peer", machine())
    print(f"{described(results.versions)} {busy()}".strip())
    try:
        measure(results, shapes, chosen.rounds)
    except Unavailable as reason:
        print(f"*** {KCL_RS} is NOT MEASURED: {reason}", flush=True)
        return NOT_RUN
    peer_goals.judge_rust(results, [shape.name for shape in shapes])
    results.print_goals()
    results.save()
    return results.exit_code


if __name__ == "__main__":
    sys.exit(main())
