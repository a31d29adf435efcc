"""CPU of the read path: a plain boto3 `get_records` loop against `KinesisStream.fetch` over each of its ways.

    python -m benchmarks.read_path [--rounds 9] [--calls 20] [--without-tls]

All talk to the same server of prepared answers, which runs in a process of its own. All touch the data of every
record; ours also look whether it is an aggregate, and plain boto3 opens aggregates with aws-kinesis-agg. Rounds are interleaved: each ratio is between neighbours in time,
and the table shows medians with the quarter and three-quarter points of the ratio.
"""

from __future__ import annotations

import argparse
import gc
import platform
import ssl
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import boto3
import botocore
from botocore.config import Config

from benchmarks.canned import Shape, canned_server
from pykcl.aws.kinesis import KinesisStream
from pykcl.model.kpl import batches_of
from pykcl.runtime import SystemRuntime

warnings.simplefilter("ignore")
from aws_kinesis_agg.deaggregator import iter_deaggregate_records  # noqa: E402

SHAPES = (
    Shape("empty poll", 0, 0),
    Shape("10 x 100 B", 10, 100),
    Shape("1,000 x 100 B", 1000, 100),
    Shape("1,000 x 1 KB", 1000, 1024),
    Shape("KPL 100x100x100 B", 100, 100, 100),
    Shape("KPL 40x50x1 KB", 40, 1024, 50),
)
SHARD = "shardId-000000000000"
WAYS = {
    "over boto3": {"http_transport": "boto3"},
    "direct, JSON": {"http_transport": "direct", "record_encoding": "json"},
    "direct, CBOR": {"http_transport": "direct", "record_encoding": "cbor"},
}
GOALS = {
    ("empty poll", "direct, JSON"): 4.0,
    ("empty poll", "direct, CBOR"): 4.0,
    ("1,000 x 100 B", "over boto3"): 3.0,
    ("1,000 x 100 B", "direct, CBOR"): 7.0,
    ("1,000 x 1 KB", "over boto3"): 2.0,
    ("1,000 x 1 KB", "direct, CBOR"): 8.0,
    ("KPL 100x100x100 B", "direct, CBOR"): 2.5,
    ("KPL 40x50x1 KB", "direct, CBOR"): 3.5,
}
"""How many times less CPU than plain boto3."""


def new_client(url: str, certificate: str | None) -> Any:
    return boto3.client(
        "kinesis",
        region_name="eu-west-1",
        endpoint_url=url,
        aws_access_key_id="local",
        aws_secret_access_key="local",
        verify=certificate,
        config=Config(retries={"total_max_attempts": 1}),
    )


def plain_loop(client: Any, shape: Shape) -> Callable[[], int]:
    def once() -> int:
        touched = 0
        records = client.get_records(ShardIterator=shape.iterator, Limit=10_000)["Records"]
        if shape.in_each > 1:
            # It gives payloads in base64. Decoding them, which a user would have to do, is not counted.
            for record in iter_deaggregate_records(records, "Boto3"):
                touched += shape.size if record["kinesis"]["data"] else 0
            return touched
        for record in records:
            touched += len(record["Data"])
        return touched

    return once


def our_loop(client: Any, shape: Shape, **way: Any) -> Callable[[], int]:
    stream = KinesisStream(client, "orders", SystemRuntime(), **way)

    def once() -> int:
        touched = 0
        for batch in batches_of(stream.fetch(SHARD, shape.iterator, 10_000).records, 10_000, None):
            for record in batch:
                touched += len(record.data)
        return touched

    return once


def cpu(once: Callable[[], int], calls: int) -> float:
    """Microseconds of CPU per call."""
    gc.collect()
    before = time.process_time()
    for _ in range(calls):
        once()
    return (time.process_time() - before) / calls * 1e6


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--calls", type=int, default=20)
    options.add_argument("--without-tls", action="store_true")
    chosen = options.parse_args()

    print(
        f"Python {platform.python_version()}, botocore {botocore.__version__}, {platform.machine()}, "
        + ("no TLS" if chosen.without_tls else ssl.OPENSSL_VERSION)
    )
    print(f"{'answer':19}{'way':14}{'per poll':>12}{'per record':>12}{'less CPU':>10}{'':>16}{'goal':>8}")
    missed = False
    with canned_server(SHAPES, tls=not chosen.without_tls) as (url, certificate):
        for shape in SHAPES:
            missed |= not measure(url, certificate, shape, chosen.rounds, chosen.calls)
    return 1 if missed else 0


def measure(url: str, certificate: str | None, shape: Shape, rounds: int, calls: int) -> bool:
    """Print the rows of one answer; return whether their goals were met."""
    calls = calls if shape.user_records >= 100 else calls * 20
    loops = {"plain boto3": plain_loop(new_client(url, certificate), shape)}
    for name, way in WAYS.items():
        loops[name] = our_loop(new_client(url, certificate), shape, **way)
    for name, once in loops.items():
        for _ in range(3):  # the first page teaches the direct transport, the second opens its connection
            if once() != shape.user_records * shape.size:
                raise SystemExit(f"{shape.name}, {name}: the loop did not see every byte")
    times: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, once in loops.items():
            times[name].append(cpu(once, calls))
    met = True
    for name, found in times.items():
        ratios = [plain / ours for plain, ours in zip(times["plain boto3"], found, strict=True)]
        met &= show(shape, name, statistics.median(found), ratios)
    return met


def show(shape: Shape, name: str, per_poll: float, ratios: list[float]) -> bool:
    low, ratio, high = statistics.quantiles(ratios, n=4)
    goal = GOALS.get((shape.name, name))
    per_record = f"{per_poll / shape.user_records:9.2f} us" if shape.records else ""
    shown_goal = f">={goal:g}x" if goal else ""
    print(
        f"{shape.name:19}{name:14}{per_poll:9.0f} us{per_record:>12}{ratio:9.2f}x{low:9.2f}-{high:.2f}{shown_goal:>9}"
    )
    return goal is None or ratio >= goal


if __name__ == "__main__":
    sys.exit(main())
