"""StreamWriter: every record is in, at least once, whatever Kinesis refuses, and the accounts are true at any end."""

from collections import Counter
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pykcl.errors import NotDelivered, SetupError, TemporaryError, Throttled
from pykcl.local.stream import LocalKinesis
from pykcl.model.new_record import NewRecord, PutAnswer
from pykcl.operate.streams.writer import LINGER, GivenUp, Outlet, StreamWriter
from pykcl.testing.memory.stream import MemoryStream
from pykcl.testing.runtime import Simulation
from tests.producer.stream_kit import seen_by_consumers, seen_by_shard


class Rig:
    """A StreamWriter over the stream in memory. trouble: called with the records of each request; may raise, or answer
    with the indexes of the records to be refused."""

    def __init__(self, simulation, trouble=lambda _: None, **options):
        self.runtime = simulation.runtime("put")
        self.kinesis = LocalKinesis(self.runtime.utcnow_millis)
        self.kinesis.create_stream("s", 2)
        self.stream = MemoryStream(self.kinesis, "s", self.runtime, simulation.switch)
        self.trouble = trouble
        self.requests = []
        self.notices = []
        self.stop, self.give_up = self.runtime.event(), self.runtime.event()
        self.options = options

    @contextmanager
    def open(self):
        self.putting = StreamWriter(
            Outlet(self.put, self.shards, 1024 * 1024),
            self.runtime,
            stop=self.stop,
            give_up=self.give_up,
            on_notice=self.notices.append,
            **self.options,
        )
        try:
            yield self
        finally:
            self.putting.close()

    def shards(self):
        return self.stream.list_shards().shards

    def put(self, records):
        refused = self.trouble(records) or ()
        self.requests.append(records)
        return [
            PutAnswer(None, "ProvisionedThroughputExceededException")
            if at in refused
            else self.stream.put([record])[0]
            for at, record in enumerate(records)
        ]

    def sleep(self, seconds):
        self.runtime.event().wait(seconds)

    def take(self, numbers):
        for number in numbers:
            self.putting.take(number, NewRecord(b"%d" % number, f"key-{number}"))

    def seen(self):
        """The payloads that consumers get, with their rule for aggregates that straddle shards."""
        return seen_by_consumers(self.kinesis)


@pytest.fixture
def putting():
    with Simulation() as simulation:

        @contextmanager
        def opened(trouble=lambda _: None, **options):
            with Rig(simulation, trouble, **options).open() as rig:
                yield rig

        yield opened


def payloads(numbers):
    return {b"%d" % number for number in numbers}


def test_what_is_refused_is_sent_again_until_it_is_in(putting):
    with putting(lambda records: range(1, len(records))) as rig:
        rig.take(range(1, 21))
        rig.putting.flush()
        assert rig.seen() == Counter(payloads(range(1, 21)))
        assert rig.putting.tally.put == 20
        assert rig.putting.tally.sent_again == sum(map(len, rig.requests)) - 20
        assert rig.putting.complete_through == 20


@pytest.mark.parametrize("aggregate", [True, False])
def test_lines_of_a_shard_are_in_order_where_nothing_is_refused(putting, aggregate):
    with putting(lambda _: rig.sleep(0.5), aggregate=aggregate) as rig:
        rig.take(range(1, 1202))
        rig.putting.flush()
        for found in seen_by_shard(rig.kinesis).values():
            assert found == sorted(found, key=int)


def test_the_size_of_what_was_put_is_that_of_its_records(putting):
    with putting() as rig:
        rig.take(range(1, 1202))
        rig.putting.flush()
        assert len(rig.requests) >= 3
        assert rig.putting.tally.bytes == sum(record.size for records in rig.requests for record in records)


def test_a_lost_answer_may_put_records_twice_and_that_is_counted(putting):
    def lose(records):
        rig.trouble = lambda _: None
        rig.put(records)
        raise TemporaryError("no answer")

    with putting(lose) as rig:
        rig.take(range(1, 6))
        rig.putting.flush()
        assert rig.seen() == Counter(dict.fromkeys(payloads(range(1, 6)), 2))
        assert (rig.putting.tally.put, rig.putting.tally.perhaps_twice) == (5, 5)


def test_trouble_that_lasts_is_a_notice_now_and_then(putting):
    with putting() as rig:
        ends = rig.runtime.monotonic() + 60
        rig.trouble = lambda records: range(len(records)) if rig.runtime.monotonic() < ends else ()
        rig.take([1, 2])
        rig.putting.flush()
        assert 3 <= len(rig.notices) <= 6
        assert rig.notices[0] == (
            "2 records are not put yet (ProvisionedThroughputExceededException). Sending them again."
        )


@pytest.mark.parametrize("aggregate", [True, False])
def test_what_no_repetition_can_help_leaves_true_accounts(putting, aggregate):
    def refuse(_):
        if rig.runtime.monotonic() >= rig.fails_at:
            raise SetupError("not permitted")

    with putting(refuse, aggregate=aggregate) as rig:
        rig.fails_at = rig.runtime.monotonic() + 10
        rig.take(range(1, 1001))
        rig.putting.flush()
        rig.sleep(10)
        with pytest.raises(SetupError, match="not permitted"):
            rig.take(range(1001, 3000))
            rig.putting.flush()
        rig.putting.close()
        assert rig.putting.complete_through == 1000
        assert rig.putting.tally.put == 1000


