"""Handlers with `concurrency`, and `async def`: over the unmodified worker in simulated time."""

import asyncio
from collections import defaultdict

import pytest

from pykcl import (
    Context,
    Record,
    handler,
)
from pykcl.testing import SimulatedClock, records, run_processor

CLOCK = SimulatedClock()
WAYS = [("plain", 1), ("plain", 8), ("async", 1), ("async", 8)]


class Shop:
    """A handler of one record that takes 10 ms. fails: called with a record and its attempt before that."""

    def __init__(self, fails=lambda record, attempt: None):
        self.seen, self.begun = defaultdict(list), []
        self.running = self.most = 0
        self.fails = fails

    def _begin(self, record, context):
        self.begun.append(record)
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


def in_order(count, keys):
    return {f"key-{key}": list(range(key, count, keys)) for key in range(keys)}


@pytest.mark.parametrize(("way", "concurrency"), WAYS)
def test_a4_2_lanes_keep_the_order_of_each_key_and_deliver_each_record_once(way, concurrency):
    shop = Shop()
    result = run_processor(shop.of(way, concurrency), orders(2_000, 100), max_records=500)
    assert shop.seen == in_order(2_000, 100)
    assert len(shop.begun) == 2_000
    assert shop.most == concurrency
    assert result.dead_letters == []
