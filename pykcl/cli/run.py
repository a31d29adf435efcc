"""`pykcl run MODULE:NAME`, `pykcl run --kclpy APP.py` or `pykcl run --lambda MODULE:HANDLER`: workers in the
foreground; and `python -m pykcl.compat.kclpy APP.py`.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import click

from pykcl import logs
from pykcl.cli.console import announce
from pykcl.cli.errors import ExitCode, ProgramCrashed, exit_codes
from pykcl.cli.options import Duration, Verb, option_in
from pykcl.cli.run_lambda import LambdaFunction, lambda_options
from pykcl.cli.settings import (
    Service,
    Settings,
    from_arguments,
    log_beside_the_program,
    log_to_stderr,
    service_options,
    settings_of,
)
from pykcl.cli.shadow import Shadow
from pykcl.cli.supervisor import Processes, processes_option
from pykcl.cli.target import CONFIG_OPTION, LEASE_STORE_OPTION, PROPERTIES_OPTION, common_options
from pykcl.errors import ConfigError, PyKclError
from pykcl.events import Event, ThreadsNotStopped
from pykcl.processor import ProcessorFactory, RecordProcessor

if TYPE_CHECKING:
    from pykcl.cli.run_app import AppRun, Ask

log = logging.getLogger("pykcl.kclpy")


@contextmanager
def begun_as_by_a_main_thread() -> Iterator[None]:
    """A thread that is begun in the block is no daemon, unless it says so, although the one that begins it is.

    A new thread takes after the one that begins it. In a child that is the main thread, so Python waits for the new
    one before the process ends; a shard's thread here is a daemon. 1) A writer begun by it has records in hand that are
    checkpointed; 2) the worker stops, and the process ends; 3) they are lost without a message. Nothing else reads
    the mark of a thread that runs (CPython 3.11 to 3.15: who is waited for is settled when a thread begins).
    """
    thread = threading.current_thread()
    was = thread.daemon
    thread._daemonic = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        thread._daemonic = was  # type: ignore[attr-defined]


_OR_BE_DAEMONS = "let Thread(..., daemon=True) say that they need not end"
_END_THEM = f"end them in lease_lost, shard_ended and shutdown_requested; or {_OR_BE_DAEMONS}"
_BROKEN_OFF_WITHIN = 10.0
"""Seconds in which the call of a Lambda handler has to leave the main thread, once it is broken off."""


@contextmanager
def waited_for(seconds: float, do: str = _END_THEM) -> Iterator[None]:
    """Wait so many seconds after the block for the threads begun in it that are no daemons. do: for the log.

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
            _cut_off_after(seconds, own, do)


def _cut_off_after(seconds: float, own: list[threading.Thread], do: str) -> None:
    threading.Thread(target=_cut_off, args=(own, seconds, do), name="pykcl-cut-off", daemon=True).start()


def _cut_off(own: list[threading.Thread], seconds: float, do: str) -> None:
    until = time.monotonic() + seconds
    for thread in own:
        thread.join(max(0.0, until - time.monotonic()))
    left = [thread for thread in own if thread.is_alive()]
    if left:
        log.error(
            "threads of the program have not ended within %g s and are cut off: what they had in hand is lost "
            "threads=%s. Do: %s",
            seconds,
            _names(left),
            do,
        )
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
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
    help="Read by polling where Java KCL, by the same .properties file, uses enhanced fan-out.",
)
WORKER_ID = click.option(
    "--worker-id",
    metavar="NAME",
    help="Unique name of this worker (default: host, process and a random part).",
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
@LEASE_STORE_OPTION
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
    lease_store: str | None,
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
            lease_store=lease_store,
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
                    lease_table=settings.lease_table(),
                )
                return under_watch(worker)

            with waited_for(settings.config.shutdown_grace):
                run_program(program, arguments, Launch(make, begun_as_by_a_main_thread))


LOCAL_SHARDS = 4
_FIELDS = {
    "application": "application",
    "table": "table_name",
    "stream": "stream",
    "initial_position": "initial_position",
    "failover": "failover_time",
    "region": "region",
    "worker_id": "worker_id",
    "on_error": "on_error",
}
"""Flag: field of Config."""
_shadow_option = option_in("Shadow options")


