"""`--processes K`: workers in real processes under one parent, beside the embedded local AWS."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from service_kit import GUARD, Service

from pykcl.worker.signals import REPEAT_SECONDS

PROGRAM = """
import gc, os, threading
from pykcl import RecordProcessor

class Orders(RecordProcessor):
    def process_records(self, batch):
        for record in batch:
            words = record.data.decode().split()
            say("begun", words[0], gc.get_freeze_count())
            while words[0].startswith("held") and not os.path.exists("go"):
                threading.Event().wait(0.02)
            say("done", words[0])

def say(*words):
    os.write(1, (" ".join(map(str, (os.getpid(), *words))) + "\\n").encode())
"""
KCLPY = """
import os, sys
from amazon_kclpy import kcl

class RecordProcessor(kcl.RecordProcessorBase):
    def initialize(self, shard_id): pass
    def process_records(self, records, checkpointer):
        for record in records:
            os.write(1, (" ".join((str(os.getpid()), "done", record.binary_data.decode(), *sys.argv[1:])) + "\\n").encode())
        checkpointer.checkpoint()
    def shutdown(self, checkpointer, reason): pass

kcl.KCLProcess(RecordProcessor()).run()
"""
CHILD = """
import json, sys
for line in sys.stdin:
    print("\\n" + json.dumps({"action": "status", "responseFor": json.loads(line)["action"]}), flush=True)
"""
PROPERTIES = """
streamName = orders
applicationName = orders-app
initialPositionInStream = TRIM_HORIZON
regionName = us-east-1
retrievalMode = POLLING
failoverTimeMillis = 5000
"""
NAMED = ("program:Orders", "--app", "orders-app", "--stream", "orders", "--start", "TRIM_HORIZON")
QUICK = ("--option", "failover_time=5")
"""Long enough that no lease is lost while the machine is busy."""
TOLD = ("--http", "0", "--log-format", "json", *QUICK)


class Crew(Service):
    """What the parent tells of its processes."""

    @property
    def status(self):
        return json.loads(self.get("/status")[1] or '{"processes": []}')

    @property
    def pids(self):
        return {one["process"]: one["pid"] for one in self.status["processes"]}

    @property
    def said(self):
        return [line.split() for line in self.output.read_text().splitlines()]

    def did(self, what):
        """Who did what: {name of the record: pid}."""
        return {name: int(pid) for pid, verb, name, *_ in self.said if verb == what}

    def shares(self):
        """How many leases each process reads."""
        return [
            len(
                [
                    lease
                    for lease in (one["worker"] or {"leases": ()})["leases"]
                    if lease["state"] == "reading"
                ]
            )
            for one in self.status["processes"]
        ]

    def terminate_again(self):
        """SIGTERM, as a request of its own: the one before was heard already."""
        heard_at = time.monotonic()
        self.until(lambda: time.monotonic() - heard_at >= REPEAT_SECONDS, "the end of one request")
        self.process.send_signal(signal.SIGTERM)

    def until_shared(self):
        self.until(lambda: self.shares() == [1, 1] and self.get("/readyz")[0] == 200, "an even share")


@pytest.fixture
def start(tmp_path, aws):
    started = []

    def begin(*arguments, verb="run", program=PROGRAM, named=NAMED):
        started.append(Crew(tmp_path, aws, verb, *named, *arguments, program=program))
        return started[-1]

    yield begin
    for service in started:
        service.end()


def is_there(pid):
    """Whether that process runs. One whose parent was killed is collected by somebody else, at some time or never."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def put(aws, name):
    """One such record for each of the two shards."""
    for number, key in enumerate((0, 2**128 - 1)):
        aws.kinesis.put_record("orders", f"{name}{number}".encode(), "key", explicit_hash_key=key)
    return {f"{name}0", f"{name}1"}


def owners(dynamodb):
    return [item.get("leaseOwner", {}).get("S") for item in dynamodb.scan(TableName="orders-app")["Items"]]


