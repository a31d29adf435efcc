"""Who asks a consumer for records: loops within loops, tasks that failed, threads that ended, and close() elsewhere."""

import asyncio
import gc
import signal
from dataclasses import dataclass
from threading import Thread

import pytest
from consuming import KINDS, Consuming, take_the_lease

from pykcl import AsyncConsumer, ConfigError, Consumer, Ended, PyKclError, Record, TableGone
from pykcl.processor import NotDecoded
from pykcl.testing.fleet import STREAM, TABLE


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def consuming(request, new_fleet):
    """consuming(shards=1): a fleet of consumers of one kind."""
    return lambda shards=1: Consuming(request.param, new_fleet(shards=shards))


class Left(Exception):
    """Raised by the body of a loop."""


# -- loops -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raises", [False, True])
def test_what_an_inner_loop_has_left_open_is_not_acked_by_the_outer_one(consuming, raises):
    all_of = consuming()
    put, done = all_of.fleet.put(5), []

    async def inner(consumer):
        async for record in consumer:
            if record.data == put[2]:
                if raises:
                    raise Left
                break
            done.append(record.data)

    async def main():
        async with all_of.open() as consumer:
            async for _ in consumer:
                try:
                    await inner(consumer)
                except Left:
                    assert raises

    with pytest.raises(
        PyKclError, match=r"Two loops ask this (Async)?Consumer.*Do: consumer\.ack\(record\) before"
    ):
        all_of.run(main())
    assert done == put[:2], "the inner loop begins with the record of the outer one"
    assert all_of.rest() == put[2:]


def test_an_outer_loop_goes_on_behind_what_the_inner_one_has_acked(consuming):
    all_of = consuming()
    put, done = all_of.fleet.put(6), []

    async def main():
        async with all_of.open(idle_timeout=5) as consumer:
            async for record in consumer:
                if record.data == put[0]:
                    async for inner in consumer:
                        if inner.data == put[2]:
                            consumer.ack(inner)
                            break
                else:
                    done.append(record.data)

    all_of.run(main())
    assert done == put[3:]
    assert all_of.rest() == []


def test_loops_that_take_turns_are_refused(consuming):
    all_of = consuming()
    put = all_of.fleet.put(5)

    async def main():
        async with all_of.open() as consumer:
            one, other = aiter(consumer), aiter(consumer)
            assert (await anext(one)).data == put[0]
            for _ in range(2):
                with pytest.raises(PyKclError, match="Two loops ask"):
                    await anext(other)
            assert (await anext(one)).data == put[1]

    all_of.run(main())
    assert all_of.rest() == put[1:]


def test_asking_the_consumer_itself_within_a_loop_goes_on_with_that_loop(consuming):
    all_of = consuming()
    put = all_of.fleet.put(4)

    async def main():
        async with all_of.open(idle_timeout=5) as consumer:
            return [(record.data, (await anext(consumer)).data) async for record in consumer]

    assert all_of.run(main()) == [tuple(put[:2]), tuple(put[2:])]
    assert all_of.rest() == []


def test_a_loop_over_the_same_iterator_begins_with_what_the_last_one_left_open(consuming):
    all_of = consuming()
    put = all_of.fleet.put(3)

    async def main():
        async with all_of.open(idle_timeout=5) as consumer:
            records = aiter(consumer)
            async for record in records:
                assert record.data == put[0]
                break
            return [record.data async for record in records]

    assert all_of.run(main()) == put
    assert all_of.rest() == []


# -- tasks and threads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_what_a_task_had_when_it_failed_comes_again(new_fleet, is_cancelled):
    all_of = Consuming(AsyncConsumer, new_fleet(shards=1))
    put, done, failures = all_of.fleet.put(5), [], iter([True, True, False])

    async def one(consumer):
        record = await anext(consumer)
        if record.data == put[1] and next(failures):
            if not is_cancelled:
                raise Left
            await asyncio.sleep(1000)
        done.append(record.data)

    async def main():
        async with all_of.open() as consumer:
            for _ in range(7):
                task = asyncio.create_task(one(consumer))
                await asyncio.wait({task}, timeout=10)
                task.cancel()
                await asyncio.wait({task})

    all_of.run(main())
    assert done == put
    assert all_of.rest() == put[-1:]


def test_the_loop_of_a_thread_begins_with_what_one_that_ended_left_open(new_fleet):
    all_of = Consuming(Consumer, new_fleet(shards=1))
    put = all_of.fleet.put(4)

    def other():
        for record in consumer:
            if record.data == put[1]:
                break

    with all_of.fleet.consumer(Consumer, "c1", idle_timeout=5) as consumer:
        task = all_of.simulation.spawn("other", "main", other)
        task.join()
        # The simulation is done with it; the system may not be.
        task.thread.join()
        with pytest.raises(PyKclError, match="Two threads ask"):
            next(consumer)
        assert [record.data for record in consumer] == put[1:]
    assert all_of.rest() == []


def test_close_in_another_thread_ends_the_loop_and_leaves_signals_to_the_block(new_fleet):
    all_of = Consuming(Consumer, new_fleet(shards=1))
    put = all_of.fleet.put(2)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with all_of.fleet.consumer(Consumer, "c1") as consumer:

        def close():
            all_of.simulation.sleep(30)
            consumer.close()

        task = all_of.simulation.spawn("closes", "main", close)
        assert [record.data for record in consumer] == put
        task.join()
        assert task.error is None
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert all_of.simulation.unfinished("c1") == []


