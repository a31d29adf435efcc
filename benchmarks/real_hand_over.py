"""How long a shard stays unread when a real process is stopped, or killed: `pykcl run` many times, on the local AWS.

    python -m benchmarks.real_hand_over [--workers 10] [--shards 20] [--rounds 6] [--crashes 2]

Each round ends one process, with SIGTERM or with SIGKILL, waits until each shard that it read is read by another (by what
the logs say: `ShardStarted`), and starts one in its place. Times are those of the signal and of the log lines.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from benchmarks.machine import described, machine
from benchmarks.results import Results
from benchmarks.server_process import local_command
from pykcl import Batch, RecordProcessor

APPLICATION, STREAM = "hand-over", "orders"
WANTED = 2.0
"""Seconds, for fleets of up to ten workers."""
_PATIENCE = 120.0


class Quiet(RecordProcessor):
    def process_records(self, batch: Batch) -> None:
        """The stream stays empty."""


class Crew:
    """The processes, and what their logs say of who reads which shard."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._read: dict[str, int] = {}
        self.reader: dict[str, tuple[str, float]] = {}

    def start(self, name: str) -> None:
        command = [
            sys.executable, "-m", "pykcl.cli", "run", "benchmarks.real_hand_over:Quiet", "--app", APPLICATION,
            "--stream", STREAM, "--worker-id", name, "--start", "TRIM_HORIZON", "--log-format", "json",
        ]  # fmt: skip
        with (self._folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def look(self) -> None:
        """Read what the logs got since the last look."""
        for path in self._folder.glob("*.log"):
            with path.open("rb") as log:
                log.seek(self._read.get(path.stem, 0))
                lines = log.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            self._read[path.stem] = self._read.get(path.stem, 0) + len(whole)
            for line in whole.splitlines():
                if b"ShardStarted" in line:
                    told = json.loads(line)
                    at = datetime.fromisoformat(told["time"].replace("Z", "+00:00")).timestamp()
                    if at > self.reader.get(told["shard"], ("", 0.0))[1]:
                        self.reader[told["shard"]] = (path.stem, at)

    def shards_of(self, name: str) -> list[str]:
        return sorted(shard for shard, (reader, _) in self.reader.items() if reader == name)

    def until_even(self, shards: int) -> None:
        """Every running process reads as many shards as any other, or one more."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            self.look()
            each = [len(self.shards_of(name)) for name in self.running]
            if len(self.reader) == shards and sum(each) == shards and max(each) - min(each) <= 1:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"not even after {_PATIENCE:g} s: {each}")
            time.sleep(0.1)

    def end(self, name: str, how: signal.Signals) -> list[float]:
        """Seconds from the signal until another read it, of each of its shards."""
        shards, process = self.shards_of(name), self.running.pop(name)
        at = time.time()
        process.send_signal(how)
        process.wait(60)
        deadline = time.monotonic() + _PATIENCE
        while left := self.shards_of(name):
            if time.monotonic() > deadline:
                raise RuntimeError(f"nobody reads {left} after {_PATIENCE:g} s")
            time.sleep(0.05)
            self.look()
        return [self.reader[shard][1] - at for shard in shards]

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait(60)


def rounds(crew: Crew, chosen: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds that each lease was unread, by the name of the signal that ended its reader."""
    rng = random.Random(chosen.seed)
    for number in range(chosen.workers):
        crew.start(f"w{number}")
    crew.until_even(chosen.shards)
    found: dict[str, list[float]] = {}
    for number in range(chosen.rounds + chosen.crashes):
        how = signal.SIGTERM if number < chosen.rounds else signal.SIGKILL
        # So that it ends anywhere between two looks of the others.
        time.sleep(rng.uniform(1.0, 3.0))
        found.setdefault(how.name, []).extend(crew.end(rng.choice(sorted(crew.running)), how))
        crew.start(f"w{chosen.workers + number}")
        crew.until_even(chosen.shards)
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--workers", type=int, default=10)
    options.add_argument("--shards", type=int, default=20)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--crashes", type=int, default=2)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    results = Results("real-hand-over", machine())
    print(described(results.versions))
    with tempfile.TemporaryDirectory() as folder, local_command(f"{STREAM}:{chosen.shards}") as variables:
        crew = Crew(Path(folder), {**os.environ, **variables})
        try:
            found = rounds(crew, chosen)
        finally:
            crew.stop()
    for how_called, seconds in found.items():
        print(
            f"{chosen.workers} processes, {chosen.shards} shards, {how_called}: {len(seconds)} leases, "
            f"mean {statistics.fmean(seconds):.2f} s, longest {max(seconds):.2f} s"
        )
    if found.get("SIGTERM"):
        results.at_most(
            f"clean hand-over, {chosen.workers} real processes, longest", WANTED, max(found["SIGTERM"]), " s"
        )
    results.print_goals()
    results.save()
    return results.exit_code


if __name__ == "__main__":
    sys.exit(main())
