"""Names out of a lease table, as they may be shown: worker identifiers, lease keys, what somebody wrote there. Pure."""

from __future__ import annotations

from pykcl.errors import printable

MOST_SHOWN = 200
"""Characters of a name that are shown."""


def shown(name: str) -> str:
    """A name as it is shown: on one line, inert, and not endless."""
    text = printable(name)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"
