"""One place among the processes of `--processes`: the process that fills it now, and when the next one may."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pykcl.cli.exit_codes import EXIT_CONFIGURATION, EXIT_CRASH, EXIT_USAGE

log = logging.getLogger("pykcl.processes")

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
LONG_LIFE = 60.0
"""Seconds after which a crash counts as the first one again."""
_READ_BYTES = 65_536


def pause_after(failures: int) -> float:
    """Seconds until a process that ended is started again, after so many short lives in a row."""
    return float(min(FIRST_PAUSE * 2.0 ** min(failures - 1, 16), LONGEST_PAUSE))


def is_final(code: int, *, had_worker: bool, ever_worked: bool) -> bool:
    """Whether a new process would fare no better, so that all end with this one's code.

    That is so for configuration and surroundings, for what was called wrongly, and for whatever ended the very first
    processes before they had a worker, such as a module that cannot be imported.
    """
    if code == EXIT_CONFIGURATION:
        return True
    return not had_worker and (code == EXIT_USAGE or not ever_worked)


def exit_code_of(code: int) -> int:
    """As an exit code of ours: who was ended by a signal has crashed."""
    return EXIT_CRASH if code < 0 else code


class Slot:
    """number: from 1 on. arguments: of `pykcl`, the verb first. Not thread-safe: its owner locks.

    pid, channel: of the process that is there. starts: how many were. had_worker: whether this one came to have one.
    is_mute: it will tell no more. again_at: when the next one may start, of time.monotonic(). code: which the last one
    ended with.
    """

    def __init__(self, number: int, worker_id: str, arguments: Sequence[str]) -> None:
        self.number, self.worker_id = number, worker_id
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.starts = 0
        self.had_worker = False
        self.is_mute = False
        self.again_at = 0.0
        self.code: int | None = None
        self._began_at = 0.0
        self._failures = 0
        self._unread = b""
        self._told_to_stop = 0
        self._answers: dict[str, Any] = {}
        self._asked: dict[str, float] = {}

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    # -- its life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        self.starts += 1
        self._began_at = time.monotonic()
        command = [sys.executable, "-m", "pykcl.cli.process_child", str(self.number), self.worker_id]
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - this very command again
                    [*command, str(theirs.fileno()), *self._arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self.channel = ours
        self.had_worker, self.is_mute, self.code = False, False, None
        self._unread, self._told_to_stop = b"", 0
        self._answers, self._asked = {}, {}
        log.info("process started process=%d pid=%d worker_id=%s", self.number, self.pid, self.worker_id)

    def ended(self) -> int | None:
        """The code of a process that has come to its end since this was last asked; None: it has not."""
        if self._process is None or self._process.poll() is None:
            return None
        self.read()
        self.code = self._process.returncode
        self._process = None
        self.close()
        return self.code

    def rest(self) -> float:
        """Seconds until it may be filled again, counted from now on."""
        now = time.monotonic()
        self._failures = 1 if now - self._began_at >= LONG_LIFE else self._failures + 1
        pause = pause_after(self._failures)
        self.again_at = now + pause
        return pause

    def stop(self, times: int) -> None:
        """Tell the process that it was asked to stop so many times in all."""
        if times > self._told_to_stop:
            self._told_to_stop = times
            self._send({"stop": times})

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        self._asked = {}

    # -- what it tells -----------------------------------------------------------------------------------------

    def read(self) -> None:
        """Take in what it has told so far."""
        while self.channel is not None and not self.is_mute:
            try:
                more = self.channel.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                log.debug("process cannot be heard process=%d error=%s", self.number, type(error).__name__)
                more = b""
            self.is_mute = not more
            *lines, self._unread = (self._unread + more).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def ask(self, what: str) -> None:
        """A question that waits for its answer is not asked again: one that is frozen is not buried in them."""
        if what not in self._asked and self.channel is not None:
            self._asked[what] = time.monotonic()
            self._send({"ask": what})

    def is_waited_for(self, what: str, patience: float) -> bool:
        """Whether that was asked less than `patience` seconds ago and not answered yet."""
        asked = self._asked.get(what)
        return self.channel is not None and asked is not None and time.monotonic() - asked < patience

    def answer(self, what: str) -> Any:
        """To the last such question; None where there is none."""
        return self._answers.get(what) if what not in self._asked and self.channel is not None else None

    @property
    def silent_for(self) -> float:
        """Seconds for which its oldest question has been waiting."""
        return time.monotonic() - min(self._asked.values()) if self._asked else 0.0

    def _take(self, told: Mapping[str, Any]) -> None:
        if "answer" in told:
            self._asked.pop(told["answer"], None)
            self._answers[told["answer"]] = told["value"]
        elif "worker" in told:
            self.had_worker = True

    def _send(self, what: Mapping[str, Any]) -> None:
        if self.channel is None:
            return
        try:
            self.channel.send(json.dumps(what).encode("ascii") + b"\n")
        except OSError as error:
            # It has ended, or is frozen with a full buffer; either shows by itself.
            log.debug("process cannot be told process=%d error=%s", self.number, type(error).__name__)


def environment_supports_it() -> bool:
    """Whether this system can hand a socket to a process it starts."""
    return os.name == "posix"
