"""Memory, threads and CPU of one process that holds many idle leases.

    python -m benchmarks.idle_leases [LEASES] [TRANSPORT] [IDLE_TIME_BETWEEN_READS]

IDLE_TIME_BETWEEN_READS: seconds between two reads of a shard; by default what a worker does, at rest one each second.

The local AWS runs in a child process, so that its memory and CPU do not count.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from benchmarks.server_process import local_command
from pykcl import Batch, RecordProcessor, Worker
from pykcl.aws.transport.get_records import PageReads
from pykcl.interfaces import Fetched

APPLICATION = "idle-leases"
SECONDS = 20.0


class Nothing(RecordProcessor):
    def process_records(self, batch: Batch) -> None:
        """Never called: the stream stays empty."""


def main() -> None:
    leases = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    transport = sys.argv[2] if len(sys.argv) > 2 else "auto"
    idle_time_between_reads = float(sys.argv[3]) if len(sys.argv) > 3 else None
    with local_command(f"idle:{leases}") as variables:
        os.environ.update(variables)
        measure(leases, transport, idle_time_between_reads)


class Reads:
    """How many pages there were, of all shards: each passes here, however it was asked for."""

    def __init__(self) -> None:
        self.count = 0
        page = PageReads.page

        def counted(reads: PageReads, *arguments: Any, **how: Any) -> Fetched:
            self.count += 1
            return page(reads, *arguments, **how)

        PageReads.page = counted  # type: ignore[method-assign]


def measure(leases: int, transport: str, idle_time_between_reads: float | None) -> None:
    config: dict[str, Any] = {
        "stream": "idle",
        "initial_position": "TRIM_HORIZON",
        "http_transport": transport,
    }
    config["idle_time_between_reads"] = idle_time_between_reads
    reads = Reads()
    worker = Worker(APPLICATION, processor=Nothing, **config)
    with worker:
        began = time.monotonic()
        while len(worker.leases) < leases or not worker.wait_ready(1):
            assert time.monotonic() - began < 180, f"{len(worker.leases)} of {leases} leases after 3 minutes"
        ready = time.monotonic() - began
        time.sleep(5)
        reads.count = 0
        before, by_kind, at = time.process_time(), _cpu_by_kind(), time.monotonic()
        time.sleep(SECONDS)
        passed = time.monotonic() - at
        rate = reads.count / passed / leases
        cores = (time.process_time() - before) / passed
        spent = {kind: (cpu - by_kind.get(kind, 0.0)) / passed for kind, cpu in _cpu_by_kind().items()}
        threads = threading.active_count()
        now = _resident_megabytes()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{leases} idle leases: {now:.0f} MB RSS (peak {peak:.0f}), {threads} threads, {cores:.2f} cores, ready in {ready:.1f} s"
    )
    print(
        ", ".join(f"{kind} {1000 * cpu / leases:.2f}" for kind, cpu in sorted(spent.items()))
        + f" ms of CPU per lease and second; each shard was read {rate:.2f} times a second"
    )
    met = now <= 120 and threads <= leases + 16 and cores <= 0.4
    print("goal (<= 0.4 cores, <= 120 MB, <= 272 threads at 256 leases):", "met" if met else "MISSED")
    sys.exit(0 if met else 1)


def _cpu_by_kind() -> dict[str, float]:
    """Seconds of CPU of all threads that do the same."""
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        kind = (
            "heartbeats" if "renewer" in thread.name else "manager" if "manager" in thread.name else "other"
        )
        kind = "reading" if "shardId" in thread.name or thread.name == "pykcl-reads" else kind
        # A thread may end while it is asked.
        with suppress(OSError), open(f"/proc/self/task/{thread.native_id}/schedstat") as spent:
            found[kind] = found.get(kind, 0.0) + int(spent.read().split()[0]) / 1e9
    return found


def _resident_megabytes() -> float:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return float("nan")


if __name__ == "__main__":
    main()
