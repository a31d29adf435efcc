"""A worker of kcl-rs, the Rust port of KCL 3, reads a stream from the local AWS end to end."""

import json
import os
import signal
import subprocess
import time

import interop_report
import pytest

from benchmarks.peer_environment import KCL_RS, Unavailable, python_of
from benchmarks.readers import PROGRAMS
from pykcl.local import local_environment
from pykcl.local.server import LocalAws
from pykcl.local.stream import Entry
from pykcl.model.kpl import aggregate

PLAIN, AGGREGATED = 200, 50
SECONDS = 300
"""It takes its first leases after 60 to 100 seconds."""


@pytest.fixture(scope="module")
def kcl_rs(request):
    """The Python that has it."""
    if not request.config.getoption("--java"):
        pytest.skip(interop_report.NOT_RUN)
    try:
        return python_of("kcl-rs", KCL_RS)
    except Unavailable as reason:
        pytest.skip(f"kcl-rs SKIPPED: {reason}")


@pytest.mark.timeout(SECONDS + 60)
def test_it_reads_all_records_and_sends_its_metrics_without_an_error(kcl_rs, tmp_path):
    (blob,) = aggregate([("key", "0", b"x") for _ in range(AGGREGATED)])
    plain = [Entry(b"%d" % number, f"key-{number}", number % 2 << 127) for number in range(PLAIN)]
    errors = tmp_path / "errors"
    with LocalAws() as aws, errors.open("wb") as stderr:
        aws.kinesis.create_stream("orders", 2)
        aws.kinesis.put_records("orders", [*plain, Entry(blob.data, "key", 0)])
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))}
        process = subprocess.Popen(
            [str(kcl_rs), str(PROGRAMS / "kcl_rs_worker.py"), "rust", "orders", aws.url],
            env=kept | local_environment(aws.url), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
        try:
            eventually(lambda: counted(process) >= PLAIN + AGGREGATED)
            eventually(lambda: aws.requests.of("cloudwatch", "PutMetricData"))
            assert counted(process) == PLAIN + AGGREGATED
            # What it logs is at least a warning. What Python prints at Ctrl-C comes later.
            assert errors.read_text("utf-8") == ""
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def eventually(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def counted(process):
    process.stdin.write("count\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())["records"]
