"""Tests of a processor as a user with `mypy --strict` writes them. They are checked, never run."""

from __future__ import annotations

from datetime import UTC, datetime

from pykcl import AsyncConsumer, Batch, Consumer, Record, RecordProcessor
from pykcl.testing import (
    Call,
    FaultRule,
    InputRecord,
    LocalAws,
    LocalStreams,
    Result,
    RunFailed,
    RunningWorker,
    SimulatedClock,
    SimulationFailed,
    SimulationResult,
    UserCodeFailed,
    assert_at_least_once,
    assert_in_order,
    assert_no_loss,
    records,
    run_consumer,
    run_processor,
    simulate,
)
from pykcl.testing.plugin import WorkerStarter


class Orders(RecordProcessor):
    def process_records(self, batch: Batch) -> None:
        del batch


def test_in_simulated_time() -> None:
    given: list[InputRecord] = records({"id": 1}, "two", b"three", partition_key="k", aggregated=True)
    given += records("four", arrived=datetime(2026, 1, 1, tzinfo=UTC))
    result: Result = run_processor(
        Orders, given, end="crash", shards=2, faults=["lost_answers"], max_records=1
    )
    assert_at_least_once(result, ["two"], by=lambda record: record.text())
    assert_no_loss(result)
    assert_in_order(result, per="key")
    calls: list[Call] = result.calls
    delivered: list[Record] = result.delivered
    numbers: tuple[int, int, float] = (result.lost, result.duplicates, result.seconds)
    del calls, delivered, numbers


def consume(consumer: Consumer) -> None:
    for record in consumer:
        consumer.reject(record, "no reason")


async def consume_in_a_loop(consumer: AsyncConsumer) -> None:
    async for record in consumer:
        await consumer.reject(record, "no reason")


def test_consumers() -> None:
    assert run_consumer(consume, records("a"), shards=2).dead_letters
    result: Result = run_consumer(consume_in_a_loop, records("a"), auto_ack=False, max_unacked=10)
    assert_at_least_once(result)


def test_failures() -> None:
    try:
        result: SimulationResult = simulate(Orders, seeds=2, off=["F1"], records=records("a") + records("b"))
        print(result.records)
    except SimulationFailed as failed:
        print(failed.replay)
    except (UserCodeFailed, RunFailed) as error:
        print(error)


def test_the_clock(kcl_clock: SimulatedClock) -> None:
    kcl_clock.advance(30)
    kcl_clock.freeze(0.5)
    times: tuple[datetime, float] = (kcl_clock.now(), kcl_clock.monotonic())
    del times


def test_in_real_time(kinesis: LocalStreams, worker: WorkerStarter) -> None:
    aws: LocalAws = kinesis.aws
    kinesis.create_stream("orders", shards=2)
    put: list[Record] = kinesis.put("orders", {"id": 1})
    kinesis.fault(FaultRule("throttle", "kinesis", "GetRecords", times=1))
    running: RunningWorker = worker(Orders, "orders", checkpoint_mode="auto")
    result: Result = running.wait_checkpointed(timeout=5.0)
    del aws, put, result
