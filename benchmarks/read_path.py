"""CPU per record of the read path: a plain boto3 `get_records` loop against `KinesisStream.fetch`.

    python benchmarks/read_path.py [--rounds 7] [--calls 20]

Both talk to the same canned HTTP server, which runs in a child process (its CPU does not count) and sends one
prepared answer for ever. Both touch the data of every record; ours also looks whether it is an aggregate. Rounds are interleaved; the table shows medians.
"""

from __future__ import annotations

import argparse
import base64
import gc
import json
import multiprocessing
import platform
import random
import socket
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import boto3
import botocore
from botocore.config import Config

from pykcl.aws.kinesis import KinesisStream
from pykcl.model.aggregation import deaggregate_batch
from pykcl.runtime import SystemRuntime

ROWS = (("empty poll", 0, 0), ("1,000 x 100 B", 1000, 100), ("1,000 x 1 KB", 1000, 1024))
GOALS = {"1,000 x 100 B": 3.0, "1,000 x 1 KB": 2.5}
SHARD = "shardId-000000000000"
ITERATOR = "AAAAAAAAAAE" + "x" * 220


def prepared_body(count: int, size: int) -> bytes:
    """A GetRecords answer as Kinesis writes it: compact JSON, 56-digit numbers, times with milliseconds."""
    chance = random.Random(1)
    first = 49600000000000000000000000000000000000000000000000000000
    records = [
        {
            "ApproximateArrivalTimestamp": 1_700_000_000 + index / 1000,
            "Data": base64.b64encode(chance.randbytes(size)).decode(),
            "PartitionKey": f"customer-{chance.randrange(10**8):08d}",
            "SequenceNumber": str(first + index * 7919),
        }
        for index in range(count)
    ]
    answer = {"MillisBehindLatest": 0, "NextShardIterator": ITERATOR, "Records": records}
    return json.dumps(answer, separators=(",", ":")).encode()


def serve(pipe: Connection, bodies: dict[str, bytes]) -> None:
    """Answer every request with the body that its ShardIterator names, on one connection at a time."""
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    answers = {name.encode(): _http(body) for name, body in bodies.items()}
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, connection.makefile("rb") as incoming:
            while request := _request(incoming):
                connection.sendall(answers[json.loads(request)["ShardIterator"].encode()])


def _request(incoming: Any) -> bytes:
    length = 0
    while (line := incoming.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    body: bytes = incoming.read(length)
    return body


def _http(body: bytes) -> bytes:
    head = (
        "HTTP/1.1 200 OK\r\nx-amzn-RequestId: c5a0b7f3-4d3e-4b1c-9d55-2f6e4d0c0a11\r\n"
        "x-amz-id-2: VjXdUvlGk3rRzYz3uN8kYw5m0C1rAl7h1aJv0cQmXq\r\n"
        "Date: Tue, 14 Nov 2023 22:13:20 GMT\r\nContent-Type: application/x-amz-json-1.1\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def new_client(port: int) -> Any:
    return boto3.client(
        "kinesis",
        region_name="eu-west-1",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}),
    )


def plain_loop(port: int, which: str) -> Callable[[], int]:
    client = new_client(port)

    def once() -> int:
        touched = 0
        for record in client.get_records(ShardIterator=which, Limit=10_000)["Records"]:
            touched += len(record["Data"])
        return touched

    return once


def our_loop(port: int, which: str) -> Callable[[], int]:
    stream = KinesisStream(new_client(port), "orders", SystemRuntime())

    def once() -> int:
        touched = 0
        for record in deaggregate_batch(stream.fetch(SHARD, which, 10_000).records, None):
            touched += len(record.data)
        return touched

    return once


def cpu(once: Callable[[], int], calls: int) -> float:
    """Seconds of CPU per call."""
    gc.collect()
    before = time.process_time()
    for _ in range(calls):
        once()
    return (time.process_time() - before) / calls


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--calls", type=int, default=20)
    chosen = options.parse_args()

    bodies = {name: prepared_body(count, size) for name, count, size in ROWS}
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there, bodies), daemon=True)
    server.start()
    port = int(here.recv())
    print(f"Python {platform.python_version()}, botocore {botocore.__version__}, {platform.machine()}")
    print(f"{'answer':16}{'plain boto3':>16}{'pykcl':>16}{'less CPU':>12}{'goal':>8}")
    missed = False
    for name, count, size in ROWS:
        missed |= not measure(port, name, count, size, chosen.rounds, chosen.calls)
    server.terminate()
    return 1 if missed else 0


def measure(port: int, name: str, count: int, size: int, rounds: int, calls: int) -> bool:
    """Print one row; return whether its goal was met."""
    calls = calls if count else calls * 20
    plain_times, our_times = [], []
    # One connection at a time suits the server: a loop is made, warmed, measured and dropped in turn.
    for _ in range(rounds):
        for make, times in ((plain_loop, plain_times), (our_loop, our_times)):
            once = make(port, name)
            if once() != count * size:
                raise SystemExit(f"{name}: the loop did not see every byte")
            times.append(cpu(once, calls))
            del once
    unit = 1e6 / max(count, 1)
    plain, ours = statistics.median(plain_times) * unit, statistics.median(our_times) * unit
    goal = GOALS.get(name)
    per = "us/rec" if count else "us/poll"
    shown_goal = f">={goal}x" if goal else "-"
    print(f"{name:16}{plain:9.2f} {per}{ours:9.2f} {per}{plain / ours:11.2f}x{shown_goal:>8}")
    return goal is None or plain / ours >= goal


if __name__ == "__main__":
    sys.exit(main())
