"""Lines of standard input or a file as they come, without waiting for more than there is."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from io import UnsupportedOperation
from pathlib import Path
from typing import BinaryIO

from pykcl.errors import ConfigError

PATIENCE = 0.2
"""Seconds after which who waits for lines is told that there are none."""
LONGEST_LINE = 24 * 1024 * 1024
"""Bytes; no record could hold more, not even in base64."""
_CHUNK = 1 << 16


class LineTooLong(Exception):
    """There is no line feed in sight. number: of the line, from 1."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def opened(path: Path | None) -> BinaryIO:
    """The file, or standard input. Raises ConfigError where it cannot be read."""
    if path is None or str(path) == "-":
        if sys.stdin is None:
            raise ConfigError("Standard input is closed. Do: pipe lines into this command, or name a --file.")
        return sys.stdin.buffer
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigError(
            f"{str(path)!r} cannot be read ({error.strerror}). Do: name a file that can."
        ) from None


def size_of(source: BinaryIO) -> int | None:
    """Bytes of an ordinary file; None for what has no end that could be known."""
    import stat

    try:
        found = os.fstat(source.fileno())
    except (OSError, UnsupportedOperation):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def chunks_of_lines(source: BinaryIO, is_over: Callable[[], bool]) -> Iterator[list[bytes]]:
    """The lines, without their line feeds, of one read after the other; none while there is nothing.

    The last line may lack its line feed. Ends at the end of input, or soon after `is_over`.
    Raises LineTooLong, and ConfigError when the input cannot be read on.
    """
    rest: list[bytes] = []
    held = number = 0
    while not is_over():
        try:
            chunk = _read(source)
        except OSError as error:
            raise ConfigError(f"The input cannot be read on ({error.strerror or error}).") from None
        if chunk is None:
            yield []
            continue
        if not chunk:
            if rest:
                yield [b"".join(rest)]
            return
        first, *more = chunk.split(b"\n")
        rest.append(first)
        held += len(first)
        if held > LONGEST_LINE:
            raise LineTooLong(number + 1)
        lines = []
        if more:
            lines = [b"".join(rest), *more[:-1]]
            rest = [more[-1]] if more[-1] else []
            held = len(more[-1])
        number += len(lines)
        yield lines


def _read(source: BinaryIO) -> bytes | None:
    """What is there now, b"" at the end; None when nothing came within PATIENCE."""
    try:
        descriptor = source.fileno()
    except (OSError, UnsupportedOperation):
        return source.read(_CHUNK)
    # Windows can wait for sockets only.
    if os.name != "nt" and not select.select([descriptor], [], [], PATIENCE)[0]:
        return None
    # Past Python's buffer, which nobody has read from: it would hide from select what it already holds.
    return os.read(descriptor, _CHUNK)
