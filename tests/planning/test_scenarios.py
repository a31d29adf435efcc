"""Every scenario file passes, and the runner notices what is wrong with one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planning import scenarios

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILES = ("create_new_leases.json", "calculate_acquire.json", "cleanup.json", "audit.json", "attempts.json")
OTHERS = {
    "assignments.json",
    "election.json",
    "lambda_dead_letter.json",
    "lambda_kinesis_event.json",
    "lambda_kinesis_window_event.json",
}
"""No scenarios: answers of Java (see assignment_vectors.py, election_vectors.py), and documents of Lambda."""
ALL = [(name, raw) for name in FILES for raw in scenarios.load(FIXTURES / name)]


@pytest.mark.parametrize("raw", [pytest.param(raw, id=f"{name}: {raw['comment']}") for name, raw in ALL])
def test_scenario(raw):
    failure = scenarios.parse(raw).run()
    assert failure is None, failure


def test_every_scenario_file_of_the_fixtures_is_run():
    assert {path.name for path in FIXTURES.glob("*.json")} == set(FILES) | OTHERS


def test_no_two_scenarios_have_the_same_comment():
    comments = [raw["comment"] for _, raw in ALL]
    assert len(set(comments)) == len(comments)


def test_the_command_runs_from_anywhere_and_counts(tmp_path):
    done = _run_command(tmp_path, *(FIXTURES / name for name in FILES))
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == f"{len(ALL)} passed, 0 failed"


@pytest.mark.parametrize("name", FILES)
def test_the_command_prints_a_broken_expectation_and_exits_non_zero(tmp_path, name):
    raw = scenarios.load(FIXTURES / name)
    broken = raw[3]
    if "expected" in broken:
        broken["expected"] += 1
    elif "to_create" in broken:
        broken["to_create"] = [*broken["to_create"], {"lease_key": "no such shard", "checkpoint": {}}]
    elif "holes" in broken:
        broken["holes"] = [*broken["holes"], ["0", "1"]]
    elif "steps" in broken:
        broken["steps"] = [*broken["steps"], "call 0-1"]
    else:
        broken["to_delete"] = ["no such lease"]
    done = _run_command(tmp_path, _write(tmp_path, raw))
    assert done.returncode != 0
    assert broken["comment"] in done.stdout
    assert "expected: " in done.stdout
    assert "actual: " in done.stdout
    assert done.stdout.splitlines()[-1] == f"{len(raw) - 1} passed, 1 failed"


SHARD = {"shard_id": "a"}
ROW = {"lease_key": "a", "checkpoint": {"sequence_number": "TRIM_HORIZON"}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"shards": [SHARD], "to_create": [ROW], "colour": "red"},
        {"shards": [SHARD | {"colour": "red"}], "to_create": [ROW]},
        {"shards": [SHARD | {"hash_key_range": {"colour": "red"}}], "to_create": [ROW]},
        {"shards": [SHARD], "leases": [ROW | {"colour": "red"}], "to_create": []},
        {"shards": [SHARD], "to_create": [ROW | {"colour": "red"}]},
        {"leases": [ROW], "expected": 1, "colour": "red"},
        {"leases": [ROW | {"checkpoint": {"sequence_number": "1", "colour": "red"}}], "expected": 1},
        {"leases": [ROW], "to_delete": [], "colour": "red"},
        {"leases": [ROW], "holes": [], "colour": "red"},
        {"earlier": [[ROW | {"colour": "red"}]], "holes": []},
        {"records": 1, "steps": ["call 0-1"], "colour": "red"},
    ],
)
def test_an_unknown_key_is_named_together_with_its_comment(tmp_path, capsys, wrong):
    path = _write(tmp_path, [{"comment": "where the key is", **wrong}])
    assert scenarios.main([str(path)]) == 1
    output = capsys.readouterr().out
    assert "unknown key 'colour'" in output
    assert "where the key is" in output
    assert output.endswith("0 passed, 1 failed\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("not json", "cannot be read as JSON"),
        ("[]", "holds no scenarios"),
        ("{}", "holds no scenarios"),
        ("[7]", "must be an object"),
        ('[{"shards": [], "to_create": []}]', "without a comment"),
        ('[{"comment": "which kind?", "leases": []}]', "exactly one of"),
        ('[{"comment": "two kinds", "expected": 0, "to_create": []}]', "exactly one of"),
        ('[{"comment": "odd start", "strategy": "NOW", "shards": [], "to_create": []}]', "strategy 'NOW'"),
        ('[{"comment": "no key", "leases": [{"checkpoint": {}}], "expected": 0}]', "no key"),
        ('[{"comment": "no number", "leases": [], "expected": "many"}]', "many"),
        ('[{"comment": "no audit", "leases": [], "audits": 0, "holes": []}]', "0 audits"),
    ],
)
def test_a_malformed_file_fails_with_a_reason(tmp_path, capsys, text, complaint):
    path = tmp_path / "scenarios.json"
    path.write_text(text)
    assert scenarios.main([str(path)]) == 1
    output = capsys.readouterr().out
    assert complaint in output
    assert output.endswith("0 passed, 1 failed\n")


def test_without_a_file_the_command_says_how_to_use_it(capsys):
    assert scenarios.main([]) == 2
    assert "FILE" in capsys.readouterr().err


def test_only_the_comment_and_the_expectation_are_required(tmp_path):
    path = _write(
        tmp_path,
        [
            {"comment": "nothing listed", "to_create": []},
            {"comment": "nothing leased", "expected": 0},
            {"comment": "no strategy", "shards": [SHARD], "to_create": [ROW]},
            {"comment": "no limits", "leases": [ROW], "expected": 1},
        ],
    )
    assert scenarios.main([str(path)]) == 0


@pytest.mark.parametrize(
    ("strategy", "wrong_sub"), [({"AT_TIMESTAMP": 5}, 0), ({"AT_TIMESTAMP": 5}, 6), ("TRIM_HORIZON", 5)]
)
def test_the_sub_sequence_number_of_an_expected_row_is_compared(tmp_path, capsys, strategy, wrong_sub):
    kind = strategy if isinstance(strategy, str) else "AT_TIMESTAMP"
    row = {"lease_key": "a", "checkpoint": {"sequence_number": kind, "sub_sequence_number": wrong_sub}}
    path = _write(tmp_path, [{"comment": "sub", "strategy": strategy, "shards": [SHARD], "to_create": [row]}])
    assert scenarios.main([str(path)]) == 1
    assert "FAILED sub" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        {"confirmed": []},
        {"closed": [["0", "9"]]},
        {"must_sync": False},
        {"fills": {"b": ["0", "9"]}},
        {"unplaced": ["b"]},
        {"audits": 2},
        {"leases": [ROW | {"starting_hash_key": "9", "ending_hash_key": "19"}]},
    ],
)
def test_each_expectation_of_an_audit_is_compared(tmp_path, capsys, wrong):
    top = str(2**128 - 1)
    covered = ROW | {"starting_hash_key": "10", "ending_hash_key": top}
    hole = {"holes": [["0", "9"]], "confirmed": [["0", "9"]], "must_sync": True, "audits": 3}
    right = {"comment": "audit", "leases": [covered], **hole}
    assert scenarios.main([str(_write(tmp_path, [right]))]) == 0
    assert scenarios.main([str(_write(tmp_path, [right | wrong]))]) == 1
    assert "FAILED audit" in capsys.readouterr().out


def _write(folder: Path, raw: object) -> Path:
    path = folder / "scenarios.json"
    path.write_text(json.dumps(raw))
    return path


def _run_command(folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        [sys.executable, "-m", "tests.planning.scenarios", *map(str, paths)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
