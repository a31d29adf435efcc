"""Puts records, alone and aggregated, sound and malformed, or those of a user, and reshards; all of it gets logged."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from pykcl.local.errors import AwsError
from pykcl.model.kpl import aggregate
from pykcl.model.record import Record
from pykcl.model.shard import Shard
from pykcl.testing.fleet import STREAM
from pykcl.testing.input_records import InputRecord, put_all
from pykcl.testing.simulation.record_log import position_of
from pykcl.testing.simulation.world import MOST_SHARDS, World


class Producer:
    """inputs: records of a user, which are put in turn, again and again, instead of small texts.

    is_on: whether records are put and shards are split; before a start at LATEST nothing may happen.
    """

    def __init__(self, world: World, rng: random.Random, inputs: Sequence[InputRecord] = ()) -> None:
        self._world, self._rng = world, rng
        self._inputs = inputs
        self._count = 0
        self.is_on = True

    def put_before(self) -> None:
        """Put a record before the start of the first worker, which is owed to nobody."""
        if self._inputs:
            puts = [(r.shard_id, r.sequence_number, r.sub_sequence_number) for r in self._put_input()]
        else:
            put = self._world.kinesis.put_record(STREAM, b"before", "before")
            puts = [(put.shard_id, put.sequence_number, 0)]
        for shard_id, number, sub in puts:
            position = position_of(self._world.numbers.shorten(number), sub)
            self._world.record_log.shard(shard_id).before.add(position)

    def put_the_rest(self) -> None:
        """Put the records of the user that had no turn yet."""
        while self._count < len(self._inputs):
            self._put_one()

    def put_some(self) -> None:
        if not self.is_on:
            return
        for _ in range(self._rng.randint(1, 6)):
            self._put_one()

    def put_on_every_shard(self, *, aggregated: bool = False) -> None:
        """One record on each, or three in one."""
        for shard in self._world.kinesis.list_shards(STREAM, operation=None):
            if not shard.is_open:
                continue
            if self._inputs:
                # Each where its key belongs: the order of a key holds within a shard.
                self._put_one()
                continue
            first = _first_key(shard)
            if aggregated:
                (packed,) = aggregate(("k", str(first), b"calm") for _ in range(3))
                self._put(packed.data, packed.partition_key, first, 3)
            else:
                self._put(b"calm", "k", first, 1)

    def _put_one(self) -> None:
        if self._inputs:
            counts = Counter((record.shard_id, record.sequence_number) for record in self._put_input())
            for (shard_id, number), count in counts.items():
                self._enter(shard_id, number, count)
            return
        self._count += 1
        key = f"k{self._rng.randint(0, 50)}"
        count = self._rng.choice([1, 1, 1, self._rng.randint(2, 6)])
        data = [f"{self._count}.{number}".encode() for number in range(count)]
        malformed = self._world.faults.is_due("F16")
        if count == 1 and not malformed:
            self._put(data[0], key, None, 1)
            return
        (packed,) = aggregate((key, None, part) for part in data)
        if malformed:
            self._put_malformed(packed.data, packed.partition_key)
        else:
            self._put(packed.data, packed.partition_key, None, count)

    def _put_input(self) -> list[Record]:
        given = self._inputs[self._count % len(self._inputs)]
        self._count += 1
        return put_all(self._world.kinesis, STREAM, [given])

    def _put_malformed(self, blob: bytes, key: str) -> None:
        rng = self._world.faults.rng("F16")
        how = rng.choice(["cut", "garbage", "elsewhere"])
        if how == "cut":
            self._note_malformed(*self._put(blob[: rng.randint(5, len(blob) - 1)], key, None, 1))
        elif how == "garbage":
            place = rng.randrange(4, len(blob))
            blob = blob[:place] + bytes([blob[place] ^ 0xFF]) + blob[place + 1 :]
            self._note_malformed(*self._put(blob, key, None, 1))
        else:
            # Put into a shard that its keys do not hash into: dropped and reported, as Java does.
            shards = self._world.kinesis.list_shards(STREAM, operation=None)
            shard = rng.choice([shard for shard in shards if shard.is_open])
            put = self._world.kinesis.put_record(STREAM, b"plain", key)
            self._enter(put.shard_id, put.sequence_number, 1)
            if put.shard_id != shard.shard_id:
                dropped = self._world.kinesis.put_record(STREAM, blob, key, _first_key(shard))
                short = int(self._world.numbers.shorten(dropped.sequence_number))
                self._world.record_log.shard(dropped.shard_id).drop(short, self._world.kinesis_millis())
                self._note_malformed(dropped.shard_id, dropped.sequence_number)

    def _note_malformed(self, shard_id: str, sequence_number: str) -> None:
        """Note a malformed record; it has no effect before a worker fetches it."""
        self._world.malformed.add((shard_id, sequence_number))

    def _put(self, data: bytes, key: str, hash_key: int | None, count: int) -> tuple[str, str]:
        put = self._world.kinesis.put_record(STREAM, data, key, hash_key)
        self._enter(put.shard_id, put.sequence_number, count)
        return put.shard_id, put.sequence_number

    def _enter(self, shard_id: str, sequence_number: str, count: int) -> None:
        short = int(self._world.numbers.shorten(sequence_number))
        for number in range(count):
            self._world.record_log.shard(shard_id).add((short, number), self._world.kinesis_millis())

    def reshard(self) -> None:
        """Split a shard or merge two, at random."""
        if not self.is_on:
            return
        rng, kinesis = self._rng, self._world.kinesis
        shards = [shard for shard in kinesis.list_shards(STREAM, operation=None) if shard.is_open]
        shards.sort(key=_first_key)
        try:
            if len(shards) > 1 and (len(shards) >= MOST_SHARDS or rng.random() < 0.45):
                left = rng.randrange(len(shards) - 1)
                kinesis.merge(STREAM, shards[left].shard_id, shards[left + 1].shard_id)
            else:
                kinesis.split(STREAM, rng.choice(shards).shard_id)
        except AwsError as refusal:
            # A shard of one hash key cannot be split; everything else is a mistake of ours.
            if refusal.code != "InvalidArgumentException":
                raise
        self._world.note_shards()


def _first_key(shard: Shard) -> int:
    assert shard.hash_range is not None
    return shard.hash_range.first
