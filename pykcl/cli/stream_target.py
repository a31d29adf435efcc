"""What `tail`, `put` and `streams` share: which stream is meant, and what is said beside the answer."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from pykcl.errors import ConfigError, PyKclError, SetupError, printable

if TYPE_CHECKING:
    from pykcl.operate.aws.clients import OperatorClients
    from pykcl.operate.aws.streams import StreamAdmin, StreamSummary

MOST_COMPLETIONS = 100


@contextmanager
def usage() -> Iterator[None]:
    """Around reading the options: what is wrong with them is a usage error."""
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


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
