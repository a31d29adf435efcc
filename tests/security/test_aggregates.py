"""An aggregate is whatever a stranger put: opened, delivered as it came, or reported. Nothing of a page vanishes."""

from __future__ import annotations

import hashlib
import tracemalloc
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykcl.model import kpl
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.kpl import (
    MAGIC,
    OUTSIDE_SHARD,
    aggregate,
    deaggregate,
    deaggregate_batch,
    has_more_parts,
    schema,
)
from pykcl.model.record import Record
from pykcl.model.shard import HashRange

CORPUS = sorted((Path(__file__).parent / "corpus" / "aggregates").iterdir())
HALF = HashRange(0, 2**127 - 1)
MIB = 1024 * 1024


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def chunk(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def sealed(body: bytes) -> bytes:
    return MAGIC + body + hashlib.md5(body).digest()


def sub_record(index: int, data: bytes, explicit: int | None = None) -> bytes:
    hashed = b"" if explicit is None else varint(2 << 3) + varint(explicit)
    return chunk(3, varint(1 << 3) + varint(index) + hashed + chunk(3, data))


def kinesis_record(data: bytes, number: int = 100) -> Record:
    return Record(data, "outer", str(number), 1.0, "shardId-0", "orders")


(VALID,) = [blob.data for blob in aggregate([("a", None, b"one"), ("b", "12", b"two"), ("a", "7", b"")])]
indexes = st.sampled_from(
    [0, 1, 2, 127, 128, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**70 - 1]
)
pieces = st.one_of(
    st.builds(chunk, st.integers(1, 4), st.binary(max_size=8)),
    st.builds(lambda field, value: varint(field << 3) + varint(value), st.integers(0, 20), indexes),
    st.builds(sub_record, indexes, st.binary(max_size=4), st.none() | indexes),
    # A length that goes beyond the end, a group that is never closed, a key that is no key.
    st.builds(lambda field, length: varint(field << 3 | 2) + varint(length), st.integers(1, 4), indexes),
    st.integers(1, 500).map(lambda depth: b"\x0b" * depth),
    st.integers(1, 120).map(lambda depth: b"\x0b" * depth + b"\x0c" * depth),
    st.binary(max_size=12),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good aggregate with some bytes changed, removed or put in; its MD5 made right again, or not."""
    body = bytearray(VALID[4:-16])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(body) - 1)))
        change = draw(st.sampled_from(["flip", "insert", "remove"]))
        if change == "flip" and body:
            body[at] ^= draw(st.integers(1, 255))
        elif change == "insert":
            body[at:at] = draw(st.binary(min_size=1, max_size=4))
        else:
            del body[at : at + draw(st.integers(1, 4))]
    return sealed(bytes(body)) if draw(st.booleans()) else MAGIC + bytes(body) + VALID[-16:]


hostile_data = st.one_of(
    st.binary(max_size=60),
    st.binary(max_size=60).map(lambda rest: MAGIC + rest),
    st.lists(pieces, min_size=1, max_size=8).map(lambda parts: sealed(b"".join(parts))),
    damaged(),
    st.just(VALID),
    # An aggregate inside an aggregate is a payload like any other.
    st.just(sealed(chunk(1, b"k") + sub_record(0, VALID))),
)


def judge(data: list[bytes], hash_range: HashRange | None, after: Checkpoint | None = None) -> list[Record]:
    """Open a page as the worker does, and account for every Kinesis record in it."""
    page = [kinesis_record(one, 100 + number) for number, one in enumerate(data)]
    problems: dict[str, str] = {}

    def refused(record: Record, problem: str) -> None:
        assert record.sequence_number not in problems, "told twice"
        assert problem.isprintable()
        problems[record.sequence_number] = problem

    found = list(deaggregate_batch(page, hash_range, after=after, on_refused=refused))
    of: dict[str, list[Record]] = {record.sequence_number: [] for record in page}
    for record in found:
        of[record.sequence_number].append(record)
    positions = [record.position for record in found]
    assert positions == sorted(positions)
    for record in page:
        assert_accounted(record, of[record.sequence_number], problems.get(record.sequence_number), after)
    return found


def assert_accounted(
    record: Record, got: list[Record], problem: str | None, after: Checkpoint | None
) -> None:
    passed_over = after is not None and Checkpoint(record.sequence_number, 2**63 - 1) <= after
    if passed_over or problem == OUTSIDE_SHARD:
        assert got == []
    elif problem is not None:
        assert got == [record]
        assert not got[0].aggregated
    elif not record.data.startswith(MAGIC):
        assert got == [record]
    else:
        # Sound, by the format: whatever is in it comes out, and no more than is in it.
        assert all(one.aggregated for one in got)
        assert [one.sub_sequence_number for one in got] == list(range(len(got)))
        assert sum(len(one.data) for one in got) <= len(record.data)


@settings(max_examples=400)
@given(
    data=st.lists(hostile_data, min_size=1, max_size=4),
    hash_range=st.sampled_from([None, HALF, HashRange(0, 2**128 - 1), HashRange(5, 5)]),
    after=st.none() | st.integers(98, 104).map(lambda number: Checkpoint(str(number), 2**63 - 1)),
)
def test_every_record_of_a_page_is_delivered_opened_or_reported(data, hash_range, after):
    judge(data, hash_range, after)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_is_known_to_be_nasty_stays_harmless(path):
    """The file's name begins with what becomes of it: opened, plain or outside."""
    data = path.read_bytes()
    found = judge([data], HALF)
    fate = "outside" if not found else "opened" if found[0].aggregated else "plain"
    assert path.stem.split("-")[0] == fate


# -- memory and time -------------------------------------------------------------------------------------------


def amplified() -> bytes:
    """One MiB of the smallest sub-records there are."""
    count = (MIB - 20 - 3) // 6
    data = sealed(chunk(1, b"k") + sub_record(0, b"") * count)
    assert MIB - 6 < len(data) <= MIB
    return data


COUNT = 174_758
RECORD_SIZE = 136
"""A Record with its sub-sequence number is at least so large, so all of them at once are more than 22 MiB."""


def peak_of(data: bytes, take: int | None, hash_range: HashRange | None = HALF) -> tuple[int, int]:
    """(sub-records handed out, most bytes that were allocated meanwhile). Nobody keeps them."""
    record = kinesis_record(data)
    deaggregate(kinesis_record(VALID), None)  # protobuf is imported
    tracemalloc.start()
    try:
        count = sum(1 for _ in islice(deaggregate(record, hash_range), take))
        return count, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("take", "handed_out"), [(10, 10), (None, COUNT)])
def test_a_mebibyte_of_174758_sub_records_stays_lazy(take, handed_out):
    """The message itself lives in protobuf's arena; what Python holds are two columns of references."""
    key = next(key for key in map(str, range(99)) if int(hashlib.md5(key.encode()).hexdigest(), 16) < 2**127)
    count = COUNT - 1
    data = sealed(chunk(1, key.encode()) + sub_record(0, b"") * count + sub_record(0, b""))
    assert MIB - 20 < len(data) <= MIB + 20
    found, peak = peak_of(data, take)
    assert found == handed_out
    assert peak < 8 * MIB < COUNT * RECORD_SIZE // 2


def test_holding_them_all_would_be_seen_by_this_measure():
    record = kinesis_record(amplified())
    tracemalloc.start()
    try:
        held = list(deaggregate(record, None))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(held) >= COUNT - 1
    assert peak > COUNT * RECORD_SIZE


def test_a_page_of_them_costs_what_one_of_them_costs():
    """Ten are opened one after the other: the columns of one at a time are held."""
    data = amplified()
    page = [kinesis_record(data, 100 + number) for number in range(4)]
    tracemalloc.start()
    try:
        count = sum(1 for _ in deaggregate_batch(page, None))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 4 * ((MIB - 23) // 6)
    assert peak < 12 * MIB


def test_a_long_key_shared_by_all_is_hashed_once_and_never_copied(monkeypatch):
    """Half a mebibyte of key, 80,000 sub-records that use it: 40 GiB if each had its own."""
    hashed: list[int] = []
    real = kpl.md5

    def counting(data: bytes, **options: bool):
        hashed.append(len(data))
        return real(data, **options)

    key = b"k" * (MIB // 2)
    data = sealed(chunk(1, key) + sub_record(0, b"") * 80_000)
    monkeypatch.setattr(kpl, "md5", counting)
    found, peak = peak_of(data, None, HashRange(0, 2**128 - 2))
    assert found == 80_000
    assert peak < 8 * MIB
    assert sum(hashed) < 2 * MIB  # the body's checksum, the key, and the small one that warms up


def bytes_touched(monkeypatch: pytest.MonkeyPatch, sub_records: int) -> int:
    """How many keys are hashed and numbers read for so many sub-records with keys of their own."""
    steps = 0

    def counted(function):
        def call(*arguments, **options):
            nonlocal steps
            steps += 1
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(kpl, "md5", counted(kpl.md5))
        patch.setattr(kpl, "_number", counted(kpl._number))
        body = b"".join(chunk(1, b"%d" % number) + chunk(2, b"%d" % number) for number in range(sub_records))
        body += b"".join(
            sub_record(number, b"x", number if number % 2 else None) for number in range(sub_records)
        )
        assert len(list(deaggregate(kinesis_record(sealed(body)), HashRange(0, 2**128 - 2)))) == sub_records
    return steps


def test_twice_as_many_sub_records_cost_twice_the_work(monkeypatch):
    small, large = bytes_touched(monkeypatch, 2_000), bytes_touched(monkeypatch, 4_000)
    assert large <= 2 * small


FLOODS = {
    "sub-records": chunk(3, b"") * 2_000,
    "keys": chunk(1, b"") * 2_000,
    "explicit hash keys": chunk(2, b"") * 2_000,
    "tags": sub_record(0, b"x") * 10 + chunk(3, chunk(3, b"\x22\x00" * 50) + chunk(4, b"") * 2_000),
    "tags of many": chunk(3, chunk(4, b"") * 10) * 200,
    "sub-records behind a group": b"\x33\x08\x01\x34" + chunk(3, b"") * 2_000,
    "overlong": b"\x9a\x80\x00\x80\x00" * 2_000,
}


@pytest.mark.parametrize("body", FLOODS.values(), ids=FLOODS)
def test_an_aggregate_of_too_many_parts_is_refused_before_they_are_made(monkeypatch, body):
    def not_parsed():
        pytest.fail("it is parsed")

    monkeypatch.setattr(kpl, "schema", not_parsed)
    told = []
    record = kinesis_record(sealed(body))
    assert list(deaggregate(record, None, max_sub_records=1_000, on_refused=told.append)) == [record]
    assert told == ["more than 1000 sub-records, keys or tags"]


@pytest.mark.parametrize("name", FLOODS)
def test_what_is_counted_is_what_protobuf_makes(name):
    wire = schema()
    message = wire.aggregated_record.FromString(FLOODS[name])
    tags = sum(len(one.tags) for one in message.records)
    most = max(
        len(message.records), len(message.partition_key_table), len(message.explicit_hash_key_table), tags
    )
    assert most == 2_000
    assert has_more_parts(FLOODS[name], most - 1)
    assert not has_more_parts(FLOODS[name], most)


in_groups = st.binary(max_size=8).map(lambda content: b"\x33" + chunk(3, content) + b"\x34")


@given(st.lists(pieces | in_groups, max_size=12).map(b"".join))
def test_nothing_that_protobuf_makes_is_missed_by_the_count(body):
    wire = schema()
    try:
        message = wire.aggregated_record.FromString(body)
    except (wire.decode_error, ValueError, RecursionError):
        return
    tags = sum(len(one.tags) for one in message.records)
    for made in (
        len(message.records),
        len(message.partition_key_table),
        len(message.explicit_hash_key_table),
        tags,
    ):
        assert made == 0 or has_more_parts(body, made - 1)
