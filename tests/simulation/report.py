"""The figures of many simulations: added up, as tables, as JSON, and in docs/concepts/guarantees.md."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pykcl.testing.simulation.world import FAILOVER, GRACE
from tests.simulation.course import Mode
from tests.simulation.effects import Effects
from tests.simulation.native_rest import native_failover_bound
from tests.simulation.quiescence import BALANCE_SECONDS, QUIET_SECONDS, STRAINED_SECONDS
from tests.simulation.runner import SeedResult
from tests.simulation.world import STOP_MARGIN, failover_bound

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
COMMAND = "python -m tests.simulation --seeds 2000 --write-docs"

_CAUSES = {
    "clean stop": "D0: after a clean stop without faults, deploys too",
    "crash": "D1: after a crash",
    "steal": "D2: after a lease was taken from a live owner",
    "pause": "D3: after a pause",
    "other": "after any other end: lost answers, outages, workers that were killed or lost a thread",
}
_RESTING = f"leases that move in {QUIET_SECONDS:.0f} s idle and {STRAINED_SECONDS:.0f} s under load"
_NOT_COVERED = (
    "Not covered: free-threaded builds of Python, tables replicated over regions, and what "
    "processors do outside the worker."
)


_ADDED_UP = (
    "records", "deliveries", "lost", "taken_by_retention", "workers", "shards", "moves_at_rest",
)  # fmt: skip


@dataclass(slots=True)
class Totals:
    """What all simulations of a run came to; those run again without one kind of fault count for nothing but their time."""

    seeds: int = 0
    simulations: int = 0
    broken: int = 0
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    records: int = 0
    deliveries: int = 0
    lost: int = 0
    taken_by_retention: int = 0
    workers: int = 0
    shards: int = 0
    moves_at_rest: int = 0
    duplicates: Counter[str] = field(default_factory=Counter)
    most_duplicates: Counter[str] = field(default_factory=Counter)
    overlap: dict[str, float] = field(default_factory=lambda: {"expiry": 0.0, "steal": 0.0})
    stops: dict[str, float] = field(default_factory=lambda: {"faults": 0.0, "rest": 0.0})
    failovers: list[float] = field(default_factory=list)
    native_failovers: list[float] = field(default_factory=list)
    to_balance: list[float] = field(default_factory=list)

    def add(self, result: SeedResult, *, is_comparison: bool = False) -> None:
        self.simulations += 1
        self.virtual_seconds += result.virtual_seconds
        self.cpu_seconds += result.cpu_seconds
        if is_comparison:
            return
        self.seeds += 1
        if not result.kept:
            # It ended where it broke: its other figures are half a story.
            self.broken += 1
            return
        figures = result.figures
        for name in _ADDED_UP:
            setattr(self, name, getattr(self, name) + getattr(figures, name))
        self.duplicates.update(figures.duplicates)
        for cause, count in figures.most_duplicates.items():
            self.most_duplicates[cause] = max(self.most_duplicates[cause], count)
        for most, found in ((self.overlap, figures.overlap), (self.stops, figures.stops)):
            for name, seconds in found.items():
                most[name] = max(most.get(name, 0.0), seconds)
        if result.job.mode is Mode.NATIVE:
            # Java's leader decides, at its own pace.
            self.native_failovers += figures.failovers
            return
        self.failovers += figures.failovers
        self.to_balance.append(figures.to_balance)


@dataclass(frozen=True, slots=True)
class Run:
    """What a report is about. commit: of the code; seeds: the first and the last; real_seconds: of the whole run."""

    commit: str
    first: int
    last: int
    full: bool
    jobs: int
    real_seconds: float
    totals: Totals
    effects: Effects

    @property
    def per_core_minute(self) -> float:
        """Simulations per minute of processor time."""
        return self.totals.simulations / (self.totals.cpu_seconds / 60) if self.totals.cpu_seconds else 0.0


def figure_rows(run: Run) -> list[tuple[str, str, str]]:
    """(figure, bound, measured)."""
    totals = run.totals
    kept = f"{totals.seeds - totals.broken} of {totals.seeds}"
    # Where a guarantee was broken the simulation ended at once: what it owed then is neither lost nor delivered.
    uncounted = f", not counted: {totals.broken} simulations that ended early" if totals.broken else ""
    rows = [
        ("simulations that kept every guarantee", "all", kept),
        ("simulated hours", "-", f"{totals.virtual_seconds / 3600:.1f}"),
        ("real minutes", "-", f"{run.real_seconds / 60:.1f} in {run.jobs} processes"),
        ("simulations per minute of processor time", "-", f"{run.per_core_minute:.0f}"),
        ("workers, shards", "-", f"{totals.workers}, {totals.shards}"),
        ("records put, delivered with repeats", "-", f"{totals.records}, {totals.deliveries}"),
        ("**records lost or skipped in silence**", "**0**", f"**{totals.lost}**{uncounted}"),
        ("records that expired before delivery", "-", str(totals.taken_by_retention)),
    ]
    for cause, words in _CAUSES.items():
        bound = "**0**" if cause == "clean stop" else "since the last checkpoint"
        most = totals.most_duplicates[cause]
        rows.append((f"duplicates {words}", bound, f"{totals.duplicates[cause]}, at most {most} at one time"))
    stops = totals.stops
    rows += [
        ("two workers hold one lease after it expired", "0 s ¹", f"at most {totals.overlap['expiry']:.2f} s"),
        (
            "two workers hold one lease after a steal",
            f"{FAILOVER:.0f} s",
            f"at most {totals.overlap['steal']:.2f} s",
        ),
        ("failover after a crash", f"{failover_bound():.0f} s", _spread(totals.failovers)),
        (
            "failover after a crash in KCL 3.x's own mode",
            f"{native_failover_bound():.0f} s",
            _spread(totals.native_failovers),
        ),
        (
            "from the last fault until leases are balanced",
            f"{BALANCE_SECONDS:.0f} s ³",
            _spread(totals.to_balance),
        ),
        (_RESTING, "0", str(totals.moves_at_rest)),
        (
            "time to stop during faults",
            f"{GRACE + STOP_MARGIN:.0f} s ²",
            f"at most {stops['faults']:.1f} s",
        ),
        ("time to stop without faults", f"{GRACE + STOP_MARGIN:.0f} s", f"at most {stops['rest']:.1f} s"),
    ]
    rows.append(("mutants caught, when their seeds were last learned", "all", caught_bugs()))
    return rows


def caught_bugs(learned: Path = Path("tests/mutants/known_seeds.json")) -> str:
    """How many mutants simulations caught when `tests.mutants` last looked, as it wrote down; "-" outside of a checkout.

    It writes down every mutant that simulations are to catch: one that was not caught has no seeds.
    """
    try:
        known = json.loads(learned.read_text("utf-8"))
    except (OSError, ValueError):
        return "-"
    return f"{sum(bool(seeds) for seeds in known.values())} of {len(known)}"


def _spread(values: Sequence[float]) -> str:
    return f"p50 {median(values):.1f} s, at most {max(values):.1f} s" if values else "-"


def fault_rows(effects: Effects) -> list[tuple[str, str, str, str, str]]:
    """(kind, what, injected, seeds with it, effective of tried)."""
    rows = []
    for name, kind in effects.kinds.items():
        shown = f"{effects.effective[name]} of {effects.tried[name]}"
        shown += " (must be none)" if kind.is_harmless else ""
        rows.append((name, kind.what, str(effects.injected[name]), str(effects.seeds[name]), shown))
    return rows


def as_text(run: Run) -> str:
    """For a terminal."""
    figures = [("figure", "bound", "measured"), *figure_rows(run)]
    faults = [("fault", "", "injected", "seeds", "effective"), *fault_rows(run.effects)]
    return f"{_columns(figures)}\n\n{_columns(faults)}\n".replace("**", "")


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    return "\n".join(lines)


def as_json(run: Run) -> dict[str, Any]:
    """Every figure by its name; seconds and counts."""
    totals, effects = run.totals, run.effects
    return {
        "commit": run.commit,
        "seeds": {"first": run.first, "last": run.last, "run": totals.seeds, "broken": totals.broken},
        "simulations": totals.simulations,
        "virtual_hours": totals.virtual_seconds / 3600,
        "real_minutes": run.real_seconds / 60,
        "simulations_per_core_minute": run.per_core_minute,
        "records": totals.records,
        "deliveries": totals.deliveries,
        "taken_by_retention": totals.taken_by_retention,
        "lost": totals.lost,
        "workers": totals.workers,
        "shards": totals.shards,
        "duplicates": {
            c: {"total": totals.duplicates[c], "most": totals.most_duplicates[c]} for c in _CAUSES
        },
        "overlap_seconds": totals.overlap,
        "failover_seconds": _summary(totals.failovers),
        "native_failover_seconds": _summary(totals.native_failovers),
        "balance_seconds": _summary(totals.to_balance),
        "moves_at_rest": totals.moves_at_rest,
        "stop_seconds": totals.stops,
        "faults": {
            name: {
                "injected": effects.injected[name],
                "seeds": effects.seeds[name],
                "tried": effects.tried[name],
                "effective": effects.effective[name],
            }
            for name in effects.kinds
        },
    }


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    return {"p50": median(values) if values else None, "max": max(values, default=None)}


def as_markdown(run: Run) -> str:
    """The section between the two markers, without them."""
    kind = "Every simulation has four workers, eight shards and every kind of fault" if run.full else (
        "Every simulation draws its length, its workers, its shards and about half of the kinds of faults from its seed"
    )  # fmt: skip
    lines = [
        f"Measured at commit `{run.commit}` with seeds {run.first} to {run.last}.",
        f"{kind}.",
        "The bounds are guaranteed: a simulation that breaks one fails.",
        "Everything under *measured* and all counts of faults depend on the run; the rest does not.",
        "",
        "| figure | bound | measured |",
        "|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in figure_rows(run)),
        "",
        "¹ As long as the two clocks run within 10 % of each other; beyond that, up to the clock drift during one lease.",
        "² Unless the worker was frozen meanwhile.",
        "³ And twice `retry_timeout`, during which a worker takes no lease at which its processor failed.",
        "",
        "Each kind of fault, how often it was injected, in how many simulations, and how often removing the fault changed the "
        "run",
        "of the same seed (after enough runs that show this, it is not tried again):",
        "",
        "| fault | what happens | injected | simulations | effective |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in fault_rows(run.effects)),
        "",
        _NOT_COVERED,
        "How the in-memory AWS services were checked: [conformance](../about/verification.md#conformance). Which bugs the",
        "checkers catch: [mutants](../about/verification.md#mutants).",
    ]
    return "\n".join(lines)


def put_into(page: Path, section: str) -> None:
    """Replace what stands between the markers. Raises ValueError when the page or a marker is not there."""
    try:
        text = page.read_text("utf-8")
    except OSError as error:
        raise ValueError(
            f"{page} cannot be read: {error}. Run it from the root of the repository."
        ) from error
    before, start, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"{page} has no section between {BEGIN} and {END}.")
    page.write_text(f"{before}{BEGIN}\n{section}\n{END}{after}", "utf-8")


def masked(section: str) -> list[str]:
    """Its lines without what depends on the run: two sections of one structure give the same."""
    lines = []
    for line in section.splitlines():
        shown = re.sub(r"commit `[^`]*`", "commit #", line)
        if line.startswith("|"):
            cells = shown.split(" | ")
            # Figures: the last cell was measured. Faults: the last three were counted.
            fixed = {3: 2, 5: 2}.get(len(cells), len(cells))
            shown = " | ".join(cells[:fixed])
        else:
            shown = re.sub(r"seeds \d+ to \d+", "seeds #", shown)
        lines.append(shown)
    return lines
