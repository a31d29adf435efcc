"""Which tests with real Java workers show which of the forty scenarios of a mixed fleet. The others need no Java."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NUMBERS = (1, 2, 3, 6, 7, 8, 10, 11, 12, 16, 17, 19, 20, 21, 26, 30, 31, 40)
BY_NAME = "test_java_scenarios.py"
"""Its tests carry the number in their names."""
ELSEWHERE = {
    1: ("test_java_fleets.py", "test_a_pykcl_worker_joins_a_java_worker_and_takes_all_when_that_is_stopped"),
    2: (
        "test_java_fleets.py",
        "test_a_fleet_of_both_kinds_keeps_every_promise_through_deaths_stops_and_reshards",
    ),
}
"""Number -> file and test. 2: pykcl makes the table, Java workers join and come to their shares, without an ERROR line."""


@cache
def functions_in(file: str) -> tuple[str, ...]:
    """The tests of a file of this folder."""
    body = ast.parse((HERE / file).read_text("utf-8")).body
    return tuple(
        node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def tests() -> dict[int, set[tuple[str, str]]]:
    """Number -> files and tests."""
    found = {number: {place} for number, place in ELSEWHERE.items()}
    for name in functions_in(BY_NAME):
        if match := re.match(r"test_scenario_(\d+)_", name):
            found.setdefault(int(match[1]), set()).add((BY_NAME, name))
    return dict(sorted(found.items()))


def lines(stats: Mapping[str, Iterable[Any]], titles: Mapping[int, str]) -> Iterator[str]:
    """A line for each scenario of which a test ran. stats: reports of pytest by outcome."""
    ended: dict[tuple[str, str], set[str]] = {}
    for outcome in ("passed", "failed", "error"):
        for report in stats.get(outcome, ()):
            path, _, name = getattr(report, "nodeid", "").partition("::")
            ended.setdefault((Path(path).name, name.partition("[")[0]), set()).add(outcome)
    for number, places in tests().items():
        ran = [ended[place] for place in places if place in ended]
        if not ran:
            continue
        verdict = (
            "passed"
            if len(ran) == len(places)
            else f"passed in part, {len(places) - len(ran)} of its tests not run"
        )
        if any(outcomes != {"passed"} for outcomes in ran):
            verdict = "FAILED"
        yield f"scenario {number:02}: {titles[number]}: {verdict}"
