"""StreamWriter: every record is in, at least once, whatever Kinesis refuses, and the accounts are true at any end."""

import itertools
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pykcl.errors import SetupError, TemporaryError, Throttled
from pykcl.local.stream import LocalKinesis
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.kpl import deaggregate_batch
from pykcl.model.new_record import NewRecord, PutAnswer
from pykcl.operate.streams.writer import (
    LINGER,
    MAX_BYTES,
    MAX_BYTES_OF_LARGE_RECORDS,
    GivenUp,
    Outlet,
    StreamWriter,
)
from pykcl.testing.memory.stream import MemoryStream


@pytest.fixture
def putting(kinesis, stream, runtime):
    return lambda trouble=lambda _: None, **options: Rig(kinesis, stream, runtime, trouble, **options)


class Rig:
    """A StreamWriter over the stream in memory. trouble: called with the records of each request; may raise, or answer
    with the indexes of the records to be refused."""

    def __init__(self, kinesis, stream, runtime, trouble, largest=1024 * 1024, **options):
        self.kinesis, self.stream, self.trouble = kinesis, stream, trouble
        self.requests = []
        self.notices = []
        self.stop, self.give_up = runtime.event(), runtime.event()
        self.putting = StreamWriter(
            Outlet(self.put, lambda: stream.list_shards().shards, largest),
            runtime,
            stop=self.stop,
            give_up=self.give_up,
            on_notice=self.notices.append,
            **options,
        )

    def put(self, records):
        refused = self.trouble(records) or ()
        self.requests.append(records)
        return [
            PutAnswer(None, "ProvisionedThroughputExceededException")
            if at in refused
            else PutAnswer(self._store(record))
            for at, record in enumerate(records)
        ]

    def _store(self, record):
        key = record.explicit_hash_key
        return self.kinesis.put_record(
            "s", record.data, record.partition_key, None if key is None else int(key)
        ).shard_id

    def take(self, numbers):
        for number in numbers:
            self.putting.take(number, NewRecord(b"%d" % number, f"key-{number}"))

    def seen(self):
        """What a consumer is given, shard by shard, with its rule for aggregates that straddle shards."""
        seen = Counter()
        for shard in self.kinesis.list_shards("s", operation=None):
            iterator = self.stream.open(shard.shard_id, ReadFrom("TRIM_HORIZON"))
            page = self.stream.fetch(shard.shard_id, iterator, 10_000)
            seen.update(record.data for record in deaggregate_batch(page.records, shard.hash_range))
        return seen


def payloads(numbers):
    return {b"%d" % number for number in numbers}


def test_batches_keep_to_500_records(putting):
    rig = putting()
    rig.take(range(1, 1202))
    rig.putting.flush()
    assert [len(records) for records in rig.requests] == [500, 500, 201]
    assert rig.putting.tally.put == 1201
    assert rig.seen() == Counter(payloads(range(1, 1202)))


@pytest.mark.parametrize(
    ("largest", "most"), [(1024 * 1024, MAX_BYTES), (10 * 1024 * 1024, MAX_BYTES_OF_LARGE_RECORDS)]
)
def test_batches_keep_to_the_bytes_of_a_request(putting, largest, most):
    rig = putting(largest=largest)
    for number in range(1, 30):
        rig.putting.take(number, NewRecord(b"x" * 1_000_000, "k"))
    rig.putting.flush()
    sizes = [sum(record.size for record in records) for records in rig.requests]
    assert max(sizes) <= most
    assert all(size > most - 1_000_001 for size in sizes[:-1])


def test_what_is_refused_is_sent_again_until_it_is_in(putting):
    rig = putting(lambda records: range(1, len(records)))
    rig.take(range(1, 21))
    rig.putting.flush()
    assert rig.seen() == Counter(payloads(range(1, 21)))
    assert rig.putting.tally.put == 20
    assert rig.putting.tally.sent_again == sum(range(20))
    assert rig.putting.complete_through == 20


