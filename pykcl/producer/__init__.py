"""The producer: puts records into a stream, aggregated, at the rate of its shards, until Kinesis has each of them.

`encode` makes the data of a record. `accumulator`, `shard_map` and `limits` decide, as pure functions of their
arguments; `delivery` sends in threads; `producer` is what a program uses, and the one module that imports AWS;
`async_producer` is that for an event loop. The others know `interfaces.PutStream`.
"""
