"""`pykcl explain CODE`: the page about a mistake, as text for a terminal. No network is needed."""

from __future__ import annotations

import difflib
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import click

from pykcl.cli.output import say
from pykcl.error_catalog import DOCS, MISTAKES

_PACKAGE = Path(__file__).parents[1]
# The wheel carries the folder inside the package; a clone, and with it an editable install, has it beside.
FOLDERS = (_PACKAGE / "docs" / "errors", _PACKAGE.parent / "docs" / "errors")
_WIDEST = 100
_FENCE = re.compile(r"^```\w*\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^]]+)\]\(([^)]+)\)")
_LINK_TO_ALL = "All mistakes: "


@click.command()
@click.argument("code", required=False)
def explain(code: str | None) -> None:
    """Explain the code of an error or of a log line: what it looks like, why, what to do.

    Without CODE it lists all codes.
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
    say("\n\n".join([*_blocks(_page(known), width), "All codes: pykcl explain"]))


def _page(code: str) -> str:
    for folder in FOLDERS:
        path = folder / f"{code}.md"
        if path.is_file():
            return path.read_text("utf-8")
    raise click.ClickException(f"The page is missing in this installation. It is at {DOCS}{code}.md")


def _blocks(page: str, width: int) -> Iterator[str]:
    """Headings, code and paragraphs of a page of docs/errors, without Markdown's marks and without its last line."""
    for number, part in enumerate(_FENCE.split(page)):
        if number % 2:
            yield textwrap.indent(part.rstrip(), "    ")
            continue
        for paragraph in filter(None, map(str.strip, part.split("\n\n"))):
            if paragraph.startswith("#"):
                heading = paragraph.lstrip("# ")
                yield f"{heading}\n{('=' if paragraph.startswith('# ') else '-') * len(heading)}"
            elif not paragraph.startswith(_LINK_TO_ALL):
                yield "\n".join(_wrapped(item, width) for item in re.split(r"\n(?=\* )", paragraph))


def _wrapped(text: str, width: int) -> str:
    # The commands and texts in it stay whole, however narrow the terminal is.
    text = _LINK.sub(_with_address, " ".join(text.split()))
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def _with_address(link: re.Match[str]) -> str:
    """What a link leads to, unless that is a page that this command shows."""
    words, target = link.groups()
    return words if words in MISTAKES else f"{words} ({urljoin(DOCS, target)})"
