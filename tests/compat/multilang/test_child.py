"""One child without the selector thread: the test decides when its pipes are read, so no race is left to luck."""

import logging
import os
import select
import signal
import subprocess
import sys
import time

import pytest

from pykcl.compat.multilang import child as child_module
from pykcl.compat.multilang.child import (
    NONSENSE_SECONDS,
    AnswerNotBelieved,
    Child,
    ChildGone,
    MessageBehindText,
)
from pykcl.compat.multilang.protocol import CheckpointAsked, Status

STATUS = '{"action":"status","responseFor":"processRecords"}\n'
CHECKPOINT = '{"action":"checkpoint","sequenceNumber":"5"}\n'
LATE = time.monotonic() + 1e6


@pytest.fixture
def new_child(heard):
    """new_child(program): not served by anybody."""
    made = []

    def make(program):
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, start_new_session=True,
        )  # fmt: skip
        made.append(Child("shardId-1", process, lambda child: None, heard.emit))
        return made[-1]

    yield make
    for child in made:
        child.process.kill()
        child.on_ended()


def wait_for_output(child):
    assert select.select([child.descriptors[1]], [], [], 20)[0], "the child printed nothing"


def prints(text, then="sys.stdin.read()"):
    return f"import os, sys; os.write(1, {text.encode()!r}); {then}"


def test_what_was_in_the_pipe_before_the_question_does_not_answer_it(new_child, heard):
    child = new_child(prints(CHECKPOINT + STATUS))
    wait_for_output(child)
    assert child.questions_before() == [CheckpointAsked("5", None, early=True)]
    child.send([b"question\n"], awaits="processRecords", until=None)
    child.on_output()
    with pytest.raises(TimeoutError):
        child.receive(time.monotonic() - 1)
    assert [event.awaited for event in heard.of(AnswerNotBelieved)] == [None]


@pytest.mark.parametrize("served", [True, False], ids=["read before", "still in the pipe"])
def test_a_line_that_began_before_the_question_does_not_answer_it_whenever_it_ends(new_child, heard, served):
    half, rest = STATUS[:20], STATUS[20:]
    child = new_child(prints(half, f"sys.stdin.readline(); os.write(1, {rest.encode()!r}); sys.stdin.read()"))
    wait_for_output(child)
    if served:
        child.on_output()
    assert child.questions_before() == []
    child.send([b"question\n"], awaits="processRecords", until=None)
    wait_for_output(child)
    child.on_output()
    with pytest.raises(TimeoutError):
        child.receive(time.monotonic() - 1)
    assert len(heard.of(AnswerNotBelieved)) == 1


def test_a_line_that_began_while_the_question_was_written_does_not_answer_it_either(new_child):
    half, rest = STATUS[:20], STATUS[20:]
    more = f"sys.stdin.readline(); os.write(1, {(rest + STATUS).encode()!r}); sys.stdin.read()"
    child = new_child(prints(half, more))
    child.send([b"ques"], awaits="processRecords", until=None)
    wait_for_output(child)
    child.on_output()
    child.send([b"tion\n"], awaits=None, until=None)
    child._question_ends = child._queued
    wait_for_output(child)
    child.on_output()
    assert child.receive(LATE) == Status("processRecords")
    with pytest.raises(TimeoutError):
        child.receive(time.monotonic() - 1)


@pytest.mark.parametrize("blanks", ["", " ", "\t ", "\n"])
def test_a_checkpoint_that_was_begun_before_the_question_is_early_and_what_follows_is_not(new_child, blanks):
    """What is left in a buffer of blanks has begun no line."""
    half, rest = CHECKPOINT[:20], CHECKPOINT[20:] + blanks
    then = f"sys.stdin.readline(); os.write(1, {rest.encode()!r}); sys.stdin.readline(); os.write(1, {CHECKPOINT.encode()!r});"
    child = new_child(prints(half, then + "sys.stdin.read()"))
    wait_for_output(child)
    assert child.questions_before() == []
    child.send([b"question\n"], awaits="processRecords", until=None)
    wait_for_output(child)
    child.on_output()
    assert child.receive(LATE) == CheckpointAsked("5", None, early=True)
    child.send([b"answer\n"], awaits=None, until=None)
    wait_for_output(child)
    child.on_output()
    assert child.receive(LATE) == CheckpointAsked("5", None, early=False)


