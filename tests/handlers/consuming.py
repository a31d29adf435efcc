"""Consumers in simulated time. A program is written once, as a coroutine, and runs over both kinds of them."""

import asyncio

from pykcl import AsyncConsumer, Consumer
from pykcl.testing.fleet import TABLE
from pykcl.testing.runtime.event_loop import run_coroutine

SHARD = "shardId-000000000000"


class AsAsync:
    """A Consumer with the methods of an AsyncConsumer, none of which ever suspends its coroutine."""

    def __init__(self, consumer):
        self.consumer = consumer
        self.ack, self.stop, self.worker = consumer.ack, consumer.stop, consumer.worker
        self.lost = consumer.lost

    async def __aenter__(self):
        self.consumer.__enter__()
        return self

    async def __aexit__(self, *error):
        return self.consumer.__exit__(*error)

    def __aiter__(self):
        return AsAsyncLoop(iter(self.consumer))

    async def __anext__(self):
        return next_of(self.consumer)

    async def aclose(self):
        self.consumer.close()

    @property
    def ended(self):
        return self.consumer.ended

    @property
    def failure(self):
        return self.consumer.failure

    def decoded(self, kind):
        return AsAsyncLoop(self.consumer.decoded(kind))

    async def reject(self, record, reason=""):
        return self.consumer.reject(record, reason)

    async def wait_ready(self, timeout=None):
        return self.consumer.wait_ready(timeout)


class AsAsyncLoop:
    """The loop over a Consumer, for `async for`."""

    def __init__(self, loop):
        self.loop = loop

    def __aiter__(self):
        return AsAsyncLoop(iter(self.loop))

    async def __anext__(self):
        return next_of(self.loop)


def next_of(iterator):
    try:
        return next(iterator)
    except StopIteration:
        raise StopAsyncIteration from None


class Consuming:
    """A fleet of consumers of one kind."""

    def __init__(self, kind, fleet):
        self.kind, self.fleet, self.simulation = kind, fleet, fleet.simulation

    @property
    def is_async(self):
        return self.kind is AsyncConsumer

    def open(self, name="c1", **options):
        consumer = self.fleet.consumer(self.kind, name, **options)
        return consumer if self.is_async else AsAsync(consumer)

    async def sleep(self, seconds):
        if self.is_async:
            await asyncio.sleep(seconds)
        else:
            self.simulation.sleep(seconds)

    def run(self, coroutine, group="main"):
        if self.is_async:
            return run_coroutine(self.simulation.runtime(group), coroutine)
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("a coroutine over a Consumer waits for something else")

    def in_a_thread(self, coroutine, group):
        return self.simulation.spawn("program", group, lambda: self.run(coroutine, group))

    def rest(self, name="later", **options):
        """Data of all records that a further consumer gets."""

        async def main():
            async with self.open(name, idle_timeout=30, **options) as consumer:
                return [record.data async for record in consumer]

        return self.run(main())


KINDS = [Consumer, AsyncConsumer]


def take_the_lease(fleet, shard=SHARD):
    rows = fleet.dynamodb.tables[TABLE].rows
    counter = int(rows[shard]["leaseCounter"]["N"]) + 1
    rows[shard] = {**rows[shard], "leaseOwner": {"S": "somebody"}, "leaseCounter": {"N": str(counter)}}
