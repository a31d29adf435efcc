"""Ends what a harness started when the harness is gone, however it went: `Reaper`, and the process that it starts.

A process that is not ours (a JVM) cannot be taught to look after its parent, and one that is frozen looks after nothing.
So there is one process more, which is told the process groups, and ends those it still knows when its input ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys


class Reaper:
    """Use as a context manager. Groups are named by the process id of the one that leads them."""

    def __enter__(self) -> Reaper:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, start_new_session=True
        )
        return self

    def watch(self, group: int) -> None:
        self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        """Once its leader has been waited for, the number may become another's."""
        self._tell(f"-{group}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        group = int(line[1:])
        groups.add(group) if line[:1] == b"+" else groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
