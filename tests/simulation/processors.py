"""Processors of users, sound and broken, for simulations over them."""

from typing import ClassVar

from pykcl import RecordProcessor


class Sound(RecordProcessor):
    """Counts records of its shard."""

    def initialize(self, init):
        self.count = 0

    def process_records(self, batch):
        self.count += len(batch)


class StumblesForEver(RecordProcessor):
    """Raises on one payload, however often it is tried."""

    def process_records(self, batch):
        for record in batch:
            if record.data == b"3.0":
                raise KeyError("no such order")


class StumblesOnce(RecordProcessor):
    """Raises the first time it sees each payload; an assertion, as if it were one of the checkers."""

    seen: ClassVar[set] = set()

    def process_records(self, batch):
        for record in batch:
            if record.data not in StumblesOnce.seen:
                StumblesOnce.seen.add(record.data)
                raise AssertionError("not yet")


class MixesShards(RecordProcessor):
    """Keeps one list for all its shards, and with it checkpoints whatever record it saw last."""

    last: ClassVar[list] = []

    def process_records(self, batch):
        MixesShards.last.append(batch.records[-1])
        batch.checkpointer.checkpoint(MixesShards.last[-2] if len(MixesShards.last) > 1 else None)


class CannotBeMade(RecordProcessor):
    def __init__(self):
        raise OSError("no database")

    def process_records(self, batch):
        raise NotImplementedError


class ByHand(RecordProcessor):
    """Checkpoints each record as soon as it is done with it, and the rest of the batch in two phases."""

    def process_records(self, batch):
        for record in batch:
            batch.checkpointer.checkpoint(record)
        batch.checkpointer.prepare_checkpoint(state=b"x").checkpoint()
