import sys

import pytest

import benchmarks.__main__
from benchmarks import check
from benchmarks.check import NOTHING_COMPARED, compared
from benchmarks.figures import Ratio
from benchmarks.results import FOLDER_VARIABLE, Results


def words(before, now, **options):
    return [one.word for one in compared(before, now, **options)]


def test_a_ratio_is_worse_when_its_whole_interval_lies_15_percent_below():
    assert words({"a": Ratio(10, 9, 11)}, {"a": Ratio(8, 7, 8.4)}) == ["WORSE"]


def test_a_ratio_whose_interval_reaches_up_far_enough_may_be_chance():
    assert words({"a": Ratio(10, 9, 11)}, {"a": Ratio(7, 5, 8.6)}) == ["as before"]


def test_a_better_ratio_is_as_before():
    assert words({"a": Ratio(10, 9, 11)}, {"a": Ratio(20, 19, 21)}) == ["as before"]


def test_the_slack_decides():
    assert words({"a": Ratio(10, 9, 11)}, {"a": Ratio(9, 8.9, 9.1)}, slack=0.05) == ["WORSE"]


def test_a_new_ratio_is_named_and_no_failure_and_a_missing_one_is():
    verdicts = compared({"gone": Ratio(2, 2, 2)}, {"new": Ratio(1, 1, 1)})

    assert [one.word for one in verdicts] == ["MISSING", "new"]
    assert [one.fails for one in verdicts] == [True, False]


@pytest.fixture
def committed(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(check, "COMMITTED", tmp_path / "ratios.json")
    monkeypatch.setattr(check.read, "__defaults__", (tmp_path / "ratios.json",))
    monkeypatch.setattr(check.write, "__defaults__", (tmp_path / "ratios.json",))
    return tmp_path / "ratios.json"


def checked(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["check", *arguments])
    return check.main()


def run_with(**ratios):
    Results("peers", {"python": "3"}, ratios=ratios).save()


def test_without_a_run_the_check_fails(committed, monkeypatch, capsys):
    assert checked(monkeypatch) == NOTHING_COMPARED
    assert capsys.readouterr().out == "There is no run to compare. Do: python -m benchmarks.peers\n"


def test_without_committed_ratios_the_check_fails(committed, monkeypatch):
    run_with(a=Ratio(10, 9, 11))

    assert checked(monkeypatch) == NOTHING_COMPARED


def test_a_ratio_that_is_missing_now_fails_the_check(committed, monkeypatch, capsys):
    run_with(a=Ratio(10, 9, 11), b=Ratio(3, 3, 3))
    checked(monkeypatch, "--write")
    run_with(a=Ratio(10, 9, 11))

    assert checked(monkeypatch) == 1
    out = capsys.readouterr().out
    assert "MISSING" in out
    assert "1 ratios as before, 0 worse by more than 15%, 1 missing" in out


def test_the_suite_fails_where_the_check_had_nothing_to_compare(committed, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "check"])

    assert benchmarks.__main__.main() == NOTHING_COMPARED


def test_ratios_are_committed_and_compared_with_later(committed, monkeypatch, capsys):
    run_with(a=Ratio(10, 9, 11), b=Ratio(3, 3, 3))
    assert checked(monkeypatch, "--write") == 0
    run_with(a=Ratio(9.9, 9, 11), b=Ratio(3, 3, 3))
    assert checked(monkeypatch) == 0
    run_with(a=Ratio(5, 4, 6), b=Ratio(3, 3, 3))

    assert checked(monkeypatch) == 1
    assert "WORSE" in capsys.readouterr().out


def test_committing_keeps_what_was_not_measured_this_time(committed, monkeypatch):
    run_with(a=Ratio(10, 9, 11), b=Ratio(3, 3, 3))
    checked(monkeypatch, "--write")
    run_with(a=Ratio(12, 11, 13))
    checked(monkeypatch, "--write")

    assert check.read() == {"a": Ratio(12, 11, 13), "b": Ratio(3, 3, 3)}
