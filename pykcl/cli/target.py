"""The options that name a fleet or a stream, and the clients that reach it.

`@fleet_options("table")` on a command gives it the common options and hands it one `target`. `@aws_options` gives
--region, --profile and --endpoint-url only, as `clients`.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from pykcl.cli.errors import exit_codes
from pykcl.cli.options import COMMON, Decorator, Duration, option_in, with_options
from pykcl.config import LEASE_STORE, Config, TomlFile, from_environment, read_toml
from pykcl.errors import ConfigError, PyKclError, SetupError

if TYPE_CHECKING:
    from pykcl.aws.credentials import ClientSpec
    from pykcl.aws.kinesis import KinesisStream
    from pykcl.operate.aws.clients import OperatorClients
    from pykcl.operate.aws.lease_table import PacedTable, RowWriter, TableScanner
    from pykcl.operate.aws.streams import StreamAdmin, StreamSummary
    from pykcl.operate.lag import KinesisLag
    from pykcl.operate.snapshot import TableSnapshot
    from pykcl.runtime import Runtime

Need = Literal["table", "stream", "application"]
Command = TypeVar("Command", bound=Callable[..., Any])

NOT_GIVEN = "not-given"
"""Stands in `Target.config` for an application or a stream that was not given."""
MAX_COMPLETIONS = 100


@dataclass(frozen=True)
class Target:
    """The fleet of a command.

    application, table (lease table), stream (name or ARN): None if not given. failover: seconds, None if not given; a
    file of --config or --properties gives its default, too. config: all that is known, checked; `NOT_GIVEN` stands for
    an application or a stream that was not given. clients: opens boto3 clients when asked, each once. properties: the
    file of --properties.
    """

    application: str | None
    table: str | None
    stream: str | None
    failover: float | None
    config: Config
    clients: OperatorClients
    properties: Path | None = None

    @property
    def stream_name(self) -> str | None:
        return self.config.stream_name if self.stream is not None else None

    def refuse_without(self, need: Need) -> None:
        """Refuse a command that needs what was not given: as `fleet_options`, where another option decides."""
        _refuse_without(need, getattr(self, need))

    def lease_table(self) -> PacedTable:
        """Return the adapter over the lease table; nothing is sent yet.

        Raises ConfigError, SetupError, TemporaryError.
        """
        from pykcl.operate.aws.lease_table import PacedTable
        from pykcl.runtime import SystemRuntime

        if self.table is None:
            raise ConfigError("No lease table. Do: --application NAME, or --table NAME.")
        return PacedTable(
            self.clients.client("dynamodb"),
            self.table,
            SystemRuntime(),
            request_timeout=5.0,
            coordinator_state_table=self.config.coordinator_state_table,
        )

    def scanner(self, table: str | None = None) -> TableScanner:
        """Return the scanner of the lease table, or of that one. Raises as `lease_table`."""
        from pykcl.operate.aws.lease_table import OwnTableNames, TableScanner
        from pykcl.runtime import SystemRuntime

        name = table or str(self.table)
        own = (
            OwnTableNames.of(name)
            if table is not None and table != self.table
            else OwnTableNames.of(
                self.application or name,
                self.config.coordinator_state_table,
                self.config.worker_metrics_table,
            )
        )
        return TableScanner(self.clients.client("dynamodb"), name, SystemRuntime(), own)

    def row_writer(self) -> RowWriter:
        """Return the reads and conditional writes of single rows of the lease table. Raises as `lease_table`."""
        from pykcl.operate.aws.lease_table import RowWriter
        from pykcl.runtime import SystemRuntime

        return RowWriter(self.clients.client("dynamodb"), str(self.table), SystemRuntime())

    def kinesis(self, stream: str | None = None) -> KinesisStream:
        """Return the adapter over the stream, by default that of the target. Raises as `lease_table`."""
        from pykcl.aws.kinesis import KinesisStream
        from pykcl.runtime import SystemRuntime

        name = stream or self.stream
        if name is None:
            raise ConfigError("No stream. Do: --stream NAME (or its ARN).")
        return KinesisStream(self.clients.client("kinesis"), name, SystemRuntime())

    # -- decorators ------------------------------------------------------------------------------------------------

    def kinesis_lag(
        self, view: TableSnapshot, runtime: Runtime, *, max_reads: int | None = None
    ) -> KinesisLag:
        """Return the lag by Kinesis of the given stream, else of the one that the leases name. max_reads: as there.

        Raises ConfigError, SetupError, TemporaryError.
        """
        from pykcl.operate.lag import MAX_READS, KinesisLag

        name = self.stream or view.stream_arn
        if name is None:
            raise ConfigError("The lease table does not name its stream. Do: --stream NAME.")
        stream = self.kinesis(name)
        stream.describe()
        start = self.config.start_position
        return KinesisLag(stream, runtime, start=start, max_reads=max_reads or MAX_READS)


def fleet_options(
    *needs: Need,
    stream_argument: str | None = None,
    lease_stores: Literal["read", "refused"] | None = None,
) -> Callable[[Command], Command]:
    """Decorator: the common options; the command's parameter `target` is a Target.

    needs: what must be given, by flag, file or PYKCL_ variable; otherwise it is a usage error. stream_argument:
    parameter of the command that may name the stream in place of --stream. lease_stores: "read" where the command also
    reads a lease table that is not in DynamoDB; "refused" where it reads a table, but no such, as for all that need it.
    Also turns pykcl's errors into one line and their exit code.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_target(*args: Any, **given: Any) -> Any:
            with exit_codes():
                common = {name: given.pop(name) for name in _FLEET}
                lease_store = common.pop("lease_store")
                if lease_stores is not None or "table" in needs:
                    # To a command that reads no lease table, the variable says nothing.
                    lease_store = lease_store or os.environ.get(LEASE_STORE) or None
                if lease_stores != "read":
                    refuse_lease_store(lease_store, click.get_current_context().command_path)
                named = given.pop(stream_argument) if stream_argument is not None else None
                if named is not None and common["stream"] is not None:
                    raise click.UsageError(
                        f"Both {named!r} and --stream {common['stream']!r} name the stream. Drop one of them."
                    )
                target = _target(needs, **{**common, "stream": named or common["stream"]})
                if lease_store is not None:
                    from pykcl.stores import lease_store_at, open_client

                    target.clients.use_lease_store(open_client(lease_store_at(lease_store)))
                try:
                    return command(*args, target=target, **given)
                except PyKclError as error:
                    error.naming(application=target.application, stream=target.stream, table=target.table)
                    raise

        return common_options(with_target)  # type: ignore[return-value]

    return decorate


