"""What a thread is doing can be told without stopping the interpreter: see `pykcl.runtime._frames`."""

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pykcl import runtime

ROOT = Path(__file__).parents[2]

# Each round has a thread whose frames nobody has looked at yet, and garbage with thread-local values in it.
HUNTED = """
import gc, threading
from pykcl.runtime import SystemRuntime

class Cell:
    pass

def deep(levels, there, go_on):
    if levels:
        return deep(levels - 1, there, go_on)
    there.set()
    go_on.wait()

system = SystemRuntime()
gc.disable()
gc.set_threshold(1, 1, 1)
for _ in range(20):
    there, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=deep, args=(30, there, go_on), daemon=True)
    thread.start()
    there.wait()
    for _ in range(20):
        cell = Cell()
        cell.itself, cell.local = cell, threading.local()
        cell.local.value = 1
    del cell
    gc.enable()
    assert len(system.stack(thread)) > 30
    gc.disable()
    go_on.set()
    thread.join()
"""


def test_telling_a_stack_never_stops_the_interpreter():
    # Where it does, it does so in the first round: the deadline decides nothing else.
    subprocess.run([sys.executable, "-c", HUNTED], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_meanwhile_and_afterwards_all_is_as_it_was(monkeypatch, enabled):
    seen = []
    monkeypatch.setattr(runtime.sys, "_current_frames", lambda: seen.append(gc.isenabled()) or {})
    try:
        (gc.enable if enabled else gc.disable)()
        assert runtime.SystemRuntime().stack(threading.current_thread()) == ()
        assert seen == [False]
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def outer(wait, function):
    return function(wait)


def inner(wait):
    wait()


def _while_in_a_call(look):
    """What look(thread) gives while a thread is in outer → outer → inner → wait."""
    there, go_on = threading.Event(), threading.Event()

    def wait():
        there.set()
        go_on.wait(30)

    thread = threading.Thread(target=outer, args=(wait, lambda wait: outer(wait, inner)), daemon=True)
    thread.start()
    try:
        assert there.wait(300)
        return look(thread)
    finally:
        go_on.set()
        thread.join()


def test_a_stack_begins_below_the_innermost_call_of_the_code_that_is_named():
    system = runtime.SystemRuntime()
    stack = _while_in_a_call(lambda thread: system.stack(thread, below=outer.__code__))
    assert [frame.rpartition(" in ")[2] for frame in stack][:2] == ["inner", "wait"]
    assert stack[0].startswith("test_stacks.py:")


def test_a_stack_without_a_call_of_that_code_is_told_as_a_whole():
    system = runtime.SystemRuntime()
    stack = _while_in_a_call(lambda thread: system.stack(thread, below=_while_in_a_call.__code__))
    assert sum(" in outer" in frame for frame in stack) == 2
