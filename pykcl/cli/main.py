"""The `pykcl` command: a group whose verbs are imported only when they are called, so that `--help` is instant."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from pykcl import __version__
from pykcl.errors import printable

ARGUMENTS = "pykcl.cli.arguments"
"""Under this the context's `meta` has what the group was called with, the verb first."""
# verb: (module:attribute, one line for --help)
VERBS = {
    "run": ("pykcl.cli.run:run", "Run a record processor as one worker of a fleet."),
    "multilangd": (
        "pykcl.cli.multilangd:multilangd",
        "Run a MultiLangDaemon's .properties file and program, without Java.",
    ),
    "migrate": ("pykcl.cli.migrate:migrate", "Find out what leaving Java means, and write the way out."),
    "leases": ("pykcl.cli.leases:leases", "See who reads which shard and who is alive; release, prune."),
    "lag": ("pykcl.cli.lag:lag", "See how far behind the fleet is, per shard and in all."),
    "checkpoints": (
        "pykcl.cli.checkpoints:checkpoints",
        "Show, save and move checkpoints, with plan and undo.",
    ),
    "tail": ("pykcl.cli.tail:tail", "Show the records of a stream, and wait for more."),
    "put": ("pykcl.cli.put:put", "Put lines into a stream, each until it is in."),
    "streams": ("pykcl.cli.streams:streams", "See which streams there are, and what one is."),
    "ui": ("pykcl.cli.ui:ui", "Show a fleet on a web page of this machine."),
    "doctor": ("pykcl.cli.doctor:doctor", "Find what is wrong before production does; it only reads."),
    "explain": ("pykcl.cli.explain:explain", "Explain the code of an error, such as E12."),
    "iam": ("pykcl.cli.iam:iam", "Print the least IAM policy, as JSON or for Terraform."),
    "local": ("pykcl.cli.local:local", "Run the embedded local AWS (Kinesis, DynamoDB, CloudWatch)."),
    "demo": ("pykcl.cli.demo:demo", "Watch three workers survive a kill, a split and a merge, with proof."),
}


class LazyGroup(click.Group):
    """Knows its verbs by name; loads one when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, attribute = VERBS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{VERBS[cmd_name][0]} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = difflib.get_close_matches(args[0], VERBS, n=1)
        if near and args[0] not in VERBS and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **more: Any) -> click.Context:
        given = tuple(args)
        with _printable_errors():
            context = super().make_context(info_name, args, *rest, **more)
        context.meta[ARGUMENTS] = given
        return context

    def invoke(self, ctx: click.Context) -> Any:
        with _printable_errors():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])


@contextmanager
def _printable_errors() -> Iterator[None]:
    """click repeats what it does not understand; it must not drive a terminal."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = printable(error.message)
        raise


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pykcl")
def main() -> None:
    """pykcl: the Kinesis Client Library in pure Python.

    Reads a Kinesis stream with a fleet of workers that share its shards through a DynamoDB lease table, the same one
    that Amazon's Java KCL 2.x uses.

    Exit codes of what runs something: 0 clean, 2 usage, 70 crash, 78 configuration or surroundings. Of what looks at a
    fleet or steers it: 0 ok, 1 error, 2 usage, 3 a threshold was breached, 4 the doctor found something, 5 refused.
    """
