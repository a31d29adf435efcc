"""`python -m pykcl.demo.java_guard COMMAND …`: runs a program that outlives its parent, as a JVM does.

The guard must lead a process group, in which the program and all of its children stay. When standard input ends,
because the process that started the guard is gone, even by kill -9, the whole group is killed. SIGTERM is passed to the
program alone, so that it can end its children in order; the exit code is 0 then, else the program's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence


class Guard:
    """Run one program. Use once."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._asked = False

    def run(self, command: Sequence[str]) -> int:
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        threading.Thread(target=_kill_with_the_parent, name="guard-parent", daemon=True).start()
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - given by who starts us
        if self._asked:  # the signal came before there was a child to pass it to
            self._child.terminate()
        code = self._child.wait()
        return 0 if self._asked else code

    def _end(self) -> None:
        self._asked = True
        if self._child is not None:
            self._child.terminate()


def _kill_with_the_parent() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(Guard().run(sys.argv[1:]))
