"""Texts that pykcl shows to users, out of its source, and the commands and options that they name."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import botocore.session
import click

from pykcl.cli.main import main

ROOT = Path(__file__).parents[2]
UNKNOWN = "…"
"""Stands for what a text gets when it is made."""
_COMMAND = re.compile(r"(?:\b(pykcl|aws) |`(?!pykcl |aws ))((?:[a-z0-9-]+ ?)+)")
_OPTION = re.compile(r"(?<![\w-])(?:--[a-z][a-z-]*[a-z]|-[a-z])\b")
_SENTENCE_ENDS = re.compile(r"[`;]|\. ")


@cache
def modules() -> dict[str, ast.Module]:
    """Return the modules of pykcl by their names."""
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in sorted((ROOT / "pykcl").rglob("*.py"))
    }
    return {
        name: ast.parse(path.read_text("utf-8")) for name, path in found.items() if not name.endswith("_pb2")
    }


@cache
def all_texts() -> tuple[tuple[str, str], ...]:
    """Return (module, text) for each text of pykcl that is no docstring."""
    return tuple((name, text) for name, tree in modules().items() for text in texts_of(tree, name))


def texts_of(tree: ast.Module, module: str) -> Iterator[str]:
    """Yield the texts of a module without those that are an expression of their own, as docstrings are."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)
        ):
            yield written(node, module)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            left += ast.iter_child_nodes(node)


def written(node: ast.AST, module: str) -> str:
    """Return the text of a literal, with the constants of its module in their places."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(written(part, module) for part in node.values)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        found = getattr(importlib.import_module(module), node.value.id, UNKNOWN)
        return found if isinstance(found, str) else UNKNOWN
    return UNKNOWN


def all_commands() -> dict[str, click.Command]:
    """Every command by its words, such as "leases list"."""
    return dict(_commands(main, ()))


def _commands(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield " ".join([*words, name]), command
        if isinstance(command, click.Group):
            yield from _commands(command, (*words, name))


COMMANDS = all_commands()


def options_named(text: str, about: Sequence[str]) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield (option, program, the words of commands of which one has to have it).

    about: the commands of pykcl that the text is about, where it writes none out before the option.
    """
    for found in _OPTION.finditer(text):
        before = text[: found.start()]
        said = list(_COMMAND.finditer(before))
        if said and not _SENTENCE_ENDS.search(before, said[-1].end()):
            program, words = said[-1].groups()
            yield found[0], program or "pykcl", [words] if program == "aws" else commands_of(words)
        elif before.endswith(("worker's ", "as in its ")):
            yield found[0], "pykcl", ["run"]
        else:
            yield found[0], "pykcl", about


def commands_of(words: str) -> list[str]:
    """Return the commands that words behind `pykcl` begin with, such as those of `leases list shows whose`."""
    first = words.split()
    return [each for each in COMMANDS if each.split() == first[: len(each.split())]]


def has(command: str, option: str) -> bool:
    params = COMMANDS[command].params
    return option == "--help" or any(option in (*param.opts, *param.secondary_opts) for param in params)


AS_OTHERS = (
    "pykcl.local.", "pykcl.testing.memory.", "pykcl.testing.simulation.", "pykcl.demo.java", "pykcl.ui.",
    "pykcl.health.http", "pykcl.health.pages", "pykcl.aws.transport.request_template", "pykcl.model.kpl",
    "pykcl.stores.requests", "pykcl.stores.expressions",
)  # fmt: skip
"""They write what AWS, Java, an HTTP server or a browser writes."""

# A module of a message -> the commands that it is about, by their first words. The longest beginning counts.
ABOUT = {
    "pykcl.": ("run",),
    "pykcl.cli.target": (),
    "pykcl.demo": (),
    "pykcl.cli.output": (),
    "pykcl.compat.migrate": ("run", "migrate", "multilangd"),
    "pykcl.compat.properties": ("run", "multilangd"),
    "pykcl.operate.aws": (),
    "pykcl.operate.checkpoints": ("checkpoints",),
    "pykcl.operate.dead_letters": ("dead-letters",),
    "pykcl.operate.doctor": (),
    "pykcl.operate.hints": ("leases", "checkpoints"),
    "pykcl.operate.idle": ("checkpoints",),
    "pykcl.operate.lag": ("lag",),
    "pykcl.operate.streams": ("tail", "put"),
    "pykcl.operate.worker_status": ("lag",),
}


def commands_about(module: str) -> list[str]:
    """Return the words of the commands that a message of a module is about."""
    own = [words for words, command in COMMANDS.items() if f"{module}." in f"{defined_in(command)}."]
    if own:
        return own
    nearest = max((each for each in ABOUT if module.startswith(each)), key=len)
    return [words for words in COMMANDS if not ABOUT[nearest] or words.split()[0] in ABOUT[nearest]]


def defined_in(command: click.Command) -> str:
    return inspect.unwrap(command.callback).__module__ if command.callback else ""


def aws_takes(words: str, option: str) -> bool:
    """Return True if a command of the AWS CLI has an operation with such a member of its request."""
    service, operation, *_ = words.split()
    model = botocore.session.get_session().get_service_model(service)
    named = {re.sub(r"(?<!^)(?=[A-Z][a-z])", "-", each).lower(): each for each in model.operation_names}
    shape = model.operation_model(named[operation]).input_shape
    members = () if shape is None else shape.members
    plain = option.strip("-").replace("-", "")
    return option in GLOBAL_AWS or plain in {member.lower() for member in members}


GLOBAL_AWS = {"--region", "--profile"}
