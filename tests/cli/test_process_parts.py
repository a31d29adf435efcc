"""The parts of `--processes` by themselves: what is final, how long a pause is, and several answers as one."""

import itertools
import json
import logging
import os
import signal
import socket
import threading
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pykcl.cli import supervised, supervisor
from pykcl.cli.supervised import Member
from pykcl.cli.supervisor import (
    LONG_LIFE,
    Parent,
    Slot,
    exit_code_of,
    is_final,
    labelled,
    merged_metrics,
    merged_report,
    pause_after,
    report_of,
)
from pykcl.config import Config
from pykcl.events import StopReason, WorkerStarted
from pykcl.health.probes import Verdict, report
from pykcl.logs import JsonFormatter
from pykcl.metrics.catalog import CURRENT_LEASES, PROCESS_RECORDS_TIME, RECORDS_PROCESSED
from pykcl.metrics.prometheus import PrometheusSink
from pykcl.runtime import SystemRuntime
from pykcl.worker.signals import StopSignals

STARTED = WorkerStarted(worker_id="w", application="a", stream_arn="arn", table="a", failover_time=10.0)


# -- what becomes of a process that ended ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "had_worker", "ever_worked", "final"),
    [
        (78, True, True, True),
        (78, False, True, True),
        (2, False, True, True),
        (2, True, True, False),
        (70, False, False, True),
        (-9, False, False, True),
        (-15, False, False, False),
        (-2, False, False, False),
        (-1, False, False, False),
        (0, False, False, True),
        (70, False, True, False),
        (70, True, True, False),
        (-9, True, True, False),
        (0, True, True, False),
    ],
)
def test_what_no_new_process_would_mend_is_final(code, had_worker, ever_worked, final):
    assert is_final(code, had_worker=had_worker, ever_worked=ever_worked) is final


def test_one_process_with_a_worker_shows_that_the_others_can_start():
    parent = Parent(2, "w", ("run",))
    first, second = parent._slots
    second.had_worker = True
    parent._on_ended(first, 70)
    assert not parent._must_stop()
    assert first.again_at > 0


def test_pauses_double_up_to_a_minute():
    assert [pause_after(failures) for failures in (1, 2, 3, 4, 5, 6, 7, 8, 5000)] == [
        1,
        2,
        4,
        8,
        16,
        32,
        60,
        60,
        60,
    ]


