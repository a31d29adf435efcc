"""The accumulator decides what goes when: batches, aggregates, rates, retries, reshards. No thread, no clock."""

import itertools
from base64 import b64decode
from collections import Counter
from datetime import UTC, datetime
from math import inf

import pytest
from aws_kinesis_agg.deaggregator import iter_deaggregate_records
from hypothesis import given, settings
from hypothesis import strategies as st

from pykcl.errors import NotDelivered, SetupError, TemporaryError, Throttled
from pykcl.local.stream import LocalKinesis
from pykcl.model.kpl import MAGIC
from pykcl.model.new_record import NewRecord, PutAnswer
from pykcl.producer.accumulator import (
    MAX_AGGREGATE,
    MAX_BYTES,
    MAX_BYTES_OF_LARGE_RECORDS,
    ONE_MIB,
    SETUP_PATIENCE,
    Accumulator,
    Options,
    PendingRecord,
    PutResult,
)
from pykcl.producer.limits import ShardRate
from pykcl.producer.shard_map import ShardMap
from pykcl.testing.memory.stream import MemoryStream
from tests.producer.stream_kit import Clock, seen_by_consumers, seen_by_shard

REFUSED = PutAnswer(None, "ProvisionedThroughputExceededException")


class Rig:
    """An accumulator over the stream in memory, driven by a loop without threads. trouble: called with the records of
    each request; may raise, or answer with the indexes of the records to be refused."""

    def __init__(self, clock, kinesis, *, ttl=inf, listing=True, **options):
        self.clock, self.kinesis, self.ttl = clock, kinesis, ttl
        self.stream = MemoryStream(kinesis, "s", clock)
        self.plan = Accumulator(Options(**{"rate_limit": inf, **options}))
        self.plan.place(self.listed() if listing else None, clock.seconds)
        self.numbers = itertools.count(1)
        self.trouble = lambda _: ()
        self.sent, self.times, self.outcomes = [], [], {}

    def listed(self):
        return ShardMap(self.stream.list_shards().shards)

    def add(self, data, key="k", hash_key=None):
        number, now = next(self.numbers), self.clock.seconds
        record = PendingRecord(NewRecord(data, key, hash_key), number, now, now + self.ttl)
        self.note(self.plan.add(record, now))

    def add_many(self, numbers, key="key-{}"):
        for number in numbers:
            self.add(b"%d" % number, key.format(number))

    def note(self, outcomes):
        for record, outcome in outcomes:
            assert record.number not in self.outcomes, "an outcome is final"
            self.outcomes[record.number] = outcome

    def step(self):
        """Do what is due; return False where there is nothing."""
        now = self.clock.seconds
        self.note(self.plan.expire(now))
        if self.plan.needs_listing(now):
            self.note(self.plan.place(self.listed(), now))
        request = self.plan.take(now)
        if request is None:
            return False
        records = [parcel.record for parcel in request]
        self.sent.append(records)
        self.times.append(now)
        try:
            refused = self.trouble(records) or ()
            answers = [
                REFUSED if at in refused else self.stream.put([record])[0]
                for at, record in enumerate(records)
            ]
        except (Throttled, TemporaryError, SetupError) as error:
            self.note(self.plan.report_failure(request, error, now, self.clock.random))
        else:
            self.note(self.plan.report(request, answers, now, self.clock.random))
        return True

    def run(self):
        """Go on until nothing is left to do."""
        for _ in range(10_000):
            while self.step():
                continue
            due = self.plan.due_in(self.clock.seconds)
            if due == inf:
                return
            assert due > 0, "it asks to be asked again at once, for ever"
            self.clock.seconds += due
        raise AssertionError("it never ends")

    def results(self):
        return [self.outcomes[number] for number in sorted(self.outcomes)]


@pytest.fixture
def rig(clock, kinesis):
    return lambda **options: Rig(clock, kinesis, **options)


def payloads(numbers):
    return Counter(b"%d" % number for number in numbers)


# -- batches -----------------------------------------------------------------------------------------------------------


def test_batches_keep_to_500_records(rig, kinesis):
    one = rig(aggregate=False)
    one.add_many(range(1201))
    one.run()
    assert [len(records) for records in one.sent] == [500, 500, 201]
    assert seen_by_consumers(kinesis) == payloads(range(1201))


