"""What the programs that put have in common: the records, and how they are asked. Uses the standard library alone.

A line such as "plain 1000 100" puts 1,000 records of 100 bytes, and is answered when all have their results.
"""

import random
import sys
import threading
import time

from line_protocol import answer_counts

STREAM = "orders"
KEYS = [f"device-{number:05d}" for number in range(512)]
_TO_CHOOSE_FROM = 64


def records(count, size):
    """Data and partition key of so many records."""
    chance = random.Random(count)
    payloads = [chance.randbytes(size) for _ in range(_TO_CHOOSE_FROM)]
    for number in range(count):
        yield payloads[number % _TO_CHOOSE_FROM], KEYS[number % len(KEYS)]


def answer_puts(kinds):
    """kinds: by the first word of a line, (count, size) -> None or more for the answer; it returns once all are put."""
    done = [0, 0]

    def on_word(line):
        kind, count, size = line.split()
        began = time.monotonic()
        more = kinds[kind](int(count), int(size))
        seconds = time.monotonic() - began
        done[0] += int(count)
        done[1] += int(count) * int(size)
        return {"seconds": seconds, **(more or {})}

    answer_counts(lambda: tuple(done), on_word)


def answer_puts_of_loop(kinds):
    """The same for coroutines, all in one event loop that lives as long as the program."""
    import asyncio

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def waited(kind):
        return lambda count, size: asyncio.run_coroutine_threadsafe(kind(count, size), loop).result()

    answer_puts({name: waited(kind) for name, kind in kinds.items()})


def arguments():
    """URL and region."""
    return sys.argv[1:3]
