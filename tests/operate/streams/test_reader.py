"""Reading a stream: where each shard starts, parents before children, the end, and failures on the way."""

from itertools import islice, pairwise

import pytest

from pykcl.errors import (
    ConfigError,
    IteratorExpired,
    PositionRefused,
    SetupError,
    ShardGone,
    TemporaryError,
    Throttled,
)
from pykcl.interfaces import Fetched
from pykcl.model.checkpoint import AT_LATEST, AT_SHARD_END, Checkpoint, ReadFrom
from pykcl.model.kpl import aggregate
from pykcl.model.lease import Lease
from pykcl.model.shard import Shard
from pykcl.operate.snapshot import TableSnapshot
from pykcl.operate.streams.reader import (
    PAUSE_AT_TIP,
    Start,
    StreamReader,
    leases_of_stream,
    shards_named,
    starts_of_application,
    starts_since,
)


def shard(number, *parents, closed=False):
    return Shard(name(number), tuple(map(name, parents)), None, "1", "9" if closed else None)


def name(number):
    return f"shardId-{number:012}"


SPLIT = [shard(0, closed=True), shard(1), shard(2, 0), shard(3, 0)]


def test_from_now_on_only_shards_without_children_are_read():
    starts = starts_since(SPLIT, ReadFrom("LATEST"))
    assert [one.shard.shard_id for one in starts] == [name(1), name(2), name(3)]


def test_from_a_time_on_the_closed_ones_are_read_too():
    starts = starts_since(SPLIT, ReadFrom("AT_TIMESTAMP", at_millis=5))
    assert [one.shard.shard_id for one in starts] == [name(number) for number in range(4)]
    assert {one.read_from.at_millis for one in starts} == {5}


def leases(**checkpoints):
    return {name(int(key[1:])): Lease(name(int(key[1:])), at) for key, at in checkpoints.items()}


def test_an_application_is_followed_from_its_checkpoints_on():
    at = Checkpoint("17", 3)
    starts = starts_of_application(SPLIT, leases(s0=at, s1=AT_SHARD_END), "app")
    assert [(one.shard.shard_id, one.read_from.kind, one.after) for one in starts] == [
        (name(0), "AT_SEQUENCE_NUMBER", at),
        # Not leased yet: the fleet will begin them at their oldest record when 0 has ended.
        (name(2), "TRIM_HORIZON", None),
        (name(3), "TRIM_HORIZON", None),
    ]


def test_a_parent_whose_row_was_cleaned_up_is_not_read_again():
    starts = starts_of_application(
        SPLIT, leases(s1=Checkpoint("5"), s2=Checkpoint("6"), s3=Checkpoint("7")), "app"
    )
    assert name(0) not in {one.shard.shard_id for one in starts}


def test_a_start_at_latest_is_where_the_worker_would_begin():
    (start, *_) = starts_of_application([shard(0)], leases(s0=AT_LATEST), "app")
    assert start.read_from.kind == "LATEST"


def test_an_application_of_another_stream_is_refused():
    with pytest.raises(SetupError, match="no lease of a shard of this stream"):
        starts_of_application(SPLIT, leases(s8=Checkpoint("5")), "app")


def test_in_a_table_of_several_streams_only_those_of_this_one_count():
    def key(stream, number):
        return f"123456789012:{stream}:1690000000:{name(number)}"

    rows = {
        key(of, 1): Lease(key(of, 1), Checkpoint(at), parents=(key(of, 0),))
        for of, at in (("orders", "5"), ("payments", "6"))
    }
    view = TableSnapshot(leases=rows, streams={one: one.rpartition(":")[0] for one in rows})
    (lease,) = leases_of_stream(view, "orders").values()
    assert (lease.key, lease.parents, lease.checkpoint) == (name(1), (name(0),), Checkpoint("5"))


