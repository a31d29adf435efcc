"""The settings of `pykcl run` and `pykcl multilangd`: a file, the environment and the command line, in one order; and
the log of the commands.

What comes later wins: defaults, the file (--config or --properties), PYKCL_ variables, --option, the flags. `Settings`
is what the worker works by, `Service` how its process reports health and logs.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from pykcl.cli.console import LogHandler, announce
from pykcl.cli.options import Duration, gathered, option_in
from pykcl.cli.target import options_of, refuse_lease_store, refuse_two_files, specs_in
from pykcl.config import HTTP_TOKEN, LEASE_STORE, Config, from_environment, from_texts, read_toml
from pykcl.errors import ConfigError, printable

if TYPE_CHECKING:
    from pykcl.aws.credentials import ClientSpec
    from pykcl.cli.supervised import Member
    from pykcl.compat.properties import Interpretation
    from pykcl.health.probes import HealthSource
    from pykcl.health.service import HealthService
    from pykcl.stores import SQLiteLeaseTable
    from pykcl.worker.worker import Worker

LogFormat = Literal["text", "json"]
LOG_FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)-7s "
_NAME = "%(name)s "
_MESSAGE = "%(message)s"
_CHATTY = ("botocore", "boto3", "urllib3", "s3transfer")


class _TextFormatter(logging.Formatter):
    """Make the name of the logger printable: some contain a lease key."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its parent's name
        if not record.name.isprintable():
            record = copy.copy(record)  # other handlers get the record as it was
            record.name = printable(record.name)
        return super().formatMessage(record)


def formatter(
    log_format: LogFormat, *, with_names: bool = False, process: int | None = None
) -> logging.Formatter:
    """Return a formatter. with_names: the text has the name of the logger, too. process: number of this process."""
    if log_format == "json":
        from pykcl.logs import JsonFormatter

        return JsonFormatter(process)
    number = "" if process is None else f"[{process}] "
    return _TextFormatter(_TEXT + number + (_NAME if with_names else "") + _MESSAGE)


def log_to_stderr(
    log_format: LogFormat, *, verbose: bool, with_names: bool = False, process: int | None = None
) -> None:
    """Log the whole process to standard error."""
    handler = LogHandler()
    handler.setFormatter(formatter(log_format, with_names=with_names, process=process))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)


def log_beside_the_program(log_format: LogFormat, *, verbose: bool, process: int | None = None) -> None:
    """Log pykcl to stderr, and leave the root logger to the program, whose logging.basicConfig() must still work."""
    handler = LogHandler()
    handler.setFormatter(formatter(log_format, process=process))
    ours = logging.getLogger("pykcl")
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG if verbose else logging.INFO)
    ours.propagate = False
    # The program's own logging may be at DEBUG, for it had no AWS in its process: there botocore logs what it signs,
    # with the session's token. Who wants that sets these levels after this.
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.INFO)


@contextmanager
def logged_to_stderr(name: str) -> Iterator[None]:
    """Log that logger to standard error in the block, for a command that prints everything else itself."""
    handler = LogHandler()
    handler.setFormatter(formatter("text"))
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


