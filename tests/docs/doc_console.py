"""Runs the console blocks of a page as a reader with several terminals would.

`$ command` is run, `^C` is pressed, every other line must appear in the output of that terminal (`…` stands for
anything; the order of lines is not compared, because shards are read side by side). A terminal is the one the paragraph
in front of the block names, else the first.

The reader's folder is a scratch one, whatever the page writes into it; of the clone that the reader has, it holds the
files that a command names.

Five things are not done literally, so that a test neither builds environments nor calls itself nor ends foreign processes:

* `make …`, `python3 -m venv …` and `.venv/bin/…` are checked against what the Makefile says it runs (`make --dry-run`);
* `pip install 'pykcl[…]'` does nothing, but the project must have that extra;
* `. .venv/bin/activate` does nothing: the environment of the test is used;
* `pykcl local` takes a free port, which is shown as 4567 in its output;
* `pkill -9 -f 'worker-id NAME'` sends its signal only to the process of this session that has that argument.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import pytest
from doc_pages import ROOT, Block

from pykcl.local import local_environment

DEADLINE = 300.0
_RUNS_ON = re.compile(r"pykcl (local|run|multilangd)\b|python orders\.py$")
_INSTALLS = re.compile(r"pip install 'pykcl\[(\w+)\]'")
_BUILDS = re.compile(r"make |python3 -m venv |\.venv/bin/")
_KILL = re.compile(r"pkill -9 -f '(worker-id \w+)'")
_TERMINAL = re.compile(r"\bterminal (\d)", re.IGNORECASE)
_EXPORT = re.compile(r"export (\w+)=(\S+)")


class Running:
    """A program and the lines it has printed so far."""

    def __init__(self, command: str, cwd: Path, env: dict[str, str]) -> None:
        self.command = command
        self.lines: list[str] = []
        self.killed = False
        self._asked_to_end = False
        self._more = threading.Condition()
        # exec: the signal must reach the program, not a shell in front of it.
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=cwd, env=env, text=True, encoding="utf-8",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        # Each by itself: what a program prints in two pieces may have a line of its log between them.
        self._readers = [
            threading.Thread(target=self._read, args=(output,), daemon=True)
            for output in (self._process.stdout, self._process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                with self._more:
                    self.lines.append(line.rstrip("\n"))
                    self._more.notify_all()

    def wait_for(self, expected: str) -> None:
        """Until a line looks as expected. Fails at the deadline, or when the program has ended without it."""
        wanted = re.compile(re.escape(expected).replace("…", ".*"))
        deadline, seen = time.monotonic() + DEADLINE, 0
        with self._more:
            while not any(wanted.fullmatch(shown) for shown in self._new(seen)):
                seen = len(self.lines)
                left = deadline - time.monotonic()
                if left <= 0 or (not self._may_print_more() and seen == len(self.lines)):
                    break
                self._more.wait(min(left, 0.5))
            else:
                return
        if self._process.poll() is None:
            # Python writes the stacks of its threads (PYTHONFAULTHANDLER).
            self._process.send_signal(signal.SIGABRT)
            self._process.wait(DEADLINE)
        self._read_the_rest()
        raise AssertionError(f"{self.command!r} never printed {expected!r}, but:\n" + "\n".join(self.lines))

    def wait(self, seconds: float) -> None:
        """Until it prints something, or for so long."""
        with self._more:
            if self._may_print_more():
                self._more.wait(seconds)

    def _may_print_more(self) -> bool:
        return any(reader.is_alive() for reader in self._readers)

    def _read_the_rest(self) -> None:
        for reader in self._readers:
            reader.join(DEADLINE)

    def _new(self, seen: int) -> list[str]:
        return [re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:4567", line) for line in self.lines[seen:]]

    def send(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
        self.killed = self.killed or number is signal.SIGKILL
        self._asked_to_end = True

    def end(self) -> None:
        """SIGTERM, unless it was asked before. Fails unless it ends in time and cleanly."""
        if not self._asked_to_end:
            self.send(signal.SIGTERM)
        try:
            code = self._process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise AssertionError(f"{self.command!r} did not end:\n" + "\n".join(self.lines)) from None
        self._read_the_rest()
        expected = -signal.SIGKILL if self.killed else 0
        assert code == expected, f"{self.command!r} ended with {code}:\n" + "\n".join(self.lines)

    def abandon(self) -> None:
        """After a failure: leave nothing behind."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(DEADLINE)


