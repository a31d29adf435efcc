"""The options that name a fleet or a stream, and the clients that reach it.

`@fleet_options("table")` on a command gives it -p, -c, --application, --table, --stream, --failover, --profile,
--region and --endpoint-url, and hands it one `target`. `@aws_options` gives the last three only, as `clients`.
"""

from __future__ import annotations

import difflib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from pykcl.cli.durations import Duration
from pykcl.cli.errors import exit_codes
from pykcl.config import Config, from_environment, read_toml
from pykcl.errors import ConfigError, PyKclError, SetupError, printable

if TYPE_CHECKING:
    from pykcl.aws.credentials import ClientSpec
    from pykcl.aws.kinesis import KinesisStream
    from pykcl.aws.lease_table import DynamoDBLeaseTable
    from pykcl.operate.aws.clients import OperatorClients
    from pykcl.operate.aws.streams import StreamAdmin, StreamSummary

Need = Literal["table", "stream", "application"]
Command = TypeVar("Command", bound=Callable[..., Any])

UNSAID = "not-told"
"""Stands in `Target.config` where no application, or no stream, was told."""
MOST_COMPLETIONS = 100


@dataclass(frozen=True)
class Target:
    """The fleet that is meant.

    application, table (lease table), stream (name or ARN): None where nobody told. failover: seconds, None where nobody
    told; a file of --config or --properties tells its default, too. config: all that is known, checked; `UNSAID` stands
    for an application or a stream that was not told. clients: opens boto3 clients when asked, each once.
    properties: the file of --properties.
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

    def lease_table(self) -> DynamoDBLeaseTable:
        """The adapter over the lease table; nothing is sent yet. Raises ConfigError, SetupError, TemporaryError."""
        from pykcl.aws.lease_table import DynamoDBLeaseTable
        from pykcl.runtime import SystemRuntime

        if self.table is None:
            raise ConfigError("No lease table. Do: --application NAME, or --table NAME.")
        return DynamoDBLeaseTable(
            self.clients.client("dynamodb"),
            self.table,
            SystemRuntime(),
            request_timeout=5.0,
            coordinator_state_table=self.config.coordinator_state_table,
        )

    def kinesis(self, stream: str | None = None) -> KinesisStream:
        """The adapter over the stream, by default the one that was told; sends nothing yet. Raises as `lease_table`."""
        from pykcl.aws.kinesis import KinesisStream
        from pykcl.runtime import SystemRuntime

        name = stream or self.stream
        if name is None:
            raise ConfigError("No stream. Do: --stream NAME (or its ARN).")
        return KinesisStream(self.clients.client("kinesis"), name, SystemRuntime())


@dataclass(frozen=True)
class _Told:
    """options: fields of Config, as told. specs: what a file says of clients. has_file: whether there is a file."""

    options: Mapping[str, Any]
    specs: Mapping[str, ClientSpec] = field(default_factory=dict)
    has_file: bool = False


def fleet_options(*needs: Need, stream_argument: str | None = None) -> Callable[[Command], Command]:
    """Decorator: the options of a fleet; the command's parameter `target` is a Target.

    needs: what must be told, by flag, file or PYKCL_ variable; else it is a usage error. stream_argument: parameter of
    the command that may name the stream in place of --stream. Also turns pykcl's errors into one line and the exit
    codes of `exit_codes`.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_target(*args: Any, **given: Any) -> Any:
            with exit_codes():
                told = {name: given.pop(name) for name in _FLEET}
                named = given.pop(stream_argument) if stream_argument is not None else None
                if named is not None and told["stream"] is not None:
                    raise click.UsageError(f"Both {named!r} and --stream {told['stream']!r} name the stream.")
                target = _target(needs, **{**told, "stream": named or told["stream"]})
                try:
                    return command(*args, target=target, **given)
                except PyKclError as error:
                    error.naming(application=target.application, stream=target.stream, table=target.table)
                    raise

        return _with(with_target, (*_FLEET_OPTIONS, *_AWS_OPTIONS))  # type: ignore[return-value]

    return decorate