def test_two_workers_share_the_shards_and_are_told_of_as_one(start, aws, dynamodb, tmp_path):
    file = tmp_path / "health"
    crew = start(
        "--processes", "2", "--worker-id", "one", "--health-file", str(file),
        "--option", "metrics=prometheus", *TOLD,
    )  # fmt: skip
    crew.until_shared()
    assert sorted(owners(dynamodb)) == ["one-1", "one-2"]
    names = put(aws, "first")
    crew.until(lambda: crew.did("done").keys() == names, "delivery")
    pids = crew.pids
    assert sorted(crew.did("done").values()) == sorted(pids.values())
    assert crew.process.pid not in pids.values()
    assert all(
        int(frozen) > 10_000 for _, verb, _, *frozen in crew.said if verb == "begun" for frozen in frozen
    )

    told = crew.status
    assert told["live"], told["ready"]
    assert (told["max_millis_behind_latest"], told["stalled"], told["why"]) == (0, [], [])
    assert [(one["process"], one["starts"], one["worker"]["worker_id"]) for one in told["processes"]] == [
        (1, 1, "one-1"),
        (2, 1, "one-2"),
    ]
    held = re.compile(r'^pykcl_current_leases\{process="(\d)",.*worker="(one-\d)"\} 1\.0$', re.MULTILINE)
    # Told of once for each round of heartbeats.
    crew.until(
        lambda: held.findall(crew.get("/metrics")[1]) == [("1", "one-1"), ("2", "one-2")],
        "the leases of each",
    )
    metrics = crew.get("/metrics")[1]
    assert Counter(re.findall(r"^# TYPE (\S+)", metrics, re.MULTILINE)).most_common(1)[0][1] == 1
    assert json.loads(file.read_bytes())["pid"] == crew.process.pid

    crew.process.send_signal(signal.SIGTERM)
    assert crew.process.wait(GUARD) == 0
    assert owners(dynamodb) == [None, None]
    assert not file.exists()
    assert {line.get("process") for line in crew.events("WorkerStopped")} == {1, 2}
    assert not any(is_there(pid) for pid in pids.values())


def test_ctrl_c_reaches_all_processes_and_drains_each_once(start, aws, tmp_path):
    crew = start("--processes", "2", *TOLD)
    crew.until_shared()
    names = put(aws, "held")
    crew.until(lambda: crew.did("begun").keys() == names, "the batches")
    os.killpg(crew.process.pid, signal.SIGINT)
    crew.until(lambda: crew.get("/readyz")[1].count("the worker is draining") == 2, "draining")
    assert crew.get("/livez")[0] == 200
    assert crew.status["why"] == ["process 1: the worker is draining", "process 2: the worker is draining"]
    (tmp_path / "go").touch()
    assert crew.process.wait(GUARD) == 0, crew.text[-2000:]
    assert crew.did("done").keys() == names
    assert not crew.events("ThreadsNotStopped")
    assert "Traceback" not in crew.text


@pytest.mark.slow
def test_signals_that_come_together_drain_idle_processes(start, dynamodb):
    """GNU timeout sends SIGTERM twice. Two numbers here, because the system may make one of two equal signals."""
    crew = start("--processes", "2", *TOLD)
    crew.until_shared()
    crew.process.send_signal(signal.SIGTERM)
    os.killpg(crew.process.pid, signal.SIGINT)
    assert crew.process.wait(GUARD) == 0, crew.text[-2000:]
    assert owners(dynamodb) == [None, None]
    assert not crew.events("ThreadsNotStopped")


@pytest.mark.slow
def test_a_second_signal_to_the_parent_forces_all(start, aws):
    crew = start("--processes", "2", "--option", "shutdown_grace=300", *TOLD)
    crew.until_shared()
    names = put(aws, "held")
    crew.until(lambda: crew.did("begun").keys() == names, "the batches")
    crew.process.send_signal(signal.SIGTERM)
    crew.until(lambda: crew.get("/readyz")[1].count("the worker is draining") == 2, "draining")
    crew.terminate_again()
    assert crew.process.wait(GUARD) == 70
    assert len(crew.events("ThreadsNotStopped")) == 2