# -- the worker ------------------------------------------------------------------------------------------------


def test_what_ends_the_thread_of_a_start_is_raised(consuming):
    all_of = consuming()

    def start():
        raise SystemExit(3)

    async def main():
        consumer = all_of.open()
        consumer.worker.start = start
        async with consumer:
            raise AssertionError("entered")

    with pytest.raises(PyKclError, match=r"SystemExit: 3.* ended the thread of this (Async)?Consumer"):
        all_of.run(main())


def test_records_that_are_done_are_not_kept(consuming):
    all_of = consuming(4)
    for number in range(200):
        all_of.fleet.kinesis.put_record(STREAM, b"kept? %d" % number, str(number))

    def kept():
        gc.collect()
        return [
            each for each in gc.get_objects() if isinstance(each, Record) and each.data.startswith(b"kept?")
        ]

    async def main():
        async with all_of.open(idle_timeout=5) as consumer:
            assert len([record.data async for record in consumer]) == 200
            assert kept() == []

    all_of.run(main())


# -- the reason for the end ----------------------------------------------------------------------------------------


def test_ended_names_the_first_reason_and_a_further_loop_may_go_on_after_idle_timeout(consuming):
    all_of = consuming()
    all_of.fleet.put(2)

    async def main():
        async with all_of.open(idle_timeout=5) as consumer:
            assert consumer.ended is None
            async for _ in consumer:
                assert consumer.ended is None
            assert consumer.ended is Ended.IDLE
            all_of.fleet.put(2)
            async for _ in consumer:
                assert consumer.ended is None
                consumer.stop()
            assert consumer.ended is Ended.STOPPED
        assert consumer.ended is Ended.STOPPED
        assert consumer.failure is None

    all_of.run(main())


def test_ended_distinguishes_leaving_the_loop_from_a_worker_that_was_stopped(consuming):
    all_of = consuming()
    all_of.fleet.put(2)

    async def main():
        async with all_of.open() as consumer:
            async for _ in consumer:
                break
            assert consumer.ended is None
        assert consumer.ended is Ended.LEFT
        async with all_of.open("c2") as other:
            all_of.in_a_thread(stop_soon(other), "c2")
            async for _ in other:
                pass
            assert other.ended is Ended.STOPPED

    async def stop_soon(other):
        other.worker.stop()

    all_of.run(main())


def test_ended_says_failed_and_failure_is_the_error_that_stopped_the_worker(consuming):
    all_of = consuming()
    all_of.fleet.put(3)

    async def main():
        async with all_of.open() as consumer:
            with pytest.raises(TableGone) as raised:
                async for _ in consumer:
                    all_of.fleet.dynamodb.tables.pop(TABLE, None)
            assert consumer.ended is Ended.FAILED
            assert consumer.failure is raised.value

    all_of.run(main())


# -- a lease that is lost ------------------------------------------------------------------------------------------


def test_the_body_of_a_loop_sees_that_the_lease_of_its_record_is_lost(consuming):
    all_of = consuming()
    fleet = all_of.fleet
    fleet.put(2)
    seen = []

    async def main():
        async with all_of.open(idle_timeout=40, failover_time=5) as consumer:
            async for record in consumer:
                if seen:
                    continue
                assert consumer.lost(record) is False
                take_the_lease(fleet, record.shard_id)
                while not consumer.lost(record):
                    await all_of.sleep(0.1)
                seen.append(record)
                assert consumer.ack(record) is False

    all_of.run(main())
    assert len(seen) == 1


# -- decoded records -----------------------------------------------------------------------------------------------


@dataclass
class Order:
    id: int


def test_decoded_gives_values_with_their_records_and_what_does_not_decode_becomes_a_letter(consuming):
    all_of = consuming()
    fleet, letters, got = all_of.fleet, [], []
    for data in (b'{"id": 1}', b'{"id": "x"}', b"[", b'{"id": 4}'):
        fleet.kinesis.put_record(STREAM, data, "k")

    async def main():
        async with all_of.open(idle_timeout=5, dead_letters=letters.extend) as consumer:
            async for order, record in consumer.decoded(Order):
                got.append((order, record.data))

    all_of.run(main())
    assert got == [(Order(1), b'{"id": 1}'), (Order(4), b'{"id": 4}')]
    assert [letter.records[0].data for letter in letters] == [b'{"id": "x"}', b"["]
    assert all(letter.reason.startswith("does not decode: ") for letter in letters)
    assert all_of.rest() == []


def test_without_dead_letters_what_does_not_decode_leaves_the_loop_and_stays_open(consuming):
    all_of = consuming()
    for data in (b'{"id": 1}', b"[", b'{"id": 3}'):
        all_of.fleet.kinesis.put_record(STREAM, data, "k")

    async def main():
        async with all_of.open() as consumer:
            with pytest.raises(NotDecoded):
                async for order, _ in consumer.decoded(Order):
                    assert order == Order(1)

    all_of.run(main())
    assert all_of.rest() == [b"[", b'{"id": 3}']


def test_a_kind_without_a_decoder_is_refused_before_the_first_record(consuming):
    all_of = consuming()

    async def main():
        async with all_of.open() as consumer:
            with pytest.raises(ConfigError, match=r"decoded: .*Thread has no decoder. Do: use Record"):
                consumer.decoded(Thread)

    all_of.run(main())
