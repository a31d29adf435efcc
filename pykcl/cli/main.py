"""The `pykcl` command: a group whose verbs are imported only when they are called, so that `--help` is instant."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from pykcl import __version__
from pykcl.cli.console import Unwritable, forget_output, prepare_streams, print_notice
from pykcl.cli.errors import BY_SIGNAL, BY_SIGNAL_MEANING, ExitCode
from pykcl.errors import printable

ARGUMENTS = "pykcl.cli.arguments"
"""Under this the context's `meta` has what the group was called with, the verb first."""

SECTIONS = {
    "Try it here": {
        "demo": "Watch a fleet survive kills, a reshard and a poison record.",
        "local": "Run a local AWS: Kinesis, DynamoDB, CloudWatch, SQS, SNS and S3.",
    },
    "Run a worker": {
        "run": "Run a record processor as a worker of a fleet.",
        "replay": "Process a part of a stream again, and end.",
    },
    "Inspect and change a fleet": {
        "leases": "List, describe, release and prune the leases of a fleet.",
        "lag": "Show how far each shard is behind the tip of the stream.",
        "checkpoints": "Show, export and reset the checkpoints of a fleet.",
        "dead-letters": "List, show and redrive dead letters.",
        "ui": "Serve a web page that shows a fleet.",
    },
    "Work with streams": {
        "streams": "List and describe streams.",
        "fanout": "List, register and deregister the consumers of enhanced fan-out.",
        "tail": "Print the records of a stream as they arrive.",
        "put": "Put lines of text into a stream as records.",
    },
    "Check and explain": {
        "doctor": "Check credentials, permissions, stream, lease table and fleet.",
        "explain": "Explain an error code, such as E12.",
        "iam": "Print the minimal IAM policy of a worker, operator or producer.",
    },
    "Move from Java": {
        "migrate": "Plan the move from MultiLangDaemon or amazon_kclpy to pykcl.",
        "multilangd": "Run a MultiLangDaemon program without Java.",
    },
}
"""Each verb is the function `verb` of the module `pykcl.cli.verb`; its text is the first sentence of its own help."""
VERBS = tuple(verb for verbs in SECTIONS.values() for verb in verbs)
_LONGEST = max(map(len, VERBS))


class LazyGroup(click.Group):
    """Know the verbs by name, and load one when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"pykcl.cli.{module}"), module)
        if not isinstance(command, click.Command):
            raise TypeError(f"{cmd_name} is not a command")
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

    def main(self, *args: Any, **more: Any) -> Any:
        prepare_streams()
        try:
            return super().main(*args, **more)
        except Unwritable as error:
            print_notice(str(error))
            sys.exit(ExitCode.FAILED)
        except OSError:
            # The help, or a usage error, cannot be written. All others have been reported by `exit_codes`.
            forget_output()
            sys.exit(ExitCode.FAILED)

    def invoke(self, ctx: click.Context) -> Any:
        with _printable_errors():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Columns of equal width in all sections.
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{verb:<{_LONGEST}}", text) for verb, text in verbs.items()])
        with formatter.section("Exit codes"):
            rows = [*((str(code), code.meaning) for code in ExitCode), (BY_SIGNAL, BY_SIGNAL_MEANING)]
            formatter.write_dl([(f"{code:<{_LONGEST}}", meaning) for code, meaning in rows])


@contextmanager
def _printable_errors() -> Iterator[None]:
    """click repeats what it does not understand; it must not drive a terminal."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = printable(error.message)
        raise


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="pykcl")
def main() -> None:
    """Read Kinesis streams with a fleet of workers: the Kinesis Client Library (KCL) in pure Python.

    The workers of a fleet share the shards of a stream through a DynamoDB lease table, the same table that Java KCL 2.x
    uses. `pykcl COMMAND --help` explains a command.
    """
