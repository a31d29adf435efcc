"""Real processes whose standard output or standard error cannot be written: a full device, a pipe that nobody reads, none at all."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from service_kit import PROGRAM, ROOT, create_lease_table

from pykcl.cli.local import local_environment
from pykcl.local.server import LocalAws

DEADLINE = 120


def _full():
    return os.open("/dev/full", os.O_WRONLY)


def _unread():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


FAILING = {"a full device": _full, "a pipe that nobody reads": _unread, "none": None}
pytestmark = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")


@pytest.fixture
def aws():
    with LocalAws() as aws:
        aws.kinesis.create_stream("orders", 1)
        yield aws


@contextmanager
def _started(folder, environment, *words, out=None, err=None):
    """out, err: of FAILING; None for one that works."""
    (folder / "program.py").write_text(PROGRAM)
    works = {number: os.open(folder / f"stream{number}", os.O_WRONLY | os.O_CREAT) for number in (1, 2)}
    numbers = {
        1: FAILING[out]() if out and FAILING[out] else works[1],
        2: FAILING[err]() if err and FAILING[err] else works[2],
    }
    closed = [number for number, how in ((1, out), (2, err)) if how == "none"]
    close = "".join(f"os.close({number});" for number in closed)
    # Python must find them closed when it starts.
    program = f"import os,sys;{close}os.execv(sys.executable,[sys.executable,'-m','pykcl.cli',*sys.argv[1:]])"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, stdout=numbers[1], stderr=numbers[2],
    )  # fmt: skip
    for number in {*works.values(), *numbers.values()}:
        os.close(number)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait(condition, process):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < end
        time.sleep(0.1)


def _stops_in_order(process, is_at_work):
    _wait(is_at_work, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == 0


def _owner(aws):
    """The owner of the lease; None without one."""
    import boto3

    client = boto3.Session("local", "local").client("dynamodb", region_name="us-east-1", endpoint_url=aws.url)
    try:
        items = client.scan(TableName="orders-app")["Items"]
    except client.exceptions.ResourceNotFoundException:
        return None
    finally:
        client.close()
    return next((item["leaseOwner"]["S"] for item in items if "leaseOwner" in item), None)


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _answers(port):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("how", FAILING)
def test_a_worker_works_without_a_place_for_its_log(tmp_path, aws, how):
    words = ("run", "program:Orders", "--app", "orders-app", "--stream", "orders", "--http", "127.0.0.1:0")
    with _started(tmp_path, local_environment(aws.url), *words, out=how, err=how) as process:
        _stops_in_order(process, lambda: _owner(aws))
    assert _owner(aws) is None


@pytest.mark.parametrize("how", FAILING)
def test_a_local_aws_serves_without_a_place_for_its_lines(tmp_path, how):
    port = _free_port()
    words = ("local", "--port", str(port), "--stream", "orders:2")
    with _started(tmp_path, {}, *words, out=how, err=how) as process:
        _stops_in_order(process, lambda: _answers(port))


@pytest.fixture
def table(aws):
    import boto3

    client = boto3.Session("local", "local").client("dynamodb", region_name="us-east-1", endpoint_url=aws.url)
    create_lease_table(client)
    client.close()


def test_a_view_that_is_refreshed_waits_for_space(tmp_path, aws, table):
    words = ("leases", "list", "--app", "orders-app", "--no-sample", "--watch=0.2s")
    with _started(tmp_path, local_environment(aws.url), *words, out="a full device") as process:
        _wait(lambda: len(aws.requests.of("dynamodb", "Scan")) > 3, process)


def test_a_view_that_is_refreshed_ends_with_its_reader(tmp_path, aws, table):
    words = ("leases", "list", "--app", "orders-app", "--no-sample", "--watch=0.2s")
    with _started(tmp_path, local_environment(aws.url), *words, out="a pipe that nobody reads") as process:
        assert process.wait(DEADLINE) == 1
    assert (tmp_path / "stream2").read_text() == ""


DAEMON = """
executableName = {python} child.py
applicationName = orders-app
streamName = orders
regionName = us-east-1
retrievalMode = POLLING
kinesisEndpoint = {url}
dynamoDBEndpoint = {url}
metricsLevel = NONE
"""
CHILD = """
import json, sys
for line in sys.stdin:
    print("\\n" + json.dumps({"action": "status", "responseFor": json.loads(line)["action"]}), flush=True)
