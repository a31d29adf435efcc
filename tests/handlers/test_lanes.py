"""Handlers with `concurrency`, and `async def`: over the unmodified worker, in simulated time where nothing is said."""

import asyncio
import functools
import os
import signal
import sys
import threading
from collections import Counter, defaultdict
from contextlib import suppress
from typing import Any
from zlib import crc32

import pytest
from click.testing import CliRunner

from pykcl import (
    Batch,
    CheckpointRefused,
    ConfigError,
    Context,
    FailedAt,
    Record,
    RecordProcessor,
    Reject,
    RestartShard,
    StopTimedOut,
    TemporaryError,
    handler,
    lambda_processor,
)
from pykcl.cli.run import run
from pykcl.events import (
    BatchSkipped,
    BatchSplit,
    Checkpointed,
    EventLoopBlocked,
    LeaseLost,
    ProcessorRaised,
    ProcessorSlow,
    RetriesExhausted,
)
from pykcl.handlers.app import App
from pykcl.handlers.functions import processor_of
from pykcl.handlers.loop import LoopUser
from pykcl.model.kpl import aggregate
from pykcl.processor import InitializationInput
from pykcl.runtime import SystemRuntime
from pykcl.testing import RunFailed, SimulatedClock, records, run_processor
from pykcl.testing.fleet import STREAM, TABLE
from pykcl.testing.memory.dynamodb import Fault
from pykcl.testing.runtime.scheduler import SimulatedRuntime
from pykcl.worker.checkpointer import Progress
from pykcl.worker.lease_scope import KEPT_FAILING
from pykcl.worker.worker import Worker

CLOCK = SimulatedClock()
WAYS = [("plain", 1), ("plain", 8), ("async", 1), ("async", 8)]
LANES = [("plain", 8), ("async", 1), ("async", 8)]


class Shop:
    """A handler of one record that takes 10 ms. fails: called with a record and its attempt before that."""

    def __init__(self, fails=lambda record, attempt: None):
        self.seen, self.calls = defaultdict(list), Counter()
        self.running = self.most = 0
        self.fails = fails

    def _begin(self, record, context):
        self.calls[record.json()] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        self.fails(record, context.attempt)

    def _end(self, record):
        self.seen[record.partition_key].append(record.json())

    def plain(self, record: Record, context: Context):
        try:
            self._begin(record, context)
            CLOCK.advance(0.01)
            self._end(record)
        finally:
            self.running -= 1

    async def asynchronous(self, record: Record, context: Context):
        try:
            self._begin(record, context)
            await asyncio.sleep(0.01)
            self._end(record)
        finally:
            self.running -= 1

    def of(self, way, concurrency):
        return handler(self.plain if way == "plain" else self.asynchronous, concurrency=concurrency)


def orders(count, keys):
    return records(*range(count), partition_key=lambda number: f"key-{number % keys}")


def in_order(numbers, keys):
    found = defaultdict(list)
    for number in numbers:
        found[f"key-{number % keys}"].append(number)
    return found


def letters(result):
    return [
        (letter.condition.value, [record.json() for record in letter.records])
        for letter in result.dead_letters
    ]


def happened(result, kind):
    return [event for event in result.events if isinstance(event, kind)]


# -- A4: order, failures, crashes ------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "concurrency"), WAYS)
def test_a4_2_lanes_keep_the_order_of_each_key_and_deliver_each_record_once(way, concurrency):
    shop = Shop()
    result = run_processor(shop.of(way, concurrency), orders(2_000, 100), max_records=500)
    assert shop.seen == in_order(range(2_000), 100)
    assert set(shop.calls.values()) == {1}
    assert shop.most == concurrency
    assert result.dead_letters == []
    assert result.checkpoints[-1] == "SHARD_END"


@pytest.mark.parametrize(("way", "concurrency"), LANES)
@pytest.mark.parametrize("bisect", [False, True])
def test_a4_2_order_stays_with_failures_and_dead_letters_in_between(way, concurrency, bisect):
    def fails(record, attempt):
        number = record.json()
        if number % 31 == 0:
            raise ValueError("poison")
        if number % 37 == 0:
            raise Reject("unknown product")
        if number % 41 == 0 and attempt == 1:
            raise ValueError("flaky")
        if number % 43 == 0 and attempt == 1:
            raise TemporaryError("the database is away")

    shop = Shop(fails)
    result = run_processor(
        shop.of(way, concurrency), orders(600, 50), max_attempts=2, bisect=bisect, dead_letters_in_a_row=0
    )
    poison = {number for number in range(600) if number % 31 == 0}
    rejected = {number for number in range(600) if number % 37 == 0} - poison
    assert sorted(letters(result)) == sorted(
        [("RetryAttemptsExhausted", [number]) for number in poison]
        + [("Rejected", [number]) for number in rejected]
    )
    assert shop.seen == in_order([number for number in range(600) if number not in poison | rejected], 50)
    # A failure costs no other record a second call.
    assert {number for number, calls in shop.calls.items() if calls > 1} == {
        number
        for number in range(600)
        if number in poison or (number not in rejected and (number % 41 == 0 or number % 43 == 0))
    }


@pytest.mark.parametrize(("way", "concurrency"), LANES)
@pytest.mark.parametrize("seed", range(3))
def test_a4_3_after_a_crash_what_is_not_settled_comes_again_and_nothing_is_missing(way, concurrency, seed):
    shop = Shop()
    result = run_processor(
        shop.of(way, concurrency),
        orders(1_000, 40),
        end="crash",
        times=3,
        seed=seed,
        max_records=200,
        timeout=2_000,
    )
    assert result.lost == 0
    assert {number for numbers in shop.seen.values() for number in numbers} == set(range(1_000))
    assert max(shop.calls.values()) <= 5
    for numbers in shop.seen.values():
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first)


@pytest.mark.parametrize(("way", "concurrency"), [("plain", 4), ("async", 4)])
def test_a4_4_sub_records_are_dealt_by_their_own_keys_and_an_open_one_comes_again(
    new_fleet, way, concurrency
):
    fleet = new_fleet(shards=1)
    hold, done = {1}, []

    def plain(record: Record):
        while record.json() in hold:
            fleet.simulation.sleep(0.1)
        done.append((record.sub_sequence_number, record.json()))

    async def asynchronous(record: Record):
        while record.json() in hold:
            await asyncio.sleep(0.1)
        done.append((record.sub_sequence_number, record.json()))

    made = handler(plain if way == "plain" else asynchronous, concurrency=concurrency)
    put_aggregate(fleet, range(6))
    fleet.start("w1", processor=made)
    fleet.simulation.sleep(5)
    # The keys of these are of other lanes than that of the second one.
    assert (1, 1) not in done
    assert len(done) >= 3
    row = checkpoint(fleet)
    assert row.sub_sequence_number == 0, "it may lie inside an aggregate, and stands before the open one"
    assert not row.is_sentinel
    before = set(done)
    fleet.simulation.kill("w1")
    hold.clear()
    done.clear()
    fleet.start("w2", processor=made)
    fleet.simulation.sleep(30)
    assert {number for _, number in done} == {1, 2, 3, 4, 5}
    assert before - {(0, 0)} <= set(done), "at most those above the checkpoint come twice"


