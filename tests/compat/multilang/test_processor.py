"""One child for one lease: what it is told, in which order, and what becomes of it when it does not behave."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from contextlib import suppress
from types import SimpleNamespace

import pytest
from multilang_kit import (
    DEADLINE,
    SHARD,
    TALKATIVE,
    Checkpoints,
    End,
    batch,
    eventually,
    initialization,
    is_running,
    record,
)

from pykcl.compat.multilang import children as children_module
from pykcl.compat.multilang import processor as processor_module
from pykcl.compat.multilang.child import (
    MAX_LOGGED,
    MAX_QUESTIONS,
    AnswerNotBelieved,
    CheckpointNotUnderstood,
    Child,
    ChildEnded,
    ChildFailed,
    ChildStarted,
)
from pykcl.compat.multilang.children import Children, Patience
from pykcl.compat.multilang.command import checked_command
from pykcl.compat.multilang.processor import ChildProcessor
from pykcl.compat.multilang.protocol import CheckpointAsked, Status
from pykcl.errors import ConfigError, LeaseLostError, RestartShard, TemporaryError, Throttled
from pykcl.processor import LeaseLostInput, ShardEndedInput, ShutdownRequestedInput

LOSS = LeaseLostInput(SHARD, "orders")
QUICK = Patience(0.2, 0.2)


def test_a_life_that_ends_with_the_shard_is_told_in_javas_order(start, journal, heard):
    processor, checkpoints, end = start("good"), Checkpoints(), End()
    processor.process_records(batch(checkpoints, record(1, b"a"), record(2, b"b")))
    processor.process_records(batch(checkpoints, record(3, b"c")))
    processor.shard_ended(ShardEndedInput(SHARD, "orders", (), end))
    assert journal.of("told") == ["initialize", "processRecords", "processRecords", "shardEnded"]
    assert journal.notes[0]["message"] == {
        "action": "initialize", "shardId": SHARD, "sequenceNumber": "TRIM_HORIZON", "subSequenceNumber": 0,
    }  # fmt: skip
    assert journal.of("given") == [["a", "b"], ["c"]]
    assert checkpoints.made == [(None, 0), (None, 0)]
    assert end.confirmed
    assert journal.of("end") == ["of input"], "it has ended by itself before shard_ended returned"
    assert not is_running(journal.pids[0])
    assert [(e.exit, e.forced) for e in heard.of(ChildEnded)] == [(0, None)]
    assert len(heard.of(ChildStarted)) == 1
    assert heard.of(ChildFailed) == []


def test_a_stop_is_told_as_in_java_where_the_lease_is_dropped_after_shutdown_requested(start, journal):
    processor, checkpoints = start("good"), Checkpoints()
    processor.shutdown_requested(ShutdownRequestedInput(SHARD, "orders", checkpoints))
    processor.lease_lost(LOSS)
    assert journal.of("told") == ["initialize", "shutdownRequested", "leaseLost"]
    assert journal.of("end") == ["of input"]


def test_a_lost_lease_is_told_once_and_a_checkpoint_then_is_javas_invalid_state(start, journal):
    processor = start("scripted", "if message['action'] in ('initialize', 'leaseLost'): checkpoint('5')")
    processor.lease_lost(LOSS)
    processor.lease_lost(LOSS)
    assert journal.of("told") == ["initialize", "leaseLost"]
    assert [answer["error"] for answer in journal.of("checkpoint")] == ["InvalidStateException"] * 2


@pytest.mark.parametrize(
    ("fails", "name"),
    [
        (None, None),
        (LeaseLostError("x"), "ShutdownException"),
        (Throttled("x"), "ThrottlingException"),
        (TemporaryError("x"), "KinesisClientLibDependencyException"),
    ],
)
def test_a_checkpoint_is_answered_with_what_was_asked_and_javas_name_of_the_error(
    start, journal, fails, name
):
    processor, checkpoints = start("scripted", "checkpoint('17', 3)"), Checkpoints(fails)
    processor.process_records(batch(checkpoints, record(17)))
    answer = {"action": "checkpoint", "sequenceNumber": "17", "subSequenceNumber": 3, "error": name}
    assert journal.of("checkpoint")[-1] == answer
    assert checkpoints.made == ([] if fails else [("17", 3)])


def test_a_nonsensical_position_is_an_illegal_argument(start, journal):
    processor = start("scripted", "checkpoint('seventeen')")
    processor.process_records(batch(Checkpoints(), record(17)))
    assert journal.of("checkpoint")[-1]["error"] == "IllegalArgumentException"


@pytest.mark.parametrize(
    "position", ["'17', 'three'", "'17', True", "'17', [3]", "None, 'three'", "['17']", "True"]
)
def test_a_position_that_is_no_number_is_refused_at_once_and_told(start, journal, heard, position):
    """Java takes the line for something printed, and the child waits for its answer until timeoutInSeconds, or for
    ever."""
    processor, checkpoints = (
        start("scripted", f"'records' in message and checkpoint({position})"),
        Checkpoints(),
    )
    processor.process_records(batch(checkpoints, record(17)))
    processor.process_records(batch(checkpoints, record(18)))
    assert [answer["error"] for answer in journal.of("checkpoint")] == ["IllegalArgumentException"] * 2
    assert checkpoints.made == [], "also where a checkpoint without a position would have been allowed"
    assert heard.of(ChildFailed) == []
    (told,) = heard.of(CheckpointNotUnderstood)
    assert (told.shard, told.pid) == (SHARD, journal.pids[0])
    assert told.field in ("sequenceNumber", "subSequenceNumber")


def test_a_shard_end_without_a_checkpoint_is_asked_again_of_the_same_child(start, journal):
    processor = start("scripted", "if message['action'] == 'shardEnded' and not once('asked'): checkpoint()")
    for expected in (False, True):
        end = End()
        processor.shard_ended(ShardEndedInput(SHARD, "orders", (), end))
        assert end.confirmed is expected
    assert journal.of("told") == ["initialize", "shardEnded", "shardEnded"]
    assert not is_running(journal.pids[0])


def test_a_checkpoint_asked_for_between_two_shard_ends_ends_the_shard(start, journal):
    """It is told that this worked; and nobody would ever look at the first attempt's again."""
    script = "if message['action'] == 'shardEnded' and once('asked'): done(message); note(error=checkpoint())"
    processor, first, second = start("scripted", script), End(), End()
    processor.shard_ended(ShardEndedInput(SHARD, "orders", (), first))
    eventually(lambda: processor._child._inbox, "the late question")
    processor.shard_ended(ShardEndedInput(SHARD, "orders", (), second))
    assert journal.of("error") == [None]
    assert (first.confirmed, second.confirmed) == (False, True)


