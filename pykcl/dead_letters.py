"""Destinations of dead letters: `open_destination` makes the one that a text names. Those of AWS are in `aws`.

A file of letters has one letter per line and belongs to one worker and one day. It is only ever appended to. A line
that was cut off, by a full disk or the end of the process, was never acknowledged: its records come again.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pykcl.errors import PyKclError, SetupError, TemporaryError
from pykcl.interfaces import DeadLetterDestination
from pykcl.model.dead_letter import Address, DeadLetter
from pykcl.model.letter_json import MAX_PART_BYTES, letters_within
from pykcl.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pykcl.config import Config

_FOREIGN = re.compile(r"[^A-Za-z0-9_.-]+")
_TEMPORARY = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EINTR, errno.EAGAIN, errno.EMFILE, errno.ENFILE}
)
SUFFIX = ".letters.jsonl"


def open_destination(
    address: Address,
    config: Config,
    runtime: Runtime,
    *,
    worker_id: str,
    session: Any = None,
    clients: Mapping[str, Any] | None = None,
) -> DeadLetterDestination:
    """Return the destination of any address but "discard".

    Nothing is sent to AWS, and no directory is created, before the first letter.

    session, clients: as in `aws.clients.connect`, with clients of "sqs", "sns", "s3" and "sts". Raises ConfigError
    without a region, SetupError without credentials.
    """
    if address.kind == "file":
        return LetterFiles(Path(address.name), worker_id, runtime)
    from pykcl.aws.dead_letters import aws_destination

    return aws_destination(address, config, runtime, session=session, clients=clients)


class LetterFiles:
    """Files in a directory, readable by the owner alone. The directory is created if its parent exists."""

    def __init__(self, directory: Path, worker_id: str, runtime: Runtime) -> None:
        self._directory = directory
        self._worker = _FOREIGN.sub("_", worker_id)[:100]
        self._lock = runtime.lock()

    def send(self, letters: Sequence[DeadLetter]) -> None:
        lines: dict[str, list[bytes]] = {}
        for letter in letters:
            for part, text in letters_within(letter, MAX_PART_BYTES):
                lines.setdefault(self._name(part), []).append(text.encode("ascii") + b"\n")
        with self._lock:
            for name, parts in lines.items():
                with _sorted_errors(self._directory):
                    self._append(name, b"".join(parts))

    def _name(self, letter: DeadLetter) -> str:
        application = _FOREIGN.sub("_", letter.application)[:100]
        return f"{application}-{self._worker}-{day_of(letter.created_at)}{SUFFIX}"

    def _append(self, name: str, lines: bytes) -> None:
        path = self._directory / name
        try:
            with appended(path) as descriptor:
                write_all(descriptor, lines)
        except FileNotFoundError:
            os.mkdir(self._directory, 0o700)
            sync_directory(self._directory.parent)
            with appended(path) as descriptor:
                write_all(descriptor, lines)


def day_of(millis: int) -> str:
    """Return the day in UTC, such as "2026-11-23"."""
    from datetime import datetime

    return datetime.fromtimestamp(millis / 1000, tz=UTC).date().isoformat()


@contextmanager
def appended(path: Path) -> Iterator[int]:
    """Open a file to append whole lines; what was written is durable when the block has ended.

    A line that was cut off before is ended first. Raises OSError.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
    for name in ("O_NOFOLLOW", "O_CLOEXEC"):
        flags |= getattr(os, name, 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no ordinary file")
        if found.st_size == 0:
            # Also where an earlier attempt made the file and got no further: its name may not be durable yet.
            sync_directory(path.parent)
        else:
            os.lseek(descriptor, -1, os.SEEK_END)
            if os.read(descriptor, 1) != b"\n":
                write_all(descriptor, b"\n")
        yield descriptor
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, in as many calls as that takes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, where the system can."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            # Some file systems have no fsync of a directory.
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _sorted_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        kind = TemporaryError if error.errno in _TEMPORARY else SetupError
        failure: PyKclError = kind(
            f"Dead letters cannot be written to {str(directory)!r}: {why}. The directory must be on a disk with room, "
            "and writable for this process."
        )
    else:
        return
    try:
        raise failure
    finally:
        del failure  # its traceback holds this frame: no cycle
