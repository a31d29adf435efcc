"""pykcl's Producer as a program uses it: `put` for each record, then `flush`. AWS is where the environment says.

    python pykcl_producer.py {without-limits|with-limits}

"without-limits": it does not hold itself to the rate of a shard, which a server with prepared answers does not have.
"""

import sys
import time

from puts import KEYS, STREAM, answer_puts, records

from pykcl.errors import BufferFull
from pykcl.model.kpl import aggregate
from pykcl.producer.producer import Producer

NO_LIMIT = 1e6
producers = {}


def producer_of(name, **options):
    if name not in producers:
        rate_limit = NO_LIMIT if sys.argv[1] == "without-limits" else 1.0
        producers[name] = Producer(STREAM, rate_limit=rate_limit, **options)
        producers[name].start()
    return producers[name]


def plain(count, size):
    put_all(producer_of("plain", aggregate=False), count, size)


def aggregated(count, size):
    put_all(producer_of("aggregated"), count, size)


def put_all(producer, count, size):
    put = producer.put
    for data, key in records(count, size):
        put(data, key)
    producer.flush()


def counted(count, size):
    """Aggregated, and by the results: bytes of the Kinesis records, and user records that were sent more than once."""
    producer, began = producer_of("aggregated"), time.monotonic()
    put = [(key, data, producer.put(data, key)) for data, key in records(count, size)]
    producer.flush()
    seconds = time.monotonic() - began
    whole = {}
    for key, data, future in put:
        whole.setdefault(future.result().sequence_number, []).append((key, None, data))
    again = sum(future.result().attempts > 1 for _, _, future in put)
    return {"put_seconds": seconds, "wire_bytes": sum(map(wire_bytes, whole.values())), "again": again}


def wire_bytes(users):
    """Of one Kinesis record: payload and key."""
    if len(users) == 1:
        return len(users[0][2]) + len(users[0][0])
    (blob,) = aggregate(users, 1 << 21)
    return len(blob.data) + len(blob.partition_key)


def latency(count, size):
    """Milliseconds from put to result, of records that are alone."""
    producer, found = producer_of("aggregated"), []
    for data, key in records(count, size):
        began = time.monotonic()
        producer.put(data, key).result()
        found.append((time.monotonic() - began) * 1000)
    return {"millis": found}


def fill(count, size):
    """Put until there is no room; at most so many records."""
    producer, key = producer_of("full", on_full="raise"), KEYS[0]
    is_full = False
    # Each record has data of its own, as it would where it comes from somewhere.
    for number in range(count):
        try:
            producer.put(number.to_bytes(size, "big"), key)
        except BufferFull:
            is_full = True
            break
    return {"pending": producer.pending, "key": len(key), "is_full": is_full}


if __name__ == "__main__":
    answer_puts(
        {"plain": plain, "aggregated": aggregated, "counted": counted, "latency": latency, "fill": fill}
    )
