"""A Lambda handler under `lambda_processor`, called with a batch of records."""

import json

from pykcl.handlers.lambda_processor import lambda_processor
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import Record
from pykcl.processor import Batch, InitializationInput

SHARD = "shardId-000000000006"
STREAM_ARN = "arn:aws:kinesis:us-east-2:123456789012:stream/lambda-stream"
ROLE = "arn:aws:iam::123456789012:role/lambda-role"


def record(number, data=None, *, sub=None, partition_key="1"):
    data = json.dumps({"id": number} if data is None else data) if not isinstance(data, bytes) else data
    return Record(
        data if isinstance(data, bytes) else data.encode(),
        partition_key,
        str(1000 + number),
        1545084650987.0,
        SHARD,
        "lambda-stream",
        sub or 0,
        aggregated=sub is not None,
    )


def orders(count, bad=()):
    """Records of orders, of which those with a number in `bad` are bad."""
    return [record(number, {"id": number, "bad": number in bad}) for number in range(count)]


def started(handler, **options):
    """A processor that has been initialized."""
    processor = lambda_processor(handler, invoke_identity_arn=ROLE, **options)()
    at = Checkpoint("TRIM_HORIZON")
    processor.initialize(
        InitializationInput(SHARD, "lambda-stream", at, None, 1, None, "orders-app", STREAM_ARN)
    )
    return processor


def call(processor, records):
    processor.process_records(Batch(tuple(records), None, 0, SHARD, "lambda-stream"))
