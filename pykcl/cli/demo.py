"""`pykcl demo`: a fleet is killed, split, merged and stopped before your eyes, and proves that nothing was lost."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.demo_board import Board, View
from pykcl.cli.local import NEEDED_MODULES
from pykcl.errors import ConfigError

if TYPE_CHECKING:
    from pykcl.cli.demo_crew import WorkerProcess
    from pykcl.cli.demo_script import Script
    from pykcl.cli.demo_verdict import Verdict
    from pykcl.cli.demo_watch import Watch
    from pykcl.local.server import LocalAws

EXIT_FAIL = 1
EXIT_INTERRUPTED = 130
_MOST_SEED = 10_000


@click.command()
@click.option("--fast", is_flag=True, help="The same script in less than 25 seconds.")
@click.option("--headless", is_flag=True, help="Plain lines instead of the live picture.")
@click.option("--with-java", is_flag=True, help="One worker more: a real one of Java KCL 2.7.2.")
@click.option("--ui", "with_page", is_flag=True, help="Also show it on a web page, and print its address.")
@click.option("--keep", is_flag=True, help="Leave the local AWS and the last worker running until Ctrl-C.")
@click.option(
    "--seed", type=int, help="Decides the records, who is killed and what is split. Default: by chance."
)
def demo(fast: bool, headless: bool, with_java: bool, with_page: bool, keep: bool, seed: int | None) -> None:
    """Watch three workers share a stream and survive a kill -9, a split, a merge and a SIGTERM.

    Everything runs on this machine: an embedded Kinesis and DynamoDB, three worker processes, and a producer of
    plain and aggregated records. Each worker writes down what it processed; the verdict is computed from that and
    from the put counts of the stream.

    With --with-java a Java worker joins them on the same lease table, takes its share and is killed, too. It needs
    Java, and Maven the first time; without them the line "no Java worker" says why, and the demo goes on.

    With --ui the same is to be seen on a web page of this machine, which opens in a browser where there is one. On a
    terminal the demo then stays until Ctrl-C, as with --keep.

    Exit code 0 only if no record was lost and none was out of order.
    """
    from pykcl.cli.exit_codes import exit_codes

    with exit_codes(), _interruptible():
        refuse_missing_parts()
        broken = chosen_break()
        jars = _java_jars() if with_java else None
        number = random.SystemRandom().randrange(_MOST_SEED) if seed is None else seed
        keep = keep or (with_page and sys.stdout.isatty())
        view = _view(headless)
        verdict = _perform(view, jars, fast=fast, keep=keep, seed=number, broken=broken, with_page=with_page)
        if not verdict.passed:
            sys.exit(EXIT_FAIL)


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
    """The fault the workers shall have, from a variable that only the proof of the demo itself sets."""
    from pykcl.cli.demo_worker import BREAK_VARIABLE, CHECKPOINT_BEFORE_DELIVERY

    value = os.environ.get(BREAK_VARIABLE) or None
    if value not in (None, CHECKPOINT_BEFORE_DELIVERY):
        raise ConfigError(f"{BREAK_VARIABLE}={value!r} is unknown; it may be {CHECKPOINT_BEFORE_DELIVERY!r}.")
    return value


def _java_jars() -> tuple[Path, ...] | None:
    """Of the Java worker, or None: then a line says why there will be none."""
    from pykcl.cli.demo_java import VERSION, java_jars
    from pykcl.cli.java.jars import Unavailable

    click.echo(
        f"Java KCL {VERSION}: looking for its jars; the first time Maven brings them (75 MB)", err=True
    )
    try:
        return java_jars(os.environ)
    except Unavailable as reason:
        click.secho(f"no Java worker: {reason}. Going on with the Python workers alone.", fg="red", err=True)
        return None


def _perform(
    view: View,
    jars: tuple[Path, ...] | None,
    *,
    fast: bool,
    keep: bool,
    seed: int,
    broken: str | None,
    with_page: bool,
) -> Verdict:
    from pykcl.cli.demo_java import VERSION
    from pykcl.cli.demo_script import FAST, NORMAL, SHARDS, Script
    from pykcl.cli.demo_worker import STREAM
    from pykcl.cli.local import local_environment
    from pykcl.local.server import LocalAws

    pace = FAST if fast else NORMAL
    with tempfile.TemporaryDirectory(prefix="pykcl-demo-") as folder, LocalAws() as aws:
        aws.kinesis.create_stream(STREAM, SHARDS)
        local = local_environment(aws.url)
        board = Board(aws.url, seed, SHARDS, broken, VERSION if jars else None)
        watch, environment = _stage(aws, local, view, board, pace.rate)
        hire, hire_java = _hiring(environment, Path(folder), aws.url, jars)
        script = Script(watch, hire=hire, hire_java=hire_java, board=board, pace=pace)
        try:
            with _page(board, view) if with_page else nullcontext():
                return _show(script, view, board, local, keep=keep)
        finally:
            script.clean_up()


def _show(script: Script, view: View, board: Board, local: dict[str, str], *, keep: bool) -> Verdict:
    view.begin(board)
    try:
        verdict = script.play(keep=keep)
    finally:
        view.end(board)
    if keep:
        _wait_for_interrupt(view, local)
    return verdict


def _page(board: Board, view: View) -> AbstractContextManager[None]:
    from pykcl.cli.demo_page import demo_page

    return demo_page(board, opens=sys.stdout.isatty(), say=view.say)


def _stage(
    aws: LocalAws, local: dict[str, str], view: View, board: Board, rate: int
) -> tuple[Watch, dict[str, str]]:
    """What the script needs: somebody who looks, and the environment of the workers."""
    from pykcl.aws.clients import connect
    from pykcl.cli.demo_crew import worker_environment
    from pykcl.cli.demo_producer import Producer
    from pykcl.cli.demo_watch import Watch
    from pykcl.cli.demo_worker import STREAM, config
    from pykcl.runtime import SystemRuntime

    environment = worker_environment(os.environ, local)
    # The clients of this process look at its environment too: endpoint, proxy, credentials.
    os.environ.update(environment)
    table, _ = connect(config(), SystemRuntime())
    producer = Producer(_kinesis_client(aws.url), STREAM, seed=board.seed, rate=rate)
    return Watch(aws.kinesis, table, producer, view, board), environment


def _hiring(
    environment: dict[str, str], folder: Path, url: str, jars: tuple[Path, ...] | None
) -> tuple[Callable[[str], WorkerProcess], Callable[[], WorkerProcess] | None]:
    """Who starts a Python worker of a name, and who starts the Java worker."""
    from pykcl.cli.demo_crew import python_worker
    from pykcl.cli.demo_java import java_worker

    hire_java = partial(java_worker, jars, folder, environment, url) if jars else None
    return lambda name: python_worker(name, folder, environment), hire_java


def _kinesis_client(url: str) -> Any:
    from pykcl.aws.clients import client_config, new_session

    # One attempt: a put that is sent twice because its answer was late would not be counted twice by the producer.
    config = client_config(connect_timeout=10.0, read_timeout=60.0, connections=4)
    return new_session().client("kinesis", endpoint_url=url, config=config)


def _view(headless: bool) -> View:
    from pykcl.cli.demo_plain import PlainView

    drawable = sys.stdout.isatty() and sys.stdout.encoding.lower().startswith("utf")
    if headless or not drawable or importlib.util.find_spec("rich") is None:
        return PlainView()
    from pykcl.cli.demo_live import LiveView

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
    """SIGTERM as Ctrl-C: both unwind, so that every worker is ended and the folder removed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        click.echo("\npykcl demo: interrupted, no verdict", err=True)
        sys.exit(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)
