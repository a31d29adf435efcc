"""The options of verbs: their sections in --help, several of them as one value, and durations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

import click
from click.core import ParameterSource

from pykcl.times import format_duration, parse_duration

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

OPTIONS = "Options"
COMMON = "Common options"
"""The section that comes last: the options that mean the same on every verb."""


class SectionOption(click.Option):
    """An option that --help lists under the heading `section`."""

    def __init__(self, *args: Any, section: str = OPTIONS, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


def option_in(section: str) -> Callable[..., Decorator]:
    """Return `click.option` for options of this section."""

    def option(*names: str, **settings: Any) -> Decorator:
        return click.option(*names, cls=SectionOption, section=section, **settings)

    return option


def with_options(command: Callable[..., Any], options: Iterable[Decorator]) -> Callable[..., Any]:
    """Return the command with these options, which --help lists in this order."""
    for option in reversed(tuple(options)):
        command = option(command)
    return command


def gathered(name: str, kind: type[Any], options: Iterable[Decorator]) -> Decorator:
    """Decorator: these options, handed to the command as one `name`: an instance of the dataclass `kind`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_one(*args: Any, **given: Any) -> Any:
            values = {one.name: given.pop(one.name) for one in fields(kind) if one.name in given}
            return command(*args, **{name: kind(**values)}, **given)

        return with_options(with_one, options)

    return decorate


class Verb(click.Command):
    """A command whose --help has its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {OPTIONS: []}
        for param in self.get_params(ctx):
            # The positional arguments stand in the usage line, and in the text.
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(param, "section", OPTIONS), []).append(record)
        for title in sorted(sections, key=COMMON.__eq__):
            with formatter.section(title):
                formatter.write_dl(sections[title])


def refuse_of_others(whose: str, options: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse the options on the command line that the present one with `--for` would ignore.

    whose: the value of `--for`. options: the values that an option goes with, by the name of its parameter; one that
    is not there goes with all. Raises UsageError.
    """
    context = click.get_current_context()
    refused: dict[tuple[str, ...], list[str]] = {}
    for param in context.command.params:
        name = str(param.name)
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and whose not in options.get(name, (whose,)):
            refused.setdefault(options[name], []).append(max(param.opts, key=len))
    for others, given in refused.items():
        raise click.UsageError(f"{', '.join(given)}: only with --for {' or '.join(others)}.")


class VerbGroup(click.Group):
    """A group whose --help lists its verbs in the order of their definition, each with its whole first sentence."""

    command_class = Verb

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, first_sentence(verb)) for name, verb in self.commands.items()])


def first_sentence(verb: click.Command) -> str:
    text = " ".join((verb.help or "").partition("\n\n")[0].split())
    return text.partition(". ")[0].removesuffix(".") + "."


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Seconds as float. minimum, maximum: seconds."""

    name = "duration"

    def __init__(self, *, minimum: float = 0.0, maximum: float = 366 * 86_400.0) -> None:
        self._minimum, self._maximum = minimum, maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value) if isinstance(value, int | float) else parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._minimum <= seconds <= self._maximum:
            self.fail(
                f"{format_duration(seconds)} is out of range: from {format_duration(self._minimum)} to "
                f"{format_duration(self._maximum)}.",
                param,
                ctx,
            )
        return seconds
