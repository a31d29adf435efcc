"""Memory, threads and CPU of one process that holds many idle leases. Run: python -m benchmarks.idle_leases [LEASES]

The local AWS runs in a child process, so that its memory and CPU do not count.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time

from pykcl import Batch, RecordProcessor, Worker

APPLICATION = "idle-leases"
SECONDS = 20.0


class Nothing(RecordProcessor):
    def process_records(self, batch: Batch) -> None:
        """Never called: the stream stays empty."""


def main() -> None:
    leases = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    command = [sys.executable, "-m", "pykcl.cli", "local", "--port", "0", "--stream", f"idle:{leases}"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stderr is not None
        while "ready" not in (line := server.stderr.readline()):
            assert line, "the local AWS did not start"
        for _ in range(5):
            name, _, value = server.stdout.readline().removeprefix("export ").strip().partition("=")
            os.environ[name] = value
        measure(leases)
    finally:
        server.terminate()
        server.wait()


def measure(leases: int) -> None:
    worker = Worker(APPLICATION, stream="idle", processor=Nothing, start="TRIM_HORIZON")
    with worker:
        began = time.monotonic()
        while len(worker.leases) < leases or not worker.wait_ready(1):
            assert time.monotonic() - began < 180, f"{len(worker.leases)} of {leases} leases after 3 minutes"
        ready = time.monotonic() - began
        time.sleep(5)
        before, at = time.process_time(), time.monotonic()
        time.sleep(SECONDS)
        cores = (time.process_time() - before) / (time.monotonic() - at)
        threads = threading.active_count()
        now = _resident_megabytes()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{leases} idle leases: {now:.0f} MB RSS (peak {peak:.0f}), {threads} threads, {cores:.2f} cores, ready in {ready:.1f} s"
    )
    met = now <= 150 and threads <= leases + 16
    print("goal (<= 150 MB, <= 272 threads at 256 leases):", "met" if met else "MISSED")
    sys.exit(0 if met else 1)


def _resident_megabytes() -> float:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return float("nan")


if __name__ == "__main__":
    main()
