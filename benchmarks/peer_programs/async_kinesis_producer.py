"""async-kinesis' Producer: `put` for each record, then `flush`. Runs in its own environment.

    python async_kinesis_producer.py URL REGION

It is given processors for bytes as they are, and no rates to hold itself to: both in its favour. Its aggregates have no keys
of the user's: it refuses them.
"""

import logging

from async_kinesis import Aggregated, Plain
from kinesis import Producer
from puts import STREAM, answer_puts_of_loop, arguments, records

NO_LIMIT = 10**9
producers = {}


async def producer_of(kind):
    if kind not in producers:
        url, region = arguments()
        producers[kind] = Producer(
            stream_name=STREAM,
            endpoint_url=url,
            region_name=region,
            processor=kind(),
            put_rate_limit_per_shard=NO_LIMIT,
            put_bandwidth_limit_per_shard=NO_LIMIT,
        )
        await producers[kind].start()
    return producers[kind]


async def put_all(kind, count, size):
    producer = await producer_of(kind)
    for data, key in records(count, size):
        await producer.put(data, partition_key=None if kind is Aggregated else key)
    await producer.flush()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    answer_puts_of_loop(
        {
            "plain": lambda count, size: put_all(Plain, count, size),
            "aggregated": lambda count, size: put_all(Aggregated, count, size),
        }
    )
