"""What Java workers are run with: their record processor, and the end of all processes with their harness."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import pytest
from fleet_evidence import Item, lives_of
from fleet_processes import environment, processes
from fleet_recording import POLICY_VARIABLE, RECORDING_VARIABLE, WORKER_VARIABLE, Policy

HERE = Path(__file__).parent
SEQUENCE = "49179526551354100000000000000000000000000000200000000000"


@pytest.fixture
def processor(tmp_path):
    """processor(policy, refuse=…): a function that has a daemon say something and returns what was said back."""
    started = []

    def start(policy, refuse=None):
        more = {
            RECORDING_VARIABLE: str(tmp_path / "j1.jsonl"),
            WORKER_VARIABLE: "j1",
            POLICY_VARIABLE: policy,
        }
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(HERE / "record_processor.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(**more),
        )  # fmt: skip
        started.append(process)
        return Daemon(process, refuse)

    yield start
    for process in started:
        process.stdin.close()
        assert process.wait(30) == 0, "the daemon is gone, so its processor goes, in order"
        process.stdout.close()


class Daemon:
    """The other end of the protocol. checkpoints: (sequence number, sub-sequence number), in order."""

    def __init__(self, process, refuse):
        self._process = process
        self._refuse = refuse
        self.checkpoints = []

    def say(self, action, **more):
        self._send({"action": action, **more})
        while (answer := json.loads(self._process.stdout.readline()))["action"] == "checkpoint":
            self.checkpoints.append((answer["sequenceNumber"], answer["subSequenceNumber"]))
            self._send({**answer, "error": self._refuse})
        assert answer == {"action": "status", "responseFor": action}

    def _send(self, message):
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()


def aggregate(*numbers):
    return [
        {
            "data": base64.b64encode(json.dumps({"id": number}).encode()).decode(), "partitionKey": "k",
            "sequenceNumber": SEQUENCE, "subSequenceNumber": sub, "approximateArrivalTimestamp": 1,
        }
        for sub, number in enumerate(numbers)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("each", [(SEQUENCE, 3)]), ("every:3", [(SEQUENCE, 2)]), ("inside:1", [(SEQUENCE, 1)]), ("never", [])],
)
def test_a_record_processor_checkpoints_by_its_policy_and_at_the_end_of_the_shard(
    processor, tmp_path, policy, expected
):
    daemon = processor(policy)
    daemon.say("initialize", shardId="A", sequenceNumber="TRIM_HORIZON", subSequenceNumber=0)
    daemon.say("processRecords", records=aggregate(1, 2, 3, 4), millisBehindLatest=0)
    daemon.say("processRecords", records=[], millisBehindLatest=0)
    daemon.say("shardEnded")
    assert daemon.checkpoints == [*expected, (None, None)]
    (life,) = lives_of("j1", tmp_path / "j1.jsonl")
    items = [Item((int(SEQUENCE), sub), sub + 1) for sub in range(4)]
    assert ([item for _, item in life.done], life.ends) == (items, ["ended"])
    assert [batch for _, batch in life.given] == [items]
    assert [at for _, at in life.confirmed] == [(int(SEQUENCE), sub) for _, sub in expected]
    assert life.token < 0


def test_a_refused_checkpoint_is_no_confirmed_one(processor, tmp_path):
    daemon = processor("each", refuse="ShutdownException")
    daemon.say("initialize", shardId="A", sequenceNumber=SEQUENCE, subSequenceNumber=7)
    daemon.say("processRecords", records=aggregate(1), millisBehindLatest=0)
    daemon.say("leaseLost")
    (life,) = lives_of("j1", tmp_path / "j1.jsonl")
    assert (life.start, life.confirmed, life.ends) == ((int(SEQUENCE), 7), [], ["lost"])
    assert "ShutdownException" in (tmp_path / "j1.jsonl").read_text()


@pytest.mark.parametrize("text", ["", "each:2", "every", "every:x", "sometimes"])
def test_a_policy_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match=r"checkpoint policy|invalid literal"):
        Policy.of(text)


HARNESS = """
import os, signal, subprocess, sys, time
from fleet_reaper import Reaper

with Reaper() as reaper:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()']).wait()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)
    reaper.watch(child.pid)
    print(child.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_frozen_processes_end_with_a_harness_that_was_killed():
    place = str(HERE.parent / "fleet")
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": place}
    ) as harness:
        group = int(harness.stdout.readline())
        try:
            wait_for(lambda: len(members(group)) == 2)
            os.killpg(group, signal.SIGSTOP)
            harness.kill()
            harness.wait(30)
            wait_for(lambda: not members(group))
        finally:
            if members(group):
                os.killpg(group, signal.SIGKILL)


def members(group):
    """Living processes of a process group."""
    return [pid for pid, state, _, its_group in processes() if its_group == group and state != "Z"]


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        Event().wait(0.02)
