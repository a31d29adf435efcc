import subprocess
import sys

import pytest

from benchmarks import peer_environment, producer
from benchmarks.figures import Ratio
from benchmarks.live_shards import bodies_of, live_server
from benchmarks.producer_goals import (
    AGG,
    BOTO3,
    CASES,
    MIB,
    PUT_RECORD,
    PYKCL,
    Rate,
    judge_cpu,
    judge_latency,
    judge_memory,
    judge_rate,
)
from benchmarks.readers import surroundings
from benchmarks.results import Results

PLAIN, AGGREGATED = CASES[0], CASES[1]


@pytest.fixture
def results():
    return Results("producer", {})


def verdicts(results):
    return [goal.verdict for goal in results.goals]


def test_the_median_of_the_rounds_counts_and_each_other_is_a_ratio_of_neighbours(results):
    times = {PYKCL: [4.0, 5.0, 90.0], BOTO3: [8.0, 10.0, 180.0], PUT_RECORD: [100.0, 100.0, 100.0]}

    ratios = judge_cpu(results, PLAIN, times)

    assert ratios[BOTO3] == Ratio(2.0, 2.0, 2.0)
    assert verdicts(results) == ["met", "met", "MISSED"]
    assert "100 B plain | pykcl | boto3 put_records" in results.ratios


def test_a_peer_that_is_missing_is_a_goal_that_was_not_measured(results):
    judge_cpu(results, AGGREGATED, {PYKCL: [7.0]})

    assert verdicts(results) == ["MISSED", "not measured", "not measured"]
    assert results.exit_code == 1


def test_without_pykcl_nothing_is_measured_and_no_goal_is_met(results):
    judge_cpu(results, AGGREGATED, {AGG: [7.0]})

    assert verdicts(results) == ["not measured"] * 3


@pytest.mark.parametrize(
    ("mib", "again", "expected"), [(9.51, 10, ["met", "met"]), (9.4, 11, ["MISSED", "MISSED"])]
)
def test_a_shard_is_used_to_95_percent_and_hardly_a_record_is_sent_again(results, mib, again, expected):
    judge_rate(results, Rate(seconds=10.0, records=10_000, bytes=round(mib * MIB), again=again))

    assert verdicts(results) == expected


@pytest.mark.parametrize(("median", "expected"), [(107.9, "met"), (108.1, "MISSED")])
def test_a_result_comes_5_ms_after_linger_and_round_trip(results, median, expected):
    judge_latency(results, [50.0, median, 900.0], round_trip=3.0)

    assert verdicts(results) == [expected]


def test_memory_of_an_outage_has_two_bounds(results):
    judge_memory(results, 64 * MIB, 64 * MIB, 128 * MIB)
    judge_memory(results, 64 * MIB + 10_000_000, 64 * MIB, 129 * MIB)

    assert verdicts(results) == ["met", "met", "MISSED", "MISSED"]


def test_put_record_takes_part_where_a_goal_names_it():
    children = [PYKCL, BOTO3, AGG]

    assert producer.names_for(PLAIN, children) == [PYKCL, BOTO3, PUT_RECORD]
    assert producer.names_for(AGGREGATED, children) == [PYKCL, AGG]
    assert producer.names_for(PLAIN, [PYKCL]) == [PYKCL]


def test_a_peer_that_cannot_be_installed_is_listed_as_missing(monkeypatch):
    def refused(*_):
        raise peer_environment.Unavailable("pip ended with 1")

    monkeypatch.setattr(peer_environment, "python_of", refused)
    run = object.__new__(producer.Run)
    run.missing, run.children = {}, {}

    run._peer("aiokpl", "aiokpl", peer_environment.AIOKPL, "aiokpl_producer.py", ())

    assert run.missing == {"aiokpl": "pip ended with 1"}
    assert run.children == {}


def test_the_program_of_pykcl_puts_every_record_aggregated_and_plain():
    with live_server(bodies_of((), 1), (), 1, None) as server:
        done = subprocess.run(
            [sys.executable, str(producer.PROGRAMS / "pykcl_producer.py"), "without-limits"],
            input="plain 30 10\naggregated 30 10\ncount\n",
            capture_output=True,
            text=True,
            check=True,
            env=surroundings(server.url, None),
        )
        put = server.puts()

    assert '"records": 60, "bytes": 600' in done.stdout.splitlines()[-1]
    assert 30 < put < 60


def test_a_row_has_the_median_and_the_ratio_to_pykcl():
    ours, theirs = producer.lines_of({PYKCL: [4.0], BOTO3: [8.0]}, {BOTO3: Ratio(2.0, 2.0, 2.0)})

    assert ours.split() == ["pykcl", "4.00", "4.00-4.00"]
    assert theirs.endswith("8.00-8.00        2.00x (2.00-2.00) what pykcl takes")