def test_a_long_life_makes_a_crash_the_first_one_again(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("pykcl.cli.supervisor.time", SimpleNamespace(monotonic=lambda: now[0]))
    slot = Slot(1, "w-1", ("run",))
    slot._started_at = now[0]
    assert [slot.rest() for _ in range(4)] == [1, 2, 4, 8]
    assert slot.again_at == now[0] + 8
    now[0] += LONG_LIFE - 0.1
    assert slot.rest() == 16
    now[0] += 0.1
    assert slot.rest() == 1


def test_who_was_ended_by_a_signal_has_crashed():
    assert [exit_code_of(code) for code in (0, 2, 78, -9, -15)] == [0, 2, 78, 70, 70]


def test_a_process_that_cannot_be_started_ends_the_parent(monkeypatch, caplog):
    def refused(*_, **__):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("pykcl.cli.supervisor.subprocess.Popen", refused)
    before = len(os.listdir("/proc/self/fd"))
    with caplog.at_level(logging.ERROR):
        assert Parent(2, "w", ("run",)).run() == 70
    assert "process cannot be started process=1 error=Resource temporarily unavailable" in caplog.text
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("news", ["a signal", "a word"])
def test_a_parent_sleeps_until_there_is_news(monkeypatch, news):
    """Without a look in between, which would cost as much as a worker's reading."""
    monkeypatch.setattr(supervisor, "_IDLE_POLL_MILLIS", 3_600_000)
    parent = Parent(1, "w", ("run",))
    (slot,) = parent._slots
    slot.channel, process = socket.socketpair()
    slot.channel.setblocking(False)
    looks = []

    def tell():
        os.kill(os.getpid(), signal.SIGTERM) if news == "a signal" else process.sendall(b'{"worker": true}\n')

    def tend(self):
        looks.append(slot.had_worker)
        threading.Thread(target=tell, daemon=True).start()

    monkeypatch.setattr(Parent, "_manage", tend)
    monkeypatch.setattr(Parent, "_is_over", lambda self: self.signals.count > 0 or slot.had_worker)
    with process:
        assert parent.run() == 0
    assert looks == [False]


def test_a_slot_without_a_process_answers_nothing_and_asks_nobody():
    slot = Slot(1, "w-1", ("run",))
    slot.ask("check")
    slot.stop(1)
    slot.kill()
    slot.read()
    assert (slot.answer("check"), slot.is_waited_for("check", 1.0), slot.silent_for, slot.pid) == (
        None,
        False,
        0.0,
        None,
    )
    assert slot.ended() is None


# -- what stops a worker ---------------------------------------------------------------------------------------


def test_the_same_signal_may_come_and_be_told_of_in_either_order():
    for order in (("comes", "told"), ("told", "comes")):
        seconds = itertools.count()
        signals = StopSignals(now=lambda seconds=seconds: next(seconds))
        with signals.heard():
            for step in order:
                if step == "comes":
                    signal.raise_signal(signal.SIGINT)
                else:
                    signals.ask(1)
            assert signals.count == 1
            signal.raise_signal(signal.SIGTERM)
            assert signals.count == 2
            signals.ask(2)
            assert signals.count == 2


def test_signals_have_their_handlers_back_behind_the_block():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals().heard():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


# -- a member and its parent -----------------------------------------------------------------------------------


class Pair:
    """A member without a process of its own, and the parent's end of its socket."""

    def __init__(self, grace=25.0):
        self.parent, self.theirs = socket.socketpair()
        self.parent.settimeout(300)
        self.lines = self.parent.makefile("rb")
        self.member = Member(3, "w-3", self.theirs)
        config = Config(application="orders-app", stream="orders", shutdown_grace=grace)
        self.worker = SimpleNamespace(_signals=StopSignals(), config=config)

    def tell(self, **what):
        self.parent.sendall(json.dumps(what).encode() + b"\n")

    def hear(self):
        return json.loads(self.lines.readline())

    def close(self):
        self.lines.close()
        self.parent.close()


@pytest.fixture
def pair(monkeypatch):
    gone = threading.Event()
    codes = []

    def left(code):
        codes.append(code)
        gone.set()

    monkeypatch.setattr(supervised, "ORPHAN_SECONDS", 0.0)
    monkeypatch.setattr(supervised.os, "_exit", left)
    found = Pair(grace=0.0)
    found.gone, found.codes = gone, codes
    found.member.watch(found.worker)
    found.member.start()
    assert found.hear() == {"worker": True}
    yield found
    found.close()
    assert gone.wait(300)
    found.theirs.close()


def test_a_member_passes_on_what_the_parent_was_asked(pair):
    pair.tell(stop=1)
    pair.tell(ask="nothing that is known")
    assert pair.hear() == {"answer": "nothing that is known", "value": None}, (
        "a failure is no answer, and no end"
    )
    assert pair.worker._signals.count == 1
    pair.tell(stop=2)
    pair.tell(ask="again")
    pair.hear()
    assert pair.worker._signals.count == 2


@pytest.mark.parametrize(
    ("reason", "said"),
    [(StopReason.RUN_OVER, {"over": True}), (StopReason.ASKED, {"answer": "x", "value": None})],
)
def test_a_member_says_that_the_run_is_over_and_not_that_it_was_stopped(pair, reason, said):
    pair.worker._stop_reason = reason
    pair.member.worker_has_ended()
    pair.tell(ask="x")
    assert pair.hear() == said


def test_what_came_before_the_worker_was_there_is_asked_of_it():
    early = Pair()
    early.member._asked = 2
    early.member.watch(early.worker)
    assert early.worker._signals.count == 2
    early.close()
    early.theirs.close()


def test_without_its_parent_a_process_drains_and_is_gone_after_its_grace(pair):
    pair.close()
    assert pair.gone.wait(300)
    assert pair.worker._signals.count == 1, "drained, and not forced"
    assert pair.codes == [70]


# -- several answers as one ------------------------------------------------------------------------------------


def page_of(worker, shard, records):
    sink = PrometheusSink(SystemRuntime(), worker, dimensions=("Operation", "ShardId", "WorkerIdentifier"))
    sink.take(shard, [(RECORDS_PROCESSED, records), (PROCESS_RECORDS_TIME, 20.0)])
    sink.take("", [(CURRENT_LEASES, 1)])
    return sink.exposition()[0].decode()


def test_metrics_of_several_processes_are_one_page_in_which_nothing_is_lost():
    hostile = 'a"} 1\n# HELP x y\\{'
    pages = {1: page_of("w-1", "s1", 3.0), 2: page_of("w-2", hostile, 4.0)}
    merged = merged_metrics(pages)
    families = {family.name: family for family in text_string_to_metric_families(merged)}
    expected = {}
    for number, page in pages.items():
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                labels = {**sample.labels, "process": str(number)}
                expected[sample.name, tuple(sorted(labels.items()))] = sample.value
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families.values() for sample in family.samples
    }  # fmt: skip
    assert found == expected
    assert merged.count("# TYPE pykcl_records_processed_total ") == 1
    assert [sample.value for sample in families["pykcl_records_processed"].samples] == [3.0, 4.0]


