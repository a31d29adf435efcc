"""The recipe of fixtures/assignments.json: tables by chance, and what Java's own leader decides about them.

    python tests/planning/assignment_vectors.py CLASSPATH

writes the fixture. `tests/interop/java/LeaseAssignment.java` runs the `LeaseAssignmentManager` of the class path. It
decides about each table many times, and each time what the decision should not depend on is another: the names of the
workers (hash maps), attributes of the leases that only hash sets see, Java's own shuffles, and every second time the
order of the rows of the scan. So its answers are a sample of the set of results that Java can produce. Where rows in
the order of the table leave Java no choice, ours must be that very result.

Two leases that are alike in everything a decision reads are of one class, and results are compared by class. That loses
nothing: if Java can produce a result, it can produce the one in which the two leases have changed places, as their order
in scans and hash sets is arbitrary.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from pykcl.demo.java import CHEAP
from pykcl.model.checkpoint import SHARD_END, Checkpoint
from pykcl.model.fleet_rows import WorkerMetrics
from pykcl.model.lease import Lease
from pykcl.planning.assignment_decider import (
    AssignmentMemory,
    AssignmentSettings,
    Decision,
    HandOver,
    Strategy,
    decide,
)

FIXTURE = Path(__file__).parents[1] / "fixtures" / "assignments.json"
PROGRAM = Path(__file__).parents[1] / "interop" / "java" / "LeaseAssignment.java"
NOW = 1_800_000_000
TIMES, MOST = 20, 30_000
"""How often Java decides about a table: at least, and at most until it has found a certain result."""
RECORDED = (
    6, 25, 28, 35, 38, 43, 46, 59, 70, 73, 87, 103, 126, 130, 164, 166, 247, 277, 303, 342, 389, 566, 666, 702, 796, 819, 838, 870, 1127, 1136, 1525, 1645, 1679, 2070, 2108, 2255, 2297,
)  # fmt: skip
"""Numbers of the tables in the fixture. Each shows a mistake in a decision: another order of equals, a limit that is not
kept, a wrong average. Few results are possible for any of them, so that Java's answers hold all."""
RECORDED_SEED, RECORDED_TIMES = 5, 400

Table = dict[str, Any]
_DEFAULTS = {
    "failover_time": 10, "strategy": "WORKER_UTILIZATION_AWARE", "max_leases": 2**31 - 1, "max_throughput": None,
    "ema_alpha": 0.5, "dampening": 60, "rebalance_threshold": 10, "allow_overshoot": True, "balance_every": 3,
    "graceful_handoff": True, "handoff_timeout": 30, "report_period": 30,
}  # fmt: skip
_THROUGHPUTS: list[list[str | None]] = [
    [None], ["0"], ["10"], ["0", "10"], ["1", "10", "76.173065"], ["1", "2", "3", "100", None], ["0.1", "0.3", None],
]  # fmt: skip
_METRICS = [["C"], ["C"], ["C", "M"], ["C", "M", "NI", "NO"], ["X", "C"], ["T"], ["THROUGHPUT"], []]


def tables(count: int, seed: int = 3) -> list[Table]:
    """Tables by chance, from none to five workers and from none to twelve leases; every second one out of balance."""
    rng = Random(seed)
    return [_classified(_table(rng) if number % 2 else _unbalanced_table(rng)) for number in range(count)]


def _table(rng: Random) -> Table:
    workers = [f"w{number}" for number in range(rng.choice([0, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 5]))]
    metrics = [_report(worker, rng) for worker in workers]
    if rng.random() < 0.5:  # a fleet of one kind
        names = rng.choice(_METRICS) if rng.random() < 0.5 else []
        metrics = [_report(worker, rng, names) for worker in workers]
    return {
        "seed": rng.randrange(2**31),
        "runs": rng.choice([0, 0, 0, 0, 3, 1, 2]),
        "settings": _settings(rng),
        "leases": _leases(workers, rng),
        "metrics": metrics,
    }


