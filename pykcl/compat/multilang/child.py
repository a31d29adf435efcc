"""One child process: its pipes, the lines on them, and the state of the conversation."""

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

MOST_LINE_BYTES = 64 * 1024
"""A longer line is no message of the protocol, and only its beginning is kept."""
MOST_LOGGED = 2_000
"""Characters of one line that go to the log."""
MOST_LINES_LOGGED = 1_000
"""Lines that go to the log in one go; more of them are counted."""

MOST_REFUSED_LOGGED = 100
"""Messages of the protocol that go to the log, in a child's whole life, because nobody waits for them."""
MOST_NAME = 128
"""Characters of a lease key in the name of a logger: as long as a shard's id may be."""

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_:-]")
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b")
_LEVELS = {"WARN": logging.WARNING, "FATAL": logging.CRITICAL}
_LEVEL_WITHIN = 120


class LineCutter:
    """Bytes in, lines out, without their ends. Holds MOST_LINE_BYTES at most, however much comes without an end.

    As Java's reader a carriage return ends a line, too, and empty lines say nothing.

    ended: how many lines have ended, that which is given just now among them.
    """

    def __init__(self) -> None:
        self.ended = 0
        self._begun = b""
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """(line, whole): not whole where only the beginning of it is there, and the rest will never come."""
        *complete, rest = data.replace(b"\r", b"\n").split(b"\n")
        for end in complete:
            self.ended += 1
            line, skipped = self._begun + end, self._skipping
            self._begun, self._skipping = b"", False
            if line and not skipped:
                yield line[:MOST_LINE_BYTES], len(line) <= MOST_LINE_BYTES
        if self._skipping:
            return
        self._begun += rest
        if len(self._begun) > MOST_LINE_BYTES:
            begun, self._begun, self._skipping = self._begun[:MOST_LINE_BYTES], b"", True
            yield begun, False

    @property
    def has_begun(self) -> bool:
        """Whether there is more of a line than blanks, and not its end."""
        return self._skipping or bool(self._begun.strip())

    def rest(self) -> bytes:
        """Take what came after the last line end. What follows begins a new line."""
        rest, self._begun, self._skipping = self._begun, b"", False
        return rest


def pieces(text: bytes) -> Iterator[bytes]:
    """Text without a line end, cut into what one line of the log holds; no character of UTF-8 is split."""
    while text:
        end = MOST_LOGGED
        while MOST_LOGGED - 4 < end < len(text) and text[end] & 0xC0 == 0x80:
            end -= 1
        yield text[:end]
        text = text[end:]


class ChildLog:
    """What a child prints, in the log: `pykcl.child.SHARD` at INFO, what it says on standard error under
    `pykcl.child.SHARD.stderr` at the level the line itself names as log lines do, else at WARNING. Of a key that is no
    shard's id, other characters than letters, digits, `_`, `:` and `-` become `_`.

    What was waiting in a pipe is logged in one go, and others wait for that: `printed_over` and `complained_over` end
    it, and tell of the lines that were too many.
    """

    def __init__(self, shard: str) -> None:
        # Anybody who may write to the lease table chooses the key: a name with a line feed would forge a line of the
        # log, and one with a dot would choose its parent among the loggers.
        name = f"pykcl.child.{_NOT_IN_A_NAME.sub('_', shard[:MOST_NAME])}"
        self._out = logging.getLogger(name)
        self._err = logging.getLogger(f"{name}.stderr")
        self._lines = {self._out: 0, self._err: 0}
        self._refused = 0

    def printed(self, line: bytes, whole: bool) -> None:
        if self._has_room(self._out) and self._out.isEnabledFor(logging.INFO):
            self._out.info("%s", _shown(line, whole))

    def refused(self, line: bytes) -> None:
        """A message of the protocol that is no use. A program may say nothing else, as fast as it can print."""
        self._refused += 1
        if self._refused <= MOST_REFUSED_LOGGED:
            self.printed(line, True)
        elif self._refused == MOST_REFUSED_LOGGED + 1:
            self._out.info("… and more of them, which are not logged: messages that nobody waits for")

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
        return self._lines[logger] <= MOST_LINES_LOGGED

    def _over(self, logger: logging.Logger, level: int) -> None:
        left_out, self._lines[logger] = self._lines[logger] - MOST_LINES_LOGGED, 0
        if left_out > 0:
            logger.log(level, "… and %d lines more", left_out)


def level_of(text: str) -> int:
    """The logging level a line names for itself near its beginning; WARNING where it names none."""
    found = _LEVEL.search(text, 0, _LEVEL_WITHIN)
    if found is None:
        return logging.WARNING
    word = found.group(1)
    return _LEVELS.get(word) or int(getattr(logging, word))