def test_a_refused_request_is_sent_again_after_a_growing_pause(putting, runtime):
    times = []

    def throttled(_):
        times.append(runtime.seconds)
        if len(times) < 8:
            raise Throttled("x")

    rig = putting(throttled)
    rig.take([1])
    rig.putting.flush()
    pauses = [later - before for before, later in itertools.pairwise(times)]
    assert 0.05 <= pauses[0] <= 0.1
    assert 2.5 <= pauses[-1] <= 5
    assert rig.seen() == Counter(payloads([1]))
    assert rig.putting.tally.perhaps_twice == 0


def test_a_lost_answer_may_put_records_twice_and_that_is_counted(putting):
    lost = []

    def lose(records):
        if not lost:
            lost.append(1)
            rig.trouble = lambda _: None
            rig.put(records)
            raise TemporaryError("no answer")

    rig = putting(lose)
    rig.take(range(1, 6))
    rig.putting.flush()
    assert rig.seen() == Counter(dict.fromkeys(payloads(range(1, 6)), 2))
    assert (rig.putting.tally.put, rig.putting.tally.perhaps_twice) == (5, 5)


def test_trouble_that_lasts_is_told(putting, runtime):
    rig = putting(lambda records: range(len(records)) if runtime.seconds < 60 else ())
    rig.take([1, 2])
    rig.putting.flush()
    assert 3 <= len(rig.notices) <= 6
    assert "2 records are not put yet" in rig.notices[0]


def test_what_no_repetition_can_help_leaves_true_accounts(putting):
    def refuse(_):
        if len(rig.requests) == 2:
            raise SetupError("not permitted")

    rig = putting(refuse)
    with pytest.raises(SetupError):
        rig.take(range(1, 2000))
    assert rig.putting.complete_through == 1000
    assert rig.putting.tally.put == 1000


def test_giving_up_leaves_true_accounts(putting):
    rig = putting(lambda records: range(2, len(records)))
    rig.take(range(1, 11))
    rig.give_up.set()
    with pytest.raises(GivenUp):
        rig.putting.flush()
    assert rig.putting.complete_through == 2
    assert rig.putting.tally.put == 2


def test_records_wait_for_company_but_not_long(putting, runtime):
    rig = putting()
    rig.take([1])
    rig.putting.flush_when_due()
    assert rig.requests == []
    runtime.seconds += LINGER
    rig.putting.flush_when_due()
    assert len(rig.requests) == 1


@pytest.mark.parametrize("rate", [0.5, 5, 300, 5000])
def test_a_rate_is_kept_evenly(putting, runtime, rate):
    count = max(4, int(rate * 3))
    at = []
    rig = putting(lambda records: at.extend([runtime.seconds] * len(records)), rate=rate)
    rig.take(range(1, count + 1))
    rig.putting.flush()
    assert len(at) == count
    assert runtime.seconds == pytest.approx((count - 1) / rate, abs=0.11)
    for number, seconds in enumerate(at):
        assert seconds >= number / rate - 0.11


def test_a_rate_does_not_make_up_for_a_long_pause(putting, runtime):
    rig = putting(rate=10)
    rig.take(range(1, 11))
    runtime.seconds += 100
    began = runtime.seconds
    rig.take(range(11, 51))
    assert runtime.seconds - began > 3


# -- aggregates ------------------------------------------------------------------------------------------------


def test_aggregates_are_grouped_by_shard_so_that_consumers_open_each(putting):
    rig = putting(aggregate=True)
    rig.take(range(1, 5001))
    rig.putting.flush()
    assert rig.seen() == Counter(payloads(range(1, 5001)))
    assert sum(map(len, rig.requests)) < 10
    assert rig.putting.tally.put == 5000


def test_a_record_too_large_for_an_aggregate_goes_by_itself_and_in_its_turn(putting, kinesis, stream):
    rig = putting(aggregate=True)
    for number, data in enumerate([b"a", b"x" * 60_000, b"b", b"c"], 1):
        rig.putting.take(number, NewRecord(data, "same"))
    rig.putting.flush()
    kept = [len(record.data) for records in rig.requests for record in records]
    assert kept[:2] == [1, 60_000]
    assert sorted(rig.seen()) == [b"a", b"b", b"c", b"x" * 60_000]


