"""The fixtures `kinesis` and `worker`, in this process and in projects of their own."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import HTTPClientError
from kit_processors import ByHand, Orders, Raises

from pykcl import ConfigError, ProcessorFailed
from pykcl.testing import (
    FaultRule,
    RunFailed,
    assert_at_least_once,
    assert_in_order,
    assert_no_loss,
    records,
    run_processor,
)
from pykcl.testing.local_aws import RequestRefused, confined_to

ROOT = Path(__file__).parents[2]
LETTERS = [chr(ord("a") + number) for number in range(10)]

pytestmark = pytest.mark.usefixtures("empty")


@pytest.fixture
def empty():
    Orders.done.clear()


def text_of(record):
    return record.text()


# -- workers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [1, 2])
def test_a_worker_reads_what_is_put_and_each_test_begins_with_nothing(kinesis, worker, again):
    assert kinesis.aws.kinesis.list_streams() == []
    assert boto3.client("dynamodb").list_tables()["TableNames"] == []
    kinesis.create_stream("orders", 2)
    put = kinesis.put("orders", *LETTERS)
    result = worker(Orders, "orders").wait_checkpointed()
    assert [record.data for record in put] == [record.data for record in result.records]
    assert_at_least_once(result, Orders.done, by=text_of)
    assert_no_loss(result)
    assert_in_order(result, per="key")


def test_reshards_aggregates_and_throttling_lose_nothing(kinesis, worker):
    stream = kinesis.create_stream("orders")
    running = worker(Orders, stream)
    kinesis.throttle("GetRecords", times=2)
    kinesis.fault(FaultRule("slow", "kinesis", "GetRecords", seconds=0.05, times=1))
    kinesis.put(stream, *LETTERS[:3], partition_key="k")
    kinesis.split(stream)
    kinesis.put(stream, *LETTERS[3:6], aggregated=True)
    kinesis.merge(stream)
    assert len(kinesis.shards(stream)) == 1
    kinesis.put(stream, *records(*LETTERS[6:]))
    result = running.wait_delivered()
    assert_at_least_once(result, Orders.done, by=text_of)
    assert {event.shard for event in result.events if type(event).__name__ == "ShardEnded"}
    assert kinesis.aws.faults.counts["throttle"] == 2
    kinesis.fault()
    assert kinesis.records("other") == []


def test_a_simulation_and_a_real_worker_agree(kinesis, worker):
    """The same calls, checkpoints and deliveries for a worker that is stopped when all is processed."""
    given = records(*LETTERS, partition_key="k")
    kinesis.create_stream("orders")
    kinesis.put("orders", *given)
    for what, mode in ((Orders, "auto"), (ByHand, "manual")):
        running = worker(what, "orders", application=f"by-{mode}", checkpoint_mode=mode, max_records=4)
        running.wait_checkpointed()
        running.stop()
        real = running.result
        simulated = run_processor(what, given, end="stop", checkpoint_mode=mode, max_records=4)
        for result in (real, simulated):
            assert [record.text() for record in result.delivered] == LETTERS
        assert [call.method for call in real.calls] == [call.method for call in simulated.calls]
        assert [len(batch) for batch in real.batches] == [len(batch) for batch in simulated.batches]
        assert len(real.checkpoints) == len(simulated.checkpoints)


def test_workers_of_one_application_share_the_shards(kinesis, worker):
    kinesis.create_stream("orders", 4)
    first, second = (worker(Orders, "orders", failover_time=2.0, cleanup_interval=0.0) for _ in range(2))
    deadline = time.monotonic() + 300
    # Either may take all leases first.
    while len({call.worker for call in first.result.calls}) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    kinesis.put("orders", *range(80))
    assert_at_least_once(first.wait_delivered(), Orders.done, by=text_of)
    assert second.result.records == first.result.records
    assert {call.worker for call in second.result.calls} == {"worker-1", "worker-2"}


def test_a_failure_names_the_record_and_the_error(kinesis, worker):
    kinesis.create_stream("orders")
    kinesis.put("orders", 1, "no json")
    retried = threading.Semaphore(0)

    class RaisesOften(Raises):
        def process_records(self, batch):
            retried.release()
            super().process_records(batch)

    running = worker(RaisesOften, "orders", max_records=1)
    # The first record, the second, and that again: by then its first failure is on record.
    assert all(retried.acquire(timeout=60) for _ in range(3))
    with pytest.raises(RunFailed) as caught:
        running.wait_delivered(timeout=0.1)
    text = str(caught.value)
    assert text.startswith("Not all records were processed within 0.1 s.\n")
    assert "record 2 of 2 (b'no json', key 'key-1', shardId-000000000000): in the batch at which" in text
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_worker_that_stops_by_itself_ends_the_wait(kinesis, worker):
    kinesis.create_stream("orders")
    kinesis.put("orders", "no json")
    running = worker(Raises, "orders", on_error="raise")
    with pytest.raises(RunFailed, match="The worker has stopped: process_records raised NotJson"):
        running.wait_checkpointed()
    assert isinstance(running.result.error, ProcessorFailed)


def test_what_cannot_be_put_or_run_is_refused(kinesis, worker):
    with pytest.raises(ConfigError, match=r"Record 1 cannot be put: .*nowhere"):
        kinesis.put("nowhere", "a")
    kinesis.create_stream("orders")
    with pytest.raises(ConfigError, match="one instance per shard"):
        worker(Orders(), "orders")
    with pytest.raises(ConfigError, match="Did you mean 'max_records'"):
        worker(Orders, "orders", max_record=1)


# -- the environment -------------------------------------------------------------------------------------------

ELSEWHERE = {
    "AWS_ENDPOINT_URL": "https://kinesis.us-east-1.amazonaws.com",
    "AWS_ENDPOINT_URL_KINESIS": "https://kinesis.eu-west-1.amazonaws.com",
    "AWS_ENDPOINT_URL_DYNAMODB": "https://dynamodb.eu-west-1.amazonaws.com",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true",
    "AWS_USE_FIPS_ENDPOINT": "true",
    "AWS_USE_DUALSTACK_ENDPOINT": "true",
    "AWS_PROFILE": "production",
    "AWS_SESSION_TOKEN": "secret",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.2/role",
    "HTTPS_PROXY": "http://proxy.example:3128",
    "http_proxy": "http://proxy.example:3128",
}


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Before `kinesis`: an environment that sends every client to AWS."""
    config = tmp_path / "config"
    config.write_text(
        "[profile production]\nregion = eu-west-1\nservices = real\n[services real]\n"
        "kinesis =\n  endpoint_url = https://kinesis.eu-west-1.amazonaws.com\n",
        "utf-8",
    )
    for name, value in {**ELSEWHERE, "AWS_CONFIG_FILE": str(config)}.items():
        monkeypatch.setenv(name, value)
    return clients_settings()