def test_a_checkpoint_asked_for_behind_the_end_of_a_shard_that_was_not_ended_is_refused(start, journal):
    script = "if message['action'] == 'shardEnded': done(message); note(error=checkpoint())"
    processor, end = start("scripted", script), End()
    processor.shard_ended(ShardEndedInput(SHARD, "orders", (), end))
    eventually(lambda: processor._child._inbox, "the late question")
    processor.lease_lost(LOSS)
    assert journal.of("error") == ["InvalidStateException"]
    assert not end.confirmed


@pytest.mark.parametrize("way", ["sys.exit(0)", "os._exit(1)", "os.close(1); time.sleep(60)"])
def test_a_child_that_goes_behind_its_checkpoint_at_the_end_has_ended_the_shard(start, heard, journal, way):
    processor, end = start("scripted", f"if message['action'] == 'shardEnded': checkpoint(); {way}"), End()
    processor.shard_ended(ShardEndedInput(SHARD, "orders", (), end))
    assert end.confirmed
    assert failure_of(heard).doing == "shardEnded", "and that it has failed is told"
    assert not is_running(journal.pids[0])


# -- what is printed that is no answer -------------------------------------------------------------------------


def test_what_a_child_prints_is_logged_under_its_shard_and_disturbs_nothing(start, journal, caplog):
    caplog.set_level(logging.INFO)
    script = r"""
raw('plain words\n\n{"half": \n' + '{"action":"sta\n')
raw(b'\x00\xff\xfe binary\n')
os.write(2, b'2026 INFO fine\nTraceback: x\n')
raw('without an end, and then the answer: \r')
"""
    processor = start("scripted", script)
    processor.process_records(batch(Checkpoints(), record(1)))
    processor.lease_lost(LOSS)
    out = [r for r in caplog.records if r.name == f"pykcl.child.{SHARD}"]
    err = [r for r in caplog.records if r.name == f"pykcl.child.{SHARD}.stderr"]
    once = ["plain words", '{"half": ', '{"action":"sta', "\\x00\\xff\\xfe binary",
            "without an end, and then the answer: "]  # fmt: skip
    assert [r.getMessage() for r in out] == once * 3
    assert {r.levelno for r in out} == {logging.INFO}
    assert [(r.getMessage(), r.levelno) for r in err[:2]] == [
        ("2026 INFO fine", logging.INFO), ("Traceback: x", logging.WARNING),
    ]  # fmt: skip
    assert journal.of("told") == ["initialize", "processRecords", "leaseLost"]