@pytest.mark.slow
def test_a_crashed_process_is_started_again_under_its_worker_identifier(start, aws):
    crew = start("--processes", "2", "--worker-id", "one", *TOLD)
    crew.until_shared()
    before = crew.pids
    os.kill(before[2], signal.SIGKILL)
    crew.until(lambda: crew.get("/readyz")[0] == 503, "not ready")
    assert crew.get("/livez")[0] == 200, "the parent sees to it"
    crew.until_shared()
    after = crew.pids
    assert after[1] == before[1]
    assert after[2] != before[2]
    assert [(one["starts"], one["worker"]["worker_id"]) for one in crew.status["processes"]] == [
        (1, "one-1"),
        (2, "one-2"),
    ]
    names = put(aws, "second")
    crew.until(lambda: names <= crew.did("done").keys(), "delivery")
    ended = [line for line in crew.lines if line["message"].startswith("process ended")]
    assert [line["level"] for line in ended] == ["ERROR"]
    assert "process=2 code=-9 again_in=1 " in ended[0]["message"]


@pytest.mark.slow
def test_a_frozen_process_is_not_ready_and_a_third_signal_ends_it(start):
    crew = start("--processes", "2", *TOLD)
    crew.until_shared()
    pids = crew.pids
    os.kill(pids[1], signal.SIGSTOP)
    crew.until(lambda: "process 1: has not answered for" in crew.get("/readyz")[1], "silence")
    assert crew.get("/livez")[0] == 200
    assert [one["pid"] for one in crew.status["processes"]] == list(pids.values())
    crew.process.send_signal(signal.SIGTERM)
    crew.until(lambda: not is_there(pids[2]), "the end of the other")
    crew.terminate_again()
    crew.until(lambda: "process 1: has not answered for" in crew.get("/readyz")[1], "silence")
    assert is_there(pids[1])

    while crew.process.poll() is None and is_there(pids[1]):
        # Of two signals that a busy process hears at once the later one does not count. And one that comes while the
        # interpreter ends finds no handler any more.
        crew.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            crew.process.wait(REPEAT_SECONDS)
    assert crew.process.wait(GUARD) == 70
    assert not is_there(pids[1])


@pytest.mark.slow
def test_when_the_parent_is_killed_the_processes_drain_and_end(start, aws, dynamodb, tmp_path):
    crew = start("--processes", "2", *TOLD)
    crew.until_shared()
    names, pids = put(aws, "held"), crew.pids
    crew.until(lambda: crew.did("begun").keys() == names, "the batches")
    crew.process.kill()
    crew.process.wait()
    crew.until(lambda: len(crew.events("WorkerStopping")) == 2, "the end of the file", lives=False)
    assert all(map(is_there, pids.values())), "the batches are not over"
    (tmp_path / "go").touch()
    crew.until(lambda: not any(map(is_there, pids.values())), "the end", lives=False)
    assert crew.did("done").keys() == names
    assert owners(dynamodb) == [None, None]
    assert len(crew.events("WorkerStopped")) == 2


@pytest.mark.slow
def test_a_parent_that_is_killed_at_once_leaves_nobody(start):
    crew = start("--processes", "3", "--log-format", "json")
    crew.until(lambda: crew.text.count("process started") == 3, "the processes")
    pids = [int(pid) for pid in re.findall(r"process started process=\d pid=(\d+)", crew.text)]
    crew.process.kill()
    crew.until(lambda: not any(map(is_there, pids)), "their end", lives=False)


