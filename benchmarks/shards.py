"""One worker and very many shards at once: a start, a reshard, a stop; `pykcl local` and the worker each in a process.

    python -m benchmarks.shards [--shards 1000] [--failover 10] [--patience 240]

Every shard has one record before it is read, so the time counts to the first record of the last shard. `start`: half as
many closed shards, from a reshard before, and as many open ones. `reshard`: half as many shards are read, and are split
under the running worker. `stop`: SIGTERM until the process has ended; no row may name it then.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import boto3

from benchmarks.machine import busy, described, machine
from benchmarks.processes import Child
from benchmarks.results import Results
from benchmarks.server_process import local_command
from pykcl import Batch, RecordProcessor, Worker
from pykcl.aws.transport.table_requests import TableRequests

STREAM, TABLE = "orders", "many-shards"
ALL_READ, ALL_READ_AFTER_RESHARD, RELEASED = 45.0, 60.0, 15.0
_ENTRIES_A_CALL = 500
_STOP_PATIENCE = 120.0


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--shards", type=int, default=1000, help="open ones, an even number")
    options.add_argument("--failover", type=float, default=10.0, help="seconds")
    options.add_argument("--patience", type=float, default=240.0, help="seconds for each step but the stop")
    options.add_argument("--worker", action="store_true", help="be the worker that is measured")
    chosen = options.parse_args()
    if chosen.worker:
        work(chosen.failover)
        return 0
    results = Results("shards", machine())
    print(described(results.versions), busy(), sep="\n")
    print(f"{'':10}{'shards read':>16}{'seconds':>9}{'CPU':>9}{'RSS':>9}{'threads':>9}  table writes")
    for is_resharded_first in (True, False):
        with (
            local_command(f"{STREAM}:{chosen.shards // 2}") as variables,
            tempfile.TemporaryDirectory() as logs,
        ):
            os.environ.update(variables)
            Run(results, chosen, Path(logs)).measure(is_resharded_first)
    results.print_goals()
    results.save()
    return results.exit_code


class Run:
    """One worker on a new local AWS."""

    def __init__(self, results: Results, chosen: argparse.Namespace, logs: Path) -> None:
        self._results, self._chosen, self._logs = results, chosen, logs
        self._kinesis, self._dynamodb = boto3.client("kinesis"), boto3.client("dynamodb")

    def measure(self, is_resharded_first: bool) -> None:
        shards, command = self._chosen.shards, [sys.executable, "-m", "benchmarks.shards", "--worker"]
        self._fill(shards // 2)
        if is_resharded_first:
            self._split(shards)
        worker = Child("worker", [*command, "--failover", str(self._chosen.failover)], os.environ, self._logs)
        try:
            if is_resharded_first:
                seconds = self._read_by(worker, "start", shards + shards // 2)
                self._results.at_most(f"{shards} shards read after the start", ALL_READ, seconds, " s")
            else:
                self._read_by(worker, "before", shards // 2)
                self._split(shards)
                seconds = self._read_by(worker, "reshard", shards + shards // 2)
                self._results.at_most(
                    f"{shards} shards read after the reshard", ALL_READ_AFTER_RESHARD, seconds, " s"
                )
            self._stop(worker)
        finally:
            worker.end()

    def _open_shards(self) -> list[dict[str, Any]]:
        shards: list[dict[str, Any]] = []
        # A page after the first one must not name the stream, which boto3's paginator does.
        asked: dict[str, Any] = {"StreamName": STREAM}
        while asked:
            page = self._kinesis.list_shards(**asked)
            shards += page["Shards"]
            asked = {"NextToken": page["NextToken"]} if page.get("NextToken") else {}
        return [shard for shard in shards if "EndingSequenceNumber" not in shard["SequenceNumberRange"]]

    def _fill(self, shards: int) -> None:
        """Put one record into each open shard, once so many are listed: a listing may be that of a moment ago."""
        while len(found := self._open_shards()) != shards:
            time.sleep(0.05)
        entries = [
            {"Data": b"-", "PartitionKey": "-", "ExplicitHashKey": shard["HashKeyRange"]["StartingHashKey"]}
            for shard in found
        ]
        for first in range(0, len(entries), _ENTRIES_A_CALL):
            self._kinesis.put_records(StreamName=STREAM, Records=entries[first : first + _ENTRIES_A_CALL])

    def _split(self, shards: int) -> None:
        self._kinesis.update_shard_count(
            StreamName=STREAM, TargetShardCount=shards, ScalingType="UNIFORM_SCALING"
        )
        self._fill(shards)

    def _read_by(self, worker: Child, name: str, shards: int) -> float:
        """Wait until so many shards have been read; return the seconds."""
        began, cpu, until = time.monotonic(), worker.cpu, self._chosen.patience
        while True:
            found, seconds = worker.ask("count"), time.monotonic() - began
            if found["shards"] >= shards or seconds > until:
                break
            time.sleep(0.2)
        print(
            f"{name:10}{found['shards']:8} of {shards:4}{seconds:8.1f}s{worker.cpu - cpu:8.1f}s"
            f"{worker.memory / 2**20:6.0f}MiB{found['threads']:9}  {found['writes']} {found['events']}",
            flush=True,
        )
        return seconds if found["shards"] >= shards else float("inf")

    def _stop(self, worker: Child) -> None:
        shards, began = self._chosen.shards, time.monotonic()
        worker.process.terminate()
        while worker.process.poll() is None and time.monotonic() - began < _STOP_PATIENCE:
            time.sleep(0.05)
        seconds = time.monotonic() - began if worker.process.poll() is not None else float("inf")
        pages = self._dynamodb.get_paginator("scan").paginate(TableName=TABLE)
        owned = sum("leaseOwner" in row for page in pages for row in page["Items"])
        print(f"{'stop':10}{owned:8} rows left{seconds:13.1f}s", flush=True)
        self._results.at_most(f"{shards} leases released after SIGTERM", RELEASED, seconds, " s")
        self._results.at_most("rows that name a worker after its end", 0, owned, "")


class First(RecordProcessor):
    """Notes each shard that it was given a record of."""

    read: ClassVar[set[str]] = set()

    def process_records(self, batch: Batch) -> None:
        self.read.add(batch.shard_id)


def work(failover: float) -> None:
    """Be a worker that answers each line with what it has done so far."""
    writes, events = _counted_writes(), Counter[str]()

    def hear(event: Any) -> None:
        events[type(event).__name__] += 1

    def answer() -> None:
        for _ in sys.stdin:
            found = {
                "shards": len(First.read), "threads": threading.active_count(), "writes": dict(writes),
                "events": {name: count for name, count in events.items() if "Lost" in name or "Fail" in name},
            }  # fmt: skip
            print(json.dumps(found), flush=True)

    threading.Thread(target=answer, daemon=True).start()
    worker = Worker(
        TABLE, stream=STREAM, processor=First, initial_position="TRIM_HORIZON", failover_time=failover,
        on_event=hear, shutdown_grace=_STOP_PATIENCE,
    )  # fmt: skip
    worker.run()


def _counted_writes() -> Counter[str]:
    """Of the requests that change the table, how many were answered well, refused or not answered."""
    counts: Counter[str] = Counter()
    write = TableRequests.write

    def counted(requests: TableRequests, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = write(requests, operation, params)
        except Exception:
            counts[f"{operation} failed"] += 1
            raise
        counts[operation] += 1
        return answer

    TableRequests.write = counted  # type: ignore[method-assign]
    return counts


if __name__ == "__main__":
    sys.exit(main())