@pytest.mark.parametrize("wanted", ["3", "003", name(3)])
def test_a_shard_may_be_named_by_its_number(wanted):
    assert [one.shard_id for one in shards_named([wanted, "1"], SPLIT)] == [name(1), name(3)]


@pytest.mark.parametrize("wanted", ["9", "shardId-9", "\x1b[2Jshard", ""])
def test_an_unknown_shard_is_refused_with_those_there_are(wanted):
    with pytest.raises(ConfigError, match="shardId-0000") as refused:
        shards_named([wanted], SPLIT)
    assert "\x1b" not in str(refused.value)


OLDEST = ReadFrom("TRIM_HORIZON")
FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


@pytest.fixture
def follow(stream, runtime):
    def start(starts=None, *, since=OLDEST, **options):
        notices = []
        following = StreamReader(
            stream,
            starts_since(stream.list_shards().shards, since) if starts is None else starts,
            runtime,
            stop=runtime.event(),
            on_notice=notices.append,
            **options,
        )
        following.notices = notices
        return following

    return start


def put(kinesis, shard, *payloads):
    """Into the shard by its hash keys: "low" is the first quarter, "high" the last."""
    key = {"low": 0, "high": 2**128 - 1}[shard]
    for data in payloads:
        kinesis.put_record("s", data.encode(), "key", key)


def payloads(following):
    return [record.data.decode() for page in following.pages() for record in page]


def test_everything_there_is_is_read_once_and_then_it_ends(kinesis, follow):
    put(kinesis, "low", "a", "b")
    put(kinesis, "high", "c")
    assert sorted(payloads(follow(until_end=True))) == ["a", "b", "c"]


def test_an_empty_stream_ends_too(follow):
    assert payloads(follow(until_end=True)) == []


def test_parents_come_before_children_through_splits_and_a_merge(kinesis, follow):
    put(kinesis, "low", "1")
    kinesis.split("s", FIRST)
    put(kinesis, "low", "2")
    kinesis.split("s", "shardId-000000000002")
    put(kinesis, "low", "3")
    kinesis.merge("s", "shardId-000000000004", "shardId-000000000005")
    put(kinesis, "low", "4")
    assert payloads(follow(until_end=True)) == ["1", "2", "3", "4"]


def test_a_child_waits_for_a_parent_of_many_pages(kinesis, follow, stream):
    put(kinesis, "low", "1", "2", "3")
    put(kinesis, "high", "1", "2", "3", "4", "5")
    kinesis.merge("s", FIRST, SECOND)
    put(kinesis, "low", "child")
    fetch = stream.fetch
    stream.fetch = lambda shard_id, iterator, limit: fetch(shard_id, iterator, 1)
    seen = payloads(follow(until_end=True))
    assert seen[-1] == "child"
    assert sorted(seen[:-1]) == sorted("12312345")


def test_empty_pages_before_the_tip_are_not_the_end(kinesis, follow, stream):
    put(kinesis, "low", "late")
    fetch, pages = stream.fetch, []

    def sparse(shard_id, iterator, limit):
        pages.append(shard_id)
        if shard_id == FIRST and len(pages) < 9:
            return Fetched([], iterator, 3_600_000, (), 0)
        return fetch(shard_id, iterator, limit)

    stream.fetch = sparse
    assert payloads(follow(until_end=True)) == ["late"]


def test_a_reshard_while_it_is_followed_is_followed(kinesis, follow, runtime):
    put(kinesis, "low", "before")

    def reshard(waits):
        if waits == 3:
            put(kinesis, "low", "last of the parent")
            kinesis.merge("s", FIRST, SECOND)
            put(kinesis, "low", "child")
        if waits == 60:
            raise KeyboardInterrupt

    runtime.at_wait = reshard
    seen = []
    with pytest.raises(KeyboardInterrupt):
        for page in follow().pages():
            seen += [record.data.decode() for record in page]
    assert seen == ["before", "last of the parent", "child"]