ENDS_ALL = {
    "a stream that is not there": (["--stream", "nothing"], PROGRAM, 78, "pykcl [", "'nothing'"),
    "a module that cannot be imported": (
        [],
        "raise RuntimeError('broken')",
        70,
        "] program cannot be imported",
        "]: program cannot be imported: RuntimeError: broken",
    ),
    "a class that is not there": ([], "", 2, "program has no 'Orders'", "Usage"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS_ALL)
def test_what_a_new_process_would_not_mend_ends_all_with_its_code(start, name):
    arguments, program, code, *words = ENDS_ALL[name]
    crew = start("--processes", "2", *arguments, program=program)
    assert crew.process.wait(GUARD) == code, crew.text
    assert all(word in crew.text for word in words), crew.text
    assert "a new one would end in the same way" in crew.text
    pids = [int(pid) for pid in re.findall(r"process started process=\d pid=(\d+)", crew.text)]
    assert len(pids) == 2
    assert not any(map(is_there, pids))


REFUSED = {
    "none": (["--processes", "0"], 2, "0 is not in the range 1<=x<=128"),
    "less than none": (["--processes", "-1"], 2, "-1 is not in the range"),
    "too many": (["--processes", "129"], 2, "129 is not in the range"),
    "no number": (["--processes", "two"], 2, "'two' is not a valid integer"),
    "a rehearsal": (["--processes", "2", "--shadow", "orders-shadow"], 2, "do not go together"),
    "an option that is none": (
        ["--processes", "2", "--option", "failover=3"],
        78,
        "Did you mean 'failover_time'",
    ),
    "an address of somebody else": (["--processes", "2", "--http", "192.0.2.1:0"], 78, "Cannot listen"),
    "no application": (["--processes", "2", "--app", ""], 78, "application"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_process_is_started_for(start, name):
    arguments, code, words = REFUSED[name]
    crew = start(*arguments)
    assert crew.process.wait(GUARD) == code, crew.text
    assert words in crew.text
    assert "process started" not in crew.text
    assert crew.text.count(words) == 1
    assert "Traceback" not in crew.text


@pytest.mark.slow
def test_a_program_of_kclpy_runs_in_several_processes(start, aws, tmp_path):
    (tmp_path / "app.properties").write_text(PROPERTIES)
    named = ("--kclpy", "program.py", "--properties", "app.properties")
    crew = start(
        "--processes", "2", "--http", "0", "--accept-polling", "--", "its", "own", program=KCLPY, named=named
    )
    crew.until_shared()
    names = put(aws, "first")
    crew.until(lambda: crew.did("done").keys() == names, "delivery")
    assert sorted(crew.did("done").values()) == sorted(crew.pids.values())
    assert all(line[3:] == ["its", "own"] for line in crew.said)
    assert crew.text.count("applicationName") == 1, "the file is explained once"
    crew.process.send_signal(signal.SIGTERM)
    assert crew.process.wait(GUARD) == 0


@pytest.mark.slow
def test_multilangd_runs_in_several_processes(start, tmp_path):
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "app.properties").write_text(f"executableName = {sys.executable} child.py\n{PROPERTIES}")
    crew = start("-p", "app.properties", "--processes", "2", *TOLD[:4], verb="multilangd", named=())
    crew.until_shared()
    assert {line["process"] for line in crew.events("ChildStarted")} == {1, 2}
    crew.process.send_signal(signal.SIGTERM)
    assert crew.process.wait(GUARD) == 0


def test_with_local_nothing_is_said_of_the_way_to_it(start):
    """Of what the embedded AWS is built on, its clients have a handler that only a test needs to know of."""
    crew = start("--local", *TOLD)
    crew.until(lambda: crew.get("/readyz")[0] == 200, "readiness")
    assert "over boto3" not in crew.text
    crew.process.send_signal(signal.SIGTERM)
    assert crew.process.wait(GUARD) == 0
    assert "over boto3" not in crew.text


@pytest.mark.slow
def test_with_local_all_processes_read_the_one_of_the_parent(start):
    crew = start("--processes", "2", "--local", *TOLD)
    crew.until(lambda: crew.shares() == [2, 2], "an even share")
    assert crew.text.count("local AWS at") == 1
    crew.process.send_signal(signal.SIGTERM)
    assert crew.process.wait(GUARD) == 0
