from __future__ import annotations

import itertools
import re

import pytest

from pykcl.local.errors import AwsError
from pykcl.local.stream import Entry, LocalKinesis, Page, ReadSpan, ShardFilter

FIRST = "shardId-000000000000"
SECOND = "shardId-000000000001"
THIRD = "shardId-000000000002"


def read(kinesis: LocalKinesis, shard_id: str = FIRST, kind: str = "TRIM_HORIZON", **where) -> Page:
    return kinesis.get_records(kinesis.get_shard_iterator("s", shard_id, kind, **where))


def read_to_the_end(kinesis: LocalKinesis, shard_id: str = FIRST) -> list[Page]:
    pages = [read(kinesis, shard_id)]
    while pages[-1].next_iterator is not None:
        pages.append(kinesis.get_records(pages[-1].next_iterator))
    return pages


def payloads(page: Page) -> list[bytes]:
    return [record.data for record in page.records]


def refusal(code: str):
    return pytest.raises(AwsError, match=f"^{code}: ")


# Streams and their states


def test_a_stream_has_the_name_arn_and_creation_time_of_the_fixed_account(kinesis, clock):
    view = kinesis.describe("s")
    assert view.arn == "arn:aws:kinesis:us-east-1:000000000000:stream/s"
    assert (view.name, view.status, view.open_shards, view.retention_hours) == ("s", "ACTIVE", 1, 24)
    assert view.created_at == clock.millis


def test_a_stream_can_be_named_by_its_arn_but_not_by_another_accounts(kinesis):
    assert kinesis.describe("arn:aws:kinesis:us-east-1:000000000000:stream/s").name == "s"
    with refusal("ResourceNotFoundException"):
        kinesis.describe("arn:aws:kinesis:us-east-1:123456789012:stream/s")


def test_creating_a_stream_twice_is_refused(kinesis):
    with refusal("ResourceInUseException"):
        kinesis.create_stream("s", 1)


def test_states_last_as_long_as_configured(clock):
    kinesis = LocalKinesis(clock, state_seconds=5, listing_lag=0)
    kinesis.create_stream("s", 1)
    assert kinesis.describe("s").status == "CREATING"
    with refusal("ResourceNotFoundException"):
        kinesis.put_record("s", b"x", "k")
    clock.advance(seconds=5)
    kinesis.put_record("s", b"before", "k")
    kinesis.split("s", FIRST)
    assert kinesis.describe("s").status == "UPDATING"
    assert (
        kinesis.put_record("s", b"while", "k").shard_id == FIRST
    )  # the parent stays open until the split is done
    with refusal("ResourceInUseException"):
        kinesis.split("s", FIRST)
    clock.advance(seconds=5)
    assert kinesis.describe("s").status == "ACTIVE"
    assert kinesis.put_record("s", b"after", "k").shard_id in (SECOND, THIRD)
    assert payloads(read(kinesis)) == [b"before", b"while"]
    kinesis.delete_stream("s")
    assert kinesis.describe("s").status == "DELETING"
    clock.advance(seconds=5)
    with refusal("ResourceNotFoundException"):
        kinesis.describe("s")


def test_an_iterator_of_an_earlier_stream_of_that_name_is_refused(kinesis):
    iterator = kinesis.get_shard_iterator("s", FIRST, "TRIM_HORIZON")
    kinesis.delete_stream("s")
    with refusal("ResourceNotFoundException"):
        kinesis.get_records(iterator)
    kinesis.create_stream("s", 1)
    with refusal("InvalidArgumentException"):
        kinesis.get_records(iterator)


# Putting


def test_sequence_numbers_have_56_digits_and_increase_even_when_the_clock_goes_back(kinesis, clock):
    numbers = []
    for step in (0, 5, -20, 0, 1):
        clock.advance(seconds=step)
        numbers.append(kinesis.put_record("s", b"x", "k").sequence_number)
    assert all(re.fullmatch(r"[1-9]\d{55}", number) for number in numbers)
    assert [int(number) for number in numbers] == sorted({int(number) for number in numbers})


