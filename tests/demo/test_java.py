"""The guard between the demo and a JVM: no process of the group outlives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="process groups are POSIX")
PROGRAM = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", grandchild.pid, flush=True)
grandchild.wait()
"""
"""Which starts another, as a daemon starts its record processors. All of them hold the guard's standard output."""


@contextmanager
def guarded(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command: Sequence[str] = [sys.executable, "-m", "pykcl.demo.java", sys.executable, "-c", program]
    process = subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        with process:
            yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_the_whole_group_ends_when_its_parent_is_gone():
    with guarded(PROGRAM) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        process.stdin.close()
        # An end of the output is an end of all who could write to it.
        assert process.stdout.read() == ""
        assert process.wait(60) == -signal.SIGKILL


def test_sigterm_goes_to_the_program_which_may_end_in_order():
    orderly = "import signal, sys; signal.signal(15, lambda *_: sys.exit(143)); print('up', flush=True); signal.pause()"
    with guarded(orderly) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.terminate()
        assert process.wait(60) == 0


def test_the_exit_code_of_a_program_is_passed_on():
    with guarded("raise SystemExit(7)") as process:
        assert process.wait(60) == 7
