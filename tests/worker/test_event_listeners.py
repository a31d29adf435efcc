"""Events: one line in the log each, listeners that raise, failures reported at their start and end."""

import logging

from pykcl.event_dispatch import EventFan
from pykcl.events import DataLost, FailureStarted, LeaseTaken
from pykcl.status import Activity
from pykcl.testing.runtime import Simulation
from pykcl.worker.failure_tracker import FailureTracker


def test_events_are_one_log_line_with_keys_and_foreign_text_quoted(caplog):
    caplog.set_level(logging.DEBUG, "pykcl")
    EventFan().emit(LeaseTaken(shard="shardId-1", reason="expired", from_owner="evil\nname", counter=7))
    (record,) = caplog.records
    assert record.message == "lease taken shard=shardId-1 reason=expired from_owner='evil\\nname' counter=7"
    assert record.levelno == logging.INFO


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
