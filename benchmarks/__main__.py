"""Runs the benchmarks, one process each, draws their pictures, and says at the end which goals were met.

    python -m benchmarks [--quick] [NAME ...]

Without names: all that fit into twenty-five minutes on a quiet machine, what matters most first. By name only: `kclpy_doors`,
which takes a quarter of an hour by itself, `iteration`, `retrieval`, `shards`, and `real_hand_over`. --quick: tiny
rounds, to see that everything runs; the figures mean nothing, and `check` is left out unless it is named.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from benchmarks.results import NOT_RUN, loaded, results_folder

QUICK = {
    "peers": "--rounds 1 --window 0.5 --idle-window 3 --jvm-rounds 1 --jvm-window 5 --shapes 0",
    "failover": "--workers 2,10 --seeds 2",
    "cost": "--seconds 30",
    "read_path": "--rounds 3 --calls 5",
    "metrics_cost": "--pairs 30 --seconds 60",
    "idle_leases": "16",
    "lease_scan": "100 5",
    "two_processes": "--rounds 1 --window 1 --shards 8",
    "memory": "--seconds 24 --shards 4",
    "paced_calls": "--rounds 1 --window 1",
    "iteration": "--rounds 1 --window 1",
    "lanes": "--records 500 --rounds 1",
    "shards": "--shards 20 --patience 60",
    "retrieval": "--shards 4 --idle 2 --records 3 --count 200",
    "producer": "--count 1000 --rounds 1 --seconds 0.5 --latencies 3 --outage 1",
    "kclpy_doors": "--records 4000 --rounds 1 --window 8 --idle 5",
}
USUAL = (
    "peers", "check", "cost", "failover", "pictures", "idle_leases", "read_path", "lease_scan", "deaggregation",
    "metrics_cost", "two_processes", "memory", "paced_calls", "lanes", "producer",
)  # fmt: skip
LEAVE_RESULTS = (
    "peers", "cost", "failover", "memory", "paced_calls", "iteration", "retrieval", "shards", "producer",
)  # fmt: skip
SAID = {0: "goals met", 1: "GOAL MISSED", NOT_RUN: "NOT RUN: what it needs is missing here"}


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--quick", action="store_true")
    options.add_argument("names", nargs="*", metavar="NAME")
    chosen = options.parse_args()
    # Tiny rounds leave most ratios out, and a ratio that is missing fails the check.
    chosen.names = chosen.names or [name for name in USUAL if name != "check" or not chosen.quick]
    began, codes = time.time(), {}
    for name in chosen.names:
        # What is read later is of this run, or not there.
        (results_folder() / f"{name}.json").unlink(missing_ok=True)
    for name in chosen.names:
        print(f"\n== {name}", flush=True)
        extra = QUICK.get(name, "").split() if chosen.quick else []
        start = time.monotonic()
        command = [sys.executable, "-m", f"benchmarks.{name}", *extra]
        codes[name] = subprocess.run(command, check=False).returncode
        print(f"-- {name}: {time.monotonic() - start:.0f} s", flush=True)
    summarize(codes, began)
    if chosen.quick:
        print("--quick: the figures above mean nothing")
    return max(0 if code == NOT_RUN else abs(code) for code in codes.values())


def summarize(codes: dict[str, int], began: float) -> None:
    """Every goal of this run, then each benchmark in a line. began: epoch seconds."""
    print(f"\n== summary, after {(time.time() - began) / 60:.1f} minutes; results in {results_folder()}")
    for name in codes:
        results = loaded(name)
        if results is not None:
            results.print_goals()
    for name, code in codes.items():
        print(f"  {said_of(name, code):40}{name}")


def said_of(name: str, code: int) -> str:
    """A missed goal and a program that broke end with the same code; the first leaves its results."""
    if code == 1 and name in LEAVE_RESULTS and loaded(name) is None:
        return "FAILED: see its output"
    return SAID.get(code, f"FAILED: it ended with {code}")


if __name__ == "__main__":
    sys.exit(main())
