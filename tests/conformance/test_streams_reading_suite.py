"""What a consumer relies on in Kinesis: reading on, resharding, retention."""

import pytest
from stream_reading import (
    FIRST,
    HASH_KEYS,
    HORIZON,
    LATEST,
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
    IteratorExpired,
    ShardGone,
    StreamMissing,
    WrongStream,
)

# -- reading on ------------------------------------------------------------------------------------------------


def test_a_limit_cuts_pages_that_together_are_everything_in_order(streams):
    stream = streams.stream()
    for number in range(7):
        streams.put(stream, b"%d" % number)
    iterator, sizes, found = stream.open(FIRST, HORIZON), [], []
    for _ in range(4):
        page = stream.fetch(FIRST, iterator, 3)
        iterator, sizes = page.next_iterator, [*sizes, len(page.records)]
        found.extend(data_of(page.records))
    assert sizes == [3, 3, 1, 0]
    assert found == [b"%d" % number for number in range(7)]


def test_a_limit_beyond_what_kinesis_allows_is_no_error(streams):
    stream = streams.stream()
    streams.put(stream, b"0")
    assert data_of(stream.fetch(FIRST, stream.open(FIRST, HORIZON), 50_000).records) == [b"0"]


def test_one_iterator_used_twice_gives_the_same_page_twice(streams):
    stream = streams.stream()
    for number in range(4):
        streams.put(stream, b"%d" % number)
    iterator = stream.open(FIRST, HORIZON)
    first, second = (stream.fetch(FIRST, iterator, 2) for _ in range(2))
    assert first.records == second.records
    assert data_of(stream.fetch(FIRST, first.next_iterator, 2).records) == [b"2", b"3"]


def test_an_empty_page_goes_on_to_what_is_put_later(streams):
    stream = streams.stream()
    page = stream.fetch(FIRST, stream.open(FIRST, HORIZON), 10)
    assert page.records == []
    for number in range(3):
        streams.put(stream, b"%d" % number)
        page = stream.fetch(FIRST, page.next_iterator, 10)
        assert data_of(page.records) == [b"%d" % number]


def test_at_the_tip_nothing_is_behind(streams):
    stream = streams.stream()
    three_records(streams, stream)
    page = stream.fetch(FIRST, stream.open(FIRST, HORIZON), 10)
    assert (len(page.records), page.millis_behind_latest) == (3, 0)
    assert stream.fetch(FIRST, stream.open(FIRST, LATEST), 10).millis_behind_latest == 0


def test_before_the_tip_it_is_told_how_far_behind(streams):
    stream = streams.stream()
    three_records(streams, stream)
    page = stream.fetch(FIRST, stream.open(FIRST, HORIZON), 1)
    assert page.millis_behind_latest > 0


def test_how_far_behind_grows_while_nobody_reads_or_writes(streams):
    stream = streams.stream()
    three_records(streams, stream)
    first = stream.fetch(FIRST, stream.open(FIRST, HORIZON), 1).millis_behind_latest
    streams.later(60)
    second = stream.fetch(FIRST, stream.open(FIRST, HORIZON), 1).millis_behind_latest
    assert 59_000 <= second - first <= 90_000


def test_an_iterator_is_good_for_five_minutes(streams):
    stream = streams.stream()
    streams.put(stream, b"0")
    iterator = stream.open(FIRST, HORIZON)
    streams.later(270)
    assert data_of(stream.fetch(FIRST, iterator, 10).records) == [b"0"]
    streams.later(31)
    with pytest.raises(IteratorExpired):
        stream.fetch(FIRST, iterator, 10)
    assert data_from(stream, FIRST, HORIZON) == [b"0"]


def test_the_next_iterator_has_its_own_five_minutes(streams):
    stream = streams.stream()
    iterator = stream.open(FIRST, HORIZON)
    for _ in range(3):
        streams.later(200)
        iterator = stream.fetch(FIRST, iterator, 10).next_iterator
    streams.put(stream, b"0")
    assert data_of(read_on(stream, FIRST, iterator)[0]) == [b"0"]


@pytest.mark.parametrize("iterator", ["nonsense", "AAAA" * 20], ids=["text", "base64"])
def test_what_is_no_iterator_asks_for_a_new_one(streams, iterator):
    stream = streams.stream()
    stream.describe()
    with pytest.raises(IteratorExpired):
        stream.fetch(FIRST, iterator, 10)


def test_an_unknown_shard_of_a_known_stream_is_gone(streams):
    stream = streams.stream()
    stream.describe()
    with pytest.raises(ShardGone):
        stream.open("shardId-000000000099", HORIZON)


