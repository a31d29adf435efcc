"""All exhibits, and how one is looked for: storms with the bug in, until a judge names a promise that it broke."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

from exhibits_of_belief import BELIEF
from exhibits_of_fleets import FLEETS
from exhibits_of_reading import READING
from exhibits_of_rows import ROWS
from museum_exhibit import Exhibit, Patch

from pykcl.testing.storm import Outcome, PromiseBroken, run_storm


def _number(exhibit: Exhibit) -> tuple[str, int, str]:
    digits = "".join(character for character in exhibit.name if character.isdigit())
    return exhibit.name[0], int(digits), exhibit.name


EXHIBITS = {exhibit.name: exhibit for exhibit in sorted((*ROWS, *BELIEF, *READING, *FLEETS), key=_number)}


@dataclass(frozen=True, slots=True)
class Showing:
    """One storm over the broken worker. called: how often what the patch put there. promise: that caught it, if one did.

    verdict: "caught"; "kept" every promise; "another promise" broke than those the exhibit may be found under; "crashed":
    the storm died of something else than a judge's word, which is no judge's merit; "no evidence": the sound worker does
    not survive this storm either.
    """

    verdict: str
    called: Counter[str]
    promise: str | None = None
    details: str = ""


def show(exhibit: Exhibit, seed: int, *, blind: bool = False) -> Showing:
    """One storm. Raises NothingToPatch where the exhibit no longer fits the code."""
    with Patch() as patch:
        exhibit.put_in(patch)
        try:
            outcome = run_storm(seed, off=exhibit.off, full=exhibit.full, blind=blind)
        except Exception as error:  # noqa: BLE001 - whatever it died of, the museum goes on
            return Showing("crashed", patch.called, details=f"{type(error).__name__}: {error}")
    verdict, details = _judge(exhibit, outcome)
    if verdict == "caught" and not _is_survived(seed, exhibit.off, exhibit.full):
        verdict = "no evidence"
    promise = outcome.broken.promise.name if verdict == "caught" else None
    return Showing(verdict, patch.called, promise, details)


def _judge(exhibit: Exhibit, outcome: Outcome) -> tuple[str, str]:
    broken = outcome.broken
    if broken is None:
        return "kept", ""
    if not isinstance(broken, PromiseBroken):
        return "crashed", outcome.verdict
    return "caught" if broken.promise in exhibit.caught_by else "another promise", outcome.verdict


@cache
def _is_survived(seed: int, off: frozenset[str], full: bool) -> bool:
    """Whether the sound worker comes through this storm: only then a broken promise is the exhibit's doing."""
    try:
        return run_storm(seed, off=off, full=full).broken is None
    except Exception:  # noqa: BLE001 - a storm that dies by itself shows nothing about an exhibit
        return False
