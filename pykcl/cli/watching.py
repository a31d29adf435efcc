"""`--watch[=2s]`: the same answer again and again, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from pykcl.cli.durations import Duration
from pykcl.cli.exit_codes import EXIT_OK
from pykcl.cli.output import is_terminal, say
from pykcl.errors import TemporaryError
from pykcl.times import format_duration

Command = TypeVar("Command", bound=Callable[..., Any])

_TO_THE_TOP = "\x1b[H\x1b[J"


def watch_option(command: Command) -> Command:
    """`--watch[=SECONDS]`, handed to the command as `watch`: seconds, or None for one answer."""
    return click.option(
        "--watch",
        is_flag=False,
        flag_value="2s",
        default=None,
        metavar="[=2s]",
        type=Duration(minimum=0.2),
        help="Answer again and again, until Ctrl-C. Write --watch=5s for another pause.",
    )(command)


def tell_of_the_wait(seconds: float) -> None:
    """For `Sampler.look_twice`: a command that seems to hang says on standard error why."""
    say(
        f"pykcl: scanning again in {format_duration(seconds)} to see which counters move; --no-sample does not wait",
        err=True,
    )


def repeat(watch: float | None, look: Callable[[], tuple[str, int]]) -> int:
    """Print what `look` returns (text, exit code), once or until Ctrl-C; return the last code.

    On a terminal each answer replaces the one before; piped, they follow one another. While watching, TemporaryError is
    told and the next look follows; everything else ends the command.
    """
    if watch is None:
        text, code = look()
        say(text)
        return code
    code = EXIT_OK
    try:
        while True:
            try:
                text, code = look()
            except TemporaryError as error:
                say(f"pykcl: {error} Looking again in {format_duration(watch)}.", err=True)
            else:
                say(f"{_TO_THE_TOP}{text}" if is_terminal() else f"{text}\n")
            time.sleep(watch)
    except KeyboardInterrupt:
        return code
