"""A scenario file may hold anything: it fails with a reason, never with a traceback."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hostile_json import anything, bodies, cut, disjointed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.planning.scenarios import ScenarioError, load, main, parse

CORPUS = sorted((Path(__file__).parent / "corpus" / "scenarios").iterdir())
FIXTURES = Path(__file__).parents[1] / "fixtures"
GOOD: list[Any] = [
    scenario
    for name in ("calculate_acquire", "cleanup", "create_new_leases")
    for scenario in json.loads((FIXTURES / f"{name}.json").read_text("utf-8"))[:12]
]
hostile = settings(
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def run(raw: Any) -> None:
    with contextlib.suppress(ScenarioError):
        parse(raw).run()


@hostile
@given(raw=st.sampled_from(GOOD).flatmap(disjointed) | anything)
def test_a_scenario_of_any_shape_runs_or_is_refused(raw):
    run(raw)


@hostile
@given(body=bodies | st.builds(cut, st.just(GOOD[:2]), st.integers(0, 4000)))
def test_a_file_of_any_content_ends_in_a_count(tmp_path, capsys, body):
    path = tmp_path / "scenarios.json"
    path.write_bytes(body)
    assert main([str(path)]) in (0, 1)
    assert " passed, " in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_once_broke_it_does_not_any_more(path, capsys):
    assert main([str(path)]) == 1
    out = capsys.readouterr().out
    assert "ERROR" in out or "FAILED" in out
    assert out.splitlines()[-1] == "0 passed, 1 failed"
    assert "\x1b" not in out
    assert sum("passed" in line and line[0].isdigit() for line in out.splitlines()) == 1, "a forged line"


def test_a_file_that_cannot_be_opened_is_named(capsys):
    assert main(["no\0where.json"]) == 1
    assert "cannot be read" in capsys.readouterr().out
    with pytest.raises(ScenarioError):
        load("nowhere.json")
