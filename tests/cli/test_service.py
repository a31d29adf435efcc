"""`pykcl run` and `pykcl multilangd` as services, in real processes: probes, watchdog, token, log, and what stops them."""

import json
import re
import signal
import sys
import threading
import time

import pytest
from service_kit import GUARD, PROGRAM, Service

CHILD = """
import json, sys
for line in sys.stdin:
    print("\\n" + json.dumps({"action": "status", "responseFor": json.loads(line)["action"]}), flush=True)
"""
TOKEN = "a-token-of-16-letters-or-more"
QUICK = ("--option", "failover_time=2")


@pytest.fixture
def start(tmp_path, aws):
    started = []

    def begin(*arguments, verb="run", program=PROGRAM, **environment):
        named = ("program:Orders", "--app", "orders-app", "--stream", "orders", "--start", "TRIM_HORIZON")
        words = (*(named if verb == "run" else ()), *arguments)
        started.append(Service(tmp_path, aws, verb, *words, program=program, **environment))
        return started[-1]

    yield begin
    for service in started:
        service.end()


def test_a_service_tells_how_it_is_until_it_has_drained(start, aws, tmp_path):
    file = tmp_path / "health"
    service = start("--http", "0", "--health-file", str(file), "--log-format", "json", *QUICK)
    service.until(lambda: service.codes == (200, 200), "a ready worker")
    code, body = service.get("/status")
    assert code == 200
    told = json.loads(body)
    assert [lease["state"] for lease in told["worker"]["leases"]] == ["reading", "reading"]
    assert told["max_millis_behind_latest"] == 0
    service.until(lambda: file.exists() and json.loads(file.read_bytes())["ready"], "the file")
    aws.kinesis.put_record("orders", b"slow", "key")
    service.until(
        lambda: any(lease["call"] for lease in json.loads(service.get("/status")[1])["worker"]["leases"]),
        "the call",
    )
    service.process.send_signal(signal.SIGTERM)
    service.until(lambda: service.codes == (200, 503), "draining")
    assert "the worker is draining" in service.get("/readyz")[1]
    assert service.process.wait(GUARD) == 0
    assert not file.exists()
    kinds = [line["event"] for line in service.lines if "event" in line]
    assert kinds.count("WorkerStarted") == kinds.count("WorkerStopping") == kinds.count("WorkerStopped") == 1
    assert len(service.lines) == len(service.text.splitlines()) - 1, "every line but the first one is JSON"


def test_a_module_that_configures_logging_does_not_silence_the_worker(start):
    configures = "import logging.config\nlogging.config.dictConfig({'version': 1})\n"
    service = start("--log-format", "json", *QUICK, program=configures + PROGRAM)
    service.until(lambda: len(service.events("ShardStarted")) == 2, "two shards in the log")


def test_while_aws_is_away_nobody_is_told_to_restart_it(start, aws):
    service = start("--http", "0", "--log-format", "json", *QUICK)
    service.until(lambda: service.codes == (200, 200), "a ready worker")
    aws.stop()
    service.until(lambda: service.codes == (200, 503), "not ready")
    deadline = time.monotonic() + 6.0
    while time.monotonic() < deadline:
        assert service.codes == (200, 503), service.get("/livez")[1]
        threading.Event().wait(0.3)
    (line,) = [line for line in service.lines if line["message"].startswith("worker is not ready")]
    assert line["level"] == "WARNING"
    assert not [line for line in service.lines if "not live" in line["message"]]


