"""`run_consumer`: a program that iterates, in simulated time."""

import asyncio

import pytest

from pykcl import AsyncConsumer, ConfigError, Consumer
from pykcl.testing import (
    RunFailed,
    assert_at_least_once,
    assert_in_order,
    assert_no_loss,
    records,
    run_consumer,
)


def read_all(consumer):
    assert isinstance(consumer, Consumer)
    for _ in consumer:
        pass


async def read_all_in_a_loop(consumer):
    assert isinstance(consumer, AsyncConsumer)
    async for _ in consumer:
        await asyncio.sleep(1)


@pytest.mark.parametrize("program", [read_all, read_all_in_a_loop])
def test_a_program_gets_every_record_and_its_acks_are_checkpoints(program):
    result = run_consumer(program, records({"id": 1}, {"id": 2}, "x", b"y"), shards=2)
    assert_at_least_once(result)
    assert_no_loss(result)
    assert_in_order(result)
    assert len(result.delivered) == len(result.checkpointed) == 4
    assert (result.unsettled, result.lost, result.duplicates) == ([], 0, 0)


def test_what_the_program_leaves_open_is_unsettled():
    def program(consumer):
        for record in consumer:
            if record.json()["id"] == 2:
                break

    result = run_consumer(program, records({"id": 1}, {"id": 2}, {"id": 3}))
    assert [record.json()["id"] for record in result.checkpointed] == [1]
    assert [record.json()["id"] for record in result.unsettled] == [2, 3]
    with pytest.raises(AssertionError, match="Not processed"):
        assert_at_least_once(result)


def test_rejected_records_are_letters():
    async def program(consumer):
        async for record in consumer:
            if not record.json():
                await consumer.reject(record, "empty")

    result = run_consumer(program, records({"id": 1}, {}))
    assert [letter.reason for letter in result.dead_letters] == ["empty"]
    assert len(result.checkpointed) == 2
    assert result.lost == 0


def test_what_the_program_raises_is_raised():
    def program(consumer):
        raise ZeroDivisionError(next(consumer).text())

    with pytest.raises(ZeroDivisionError, match="a"):
        run_consumer(program, records("a"))


async def wait_for_something_else(consumer):
    async for _ in consumer:
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("program", [read_all, read_all_in_a_loop, wait_for_something_else])
def test_a_program_that_does_not_end_fails(program):
    with pytest.raises(RunFailed, match="within 60 simulated seconds") as found:
        run_consumer(program, records("a"), idle_timeout=None, timeout=60)
    assert len(found.value.result.delivered) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"stream": "orders"}, "stream= is decided by run_consumer"),
        ({"shards": 0}, "shards"),
        ({"batch_size": 3}, "batch_size=3 has no meaning"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        run_consumer(read_all, records("a"), **arguments)
    with pytest.raises(ConfigError, match="a function of a consumer"):
        run_consumer("no function", records("a"))


class Reader:
    """An object with an async def to be called."""

    async def __call__(self, consumer):
        assert isinstance(consumer, AsyncConsumer)
        async for _ in consumer:
            pass


def test_an_object_that_is_called_asynchronously_gets_an_async_consumer():
    result = run_consumer(Reader(), records("a", "b"))
    assert [record.text() for record in result.delivered] == ["a", "b"]


def read_later(consumer):
    return Reader()(consumer)


def generate(consumer):
    yield from consumer


async def generate_later(consumer):
    async for record in consumer:
        yield record


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (read_later, "coroutine"),
        (generate, "generator"),
        (generate_later, "async_generator"),
    ],
)
def test_a_program_that_nobody_runs_is_refused_for_it_reads_nothing(program, kind):
    with pytest.raises(ConfigError, match=rf"returned a {kind}, of which nothing has run\. Do: "):
        run_consumer(program, records("a"))