@dataclass(frozen=True, slots=True)
class _Program:
    """The program of the worker: kclpy, with its arguments in `words`; a Lambda function; or one MODULE:NAME in
    `words`, of a processor, a function or an App."""

    kclpy: Path | None
    words: tuple[str, ...]
    function: LambdaFunction

    def processor(self, settings: Settings) -> Any:
        """Import the record processor, the handler or the App. Raises click.UsageError, ConfigError, ProgramCrashed."""
        if self.function.handler is not None:
            return self.function.processor(settings, load)
        from pykcl.handlers.functions import processor_of
        from pykcl.handlers.windows import checked_seconds

        found = load(self.target)
        self._refuse_window_of(found)
        return processor_of(found, checked_seconds(self.function.window), self.function.concurrency)

    def _refuse_window_of(self, found: Any) -> None:
        """Raise click.UsageError for --window with an App."""
        from pykcl.handlers.app import App

        window = self.function.window
        if window is not None and isinstance(found, App):
            raise click.UsageError(
                "--window is for a function or a Lambda handler, and an App has it in its program. Do: "
                f'@app.stream("orders", window={window:g}).'
            )

    def app_that_names(self, ask: Ask) -> AppRun | None:
        """Import an App if something is missing that it may name; else it is imported later. Raises as `processor`."""
        if self.kclpy is not None or self.function.handler is not None or len(self.words) != 1:
            return None
        from pykcl.cli.run_app import AppRun, lacks_a_name
        from pykcl.handlers.app import App

        if not lacks_a_name(ask):
            return None
        found = load(self.target)
        self._refuse_window_of(found)
        return AppRun.of(found, ask) if isinstance(found, App) else None

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