def test_every_family_stands_in_one_piece():
    lines = merged_metrics({1: page_of("w-1", "s", 1.0), 2: page_of("w-2", "s", 1.0)}).splitlines()
    names = [line.split()[2] if line.startswith("#") else line.partition("{")[0] for line in lines]
    pieces = [name for before, name in zip([None, *names], names, strict=False) if name != before]
    heads = [name for name in pieces if f"# TYPE {name} " in "\n".join(lines)]
    assert len(heads) == len(set(heads)) > 5


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        ("a_total 1.0", 'a_total{process="2"} 1.0'),
        ('a{b="} 1"} 2', 'a{process="2",b="} 1"} 2'),
        ("", ""),
    ],
)
def test_a_sample_is_labelled_with_its_process(sample, told):
    assert labelled(sample, 2) == told


def test_no_page_is_no_page():
    assert merged_metrics({}) == ""


def test_the_report_of_all_says_the_worst_of_each():
    told = report(None)
    behind = {**told, "max_millis_behind_latest": 70, "stalled": ["b", "a"]}
    found = merged_report(
        Verdict(),
        Verdict(("process 3: has ended",)),
        [
            report_of(1, 11, 1, {**told, "max_millis_behind_latest": 5, "stalled": ["b"]}, ()),
            report_of(2, 12, 4, behind, ()),
            report_of(3, None, 1, None, ["process 3: has ended"]),
        ],
    )
    assert (found["live"], found["ready"], found["why"]) == (True, False, ["process 3: has ended"])
    assert found["max_millis_behind_latest"] == 70
    assert found["stalled"] == ["a", "b"]
    assert [(one["process"], one["pid"], one["starts"], one["live"]) for one in found["processes"]] == [
        (1, 11, 1, True), (2, 12, 4, True), (3, None, 1, False),
    ]  # fmt: skip
    assert all({"live", "ready", "why", "stalled", "worker"} <= one.keys() for one in found["processes"])


def test_a_process_that_has_been_silent_for_long_is_dead(monkeypatch):
    parent = Parent(2, "w", ("run",))
    ours, theirs = socket.socketpair()
    slot = parent._slots[0]
    slot.channel, slot._process = ours, SimpleNamespace(pid=7, poll=lambda: None)
    monkeypatch.setattr(supervisor, "PATIENCE", 0.05)
    look = parent.check()
    assert look.live.is_good
    assert look.ready.why[0] == "process 1: has not answered for 0 s"
    slot._asked["check"] -= supervisor.DEAD_AFTER
    look = parent.check()
    assert look.live.why == ("process 1: has not answered for 30 s",)
    assert theirs.recv(1000).count(b"check") == 1, "it is not buried in questions"
    theirs.close()
    slot.close()


# -- the log ----------------------------------------------------------------------------------


def test_json_lines_say_which_process_they_are_of():
    record = logging.LogRecord("pykcl", logging.INFO, "x", 1, "hello", (), None)
    assert json.loads(JsonFormatter(2).format(record))["process"] == 2
    assert "process" not in json.loads(JsonFormatter().format(record))
