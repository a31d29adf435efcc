"""Record logs: what a worker process writes, and the demo reads while it grows."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from pykcl import events
from pykcl.demo import workers
from pykcl.demo.record_log import RecordLogReader, RecordLogWriter, payload
from pykcl.model.record import Record


def record(number: int, sub: int = 0) -> Record:
    return Record(payload(number, 40), "k", "100", shard_id="s0", sub_sequence_number=sub)


def test_a_record_log_is_read_while_it_grows(tmp_path: Path):
    logs, file = RecordLogReader(), RecordLogWriter(tmp_path / "py-1.jsonl", "py-1")
    logs.add(tmp_path / "py-1.jsonl")
    logs.add(tmp_path / "not-there-yet.jsonl")
    file.event("Batch", shard="s0", records=3)
    logs.poll()
    assert logs.in_progress("py-1") == 3
    file.delivered(5, [record(1), record(2, sub=1)])
    file.event("LeaseReleased", shard="s0")
    logs.poll()
    assert [(one.worker, one.run, one.sequence, one.sub, one.id) for one in logs.deliveries] == [
        ("py-1", 5, "100", 0, 1),
        ("py-1", 5, "100", 1, 2),
    ]
    assert logs.in_progress("py-1") == 1
    assert [(note.kind, note.shard) for note in logs.events] == [("LeaseReleased", "s0")]
    assert logs.user_records == {"s0": 2}
    assert logs.sequences == {"s0": {"100"}}


def test_an_unfinished_line_counts_only_once_it_is_complete(tmp_path: Path):
    path = tmp_path / "py-1.jsonl"
    logs = RecordLogReader()
    logs.add(path)
    RecordLogWriter(path, "py-1").delivered(1, [record(1), record(2)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    logs.poll()
    assert logs.ids == {1}
    path.write_bytes(whole)
    logs.poll()
    assert logs.ids == {1, 2}


EVENTS = [
    found for found in vars(events).values() if isinstance(found, type) and issubclass(found, events.Event)
]


@pytest.mark.parametrize(
    "event", [one for one in EVENTS if one is not events.Event], ids=lambda one: one.__name__
)
def test_every_event_of_a_worker_can_be_logged_and_read(event, tmp_path: Path):
    # One that could not would silence the listener, and the demo would miss every alarm after it.
    values = {field.name: "x" for field in fields(event)}
    workers.log_event(RecordLogWriter(tmp_path / "w.jsonl", "py-1"), event(**values))
    logs = RecordLogReader()
    logs.add(tmp_path / "w.jsonl")
    logs.poll()
    (note,) = logs.events
    assert (note.kind, note.worker) == (event.__name__, "py-1")
    assert dict(note.fields) == {name: "x" for name in values if name != "worker_id"}