@pytest.mark.parametrize("aggregate", [True, False])
@pytest.mark.parametrize("most", [MAX_BYTES, MAX_BYTES_OF_LARGE_RECORDS])
def test_batches_keep_to_the_bytes_of_a_request(rig, most, aggregate):
    one = rig(aggregate=aggregate, max_request_bytes=most)
    for _ in range(29):
        one.add(b"x" * 1_000_000)
    one.run()
    sizes = [sum(record.size for record in records) for records in one.sent]
    assert max(sizes) <= most
    assert all(size > most - 1_000_001 for size in sizes[:-1])


def test_a_record_waits_for_company_and_not_long(rig, clock):
    one = rig(linger=0.2)
    one.add(b"a")
    assert not one.step()
    assert one.plan.due_in(clock.seconds) == pytest.approx(0.2)
    clock.seconds += 0.15
    one.add(b"b")
    assert one.plan.due_in(clock.seconds) == pytest.approx(0.05)
    clock.seconds += 0.05
    assert one.step()
    assert len(one.results()) == 2


def test_a_full_batch_and_an_urged_record_do_not_wait(rig, clock):
    one = rig(aggregate=False)
    one.add_many(range(1000))
    assert one.step()
    assert one.plan.due_in(clock.seconds) == 0
    assert one.step()
    one.add(b"a")
    assert not one.step()
    one.plan.urge(1001)
    assert one.step()
    one.add(b"b")
    assert not one.step()


# -- aggregates --------------------------------------------------------------------------------------------------------


def test_aggregates_have_records_of_one_shard_so_that_consumers_open_each(rig, kinesis):
    one = rig()
    one.add_many(range(5000))
    one.run()
    assert seen_by_consumers(kinesis) == payloads(range(5000))
    records = [record for request in one.sent for record in request]
    assert len(records) < 10
    assert max(len(record.data) for record in records) <= MAX_AGGREGATE


def test_a_result_names_the_place_of_the_record_within_its_aggregate(rig, kinesis):
    one = rig()
    for data in (b"a", b"b", b"c"):
        one.add(data, "same")
    one.run()
    first, *_ = results = one.results()
    assert [result.sub_sequence_number for result in results] == [0, 1, 2]
    assert {result.sequence_number for result in results} == {first.sequence_number}
    assert seen_by_shard(kinesis)[first.shard_id] == [b"a", b"b", b"c"]
    assert (first.attempts, first.perhaps_twice) == (1, False)


def test_a_single_record_and_one_too_large_for_an_aggregate_go_plain_and_in_turn(rig, kinesis):
    one = rig()
    for data in (b"a", b"x" * 60_000, b"b", b"c"):
        one.add(data, "same")
    one.run()
    sent = [record.data for record in one.sent[0]]
    assert sent[:2] == [b"a", b"x" * 60_000]
    assert sent[2].startswith(MAGIC)


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 256), st.booleans()), min_size=1, max_size=60))
@settings(max_examples=40)
def test_no_aggregate_is_larger_than_it_was_counted(shapes):
    clock = Clock()
    kinesis = LocalKinesis(clock.utcnow_millis)
    kinesis.create_stream("s", 1)
    one = Rig(clock, kinesis)
    for size, key, explicit in shapes:
        one.add(b"x" * size, "\U0001f600" * key, str(2**127 + key) if explicit else None)
    one.run()
    for record in itertools.chain.from_iterable(one.sent):
        assert record.size <= max(MAX_AGGREGATE, *(size + 4 * key for size, key, _ in shapes))
        if record.data.startswith(MAGIC):
            assert len(record.data) > 20
    assert len(one.results()) == len(shapes)


def test_what_was_written_is_read_by_aws_kinesis_agg(rig):
    one = rig()
    one.add_many(range(300))
    one.run()
    written = [
        {
            "Data": record.data,
            "PartitionKey": record.partition_key,
            "SequenceNumber": "1",
            "ApproximateArrivalTimestamp": datetime.fromtimestamp(0, tz=UTC),
        }
        for record in itertools.chain.from_iterable(one.sent)
    ]
    assert len(written) == 2
    read = [b64decode(user["kinesis"]["data"]) for user in iter_deaggregate_records(written, "Boto3")]
    assert Counter(read) == payloads(range(300))