def test_blanks_before_the_question_do_not_spoil_its_answer(new_child):
    child = new_child(
        prints(" \t", f"sys.stdin.readline(); os.write(1, {STATUS.encode()!r}); sys.stdin.read()")
    )
    wait_for_output(child)
    assert child.questions_before() == []
    child.send([b"question\n"], awaits="processRecords", until=None)
    wait_for_output(child)
    child.on_output()
    assert child.receive(LATE) == Status("processRecords")


def test_who_answers_something_else_and_then_nothing_is_not_waited_for_for_ever(new_child, monkeypatch):
    wrong = STATUS.replace("processRecords", "leaseLost")
    asks_on = f"sys.stdin.readline(); os.write(1, {CHECKPOINT.encode()!r});"
    child = new_child(
        prints("", f"sys.stdin.readline(); os.write(1, {wrong.encode()!r});" + asks_on + "sys.stdin.read()")
    )
    child.send([b"question\n"], awaits="processRecords", until=None)
    wait_for_output(child)
    child.on_output()
    clock = [time.monotonic()]
    monkeypatch.setattr(child_module.time, "monotonic", lambda: clock[0])
    clock[0] += NONSENSE_SECONDS - 5
    child.send([b"answer\n"], awaits=None, until=None)
    wait_for_output(child)
    child.on_output()
    assert child.receive(None) == CheckpointAsked("5", None), (
        "it may have been a line that only looks like it"
    )
    clock[0] += NONSENSE_SECONDS - 5
    with pytest.raises(TimeoutError):
        child.receive(clock[0])
    clock[0] += 10
    with pytest.raises(ChildGone, match="sent a status for another action"):
        child.receive(None)


def test_a_question_is_answered_once(new_child, heard):
    child = new_child(
        prints("", f"sys.stdin.readline(); os.write(1, {(STATUS * 2).encode()!r}); sys.stdin.read()")
    )
    child.send([b"ques", b"tion\n"], awaits="processRecords", until=None)
    wait_for_output(child)
    child.on_output()
    assert child.receive(LATE) == Status("processRecords")
    with pytest.raises(TimeoutError):
        child.receive(time.monotonic() - 1)
    assert len(heard.of(AnswerNotBelieved)) == 1


@pytest.mark.parametrize("says", [STATUS, CHECKPOINT + STATUS], ids=["done", "a checkpoint"])
def test_what_it_says_once_it_is_being_ended_answers_nothing(new_child, says):
    """1) It is sent SIGTERM in the middle of its records; 2) it swallows that, and prints that they are done."""
    program = f"""
import os, signal, sys
def stop(number, frame): raise KeyboardInterrupt
signal.signal(signal.SIGTERM, stop)
sys.stdin.readline()
try:
    os.write(2, b"works\\n")
    signal.pause()
except BaseException:
    os.write(1, {says.encode()!r})
    sys.stdin.read()
"""
    child = new_child(program)
    child.send([b"question\n"], awaits="processRecords", until=None)
    assert select.select([child.descriptors[2]], [], [], 20)[0]
    child.on_gone("is being ended")
    child.signal_group(signal.SIGTERM)
    wait_for_output(child)
    child.on_output()
    with pytest.raises(ChildGone, match="is being ended"):
        child.receive(LATE)


def test_a_question_that_is_not_complete_cannot_be_answered(new_child):
    child = new_child(prints(STATUS))
    child.send([b"ques"], awaits="processRecords", until=None)
    wait_for_output(child)
    child.on_output()
    with pytest.raises(TimeoutError):
        child.receive(time.monotonic() - 1)


def test_its_last_words_count_although_it_has_ended(new_child):
    child = new_child(prints("", f"sys.stdin.readline(); os.write(1, {(CHECKPOINT + STATUS).encode()!r})"))
    child.send([b"question\n"], awaits="processRecords", until=None)
    # Without waiting for it: its exit code is taken by the code under test.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.on_ended() == 0
    assert child.receive(LATE) == CheckpointAsked("5", None)
    assert child.receive(LATE) == Status("processRecords")
    with pytest.raises(ChildGone, match="ended with exit code 0"):
        child.receive(LATE)
    with pytest.raises(ChildGone, match="ended with exit code 0"):
        child.send([b"question\n"], awaits="x", until=None)


def test_its_last_line_needs_no_end(new_child):
    """As for Java's reader."""
    child = new_child(prints("", f"sys.stdin.readline(); os.write(1, {STATUS.strip().encode()!r})"))
    child.send([b"question\n"], awaits="processRecords", until=None)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.on_ended() == 0
    assert child.receive(LATE) == Status("processRecords")


