"""How long a shard stays unread when its worker dies, and when it is stopped: simulated fleets of the real worker.

    python -m benchmarks.failover [--workers 2,10,100] [--seeds 24] [--shards-each 2] [--failover 10] [--processes N]

Each seed starts a fleet, waits until the leases are evenly spread, and then, at moments drawn from the seed, kills some
workers one after the other (no thread of theirs ever runs again) or stops them in order, as SIGTERM does, while the others go on. What is measured is
the time until another worker's processor has been given the shard (`initialize`), for every lease of the worker that went.
Requests of the simulation take no time of their own: what they would add in AWS (milliseconds) is not in the figures.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import quantile
from benchmarks.machine import described, machine
from benchmarks.results import Results
from benchmarks.simulated_fleets import on_all_cores, running_fleet

CRASH, HAND_OVER = "crash", "hand-over"
CRASH_MEAN, CRASH_P99 = 15.0, 25.0
SMALL_FLEET, HAND_OVER_SMALL, HAND_OVER_LARGE = 10, 2.0, 5.0
_PATIENCE = 300.0
MOST_VICTIMS = 4
"""Of one run: a larger fleet tells more in the same time."""


@dataclass(frozen=True, slots=True)
class Job:
    kind: str
    workers: int
    shards: int
    failover: float
    seed: int


def measure(job: Job) -> tuple[list[float], float]:
    """Of every lease that changed hands the seconds in which nobody read it; and the real seconds this took."""
    began = time.monotonic()
    found: list[float] = []
    with running_fleet(job.seed, job.workers, job.shards, failover_time=job.failover) as fleet:
        for _ in range(victims(job.workers)):
            simulation = fleet.simulation
            # So that it dies anywhere between two of its heartbeats, and of the others' scans.
            simulation.sleep(simulation.rng.uniform(0.5, 1.5) * job.failover)
            name = simulation.rng.choice([name for name in fleet.names if fleet.leases_of(name)])
            leases, since = fleet.leases_of(name), simulation.now
            fleet.names.remove(name)
            if job.kind == CRASH:
                simulation.kill(name)
            else:
                fleet.fleet.workers[name].stop()
            found += fleet.read_elsewhere(leases, name, since, _PATIENCE)
    return found, time.monotonic() - began


def victims(workers: int) -> int:
    return max(1, min(MOST_VICTIMS, workers // 3))


def seeds_for(workers: int, seeds: int) -> int:
    """Fewer of large fleets: they take longer, and more workers go in each."""
    return seeds if workers <= SMALL_FLEET else max(1, 2 * seeds * SMALL_FLEET // workers)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--workers", default="2,10,100")
    options.add_argument(
        "--seeds", type=int, default=24, help="for fleets of up to ten; fewer for larger ones"
    )
    options.add_argument("--shards-each", type=int, default=2, help="shards per worker")
    options.add_argument("--failover", type=float, default=10.0, help="seconds")
    options.add_argument("--processes", type=int, default=None, help="by default one per core")
    chosen = options.parse_args()
    results = Results("failover", machine())
    print(described(results.versions))
    print(f"failover time {chosen.failover:g} s, {chosen.shards_each} shards per worker; simulated seconds")
    print(
        f"{'':12}{'workers':>8}{'seeds':>7}{'leases':>8}{'mean':>9}{'median':>9}{'p99':>9}{'longest':>9}{'took':>9}"
    )
    bars: dict[str, list[dict[str, Any]]] = {}
    for kind in (CRASH, HAND_OVER):
        for workers in map(int, chosen.workers.split(",")):
            count = seeds_for(workers, chosen.seeds)
            shards = workers * chosen.shards_each
            jobs = [Job(kind, workers, shards, chosen.failover, seed) for seed in range(count)]
            answers = on_all_cores(measure, jobs, chosen.processes)
            seconds = [one for found, _ in answers for one in found]
            took = sum(real for _, real in answers)
            show(kind, workers, count, seconds, took)
            judge(results, kind, workers, seconds, chosen.failover)
            bars.setdefault(f"after a {kind}", []).append(bar(kind, workers, seconds))
    results.pictures["failover"] = {
        "title": "How long a shard stays unread", "unit": " s",
        "note": f"simulated fleets, failover time {chosen.failover:g} s: mean; whisker to the 99th percentile; mark: goal",
        "groups": bars,
    }  # fmt: skip
    results.print_goals()
    results.save()
    return results.exit_code


def show(kind: str, workers: int, seeds: int, seconds: list[float], took: float) -> None:
    figures = (statistics.fmean(seconds), statistics.median(seconds), quantile(seconds, 0.99), max(seconds))
    print(
        f"{kind:12}{workers:8}{seeds:7}{len(seconds):8}"
        + "".join(f"{value:8.1f}s" for value in figures)
        + f"{took:8.1f}s",
        flush=True,
    )


def judge(results: Results, kind: str, workers: int, seconds: list[float], failover: float) -> None:
    """The goals are for a failover time of 10 s."""
    if failover != 10.0:
        return
    mean, late = statistics.fmean(seconds), quantile(seconds, 0.99)
    if kind == CRASH:
        results.at_most(f"crash take-over, {workers} workers, mean", CRASH_MEAN, mean, " s")
        results.at_most(f"crash take-over, {workers} workers, p99", CRASH_P99, late, " s")
        return
    wanted = HAND_OVER_SMALL if workers <= SMALL_FLEET else HAND_OVER_LARGE
    results.at_most(f"clean hand-over, {workers} workers, p99", wanted, late, " s")


def bar(kind: str, workers: int, seconds: list[float]) -> dict[str, Any]:
    small = HAND_OVER_SMALL if workers <= SMALL_FLEET else HAND_OVER_LARGE
    return {
        "label": f"{workers} workers", "value": statistics.fmean(seconds), "is_ours": True, "low": min(seconds),
        "high": quantile(seconds, 0.99), "goal": CRASH_MEAN if kind == CRASH else small,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
