"""Opening aggregated records: what is delivered, what is refused, what is dropped, and at what cost."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykcl.model import kpl
from pykcl.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from pykcl.model.kpl import (
    MAGIC,
    OUTSIDE_SHARD,
    AggregatedBlob,
    Aggregator,
    UserRecord,
    aggregate,
    deaggregate,
    deaggregate_batch,
)
from pykcl.model.record import Record
from pykcl.model.shard import HashRange

EVERYTHING = HashRange(0, 2**128 - 1)
LAST = 2**128 - 1


def hash_of(partition_key: str) -> int:
    return int(hashlib.md5(partition_key.encode()).hexdigest(), 16)


def only(*hash_keys: int) -> HashRange:
    """The smallest range that holds these hash keys."""
    return HashRange(min(hash_keys), max(hash_keys))


def kinesis_record(data: bytes, sequence_number: str = "49001") -> Record:
    return Record(data, "outer key", sequence_number, 1_700_000_000_123.0, "shardId-000000000007", "orders")


def packed(*user_records: tuple[str, str | None, bytes]) -> bytes:
    (blob,) = aggregate(user_records)
    return blob.data


def sealed(body: bytes) -> bytes:
    return MAGIC + body + hashlib.md5(body).digest()


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def chunk(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def sub_record(partition_key_index: int, data: bytes, explicit_hash_key_index: int | None = None) -> bytes:
    explicit = b"" if explicit_hash_key_index is None else number(2, explicit_hash_key_index)
    return chunk(3, number(1, partition_key_index) + explicit + chunk(3, data))


def opened(
    data: bytes, hash_range: HashRange | None = None, max_sub_records: int = 1_000_000
) -> tuple[list[Record], list[str]]:
    problems: list[str] = []
    found = deaggregate(
        kinesis_record(data), hash_range, max_sub_records=max_sub_records, on_refused=problems.append
    )
    return list(found), problems


def assert_plain(data: bytes, problem: str, **options: object) -> None:
    """Delivered once, as the very record that came, and reported once."""
    record = kinesis_record(data)
    problems: list[str] = []
    found = list(deaggregate(record, options.pop("hash_range", None), on_refused=problems.append, **options))
    assert len(found) == 1
    assert found[0] is record
    assert not found[0].aggregated
    assert len(problems) == 1
    assert problem in problems[0]


# What is delivered


def test_a_plain_record_yields_itself() -> None:
    record = kinesis_record(b"plain")
    problems: list[str] = []
    (found,) = deaggregate(record, only(5), on_refused=problems.append)
    assert found is record
    assert problems == []


def test_sub_records_carry_their_own_keys_and_the_outer_position() -> None:
    found, problems = opened(packed(("a", None, b"one"), ("b", "12", b""), ("a", "12", b"three")))
    assert problems == []
    outer = {
        "sequence_number": "49001",
        "arrived_at_millis": 1_700_000_000_123.0,
        "shard_id": "shardId-000000000007",
        "stream": "orders",
        "aggregated": True,
    }
    assert found == [
        Record(b"one", "a", sub_sequence_number=0, explicit_hash_key=None, **outer),
        Record(b"", "b", sub_sequence_number=1, explicit_hash_key="12", **outer),
        Record(b"three", "a", sub_sequence_number=2, explicit_hash_key="12", **outer),
    ]


def test_tags_are_read_over() -> None:
    tag = chunk(4, chunk(1, b"colour") + chunk(2, b"red"))
    tagged = chunk(3, number(1, 0) + chunk(3, b"data") + tag)
    found, problems = opened(sealed(chunk(1, b"k") + tagged))
    assert [(record.partition_key, record.data) for record in found] == [("k", b"data")]
    assert problems == []


def test_fields_of_a_later_format_are_read_over() -> None:
    body = chunk(1, b"k") + chunk(3, number(1, 0) + chunk(3, b"data") + chunk(9, b"new")) + number(8, 5)
    found, problems = opened(sealed(body))
    assert [record.data for record in found] == [b"data"]
    assert problems == []


def test_an_aggregate_without_sub_records_holds_nothing_to_deliver() -> None:
    assert opened(sealed(chunk(1, b"k"))) == ([], [])


def test_nothing_needs_to_listen_for_refusals() -> None:
    record = kinesis_record(MAGIC + b"x" * 40)
    assert list(deaggregate(record, None)) == [record]
    assert list(deaggregate_batch([record], None)) == [record]


# What is refused


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (MAGIC, "too short"),
        (MAGIC + b"x" * 16, "too short"),
        (MAGIC + b"x" * 17, "MD5"),
        (packed(("k", None, b"x"))[:-1], "MD5"),
        (packed(("k", None, b"x")) + b"\0", "MD5"),
        (sealed(b"\xff\xff\xff"), "protobuf"),
        (sealed(chunk(1, b"k") + sub_record(0, b"x")[:-1]), "protobuf"),
        (sealed(chunk(1, b"k") + b"\x1a\xff\xff\xff\xff\x07"), "protobuf"),
        (sealed(chunk(1, b"k") + sub_record(1, b"x")), "index"),
        (sealed(sub_record(0, b"x")), "index"),
        (sealed(chunk(1, b"k") + sub_record(2**32, b"x")), "index"),
        (sealed(chunk(1, b"k") + sub_record(2**63, b"x")), "index"),
        (sealed(chunk(1, b"k") + sub_record(2**64 - 1, b"x")), "index"),
        (sealed(chunk(1, b"k") + sub_record(0, b"x", explicit_hash_key_index=0)), "index"),
        (sealed(chunk(1, b"k") + chunk(2, b"5") + sub_record(0, b"x", explicit_hash_key_index=1)), "index"),
        (
            sealed(chunk(1, b"k") + chunk(2, b"5") + sub_record(0, b"x", explicit_hash_key_index=2**63)),
            "index",
        ),
        (
            sealed(chunk(1, b"k") + chunk(2, b"5") + sub_record(0, b"x", explicit_hash_key_index=2**64 - 2)),
            "index",
        ),
        (sealed(chunk(1, b"k") + sub_record(0, b"good") + sub_record(9, b"bad")), "index"),
        (sealed(chunk(1, b"k") + chunk(3, chunk(3, b"no index"))), "index"),
        (sealed(chunk(1, b"k") + chunk(3, number(1, 0))), "required"),
        (sealed(chunk(1, b"k") + sub_record(0, b"good") + chunk(3, number(1, 0))), "required"),
        (sealed(chunk(1, b"\xff\xfe") + sub_record(0, b"x")), "UTF-8"),
        (sealed(chunk(1, b"\xed\xa0\x80") + sub_record(0, b"x")), "UTF-8"),
        (sealed(chunk(1, b"k") + chunk(2, b"\xc3") + sub_record(0, b"x")), "UTF-8"),
    ],
)
def test_a_damaged_aggregate_is_delivered_as_it_came(data: bytes, problem: str) -> None:
    assert_plain(data, problem)
    assert_plain(data, problem, hash_range=EVERYTHING)


def test_an_explicit_hash_key_that_is_no_number_is_damage_even_behind_one_that_lies_outside() -> None:
    body = (
        chunk(1, b"k") + chunk(2, b"7") + chunk(2, b"seven") + sub_record(0, b"x", 0) + sub_record(0, b"y", 1)
    )
    assert_plain(sealed(body), "not a number", hash_range=only(100))


def test_one_sub_record_more_than_allowed_is_refused() -> None:
    data = packed(*[("k", None, b"x")] * 5)
    assert len(opened(data, max_sub_records=5)[0]) == 5
    assert_plain(data, "more than 4", max_sub_records=4)


@given(
    bits=st.sets(st.integers(0, 8 * 60 - 1), min_size=1, max_size=4),
)
def test_flipped_bits_never_pass(bits: set[int]) -> None:
    data = bytearray(packed(("key one", None, b"payload one"), ("key two", "5", b"payload two")))
    for bit in bits:
        place = bit * len(data) // (8 * 60)
        data[place] ^= 1 << bit % 8
    found, problems = opened(bytes(data))
    assert [record.data for record in found] in ([bytes(data)], [b"payload one", b"payload two"])
    assert (problems == []) == (not bytes(data).startswith(MAGIC) or len(found) == 2)


@given(st.integers(0, 200))
def test_truncated_anywhere_it_is_delivered_as_it_came(length: int) -> None:
    data = packed(("key one", None, b"payload one" * 5), ("key two", "5", b"payload two" * 5))[:-1][:length]
    assert [record.data for record in opened(data)[0]] == [data]


@settings(max_examples=400)
@given(
    body=st.binary(min_size=1, max_size=80)
    | st.lists(
        st.one_of(
            st.builds(chunk, st.integers(1, 4), st.binary(max_size=8)),
            st.builds(number, st.integers(1, 4), st.integers(0, 2**64 - 1)),
            st.builds(sub_record, st.integers(0, 3), st.binary(max_size=4), st.none() | st.integers(0, 3)),
        ),
        max_size=8,
    ).map(b"".join),
    hash_range=st.sampled_from([None, EVERYTHING, HashRange(0, 2**127)]),
)
def test_a_well_sealed_body_of_any_content_ends_in_one_of_three_ways(
    body: bytes, hash_range: HashRange | None
) -> None:
    data = sealed(body)
    found, problems = opened(data, hash_range)
    if problems == []:
        assert all(record.aggregated for record in found)
        assert [record.sub_sequence_number for record in found] == list(range(len(found)))
    elif problems == [OUTSIDE_SHARD]:
        assert found == []
    else:
        assert len(problems) == 1
        assert found == [kinesis_record(data)]


def test_no_problem_text_quotes_keys_or_payload() -> None:
    body = chunk(1, b"secret") + chunk(2, b"secret") + sub_record(0, b"secret", 0)
    for data in (sealed(body), sealed(body + b"\xff"), MAGIC + body + b"x" * 16):
        _, (problem,) = opened(data, only(1))
        assert "secret" not in problem
    assert "secret" not in repr(AggregatedBlob("secret", None, b"secret"))
    assert "secret" not in repr(UserRecord("secret", None, b"secret"))


# The hash-range rule (Java KCL: AggregatorUtil)


@pytest.mark.parametrize("outside", [0, 1, 2])
def test_one_sub_record_of_another_shard_drops_the_whole_aggregate(outside: int) -> None:
    inside = only(hash_of("a"), hash_of("b"))
    user_records: list[tuple[str, str | None, bytes]] = [
        ("a", None, b"1"),
        ("b", None, b"2"),
        ("a", None, b"3"),
    ]
    assert len(opened(packed(*user_records), inside)[0]) == 3
    user_records[outside] = ("a", str(inside.last + 1), b"x")
    assert opened(packed(*user_records), inside) == ([], [OUTSIDE_SHARD])


def test_the_range_is_closed_at_both_ends() -> None:
    data = packed(("k", None, b"x"))
    here = hash_of("k")
    assert opened(data, HashRange(here, here))[1] == []
    assert opened(data, HashRange(here + 1, LAST))[1] == [OUTSIDE_SHARD]
    assert opened(data, HashRange(0, here - 1))[1] == [OUTSIDE_SHARD]


def test_an_explicit_hash_key_outweighs_the_partition_key() -> None:
    far = only(hash_of("k") + 1)
    assert opened(packed(("k", str(hash_of("k") + 1), b"x")), far)[1] == []
    assert opened(packed(("k", str(hash_of("k")), b"x")), far)[1] == [OUTSIDE_SHARD]


def test_a_partition_key_counts_only_for_sub_records_without_an_explicit_hash_key() -> None:
    inside = only(hash_of("near"))
    data = packed(("near", None, b"1"), ("far", str(inside.first), b"2"))
    assert len(opened(data, inside)[0]) == 2
    data = packed(("near", None, b"1"), ("far", str(inside.first), b"2"), ("far", None, b"3"))
    assert opened(data, inside) == ([], [OUTSIDE_SHARD])


def test_table_entries_that_no_sub_record_uses_do_not_count() -> None:
    inside = only(hash_of("near"))
    body = chunk(1, b"far") + chunk(1, b"near") + chunk(2, b"0") + sub_record(1, b"x")
    assert len(opened(sealed(body), inside)[0]) == 1
    body = chunk(1, b"far") + chunk(1, b"near") + sub_record(1, b"x")
    assert len(opened(sealed(body), inside)[0]) == 1


@pytest.mark.parametrize(
    ("explicit_hash_key", "reads_as"),
    [("5", 5), ("005", 5), ("+5", 5), ("0", 0), ("-0", 0), ("0" * 90 + "5", 5), (str(LAST), LAST)],
)
def test_explicit_hash_keys_are_read_as_java_reads_them(explicit_hash_key: str, reads_as: int) -> None:
    data = sealed(chunk(1, b"k") + chunk(2, explicit_hash_key.encode()) + sub_record(0, b"x", 0))
    assert opened(data, only(reads_as))[1] == []
    assert opened(data, only((reads_as + 1) % 2**128))[1] == [OUTSIDE_SHARD]


@pytest.mark.parametrize("explicit_hash_key", ["-1", str(2**128), "9" * 100_000, "-" + "9" * 100_000])
def test_a_number_beyond_all_hash_keys_lies_outside_every_shard(explicit_hash_key: str) -> None:
    data = sealed(chunk(1, b"k") + chunk(2, explicit_hash_key.encode()) + sub_record(0, b"x", 0))
    assert opened(data, EVERYTHING) == ([], [OUTSIDE_SHARD])


def test_without_a_range_nothing_is_dropped() -> None:
    assert len(opened(packed(("a", "0", b"x"), ("b", str(LAST), b"y"), ("c", None, b"z")), None)[0]) == 3


@given(
    user_records=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c", "d"]),
            st.none() | st.integers(0, 9).map(lambda n: str(n << 124)),
            st.just(b"x"),
        ),
        min_size=1,
        max_size=12,
    ),
    first=st.integers(0, 15),
    width=st.integers(0, 15),
)
def test_it_is_delivered_exactly_when_every_effective_hash_key_lies_inside(
    user_records: list[tuple[str, str | None, bytes]], first: int, width: int
) -> None:
    start, end = first << 124, min(LAST, ((first + width + 1) << 124) - 1)
    effective = [int(explicit) if explicit is not None else hash_of(key) for key, explicit, _ in user_records]
    found, problems = opened(packed(*user_records), HashRange(start, end))
    if all(start <= hash_key <= end for hash_key in effective):
        assert (len(found), problems) == (len(user_records), [])
    else:
        assert (found, problems) == ([], [OUTSIDE_SHARD])


def test_a_key_is_hashed_once_however_many_sub_records_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def counted_md5(data: bytes, *, usedforsecurity: bool) -> object:
        assert not usedforsecurity
        hashed.append(bytes(data))
        return hashlib.md5(data, usedforsecurity=False)

    data = packed(*[("a", None, b"x"), ("b", None, b"y")] * 500)
    monkeypatch.setattr(kpl, "md5", counted_md5)
    assert len(opened(data, only(hash_of("a"), hash_of("b")))[0]) == 1_000
    assert sorted(hashed, key=len)[:-1] == [b"a", b"b"]


# A page of Kinesis records


def page() -> list[Record]:
    return [
        kinesis_record(b"plain 100", "100"),
        kinesis_record(packed(*[("k", None, bytes([n])) for n in range(6)]), "101"),
        kinesis_record(b"plain 1000", "1000"),
        kinesis_record(packed(("k", None, b"last 0"), ("k", None, b"last 1")), "1001"),
    ]


ALL = [("100", 0), *(("101", n) for n in range(6)), ("1000", 0), ("1001", 0), ("1001", 1)]


def places(records: Iterator[Record]) -> list[tuple[str, int]]:
    return [(record.sequence_number, record.sub_sequence_number) for record in records]


def test_a_page_comes_out_in_order() -> None:
    assert places(deaggregate_batch(page(), None)) == ALL


@pytest.mark.parametrize(
    ("after", "dropped"),
    [
        (None, 0),
        (Checkpoint(TRIM_HORIZON), 0),
        (Checkpoint("99"), 0),
        (Checkpoint("100"), 1),
        (Checkpoint("101", 0), 2),
        (Checkpoint("101", 3), 5),
        (Checkpoint("101", 5), 7),
        (Checkpoint("101", 2**63 - 1), 7),
        (Checkpoint("999", 1), 7),
        (Checkpoint("1001", 0), 9),
        (Checkpoint("1001", 1), 10),
        (Checkpoint(SHARD_END), 10),
    ],
)
def test_resuming_drops_what_is_at_or_below_the_checkpoint(after: Checkpoint | None, dropped: int) -> None:
    assert places(deaggregate_batch(page(), None, after=after)) == ALL[dropped:]


def test_once_beyond_the_checkpoint_nothing_is_compared_any_more() -> None:
    class Unreadable(str):
        def __int__(self) -> int:
            raise AssertionError("compared again")

    records = [kinesis_record(b"1", "5"), kinesis_record(b"2", "6"), kinesis_record(b"3", Unreadable("7"))]
    assert len(list(deaggregate_batch(records, None, after=Checkpoint("5")))) == 2


def test_refusals_of_a_page_name_their_record_and_stop_nothing() -> None:
    damaged = kinesis_record(MAGIC + b"damaged" * 9, "500")
    foreign = kinesis_record(packed(("k", "0", b"x")), "501")
    refused: list[tuple[Record, str]] = []
    found = deaggregate_batch(
        [damaged, foreign, kinesis_record(b"plain", "502")],
        only(hash_of("k")),
        on_refused=lambda record, problem: refused.append((record, problem)),
    )
    assert places(found) == [("500", 0), ("502", 0)]
    assert refused == [(damaged, "its MD5 does not match"), (foreign, OUTSIDE_SHARD)]


# Cost


def test_an_aggregate_is_opened_when_its_turn_comes() -> None:
    asked: list[str] = []

    def arriving() -> Iterator[Record]:
        for record in page():
            asked.append(record.sequence_number)
            yield record

    found = deaggregate_batch(arriving(), None)
    assert asked == []
    assert len(list(islice(found, 7))) == 7
    assert asked == ["100", "101"]


def _records_alive() -> int:
    return sum(type(thing) is Record for thing in gc.get_objects())


def test_an_amplifying_aggregate_makes_one_record_object_at_a_time() -> None:
    """One MiB of the smallest sub-records: as a list they would be 174,000 objects of a hundred bytes and more."""
    count = 174_000
    data = sealed(chunk(1, b"") + sub_record(0, b"") * count)
    assert len(data) < 1_048_576
    found = deaggregate(kinesis_record(data), EVERYTHING)
    seen = 0
    before = _records_alive()
    for seen, record in enumerate(found, start=1):
        assert record.sub_sequence_number == seen - 1
        if seen % 60_000 == 0:
            assert _records_alive() < before + 10
    assert seen == count


# Building


def test_the_blob_bears_the_keys_of_its_first_user_record() -> None:
    (blob,) = aggregate([UserRecord("first", "17", b"x"), UserRecord("second", None, b"y")])
    assert (blob.partition_key, blob.explicit_hash_key) == ("first", "17")


def test_nothing_aggregates_to_nothing() -> None:
    assert list(aggregate([])) == []
    assert Aggregator().flush() is None


def test_an_aggregator_starts_afresh_after_each_blob() -> None:
    aggregator = Aggregator()
    assert aggregator.add("a", "1", b"x") is None
    first = aggregator.flush()
    assert aggregator.add("b", None, b"y") is None
    second = aggregator.flush()
    assert aggregator.flush() is None
    assert first == AggregatedBlob("a", "1", packed(("a", "1", b"x")))
    assert second == AggregatedBlob("b", None, packed(("b", None, b"y")))


def test_numbers_and_lengths_of_any_size_are_written_as_protobuf_writes_them() -> None:
    sizes = [0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_151, 2_097_152]
    user_records = [(f"key-{at % 300}", str(at % 200) if at % 3 else None, b"") for at in range(1_000)]
    user_records += [("Schlüssel" * 20, str(2**128 - 1), bytes(size)) for size in sizes]
    message = kpl.schema().aggregated_record()
    for keys, table in ((0, message.partition_key_table), (1, message.explicit_hash_key_table)):
        found = dict.fromkeys(record[keys] for record in user_records)
        table.extend(key.encode() for key in found if key is not None)
    for key, hash_key, data in user_records:
        one = message.records.add(
            partition_key_index=list(message.partition_key_table).index(key.encode()), data=data
        )
        if hash_key is not None:
            one.explicit_hash_key_index = list(message.explicit_hash_key_table).index(hash_key.encode())
    assert kpl.packed(user_records).data == sealed(message.SerializeToString())


def test_a_full_aggregate_is_handed_out_when_the_next_user_record_arrives() -> None:
    aggregator = Aggregator(max_bytes=100)
    assert aggregator.add("k", None, b"x" * 40) is None
    full = aggregator.add("k", None, b"y" * 40)
    rest = aggregator.flush()
    assert full is not None
    assert rest is not None
    assert [record.data for record in opened(full.data)[0]] == [b"x" * 40]
    assert [record.data for record in opened(rest.data)[0]] == [b"y" * 40]


@pytest.mark.parametrize("explicit_hash_key", ["", "abc", "-1", "01", "1 ", "٣", str(2**128), "9" * 40])
def test_an_explicit_hash_key_no_consumer_could_place_is_refused(explicit_hash_key: str) -> None:
    with pytest.raises(ValueError, match="explicit hash key"):
        Aggregator().add("k", explicit_hash_key, b"x")


def test_a_limit_without_room_for_any_record_is_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes=20"):
        Aggregator(max_bytes=20)


# Beside other users of protobuf


def run_python(program: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


USER_PROGRAM = """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    def users_own_messages():
        file = descriptor_pb2.FileDescriptorProto(
            name="messages.proto", package="aws.kinesis.protobuf", syntax="proto3"
        )
        for name in ("AggregatedRecord", "Record", "Tag"):
            file.message_type.add(name=name).field.add(
                name="other", number=1, label=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING
            )
        descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
        found = descriptor_pool.Default().FindMessageTypeByName("aws.kinesis.protobuf.Record")
        record = message_factory.GetMessageClass(found)
        assert record.FromString(record(other="mine").SerializeToString()).other == "mine"

    def aggregate_and_open():
        from pykcl.model.kpl import aggregate, deaggregate
        from pykcl.model.record import Record

        (blob,) = aggregate([("k", None, b"x"), ("k", "5", b"y")])
        assert [record.data for record in deaggregate(Record(blob.data, "k", "1"), None)] == [b"x", b"y"]
