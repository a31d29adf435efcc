"""Unmodified programs of amazon_kclpy and aws-kcl at three doors, on the same records through a split: under a real
MultiLangDaemon of Java KCL 3.1.3, under `pykcl multilangd`, and in process.

Programs that behave: the same records and the same checkpoints at every door as under Java. Programs that raise, print or
exit: what is expected at each door stands in `EXPECTED`, written down before it is looked at.
"""

import base64
import json
from pathlib import Path

import java_jars
import kclpy_package
import npm_emulators
import pytest
from fleet_rows import SHARD_END
from program_doors import DOORS, IN_PROCESS, JAVA, JAVA_VERSION, MULTILANGD, SKIPPING, Doors
from program_verdict import Outcome, differences, numbers, outcome_of

from pykcl.local.stream import Entry
from pykcl.model.kpl import aggregate

pytestmark = pytest.mark.timeout(400)

NPM = Path(__file__).parent / "npm"
FIRST, OTHER = "shardId-000000000000", "shardId-000000000001"


@pytest.fixture
def doors(java, tmp_path):
    """Doors with the real amazon_kclpy for programs to import, or a skip that says why not."""
    java(JAVA_VERSION)
    try:
        package = kclpy_package.installed()
    except kclpy_package.Unavailable as reason:
        pytest.skip(f"Java and programs of amazon_kclpy SKIPPED: {reason}")
    with Doors(tmp_path, java_jars.resolved(JAVA_VERSION), {"PYTHONPATH": package}) as doors:
        yield doors


@pytest.fixture
def node_doors(java, tmp_path):
    """Doors with aws-kcl for programs in Node."""
    java(JAVA_VERSION)
    try:
        package = npm_emulators.installed(here=NPM)
    except npm_emulators.Unavailable as reason:
        pytest.skip(f"Java and a program in Node SKIPPED: {reason}")
    with Doors(tmp_path, java_jars.resolved(JAVA_VERSION), {"NODE_PATH": package}) as doors:
        yield doors


# -- programs that behave ----------------------------------------------------------------------------------------


def told(number, *do):
    """The payload of a record for obeying.py."""
    return json.dumps({"n": number, **({"do": do} if do else {})}).encode()


def aggregated(doors, stream, shard, *payloads):
    """One Kinesis record that holds these, all of this shard."""
    hash_key = doors.first_key(stream, shard)
    (blob,) = aggregate((f"inner-{n % 2}", str(hash_key), payload) for n, payload in enumerate(payloads))
    return Entry(blob.data, blob.partition_key, hash_key)


def of_all_kinds(doors, stream, shard, about):
    """Plain and aggregated ones, text and bytes that are none, keys beyond ASCII, small and large."""
    hash_key = doors.first_key(stream, shard)
    return [
        f"{about} plain".encode(),
        Entry(bytes(range(256)), "schlüssel \u2028 鍵", hash_key),
        aggregated(doors, stream, shard, f"{about} a0".encode(), b"\xff\x00", f"{about} a2".encode()),
        Entry(b"x" * 50_000, 'quote " and \\', hash_key),
        *(f"{about} {number}".encode() for number in range(5)),
        aggregated(doors, stream, shard, f"{about} b0".encode(), f"{about} b1".encode()),
    ]


def through_a_split(doors, program, names, records):
    """Run the program at each of these doors: records, a split, records for each child and for the other shard, a stop.

    records: of (doors, stream, shard, name), what is put. The doors, ended, by name.
    """
    stream = "orders"
    doors.create(stream, 2)
    for shard in (FIRST, OTHER):
        doors.put(stream, shard, *records(doors, stream, shard, f"{shard[-1]} before"))
    opened = [doors.open(name, program, stream) for name in names]
    wanted = doors.user_records(stream)
    doors.wait("first records", opened, lambda door: len(door.worked_on()) >= wanted)
    children = doors.split(stream, FIRST)
    for shard in (OTHER, *children):
        doors.put(stream, shard, *records(doors, stream, shard, f"{shard[-1]} after"))
    wanted = doors.user_records(stream)
    doors.wait("records after the split", opened, lambda door: len(door.worked_on()) >= wanted)
    doors.wait("end of the last batch", opened, lambda door: door.shards("batch") >= {OTHER, *children})
    doors.wait("end of the parent", opened, lambda door: door.rows()[FIRST] == SHARD_END)
    doors.stop(opened)
    return {door.name: door for door in opened}


@pytest.mark.parametrize("program", ["version_1.py", "version_2.py", "version_3.py"])
def test_a_program_of_amazon_kclpy_gets_the_same_records_and_checkpoints_at_every_door(doors, program):
    ran = through_a_split(doors, program, DOORS, of_all_kinds)
    assert differences(ran, doors.user_records("orders")) == []
    assert "amazon_kclpy" in package_of(ran[JAVA])
    assert package_of(ran[MULTILANGD]) == package_of(ran[JAVA])
    assert "pykcl" in package_of(ran[IN_PROCESS]), "though the real one can be imported"
    for door in ran.values():
        assert door.shards("requested") == door.shards("initialize") - {FIRST}