def test_without_a_listing_all_goes_plain(rig, kinesis):
    one = rig(listing=False)
    one.add_many(range(20))
    one.run()
    assert [len(records) for records in one.sent] == [20]
    assert seen_by_consumers(kinesis) == payloads(range(20))


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_exactly_the_refused_records_go_again(rig, kinesis):
    one = rig(aggregate=False)
    one.add_many(range(20))
    one.trouble = lambda records: range(1, len(records))
    one.run()
    assert seen_by_consumers(kinesis) == payloads(range(20))
    assert all(isinstance(result, PutResult) and not result.perhaps_twice for result in one.results())
    assert max(result.attempts for result in one.results()) > 5


def test_a_refused_request_goes_again_after_a_growing_pause(rig):
    one = rig()

    def throttled(_):
        if len(one.sent) < 9:
            raise Throttled("x")

    one.trouble = throttled
    one.add(b"a")
    one.run()
    pauses = [later - before for before, later in itertools.pairwise(one.times)]
    assert 0.05 <= pauses[0] <= 0.1
    assert 2.5 <= pauses[-1] <= 5
    assert one.results()[0][3:] == (9, False)


def test_a_shard_that_refuses_does_not_hold_up_the_others(rig, kinesis):
    one = rig()
    hot = next(
        f"k{at}" for at in range(99) if one.listed().shard_of(NewRecord(b"", f"k{at}").hash_key)[-1] == "0"
    )
    cold = next(
        f"k{at}" for at in range(99) if one.listed().shard_of(NewRecord(b"", f"k{at}").hash_key)[-1] == "1"
    )
    one.trouble = lambda records: [at for at, record in enumerate(records) if record.partition_key == hot]
    for _ in range(3):
        one.add(b"hot", hot)
        one.add(b"cold", cold)
        one.clock.seconds += 0.11
        while one.step():
            continue
    assert seen_by_consumers(kinesis) == {b"cold": 3}
    assert sorted(one.outcomes) == [2, 4, 6]


def test_a_lost_answer_marks_every_record_of_the_request(rig, kinesis):
    one = rig()

    def lose(records):
        one.trouble = lambda _: ()
        one.stream.put(records)
        raise TemporaryError("no answer")

    one.trouble = lose
    one.add_many(range(5))
    one.run()
    assert seen_by_consumers(kinesis) == dict.fromkeys(payloads(range(5)), 2)
    assert all(result.perhaps_twice for result in one.results())


@pytest.mark.parametrize(
    ("code", "doubt"), [("ProvisionedThroughputExceededException", False), ("InternalFailure", True)]
)
def test_a_record_that_kinesis_failed_with_may_be_there_and_a_throttled_one_is_not(rig, clock, code, doubt):
    one = rig(linger=0.0)
    one.add(b"a")
    request = one.plan.take(clock.seconds)
    one.note(one.plan.report(request, [PutAnswer(None, code)], clock.seconds, clock.random))
    one.run()
    assert one.results()[0].perhaps_twice is doubt


def test_missing_permission_is_waited_for_and_then_final(rig, clock):
    one = rig()

    def refuse(_):
        raise SetupError("not permitted")

    one.trouble = refuse
    one.add(b"a")
    one.run()
    (error,) = one.results()
    assert isinstance(error, SetupError)
    assert SETUP_PATIENCE <= clock.seconds < SETUP_PATIENCE + 6


def test_a_record_that_may_be_in_says_so_when_a_missing_permission_ends_it(rig, clock):
    one = rig(linger=0.0)

    def trouble(_):
        if clock.seconds == 0.0:
            raise TemporaryError("no answer")
        raise SetupError("not permitted.").about("E02", "grant it")

    one.trouble = trouble
    one.add(b"a")
    one.step()
    clock.seconds = 1.0
    one.add(b"b")
    one.run()
    doubtful, certain = one.results()
    assert isinstance(doubtful, NotDelivered)
    assert doubtful.perhaps_put
    assert str(doubtful).startswith("not permitted. A request with the record had no answer")
    assert (doubtful.code, doubtful.hint, doubtful.__cause__) == ("E02", "grant it", certain)
    assert isinstance(certain, SetupError)


def test_missing_permission_that_comes_in_time_fails_nothing(rig, clock):
    one = rig()

    def refuse(_):
        if clock.seconds < SETUP_PATIENCE / 2:
            raise SetupError("not permitted")

    one.trouble = refuse
    one.add(b"a")
    one.run()
    (result,) = one.results()
    assert (result.attempts > 1, result.perhaps_twice) == (True, False)


