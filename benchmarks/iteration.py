"""CPU per record of programs that iterate: `for` and `async for` over pykcl's consumers, a worker, and async-kinesis.

    python -m benchmarks.iteration [--rounds 3] [--window 3] [--shards 4]

What iterating costs is the difference to a worker whose processor walks through its batches, in the same run. Each program
is a process of its own with default options; its CPU by the kernel's clock, all threads, divided by the records that its
loop was given. async-kinesis has no leases, and keeps its checkpoints in memory. TLS.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks import peer_environment
from benchmarks.canned import Shape, certificate_in
from benchmarks.figures import Spread
from benchmarks.live_shards import Control, bodies_of, live_server
from benchmarks.machine import busy, described, machine
from benchmarks.processes import Child
from benchmarks.readers import ASYNC, AsyncKinesisReader, PykclReader, Reader, surroundings
from benchmarks.results import Results

SHAPE = Shape("1,000 x 100 B", 1000, 100)
WORKER, SYNC, ASYNC_FOR = "pykcl, Worker", "pykcl, for", "pykcl, async for"
ITERATING = 8.0
"""Microseconds that iterating may cost for each record, beyond a worker."""


class ConsumerReader(PykclReader):
    """A program with a Consumer or an AsyncConsumer."""

    def __init__(self, name: str, kind: str, control: Control, certificate: Path, logs: Path) -> None:
        self.name, self.control = name, control
        self.child = Child(
            name, [sys.executable, "-m", "benchmarks.peer_programs.pykcl_consumer", kind],
            surroundings(control.url, certificate), logs,
        )  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--window", type=float, default=3.0, help="seconds")
    options.add_argument("--shards", type=int, default=4)
    chosen = options.parse_args()
    versions = machine()
    bodies = bodies_of((SHAPE,), chosen.shards)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificate = Path(certificate_in(folder))

        def server() -> Control:
            return stack.enter_context(live_server(bodies, (SHAPE,), chosen.shards, certificate))

        readers: list[Reader] = [
            PykclReader(WORKER, {}, server(), certificate, folder),
            ConsumerReader(SYNC, "sync", server(), certificate, folder),
            ConsumerReader(ASYNC_FOR, "async", server(), certificate, folder),
        ]
        for reader in readers:
            stack.callback(reader.end)
            if isinstance(reader, PykclReader):
                reader.warm_up(SHAPE)
        try:
            python = peer_environment.python_of("async-kinesis", peer_environment.ASYNC_KINESIS)
            versions |= peer_environment.versions(python, ("async-kinesis", "aiobotocore"))
            readers.append(AsyncKinesisReader(python, server(), certificate, folder))
        except peer_environment.Unavailable as reason:
            print(f"*** {ASYNC} is NOT MEASURED: {reason}", flush=True)
        print(f"{described(versions)}\n{busy()}".strip(), flush=True)
        times: dict[str, list[float]] = {reader.name: [] for reader in readers}
        for _ in range(chosen.rounds):
            for reader in readers:
                times[reader.name].append(reader.sample(SHAPE, chosen.window) * 1e6)
    results = Results("iteration", versions)
    for name, found in times.items():
        spread = Spread.of(found)
        print(f"  {name:20}{spread.median:8.2f} us{spread.low:10.2f}-{spread.high:.2f}", flush=True)
    for name in (SYNC, ASYNC_FOR):
        beyond = statistics.median(
            own - worker for own, worker in zip(times[name], times[WORKER], strict=True)
        )
        results.at_most(f"{name}, beyond a worker, for each record", ITERATING, beyond, " us")
    results.print_goals()
    results.save()
    return results.exit_code


if __name__ == "__main__":
    sys.exit(main())
