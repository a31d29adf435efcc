"""`python -m tests.mutants`: put each known bug into the code, and count the simulations it takes to catch it.

What no simulation comes by has tests that must fail instead.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import Any

import click

from tests.mutants.catalog import MUTANTS, MutantRun, run_mutant, run_tests
from tests.mutants.mutant import NoSuchTest, NothingToPatch

KNOWN = Path(__file__).parent / "known_seeds.json"
PROCESSES = 2
_STARTS = (0, 1000, 2000)
_SECONDS_EACH = 40.0
_MOST_KNOWN = 2

Known = dict[str, dict[str, str]]
"""By mutant: seeds that once caught it, and the guarantee it broke."""


@dataclass
class Found:
    """What was found of one mutant. tries: seeds until caught, from each starting point. caught: seed -> guarantee.

    tests: those that caught it, of a mutant that has tests instead of simulations. cut_short: seeds tried in vain from the last starting point, when time or seeds ran out there. results: of all simulations.
    called: how often what was put into the worker. trouble: why it could not be shown at all.
    """

    name: str
    tries: list[int] = field(default_factory=list)
    caught: dict[int, str] = field(default_factory=dict)
    tests: str = ""
    cut_short: int = 0
    results: Counter[str] = field(default_factory=Counter)
    called: Counter[str] = field(default_factory=Counter)
    last_crash: str = ""
    trouble: str = ""

    @property
    def is_caught(self) -> bool:
        return bool(self.caught or self.tests) and not self.trouble

    @property
    def why_not(self) -> str:
        """What its simulations, or its tests, came to instead."""
        counts = ", ".join(f"{count} {result}" for result, count in sorted(self.results.items()))
        crash = f"; the last crash: {self.last_crash}" if self.last_crash else ""
        runs = "runs of its tests" if MUTANTS[self.name].tests else "simulations"
        return self.trouble or f"of its {runs} {counts}{crash}"

    def try_one(self, seed: int, blind: bool) -> bool:
        """One simulation; whether it caught the mutant."""
        run = run_mutant(MUTANTS[self.name], seed, blind=blind)
        self._count(run, f"seed {seed}: ")
        if run.guarantee is not None:
            self.caught[seed] = run.guarantee
        return run.guarantee is not None

    def try_tests(self) -> None:
        run = run_tests(MUTANTS[self.name])
        self._count(run)
        self.tests = run.guarantee or ""

    def _count(self, run: MutantRun, place: str = "") -> None:
        self.results[run.result] += 1
        self.called.update(run.called)
        if run.result == "crashed":
            self.last_crash = place + run.details

    @property
    def seeds(self) -> str:
        """The median, counting a search that was cut short for more than it tried; "-" for tests."""
        if MUTANTS[self.name].tests:
            return "-"
        if not self.tries:
            return f"> {self.cut_short}"
        middle = median_low([*self.tries, self.cut_short]) if self.cut_short else median_low(self.tries)
        return str(middle)

    @property
    def guarantees(self) -> str:
        return self.tests or ", ".join(sorted(set(self.caught.values()))) or "nothing"


def search(name: str, known: Sequence[int], most: int, seconds: float, blind: bool) -> Found:
    """Simulations from each starting point on; then, for what is seldom caught, those that once caught it."""
    found = Found(name)
    try:
        if MUTANTS[name].tests:
            found.try_tests()
        else:
            _search(found, known, most, time.monotonic() + seconds, blind)
    except (NothingToPatch, NoSuchTest) as error:
        found.trouble = str(error)
    uncalled = sorted(place for place, count in found.called.items() if not count)
    if uncalled and set(found.results) != {"crashed"}:
        found.trouble = f"put into the code, but never called: {', '.join(uncalled)}"
    return found


def _search(found: Found, known: Sequence[int], most: int, until: float, blind: bool) -> None:
    for start in _STARTS:
        if not _search_from(found, start, most, until, blind):
            break
    for seed in known if not found.caught else ():
        found.try_one(seed, blind)


def _search_from(found: Found, start: int, most: int, until: float, blind: bool) -> bool:
    for tried in range(1, most + 1):
        if time.monotonic() > until:
            found.cut_short = tried - 1
            return False
        if found.try_one(start + tried - 1, blind):
            found.tries.append(tried)
            return True
    found.cut_short = most
    return False


def table(results: dict[str, Found]) -> list[str]:
    """In Markdown, as in docs/about/verification.md."""
    lines = ["| mutant | what | seen in | caught by | seeds (median) |", "|---|---|---|---|---|"]
    for name, mutant in MUTANTS.items():
        if name in results:
            found, kind = results[name], " ¹" if mutant.full else ""
            lines.append(
                f"| {name} | {mutant.what} | {mutant.seen_in} | {found.guarantees} | {found.seeds}{kind} |"
            )
    return lines


def known_seeds() -> Known:
    return json.loads(KNOWN.read_text("utf-8")) if KNOWN.exists() else {}


def _all(names: Sequence[str], most: int, seconds: float, blind: bool) -> Iterator[Found]:
    known = known_seeds()
    with ProcessPoolExecutor(
        PROCESSES, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    ) as pool:
        futures: list[Future[Any]] = [
            pool.submit(search, name, [int(seed) for seed in known.get(name, {})], most, seconds, blind)
            for name in names
        ]
        for future in as_completed(futures):
            yield future.result()


@click.command()
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="Simulations tried from each start.",
)
@click.option("--seconds", type=click.FloatRange(0.1), default=_SECONDS_EACH, show_default=True,
              help="Time for each mutant.")  # fmt: skip
@click.option("--only", multiple=True, metavar="NAME", help="Such as B8; may be given several times.")
@click.option("--blind", is_flag=True, help="Let no checker judge. The command must then fail.")
@click.option("--relearn", is_flag=True, help="Write the seeds that caught something to known_seeds.json.")
def main(seeds: int, seconds: float, only: tuple[str, ...], blind: bool, relearn: bool) -> None:
    """Exit 0 when every mutant is caught, 1 when one is not."""
    unknown = sorted(set(only) - MUTANTS.keys())
    if unknown or (blind and relearn):
        raise click.UsageError(f"no mutant {unknown}" if unknown else "--blind catches nothing to learn from")
    # No checker judges the others.
    names = [name for name in only or MUTANTS if not (blind and MUTANTS[name].tests)]
    if not names:
        raise click.UsageError(f"{', '.join(only)}: caught by tests, without a checker to turn off")
    if blind:
        # Nothing is going to be caught: a few simulations of each show it as well as many.
        seeds = min(seeds, 2)
    results: dict[str, Found] = {}
    for found in _all(names, seeds, seconds, blind):
        results[found.name] = found
        click.echo(
            f"{len(results):3} of {len(names)}  {found.name}: {found.guarantees}, {found.seeds} seeds",
            err=True,
        )
    click.echo("\n".join(table(results)))
    missed = [name for name in names if not results[name].is_caught]
    if relearn:
        KNOWN.write_text(json.dumps(learned(known_seeds(), results), indent=1) + "\n", "utf-8")
    if missed:
        click.echo(f"\nnot caught: {len(missed)} of {len(names)}: {', '.join(missed)}")
        click.echo("\n".join(f"  {name}: {results[name].why_not}" for name in missed))
    if blind:
        click.echo("The checkers were off: they, and nothing else, are what catches a broken worker.")
    if not missed:
        click.echo(f"\nall {len(names)} caught")
    sys.exit(1 if missed else 0)


def learned(known: Known, results: dict[str, Found]) -> Known:
    """Every mutant that simulations are to catch, and no other. What was not caught has no seeds, also when it once was."""
    for name, found in results.items():
        caught = found.caught if found.is_caught else {}
        known = {
            **known,
            name: {str(seed): guarantee for seed, guarantee in list(caught.items())[:_MOST_KNOWN]},
        }
    return {name: known.get(name, {}) for name, mutant in MUTANTS.items() if not mutant.tests}


if __name__ == "__main__":
    main()
