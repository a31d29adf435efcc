"""One thing that somebody who leaves Java should know, with where it stands and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Weight = Literal["must", "changes", "look", "can go", "fine"]
"""must: it does not work before this is done. changes: it works, and otherwise than under Java. look: a person has to
judge. can go: it is of no use any more. fine: told because people ask."""

WEIGHTS: tuple[Weight, ...] = ("must", "changes", "look", "can go", "fine")


@dataclass(frozen=True, slots=True)
class Finding:
    """what: a few words. text: what it means, and what to do. file, lines: where; lines may be none."""

    weight: Weight
    what: str
    text: str
    file: str = ""
    lines: tuple[int, ...] = ()

    @property
    def place(self) -> str:
        """Such as "app.py:7, 12"; "" where it is nowhere in particular."""
        lines = ", ".join(map(str, self.lines))
        return f"{self.file}:{lines}" if lines else self.file
