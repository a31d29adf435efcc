"""Whole runs of the demo as a user starts it: it passes, it fails a wrong build, and it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="the demo needs POSIX signals")
COMMAND = [sys.executable, "-c", "from pykcl.cli.main import main; main()", "demo", "--fast", "--headless"]


@contextmanager
def demo(folder: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env={**os.environ, "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    try:
        with process:
            yield process
    finally:
        process.kill()


def assert_nothing_is_left(folder: Path) -> None:
    assert list(folder.iterdir()) == []
    if not Path("/proc/self/cmdline").exists():
        return
    # A worker names its record_log, which lies in the folder, in its command line.
    assert [pid for pid in Path("/proc").glob("[0-9]*") if str(folder) in command_line(pid)] == []


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


def test_the_demo_passes_with_nothing_lost_and_nothing_out_of_order(tmp_path):
    with demo(tmp_path, "--seed", "7") as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert output.splitlines()[-1].startswith("PASS"), output
    assert "lost 0 · out of order 0\ndead letters 1, redriven 1\n" in output
    for step in ("workers up", "kill -9", "split", "merge", "SIGTERM", "poison record", "redrive", "drain"):
        assert f"s  {step}" in output, output
    assert_nothing_is_left(tmp_path)


@pytest.mark.slow
def test_a_build_that_checkpoints_before_delivery_fails_the_demo(tmp_path):
    with demo(tmp_path, "--seed", "8", PYKCL_DEMO_BREAK="checkpoint-before-delivery") as process:
        output, _ = process.communicate()
    assert process.returncode == 1, output
    assert output.splitlines()[-1] == "FAIL", output
    assert "user records were lost" in output
    assert "lost 0" not in output
    assert "is in 0 dead letters instead of 1" in output
    assert_nothing_is_left(tmp_path)


@pytest.mark.slow
def test_without_java_the_demo_says_so_and_goes_on_with_the_python_workers(tmp_path):
    with demo(tmp_path, "--seed", "7", "--with-java", PATH="/nowhere") as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "no Java worker: java not found. Continuing with the Python workers only." in output
    assert "Java joins" not in output
    assert output.splitlines()[-1].startswith("PASS"), output


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_its_workers_and_removes_its_folder(tmp_path, number):
    with demo(tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "workers up" in line:
                break
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait() == 130, rest
    assert "interrupted, no verdict" in rest
    assert_nothing_is_left(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found through /proc")
def test_a_demo_that_is_killed_itself_leaves_no_worker_behind(tmp_path):
    with demo(tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "workers up" in line:
                break
        workers = [pid for pid in Path("/proc").glob("[0-9]*") if str(tmp_path) in command_line(pid)]
        process.kill()
    assert len(workers) == 3
    # Raises TimeoutExpired while one of them is still there.
    subprocess.run(
        [sys.executable, "-c", WAIT_FOR_END, *(pid.name for pid in workers)], timeout=60, check=True
    )


WAIT_FOR_END = """
import os, sys, time
left = [int(pid) for pid in sys.argv[1:]]
while left:
    time.sleep(0.05)
    left = [pid for pid in left if os.path.exists(f"/proc/{pid}")]
"""
