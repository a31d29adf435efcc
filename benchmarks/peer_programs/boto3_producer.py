"""boto3 put_records of 500 in a loop, refused records again; aggregates by aws-kinesis-agg. AWS is where the environment says.

    python boto3_producer.py

"single" calls put_record for each record; "latency" does so, too, and says how long each call took.
"""

import time
import warnings

import boto3
from puts import STREAM, answer_puts, records

MOST_RECORDS, MOST_BYTES = 500, 4 * 1024 * 1024
AGGREGATE_BYTES = 51_200
"""As large as pykcl's and those of the Kinesis Producer Library."""
PAUSE = 0.05
client = boto3.client("kinesis")


class Sender:
    """Collects entries, and sends them once they are as many as a request takes. refused: times a record was refused."""

    def __init__(self):
        self.entries, self.bytes, self.refused = [], 0, 0

    def add(self, data, key, hash_key=None):
        entry = {"Data": data, "PartitionKey": key}
        if hash_key is not None:
            entry["ExplicitHashKey"] = hash_key
        self.entries.append(entry)
        self.bytes += len(data) + len(key)
        if len(self.entries) == MOST_RECORDS or self.bytes >= MOST_BYTES:
            self.send()

    def send(self):
        entries, self.entries, self.bytes = self.entries, [], 0
        while entries:
            answer = client.put_records(StreamName=STREAM, Records=entries)
            if not answer["FailedRecordCount"]:
                return
            answers = zip(entries, answer["Records"], strict=True)
            entries = [entry for entry, one in answers if "ErrorCode" in one]
            self.refused += len(entries)
            time.sleep(PAUSE)


def plain(count, size):
    sender = Sender()
    for data, key in records(count, size):
        sender.add(data, key)
    sender.send()
    return {"refused": sender.refused}


def aggregated(count, size):
    warnings.simplefilter("ignore")
    from aws_kinesis_agg.aggregator import RecordAggregator

    sender, aggregator = Sender(), RecordAggregator(AGGREGATE_BYTES)
    for data, key in records(count, size):
        if (full := aggregator.add_user_record(key, data)) is not None:
            send_aggregate(sender, full)
    if (last := aggregator.clear_and_get()) is not None:
        send_aggregate(sender, last)
    sender.send()
    return {"refused": sender.refused}


def send_aggregate(sender, found):
    key, hash_key, data = found.get_contents()
    sender.add(data, key, hash_key)


def single(count, size):
    for data, key in records(count, size):
        client.put_record(StreamName=STREAM, Data=data, PartitionKey=key)


def latency(count, size):
    found = []
    for data, key in records(count, size):
        began = time.monotonic()
        client.put_record(StreamName=STREAM, Data=data, PartitionKey=key)
        found.append((time.monotonic() - began) * 1000)
    return {"millis": found}


if __name__ == "__main__":
    answer_puts({"plain": plain, "aggregated": aggregated, "single": single, "latency": latency})