def test_an_iterator_of_a_deleted_stream_finds_the_stream_missing(streams):
    stream = streams.stream()
    stream.describe()
    iterator = stream.open(FIRST, HORIZON)
    streams.delete(stream.name)
    with pytest.raises(StreamMissing):
        stream.fetch(FIRST, iterator, 10)
    with pytest.raises(StreamMissing):
        stream.open(FIRST, HORIZON)


def test_a_position_in_a_stream_made_again_is_of_the_wrong_stream(streams):
    stream = streams.stream()
    stream.describe()
    _, number = streams.put(stream, b"0")
    streams.delete(stream.name)
    streams.later(60)
    streams.create(stream.name)
    with pytest.raises(WrongStream):
        stream.open(FIRST, at(number))


def test_the_servers_time_is_told_to_the_second_and_never_ahead(streams):
    stream = streams.stream()
    stream.describe()
    assert stream.server_time_millis() % 1000 == 0
    assert streams.now_millis() - 10_000 <= stream.server_time_millis() <= streams.now_millis()


# -- resharding ------------------------------------------------------------------------------------------------


def test_a_split_closes_the_parent_and_opens_two_children_that_share_its_range(streams):
    stream = streams.stream(2)
    _, whole = ranges_of(stream, [FIRST])[0]
    children = streams.split(stream, FIRST)
    by_id = stream.list_shards().by_id
    assert len(by_id) == 4
    assert not by_id[FIRST].is_open
    assert all(by_id[child].is_open and by_id[child].parents == (FIRST,) for child in children)
    (low, middle), (next_, high) = ranges_of(stream, children)
    assert (low, middle + 1, high) == (0, next_, whole)


def test_a_merge_closes_both_parents_and_opens_one_child_with_both(streams):
    stream = streams.stream(3)
    parents = sorted(stream.list_shards().by_id)[:2]
    ranges = ranges_of(stream, parents)
    child = streams.merge(stream, *parents)
    by_id = stream.list_shards().by_id
    assert len(by_id) == 4
    assert [by_id[parent].is_open for parent in parents] == [False, False]
    assert sorted(by_id[child].parents) == parents
    assert ranges_of(stream, [child]) == [(ranges[0][0], ranges[1][1])]


def test_the_end_of_a_split_shard_comes_after_its_last_record_with_both_children(streams):
    stream = streams.stream()
    for number in range(5):
        streams.put(stream, b"%d" % number)
    children = streams.split(stream, FIRST)
    records, last = read(stream, FIRST, HORIZON, limit=2)
    assert data_of(records) == [b"%d" % number for number in range(5)]
    assert last.next_iterator is None
    assert sorted(child.shard_id for child in last.children) == sorted(children)
    by_id = stream.list_shards().by_id
    for child in last.children:
        assert child.parents == (FIRST,)
        assert child.hash_range == by_id[child.shard_id].hash_range


def test_both_merged_shards_end_with_the_one_child_and_its_two_parents(streams):
    stream = streams.stream(2)
    parents = sorted(stream.list_shards().by_id)
    for parent, (start, _) in zip(parents, ranges_of(stream, parents), strict=True):
        streams.put(stream, parent.encode(), "k", start)
    child = streams.merge(stream, *parents)
    for parent in parents:
        records, last = read(stream, parent, HORIZON)
        assert data_of(records) == [parent.encode()]
        assert [(one.shard_id, sorted(one.parents)) for one in last.children] == [(child, parents)]


@pytest.mark.parametrize("how", ["split", "merge"])
def test_an_empty_closed_shard_ends_at_once_with_its_children(streams, how):
    stream = streams.stream(2)
    parents = sorted(stream.list_shards().by_id)
    children = streams.split(stream, FIRST) if how == "split" else [streams.merge(stream, *parents)]
    for start in (HORIZON, LATEST):
        page = stream.fetch(FIRST, stream.open(FIRST, start), 10)
        assert (page.records, page.next_iterator) == ([], None)
        assert sorted(child.shard_id for child in page.children) == sorted(children)


@pytest.mark.parametrize("start", ["AFTER_SEQUENCE_NUMBER", "LATEST", "AT_TIMESTAMP"])
def test_a_start_behind_the_last_record_of_a_closed_shard_ends_it(streams, start):
    stream = streams.stream()
    numbers, arrived = three_records(streams, stream)
    children = streams.split(stream, FIRST)
    streams.later(10)
    starts = {
        "AFTER_SEQUENCE_NUMBER": after(numbers[2]),
        "LATEST": LATEST,
        "AT_TIMESTAMP": at_time(arrived[2] + 5_000),
    }
    records, last = read(stream, FIRST, starts[start])
    assert records == []
    assert last.next_iterator is None
    assert sorted(child.shard_id for child in last.children) == sorted(children)


