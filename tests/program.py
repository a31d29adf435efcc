"""A program of its own process, with what it says in files."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event


class Program:
    """python with these arguments, in a folder; `out` and `err` there have what it and others in this folder say."""

    def __init__(
        self, folder: Path, *arguments: str | Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self.out, self.err = folder, folder / "out", folder / "err"
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip

    def wait(
        self, condition: Callable[[], object], what: str = "its condition", seconds: float = 60.0
    ) -> None:
        """Wait until the condition holds; the program must not end before."""
        deadline, pause = time.monotonic() + seconds, Event()
        while not condition():
            assert self.process.poll() is None, f"it ended before {what}: {self.err.read_text()}"
            assert time.monotonic() < deadline, f"{what} did not come: {self.err.read_text()}"
            pause.wait(0.02)

    def wait_for(self, words: str, where: Path) -> None:
        self.wait(lambda: words in where.read_text(), repr(words))

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
