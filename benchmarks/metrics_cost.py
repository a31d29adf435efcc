"""What metrics cost the read path: CPU of whole polls with CloudWatch SUMMARY on, against the same polls without.

    python -m benchmarks.metrics_cost [--pairs 300] [--shards 4] [--seconds 600]

Each poll is one of a real worker's: fetch over HTTP from a canned server in a child process, de-aggregation, the measuring
of `PageMeasures` and of the processor's call. Polls with and without metrics alternate, and each pair gives one
difference: the table shows the medians. To that comes the CPU of the thread that publishes: so many seconds' worth of minutes
of statistics, sent with a real boto3 client to the same server, and shared out over the polls of those seconds.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Callable

import boto3
import botocore

from benchmarks.canned import Shape, canned_server
from benchmarks.read_path import SHARD, new_client
from pykcl.aws.clients import client_config
from pykcl.aws.cloudwatch import CloudWatchSender
from pykcl.aws.kinesis import KinesisStream
from pykcl.metrics import catalog
from pykcl.metrics.catalog import DIMENSIONS
from pykcl.metrics.cloudwatch import Publisher, Statistics
from pykcl.metrics.meter import Meter
from pykcl.model.kpl import batches_of
from pykcl.runtime import SystemRuntime
from pykcl.worker.measurements import PageMeasures

SHAPES = (Shape("empty poll", 0, 0), Shape("1,000 x 100 B", 1000, 100), Shape("1,000 x 1 KB", 1000, 1024))
GOALS = {shape.name: 3.0 for shape in SHAPES if shape.records}
"""Percent. Of a poll that brings nothing it is told, too: there is little to compare with."""
POLLS_A_SECOND = 4
"""Of one shard, while records come: the pauses are 0.25 s. Caught up and idle it is one."""
BUFFER_SECONDS = 60
"""As `metrics_buffer_time` has it by default."""


class NoTrouble:
    def failed(self, what: str, error: Exception, /) -> None:
        raise SystemExit(f"{what}: {error}")

    def worked(self, what: str, /) -> None:
        """As it should."""


def polls(stream: KinesisStream, which: str, meter: Meter) -> Callable[[], int]:
    """One poll, as shard_reader, shard_delivery and processor_calls make it between them."""
    measures = PageMeasures(meter, SHARD, lambda: 0, lambda: None)

    def once() -> int:
        with meter.timed(catalog.GET_RECORDS, SHARD):
            page = stream.fetch(SHARD, which, 10_000)
        records = next(batches_of(page.records, 10_000, None), ())
        measures.began(page.millis_behind_latest)
        touched = 0
        if records:
            measures.delivering()
            began = meter.clock()
            touched = sum(len(record.data) for record in records)
            if meter.is_on:
                meter.summary(SHARD, ((catalog.PROCESS_RECORDS_TIME, meter.since(began)),))
            measures.delivered(records)
        measures.ended()
        return touched

    return once


def cpu(once: Callable[[], int]) -> float:
    """Seconds of this thread's CPU for one poll."""
    before = time.thread_time()
    once()
    return time.thread_time() - before