def test_from_now_on_shows_nothing_older_also_when_the_iterator_is_lost(kinesis, follow, stream, runtime):
    put(kinesis, "low", "old")
    runtime.seconds += 5
    fetch, lost = stream.fetch, []

    def fetch_or_lose(shard_id, iterator, limit):
        if shard_id == FIRST and not lost:
            lost.append(1)
            put(kinesis, "low", "new")
            raise IteratorExpired("x")
        return fetch(shard_id, iterator, limit)

    stream.fetch = fetch_or_lose
    pages = follow(since=ReadFrom("LATEST")).pages()
    assert next(record.data for page in pages for record in page) == b"new"


def test_an_iterator_that_expires_in_the_middle_repeats_and_loses_nothing(kinesis, follow, stream):
    put(kinesis, "low", *map(str, range(9)))
    fetch, calls = stream.fetch, []

    def two_at_a_time(shard_id, iterator, limit):
        calls.append(shard_id)
        if len(calls) % 3 == 0:
            raise IteratorExpired("x")
        return fetch(shard_id, iterator, 2)

    stream.fetch = two_at_a_time
    assert payloads(follow(until_end=True)) == list("012345678")


def test_aggregates_are_opened_and_the_start_inside_one_is_exact(kinesis, follow):
    (blob,) = aggregate([("k", "0", data) for data in (b"a", b"b", b"c")])
    number = kinesis.put_record("s", blob.data, blob.partition_key, 0).sequence_number
    put(kinesis, "low", "d")
    assert payloads(follow(until_end=True)) == ["a", "b", "c", "d"]
    shard = follow()._stream.list_shards().by_id[FIRST]
    at = Start(shard, ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=number), Checkpoint(number, 1))
    assert payloads(follow([at], until_end=True)) == ["c", "d"]


def test_what_is_at_or_below_a_checkpoint_is_not_shown_even_over_several_pages(kinesis, follow, stream):
    numbers = [kinesis.put_record("s", str(n).encode(), "k", 0).sequence_number for n in range(6)]
    fetch = stream.fetch
    stream.fetch = lambda shard_id, iterator, limit: fetch(shard_id, iterator, 1)
    shard = stream.list_shards().by_id[FIRST]
    start = Start(shard, OLDEST, Checkpoint(numbers[3]))
    assert payloads(follow([start], until_end=True)) == ["4", "5"]


def test_an_aggregate_that_consumers_drop_is_told(kinesis, follow):
    (blob,) = aggregate([("k", "0", b"a"), ("k", str(2**128 - 1), b"b")])
    kinesis.put_record("s", blob.data, blob.partition_key, 0)
    following = follow(until_end=True)
    assert payloads(following) == []
    assert "lies outside the shard" in following.notices[0]


def test_an_aggregate_of_any_hash_keys_is_shown_where_kinesis_ignores_them(kinesis, follow):
    kinesis.delete_stream("s")
    kinesis.create_stream("s", 2, mode="ON_DEMAND", distribution="AUTO")
    (blob,) = aggregate([("k", "0", b"a"), ("k", str(2**128 - 1), b"b")])
    kinesis.put_record("s", blob.data, blob.partition_key)
    following = follow(until_end=True)
    assert payloads(following) == ["a", "b"]
    assert following.notices == []


def test_producers_need_not_pause_for_it_to_end(kinesis, follow, runtime, stream):
    put(kinesis, "low", "first")
    fetch = stream.fetch

    def busy(shard_id, iterator, limit):
        runtime.seconds += 1
        put(kinesis, "low", "more", "more")
        return fetch(shard_id, iterator, 1)

    stream.fetch = busy
    assert payloads(follow(until_end=True))[0] == "first"


def test_a_shard_at_its_tip_is_asked_once_a_second(follow, stream, runtime):
    asked = []
    fetch = stream.fetch
    stream.fetch = lambda shard_id, iterator, limit: (
        asked.append(runtime.seconds) or fetch(shard_id, iterator, limit)
    )
    for _ in islice(follow().pages(), 60):
        continue
    turns = sorted(set(asked))
    assert turns == [PAUSE_AT_TIP * turn for turn in range(len(turns))]
    assert len(turns) > 5