def put_aggregate(fleet, numbers):
    (blob,) = aggregate((f"key-{number}", None, b"%d" % number) for number in numbers)
    fleet.kinesis.put_record(STREAM, blob.data, blob.partition_key)


def put(fleet, count):
    for number in range(count):
        fleet.kinesis.put_record(STREAM, b"%d" % number, f"key-{number}")


def checkpoint(fleet):
    (row,) = fleet.rows().values()
    return row.checkpoint


@pytest.mark.parametrize(("way", "concurrency"), LANES)
def test_the_checkpoint_follows_about_once_a_second_while_a_batch_runs(way, concurrency):
    def plain(record: Record):
        CLOCK.advance(0.5)

    async def asynchronous(record: Record):
        await asyncio.sleep(0.5)

    made = handler(plain if way == "plain" else asynchronous, concurrency=concurrency)
    result = run_processor(made, orders(60, 20))
    assert len(result.batches) == 1
    assert result.seconds - 2 <= len(happened(result, Checkpointed)) + 2
    assert result.seconds < 31 if concurrency == 1 else 12


# -- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "concurrency"), LANES)
def test_a_failure_stops_its_lane_alone_and_other_keys_go_on_to_the_end_of_the_page(way, concurrency):
    first_tries = []

    def fails(record, attempt):
        if record.json() == 0 and attempt == 1:
            first_tries.append(dict(shop.calls))
            raise ValueError("not yet")

    shop = Shop(fails)
    result = run_processor(shop.of(way, concurrency), orders(80, 8))
    raised = happened(result, ProcessorRaised)
    assert [(event.records, event.attempt) for event in raised] == [(1, 1)]
    assert shop.seen == in_order(range(80), 8)
    # The second call of process_records has only what its lane has left.
    assert [len(batch) for batch in result.batches] == [
        80,
        80 if concurrency == 1 else len(result.batches[1]),
    ]
    assert shop.calls[0] == 2
    assert sum(shop.calls.values()) == 81


def test_the_share_of_the_largest_lane_is_that_of_the_batch_and_not_of_what_is_tried_again():
    keys, tries = one_key_for_each_lane(4), Counter()

    def on_record(record: Record):
        tries[record.json()] += 1
        if record.json() == 2 and tries[2] < 3:
            raise ValueError("not yet")

    made = handler(on_record, concurrency=4)()

    def in_lanes():
        return made

    given = records(*range(40), partition_key=lambda number: keys[number % 4])
    result = run_processor(in_lanes, given, end="idle")
    assert len(result.batches) == 3
    assert made.lane_share == 0.25


@pytest.mark.parametrize(("way", "concurrency"), LANES)
def test_a_record_that_always_fails_hands_the_lease_back_at_the_first_that_is_open(way, concurrency):
    def fails(record, attempt):
        if record.json() == 5:
            raise ValueError("for ever")

    shop = Shop(fails)
    with pytest.raises(RunFailed):
        run_processor(shop.of(way, concurrency), orders(40, 8), retry_timeout=5.0, timeout=20.0)
    numbers = {number for numbers in shop.seen.values() for number in numbers}
    assert 5 not in numbers
    if concurrency == 8:
        assert {0, 1, 2, 3, 4, 6, 7} <= numbers


@pytest.mark.parametrize(("way", "concurrency"), [("plain", 2), ("async", 2)])
def test_a_long_batch_does_not_use_up_the_time_for_retries_of_its_first_record(way, concurrency):
    tries = Counter()

    def begin(record):
        tries[record.json()] += 1
        if record.json() == 0 and tries[0] == 1:
            raise ValueError("once")

    def plain(record: Record):
        begin(record)
        CLOCK.advance(40)

    async def asynchronous(record: Record):
        begin(record)
        await asyncio.sleep(40)

    made = handler(plain if way == "plain" else asynchronous, concurrency=concurrency)
    result = run_processor(made, orders(40, 40), timeout=3_000, processor_warn_after=3_000.0)
    (raised,) = happened(result, ProcessorRaised)
    assert raised.next_attempt_in is not None, "retry_timeout begins when the first failure can be acted on"
    assert not happened(result, RetriesExhausted)
    assert set(tries.values()) == {1, 2}


def test_a_lane_that_gets_no_thread_is_tried_again_once_the_others_have_ended(new_fleet, monkeypatch):
    spawned, spawn = [], SimulatedRuntime.spawn

    def few(runtime, name, body):
        if name.startswith("pykcl-lane-"):
            if len(spawned) == 3:
                raise TemporaryError("can't start new thread")
            spawned.append(name)
        return spawn(runtime, name, body)

    monkeypatch.setattr(SimulatedRuntime, "spawn", few)
    fleet = new_fleet(shards=1)
    running, beside, calls = [], [], Counter()

    def on_record(record: Record):
        if record.partition_key in running:
            beside.append(record.json())
        running.append(record.partition_key)
        calls[record.json()] += 1
        fleet.simulation.sleep(20)
        running.remove(record.partition_key)

    put(fleet, 40)
    fleet.start("w1", processor=handler(on_record, concurrency=8))
    fleet.simulation.sleep(500)
    assert beside == [], "one lane has a key"
    assert calls == Counter(range(40))
    assert {event.error for event in fleet.happened(ProcessorRaised)} == {"TemporaryError"}
    assert not fleet.happened(RetriesExhausted)


@pytest.mark.parametrize(("way", "concurrency"), LANES)
def test_lanes_have_ended_before_an_error_of_the_worker_ends_their_batch(
    new_fleet, monkeypatch, way, concurrency
):
    fleet = new_fleet(shards=1)
    calls, flush, broken = Counter(), Progress.flush, []

    def breaks_once(progress):
        if calls and not broken:
            broken.append(fleet.simulation.now)
            raise ValueError("a bug")
        flush(progress)

    monkeypatch.setattr(Progress, "flush", breaks_once)

    def plain(record: Record):
        calls[record.json()] += 1
        fleet.simulation.sleep(5)

    async def asynchronous(record: Record):
        calls[record.json()] += 1
        await asyncio.sleep(5)

    put(fleet, 8)
    made = handler(plain if way == "plain" else asynchronous, concurrency=concurrency)
    fleet.start("w1", processor=made)
    fleet.simulation.sleep(4)
    fleet.simulation.kill("w1")
    assert broken
    assert set(calls.values()) == {1}, "no second call of the batch beside the first one"


