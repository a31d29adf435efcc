"""Polling and enhanced fan-out side by side, and kcl-rs' fan-out: idle shards, latency, CPU per record; each in a process.

    python -m benchmarks.retrieval [--retrieval polling,fanout,kcl-rs] [--shards 100] [--idle 30] [--records 60]
        [--count 16000]

On the local AWS, over HTTP without TLS. kcl-rs is the program of its README, which reads by fan-out by default; it is left
out, loudly, where pip cannot get it. idle: threads, connections that carry subscriptions, and CPU a minute and shard
while nothing is put, heartbeats and all. latency: from before the call of PutRecord until process_records has the
record, at the tip, one record after the other. CPU per record: until a burst was processed, the median of three. CPU is
of the worker's process alone; latency is of the whole machine, and other work on it makes it longer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import boto3

from benchmarks import peer_environment
from benchmarks.canned import Shape
from benchmarks.local_stream import Server, Side, local_aws
from benchmarks.machine import busy, described, machine
from benchmarks.processes import Child
from benchmarks.readers import EVERY_SECOND, PROGRAMS, REGION, surroundings
from benchmarks.results import Results
from pykcl import Batch, RecordProcessor, Worker
from pykcl.aws.push.h2_links import of_process
from pykcl.runtime import SystemRuntime
from pykcl.worker.collector import tune_collector

KCL_RS = "kcl-rs"
KINDS = ("polling", "fanout", KCL_RS)
SHAPE = Shape("1 KB", 1000, 1000)
FEW_SHARDS = 4
MORE_THREADS = 2
"""A goal: threads beside those of polling."""
_STAMP = b"put at "
_PATIENCE = 120.0


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--retrieval", default=",".join(KINDS), help="which to measure, separated by commas")
    options.add_argument("--shards", type=int, default=100, help="idle ones")
    options.add_argument("--idle", type=float, default=30.0, help="seconds")
    options.add_argument("--records", type=int, default=60, help="whose latency is measured")
    options.add_argument("--count", type=int, default=16_000, help="records of a burst")
    options.add_argument("--encoding", default="auto", help="record_encoding of the workers")
    options.add_argument(
        "--worker", nargs=2, metavar=("RETRIEVAL", "ENCODING"), help="be a worker that is measured"
    )
    chosen = options.parse_args()
    if chosen.worker:
        work(*chosen.worker)
        return 0
    kinds = tuple(kind for kind in KINDS if kind in chosen.retrieval.split(","))
    results = Results("retrieval", machine())
    print(described(results.versions), busy(), sep="\n")
    peer = None
    if KCL_RS in kinds:
        try:
            peer = peer_environment.python_of(KCL_RS, peer_environment.KCL_RS)
        except peer_environment.Unavailable as reason:
            print(f"*** {KCL_RS} is NOT MEASURED: {reason}", flush=True)
            kinds = tuple(kind for kind in kinds if kind != KCL_RS)
    with running(kinds, chosen.shards, chosen.encoding, peer) as (_, workers):
        idle(results, workers, chosen.shards, chosen.idle)
    with running(kinds, FEW_SHARDS, chosen.encoding, peer) as (server, workers):
        latency(results, server, workers, chosen.records)
        cpu_per_record(results, server, workers, chosen.count)
    results.print_goals()
    results.save()
    return results.exit_code


@contextmanager
def running(
    kinds: tuple[str, ...], shards: int, encoding: str, peer: Path | None
) -> Iterator[tuple[Server, dict[str, Child]]]:
    """A local AWS with a stream for each kind, and a worker for each that reads all of its shards.

    peer: the interpreter of an environment that has kcl-rs.
    """
    with local_aws(kinds, shards) as server, tempfile.TemporaryDirectory() as logs, ExitStack() as stack:
        workers = {}
        for kind in kinds:
            command = [sys.executable, "-m", "benchmarks.retrieval", "--worker", kind, encoding]
            environment = surroundings(server.url, None)
            if kind == KCL_RS:
                command = [
                    str(peer),
                    str(PROGRAMS / "kcl_rs_worker.py"),
                    "bench-rust",
                    kind,
                    server.url,
                    "FANOUT",
                ]
                del environment["PYTHONPATH"]
            workers[kind] = Child(kind, command, environment, Path(logs))
            stack.callback(workers[kind].end)
        for kind, worker in workers.items():
            deadline = time.monotonic() + _PATIENCE
            while worker.ask("tell")["read"] < shards:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{kind}: not all of {shards} shards were read after {_PATIENCE:g} s")
                time.sleep(0.2)
        yield server, workers


def idle(results: Results, workers: dict[str, Child], shards: int, seconds: float) -> None:
    time.sleep(2.0)
    before = {kind: worker.cpu for kind, worker in workers.items()}
    time.sleep(seconds)
    threads, cpu, memory = {}, {}, {}
    for kind, worker in workers.items():
        cpu[kind] = spent = (worker.cpu - before[kind]) / seconds / shards * 60_000
        found = worker.ask("tell")
        threads[kind], memory[kind] = found["threads"], worker.memory / 2**20
        print(
            f"idle    {kind:8}{shards:5} shards{spent:8.2f} ms CPU a minute and shard{found['threads']:5} threads"
            f"{found.get('links', '-'):>3} connections for subscriptions{memory[kind]:5.0f} MiB",
            flush=True,
        )
    compare(results, "CPU of an idle shard", cpu)
    compare(results, "memory", memory)
    if {"fanout", "polling"} <= threads.keys():
        more = float(threads["fanout"] - threads["polling"])
        results.at_most("threads of enhanced fan-out beside polling", MORE_THREADS, more, "")
        share = cpu["fanout"] / cpu["polling"]
        results.at_most("CPU of an idle shard, enhanced fan-out by polling", 1.0, share, "x")


def compare(results: Results, what: str, found: dict[str, float]) -> None:
    """A goal for enhanced fan-out beside that of kcl-rs, where both were measured."""
    if {"fanout", KCL_RS} <= found.keys():
        results.at_most(
            f"{what}, enhanced fan-out by that of {KCL_RS}", 1.0, found["fanout"] / found[KCL_RS], "x"
        )


def latency(results: Results, server: Server, workers: dict[str, Child], records: int) -> None:
    kinesis = boto3.client(
        "kinesis",
        endpoint_url=server.url,
        region_name=REGION,
        aws_access_key_id="-",
        aws_secret_access_key="-",
    )
    chance = random.Random(1)
    medians = {}
    for kind, worker in workers.items():
        found: list[float] = []
        for number in range(records):
            data = _STAMP + str(time.monotonic_ns()).encode()
            kinesis.put_record(StreamName=kind, Data=data, PartitionKey=f"key-{number}")
            while len(found) <= number:
                time.sleep(0.01)
                found += worker.ask("tell")["latencies"]
            time.sleep(chance.uniform(0.0, 0.5))
        low, *_, high = statistics.quantiles(found, n=10)
        middle = medians[kind] = statistics.median(found)
        print(
            f"latency {kind:8}{middle:8.1f} ms median{low:8.1f} at 10 %{high:8.1f} at 90 % of {records}",
            flush=True,
        )
    compare(results, "median latency", medians)


def cpu_per_record(results: Results, server: Server, workers: dict[str, Child], count: int) -> None:
    sides = [
        Side(kind, kind, server, partial(records_of, worker), partial(cpu_of, worker))
        for kind, worker in workers.items()
    ]
    for side in sides:
        side.give(count, SHAPE)
    found: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(3):
        for side in sides:
            found[side.name].append(side.spent_on(count, SHAPE)[0] / count * 1e6)
    for kind, spent in found.items():
        print(f"CPU     {kind:8}{statistics.median(spent):8.1f} us a record of {SHAPE.name}", flush=True)
    compare(
        results,
        f"CPU per record of {SHAPE.name}",
        {kind: statistics.median(spent) for kind, spent in found.items()},
    )


def records_of(worker: Child) -> int:
    return worker.count()[0]


def cpu_of(worker: Child) -> float:
    return worker.cpu


class Noting(RecordProcessor):
    """Notes how many records it was given, and how old those were that say when they were put."""

    all: ClassVar[list[Noting]] = []
    latencies: ClassVar[list[float]] = []

    def __init__(self) -> None:
        self.records = self.bytes = 0
        self.all.append(self)

    def process_records(self, batch: Batch) -> None:
        now = time.monotonic_ns()
        for record in batch:
            data = record.data
            self.bytes += len(data)
            if data.startswith(_STAMP):
                self.latencies.append((now - int(data[len(_STAMP) :])) / 1e6)
        self.records += len(batch)


def work(retrieval: Any, encoding: Any) -> None:
    """Be a worker that answers each line with what it has done so far."""
    with Worker(
        f"bench-{os.getpid()}",
        stream=retrieval,
        processor=Noting,
        retrieval=retrieval,
        record_encoding=encoding,
        initial_position="TRIM_HORIZON",
        **EVERY_SECOND,
    ) as worker:
        tune_collector()
        links = of_process(SystemRuntime())
        for line in sys.stdin:
            said: dict[str, Any] = {
                "records": sum(one.records for one in Noting.all), "bytes": sum(one.bytes for one in Noting.all),
            }  # fmt: skip
            if line.strip() == "tell":
                said |= {
                    "read": sum(lease.has_answered for lease in worker.status().leases),
                    "latencies": [Noting.latencies.pop(0) for _ in range(len(Noting.latencies))],
                    "threads": len(os.listdir("/proc/self/task")),
                    "links": sum(len(found) for found in links._links.values()),
                }
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    sys.exit(main())