def test_throttling_slows_it_down_and_loses_nothing(kinesis, follow, stream, runtime):
    put(kinesis, "low", "a")
    fetch, times = stream.fetch, []

    def throttled(shard_id, iterator, limit):
        if shard_id == FIRST:
            times.append(runtime.seconds)
            if len(times) < 5:
                raise Throttled("x")
        return fetch(shard_id, iterator, limit)

    stream.fetch = throttled
    following = follow(until_end=True)
    assert payloads(following) == ["a"]
    assert [later - before for before, later in pairwise(times)][:4] == [1, 2, 4, 8]
    assert following.notices == []


def test_trouble_that_lasts_is_told_now_and_then(kinesis, follow, stream, runtime):
    put(kinesis, "low", "a")
    fetch = stream.fetch

    def down(shard_id, iterator, limit):
        if runtime.seconds < 100:
            raise TemporaryError("Kinesis is down.")
        return fetch(shard_id, iterator, limit)

    stream.fetch = down
    following = follow(until_end=True)
    assert payloads(following) == ["a"]
    assert 2 <= len([one for one in following.notices if FIRST in one]) <= 5


@pytest.mark.parametrize("error", [PositionRefused("no position"), ShardGone("gone")])
def test_a_shard_that_cannot_be_read_is_left_out_and_told(kinesis, follow, stream, error):
    put(kinesis, "high", "b")
    read = stream.open

    def refuse(shard_id, start):
        if shard_id == FIRST:
            raise error
        return read(shard_id, start)

    stream.open = refuse
    following = follow(until_end=True)
    assert payloads(following) == ["b"]
    assert following.is_complete is False
    assert FIRST in following.notices[0]


def test_the_children_of_a_shard_that_expired_meanwhile_are_read(kinesis, follow, stream, runtime):
    kinesis.split("s", FIRST)
    runtime.seconds += 1  # a shard expires a day after it was split: ListShards has long shown it
    put(kinesis, "low", "child")
    read = stream.open

    def gone(shard_id, start):
        if shard_id == FIRST:
            raise ShardGone("gone")
        return read(shard_id, start)

    only = [one for one in starts_since(stream.list_shards().shards, OLDEST) if one.shard.shard_id == FIRST]
    stream.open = gone
    assert payloads(follow(only, until_end=True)) == ["child"]


def test_what_no_repetition_can_help_is_raised(follow, stream):
    def refuse(*_):
        raise SetupError("not permitted")

    stream.open = refuse
    with pytest.raises(SetupError):
        payloads(follow(until_end=True))


def test_only_the_shards_that_were_asked_for_are_read_and_where_it_goes_on_is_told(kinesis, follow, stream):
    put(kinesis, "low", "a")
    kinesis.split("s", FIRST)
    put(kinesis, "low", "b")
    only = [one for one in starts_since(stream.list_shards().shards, OLDEST) if one.shard.shard_id == FIRST]
    following = follow(only, children=False)
    assert payloads(following) == ["a"]
    assert "shardId-000000000002" in following.notices[0]


def test_shards_that_name_each_other_as_parents_are_read_all_the_same(kinesis, follow, stream):
    put(kinesis, "low", "a")
    put(kinesis, "high", "b")
    one, two = stream.list_shards().shards
    from dataclasses import replace

    circle = [Start(replace(one, parents=(SECOND,)), OLDEST), Start(replace(two, parents=(FIRST,)), OLDEST)]
    assert sorted(payloads(follow(circle, until_end=True))) == ["a", "b"]


def test_it_stops_when_it_is_told(follow):
    following = follow()
    pages = following.pages()
    next(pages)
    following._stop.set()
    assert list(pages) == []