@pytest.mark.parametrize(("way", "concurrency"), LANES)
def test_dead_letters_in_a_row_and_max_record_age_are_as_for_one_lane(way, concurrency):
    def fails(record, attempt):
        raise ValueError("all is broken")

    with pytest.raises(RunFailed):
        run_processor(
            Shop(fails).of(way, concurrency),
            orders(40, 40),
            max_attempts=1,
            dead_letters_in_a_row=5,
            retry_timeout=50.0,
            timeout=20.0,
        )

    def too_slow(record, attempt):
        CLOCK.advance(2.0)
        raise TemporaryError("down")

    result = run_processor(
        handler(lambda record: too_slow(record, 1), concurrency=4), orders(8, 8), max_record_age=30.0
    )
    assert {condition for condition, _ in letters(result)} == {"RecordAgeExpired"}
    assert sorted(number for _, numbers in letters(result) for number in numbers) == list(range(8))


@pytest.mark.parametrize(("way", "concurrency"), [("plain", 64), ("async", 64)])
@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_few_bad_records_among_good_ones_are_not_in_a_row_though_many_lanes_fail_at_once(
    way, concurrency, max_attempts
):
    def fails(record, attempt):
        if record.json() % 25 == 0:
            raise ValueError("poison")

    shop = Shop(fails)
    result = run_processor(
        shop.of(way, concurrency), orders(2_000, 500), max_attempts=max_attempts, dead_letters_in_a_row=10
    )
    bad = range(0, 2_000, 25)
    assert sorted(letters(result)) == [("RetryAttemptsExhausted", [number]) for number in bad]
    assert not happened(result, RetriesExhausted)
    assert shop.seen == in_order(set(range(2_000)) - set(bad), 500)


@pytest.mark.parametrize(("way", "concurrency"), [("plain", 8), ("async", 8)])
def test_letters_of_lanes_that_fail_at_once_come_in_order_of_position(way, concurrency):
    def fails(record, attempt):
        if record.json() < 40:
            raise ValueError("poison")

    result = run_processor(
        Shop(fails).of(way, concurrency), orders(80, 40), max_attempts=1, dead_letters_in_a_row=0
    )
    given_up = [number for _, (number,) in letters(result)]
    assert sorted(given_up) == list(range(40))
    # The first record of each lane fails in the first round, and so on.
    lanes = {crc32(b"key-%d" % number) % concurrency for number in range(40)}
    assert given_up[: len(lanes)] == sorted(given_up[: len(lanes)])


@pytest.mark.parametrize(("way", "concurrency"), LANES)
@pytest.mark.parametrize("limit", [1, 5])
def test_where_all_records_fail_each_hand_back_leaves_its_letters_behind_the_checkpoint(
    new_fleet, way, concurrency, limit
):
    """Else a shard whose records all fail would be delivered for ever, and each letter written again and again."""
    fleet, kept, broken = new_fleet(shards=1), [], [True]

    def plain(record: Record):
        if broken:
            raise ValueError("the database is down")

    async def asynchronous(record: Record):
        plain(record)

    put(fleet, 60)
    made = handler(plain if way == "plain" else asynchronous, concurrency=concurrency)
    fleet.start(
        "w1",
        processor=made,
        max_attempts=1,
        dead_letters_in_a_row=limit,
        retry_timeout=10.0,
        dead_letters=lambda sent: kept.extend(r.json() for letter in sent for r in letter.records),
    )
    lows = []
    for _ in range(3):
        count = len(fleet.happened(RetriesExhausted))
        while len(fleet.happened(RetriesExhausted)) == count:
            fleet.simulation.sleep(1)
        lows.append(checkpoint(fleet))
        assert len(kept) <= (count + 1) * (limit + concurrency)
    assert lows == sorted(lows)
    assert len(set(lows)) == 3, "progress at each hand-back"
    assert not lows[0].is_sentinel
    broken.clear()
    fleet.simulation.sleep(60)
    assert len({*kept}) >= 3


@pytest.mark.parametrize(("way", "concurrency"), [("plain", 8), ("async", 8)])
def test_the_bad_records_of_one_key_are_not_in_a_row_where_the_others_between_them_are_good(way, concurrency):
    """At the end of the batch its lane is the only one left, and all its calls fail."""
    keys = one_key_for_each_lane(concurrency)

    def fails(record, attempt):
        if record.partition_key == keys[3]:
            raise ValueError("its sensor is broken")

    given = records(*range(320), partition_key=lambda number: keys[number % 8])
    result = run_processor(Shop(fails).of(way, concurrency), given, max_attempts=1, dead_letters_in_a_row=10)
    assert letters(result) == [("RetryAttemptsExhausted", [number]) for number in range(3, 320, 8)]
    assert not happened(result, RetriesExhausted)


@pytest.mark.parametrize(("bad", "goes_back"), [(1, False), (4, True)])
def test_records_of_one_letter_are_not_in_a_row_where_those_of_other_lanes_lie_between(bad, goes_back):
    keys = one_key_for_each_lane(4)

    def on_batch(batch: Batch):
        if batch[0].partition_key in keys[:bad]:
            raise ValueError("its sensor is broken")

    given = records(*range(40), partition_key=lambda number: keys[number % 4])
    made, options = handler(on_batch, concurrency=4), {"max_attempts": 1, "dead_letters_in_a_row": 5}
    if goes_back:
        with pytest.raises(RunFailed):
            run_processor(made, given, timeout=20.0, **options)
    else:
        result = run_processor(made, given, **options)
        assert letters(result) == [("RetryAttemptsExhausted", list(range(0, 40, 4)))]
        assert not happened(result, RetriesExhausted)