def grouped_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: hand the flags that are fields of Config to the command as `given`, without those that are not given,
    and those that say how AWS is reached as `access`."""

    @functools.wraps(command)
    def wrapped(**everything: Any) -> None:
        flags = {field: everything.pop(flag) for flag, field in _FIELDS.items()}
        given = {name: value for name, value in flags.items() if value is not None}
        access = {
            "profile": everything.pop("profile"),
            "endpoint": everything.pop("endpoint_url"),
            "lease_store": everything.pop("lease_store"),
        }
        command(given=given, access=access, **everything)

    return wrapped


@click.command(cls=Verb)
@click.argument("target", metavar="[MODULE:CLASS]", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENT...]")
@click.option(
    "--start",
    "--initial-position",
    "initial_position",
    metavar="POSITION",
    help="Where to start a shard without a checkpoint: LATEST, TRIM_HORIZON or an ISO 8601 time.",
)
@click.option(
    "--local", "use_local", is_flag=True, help="Start an embedded local AWS with the worker, and use it."
)
@click.option(
    "--kclpy",
    type=click.Path(path_type=Path),
    metavar="APP.py",
    help="Run an unchanged program of amazon_kclpy instead of MODULE:CLASS.",
)
@ON_ERROR
@ACCEPT_POLLING
@lambda_options
@WORKER_ID
@OPTION
@_shadow_option(
    "--shadow",
    metavar="APP2",
    help="Read the stream as application APP2, with a lease table of its own, and only count records.",
)
@_shadow_option(
    "--shadow-call-processor", is_flag=True, help="With --shadow: also call the processor for every record."
)
@_shadow_option(
    "--shadow-interval",
    type=Duration(minimum=0.1, maximum=86_400),
    default=10.0,
    metavar="DURATION",
    help="With --shadow: log the counts this often (default: 10s).",
)
@service_options
@processes_option
@common_options
@grouped_flags
def run(
    target: str | None,
    arguments: tuple[str, ...],
    kclpy: Path | None,
    function: LambdaFunction,
    properties: Path | None,
    config_file: Path | None,
    accept_polling: bool,
    given: dict[str, Any],
    access: dict[str, str | None],
    options: tuple[str, ...],
    use_local: bool,
    shadow: str | None,
    shadow_call_processor: bool,
    shadow_interval: float,
    processes: Processes,
    service: Service,
    verbose: bool,
) -> None:
    """Run a record processor as a worker of a fleet.

    Needs MODULE:CLASS, --application and --stream. MODULE:CLASS is a RecordProcessor, a factory without arguments or a
    function of records, imported from the current folder; or an App, which names application and streams itself. Start
    the same command on other hosts, or use --processes, and the workers share the shards.

    Options of pykcl.Config without a flag are given as --option NAME=VALUE, as environment variable PYKCL_NAME, or in
    the file of --config or --properties. The command line takes precedence, then the environment.

    --kclpy runs a program written for amazon_kclpy in this process, unchanged and without Java, with the options of its
    --properties or --config file; it gets the arguments after --. --lambda runs the handler of a Lambda function.
    --shadow processes nothing, and does not touch the lease table of the application.

    Ctrl-C or SIGTERM waits for the running batch, checkpoints and releases the leases. A second one, after a second or
    more, does not wait for the batch.
    """
    program = _Program(kclpy, arguments if target is None else (target, *arguments), function)
    function.refuse_others({"--kclpy": kclpy, "--properties": properties, "MODULE:CLASS": target})
    _refuse_what_does_not_go_together(program, processes, shadow, calls=shadow_call_processor)
    log, shows = log_to_stderr if kclpy is None else log_beside_the_program, processes.member is None
    log(service.log_format, verbose=verbose, process=processes.number)
    with exit_codes(processes.name, runs_worker=True):
        ask = functools.partial(
            _settings,
            processes,
            access,
            entry_point="native" if kclpy is None else "kclpy",
            properties=properties,
            config_file=config_file,
            overrides=from_arguments(options) | function.overrides | service.config_options() | given,
            accept_polling=accept_polling,
            use_local=use_local,
        )
        app = program.app_that_names(ask)
        settings = app.settings() if app else ask(function.options(shows), shows_verdicts=shows)
        if shadow is None:
            _run(program, settings, service, processes, ask=ask, app=app, use_local=use_local)
        else:
            settings.refuse_lease_store("--shadow")
            rehearsal = Shadow(settings, shadow, calls=shadow_call_processor, interval=shadow_interval)
            _rehearse(program, ask, rehearsal, service, use_local=use_local)


def _settings(
    processes: Processes,
    access: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    use_local: bool,
    shows_verdicts: bool = False,
    **sources: Any,
) -> Settings:
    """Return the settings of this process. Raises as `settings_of`."""
    settings = settings_of(
        defaults=defaults, use_local=use_local, shows_verdicts=shows_verdicts, **access, **sources
    )
    if use_local and processes.member is None:
        settings = _beside_the_local_aws(settings)
    return processes.own(settings)


def _refuse_what_does_not_go_together(
    program: _Program, processes: Processes, shadow: str | None, *, calls: bool
) -> None:
    if calls and shadow is None:
        raise click.UsageError("--shadow-call-processor goes with --shadow APP2 only.")
    if program.function.window is not None and program.kclpy is not None:
        raise click.UsageError("--window and --kclpy do not go together: a KCL processor has no windows.")
    if program.function.concurrency is not None and program.kclpy is not None:
        raise click.UsageError(
            "--concurrency is for functions and Lambda handlers, not for --kclpy. Drop it."
        )
    if processes.count is not None and shadow is not None:
        raise click.UsageError(
            "--processes and --shadow do not go together. Do: start the shadow several times."
        )
    if program.kclpy is None and program.function.handler is None and (shadow is None or calls):
        _ = program.target


def _beside_the_local_aws(settings: Settings) -> Settings:
    """Choose the transport of boto3. The embedded AWS is built on moto, which puts a handler into every client of its
    process; the direct transport would log at each start that it is not used for that reason."""
    config = settings.config
    if config.http_transport != "auto" or config.record_encoding == "cbor":
        return settings
    return replace(settings, config=replace(config, http_transport="boto3"))


def _run(
    program: _Program,
    settings: Settings,
    service: Service,
    processes: Processes,
    *,
    ask: Ask,
    app: AppRun | None,
    use_local: bool,
) -> None:
    # One local AWS for all: of several processes it is the parent's, and they have its address from there.
    names = app.names if app is not None else (settings.config.stream_name,)
    surroundings = _local_aws(names) if use_local and not processes.member else nullcontext()
    if processes.is_parent:
        if app is not None:
            app.refuse_several("--processes")
        with surroundings:
            sys.exit(processes.run(settings.config, service))
    if program.kclpy is not None:
        run_kclpy(program.kclpy, program.words, settings, service, surroundings=surroundings)
        return
    with surroundings:
        processor = None if app is not None else program.processor(settings)
        app = app or _app_of(processor, ask)
        if app is not None:
            app.run(service)
        else:
            _work(processor, settings, service)


def _app_of(processor: Any, ask: Ask) -> AppRun | None:
    from pykcl.handlers.app import App

    if not isinstance(processor, App):
        return None
    from pykcl.cli.run_app import AppRun

    return AppRun.of(processor, ask)


def _rehearse(program: _Program, ask: Ask, shadow: Shadow, service: Service, *, use_local: bool) -> None:
    """Run as a shadow. Without `calls` a MODULE:CLASS is imported all the same, to check that it can be."""
    is_named = bool(program.words or program.function.handler)
    processor = program.processor(shadow.settings) if is_named and program.kclpy is None else None
    if (app := _app_of(processor, ask)) is not None:
        processor = app.processor()
    if program.kclpy is not None and not program.kclpy.is_file():
        raise ConfigError(
            f"There is no program {program.kclpy}. Do: name the file that calls KCLProcess(...).run()."
        )
    with _local_aws((shadow.settings.config.stream_name,)) if use_local else nullcontext():
        shadow.refuse_a_living_application()
        with shadow.reporting():
            if not shadow.calls:
                _work(shadow.factory, shadow.settings, service)
            elif program.kclpy is not None:
                run_kclpy(program.kclpy, program.words, shadow.settings, service, watch=shadow.watch)
            else:
                _work(shadow.watch(processor), shadow.settings, service)


def _work(processor: Any, settings: Settings, service: Service) -> None:
    from pykcl.worker.turns import turns_of
    from pykcl.worker.worker import Worker

    config = settings.config
    around: dict[str, Any] = {"clients": settings.clients(), "lease_table": settings.lease_table()}
    if turns_of(processor) is None:
        with service.watching() as watch:
            watch(Worker(processor=processor, config=config, **around)).run()
        return
    # Called in this thread, so that the threads of the program are no daemons unless they say so: Lambda ends them.
    with waited_for(config.shutdown_grace, _OR_BE_DAEMONS), service.watching() as watch:
        watch(Worker(processor=processor, config=config, on_event=_end_the_call, **around)).run()


def _end_the_call(event: Event) -> None:
    """End the process where a call stays in the main thread though it is broken off: in a library in C, say."""
    if isinstance(event, ThreadsNotStopped):
        do = "give what the handler waits for a time-out; or raise shutdown_grace"
        _cut_off_after(_BROKEN_OFF_WITHIN, [threading.main_thread()], do)


def load(target: str) -> Any:
    """Import MODULE:NAME. Raises click.UsageError, PyKclError and ProgramCrashed."""
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or module_name.startswith(".") or not attribute:
        hint = _as_module(module_name, attribute) or _with_a_colon(target)
        raise click.UsageError(f"{target!r} is not MODULE:CLASS, such as pykcl.examples.orders:Orders.{hint}")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except PyKclError:
        raise
    except Exception as error:  # noqa: BLE001 - the application's own code
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            hint = _as_module(module_name, attribute) or (
                f" Do: run it in the folder of {module_name.partition('.')[0]}, or install {missing}."
            )
            raise click.UsageError(
                f"There is no module {module_name!r} here or among what is installed.{hint}"
            ) from None
        raise _broken(module_name, error) from None
    # If it has configured logging, that has disabled every existing logger by default.
    logs.enable()
    try:
        found = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise click.UsageError(f"{module_name} has no {attribute!r}. {_instead(module, attribute)}") from None
    return found


def _instead(module: ModuleType, attribute: str) -> str:
    from pykcl.handlers.app import App

    own, functions = [], []
    for name, found in vars(module).items():
        is_own = getattr(found, "__module__", None) == module.__name__
        if isinstance(found, App) or (
            is_own and isinstance(found, type) and issubclass(found, RecordProcessor)
        ):
            own.append(name)
        elif is_own and isinstance(found, FunctionType) and not name.startswith("_"):
            functions.append(name)
    if near := difflib.get_close_matches(attribute, own + functions, n=1):
        return f"Did you mean {near[0]}?"
    if own or not functions:
        return (
            f"The record processors defined there: {', '.join(own)}."
            if own
            else "No record processor is defined there."
        )
    return f"The functions defined there: {', '.join(functions)}."


def _as_module(name: str, attribute: str) -> str:
    """Return a hint, with a space in front, if the name is that of a file; otherwise nothing."""
    if not name.endswith(".py"):
        return ""
    words = f"{{}}:{attribute or 'CLASS'}"
    folder, _, file = name.removesuffix(".py").replace("\\", "/").rpartition("/")
    if folder.startswith(("/", "..")):
        return f" Do: run it in {folder} as pykcl run {words.format(file)}"
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    return f" Do: pykcl run {words.format('.'.join([*parts, file]))}"


def _with_a_colon(target: str) -> str:
    """Return a hint, with a space in front, if the class is written as in Python; otherwise nothing."""
    module, dot, name = target.rpartition(".")
    return f" Do: pykcl run {module}:{name}" if dot and ":" not in target and name[:1].isupper() else ""


def _broken(module_name: str, error: Exception) -> ProgramCrashed:
    """Log the traceback from the module's first frame on: those before it are of pykcl and of importlib."""
    logs.enable()
    frames = error.__traceback__
    while frames is not None and _is_importing(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    what = f"{module_name} cannot be imported"
    logging.getLogger("pykcl").error("%s", what, exc_info=(type(error), error, frames))
    return ProgramCrashed(f"{what}: {type(error).__name__}: {error}")


def _is_importing(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")


@contextmanager
def _local_aws(streams: Sequence[str]) -> Iterator[None]:
    from pykcl.cli.local import start_local_aws
    from pykcl.local import local_environment

    with start_local_aws(port=0) as aws:
        for stream in streams:
            aws.kinesis.create_stream(stream, LOCAL_SHARDS)
        # A proxy of the surroundings would be asked for 127.0.0.1 too.
        os.environ.update(local_environment(aws.url), NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
        announce(f"local AWS at {aws.url}, stream {', '.join(streams)} with {LOCAL_SHARDS} shards", err=True)
        yield