def test_answers_to_questions_nobody_asked_are_not_believed_and_told_once(start, journal, heard):
    script = """
if message['action'] == 'processRecords':
    for other in ('initialize', 'leaseLost', None, 'x'):
        say({'action': 'status', 'responseFor': other})
    time.sleep(0.05)
    note(worked=True)
"""
    processor = start("scripted", script)
    for number in (1, 2):
        processor.process_records(batch(Checkpoints(), record(number)))
        assert journal.of("worked") == [True] * number, "the batch was over only when the child had said so"
    (told,) = heard.of(AnswerNotBelieved)
    assert (told.shard, told.answers, told.awaited) == (SHARD, "initialize", "processRecords")


def test_a_second_answer_is_not_taken_for_the_answer_to_the_next_question(start, journal):
    script = """
if message['action'] == 'processRecords' and once('first'):
    done(message); done(message); note(worked='processRecords')
    message['action'] = 'nothing'
else:
    time.sleep(0.05)
    note(worked=message['action'])
"""
    processor = start("scripted", script)
    processor.process_records(batch(Checkpoints(), record(1)))
    # Once it has noted that, a second line like the first is in the pipe, or was read from there already.
    eventually(lambda: journal.of("worked").count("processRecords") == 1, "the end of the first batch")
    processor.process_records(batch(Checkpoints(), record(2)))
    assert journal.of("worked").count("processRecords") == 2


def test_an_answer_before_the_question_was_there_is_not_believed(start, journal):
    """The line is larger than the pipe, and the child prints the awaited answer before it has read any of it."""
    script = """
if message['action'] == 'initialize':
    done(message)
    raw('{"action":"status","responseFor":"processRecords"}\\n' * 3)
    time.sleep(0.3)
    line = wire_in.readline()
    note(read=len(line))
    message['action'] = 'processRecords'
"""
    processor = start("scripted", script)
    processor.process_records(batch(Checkpoints(), record(1, bytes(3_000_000))))
    assert journal.of("read")[0] > 4_000_000


def test_megabytes_without_a_line_end_cost_no_memory(start, journal, caplog):
    caplog.set_level(logging.INFO)
    processor = start("scripted", "for _ in range(640): raw('x' * 65536)\nraw('\\n')")
    tracemalloc.start()
    try:
        processor.process_records(batch(Checkpoints(), record(1)))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 4_000_000
    assert all(len(r.getMessage()) < 3_000 for r in caplog.records)


def test_a_large_batch_costs_little_more_than_its_records(start, journal):
    processor = start("scripted", "note(size=len(message.get('records', [])))")
    large = batch(Checkpoints(), *(record(number, bytes(10_000)) for number in range(2_000)))
    tracemalloc.start()
    try:
        processor.process_records(large)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert journal.of("size") == [0, 2_000]
    assert most < 3_000_000, "of 27 MB on the wire"


def test_questions_without_end_do_not_fill_the_memory(start, journal, caplog):
    caplog.set_level(logging.INFO)
    flood = 'raw(\'{"action":"checkpoint"}\\n\' * 5000)'
    script = f"if message['action'] == 'initialize':\n    done(message); {flood}; note(flooded=True)"
    processor = start("scripted", script)
    eventually(lambda: journal.of("flooded"), "the flood")
    child = processor._child
    assert len(child.questions_before()) <= MAX_QUESTIONS


