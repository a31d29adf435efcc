"""The log as JSON: each line one object, whatever it is about."""

import io
import json
import logging

import pytest

from pykcl import events
from pykcl.event_dispatch import EventFan, log_event
from pykcl.logs import JsonFormatter


@pytest.fixture
def lines():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("pykcl")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_an_event_has_its_type_and_its_fields(lines):
    EventFan().emit(
        events.ProcessorSlow(
            shard="shardId-0", method="process_records", seconds=61.2, thread="t", stack=("a.py:1 in f",)
        )
    )
    (line,) = lines()
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "WARNING",
        "logger": "pykcl",
        "message": "record processor has not returned",
        "event": "ProcessorSlow",
        "shard": "shardId-0",
        "method": "process_records",
        "seconds": 61.2,
        "thread": "t",
        "stack": ["a.py:1 in f"],
    }


def test_other_lines_have_their_message_and_their_traceback(lines):
    log = logging.getLogger("pykcl.run")
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("crashed worker=%s", "w1")
    (line,) = lines()
    assert (line["logger"], line["message"]) == ("pykcl.run", "crashed worker=w1")
    assert "KeyError" in line["traceback"]
    assert "event" not in line


def test_hostile_names_are_one_line_of_ascii(lines):
    forged = 'x"}\n{"event": "LeaseTaken"\x1b[2J\u2028'
    log_event(events.LeaseTaken(shard=forged, reason="r", from_owner=forged, counter=1))
    (line,) = lines()
    assert line["shard"] == forged
    record = logging.LogRecord("pykcl", 20, "", 0, "%s", (forged,), None)
    assert JsonFormatter().format(record).isprintable()


def test_what_json_cannot_say_is_null(lines):
    log_event(events.ProcessorReturned(shard="s", method="m", seconds=float("inf")))
    (line,) = lines()
    assert line["seconds"] is None


def test_no_event_has_a_field_that_hides_what_every_line_has():
    kinds = [
        kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)
    ]
    names = {name for kind in kinds for name in getattr(kind, "__dataclass_fields__", {})}
    assert len(names) > 30
    assert names.isdisjoint({"time", "level", "logger", "message", "event", "traceback"})