@pytest.mark.parametrize("when", [0, 1, 2])
@pytest.mark.parametrize("how", ["split", "merge"])
def test_a_reshard_between_grouping_and_putting_loses_nothing(putting, kinesis, how, when):
    def reshard(_):
        if len(rig.requests) == when:
            rig.trouble = lambda _: None
            if how == "split":
                kinesis.split("s", "shardId-000000000000")
                kinesis.split("s", "shardId-000000000001")
            else:
                kinesis.merge("s", "shardId-000000000000", "shardId-000000000001")

    rig = putting(reshard, aggregate=True)
    for start in range(1, 3001, 1000):
        rig.take(range(start, start + 1000))
        rig.putting.flush()
    assert rig.seen().keys() == payloads(range(1, 3001))
    # Merged, the new shard takes all keys of the old ones: what landed there is seen, and need not be sent again.
    if how == "merge":
        assert set(rig.seen().values()) == {1}
    # Not again and again for as long as ListShards does not show the new shards.
    assert rig.putting.tally.sent_again <= 1000
    assert rig.putting.tally.put == 3000
    assert rig.putting.complete_through == 3000


def test_a_listing_that_fails_is_repeated(putting, kinesis, stream):
    listing, failures = stream.list_shards, []

    def fail_once():
        if not failures:
            failures.append(1)
            raise TemporaryError("no")
        return listing()

    stream.list_shards = fail_once
    rig = putting(aggregate=True)
    rig.take([1, 2])
    rig.putting.flush()
    assert rig.seen() == Counter(payloads([1, 2]))


def test_what_waits_in_an_open_aggregate_is_not_in(putting):
    rig = putting(aggregate=True)
    rig.take(range(1, 11))
    rig.putting.flush()
    rig.take(range(11, 21))
    assert rig.putting.complete_through == 10
    rig.putting.flush()
    assert rig.putting.complete_through == 20


def test_accounts_of_aggregates_are_true_when_it_is_given_up(putting):
    rig = putting(lambda records: range(len(records)), aggregate=True)
    rig.take(range(1, 101))
    rig.give_up.set()
    with pytest.raises(GivenUp):
        rig.putting.flush()
    assert rig.putting.complete_through == 0
    assert rig.putting.tally.put == 0


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    chances=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    aggregate=st.booleans(),
    sizes=st.lists(
        st.sampled_from([1, 100, 9_000, 49_000, 51_150, 51_300, 300_000]), min_size=1, max_size=60
    ),
)
def test_whatever_happens_everything_is_in_and_counted(new_runtime, chances, aggregate, sizes):
    runtime = new_runtime()
    kinesis = LocalKinesis(runtime.utcnow_millis)
    kinesis.create_stream("s", 2)
    rig = Rig(kinesis, MemoryStream(kinesis, "s", runtime), runtime, lambda _: None, aggregate=aggregate)
    script = iter(chances)

    def trouble(records):
        chance = next(script, 0)
        if chance == 1:
            raise Throttled("x")
        if chance == 2:
            rig.trouble, before = (lambda _: None), rig.trouble
            rig.put(records)
            rig.trouble = before
            raise TemporaryError("lost")
        if chance == 3:
            opened = [shard for shard in kinesis.list_shards("s", operation=None) if shard.is_open]
            rig.kinesis.split("s", opened[0].shard_id)
        if chance == 4:
            return range(0, len(records), 2)
        return ()

    rig.trouble = trouble
    for number, size in enumerate(sizes, 1):
        rig.putting.take(number, NewRecord(b"%08d" % number * max(1, size // 8), f"key-{number}"))
    rig.putting.flush()
    expected = {b"%08d" % number * max(1, size // 8) for number, size in enumerate(sizes, 1)}
    assert rig.seen().keys() == expected
    assert rig.putting.tally.put == len(sizes)
    assert rig.putting.complete_through == len(sizes)