"""


@pytest.mark.parametrize("how", FAILING)
def test_a_daemon_works_without_a_place_for_its_log(tmp_path, aws, how):
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "app.properties").write_text(DAEMON.format(python=sys.executable, url=aws.url))
    words = ("multilangd", "-p", "app.properties")
    with _started(tmp_path, local_environment(aws.url), *words, out=how, err=how) as process:
        _stops_in_order(process, lambda: _owner(aws))
    assert _owner(aws) is None


@pytest.mark.parametrize("how", FAILING)
def test_a_page_is_served_without_a_place_for_its_address(tmp_path, aws, table, how):
    words = ("ui", "--app", "orders-app", "--bind", f"127.0.0.1:{(port := _free_port())}")
    with _started(tmp_path, local_environment(aws.url), *words, out=how, err=how) as process:
        _stops_in_order(process, lambda: _answers(port))


LAG = ("lag", "--app", "orders-app", "--stream", "orders", "--watch=0.2s")
FOLLOWING = ("tail", "orders", "--since", "earliest")


def test_a_lag_that_is_watched_waits_for_space_and_ends_with_its_reader(tmp_path, aws, table):
    with _started(tmp_path, local_environment(aws.url), *LAG, out="a full device") as process:
        _wait(lambda: len(aws.requests.of("dynamodb", "Scan")) > 3, process)
    with _started(tmp_path, local_environment(aws.url), *LAG, out="a pipe that nobody reads") as process:
        assert process.wait(DEADLINE) == 1
    assert (tmp_path / "stream2").read_text() == ""


@pytest.mark.parametrize(("out", "code"), [("a full device", 1), ("a pipe that nobody reads", 0)])
def test_a_tail_that_follows_ends_with_its_output(tmp_path, aws, out, code):
    aws.kinesis.put_record("orders", b"x", "k")
    with _started(tmp_path, local_environment(aws.url), *FOLLOWING, out=out) as process:
        assert process.wait(DEADLINE) == code
    assert ("No space left on device" in (tmp_path / "stream2").read_text()) == bool(code)


@pytest.mark.parametrize("how", FAILING)
def test_a_tail_follows_without_a_place_for_its_notices(tmp_path, aws, how):
    with _started(tmp_path, local_environment(aws.url), *FOLLOWING, err=how) as process:
        for data in (b"one", b"two"):
            aws.kinesis.put_record("orders", data, "k")
            _wait(lambda data=data: data in (tmp_path / "stream1").read_bytes(), process)


ANSWERS = {
    "an answer": ("lag", "--app", "orders-app", "--stream", "orders"),
    "a page": ("explain", "E12"),
    "help": ("--help",),
    "records": ("tail", "orders", "--since", "earliest", "-n", "1"),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_an_answer_that_cannot_be_written_is_a_failure(tmp_path, aws, table, what):
    aws.kinesis.put_record("orders", b"x", "k")
    with _started(tmp_path, local_environment(aws.url), *ANSWERS[what], out="a full device") as process:
        assert process.wait(DEADLINE) == 1
    said = (tmp_path / "stream2").read_text()
    assert "Traceback" not in said
    assert what == "help" or "Standard output cannot be written: No space left on device" in said


@pytest.mark.parametrize("how", FAILING)
def test_notices_that_cannot_be_written_change_no_exit_code(tmp_path, aws, table, how):
    with _started(tmp_path, local_environment(aws.url), *ANSWERS["an answer"], err=how) as process:
        assert process.wait(DEADLINE) == 0
    assert "SOURCE kinesis" in (tmp_path / "stream1").read_text()
