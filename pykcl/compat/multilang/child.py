"""One child process: the state of the conversation with it, its pipes, and the log of its output."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO

from pykcl.compat.multilang.protocol import CHUNK_BYTES, CheckpointAsked, Message, Noise, Status, parse
from pykcl.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStarted(Event):
    """pid: also of the child's own session and process group."""

    TEXT = "child started"
    shard: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFailed(Event):
    """The child ended, hung or could not be started. Its shard continues with a new child.

    failures: number of children of this shard that have failed in this process, including this one.
    """

    LEVEL = logging.ERROR
    TEXT = "child failed"
    shard: str
    pid: int | None
    doing: str
    why: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnded(Event):
    """exit: exit code, or minus the number of the signal that ended the child. forced: the signal sent, if any."""

    TEXT = "child ended"
    shard: str
    pid: int
    exit: int
    forced: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerNotBelieved(Event):
    """The child printed a status line that matches no request. awaited: action of the pending request, if any.

    Reported once for each child.
    """

    LEVEL = logging.WARNING
    TEXT = "a status line of the child matches no pending request and is ignored"
    shard: str
    pid: int
    answers: str
    awaited: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNotUnderstood(Event):
    """The child requested a checkpoint at an invalid position, and was answered IllegalArgumentException.

    field: the invalid one. The line itself is in the log of the child's output. Reported once for each child.
    """

    LEVEL = logging.WARNING
    TEXT = "a child requested a checkpoint at an invalid position and was refused"
    shard: str
    pid: int
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBehindText(Event):
    """The child printed text without a line end, and then a message: the line is no message, as in Java.

    Reported once for each child. The line itself is in the log of the child's output.
    """

    LEVEL = logging.WARNING
    TEXT = (
        "a message of the child is behind other text in its line, so it is not read and the child may wait for ever: "
        "print a line end before it, or print the text to standard error"
    )
    shard: str
    pid: int


MAX_QUESTIONS = 1_000
"""Max checkpoint requests without an answer. A child with more does not speak the protocol: the rest is noise."""
NONSENSE_SECONDS = 30.0
"""Time to wait for the awaited answer after another one, if the child is silent. Java does not wait."""
UNENDED_SECONDS = 1.0
"""Time after which an unfinished line on standard error is logged as far as it has arrived."""
_LACKS_KCLPY = re.compile(rb"(?:ModuleNotFound|Import)Error: No module named '?amazon_kclpy\b")


class ChildGone(Exception):
    """The conversation with this child is over. The text gives the reason, as the predicate of a sentence about it."""


