"""The end of a pipe that is read here: what the child writes into it, in lines, and so much of it at a time."""

from __future__ import annotations

import fcntl
import os
import sys
import termios
from collections.abc import Iterator
from typing import IO

from pykcl.compat.multilang.lines import LineCutter

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
