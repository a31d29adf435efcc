"""Processes that are measured from outside: their CPU by the kernel's own clock of them, and a word with them by lines."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_START_SECONDS = 60.0


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads, those included that have ended; to the microsecond.

    Its children are not in it. Linux: the clock of a process is made of its number (`clock_getcpuclockid`).
    """
    return time.clock_gettime((~pid << 3) | 2)


def tree(root: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found, left = [], [root]
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return found


def tree_cpu_seconds(root: int) -> float:
    """Of a process and all below it that live."""
    total = 0.0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            total += cpu_seconds(pid)
    return total


class Child:
    """A program that answers each line "count" with {"records": user records it was given so far, "bytes": ...}."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log_folder: Path
    ) -> None:
        self.name = name
        self._log = log_folder / f"{name.replace(' ', '-').replace(',', '').replace('/', '-')}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                list(command), env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, start_new_session=True,
            )  # fmt: skip

    @property
    def cpu(self) -> float:
        return cpu_seconds(self.process.pid)

    def count(self) -> tuple[int, int]:
        """User records and their bytes."""
        found = self.ask("count")
        return int(found["records"]), int(found["bytes"])

    def ask(self, word: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended:\n{self._log.read_text('utf-8')[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wait_for_records(self, beyond: int, seconds: float = _START_SECONDS) -> int:
        """Wait until it was given more than so many; return how many."""
        deadline = time.monotonic() + seconds
        while (records := self.count()[0]) <= beyond:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self.name} got no records within {seconds:g} s:\n{self._log.read_text('utf-8')[-2000:]}"
                )
            time.sleep(0.05)
        return records

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    @property
    def memory(self) -> int:
        """The resident set, bytes."""
        return self._status_bytes("VmRSS:")

    @property
    def peak_memory(self) -> int:
        """The highest resident set so far, bytes."""
        return self._status_bytes("VmHWM:")

    def _status_bytes(self, name: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        return int(status.partition(name)[2].split()[0]) * 1024

    def interrupt(self, seconds: float) -> None:
        """Ctrl-C, and by force if it does not end within so many seconds."""
        self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.end()

    def end(self) -> None:
        """By force: nothing of it is wanted any more."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
