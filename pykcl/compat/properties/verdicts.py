"""What becomes of each key, and how it is shown: no secret, and nothing that would break a line or a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["honoured", "mapped", "ignored, as Java does", "ignored, Java only", "unknown"]

HIDDEN = "***"
_LONGEST_VALUE = 60
_LONGEST_KEY = 80
_SECRET_NAME = re.compile(
    r"secret|passw|pwd|token|credential|auth|access.?key|api.?key|private|external.?id", re.IGNORECASE
)
# As far as the last @: who writes a password into a URL may have left out to encode it.
_USER_IN_URL = re.compile(r"(?<=://)\S*@")
_VALUE = re.compile("[=:]")
_QUERY = re.compile(r"\?.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class KeyVerdict:
    """One key of the file. value: as it may be shown. text: what it means here, and how that differs from Java."""

    key: str
    value: str
    verdict: Verdict
    text: str


def verdict_table(verdicts: Iterable[KeyVerdict]) -> str:
    """The table told at the start: a line for each key, in columns, without a final line end."""
    rows = [("KEY", "VALUE", "VERDICT", "WHAT IT MEANS HERE")]
    rows += [(row.key, row.value, row.verdict, row.text) for row in verdicts]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in rows
    )


def shown_key(key: str) -> str:
    return _printable(key, _LONGEST_KEY)


def shown_value(key: str, value: str) -> str:
    """A value for the table: cut, printable, without what a URL may hold of a user, hidden for a secret's name."""
    if _SECRET_NAME.search(key):
        return HIDDEN
    if "://" in value:
        value = _QUERY.sub("", _USER_IN_URL.sub(HIDDEN + "@", value))
    return _printable(value, _LONGEST_VALUE)


def shown_endpoint(url: str) -> str:
    """As `shown_value`, of a URL that need not say https://."""
    return shown_value("", _QUERY.sub("", url.rpartition("@")[2]) if "://" not in url else url)


def shown_command(command: str) -> str:
    """A command line as far as the first word that has a secret's name in it: nobody knows what stands behind that."""
    shown: list[str] = []
    words = command.split()
    for word in words:
        named = _SECRET_NAME.search(word)
        value = _VALUE.search(word, named.end()) if named else None
        shown.append(word[: value.end()] + HIDDEN if value else word)
        if named:
            if not value and len(shown) < len(words):
                shown.append(HIDDEN)
            break
    return shown_value("", " ".join(shown) + (" …" if len(shown) < len(words) else ""))


def _printable(text: str, longest: int) -> str:
    # A line end in a value (\n is an escape of the format) would forge a line of the log.
    plain = "".join(char if char.isprintable() else "?" for char in text)
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"
