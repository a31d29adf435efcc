"""The pages of docs/errors, as what the tests ask of them."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "errors"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections(code: str) -> dict[str, str]:
    """Heading -> text."""
    _, *parts = (PAGES / f"{code}.md").read_text("utf-8").split("\n## ")
    return {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts}


def blocks(text: str, language: str) -> list[str]:
    return [body for found, body in _FENCE.findall(text) if found == language]


def seen_lines(code: str) -> list[str]:
    """What the page says that people see; … stands for anything."""
    (block,) = blocks(sections(code)["What you see"], "text")
    return block.splitlines()


def is_on_page(code: str, text: str) -> bool:
    """Whether one line of the page says this. A line of the log, or of the command line, or an error's own text."""
    patterns = [
        re.escape(line.removeprefix("pykcl: ")).replace(re.escape("…"), ".*") for line in seen_lines(code)
    ]
    return any(re.fullmatch(pattern, text.removeprefix("pykcl: ")) for pattern in patterns)


def commands(code: str) -> list[list[str]]:
    """Of all console blocks, as words."""
    text = (PAGES / f"{code}.md").read_text("utf-8")
    return [line[2:].split() for block in blocks(text, "console") for line in block.splitlines()]
