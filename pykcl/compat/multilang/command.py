"""Check that the program of executableName can be started on this host, without starting it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass

from pykcl.compat.properties.parsing import taken_literally
from pykcl.errors import ConfigError

_HEAD_BYTES = 256
"""Bytes of a file that Linux reads to find its interpreter. A longer first line is cut there."""
_NO_TEXT = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
_FIRST_LINE = "a first line such as #!/usr/bin/env python3"


@dataclass(frozen=True, slots=True)
class Unfit:
    """Reason why a program cannot be started, and the remedy; both as parts of a sentence."""

    what: str
    do: str


def checked_command(command: Sequence[str]) -> tuple[str, ...]:
    """Return `command` if its program exists and may be executed, else raise ConfigError. A name is searched as exec
    does: in PATH, or as a path if it has a slash."""
    unfit = unfitness(command)
    if unfit is not None:
        raise ConfigError(f"executableName{unfit.what}. Do: {unfit.do}.")
    return tuple(command)


def unfitness(command: Sequence[str]) -> Unfit | None:
    """Return None if no reason is known why the program could not be started."""
    if not command:
        return Unfit(" is empty", "executableName = PROGRAM ARGUMENTS…")
    name = command[0]
    path = shutil.which(name)
    if path is not None:
        return _of_the_file(path)
    if name[0] in "\"'":
        return Unfit(
            f" begins with a quote: the value is cut at blanks, as in Java, and quotes mean nothing there, so the "
            f"program is called {name!r}",
            "leave the quotes out; where a path has blanks, name a script without any, which starts the program",
        )
    return _of_a_file_that_is_there(name) or _of_nothing(name)


def _of_a_file_that_is_there(name: str) -> Unfit | None:
    """Return the reason if the file exists, but may not be executed or is not in PATH."""
    # As in exec, a name without a slash is searched only in PATH.
    paths = [name] if os.sep in name else [os.path.join(at, name) for at in os.get_exec_path()]
    found = next((path for path in paths if os.path.isfile(path)), None)
    if found is not None:
        what = f": {found} is there, and may not be executed"
        do = [f"chmod +x {found}"]
    elif os.sep not in name and os.path.isfile(name):
        found = name
        what = (
            f": there is no program {name!r} in PATH, and the file of that name in this folder is found as "
            f"./{name} only"
        )
        do = [f"{'' if os.access(name, os.X_OK) else f'chmod +x {name} and '}executableName = ./{name}"]
    else:
        return None
    if found.endswith(".py"):
        do.append(f"executableName = python3 {found}")
    return Unfit(what, ", or ".join(do))


def _of_nothing(name: str) -> Unfit:
    where = "here" if os.sep in name else "in PATH"
    if literal := taken_literally(name, of_command=True):
        why, do = literal
        return Unfit(f": there is no program {name!r} {where}; {why}", do)
    return Unfit(
        f": there is no program {name!r} {where} that may be run",
        f"name one that is, and make it executable (chmod +x, and {_FIRST_LINE})",
    )


def why_not_started(command: Sequence[str], error: Exception) -> str:
    """Return the reason for `error`, which starting the program raised. The text of `error` misleads where something
    other than the program is missing."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOENT, errno.ENOEXEC):
        return str(error)
    if unfit := unfitness(command):
        return f"{error}: executableName{unfit.what}"
    if error.errno == errno.ENOENT:
        return f"{error}: the file is there, and the interpreter or loader that it is run by is missing"
    return str(error)


def _of_the_file(path: str) -> Unfit | None:
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        # A program may be run by those who may not read it.
        return None
    if head.startswith(b"#!"):
        first = head[2:].partition(b"\n")[0]
        return _of_the_first_line(path, os.fsdecode(first).strip(" \t"))
    if head.startswith(BOM_UTF8):
        return Unfit(
            f": {path} begins with a byte order mark, so it is no script to the operating system",
            "save it as UTF-8 without one",
        )
    if _NO_TEXT.search(head) is None:
        return Unfit(
            f": {path} is text without {_FIRST_LINE}, so it cannot be run",
            f"give it one, or name the interpreter before it (executableName = python3 {path})",
        )
    return None


def _of_the_first_line(path: str, line: str) -> Unfit | None:
    """line: text after "#!"."""
    interpreter, _, argument = line.replace("\t", " ").partition(" ")
    wanted = _run_by_env(argument.strip()) if os.path.basename(interpreter) == "env" else None
    # The operating system does not search PATH for the interpreter.
    if not interpreter or not (os.path.isfile(interpreter) and os.access(interpreter, os.X_OK)):
        missing = interpreter or "no interpreter"
    elif wanted is not None and shutil.which(wanted) is None:
        missing = wanted
    elif argument.endswith("\r"):
        missing = argument
    else:
        return None
    if line.endswith("\r"):
        return Unfit(
            f": the first line of {path} ends with a carriage return, as files of Windows do, which is taken as a part "
            f"of the name {missing!r}",
            f"sed -i 's/\\r$//' {path}",
        )
    return Unfit(
        f": the first line of {path} names {missing!r}, which is not there, or may not be run",
        "install it, or name one that is there",
    )


def _run_by_env(argument: str) -> str | None:
    """Return the program that `env` searches in PATH; None if that is not a plain name."""
    words = argument.split(" ")
    if words[0] == "-S":
        words = words[1:]
    elif sys.platform == "linux":
        # All that follows is one argument there, blanks and all.
        words = [argument]
    return words[0] if words and words[0] and words[0][0] != "-" and "=" not in words[0] else None
