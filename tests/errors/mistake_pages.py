"""The troubleshooting page, one section for each code, as the tests need it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operate" / "troubleshooting.md"
HEAD, *_PARTS = re.split(r"^<a id=\"(e\d\d)\"></a>\n\n", PAGE.read_text("utf-8"), flags=re.MULTILINE)
TEXTS = {anchor.upper(): text for anchor, text in zip(_PARTS[::2], _PARTS[1::2], strict=True)}
"""By code: the section below its anchor."""
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections(code: str) -> dict[str, str]:
    """Heading -> text."""
    _, *parts = TEXTS[code].split("\n### ")
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
    return [line[2:].split() for block in blocks(TEXTS[code], "console") for line in block.splitlines()]
