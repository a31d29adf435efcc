"""`for record in consumer` or `async for record in consumer`: a program that iterates, with default options.
What AWS is, the environment says, as anywhere else.

python -m benchmarks.peer_programs.pykcl_consumer {sync|async}
"""

from __future__ import annotations

import asyncio
import os
import sys

from benchmarks.live_shards import STREAM
from benchmarks.peer_programs.line_protocol import answer_counts_beside
from pykcl import AsyncConsumer, Consumer

counts = [0, 0]
NAME = f"bench-{os.getpid()}"


def iterate() -> None:
    with Consumer(NAME, stream=STREAM, initial_position="TRIM_HORIZON") as consumer:
        for record in consumer:
            counts[0] += 1
            counts[1] += len(record.data)


async def iterate_in_a_loop() -> None:
    async with AsyncConsumer(NAME, stream=STREAM, initial_position="TRIM_HORIZON") as consumer:
        async for record in consumer:
            counts[0] += 1
            counts[1] += len(record.data)


def main() -> None:
    answer_counts_beside(lambda: tuple(counts))
    if sys.argv[1] == "sync":
        iterate()
    else:
        asyncio.run(iterate_in_a_loop())


if __name__ == "__main__":
    main()
