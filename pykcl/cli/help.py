"""The layout of --help: options in sections, verbs with their whole first sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

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