def test_records_go_to_the_shard_of_their_keys_md5_or_of_their_explicit_hash_key(clock):
    kinesis = LocalKinesis(clock, listing_lag=0)
    kinesis.create_stream("s", 2)
    # md5("a") = 0cc1..., md5("b") = 92eb...
    assert kinesis.put_record("s", b"x", "a").shard_id == FIRST
    assert kinesis.put_record("s", b"x", "b").shard_id == SECOND
    assert kinesis.put_record("s", b"x", "a", 2**128 - 1).shard_id == SECOND
    assert kinesis.put_record("s", b"x", "b", 0).shard_id == FIRST
    assert kinesis.put_record("s", b"x", "b", 2**127 - 1).shard_id == FIRST
    assert kinesis.put_record("s", b"x", "a", 2**127).shard_id == SECOND
    with refusal("InvalidArgumentException"):
        kinesis.put_record("s", b"x", "a", 2**128)


def test_put_counts_survive_trimming(kinesis, clock):
    kinesis.put_records("s", [Entry(b"x", "k"), Entry(b"y", "k")])
    clock.advance(hours=25)
    assert payloads(read(kinesis)) == []
    assert kinesis.put_counts("s") == {FIRST: 2}


def test_a_record_over_one_mebibyte_is_refused(kinesis):
    with refusal("InvalidArgumentException"):
        kinesis.put_record("s", b"x" * 1024 * 1024, "k")


# Iterators


def test_the_five_iterator_kinds_begin_where_they_should(kinesis, clock):
    puts = []
    for number in range(4):
        puts.append(kinesis.put_record("s", b"%d" % number, "k"))
        clock.advance(seconds=1)
    start = clock.millis - 4000
    assert payloads(read(kinesis)) == [b"0", b"1", b"2", b"3"]
    assert payloads(read(kinesis, kind="LATEST")) == []
    third = puts[2].sequence_number
    assert payloads(read(kinesis, kind="AT_SEQUENCE_NUMBER", sequence_number=third)) == [b"2", b"3"]
    assert payloads(read(kinesis, kind="AFTER_SEQUENCE_NUMBER", sequence_number=third)) == [b"3"]
    assert payloads(read(kinesis, kind="AT_TIMESTAMP", at_millis=start + 2000)) == [b"2", b"3"]
    assert payloads(read(kinesis, kind="AT_TIMESTAMP", at_millis=start + 2001)) == [b"3"]
    assert payloads(read(kinesis, kind="AT_TIMESTAMP", at_millis=0)) == [b"0", b"1", b"2", b"3"]
    assert payloads(read(kinesis, kind="AT_TIMESTAMP", at_millis=clock.millis)) == []


def test_a_latest_iterator_sees_what_is_put_after_it_was_made(kinesis):
    kinesis.put_record("s", b"old", "k")
    iterator = kinesis.get_shard_iterator("s", FIRST, "LATEST")
    kinesis.put_record("s", b"new", "k")
    assert payloads(kinesis.get_records(iterator)) == [b"new"]


def test_the_shards_own_starting_sequence_number_is_a_valid_start(kinesis):
    kinesis.put_record("s", b"x", "k")
    start = kinesis.list_shards("s")[0].starting_sequence_number
    assert payloads(read(kinesis, kind="AT_SEQUENCE_NUMBER", sequence_number=start)) == [b"x"]


def test_foreign_sequence_numbers_are_refused(clock):
    kinesis = LocalKinesis(clock, listing_lag=0)
    kinesis.create_stream("s", 2)
    other_shard = kinesis.put_record("s", b"x", "b").sequence_number
    future = f"49{clock.millis + 1:013d}{1:030d}{0:011d}"
    before = f"49{clock.millis - 1:013d}{1:030d}{0:011d}"
    for number in (other_shard, "0", "123", future, before):
        with refusal("InvalidArgumentException"):
            kinesis.get_shard_iterator("s", FIRST, "AT_SEQUENCE_NUMBER", sequence_number=number)


def test_incomplete_or_impossible_iterator_requests_are_refused(kinesis, clock):
    for kind, where in (
        ("AT_TIMESTAMP", {}),
        ("AT_SEQUENCE_NUMBER", {}),
        ("AFTER_SEQUENCE_NUMBER", {}),
        ("NONSENSE", {"sequence_number": "1"}),
        ("AT_TIMESTAMP", {"at_millis": clock.millis + 1}),
    ):
        with refusal("InvalidArgumentException"):
            kinesis.get_shard_iterator("s", FIRST, kind, **where)
    with refusal("ResourceNotFoundException"):
        kinesis.get_shard_iterator("s", SECOND, "LATEST")