def test_a_program_in_node_gets_the_same_records_and_checkpoints_as_under_java(node_doors):
    ran = through_a_split(node_doors, "node_processor.js", (JAVA, MULTILANGD), of_all_kinds)
    assert differences(ran, node_doors.user_records("orders")) == []


def package_of(door):
    (found,) = {note["file"] for note in door.notes("package")}
    return found


FORMS = [
    (), ("mine",), ("mine", "sub"), ("mine", "sub", {}), ("mine", {}), (None, 1), (None, None), ("mine", None),
    ("as a number",), ("as a number", "sub"), ("mine", "0"), ("mine", "1"), ("mine", ""), ("mine", 1.0),
    ("mine", -1), ("mine", 1_000_000), ("first",), ("first", 0), ("",), ("garbage",), ("12",), ("9" * 56,), ("0",), ("-1",),
    ("TRIM_HORIZON",), ("LATEST",), ("AT_TIMESTAMP",), ("SHARD_END",), (" ",), ("mine", 2**40), (),
]  # fmt: skip
"""Of obeying.py: the arguments that a program may give to checkpoint(). What is no number for a sub-sequence number is
missing: neither daemon takes such a line for a message, and the program waits for its answer for ever."""


def with_every_form(doors, stream, shard, about):
    forms = [told(number, "checkpoint", *form) for number, form in enumerate(FORMS)]
    return [
        *forms,
        aggregated(
            doors, stream, shard, *(told(100 + n, "checkpoint", *form) for n, form in enumerate(FORMS))
        ),
        told(200),
    ]


def test_a_program_that_checkpoints_with_every_argument_form_is_answered_as_by_java(doors):
    ran = through_a_split(doors, "obeying.py", DOORS, with_every_form)
    assert differences(ran, doors.user_records("orders")) == []
    errors = {error for answers in ran[JAVA].answers().values() for _, error in answers}
    assert None in errors
    assert len(errors) > 1, "some are refused"


HARMLESS = [
    ("print", "plain words"), ("print", '{"action":"sta'), ("print", '["a", "list"]'), ("print", '{"action":"nonsense"}'),
    ("print", '{"action":"status","responseFor":"processRecords","and":"more"}'), ("print", "x" * 200_000), ("print", ""),
    ("print", "{}"), ("print", "17"),
    ("bytes", base64.b64encode(b"\xff\xfe\x00 no text\n").decode()), ("bytes", base64.b64encode(b"no end of line").decode()),
    ("bytes", base64.b64encode(b'{"action": "status"').decode()),
]  # fmt: skip


def printing(doors, stream, shard, about):
    return [*(told(number, *words) for number, words in enumerate(HARMLESS)), told(100, "checkpoint")]


def test_a_program_that_prints_what_is_no_protocol_gets_the_same_at_every_door(doors):
    ran = through_a_split(doors, "obeying.py", DOORS, printing)
    assert differences(ran, doors.user_records("orders")) == []
    assert f"pykcl.child.{OTHER}" in ran[MULTILANGD].log()
    assert "plain words" in ran[MULTILANGD].log()


# -- programs that raise, print protocol, exit, or are written as the README says -----------------------------------


SKIPS = Outcome(lost=frozenset({3, 4}))
STAYS = Outcome()

EXPECTED = {
    # The real package takes a raised exception for done, so nothing on the wire tells a daemon of it.
    "raise": {
        JAVA: SKIPS,
        MULTILANGD: SKIPS,
        IN_PROCESS: Outcome(again=frozenset({2})),
        SKIPPING: SKIPS,
    },
    # A printed status for another action than the one under way: Java takes it for a broken child and ends.
    "print another answer": {
        JAVA: Outcome(exit=1, exits_at="deed", waits=frozenset({2, 3, 4, 5, 6, 7, 11})),
        MULTILANGD: STAYS,
        IN_PROCESS: STAYS,
    },
    # For Java a line that says null is a message, and there is none in it.
    "print null": {
        JAVA: Outcome(exit=1, exits_at="deed", waits=frozenset({2, 3, 4, 5, 6, 7, 11})),
        MULTILANGD: STAYS,
        IN_PROCESS: STAYS,
    },
    # A printed status identical to the one that is due: both daemons believe it, and the child's checkpoint comes late.
    # Java answers it after the next batch, which the child takes for the answer: the batch is checkpointed unseen.
    "print the answer": {
        JAVA: Outcome(lost=frozenset({5}), exit=1, exits_at="split", waits=frozenset({6, 7})),
        MULTILANGD: STAYS,
        IN_PROCESS: STAYS,
    },
    "exit": {
        JAVA: Outcome(exit=1, exits_at="deed", waits=frozenset({2, 3, 4, 5, 6, 7, 11})),
        MULTILANGD: Outcome(again=frozenset({2})),
        IN_PROCESS: Outcome(exit=3, exits_at="deed", waits=frozenset({2, 3, 4, 5, 6, 7, 11})),
    },
}  # fmt: skip
"""Written down before it is looked at."""

