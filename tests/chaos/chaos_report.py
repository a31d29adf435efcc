"""The figures of a run and its table, as text."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from chaos_checks import Check
from fleet_duplicates import DUPLICATES, repeats
from fleet_evidence import Evidence
from fleet_ownership import ownerships

SHOWN_PROBLEMS = 12


def failover_seconds(evidence: Evidence) -> list[float]:
    """From a kill, forced stop or freeze to the first word of the next processor of each of its shards, sorted."""
    found = []
    for own in ownerships(evidence):
        process = evidence.processes.get(own.worker)
        if own.how not in ("D1", "D3") or process is None:
            continue
        begins = [t for t in (process.killed, process.forced) if t is not None]
        begins += [begin for begin, end in process.freezes if begin <= own.until <= end]
        nexts = [life.t for life in evidence.lives if life.shard == own.shard and life.t >= own.until]
        if nexts and begins and min(begins) <= own.until:
            found.append((min(nexts) - max(t for t in begins if t <= own.until)) / 1000)
    return sorted(found)


def figures(evidence: Evidence) -> list[tuple[str, str]]:
    """What a run amounts to, as (name, value)."""
    finished = sum(len(life.done) for life in evidence.lives)
    pairs = repeats(evidence)
    seconds = failover_seconds(evidence)
    lines = [
        ("records put", str(sum(map(len, evidence.records.values())))),
        ("records finished, with repeats", str(finished)),
        ("shards", str(len(evidence.parents))),
        ("worker processes", str(len(evidence.processes))),
        ("ownerships", str(len(ownerships(evidence)))),
    ]
    for kind, words in DUPLICATES.items():
        counts = [len(pair.items) for pair in pairs if pair.kind == kind]
        lines.append(
            (
                f"duplicates {kind}, {words}",
                f"{sum(counts)} in {len(counts)} cases, at most {max(counts, default=0)}",
            )
        )
    shown = f"p50 {median(seconds):.1f}, max {seconds[-1]:.1f} (of {len(seconds)})" if seconds else "none"
    lines.append(("failover seconds", shown))
    return lines


def table(checks: Sequence[Check]) -> str:
    """One line per check, and below a failed one what it found."""
    width = max(len(check.name) for check in checks)
    lines = [f"{'check':<{width}}  {'verdict':<13}  examined"]
    for check in checks:
        lines.append(f"{check.name:<{width}}  {check.verdict:<13}  {check.examined}")
        lines += [f"{'':<{width}}    {problem}" for problem in check.problems[:SHOWN_PROBLEMS]]
        if len(check.problems) > SHOWN_PROBLEMS:
            lines.append(f"{'':<{width}}    … and {len(check.problems) - SHOWN_PROBLEMS} more")
    return "\n".join(lines)


def figure_lines(evidence: Evidence) -> str:
    lines = figures(evidence)
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)