"""


@pytest.mark.parametrize(
    "order", ["users_own_messages aggregate_and_open", "aggregate_and_open users_own_messages"]
)
def test_a_program_may_have_its_own_messages_proto(order: str) -> None:
    run_python(USER_PROGRAM + "".join(f"\n    {step}()" for step in order.split()))


def test_protobufs_default_pool_is_left_alone() -> None:
    run_python(
        USER_PROGRAM
        + """
    aggregate_and_open()
    for name in ("pykcl/aggregated_record.proto", "messages.proto"):
        try:
            descriptor_pool.Default().FindFileByName(name)
        except KeyError:
            continue
        raise AssertionError(name)
    """
    )


def test_importing_the_codec_does_not_import_protobuf() -> None:
    run_python(
        """
    import sys
    from pykcl.model.kpl import deaggregate
    from pykcl.model.record import Record

    list(deaggregate(Record(b"plain", "k", "1"), None))
    assert "google.protobuf" not in sys.modules
    """
    )


def test_protobufs_pure_python_runtime_gives_the_same_answers() -> None:
    run_python(
        USER_PROGRAM
        + """
    import hashlib
    from google.protobuf.internal import api_implementation
    from pykcl.model.kpl import MAGIC, deaggregate
    from pykcl.model.record import Record

    assert api_implementation.Type() == "python"
    aggregate_and_open()
    nested_groups = b"\\x4b" * 5_000
    for body in (
        b"\\xff\\xff", b"\\n\\x01k\\x1a\\x02\\x08\\x00", b"\\n\\x01k\\x1a\\x03\\x1a\\x01x",
        b"\\n\\x01\\xff", b"\\n\\x01k\\x1a\\x05\\x08\\x01\\x1a\\x01x", nested_groups,
    ):
        record = Record(MAGIC + body + hashlib.md5(body).digest(), "k", "1")
        problems = []
        assert list(deaggregate(record, None, on_refused=problems.append)) == [record], body
        assert len(problems) == 1
    """,
        PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python",
    )
