"""The watermark: in any order of settling, `low` is the last record below which nothing is open."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import JoinedRecords, PlainRecords, Record, SubRecords, keys_of
from pykcl.testing.runtime import Simulation
from pykcl.worker.watermark import Watermark


class Naive:
    """Lists alone: every record that was registered, and what was settled."""

    def __init__(self):
        self.keys, self.settled, self.held = [], set(), []
        self.is_closed, self.released = False, 0

    def register(self, keys):
        if not self.is_closed:
            self.keys += keys

    @property
    def passed(self):
        return next((at for at, key in enumerate(self.keys) if key not in self.settled), len(self.keys))

    @property
    def low(self):
        return Checkpoint(*self.keys[self.passed - 1]) if self.passed else None

    def settle(self, key):
        if self.is_closed:
            return False
        if key not in self.keys:
            raise LookupError(key)
        if key in self.settled:
            return False
        self.settled.add(key)
        self.release()
        return True

    def hold(self, size):
        if self.is_closed or self.passed == len(self.keys):
            return 0
        self.held.append((len(self.keys), size))
        return size

    def close(self):
        self.is_closed = True
        self.release()

    def release(self):
        left = [(end, size) for end, size in self.held if end > self.passed and not self.is_closed]
        self.released += sum(size for _, size in self.held) - sum(size for _, size in left)
        self.held = left


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.integers(1, 5)),
        st.tuples(st.just("settle"), st.integers(0, 30)),
        st.tuples(st.just("hold"), st.integers(0, 9)),
        st.tuples(st.just("close"), st.booleans()),
    ),
    max_size=60,
)


def walk(steps):
    """Take the steps with both; raise AssertionError where they differ."""
    released, naive = [], Naive()
    with Simulation(seed=0) as simulation:
        watermark = Watermark(simulation.runtime("w"), released.append)
        before = None
        for what, number in steps:
            if what == "register":
                # Two sub-records of each sequence number.
                keys = [
                    (str(100 + at // 2), at % 2) for at in range(len(naive.keys), len(naive.keys) + number)
                ]
                watermark.register(keys, now=0.0)
                naive.register(keys)
            elif what == "settle" and number < len(naive.keys):
                assert watermark.is_open(naive.keys[number]) is (
                    not naive.is_closed and naive.keys[number] not in naive.settled
                )
                assert watermark.settle(naive.keys[number]) is naive.settle(naive.keys[number])
            elif what == "hold":
                assert watermark.hold(number) == naive.hold(number)
            elif what == "close" and number:
                watermark.close()
                naive.close()
            low = watermark.low
            assert low == naive.low
            assert before is None or (low is not None and low >= before), "it went back"
            before = low
            assert watermark.passed == naive.passed
            assert watermark.registered == len(naive.keys)
            assert sum(released) == naive.released
            assert watermark.held_bytes == sum(size for _, size in naive.held)
            if not naive.is_closed:
                assert watermark.count == len(naive.keys) - naive.passed
                open_keys = [key for key in naive.keys if key not in naive.settled]
                oldest = watermark.oldest
                assert (oldest and (oldest[0], oldest[2])) == (
                    (Checkpoint(*open_keys[0]), len(open_keys)) if open_keys else None
                )
                assert watermark.unsettled(naive.keys) == [key in open_keys for key in naive.keys]


@given(STEPS)
def test_low_is_the_contiguous_maximum_and_never_goes_back(steps):
    walk(steps)


@pytest.fixture
def watermark():
    with Simulation(seed=0) as simulation:
        yield Watermark(simulation.runtime("w"), lambda size: None)


def test_a_record_that_was_never_registered_is_no_record_that_was_settled_before(watermark):
    with pytest.raises(LookupError):
        watermark.settle(("5", 0))
    watermark.register([("5", 0), ("7", 0), ("9", 0)], now=0.0)
    assert watermark.settle(("5", 0))
    assert not watermark.settle(("5", 0))
    assert watermark.settle(("9", 0))
    assert not watermark.settle(("9", 0))
    for unknown in ("8", "10"):
        with pytest.raises(LookupError):
            watermark.settle((unknown, 0))
    assert watermark.count_unsettled(Checkpoint("9")) == 1
    assert watermark.count_unsettled(Checkpoint("6")) == 0


def test_the_time_of_the_oldest_record_is_that_of_its_delivery_or_of_the_last_one_of_its_batch(watermark):
    watermark.register([("5", 0)], now=1.0)
    watermark.register([("7", 0), ("9", 0)], now=2.0)
    assert watermark.oldest_since == 1.0
    watermark.settle(("5", 0))
    assert watermark.oldest_since == 2.0
    watermark.delivered_again(now=3.0)
    assert watermark.oldest == (Checkpoint("7"), 3.0, 2)
    watermark.settle(("7", 0))
    watermark.settle(("9", 0))
    assert watermark.oldest is watermark.oldest_since is None


def test_who_waits_hears_of_each_record():
    heard = []
    with Simulation(seed=0) as simulation:
        watermark = Watermark(
            simulation.runtime("w"), lambda size: None, lambda: heard.append(watermark.count)
        )
        watermark.register([("5", 0), ("7", 0), ("9", 0)], now=0.0)
        watermark.settle(("5", 0))
        watermark.is_awaited = True
        watermark.settle(("9", 0))
        watermark.settle(("7", 0))
    assert heard == [2, 0]


def test_the_keys_of_records_are_the_same_however_they_are_kept():
    plain = PlainRecords([b"a", b"b"], ["k", "k"], ["5", "6"], [0.0, 0.0], "shard", "stream")
    subs = SubRecords([b"c", b"d"], ["k", "k"], [], Record(b"", "k", "7"), first=3)
    alone = [Record(b"e", "k", "8", sub_sequence_number=2)]
    every = JoinedRecords([plain, subs, alone])
    assert keys_of(every) == [("5", 0), ("6", 0), ("7", 3), ("7", 4), ("8", 2)]
    assert keys_of(every[1:4]) == keys_of(list(every))[1:4]


def test_a4_9_an_open_record_costs_less_than_100_bytes_beside_its_own():
    """With as many open records as a shard may have by default; the sequence number is that of the record."""
    numbers = [f"{number:056d}" for number in range(10_000)]
    with Simulation(seed=0) as simulation:
        watermarks = [Watermark(simulation.runtime("w1"), lambda size: None) for _ in range(4)]
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for watermark in watermarks:
                for first in range(0, len(numbers), 500):
                    watermark.register([(number, 0) for number in numbers[first : first + 500]], 0.0)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert all(watermark.count == 10_000 for watermark in watermarks)
    assert after - before < 100 * 4 * 10_000