def aws_options(command: Command) -> Command:
    """Decorator: --profile, --region and --endpoint-url; the command's parameter `clients` opens boto3 clients."""

    @functools.wraps(command)
    def with_clients(*args: Any, **given: Any) -> Any:
        with exit_codes():
            clients = _clients(**{name: given.pop(name) for name in _AWS})
            return command(*args, clients=clients, **given)

    return _with(with_clients, _AWS_OPTIONS)  # type: ignore[return-value]


def _clients(
    profile: str | None,
    region: str | None,
    endpoint_url: str | None,
    *,
    specs: Mapping[str, ClientSpec] | None = None,
    fallback_region: str | None = None,
) -> OperatorClients:
    from pykcl.operate.aws.clients import Access, OperatorClients

    return OperatorClients(Access(profile, region, endpoint_url, specs or {}, fallback_region))


def _target(
    needs: Iterable[Need],
    *,
    properties: Path | None,
    config_file: Path | None,
    application: str | None,
    table: str | None,
    stream: str | None,
    failover: float | None,
    profile: str | None,
    region: str | None,
    endpoint_url: str | None,
) -> Target:
    flags = {
        "application": application,
        "table_name": table,
        "stream": stream,
        "failover_time": failover,
        "region": region,
    }
    told, environment = _from_file(properties, config_file), from_environment(os.environ)
    options = {
        **told.options,
        **environment,
        **{name: value for name, value in flags.items() if value is not None},
    }
    known = {"application": options.get("application"), "stream": options.get("stream")}
    known["table"] = options.get("table_name") or known["application"]
    for need in needs:
        if known[need] is None:
            raise click.UsageError(_MISSING[need])
    config = Config.from_options(
        {**options, "application": known["application"] or UNSAID, "stream": known["stream"] or UNSAID}
    )
    return Target(
        application=known["application"],
        table=known["table"],
        stream=known["stream"],
        failover=config.failover_time if told.has_file or "failover_time" in options else None,
        config=config,
        clients=_clients(
            profile,
            region or environment.get("region"),
            endpoint_url,
            specs=told.specs,
            fallback_region=config.effective_region,
        ),
        properties=properties,
    )


def _from_file(properties: Path | None, config_file: Path | None) -> _Told:
    if properties is not None and config_file is not None:
        raise click.UsageError("Both --config and --properties were given. Use one of them.")
    if properties is not None:
        from dataclasses import fields

        from pykcl.compat.properties import interpret, read_properties

        found = interpret(read_properties(properties), door="kclpy")
        options = {one.name: getattr(found.config, one.name) for one in fields(Config)}
        return _Told(options, found.clients, has_file=True)
    if config_file is not None:
        file = read_toml(config_file)
        specs: Mapping[str, ClientSpec] = {}
        if file.clients:
            from pykcl.aws.credentials import specs_of

            specs = specs_of(file.clients, file.source)
        return _Told(file.options, specs, has_file=True)
    return _Told({})


_MISSING: Mapping[Need, str] = {
    "table": "No application. Do: --application NAME (or --table, -c pykcl.toml, -p FILE.properties).",
    "application": "No application. Do: --application NAME (or -c pykcl.toml, -p FILE.properties).",
    "stream": "No stream. Do: --stream NAME (or its ARN, -c pykcl.toml, -p FILE.properties).",
}


# -- completion ------------------------------------------------------------------------------------------------


