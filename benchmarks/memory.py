"""Memory of a worker: with the largest records there are, and over the traffic of a day.

    python -m benchmarks.memory [--seconds 120] [--shards 32]

The program of pykcl's README with default options, over plain HTTP, on a server of prepared pages. First every page of
every shard is one record of 10 MiB, then pages of all sizes take turns. Of the latter the resident set is sampled four times
a second: what the last third of the time needs at most, beside the second third, shows a leak.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path

from benchmarks.canned import Shape
from benchmarks.live_shards import STREAM, Control, bodies_of, live_server
from benchmarks.machine import described, machine
from benchmarks.processes import Child
from benchmarks.readers import surroundings
from benchmarks.results import Results

LARGEST = Shape("1 x 10 MiB", 1, 10 * 1024 * 1024)
MIXED = (
    Shape("1,000 x 100 B", 1000, 100),
    Shape("1,000 x 1 KB", 1000, 1024),
    Shape("KPL 100x100x100 B", 100, 100, 100),
    Shape("10,000 x 100 B", 10_000, 100),
)
_TURN_SECONDS = 2.0
_SLICES = 12
_MIB = 1024 * 1024


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument(
        "--seconds", type=float, default=120.0, help="of mixed pages; a quarter of it of large records"
    )
    options.add_argument("--shards", type=int, default=32)
    chosen = options.parse_args()
    results = Results("memory", machine())
    print(described(results.versions))
    with tempfile.TemporaryDirectory() as folder:
        large = largest_records(chosen.shards, chosen.seconds / 4, Path(folder))
        samples, records = mixed_pages(chosen.shards, chosen.seconds, Path(folder))
    print(f"{chosen.shards} shards of records of 10 MiB: {large:.0f} MiB at most")
    step = len(samples) // _SLICES
    slices = [max(samples[start : start + step]) for start in range(0, step * _SLICES, step)]
    print(
        f"mixed pages, {records:,} records, MiB at most in each twelfth: {' '.join(f'{each:.0f}' for each in slices)}"
    )
    third = _SLICES // 3
    growth = max(slices[-third:]) / max(slices[third:-third])
    results.at_most(f"{chosen.shards} shards of records of 10 MiB", 1024, large, " MiB")
    results.at_most("mixed pages: last third of the time, by the second", 1.05, growth, "x")
    bars = [
        {"label": f"{(n + 1) * chosen.seconds / _SLICES:.0f} s", "value": each, "is_ours": True}
        for n, each in enumerate(slices)
    ]
    results.pictures["memory"] = {
        "title": "Resident memory while pages of all sizes take turns", "unit": " MiB", "groups": {"": bars},
        "note": f"{chosen.shards} shards, {records:,} records",
    }  # fmt: skip
    results.print_goals()
    results.save()
    return results.exit_code


def largest_records(shards: int, seconds: float, folder: Path) -> float:
    """The highest resident set, MiB."""
    with live_server(bodies_of((LARGEST,), shards), (LARGEST,), shards, None) as control:
        child = program(control, folder)
        try:
            control.serve(LARGEST.name)
            child.wait_for_records(shards)
            time.sleep(seconds)
            return child.peak_memory / _MIB
        finally:
            child.end()


def mixed_pages(shards: int, seconds: float, folder: Path) -> tuple[list[float], int]:
    """Samples of the resident set in MiB, and the number of records."""
    samples = []
    with live_server(bodies_of(MIXED, shards), MIXED, shards, None) as control:
        child = program(control, folder)
        try:
            shapes, until = cycle(MIXED), time.monotonic() + seconds
            while time.monotonic() < until:
                control.serve(next(shapes).name)
                turn = time.monotonic() + _TURN_SECONDS
                while time.monotonic() < turn:
                    samples.append(child.memory / _MIB)
                    time.sleep(0.25)
            return samples, child.count()[0]
        finally:
            child.end()


def program(control: Control, folder: Path) -> Child:
    command = [sys.executable, "-m", "benchmarks.peer_programs.pykcl_embedded", "memory", STREAM]
    return Child("memory", command, surroundings(control.url, None), folder)


if __name__ == "__main__":
    sys.exit(main())
