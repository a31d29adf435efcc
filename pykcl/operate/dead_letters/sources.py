"""Sources of dead letters: they are read there, and settled once redriven. Files are here, those of AWS in `aws`.

A letter may be in its source more than once: a worker sends it again after a lost answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from pykcl.dead_letters import SUFFIX, appended, write_all
from pykcl.errors import ConfigError, Refused, SetupError
from pykcl.model.letter_json import MAX_LETTER_BYTES, KeptLetter, NotALetter, read_letter

MAX_CHUNK = 1000
"""Letters that are in memory at once."""
MAX_CHUNK_BYTES = MAX_LETTER_BYTES
_HASH_DIGITS = 16
DONE = ".done"
"""Suffix of the file that notes the redriven letters of another."""


@dataclass(frozen=True, slots=True)
class Found:
    """One copy of a letter. place: file and line, message, or key. handle: of the source.

    problem: why it is no letter. is_torn: it was cut off when it was written, so that its records were not settled.
    """

    place: str
    letter: KeptLetter | None
    problem: str = ""
    is_torn: bool = False
    handle: Any = None


class LetterSource(Protocol):
    """May raise TemporaryError and SetupError."""

    @property
    def note(self) -> str:
        """A sentence on what the answer leaves out; "" for nothing. Known after the last chunk."""

    def chunks(self, *, alone: bool = False) -> Iterator[list[Found]]:
        """Return all letters that are not settled, a part at a time.

        alone: let no other command redrive a part until the next one is asked for. Raises Refused where one does.
        """

    def settle(self, found: Sequence[Found]) -> None:
        """Take letters out of the source. All their records must be settled."""

    def close(self) -> None:
        """Leave the letters that were not settled to others."""


def parsed(text: bytes | str, place: str, handle: Any = None) -> Found:
    """Return what stands there, a letter or not."""
    try:
        return Found(place, read_letter(text), handle=handle)
    except NotALetter as error:
        return Found(place, None, f"it is no letter: {error}", handle=handle)


class FileSource:
    """A file of letters, one per line, or a directory of such files.

    A file of one letter may also have it as JSON over several lines. A letter is settled by a line in the file
    FILE.done: the number of its first byte, its identifier, and a hash of its text. The number alone is nothing: FILE
    may have been truncated, rotated or restored since, and have other letters there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ignored: dict[str, int] = {}

    @property
    def note(self) -> str:
        if not self._ignored:
            return ""
        count, names = sum(self._ignored.values()), ", ".join(sorted(self._ignored))
        notes = "1 note" if count == 1 else f"{count} notes"
        return (
            f"{notes} in {names} {'was' if count == 1 else 'were'} ignored: of letters that are not at their place any "
            "more, as after a rotation. Do: move a file of letters together with its notes."
        )

    def chunks(self, *, alone: bool = False) -> Iterator[list[Found]]:
        for path in self._files():
            yield from self._chunks(path, alone)

    def settle(self, found: Sequence[Found]) -> None:
        lines: dict[Path, list[str]] = {}
        for one in found:
            path, start, text_hash = one.handle
            lines.setdefault(path, []).append(f"{start} {one.letter.id if one.letter else '-'} {text_hash}\n")
        for path, parts in lines.items():
            try:
                with appended(_done(path)) as descriptor:
                    write_all(descriptor, "".join(parts).encode("ascii"))
            except OSError as error:
                raise _unusable(_done(path), error, "written") from None

    def close(self) -> None:
        """Nothing is held."""

    def _files(self) -> list[Path]:
        try:
            if not self._path.is_dir():
                return [self._path]
            return sorted(one for one in self._path.iterdir() if one.name.endswith(SUFFIX) and one.is_file())
        except OSError as error:
            raise _unusable(self._path, error, "read") from None

    def _chunks(self, path: Path, alone: bool) -> Iterator[list[Found]]:
        chunk, size = list[Found](), 0
        self._ignored.pop(_done(path).name, None)
        try:
            with path.open("rb") as file:
                if alone:
                    _lock(file, path)
                notes = _notes(path)
                in_all, used = sum(map(len, notes.values())), 0
                for number, start, line in _letters(file):
                    found = _found(path, number, start, line)
                    settled = [note for note in notes.get(start, ()) if _is_of(note, found)]
                    used += len(settled)
                    if settled:
                        continue
                    chunk.append(found)
                    size += len(line)
                    if len(chunk) >= MAX_CHUNK or size >= MAX_CHUNK_BYTES:
                        yield chunk
                        chunk, size = [], 0
                if used < in_all:
                    self._ignored[_done(path).name] = in_all - used
                if chunk:
                    yield chunk
        except OSError as error:
            raise _unusable(path, error, "read") from None


def _lock(file: BinaryIO, path: Path) -> None:
    """Lock a file of letters against other commands that redrive it, until it is closed. Workers may append to it.

    The system ends the lock with the process. Raises Refused while another command has it.
    """
    try:
        import fcntl
    except ImportError:
        # Windows has no such lock.
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refused(
            f"{str(path)!r} is being redriven by another command. Do: wait until it has ended; each would send the "
            "letters that the other one has in hand."
        ) from None
    except OSError:
        # A file system without locks, or one, such as NFS, whose locks want a file that may be written.
        return


def _letters(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Return the lines, or the whole file as the first where its first line only opens an object."""
    if file.readline(MAX_LETTER_BYTES).rstrip() == b"{":
        file.seek(0)
        return iter([(1, 0, file.read(MAX_LETTER_BYTES + 1))])
    file.seek(0)
    return _lines(file)


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Return number, first byte and content of each line that is not empty; of a hostile one only its beginning."""
    number = start = 0
    while line := file.readline(MAX_LETTER_BYTES + 2):
        number += 1
        begin, start = start, start + len(line)
        rest = line
        while len(rest) == MAX_LETTER_BYTES + 2 and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LETTER_BYTES + 2)
            start += len(rest)
        if line != b"\n":
            yield number, begin, line


def _found(path: Path, number: int, start: int, line: bytes) -> Found:
    place, handle = f"{path.name}:{number}", (path, start, sha256(line).hexdigest()[:_HASH_DIGITS])
    if len(line) <= MAX_LETTER_BYTES and not line.rstrip().endswith(b"}"):
        return Found(
            place,
            None,
            "it was cut off when it was written: its records were not settled, and come again",
            True,
            handle,
        )
    return parsed(line, place, handle)


def _done(path: Path) -> Path:
    return path.with_name(path.name + DONE)


def _notes(path: Path) -> dict[int, set[tuple[str, ...]]]:
    """Return the notes by the first byte of their letter: its identifier, and the hash of its text if there is one.

    A note that was cut off does not count.
    """
    notes: dict[int, set[tuple[str, ...]]] = {}
    try:
        with _done(path).open("rb") as file:
            for line in file:
                start, *names = line.decode("ascii", "replace").split()
                if line.endswith(b"\n") and names and start.isdecimal() and len(start) < 20:
                    notes.setdefault(int(start), set()).add(tuple(names[:2]))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unusable(_done(path), error, "read") from None
    return notes


def _is_of(note: tuple[str, ...], found: Found) -> bool:
    return found.letter is not None and note in {(found.letter.id,), (found.letter.id, found.handle[2])}


def _unusable(path: Path, error: OSError, done: str) -> SetupError | ConfigError:
    why = error.strerror or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return ConfigError(
            f"{str(path)!r} cannot be {done}: {why}. Do: name a file of letters, or a directory of them."
        )
    return SetupError(
        f"{str(path)!r} cannot be {done}: {why}. {os.strerror(error.errno) if error.errno else ''}".strip()
    )
