"""Lanes of handlers: how much faster 32 of them are with 5 ms of I/O, and the CPU that they cost for each record.

    python -m benchmarks.lanes [--records N] [--rounds N]

One batch with the watermark of a worker, and without its reads. Goals: 25 times faster with 10,000 records of different
keys, in threads and in tasks; at most 2 us a record above a call in a loop for lanes and watermark, 5 us for async
lanes, and 0.5 us for a plain handler.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from pykcl import Batch, Record, handler
from pykcl.handlers.lanes import Alone
from pykcl.worker.watermark import Watermark

SECONDS = 0.005


class Settles(Alone):
    """A worker that believes in its lease."""

    def __init__(self, records: list[Record]) -> None:
        super().__init__("shardId-0")
        self._watermark = Watermark(self.runtime, lambda size: None)
        self._watermark.register([(r.sequence_number, r.sub_sequence_number) for r in records], 0.0)
        self.settle = self._watermark.settle  # type: ignore[assignment,method-assign]
        self._until = self.runtime.monotonic() + 3600

    def goes_on(self) -> bool:
        return self.runtime.monotonic() < self._until


def run(function: Callable[..., Any], concurrency: int, records: list[Record]) -> tuple[float, float]:
    """Return the seconds of one batch, and of them those of the CPU."""
    processor: Any = handler(function, concurrency=concurrency)()
    settling = Settles(records)
    if hasattr(processor, "settle_by"):
        processor.settle_by(settling)
    batch = Batch(records, None, 0, "shardId-0", "orders")  # type: ignore[arg-type]
    began, cpu = time.perf_counter(), time.process_time()
    processor.process_records(batch)
    took = time.perf_counter() - began, time.process_time() - cpu
    settling.close()
    return took


def plain(record: Record) -> None: ...
async def nothing(record: Record) -> None: ...


def waits(record: Record) -> None:
    time.sleep(SECONDS)


async def awaits(record: Record) -> None:
    await asyncio.sleep(SECONDS)


def records_of(count: int, keys: int) -> list[Record]:
    # Not key-1, key-2, …: the CRC of such keys deals them more evenly than it does others.
    rng = random.Random(7)
    names = [f"{rng.getrandbits(64):016x}" for _ in range(keys)]
    return [Record(b"x" * 100, names[number % keys], str(49 * 10**54 + number)) for number in range(count)]


def said(name: str, found: float, unit: str, goal: float, is_met: bool) -> bool:
    print(f"  {name:58}{found:8.2f} {unit:3} goal {goal:g}: {'met' if is_met else 'MISSED'}", flush=True)
    return is_met


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--records", type=int, default=10_000)
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    count, met = chosen.records, []
    for function, what in ((waits, "threads"), (awaits, "tasks")):
        # One lane needs the same for each record: a tenth of them says it.
        one = 10 * run(function, 1, records_of(count // 10, count))[0]
        for keys in (count, 500):
            many = run(function, 32, records_of(count, keys))[0]
            name = f"{count} records of {keys} keys, 5 ms each, 32 {what}"
            if keys == count:
                met.append(said(name, one / many, "x", 25.0, one / many >= 25.0))
            else:
                print(f"  {name:58}{one / many:8.2f} x", flush=True)
    given = records_of(count, 500)

    def loop() -> float:
        began = time.process_time()
        for record in given:
            plain(record)
        return time.process_time() - began

    rounds = range(chosen.rounds)
    bare = min(loop() for _ in rounds)
    for name, function, concurrency, goal in (
        ("a plain handler above a call in a loop", plain, 1, 0.5),
        ("8 lanes in threads, with the watermark", plain, 8, 2.0),
        ("8 lanes in the event loop, with the watermark", nothing, 8, 5.0),
    ):
        cost = (min(run(function, concurrency, given)[1] for _ in rounds) - bare) / count * 1e6
        met.append(said(name, cost, "us", goal, cost <= goal))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