EntryPoint = Literal["native", "kclpy", "multilang"]
Watch = Callable[["Worker"], "Worker"]
"""Puts a new worker under watch; returns it."""
log = logging.getLogger("pykcl.settings")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a worker.

    specs: what a file says of each service; None: boto3 finds everything by itself. executable, timeout: of the
    children, for the entry point "multilang"; see `Interpretation`. lease_store: address of the lease table, such as
    sqlite:orders.db; None: it is in DynamoDB.
    """

    config: Config
    specs: Mapping[str, ClientSpec] | None = None
    executable: tuple[str, ...] = field(default=(), repr=False)
    timeout: float | None = None
    lease_store: str | None = None

    def lease_table(self) -> SQLiteLeaseTable | None:
        """Return the argument of Worker(lease_table=…). Raises ConfigError."""
        if self.lease_store is None:
            return None
        from pykcl.stores import lease_store_at

        return lease_store_at(self.lease_store)

    def refuse_lease_store(self, what: str) -> None:
        """Raise click.UsageError where the leases are not in DynamoDB. what: has its own there in any case."""
        refuse_lease_store(self.lease_store, what)

    def clients(self) -> dict[str, Any] | None:
        """Return the argument of Worker(clients=…). Raises ConfigError, SetupError and TemporaryError."""
        if self.specs is None:
            return None
        from pykcl.aws.credentials import open_specified_clients

        clients = open_specified_clients(self.config, self.specs)
        if self.lease_store is not None:
            del clients["dynamodb"]
        return clients


def settings_of(
    *,
    entry_point: EntryPoint,
    properties: Path | None,
    config_file: Path | None,
    overrides: Mapping[str, Any],
    accept_polling: bool,
    defaults: Mapping[str, Any] | None = None,
    use_local: bool = False,
    shows_verdicts: bool = True,
    profile: str | None = None,
    endpoint: str | None = None,
    lease_store: str | None = None,
) -> Settings:
    """Return the settings. Raises ConfigError for a wrong file, variable or option, click.UsageError for a missing one.

    overrides: fields of Config from the command line. defaults: fields that --config takes precedence over.
    use_local: what the file says of clients is left out, as all requests go to the local AWS, and errors are shown.
    shows_verdicts: print what each key of a .properties file comes to.
    profile, endpoint (URL): for every service, before what the file says. lease_store: before PYKCL_LEASE_STORE.
    """
    refuse_two_files(properties, config_file)
    lease_store = lease_store or os.environ.get(LEASE_STORE) or None
    if use_local and (profile or endpoint):
        flag = "--profile" if profile else "--endpoint-url"
        raise click.UsageError(f"{flag} and --local do not go together. Drop one of them.")
    of_local: dict[str, Any] = {"show_errors": True} if use_local else {}
    base = ({"checkpoint_mode": "manual"} if entry_point != "native" else dict(defaults or {})) | of_local
    specs: Mapping[str, ClientSpec] | None = None
    found: Interpretation | None = None
    later = {**from_environment(os.environ), **overrides}
    if properties is not None:
        polls = accept_polling or later.get("retrieval") == "polling"
        found = _interpreted(properties, entry_point, polls, shows_verdicts=shows_verdicts)
        base = options_of(found.config) | of_local
        specs = found.clients
    elif config_file is not None:
        options, specs = _from_toml(config_file, lease_store)
        base |= options
    if (
        entry_point == "kclpy"
        and properties is None
        and config_file is None
        and not {"application", "stream"} <= later.keys()
    ):
        raise click.UsageError(
            "No properties. Do: --properties FILE, the one that MultiLangDaemon was given, or --config pykcl.toml, "
            "or both --application and --stream (PYKCL_APPLICATION and PYKCL_STREAM)."
        )
    if "region" in later and specs is not None:
        specs = {service: replace(spec, region=None) for service, spec in specs.items()}
    if profile or endpoint:
        specs = _for_every_service(specs or {}, profile, endpoint)
    return Settings(
        _able(_config({**base, **later}), entry_point),
        None if use_local else specs,
        found.executable if found else (),
        found.timeout if found else None,
        lease_store,
    )


_PROGRAMS = {"kclpy": "amazon_kclpy", "multilang": "the MultiLangDaemon"}


def _able(config: Config, entry_point: EntryPoint) -> Config:
    """Return the configuration. Raises ConfigError for one that a program for another library cannot serve."""
    if entry_point != "native" and config.checkpoint_mode == "ack":
        raise ConfigError(
            f"checkpoint_mode='ack' waits for batch.ack(record), and a program for {_PROGRAMS[entry_point]} has no "
            "such call: it checkpoints by itself. Leave checkpoint_mode out."
        )
    return config


def from_arguments(pairs: Iterable[str]) -> dict[str, Any]:
    """Return the fields of Config in NAME=VALUE texts. Raises ConfigError."""
    split = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"--option {pair!r} has no value. Do: --option NAME=VALUE.")
        split.append((name.strip().replace("-", "_"), text))
    return from_texts(split, lambda name: f"--option {name}")


def _from_toml(
    path: Path, lease_store: str | None
) -> tuple[Mapping[str, Any], Mapping[str, ClientSpec] | None]:
    found = read_toml(path)
    if lease_store is not None and "dynamodb" in found.clients:
        raise ConfigError(
            f"{found.source}: [clients.dynamodb] and the lease store {lease_store} both say where the leases are. Do: "
            "drop one of them."
        )
    specs = specs_in(found)
    if "application" in found.options and "stream" in found.options:
        # By itself first, so that an error in the file is reported with the name of the file.
        found.config()
    return found.options, specs


def _interpreted(
    path: Path, entry_point: EntryPoint, accepts_polling: bool, *, shows_verdicts: bool
) -> Interpretation:
    from pykcl.compat.properties import interpret, read_properties, verdict_table

    found = interpret(read_properties(path), entry_point=entry_point, accepts_polling=accepts_polling)
    if not shows_verdicts:
        return found
    announce(verdict_table(found.verdicts), err=True)
    for row in found.verdicts:
        if row.literal:
            log.warning("%s: %s: %s.", path.name, row.key, row.literal)
    for notice in found.notices:
        log.info("%s", notice)
    return found


def _for_every_service(
    specs: Mapping[str, ClientSpec], profile: str | None, endpoint: str | None
) -> dict[str, ClientSpec]:
    from pykcl.aws.clients import ALL_SERVICES
    from pykcl.aws.credentials import ClientSpec, CredentialsSource

    flags: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    if profile:
        flags["credentials"] = (CredentialsSource(kind="profile", profile=profile),)
    return {service: replace(specs.get(service, ClientSpec()), **flags) for service in ALL_SERVICES}


def _config(merged: dict[str, Any]) -> Config:
    for name, flag in (("application", "--app"), ("stream", "--stream")):
        if name not in merged:
            raise click.UsageError(
                f"No {name}. Do: {flag} NAME, set PYKCL_{name.upper()}, or name a file: --config, --properties."
            )
    return Config.from_options(merged)


# -- health and log --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Service:
    """The health service and the log of one process.

    http, http_token_file, allow_host, health_file: see `HealthService`. stall_warning, stall_timeout: seconds.
    member: this one of the processes of a parent, which reports their health; None: this process reports its own.
    """

    http: str | None = None
    http_token_file: Path | None = None
    allow_host: tuple[str, ...] = ()
    health_file: Path | None = None
    stall_warning: float | None = None
    stall_timeout: float | None = None
    log_format: LogFormat = "text"
    show_errors: bool | None = None
    member: Member | None = None

    def config_options(self) -> dict[str, float]:
        """Return the fields of Config that were given."""
        given = {
            "processor_warn_after": self.stall_warning,
            "processor_timeout": self.stall_timeout,
            "show_errors": self.show_errors,
        }
        return {name: value for name, value in given.items() if value is not None}

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        """Report the health of the worker that is created in the block. Raises ConfigError and SetupError."""
        if self.member is not None:
            yield self.member.watch
            self.member.worker_has_ended()
            return
        with self._health() as health:

            def watch(worker: Worker) -> Worker:
                if health is not None:
                    health.watch(worker)
                return worker

            yield watch

    @contextmanager
    def watching_over(self, source: HealthSource) -> Iterator[None]:
        """Report the health that `source` knows, which is not of one worker."""
        with self._health(source):
            yield

    @contextmanager
    def _health(self, source: HealthSource | None = None) -> Iterator[HealthService | None]:
        if self.http is None and self.health_file is None:
            yield None
            return
        from pykcl.health.service import HealthService

        service = HealthService(
            http=self.http,
            token=worker_token(self.http_token_file) if self.http is not None else None,
            file=self.health_file,
            allow_hosts=self.allow_host,
        )
        if source is not None:
            service.use_source(source)
        with service as health:
            if health.url is not None:
                _print_address(health.url, health.token, is_new=health.has_made_token)
            yield health


def worker_token(path: Path | None) -> str | None:
    """Return the token in the file, else in the environment, else None. Raises ConfigError for an invalid one."""
    from pykcl.health.pages import checked_token, token_from_file

    if path is not None:
        return token_from_file(path)
    text = os.environ.get(HTTP_TOKEN)
    return checked_token(text, f"The environment variable {HTTP_TOKEN}") if text else None


def _print_address(url: str, token: str | None, *, is_new: bool) -> None:
    announce(f"health at {url}: /livez /readyz /metrics /status", err=True)
    if token is not None and is_new:
        # Here, once, and in no log: a token that others are to know is given as a file or in the environment.
        announce(f"/status needs this token, created for this run: Authorization: Bearer {token}", err=True)


_option = option_in("Health and log options")
SERVICE_OPTIONS = (
    _option(
        "--http",
        metavar="[HOST:]PORT",
        envvar="PYKCL_HTTP",
        help="Serve /livez, /readyz, /metrics and /status here; without HOST to this machine only.",
    ),
    _option(
        "--http-token-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="PYKCL_HTTP_TOKEN_FILE",
        help=f"File with the token of /status (default: ${HTTP_TOKEN}; without it, a HOST other than this machine "
        "gets a new token, which is printed).",
    ),
    _option(
        "--allow-host",
        multiple=True,
        metavar="NAME",
        help="Allow clients to call /metrics and /status by another name (repeatable).",
    ),
    _option(
        "--health-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="PYKCL_HEALTH_FILE",
        help="Update this file's timestamp every second while the worker is healthy.",
    ),
    _option(
        "--stall-warning",
        type=Duration(),
        metavar="DURATION",
        help="Log the stack of a processor that has not returned for this long (default: 60s).",
    ),
    _option(
        "--stall-timeout",
        type=Duration(),
        metavar="DURATION",
        help="Release the lease if a call takes longer than this (default: never).",
    ),
    _option(
        "--log-format",
        type=click.Choice(LOG_FORMATS),
        default="text",
        show_default=True,
        envvar="PYKCL_LOG_FORMAT",
        help="Log lines of text, or one JSON object per line.",
    ),
    _option(
        "--show-errors/--no-show-errors",
        default=None,
        help="Log text and traceback of the processor's exceptions, which may quote a payload (default: only with "
        "--local).",
    ),
)
_VERBOSE = _option("-v", "--verbose", is_flag=True, help="Log at level DEBUG.")
service_options = gathered("service", Service, (*SERVICE_OPTIONS, _VERBOSE))
"""Decorator: the options of `Service`, handed to the command as one `service`, and --verbose as `verbose`."""
