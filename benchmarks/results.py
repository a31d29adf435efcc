"""What a benchmark found, as a file: goals, paired ratios, and the figures its picture is drawn of."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Ratio

FOLDER_VARIABLE = "BENCH_RESULTS"
DEFAULT_FOLDER = Path(__file__).parents[1] / ".cache" / "bench"
NOT_RUN = 77
"""Exit code where what a benchmark needs is missing."""


@dataclass(frozen=True, slots=True)
class Goal:
    """wanted: as text, with its unit. measured: the same; met: None where it could not be looked at."""

    name: str
    wanted: str
    measured: str
    met: bool | None

    @property
    def verdict(self) -> str:
        return "not measured" if self.met is None else "met" if self.met else "MISSED"


@dataclass(slots=True)
class Results:
    """ratios: by a name that stays the same from run to run; check.py compares them. pictures: data of charts, by the
    name of the file that is drawn. versions: of the machine and of what took part."""

    benchmark: str
    versions: dict[str, str]
    goals: list[Goal] = field(default_factory=list)
    ratios: dict[str, Ratio] = field(default_factory=dict)
    pictures: dict[str, dict[str, Any]] = field(default_factory=dict)

    def at_least(self, name: str, wanted: float, measured: Ratio | None, unit: str = "x") -> Goal:
        """A goal for a ratio: its median counts."""
        shown = "not measured" if measured is None else str(measured)
        met = None if measured is None else measured.median >= wanted
        return self._keep(Goal(name, f">= {wanted:g}{unit}", shown, met))

    def at_most(self, name: str, wanted: float, measured: float | None, unit: str) -> Goal:
        shown = "not measured" if measured is None else f"{measured:.2f}{unit}"
        met = None if measured is None else measured <= wanted
        return self._keep(Goal(name, f"<= {wanted:g}{unit}", shown, met))

    def _keep(self, goal: Goal) -> Goal:
        self.goals.append(goal)
        return goal

    def save(self) -> Path:
        folder = results_folder()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.benchmark}.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")
        return path

    def print_goals(self) -> None:
        for goal in self.goals:
            print(f"  {goal.verdict:13}{goal.name:66}{goal.wanted:>10}   {goal.measured}")

    @property
    def exit_code(self) -> int:
        return 1 if any(goal.met is False for goal in self.goals) else 0


def results_folder() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)


def loaded(benchmark: str) -> Results | None:
    """What its last run found, or None."""
    path = results_folder() / f"{benchmark}.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text("utf-8"))
    return Results(
        benchmark=found["benchmark"],
        versions=found["versions"],
        goals=[Goal(**goal) for goal in found["goals"]],
        ratios={name: Ratio(**ratio) for name, ratio in found["ratios"].items()},
        pictures=found["pictures"],
    )