class Child:
    """A child process. `send`, `receive` and `questions_before` are called by the thread of the lease, methods named
    `on_…` by the selector thread. notify_loop: makes the selector thread check this child's pipes again.

    lacks_kclpy: the child reported that its Python has no module amazon_kclpy.
    """

    def __init__(
        self,
        shard: str,
        process: subprocess.Popen[bytes],
        notify_loop: Callable[[Child], None],
        emit: Callable[[Event], None],
    ) -> None:
        self.shard = shard
        self.pid = process.pid
        self.process = process
        self.forced: str | None = None
        self.is_stuck = self.lacks_kclpy = self._is_unended = False
        self._notify_loop = notify_loop
        self._emit = emit
        self._log = ChildLog(shard)
        self._stdin = _not_blocking(process.stdin)
        self._stdout, self._stderr = Pipe(process.stdout), Pipe(process.stderr)
        self._changed = threading.Condition()
        self._inbox: deque[Message] = deque()
        self._outbox: deque[memoryview] = deque()
        self._queued = self._written = 0
        self._stdin_broken = False
        self._awaited: str | None = None
        self._question_ends: int | None = None
        self._started_early: int | None = None
        self._nonsense_until: float | None = None
        self._reported_disbelief = self._reported_wrong_position = self._reported_text = False
        self._gone: str | None = None
        self._ended = threading.Event()

    # -- by the thread of its lease ----------------------------------------------------------------------------

    def questions_before(self) -> list[CheckpointAsked]:
        """Return the checkpoint requests since the last answer, and drop all else that the child has printed by now.

        Reads the pipe at once: 1) the child prints a second line like its last answer; 2) the next request is sent;
        3) the selector thread reads that line, and would take it for the answer to the new request. An unfinished line
        belongs to the time before, too, whenever it ends.
        """
        with self._changed:
            self._question_ends = None
            self._hear(self._stdout.all())
            questions = [one for one in self._inbox if isinstance(one, CheckpointAsked)]
            self._inbox.clear()
            return questions

    def send(self, pieces: Iterable[bytes], *, awaits: str | None, until: float | None) -> None:
        """Write a line in pieces; wait while the child has not read most of it. awaits: the action of the answer.

        until: monotonic time. Raises ChildGone, TimeoutError.
        """
        if awaits is not None:
            with self._changed:
                self._awaited, self._question_ends = awaits, None
        for piece in pieces:
            with self._changed:
                self._queued += len(piece)
                if awaits is not None and piece.endswith(b"\n"):
                    # Set before the write: the answer may arrive before this thread has the lock again.
                    self._question_ends = self._queued
                self._write(piece)
                self._wait(until, self._was_read)

    def receive(self, until: float | None) -> Message:
        """Return the next checkpoint request, or the status of the pending action. Raises ChildGone, TimeoutError."""
        with self._changed:
            self._wait(until, self._has_spoken)
            return self._inbox.popleft()

    @property
    def is_gone(self) -> bool:
        """True if the conversation with the child is over."""
        return self._gone is not None

    def wait_ended(self, seconds: float) -> bool:
        """Return True if the process ends, and is reaped, within so many seconds."""
        return self._ended.wait(seconds)

    def _wait(self, until: float | None, done: Callable[[bool], bool]) -> None:
        """Wait for done(False), which uses what the selector thread has read. At the deadline done(True) reads and
        writes the pipes itself: a child must not fail because the selector thread is late."""
        while not done(False):
            if self._gone is not None:
                raise ChildGone(self._gone)
            now, ends = time.monotonic(), [at for at in (until, self._nonsense_until) if at is not None]
            if ends and now >= min(ends):
                if done(True):
                    return
                if until is not None and now >= until:
                    raise TimeoutError
                raise ChildGone("sent a status for another action than the pending one, and then nothing")
            self._changed.wait(min(ends) - now if ends else None)

    def _has_spoken(self, now: bool) -> bool:
        if now:
            self._hear(self._stdout.all())
        return bool(self._inbox)

    def _was_read(self, now: bool) -> bool:
        """Return True if at most one chunk of the sent bytes is unread."""
        if now:
            self._flush()
        return self._queued - self._written <= CHUNK_BYTES

    def _write(self, piece: bytes) -> None:
        """Write to the pipe as much as fits; the selector thread writes the rest."""
        if self._gone is not None:
            raise ChildGone(self._gone)
        self._outbox.append(memoryview(piece))
        if len(self._outbox) == 1:
            self._flush()
            if self._outbox or self._stdin_broken:
                self._notify_loop(self)

    def _flush(self) -> None:
        while self._outbox and not self._stdin_broken:
            view = self._outbox[0]
            try:
                written = os.write(self._stdin, view)
            except BlockingIOError:
                return
            except OSError:
                # The child closed its end, or is ending; the selector thread waits a moment to find out.
                self._stdin_broken = True
                return
            self._written += written
            if written == len(view):
                self._outbox.popleft()
            else:
                self._outbox[0] = view[written:]

    def _close_stdin(self) -> None:
        """Close standard input, only on the selector thread, which must unregister the descriptor before its number is
        reused.
        """
        self._outbox.clear()
        self._stdin_broken, self._stdin = True, -1
        if self.process.stdin is not None:
            # Unbuffered: nothing is left that closing could fail to write.
            self.process.stdin.close()

    # -- by the selector thread --------------------------------------------------------------------------------

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """Descriptors of standard input, output and error; -1 if closed."""
        return self._stdin, self._stdout.descriptor, self._stderr.descriptor

    @property
    def wants_to_write(self) -> bool:
        with self._changed:
            return bool(self._outbox) and not self._stdin_broken

    @property
    def closed_its_stdin(self) -> bool:
        with self._changed:
            return self._stdin_broken and self._stdin >= 0

    def on_writable(self) -> None:
        with self._changed:
            if self._was_read(now=True):
                self._changed.notify_all()

    def on_closed_input(self) -> None:
        """Note that the child closed its standard input."""
        with self._changed:
            self._stdin_broken = True

    def on_output(self) -> bool:
        """Read the output, up to the limit of one turn. Return False at its end."""
        with self._changed:
            self._hear(self._stdout.turn())
            return self._stdout.is_open

    def on_complaint(self) -> bool:
        """Read standard error in the same way."""
        self._hear_complaints(self._stderr.turn())
        return self._stderr.is_open

    def starts_an_unended_line(self) -> bool:
        """Return True once per unfinished line: call `on_unended_line` after UNENDED_SECONDS then."""
        begins = self._stderr.has_started and not self._is_unended
        self._is_unended = self._is_unended or begins
        return begins

    def on_unended_line(self) -> None:
        """Log an unfinished line: the output of programs that never print a line end is logged while they run."""
        self._is_unended = False
        self._complained_without_end(self._stderr.rest())

    def on_gone(self, why: str) -> None:
        """End the conversation. The first reason counts."""
        with self._changed:
            if self._gone is None:
                self._gone = why
            self._changed.notify_all()

    def on_close_stdin(self) -> None:
        with self._changed:
            self._close_stdin()

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the whole process group, including the children of a launcher. Only before the process is
        reaped: its identifier cannot have been reused until then."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def on_ended(self) -> int:
        """Reap the process, read the rest of its output, and close the pipes. Return the exit code."""
        # Processes that it left behind would go on with a shard that another child is given.
        self.signal_group(signal.SIGKILL)
        exit_code = self.process.wait()
        with self._changed:
            self._hear(self._stdout.all())
            self._close_stdin()
            is_early = self._stdout.ended == self._started_early
            if rest := self._stdout.close():
                # As in Java's reader the end of the pipe ends a line.
                self._said(rest, True, is_early)
        self._hear_complaints(self._stderr.all())
        self._complained_without_end(self._stderr.close())
        self.on_gone(_exit_words(exit_code))
        self._ended.set()
        return exit_code

    # -- its output --------------------------------------------------------------------------------------------

    def _hear(self, lines: Iterable[tuple[bytes, bool]]) -> None:
        """Requires the lock: the thread of the lease reads, too."""
        for line, whole in lines:
            self._said(line, whole, self._stdout.ended - 1 == self._started_early)
        if self._stdout.has_started and not self._is_asked:
            self._started_early = self._stdout.ended
        self._log.printed_over()

    def _hear_complaints(self, lines: Iterable[tuple[bytes, bool]]) -> None:
        for line, whole in lines:
            self.lacks_kclpy = self.lacks_kclpy or _LACKS_KCLPY.match(line) is not None
            self._log.complained(line, whole)
        self._log.complained_over()

    def _complained_without_end(self, text: bytes) -> None:
        for piece in pieces(text):
            self._log.complained(piece, True)
        self._log.complained_over()

    def _said(self, line: bytes, whole: bool, started_early: bool) -> None:
        """started_early: the line started before the pending request was sent, and cannot refer to it. 1) The child
        prints half a line; 2) the next request is sent; 3) the child prints the other half.
        """
        # Not once it is being ended: 1) SIGTERM breaks off its work; 2) it swallows that, and says that it is done; 3)
        # the thread of the lease, which is late, would believe it.
        message = parse(line) if whole and self._gone is None else Noise()
        if isinstance(message, CheckpointAsked) and len(self._inbox) < MAX_QUESTIONS:
            if message.wrong is not None:
                self._log.refused(line)
                self._wonder(message.wrong)
            early = started_early or self._awaited is None or not self._is_asked
            self._speaks_sense()
            self._inbox.append(replace(message, early=early))
            self._changed.notify_all()
        elif isinstance(message, Status) and not started_early and self._is_answer(message):
            self._awaited = self._nonsense_until = None
            self._inbox.append(message)
            self._changed.notify_all()
        elif isinstance(message, Noise):
            self._log.printed(line, whole)
            if whole and not self._reported_text and _ends_with_a_message(line):
                self._reported_text = True
                self._emit(MessageBehindText(shard=self.shard, pid=self.pid))
        else:
            self._log.refused(line)
            if isinstance(message, Status):
                self._disbelieve(message)

    @property
    def _is_asked(self) -> bool:
        """True if the request has been written to its end: no line before that can refer to it."""
        return self._question_ends is not None and self._written >= self._question_ends

    def _is_answer(self, status: Status) -> bool:
        return self._is_asked and self._awaited is not None and status.response_for == self._awaited

    def _wonder(self, field: str) -> None:
        if not self._reported_wrong_position:
            self._reported_wrong_position = True
            self._emit(CheckpointNotUnderstood(shard=self.shard, pid=self.pid, field=field))

    def _speaks_sense(self) -> None:
        if self._nonsense_until is not None:
            self._nonsense_until = time.monotonic() + NONSENSE_SECONDS

    def _disbelieve(self, status: Status) -> None:
        if self._awaited is not None and self._is_asked and self._nonsense_until is None:
            # The line may resemble an answer by accident. If nothing follows, the child waits for the next action.
            self._nonsense_until = time.monotonic() + NONSENSE_SECONDS
            self._changed.notify_all()
        if self._reported_disbelief:
            return
        self._reported_disbelief = True
        answers = (status.response_for or "nothing")[:100]
        self._emit(AnswerNotBelieved(shard=self.shard, pid=self.pid, answers=answers, awaited=self._awaited))


