"""The wire, beside what Jackson wrote and read for the message classes of multilang 3.1.3."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykcl.compat.multilang import protocol
from pykcl.compat.multilang.protocol import CheckpointAsked, Noise, Status, parse
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import Record

JAVA_RECORDS = (
    '{"action":"processRecords","records":[{"data":"AP8+P38=","partitionKey":"pé\\"\u2028\\u0001😀/</k","sequenceNumber":"495",'
    '"approximateArrivalTimestamp":1700000000123,"subSequenceNumber":3,"action":"record"},{"data":"","partitionKey":"k",'
    '"sequenceNumber":"496","approximateArrivalTimestamp":null,"subSequenceNumber":0,"action":"record"}],"millisBehindLatest":7}'
)
RECORDS = [
    Record(b"\x00\xff>?\x7f", 'pé"\u2028\x01\U0001f600/</k', "495", 1700000000123.0, sub_sequence_number=3),
    Record(b"", "k", "496"),
]


def ordered(text):
    """Parsed, with the order of the fields."""
    return json.loads(text, object_pairs_hook=list)


def line_of(records, behind):
    return b"".join(protocol.process_records(records, behind))


def test_records_are_as_java_writes_them_in_the_same_order():
    assert ordered(line_of(RECORDS, 7)) == ordered(JAVA_RECORDS)


@pytest.mark.parametrize(
    ("ours", "java"),
    [
        (
            protocol.initialize("shardId-0", Checkpoint("TRIM_HORIZON")),
            '{"action":"initialize","shardId":"shardId-0","sequenceNumber":"TRIM_HORIZON","subSequenceNumber":0}',
        ),
        (line_of([], None), '{"action":"processRecords","records":[],"millisBehindLatest":null}'),
        (protocol.bare("leaseLost"), '{"action":"leaseLost"}'),
        (protocol.bare("shardEnded"), '{"action":"shardEnded"}'),
        (protocol.bare("shutdownRequested"), '{"action":"shutdownRequested"}'),
        (
            protocol.checkpoint_answer(CheckpointAsked("495", 3), None),
            '{"action":"checkpoint","sequenceNumber":"495","subSequenceNumber":3,"error":null}',
        ),
        (
            protocol.checkpoint_answer(CheckpointAsked("495", None), "ThrottlingException"),
            '{"action":"checkpoint","sequenceNumber":"495","subSequenceNumber":null,"error":"ThrottlingException"}',
        ),
    ],
)
def test_messages_are_as_java_writes_them_to_the_byte(ours, java):
    assert ours == java.encode() + b"\n"


@pytest.mark.parametrize(
    ("line", "means"),
    [
        ('{"action":"status","responseFor":"initialize"}', Status("initialize")),
        ('  {"action":"status","responseFor":"initialize"}', Status("initialize")),
        ('{"action":"status"}', Status(None)),
        ('{"action":"status","responseFor":"initialize","x":1}', Noise()),
        ('{"responseFor":"a"}', Noise()),
        ('{"action":"checkpoint","checkpoint":"5"}', Noise()),
        ('{"action":"checkpoint"}', CheckpointAsked(None, None)),
        ('{"action":"checkpoint","sequenceNumber":"5","subSequenceNumber":"7"}', CheckpointAsked("5", 7)),
        ('{"action":"checkpoint","sequenceNumber":5,"subSequenceNumber":1.5}', CheckpointAsked("5", 1)),
        ('{"action":"checkpoint","sequenceNumber":"5"} trailing', CheckpointAsked("5", None)),
        (
            '{"action":"checkpoint","sequenceNumber":"5","subSequenceNumber":null,"error":null}',
            CheckpointAsked("5", None),
        ),
        ('{"action":"checkpoint","sequenceNumber":"5","sequenceNumber":"6"}', CheckpointAsked("6", None)),
        ('{"action":"checkpoint","subSequenceNumber":""}', CheckpointAsked(None, None)),
        ("{'action':'status'}", Noise()),
        ('{"action":"bogus"}', Noise()),
        ("[1]", Noise()),
        ("null", Noise()),
        ("5", Noise()),
        ('"x"', Noise()),
        # Java makes messages of these two, and then goes on waiting.
        ('{"action":"processRecords","records":[]}', Noise()),
        ('{"action":"leaseLost"}', Noise()),
        ('{"action":' * 30_000, Noise()),
        ('{"action":"sta', Noise()),
    ],
)
def test_a_line_means_what_it_means_to_java(line, means):
    assert parse(line.encode()) == means


@pytest.mark.parametrize(
    ("position", "sequence_number", "names"),
    [
        ('"sequenceNumber":"5","subSequenceNumber":"three"', "5", "subSequenceNumber"),
        ('"sequenceNumber":"5","subSequenceNumber":"1.5"', "5", "subSequenceNumber"),
        ('"sequenceNumber":"5","subSequenceNumber":true', "5", "subSequenceNumber"),
        ('"sequenceNumber":"5","subSequenceNumber":[3]', "5", "subSequenceNumber"),
        ('"sequenceNumber":"5","subSequenceNumber":1e999', "5", "subSequenceNumber"),
        ('"sequenceNumber":"5","subSequenceNumber":NaN', "5", "subSequenceNumber"),
        ('"sequenceNumber":"5","subSequenceNumber":' + "9" * 5000, "5", "subSequenceNumber"),
        ('"subSequenceNumber":"three"', None, "subSequenceNumber"),
        ('"sequenceNumber":{"a":1}', None, "sequenceNumber"),
        ('"sequenceNumber":true,"subSequenceNumber":0', None, "sequenceNumber"),
    ],
)
def test_a_checkpoint_without_a_sensible_position_is_a_question_still(position, sequence_number, names):
    """Java takes it for no message; whoever asked that waits for the answer for ever."""
    asked = parse(b'{"action":"checkpoint",%b}' % position.encode())
    assert isinstance(asked, CheckpointAsked)
    assert (asked.sequence_number, asked.sub_sequence_number) == (sequence_number, None)
    assert asked.wrong == names


@given(st.binary())
def test_no_line_breaks_the_parser(line):
    assert isinstance(parse(b'{"action":"status"' + line), Status | Noise | CheckpointAsked)
    assert isinstance(parse(line), Status | Noise | CheckpointAsked)


texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.tuples(st.binary(), texts, st.integers(0, 10**38), st.integers(0, 2**62)), max_size=5))
def test_every_record_survives_the_wire(values):
    records = [
        Record(data, key, str(number), 5.0, sub_sequence_number=sub) for data, key, number, sub in values
    ]
    line = line_of(records, None)
    assert line.count(b"\n") == 1
    assert line.isascii()
    found = [
        (base64.b64decode(r["data"]), r["partitionKey"], int(r["sequenceNumber"]), r["subSequenceNumber"])
        for r in json.loads(line)["records"]
    ]
    assert found == values


def test_a_large_batch_never_exists_as_one_line():
    records = [Record(bytes(10_000), "k", str(number)) for number in range(500)]
    pieces = list(protocol.process_records(records, None))
    assert max(map(len, pieces)) < protocol.CHUNK_BYTES + 20_000
    assert len(pieces) > 20
    assert len(json.loads(b"".join(pieces))["records"]) == 500
    assert [piece.endswith(b"\n") for piece in pieces] == [False] * (len(pieces) - 1) + [True]