def test_a_checkpoint_asked_for_after_the_answer_is_made_with_the_checkpointer_of_then(start, journal):
    script = """
if message['action'] == 'processRecords' and once('late'):
    done(message); checkpoint(); note(late=True)
    message['action'] = 'nothing'
"""
    processor, first, second = start("scripted", script), Checkpoints(), Checkpoints()
    processor.process_records(batch(first, record(1)))
    eventually(lambda: len(journal.of("told")) == 2, "the batch")
    until = time.monotonic() + 300
    while not processor._child._inbox and time.monotonic() < until:
        time.sleep(0.01)
    processor.process_records(batch(second, record(2)))
    assert (first.made, second.made) == ([(None, 0)], [])


def test_a_checkpoint_asked_for_before_the_batch_was_there_is_not_made_for_that_batch(start, journal):
    """The line is larger than the pipe, and the child asks before it has read any of it: it cannot mean these
    records."""
    script = """
if message['action'] == 'processRecords' and once('early'):
    done(message)
    time.sleep(0.3)
    raw('{"action":"checkpoint"}\\n')
    note(read=len(wire_in.readline()))
    note(checkpoint=json.loads(wire_in.readline()))
    message['action'] = 'processRecords'
"""
    processor, first, second = start("scripted", script), Checkpoints(), Checkpoints()
    processor.process_records(batch(first, record(1)))
    processor.process_records(batch(second, record(2, bytes(3_000_000))))
    assert journal.of("read")[0] > 4_000_000
    assert journal.of("checkpoint")[0]["error"] is None
    assert (first.made, second.made) == ([(None, 0)], [])


# -- children that are of no use -------------------------------------------------------------------------------


def failure_of(heard):
    (failed,) = heard.of(ChildFailed)
    assert failed.shard == SHARD
    return failed


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
        ("sys.exit(3)", "ended with exit code 3"),
        ("sys.exit(0)", "ended with exit code 0"),
        ("raise ValueError('secret')", "ended with exit code 1"),
        ("os.close(1); time.sleep(60)", "closed its standard output"),
        ('raw(\'{"action":"status","respon\'); sys.exit(4)', "ended with exit code 4"),
    ],
)
def test_a_child_that_ends_in_a_batch_costs_a_restart_with_its_shard_and_the_reason(
    start, heard, journal, script, why
):
    processor = start("scripted", f"if message['action'] == 'processRecords':\n    {script}")
    with pytest.raises(RestartShard, match=f"{SHARD} {why} in processRecords"):
        processor.process_records(batch(Checkpoints(), record(1)))
    failed = failure_of(heard)
    assert (failed.doing, failed.why, failed.failures) == ("processRecords", why, 1)
    assert not is_running(journal.pids[0])
    with pytest.raises(RestartShard):
        processor.process_records(batch(Checkpoints(), record(1)))
    processor.shutdown_requested(ShutdownRequestedInput(SHARD, "orders", Checkpoints()))
    processor.lease_lost(LOSS)
    assert len(heard.of(ChildFailed)) == 1, "an instance that is of no use is told of once"


def test_a_child_that_ends_when_its_lease_is_lost_has_failed_too(start, heard, journal):
    processor = start("scripted", "if message['action'] == 'leaseLost': sys.exit(5)")
    with pytest.raises(RestartShard, match="ended with exit code 5 in leaseLost"):
        processor.lease_lost(LOSS)
    assert failure_of(heard).doing == "leaseLost"
    processor.lease_lost(LOSS)


def test_a_child_that_closes_its_input_is_noticed_also_when_it_has_the_question_already(start):
    processor = start("scripted", "if message['action'] == 'processRecords': os.close(0); time.sleep(60)")
    with pytest.raises(RestartShard, match="closed its standard input in processRecords"):
        processor.process_records(batch(Checkpoints(), record(1)))


def test_elsewhere_than_on_linux_a_closed_input_is_noticed_at_the_next_question(start, monkeypatch):
    monkeypatch.setattr(children_module, "CLOSED_INPUT", 0)
    script = "if message['action'] == 'processRecords':\n    os.close(0); done(message); time.sleep(60)"
    processor = start("scripted", script)
    processor.process_records(batch(Checkpoints(), record(1)))
    with pytest.raises(RestartShard, match="closed its standard input in processRecords"):
        processor.process_records(batch(Checkpoints(), record(2)))