def test_the_patience_with_a_missing_permission_begins_anew_after_another_failure(rig, clock):
    one = rig()

    def trouble(_):
        if SETUP_PATIENCE / 2 < clock.seconds < 2 * SETUP_PATIENCE:
            raise TemporaryError("no answer")
        if clock.seconds < 2.5 * SETUP_PATIENCE:
            raise SetupError("not permitted")

    one.trouble = trouble
    one.add(b"a")
    one.run()
    assert one.results()[0].perhaps_twice


def test_a_record_whose_time_runs_out_fails_and_says_whether_it_may_be_in(rig, clock):
    one = rig(ttl=3.0)

    def lost(_):
        raise TemporaryError("no answer")

    one.trouble = lost
    one.add(b"a")
    one.run()
    (error,) = one.results()
    assert isinstance(error, NotDelivered)
    assert error.perhaps_put
    assert clock.seconds == pytest.approx(3.0, abs=0.01)


# -- rates -------------------------------------------------------------------------------------------------------------


def test_a_shard_gets_a_thousand_records_a_second(rig, clock):
    one = rig(aggregate=False, rate_limit=1.0)
    for _ in range(5000):
        one.add(b"x", "same")
    one.run()
    assert clock.seconds == pytest.approx(4.1, abs=0.2)


@pytest.mark.parametrize("aggregate", [True, False])
def test_a_shard_gets_a_mebibyte_a_second(rig, clock, aggregate):
    one = rig(aggregate=aggregate, rate_limit=1.0)
    for _ in range(500):
        one.add(b"x" * 10_240, "same")
    one.run()
    assert clock.seconds == pytest.approx(500 * 10_240 / ONE_MIB - 0.9, abs=0.3)


def test_a_large_record_goes_when_the_shard_has_rested_and_the_next_waits_for_it(clock):
    rate = ShardRate(1.0, 0.0)
    assert rate.wait_for(4 * ONE_MIB, 0.0) == 0
    rate.spend(4 * ONE_MIB)
    assert rate.wait_for(100, 0.0) == pytest.approx(3, abs=0.01)
    assert rate.wait_for(100, 3.01) == 0


def test_a_throttled_shard_is_written_to_more_slowly_and_recovers():
    rate = ShardRate(1.0, 0.0)
    rate.throttled(0.0)
    rate.throttled(0.1)
    assert rate.share == pytest.approx(0.7, abs=0.01)
    rate.throttled(1.2)
    assert rate.share == pytest.approx(0.53, abs=0.02)
    for second in range(2, 60):
        rate.throttled(float(second))
    assert 0.1 <= rate.share < 0.3
    rate.wait_for(1, 100.0)
    assert rate.share == 1.0


def test_two_producers_on_one_shard_get_all_of_it_in_the_end(clock):
    kinesis = LocalKinesis(clock.utcnow_millis, limits=True)
    kinesis.create_stream("s", 1)
    both = [Rig(clock, kinesis, aggregate=False, rate_limit=1.0) for _ in range(2)]
    for one, at in itertools.product(both, range(2000)):
        one.add(b"%d" % at)
    while any(len(one.outcomes) < 2000 for one in both):
        for one in both:
            while one.step():
                continue
        clock.seconds += 0.01
    assert sum(seen_by_consumers(kinesis).values()) == 4000
    assert clock.seconds < 10


# -- reshards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("when", [1, 2, 3])
@pytest.mark.parametrize("how", ["split", "merge"])
def test_a_reshard_between_listing_and_putting_loses_nothing(rig, kinesis, clock, how, when, ordered):
    one = rig(ordered=ordered)

    def reshard(_):
        if len(one.sent) == when:
            one.trouble = lambda _: ()
            if how == "split":
                kinesis.split("s", "shardId-000000000000")
                kinesis.split("s", "shardId-000000000001")
            else:
                kinesis.merge("s", "shardId-000000000000", "shardId-000000000001")

    one.trouble = reshard
    for start in range(0, 3000, 1000):
        one.add_many(range(start, start + 1000))
        one.run()
    assert seen_by_consumers(kinesis) == payloads(range(3000))
    again = [result for result in one.results() if result.attempts > 1]
    # Merged, the new shard takes all keys of the old ones: consumers see what landed there.
    assert len(again) <= (1000 if how == "split" else 0)
    assert all(result.perhaps_twice for result in again)


