"""Events: one line in the log each, listeners that raise, failures reported at their start and end."""

import functools
import logging
from dataclasses import replace

import pytest

from pykcl import App, AsyncConsumer, ConfigError, Consumer, RecordProcessor, Worker
from pykcl.aws.clients import given_clients
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
from pykcl.testing import LocalAws, run_processor
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


# -- what Worker takes ---------------------------------------------------------------------------------------------


class Quiet(RecordProcessor):
    def process_records(self, batch):
        pass


def worker_of_an_app(**options):
    app = App("orders-app", **options)
    app.stream("orders")(lambda order: None)
    (stream,) = app._streams
    return Worker("orders-app", stream="orders", processor=stream.processor, **stream.around())


MADE_BY = [
    functools.partial(Worker, "orders-app", stream="orders", processor=Quiet),
    functools.partial(Consumer, "orders-app", stream="orders"),
    functools.partial(AsyncConsumer, "orders-app", stream="orders"),
    worker_of_an_app,
]


@pytest.mark.parametrize("option", ["on_event", "metrics_sinks", "session", "clients", "dead_letters"])
@pytest.mark.parametrize("make", MADE_BY)
def test_none_is_none_of_each_callback_and_object_that_may_be_left_out(make, option):
    made = make(**{option: None})
    worker = getattr(made, "_worker", made)
    assert worker._relays == []
    assert worker._metering.sinks == ()


def test_a_list_of_listeners_may_have_places_for_none():
    heard = []
    worker = Worker("orders-app", stream="orders", processor=Quiet, on_event=[None, heard.append])
    assert len(worker._relays) == 1


async def asynchronous(event):
    pass


def generator(event):
    yield event


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"on_event": 5},
            r"^on_event=int is no function. Do: on_event=function, with a plain def function\(event\)",
        ),
        ({"on_event": "log"}, "^on_event=str is no function"),
        ({"on_event": [print, 5]}, "^on_event=int is no function"),
        (
            {"on_event": asynchronous},
            "^on_event=asynchronous is async def: a call of it runs nothing. Do: on_event=",
        ),
        (
            {"on_event": [generator]},
            "^on_event=generator is a function with a yield: a call of it runs nothing",
        ),
        ({"metrics_sinks": 5}, r"^metrics_sinks=int is no list of sinks. Do: metrics_sinks=\[sink\]"),
        ({"metrics_sinks": "otel"}, "^metrics_sinks=str is no list of sinks.* metrics='otel'"),
        (
            {"metrics_sinks": [5]},
            r"^metrics_sinks= holds int, which is no sink: it has no take and no forget",
        ),
    ],
)
def test_what_cannot_be_one_is_refused_with_what_to_write(options, message):
    with pytest.raises(ConfigError, match=message):
        Worker("orders-app", stream="orders", processor=Quiet, **options)


def test_clients_that_are_no_dict_are_refused_and_a_client_that_is_none_is_made_by_boto3():
    with pytest.raises(ConfigError, match=r"^clients=int is no dict. Do: clients=\{'kinesis': client, 'dyna"):
        Worker("orders-app", stream="orders", processor=Quiet, clients=5).start()
    assert given_clients({"kinesis": None, "dynamodb": 5}) == {"dynamodb": 5}


def test_none_leaves_out_no_fault_and_allows_no_other_host():
    assert run_processor(Quiet, [1], faults=None).lost == 0
    with LocalAws(allow_hosts=None) as aws:
        assert aws.url.startswith("http://127.0.0.1:")