def test_an_iterator_lives_300_seconds(kinesis, clock):
    iterator = kinesis.get_shard_iterator("s", FIRST, "LATEST")
    assert len(iterator) <= 512
    clock.advance(seconds=300)
    onward = kinesis.get_records(iterator).next_iterator
    clock.advance(seconds=0.001)
    with refusal("ExpiredIteratorException"):
        kinesis.get_records(iterator)
    assert onward is not None
    kinesis.get_records(onward)


@pytest.mark.parametrize(
    "damage", [lambda i: "x", lambda i: i[:-4], lambda i: "AAAA" + i[4:], lambda i: i + "é"]
)
def test_a_damaged_iterator_is_refused(kinesis, damage):
    iterator = kinesis.get_shard_iterator("s", FIRST, "LATEST")
    with refusal("InvalidArgumentException"):
        kinesis.get_records(damage(iterator))


# Reading


def test_a_page_holds_at_most_limit_records_and_ten_thousand(kinesis):
    for _ in range(21):
        kinesis.put_records("s", [Entry(b"x", "k")] * 500)
    iterator = kinesis.get_shard_iterator("s", FIRST, "TRIM_HORIZON")
    assert len(kinesis.get_records(iterator, 7).records) == 7
    page = kinesis.get_records(iterator)
    assert len(page.records) == 10_000
    assert len(kinesis.get_records(page.next_iterator).records) == 500


def test_a_page_holds_at_most_ten_mebibytes(kinesis):
    for _ in range(12):
        kinesis.put_record("s", b"x" * 1_000_000, "k")
    page = read(kinesis)
    assert len(page.records) == 10
    assert len(kinesis.get_records(page.next_iterator).records) == 2


def test_millis_behind_latest_is_the_age_of_the_next_unread_record(kinesis, clock):
    kinesis.put_record("s", b"0", "k")
    clock.advance(seconds=2)
    kinesis.put_record("s", b"1", "k")
    clock.advance(seconds=3)
    iterator = kinesis.get_shard_iterator("s", FIRST, "TRIM_HORIZON")
    first = kinesis.get_records(iterator, 1)
    assert first.millis_behind_latest == 3000
    clock.advance(seconds=1)
    assert (
        kinesis.get_records(iterator, 1).millis_behind_latest == 4000
    )  # by the wall clock, not by the records
    assert kinesis.get_records(first.next_iterator, 1).millis_behind_latest == 0


# Resharding


def test_a_split_closes_the_parent_and_its_reader_learns_the_children(kinesis):
    last = kinesis.put_record("s", b"before", "k").sequence_number
    kinesis.split("s", FIRST, 2**100)
    parent, low, high = kinesis.list_shards("s")
    assert int(last) < int(parent.ending_sequence_number) < int(low.starting_sequence_number)
    assert (low.parents, high.parents) == ((FIRST,), (FIRST,))
    assert (str(low.hash_range.first), str(low.hash_range.last)) == ("0", str(2**100 - 1))
    assert (str(high.hash_range.first), str(high.hash_range.last)) == (
        str(2**100),
        str(2**128 - 1),
    )
    after = kinesis.put_record("s", b"after", "k")
    assert after.shard_id in (SECOND, THIRD)
    assert int(after.sequence_number) > int(parent.ending_sequence_number)
    page, end = read_to_the_end(kinesis)
    assert (payloads(page), page.children) == ([b"before"], ())
    assert payloads(end) == []
    assert [child.shard_id for child in end.children] == [SECOND, THIRD]


def test_the_end_of_a_closed_shard_comes_only_after_its_last_record(kinesis):
    kinesis.put_records("s", [Entry(b"0", "k"), Entry(b"1", "k")])
    kinesis.split("s", FIRST)
    first = kinesis.get_records(kinesis.get_shard_iterator("s", FIRST, "TRIM_HORIZON"), 1)
    assert first.next_iterator is not None
    assert first.children == ()
    second = kinesis.get_records(first.next_iterator, 1)
    assert payloads(second) == [b"1"]
    assert second.next_iterator is not None
    end = kinesis.get_records(second.next_iterator, 1)
    assert (end.records, end.next_iterator) == ([], None)


