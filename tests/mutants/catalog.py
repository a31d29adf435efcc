"""All mutants, and one simulation over a mutant, in which a checker is to name a guarantee that it breaks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

from pykcl.testing.simulation import GuaranteeBroken, Outcome
from tests.mutants.mutant import Mutant, Patch
from tests.mutants.of_acks import ACKS
from tests.mutants.of_fleets import FLEETS
from tests.mutants.of_leases import BELIEF
from tests.mutants.of_native import NATIVE
from tests.mutants.of_policies import POLICIES
from tests.mutants.of_reading import READING
from tests.mutants.of_rows import ROWS
from tests.simulation.course import run_simulation


def _number(mutant: Mutant) -> tuple[str, int, str]:
    digits = "".join(character for character in mutant.name if character.isdigit())
    return mutant.name[0], int(digits), mutant.name


MUTANTS = {
    mutant.name: mutant
    for mutant in sorted((*ROWS, *BELIEF, *READING, *FLEETS, *POLICIES, *NATIVE, *ACKS), key=_number)
}


@dataclass(frozen=True, slots=True)
class MutantRun:
    """One simulation over a mutant. called: calls of each replaced function. guarantee: the one that caught it, or None.

    result: "caught"; "kept" every guarantee; "another guarantee" broke than those the mutant may break; "crashed": the
    simulation died of something else than a broken guarantee; "no evidence": the sound worker breaks one there, too.
    """

    result: str
    called: Counter[str]
    guarantee: str | None = None
    details: str = ""


def run_mutant(mutant: Mutant, seed: int, *, blind: bool = False) -> MutantRun:
    """One simulation. Raises NothingToPatch where the mutant no longer fits the code."""
    with Patch() as patch:
        mutant.apply(patch)
        try:
            outcome = run_simulation(
                seed,
                off=mutant.off,
                full=mutant.full,
                blind=blind,
                policies=mutant.policies,
                native=mutant.native,
                acks=mutant.acks,
            )
        except Exception as error:  # noqa: BLE001 - whatever it died of, the mutants goes on
            return MutantRun("crashed", patch.called, details=f"{type(error).__name__}: {error}")
    result, details = _check(mutant, outcome)
    kind = {"policies": mutant.policies, "native": mutant.native, "acks": mutant.acks}
    if result == "caught" and not _is_survived(seed, mutant.off, mutant.full, **kind):
        result = "no evidence"
    guarantee = outcome.broken.guarantee.name if result == "caught" else None
    return MutantRun(result, patch.called, guarantee, details)


def _check(mutant: Mutant, outcome: Outcome) -> tuple[str, str]:
    broken = outcome.broken
    if broken is None:
        return "kept", ""
    if not isinstance(broken, GuaranteeBroken):
        return "crashed", outcome.summary
    return "caught" if broken.guarantee in mutant.caught_by else "another guarantee", outcome.summary


@cache
def _is_survived(
    seed: int, off: frozenset[str], full: bool, *, policies: bool, native: bool, acks: bool
) -> bool:
    """Whether the sound worker comes through this simulation: only then a broken guarantee is the mutant's doing."""
    try:
        outcome = run_simulation(seed, off=off, full=full, policies=policies, native=native, acks=acks)
        return outcome.broken is None
    except Exception:  # noqa: BLE001 - a simulation that dies by itself shows nothing about an mutant
        return False
