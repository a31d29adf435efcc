"""Standard output and standard error: text on them drives no terminal, and a stream that fails ends no service.

A log device is full, `| head` has read enough, a terminal is gone: then writing raises OSError. What follows from it is
decided here, for every command:

* The *answer* of a command (`say`) is what the command is for. If it cannot be written, the command ends with code 1,
  and without a word if the reader has closed the pipe.
* Whatever a person may read *beside* it (`print_notice`, `announce`, logs) is dropped. A worker, a local AWS or a page
  goes on, and so does a command that only lacks a place for its notices.

What the application itself prints is its own: if that raises, its records were not processed.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from pykcl.errors import PyKclError, printable


class Unwritable(PyKclError):
    """Standard output cannot be written, for a reason other than that its reader has closed it."""


def say(text: str, *, err: bool = False) -> None:
    """Print text that is already inert; what the encoding of the terminal lacks is escaped as Python would.

    err: beside the answer, on standard error; dropped if that cannot be written. Raises BrokenPipeError once nobody
    reads standard output any more, and Unwritable.
    """
    if err:
        announce(text, err=True)
    elif text:
        with answering():
            _echo(text, err=False, newline=True)


def announce(text: str, *, err: bool = False, newline: bool = True) -> None:
    """Print text that is already inert, if that is possible: the message of a service that goes on without it."""
    if not text:
        return
    try:
        _echo(text, err=err, newline=newline)
    except (OSError, ValueError):
        # What standard error could not take stays in its buffer, and comes once there is space again.
        if not err:
            forget_output()


def print_notice(text: str) -> None:
    """Print a line beside the answer, on standard error."""
    announce(f"pykcl: {printable(text)}", err=True)


@contextmanager
def answering() -> Iterator[None]:
    """Write an answer to standard output in the block. Raises BrokenPipeError, and Unwritable for any other error."""
    try:
        yield
    except BrokenPipeError:
        forget_output()
        raise
    except OSError as error:
        forget_output()
        raise Unwritable(f"Standard output cannot be written: {error.strerror or error}.") from None


@contextmanager
def quiet_when_unread() -> Iterator[None]:
    """End well, with exit code 0, if the reader of the output, such as `head`, has closed it."""
    try:
        yield
        if sys.stdout is not None:
            with answering():
                sys.stdout.flush()
    except BrokenPipeError:
        forget_output()


def forget_output() -> None:
    """Discard what is still in the buffer of standard output, also at the end of the interpreter."""
    _forget(sys.stdout)


def _forget(stream: Any) -> None:
    """Discard what is in the buffer of a stream, now and from now on.

    Python writes it at the end of the process once more, and ends with code 120 if that fails.
    """
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def prepare_streams() -> None:
    """Prepare the three standard streams of this process: open those that are closed, on nothing, and let standard
    error not decide on the exit code.

    Otherwise the next socket would get the number of one of them, and a library that writes to standard error would
    write into a connection. Of standard input the number alone is taken: who reads it is to know that it is closed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number, inheritable=True)
                os.close(nowhere)
            if number:
                setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115 - as long as the process
    atexit.unregister(_give_up_on_errors)
    atexit.register(_give_up_on_errors)


def _give_up_on_errors() -> None:
    try:
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        _forget(sys.stderr)


class LogHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Log to standard error; a line that cannot be written is dropped."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as logging names it
        if isinstance(sys.exc_info()[1], OSError):
            return
        super().handleError(record)


def _echo(text: str, *, err: bool, newline: bool) -> None:
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=newline, err=err, color=None)
