"""`pykcl local`: the embedded local AWS in the foreground."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pykcl.cli.console import announce
from pykcl.cli.errors import exit_codes
from pykcl.cli.options import Verb
from pykcl.errors import ConfigError
from pykcl.local import local_environment
from pykcl.runtime import SignalEvent
from pykcl.worker.signals import stop_signals_go_to

if TYPE_CHECKING:
    from pykcl.local.server import LocalAws

DEFAULT_PORT = 4567
MOST_SHARDS = 10_000
NEEDED_MODULES = ("cbor2", "hypercorn", "moto", "py_partiql_parser")
"""What the extra `local` brings."""
_STREAM = re.compile(r"(?P<name>[A-Za-z0-9_.-]{1,128})(?::(?P<shards>[0-9]{1,6})?)?\Z")


@click.command(cls=Verb)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=DEFAULT_PORT,
    show_default=True,
    help="Listen on this port; 0 selects a free port.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Listen on this address, such as 0.0.0.0 in a container. Requests are not authenticated.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="Allow clients to call it by another name, such as that of a container (repeatable).",
)
@click.option(
    "--stream", "streams", multiple=True, metavar="NAME:SHARDS", help="Create a stream (repeatable)."
)
@click.option(
    "--limits", is_flag=True, help="Enforce the limits of a shard: 5 reads/s, 2 MB/s out, 1 MB/s in."
)
@click.option(
    "--request-log",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Append every request to this file as a line of JSON.",
)
def local(
    port: int,
    host: str,
    allow_hosts: tuple[str, ...],
    streams: tuple[str, ...],
    limits: bool,
    request_log: Path | None,
) -> None:
    """Run a local AWS: Kinesis, DynamoDB, CloudWatch, SQS, SNS and S3.

    Needs the extra `local`. Everything is kept in memory until Ctrl-C. The command prints the environment variables
    that configure boto3, the AWS CLI and pykcl to use it.

    Faults (throttling, resets, latency, lost answers) are injected by rules that are posted to /_pykcl/faults on the
    same port; GET shows what was injected. docs/guides/testing.md lists the kinds.
    """
    with exit_codes():
        wanted = dict(map(_stream, streams))
        made = start_local_aws(
            port, host=host, allow_hosts=allow_hosts, limits=limits, request_log=request_log
        )
        stop = SignalEvent()
        # The signals first: one may come as soon as the server answers.
        with stop_signals_go_to(lambda *_: stop.set()), _started(made, host, port) as aws:
            for name, shards in wanted.items():
                aws.kinesis.create_stream(name, shards)
                announce(f"# stream {name} with {shards} shards", err=True)
            for name, value in local_environment(aws.url).items():
                announce(f"export {name}={value}")
            announce("# ready; Ctrl-C ends it", err=True)
            stop.wait()


def start_local_aws(
    port: int,
    *,
    host: str = "127.0.0.1",
    allow_hosts: tuple[str, ...] = (),
    limits: bool = False,
    request_log: Path | None = None,
) -> LocalAws:
    """A local AWS, not started yet (it is a context manager). Raises ConfigError where the extra is missing."""
    try:
        for needed in NEEDED_MODULES:
            importlib.import_module(needed)
        from pykcl.local.server import LocalAws
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The embedded local AWS needs {error.name!r}, which is not installed. Do: pip install 'pykcl[local]'."
        ) from None
    try:
        return LocalAws(port=port, host=host, allow_hosts=allow_hosts, limits=limits, request_log=request_log)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The request log {str(request_log)!r} cannot be written ({error}). "
            "Do: name a file in a folder that exists."
        ) from None


@contextmanager
def _started(aws: LocalAws, host: str, port: int) -> Iterator[LocalAws]:
    try:
        aws.start()
    except OSError as error:
        raise ConfigError(
            f"Port {port} of {host} cannot be used ({error.strerror or error}); another `pykcl local` may have it. "
            "Do: --port 0 to select a free port, or name another; --host takes an address of this machine."
        ) from None
    try:
        yield aws
    finally:
        aws.stop()


def _stream(text: str) -> tuple[str, int]:
    found = _STREAM.match(text)
    if found is None or not 1 <= int(found["shards"] or "1") <= MOST_SHARDS:
        raise click.UsageError(
            f"--stream {text[:200]!r} is not NAME:SHARDS, such as orders:4. A name has 1 to 128 of A-Z a-z 0-9 _ . -, "
            f"and there are at most {MOST_SHARDS} shards."
        )
    return found["name"], int(found["shards"] or "1")
