"""What user code forks: it has a copy of the worker, which does nothing, and signals that do what they did before."""

import os
import signal
import sys
import threading
from types import SimpleNamespace

import pytest

from pykcl.config import Config
from pykcl.errors import LeaseLostError
from pykcl.model.checkpoint import TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease
from pykcl.runtime import SystemRuntime
from pykcl.worker import signals
from pykcl.worker.held_leases import HeldLease
from pykcl.worker.signals import OwnProcess, stop_signals_go_to

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

NOT_ENDED = 99


def forked(act):
    """How a forked process ends that does this: its exit code, or minus the signal that ended it."""
    process = os.fork()
    if process == 0:
        try:
            act()
        finally:
            os._exit(NOT_ENDED)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def leaves_by(leave):
    own = OwnProcess()

    def act():
        with own.alone_leaves("process_records", "s1"):
            leave()

    return act


def raises(error):
    def leave():
        raise error

    return leave


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        (sys.exit, 0),
        (lambda: sys.exit(7), 7),
        (lambda: sys.exit("done"), 1),
        (raises(ValueError("mine")), 1),
        (raises(KeyboardInterrupt()), 1),
        (lambda: None, 1),
    ],
    ids=["exit", "exit 7", "exit with text", "raises", "Ctrl-C", "returns"],
)
def test_a_forked_process_ends_where_it_would_come_back_to_the_worker(leave, code):
    assert forked(leaves_by(leave)) == code


def test_what_it_raised_is_told_as_python_tells_it(capfd):
    forked(leaves_by(raises(ValueError("mine"))))
    assert "ValueError: mine" in capfd.readouterr().err


def test_what_it_has_written_is_not_lost(tmp_path, monkeypatch):
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert forked(leaves_by(lambda: (out.write("kept"), sys.exit(0)))) == 0
    assert (tmp_path / "out").read_text() == "kept"


class Broken:
    def write(self, text):
        raise BrokenPipeError

    flush = write


class Hanging:
    """Its lock is with a thread that is not there."""

    def write(self, text):
        threading.Event().wait()

    def flush(self):
        self.write("")


def interrupting(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("leave", [lambda: sys.exit("done"), raises(ValueError("mine")), lambda: None])
@pytest.mark.parametrize("stream", [None, Broken(), Hanging()], ids=["none", "broken", "hanging"])
def test_it_ends_whatever_stands_in_the_way_of_its_last_words(stream, leave, monkeypatch):
    monkeypatch.setattr(signals, "_LAST_WORDS", 0.2)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(signals.log, "error", interrupting)
    assert forked(leaves_by(leave)) == 1


def test_it_ends_whatever_the_program_does_with_exceptions(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", lambda *_: sys.exit(4))
    assert forked(leaves_by(raises(ValueError("mine")))) == 1


def test_in_the_process_of_the_worker_nothing_of_this_happens():
    own = OwnProcess()
    with own.alone_leaves("process_records", "s1"):
        pass
    with pytest.raises(SystemExit), own.alone_leaves("process_records", "s1"):
        sys.exit(3)


def test_a_forked_process_can_write_nothing_for_a_lease():
    runtime = SystemRuntime()
    table = SimpleNamespace(write=lambda write, until: pytest.fail("it was written"))
    lease = Lease(key="s1", checkpoint=Checkpoint(TRIM_HORIZON, 0), owner="w", counter=1)
    held = HeldLease(
        lease, runtime.monotonic(), table=table, runtime=runtime,
        config=Config(application="app", stream="s"), wake=runtime.event(),
    )  # fmt: skip

    def act():
        for lock in (held._one_write, held._state):
            lock.acquire()  # as the thread of the heartbeats may have had it, which is not there
        try:
            held.write(lambda lease: pytest.fail("it was built"))
        except LeaseLostError as refused:
            os._exit(0 if "was forked from the worker" in str(refused) else 1)

    assert forked(act) == 0
    held.check()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_forked_process_can_be_terminated(number):
    """multiprocessing does so with its own, and waits for them when the process ends."""
    ready, tell = os.pipe()
    former = signal.signal(number, signal.SIG_DFL)
    try:
        with stop_signals_go_to(lambda *_: None), stop_signals_go_to(lambda *_: None):
            process = os.fork()
            if process == 0:
                os.write(tell, b"x")
                signal.alarm(20)
                while True:
                    signal.pause()
            assert os.read(ready, 1) == b"x"
            os.kill(process, number)
            assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -number
            assert signal.getsignal(number) is not signal.SIG_DFL
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, former)
        os.close(ready)
        os.close(tell)


def test_a_forked_process_may_leave_the_block_itself():
    def act():
        with stop_signals_go_to(lambda *_: None):
            inner = os.fork()
            if inner:
                os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
        os._exit(0)

    assert forked(act) == 0
