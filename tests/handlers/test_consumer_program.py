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
PAIR = """
import signal, sys, threading
from pykcl import Consumer, Ended

def say(*words):
    # In one piece: two threads write.
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

def consume(consumer):
    for record in consumer:
        say("got", record.text())
    say("ended", consumer.ended.name)

options = dict(initial_position="TRIM_HORIZON", failover_time=5)
first = Consumer("orders-app", stream="orders", **options)
second = Consumer("audit-app", stream="orders", **options)
first.__enter__()
with second:
    other = threading.Thread(target=consume, args=(second,))
    other.start()
    consume(first)
    first.__exit__(None, None, None)
    say("handler", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    other.join()
say("handler", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
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
    # The last one may be half written.
    whole = program.out.read_text().rpartition("\n")[0].splitlines()
    return [line.split()[1] for line in whole if line.startswith(word)]


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


def test_a_signal_ends_the_loops_of_all_consumers_of_a_process(program):
    pair = program(PAIR)
    pair.wait(lambda: len(lines(pair, "got")) == 10)
    assert pair.stop() == 0, pair.err.read_text()
    assert lines(pair, "ended") == ["SIGNAL", "SIGNAL"]
    assert lines(pair, "handler") == ["False", "True"], "the last consumer that leaves gives the signals back"


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


FORKING = """
import os, sys
from pykcl import Consumer

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

with Consumer("orders-app", stream="orders", initial_position="TRIM_HORIZON", failover_time=5) as consumer:
    kept = None
    for record in consumer:
        say("got", os.getpid(), record.text())
        if record.text() == "b":
            child = os.fork()
            if child:
                say("parent", os.getpid())
                say("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            elif sys.argv[1] == "acks":
                consumer.ack(record)
            elif sys.argv[1] == "leaves":
                break
            # Else it goes on, and asks for the next record.
        if record.text() == "e":
            break
say("left", os.getpid())
"""


@pytest.mark.parametrize(("what", "code"), [("goes on", 1), ("acks", 1), ("leaves", 0)])
def test_a_process_that_is_forked_in_the_loop_gets_no_record_and_settles_none(program, kinesis, what, code):
    """It has a copy of what is queued: each record that it got would be processed twice, and settled by nobody."""
    forking = program(FORKING, what)
    assert forking.process.wait(60) == 0, forking.err.read_text()
    said = [line.split() for line in forking.out.read_text().splitlines()]
    (parent,) = {pid for word, pid, *_ in said if word == "parent"}
    assert [text for word, pid, *text in said if word == "got" and pid == parent] == [
        [each] for each in "abcde"
    ]
    assert [pid for word, pid, *_ in said if word == "got" and pid != parent] == []
    assert ["ended", str(code)] in said
    assert forking.err.read_text().count("forked from the one that entered the Consumer") == (code == 1)
    assert checkpoint_of(kinesis).isdecimal()


FORKING_ASYNC = """
import asyncio, os
from pykcl import AsyncConsumer, PyKclError

async def main():
    async with AsyncConsumer("orders-app", stream="orders", initial_position="TRIM_HORIZON") as consumer:
        async for record in consumer:
            if record.text() == "e":
                break
            child = os.fork()
            if not child:
                try:
                    await anext(consumer)
                except PyKclError as error:
                    # What asyncio would do at the end of a forked process reaches the loop of the other one.
                    os._exit(7 if "forked" in str(error) else 1)
                os._exit(0)
            print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

asyncio.run(main())
"""


def test_a_process_that_is_forked_in_an_async_loop_gets_no_record(program):
    forking = program(FORKING_ASYNC)
    assert forking.process.wait(60) == 0, forking.err.read_text()
    assert forking.out.read_text().splitlines() == ["ended 7"] * 4