def test_a_hung_processor_is_told_of_with_its_stack_and_loses_its_lease(start, aws):
    service = start(
        "--http", "0", "--log-format", "json", "--stall-warning", "0.5", "--stall-timeout", "6",
        "--option", "shutdown_grace=0.5", *QUICK,
    )  # fmt: skip
    service.until(lambda: service.codes == (200, 200), "a ready worker")
    aws.kinesis.put_record("orders", b"poison", "key")
    service.until(lambda: service.events("ProcessorSlow"), "the watchdog")
    slow = service.events("ProcessorSlow")[0]
    assert slow["stack"][0].startswith("program.py:")
    assert slow["stack"][0].endswith(" in process_records")
    assert any(frame.endswith(" in hang_here") for frame in slow["stack"])
    assert slow["thread"] == f"pykcl-{slow['shard']}"
    assert json.loads(service.get("/status")[1])["stalled"] == [slow["shard"]]
    assert service.codes == (200, 200)
    service.until(
        lambda: any(
            lease["shard"] == slow["shard"] and lease["lease_valid_for"] == 0.0
            for lease in json.loads(service.get("/status")[1])["worker"]["leases"]
        ),
        "the lease to be given up",
    )
    assert service.get("/livez")[0] == 200
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(GUARD) == 70
    assert "poison" not in service.text


def test_reachable_from_elsewhere_status_needs_the_token_that_is_told_once(start):
    service = start("--http", "0.0.0.0:0", *QUICK)
    service.until(lambda: service.codes == (200, 200), "a ready worker")
    (token,) = re.findall(r"Authorization: Bearer (\S+)", service.text)
    assert service.get("/status")[0] == 401
    assert service.get("/status", Authorization=f"Bearer {token}")[0] == 200
    assert service.text.count(token) == 1


@pytest.mark.parametrize("processes", [(), ("--processes", "1")], ids=["one", "parent"])
def test_status_is_given_by_the_names_that_are_allowed(start, processes):
    service = start(
        "--http", "0", "--allow-host", "orders.internal", "--allow-host", "orders", *processes, *QUICK
    )
    service.until(lambda: service.get("/livez")[0] == 200, "an answer")
    hosts = ("orders.internal:80", "orders", "localhost", "evil.example")
    assert [service.get("/status", Host=host)[0] for host in hosts] == [200, 200, 200, 403]


def test_a_token_comes_from_a_file_or_the_environment_and_is_told_nowhere(start, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    for how in (
        {"PYKCL_HTTP": "0.0.0.0:0", "PYKCL_HTTP_TOKEN": TOKEN},
        {"PYKCL_HTTP": "0", "PYKCL_HTTP_TOKEN_FILE": str(tmp_path / "token")},
    ):
        service = start(*QUICK, **how)
        service.until(lambda service=service: service.get("/livez")[0] == 200, "an answer")
        assert service.get("/status")[0] == 401
        assert service.get("/status", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert TOKEN not in service.text
        service.end()


def test_multilangd_is_a_service_too(start, tmp_path):
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "app.properties").write_text(
        f"executableName = {sys.executable} child.py\nstreamName = orders\napplicationName = orders-app\n"
        "initialPositionInStream = TRIM_HORIZON\nregionName = us-east-1\nretrievalMode = POLLING\n"
        "failoverTimeMillis = 2000\n"
    )
    service = start("-p", "app.properties", "--http", "0", "--log-format", "json", verb="multilangd")
    service.until(lambda: service.codes == (200, 200), "a ready worker")
    assert len(json.loads(service.get("/status")[1])["worker"]["leases"]) == 2
    assert len(service.events("ChildStarted")) == 2
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(GUARD) == 0


REFUSED = {
    "an address that is none": (["--http", "http://x"], 78, "'http://x' is no address"),
    "an address of somebody else": (["--http", "192.0.2.1:0"], 78, "Cannot listen on 192.0.2.1:0"),
    "a host name that is none": (["--http", "0", "--allow-host", "http://x"], 78, "is not a host name"),
    "a token that is none": (["--http", "0", "--http-token-file", "program.py"], 78, "holds no token"),
    "a folder that is not there": (["--health-file", "none/health"], 78, "The health file 'none/health'"),
    "a limit before its warning": (["--stall-timeout", "1"], 78, "processor_timeout=1.0 is shorter"),
    "another form of log": (["--log-format", "xml"], 2, "'xml' is not one of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_does_not_start_with(start, name):
    arguments, code, words = REFUSED[name]
    service = start(*arguments)
    assert service.process.wait(GUARD) == code
    assert words in service.text
    assert "Traceback" not in service.text
