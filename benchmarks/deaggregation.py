"""CPU per user record of opening KPL aggregates: pykcl beside aws-kinesis-agg 1.2.3.

Run by hand: `python benchmarks/deaggregation.py` (dev extra). Both open the same blobs, and are first compared record
for record. Rounds alternate between the two; each cell is the median of all rounds, in CPU time of this process.

aws-kinesis-agg has no hash-range rule: the ratio compares like with like, without it. The last column is what a worker
does on a shard that is not the whole stream; it costs one MD5 more per distinct partition key of an aggregate.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime

from pykcl.model.kpl import aggregate, deaggregate_batch
from pykcl.model.record import Record
from pykcl.model.shard import HashRange

warnings.simplefilter("ignore")
from aws_kinesis_agg.deaggregator import iter_deaggregate_records  # noqa: E402

ROUNDS = 21
USER_RECORDS_PER_ROUND = 20_000
NEARLY_EVERYTHING = HashRange(0, 2**128 - 2)
# sub-records per aggregate, bytes each, distinct partition keys
SHAPES = [(20, 100, 1), (100, 100, 1), (500, 100, 1), (50, 1_000, 1), (100, 100, 10), (100, 100, 100)]

Run = Callable[[], int]


def runs(sub_records: int, size: int, keys: int) -> tuple[Run, Run, Run]:
    user_records = [(f"device-{n % keys:05d}", None, bytes([n % 251]) * size) for n in range(sub_records)]
    (blob,) = aggregate(user_records)
    count = USER_RECORDS_PER_ROUND // sub_records
    ours = [
        Record(blob.data, blob.partition_key, str(49 * 10**54 + n), 1.7e12, "shard", "s")
        for n in range(count)
    ]
    theirs = [
        {
            "SequenceNumber": record.sequence_number,
            "PartitionKey": record.partition_key,
            "ApproximateArrivalTimestamp": datetime.fromtimestamp(1.7e9, tz=UTC),
            "Data": record.data,
        }
        for record in ours
    ]
    opened = [(record.partition_key, record.sub_sequence_number) for record in deaggregate_batch(ours, None)]
    expected = [
        (record["kinesis"]["partitionKey"], record["kinesis"]["subSequenceNumber"])
        for record in iter_deaggregate_records(theirs, "Boto3")
    ]
    if opened != expected or len(opened) != count * sub_records:
        sys.exit("the two do not agree: nothing measured")
    return (
        lambda: sum(1 for _ in iter_deaggregate_records(theirs, "Boto3")),
        lambda: sum(1 for _ in deaggregate_batch(ours, None)),
        lambda: sum(1 for _ in deaggregate_batch(ours, NEARLY_EVERYTHING)),
    )


def microseconds(run: Run) -> float:
    gc.collect()
    began = time.process_time()
    opened = run()
    return (time.process_time() - began) / opened * 1e6


def main() -> None:
    print(f"Python {sys.version.split()[0]}, {ROUNDS} interleaved rounds, median CPU per user record")
    print()
    print("| aggregate | keys | aws-kinesis-agg | pykcl | ratio | pykcl with hash-range rule |")
    print("|---|---|---|---|---|---|")
    for sub_records, size, keys in SHAPES:
        variants = runs(sub_records, size, keys)
        measured = [[microseconds(run) for run in variants] for _ in range(ROUNDS)]
        theirs, ours, ranged = (statistics.median(column) for column in zip(*measured, strict=True))
        cells = (
            f"{sub_records} x {size} B",
            keys,
            f"{theirs:.2f} us",
            f"{ours:.2f} us",
            f"{theirs / ours:.2f}x",
        )
        print("|", *(f"{cell} |" for cell in (*cells, f"{ranged:.2f} us")))


if __name__ == "__main__":
    main()