def test_records_in_a_shard_that_nobody_can_list_do_not_wait_for_ever_and_may_be_in(rig, kinesis, clock):
    one = rig(ttl=5.0)
    for at in range(40):
        one.add(b"%d" % at, f"k{at}")
    kinesis.split("s", "shardId-000000000000")
    clock.seconds += 0.1
    while request := one.plan.take(clock.seconds):
        answers = [one.stream.put([parcel.record])[0] for parcel in request]
        one.note(one.plan.report(request, answers, clock.seconds, clock.random))
    assert one.plan.is_delayed
    assert 0 < len(one.outcomes) < 40
    clock.seconds += 5
    one.note(one.plan.expire(clock.seconds))
    late = [result for result in one.results() if isinstance(result, NotDelivered)]
    assert len(one.outcomes) == 40
    assert late
    assert all(error.perhaps_put for error in late)


def test_records_in_a_shard_that_is_not_listed_yet_may_be_in_when_they_are_dropped(rig, kinesis, clock):
    one = rig(linger=0.0)
    for at in range(40):
        one.add(b"%d" % at, f"k{at}")
    kinesis.split("s", "shardId-000000000000")
    request = one.plan.take(clock.seconds)
    answers = [one.stream.put([parcel.record])[0] for parcel in request]
    one.note(one.plan.report(request, answers, clock.seconds, clock.random))
    left = one.plan.drop()
    assert left
    assert all(record.perhaps_twice for record in left)


def test_a_stream_that_begins_to_ignore_keys_gets_plain_records(clock):
    kinesis = LocalKinesis(clock.utcnow_millis)
    kinesis.create_stream("s", 4, mode="ON_DEMAND")
    one = Rig(clock, kinesis)
    kinesis.set_distribution("s", "AUTO")
    one.add_many(range(200))
    one.run()
    assert len(one.results()) == 200
    assert one.plan.ignores_keys
    one.sent.clear()
    one.add_many(range(200, 400))
    one.run()
    assert Counter(record.data for request in one.sent for record in request) == payloads(range(200, 400))


@pytest.mark.parametrize("records", [1, 20])
def test_a_record_that_lands_in_a_child_of_its_shard_behind_the_listing_shows_no_stream_that_ignores_keys(
    rig, kinesis, clock, records
):
    one = rig(linger=0.0)
    for at in range(records):
        one.add(b"%d" % at, "same")
    sent = one.plan.take(clock.seconds)
    kinesis.split("s", sent[0].queue.shard_id)
    clock.seconds += 1
    one.plan.place(one.listed(), clock.seconds)
    one.note(one.plan.report(sent, one.stream.put([one.record for one in sent]), clock.seconds, clock.random))
    clock.seconds += 1
    one.plan.place(one.listed(), clock.seconds)
    assert not one.plan.ignores_keys
    assert len(one.results()) == records


# -- order -------------------------------------------------------------------------------------------------------------


def test_ordered_one_record_at_a_time_is_in_flight_for_a_shard_and_a_large_one(rig, clock):
    one = rig(ordered=True, rate_limit=1.0)
    for at in range(6000):
        one.add(b"%0200d" % at, "same")
    clock.seconds += 1
    first = one.plan.take(clock.seconds)
    assert [len(parcel.users) > 3000 for parcel in first] == [True]
    assert first[0].record.size <= ONE_MIB
    clock.seconds += 5
    assert one.plan.take(clock.seconds) is None
    landed = PutAnswer(first[0].queue.shard_id, None, "1")
    one.plan.report(first, [landed], clock.seconds, clock.random)
    assert one.plan.take(clock.seconds) is not None


def test_ordered_nothing_overtakes_a_refused_record_across_a_reshard(rig, kinesis, clock):
    one = rig(ordered=True, aggregate=False)
    one.add(b"1", "same")
    one.plan.urge(1)
    in_flight = one.plan.take(clock.seconds)
    shard = in_flight[0].queue.shard_id
    kinesis.split("s", shard)
    clock.seconds += 1
    one.add(b"2", "same")
    one.plan.place(one.listed(), clock.seconds)
    assert one.plan.take(clock.seconds + 1) is None
    one.note(one.plan.report(in_flight, [REFUSED], clock.seconds, clock.random))
    one.run()
    assert [data for found in seen_by_shard(kinesis).values() for data in found] == [b"1", b"2"]


