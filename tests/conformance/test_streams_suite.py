"""What a consumer relies on in Kinesis, asked of every Kinesis we have: streams, records and the five starts."""

import hashlib
import itertools

import pytest
from stream_reading import (
    FIRST,
    HASH_KEYS,
    HORIZON,
    LATEST,
    MANY,
    after,
    at,
    at_time,
    data_from,
    data_of,
    ranges_of,
    read,
    read_on,
    three_records,
    within,
)

from pykcl.errors import (
    PositionRefused,
    StreamMissing,
    TemporaryError,
)

# -- describing and listing ------------------------------------------------------------------------------------


def test_a_stream_is_described_by_what_identifies_it(streams):
    before = streams.now_millis() // 1000 * 1000
    stream = streams.stream(2)
    found = stream.describe()
    assert (found.name, found.status, found.retention_hours) == (stream.name, "ACTIVE", 24)
    assert found.arn.startswith("arn:aws:kinesis:")
    assert found.arn.endswith(f":stream/{stream.name}")
    assert before <= found.created_at <= streams.now_millis()


def test_a_stream_made_again_has_another_creation_time(streams):
    stream = streams.stream()
    first = stream.describe()
    streams.delete(stream.name)
    streams.later(60)
    streams.create(stream.name)
    second = streams.named(stream.name).describe()
    assert second.created_at >= first.created_at + 60_000
    assert second.arn == first.arn


def test_a_missing_stream_is_missing_for_every_question(streams):
    nowhere = streams.named("nowhere")
    for ask in (nowhere.describe, nowhere.list_shards, lambda: nowhere.open(FIRST, HORIZON)):
        with pytest.raises(StreamMissing):
            ask()


def test_new_shards_are_open_have_no_parents_and_share_the_hash_keys_without_a_gap(streams):
    listing = streams.stream(3).list_shards()
    assert listing.complete
    shards = sorted(listing.shards, key=lambda shard: shard.hash_range.first)
    assert {shard.shard_id for shard in shards} == {f"shardId-{number:012d}" for number in range(3)}
    assert all(shard.is_open and shard.parents == () for shard in shards)
    assert all(shard.starting_sequence_number.isdecimal() for shard in shards)
    edges = [(shard.hash_range.first, shard.hash_range.last) for shard in shards]
    assert (edges[0][0], edges[-1][1]) == (0, HASH_KEYS - 1)
    assert all(one[1] + 1 == other[0] for one, other in itertools.pairwise(edges))


def test_a_listing_of_more_than_a_page_is_whole(streams):
    stream = streams.stream(1000)
    children = streams.split(stream, FIRST)
    listing = stream.list_shards()
    assert listing.complete
    assert set(listing.by_id) == {f"shardId-{number:012d}" for number in range(1002)} >= set(children)
    assert len(listing.shards) == 1002


def test_a_stream_is_read_the_same_before_and_after_its_arn_is_known(streams):
    stream = streams.stream()
    streams.put(stream, b"1")
    unasked, asked = streams.named(stream.name), streams.named(stream.name)
    asked.describe()
    assert data_from(unasked, FIRST, HORIZON) == data_from(asked, FIRST, HORIZON) == [b"1"]
    assert unasked.list_shards() == asked.list_shards()


# -- records ---------------------------------------------------------------------------------------------------


def test_records_come_as_they_were_put_in_the_order_they_were_put(streams):
    stream = streams.stream()
    payloads = [b"", b"plain", "ünïcode ☃".encode(), bytes(range(256)) * 40]
    for number, data in enumerate(payloads):
        streams.put(stream, data, f"clé-{number}")
    records, page = read(stream, FIRST, HORIZON)
    assert data_of(records) == payloads
    assert [record.partition_key for record in records] == [f"clé-{number}" for number in range(4)]
    assert {(record.shard_id, record.stream) for record in records} == {(FIRST, stream.name)}
    assert page.next_iterator is not None
    assert page.children == ()


