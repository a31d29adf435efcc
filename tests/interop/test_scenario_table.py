"""Each scenario that shall be shown with real Java workers has its tests, and the summary says how they went."""

from types import SimpleNamespace

import interop_report
import java_scenarios
import pytest
from java_scenarios import BY_NAME, ELSEWHERE, NUMBERS, functions_in

from tests.java_compat.scenarios.scenario_titles import TITLES

FIRST = ELSEWHERE[1]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{number:02}: {TITLES[number]}")
def test_the_scenario_has_a_test_with_real_java_workers(number):
    places = java_scenarios.tests()[number]
    assert places
    for file, name in places:
        assert name in functions_in(file)


def test_there_are_eighteen_and_no_others_each_in_one_file():
    assert len(NUMBERS) == 18
    assert tuple(java_scenarios.tests()) == NUMBERS
    assert all(len({file for file, _ in places}) == 1 for places in java_scenarios.tests().values())


def reports(*names, file=BY_NAME):
    return [SimpleNamespace(nodeid=f"tests/interop/{file}::{name}") for name in names]


def named(number):
    return sorted(name for _, name in java_scenarios.tests()[number])


def test_the_summary_has_a_line_for_each_scenario_that_ran():
    stats = {
        "passed": [
            *reports(FIRST[1], file=FIRST[0]),
            *reports(*(f"{name}[java]" for name in named(21)), *named(6)),
        ],
        "failed": reports(*(f"{name}[pykcl]" for name in named(21))),
        "skipped": reports(*named(3)),
        "error": reports(*named(40)),
        "warnings": [object()],
    }
    assert list(java_scenarios.lines(stats, TITLES)) == [
        "scenario 01: pykcl joins Java's fleet: passed",
        "scenario 06: pykcl steals a live lease of Java's: passed",
        "scenario 21: merge: each side ends one parent: FAILED",
        "scenario 40: soak: kills, splits, merges: FAILED",
    ]


def test_the_summary_shows_what_tests_recorded_of_their_fleets_passed_or_not():
    def report(when, *properties):
        return SimpleNamespace(when=when, user_properties=[*properties, ("other", "x")])

    stats = {
        "passed": [
            report("call", (interop_report.REPORT, "a"), (interop_report.REPORT, "b")),
            report("call"),
        ],
        "failed": [
            report("call", (interop_report.REPORT, "c")),
            report("teardown", (interop_report.REPORT, "c")),
        ],
    }
    assert list(interop_report.recorded(stats, interop_report.REPORT)) == ["a", "b", "c"]


def test_a_scenario_of_which_some_tests_did_not_run_is_not_told_as_passed():
    first, *others = named(26)
    (line,) = java_scenarios.lines({"passed": reports(first)}, TITLES)
    assert line.endswith(f": passed in part, {len(others)} of its tests not run")
    (line,) = java_scenarios.lines({"passed": reports(first, *others)}, TITLES)
    assert line.endswith(": passed")


def test_tests_of_other_names_and_files_make_no_line():
    assert (
        list(
            java_scenarios.lines({"passed": reports("test_scenario_06_x", file="test_ownership.py")}, TITLES)
        )
        == []
    )
