"""`pykcl run MODULE:CLASS`, or `pykcl run --kclpy APP.py`: one worker in the foreground."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pykcl import own_log
from pykcl.cli.exit_codes import exit_codes
from pykcl.cli.garbage import tune_collector
from pykcl.cli.logs import log_beside_the_program, log_to_stderr
from pykcl.cli.options import from_arguments
from pykcl.cli.processes import Processes, processes_option
from pykcl.cli.run_kclpy import (
    ACCEPT_POLLING,
    CONFIG,
    ON_ERROR,
    PROPERTIES,
    run_kclpy,
)
from pykcl.cli.service_options import Service, service_options
from pykcl.cli.settings import Settings, settings_of
from pykcl.cli.shadow import Shadow
from pykcl.config import Config
from pykcl.errors import ConfigError

LOCAL_SHARDS = 4


@dataclass(frozen=True, slots=True)
class _Program:
    """What processes: kclpy, a program of amazon_kclpy, with its arguments, or else words: one MODULE:CLASS."""

    kclpy: Path | None
    words: tuple[str, ...]

    @property
    def target(self) -> str:
        """Raises click.UsageError unless it is exactly one MODULE:CLASS."""
        if len(self.words) != 1:
            raise click.UsageError(
                f"Got unexpected extra arguments: {' '.join(self.words[1:])}."
                if self.words
                else "Missing argument 'MODULE:CLASS'."
            )
        return self.words[0]


@click.command()
@click.argument("target", metavar="[MODULE:CLASS]", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENT...]")
@click.option(
    "--kclpy", type=click.Path(path_type=Path), metavar="APP.py", help="A program of amazon_kclpy, unchanged."
)
@PROPERTIES
@CONFIG
@ON_ERROR
@ACCEPT_POLLING
@click.option("--app", "application", help="Application name: its lease table, shared by the whole fleet.")
@click.option("--stream", help="Stream name or ARN.")
@click.option("--start", help="Where to start without leases: LATEST, TRIM_HORIZON or an ISO 8601 time.")
@click.option("--worker-id", help="Unique per process; by default host:pid:random.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Any other option of Config.")
@click.option(
    "--local", "use_local", is_flag=True, help="Against an embedded local AWS, started with the worker."
)
@click.option(
    "--shadow",
    metavar="APP2",
    help="Rehearse: read the same stream under another application and its own lease table, and only count.",
)
@click.option(
    "--shadow-call-processor", is_flag=True, help="With --shadow: call the processor, too, on every record."
)
@click.option(
    "--shadow-interval",
    type=click.FloatRange(0.1, 86_400),
    default=10.0,
    show_default=True,
    help="With --shadow: seconds between two tellings of what was counted.",
)
@service_options
@processes_option
@click.option("-v", "--verbose", is_flag=True, help="Log at DEBUG.")
def run(
    target: str | None,
    arguments: tuple[str, ...],
    kclpy: Path | None,
    properties: Path | None,
    config_file: Path | None,
    on_error: str | None,
    accept_polling: bool,
    application: str | None,
    stream: str | None,
    start: str | None,
    worker_id: str | None,
    options: tuple[str, ...],
    use_local: bool,
    shadow: str | None,
    shadow_call_processor: bool,
    shadow_interval: float,
    processes: Processes,
    service: Service,
    verbose: bool,
) -> None:
    """Run a record processor as one worker of a fleet.

    MODULE:CLASS names a RecordProcessor subclass or a zero-argument factory, importable from the current folder.
    Every option of Config can also be given as --option NAME=VALUE, as environment variable PYKCL_NAME, and in the file
    of --config or --properties; the first of these that has it wins.

    With --kclpy a program written for amazon_kclpy runs in this process, unchanged and without Java, on what its
    --properties or --config file says. Arguments behind -- are the program's own.

    With --shadow nothing is processed, and the application's own lease table is not touched.

    With --processes K workers share the shards as K such commands would, under this one.

    Ctrl-C or SIGTERM finishes the running batch, checkpoints and releases the leases; a second one forces.
    """
    given = _given(
        application=application, stream=stream, start=start, worker_id=worker_id, on_error=on_error
    )
    program = _Program(kclpy, arguments if target is None else (target, *arguments))
    _refuse_what_does_not_go_together(program, processes, shadow, calls=shadow_call_processor)
    log = log_to_stderr if kclpy is None else log_beside_the_program
    log(service.log_format, verbose=verbose, process=processes.number)
    with exit_codes(processes.name):
        settings = settings_of(
            door="native" if kclpy is None else "kclpy",
            properties=properties,
            config_file=config_file,
            overrides={**from_arguments(options), **service.config_options(), **given},
            accept_polling=accept_polling,
            use_local=use_local,
            is_told=processes.member is None,
        )
        if shadow is None:
            _run(program, settings, service, processes, use_local=use_local)
            return
        rehearsal = Shadow(settings, shadow, calls=shadow_call_processor, interval=shadow_interval)
        _rehearse(program, rehearsal, service, calls=shadow_call_processor, use_local=use_local)


def _refuse_what_does_not_go_together(
    program: _Program, processes: Processes, shadow: str | None, *, calls: bool
) -> None:
    if calls and shadow is None:
        raise click.UsageError("--shadow-call-processor goes with --shadow APP2 only.")
    if processes.count is not None and shadow is not None:
        raise click.UsageError(
            "--processes and --shadow do not go together. Do: start the shadow several times."
        )
    if program.kclpy is None and (shadow is None or calls):
        _ = program.target


def _given(**flags: str | None) -> dict[str, str]:
    return {name: value for name, value in flags.items() if value is not None}


def _run(
    program: _Program, settings: Settings, service: Service, processes: Processes, *, use_local: bool
) -> None:
    # One local AWS for all: of several processes it is the parent's, and they have its address from there.
    surroundings = _local_aws(settings.config) if use_local and not processes.member else nullcontext()
    if processes.is_parent:
        with surroundings:
            sys.exit(processes.run(settings.config, service))
    settings = processes.own(settings)
    if program.kclpy is not None:
        run_kclpy(program.kclpy, program.words, settings, service, surroundings=surroundings)
        return
    processor = _load(program.target)
    with surroundings:
        _work(processor, settings, service)


def _rehearse(program: _Program, shadow: Shadow, service: Service, *, calls: bool, use_local: bool) -> None:
    """As `_run`, as a shadow. Without `calls` a MODULE:CLASS is imported all the same, to see that it can be."""
    processor = None if program.kclpy is not None or not program.words else _load(program.target)
    if program.kclpy is not None and not program.kclpy.is_file():
        raise ConfigError(
            f"There is no program {program.kclpy}. Do: name the file that calls KCLProcess(...).run()."
        )
    with _local_aws(shadow.settings.config) if use_local else nullcontext():
        shadow.refuse_a_living_application()
        with shadow.telling():
            if not calls:
                _work(shadow.factory, shadow.settings, service)
            elif program.kclpy is not None:
                run_kclpy(program.kclpy, program.words, shadow.settings, service, watch=shadow.watch)
            else:
                _work(shadow.watch(processor), shadow.settings, service)


def _work(processor: Any, settings: Settings, service: Service) -> None:
    from pykcl.worker.worker import Worker

    with service.watching() as watch:
        worker = Worker(
            processor=processor,
            config=settings.config,
            clients=settings.clients(),
            listeners=(tune_collector,),
        )
        watch(worker).run()


def _load(target: str) -> Any:
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or module_name.startswith(".") or not attribute:
        raise click.UsageError(f"{target!r} is not MODULE:CLASS, such as examples.orders:Orders.")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise click.UsageError(
            f"There is no module {module_name!r} here or among what is installed."
        ) from None
    # If it has configured logging, that has disabled every logger there was, unless it was told not to.
    own_log.enable()
    try:
        found = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        public = ", ".join(name for name in vars(module) if name[0].isupper()) or "nothing"
        raise click.UsageError(f"{module_name} has no {attribute!r}. It has: {public}.") from None
    return found


@contextmanager
def _local_aws(config: Config) -> Iterator[None]:
    from pykcl.cli.local import local_environment, start_local_aws

    with start_local_aws(port=0) as aws:
        aws.kinesis.create_stream(config.stream_name, LOCAL_SHARDS)
        # A proxy of the surroundings would be asked for 127.0.0.1 too.
        os.environ.update(local_environment(aws.url), NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
        click.echo(
            f"local AWS at {aws.url}, stream {config.stream_name} with {LOCAL_SHARDS} shards", err=True
        )
        yield
