"""`pykcl demo`: kill, split, merge and stop a local fleet, and prove that no record was lost."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.console import announce
from pykcl.cli.errors import ExitCode, exit_codes
from pykcl.cli.local import NEEDED_MODULES
from pykcl.cli.options import Verb
from pykcl.errors import ConfigError
from pykcl.local import local_environment

if TYPE_CHECKING:
    from pykcl.demo.scenario import Scenario
    from pykcl.demo.verdict import Verdict
    from pykcl.demo.view import DemoState, View

EXIT_INTERRUPTED = 130
LAG_SECONDS = 2.0
CLIENT_SECONDS = 10.0
_MAX_SEED = 10_000


@click.command(cls=Verb)
@click.option("--fast", is_flag=True, help="Play the same scenario in less than 25 seconds.")
@click.option("--headless", is_flag=True, help="Print plain lines instead of a live view.")
@click.option("--with-java", is_flag=True, help="Add a worker of Java KCL 2.7.2.")
@click.option("--ui", "with_page", is_flag=True, help="Also serve a web page that shows the fleet.")
@click.option("--keep", is_flag=True, help="Leave the local AWS and the last worker running until Ctrl-C.")
@click.option(
    "--seed",
    type=int,
    metavar="N",
    help="Seed of the records, of the worker to kill and of the shards to split (default: random).",
)
def demo(fast: bool, headless: bool, with_java: bool, with_page: bool, keep: bool, seed: int | None) -> None:
    """Watch a fleet survive kills, a reshard and a poison record.

    Needs the extra `demo`, and no AWS account. Everything runs on this machine: an embedded Kinesis and DynamoDB, three
    worker processes, and a producer of plain and aggregated records. Each worker logs the records it processes; the
    verdict compares these logs with the records of the stream. The exit code is 0 only if no record was lost or out of
    order.

    --with-java adds a Java worker on the same lease table, which takes its share and is killed as well. It needs Java,
    and Maven the first time; without them the demo says why and runs without it.

    --ui opens the web page of `pykcl ui` in a browser if there is one. On a terminal the demo then runs until Ctrl-C,
    as with --keep.
    """
    with exit_codes(), _interruptible():
        refuse_missing_parts()
        broken = chosen_break()
        jars = _java_jars() if with_java else None
        number = random.SystemRandom().randrange(_MAX_SEED) if seed is None else seed
        keep = keep or (with_page and sys.stdout.isatty())
        view = _view(headless)
        verdict = _run(view, jars, fast=fast, keep=keep, seed=number, broken=broken, with_page=with_page)
        if not verdict.passed:
            sys.exit(ExitCode.FAILED)


def refuse_missing_parts() -> None:
    """Raise ConfigError unless the local AWS can run here and processes can be killed here."""
    missing = [name for name in NEEDED_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"The demo needs {', '.join(missing)}, which {'are' if missing[1:] else 'is'} not installed. "
            "Do: pip install 'pykcl[demo]'."
        )
    if not hasattr(signal, "SIGSTOP"):
        raise ConfigError("The demo kills processes by POSIX signals, which this system lacks. Do: use WSL.")


def chosen_break() -> str | None:
    """Return the fault of the workers, from a variable that only the tests of the demo set."""
    from pykcl.demo.workers import BREAK_VARIABLE, CHECKPOINT_BEFORE_DELIVERY

    value = os.environ.get(BREAK_VARIABLE) or None
    if value not in (None, CHECKPOINT_BEFORE_DELIVERY):
        raise ConfigError(f"{BREAK_VARIABLE}={value!r} is unknown; it may be {CHECKPOINT_BEFORE_DELIVERY!r}.")
    return value


def _java_jars() -> tuple[Path, ...] | None:
    """Return the jars of the Java worker; None, after printing why, where there can be none."""
    from pykcl.demo.java import VERSION, Unavailable, java_jars

    announce(f"Java KCL {VERSION}: finding its jars; the first time Maven downloads them (75 MB)", err=True)
    try:
        return java_jars(os.environ)
    except Unavailable as reason:
        click.secho(f"no Java worker: {reason}. Continuing with the Python workers only.", fg="red", err=True)
        return None


def _run(
    view: View,
    jars: tuple[Path, ...] | None,
    *,
    fast: bool,
    keep: bool,
    seed: int,
    broken: str | None,
    with_page: bool,
) -> Verdict:
    from pykcl.demo.java import VERSION
    from pykcl.demo.scenario import FAST, NORMAL, SHARDS, create_scenario
    from pykcl.demo.view import DemoState
    from pykcl.demo.workers import STREAM, worker_environment
    from pykcl.local.server import LocalAws

    with tempfile.TemporaryDirectory(prefix="pykcl-demo-") as folder, LocalAws() as aws:
        aws.kinesis.create_stream(STREAM, SHARDS)
        local = local_environment(aws.url)
        environment = worker_environment(os.environ, local)
        # The clients of this process read its environment, too: endpoint, proxy, credentials.
        os.environ.update(environment)
        state = DemoState(aws.url, seed, SHARDS, broken, VERSION if jars else None)
        pace = FAST if fast else NORMAL
        scenario = create_scenario(
            aws, view, state, pace=pace, folder=Path(folder), environment=environment, jars=jars
        )
        try:
            with _page(state, view.say) if with_page else nullcontext():
                return _play(scenario, view, state, local, keep=keep)
        finally:
            scenario.clean_up()


def _play(scenario: Scenario, view: View, state: DemoState, local: dict[str, str], *, keep: bool) -> Verdict:
    view.start(state)
    try:
        verdict = scenario.play(keep=keep)
    finally:
        view.end(state)
    if keep:
        _wait_for_interrupt(view, local)
    return verdict


@contextmanager
def _page(state: DemoState, say: Callable[[str], None]) -> Iterator[None]:
    """Serve the web page while the demo runs, and print its link.

    Raises ConfigError where the extra is missing, SetupError without a free port.
    """
    from pykcl.cli.ui import opened_in_browser, refuse_missing_parts
    from pykcl.demo.workers import APPLICATION, FAILOVER_TIME, STREAM

    refuse_missing_parts()
    from pykcl.aws.kinesis import KinesisStream
    from pykcl.operate.aws.lease_table import TableScanner
    from pykcl.operate.lag import KinesisLag
    from pykcl.runtime import SystemRuntime
    from pykcl.ui.poller import READS_PER_ROUND, Fleet, LagPoller
    from pykcl.ui.server import page_server
    from pykcl.ui.state_store import Rates

    runtime = SystemRuntime()
    stream = KinesisStream(_client("kinesis", state.url), STREAM, runtime)
    server = page_server(
        Fleet(application=APPLICATION, stream=STREAM, region="local", failover=FAILOVER_TIME),
        TableScanner(_client("dynamodb", state.url), APPLICATION, runtime),
        runtime,
        bind="0",
        rates=Rates(asks_workers=False, totals=lambda: processed(state)),
        lags=LagPoller(lambda: KinesisLag(stream, runtime, max_reads=READS_PER_ROUND), LAG_SECONDS, runtime),
    )
    with server:
        say(f"page: {server.link}")
        with opened_in_browser(server.link, wanted=sys.stdout.isatty()):
            yield


def processed(state: DemoState) -> dict[str, float]:
    """Return the records processed so far by running worker. `state.workers` is replaced, never changed in place."""
    return {line.name: float(line.delivered) for line in state.workers if line.state == "running"}


def _client(service: str, url: str) -> Any:
    from pykcl.aws.clients import client_config, new_session

    config = client_config(connect_timeout=CLIENT_SECONDS, read_timeout=CLIENT_SECONDS, connections=20)
    return new_session().client(service, endpoint_url=url, config=config)


def _view(headless: bool) -> View:
    from pykcl.demo.view import PlainView

    drawable = sys.stdout.isatty() and sys.stdout.encoding.lower().startswith("utf")
    if headless or not drawable or importlib.util.find_spec("rich") is None:
        return PlainView()
    from pykcl.demo.live_view import LiveView

    return LiveView()


def _wait_for_interrupt(view: View, local: dict[str, str]) -> None:
    view.say("")
    for name, value in local.items():
        view.say(f"export {name}={value}")
    view.say("# stream demo, lease table pykcl-demo; Ctrl-C ends everything")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        view.say("")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: both unwind, so that every worker is ended and the folder removed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        announce("\npykcl demo: interrupted, no verdict", err=True)
        sys.exit(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)