def test_a_page_says_how_large_it_was(streams):
    stream = streams.stream()
    for _ in range(3):
        streams.put(stream, b"x" * 1000)
    page = stream.fetch(FIRST, stream.open(FIRST, HORIZON), 10)
    assert 3000 < page.body_bytes < 10_000


def test_an_empty_record_keeps_its_place(streams):
    stream = streams.stream()
    for data in (b"1", b"", b"2"):
        streams.put(stream, data)
    assert data_from(stream, FIRST, HORIZON) == [b"1", b"", b"2"]


def test_sequence_numbers_grow_and_are_those_the_producer_was_told(streams):
    stream = streams.stream()
    told = [streams.put(stream)[1] for _ in range(20)]
    records, _ = read(stream, FIRST, HORIZON)
    assert [record.sequence_number for record in records] == told
    numbers = [int(number) for number in told]
    assert numbers == sorted(set(numbers))
    assert int(stream.list_shards().by_id[FIRST].starting_sequence_number) < numbers[0]


def test_arrival_times_are_the_clocks_and_never_go_back(streams):
    stream = streams.stream()
    before = streams.now_millis()
    _, arrived = three_records(streams, stream)
    assert before <= arrived[0]
    assert all(9_900 <= later - earlier <= 30_000 for earlier, later in itertools.pairwise(arrived))
    assert arrived[-1] <= streams.now_millis()


def test_a_record_of_a_mebibyte_arrives_whole(streams):
    stream = streams.stream()
    data = bytes(range(256)) * 4096
    streams.put(stream, data[:-1], "k")  # the partition key counts too
    (record,), _ = read(stream, FIRST, HORIZON)
    assert record.data == data[:-1]


def test_a_page_has_at_most_ten_mebibytes_and_the_rest_follows(streams):
    stream = streams.stream()
    payloads = [bytes([number]) * 1_000_000 for number in range(11)]
    for data in payloads:
        streams.put(stream, data)
    page = stream.fetch(FIRST, stream.open(FIRST, HORIZON), MANY)
    assert sum(len(record.data) for record in page.records) <= 10 * 1024 * 1024
    rest, _ = read_on(stream, FIRST, page.next_iterator)
    assert data_of(page.records) + data_of(rest) == payloads


@pytest.mark.parametrize("key", ["k", "ünïcode", "0" * 256], ids=["short", "not ASCII", "of 256 characters"])
def test_a_partition_key_goes_to_the_shard_of_its_md5(streams, key):
    stream = streams.stream(4)
    hash_key = int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest(), "big")
    (expected,) = [one.shard_id for one in stream.list_shards().shards if within(one, hash_key)]
    assert streams.put(stream, b"x", key)[0] == expected
    assert [record.partition_key for record in read(stream, expected, HORIZON)[0]] == [key]


def test_hash_keys_at_the_ends_of_every_range_go_to_its_shard(streams):
    stream = streams.stream(3)
    for shard in stream.list_shards().shards:
        ends = (shard.hash_range.first, shard.hash_range.last)
        assert [streams.put(stream, b"%d" % end, "k", end)[0] for end in ends] == [shard.shard_id] * 2
        assert data_from(stream, shard.shard_id, HORIZON) == [b"%d" % end for end in ends]


# -- the five starts -------------------------------------------------------------------------------------------


def test_trim_horizon_starts_at_the_first_record(streams):
    stream = streams.stream()
    three_records(streams, stream)
    assert data_from(stream, FIRST, HORIZON) == [b"0", b"1", b"2"]


def test_latest_starts_after_the_last_record(streams):
    stream = streams.stream()
    three_records(streams, stream)
    iterator = stream.open(FIRST, LATEST)
    assert read_on(stream, FIRST, iterator)[0] == []
    streams.put(stream, b"3")
    assert data_of(read_on(stream, FIRST, iterator)[0]) == [b"3"]


