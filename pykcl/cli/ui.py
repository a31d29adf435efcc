"""`pykcl ui`: a web page that shows a fleet, served on this machine."""

from __future__ import annotations

import html
import importlib.util
import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pykcl.cli.durations import Duration
from pykcl.cli.output import say
from pykcl.cli.settings import worker_token
from pykcl.cli.stopping import stop_by_signals
from pykcl.cli.target import Target, fleet_options
from pykcl.config import HTTP_TOKEN
from pykcl.errors import ConfigError, printable

if TYPE_CHECKING:
    from pykcl.aws.kinesis import KinesisStream
    from pykcl.operate.lag import LagSource
    from pykcl.runtime import Runtime

DEFAULT_BIND = "127.0.0.1:7654"
NEEDED_MODULES = ("hypercorn", "starlette")
"""What the extra `ui` brings."""


@click.command()
@fleet_options("table")
@click.option(
    "--bind",
    default=DEFAULT_BIND,
    show_default=True,
    metavar="[HOST:]PORT",
    help="Where; port 0 for any free one.",
)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME[:PORT]",
    help="Another name browsers may call it by, such as a proxy's. May be repeated.",
)
@click.option(
    "--every",
    type=Duration(minimum=0.5, maximum=60.0),
    default=1.0,
    metavar="TIME",
    help="How often the lease table is read while the page is open (default 1s).",
)
@click.option(
    "--worker",
    "workers",
    multiple=True,
    metavar="URL",
    help="A worker's --http address: it tells its lag and its records itself. May be repeated.",
)
@click.option(
    "--worker-token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"The token of the workers' /status. Else ${HTTP_TOKEN}.",
)
@click.option(
    "--lag",
    "lag_from",
    type=click.Choice(["kinesis", "none"]),
    default="kinesis",
    show_default=True,
    help="Who is asked for the lag of those that do not tell it.",
)
@click.option(
    "--lag-every",
    type=Duration(minimum=1.0, maximum=600.0),
    default=10.0,
    metavar="TIME",
    help="How often each shard is asked (default 10s); seldomer where there are many.",
)
@click.option("--open", "opens", is_flag=True, help="Also open it in a browser.")
def ui(
    target: Target,
    bind: str,
    names: tuple[str, ...],
    every: float,
    workers: tuple[str, ...],
    worker_token_file: Path | None,
    lag_from: str,
    lag_every: float,
    opens: bool,
) -> None:
    """Show the fleet on a web page: lag, throughput, lineage, events. It only reads.

    The address it prints has a token in it that nobody else on this machine knows; the browser gets a cookie for it.
    Everything the page is made of comes from here: it asks nobody else.
    """
    refuse_missing_parts()
    from pykcl.operate.aws.table_scan import TableScanner
    from pykcl.operate.worker_status import StatusClient
    from pykcl.runtime import SystemRuntime
    from pykcl.ui.poller import Fleet, LagPoller, WorkerPoller
    from pykcl.ui.server import page_server
    from pykcl.ui.state_store import Rates

    runtime, table = SystemRuntime(), str(target.table)
    client = target.clients.client("dynamodb")
    token = worker_token(worker_token_file) if workers else None
    fleet = Fleet(
        application=table,
        stream=target.stream_name,
        region=target.clients.region(),
        failover=target.failover,
        every=every,
    )
    lags = LagPoller(lambda: _kinesis_lag(target, runtime), lag_every, runtime)
    server = page_server(
        fleet,
        TableScanner(client, table, runtime),
        runtime,
        bind=bind,
        names=names,
        rates=Rates(asks_workers=bool(workers)),
        lags=lags if lag_from == "kinesis" else None,
        workers=WorkerPoller(StatusClient(workers, runtime, token), every, runtime) if workers else None,
    )
    with stop_by_signals() as stop, server:
        say(f"{printable(table)} at {server.link}")
        say("That address is all it takes to see the fleet. Ctrl-C ends it.", err=True)
        with opened_in_browser(server.link, wanted=opens):
            stop.wait()


@contextmanager
def opened_in_browser(link: str, *, wanted: bool) -> Iterator[None]:
    """Opens it in a graphical browser, if that is wanted and there is one; a text browser would take the terminal.

    By way of a file that only this user can read: arguments of processes are for everybody to see, and the link has the
    token in it.
    """
    if not wanted or not _has_screen():
        yield
        return
    with tempfile.TemporaryDirectory(prefix="pykcl-ui-") as folder:
        page = Path(folder) / "open.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(link)}">')
        webbrowser.open(page.as_uri())
        yield


def _has_screen() -> bool:
    names = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in names)


def refuse_missing_parts() -> None:
    """Raise ConfigError unless the page can be served here."""
    missing = [name for name in NEEDED_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"The page needs {', '.join(missing)}, which {'are' if missing[1:] else 'is'} not installed. "
            "Do: pip install 'pykcl[ui]'."
        )


def _stream(target: Target, runtime: Runtime) -> KinesisStream:
    """The stream that was told, else the one that the rows name. Raises ConfigError."""
    from pykcl.operate.aws.table_scan import TableScanner

    if target.stream is not None:
        return target.kinesis()
    view = TableScanner(target.clients.client("dynamodb"), str(target.table), runtime).scan()
    if view.streams:
        raise ConfigError("The table holds leases of several streams; this can be asked of one stream only.")
    arns = view.stream_arns
    if len(arns) != 1:
        raise ConfigError("The table does not say which stream it is of. Do: --stream NAME.")
    return target.kinesis(arns[0])


def _kinesis_lag(target: Target, runtime: Runtime) -> LagSource:
    from pykcl.operate.lag import KinesisLag
    from pykcl.ui.poller import READS_PER_ROUND

    stream = _stream(target, runtime)
    stream.describe()
    return KinesisLag(stream, runtime, start=target.config.start_position, max_reads=READS_PER_ROUND)