def hangs_in(processor, action, call):
    processor._timeout = 0.3
    with pytest.raises(RestartShard, match=rf"did not answer within timeoutInSeconds=0\.3 in {action}"):
        call()


def test_a_child_that_never_reads_is_given_up_after_the_timeout_even_in_the_middle_of_a_line(start):
    processor = start("scripted", "done(message); time.sleep(60)")
    large = batch(Checkpoints(), record(1, bytes(5_000_000)))
    hangs_in(processor, "processRecords", lambda: processor.process_records(large))


def test_a_child_that_hangs_at_the_start_is_ended_after_the_timeout(new_children, heard):
    processor = ChildProcessor(new_children("mute", "initialize"))
    hangs_in(processor, "initialize", lambda: processor.initialize(initialization()))
    assert len(heard.of(ChildEnded)) == 1


def test_a_child_that_hangs_is_ended_after_the_timeout_and_not_asked_politely(start, journal, heard):
    processor = start("mute", "processRecords")
    hangs_in(processor, "processRecords", lambda: processor.process_records(batch(Checkpoints(), record(1))))
    assert not is_running(journal.pids[0])
    assert len(heard.of(ChildEnded)) == 1


def test_a_child_that_hangs_at_the_end_of_the_shard_is_ended_after_the_timeout(start):
    processor = start("mute", "shardEnded")
    hangs_in(
        processor, "shardEnded", lambda: processor.shard_ended(ShardEndedInput(SHARD, "orders", (), End()))
    )


def test_each_message_of_the_child_starts_the_timeout_anew_as_in_java(monkeypatch):
    """Each message comes nine seconds after the last one, and ten are given."""

    class Slow:
        now = 0.0
        left = [CheckpointAsked(None, None)] * 3 + [Status("processRecords")]

        def questions_before(self):
            return []

        def send(self, pieces, *, awaits, until):
            assert until == self.now + 10

        def receive(self, until):
            self.now += 9
            assert self.now < until
            return self.left.pop(0)

    slow = Slow()
    monkeypatch.setattr(processor_module, "time", SimpleNamespace(monotonic=lambda: slow.now))
    processor = ChildProcessor(None, 10.0)
    processor._child = slow
    processor.process_records(batch(Checkpoints(), record(1)))
    assert slow.now == 36


def test_without_a_timeout_a_child_may_take_its_time(start, heard):
    processor = start("mute", "processRecords", timeout=None)
    over = threading.Event()

    def call():
        with pytest.raises(RestartShard, match="is being ended"):
            processor.process_records(batch(Checkpoints(), record(1)))
        over.set()

    threading.Thread(target=call).start()
    assert not over.wait(0.5)
    processor._children.close()
    assert over.wait(300)


def test_a_child_that_exits_at_once_fails_in_initialize(new_children, heard):
    processor = ChildProcessor(new_children("exits", "9"), 30)
    with pytest.raises(RestartShard, match=f"{SHARD} ended with exit code 9 in initialize"):
        processor.initialize(initialization())
    assert failure_of(heard).failures == 1


def test_a_program_that_is_not_there_fails_in_initialize_and_is_found_out_before(tmp_path, heard):
    missing = str(tmp_path / "missing")
    with Children([missing, "x"], events=heard) as children:
        with pytest.raises(RestartShard, match=f"{SHARD} could not be started: .*missing"):
            ChildProcessor(children).initialize(initialization())
        assert failure_of(heard).pid is None
    with pytest.raises(ConfigError, match=r"executableName: there is no program .*missing"):
        checked_command([missing, "x"])
    with pytest.raises(ConfigError, match="PATH"):
        checked_command(["no-such-program-anywhere"])
    with pytest.raises(ConfigError, match="empty"):
        checked_command([])
    not_executable = tmp_path / "app.py"
    not_executable.write_text("print(1)")
    with pytest.raises(ConfigError, match=r"chmod \+x"):
        checked_command([str(not_executable)])
    assert checked_command(["sh", "-c", "x"]) == ("sh", "-c", "x")


