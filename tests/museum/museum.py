"""All exhibits, and how one is looked for: storms with the bug in, until a judge names a promise that it broke."""

from __future__ import annotations

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


def storm_with(exhibit: Exhibit, seed: int, *, blind: bool = False) -> tuple[Outcome, Patch]:
    """One storm over the broken worker; the patch tells what of it was called."""
    with Patch() as patch:
        exhibit.put_in(patch)
        return run_storm(seed, blind=blind), patch


@cache
def keeps_every_promise(seed: int) -> bool:
    """Whether the sound worker comes through this storm: only then a broken promise is the exhibit's doing."""
    return run_storm(seed).broken is None


def promise_broken_by(exhibit: Exhibit, outcome: Outcome) -> str | None:
    """The name of the promise for which a judge caught the exhibit in this storm, if one did."""
    broken = outcome.broken
    if not isinstance(broken, PromiseBroken) or broken.promise not in exhibit.caught_by:
        return None
    return broken.promise.name if keeps_every_promise(outcome.seed) else None


def broken_promise(exhibit: Exhibit, seed: int, *, blind: bool = False) -> str | None:
    """As `promise_broken_by`, of the storm of this seed."""
    return promise_broken_by(exhibit, storm_with(exhibit, seed, blind=blind)[0])
