"""Producer of the demo: numbered user records, some alone and some in KPL aggregates, put at a steady rate."""

from __future__ import annotations

import hashlib
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from pykcl.demo.record_log import payload
from pykcl.model.kpl import Aggregator
from pykcl.model.shard import HashRange

CELLS = 16
"""Parts of the range of hash keys. No split or merge of the demo cuts one, so an aggregate with records of a single
cell belongs to one shard at any time: a consumer drops aggregates that do not."""
KEYS = 512
TICK_SECONDS = 0.05
_HASH_KEYS = 1 << 128
_MAX_ENTRIES = 500


@dataclass(frozen=True, slots=True)
class Put:
    """One entry of PutRecords and the user records in it."""

    data: bytes
    partition_key: str
    ids: tuple[int, ...]
    is_poison: bool = False


def cell_of(partition_key: str) -> int:
    digest = hashlib.md5(partition_key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest, "big") * CELLS // _HASH_KEYS


def cells_in(hash_range: HashRange) -> tuple[int, ...]:
    """The cells that lie in the range as a whole."""
    size = _HASH_KEYS // CELLS
    first, last = hash_range.first, hash_range.last
    return tuple(cell for cell in range(CELLS) if first <= cell * size and (cell + 1) * size - 1 <= last)


class Mix:
    """Draw user records. The seed decides the share of aggregates, their length, the keys and the sizes."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 - a reproducible mix, no secret
        self._aggregated = self._random.uniform(0.3, 0.7)
        self._longest = self._random.randint(8, 40)
        self._next = 0
        self._keys: dict[int, list[str]] = {cell: [] for cell in range(CELLS)}
        for number in range(KEYS):
            key = f"key-{number:03d}"
            self._keys[cell_of(key)].append(key)

    def draw(self, count: int, cells: Sequence[int] = range(CELLS)) -> list[Put]:
        """Return `count` user records of those cells, numbered on from the last draw."""
        puts = []
        while count:
            cell = self._random.choice(cells)
            if self._random.random() < self._aggregated:
                size = min(count, self._random.randint(2, self._longest))
                puts.append(self._aggregate(cell, size))
            else:
                size = min(count, self._random.randint(1, self._longest))
                puts.extend(self._plain(cell) for _ in range(size))
            count -= size
        return puts

    def draw_poison(self, cells: Sequence[int]) -> Put:
        """Return a poison record of one of those cells, numbered on from the last draw."""
        number, key, data = self._user_record(self._random.choice(cells), poison=True)
        return Put(data, key, (number,), is_poison=True)

    def _user_record(self, cell: int, *, poison: bool = False) -> tuple[int, str, bytes]:
        number = self._next
        self._next += 1
        data = payload(number, self._random.randint(30, 300), poison=poison)
        return number, self._random.choice(self._keys[cell]), data

    def _plain(self, cell: int) -> Put:
        number, key, data = self._user_record(cell)
        return Put(data, key, (number,))

    def _aggregate(self, cell: int, size: int) -> Put:
        aggregator = Aggregator()
        ids = []
        for _ in range(size):
            number, key, data = self._user_record(cell)
            aggregator.add(key, None, data)
            ids.append(number)
        blob = aggregator.flush()
        if blob is None:
            raise ValueError("an aggregate needs at least one user record")
        return Put(blob.data, blob.partition_key, tuple(ids))


class Producer:
    """Put records from a background thread, and in `burst`. client: boto3's for Kinesis. rate: user records/s."""

    def __init__(self, client: Any, stream: str, *, seed: int, rate: int) -> None:
        self._client = client
        self._stream = stream
        self._mix = Mix(seed)
        self._rate = rate
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-producer", daemon=True)
        self.failure: Exception | None = None
        self.placed: dict[int, str] = {}
        self.poison: dict[int, str] = {}
        """Sequence numbers of the poison records."""
        self.sequences: dict[str, list[str]] = {}
        self.kinesis_records = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the background thread. Returns when it has ended."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def burst(self, count: int, hash_ranges: Sequence[HashRange]) -> None:
        """Put `count` user records into those ranges now."""
        cells = [cell for hash_range in hash_ranges for cell in cells_in(hash_range)]
        with self._lock:
            self._put(self._mix.draw(count, cells))

    def put_poison(self, hash_range: HashRange, beside: int) -> int:
        """Put a poison record into that range now, in the middle of `beside` others. Return its number."""
        cells = cells_in(hash_range)
        with self._lock:
            before, poison = self._mix.draw(beside // 2, cells), self._mix.draw_poison(cells)
            self._put([*before, poison, *self._mix.draw(beside // 2, cells)])
        return poison.ids[0]

    def last_sequence(self, shard: str) -> str | None:
        known = self.sequences.get(shard)
        return known[-1] if known else None

    def put_up_to(self, shard: str, sequence: str) -> int:
        """Return the number of Kinesis records of the shard up to and with a sequence number."""
        # Numbers of one stream have the same number of digits.
        return bisect_right(self.sequences.get(shard, []), sequence)

    def _run(self) -> None:
        try:
            self._produce()
        except Exception as error:  # noqa: BLE001 - the demo's main thread raises it
            self.failure = error

    def _produce(self) -> None:
        started, drawn = time.monotonic(), 0
        while not self._stop.wait(TICK_SECONDS):
            due = min(int((time.monotonic() - started) * self._rate) - drawn, self._rate)
            with self._lock:
                self._put(self._mix.draw(due))
            drawn += due

    def _put(self, puts: list[Put]) -> None:
        while puts:
            batch, puts = puts[:_MAX_ENTRIES], puts[_MAX_ENTRIES:]
            entries = [{"Data": put.data, "PartitionKey": put.partition_key} for put in batch]
            response = self._client.put_records(StreamName=self._stream, Records=entries)
            rejected = []
            for put, result in zip(batch, response["Records"], strict=True):
                if "ErrorCode" in result:
                    rejected.append(put)
                else:
                    self._placed(put, result["ShardId"], result["SequenceNumber"])
            puts = rejected + puts

    def _placed(self, put: Put, shard: str, sequence: str) -> None:
        self.kinesis_records += 1
        self.sequences.setdefault(shard, []).append(sequence)
        self.placed.update(dict.fromkeys(put.ids, shard))
        if put.is_poison:
            self.poison.update(dict.fromkeys(put.ids, sequence))