DEEDS = {
    "raise": ("raise",),
    "print another answer": ("print", '{"action":"status","responseFor":"initialize"}'),
    "print null": ("print", "null"),
    "print the answer": ("print", '{"action":"status","responseFor":"processRecords"}'),
    "exit": ("exit", 3),
}
"""What record 3 has the program do, in the middle of a batch."""


@pytest.mark.parametrize("deed", EXPECTED)
def test_a_program_that_misbehaves_meets_what_was_expected_of_each_door(doors, deed):
    expected = EXPECTED[deed]
    places, ran = misbehaving(doors, deed, expected)
    for name, door in ran.items():
        assert (name, outcome_of(door, places, expected[name])) == (name, expected[name])
    log = ran[MULTILANGD].log()
    if deed == "raise":
        assert f"pykcl.child.{FIRST}.stderr" in log
        assert "ValueError: asked to" in log
    elif deed == "print another answer":
        assert "a status line of the child matches no pending request and is ignored" in log
    elif deed == "exit":
        assert f"child failed shard={FIRST}" in log
        again = doors.open(IN_PROCESS, "obeying.py", "orders", again=True)
        doors.wait("the rest, in process", [again], lambda door: numbers(door).keys() == places.keys())
        doors.stop([again])
        assert again.exit == 0


def misbehaving(doors, deed, expected):
    """Run obeying.py at these doors. Where each number was put (shard, sequence number), and the doors, ended."""
    stream, places = "orders", {}

    def put(shard, *told_ones):
        put_ones = doors.put(stream, shard, *told_ones)
        for one, payload in zip(put_ones, told_ones, strict=True):
            places[json.loads(payload)["n"]] = (shard, int(one.sequence_number))

    doors.create(stream, 2)
    put(FIRST, told(0), told(1, "checkpoint"))
    put(OTHER, told(10, "checkpoint"))
    opened = [doors.open(name, "obeying.py", stream) for name in expected]
    doors.wait("the first batches", opened, lambda door: door.shards("batch") == {FIRST, OTHER})

    put(FIRST, told(2), told(3, *DEEDS[deed]), told(4, "checkpoint"))
    doors.wait("the deed", opened, lambda door: has_done(door, deed))
    doors.wait("those to exit at it", exiting(opened, expected, "deed"), lambda door: door.exit is not None)
    put(FIRST, told(5))
    put(OTHER, told(11, "checkpoint"))
    staying = [door for door in opened if expected[door.name].exits_at != "deed"]
    doors.wait("the other shard's", staying, lambda door: 11 in numbers(door))
    doors.wait(
        "what follows", staying, lambda door: 5 in numbers(door) or door.rows()[FIRST] >= (places[5][1], 0)
    )
    for number, child in enumerate(doors.split(stream, FIRST), 6):
        put(child, told(number, "checkpoint"))
    doors.wait(
        "those to exit at the split", exiting(opened, expected, "split"), lambda door: door.exit is not None
    )
    staying = [door for door in opened if expected[door.name].exit is None]
    doors.wait("the children's", staying, lambda door: {6, 7} <= numbers(door).keys())
    by_itself = {door: door.exit for door in opened}
    doors.stop(staying)
    assert [door.exit for door in staying if door.name != JAVA] == [0] * sum(
        door.name != JAVA for door in staying
    )
    for door, code in by_itself.items():
        door.exited_by_itself = code
    return places, {door.name: door for door in opened}


def exiting(opened, expected, at):
    return [door for door in opened if expected[door.name].exits_at == at]


def has_done(door, deed):
    """Whether record 3 has had its way there."""
    if deed in ("raise", "exit"):
        return (door.folder / f"notes.{deed.rstrip('e')}ed").exists()
    return 3 in numbers(door)


def test_a_class_as_the_readme_shows_it_works_in_process_only_as_the_real_package_cannot_call_it(doors):
    """Under both daemons the real package hands its methods the arguments of version 1: each call fails, is taken for done,
    and no shard ever ends. The stand-in sees what the methods are."""
    stream = "orders"
    doors.create(stream, 2)
    doors.put(stream, FIRST, b"before the split")
    opened = [doors.open(name, "readme_style.py", stream) for name in DOORS]
    by_daemons = [door for door in opened if door.name != IN_PROCESS]
    doors.wait("a batch to fail", by_daemons, lambda door: "TypeError" in door.log())
    children = doors.split(stream, FIRST)
    for child in children:
        doors.put(stream, child, b"after the split")
    in_process = opened[-1]
    doors.wait("all records in process", [in_process], lambda door: len(door.worked_on()) == 3)
    doors.wait("the end of the shard to fail", by_daemons, lambda door: "NotImplementedError" in door.log())
    doors.stop(opened)
    assert in_process.rows()[FIRST] == SHARD_END
    assert in_process.exit == 0
    for door in by_daemons:
        assert door.worked_on() == []
        assert door.shards("initialize") == {FIRST, OTHER}
        assert door.rows()[FIRST] != SHARD_END
