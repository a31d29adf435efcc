"""A stream in trouble, a clock that a test moves, and what the consumers of a stream see."""

from __future__ import annotations

from collections import Counter
from random import Random

from pykcl.errors import TemporaryError, Throttled
from pykcl.local.stream import LocalKinesis
from pykcl.model.kpl import deaggregate_batch
from pykcl.model.new_record import NewRecord, PutAnswer
from pykcl.model.record import Record
from pykcl.producer.delivery import RECORD_OVERHEAD
from pykcl.producer.producer import Producer, ProducerSeams
from pykcl.producer.shard_map import ShardMap
from pykcl.testing.memory.stream import MemoryStream

EPOCH = 1_700_000_000_000


class Clock:
    """The part of a runtime that the stream in memory uses."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.random = Random(3)

    def monotonic(self) -> float:
        return self.seconds

    def utcnow_millis(self) -> int:
        return EPOCH + round(self.seconds * 1000)


def seen_by_consumers(kinesis: LocalKinesis, name: str = "s") -> Counter[bytes]:
    """The payloads that consumers get, shard by shard, by their rule for aggregates that straddle shards."""
    return Counter(data for found in seen_by_shard(kinesis, name).values() for data in found)


def seen_by_shard(kinesis: LocalKinesis, name: str = "s") -> dict[str, list[bytes]]:
    """As `seen_by_consumers`, in order, by shard. Past the limits of reading."""
    seen = {}
    for shard in kinesis.list_shards(name, operation=None):
        records = [
            Record(
                one.data, one.partition_key, one.sequence_number, one.arrived_at_millis, shard.shard_id, name
            )
            for one in kinesis._streams[name].shards[shard.shard_id].records
        ]
        seen[shard.shard_id] = [record.data for record in deaggregate_batch(records, shard.hash_range)]
    return seen


SIZE = RECORD_OVERHEAD + 1000 + 1
"""Bytes that a record of 1,000 bytes with a key of one character counts."""


class Stage:
    """A stream "s" in a simulation. trouble: called with the records of each request; may raise before they are put, or
    answer with the indexes of those to be refused. answer: called behind that; may raise, or wait."""

    def __init__(self, simulation, *, shards=2, limits=False):
        self.simulation = simulation
        self.runtime = simulation.runtime("producer")
        self.kinesis = LocalKinesis(self.runtime.utcnow_millis, limits=limits, seed=simulation.seed)
        self.kinesis.create_stream("s", shards)
        self.name = "s"
        self.stream = MemoryStream(self.kinesis, "s", self.runtime, simulation.switch)
        self.trouble = self.answer = lambda _: ()
        self.requests = []
        self.events = []

    def producer(self, kind=Producer, **options):
        seams = ProducerSeams(runtime=self.runtime, stream=lambda: self)
        return kind._with(seams, "s", on_event=self.events.append, **options)

    def describe(self):
        return self.stream.describe()

    def list_shards(self):
        return self.stream.list_shards()

    def put(self, records):
        self.simulation.switch()
        self.requests.append(records)
        refused = self.trouble(records) or ()
        taken = [record for at, record in enumerate(records) if at not in refused]
        answers = iter(self.stream.put(taken) if taken else ())
        self.answer(records)
        return [
            PutAnswer(None, "ProvisionedThroughputExceededException") if at in refused else next(answers)
            for at in range(len(records))
        ]

    def sleep(self, seconds):
        self.runtime.event().wait(seconds)

    def open_shards(self):
        return [shard for shard in self.kinesis.list_shards("s", operation=None) if shard.is_open]

    def key_for(self, end):
        """A partition key of the open shard whose id ends so."""
        shards = ShardMap(self.kinesis.list_shards("s", operation=None))
        return next(
            f"k{at}" for at in range(999) if shards.shard_of(NewRecord(b"", f"k{at}").hash_key).endswith(end)
        )

    def seen(self):
        return seen_by_consumers(self.kinesis)


def no_answer(_):
    raise TemporaryError("no answer")


class Chaos:
    """Trouble of all kinds, one request in three, and reshards; for a while."""

    def __init__(self, stage):
        self.stage, self.rng = stage, stage.simulation.rng
        stage.trouble, stage.answer = self.before, self.behind

    @property
    def rages(self):
        return len(self.stage.requests) < 60

    def before(self, records):
        chance = self.rng.random()
        if not self.rages or chance > 0.35:
            return ()
        if chance < 0.05:
            raise Throttled("too much")
        if chance < 0.1:
            no_answer(records)
        if chance < 0.15:
            self.stage.sleep(self.rng.choice((0.3, 4)))
        elif chance < 0.22:
            self.reshard()
        return [at for at in range(len(records)) if self.rng.random() < 0.3]

    def behind(self, records):
        if self.rages and self.rng.random() < 0.1:
            self.stage.sleep(self.rng.choice((0, 1)))
            no_answer(records)

    def reshard(self):
        opened = sorted(self.stage.open_shards(), key=lambda shard: shard.hash_range)
        at = self.rng.randrange(len(opened))
        if at and self.rng.random() < 0.5:
            self.stage.kinesis.merge("s", opened[at - 1].shard_id, opened[at].shard_id)
        else:
            self.stage.kinesis.split("s", opened[at].shard_id)
