"""Texts that pykcl shows to users, out of its source, and the commands and options that they name."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from pykcl.cli.main import main

ROOT = Path(__file__).parents[2]
UNKNOWN = "…"
"""Stands for what a text gets when it is made."""
_COMMAND = re.compile(r"(?:\b(pykcl|aws) |`(?!pykcl |aws ))((?:[a-z0-9-]+ ?)+)")
_OPTION = re.compile(r"(?<![\w-])(?:--[a-z][a-z-]*[a-z]|-[a-z])\b")
_SENTENCE_ENDS = re.compile(r"[`;]|\. ")


def all_texts() -> Iterator[tuple[str, str]]:
    """Yield (module, text) for each text of pykcl that is no docstring."""
    for path in sorted((ROOT / "pykcl").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not name.endswith("_pb2"):
            yield from ((name, text) for text in texts_of(path.read_text("utf-8"), name))


def texts_of(source: str, module: str) -> Iterator[str]:
    """Yield the texts of a module without those that are an expression of their own, as docstrings are."""
    left: list[ast.AST] = [ast.parse(source)]
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
