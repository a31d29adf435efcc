"""What a pause costs, and what a worker costs beyond it: the calls of pykcl alone, flat out and paced, and a worker.

    python -m benchmarks.paced_calls [--rounds 5] [--window 3] [--shards 8]

Flat out: one thread, one shard, every cache warm. Paced: a thread for each shard, with the pauses that Kinesis' limits of
five reads and 2 MiB a second demand. No worker can do without them. The worker is the program of pykcl's README with default
options; what it costs beyond the paced calls is its own. TLS, CBOR.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.canned import Shape, certificate_in
from benchmarks.figures import paired_ratio
from benchmarks.live_shards import STREAM, Control, bodies_of, live_server
from benchmarks.machine import described, machine
from benchmarks.peer_goals import EMBEDDED, PACED_CALLS, WORKER_BESIDE_PACED_CALLS, key
from benchmarks.peers import SHAPES
from benchmarks.processes import Child
from benchmarks.readers import CallsReader, PykclReader, surroundings
from benchmarks.results import Results
from pykcl.planning.read_schedule import BYTES_PER_SECOND, SHARD_READ_INTERVAL


class EmbeddedReader(PykclReader):
    """The program of the README."""

    def __init__(self, control: Control, certificate: Path, logs: Path) -> None:
        self.name, self.control = EMBEDDED, control
        self.child = Child(
            EMBEDDED, [sys.executable, "-m", "benchmarks.peer_programs.pykcl_embedded", "paced", STREAM],
            surroundings(control.url, certificate), logs,
        )  # fmt: skip


def pause_of(shape: Shape) -> float:
    """Seconds between two reads of a shard."""
    return max(SHARD_READ_INTERVAL, shape.user_records * shape.size / BYTES_PER_SECOND)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--window", type=float, default=3.0, help="seconds")
    options.add_argument("--shards", type=int, default=8)
    chosen = options.parse_args()
    results = Results("paced_calls", machine())
    print(described(results.versions))
    bodies = bodies_of(SHAPES, chosen.shards)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificate = Path(certificate_in(folder))
        servers = [
            stack.enter_context(live_server(bodies, SHAPES, chosen.shards, certificate)) for _ in range(2)
        ]
        calls = CallsReader(servers[0], certificate, folder, chosen.shards)
        stack.callback(calls.end)
        worker = EmbeddedReader(servers[1], certificate, folder)
        stack.callback(worker.end)
        # The first pages prove CBOR, which small ones do not.
        worker.warm_up(SHAPES[1])
        for shape in SHAPES:
            measure(results, calls, worker, shape, chosen.rounds, chosen.window)
    results.print_goals()
    results.save()
    return results.exit_code


def measure(
    results: Results, calls: CallsReader, worker: PykclReader, shape: Shape, rounds: int, window: float
) -> None:
    pause = pause_of(shape)
    found: dict[str, list[float]] = {"flat out": [], f"every {pause:.2f} s": [], "worker": []}
    hot, paced, whole = found.values()
    for _ in range(rounds):
        hot.append(calls.sample_at("flat-out", shape, window) * 1e6)
        paced.append(calls.sample_at(f"paced {pause:.2f}", shape, window) * 1e6)
        whole.append(worker.sample(shape, window) * 1e6)
    shown = "  ".join(
        f"{name} {statistics.median(times):5.2f} us ({min(times):.2f}-{max(times):.2f})"
        for name, times in found.items()
    )
    print(f"{shape.name:20} {shown}", flush=True)
    results.ratios[key(shape.name, EMBEDDED, PACED_CALLS)] = paired_ratio(paced, whole)
    times_the_calls = paired_ratio(whole, paced).median
    results.at_most(
        f"{shape.name}: {EMBEDDED}, beside {PACED_CALLS}", WORKER_BESIDE_PACED_CALLS, times_the_calls, "x"
    )


if __name__ == "__main__":
    sys.exit(main())
