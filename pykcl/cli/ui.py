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

from pykcl.cli.console import announce
from pykcl.cli.options import Duration, Verb
from pykcl.cli.settings import worker_token
from pykcl.cli.target import Target, fleet_options
from pykcl.config import HTTP_TOKEN
from pykcl.errors import ConfigError, printable
from pykcl.runtime import SignalEvent
from pykcl.worker.signals import stop_signals_go_to

if TYPE_CHECKING:
    from pykcl.operate.lag import KinesisLag
    from pykcl.runtime import Runtime

DEFAULT_BIND = "127.0.0.1:7654"
NEEDED_MODULES = ("hypercorn", "starlette")
"""What the extra `ui` brings."""


@click.command(cls=Verb)
@fleet_options("table")
@click.option(
    "--bind",
    default=DEFAULT_BIND,
    show_default=True,
    metavar="[HOST:]PORT",
    help="Listen on this address; port 0 selects a free port.",
)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME[:PORT]",
    help="Allow browsers to call the page by another name, such as that of a proxy (repeatable).",
)
@click.option(
    "--every",
    type=Duration(minimum=0.5, maximum=60.0),
    default=1.0,
    metavar="DURATION",
    help="Read the lease table this often while the page is open (default: 1s).",
)
@click.option(
    "--status-url",
    "workers",
    multiple=True,
    metavar="URL",
    help="Address of a worker's --http, to show its own lag and throughput (repeatable).",
)
@click.option(
    "--status-token-file",
    "token_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"With --status-url: file with the token of the workers' /status (default: ${HTTP_TOKEN}).",
)
@click.option(
    "--no-lag", is_flag=True, help="Do not ask Kinesis for the lag, which takes reads of each shard."
)
@click.option(
    "--lag-every",
    type=Duration(minimum=1.0, maximum=600.0),
    default=10.0,
    metavar="DURATION",
    help="Ask Kinesis for the lag of each shard this often (default: 10s); less often with many shards.",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
def ui(
    target: Target,
    bind: str,
    names: tuple[str, ...],
    every: float,
    workers: tuple[str, ...],
    token_file: Path | None,
    no_lag: bool,
    lag_every: float,
    opens: bool,
) -> None:
    """Serve a web page that shows a fleet.

    Needs --application or --table, and the extra `ui`. The page shows lag, throughput, lineage and events; it only
    reads. Prints a URL with an access token. The page loads no external resources.
    """
    refuse_missing_parts()
    from pykcl.operate.worker_status import StatusClient
    from pykcl.runtime import SystemRuntime
    from pykcl.ui.poller import Fleet, LagPoller, WorkerPoller
    from pykcl.ui.server import page_server
    from pykcl.ui.state_store import Rates

    runtime, table = SystemRuntime(), str(target.table)
    token = worker_token(token_file) if workers else None
    fleet = Fleet(
        application=table,
        stream=target.stream_name,
        region=target.clients.region_of("dynamodb"),
        failover=target.failover,
        every=every,
    )
    lags = LagPoller(lambda: _kinesis_lag(target, runtime), lag_every, runtime)
    server = page_server(
        fleet,
        target.scanner(),
        runtime,
        bind=bind,
        names=names,
        rates=Rates(asks_workers=bool(workers)),
        lags=None if no_lag else lags,
        workers=WorkerPoller(StatusClient(workers, runtime, token), every, runtime) if workers else None,
    )
    stop = SignalEvent()
    with stop_signals_go_to(lambda *_: stop.set()), server:
        announce(f"{printable(table)} at {server.link}")
        announce("Anyone with this address can see the fleet. Ctrl-C stops the page.", err=True)
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


def _kinesis_lag(target: Target, runtime: Runtime) -> KinesisLag:
    from pykcl.operate.snapshot import TableSnapshot
    from pykcl.ui.poller import READS_PER_ROUND

    view = TableSnapshot() if target.stream is not None else target.scanner().scan()
    if view.streams:
        raise ConfigError("The table holds leases of several streams; this can be asked of one stream only.")
    return target.kinesis_lag(view, runtime, max_reads=READS_PER_ROUND)