class Session:
    """The terminals of one reader of one page."""

    def __init__(self, cwd: Path) -> None:
        assert not cwd.is_relative_to(ROOT), "what a page writes would stay in the repository"
        self.cwd = cwd
        self.env = {
            name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "PYKCL_"))
        }
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self.env['PATH']}"
        self.env["PYTHONPATH"] = str(ROOT)
        self.env["PYTHONUNBUFFERED"] = "1"
        self.env["PYTHONFAULTHANDLER"] = "1"
        self.env["PYTHONIOENCODING"] = "utf-8"
        self.commands: list[str] = []
        self._terminals: dict[int, Running] = {}
        self._started: list[Running] = []

    def run(self, block: Block) -> None:
        named = _TERMINAL.findall(block.before)
        terminal = int(named[-1]) if named else 1
        for line in block.text.splitlines():
            if line.startswith("$ "):
                self._command(terminal, line[2:])
            elif line == "^C":
                self._terminals[terminal].send(signal.SIGINT)
            elif line.strip(" …"):
                self._terminals[terminal].wait_for(line)
                if line.startswith("export "):
                    # Pages leave out the others, and what is printed elsewhere may be read before them.
                    for name in local_environment(""):
                        self._terminals[terminal].wait_for(f"export {name}=…")
                self._learn_exports(terminal)

    def _command(self, terminal: int, command: str) -> None:
        self.commands.append(command)
        if command == ". .venv/bin/activate":
            return
        if found := _INSTALLS.fullmatch(command):
            project = (ROOT / "pyproject.toml").read_text("utf-8")
            assert f"\n{found[1]} = [" in project, f"{command!r} names an extra that there is not"
        elif _BUILDS.match(command):
            check_build_command(command)
        elif found := _KILL.fullmatch(command):
            victims = [one for one in self._started if f"--{found[1]} " in one.command]
            assert len(victims) == 1, f"{command!r} is meant for {len(victims)} processes"
            victims[0].send(signal.SIGKILL)
        elif found := _RUNS_ON.match(command):
            free_port = " --port 0" if found[1] == "local" else ""
            self._terminals[terminal] = running = Running(command + free_port, self.cwd, self.env)
            self._started.append(running)
        else:
            self._bring_files_of(command)
            self._terminals[terminal] = running = Running(command, self.cwd, self.env)
            self._started.append(running)
            assert running._process.wait(DEADLINE) == 0, f"{command!r} failed:\n" + "\n".join(running.lines)

    def _bring_files_of(self, command: str) -> None:
        for word in shlex.split(command):
            if "/" in word and (ROOT / word).is_file():
                (self.cwd / word).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / word, self.cwd / word)

    def _learn_exports(self, terminal: int) -> None:
        """The page tells the reader to paste them everywhere."""
        for line in self._terminals[terminal].lines:
            if found := _EXPORT.fullmatch(line):
                self.env[found[1]] = found[2]

    def end(self) -> None:
        """Stop what still runs, the local AWS last."""
        for running in reversed(self._started):
            running.end()

    def abandon(self) -> None:
        for running in self._started:
            running.abandon()


def check_build_command(command: str) -> None:
    """The Makefile must know the target, or run the very command for `make demo` or `make test`."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    if command.startswith("make "):
        dry_run(command.removeprefix("make "))
        return
    known = dry_run("demo") | dry_run("test")
    assert plain(command) in known, f"{command!r} is not what the Makefile runs: {sorted(known)}"


def dry_run(target: str) -> set[str]:
    """The commands `make target` would run on a fresh clone. Fails for a target there is not."""
    done = subprocess.run(
        ["bash", "-c", f"make --dry-run --always-make --no-print-directory {target}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"make {target}: {done.stderr}"
    return {plain(line) for line in done.stdout.splitlines()}


def plain(command: str) -> str:
    """Without pip's options for silence and without what is said when a step fails."""
    short = command.split(" || ")[0]
    return " ".join(word for word in short.split() if word not in ("--quiet", "--disable-pip-version-check"))
