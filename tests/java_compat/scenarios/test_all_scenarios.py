"""All forty scenarios are there: by number, each in one place."""

import ast
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest

from tests.java_compat.scenarios.scenario_titles import TITLES

HERE = Path(__file__).parent
ELSEWHERE = {27: ("planning/test_leader_election.py", "test_")}
"""Number -> the file under tests, and how the names of its tests begin."""


@lru_cache
def found_here():
    """Number -> the files that hold tests of it."""
    places = {}
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and (match := re.match(r"test_scenario_(\d+)_", node.name)):
                places.setdefault(int(match.group(1)), set()).add(path.name)
    return places


@pytest.mark.parametrize("number", TITLES, ids=lambda number: f"{number:02}: {TITLES[number]}")
def test_the_scenario_is_tested_in_exactly_one_place(number):
    here = found_here().get(number, set())
    assert len(here) + (number in ELSEWHERE) == 1, (
        f"{number} is in {sorted(here)} and elsewhere: {number in ELSEWHERE}"
    )
    if number in ELSEWHERE:
        path, prefix = ELSEWHERE[number]
        source = ast.parse((HERE.parents[1] / path).read_text())
        assert any(isinstance(node, ast.FunctionDef) and node.name.startswith(prefix) for node in source.body)


def test_there_are_forty_and_no_others():
    assert list(TITLES) == list(range(1, 41))
    counted = Counter([*found_here(), *ELSEWHERE])
    assert sorted(counted) == list(range(1, 41))
    assert set(counted.values()) == {1}
