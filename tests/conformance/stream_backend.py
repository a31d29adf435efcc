"""Three Kinesis behind `ports.Stream`: the in-memory model, our local Kinesis over the wire, kinesis-local over the wire.

Each makes streams, puts records, reshards, and moves its clock; nothing waits in real time for time to pass.
"""

import itertools
import time
from contextlib import suppress
from copy import copy
from types import MappingProxyType

from lease_backend import local_client, wait_for

from pykcl.aws.kinesis import KinesisStream
from pykcl.errors import IteratorExpired, ShardGone, StreamMissing
from pykcl.local.server import LocalAws
from pykcl.local.stream import LocalKinesis
from pykcl.runtime import SystemRuntime
from pykcl.testing.memory.stream import MemoryStream

NUMBERS = itertools.count(1)
HASH_KEYS = 2**128


class Clock:
    """Epoch milliseconds that only tests move."""

    def __init__(self):
        self.millis = 1_700_000_000_250

    def __call__(self):
        return self.millis


class ClockRuntime(SystemRuntime):
    def __init__(self, clock):
        super().__init__()
        self._clock = clock

    def monotonic(self):
        return self._clock() / 1000

    def utcnow_millis(self):
        return self._clock()


class ModelBackend:
    """The stream model without a socket."""

    def __init__(self):
        self.now_millis = Clock()
        # Its clock stands still, so ListShards must not lag.
        self.kinesis = LocalKinesis(self.now_millis, listing_lag=0)

    def stream(self, shards=1):
        """A new stream, as the worker sees it."""
        name = f"stream-{next(NUMBERS)}"
        self.create(name, shards)
        return self.named(name)

    def named(self, name):
        return MemoryStream(self.kinesis, name, ClockRuntime(self.now_millis))

    def create(self, name, shards=1):
        self.kinesis.create_stream(name, shards)

    def delete(self, name):
        self.kinesis.delete_stream(name)

    def put(self, stream, data=b"x", key="k", hash_key=None):
        """(shard id, sequence number)."""
        put = self.kinesis.put_record(stream.name, data, key, hash_key)
        return put.shard_id, put.sequence_number

    def split(self, stream, shard_id):
        """Split in the middle: the ids of the children, the lower one first."""
        self.kinesis.split(stream.name, shard_id)
        return children_of(stream, shard_id)

    def merge(self, stream, shard_id, adjacent_id):
        """The id of the child."""
        self.kinesis.merge(stream.name, shard_id, adjacent_id)
        (child,) = children_of(stream, shard_id)
        return child

    def later(self, seconds):
        self.now_millis.millis += round(seconds * 1000)


class LearnedStream(KinesisStream):
    """Every page over the direct transport, the first one too: it has learned from a page that was refused."""

    def fetch(self, shard_id, iterator, limit):
        if self._reads._selector.direct("get_records", self.arn) is None:
            with suppress(IteratorExpired, StreamMissing, ShardGone):
                super().fetch(shard_id, "nonsense", 1)
        assert self.transport != "boto3", self._reads._selector._obstacle
        return super().fetch(shard_id, iterator, limit)


class ClientBackend:
    """A Kinesis reached through boto3."""

    way = MappingProxyType({})
    """How pages are read: arguments of KinesisStream."""

    def stream(self, shards=1):
        name = f"stream-{next(NUMBERS)}"
        self.create(name, shards)
        return self.named(name)

    def named(self, name):
        kind = LearnedStream if self.way.get("transport") == "direct" else KinesisStream
        return kind(self.client, name, ClockRuntime(self.now_millis), **self.way)

    def create(self, name, shards=1):
        self.client.create_stream(StreamName=name, ShardCount=shards)
        self.wait_until_active(name)

    def delete(self, name):
        stream = self.named(name)
        self.client.delete_stream(StreamName=name)

        def gone():
            try:
                stream.describe()
            except StreamMissing as missing:
                return "being deleted" not in str(missing)
            return False

        wait_for(gone)

    def wait_until_active(self, name):
        stream = self.named(name)
        wait_for(lambda: stream.describe().status == "ACTIVE")

    def put(self, stream, data=b"x", key="k", hash_key=None):
        given = {} if hash_key is None else {"ExplicitHashKey": str(hash_key)}
        answer = self.client.put_record(StreamName=stream.name, Data=data, PartitionKey=key, **given)
        return answer["ShardId"], answer["SequenceNumber"]

    def split(self, stream, shard_id):
        hash_range = stream.list_shards().by_id[shard_id].hash_range
        middle = (hash_range.first + hash_range.last + 1) // 2
        self.client.split_shard(StreamName=stream.name, ShardToSplit=shard_id, NewStartingHashKey=str(middle))
        self.wait_until_active(stream.name)
        return children_of(stream, shard_id)

    def merge(self, stream, shard_id, adjacent_id):
        self.client.merge_shards(
            StreamName=stream.name, ShardToMerge=shard_id, AdjacentShardToMerge=adjacent_id
        )
        self.wait_until_active(stream.name)
        (child,) = children_of(stream, shard_id)
        return child


class WireBackend(ClientBackend):
    """Our local Kinesis. Use as a context manager."""

    def __init__(self):
        self.now_millis = Clock()
        self._aws = LocalAws(now_millis=self.now_millis, listing_lag=0)

    def __enter__(self):
        self._aws.start()
        self.client = local_client("kinesis", self._aws.url)
        return self

    def __exit__(self, *_):
        self.client.close()
        self._aws.stop()

    def read(self, **way):
        """The same server and client; pages come in that way."""
        service = copy(self)
        service.way = way
        return service

    def later(self, seconds):
        self.now_millis.millis += round(seconds * 1000)


class KinesisLocalBackend(ClientBackend):
    """kinesis-local: its clock goes on by itself and is put forward."""

    def __init__(self, emulator):
        self._emulator = emulator
        self._ahead = 0
        self.client = local_client("kinesis", emulator.url)

    def now_millis(self):
        return time.time_ns() // 1_000_000 + self._ahead

    def later(self, seconds):
        self._emulator.advance(seconds)
        self._ahead += round(seconds * 1000)


def children_of(stream, shard_id):
    """The ids of its children, by hash range."""
    found = [shard for shard in stream.list_shards().shards if shard_id in shard.parents]
    return [shard.shard_id for shard in sorted(found, key=lambda one: one.hash_range.first)]
