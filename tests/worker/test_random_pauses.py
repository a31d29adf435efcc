"""Pauses at any time, from outside and from within calls that raise: no record is lost, repeated or out of order."""

import random
from collections import deque
from typing import ClassVar

import pytest

from pykcl import Batch, FailedAt
from pykcl.events import LeaseLost
from pykcl.handlers.functions import handler
from pykcl.handlers.windows import Window
from pykcl.model.kpl import aggregate
from pykcl.testing.fleet import STREAM, RecordingProcessor
from pykcl.worker.reading_place import ReadingPlace

SHARD = "shardId-000000000000"


class Way:
    """A processor whose calls raise at times, and often pause their shard before. done: payloads, as they are done."""

    # No checkpoint tells a resumed shard which records are done.
    options: ClassVar = {"checkpoint_mode": "interval", "checkpoint_interval": 1000.0}
    keeps_order = True

    def __init__(self, fleet, rng):
        self.fleet, self.rng, self.done, self.share = fleet, rng, [], rng.choice([0.1, 0.3])

    def stumble(self):
        if self.rng.random() < self.share:
            if self.rng.random() < 0.5:
                self.fleet.workers["w1"].pause([SHARD])
            raise OSError

    def settle_some(self):
        """Settle what is to be settled one by one."""


class Plain(Way):
    """Returns from a part of its batches only."""

    def processor(self):
        way = self

        class Partly(RecordingProcessor):
            def process_records(self, batch):
                stop = way.rng.randrange(len(batch))
                try:
                    way.stumble()
                except OSError:
                    way.done += [record.data for record in batch.records[:stop]]
                    raise FailedAt(batch.records[stop]) from None
                way.done += [record.data for record in batch]

        return lambda: Partly("w1", self.fleet.ledger)


class Policies(Plain):
    options: ClassVar = {**Way.options, "max_attempts": 1000, "bisect": True, "dead_letters": "discard"}


class Acks(Way):
    """Acks records at any time, in any order."""

    options: ClassVar = {"checkpoint_mode": "ack", "max_unacked": 20}

    def processor(self):
        way, self.given = self, deque()

        class Acking(RecordingProcessor):
            def process_records(self, batch):
                way.stumble()
                way.done += [record.data for record in batch]
                way.given += [(batch, record) for record in batch]

        return lambda: Acking("w1", self.fleet.ledger)

    def settle_some(self):
        for _ in range(self.rng.randint(0, len(self.given))):
            self.given.rotate(self.rng.randint(0, 20))
            batch, record = self.given.popleft()
            batch.ack(record)


class Lanes(Way):
    keeps_order = False

    def processor(self):
        def work(record):
            self.stumble()
            self.done.append(record.data)

        return handler(work, concurrency=3)


class Windows(Way):
    """Is done with records when their window closes."""

    def processor(self):
        def gather(batch: Batch, window: Window):
            self.stumble()
            seen = [*((window.state or {}).get("seen", ())), *(record.data.decode() for record in batch)]
            if window.is_final:
                self.done += [one.encode() for one in seen]
            return {"seen": seen}

        return handler(gather, window=5)


def put_some(fleet, rng):
    """Put records, also several in one record of Kinesis; return their payloads."""
    put = fleet.put(rng.randint(0, 8))
    if rng.random() < 0.3:
        texts = [b"%d.%d" % (fleet.simulation.now * 1000, part) for part in range(5)]
        for blob in aggregate([("k", None, text) for text in texts]):
            fleet.kinesis.put_record(STREAM, blob.data, "k")
        put += texts
    return put


@pytest.mark.parametrize("retrieval", ["polling", "fanout", "fanout-or-polling"])
@pytest.mark.parametrize("way", [Plain, Policies, Acks, Lanes, Windows])
def test_pauses_amid_pages_and_failing_batches_lose_and_repeat_nothing(
    new_fleet, monkeypatch, way, retrieval, fleet_seed
):
    back_to, gone_back = ReadingPlace.back_to, []
    monkeypatch.setattr(
        ReadingPlace, "back_to", lambda self, last: gone_back.append(last) or back_to(self, last)
    )
    fleet, rng = new_fleet(shards=1), random.Random(fleet_seed)
    work, put = way(fleet, rng), []
    options = {
        "max_records": 7,
        "batch_size": 2,
        "batch_window": rng.choice([0.0, 1.0]),
        "retry_timeout": 1000.0,
    }
    options |= way.options
    worker = fleet.start("w1", processor=work.processor(), retrieval=retrieval, **options)
    for _ in range(25):
        put += put_some(fleet, rng)
        fleet.simulation.sleep(rng.choice([0.0, 0.3, 2.0]))
        if rng.random() < 0.5:
            worker.pause(rng.choice([None, [SHARD]]))
        work.settle_some()
        fleet.simulation.sleep(rng.choice([0.0, 0.5, 3.0, 10.0]))
        worker.resume()
        fleet.simulation.sleep(rng.choice([0.0, 1.5, 4.0]))
    work.share = 0.0
    worker.resume()
    for _ in range(200):
        work.settle_some()
        fleet.simulation.sleep(1)
    assert gone_back, "pages were broken off"
    assert (work.done if work.keeps_order else sorted(work.done)) == (
        put if work.keeps_order else sorted(put)
    )
    assert not fleet.happened(LeaseLost)
    worker.stop()
    assert worker._manager._context.memory._free == worker.config.max_buffered_bytes