def test_an_error_of_ours_in_the_middle_of_a_conversation_costs_the_child_too(start, journal, heard):
    class Broken(Checkpoints):
        def checkpoint(self, *_):
            raise ZeroDivisionError

    processor = start("good")
    with pytest.raises(RestartShard, match="ZeroDivisionError"):
        processor.process_records(batch(Broken(), record(1)))
    assert not is_running(journal.pids[0])


# -- children that flood their pipes ---------------------------------------------------------------------------


class Loud(logging.Handler):
    """Each line costs what it costs in a log, and none is kept."""

    def __init__(self):
        super().__init__()
        self.flooded = threading.Event()

    def emit(self, record):
        self.format(record)
        self.flooded.set()


@pytest.fixture
def loud(monkeypatch):
    logger, handler = logging.getLogger("pykcl.child"), Loud()
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_children_that_flood_their_output_do_not_cost_those_of_other_shards(new_children, heard, loud):
    children = new_children("scripted", "if 'flood' in message.get('shardId', ''): os.execvp('yes', ['yes'])")
    healthy = ChildProcessor(children, 1.0)
    healthy.initialize(initialization())

    def flood(shard):
        with pytest.raises(RestartShard):
            ChildProcessor(children, 60).initialize(initialization(shard))

    floods = [threading.Thread(target=flood, args=(f"flood-{number}",)) for number in range(4)]
    for thread in floods:
        thread.start()
    try:
        assert loud.flooded.wait(DEADLINE)
        for number in range(20):
            healthy.process_records(batch(Checkpoints(), record(number)))
        assert heard.of(ChildFailed) == []
    finally:
        children.close()
        for thread in floods:
            thread.join(DEADLINE)


@pytest.mark.usefixtures("loud")
def test_a_program_that_only_floods_is_ended_in_a_moment(heard):
    over = threading.Event()

    def call():
        with pytest.raises(RestartShard, match="is being ended"):
            ChildProcessor(children).initialize(initialization())
        over.set()

    with Children(["yes"], events=heard) as children:
        threading.Thread(target=call).start()
        eventually(lambda: heard.of(ChildStarted), "the child")
        before = time.monotonic()
    assert time.monotonic() - before < 5
    assert over.wait(DEADLINE)
    assert [ended.forced for ended in heard.of(ChildEnded)] == ["SIGTERM"]


def test_an_end_is_waited_for_also_where_the_one_who_does_it_is_late(start, journal, monkeypatch, caplog):
    """Else a second child of the shard is started beside the first one."""
    monkeypatch.setattr(children_module, "STUCK_SECONDS", 0.9)
    processor, busy, over = (
        start("stubborn", patience=Patience(0.0, 0.05)),
        threading.Event(),
        threading.Event(),
    )
    processor._children._loop._do(busy.wait)

    def end():
        processor.lease_lost(LOSS)
        over.set()

    processor._child.receive = lambda until: Status("leaseLost")
    threading.Thread(target=end).start()
    try:
        assert not over.wait(1.0)
        assert is_running(journal.pids[0])
    finally:
        busy.set()
    assert over.wait(DEADLINE)
    assert not is_running(journal.pids[0])
    assert "does not exit after SIGKILL" not in caplog.text


def test_a_process_that_does_not_even_end_of_sigkill_is_told_and_waited_for(start, monkeypatch, caplog):
    monkeypatch.setattr(children_module, "STUCK_SECONDS", 0.05)
    processor, over = start("polite", patience=Patience(0.0, 0.0)), threading.Event()
    child, signal_group = processor._child, Child.signal_group
    # Its input stays open, and signals do not reach it: it is as good as in a system call that never returns.
    monkeypatch.setattr(Child, "signal_group", lambda child, number: None)
    monkeypatch.setattr(Child, "on_close_stdin", lambda child: None)

    def end():
        processor._children.end(child)
        over.set()

    threading.Thread(target=end).start()
    eventually(lambda: "does not exit after SIGKILL" in caplog.text, "the word about it")
    assert not over.is_set()
    signal_group(child, signal.SIGKILL)
    assert over.wait(DEADLINE)
    assert caplog.text.count("does not exit after SIGKILL") == 1


