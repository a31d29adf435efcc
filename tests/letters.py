"""Letters and records that tests of dead letters share."""

from pykcl.model.dead_letter import Condition, DeadLetter
from pykcl.model.record import Record

SHARD, STREAM = "shardId-000000000001", "orders"
ARN = f"arn:aws:kinesis:us-east-1:123456789012:stream/{STREAM}"
SECRET, SECRET_KEY = "payload-of-mine", "key-of-mine"
DAY = 1763876412345


def record(number=100, data=b"payload-of-mine", **fields):
    values = {
        "partition_key": SECRET_KEY,
        "arrived_at_millis": 1763876284835.0,
        "shard_id": SHARD,
        "stream": STREAM,
    }
    return Record(data, sequence_number=str(number), **{**values, **fields})


def letter(*records, **fields):
    values = {
        "condition": Condition.RETRY_ATTEMPTS_EXHAUSTED,
        "application": "orders-app",
        "processor": "shop.orders:Orders",
        "worker_id": "ip-10-0-1-7:412:k3",
        "stream": STREAM,
        "stream_arn": ARN,
        "stream_created_at": 1763800000000,
        "shard_id": SHARD,
        "records": records or (record(),),
        "attempts": 3,
        "created_at": DAY,
        "first_failed_at": 1763876398101,
        "error": "KeyError",
        "where": "orders.py:12",
        "message": f"{SECRET} is no order",
        "reason": f"{SECRET} has no id",
    }
    return DeadLetter(**{**values, **fields})