@pytest.mark.parametrize(("way", "concurrency"), LANES)
@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_database_that_goes_down_amid_a_batch_costs_few_records_beyond_the_limit(
    new_fleet, way, concurrency, max_attempts
):
    fleet, kept, calls = new_fleet(shards=1), [], Counter()

    def plain(record: Record):
        calls[record.json()] += 1
        if sum(calls.values()) > 200:
            raise ValueError("the database is down")

    async def asynchronous(record: Record):
        await asyncio.sleep(0.01)
        plain(record)

    put(fleet, 400)
    made = handler(plain if way == "plain" else asynchronous, concurrency=concurrency)
    fleet.start(
        "w1",
        processor=made,
        max_attempts=max_attempts,
        dead_letters_in_a_row=10,
        dead_letters=lambda sent: kept.extend(r.json() for letter in sent for r in letter.records),
    )
    while not fleet.happened(RetriesExhausted):
        fleet.simulation.sleep(1)
    assert 10 <= len(kept) <= 10 + 2 * concurrency


@pytest.mark.parametrize(("way", "concurrency"), [("plain", 8), ("async", 8)])
def test_what_is_to_be_given_up_becomes_a_letter_before_another_lane_hands_the_lease_back(
    new_fleet, way, concurrency
):
    fleet, kept = new_fleet(shards=1), []

    def plain(record: Record):
        if record.json() == 5:
            raise TemporaryError("away for long")
        if record.json() < 5:
            raise Reject("unknown product")

    async def asynchronous(record: Record):
        plain(record)

    put(fleet, 8)
    made = handler(plain if way == "plain" else asynchronous, concurrency=concurrency)
    fleet.start(
        "w1",
        processor=made,
        max_attempts=1,
        retry_timeout=0.01,
        dead_letters=lambda sent: kept.extend(r.json() for letter in sent for r in letter.records),
    )
    while not fleet.happened(RetriesExhausted):
        fleet.simulation.sleep(1)
    assert sorted(kept) == [0, 1, 2, 3, 4]
    assert not checkpoint(fleet).is_sentinel


def test_a_lease_that_goes_back_because_its_first_record_kept_failing_says_so_and_not_that_others_were_given_up(
    new_fleet,
):
    """The limit of letters in a row waits for the first record, which is not given up and does not get through."""
    fleet, kept = new_fleet(shards=1), []

    def fails(record: Record):
        raise TemporaryError("away for long") if record.json() == 0 else ValueError("poison")

    put(fleet, 8)
    fleet.start(
        "w1",
        processor=handler(fails, concurrency=8),
        max_attempts=1,
        retry_timeout=20.0,
        dead_letters_in_a_row=3,
        dead_letters=lambda sent: kept.extend(r.json() for letter in sent for r in letter.records),
    )
    fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the lease to be handed back")
    (back,) = fleet.happened(RetriesExhausted)
    assert sorted(kept) == [1, 2, 3, 4, 5, 6, 7]
    assert (back.checkpoint, back.cause) == ("TRIM_HORIZON", KEPT_FAILING)


@pytest.mark.parametrize(("way", "concurrency"), LANES)
def test_on_error_skip_gives_up_the_record_that_failed_and_raise_stops_the_worker(way, concurrency):
    def fails(record, attempt):
        if record.json() in (3, 7):
            raise ValueError("poison")

    shop = Shop(fails)
    result = run_processor(shop.of(way, concurrency), orders(40, 8), on_error="skip")
    assert shop.seen == in_order(set(range(40)) - {3, 7}, 8)
    assert [event.records for event in happened(result, BatchSkipped)] == [1, 1]
    shop = Shop(fails)
    result = run_processor(shop.of(way, concurrency), orders(40, 8), on_error="raise")
    assert "ValueError" in str(result.error)
    assert result.lost == 0


def test_restart_shard_in_a_lane_begins_anew_with_another_instance():
    def fails(record: Record):
        if record.json() == 9 and not restarted:
            restarted.append(record)
            raise RestartShard("its process is gone")
        done.append(record.json())

    restarted, done = [], []
    result = run_processor(handler(fails, concurrency=4), orders(30, 10))
    assert [call.method for call in result.calls].count("initialize") == 2
    assert set(done) == set(range(30))


@pytest.mark.parametrize(("way", "concurrency"), LANES)
def test_restarts_in_several_lanes_end_their_series_once_the_first_open_record_is_done(way, concurrency):
    """Each instance gets a little further, though none of them gets through a batch."""
    restarted = set()

    def fails(record, attempt):
        if record.json() % 4 == 0 and record.json() not in restarted:
            restarted.add(record.json())
            raise RestartShard("its child has died")

    shop = Shop(fails)
    result = run_processor(shop.of(way, concurrency), orders(80, 80), retry_timeout=2.0)
    assert len(restarted) == 20
    assert result.seconds > 2.0
    assert not happened(result, RetriesExhausted)
    assert result.lost == 0


@pytest.mark.parametrize(("way", "concurrency"), LANES)
def test_a_record_at_which_each_instance_restarts_hands_the_lease_back(way, concurrency):
    def fails(record, attempt):
        if record.json() == 10:
            raise RestartShard("its child has died")

    shop = Shop(fails)
    with pytest.raises(RunFailed):
        run_processor(shop.of(way, concurrency), orders(20, 20), retry_timeout=5.0, timeout=60.0)
    assert shop.calls[10] > 3
    assert set(range(10)) <= {number for numbers in shop.seen.values() for number in numbers}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_function_of_batches_gets_the_records_of_its_lane_and_bisect_finds_the_poison(
    is_async, concurrency
):
    calls, done = [], defaultdict(list)

    def plain(orders: list[Any]):
        calls.append(orders)
        if 17 in orders:
            raise ValueError("poison")
        for number in orders:
            done[number % 8].append(number)

    async def asynchronous(orders: list[Any]):
        await asyncio.sleep(0.01)
        plain(orders)

    made = handler(asynchronous if is_async else plain, concurrency=concurrency)
    result = run_processor(made, orders(64, 8), max_attempts=2, bisect=True)
    assert letters(result) == [("RetryAttemptsExhausted", [17])]
    assert done == {key: [n for n in range(64) if n % 8 == key and n != 17] for key in range(8)}
    assert happened(result, BatchSplit)
    if concurrency == 4:
        assert len(calls[0]) < 64


@pytest.mark.parametrize("is_async", [False, True])
def test_failed_at_and_reject_of_a_batch_name_a_record_of_the_lane(is_async):
    calls, failed = [], []

    def plain(batch: Batch):
        numbers = [record.json() for record in batch]
        calls.append(numbers)
        for record in batch:
            if record.json() == 12 and not failed:
                failed.append(record)
                raise FailedAt(record)
            if record.json() == 30:
                raise Reject(record, "unknown")

    async def asynchronous(batch: Batch):
        plain(batch)

    result = run_processor(
        handler(asynchronous if is_async else plain, concurrency=4),
        orders(40, 4),
        max_attempts=3,
        dead_letters=print,
    )
    assert letters(result) == [("Rejected", [30])]
    assert result.lost == 0
    assert any(numbers[0] == 12 for numbers in calls), "what comes before it is done"


