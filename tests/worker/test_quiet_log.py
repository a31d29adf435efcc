"""The log while AWS is flaky and while leases move as planned: few lines, and none left out that a person needs."""

import logging
import random

import pytest

from pykcl.errors import TemporaryError, Throttled
from pykcl.event_dispatch import EventFan
from pykcl.events import (
    FailureLasted,
    FailurePassed,
    FailureResolved,
    FailureStarted,
    LeaseLost,
    LeaseReleased,
    LossReason,
)
from pykcl.local.errors import AwsError
from pykcl.status import Activity
from pykcl.testing.runtime import Simulation
from pykcl.worker.failure_tracker import FailureTracker


def lines(fleet):
    """The events that the log of `pykcl run` shows."""
    return [event for _, event in fleet.events if event.level >= logging.INFO]


def flaky(chance, *errors, seed=3):
    """A fault of Kinesis: that part of GetRecords fails."""
    dice = random.Random(seed)

    def fault(operation, stream, shard):
        if operation == "GetRecords" and dice.random() < chance:
            raise dice.choice(errors)

    return fault


def test_five_minutes_of_flaky_reads_are_a_few_lines_and_each_edge_is_still_an_event(new_fleet):
    fleet = new_fleet(shards=10)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(20))
    before = len(lines(fleet))
    fleet.kinesis.fault = flaky(0.3, AwsError("InternalFailure", "no", 500))
    began = fleet.simulation.now
    fleet.wait(lambda: fleet.happened(FailureLasted), 60, "a line within a minute")
    fleet.simulation.sleep(300 - (fleet.simulation.now - began))
    fleet.kinesis.fault = None
    fleet.simulation.sleep(60)
    assert 2 <= len(lines(fleet)) - before <= 8
    assert len(fleet.happened(FailureStarted)) > 250
    reports = fleet.happened(FailureLasted)
    assert {(event.what, event.of) for event in reports} == {("reading", 10)}
    counted = sum(event.failures for event in [*reports, *fleet.happened(FailurePassed)])
    assert counted > 0.7 * len(fleet.happened(FailureStarted))
    assert fleet.workers["w1"].status().troubles == ()


def test_an_outage_is_in_the_log_within_a_minute_once_and_so_is_its_end(new_fleet):
    fleet = new_fleet(shards=10)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(20))
    fleet.kinesis.fault = flaky(1.0, AwsError("InternalFailure", "no", 500))
    fleet.wait(lambda: fleet.happened(FailureLasted), 30, "the outage in the log")
    fleet.simulation.sleep(300)
    (report,) = [event for event in fleet.happened(FailureLasted) if event.what == "reading"]
    assert (report.failing, report.of) == (10, 10)
    assert not fleet.happened(FailurePassed)
    fleet.kinesis.fault = None
    fleet.wait(lambda: fleet.happened(FailurePassed), 60, "its end in the log")


def test_another_error_behind_one_that_lasts_is_a_line_of_its_own():
    heard = []
    with Simulation() as simulation:
        tracker = FailureTracker(EventFan([heard.append]), simulation.runtime("w"), shards=lambda: 2)
        for second in range(60):
            error = (
                Throttled("slow down").about("E19")
                if second < 30
                else TemporaryError("no longer permitted").about("E02")
            )
            tracker.failed(Activity.READING, error, shard="s")
            tracker.report()
            simulation.sleep(1)
    assert [event.code for event in heard if isinstance(event, FailureLasted)] == ["E19", "E02"]
    assert len([event for event in heard if isinstance(event, FailureStarted)]) == 1
    assert not [event for event in heard if isinstance(event, FailureResolved)]


def test_a_start_that_fails_is_a_line_at_once(new_fleet):
    fleet = new_fleet(shards=1, state_seconds=25.0)
    fleet.start("w1").stop()
    assert next(event.seconds for event in fleet.happened(FailureLasted)) == 0.0


def test_a_rolling_deployment_has_no_warning(new_fleet):
    fleet = new_fleet(shards=12)
    for number in range(4):
        fleet.start(f"old{number}")
    fleet.wait_delivered(fleet.put(24))
    fleet.simulation.sleep(60)
    for number in range(4):
        fleet.start(f"new{number}")
        fleet.simulation.sleep(30)
        fleet.workers[f"old{number}"].stop()
        fleet.simulation.sleep(30)
    fleet.wait_delivered(fleet.put(24))
    assert len([event for event in fleet.happened(LeaseLost) if event.reason is LossReason.TAKEN]) >= 4
    assert fleet.happened(LeaseReleased)
    assert [event for event in lines(fleet) if event.level > logging.INFO] == []


def test_a_lease_taken_after_heartbeats_got_no_answer_is_a_warning(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(3))
    fleet.simulation.freeze("w1", 60.0)
    fleet.start("w2")
    fleet.wait(lambda: fleet.happened(LeaseLost), 120, "the loss")
    (lost,) = fleet.happened(LeaseLost)
    assert lost.level == logging.WARNING


@pytest.mark.parametrize(("shorter", "level"), [(4.0, logging.WARNING), (10.0, logging.INFO)])
def test_a_lease_taken_by_a_worker_of_a_shorter_failover_time_is_a_warning(new_fleet, shorter, level):
    fleet = new_fleet(shards=2)
    fleet.start("w1", failover_time=10.0)
    fleet.wait_delivered(fleet.put(4))
    fleet.simulation.sleep(30)
    fleet.start("w2", failover_time=shorter)
    fleet.wait(lambda: fleet.happened(LeaseLost), 60, "the loss")
    assert fleet.happened(LeaseLost)[0].level == level
