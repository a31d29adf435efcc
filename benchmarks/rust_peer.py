"""kcl-rs 0.1.4, the Rust port of KCL 3 with Python bindings, beside pykcl: each as the program of its README.

    python -m benchmarks.rust_peer [--rounds 3] [--shapes 0,1,2,3] [--tls] [--limits]

pykcl is measured twice, as a program with `Worker(...).run()` and as `pykcl run`. All poll four shards of one local AWS over
plain HTTP, or TLS; each has a stream of its own there, and all options are as they are by default. --limits: the local AWS
answers five reads and 2 MiB a second for each shard, as Kinesis does. CPU per user record is that of a program which catches up: it is paused, records are put, it goes on, and its CPU is
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
from benchmarks.canned import Shape, certificate_in
from benchmarks.figures import Spread, paired_ratio
from benchmarks.local_stream import Server, Side, local_aws
from benchmarks.machine import busy, described, machine
from benchmarks.peer_goals import EMBEDDED, KCL_RS, RUN
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
_STREAMS = {KCL_RS: "for-kcl-rs", EMBEDDED: "for-pykcl", RUN: "for-pykcl-run"}
_IDLE_SECONDS = 20.0
_START_SECONDS = 300.0
_STOP_SECONDS = 60.0
_CATCH_UP_SECONDS = 240.0


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
        began_at = self.child.wait_for_records(
            self._total - round(count * (1 - _COUNTED_FROM)), _CATCH_UP_SECONDS
        )
        before = self.cpu()
        self.child.wait_for_records(self._total - 1, _CATCH_UP_SECONDS)
        return (self.cpu() - before) / (self._total - began_at) * 1e6


def measure(
    results: Results, shapes: Sequence[Shape], rounds: int, *, tls: bool = False, limits: bool = False
) -> None:
    """Print the tables and keep the ratios. Raises Unavailable."""
    python = peer_environment.python_of("kcl-rs", peer_environment.KCL_RS)
    results.versions |= peer_environment.versions(python, ("kcl-rs",))
    print(
        f"\n{KCL_RS} {results.versions['kcl-rs']}, polling, a program with Worker(...).run(), and pykcl run; {SHARDS} shards, "
        f"{'TLS' if tls else 'no TLS'}{', the rates of Kinesis' if limits else ''}"
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificate = Path(certificate_in(folder)) if tls else None
        server = stack.enter_context(
            local_aws(tuple(_STREAMS.values()), SHARDS, certificate=certificate, limits=limits)
        )
        commands = commands_of(python, server.url)
        environment = surroundings(server.url, certificate)
        # Its environment is not ours: there is no pykcl in it.
        rust = {name: text for name, text in environment.items() if name != "PYTHONPATH"}
        rust |= {"SSL_CERT_FILE": str(certificate)} if certificate else {}

        def start(name: str) -> Callable[[], Child]:
            env = rust if name == KCL_RS else environment
            return lambda: Child(name, commands[name], env, folder)

        programs = {
            name: Program(name, stream, server, start(name), stack) for name, stream in _STREAMS.items()
        }
        try:
            for name in (EMBEDDED, RUN, KCL_RS):
                programs[name].start(shapes[0])
                programs[name].restart(shapes[0])
            for number, what in enumerate((peer_goals.FIRST_RECORD, peer_goals.FIRST_RECORD_AGAIN)):
                first = {name: each.first_records[number : number + 1] for name, each in programs.items()}
                show(results, what, first, "s")
            for shape in shapes:
                _measure_shape(results, programs, shape, rounds)
            programs[RUN].child.interrupt(_STOP_SECONDS)
            _measure_idle(results, programs, server, rounds)
            memory = {name: [programs[name].child.peak_memory / 1e6] for name in (KCL_RS, EMBEDDED)}
            show(results, peer_goals.MEMORY, memory, "MB")
        except RuntimeError as error:
            raise Unavailable(str(error)) from error


def commands_of(python: Path, url: str) -> dict[str, list[str]]:
    """python: the one that has kcl-rs."""
    run = ["run", "benchmarks.peer_programs.pykcl_run:Counting", "--app", "run", "--start", "TRIM_HORIZON"]
    return {
        KCL_RS: [str(python), str(PROGRAMS / "kcl_rs_worker.py"), "rust", _STREAMS[KCL_RS], url],
        EMBEDDED: [
            sys.executable,
            "-m",
            "benchmarks.peer_programs.pykcl_embedded",
            "ours",
            _STREAMS[EMBEDDED],
        ],
        RUN: [sys.executable, "-m", "pykcl.cli", *run, "--stream", _STREAMS[RUN]],
    }


def _measure_shape(results: Results, programs: Mapping[str, Program], shape: Shape, rounds: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            times[name].append(program.catch_up(RECORDS[shape.name], shape))
    show(results, shape.name, times, "us")


def _measure_idle(results: Results, programs: Mapping[str, Program], server: Server, rounds: int) -> None:
    """CPU of a poll that brings nothing, with all that a process does meanwhile: kcl-rs and the embedded worker."""
    time.sleep(3.0)
    both = [programs[KCL_RS], programs[EMBEDDED]]
    times: dict[str, list[float]] = {each.name: [] for each in both}
    for _ in range(rounds):
        before, cpu = server.polls(), [each.cpu() for each in both]
        time.sleep(_IDLE_SECONDS / rounds)
        after, spent = server.polls(), [each.cpu() - earlier for each, earlier in zip(both, cpu, strict=True)]
        for number, program in enumerate(both):
            times[program.name].append(spent[number] / max(1, after[number] - before[number]) * 1e6)
    show(results, peer_goals.AT_REST, times, "us")


def show(results: Results, what: str, times: Mapping[str, Sequence[float]], unit: str) -> None:
    """Print a table, and keep the ratio and the bars."""
    print(f"\n{what}, beside {KCL_RS}")
    for name, found in times.items():
        spread = Spread.of(found)
        print(f"  {name:32}{spread.median:8.2f}{unit}{spread.low:10.2f}-{spread.high:.2f}", flush=True)
    for name in times:
        if name == KCL_RS:
            continue
        try:
            ratio = paired_ratio(times[KCL_RS], times[name])
        except ValueError as problem:
            print(f"  no ratio: {problem}")
            return
        results.ratios[peer_goals.key(what, name, KCL_RS)] = ratio
        print(f"  {name} takes less: {ratio}")
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
            if name != RUN
        ]


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--tls", action="store_true")
    options.add_argument("--limits", action="store_true", help="the rates of Kinesis")
    options.add_argument("--shapes", default="0,1,2,3", help="which, by number")
    chosen = options.parse_args()
    shapes = [SHAPES[int(number)] for number in chosen.shapes.split(",")]
    results = Results("rust_peer", machine())
    print(f"{described(results.versions)} {busy()}".strip())
    try:
        measure(results, shapes, chosen.rounds, tls=chosen.tls, limits=chosen.limits)
    except Unavailable as reason:
        print(f"*** {KCL_RS} is NOT MEASURED: {reason}", flush=True)
        return NOT_RUN
    peer_goals.judge_rust(results, [shape.name for shape in shapes])
    results.print_goals()
    results.save()
    return results.exit_code


if __name__ == "__main__":
    sys.exit(main())