def publishing(port: int, shards: int, seconds: int, polls_a_second: float) -> float:
    """Seconds of CPU that publishing costs for each poll."""
    runtime = SystemRuntime()
    waiting = Statistics(runtime, 10_000)
    client = boto3.client(
        "cloudwatch", region_name="eu-west-1", endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="local", aws_secret_access_key="local",
        config=client_config(connect_timeout=2, read_timeout=5, connections=1, validation=False),
    )  # fmt: skip
    publisher = Publisher(
        waiting, CloudWatchSender(client, "orders-app", "w1", DIMENSIONS), runtime, NoTrouble(), interval=10
    )
    meter = Meter(runtime, [waiting], level="SUMMARY")

    def fill() -> None:
        for number in range(shards):
            measures = PageMeasures(meter, f"shardId-{number:012d}", lambda: 0, lambda: None)
            measures.began(0)
            measures.delivering()
            measures.delivered(())
            meter.measure(f"shardId-{number:012d}", (catalog.PROCESS_RECORDS_TIME, 1.0))
            measures.ended()
        for one in catalog.CATALOGUE:
            if one.dimension == "WorkerIdentifier" and one.level == "SUMMARY":
                meter.measure("", (one, 1.0))

    fill()
    publisher.publish()
    spent = 0.0
    for _ in range(seconds // BUFFER_SECONDS):
        fill()
        before = time.thread_time()
        publisher.publish()
        spent += time.thread_time() - before
    if len(waiting):
        raise SystemExit("publishing was refused")
    return spent / (shards * seconds * polls_a_second)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--pairs", type=int, default=300)
    options.add_argument("--shards", type=int, default=4)
    options.add_argument("--seconds", type=int, default=600)
    chosen = options.parse_args()

    cloudwatch = started(serve_cloudwatch)
    print(
        f"Python {platform.python_version()}, botocore {botocore.__version__}, {platform.machine()}; "
        f"CloudWatch SUMMARY, {chosen.shards} shards, {BUFFER_SECONDS} s between requests"
    )
    print(f"{'answer':16}{'off':>14}{'measuring':>14}{'publishing':>14}{'in all':>10}{'goal':>8}")
    missed = False
    with canned_server(SHAPES, tls=True) as (url, certificate):
        for shape in SHAPES:
            # Without records a shard is polled once a second.
            rate = POLLS_A_SECOND if shape.records else 1
            sending = publishing(cloudwatch, chosen.shards, chosen.seconds, rate)
            stream = KinesisStream(new_client(url, certificate), "orders", SystemRuntime())
            missed |= not measure(stream, shape, chosen.pairs * (1 if shape.records else 5), sending)
    return 1 if missed else 0


def measure(stream: KinesisStream, shape: Shape, pairs: int, sending: float) -> bool:
    """Print one row; return whether its goal was met."""
    runtime, name, size = SystemRuntime(), shape.name, shape.records * shape.size
    off = polls(stream, shape.iterator, Meter(runtime))
    on = polls(stream, shape.iterator, Meter(runtime, [Statistics(runtime, 10_000)], level="SUMMARY"))
    if (off(), on()) != (size, size):
        raise SystemExit(f"{name}: not every byte was seen")
    without, more = [], []
    gc.collect()
    for number in range(pairs):
        # Who goes first alternates: the second one finds warmer caches.
        if number % 2:
            plain, measured = cpu(off), cpu(on)
        else:
            measured, plain = cpu(on), cpu(off)
        without.append(plain)
        more.append(measured - plain)
    poll, measuring = statistics.median(without), statistics.median(more)
    share = 100 * (measuring + sending) / poll
    goal = f"<={GOALS[name]:g}%" if name in GOALS else "-"
    print(
        f"{name:16}{poll * 1e6:11.1f} us{measuring * 1e6:11.1f} us{sending * 1e6:11.1f} us{share:9.1f}%{goal:>8}"
    )
    return share <= GOALS.get(name, share)


def started(body: Callable[..., None], *arguments: object) -> int:
    """Run `body` in a process of its own; the port it listens on."""
    here, there = multiprocessing.Pipe()
    multiprocessing.Process(target=body, args=(there, *arguments), daemon=True).start()
    return int(here.recv())


def serve_cloudwatch(pipe: multiprocessing.connection.Connection) -> None:
    """Answer every request as one that was taken."""
    import http.server

    class Taken(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            kind = self.headers.get("Content-Type", "application/x-amz-json-1.0")
            body = b"\xbf\xff" if "cbor" in kind else b"{}" if "json" in kind else _XML
            self.send_response(200)
            if "cbor" in kind:
                self.send_header("smithy-protocol", "rpc-v2-cbor")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Taken)
    pipe.send(server.server_port)
    server.serve_forever()


_XML = b'<PutMetricDataResponse xmlns="http://monitoring.amazonaws.com/doc/2010-08-01/"><ResponseMetadata/></PutMetricDataResponse>'

if __name__ == "__main__":
    sys.exit(main())