def test_a_record_that_does_not_decode_costs_its_lane_nothing_else():
    done = []

    async def on_order(order: dict):
        await asyncio.sleep(0)
        done.append(order["id"])

    given = [*records({"id": 1}, b"no JSON", {"id": 2}, partition_key="one"), *records({"id": 3})]
    result = run_processor(handler(on_order, concurrency=4), given, dead_letters=print)
    assert [condition for condition, _ in [(x.condition.value, x) for x in result.dead_letters]] == [
        "DecodeFailed"
    ]
    assert sorted(done) == [1, 2, 3]
    assert done.index(1) < done.index(2)


# -- stop and loss ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "concurrency"), LANES)
def test_a_stop_lets_running_calls_end_begins_no_others_and_nothing_comes_twice(way, concurrency):
    shop = Shop()
    result = run_processor(shop.of(way, concurrency), orders(300, 300), end="stop", times=3, max_records=100)
    assert result.lost == 0
    assert set(shop.calls.values()) == {1}, "lanes that lag catch up, so that the checkpoint has no gap"


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_stop_lets_the_lane_that_is_furthest_begin_nothing(new_fleet, concurrency):
    fleet = new_fleet(shards=1)
    begun = []

    async def on_record(record: Record):
        begun.append(record.json())
        await asyncio.sleep(6)

    for _ in range(3):
        for number, key in enumerate(one_key_for_each_lane(concurrency)):
            fleet.kinesis.put_record(STREAM, b"%d" % number, key)
    worker = fleet.start("w1", processor=handler(on_record, concurrency=concurrency), shutdown_grace=30.0)
    fleet.simulation.sleep(3)
    began = fleet.simulation.now
    worker.stop()
    assert fleet.simulation.now - began < 5
    assert sorted(begun) == list(range(concurrency))


@pytest.mark.parametrize(("way", "concurrency"), LANES)
def test_a_lost_lease_lets_lanes_begin_nothing_more_and_the_context_says_so(new_fleet, way, concurrency):
    fleet = new_fleet(shards=1)
    begun, lost = [], []

    def plain(record: Record, context: Context):
        begun.append(record.json())
        while not context.lost:
            fleet.simulation.sleep(0.1)
        lost.append(record.json())

    async def asynchronous(record: Record, context: Context):
        begun.append(record.json())
        while not context.lost:
            await asyncio.sleep(0.1)
        lost.append(record.json())

    made = handler(plain if way == "plain" else asynchronous, concurrency=concurrency)
    put(fleet, 40)
    fleet.start("w1", processor=made)
    fleet.simulation.sleep(3)
    assert 0 < len(begun) <= concurrency
    before = list(begun)
    steal(fleet)
    fleet.simulation.sleep(20)
    assert fleet.happened(LeaseLost)
    assert sorted(lost) == sorted(before)
    assert checkpoint(fleet).is_sentinel, "what ends after the loss settles nothing"


def steal(fleet):
    rows = fleet.dynamodb.tables[TABLE].rows
    ((key, row),) = rows.items()
    counter = str(int(row["leaseCounter"]["N"]) + 1)
    rows[key] = {**row, "leaseOwner": {"S": "another"}, "leaseCounter": {"N": counter}}


def test_b3_a_stop_cancels_what_runs_at_the_end_of_the_grace_and_settles_it_not(new_fleet):
    fleet = new_fleet(shards=1)
    cancelled, swallowed = [], []

    async def on_record(record: Record):
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            cancelled.append(record.json())
            if record.json() % 2:
                swallowed.append(record.json())
                await asyncio.sleep(1_000)
            raise

    put(fleet, 8)
    worker = fleet.start("w1", processor=handler(on_record, concurrency=8), shutdown_grace=5.0)
    fleet.simulation.sleep(3)
    began = fleet.simulation.now
    worker.stop()
    assert fleet.simulation.now - began <= 7
    assert cancelled
    assert swallowed
    assert checkpoint(fleet).is_sentinel
    (row,) = fleet.rows().values()
    assert row.owner is None, "the lease is released all the same"
    fleet.simulation.sleep(5)
    assert [task.name for task in fleet.simulation.unfinished("w1") if task.name.startswith("pykcl-")] == []


async def suppresses(work):
    with suppress(asyncio.CancelledError):
        await work


async def logs_whatever_comes(work):
    try:
        await work
    except BaseException as error:  # noqa: BLE001 - as many programs do
        print(type(error).__name__)


async def waits_for_a_task_of_its_own(work):
    await asyncio.wait([asyncio.ensure_future(suppresses(work))])


async def gathers(work):
    try:
        await asyncio.gather(work, return_exceptions=True)
    except asyncio.CancelledError:
        return "a result"


async def answers_late(work):
    await suppresses(work)
    await asyncio.sleep(0.3)


async def raises_another_error(work):
    try:
        await work
    except asyncio.CancelledError:
        raise ValueError("no answer") from None


SWALLOWS = [
    suppresses,
    logs_whatever_comes,
    waits_for_a_task_of_its_own,
    gathers,
    answers_late,
    raises_another_error,
]


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("swallow", SWALLOWS)
@pytest.mark.parametrize("takes", ["records", "batches"])
def test_a_call_that_a_stop_broke_off_is_not_done_however_it_ends(new_fleet, takes, swallow, concurrency):
    fleet = new_fleet(shards=1)
    is_one_call = takes == "batches" and concurrency == 1
    done, begun = [], []

    async def work(number):
        begun.append(number)
        await asyncio.sleep(1 if number == 0 and not is_one_call else 1_000)
        done.append(number)

    async def on_record(record: Record):
        await swallow(work(record.json()))

    async def on_batch(batch: list[Any]):
        await swallow(work(batch[0]))
        done.extend(batch[1:] if batch[0] in done else [])

    put(fleet, 8)
    broken_off = handler(on_record if takes == "records" else on_batch, concurrency=concurrency)
    worker = fleet.start("w1", processor=broken_off, shutdown_grace=5.0)
    fleet.simulation.sleep(6)
    worker.stop()
    fleet.simulation.sleep(5)
    assert set(begun) > set(done), "a call was broken off"
    before = list(done)

    async def goes_well(record: Record):
        done.append(record.json())

    fleet.start("w2", processor=handler(goes_well))
    fleet.simulation.sleep(60)
    assert sorted(set(done)) == list(range(8))
    if before[:1] == [0]:
        assert done.count(0) == 1, "what had returned before is settled"


