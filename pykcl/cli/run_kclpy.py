"""A program of amazon_kclpy in this process: `pykcl run --kclpy APP.py` and `python -m pykcl.compat.kclpy APP.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click

from pykcl.cli.exit_codes import exit_codes
from pykcl.cli.garbage import tune_collector
from pykcl.cli.logs import log_beside_the_program
from pykcl.cli.options import from_arguments
from pykcl.cli.own_threads import begun_as_by_a_main_thread, waited_for
from pykcl.cli.service_options import Service, service_options
from pykcl.cli.settings import Settings, settings_of
from pykcl.processor import ProcessorFactory

ON_ERROR = click.option(
    "--on-error",
    type=click.Choice(("retry", "skip", "raise")),
    help="What a raising processor costs: its batch again (default), its batch skipped as Java does, or the worker.",
)
PROPERTIES = click.option(
    "--properties",
    "-p",
    type=click.Path(path_type=Path),
    help="The .properties file of a MultiLangDaemon.",
)
CONFIG = click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Options of Config in TOML, such as the pykcl.toml of `pykcl migrate`.",
)
ACCEPT_POLLING = click.option(
    "--accept-polling",
    is_flag=True,
    help="Read by polling where Java used enhanced fan-out, and say no more of it.",
)


@click.command("python -m pykcl.compat.kclpy", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("program", metavar="APP.py", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENT...]")
@PROPERTIES
@CONFIG
@ON_ERROR
@ACCEPT_POLLING
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Any option of Config; wins.")
@service_options
@click.option("-v", "--verbose", is_flag=True, help="Log at DEBUG.")
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
    """Run a program written for amazon_kclpy in this process, unchanged: one thread for each shard, no Java.

    The program's `amazon_kclpy` is pykcl's own here, whether or not the real one is installed; its KCLProcess.run()
    works on the stream until Ctrl-C or SIGTERM.
    """
    log_beside_the_program(service.log_format, verbose=verbose)
    given = {} if on_error is None else {"on_error": on_error}
    with exit_codes():
        settings = settings_of(
            door="kclpy",
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
                    listeners=(tune_collector,),
                )
                return under_watch(worker)

            with waited_for(settings.config.shutdown_grace):
                run_program(program, arguments, Launch(make, begun_as_by_a_main_thread))
