"""`pykcl explain CODE`: the section of the troubleshooting page, as text for a terminal. No network is needed."""

from __future__ import annotations

import difflib
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import click

from pykcl.cli.console import say
from pykcl.cli.options import Verb
from pykcl.error_catalog import DOCS, MISTAKES, docs_of

_PACKAGE = Path(__file__).parents[1]
# The wheel carries the page inside the package; a clone, and with it an editable install, has it beside.
PAGES = (
    _PACKAGE / "docs" / "troubleshooting.md",
    _PACKAGE.parent / "docs" / "operate" / "troubleshooting.md",
)
_WIDEST = 100
_FENCE = re.compile(r"^```\w*\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^]]+)\]\(([^)]+)\)")
_ANCHOR = re.compile(r'^<a id="(e\d\d)"></a>$', re.MULTILINE)


@click.command(cls=Verb)
@click.argument("code", required=False)
def explain(code: str | None) -> None:
    """Explain an error code, such as E12.

    CODE appears in error messages and logs. Without CODE, lists all codes.
    """
    if code is None:
        for mistake in MISTAKES.values():
            say(f"{mistake.code}  {mistake.title}")
        say(f"\nMore about one: pykcl explain {next(iter(MISTAKES))}")
        return
    known = code.strip().upper()
    if known not in MISTAKES:
        near = difflib.get_close_matches(known, MISTAKES, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise click.UsageError(f"There is no code {code!r}.{hint} Do: pykcl explain, which lists all codes.")
    width = min(_WIDEST, shutil.get_terminal_size().columns)
    say("\n\n".join([*_blocks(_section(known), width), "All codes: pykcl explain"]))


def _section(code: str) -> str:
    for path in PAGES:
        if path.is_file():
            _, *parts = _ANCHOR.split(path.read_text("utf-8"))
            return dict(zip(parts[::2], parts[1::2], strict=True))[code.lower()]
    raise click.ClickException(f"The page is missing in this installation. It is at {docs_of(code)}")


def _blocks(page: str, width: int) -> Iterator[str]:
    """Headings, code and paragraphs of a section, without Markdown's marks."""
    for number, part in enumerate(_FENCE.split(page)):
        if number % 2:
            yield textwrap.indent(part.rstrip(), "    ")
            continue
        for paragraph in filter(None, map(str.strip, part.split("\n\n"))):
            if paragraph.startswith("#"):
                heading = paragraph.lstrip("# ")
                yield f"{heading}\n{('=' if paragraph.startswith('## ') else '-') * len(heading)}"
            else:
                yield "\n".join(_wrapped(item, width) for item in re.split(r"\n(?=\* )", paragraph))


def _wrapped(text: str, width: int) -> str:
    # The commands and texts in it stay whole, however narrow the terminal is.
    text = _LINK.sub(_with_address, " ".join(text.split()))
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def _with_address(link: re.Match[str]) -> str:
    """The words with the address, or the words alone for a section that this command shows."""
    words, target = link.groups()
    return words if words in MISTAKES else f"{words} ({urljoin(DOCS, target)})"
