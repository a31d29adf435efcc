"""The web page on the running demo: `pykcl demo --ui`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pykcl.cli.demo_board import Board

LAG_SECONDS = 2.0
CLIENT_SECONDS = 10.0


@contextmanager
def demo_page(board: Board, *, opens: bool, say: Callable[[str], None]) -> Iterator[None]:
    """Serve it while the demo runs, and tell where. opens: in a browser, where there is one.

    Raises ConfigError where the extra is missing, SetupError without a free port.
    """
    from pykcl.cli.demo_worker import APPLICATION, FAILOVER_TIME, STREAM
    from pykcl.cli.ui import opened_in_browser, refuse_missing_parts

    refuse_missing_parts()
    from pykcl.aws.kinesis import KinesisStream
    from pykcl.operate.lag import KinesisLag
    from pykcl.operate.scanning import TableScanner
    from pykcl.runtime import SystemRuntime
    from pykcl.ui.lag_rounds import READS_A_ROUND, LagRounds
    from pykcl.ui.rates import Rates
    from pykcl.ui.server import page_server
    from pykcl.ui.watching import Fleet

    runtime = SystemRuntime()
    stream = KinesisStream(_client("kinesis", board.url), STREAM, runtime)
    server = page_server(
        Fleet(application=APPLICATION, stream=STREAM, region="local", failover=FAILOVER_TIME),
        TableScanner(_client("dynamodb", board.url), APPLICATION, runtime),
        runtime,
        bind="0",
        rates=Rates(asks_workers=False, totals=lambda: processed(board)),
        lags=LagRounds(lambda: KinesisLag(stream, runtime, most_reads=READS_A_ROUND), LAG_SECONDS, runtime),
    )
    with server:
        say(f"page: {server.link}")
        with opened_in_browser(server.link, wanted=opens):
            yield


def processed(board: Board) -> dict[str, float]:
    """Worker -> records so far, as its ledger says; of those that work. The board's list is replaced, never changed."""
    return {line.name: float(line.delivered) for line in board.workers if line.state == "running"}


def _client(service: str, url: str) -> Any:
    from pykcl.aws.clients import client_config, new_session

    config = client_config(connect_timeout=CLIENT_SECONDS, read_timeout=CLIENT_SECONDS, connections=20)
    return new_session().client(service, endpoint_url=url, config=config)
