"""Programs that iterate, as processes on a local AWS: signals, Ctrl-C in asyncio, and kill -9."""

import os
import signal
import sys
from threading import Event

import boto3
import pytest

from tests.program import Program

SYNC = """
import signal, sys, threading, time
from pykcl import Consumer

def say(*words):
    print(*words, flush=True)

if "own" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: say("own handler") or sys.exit(7))
with Consumer("orders-app", stream="orders", initial_position="TRIM_HORIZON", failover_time=5) as consumer:
    for record in consumer:
        say("got", record.text())
        if record.text() == sys.argv[1]:
            say("slow")
            # Until somebody ends it, or lets it go on.
            while not (consumer._is_ending and "patient" in sys.argv):
                time.sleep(0.01)
            time.sleep(0.2)
        say("done", record.text())
say("left", *(each.name for each in threading.enumerate() if each.name.startswith("pykcl")))
"""
ASYNC = """
import asyncio, signal, sys, threading
from pykcl import AsyncConsumer

def say(*words):
    print(*words, flush=True)

async def main():
    async with AsyncConsumer(
        "orders-app", stream="orders", initial_position="TRIM_HORIZON", failover_time=5
    ) as consumer:
        if "stop" in sys.argv:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
        async for record in consumer:
            say("got", record.text())
            if record.text() == sys.argv[1]:
                say("slow")
                await asyncio.sleep(0.5 if "stop" in sys.argv else 600)
            say("done", record.text())

try:
    asyncio.run(main())
finally:
    say("left", *(each.name for each in threading.enumerate() if each.name.startswith("pykcl")))
"""


@pytest.fixture
def program(kinesis, tmp_path):
    """program(source, *arguments): a program on a stream with the records a to e. Each has a folder of its own."""
    kinesis.create_stream("orders")
    kinesis.put("orders", *"abcde")
    started = []

    def start(source, *arguments):
        folder = tmp_path / str(len(started))
        folder.mkdir()
        (folder / "consume.py").write_text(source)
        path = os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))
        started.append(
            Program(folder, "consume.py", *arguments, environment={**os.environ, "PYTHONPATH": path})
        )
        return started[-1]

    yield start
    for each in started:
        each.end()


def checkpoint_of(kinesis):
    client = boto3.client("dynamodb")
    (row,) = client.scan(TableName="orders-app")["Items"]
    return row["checkpoint"]["S"]


def lines(program, word):
    return [line.split()[1] for line in program.out.read_text().splitlines() if line.startswith(word)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_loop_behind_the_record_at_hand_and_a_second_one_at_once(program, number):
    patient = program(SYNC, "c", "patient")
    patient.wait_for("slow", patient.out)
    patient.process.send_signal(number)
    assert patient.process.wait(60) == 0, patient.err.read_text()
    assert lines(patient, "done") == ["a", "b", "c"]
    assert patient.out.read_text().splitlines()[-1] == "left", "no thread is left"
    hurried = program(SYNC, "e")
    hurried.wait_for("slow", hurried.out)
    hurried.process.send_signal(number)
    # A second later or more, by its own clock: one that comes sooner is of no effect, and is sent again.
    while hurried.process.poll() is None:
        hurried.process.send_signal(number)
        Event().wait(0.1)
    assert hurried.process.returncode in (128 + number, -number, 1), hurried.err.read_text()
    assert lines(hurried, "done") == ["d"]
    after = program(SYNC, "none")
    after.wait_for("done e", after.out)
    assert lines(after, "got") == ["e"]


def test_a_handler_of_the_program_stays_in_force(program):
    own = program(SYNC, "c", "own")
    own.wait_for("slow", own.out)
    assert own.stop() == 7
    assert "own handler" in own.out.read_text()
    after = program(SYNC, "none")
    after.wait_for("done e", after.out)
    assert lines(after, "got") == ["c", "d", "e"]


def test_ctrl_c_cancels_an_async_for_and_stop_as_a_handler_ends_it(program):
    stopped = program(ASYNC, "b", "stop")
    stopped.wait_for("slow", stopped.out)
    assert stopped.stop() == 0, stopped.err.read_text()
    assert lines(stopped, "done") == ["a", "b"]
    interrupted = program(ASYNC, "d")
    interrupted.wait_for("slow", interrupted.out)
    interrupted.process.send_signal(signal.SIGINT)
    interrupted.process.wait(60)
    assert "KeyboardInterrupt" in interrupted.err.read_text()
    assert interrupted.out.read_text().splitlines()[-1] == "left", "no thread is left"
    after = program(ASYNC, "none")
    after.wait_for("done e", after.out)
    assert lines(after, "got") == ["d", "e"]


@pytest.mark.slow
@pytest.mark.parametrize("source", [SYNC, ASYNC], ids=["for", "async for"])
def test_after_kill_9_the_record_at_hand_comes_again_and_no_record_is_missing(program, kinesis, source):
    sequence = {record.text(): record.sequence_number for record in kinesis.records("orders")}
    killed = program(source, "e")
    killed.wait_for("slow", killed.out)
    kinesis.put("orders", *"fgh")
    # The checkpoint behind d is written within a second or so; it is killed in the middle of e.
    killed.wait(lambda: checkpoint_of(kinesis) == sequence["d"], "the checkpoint")
    killed.process.kill()
    killed.process.wait()
    after = program(source, "none")
    after.wait_for("done h", after.out)
    assert lines(after, "got") == ["e", "f", "g", "h"]
