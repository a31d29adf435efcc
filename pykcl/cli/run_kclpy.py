"""A program of amazon_kclpy in this process: `pykcl run --kclpy APP.py` and `python -m pykcl.compat.kclpy APP.py`."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import click

from pykcl.cli.errors import ExitCode, exit_codes
from pykcl.cli.help import Verb
from pykcl.cli.logs import log_beside_the_program
from pykcl.cli.settings import Service, Settings, from_arguments, service_options, settings_of
from pykcl.cli.target import CONFIG_OPTION, PROPERTIES_OPTION
from pykcl.processor import ProcessorFactory

log = logging.getLogger("pykcl.kclpy")


@contextmanager
def begun_as_by_a_main_thread() -> Iterator[None]:
    """A thread that is begun in the block is no daemon, unless it says so, although the one that begins it is.

    A new thread takes after the one that begins it. In a child that is the main thread, so Python waits for the new
    one before the process ends; a shard's thread here is a daemon. 1) A writer begun by it has records in hand that are
    checkpointed; 2) the worker stops, and the process ends; 3) they are lost without a message. Nothing else reads
    the mark of a thread that runs (CPython 3.10 to 3.14: who is waited for is settled when a thread begins).
    """
    thread = threading.current_thread()
    was = thread.daemon
    thread._daemonic = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        thread._daemonic = was  # type: ignore[attr-defined]


@contextmanager
def waited_for(seconds: float) -> Iterator[None]:
    """Wait so many seconds after the block for the threads begun in it that are no daemons.

    Waiting for them is Python's own business, when the process ends: it also ends the idle ones of a
    ThreadPoolExecutor. But it waits for ever; so those that are left are then cut off with the whole process, and
    logged.
    """
    before = set(threading.enumerate())
    try:
        yield
    finally:
        own = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
        if own:
            log.info("waiting for threads of the program threads=%s", _names(own))
            threading.Thread(target=_cut_off, args=(own, seconds), name="pykcl-cut-off", daemon=True).start()


def _cut_off(own: list[threading.Thread], seconds: float) -> None:
    until = time.monotonic() + seconds
    for thread in own:
        thread.join(max(0.0, until - time.monotonic()))
    left = [thread for thread in own if thread.is_alive()]
    if left:
        log.error(
            "threads of the program have not ended within %g s and are cut off: what they had in hand is lost "
            "threads=%s. Do: end them in lease_lost, shard_ended and shutdown_requested; or let Thread(..., "
            "daemon=True) say that they need not end",
            seconds,
            _names(left),
        )
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ExitCode.CRASHED)


def _names(threads: list[threading.Thread]) -> str:
    return ",".join(sorted(thread.name for thread in threads))


ON_ERROR = click.option(
    "--on-error",
    type=click.Choice(("retry", "skip", "raise")),
    help="When the processor raises: retry the batch (default), skip it as Java KCL does, or stop the worker.",
)
ACCEPT_POLLING = click.option(
    "--accept-polling",
    is_flag=True,
    help="Do not warn that pykcl polls where Java KCL used enhanced fan-out.",
)
OPTION = click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set any option of pykcl.Config, such as max_leases=10 (repeatable).",
)


@click.command(
    "python -m pykcl.compat.kclpy", cls=Verb, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.argument("program", metavar="APP.py", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENT...]")
@ON_ERROR
@ACCEPT_POLLING
@OPTION
@service_options
@PROPERTIES_OPTION
@CONFIG_OPTION
def kclpy(
    program: Path,
    arguments: tuple[str, ...],
    properties: Path | None,
    config_file: Path | None,
    on_error: str | None,
    accept_polling: bool,
    options: tuple[str, ...],
    service: Service,
    verbose: bool,
) -> None:
    """Run a program written for amazon_kclpy in this process, without Java.

    Needs --properties or --config. The program is unchanged: its `amazon_kclpy` is the one of pykcl, whether or not the
    real one is installed, and its KCLProcess.run() reads the stream until Ctrl-C or SIGTERM, with a thread per shard.
    """
    log_beside_the_program(service.log_format, verbose=verbose)
    given = {} if on_error is None else {"on_error": on_error}
    with exit_codes(runs_worker=True):
        settings = settings_of(
            entry_point="kclpy",
            properties=properties,
            config_file=config_file,
            overrides={**from_arguments(options), **service.config_options(), **given},
            accept_polling=accept_polling,
        )
        run_kclpy(program, arguments, settings, service)


def run_kclpy(
    program: Path,
    arguments: Sequence[str],
    settings: Settings,
    service: Service,
    *,
    surroundings: AbstractContextManager[None] | None = None,
    watch: Callable[[ProcessorFactory], ProcessorFactory] = lambda factory: factory,
) -> None:
    """Raises what `run_program` raises, and ConfigError and SetupError for the clients.

    surroundings: what the worker runs in. watch: puts something around each processor.
    """
    from pykcl.compat.kclpy.launch import Launch, run_program

    with surroundings or nullcontext():
        from pykcl.worker.worker import Worker

        clients = settings.clients()
        with service.watching() as under_watch:

            def make(factory: ProcessorFactory) -> Worker:
                worker = Worker(
                    processor=watch(factory),
                    config=settings.config,
                    clients=clients,
                )
                return under_watch(worker)

            with waited_for(settings.config.shutdown_grace):
                run_program(program, arguments, Launch(make, begun_as_by_a_main_thread))