def test_an_iterator_at_the_tip_lives_through_a_split_to_the_end_of_its_shard(streams):
    stream = streams.stream()
    streams.put(stream, b"0")
    iterator = stream.open(FIRST, LATEST)
    streams.put(stream, b"1")
    children = streams.split(stream, FIRST)
    records, last = read_on(stream, FIRST, iterator)
    assert data_of(records) == [b"1"]
    assert sorted(child.shard_id for child in last.children) == sorted(children)


def test_after_a_split_records_go_to_the_children_only(streams):
    stream = streams.stream()
    streams.put(stream, b"before")
    children = streams.split(stream, FIRST)
    for child, ends in zip(children, ranges_of(stream, children), strict=True):
        for end in ends:
            assert streams.put(stream, b"%d" % end, "k", end)[0] == child
        assert data_from(stream, child, HORIZON) == [b"%d" % end for end in ends]
    assert data_from(stream, FIRST, HORIZON) == [b"before"]


def test_numbers_of_children_are_greater_than_all_of_their_parents(streams):
    stream = streams.stream()
    last = int(streams.put(stream)[1])
    generation = [FIRST]
    for _ in range(3):
        generation = streams.split(stream, generation[0])
        child = stream.list_shards().by_id[generation[0]]
        assert int(child.starting_sequence_number) > last
        number = int(streams.put(stream, b"x", "k", child.hash_range.first)[1])
        assert number > int(child.starting_sequence_number)
        last = number


def test_the_ending_number_of_a_closed_shard_is_not_less_than_its_records(streams):
    stream = streams.stream()
    last = int(streams.put(stream)[1])
    children = streams.split(stream, FIRST)
    by_id = stream.list_shards().by_id
    ending = int(by_id[FIRST].ending_sequence_number)
    assert ending >= last
    assert all(int(by_id[child].starting_sequence_number) > last for child in children)


def test_a_child_is_read_from_its_beginning_at_a_time_before_it_was(streams):
    stream = streams.stream()
    moment = streams.now_millis()
    streams.later(10)
    child, _ = streams.split(stream, FIRST)
    streams.put(stream, b"child", "k", 0)
    assert data_from(stream, child, at_time(moment)) == [b"child"]
    assert data_from(stream, child, HORIZON) == [b"child"]


def test_nested_splits_and_a_merge_lose_and_repeat_nothing(streams):
    stream = streams.stream()
    put = []

    def spread(word):
        for number in range(8):
            put.append(f"{word}-{number}".encode())
            streams.put(stream, put[-1], "k", number * HASH_KEYS // 8)

    spread("whole")
    left, right = streams.split(stream, FIRST)
    spread("halves")
    _, inner = streams.split(stream, left)
    spread("three")
    child = streams.merge(stream, inner, right)
    spread("merged")
    streams.split(stream, child)
    spread("end")

    found, ended, waiting = [], set(), [FIRST]
    by_id = stream.list_shards().by_id
    while waiting:
        shard_id = waiting.pop(0)
        records, last = read(stream, shard_id, HORIZON, limit=5)
        found.extend(data_of(records))
        assert all(
            within(by_id[shard_id], int(one.split(b"-")[1]) * HASH_KEYS // 8) for one in data_of(records)
        )
        ended.add(shard_id)
        assert (last.next_iterator is None) is not by_id[shard_id].is_open
        ready = [one.shard_id for one in last.children if ended >= set(one.parents)]
        waiting.extend(ready)
    assert ended == set(by_id)
    assert sorted(found) == sorted(put)


# -- retention -------------------------------------------------------------------------------------------------


def test_records_older_than_the_retention_are_gone_and_trim_horizon_starts_at_what_is_left(streams):
    stream = streams.stream()
    _, number = streams.put(stream, b"old")
    streams.later(23 * 3600)
    streams.put(stream, b"young")
    assert data_from(stream, FIRST, HORIZON) == [b"old", b"young"]
    streams.later(2 * 3600)
    assert data_from(stream, FIRST, HORIZON) == [b"young"]
    assert data_from(stream, FIRST, at(number)) == [b"young"]


def test_a_closed_shard_leaves_the_listing_after_the_retention_and_its_children_stay(streams):
    stream = streams.stream()
    stream.describe()
    children = streams.split(stream, FIRST)
    assert FIRST in stream.list_shards().by_id
    streams.later(25 * 3600)
    assert sorted(stream.list_shards().by_id) == sorted(children)
    with pytest.raises(ShardGone):
        stream.open(FIRST, HORIZON)