def test_a_record_that_may_be_in_is_said_to_be_where_no_repetition_can_help(putting):
    def trouble(_):
        rig.requests += 1
        if rig.requests > 1:
            raise SetupError("not permitted.")
        raise TemporaryError("no answer")

    with putting(trouble) as rig:
        rig.requests = 0
        rig.take([1])
        with pytest.raises(NotDelivered, match=r"not permitted.*it may be in the stream"):
            rig.putting.flush()
        rig.putting.close()
        assert rig.putting.complete_through == 0


@pytest.mark.parametrize("aggregate", [True, False])
def test_giving_up_leaves_true_accounts(putting, aggregate):
    with putting(aggregate=aggregate) as rig:
        rig.take([1, 2])
        rig.putting.flush()
        rig.trouble = lambda records: range(len(records))
        rig.take(range(3, 11))
        rig.give_up.set()
        with pytest.raises(GivenUp, match="8 records were still being rejected"):
            rig.putting.flush()
        rig.putting.close()
        assert rig.putting.complete_through == 2
        assert rig.putting.tally.put == 2


def test_giving_up_ends_the_wait_for_room(putting):
    with putting(lambda records: range(len(records))) as rig:
        rig.give_up.set()
        with pytest.raises(GivenUp):
            for number in range(1, 200):
                rig.putting.take(number, NewRecord(b"x" * 1_000_000, "k"))
        assert rig.putting.complete_through == 0


def test_records_wait_for_company_but_not_long(putting):
    with putting() as rig:
        rig.take([1])
        rig.sleep(LINGER - 0.05)
        assert rig.requests == []
        rig.sleep(0.1)
        assert len(rig.requests) == 1


@pytest.mark.parametrize("rate", [0.5, 5, 300, 1500])
def test_a_rate_is_kept_evenly(putting, rate):
    count = max(4, int(rate * 3))
    at = []
    with putting(rate=rate) as rig:
        began = rig.runtime.monotonic()
        rig.trouble = lambda records: at.extend([rig.runtime.monotonic() - began] * len(records))
        rig.take(range(1, count + 1))
        rig.putting.flush()
        assert rig.runtime.monotonic() - began == pytest.approx((count - 1) / rate, abs=0.31)
    assert len(at) == count
    for number, seconds in enumerate(at):
        assert seconds >= number / rate - 0.11


def test_a_rate_does_not_make_up_for_a_long_pause(putting):
    with putting(rate=10) as rig:
        rig.take(range(1, 11))
        rig.sleep(100)
        began = rig.runtime.monotonic()
        rig.take(range(11, 51))
        assert rig.runtime.monotonic() - began > 3


@pytest.mark.parametrize("how", ["split", "merge"])
def test_a_reshard_between_grouping_and_putting_loses_nothing(putting, how):
    def reshard(_):
        rig.trouble = lambda _: None
        if how == "split":
            rig.kinesis.split("s", "shardId-000000000000")
        else:
            rig.kinesis.merge("s", "shardId-000000000000", "shardId-000000000001")

    with putting(reshard, aggregate=True) as rig:
        for start in range(1, 3001, 1000):
            rig.take(range(start, start + 1000))
            rig.putting.flush()
        assert rig.seen().keys() == payloads(range(1, 3001))
        assert rig.putting.tally.sent_again <= 1000
        assert rig.putting.tally.put == 3000
        assert rig.putting.complete_through == 3000


def test_a_listing_that_fails_is_repeated(putting, monkeypatch):
    failures = [1, 1]
    listed = Rig.shards

    def fail_twice(rig):
        if failures:
            failures.pop()
            raise TemporaryError("no")
        return listed(rig)

    monkeypatch.setattr(Rig, "shards", fail_twice)
    with putting(aggregate=True) as rig:
        rig.take([1, 2])
        rig.putting.flush()
        assert rig.seen() == Counter(payloads([1, 2]))
        assert rig.notices == ["no Listing again."] * 2


def test_what_waits_in_an_open_aggregate_is_not_in(putting):
    with putting(aggregate=True) as rig:
        rig.take(range(1, 11))
        rig.putting.flush()
        rig.take(range(11, 21))
        assert rig.putting.complete_through == 10
        rig.putting.flush()
        assert rig.putting.complete_through == 20


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    chances=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    aggregate=st.booleans(),
    sizes=st.lists(
        st.sampled_from([1, 100, 9_000, 49_000, 51_150, 51_300, 300_000]), min_size=1, max_size=60
    ),
)
def test_whatever_happens_everything_is_in_and_counted(chances, aggregate, sizes):
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
            opened = [shard for shard in rig.kinesis.list_shards("s", operation=None) if shard.is_open]
            rig.kinesis.split("s", opened[0].shard_id)
        if chance == 4:
            return range(0, len(records), 2)
        return ()

    expected = {b"%08d" % number * max(1, size // 8) for number, size in enumerate(sizes, 1)}
    with Simulation() as simulation, Rig(simulation, trouble, aggregate=aggregate).open() as rig:
        for number, size in enumerate(sizes, 1):
            rig.putting.take(number, NewRecord(b"%08d" % number * max(1, size // 8), f"key-{number}"))
        rig.putting.flush()
        assert rig.seen().keys() == expected
        assert rig.putting.tally.put == len(sizes)
        assert rig.putting.complete_through == len(sizes)