def test_a_call_that_the_end_of_the_event_loop_broke_off_is_not_done(new_fleet):
    """The thread of its shard waits for a checkpoint until the grace is over, so that nobody cancels before that."""
    fleet = new_fleet(shards=1)
    begun, done = [], []

    async def on_record(record: Record):
        begun.append(record.json())
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(5 if record.json() == 0 else 1_000)
            done.append(record.json())

    put(fleet, 8)
    worker = fleet.start("w1", processor=handler(on_record, concurrency=8), shutdown_grace=3.0)
    while not begun:
        fleet.simulation.sleep(0.1)
    fleet.simulation.sleep(4)
    answers = fleet.dynamodb.fault
    fleet.dynamodb.fault = lambda operation, params: Fault(late_answer=6)
    fleet.simulation.sleep(1.5)
    with pytest.raises(StopTimedOut):
        worker.stop()
    fleet.dynamodb.fault = answers
    fleet.simulation.sleep(30)
    assert len(begun) > 1
    assert done == [0]

    async def goes_well(record: Record):
        done.append(record.json())

    fleet.start("w2", processor=handler(goes_well))
    fleet.simulation.sleep(60)
    assert sorted(set(done)) == list(range(8))


@pytest.mark.parametrize(("way", "concurrency"), LANES)
def test_a_call_that_does_not_return_is_reported_with_its_own_stack(new_fleet, way, concurrency):
    fleet = new_fleet(shards=1)

    def plain_wait():
        fleet.simulation.sleep(1_000)

    async def asynchronous_wait():
        await asyncio.sleep(1_000)

    def plain(record: Record):
        if record.json() == 0:
            plain_wait()

    async def asynchronous(record: Record):
        if record.json() == 0:
            await asynchronous_wait()

    put(fleet, 20)
    made = handler(plain if way == "plain" else asynchronous, concurrency=concurrency)
    fleet.start("w1", processor=made, processor_warn_after=5.0)
    fleet.simulation.sleep(20)
    (slow,) = fleet.happened(ProcessorSlow)
    assert slow.thread.startswith("pykcl-lane-" if way == "plain" else "pykcl-loop")
    functions = [line.rpartition(" ")[2] for line in slow.stack]
    name = "plain" if way == "plain" else "asynchronous"
    assert functions.index(name) + 1 == functions.index(f"{name}_wait")
    assert "_calls" not in functions, "what leads to the handler is of no use"


# -- B3: the event loop ----------------------------------------------------------------------------------------


def test_b3_a_handler_that_blocks_the_loop_costs_no_lease_and_is_reported_once():
    async def on_record(record: Record):
        if record.json() == 3:
            CLOCK.advance(60)

    result = run_processor(handler(on_record, concurrency=4), orders(8, 8))
    (event,) = happened(result, EventLoopBlocked)
    assert event.code == "E26"
    assert 1 <= event.seconds < 3
    assert any("on_record" in line for line in event.stack)
    assert not happened(result, LeaseLost)
    assert result.lost == 0


def test_b3_leaked_tasks_base_exceptions_and_foreign_cancellation_leave_no_thread(new_fleet):
    fleet = new_fleet(shards=1)
    tries, done = Counter(), []

    async def leaks():
        while True:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                leaked.append("cancelled")
                raise

    async def exits():
        raise SystemExit(3)

    async def on_record(record: Record):
        number = record.json()
        tries[number] += 1
        if number == 1:
            kept.append(asyncio.ensure_future(leaks()))
        if number == 2 and tries[2] == 1:
            raise SystemExit(2)
        if number == 3 and tries[3] == 1:
            raise asyncio.CancelledError
        if number == 4 and tries[4] == 1:
            raise KeyboardInterrupt
        if number == 5 and tries[5] == 1:
            kept.append(asyncio.ensure_future(exits()))
        if number == 6 and tries[6] == 1:
            raise GeneratorExit
        await asyncio.sleep(0.01)
        done.append(number)

    kept, leaked = [], []
    put(fleet, 8)
    worker = fleet.start("w1", processor=handler(on_record, concurrency=4))
    fleet.simulation.sleep(30)
    assert sorted(done) == list(range(8))
    errors = sorted(event.error for event in fleet.happened(ProcessorRaised))
    assert errors == ["CancelledError", "GeneratorExit", "KeyboardInterrupt", "SystemExit"]
    assert not fleet.happened(LeaseLost)
    worker.stop()
    assert leaked == ["cancelled"]
    assert fleet.simulation.unfinished("w1") == []


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit])
def test_what_a_plain_handler_raises_is_about_its_record_alone(error, concurrency):
    calls = Counter()

    def on_record(record: Record):
        calls[record.json()] += 1
        if record.json() == 3:
            raise error

    is_counted = not issubclass(error, KeyboardInterrupt | SystemExit)
    made = handler(on_record, concurrency=concurrency)
    if is_counted:
        result = run_processor(made, orders(8, 8), max_attempts=2)
        assert letters(result) == [("RetryAttemptsExhausted", [3])]
        assert calls == {number: 2 if number == 3 else 1 for number in range(8)}
        return
    with pytest.raises(RunFailed):
        run_processor(made, orders(8, 8), max_attempts=2, timeout=30)
    assert {number for number, count in calls.items() if count > 1} == {3}


def test_b4_many_shards_share_one_loop():
    loops, running, most = set(), Counter(), Counter()

    async def on_record(record: Record):
        loops.add(id(asyncio.get_running_loop()))
        running[record.shard_id] += 1
        most[record.shard_id] = max(most[record.shard_id], running[record.shard_id])
        await asyncio.sleep(0.01)
        running[record.shard_id] -= 1
        seen[record.shard_id, record.partition_key].append(record.json())

    seen = defaultdict(list)
    result = run_processor(handler(on_record, concurrency=32), orders(2_000, 500), shards=16, end="crash")
    assert result.lost == 0
    assert len(loops) == 2, "one for each of the two processes"
    assert max(most.values()) > 8
    for numbers in seen.values():
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_async_handler_that_never_waits_gives_way_to_its_neighbours_between_two_records(concurrency):
    """Its call alone may hold up the loop, but not all of its batch: another shard, and another handler, has a turn."""
    order = []

    async def on_record(record: Record):
        CLOCK.advance(0.05)
        order.append((record.shard_id, record.json()))

    result = run_processor(handler(on_record, concurrency=concurrency), orders(200, 200), shards=2)
    assert result.lost == 0
    assert len(result.batches) == 2, "each shard has one batch"
    first, other = order[0][0], [at for at, (shard, _) in enumerate(order) if shard != order[0][0]]
    assert other[0] < 10, f"the neighbour of {first} waited for {other[0]} records"
    assert not happened(result, EventLoopBlocked)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_b1_every_form_may_be_async(concurrency):
    async def of_record(record): ...
    async def of_bytes(data: bytes): ...
    async def of_dict(order: dict, context: Context): ...
    async def of_list(orders: list[dict]): ...
    async def of_batch(batch: Batch, context: Context): ...

    for function in (of_record, of_bytes, of_dict, of_list, of_batch):
        result = run_processor(
            handler(function, concurrency=concurrency), records(*({"id": n} for n in range(20)))
        )
        assert result.checkpoints[-1] == "SHARD_END", function