def test_the_end_of_a_closed_shard_may_come_with_its_last_record(clock):
    kinesis = LocalKinesis(clock, read_span=ReadSpan(end_alone=0), listing_lag=0)
    kinesis.create_stream("s", 1)
    kinesis.put_record("s", b"0", "k")
    kinesis.split("s", FIRST)
    (page,) = read_to_the_end(kinesis)
    assert payloads(page) == [b"0"]
    assert len(page.children) == 2


def test_the_end_of_a_shard_that_closed_long_ago_is_that_far_behind(kinesis, clock):
    kinesis.put_record("s", b"0", "k")
    kinesis.split("s", FIRST)
    clock.advance(hours=2)
    page, end = read_to_the_end(kinesis)
    assert page.millis_behind_latest == end.millis_behind_latest == 2 * 3_600_000 - 1


# The stream time that one call covers


def follow(kinesis: LocalKinesis, iterator: str, most: int = 10_000) -> list[Page]:
    """Pages up to the tip."""
    pages = []
    for _ in range(most):
        pages.append(kinesis.get_records(iterator))
        if pages[-1].millis_behind_latest == 0:
            return pages
        iterator = pages[-1].next_iterator
    raise AssertionError("the tip was not reached")


def half_hours(clock) -> LocalKinesis:
    kinesis = LocalKinesis(clock, read_span=ReadSpan(1800, 1800))
    kinesis.create_stream("s", 1)
    return kinesis


def test_an_idle_shard_is_crossed_span_by_span_in_empty_pages(clock):
    kinesis = half_hours(clock)
    clock.advance(hours=3)
    pages = follow(kinesis, kinesis.get_shard_iterator("s", FIRST, "TRIM_HORIZON"))
    assert all(not page.records for page in pages)
    assert [page.millis_behind_latest for page in pages] == [n * 1_800_000 for n in (5, 4, 3, 2, 1, 0)]


def test_a_sparse_shard_gives_the_records_of_one_span_a_call(clock):
    kinesis = half_hours(clock)
    for number in range(4):
        kinesis.put_record("s", b"%d" % number, "k")
        clock.advance(hours=0.75)
    pages = follow(kinesis, kinesis.get_shard_iterator("s", FIRST, "TRIM_HORIZON"))
    assert [payloads(page) for page in pages] == [[b"0"], [b"1"], [], [b"2"], [b"3"], []]


def test_a_span_begins_at_the_trim_horizon_at_a_time_or_at_a_record(clock):
    kinesis = half_hours(clock)
    first = kinesis.put_record("s", b"0", "k").sequence_number
    clock.advance(hours=1)
    hour = clock.millis
    kinesis.put_record("s", b"1", "k")
    clock.advance(hours=23.5)
    assert read(kinesis).millis_behind_latest == 23.5 * 3_600_000, "from the trim horizon, not from the start"
    assert payloads(read(kinesis, kind="AT_TIMESTAMP", at_millis=hour)) == [b"1"]
    gone = read(kinesis, kind="AT_SEQUENCE_NUMBER", sequence_number=first)
    assert (payloads(gone), gone.millis_behind_latest) == ([], 23.5 * 3_600_000)
    assert read(kinesis, kind="LATEST").millis_behind_latest == 0


def test_a_page_that_its_limit_cuts_is_as_far_behind_as_the_next_record(clock):
    kinesis = half_hours(clock)
    for number in range(3):
        kinesis.put_record("s", b"%d" % number, "k")
        clock.advance(seconds=60)
    pages = []
    iterator = kinesis.get_shard_iterator("s", FIRST, "TRIM_HORIZON")
    for _ in range(3):
        pages.append(kinesis.get_records(iterator, 1))
        iterator = pages[-1].next_iterator
    assert [payloads(page) for page in pages] == [[b"0"], [b"1"], [b"2"]]
    assert [page.millis_behind_latest for page in pages] == [120_000, 60_000, 0]


