"""async-kinesis' Consumer with its defaults, every shard of the stream, checkpoints in memory. Runs in its own environment.

    python async_kinesis.py URL REGION {plain|aggregated}

It has no processor for bytes as they are, so this gives it one: no decoding, no JSON, which is in its favour.
"""

import asyncio
import sys
import threading

from kinesis import Consumer
from kinesis.aggregators import KPLAggregator, SimpleAggregator
from kinesis.processors import Processor
from kinesis.serializers import Serializer
from line_protocol import answer_counts


class Bytes(Serializer):
    def serialize(self, item):
        return item

    def deserialize(self, data):
        return data


class Plain(Processor, SimpleAggregator, Bytes):
    pass


class Aggregated(Processor, KPLAggregator, Bytes):
    pass


counts = [0, 0]


async def consume(url, region, kind):
    processor = Plain() if kind == "plain" else Aggregated()
    async with Consumer(
        stream_name="orders",
        endpoint_url=url,
        region_name=region,
        processor=processor,
        iterator_type="TRIM_HORIZON",
    ) as consumer:
        while True:
            # Ends whenever nothing came for two seconds.
            async for data in consumer:
                counts[0] += 1
                counts[1] += len(data)


def main():
    threading.Thread(target=lambda: asyncio.run(consume(*sys.argv[1:4])), daemon=True).start()
    answer_counts(lambda: tuple(counts))


if __name__ == "__main__":
    main()
