"""Events: one line in the log each, listeners that raise, failures reported at their start and end."""

import logging
from dataclasses import replace

from pykcl.event_dispatch import EventFan
from pykcl.events import (
    AggregateRefused,
    DataLost,
    FailureStarted,
    LeaseTaken,
    ProcessorRaised,
    WorkerStopped,
)
from pykcl.status import Activity
from pykcl.testing.runtime import Simulation
from pykcl.worker.failure_tracker import FailureTracker


def test_events_are_one_log_line_with_keys_and_foreign_text_quoted(caplog):
    caplog.set_level(logging.DEBUG, "pykcl")
    EventFan().emit(LeaseTaken(shard="shardId-1", reason="expired", from_owner="evil\nname", counter=7))
    (record,) = caplog.records
    assert record.message == "lease taken shard=shardId-1 reason=expired from_owner='evil\\nname' counter=7"
    assert record.levelno == logging.INFO


def test_what_each_record_may_bring_has_a_bound_of_lines_a_minute_and_a_count_of_the_others(caplog):
    heard, clock = [], [0.0]
    fan = EventFan([heard.append], now=lambda: clock[0])
    event = AggregateRefused(shard="shardId-1", sequence_number="5", problem="p", size=1)
    lost = DataLost(shard="shardId-1", checkpoint="5:0", resumed_at="9:0")
    for _ in range(1000):
        fan.emit(event)
        fan.emit(lost)
    assert len(heard) == 2000, "listeners have them all"
    assert caplog.text.count("aggregated record refused") == 30
    assert caplog.text.count("records were trimmed") == 1000, "what is lost is never left out"
    assert "left out of the log" not in caplog.text
    clock[0] = 61.0
    fan.emit(lost)
    assert (
        "lines of one kind left out of the log left_out=AggregateRefused lines=970 seconds=61.0"
        in caplog.text
    )
    fan.emit(event)
    assert caplog.text.count("aggregated record refused") == 31


def test_another_error_of_the_processor_is_shown_while_lines_of_one_are_left_out(caplog):
    fan = EventFan(now=lambda: 0.0)
    raised = ProcessorRaised(
        shard="s", method="process_records", error="Timeout", where="sink.py:5", attempt=2, records=1, first="5", last="5",
        next_attempt_in=1.0,
    )  # fmt: skip
    for _ in range(100):
        fan.emit(raised)
    fan.emit(replace(raised, error="KeyError", where="orders.py:9"))
    assert caplog.text.count("Timeout") == 30
    assert caplog.text.count("KeyError") == 1
    fan.emit(WorkerStopped(worker_id="w", cause="asked to"))
    assert "left_out='ProcessorRaised Timeout sink.py:5' lines=70" in caplog.text


def test_a_listener_that_raises_is_left_out_and_the_others_go_on(caplog):
    heard = []

    def broken(event):
        raise RuntimeError("CANARY")

    fan = EventFan([broken, heard.append])
    event = DataLost(shard="shardId-1", checkpoint="5:0", resumed_at="9:0")
    fan.emit(event)
    fan.emit(event)
    assert heard == [event, event]
    assert caplog.text.count("listener raised") == 1
    assert "CANARY" not in caplog.text


def test_trouble_is_told_when_it_begins_and_when_it_ends():
    with Simulation() as simulation:
        heard = []
        trouble = FailureTracker(EventFan([heard.append]), simulation.runtime("w"))
        for _ in range(3):
            trouble.failed(Activity.READING, ValueError("why"))
        for _ in range(3):
            trouble.worked(Activity.READING)
        assert [type(event).__name__ for event in heard] == ["FailureStarted", "FailureResolved"]
        assert heard[0] == FailureStarted(what="reading", cause="why")
