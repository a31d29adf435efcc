"""What a fleet's leases cost in DynamoDB each month: request counts of simulated fleets, scaled by stated formulas.

    python -m benchmarks.cost [--seconds 90] [--failover 10] [--processes N] [--direct SHARDSxWORKERS]

First fleets of the real worker, and of the scripted actor of Java KCL 2.7, run in the simulation at rest, and the table
tells the units of each request. Then the formulas of `cost_model`, which take from those fleets the size of a row, the
heartbeats of a lease and what a worker asks beside scans, and from the product its rule for looks at the table. They are first held against
what was counted (column "model"), then scaled. --direct simulates a large fleet instead, and says what was counted.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

from benchmarks.cost_model import Measured, Rates, java_rates, pykcl_rates
from benchmarks.fleet_requests import Job, Recorded, record
from benchmarks.machine import described, machine
from benchmarks.results import Results
from benchmarks.simulated_fleets import on_all_cores

SIMULATED = ((10, 1), (100, 1), (10, 10), (100, 10))
SCALED = ((10, 1), (10, 10), (100, 10), (1_000, 10), (1_000, 100), (10_000, 100), (10_000, 1_000))
GOALS = {(1_000, 100): 0.67, (10_000, 1_000): 0.4}
"""At most this part of Java's bill."""
TOLERANCE = 0.1
"""How far the formulas may be from what was counted."""


def measured_of(recorded: list[Recorded]) -> Measured:
    """From the largest fleet: it has the least of what a single worker does only now and then."""
    largest = max(recorded, key=lambda one: (one.job.shards, one.job.workers))
    job, seconds = largest.job, largest.job.seconds
    heartbeats = largest.units.get("UpdateItem", 0.0)
    other_writes = largest.write_units - heartbeats
    other_reads = largest.read_units - largest.units.get("Scan", 0.0)
    return Measured(
        largest.row_bytes, heartbeats / job.shards / seconds, other_writes / job.workers / seconds,
        other_reads / job.workers / seconds,
    )  # fmt: skip


def counted_rates(one: Recorded) -> Rates:
    return Rates(one.write_units / one.job.seconds, one.read_units / one.job.seconds)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--seconds", type=float, default=90.0, help="simulated, that are counted")
    options.add_argument("--failover", type=float, default=10.0, help="seconds")
    options.add_argument("--processes", type=int, default=None, help="by default one per core")
    options.add_argument("--direct", help="simulate this fleet instead, such as 1000x100; takes minutes")
    chosen = options.parse_args()
    results = Results("cost", machine())
    print(described(results.versions))
    sizes = SIMULATED
    if chosen.direct:
        shards, _, workers = chosen.direct.partition("x")
        sizes = ((int(shards), int(workers)),)
    # The largest first: so that no core has the longest of all to itself at the end.
    jobs = [
        Job(library, shards, workers, chosen.seconds, chosen.failover)
        for shards, workers in sorted(sizes, reverse=True)
        for library in ("pykcl", "java")
    ]
    recorded = on_all_cores(record, jobs, chosen.processes)
    ours = [one for one in recorded if one.job.library == "pykcl"]
    theirs = [one for one in recorded if one.job.library == "java"]
    measured, java_bytes = measured_of(ours), measured_of(theirs).row_bytes
    is_true = show_recorded(recorded, measured, java_bytes, chosen.failover)
    if not chosen.direct:
        show_scaled(results, measured, java_bytes, chosen.failover)
        results.print_goals()
        if is_true:
            results.save()
    if not is_true:
        print(
            f"The formulas are more than {TOLERANCE:.0%} from what was counted: cost_model no longer says what the"
        )
        print("worker does. Mend it; nothing was judged.")
        return 1
    return results.exit_code


def model_of(job: Job, measured: Measured, java_bytes: float) -> Rates:
    if job.library == "java":
        return java_rates(job.shards, job.workers, java_bytes, job.failover)
    return pykcl_rates(job.shards, job.workers, measured, job.failover)


def show_recorded(recorded: list[Recorded], measured: Measured, java_bytes: float, failover: float) -> bool:
    """Print what was counted beside what the formulas say; whether those of pykcl are right."""
    print(
        f"simulated fleets at rest, failover time {failover:g} s; units a second; USD a month (us-east-1, on demand)"
    )
    print(
        f"{'':8}{'shards':>8}{'workers':>9}{'write units':>13}{'read units':>12}{'USD':>9}{'model':>9}{'row':>7}"
    )
    is_true = True
    for one in sorted(recorded, key=lambda each: (each.job.library, each.job.shards, each.job.workers)):
        counted, model = counted_rates(one), model_of(one.job, measured, java_bytes)
        off = model.dollars / counted.dollars - 1
        if one.job.library == "pykcl":
            is_true &= abs(off) <= TOLERANCE
        print(
            f"{one.job.library:8}{one.job.shards:8}{one.job.workers:9}{counted.writes:13.2f}{counted.reads:12.2f}"
            f"{counted.dollars:9.2f}{off:+9.1%}{one.row_bytes:5.0f} B"
        )
        print(" " * 10 + ", ".join(f"{kind} {count}" for kind, count in sorted(one.requests.items())))
    return is_true


def show_scaled(results: Results, measured: Measured, java_bytes: float, failover: float) -> None:
    print(
        f"formulas: a row of {measured.row_bytes:.0f} B (Java {java_bytes:.0f} B); pykcl writes {measured.heartbeat:.3f} "
        f"units per lease and second,"
    )
    print(
        f"  looks by planning.looks, {measured.other_reads:.3f} other read units per worker and second; Java renews every "
        f"{failover / 3 - 0.025:.3f} s, scans every {2 * (failover + 0.025):.2f} s"
    )
    print(
        f"{'shards':>8}{'workers':>9}{'Java 2.x':>12}{'pykcl':>12}{'of Java':>9}{'of it reads':>12}{'goal':>9}"
    )
    bars: list[dict[str, Any]] = [{"label": "Java KCL 2.x", "value": 1.0}]
    for shards, workers in SCALED:
        java = java_rates(shards, workers, java_bytes, failover)
        ours = pykcl_rates(shards, workers, measured, failover)
        part, wanted = ours.dollars / java.dollars, GOALS.get((shards, workers))
        reads = 1 - replace(ours, reads=0.0).dollars / ours.dollars
        shown = f"<= {wanted:g}" if wanted else ""
        print(
            f"{shards:8}{workers:9}{java.dollars:12,.2f}{ours.dollars:12,.2f}{part:8.2f}x{reads:12.0%}{shown:>9}"
        )
        label = f"{shards:,} shards, {workers:,} workers: ${ours.dollars:,.0f}"
        bars.append({"label": label, "value": part, "is_ours": True, "goal": wanted})
        if wanted and failover == 10.0:
            name = f"DynamoDB bill of Java KCL 2.x, {shards:,} shards, {workers:,} workers"
            results.at_most(name, wanted, part, "x")
    results.pictures["cost"] = {
        "title": "DynamoDB for leases: a month, as part of the bill of Java KCL 2.x", "unit": "x",
        "groups": {"": bars}, "note": "from request counts of simulated fleets, scaled; dollars are those of pykcl; mark: goal",
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