def _ends_with_a_message(line: bytes) -> bool:
    """True for text that a message follows; a line that is JSON from its beginning has it as a part of something."""
    if b'"action"' not in line or line.lstrip().startswith(b"{"):
        return False
    return not isinstance(parse(line[line.rfind(b"{") :]), Noise)


def _not_blocking(pipe: IO[bytes] | None) -> int:
    """Make the pipe non-blocking, and return its descriptor."""
    if pipe is None:
        return -1
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()


def _exit_words(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


# -- pipes and lines ---------------------------------------------------------------------------------------------

PIECE_BYTES = 1024
"""Bytes per read: max a few hundred lines, however short they are."""
TURN_BYTES = 64 * 1024
TURN_LINES = 400
"""Limit for one pipe in a turn: every line is parsed and logged, and a child that never stops printing must not keep
others waiting. The rest stays in the pipe, and the selector reports it again at once."""
READ_BYTES = 64 * 1024
MAX_LINE_BYTES = 64 * 1024
"""A longer line is not a message of the protocol, and only its beginning is kept."""


class Pipe:
    """Lines of one pipe of a child. Not thread-safe.

    descriptor: -1 when closed. is_open: False after the end of the file.
    """

    def __init__(self, file: IO[bytes] | None) -> None:
        self._file = file
        self._cutter = LineCutter()
        self.descriptor = -1 if file is None else file.fileno()
        self.is_open = file is not None
        if self.is_open:
            os.set_blocking(self.descriptor, False)

    def turn(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the lines that are available, as `LineCutter.feed` does, up to the limit of one turn."""
        most, lines = TURN_BYTES, 0
        while most > 0 and lines < TURN_LINES and (data := self._read(PIECE_BYTES)):
            most -= len(data)
            for line in self._cutter.feed(data):
                lines += 1
                yield line

    def all(self) -> Iterator[tuple[bytes, bool]]:
        """Yield all that is available now, but not what arrives meanwhile, which may never end."""
        left = self._waiting()
        while left > 0 and (data := self._read(min(left, READ_BYTES))):
            left -= len(data)
            yield from self._cutter.feed(data)

    @property
    def ended(self) -> int:
        """Number of lines that have ended, including the one that is being yielded."""
        return self._cutter.ended

    @property
    def has_started(self) -> bool:
        """True if there is an unfinished line."""
        return self._cutter.has_started

    def rest(self) -> bytes:
        """Return what came after the last line end, and start a new line."""
        return self._cutter.rest()

    def close(self) -> bytes:
        """Close the pipe, and return what came after the last line end."""
        self.descriptor, self.is_open = -1, False
        if self._file is not None:
            self._file.close()
        return self._cutter.rest()

    def _waiting(self) -> int:
        """Return the number of bytes that are available."""
        if self.descriptor < 0:
            return 0
        try:
            answer = fcntl.ioctl(self.descriptor, termios.FIONREAD, bytes(4))
        except OSError:
            return READ_BYTES
        return int.from_bytes(answer, sys.byteorder)

    def _read(self, most: int) -> bytes:
        """Return b"" if nothing is available, or at the end of the file."""
        if self.descriptor < 0:
            return b""
        try:
            data = os.read(self.descriptor, most)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self.is_open = bool(data)
        return data


class LineCutter:
    """Cut bytes into lines without their ends. Holds max MAX_LINE_BYTES of an unfinished line.

    As in Java's reader a carriage return ends a line, too, and empty lines are skipped.

    ended: number of lines that have ended, including the one that is being yielded.
    """

    def __init__(self) -> None:
        self.ended = 0
        self._started = b""
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield (line, whole); whole is False for the beginning of a line that is too long."""
        *complete, rest = data.replace(b"\r", b"\n").split(b"\n")
        for end in complete:
            self.ended += 1
            line, skipped = self._started + end, self._skipping
            self._started, self._skipping = b"", False
            if line and not skipped:
                yield line[:MAX_LINE_BYTES], len(line) <= MAX_LINE_BYTES
        if self._skipping:
            return
        self._started += rest
        if len(self._started) > MAX_LINE_BYTES:
            begun, self._started, self._skipping = self._started[:MAX_LINE_BYTES], b"", True
            yield begun, False

    @property
    def has_started(self) -> bool:
        """True if there is an unfinished line that is not blank."""
        return self._skipping or bool(self._started.strip())

    def rest(self) -> bytes:
        """Return what came after the last line end, and start a new line."""
        rest, self._started, self._skipping = self._started, b"", False
        return rest


# -- the log -----------------------------------------------------------------------------------------------------

MAX_LOGGED = 2_000
"""Characters of one line that are logged."""
MAX_LINES_LOGGED = 1_000
"""Lines that are logged at once; more of them are counted."""

MAX_REFUSED_LOGGED = 100
"""Unexpected messages of the protocol that are logged, in the whole life of a child."""
MAX_NAME = 128
"""Characters of a lease key in the name of a logger: the longest shard id."""

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_:-]")
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b")
_LEVELS = {"WARN": logging.WARNING, "FATAL": logging.CRITICAL}
_LEVEL_WITHIN = 120


class ChildLog:
    """Log of a child's output: standard output as `pykcl.child.SHARD` at INFO, standard error as
    `pykcl.child.SHARD.stderr` at the level that the line names, else at WARNING. Characters of a lease key other than
    letters, digits, `_`, `:` and `-` become `_`.

    The lines that waited in a pipe are logged at once, while other children wait: `printed_over` and `complained_over`
    end that, and log how many lines were left out.
    """

    def __init__(self, shard: str) -> None:
        # Everybody with write access to the lease table chooses the key: a line feed in the name would forge a line of
        # the log, and a dot would choose the parent logger.
        name = f"pykcl.child.{_NOT_IN_A_NAME.sub('_', shard[:MAX_NAME])}"
        self._out = logging.getLogger(name)
        self._err = logging.getLogger(f"{name}.stderr")
        self._lines = {self._out: 0, self._err: 0}
        self._refused = 0

    def printed(self, line: bytes, whole: bool) -> None:
        if self._has_room(self._out) and self._out.isEnabledFor(logging.INFO):
            self._out.info("%s", _shown(line, whole))

    def refused(self, line: bytes) -> None:
        """Log an unexpected message of the protocol, up to a limit: a program may print nothing else."""
        self._refused += 1
        if self._refused <= MAX_REFUSED_LOGGED:
            self.printed(line, True)
        elif self._refused == MAX_REFUSED_LOGGED + 1:
            self._out.info("… further unexpected messages are not logged")

    def complained(self, line: bytes, whole: bool) -> None:
        if self._has_room(self._err):
            text = _shown(line, whole)
            self._err.log(level_of(text), "%s", text)

    def printed_over(self) -> None:
        self._over(self._out, logging.INFO)

    def complained_over(self) -> None:
        self._over(self._err, logging.WARNING)

    def _has_room(self, logger: logging.Logger) -> bool:
        self._lines[logger] += 1
        return self._lines[logger] <= MAX_LINES_LOGGED

    def _over(self, logger: logging.Logger, level: int) -> None:
        left_out, self._lines[logger] = self._lines[logger] - MAX_LINES_LOGGED, 0
        if left_out > 0:
            logger.log(level, "… and %d lines more", left_out)


def level_of(text: str) -> int:
    """Return the logging level that a line names near its beginning, else WARNING."""
    found = _LEVEL.search(text, 0, _LEVEL_WITHIN)
    if found is None:
        return logging.WARNING
    word = found.group(1)
    return _LEVELS.get(word) or int(getattr(logging, word))


def _shown(line: bytes, whole: bool) -> str:
    """Return one line of printable text: a child must not forge lines of the log or drive a terminal."""
    text = line[: 4 * MAX_LOGGED].decode("utf-8", "backslashreplace")
    cut = not whole or len(text) > MAX_LOGGED or len(line) > 4 * MAX_LOGGED
    text = text[:MAX_LOGGED]
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)
    return f"{text}… (cut)" if cut else text


def pieces(text: bytes) -> Iterator[bytes]:
    """Cut text without a line end into lines of the log, without splitting a UTF-8 character."""
    while text:
        end = MAX_LOGGED
        while MAX_LOGGED - 4 < end < len(text) and text[end] & 0xC0 == 0x80:
            end -= 1
        yield text[:end]
        text = text[end:]
