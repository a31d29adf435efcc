"""README.md and the pages of docs/ as code blocks with their surroundings."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TROUBLESHOOTING = ROOT / "docs" / "operate" / "troubleshooting.md"
LANGUAGES = {"python", "console", "json", "properties", "toml", "text", "mermaid", "yaml"}
"""What a fence may say. A new one needs somebody who says how it is tested."""

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<language>.*)$")
_SAVED = re.compile(r"Save this as `([\w.-]+)`")


@dataclass(frozen=True)
class Block:
    """before: the paragraph in front of the block, on one line. heading: the nearest heading above."""

    page: str
    line: int
    language: str
    text: str
    before: str
    heading: str

    @property
    def saved_as(self) -> str | None:
        found = _SAVED.search(self.before)
        return found.group(1) if found else None

    @property
    def id(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str, text: str) -> list[Block]:
    """Raises ValueError for a fence that is never closed or has no language."""
    found: list[Block] = []
    paragraph: list[str] = []
    heading, lines = "", text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        opening = _FENCE.match(line)
        if opening is None:
            if line.startswith("#"):
                heading, paragraph = line.lstrip("# "), []
            elif line.strip():
                paragraph = (
                    [*paragraph, line.strip()] if number and lines[number - 1].strip() else [line.strip()]
                )
            number += 1
            continue
        closing = f"{opening['indent']}{opening['fence']}"
        try:
            end = lines.index(closing, number + 1)
        except ValueError:
            raise ValueError(f"{page}:{number + 1}: this fence is never closed") from None
        language = opening["language"].strip()
        if language not in LANGUAGES:
            raise ValueError(
                f"{page}:{number + 1}: nobody says how a block of language {language!r} is tested"
            )
        body = textwrap.dedent("\n".join(lines[number + 1 : end])) + "\n"
        found.append(Block(page, number + 1, language, body, " ".join(paragraph), heading))
        paragraph, number = [], end + 1
    return found


def all_blocks() -> list[Block]:
    """All but those of the troubleshooting page, which show failures: tests/errors checks them."""
    return [
        block
        for path in PAGES
        if path != TROUBLESHOOTING
        for block in blocks_of(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
    ]


def table_under(page: str, first_cell: str) -> list[list[str]]:
    """The rows of the Markdown table whose head begins with that cell, as texts."""
    lines = (ROOT / page).read_text("utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first_cell} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r" \|(?= )", line.strip("|"))])
    return rows