def clients_settings():
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("AWS_") or "proxy" in name.lower()
    }


def test_no_request_leaves_this_machine_whatever_the_environment_says(
    elsewhere, kinesis, worker, monkeypatch
):
    connected, connect = [], socket.socket.connect

    def watched(self, address):
        connected.append(address[0] if isinstance(address, tuple) else address)
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watched)
    kinesis.create_stream("orders")
    boto3.client("kinesis").put_record(StreamName="orders", Data=b"a", PartitionKey="k")
    for service in ("kinesis", "dynamodb", "cloudwatch", "sts"):
        assert boto3.client(service).meta.endpoint_url == kinesis.url
    kinesis.put("orders", "b")
    worker(Orders, "orders", metrics="cloudwatch", metrics_buffer_time=1.0).wait_checkpointed()
    assert Orders.done == ["a", "b"]
    assert set(connected) == {"127.0.0.1"}


@pytest.mark.parametrize(
    "host", ["kinesis.us-east-1.amazonaws.com", "dynamodb.eu-west-1.api.aws", "169.254.169.254"]
)
def test_a_client_from_before_cannot_reach_aws(kinesis, host):
    client = boto3.client("kinesis", endpoint_url=f"http://{host}")
    with pytest.raises((RequestRefused, HTTPClientError), match=f"asked for {host} while the local AWS"):
        client.list_streams()
    socket.getaddrinfo("localhost", 80)


def test_everything_is_restored(elsewhere):
    session, lookup = boto3.DEFAULT_SESSION, socket.getaddrinfo
    with pytest.raises(KeyError), confined_to("http://127.0.0.1:1"):
        assert os.environ["AWS_ENDPOINT_URL"] == "http://127.0.0.1:1"
        assert not any(
            name in os.environ for name in ("AWS_PROFILE", "HTTPS_PROXY", "AWS_ENDPOINT_URL_KINESIS")
        )
        os.environ["AWS_ADDED"] = "by the test"
        boto3.client("kinesis")
        raise KeyError
    assert clients_settings() == elsewhere
    assert (boto3.DEFAULT_SESSION, socket.getaddrinfo) == (session, lookup)