def test_ordered_a_reshard_ends_although_records_keep_coming_for_the_shards_that_have_gone(
    rig, kinesis, clock
):
    one = rig(ordered=True, aggregate=False, linger=0.0)
    one.add(b"first", "k", "0")
    in_flight = one.plan.take(clock.seconds)
    for shard in ("shardId-000000000000", "shardId-000000000001"):
        kinesis.split("s", shard)
    clock.seconds += 1
    one.plan.place(one.listed(), clock.seconds)
    one.add(b"other", "k", str(2**128 - 1))
    # Sent to a shard that has gone, it would put off the new listing until it is answered, and so would the next one.
    assert one.plan.take(clock.seconds) is None
    landed = PutAnswer("shardId-000000000000", None, "1")
    one.note(one.plan.report(in_flight, [landed], clock.seconds, clock.random))
    (parcel,) = one.plan.take(clock.seconds)
    assert parcel.queue.shard_id == "shardId-000000000005"


def test_ordered_a_record_that_is_given_up_halts_its_shard_until_resume(rig, kinesis, clock):
    one = rig(ordered=True, ttl=1.0)
    one.trouble = lambda records: range(len(records))
    one.add(b"1", "same")
    clock.seconds += 0.9
    one.add(b"2", "same")
    one.run()
    one.trouble = lambda _: ()
    one.add(b"3", "same")
    assert [type(outcome) for outcome in one.results()] == [NotDelivered] * 3
    one.plan.resume()
    one.add(b"4", "same")
    one.run()
    assert seen_by_consumers(kinesis) == {b"4": 1}


def script(one, chances):
    """Let each request meet the next chance."""
    left = iter(chances)

    def trouble(records):
        chance = next(left, 0)
        if chance == 1:
            raise Throttled("x")
        if chance == 2:
            one.stream.put(records)
            raise TemporaryError("lost")
        if chance == 3:
            opened = [shard for shard in one.kinesis.list_shards("s", operation=None) if shard.is_open]
            one.kinesis.split("s", opened[0].shard_id)
        if chance == 4:
            return range(0, len(records), 2)
        if chance == 5:
            opened = [shard for shard in one.kinesis.list_shards("s", operation=None) if shard.is_open]
            opened.sort(key=lambda shard: shard.hash_range)
            if len(opened) > 1:
                one.kinesis.merge("s", opened[0].shard_id, opened[1].shard_id)
        return ()

    one.trouble = trouble


@settings(max_examples=80)
@given(
    chances=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    aggregate=st.booleans(),
    ordered=st.booleans(),
    keys=st.integers(1, 20),
    sizes=st.lists(
        st.sampled_from([8, 100, 9_000, 49_000, 51_150, 51_300, 300_000]), min_size=1, max_size=60
    ),
)
def test_whatever_happens_each_record_is_in_and_its_result_is_true(chances, aggregate, ordered, keys, sizes):
    clock = Clock()
    kinesis = LocalKinesis(clock.utcnow_millis)
    kinesis.create_stream("s", 2)
    one = Rig(clock, kinesis, aggregate=aggregate, ordered=ordered)
    script(one, chances)
    data = [b"%08d" % number * (size // 8) for number, size in enumerate(sizes, 1)]
    for number, payload in enumerate(data):
        one.add(payload, f"key-{number % keys}")
        clock.seconds += 0.01
        one.step()
    one.run()
    seen = seen_by_consumers(kinesis)
    assert seen.keys() == set(data)
    for payload, result in zip(data, one.results(), strict=True):
        assert isinstance(result, PutResult)
        assert result.perhaps_twice or seen[payload] == 1
        assert seen[payload] <= result.attempts
    if ordered:
        assert_order(kinesis, data, keys)


def assert_order(kinesis, data, keys):
    """The first occurrences of each key's records are in order, parents read before their children."""
    found = list(dict.fromkeys(payload for shard in seen_by_shard(kinesis).values() for payload in shard))
    for key in range(keys):
        mine = data[key::keys]
        assert [payload for payload in found if payload in set(mine)] == mine
