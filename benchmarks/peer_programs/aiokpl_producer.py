"""aiokpl's Producer: `put_record` for each record, then `flush`. Runs in its own environment.

    python aiokpl_producer.py URL REGION

It is given no rates to hold itself to, which is in its favour.
"""

import asyncio
import os

from aiokpl import Config, Producer
from puts import STREAM, answer_puts_of_loop, arguments, records

NO_LIMIT = 1e12
producers = {}


async def live(kind, is_ready):
    """Be a producer until the program ends: its tasks belong to the one that entered it."""
    url, region = arguments()
    config = Config(
        region=region,
        endpoint_url=url,
        # Given as it is to botocore, which then does not read the variable.
        verify_ssl=os.environ.get("AWS_CA_BUNDLE") or True,
        aggregation_enabled=kind == "aggregated",
        rate_limit_records_per_sec_per_shard=NO_LIMIT,
        rate_limit_bytes_per_sec_per_shard=NO_LIMIT,
    )
    async with Producer(config) as producer:
        producers[kind] = producer
        is_ready.set()
        await asyncio.Event().wait()


async def put_all(kind, count, size):
    if kind not in producers:
        is_ready = asyncio.Event()
        producers[f"{kind} task"] = asyncio.create_task(live(kind, is_ready))
        await is_ready.wait()
    producer, outcomes = producers[kind], []
    for data, key in records(count, size):
        outcomes.append(await producer.put_record(stream=STREAM, partition_key=key, data=data))
    await producer.flush()
    for outcome in outcomes:
        if not (await outcome.wait()).success:
            raise RuntimeError("a record was not put")


if __name__ == "__main__":
    answer_puts_of_loop(
        {
            "plain": lambda count, size: put_all("plain", count, size),
            "aggregated": lambda count, size: put_all("aggregated", count, size),
        }
    )