def test_spans_are_drawn_between_their_bounds_and_alike_for_one_seed(clock):
    def lags(seed: int) -> list[int]:
        clock.millis = 1_700_000_000_000
        kinesis = LocalKinesis(clock, read_span=ReadSpan(60, 600), seed=seed)
        kinesis.create_stream("s", 1)
        clock.advance(hours=12)
        pages = follow(kinesis, kinesis.get_shard_iterator("s", FIRST, "TRIM_HORIZON"))
        return [page.millis_behind_latest for page in pages]

    steps = [before - after for before, after in itertools.pairwise(lags(1))]
    assert all(60_000 <= step <= 600_000 for step in steps[:-1])
    assert len(set(steps)) > len(steps) / 2
    assert lags(1) == lags(1) != lags(2)


@pytest.mark.parametrize("impossible", [(0, 1), (2, 1), (1, 1, 1.5)])
def test_an_impossible_span_is_refused(impossible):
    with pytest.raises(ValueError, match="is not possible"):
        ReadSpan(*impossible)


# Records of up to 10 MiB


def test_a_stream_takes_records_up_to_its_own_maximum(kinesis):
    assert kinesis.describe("s").max_record_kib == 1024
    kinesis.set_max_record_size("s", 10_240)
    kinesis.put_record("s", b"x" * (10 * 1024 * 1024 - 1), "k")
    with refusal("InvalidArgumentException"):
        kinesis.put_record("s", b"x" * 10 * 1024 * 1024, "k")
    assert len(read(kinesis).records) == 1


@pytest.mark.parametrize("kib", [1023, 10_241])
def test_a_maximum_that_kinesis_does_not_know_is_refused(kinesis, kib):
    with refusal("ValidationException"):
        kinesis.set_max_record_size("s", kib)


def test_a_page_ends_where_the_next_large_record_would_not_fit(kinesis, clock):
    kinesis.set_max_record_size("s", 10_240)
    for size in (4, 5, 9, 1):
        kinesis.put_record("s", bytes(size * 1024 * 1024 - 1), "k")
        clock.advance(seconds=1)
    pages = follow(kinesis, kinesis.get_shard_iterator("s", FIRST, "AT_TIMESTAMP", at_millis=0), most=3)
    assert [len(page.records) for page in pages] == [2, 2]


# ListShards lags


def test_a_reshard_is_listed_some_time_later_as_one_step(clock):
    kinesis = LocalKinesis(clock, listing_lag=5)
    kinesis.create_stream("s", 1)
    clock.advance(seconds=1)
    kinesis.split("s", FIRST)
    clock.advance(seconds=3)
    seen = {tuple((s.shard_id, s.is_open) for s in kinesis.list_shards("s")) for _ in range(50)}
    assert seen == {
        ((FIRST, True),),
        ((FIRST, False), (SECOND, True), (THIRD, True)),
    }
    clock.advance(seconds=3)
    assert len(kinesis.list_shards("s")) == 3
    latest = {tuple(s.shard_id for s in kinesis.list_shards("s", ShardFilter("AT_LATEST"))) for _ in range(9)}
    assert latest == {(SECOND, THIRD)}


@pytest.mark.parametrize("kind", ["TRIM_HORIZON", "LATEST"])
def test_an_empty_closed_shard_ends_at_once(kinesis, kind):
    kinesis.split("s", FIRST)
    page = read(kinesis, kind=kind)
    assert (page.records, page.next_iterator, page.millis_behind_latest) == ([], None, 0)
    assert len(page.children) == 2


def test_an_iterator_taken_before_the_split_reaches_the_end(kinesis):
    iterator = kinesis.get_shard_iterator("s", FIRST, "LATEST")
    kinesis.split("s", FIRST)
    assert kinesis.get_records(iterator).next_iterator is None


def test_a_merge_makes_one_child_of_two_neighbours(clock):
    kinesis = LocalKinesis(clock, listing_lag=0)
    kinesis.create_stream("s", 3)
    kinesis.merge("s", SECOND, FIRST)
    child = kinesis.list_shards("s")[-1]
    assert child.parents == (SECOND, FIRST)
    assert str(child.hash_range.first) == "0"
    for parent in (FIRST, SECOND):
        (seen,) = read_to_the_end(kinesis, parent)[-1].children
        assert seen == child
    assert kinesis.put_record("s", b"x", "a").shard_id == child.shard_id