def _unbalanced_table(rng: Random) -> Table:
    """A table of workers that all live, in a run that balances."""
    workers = [f"w{number}" for number in range(rng.choice([2, 2, 3, 4]))]
    names = rng.choice([[], [], ["C"], ["C"], ["C", "M"], ["NI", "C"]])
    throughputs = rng.choice(
        [["10"], ["10"], ["7.3"], ["0", "10"], ["1", "10"], ["0.1", "0.2", "3"], ["10", None], ["0"]]
    )
    base = rng.choice([[20, 50, 80], [45, 55], [25, 75], [25, 75], [48, 49, 50, 51, 52], [0, 40]])
    reports = []
    for worker in workers:
        values = {name: [float(rng.choice(base)) for _ in range(rng.choice([1, 1, 3]))] for name in names}
        limits = {name: [rng.choice([100, 100, 100, 70, 50])] for name in names}
        reports.append({"worker": worker, "age": 0, "values": values, "limits": limits})
    settings = _settings(rng)
    if base == [25, 75] and rng.random() < 0.5:
        settings["rebalance_threshold"] = 50
    leases = []
    skew = rng.choice([0, 0.3, 0.8])
    for number in range(rng.choice([3, 5, 7, 9, 12, 16, 24])):
        owner = workers[0] if rng.random() < skew else rng.choice(workers)
        row = {"key": f"shardId-{number:03d}", "owner": owner, "throughput": rng.choice(throughputs)}
        if rng.random() < 0.04:
            row["checkpoint_owner"] = rng.choice([name for name in workers if name != owner])
            row["asked_for"] = rng.choice([5, 39.5, 40])
        if rng.random() < 0.04:
            row["still_for"] = rng.choice([11, 12])
        if rng.random() < 0.04:
            row["ended_at"] = rng.choice([0, 7])
        leases.append(row)
    return {
        "seed": rng.randrange(2**31),
        "runs": 0,
        "settings": settings,
        "leases": leases,
        "metrics": reports,
    }


def _settings(rng: Random) -> dict[str, Any]:
    odd = {
        "max_leases": rng.choice([1, 2, 3, 5]), "max_throughput": rng.choice([0, 10, 25.5, 100]),
        "ema_alpha": rng.choice([0.2, 0.3, 1.0]), "dampening": rng.choice([10, 80, 100]),
        "rebalance_threshold": rng.choice([0, 5, 50]), "allow_overshoot": False, "balance_every": rng.choice([1, 2]),
        "graceful_handoff": False, "failover_time": 5, "handoff_timeout": 20, "report_period": 5,
    }  # fmt: skip
    chosen = {name: value for name, value in odd.items() if rng.random() < 0.15}
    if rng.random() < 0.3:
        chosen["strategy"] = "LEASE_COUNT_BASED"
    return {**_DEFAULTS, **chosen}


def _report(worker: str, rng: Random, names: Sequence[str] | None = None) -> dict[str, Any]:
    names = rng.choice(_METRICS) if names is None else names
    around = rng.choice([0, 10, 50, 52, 90])
    values, limits = {}, {}
    for name in names:
        spread = rng.choice([0, 3, 30])
        numbers = [
            float(max(0, around + rng.randint(-spread, spread))) for _ in range(rng.choice([1, 3, 10]))
        ]
        if rng.random() < 0.1:
            numbers[rng.randrange(len(numbers))] = -1.0
        values[name] = [] if rng.random() < 0.03 else numbers
        limits[name] = [rng.choice([100, 100, 100, 80, 51])]
    if names and rng.random() < 0.06:
        limits[names[0]] = rng.choice([[], [0], [-5]])
    if names and rng.random() < 0.06:
        (values if rng.random() < 0.5 else limits).pop(names[0])
    age = rng.choice([0, 5, 8]) if rng.random() < 0.9 else rng.choice([80, 5000])
    return {"worker": worker, "age": age, "values": values, "limits": limits}


def _leases(workers: Sequence[str], rng: Random) -> list[dict[str, Any]]:
    throughputs = rng.choice(_THROUGHPUTS)
    has_many = rng.random() < 0.3
    expired, unowned, asked, ended = (rng.choice([0, 0.15, 0.3, 0.7]) for _ in range(4))
    favourite = rng.choice([*workers, "gone"])
    found = []
    for number in range(rng.choice([0, 1, 2, 3, 4, 5, 6, 6, 8, 8, 10, 12])):
        owner = favourite if rng.random() < 0.3 else rng.choice([*workers, "gone"])
        throughput = rng.choice(throughputs)
        if has_many and throughput is not None:
            throughput = str(round(rng.uniform(0, 200), 6))
        row: dict[str, Any] = {"key": f"shardId-{number:03d}", "owner": owner, "throughput": throughput}
        if rng.random() < unowned:
            row["owner"] = None
        if rng.random() < asked * 0.5:
            row["checkpoint_owner"] = rng.choice([name for name in (*workers, "gone", "w9") if name != owner])
            if rng.random() < 0.7:
                row["asked_for"] = rng.choice([5, 24.5, 25, 39.5, 40, 60])
        if rng.random() < expired and (row["owner"] or "checkpoint_owner" in row):
            row["still_for"] = rng.choice([11, 12, 12.5, 40])
        if rng.random() < ended * 0.5:
            row["ended_at"] = rng.choice([0, 0, 7])
        found.append(row)
    return found