def _shown(line: bytes, whole: bool) -> str:
    """One line of printable text: a child must not forge lines of the log, nor drive a terminal."""
    text = line[: 4 * MOST_LOGGED].decode("utf-8", "backslashreplace")
    cut = not whole or len(text) > MOST_LOGGED or len(line) > 4 * MOST_LOGGED
    text = text[:MOST_LOGGED]
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)
    return f"{text}… (cut)" if cut else text


PIECE_BYTES = 1024
"""Read at once, so that a piece holds a few hundred lines at most, however short they are."""
TURN_BYTES = 64 * 1024
TURN_LINES = 400
"""Of one pipe in a row: every line is parsed and logged, and a child that never stops printing must not keep the others
waiting. The rest stays in the pipe, of which the selector tells again at once."""
READ_BYTES = 64 * 1024


class Pipe:
    """Not safe to be read by two threads at once.

    descriptor: -1 when closed. is_open: whether more may come.
    """

    def __init__(self, file: IO[bytes] | None) -> None:
        self._file = file
        self._cutter = LineCutter()
        self.descriptor = -1 if file is None else file.fileno()
        self.is_open = file is not None
        if self.is_open:
            os.set_blocking(self.descriptor, False)

    def turn(self) -> Iterator[tuple[bytes, bool]]:
        """What is there, as `LineCutter.feed` gives it, up to a limit."""
        most, lines = TURN_BYTES, 0
        while most > 0 and lines < TURN_LINES and (data := self._read(PIECE_BYTES)):
            most -= len(data)
            for line in self._cutter.feed(data):
                lines += 1
                yield line

    def all(self) -> Iterator[tuple[bytes, bool]]:
        """Everything that is there now; not what comes while it is read, which may never end."""
        left = self._waiting()
        while left > 0 and (data := self._read(min(left, READ_BYTES))):
            left -= len(data)
            yield from self._cutter.feed(data)

    @property
    def ended(self) -> int:
        """How many lines have ended, that which is given just now among them."""
        return self._cutter.ended

    @property
    def has_begun(self) -> bool:
        """Whether a line has begun and not ended."""
        return self._cutter.has_begun

    def rest(self) -> bytes:
        """Take what came after the last line end."""
        return self._cutter.rest()

    def close(self) -> bytes:
        """Return what came after the last line end."""
        self.descriptor, self.is_open = -1, False
        if self._file is not None:
            self._file.close()
        return self._cutter.rest()

    def _waiting(self) -> int:
        """How many bytes."""
        if self.descriptor < 0:
            return 0
        try:
            answer = fcntl.ioctl(self.descriptor, termios.FIONREAD, bytes(4))
        except OSError:
            return READ_BYTES
        return int.from_bytes(answer, sys.byteorder)

    def _read(self, most: int) -> bytes:
        """Nothing where nothing is there, or where nothing more will come."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStarted(Event):
    """pid: also of the child's own session and process group."""

    TEXT = "child started"
    shard: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFailed(Event):
    """The child is of no use any more: it ended, hung, could not be started. Its shard begins anew with another one.

    failures: how many children of this shard have failed in this process, this one among them.
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
    """exit: its exit code, minus the number of the signal that ended it. forced: which signal it needed, if any."""

    TEXT = "child ended"
    shard: str
    pid: int
    exit: int
    forced: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerNotBelieved(Event):
    """The child printed a status line that answers nothing it was asked. awaited: what it is being asked, if anything.

    Told once for each child.
    """

    LEVEL = logging.WARNING
    TEXT = "a line that looks like the protocol answers nothing that was asked, and is not believed"
    shard: str
    pid: int
    answers: str
    awaited: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNotUnderstood(Event):
    """The child asked for a checkpoint at something that is no position, and was answered IllegalArgumentException.

    field: the one that is wrong. The line itself is in the log of what the child prints. Told once for each child.
    """

    LEVEL = logging.WARNING
    TEXT = "a child asks for a checkpoint at no position, and is refused"
    shard: str
    pid: int
    field: str


MOST_QUESTIONS = 1_000
"""Checkpoints asked for and not yet answered. Whoever asks for more is not speaking the protocol: the rest is noise."""
NONSENSE_SECONDS = 30.0
"""So long the true answer is waited for after one to something else, while it says no more. Java does not wait."""
UNENDED_SECONDS = 1.0
"""So long a line on standard error may go without its end before it is logged as far as it has come."""
_LACKS_KCLPY = re.compile(rb"(?:ModuleNotFound|Import)Error: No module named '?amazon_kclpy\b")


class ChildGone(Exception):
    """This child cannot be spoken to any more. The text says why, as the end of a sentence about it."""


class Child:
    """Made by `Children`. `send`, `receive` and `questions_before` are called by the thread of its lease; what begins
    with `on_` by the selector thread. tell_loop: has the selector thread look at this child again.

    lacks_kclpy: it has said that its Python has no module amazon_kclpy.
    """

    def __init__(
        self,
        shard: str,
        process: subprocess.Popen[bytes],
        tell_loop: Callable[[Child], None],
        emit: Callable[[Event], None],
    ) -> None:
        self.shard = shard
        self.pid = process.pid
        self.process = process
        self.forced: str | None = None
        self.is_stuck = self.lacks_kclpy = self._is_unended = False
        self._tell_loop = tell_loop
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
        self._begun_early: int | None = None
        self._nonsense_until: float | None = None
        self._told_of_disbelief = self._told_of_wrong_position = False
        self._gone: str | None = None
        self._ended = threading.Event()

    # -- by the thread of its lease ----------------------------------------------------------------------------

    def questions_before(self) -> list[CheckpointAsked]:
        """What it asked for since its last answer; whatever else it has said by now answers nothing to come.

        Its pipe is read here and now: 1) it prints a second line like its last answer; 2) the next question is sent;
        3) the selector thread reads that line, and it would be believed to answer the new question. A line that has
        begun by now belongs to before, too, whenever it ends.
        """
        with self._changed:
            self._question_ends = None
            self._hear(self._stdout.all())
            questions = [one for one in self._inbox if isinstance(one, CheckpointAsked)]
            self._inbox.clear()
            return questions

    def send(self, pieces: Iterable[bytes], *, awaits: str | None, until: float | None) -> None:
        """Write a line in pieces; waits while much of it is unread. awaits: the action whose status answers it.

        until: monotonic time. Raises ChildGone, TimeoutError.
        """
        if awaits is not None:
            with self._changed:
                self._awaited, self._question_ends = awaits, None
        for piece in pieces:
            with self._changed:
                self._queued += len(piece)
                if awaits is not None and piece.endswith(b"\n"):
                    # Before it is written: the answer may be there before this thread has the lock again.
                    self._question_ends = self._queued
                self._write(piece)
                self._wait(until, self._was_read)

    def receive(self, until: float | None) -> Message:
        """What it asks for next, or its status for what it was asked. Raises ChildGone, TimeoutError."""
        with self._changed:
            self._wait(until, self._has_spoken)
            return self._inbox.popleft()

    @property
    def is_gone(self) -> bool:
        """Whether it cannot be spoken to any more."""
        return self._gone is not None

    def wait_ended(self, seconds: float) -> bool:
        """Whether its process has ended, and is waited for, within so many seconds."""
        return self._ended.wait(seconds)

    def _wait(self, until: float | None, done: Callable[[bool], bool]) -> None:
        """done: whether it is, by what the selector thread has seen; or (if its argument says so) by what is there to
        be seen now: no child is to be blamed for the time that others took."""
        while not done(False):
            if self._gone is not None:
                raise ChildGone(self._gone)
            now, ends = time.monotonic(), [at for at in (until, self._nonsense_until) if at is not None]
            if ends and now >= min(ends):
                if done(True):
                    return
                if until is not None and now >= until:
                    raise TimeoutError
                raise ChildGone("answered something else than it was asked, and nothing more")
            self._changed.wait(min(ends) - now if ends else None)

    def _has_spoken(self, look: bool) -> bool:
        if look:
            self._hear(self._stdout.all())
        return bool(self._inbox)

    def _was_read(self, look: bool) -> bool:
        """What it was sent, all but a little."""
        if look:
            self._flush()
        return self._queued - self._written <= CHUNK_BYTES

    def _write(self, piece: bytes) -> None:
        """Into the pipe as far as it goes, the rest by the selector thread."""
        if self._gone is not None:
            raise ChildGone(self._gone)
        self._outbox.append(memoryview(piece))
        if len(self._outbox) == 1:
            self._flush()
            if self._outbox or self._stdin_broken:
                self._tell_loop(self)

    def _flush(self) -> None:
        while self._outbox and not self._stdin_broken:
            view = self._outbox[0]
            try:
                written = os.write(self._stdin, view)
            except BlockingIOError:
                return
            except OSError:
                # It closed its end, or is ending; the selector thread waits for a moment to see which.
                self._stdin_broken = True
                return
            self._written += written
            if written == len(view):
                self._outbox.popleft()
            else:
                self._outbox[0] = view[written:]

    def _close_stdin(self) -> None:
        """By the selector thread only: it must have let go of the descriptor before its number can be another's."""
        self._outbox.clear()
        self._stdin_broken, self._stdin = True, -1
        if self.process.stdin is not None:
            # Unbuffered: nothing is left that closing could fail to write.
            self.process.stdin.close()

    # -- by the selector thread --------------------------------------------------------------------------------

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """Of its standard input, output and error; -1 where closed."""
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
            if self._was_read(look=True):
                self._changed.notify_all()

    def on_closed_input(self) -> None:
        """It closed the end it reads from."""
        with self._changed:
            self._stdin_broken = True

    def on_output(self) -> bool:
        """Read of what it printed as much as one may in a row. False: nothing more will come."""
        with self._changed:
            self._hear(self._stdout.turn())
            return self._stdout.is_open

    def on_complaint(self) -> bool:
        """The same of its standard error."""
        self._hear_complaints(self._stderr.turn())
        return self._stderr.is_open

    def begins_an_unended_line(self) -> bool:
        """Whether `on_unended_line` is to be called in UNENDED_SECONDS: once for all of a line that has begun."""
        begins = self._stderr.has_begun and not self._is_unended
        self._is_unended = self._is_unended or begins
        return begins

    def on_unended_line(self) -> None:
        """Log what has come of a line without an end: programs that never print one are heard while they live."""
        self._is_unended = False
        self._complained_without_end(self._stderr.rest())

    def on_gone(self, why: str) -> None:
        """It cannot be spoken to any more. The first reason counts."""
        with self._changed:
            if self._gone is None:
                self._gone = why
            self._changed.notify_all()

    def on_close_stdin(self) -> None:
        with self._changed:
            self._close_stdin()

    def signal_group(self, number: signal.Signals) -> None:
        """To the whole process group: a launcher's own children, too. Only before the process was waited for, while
        its identifier cannot have become somebody else's."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def on_ended(self) -> int:
        """Its process has ended (and is waited for here): take in its last words, and let go of everything.

        Return its exit code.
        """
        # What it left behind would go on working on a shard that another child is given.
        self.signal_group(signal.SIGKILL)
        exit_code = self.process.wait()
        with self._changed:
            self._hear(self._stdout.all())
            self._close_stdin()
            is_early = self._stdout.ended == self._begun_early
            if rest := self._stdout.close():
                # As Java's reader: a line that the end of the pipe ends.
                self._said(rest, True, is_early)
        self._hear_complaints(self._stderr.all())
        self._complained_without_end(self._stderr.close())
        self.on_gone(_exit_words(exit_code))
        self._ended.set()
        return exit_code

    # -- what it says ------------------------------------------------------------------------------------------

    def _hear(self, lines: Iterable[tuple[bytes, bool]]) -> None:
        """Under the lock: the thread of the lease reads, too."""
        for line, whole in lines:
            self._said(line, whole, self._stdout.ended - 1 == self._begun_early)
        if self._stdout.has_begun and not self._is_asked:
            self._begun_early = self._stdout.ended
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

    def _said(self, line: bytes, whole: bool, begun_early: bool) -> None:
        """begun_early: 1) it prints half a line; 2) the next question is sent; 3) it prints the other half. That
        answers nothing, and asks about nothing, that it did not know of when it began.
        """
        message = parse(line) if whole else Noise()
        if isinstance(message, CheckpointAsked) and len(self._inbox) < MOST_QUESTIONS:
            if message.wrong is not None:
                self._log.refused(line)
                self._wonder(message.wrong)
            early = begun_early or self._awaited is None or not self._is_asked
            self._speaks_sense()
            self._inbox.append(replace(message, early=early))
            self._changed.notify_all()
        elif isinstance(message, Status) and not begun_early and self._is_answer(message):
            self._awaited = self._nonsense_until = None
            self._inbox.append(message)
            self._changed.notify_all()
        elif isinstance(message, Noise):
            self._log.printed(line, whole)
        else:
            self._log.refused(line)
            if isinstance(message, Status):
                self._disbelieve(message)

    @property
    def _is_asked(self) -> bool:
        """Whether the question was written to the end: nobody answers it before, nor asks about what is in it."""
        return self._question_ends is not None and self._written >= self._question_ends

    def _is_answer(self, status: Status) -> bool:
        return self._is_asked and self._awaited is not None and status.response_for == self._awaited

    def _wonder(self, field: str) -> None:
        if not self._told_of_wrong_position:
            self._told_of_wrong_position = True
            self._emit(CheckpointNotUnderstood(shard=self.shard, pid=self.pid, field=field))

    def _speaks_sense(self) -> None:
        if self._nonsense_until is not None:
            self._nonsense_until = time.monotonic() + NONSENSE_SECONDS

    def _disbelieve(self, status: Status) -> None:
        if self._awaited is not None and self._is_asked and self._nonsense_until is None:
            # It may be a line that only looks like an answer. But where nothing follows, it waits for the next action.
            self._nonsense_until = time.monotonic() + NONSENSE_SECONDS
            self._changed.notify_all()
        if self._told_of_disbelief:
            return
        self._told_of_disbelief = True
        answers = (status.response_for or "nothing")[:100]
        self._emit(AnswerNotBelieved(shard=self.shard, pid=self.pid, answers=answers, awaited=self._awaited))


def _not_blocking(pipe: IO[bytes] | None) -> int:
    """Its descriptor."""
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
