"""All mutants, and one run of a mutant: a simulation, in which a checker is to name a guarantee that it breaks, or tests."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context

import pytest

from pykcl.testing.simulation import GuaranteeBroken, Outcome
from tests.mutants.mutant import Mutant, NoSuchTest, Patch
from tests.mutants.of_acks import ACKS
from tests.mutants.of_fleets import FLEETS
from tests.mutants.of_input import INPUT
from tests.mutants.of_leases import BELIEF
from tests.mutants.of_native import NATIVE
from tests.mutants.of_pauses import PAUSES
from tests.mutants.of_policies import POLICIES
from tests.mutants.of_producers import PRODUCERS
from tests.mutants.of_pushes import PUSHES
from tests.mutants.of_reading import READING
from tests.mutants.of_rows import ROWS
from tests.mutants.of_runs import RUNS
from tests.simulation.course import Mode, run_simulation


def _number(mutant: Mutant) -> tuple[str, int, str]:
    digits = "".join(character for character in mutant.name if character.isdigit())
    return mutant.name[0], int(digits), mutant.name


MUTANTS = {
    mutant.name: mutant
    for mutant in sorted(
        (
            *ROWS,
            *BELIEF,
            *READING,
            *FLEETS,
            *POLICIES,
            *NATIVE,
            *ACKS,
            *INPUT,
            *PUSHES,
            *PRODUCERS,
            *RUNS,
            *PAUSES,
        ),
        key=_number,
    )
}


@dataclass(frozen=True, slots=True)
class MutantRun:
    """One run of a mutant. called: calls of each replaced function. guarantee: the one that caught it, or None.

    result: "caught"; "kept" every guarantee; "another guarantee" broke than those the mutant may break; "crashed": the
    simulation died of something else than a broken guarantee; "no evidence": the sound worker breaks one there, too.
    Of tests: guarantee has the names of those that failed by an assertion of their own; "kept": some passed; "crashed":
    some failed of something else; "no evidence": some do not pass without the mutant.
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
                mode=mutant.mode,
            )
        except Exception as error:  # noqa: BLE001 - whatever it died of, the mutants goes on
            return MutantRun("crashed", patch.called, details=f"{type(error).__name__}: {error}")
    result, details = _check(mutant, outcome)
    if result == "caught" and not _is_survived(seed, mutant.off, mutant.full, mutant.mode):
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
def _is_survived(seed: int, off: frozenset[str], full: bool, mode: Mode) -> bool:
    """Whether the sound worker comes through this simulation: only then a broken guarantee is the mutant's doing."""
    try:
        outcome = run_simulation(seed, off=off, full=full, mode=mode)
        return outcome.broken is None
    except Exception:  # noqa: BLE001 - a simulation that dies by itself shows nothing about a mutant
        return False


# -- tests -----------------------------------------------------------------------------------------------------


_OPTIONS = (
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore:Module already imported:pytest.PytestAssertRewriteWarning",
)
"""pykcl has a plugin of pytest, and is imported when a mutant is put into it."""


def run_tests(mutant: Mutant) -> MutantRun:
    """The tests of a mutant, without it and with it. Raises NothingToPatch and NoSuchTest.

    In a process of their own, since pytest is not made to run within pytest.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_without_and_with, mutant).result()


def _without_and_with(mutant: Mutant) -> MutantRun:
    sound = _run_pytest(mutant.tests)
    with Patch() as patch:
        mutant.apply(patch)
        broken = _run_pytest(mutant.tests)
    caught = [name for name, results in broken.items() if "asserted" in results]
    if any(results != {"passed"} for results in sound.values()):
        return MutantRun("no evidence", patch.called, details=str(sound))
    if len(caught) == len(mutant.tests):
        return MutantRun("caught", patch.called, ", ".join(name.rpartition("::")[2] for name in caught))
    others = set().union(*broken.values()) - {"asserted", "passed"}
    return MutantRun("crashed" if others else "kept", patch.called, details=", ".join(sorted(others)))


def _run_pytest(tests: Sequence[str]) -> dict[str, set[str]]:
    """The results of all cases of each test: "passed", "asserted" or an error. Raises NoSuchTest."""
    results = _Results()
    output = io.StringIO()
    with redirect_stdout(output):
        code = pytest.main([*_OPTIONS, *tests], plugins=[results])
    found = {
        name: {
            result for case, result in results.cases.items() if case == name or case.startswith(f"{name}[")
        }
        for name in tests
    }
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not all(found.values()):
        raise NoSuchTest(f"pytest cannot run {' '.join(tests)} ({code!r}): {output.getvalue()[-1000:]}")
    return found


class _Results:
    """A plugin of pytest. cases: by name of the case, its result."""

    def __init__(self) -> None:
        self.cases: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.excinfo is None:
            if call.when == "call":
                self.cases[item.nodeid] = "passed"
            return
        error, place = call.excinfo.value, call.excinfo.traceback[-1].path
        is_own = call.when == "call" and isinstance(error, AssertionError) and place == item.path
        self.cases[item.nodeid] = "asserted" if is_own else f"{type(error).__name__}: {error}"