def _classified(table: Table) -> Table:
    """Return the table with the class of each lease."""
    numbers: dict[str, int] = {}
    for row in table["leases"]:
        alike = json.dumps({name: value for name, value in row.items() if name != "key"}, sort_keys=True)
        row["class"] = f"c{numbers.setdefault(alike, len(numbers))}"
    return table


# -- ours ---------------------------------------------------------------------------------------------------------


def decided(table: Table, rng: Random, *, shuffled: bool = False, steady: bool = False) -> Decision:
    """Return our decision about a table. shuffled: about its rows in an order by chance. steady: as our leader decides,
    and not as Java's does.
    """
    rows, reports = list(table["leases"]), list(table["metrics"])
    if shuffled:
        rng.shuffle(rows)
        rng.shuffle(reports)
    settings = {name: value for name, value in table["settings"].items() if value is not None}
    asked = [row for row in rows if "asked_for" in row]
    still = {row["key"]: -row["still_for"] for row in rows if "still_for" in row}
    return decide(
        list(map(_lease, rows)),
        list(map(_metrics, reports)),
        now=NOW,
        expired=still.keys(),
        unchanged_since=still,
        memory=AssignmentMemory(
            table["runs"],
            {
                row["key"]: HandOver(row["owner"], row["checkpoint_owner"], NOW - row["asked_for"])
                for row in asked
            },
        ),
        settings=AssignmentSettings(
            **{**settings, "strategy": Strategy[settings["strategy"]], "steady": steady}
        ),
        rng=rng,
    )


def result_of(table: Table, decision: Decision) -> list[str]:
    """Return what the program in Java prints for such a decision."""
    classes = {row["key"]: row["class"] for row in table["leases"]}
    return sorted(f"{classes[one.lease_key]}>{one.new_owner}:{one.kind.name}" for one in decision.assignments)


def _lease(row: dict[str, Any]) -> Lease:
    at = Checkpoint(SHARD_END, row["ended_at"]) if "ended_at" in row else Checkpoint("10")
    return Lease(
        row["key"],
        at,
        counter=1000,
        owner=row["owner"],
        checkpoint_owner=row.get("checkpoint_owner"),
        throughput=row["throughput"],
    )


def _metrics(row: dict[str, Any]) -> WorkerMetrics:
    values, limits = (
        {name: tuple(map(float, numbers)) for name, numbers in row[field].items()}
        for field in ("values", "limits")
    )
    return WorkerMetrics(row["worker"], NOW - row["age"], values, limits)


# -- Java's -------------------------------------------------------------------------------------------------------


def ask_java(classpath: str, asked: Sequence[Table]) -> list[dict[str, Any]]:
    """Return Java's answer to each table: {"times": n, "results": [{"count": n, "result": […]}, …]}.

    Raises RuntimeError where Java does not answer to all.
    """
    java = shutil.which("java")
    if java is None:
        raise RuntimeError("java is not installed")
    done = subprocess.run(
        [java, *CHEAP, "-cp", classpath, str(PROGRAM)],
        input="".join(json.dumps(table) + "\n" for table in asked),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(asked):
        raise RuntimeError(f"{len(answers)} answers to {len(asked)} tables; Java said: {done.stderr[-2000:]}")
    return answers


def results_in(answer: dict[str, Any]) -> list[list[str]]:
    return [one["result"] for one in answer["results"]]


def main() -> None:
    pool = tables(RECORDED[-1] + 1, RECORDED_SEED)
    asked = [{**pool[number], "times": RECORDED_TIMES} for number in RECORDED]
    lines = ",\n".join(
        json.dumps({"table": table, "results": sorted(results_in(answer))})
        for table, answer in zip(asked, ask_java(sys.argv[1], asked), strict=True)
    )
    FIXTURE.write_text(f"[\n{lines}\n]\n", "utf-8")


if __name__ == "__main__":
    main()
