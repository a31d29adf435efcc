"""kcl_clock: work that takes simulated time, so that what depends on time is tested without waiting."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from pykcl import ConfigError, RecordProcessor
from pykcl.events import LeaseDoubted, ProcessorSlow, ProcessorTimedOut
from pykcl.testing import (
    SimulatedClock,
    UserCodeFailed,
    assert_at_least_once,
    records,
    run_processor,
    simulate,
)


def working(work):
    """A class that does `work(batch, number of the batch)` for each batch."""
    numbers = iter(range(1000))
    return type(
        "Working", (RecordProcessor,), {"process_records": lambda self, batch: work(batch, next(numbers))}
    )


def test_a_call_takes_as_long_as_it_says_and_no_real_time(kcl_clock):
    seen = []

    def work(batch, number):
        before, day = kcl_clock.monotonic(), kcl_clock.now()
        kcl_clock.advance(100)
        seen.append((kcl_clock.monotonic() - before, kcl_clock.now() - day))

    started = time.monotonic()
    result = run_processor(working(work), records(*range(3)), max_records=1)
    assert seen == [(100.0, timedelta(seconds=100))] * 3
    assert 300 < result.seconds < 310
    assert time.monotonic() - started < 100


def test_now_is_the_time_at_which_records_arrive(kcl_clock):
    arrived, seen = datetime(2026, 1, 2, 3, tzinfo=UTC), []
    run_processor(working(lambda batch, number: seen.append(kcl_clock.now())), records("a", arrived=arrived))
    assert arrived <= seen[0] < arrived + timedelta(minutes=1)


def test_heartbeats_go_on_while_a_call_works(kcl_clock):
    result = run_processor(
        working(lambda batch, number: kcl_clock.advance(120)), records("a"), failover_time=10
    )
    assert [call.method for call in result.calls].count("lease_lost") == 0
    assert result.duplicates == 0


def test_a_call_beyond_its_time_out_costs_the_lease_and_its_records_come_again(kcl_clock):
    result = run_processor(
        working(lambda batch, number: kcl_clock.advance(60 if number == 0 else 0)),
        records("a"), processor_warn_after=10, processor_timeout=30,
    )  # fmt: skip
    kinds = [type(event) for event in result.events]
    assert ProcessorSlow in kinds
    assert ProcessorTimedOut in kinds
    assert len(result.batches) == 2
    assert_at_least_once(result)


def test_a_process_that_stands_still_goes_on_where_nobody_has_taken_its_lease(kcl_clock):
    def work(batch, number):
        if number == 0:
            kcl_clock.freeze(60)

    result = run_processor(working(work), records("a"), failover_time=10)
    assert [event for event in result.events if isinstance(event, LeaseDoubted)]
    assert [call.method for call in result.calls] == ["initialize", "process_records", "shard_ended"]
    assert result.seconds > 60


def test_what_is_checkpointed_at_intervals_depends_on_the_time_that_passes(kcl_clock):
    def checkpoints(seconds):
        result = run_processor(
            working(lambda batch, number: kcl_clock.advance(seconds)), records(*range(10)),
            max_records=1, checkpoint_mode="interval", checkpoint_interval=60,
        )  # fmt: skip
        return len(result.checkpoints)

    assert checkpoints(0.01) < checkpoints(20) < checkpoints(59.9)


def test_the_same_seed_takes_the_same_course(kcl_clock):
    def run():
        work = working(lambda batch, number: kcl_clock.advance(number))
        return [str(event) for event in run_processor(work, records(*range(9)), shards=3, seed=4).events]

    assert run() == run()


def test_it_serves_fleets_too(kcl_clock):
    assert simulate(working(lambda batch, number: kcl_clock.advance(0.5)), seeds=1, first=3).records


def test_a_thread_of_the_processor_cannot_move_the_clock(kcl_clock):
    def work(batch, number):
        thread = threading.Thread(target=move)
        thread.start()
        thread.join()

    errors = []

    def move():
        with pytest.raises(
            UserCodeFailed, match=r"asked for advance\(\) in a thread that no simulation runs"
        ):
            kcl_clock.advance(1)
        errors.append(1)

    assert run_processor(working(work), records("a")).lost == 0
    assert errors == [1]


def test_outside_of_a_run_it_says_where_it_can_be_used(kcl_clock):
    assert isinstance(kcl_clock, SimulatedClock)
    for use in (
        kcl_clock.now,
        kcl_clock.monotonic,
        lambda: kcl_clock.advance(1),
        lambda: kcl_clock.freeze(1),
    ):
        with pytest.raises(
            UserCodeFailed, match="Do: call it in a method of a processor, during run_processor"
        ):
            use()


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", True, None])
def test_seconds_that_are_none_are_refused(kcl_clock, seconds):
    with pytest.raises(ConfigError, match="is not a number of seconds from 0"):
        kcl_clock.advance(seconds)
    with pytest.raises(ConfigError, match="is not a number of seconds from 0"):
        kcl_clock.freeze(seconds)
