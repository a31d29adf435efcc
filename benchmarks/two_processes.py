"""How much faster `pykcl run --processes 2` catches up than `--processes 1`, on two cores.

    python -m benchmarks.two_processes [--rounds 2] [--window 5] [--shards 96]

All shards are far behind, so each is read as fast as Kinesis allows, which is more than one process can. What is counted is
the records that the server of prepared pages gave out in a window, over plain HTTP, since it has no other cores than theirs.
The processor makes a digest of the data of each record, half a microsecond's work: less does hardly any. Both run in turn, in
processes that begin anew.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from benchmarks.canned import Shape
from benchmarks.figures import paired_ratio
from benchmarks.live_shards import STREAM, Control, bodies_of, live_server
from benchmarks.machine import described, machine
from benchmarks.processes import tree_cpu_seconds
from benchmarks.readers import surroundings
from benchmarks.results import NOT_RUN, Results
from pykcl import Batch, RecordProcessor

SHAPE = Shape("5,000 x 100 B", 5000, 100)
WANTED = 1.8
_PATIENCE = 120.0
_STOP_SECONDS = 60.0


class Digesting(RecordProcessor):
    def process_records(self, batch: Batch) -> None:
        for record in batch:
            sha256(record.data).digest()


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--window", type=float, default=5.0, help="seconds")
    options.add_argument("--shards", type=int, default=96)
    chosen = options.parse_args()
    if chosen.shards % 2:
        options.error("--shards must be even: two processes share them")
    if (os.cpu_count() or 1) < 2:
        print("*** one core: there is nothing to measure")
        return NOT_RUN
    results = Results("two_processes", machine())
    print(described(results.versions))
    bodies = bodies_of((SHAPE,), chosen.shards)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(chosen.rounds):
            for processes, found in seconds.items():
                with live_server(bodies, (SHAPE,), chosen.shards, None) as control:
                    log = Path(folder) / f"{number}-{processes}.log"
                    records, cpu = rate(control, processes, chosen.shards, chosen.window, log)
                found.append(1 / records)
                print(
                    f"{processes} processes: {records:10,.0f} records a second, {cpu:.2f} cores", flush=True
                )
    ratio = paired_ratio(seconds[1], seconds[2])
    medians = [1 / statistics.median(found) for found in seconds.values()]
    print(f"medians: {medians[0]:,.0f} and {medians[1]:,.0f}; ratio {ratio}")
    results.ratios[f"{SHAPE.name} | two processes | one"] = ratio
    results.at_least("catch-up of two processes on two cores, faster than one", WANTED, ratio)
    results.print_goals()
    results.save()
    return results.exit_code


def rate(control: Control, processes: int, shards: int, window: float, log: Path) -> tuple[float, float]:
    """Records a second, and cores that the processes used, once every one of them reads its share."""
    control.serve(SHAPE.name)
    with running(control, processes, log) as process:
        deadline = time.monotonic() + _PATIENCE
        while sorted(control.owned("catching-up")) != [shards // processes] * processes:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the shards were not shared out: {log.read_text()[-2000:]}")
            time.sleep(0.2)
        # Until what the others held is read by its new owner, too.
        time.sleep(3.0)
        pages, cpu, began = control.polls(), tree_cpu_seconds(process.pid), time.monotonic()
        time.sleep(window)
        passed = time.monotonic() - began
        pages, cpu = control.polls() - pages, tree_cpu_seconds(process.pid) - cpu
        if not pages:
            raise RuntimeError(f"no page was read within {window:g} s: {log.read_text()[-2000:]}")
    return pages * SHAPE.records / passed, cpu / passed


@contextmanager
def running(control: Control, processes: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable, "-m", "pykcl.cli", "run", "benchmarks.two_processes:Digesting", "--app", "catching-up",
        "--stream", STREAM, "--start", "TRIM_HORIZON", "--processes", str(processes), "--option", "record_encoding=cbor",
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=surroundings(control.url, None), stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


if __name__ == "__main__":
    sys.exit(main())