# -- their ends ------------------------------------------------------------------------------------------------


def test_a_child_that_ignores_the_end_of_its_input_and_sigterm_is_killed(start, journal, heard):
    processor = start("stubborn", patience=QUICK)
    processor.lease_lost(LOSS)
    assert not is_running(journal.pids[0])
    assert journal.of("end") == ["of input"]
    assert journal.of("signal") == [15]
    (ended,) = heard.of(ChildEnded)
    assert (ended.exit, ended.forced) == (-9, "SIGKILL")


def test_the_whole_group_goes_with_its_leader_also_what_a_launcher_left_behind(start, journal):
    script = """
if message['action'] == 'initialize':
    import subprocess
    note(helper=subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)']).pid)
if message['action'] == 'processRecords':
    os.kill(os.getpid(), signal.SIGKILL)
"""
    processor = start("scripted", script)
    (helper,) = journal.of("helper")
    assert is_running(helper)
    with pytest.raises(RestartShard, match="was ended by SIGKILL"):
        processor.process_records(batch(Checkpoints(), record(1)))
    # It is init's to wait for, and a moment may pass until that has happened.
    eventually(lambda: not is_running(helper) or state_of(helper) == "Z", "the end of what it had started")


def state_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_each_child_is_in_a_session_and_group_of_its_own(start, journal):
    start("polite")
    (pid,) = journal.pids
    assert journal.of("group") == journal.of("session") == [pid]


def test_leaving_the_block_ends_all_children_and_nothing_is_started_afterwards(new_children, journal):
    children = new_children("polite")
    processors = [ChildProcessor(children, 30) for _ in range(3)]
    for processor in processors:
        processor.initialize(initialization())
    with children:
        assert len(journal.pids) == 3
    assert not any(map(is_running, journal.pids))
    with pytest.raises(RestartShard, match="the daemon is stopping"):
        ChildProcessor(children).initialize(initialization())


def test_who_presses_ctrl_c_while_children_are_ended_leaves_none_behind(start, journal, monkeypatch):
    processor = start("stubborn")

    def interrupted(child, seconds):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Child, "wait_ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        processor._children.close()
    assert not is_running(journal.pids[0])


def test_a_child_that_is_being_started_while_the_daemon_ends_is_ended_too(new_children, journal, monkeypatch):
    """1) The lease's thread finds the daemon running; 2) the daemon ends all children; 3) the process is there, and
    nobody would ever end it nor hear it."""
    children = new_children("polite")
    ChildProcessor(children, 30).initialize(initialization())
    closer, popen = threading.Thread(target=children.close), subprocess.Popen

    def start_while_it_ends(*args, **options):
        process = popen(*args, **options)
        closer.start()
        # Either it is through by then, or it waits for this start.
        closer.join(1.0)
        return process

    monkeypatch.setattr(subprocess, "Popen", start_while_it_ends)
    with suppress(RestartShard):
        # It may have answered before it was ended.
        ChildProcessor(children, 3.0).initialize(initialization("shardId-000000000008"))
    closer.join(DEADLINE)
    assert not any(map(is_running, journal.pids))


