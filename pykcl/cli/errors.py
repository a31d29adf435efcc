"""The exit codes of the command line, and how an error becomes one line and its code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import click

from pykcl.cli.console import announce
from pykcl.errors import ConfigError, PyKclError, Refused, SetupError


class ExitCode(IntEnum):
    """The exit codes of all verbs. meaning: the line of `pykcl --help`."""

    meaning: str

    OK = 0, "Success."
    FAILED = 1, "The command failed."
    USAGE = 2, "An option or argument is wrong or missing."
    FINDING = 3, "A threshold was exceeded, doctor found an error, or a replay lost records."
    REFUSED = 5, "The change was refused because it is not safe now."
    CRASHED = 70, "run, replay, multilangd: the worker or its program crashed."
    MISCONFIGURED = 78, "run, replay, multilangd: the configuration or an AWS resource is wrong."

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member


BY_SIGNAL, BY_SIGNAL_MEANING = (
    "128+n",
    "put, tail, multilangd, demo: signal n ended the command; 130 is Ctrl-C.",
)
"""The row of the exit codes that have no name of their own."""


class ProgramCrashed(PyKclError):
    """An exception of the application's own, outside of a worker. Its traceback was logged."""


@contextmanager
def exit_codes(name: str = "pykcl", *, runs_worker: bool = False) -> Iterator[None]:
    """Turn an error into one line on standard error, a second one if its error code is known, and an exit code.

    name: in front of the lines. runs_worker: CRASHED and MISCONFIGURED differ, for a platform that restarts the
    command; otherwise both are FAILED. Click's own errors and `sys.exit(code)` pass through.
    """
    of_click: tuple[type[Exception], ...] = (click.ClickException,)
    if not runs_worker:
        # The last: the reader of the output, such as `head`, has closed it; click ends quietly.
        of_click += (click.Abort, click.exceptions.Exit, BrokenPipeError)
    crashed = ExitCode.CRASHED if runs_worker else ExitCode.FAILED
    try:
        yield
    except of_click:
        raise
    except Refused as error:
        _print_error(error, "refused: ", name=name)
        sys.exit(ExitCode.REFUSED)
    except (ConfigError, SetupError) as error:
        _print_error(error, name=name)
        sys.exit(ExitCode.MISCONFIGURED if runs_worker else ExitCode.FAILED)
    except PyKclError as error:
        has_type = runs_worker and not isinstance(error, ProgramCrashed)
        _print_error(error, f"{type(error).__name__}: " if has_type else "", name=name)
        sys.exit(crashed)
    except Exception:
        logging.getLogger("pykcl").exception("crashed")
        sys.exit(crashed)


@contextmanager
def usage() -> Iterator[None]:
    """Report a ConfigError that is raised while the options are read as a usage error."""
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


def _print_error(error: PyKclError, kind: str = "", *, name: str = "pykcl") -> None:
    announce(f"{name}: {kind}{error}", err=True)
    if error.explanation is not None:
        announce(f"{name}: {error.explanation}", err=True)
