"""Who asks a consumer for records: loops within loops, tasks that failed, threads that ended, and close() elsewhere."""

import asyncio
import gc
import signal

import pytest
from consuming import KINDS, Consuming

from pykcl import AsyncConsumer, Consumer, PyKclError, Record
from pykcl.testing.fleet import STREAM


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
