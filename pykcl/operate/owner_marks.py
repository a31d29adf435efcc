"""One colour and one shape for every owner, the same in every view and every process.

The colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart; the shape tells
two owners apart where there is no colour.

An owner's mark is decided by its name, so that everybody who looks sees the same one. Where two names come to the same
mark, one of them moves on: of those seen together the one that is later in the alphabet, else the one that came later.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
_SALT = b"2880:"
"""Any would do; with this one names people begin with (py-1 py-2 py-3, worker-a worker-b) differ in their colours."""
SHAPES = ("●", "▲", "■", "◆", "▼", "★", "◐", "▶")


@dataclass(frozen=True, slots=True)
class OwnerMark:
    """colour: "#RRGGBB". shape: one character."""

    colour: str
    shape: str

    @property
    def rgb(self) -> tuple[int, int, int]:
        number = int(self.colour[1:], 16)
        return number >> 16, number >> 8 & 255, number & 255


NOBODY = OwnerMark("#888888", "○")
# Seven colours and eight shapes have no common divisor: 56 marks, and the next one differs in both.
MARKS = tuple(
    OwnerMark(COLOURS[number % len(COLOURS)], SHAPES[number % len(SHAPES)])
    for number in range(len(COLOURS) * len(SHAPES))
)


def mark_of(owner: str | None) -> OwnerMark:
    """The one its name comes to, decided by the worker identifier alone; who sees others, too, asks `Marks`."""
    return MARKS[_place_of(owner)] if owner else NOBODY


@dataclass(frozen=True, slots=True)
class Marks:
    """Those of the owners that are seen together: made by `marks_among`.

    by_owner: worker identifier -> mark; who is not seen any more comes first, the longest gone before the others.
    """

    by_owner: Mapping[str, OwnerMark] = field(default_factory=dict)

    def of(self, owner: str | None) -> OwnerMark:
        """Of somebody who was never seen: the one the name comes to."""
        return (self.by_owner.get(owner) or mark_of(owner)) if owner else NOBODY


NO_MARKS = Marks()


def marks_among(owners: Iterable[str | None], before: Marks = NO_MARKS) -> Marks:
    """A mark for each of these owners; no two share one while they are at most as many as `MARKS`.

    before: of the look before. Who had a mark then keeps it. Who is not seen any more keeps it, too, since charts and
    lists of events still show it, and since it may come back; only where marks run out, the longest gone gives way.
    """
    visible = sorted({owner for owner in owners if owner})
    names = frozenset(visible)
    room = max(0, len(MARKS) - len(visible))
    gone = [owner for owner in before.by_owner if owner not in names]
    kept = {owner: before.by_owner[owner] for owner in gone[max(0, len(gone) - room) :]}
    taken = set(kept.values())
    found: dict[str, OwnerMark] = {}
    for owner in visible:
        # Two may have shared one while there were too many owners: the second is then a newcomer.
        mark = before.by_owner.get(owner)
        if mark is not None and mark not in taken:
            found[owner] = mark
            taken.add(mark)
    _give(found, [owner for owner in visible if owner not in found], taken)
    return Marks({**kept, **{owner: found[owner] for owner in visible}})


def _give(found: dict[str, OwnerMark], newcomers: Iterable[str], taken: set[OwnerMark]) -> None:
    """First to those whose own mark is free, so that nobody loses it to one that had to move on."""
    moving = []
    for owner in newcomers:
        mark = mark_of(owner)
        if mark in taken:
            moving.append(owner)
        else:
            found[owner] = mark
            taken.add(mark)
    for owner in moving:
        found[owner] = mark = _next_free(owner, taken)
        taken.add(mark)


def _next_free(owner: str, taken: set[OwnerMark]) -> OwnerMark:
    """Where none is free: the one the name comes to."""
    place = _place_of(owner)
    if len(taken) >= len(MARKS):
        return MARKS[place]
    return next(mark for mark in (*MARKS[place:], *MARKS[:place]) if mark not in taken)


def _place_of(owner: str) -> int:
    return zlib.crc32(_SALT + owner.encode("utf-8", "surrogatepass")) % len(MARKS)
