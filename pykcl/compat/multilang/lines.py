"""Lines out of a child's pipes: cut, bounded, and written to the log under the name of its shard."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

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