def test_latest_on_an_empty_shard_gets_the_first_record(streams):
    stream = streams.stream()
    iterator = stream.open(FIRST, LATEST)
    streams.put(stream, b"0")
    assert data_of(read_on(stream, FIRST, iterator)[0]) == [b"0"]


def test_at_a_sequence_number_starts_with_that_record_and_after_it_with_the_next(streams):
    stream = streams.stream()
    numbers, _ = three_records(streams, stream)
    assert data_from(stream, FIRST, at(numbers[0])) == [b"0", b"1", b"2"]
    assert data_from(stream, FIRST, at(numbers[2])) == [b"2"]
    assert data_from(stream, FIRST, after(numbers[0])) == [b"1", b"2"]


def test_after_the_last_record_waits_for_the_next(streams):
    stream = streams.stream()
    numbers, _ = three_records(streams, stream)
    iterator = stream.open(FIRST, after(numbers[2]))
    assert read_on(stream, FIRST, iterator)[0] == []
    streams.put(stream, b"3")
    assert data_of(read_on(stream, FIRST, iterator)[0]) == [b"3"]


def test_at_a_time_starts_with_the_first_record_that_arrived_then_or_later(streams):
    stream = streams.stream()
    _, arrived = three_records(streams, stream)
    assert data_from(stream, FIRST, at_time(arrived[1])) == [b"1", b"2"]
    assert data_from(stream, FIRST, at_time(arrived[1] + 1)) == [b"2"]
    assert data_from(stream, FIRST, at_time(arrived[1] - 1)) == [b"1", b"2"]


def test_at_a_time_before_everything_starts_with_the_first_record(streams):
    stream = streams.stream()
    _, arrived = three_records(streams, stream)
    assert data_from(stream, FIRST, at_time(arrived[0] - 86_400_000)) == [b"0", b"1", b"2"]


def test_at_a_time_after_everything_gets_what_comes(streams):
    stream = streams.stream()
    _, arrived = three_records(streams, stream)
    iterator = stream.open(FIRST, at_time(arrived[2] + 5_000))
    assert read_on(stream, FIRST, iterator)[0] == []
    streams.put(stream, b"3")
    assert data_of(read_on(stream, FIRST, iterator)[0]) == [b"3"]


@pytest.mark.parametrize("records", [0, 1], ids=["empty", "with a record"])
def test_a_time_that_has_not_come_is_refused_for_now(streams, records):
    stream = streams.stream()
    stream.describe()
    for _ in range(records):
        streams.put(stream)
    with pytest.raises(TemporaryError) as refusal:
        stream.open(FIRST, at_time(streams.now_millis() + 60_000))
    assert not isinstance(refusal.value, PositionRefused)


def test_the_starting_number_of_a_shard_is_a_position_of_it(streams):
    stream = streams.stream()
    start = stream.list_shards().by_id[FIRST].starting_sequence_number
    streams.put(stream, b"0")
    assert data_from(stream, FIRST, at(start)) == [b"0"]
    assert data_from(stream, FIRST, after(start)) == [b"0"]


@pytest.mark.parametrize("records", [0, 1], ids=["empty", "with a record"])
def test_a_number_of_another_shard_is_refused_as_a_position(streams, records):
    stream = streams.stream(2)
    stream.describe()
    (one, _), (other, _) = ranges_of(stream, sorted(stream.list_shards().by_id))
    _, number = streams.put(stream, b"0", "k", one)
    for _ in range(records):
        streams.put(stream, b"1", "k", other)
    with pytest.raises(PositionRefused):
        stream.open("shardId-000000000001", at(number))


@pytest.mark.parametrize("records", [0, 1], ids=["empty", "with a record"])
def test_a_number_that_was_not_given_yet_is_refused_as_a_position(streams, records):
    stream = streams.stream()
    stream.describe()
    _, number = (
        streams.put(stream)
        if records
        else (FIRST, stream.list_shards().by_id[FIRST].starting_sequence_number)
    )
    with pytest.raises(PositionRefused):
        stream.open(FIRST, at(str(int(number) + 10**30)))