def complete_applications(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of DynamoDB tables: an application is called like its lease table. Never raises."""
    try:
        clients = _clients(**{name: ctx.params.get(name) for name in _AWS})
        names: list[str] = []
        for page in clients.client("dynamodb").get_paginator("list_tables").paginate():
            names += [name for name in page.get("TableNames", ()) if name.startswith(incomplete)]
            if len(names) >= MOST_COMPLETIONS:
                break
    except _expected():
        return []
    return names[:MOST_COMPLETIONS]


def complete_shards(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Keys of the lease table's rows, of its first page only. Never raises."""
    try:
        target = _target((), **{name: ctx.params.get(name) for name in _FLEET})
        if target.table is None:
            return []
        page = target.clients.client("dynamodb").scan(
            TableName=target.table, ProjectionExpression="leaseKey", Limit=1000
        )
        keys = [item.get("leaseKey", {}).get("S") for item in page.get("Items", ())]
    except _expected():
        return []
    found = sorted(key for key in keys if isinstance(key, str) and key.isprintable() and incomplete in key)
    return found[:MOST_COMPLETIONS]


def _expected() -> tuple[type[Exception], ...]:
    from pykcl.aws.errors import aws_errors

    return (PyKclError, click.ClickException, *aws_errors())


# -- the options -----------------------------------------------------------------------------------------------

_AWS = ("profile", "region", "endpoint_url")
_FLEET = ("properties", "config_file", "application", "table", "stream", "failover", *_AWS)

_Option = Callable[[Callable[..., Any]], Callable[..., Any]]

_FLEET_OPTIONS: tuple[_Option, ...] = (
    click.option(
        "-p",
        "--properties",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The .properties file the fleet runs by.",
    ),
    click.option(
        "-c",
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The pykcl.toml the fleet runs by.",
    ),
    click.option(
        "-a",
        "--application",
        "--app",
        "application",
        metavar="NAME",
        shell_complete=complete_applications,
        help="Application name, which also names the lease table.",
    ),
    click.option(
        "--table",
        metavar="NAME",
        shell_complete=complete_applications,
        help="Lease table, if called otherwise.",
    ),
    click.option("--stream", metavar="NAME", help="Stream name or ARN."),
    click.option(
        "--failover",
        type=Duration(minimum=1.0),
        metavar="TIME",
        help="The fleet's fail-over time (failoverTimeMillis), such as 10s.",
    ),
)
_AWS_OPTIONS: tuple[_Option, ...] = (
    click.option("--profile", metavar="NAME", help="AWS profile."),
    click.option("--region", metavar="NAME", help="AWS region."),
    click.option("--endpoint-url", metavar="URL", help="Another endpoint than AWS' own, for every service."),
)


def _with(command: Callable[..., Any], options: Iterable[_Option]) -> Callable[..., Any]:
    for option in reversed(tuple(options)):
        command = option(command)
    return command


def admin_for(clients: OperatorClients, stream: str | None = None) -> StreamAdmin:
    """Raises ConfigError without a region, SetupError without credentials. An ARN names its region."""
    from pykcl.operate.aws.clients import OperatorClients
    from pykcl.operate.aws.streams import StreamAdmin

    parts = (stream or "").split(":")
    if parts[0] == "arn" and len(parts) > 3 and clients.access.fallback_region is None:
        clients = OperatorClients(replace(clients.access, fallback_region=parts[3]))
    return StreamAdmin(clients.client("kinesis"))


def summary_of(admin: StreamAdmin, stream: str) -> StreamSummary:
    """What the stream is. Raises SetupError, with what is there instead, where there is none of that name."""
    try:
        return admin.summary(stream)
    except SetupError as error:
        failure = SetupError(f"{error}{names_near(admin, stream)}")
    raise failure


def names_near(admin: StreamAdmin, stream: str) -> str:
    """A sentence, with a space in front, on the streams there are; "" where that cannot be said."""
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


def complete_streams(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of streams that begin so. Never raises what AWS or its configuration may raise."""
    from pykcl.aws.errors import aws_errors
    from pykcl.operate.aws.clients import Access, OperatorClients

    told = ctx.params
    expected: tuple[type[Exception], ...] = (PyKclError, *aws_errors())
    try:
        clients = OperatorClients(Access(told.get("profile"), told.get("region"), told.get("endpoint_url")))
        names = [stream.name for stream in admin_for(clients).streams()]
    except expected:
        return []
    return [name for name in names if name.startswith(incomplete)][:MOST_COMPLETIONS]


def tell(text: str) -> None:
    """A line beside the answer, on standard error."""
    click.echo(f"pykcl: {printable(text)}", err=True)


@contextmanager
def quiet_when_unread() -> Iterator[None]:
    """Whoever reads our output, such as `head`, may have had enough: that is a good end, of exit code 0."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        forget_output()


def forget_output() -> None:
    """What is still in the buffer of standard output goes nowhere, also at the end of the interpreter."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere: Any = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
