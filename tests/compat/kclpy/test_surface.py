"""The Python API of amazon_kclpy 3.1.3, by what the real package showed of itself (surface_golden.json)."""

import json
import os
import subprocess
from base64 import b64decode

import kclpy_surface
import pytest

from pykcl.compat.kclpy import messages
from pykcl.compat.kclpy.adapter import processor_factory
from pykcl.compat.kclpy.v3.processor import RecordProcessorBase
from pykcl.model.record import Record
from pykcl.processor import Batch

GOLDEN = json.loads(kclpy_surface.GOLDEN.read_text("utf-8"))
OURS = json.loads(json.dumps(kclpy_surface.surface("pykcl.compat.kclpy")))
KNOWN_DIFFERENCES = {("messages", "MessageDispatcher", "action"): "property"}
"""A method there, and a property in every class that is a message."""


@pytest.mark.parametrize(
    ("module", "name"), [(m, n) for m, classes in GOLDEN["modules"].items() for n in classes]
)
def test_every_class_has_the_members_and_signatures_of_the_real_one(module, name):
    real, ours = GOLDEN["modules"][module][name], OURS["modules"][module].get(name)
    assert ours is not None, f"{module}.{name} is missing"
    for member, signature in real.items():
        expected = KNOWN_DIFFERENCES.get((module, name, member), signature)
        assert ours.get(member) == expected, f"{module}.{name}.{member}"


@pytest.mark.parametrize("part", ["values", "record", "errors"])
def test_messages_records_and_errors_have_the_values_of_the_real_ones(part):
    assert OURS[part] == GOLDEN[part]


def delivered():
    return messages.DeliveredRecord(
        Record(b"\xff\x00", "käse", kclpy_surface.RECORD["sequenceNumber"], 1700000000123.0, "s", "orders", 2)
    )


def test_a_delivered_record_answers_everything_as_the_real_one():
    assert kclpy_surface.of_record(delivered) == GOLDEN["record"]
    assert isinstance(delivered(), messages.Record)
    assert delivered()._json_dict == kclpy_surface.RECORD


def test_a_delivered_record_has_the_inner_names_of_the_real_one_to_be_read_and_not_to_be_set():
    told, record = messages.Record(kclpy_surface.RECORD), delivered()
    for name in (
        "_data",
        "_partition_key",
        "_sequence_number",
        "_sub_sequence_number",
        "_timestamp_millis",
        "_approximate_arrival_timestamp",
        "_json_dict",
    ):
        assert getattr(record, name) == getattr(told, name)
        # What would be set and then passed over is better refused.
        with pytest.raises(AttributeError):
            setattr(record, name, "mine")
    record.metadata = "a program may keep its own with a record"
    assert record.metadata


@pytest.mark.parametrize(
    ("name", "mine"),
    [
        ("binary_data", property(lambda record: b"unpacked " + b64decode(record.data))),
        ("__init__", lambda record, json_dict: vars(record).update(_data="dW5wYWNrZWQg" + json_dict["data"])),
    ],
)
def test_a_program_may_put_its_own_in_the_place_of_what_records_do(name, mine, monkeypatch):
    class Mine(RecordProcessorBase):
        def process_records(self, process_records_input):
            seen.extend(record.binary_data for record in process_records_input.records)

    seen, user_record = [], delivered()._record
    batch = Batch((user_record,), None, 0, "s", "orders")
    monkeypatch.setattr(messages.Record, name, mine)
    processor_factory(Mine(), None)[0]().process_records(batch)
    monkeypatch.undo()
    processor_factory(Mine(), None)[0]().process_records(batch)
    assert seen == [b"unpacked \xff\x00", b"\xff\x00"]


def test_a_delivered_record_encodes_nothing_before_it_is_asked_to(monkeypatch):
    encoded = []
    monkeypatch.setattr(messages, "b2a_base64", lambda data, **_: encoded.append(data) or b"=")
    record = delivered()
    assert (record.binary_data, record["partitionKey"], record.timestamp_millis) == (
        b"\xff\x00",
        "käse",
        1700000000123,
    )
    assert not encoded
    assert record["data"] == "="
    assert encoded == [b"\xff\x00"]


def test_what_is_wrong_with_a_message_is_told_without_quoting_it():
    from pykcl.compat.kclpy import dispatch

    for message in ({"data": "c2VjcmV0"}, {"action": "secret", "data": "c2VjcmV0"}):
        with pytest.raises(dispatch.MalformedAction) as told:
            dispatch.message_decode(message)
        assert "c2VjcmV0" not in str(told.value)
        assert "secret" not in str(told.value)


def test_the_golden_surface_is_still_that_of_the_real_package(tmp_path):
    python = os.environ.get("REAL_KCLPY")
    if python is None:
        pytest.skip("REAL_KCLPY names no Python that has the real amazon_kclpy (kclpy-ext==3.1.3.post4)")
    code = "import json, kclpy_surface; print(json.dumps(kclpy_surface.surface('amazon_kclpy')))"
    done = subprocess.run(
        [python, "-c", code], cwd=kclpy_surface.GOLDEN.parent, capture_output=True, check=True
    )
    assert json.loads(done.stdout) == GOLDEN
