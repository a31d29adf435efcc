import sys

import pytest

from benchmarks import __main__ as suite
from benchmarks import peer_goals
from benchmarks.figures import Ratio
from benchmarks.readers import BOTO3, DIRECT_CBOR, EACH_BATCH
from benchmarks.results import FOLDER_VARIABLE, NOT_RUN, Results, loaded


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def test_what_is_saved_is_what_is_loaded():
    results = Results("cost", {"python": "3"}, ratios={"a": Ratio(1, 0.5, 2)}, pictures={"p": {"title": "T"}})
    results.at_most("bill", 0.67, 0.5, "x")
    results.save()

    assert loaded("cost") == results
    assert loaded("another") is None


def test_goals_are_met_missed_or_not_measured():
    results = Results("peers", {})

    assert results.at_least("a", 7, Ratio(7, 1, 9)).verdict == "met"
    assert results.at_least("b", 7, None).verdict == "not measured"
    assert results.exit_code == 0
    assert results.at_least("c", 7, Ratio(6.9, 6, 9)).verdict == "MISSED"
    assert results.exit_code == 1


def test_at_most_is_met_at_the_very_value():
    results = Results("cost", {})

    assert results.at_most("a", 15, 15.0, " s").met
    assert not results.at_most("b", 15, 15.1, " s").met


def test_a_goal_of_the_table_is_judged_by_its_own_ratio():
    name = peer_goals.SHAPE_NAMES[1]
    results = Results(
        "peers",
        {},
        ratios={
            peer_goals.key(name, DIRECT_CBOR, BOTO3): Ratio(7.9, 7, 9),
            peer_goals.key(name, DIRECT_CBOR + EACH_BATCH, BOTO3): Ratio(7.9, 7, 9),
        },
    )

    peer_goals.judge(results, [name], with_jvm=True, with_rust=True)

    judged = {goal.name: (goal.wanted, goal.verdict) for goal in results.goals}
    assert judged[f"{name}: {DIRECT_CBOR}, less than {BOTO3}"] == (">= 8x", "MISSED")
    assert judged[f"{name}: {DIRECT_CBOR}{EACH_BATCH}, less than {BOTO3}"] == (">= 6x", "met")
    assert judged[f"{name}: {peer_goals.PYKCL_LOCAL}, less than {peer_goals.DAEMON}"] == (
        ">= 6x",
        "not measured",
    )


def suite_of(monkeypatch, codes, *arguments):
    """The suite with benchmarks that only end with these codes."""
    made = []

    class Done:
        def __init__(self, command, check):
            made.append(command[2:])
            self.returncode = codes.get(command[2].removeprefix("benchmarks."), 0)

    monkeypatch.setattr(suite.subprocess, "run", Done)
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    return suite.main(), made


def test_the_suite_ends_with_what_went_worst_and_goes_on_until_the_end(monkeypatch, capsys):
    code, made = suite_of(monkeypatch, {"read_path": 1, "cost": NOT_RUN})

    assert code == 1
    assert len(made) == len(suite.USUAL)
    shown = capsys.readouterr().out
    assert "GOAL MISSED" in shown
    assert "NOT RUN" in shown


def test_what_could_not_run_fails_nothing(monkeypatch):
    assert suite_of(monkeypatch, {"cost": NOT_RUN}, "cost")[0] == 0


def test_a_benchmark_that_a_signal_ended_fails_the_suite(monkeypatch):
    assert suite_of(monkeypatch, {"cost": -9}, "cost")[0] != 0


def test_quick_leaves_out_the_check_unless_it_is_named(monkeypatch):
    assert ["benchmarks.check"] not in suite_of(monkeypatch, {}, "--quick")[1]
    assert ["benchmarks.check"] in suite_of(monkeypatch, {}, "--quick", "check")[1]


def test_quick_gives_each_benchmark_its_tiny_rounds(monkeypatch):
    _, made = suite_of(monkeypatch, {}, "--quick", "failover")

    assert made == [["benchmarks.failover", "--workers", "2,10", "--seeds", "2"]]


def test_the_summary_shows_goals_of_this_run_only(monkeypatch, capsys):
    old = Results("failover", {})
    old.at_most("old goal", 1, 0.5, " s")
    old.save()

    suite_of(monkeypatch, {}, "failover", "cost")

    assert "old goal" not in capsys.readouterr().out


def test_a_benchmark_that_broke_is_told_from_one_that_missed_a_goal(monkeypatch, capsys):
    suite_of(monkeypatch, {"peers": 1, "lease_scan": 1}, "peers", "lease_scan")

    broken, missed = capsys.readouterr().out.splitlines()[-2:]
    assert "FAILED" in broken
    assert "GOAL MISSED" in missed