def test_children_end_where_the_operating_system_does_not_tell_of_it(start, journal, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr(children_module, "POLL_SECONDS", 0.05)
    processor = start("scripted", "if message['action'] == 'processRecords': sys.exit(6)")
    with pytest.raises(RestartShard, match="ended with exit code 6"):
        processor.process_records(batch(Checkpoints(), record(1)))


def test_many_children_share_one_thread(new_children, journal):
    children = new_children("good")
    processors = [ChildProcessor(children, 30) for _ in range(12)]
    before = threading.active_count()
    for number, processor in enumerate(processors):
        processor.initialize(initialization(f"shardId-{number:012}"))
    assert threading.active_count() == before + 1
    checkpoints = Checkpoints()

    def work(processor):
        for number in range(20):
            processor.process_records(batch(checkpoints, record(number, b"%d" % number)))

    threads = [threading.Thread(target=work, args=(processor,)) for processor in processors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(checkpoints.made) == 240
    for pid in journal.pids:
        given = [note["given"] for note in journal.notes if note["pid"] == pid and "given" in note]
        assert given == [[str(number)] for number in range(20)]


def test_descriptors_do_not_leak(new_children, journal):
    children = new_children("good")

    def live():
        processor = ChildProcessor(children, 30)
        processor.initialize(initialization())
        processor.lease_lost(LOSS)

    live()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        live()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("stops", "forced"), [(False, None), (True, "SIGTERM")])
def test_only_the_stop_of_the_daemon_shortens_the_time_a_child_has_to_clean_up(journal, heard, stops, forced):
    command = [sys.executable, "-I", "-S", str(TALKATIVE), "good", str(journal.path)]
    with Children(command, patience_at_stop=Patience(0.0, 5.0), events=heard) as children:
        processor = ChildProcessor(children, 30.0)
        processor.initialize(initialization())
        child = processor._child
        # Its input stays open: it ends only by what comes after the time it is given.
        child.on_close_stdin = lambda: stops or Child.on_close_stdin(child)
        if stops:
            processor.shutdown_requested(ShutdownRequestedInput(SHARD, "orders", Checkpoints()))
        else:
            processor.lease_lost(LOSS)
        assert [ended.forced for ended in heard.of(ChildEnded)] == [forced]


def test_a_child_that_nobody_can_listen_to_is_not_left_behind(new_children, journal, monkeypatch):
    """There are as many processes and threads as there may be."""

    def no_more(thread):
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    children = new_children("good")
    monkeypatch.setattr(threading.Thread, "start", no_more)
    with pytest.raises(RestartShard, match="cannot be served: can't start new thread"):
        ChildProcessor(children, 30.0).initialize(initialization())
    assert not any(map(is_running, journal.pids))
    second = ChildProcessor(children, 30.0)
    second.initialize(initialization())
    second.lease_lost(LOSS)


def test_in_a_hurry_children_that_are_being_ended_are_killed(start, journal, heard):
    processor = start("stubborn")
    processor._children.hurry()
    processor._children.close()
    assert [ended.forced for ended in heard.of(ChildEnded)] == ["SIGKILL"]


def test_the_patience_fits_into_the_grace_of_the_daemon():
    assert Patience.within(25.0) == Patience(10.0, 5.0)
    short = Patience.within(5.0)
    assert short.after_end_of_input + short.after_sigterm <= 3.0


def test_if_the_thread_that_serves_them_dies_nobody_waits_for_ever_and_nothing_runs_on(
    start, journal, monkeypatch, caplog
):
    processor = start("good")
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def bug():
        del processor._child.on_output
        raise ZeroDivisionError

    processor._child.on_output = bug
    with pytest.raises(RestartShard, match="cannot be served any more"):
        processor.process_records(batch(Checkpoints(), record(1)))
    assert not is_running(journal.pids[0])
    with pytest.raises(RestartShard, match="see the first error in the log"):
        processor.initialize(initialization())
    assert "the thread that serves the children died" in caplog.text
    # Its exception is its last act: while it still finds the hook of this test.
    processor._children._loop._thread.join(DEADLINE)


def test_what_a_child_says_without_a_line_end_is_logged_while_it_lives_and_in_pieces(start, caplog):
    with caplog.at_level(logging.INFO, "pykcl.child"):
        processor = start("without_line_ends")
        eventually(lambda: len(caplog.messages) >= 2, "what it has said of initialize")
        assert not processor.is_of_no_use
        first, second = caplog.messages[:2]
    assert first == "no line end: \u00e4 " + "z" * (MAX_LOGGED - len("no line end: \u00e4 ".encode()))
    assert second.endswith("zzinitialize")
    assert len(first + second) == len("no line end: \u00e4 ") + 3000 + len("initialize")


def test_a_missing_module_is_no_reason_to_stop_once_a_child_has_worked(new_children):
    children, lacking = new_children("without_kclpy"), []
    children.has_worked = True
    with pytest.raises(RestartShard):
        ChildProcessor(children, 30.0, lambda: lacking.append(1)).initialize(initialization())
    assert not lacking
    children.has_worked = False
    with pytest.raises(RestartShard):
        ChildProcessor(children, 30.0, lambda: lacking.append(1)).initialize(initialization())
    assert lacking == [1]