def test_b6_a_partial_of_an_object_with_an_async_call_is_async():
    seen = []

    class Store:
        async def __call__(self, table: str, record: Record):
            await asyncio.sleep(0)
            seen.append((table, record.json()))

    run_processor(handler(functools.partial(Store(), "orders")), orders(2, 1))
    assert seen == [("orders", 0), ("orders", 1)]


def test_a_coroutine_of_a_coroutine_settles_nothing():
    async def store(record): ...

    async def forgets_to_await(record: Record):
        return store(record)

    with pytest.raises(RunFailed):
        run_processor(handler(forgets_to_await), orders(3, 3), timeout=10.0)


def test_a_filter_is_asked_in_each_lane_and_counts():
    result = run_processor(
        handler(lambda record: None, concurrency=4, filter=lambda record: record.json() % 2 == 0),
        orders(100, 10),
        call_with_empty_batches=True,
    )
    assert result.lost == 0


def test_without_a_worker_there_is_one_lane_and_it_raises_as_a_plain_handler():
    done = []

    async def on_record(record: Record):
        await asyncio.sleep(0)
        if record.sequence_number == "3":
            raise ValueError("poison")
        done.append(record.sequence_number)

    def plain(record: Record):
        asyncio.run(on_record(record))

    for made in (handler(on_record, concurrency=4), handler(plain, concurrency=4)):
        done.clear()
        processor = made()
        processor.initialize(InitializationInput("s", "orders", None, None, 1, None))
        batch = Batch(
            [Record(b"", f"key-{n}", str(n), shard_id="s") for n in range(5)], None, 0, "s", "orders"
        )
        with pytest.raises(FailedAt) as raised:
            processor.process_records(batch)
        assert raised.value.record.sequence_number == "3"
        assert done == ["0", "1", "2"]
        processor.lease_lost(None)
    assert not [thread for thread in threading.enumerate() if thread.name == "pykcl-loop"]


# -- a thread-safe Lambda handler ------------------------------------------------------------------------------


def test_a_thread_safe_lambda_handler_has_lanes():
    running, most, seen = Counter(), Counter(), defaultdict(list)

    def on_event(event, context):
        running["now"] += 1
        most["ever"] = max(most["ever"], running["now"])
        CLOCK.advance(0.1)
        failed = []
        for record in event["Records"]:
            key, number = record["kinesis"]["partitionKey"], record["kinesis"]["sequenceNumber"]
            if key == "key-3" and not failed and number not in tried:
                tried.add(number)
                failed.append({"itemIdentifier": number})
            elif not failed:
                seen[key].append(number)
        running["now"] -= 1
        return {"batchItemFailures": failed}

    tried = set()
    made = lambda_processor(
        on_event, handler_is_thread_safe=True, concurrency=4, report_batch_item_failures=True
    )
    result = run_processor(made, orders(60, 6))
    assert most["ever"] == 4
    assert result.lost == 0
    for numbers in seen.values():
        assert numbers == sorted(numbers, key=int)
    assert sum(map(len, seen.values())) == 60


# -- A4.7: contradictions ---------------------------------------------------------------------------------------


class Orders(RecordProcessor):
    def process_records(self, batch):
        pass


async def asynchronous(record): ...


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (lambda count=count: handler(print, concurrency=count), "is not a whole number from 1 to 256")
            for count in (0, -1, 257, True, "8", 2.0, None)
        ),
        (
            lambda: Worker("orders-app", stream="orders", processor=Orders, concurrency=4),
            r"concurrency=4 is no option of a Worker: .* Do: processor=handler\(on_record, concurrency=4\)",
        ),
        (lambda: App("orders-app", concurrency=4), r"Do: @app.stream\(\"orders\", concurrency=8\)"),
        (
            lambda: lambda_processor(lambda event, context: None, concurrency=4),
            "concurrency=4 makes several calls at once, and handler_is_thread_safe=False allows one",
        ),
        (lambda: lambda_processor(lambda event, context: None, concurrency=0), "is not a whole number"),
    ],
)
def test_a4_7_what_concurrency_does_not_go_with_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("made", "why"),
    [(handler(lambda record: None, concurrency=4), "concurrency=4"), (handler(asynchronous), "async def")],
)
def test_a4_7_checkpoints_by_hand_do_not_go_with_lanes(made, why):
    with pytest.raises((ConfigError, RunFailed), match=f"checkpoint_mode='manual' leaves .* has {why}"):
        run_processor(made, orders(3, 3), checkpoint_mode="manual", timeout=10.0)


def test_a_handler_in_lanes_cannot_checkpoint_past_what_is_not_done():
    refused = []

    def on_record(record: Record, context: Context):
        try:
            context.batch.checkpointer.checkpoint()
        except CheckpointRefused as error:
            refused.append(str(error))

    result = run_processor(handler(on_record, concurrency=2), orders(10, 10))
    assert "not done. Leave it out: the checkpoint follows by itself" in refused[0]
    assert result.lost == 0


APP = App("orders-app")


@APP.stream("orders", concurrency=2)
def of_an_app(record: Record): ...


@pytest.mark.parametrize(
    ("found", "do"),
    [
        (
            Orders,
            r"handler\(..., concurrency=4\) in the program; a class processes one record after the other",
        ),
        (handler(asynchronous), r"Do: handler\(..., concurrency=4\)"),
        (of_an_app, r"Do: @app.stream\(..., concurrency=4\)"),
        (APP, r"Do: @app.stream\(..., concurrency=4\)"),
    ],
)
def test_a4_7_the_option_of_the_command_is_for_functions(found, do):
    with pytest.raises(ConfigError, match=f"^--concurrency 4 goes with a function .* {do}"):
        processor_of(found, concurrency=4)
    assert processor_of(asynchronous, concurrency=4)().settles_because == "concurrency=4"
    assert processor_of(found, None) is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kclpy", "x.py"], "--concurrency is for functions and Lambda handlers, not for --kclpy"),
        (["mod:name", "--concurrency", "0"], "0 is not in the range 1<=x<=256"),
    ],
)
def test_a4_7_the_command_refuses_what_it_cannot_do(words, said):
    done = CliRunner().invoke(run, ["--concurrency", "4", *words, "-a", "a", "--stream", "s"])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