def aws_options(command: Command) -> Command:
    """Decorator: --region, --profile and --endpoint-url; the command's parameter `clients` opens boto3 clients."""

    @functools.wraps(command)
    def with_clients(*args: Any, **given: Any) -> Any:
        with exit_codes():
            clients = _clients(**{name: given.pop(name) for name in _AWS})
            return command(*args, clients=clients, **given)

    return with_options(with_clients, _AWS_OPTIONS)  # type: ignore[return-value]


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the options themselves, each handed to the command by its own name."""
    return with_options(command, (*_FLEET_OPTIONS, *_AWS_OPTIONS, PROPERTIES_OPTION, CONFIG_OPTION))


# -- completion ------------------------------------------------------------------------------------------------


def complete_applications(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of DynamoDB tables: an application is called like its lease table. Never raises."""
    try:
        clients = _clients(**{name: ctx.params.get(name) for name in _AWS})
        names: list[str] = []
        for page in clients.client("dynamodb").get_paginator("list_tables").paginate():
            names += [name for name in page.get("TableNames", ()) if name.startswith(incomplete)]
            if len(names) >= MAX_COMPLETIONS:
                break
    except _errors_of_completion():
        return []
    return names[:MAX_COMPLETIONS]


def complete_shards(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Keys of the lease table's rows, of its first page only. Never raises."""
    try:
        given = {name: ctx.params.get(name) for name in _FLEET}
        if given.pop("lease_store") is not None:
            return []
        target = _target((), **given)
        if target.table is None:
            return []
        page = target.clients.client("dynamodb").scan(
            TableName=target.table, ProjectionExpression="leaseKey", Limit=1000
        )
        keys = [item.get("leaseKey", {}).get("S") for item in page.get("Items", ())]
    except _errors_of_completion():
        return []
    found = sorted(key for key in keys if isinstance(key, str) and key.isprintable() and incomplete in key)
    return found[:MAX_COMPLETIONS]


def complete_streams(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of streams. Never raises."""
    try:
        clients = _clients(**{name: ctx.params.get(name) for name in _AWS})
        names = [stream.name for stream in admin_for(clients).streams()]
    except _errors_of_completion():
        return []
    return [name for name in names if name.startswith(incomplete)][:MAX_COMPLETIONS]


def _errors_of_completion() -> tuple[type[Exception], ...]:
    from pykcl.aws.errors import aws_errors

    return (PyKclError, click.ClickException, *aws_errors())


# -- the options -----------------------------------------------------------------------------------------------

_option = option_in(COMMON)
_AWS = ("region", "profile", "endpoint_url")
_FLEET = ("application", "stream", "table", "failover", "lease_store", *_AWS, "properties", "config_file")

CONFIG_OPTION = _option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read options from a TOML file, such as the pykcl.toml of `pykcl migrate`.",
)
PROPERTIES_OPTION = _option(
    "-p",
    "--properties",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read options from the .properties file of a MultiLangDaemon.",
)
LEASE_STORE_OPTION = _option(
    "--lease-store",
    metavar="STORE",
    help="The leases are in an SQLite file, for the workers of one machine, and not in DynamoDB: sqlite:FILE.",
)
_FLEET_OPTIONS: tuple[Decorator, ...] = (
    _option(
        "-a",
        "--application",
        "--app",
        "application",
        metavar="NAME",
        shell_complete=complete_applications,
        help="Application name, which is also the name of the lease table.",
    ),
    _option("--stream", metavar="NAME", help="Stream name or ARN."),
    _option(
        "--table",
        metavar="NAME",
        shell_complete=complete_applications,
        help="Lease table name, if it is not the application name.",
    ),
    _option(
        "--failover",
        type=Duration(minimum=1.0),
        metavar="DURATION",
        help="Failover time of the fleet (failoverTimeMillis), such as 10s.",
    ),
    LEASE_STORE_OPTION,
)
_AWS_OPTIONS: tuple[Decorator, ...] = (
    _option("--region", metavar="NAME", help="AWS region."),
    _option("--profile", metavar="NAME", help="AWS profile."),
    _option(
        "--endpoint-url", metavar="URL", help="Send the requests of every service here instead of to AWS."
    ),
)


# -- from the options to a target ------------------------------------------------------------------------------

_MISSING: Mapping[Need, str] = {
    "table": "No application. Do: --application NAME (or --table, -c pykcl.toml, -p FILE.properties).",
    "application": "No application. Do: --application NAME (or -c pykcl.toml, -p FILE.properties).",
    "stream": "No stream. Do: --stream NAME (or its ARN, -c pykcl.toml, -p FILE.properties).",
}


@dataclass(frozen=True)
class _File:
    """options: fields of Config. specs: the clients' part of the file. is_given: whether there is a file."""

    options: Mapping[str, Any]
    specs: Mapping[str, ClientSpec] = field(default_factory=dict)
    is_given: bool = True


def _target(
    needs: Iterable[Need],
    *,
    application: str | None,
    stream: str | None,
    table: str | None,
    failover: float | None,
    region: str | None,
    profile: str | None,
    endpoint_url: str | None,
    properties: Path | None,
    config_file: Path | None,
) -> Target:
    flags = {
        "application": application,
        "table_name": table,
        "stream": stream,
        "failover_time": failover,
        "region": region,
    }
    file, environment = _file_options(properties, config_file), from_environment(os.environ)
    options = {
        **file.options,
        **environment,
        **{name: value for name, value in flags.items() if value is not None},
    }
    known = {"application": options.get("application"), "stream": options.get("stream")}
    known["table"] = options.get("table_name") or known["application"]
    for need in needs:
        _refuse_without(need, known[need])
    config = Config.from_options(
        {
            **options,
            "application": known["application"] or NOT_GIVEN,
            "stream": known["stream"] or NOT_GIVEN,
        }
    )
    return Target(
        application=known["application"],
        table=known["table"],
        stream=known["stream"],
        failover=config.failover_time if file.is_given or "failover_time" in options else None,
        config=config,
        clients=_clients(
            region or environment.get("region"),
            profile,
            endpoint_url,
            specs=file.specs,
            fallback_region=config.effective_region,
        ),
        properties=properties,
    )


def _refuse_without(need: Need, given: str | None) -> None:
    if given is None:
        raise click.UsageError(_MISSING[need])


def _file_options(properties: Path | None, config_file: Path | None) -> _File:
    refuse_two_files(properties, config_file)
    if properties is not None:
        from pykcl.compat.properties import interpret, read_properties

        found = interpret(read_properties(properties), entry_point="kclpy")
        return _File(options_of(found.config), found.clients)
    if config_file is not None:
        file = read_toml(config_file)
        return _File(file.options, specs_in(file) or {})
    return _File({}, is_given=False)


def refuse_lease_store(lease_store: str | None, what: str) -> None:
    """Raise click.UsageError for what reads lease tables in DynamoDB alone."""
    if lease_store is not None:
        raise click.UsageError(
            f"{what} reads no lease table but one in DynamoDB, and the lease store is {lease_store}. Do: leave out "
            f"--lease-store and {LEASE_STORE}."
        )


def refuse_two_files(properties: Path | None, config_file: Path | None) -> None:
    """Raise click.UsageError for two files."""
    if properties is not None and config_file is not None:
        raise click.UsageError("Both --config and --properties were given. Use one of them.")


def options_of(config: Config) -> dict[str, Any]:
    """Return the fields of the Config by name."""
    return {one.name: getattr(config, one.name) for one in fields(Config)}


def specs_in(file: TomlFile) -> Mapping[str, ClientSpec] | None:
    """Return what the file says of the clients, by service; None if it says nothing. Raises ConfigError."""
    if not file.clients:
        return None
    from pykcl.aws.credentials import specs_of

    return specs_of(file.clients, file.source)


def _clients(
    region: str | None,
    profile: str | None,
    endpoint_url: str | None,
    *,
    specs: Mapping[str, ClientSpec] | None = None,
    fallback_region: str | None = None,
) -> OperatorClients:
    from pykcl.operate.aws.clients import OperatorClients

    return OperatorClients(profile, region, endpoint_url, specs or {}, fallback_region)


# -- streams ---------------------------------------------------------------------------------------------------


def admin_for(clients: OperatorClients, stream: str | None = None) -> StreamAdmin:
    """Raises ConfigError without a region, SetupError without credentials. An ARN names its region."""
    from pykcl.operate.aws.streams import StreamAdmin

    parts = (stream or "").split(":")
    if parts[0] == "arn" and len(parts) > 3 and clients.fallback_region is None:
        clients = replace(clients, fallback_region=parts[3])
    return StreamAdmin(clients.client("kinesis"))


def summary_of(admin: StreamAdmin, stream: str) -> StreamSummary:
    """Return the summary of the stream. Raises SetupError, with the names there are, if there is none of that name."""
    try:
        return admin.summary(stream)
    except SetupError as error:
        failure = SetupError(f"{error}{names_near(admin, stream)}")
    raise failure


def names_near(admin: StreamAdmin, stream: str) -> str:
    """Return a sentence, with a space in front, on the streams there are; "" if they cannot be listed."""
    name = stream.rsplit("/", 1)[-1]
    try:
        names = [one.name for one in admin.streams()]
    except PyKclError:
        return ""
    if name in names:
        return ""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        return f" Did you mean {' or '.join(map(repr, near))}?"
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return f" There are here: {shown or 'no streams at all'}."
