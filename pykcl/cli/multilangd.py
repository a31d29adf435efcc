"""`pykcl multilangd`: a MultiLangDaemon without Java. One child process per lease, in any language."""

from __future__ import annotations

import logging
import signal
import sys
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import click

from pykcl.cli.errors import exit_codes
from pykcl.cli.options import COMMON, Verb, option_in
from pykcl.cli.run import ACCEPT_POLLING, OPTION
from pykcl.cli.settings import Service, Settings, from_arguments, log_to_stderr, service_options, settings_of
from pykcl.cli.supervisor import Processes, processes_option
from pykcl.cli.target import LEASE_STORE_OPTION
from pykcl.errors import ConfigError, ProcessorFailed, RestartShard
from pykcl.worker.signals import stop_signals_go_to

if TYPE_CHECKING:
    from pykcl.compat.multilang.children import Children

log = logging.getLogger("pykcl.multilang")

_LACKS_KCLPY = (
    "The program of executableName needs the package amazon_kclpy, which its Python does not have. Do: install it "
    "there, or run the program without children and without the package: pykcl run --properties FILE --kclpy APP.py."
)


@click.command(cls=Verb)
@click.argument("file", required=False, metavar="[FILE]", type=click.Path(path_type=Path))
@click.option(
    "-l",
    "--log-configuration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Accepted for compatibility; ignored.",
)
@click.option(
    "--exit-on-child-failure",
    is_flag=True,
    help="Stop when a child dies, hangs or cannot be started, as Java does, instead of starting it again.",
)
@ACCEPT_POLLING
@OPTION
@LEASE_STORE_OPTION
@service_options
@processes_option
@option_in(COMMON)(
    "-p",
    "--properties",
    "--properties-file",
    "properties",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read options from the .properties file of a MultiLangDaemon.",
)
def multilangd(
    file: Path | None,
    properties: Path | None,
    log_configuration: Path | None,
    exit_on_child_failure: bool,
    accept_polling: bool,
    options: tuple[str, ...],
    lease_store: str | None,
    processes: Processes,
    service: Service,
    verbose: bool,
) -> None:
    """Run a MultiLangDaemon program without Java.

    Needs the .properties file of the daemon: --properties or FILE. Its executableName runs as one process per shard.
    The output of these processes is logged as pykcl.child.SHARD, their standard error as pykcl.child.SHARD.stderr.

    Ctrl-C or SIGTERM waits for the running batches, sends shutdownRequested to every child and releases the leases,
    within shutdownGraceMillis (default: 25 s). A second one, after a second or more, does not wait for the batches.
    """
    log_to_stderr(service.log_format, verbose=verbose, with_names=True, process=processes.number)
    chosen = properties or file
    if chosen is None:
        raise click.UsageError("No .properties file. Do: --properties FILE.")
    if log_configuration is not None:
        log.warning(
            "--log-configuration is not used: everything is logged to standard error, by Python's logging."
        )
    from pykcl.compat.multilang.processor import refuse_policies

    with exit_codes(processes.name, runs_worker=True):
        given = {"on_error": "raise"} if exit_on_child_failure else {}
        settings = settings_of(
            entry_point="multilang",
            properties=chosen,
            config_file=None,
            overrides={**from_arguments(options), **service.config_options(), **given},
            accept_polling=accept_polling,
            lease_store=lease_store,
            shows_verdicts=processes.member is None,
        )
        refuse_policies(settings.config)
        if processes.is_parent:
            sys.exit(processes.run(settings.config, service))
        _run(processes.own(settings), service)


def _end_of(children: Children, number: int, _: object) -> None:
    """Handle SIGTERM and SIGINT while the worker does not, without leaving a child.

    A child that is left would go on with a shard that belongs to another worker by then.
    """
    if children.is_closing:
        children.hurry()
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    else:
        sys.exit(128 + number)


def _run(settings: Settings, service: Service) -> None:
    """Raises ConfigError, SetupError, and what stopped the worker."""
    from pykcl.compat.multilang.children import Children, Patience
    from pykcl.compat.multilang.command import checked_command
    from pykcl.compat.multilang.processor import child_processors
    from pykcl.worker.worker import Worker

    # Before any lease is taken from somebody who can work.
    command = checked_command(settings.executable)
    clients = settings.clients()
    children = Children(command, patience_at_stop=Patience.within(settings.config.shutdown_grace))
    lacking = Event()

    def stop_for_good() -> None:
        lacking.set()
        worker._signals.ask(1)

    with stop_signals_go_to(partial(_end_of, children)), children:
        processors = child_processors(children, settings.timeout, stop_for_good)
        try:
            with service.watching() as watch:
                worker = Worker(
                    processor=processors,
                    config=settings.config,
                    clients=clients,
                    lease_table=settings.lease_table(),
                )
                watch(worker).run()
            if lacking.is_set():
                raise ConfigError(_LACKS_KCLPY)
        except ProcessorFailed as failure:
            if lacking.is_set():
                raise ConfigError(_LACKS_KCLPY) from None
            if isinstance(failure.__cause__, RestartShard):
                # Not another one: this one knows what to do, and for which shard of which application.
                failure.args = (f"{failure.__cause__} --exit-on-child-failure stops the daemon.",)
                raise failure from None
            raise
        finally:
            log.info("children started=%d failed=%d", children.started, sum(children.failures.values()))
