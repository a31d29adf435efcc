"""What a pause costs: the calls of pykcl alone, without a worker, flat out and as often as a worker reads.

    python -m benchmarks.paced_calls [--rounds 5] [--window 3] [--shards 8]

Flat out: one thread, one shard, every cache warm. Paced: a thread for each shard, with the pauses that Kinesis' limits of
five reads and 2 MiB a second demand. The difference is what no worker can do without; what a worker costs beyond that is
its own (`peers`). TLS, CBOR.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.canned import Shape, _certificate
from benchmarks.live_shards import bodies_of, live_server
from benchmarks.machine import described, machine
from benchmarks.peers import SHAPES
from benchmarks.readers import CallsReader
from pykcl.planning.read_schedule import BYTES_PER_SECOND, SHARD_READ_INTERVAL


def pause_of(shape: Shape) -> float:
    """Seconds between two reads of a shard."""
    return max(SHARD_READ_INTERVAL, shape.user_records * shape.size / BYTES_PER_SECOND)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--window", type=float, default=3.0, help="seconds")
    options.add_argument("--shards", type=int, default=8)
    chosen = options.parse_args()
    print(described(machine()))
    bodies = bodies_of(SHAPES, chosen.shards)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificate = Path(_certificate(folder))
        with live_server(bodies, SHAPES, chosen.shards, certificate) as control:
            reader = CallsReader(control, certificate, folder, chosen.shards)
            try:
                for shape in SHAPES:
                    measure(reader, shape, chosen.rounds, chosen.window)
            finally:
                reader.end()
    return 0


def measure(reader: CallsReader, shape: Shape, rounds: int, window: float) -> None:
    found: dict[str, list[float]] = {"flat-out": [], f"paced {pause_of(shape):.2f}": []}
    for _ in range(rounds):
        for pace, times in found.items():
            times.append(reader.sample_at(pace, shape, window) * 1e6)
    hot, paced = map(statistics.median, found.values())
    print(
        f"{shape.name:20} flat out {hot:5.2f} us a record, every {pause_of(shape):.2f} s {paced:5.2f} us "
        f"({min(map(min, found.values())):.2f}-{max(map(max, found.values())):.2f})",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