def test_what_it_asks_before_the_question_was_there_is_known_to_be_early(new_child):
    ask = f"os.write(1, {CHECKPOINT.encode()!r}); sys.stdin.readline();"
    child = new_child(prints("", ask * 3))
    wait_for_output(child)
    child.on_output()
    child.send([b"answer\n", b"ques"], awaits=None, until=None)
    assert child.receive(LATE) == CheckpointAsked("5", None, early=True), "asked in the middle of nothing"
    child.send([b"ques"], awaits="processRecords", until=None)
    wait_for_output(child)
    child.on_output()
    assert child.receive(LATE) == CheckpointAsked("5", None, early=True)
    child.send([b"ques", b"tion\n"], awaits="processRecords", until=None)
    wait_for_output(child)
    child.on_output()
    assert child.receive(LATE) == CheckpointAsked("5", None, early=False)


def lines_of(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "pykcl.child.shardId-1"]


def test_a_flood_is_read_so_much_at_a_time_and_all_of_it(new_child, caplog):
    caplog.set_level(logging.INFO)
    child = new_child(prints("y\n" * 20_000))
    wait_for_output(child)
    counts = []
    while child.descriptors[1] in select.select([child.descriptors[1]], [], [], 0.0)[0]:
        child.on_output()
        counts.append(len(lines_of(caplog)) - sum(counts))
    assert max(counts) <= 1_000, "the children beside it are heard in between"
    assert lines_of(caplog) == ["y"] * 20_000


def test_what_waits_in_the_pipe_before_the_question_is_counted_where_it_is_too_much(new_child, caplog):
    caplog.set_level(logging.INFO)
    child = new_child(prints("y\n" * 20_000 + CHECKPOINT + STATUS))
    wait_for_output(child)
    assert child.questions_before() == [CheckpointAsked("5", None, early=True)]
    assert lines_of(caplog) == ["y"] * 1_000 + ["… and 19001 lines more"]
    assert not select.select([child.descriptors[1]], [], [], 0.0)[0]


def test_an_answer_that_came_in_time_counts_though_nobody_has_looked_yet(new_child):
    child = new_child(prints("", f"sys.stdin.readline(); os.write(1, {STATUS.encode()!r}); sys.stdin.read()"))
    child.send([b"question\n"], awaits="processRecords", until=None)
    wait_for_output(child)
    assert child.receive(time.monotonic() - 1) == Status("processRecords")


WRONG = CHECKPOINT.replace('"5"', "[]")


@pytest.mark.parametrize("line", [CHECKPOINT, WRONG, STATUS], ids=["too many", "of no position", "no answer"])
def test_messages_that_are_not_understood_fill_no_log(new_child, caplog, line):
    caplog.set_level(logging.INFO)
    child = new_child(prints("", f"os.write(1, {line.encode()!r} * 5_000 + b'over\\n'); sys.stdin.read()"))
    while "over" not in lines_of(caplog):
        wait_for_output(child)
        child.on_output()
    *told, more, over = lines_of(caplog)
    assert told == [line.strip()] * 100
    assert more == "… further unexpected messages are not logged"
    assert over == "over", "what is no message is logged as ever"


@pytest.mark.parametrize("message", [STATUS, CHECKPOINT])
def test_a_message_behind_text_without_a_line_end_is_ignored_as_in_java_and_named_once(
    new_child, heard, message
):
    child = new_child(
        prints(
            "",
            f"sys.stdin.readline(); os.write(1, {('progress 50 %' + message).encode() * 2!r}); sys.stdin.read()",
        )
    )
    child.send([b"question\n"], awaits="processRecords", until=None)
    wait_for_output(child)
    child.on_output()
    with pytest.raises(TimeoutError):
        child.receive(time.monotonic() - 1)
    (event,) = heard.of(MessageBehindText)
    assert (event.shard, event.pid) == (child.shard, child.pid)
    assert "print a line end before it" in event.TEXT


@pytest.mark.parametrize(
    "line",
    ['took {"action": "noMessage"}\n', '{"log": {"action": "status", "responseFor": "x"}}\n', "50 % {\n"],
)
def test_a_line_of_the_program_with_no_message_at_its_end_is_no_such_case(new_child, heard, line):
    child = new_child(prints(line))
    wait_for_output(child)
    child.on_output()
    assert heard.of(MessageBehindText) == []
