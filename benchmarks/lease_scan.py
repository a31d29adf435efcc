"""CPU of scanning 1,000 leases: boto3's client as it is, and with pykcl's decoding, on one canned local answer.

    python -m benchmarks.lease_scan [ROWS [ROUNDS]]

The answer comes from a server process of its own, so only the client's CPU is counted. Goal: at most 15 ms for
1,000 leases, parsed into Lease values, in the steady state of a worker that looks once a second.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import statistics
import sys
import time
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

import boto3

from pykcl.aws.clients import client_config
from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.aws.transport.table_requests import RowCache
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.model.lease_writes import parse_row, to_item
from pykcl.model.shard import HashRange
from pykcl.runtime import SystemRuntime

GOAL_MS = 15.0


def rows(count: int) -> list[Any]:
    """Leases as a running fleet keeps them: owned, checkpointed, with hash range, parents and the metadata."""
    metadata = PykclMetadata(
        "arn:aws:kinesis:us-east-1:123456789012:stream/orders", 1_700_000_000_000, "host:123:abc", "0.1.0"
    )
    width = 2**128 // count
    return [
        to_item(
            Lease(
                key=f"shardId-{number:012d}",
                checkpoint=Checkpoint(str(49680415608707149000133498873105939488817855938764472322 + number)),
                counter=1000 + number,
                owner=f"host-{number % 10}.example:123:4f2a",
                parents=(f"shardId-{max(0, number - 1):012d}",),
                hash_range=HashRange(number * width, (number + 1) * width - 1),
                entity_type="LEASE",
                metadata=metadata,
            )
        )
        for number in range(count)
    ]


def serve(body: bytes, port: Connection) -> None:
    crc = str(zlib.crc32(body))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("x-amz-crc32", crc)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port.send(server.server_port)
    server.serve_forever()


def cpu_ms(work: Callable[[], Any], rounds: int) -> float:
    """The median CPU of one round, in milliseconds, after three to warm up."""
    spent = []
    for number in range(rounds + 3):
        began = time.process_time()
        work()
        if number >= 3:
            spent.append((time.process_time() - began) * 1000)
    return statistics.median(spent)


def scan_with_changes(table: DynamoDBLeaseTable, every: int) -> None:
    """Some time after the last scan, when one row of so many is new."""
    known = table._row_cache
    texts = [text + " " * (number % every == 0) for number, text in enumerate(known.texts)]
    table._row_cache = RowCache(known.rows, texts)
    table.scan()


def client(port: int) -> Any:
    return boto3.client(
        "dynamodb",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=client_config(connect_timeout=2, read_timeout=10, connections=2),
    )


def main(count: int = 1000, rounds: int = 30) -> int:
    items = rows(count)
    body = json.dumps({"Items": items, "Count": count, "ScannedCount": count}, separators=(",", ":")).encode()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(body, theirs), daemon=True)
    server.start()
    try:
        port = ours.recv()
        plain = client(port)
        ours_client = client(port)
        table = DynamoDBLeaseTable(ours_client, "leases", SystemRuntime())
        table.scan()  # over boto3, as the first one always is
        assert len(table.scan().rows) == len(table._row_cache.texts) == count
        figures = {
            "boto3 client.scan": cpu_ms(lambda: plain.scan(TableName="leases"), rounds),
            "boto3 client.scan + parse_row": cpu_ms(
                lambda: [parse_row(item) for item in plain.scan(TableName="leases")["Items"]], rounds
            ),
            "pykcl scan, every row changed": cpu_ms(lambda: scan_with_changes(table, 1), rounds),
            "pykcl scan, a third changed": cpu_ms(lambda: scan_with_changes(table, 3), rounds),
            "pykcl scan, no row changed": cpu_ms(table.scan, rounds),
            "of which parse_row": cpu_ms(lambda: [parse_row(item) for item in items], rounds),
        }
    finally:
        server.terminate()
        server.join()
    print(f"{count} leases, {len(body)} bytes; Python {platform.python_version()}, {platform.machine()}")
    for name, value in figures.items():
        print(f"  {name:34} {value:7.1f} ms CPU")
    ours_ms = figures["pykcl scan, a third changed"]
    good = ours_ms <= GOAL_MS * count / 1000
    print(f"  goal {GOAL_MS * count / 1000:.1f} ms with a third changed: {'met' if good else 'MISSED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
