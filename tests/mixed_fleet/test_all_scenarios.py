"""All forty scenarios are there: by number, each in one place."""

import ast
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TITLES = {
    1: "pykcl joins Java's fleet",
    2: "Java joins pykcl's table",
    3: "both start on a missing table at once",
    4: "Java creates, takes and checkpoints between pykcl's scan and create",
    5: "Java renews between pykcl's scan and take",
    6: "pykcl steals a live lease of Java's",
    7: "Java steals a live lease of pykcl's",
    8: "pykcl frozen beyond the fail-over time",
    9: "Java frozen at counter 1 or 2",
    10: "pykcl killed",
    11: "pykcl stopped",
    12: "Java stopped",
    13: "pykcl's renewal delivered twice",
    14: "pykcl's checkpoint delivered twice",
    15: "plain checkpoint by pykcl",
    16: "pykcl checkpoints inside an aggregate",
    17: "Java checkpoints inside an aggregate",
    18: "Java prepared a checkpoint",
    19: "split: the children stand before SHARD_END",
    20: "split: pykcl dies before SHARD_END",
    21: "merge: each side ends one parent",
    22: "start at a timestamp, and the shard ends",
    23: "cleanup of what the other ended",
    24: "merge with one slow parent",
    25: "a child of an ended parent has no row",
    26: "an open shard has no row",
    27: "election of the leader",
    28: "rows without a hash range",
    29: "malformed rows",
    30: "rows that are no leases",
    31: "the index of owners",
    32: "ten rounds of a 3.x leader",
    33: "the 3.x leader assigns while pykcl takes",
    34: "pykcl takes in the middle of a hand-off",
    35: "a hand-off is asked of pykcl",
    36: "the migration to 3.x waits for pykcl",
    37: "rows of a multi-stream application",
    38: "a careless library in the same table",
    39: "throttling",
    40: "soak: kills, splits, merges",
}
ELSEWHERE = {27: ("planning/test_election.py", "test_")}
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
        source = ast.parse((HERE.parent / path).read_text())
        assert any(isinstance(node, ast.FunctionDef) and node.name.startswith(prefix) for node in source.body)


def test_there_are_forty_and_no_others():
    assert list(TITLES) == list(range(1, 41))
    counted = Counter([*found_here(), *ELSEWHERE])
    assert sorted(counted) == list(range(1, 41))
    assert set(counted.values()) == {1}