def test_impossible_splits_and_merges_are_refused(clock):
    kinesis = LocalKinesis(clock, listing_lag=0)
    kinesis.create_stream("s", 3)
    last = str(2**128 - 1)
    for call, code in (
        (lambda: kinesis.merge("s", FIRST, THIRD), "InvalidArgumentException"),
        (lambda: kinesis.merge("s", FIRST, FIRST), "InvalidArgumentException"),
        (lambda: kinesis.merge("s", FIRST, "shardId-000000000009"), "ResourceNotFoundException"),
        (lambda: kinesis.split("s", FIRST, 0), "InvalidArgumentException"),
        (lambda: kinesis.split("s", FIRST, int(last)), "InvalidArgumentException"),
        (lambda: kinesis.split("s", "shardId-000000000009"), "ResourceNotFoundException"),
        (lambda: kinesis.split("t", FIRST), "ResourceNotFoundException"),
    ):
        with refusal(code):
            call()
    kinesis.split("s", FIRST)
    with refusal("InvalidArgumentException"):
        kinesis.split("s", FIRST)


@pytest.mark.parametrize(
    ("before", "target"), [(2, 4), (4, 2), (3, 5), (5, 3), (4, 6), (1, 2), (3, 3), (7, 4)]
)
def test_uniform_scaling_ends_with_equal_shards_that_cover_every_key(clock, before, target):
    kinesis = LocalKinesis(clock, listing_lag=0)
    kinesis.create_stream("s", before)
    assert kinesis.update_shard_count("s", target) == before
    shards = kinesis.list_shards("s")
    open_ranges = sorted((s.hash_range.first, s.hash_range.last) for s in shards if s.is_open)
    assert len(open_ranges) == target
    assert open_ranges[0][0] == 0
    assert open_ranges[-1][1] == 2**128 - 1
    assert all(left[1] + 1 == right[0] for left, right in itertools.pairwise(open_ranges))
    sizes = {end - start for start, end in open_ranges}
    assert max(sizes) - min(sizes) <= 1
    by_id = {shard.shard_id: shard for shard in shards}
    for shard in shards:
        assert all(not by_id[parent].is_open for parent in shard.parents)
        assert len(shard.parents) <= 2
        for parent in shard.parents:
            assert int(by_id[parent].ending_sequence_number) < int(shard.starting_sequence_number)


@pytest.mark.parametrize("target", [5, 9])
def test_scaling_to_more_than_double_is_refused(clock, target):
    kinesis = LocalKinesis(clock, listing_lag=0)
    kinesis.create_stream("s", 2)
    with refusal("LimitExceededException"):
        kinesis.update_shard_count("s", target)


# Retention


def test_records_older_than_the_retention_are_gone(kinesis, clock):
    old = kinesis.put_record("s", b"old", "k").sequence_number
    clock.advance(hours=1)
    kinesis.put_record("s", b"new", "k")
    clock.advance(hours=23)
    assert payloads(read(kinesis)) == [b"old", b"new"]
    clock.advance(seconds=0.001)
    assert payloads(read(kinesis)) == [b"new"]
    assert payloads(read(kinesis, kind="AT_SEQUENCE_NUMBER", sequence_number=old)) == [b"new"]


def test_a_longer_retention_keeps_records_and_a_shorter_one_drops_them_for_good(kinesis, clock):
    kinesis.set_retention("s", 48)
    kinesis.put_record("s", b"x", "k")
    clock.advance(hours=30)
    assert payloads(read(kinesis)) == [b"x"]
    kinesis.set_retention("s", 24)
    kinesis.set_retention("s", 48)
    assert payloads(read(kinesis)) == []
    for hours in (23, 8761):
        with refusal("InvalidArgumentException"):
            kinesis.set_retention("s", hours)


