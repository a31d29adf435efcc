"""The event that a signal's handler may set while its own thread waits for it."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from pykcl.runtime import SignalEvent, SystemRuntime
from pykcl.worker.signals import StopSignals, stop_signals_go_to


def test_a_handler_sets_what_the_main_thread_is_waiting_for():
    """With an event of `threading` both could stop for good: the signal may come while its lock is taken."""
    event = SignalEvent()
    with stop_signals_go_to(lambda *_: event.set()):
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        assert event.wait(60)
        timer.join()
    event.clear()
    assert not event.wait(0)
    assert not event.is_set()


def test_who_sets_it_wakes_all_who_wait():
    event = SignalEvent()
    woken = []
    waiting = [threading.Thread(target=lambda: woken.append(event.wait(60)), daemon=True) for _ in range(5)]
    for thread in waiting:
        thread.start()
    event.set()
    for thread in waiting:
        thread.join(60)
    assert woken == [True] * 5
    assert event.wait()


def test_what_was_set_and_cleared_wakes_nobody():
    event = SignalEvent()
    for _ in range(3):
        event.set()
    event.clear()
    began = time.monotonic()
    assert not event.wait(0.05)
    assert time.monotonic() - began >= 0.05


RAIN = """
import os, signal, sys, time
while True:
    os.kill(int(sys.argv[1]), signal.SIGINT)
    time.sleep(1e-5)
"""


def test_signals_in_a_storm_while_the_main_thread_waits_and_clears():
    """They come from outside, at any moment: an event of `threading` goes down in this, in its own lock."""
    event, heard = SignalEvent(), []
    with stop_signals_go_to(lambda *_: (heard.append(1), event.set())):
        storm = subprocess.Popen([sys.executable, "-c", RAIN, str(os.getpid())])
        try:
            while len(heard) < 2_000:
                assert event.wait(60)
                event.clear()
        finally:
            storm.kill()
            storm.wait(60)


def test_a_signal_that_another_thread_was_given_is_not_overslept():
    """Nothing interrupts the main thread then, and Python runs handlers there alone."""
    event, over = SignalEvent(), threading.Event()
    other = threading.Thread(target=over.wait, daemon=True)
    other.start()
    with stop_signals_go_to(lambda *_: event.set()):
        timer = threading.Timer(0.05, signal.pthread_kill, (other.ident, signal.SIGINT))
        timer.start()
        assert event.wait(60)
        timer.join()
    over.set()
    other.join(60)


@pytest.mark.parametrize("how", ["comes", "told"])
def test_a_stop_that_is_asked_for_sets_the_event_of_whoever_waits(how):
    event = SystemRuntime().signal_event()
    signals = StopSignals(event.set)
    signals.ask(0)
    assert not event.is_set()
    with signals.heard():
        signal.raise_signal(signal.SIGTERM) if how == "comes" else signals.ask(1)
    assert event.is_set()


def test_signals_within_a_second_count_as_one():
    """GNU timeout signals its child and then the group: the worker gets the same request twice within milliseconds."""
    now = [10.0]
    signals = StopSignals(now=lambda: now[0])
    with signals.heard():
        for at, count in ((10.0, 1), (10.002, 1), (10.999, 1), (11.0, 2), (11.5, 2), (12.0, 3)):
            now[0] = at
            signal.raise_signal(signal.SIGTERM)
            assert signals.count == count, at


def test_a_request_of_the_parent_counts_at_once():
    """The parent has compared the times already."""
    signals = StopSignals(now=lambda: 10.0)
    signals.ask(1)
    signals.ask(2)
    assert signals.count == 2
