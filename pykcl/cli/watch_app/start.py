"""How `pykcl leases watch` begins and ends."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from pykcl.cli.fleet_options import Target
from pykcl.cli.output import say
from pykcl.errors import ConfigError, TemporaryError
from pykcl.operate.scanning import TableScanner
from pykcl.runtime import Runtime, SystemRuntime

if TYPE_CHECKING:
    from pykcl.cli.watch_app.app import Tab
    from pykcl.cli.watch_app.looks import Looker


def refuse_missing_parts() -> None:
    """Raise ConfigError unless the program can be shown here."""
    if importlib.util.find_spec("textual") is None:
        raise ConfigError(
            "The live view needs textual, which is not installed. Do: pip install 'pykcl[watch]'; "
            "or pykcl leases list --watch, which needs nothing more."
        )


def refuse_no_terminal() -> None:
    """Raise click.UsageError unless a person's terminal is at both ends."""
    if os.environ.get("TERM") == "dumb" or not all(
        stream is not None and stream.isatty() for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    ):
        raise click.UsageError(
            "There is no terminal to show it in. Do: pykcl leases watch --snapshot, which prints one picture; or "
            "pykcl leases list --watch, which prints again and again."
        )


def take_picture(target: Target, every: float, tab: str, filter_text: str, file: Path | None) -> None:
    """Look until it can be told who is alive, and print what the program would show, or draw it as SVG into `file`.

    Raises PyKclError.
    """
    refuse_missing_parts()
    from pykcl.cli.watch_app.snapshot import snapshot

    runtime = SystemRuntime()
    frame = _looker(target, runtime).look_well()
    size = shutil.get_terminal_size((80, 24))
    found = snapshot(
        frame,
        runtime.monotonic,
        (max(20, size.columns), max(8, size.lines)),
        every=every,
        tab=cast("Tab", tab),
        filter_text=filter_text,
        as_svg=file is not None,
    )
    if file is None:
        say(found)
        return
    try:
        file.write_text(found, "utf-8")
    except OSError as error:
        raise ConfigError(
            f"The picture cannot be written to {file}: {error.strerror or type(error).__name__}. "
            "Name a file in a folder that exists and may be written."
        ) from None
    say(f"wrote {file}")


def watch_live(target: Target, every: float, tab: str, filter_text: str) -> None:
    """Until somebody quits. Raises PyKclError if there is nothing to look at."""
    refuse_missing_parts()
    refuse_no_terminal()
    from pykcl.cli.watch_app.app import WatchApp
    from pykcl.cli.watch_app.looks import Looking

    runtime = SystemRuntime()
    looker = _looker(target, runtime)
    try:
        # Before the screen is taken: a wrong name, or no permission, is told in one line as by the other commands.
        first = looker.look()
    except TemporaryError as error:
        first = looker.failing(error)
    app = WatchApp(
        first,
        runtime.monotonic,
        every=every,
        attach=lambda publish: Looking(looker, runtime, every, publish),
        tab=cast("Tab", tab),
        filter_text=filter_text,
    )
    app.run()
    if app.failure is not None:
        raise app.failure


def _looker(target: Target, runtime: Runtime) -> Looker:
    from pykcl.cli.watch_app.looks import Looker

    return Looker(
        target, TableScanner(target.clients.client("dynamodb"), str(target.table), runtime), runtime
    )