def test_a_closed_shard_disappears_when_its_retention_is_over(kinesis, clock):
    kinesis.put_record("s", b"x", "k")
    clock.advance(hours=1)
    kinesis.split("s", FIRST)
    clock.advance(hours=23.999)
    assert kinesis.list_shards("s")[0].shard_id == FIRST
    iterator = kinesis.get_shard_iterator("s", FIRST, "TRIM_HORIZON")
    clock.advance(seconds=10)
    with refusal("ResourceNotFoundException"):
        kinesis.get_records(iterator)
    with refusal("ResourceNotFoundException"):
        kinesis.get_shard_iterator("s", FIRST, "TRIM_HORIZON")
    shards = kinesis.list_shards("s")
    assert [shard.shard_id for shard in shards] == [SECOND, THIRD]
    assert shards[0].parents == (FIRST,)  # a child still names the parent that is gone


# Limits and faults


def test_five_reads_a_second_when_limits_are_on(clock):
    kinesis = LocalKinesis(clock, limits=True, listing_lag=0)
    kinesis.create_stream("s", 1)
    iterator = kinesis.get_shard_iterator("s", FIRST, "LATEST")
    for _ in range(5):
        kinesis.get_records(iterator)
    with refusal("ProvisionedThroughputExceededException"):
        kinesis.get_records(iterator)
    clock.advance(seconds=0.2)
    kinesis.get_records(iterator)


def test_a_big_read_must_be_paid_back_at_two_mebibytes_a_second(clock):
    kinesis = LocalKinesis(clock, limits=True, listing_lag=0)
    kinesis.create_stream("s", 1)
    for _ in range(8):
        kinesis.put_record("s", b"x" * 1_000_000, "k")
        clock.advance(seconds=1)
    iterator = kinesis.get_shard_iterator("s", FIRST, "TRIM_HORIZON")
    assert len(kinesis.get_records(iterator).records) == 8
    clock.advance(seconds=2.5)
    with refusal("ProvisionedThroughputExceededException"):
        kinesis.get_records(iterator)
    clock.advance(seconds=0.5)
    kinesis.get_records(iterator)


def test_a_batch_over_the_write_rate_fails_in_part(clock):
    kinesis = LocalKinesis(clock, limits=True, listing_lag=0)
    kinesis.create_stream("s", 1)
    for _ in range(2):
        assert not any(isinstance(a, AwsError) for a in kinesis.put_records("s", [Entry(b"x", "k")] * 500))
    (answer,) = kinesis.put_records("s", [Entry(b"x", "k")])
    assert isinstance(answer, AwsError)
    assert answer.code == "ProvisionedThroughputExceededException"
    with pytest.raises(AwsError):
        kinesis.put_record("s", b"x", "k")
    clock.advance(seconds=1)
    kinesis.put_record("s", b"x", "k")
    assert kinesis.put_counts("s") == {FIRST: 1001}


def test_one_mebibyte_a_second_may_be_written(clock):
    kinesis = LocalKinesis(clock, limits=True, listing_lag=0)
    kinesis.create_stream("s", 1)
    answers = kinesis.put_records("s", [Entry(b"x" * 400_000, "k")] * 4)
    assert [isinstance(answer, AwsError) for answer in answers] == [False, False, True, True]


def test_the_fault_hook_decides_the_outcome_and_sees_what_is_asked(kinesis):
    asked = []

    def fail(operation: str, stream: str, shard_id: str) -> None:
        asked.append((operation, stream, shard_id))
        if operation == "GetRecords":
            raise AwsError("InternalFailure", "on purpose", 500)

    iterator = kinesis.get_shard_iterator("s", FIRST, "LATEST")
    kinesis.fault = fail
    kinesis.put_record("s", b"x", "k")
    with pytest.raises(AwsError, match="on purpose"):
        kinesis.get_records(iterator)
    assert asked == [("PutRecord", "s", ""), ("GetRecords", "s", FIRST)]
    kinesis.fault = None
    assert payloads(kinesis.get_records(iterator)) == [b"x"]


def test_many_threads_put_without_losing_or_doubling_a_sequence_number(kinesis):
    from concurrent.futures import ThreadPoolExecutor

    def put(number: int) -> str:
        return kinesis.put_record("s", b"%d" % number, str(number)).sequence_number

    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(put, range(800)))
    records = read(kinesis).records
    assert len(set(numbers)) == 800
    assert [record.sequence_number for record in records] == sorted(numbers)