# -- in real time ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["plain", "async"])
def test_b3_real_threads_and_a_real_loop_end_with_the_worker(worker, kinesis, way):
    seen, gate = [], threading.Barrier(4, timeout=300)

    def plain(record: Record):
        # Passes only if four calls run at the same time.
        gate.wait()
        seen.append(record.json())

    async def asynchronous(record: Record):
        await asyncio.to_thread(gate.wait)
        seen.append(record.json())

    kinesis.create_stream("orders", shards=1)
    keys = one_key_for_each_lane(4)
    for number, key in enumerate(keys):
        kinesis.put("orders", b"%d" % number, partition_key=key)
    running = worker(handler(plain if way == "plain" else asynchronous, concurrency=4), "orders")
    running.wait_delivered()
    running.stop()
    assert sorted(seen) == [0, 1, 2, 3]
    left = [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(("pykcl-lane", "pykcl-loop", "asyncio_"))
    ]
    assert not [thread.name for thread in left if thread.name.startswith("pykcl-")]
    for thread in left:
        # Those of asyncio.to_thread are asked to end, and not waited for.
        thread.join(300)
        assert not thread.is_alive()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", ["plain", "async"])
def test_three_bad_records_in_a_hundred_end_in_one_letter_each_in_256_real_lanes(worker, kinesis, way):
    bad, kept, seen = range(0, 10_000, 33), [], Counter()

    def plain(record: Record):
        number = record.json()
        if number in bad:
            raise ValueError("poison")
        seen[number] += 1

    async def asynchronous(record: Record):
        await asyncio.sleep(0)
        plain(record)

    kinesis.create_stream("orders", shards=1)
    kinesis.put("orders", *range(10_000), partition_key=lambda number: f"key-{number}")
    running = worker(
        handler(plain if way == "plain" else asynchronous, concurrency=256),
        "orders",
        max_attempts=2,
        dead_letters=lambda sent: kept.extend(record.json() for letter in sent for record in letter.records),
    )
    result = running.wait_checkpointed(timeout=300)
    print(f"{way}: {result.seconds:.1f} s")
    assert sorted(kept) == list(bad)
    assert seen == Counter(set(range(10_000)) - set(bad))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("swallow", [suppresses, logs_whatever_comes, gathers])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_three_stops_in_a_row_lose_nothing_though_the_handler_swallows_their_cancellation(
    worker, kinesis, swallow, concurrency
):
    """In real threads and a real event loop. Each worker is given more of the records that do not end for it.

    A machine may be too busy for the last checkpoint within the grace period: the lease is left to expire then.
    """
    done, quick = Counter(), 0
    hangs = threading.Event()

    async def work(number):
        if number >= quick:
            hangs.set()
            await asyncio.sleep(3600)
        done[number] += 1

    async def on_record(record: Record):
        await swallow(work(record.json()))

    kinesis.create_stream("orders", shards=2)
    kinesis.put("orders", *range(200), partition_key=lambda number: f"key-{number}")
    made = handler(on_record, concurrency=concurrency)
    for _ in range(3):
        quick += 40
        hangs.clear()
        running = worker(made, "orders", shutdown_grace=5.0, failover_time=5.0)
        assert hangs.wait(120)
        with suppress(StopTimedOut):
            running.stop()
    before, quick = Counter(done), 200
    worker(made, "orders", failover_time=5.0).wait_checkpointed(timeout=240)
    assert before.keys() < done.keys()
    assert done.keys() == set(range(200))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize(("way", "concurrency"), [("plain", 1), ("plain", 4), ("async", 4)])
@pytest.mark.parametrize(
    ("leave", "code"), [(lambda: None, 1), (lambda: sys.exit(7), 7)], ids=["returns", "exits"]
)
def test_a_process_that_a_handler_forks_ends_with_its_call(
    worker, kinesis, tmp_path, way, concurrency, leave, code
):
    parent, ends, calls = os.getpid(), [], tmp_path / "calls"

    def work(record):
        with calls.open("a") as out:
            out.write(f"{'parent' if os.getpid() == parent else 'child'} {record.json()}\n")
        if record.json() or os.getpid() != parent:
            return
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            leave()
            return
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    async def asynchronous(record: Record):
        work(record)

    def plain(record: Record):
        work(record)

    kinesis.create_stream("orders", shards=1)
    for number in range(4):
        kinesis.put("orders", b"%d" % number, partition_key="one")
    made = handler(plain if way == "plain" else asynchronous, concurrency=concurrency)
    running = worker(made, "orders")
    running.wait_delivered()
    running.stop()
    assert ends == [code]
    assert calls.read_text().splitlines() == [f"parent {number}" for number in range(4)]


def test_b3_the_loop_of_a_forked_process_ends_with_its_own_users():
    user = LoopUser(SystemRuntime())

    def act():
        mine = LoopUser(SystemRuntime())
        left = mine.close(SystemRuntime().monotonic() + 10)
        os._exit(0 if not left and not mine.loop.is_alive else 1)

    child = os.fork()
    if not child:
        try:
            act()
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert user.loop.is_alive
    assert user.close(SystemRuntime().monotonic() + 10) == []


def one_key_for_each_lane(count):
    from zlib import crc32

    found = {}
    number = 0
    while len(found) < count:
        key = f"key-{number}"
        found.setdefault(crc32(key.encode()) % count, key)
        number += 1
    return list(found.values())


def test_b3_hooks_of_an_app_may_be_async_and_run_in_the_loop_of_its_handlers():
    seen = []
    app = App("orders-app")

    @app.on_start
    async def connect():
        await asyncio.sleep(0)
        seen.append(("start", asyncio.get_running_loop()))

    @app.on_stop
    async def disconnect():
        seen.append(("stop", asyncio.get_running_loop()))

    @app.on_stop
    def plain():
        seen.append(("plain", None))

    with app.running():
        pass
    assert [name for name, _ in seen] == ["start", "plain", "stop"]
    assert seen[0][1] is seen[2][1]
    assert not [thread for thread in threading.enumerate() if thread.name == "pykcl-loop"]