# -- projects of their own -------------------------------------------------------------------------------------

PROJECT = """
from pykcl import RecordProcessor
from pykcl.testing import records, run_processor

class Orders(RecordProcessor):
    def process_records(self, batch):
        for record in batch:
            record.json()

def test_simulated():
    assert run_processor(Orders, records({"id": 1})).lost == 0

def test_real(kinesis, worker):
    kinesis.create_stream("orders")
    kinesis.put("orders", {"id": 1})
    worker(Orders, "orders").wait_checkpointed()
"""
# An installed package as pip leaves it; the package itself is found on the path.
ENTRY_POINT = "[pytest11]\npykcl = pykcl.testing.plugin\n"


def pytest_in(folder, *arguments):
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "PYTEST_"))
    }
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{folder}"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "error",
        "--strict-markers",
    ]
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture
def project(tmp_path):
    (tmp_path / "test_orders.py").write_text(PROJECT, "utf-8")
    return tmp_path


@pytest.fixture
def installed(project):
    """The plugin is an entry point, as the installed package has it."""
    described = project / "kit-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: kit\nVersion: 1\n", "utf-8")
    (described / "entry_points.txt").write_text(ENTRY_POINT, "utf-8")
    return project


def test_a_project_uses_the_fixtures_without_a_warning(installed):
    done = pytest_in(installed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.slow
def test_the_tests_on_the_page_pass(installed):
    page = (ROOT / "docs" / "guides" / "testing.md").read_text("utf-8")
    blocks = [text.split("```")[0] for text in page.split("```python\n")[1:]]
    (processor,) = [text for text in blocks if "class Orders" in text]
    simulated, slow, real = [text for text in blocks if "def test_" in text]
    (installed / "orders.py").write_text(processor, "utf-8")
    (installed / "test_orders.py").write_text(f"{simulated}\n\n{slow}\n\n{real}", "utf-8")
    done = pytest_in(installed)
    assert "3 passed" in done.stdout, done.stdout


def test_a_project_may_switch_the_plugin_off(installed):
    done = pytest_in(installed, "-p", "no:pykcl")
    assert "fixture 'kinesis' not found" in done.stdout
    assert "1 passed, 1 error" in done.stdout


def test_a_project_may_have_fixtures_of_these_names(installed):
    (installed / "conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef kinesis():\n    return 'mine'\n", "utf-8"
    )
    (installed / "test_orders.py").write_text(
        "def test_mine(kinesis):\n    assert kinesis == 'mine'\n", "utf-8"
    )
    assert "1 passed" in pytest_in(installed).stdout


def test_the_plugin_imports_nothing_until_a_fixture_is_used(installed):
    (installed / "test_orders.py").write_text(
        "import sys\n\ndef test_nothing():\n"
        "    loaded = {name for name in sys.modules if name.startswith(('pykcl', 'boto', 'moto'))}\n"
        "    assert loaded == {'pykcl', 'pykcl.testing', 'pykcl.testing.plugin'}\n",
        "utf-8",
    )
    done = pytest_in(installed)
    assert "1 passed" in done.stdout, done.stdout


def test_without_the_extra_a_fixture_says_what_to_install(installed):
    (installed / "conftest.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'moto' else find(name, *a)\n",
        "utf-8",
    )
    done = pytest_in(installed)
    assert (
        "needs the extra `local`, of which moto cannot be imported. Do: pip install 'pykcl[local]'."
        in done.stdout
    )
    assert "1 passed, 1 error" in done.stdout


def test_the_package_declares_the_entry_point():
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    assert '[project.entry-points.pytest11]\npykcl = "pykcl.testing.plugin"\n' in pyproject


def test_the_shared_server_runs_in_threads_that_end(installed):
    (installed / "conftest.py").write_text(
        "import threading\n\ndef pytest_unconfigure():\n"
        "    print('left:', [t.name for t in threading.enumerate() if 'pykcl' in t.name])\n",
        "utf-8",
    )
    done = pytest_in(installed)
    assert "2 passed" in done.stdout, done.stdout
    assert "left: []" in done.stdout
