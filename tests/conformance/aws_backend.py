"""The suites over an account of AWS: what takes half a minute there is made once, and no clock is put forward."""

import os
import time
from types import MappingProxyType

import lease_backend
import pytest
from lease_backend import Backend, SteppingRuntime, wait_for
from stream_backend import NUMBERS, ClientBackend, ClockRuntime, children_of
from stream_reading import ranges_of
from verify_account import PatientStream, patiently

MOST_SECONDS = 61
"""Longer than this nobody waits for a clock that cannot be put forward."""
MAX_SHARDS = 10
LISTING_SECONDS = 1.0
DEADLINE = 300.0
"""For a stream or a table to be there, or gone."""


class UnhurriedStream(PatientStream):
    """The cases know nothing of five reads a second."""

    def fetch(self, shard_id, iterator, limit):
        return patiently(super().fetch, shard_id, iterator, limit)


class AwsStreams(ClientBackend):
    """Kinesis of the account; a case's streams are deleted behind it."""

    way = MappingProxyType({})

    def __init__(self, account):
        self._account, self._names = account, set()
        self.client = account.kinesis
        lease_backend.DEADLINE = DEADLINE

    def now_millis(self):
        return time.time_ns() // 1_000_000

    def later(self, seconds):
        if seconds > MOST_SECONDS:
            pytest.skip(f"needs a clock put forward by {seconds:g} s")
        time.sleep(seconds)

    def stream(self, shards=1):
        name = self._named(f"{os.getpid()}-{next(NUMBERS)}")
        self.create(name, shards)
        return self.named(name)

    def named(self, name):
        # Without retries of boto3's own, as a worker reads.
        return UnhurriedStream(
            self._account.once, self._named(name), ClockRuntime(self.now_millis), **self.way
        )

    def create(self, name, shards=1):
        if shards > MAX_SHARDS:
            pytest.skip(f"needs {shards} shards")
        self._names.add(name)
        super().create(name, shards)

    def split(self, stream, shard_id):
        middle = sum(ranges_of(stream, [shard_id])[0]) // 2 + 1
        self.client.split_shard(StreamName=stream.name, ShardToSplit=shard_id, NewStartingHashKey=str(middle))
        return self._children_of(stream, shard_id)

    def merge(self, stream, shard_id, adjacent_id):
        self.client.merge_shards(
            StreamName=stream.name, ShardToMerge=shard_id, AdjacentShardToMerge=adjacent_id
        )
        (child,) = self._children_of(stream, shard_id)
        return child

    def _children_of(self, stream, shard_id):
        """Once they are listed, and for so long that no listing without them is to be expected: the cases list once."""
        self.wait_until_active(stream.name)
        children = wait_for(lambda: children_of(stream, shard_id))
        time.sleep(LISTING_SECONDS)
        return children

    def remove_streams(self):
        for name in self._names:
            self._account.remove("stream", name)
        self._names.clear()

    def _named(self, name):
        """No name without the prefix: the permissions end there."""
        prefix = f"{self._account.prefix}-"
        return name if name.startswith(prefix) else prefix + name


class SharedTableBackend(Backend):
    """One table for the cases of a process, emptied in front of each: a table of its own takes ten seconds each."""

    def __init__(self, account):
        lease_backend.DEADLINE = DEADLINE
        self._is_there = False
        name = f"{account.prefix}-leases-{os.getpid()}"
        others = [other for _, other in account.found() if other.startswith(f"{name}-")]
        for other in others:
            account.remove("table", other)
        wait_for(lambda: not set(others) & {other for _, other in account.found()})
        super().__init__(account.dynamodb, SteppingRuntime(), name)
        self._is_there = True
        while found := self.items():
            for key in found:
                self.delete(key)

    def prepared(self, table):
        made = super().prepared(table)
        return made if self._is_there else True

    def items(self):
        answer = self.direct.scan(TableName=self.name, ConsistentRead=True)
        return {item["leaseKey"]["S"]: item for item in answer["Items"]}
