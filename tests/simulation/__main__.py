"""`python -m tests.simulation --commit --seeds 400`: simulations over many seeds, what each kind of fault changed in
them, and their figures, for docs/concepts/guarantees.md too; `--seed 3` runs one again."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import click

from pykcl.testing.simulation.faults import known
from tests.simulation.course import Mode
from tests.simulation.effects import MANY_SEEDS, Effects
from tests.simulation.faults import (
    IN_NATIVE_FLEETS,
    KINDS,
    NOT_IN_NATIVE_FLEETS,
    NOT_UNTIL,
    NOT_WITH_ACKS,
    OF_PRODUCERS,
    PRODUCED,
    AckFaults,
    PolicyFaults,
)
from tests.simulation.report import BEGIN, END, Run, Totals, as_json, as_markdown, as_text, put_into
from tests.simulation.runner import (
    CHOSEN_BY_SEED,
    EVERY_SIXTH,
    EVERY_TWELFTH,
    Campaign,
    Job,
    SeedResult,
    cores,
    failure_line,
    load_processor,
    run_job,
)
from tests.simulation.seeds import current_commit, first_seed_of

GUARANTEES = Path("docs/concepts/guarantees.md")


class MeasuredCampaign(Campaign):
    """Simulations whose figures are added up, and those without one kind of fault that they are compared with.

    until: when to start no more, in monotonic seconds.
    """

    def __init__(self, seeds: range, template: Job, until: float) -> None:
        super().__init__(seeds, template)
        self._until = until
        self._comparisons: deque[Job] = deque()
        self.totals = Totals()
        kinds = PRODUCED if template.only is Mode.PRODUCED else KINDS
        self.effects = Effects(len(seeds), template.off | _absent(template, len(seeds)), kinds)

    def next_job(self) -> Job | None:
        # At least one: a run that tried nothing must not pass.
        if time.monotonic() >= self._until and len(self._seeds) < self.count:
            return None
        return self._comparisons.popleft() if self._comparisons else super().next_job()

    def done(self, result: SeedResult) -> None:
        is_comparison = self.effects.is_comparison(result.job)
        self.totals.add(result, is_comparison=is_comparison)
        if is_comparison:
            wrong = self.effects.compare(result)
            if wrong is not None:
                self.report(result, wrong)
        else:
            self._comparisons += self.effects.note(result)
        super().done(result)

    def show_progress(self, done: str) -> None:
        totals = self.totals
        compared = (
            f", {totals.simulations - totals.seeds} compared" if totals.simulations > totals.seeds else ""
        )
        super().show_progress(f"{totals.seeds} of {self.count} seeds{compared}")


def _absent(template: Job, seeds: int) -> frozenset[str]:
    """Return the kinds of faults that none of the simulations can have, or too few of them to show anything."""
    if template.only is Mode.PRODUCED:
        return frozenset()

    def can_have(mode: Mode, every: int) -> bool:
        if template.only is not None or template.processor is not None:
            return template.only is mode
        return mode in template.modes and seeds >= every * MANY_SEEDS

    absent: set[str] = set()
    absent |= PolicyFaults.always if not can_have(Mode.POLICIES, 0) else set()
    absent |= IN_NATIVE_FLEETS if not can_have(Mode.NATIVE, EVERY_SIXTH) else set()
    absent |= AckFaults.always if not can_have(Mode.ACKS, EVERY_TWELFTH) else set()
    if template.only is Mode.ACKS:
        absent |= NOT_WITH_ACKS
    elif template.only is Mode.NATIVE:
        # The lease table of a native fleet is there before its first pykcl worker, which never creates it.
        absent |= NOT_IN_NATIVE_FLEETS | {"F18.creating"}
    elif template.only is Mode.PUSHED:
        absent |= {"F10.empty", "F10.refused"}
    elif template.only is Mode.UNTIL:
        absent |= NOT_UNTIL
    return frozenset(absent)


def modes_left(said: Mapping[Mode, bool | None], processor: str | None) -> frozenset[Mode]:
    """Return the modes that the command line leaves to choose from. said: None, or False of a flag, is nothing."""
    wanted = [mode for mode, is_wanted in said.items() if is_wanted]
    names = [f"--{mode.value}" for mode in wanted] + ["--processor"] * (processor is not None)
    if len(names) > 1:
        raise click.UsageError(f"{' and '.join(names)} do not go together. Do: leave out all but one.")
    return frozenset(wanted) or CHOSEN_BY_SEED - {
        mode for mode, is_wanted in said.items() if is_wanted is False
    }


def _parse_off(_context: click.Context, _option: click.Parameter, text: str) -> frozenset[str]:
    try:
        return known((name.strip() for name in text.split(",") if name.strip()), {**KINDS, **OF_PRODUCERS})
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _parse_processor(_context: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    try:
        if name is not None:
            load_processor(name)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return name


@click.command(context_settings={"show_default": True})
@click.option("--seeds", type=click.IntRange(1, 10_000_000), default=100, help="Number of simulations.")
@click.option(
    "--first", type=click.IntRange(0), default=0, help="The first seed; with --commit, counted from there."
)
@click.option(
    "--seed", type=click.IntRange(0), default=None, help="Run this one simulation, and print its events."
)
@click.option(
    "--processor", callback=_parse_processor, metavar="MODULE:CLASS", help="A processor for all of them."
)
@click.option("--commit", is_flag=True, help="Seeds that follow from the hash of the commit.")
@click.option("--jobs", type=click.IntRange(1, 256), default=None, help="Processes.  [default: one per core]")
@click.option(
    "--off", callback=_parse_off, default="", metavar="F1,F6.take", help="Kinds of faults to leave out."
)
@click.option(
    "--full", is_flag=True, help="Four workers, eight shards and every kind of fault with every seed."
)
@click.option(
    "--policies/--no-policies",
    default=None,
    help="Workers give records up: in every simulation, or in none.  [default: in every fourth]",
)
@click.option(
    "--native/--no-native",
    default=None,
    help="Fleets of KCL 3.x in its own mode: in every simulation, or in none.  [default: in every sixth]",
)
@click.option(
    "--acks/--no-acks",
    default=None,
    help="Records are settled one by one: in every simulation, or in none.  [default: in every twelfth]",
)
@click.option("--pushed", is_flag=True, help="Records are read by enhanced fan-out, in every simulation.")
@click.option("--produced", is_flag=True, help="Producers put records, in every simulation.")
@click.option("--until", is_flag=True, help="The run ends by itself at a time, in every simulation.")
@click.option(
    "--minutes", type=click.FloatRange(0, min_open=True), help="Start no more simulations after that."
)
@click.option("--figures", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures as JSON.")
@click.option("--write-docs", is_flag=True, help=f"Write the figures of a run that passes into {GUARANTEES}.")
@click.pass_context
def main(
    context: click.Context,
    seeds: int,
    first: int,
    seed: int | None,
    processor: str | None,
    commit: bool,
    jobs: int | None,
    off: frozenset[str],
    full: bool,
    policies: bool | None,
    native: bool | None,
    acks: bool | None,
    pushed: bool,
    produced: bool,
    until: bool,
    minutes: float | None,
    figures: Path | None,
    write_docs: bool,
) -> None:
    """Run fleets of the unmodified worker through simulated faults, and check every step of them.

    Exit with 0 when every guarantee was kept and every kind of fault had an effect, with 1 otherwise.
    """
    said = {
        Mode.POLICIES: policies,
        Mode.NATIVE: native,
        Mode.ACKS: acks,
        Mode.PUSHED: pushed,
        Mode.PRODUCED: produced,
        Mode.UNTIL: until,
    }
    template = Job(seed or 0, off, full, processor, modes_left(said, processor))
    if seed is not None:
        context.exit(_replay(template))
    version = current_commit()
    if commit:
        first += first_seed_of(version)
    click.echo(f"commit {version}: seeds {first} to {first + seeds - 1}")
    if write_docs:
        _must_hold_figures()
    latest = time.monotonic() + minutes * 60 if minutes else float("inf")
    processes = min(jobs or cores(), seeds)
    campaign = MeasuredCampaign(range(first, first + seeds), template, latest)
    took = campaign.run(processes)
    totals = campaign.totals
    run = Run(version, first, first + totals.seeds - 1, full, processes, took, totals, campaign.effects)
    context.exit(conclude(run, campaign, figures, write_docs))


def _replay(job: Job) -> int:
    result = run_job(job)
    click.echo(
        f"seed {job.seed}: digest {result.digest or '-'}, {result.virtual_seconds:.0f} simulated seconds "
        f"in {result.cpu_seconds:.1f} s"
    )
    if result.kept:
        click.echo("kept: every guarantee")
        return 0
    click.echo(failure_line(job, result.summary))
    click.echo("\n".join(f"    {line}" for line in result.details))
    return 1


def conclude(run: Run, campaign: MeasuredCampaign, figures: Path | None, write_docs: bool) -> int:
    """Print and write the figures; return the exit code."""
    click.echo(f"\n{as_text(run)}")
    for reason, names in run.effects.not_exercised().items():
        click.echo(f"not exercised, {reason}: {', '.join(names)}")
    if figures is not None:
        figures.write_text(json.dumps(as_json(run), indent=2) + "\n", "utf-8")
    failure = _failure(run, campaign)
    if failure is not None:
        click.echo(f"FAIL: {failure}")
        return 1
    if write_docs:
        never = [name for name in KINDS if not run.effects.injected[name]]
        if never:
            click.echo(
                f"FAIL: the page shows each kind, and {', '.join(never)} did not happen. Do: more seeds"
            )
            return 1
        put_into(GUARANTEES, as_markdown(run))
    if run.totals.seeds < campaign.count:
        click.echo(
            f"PASS, CUT SHORT: the time was over after {run.totals.seeds} of {campaign.count} seeds; "
            "of the others nothing is known"
        )
    else:
        click.echo(f"PASS: {run.totals.seeds} seeds, every guarantee kept")
    return 0


def _failure(run: Run, campaign: MeasuredCampaign) -> str | None:
    totals = run.totals
    if campaign.failures:
        return f"{campaign.failures} of {totals.simulations} simulations broke a guarantee"
    if totals.seeds == totals.broken:
        return "no simulation came to its end: nothing is shown. Do: give it more time"
    if run.effects.fails_the_run:
        missing = sum(map(len, run.effects.not_exercised().values()))
        return f"{missing} kinds of faults were not exercised in {totals.seeds} simulations"
    return None


def _must_hold_figures() -> None:
    """Refuse before the simulations, not after an hour of them."""
    try:
        text = GUARANTEES.read_text("utf-8")
    except OSError as error:
        raise click.UsageError(f"--write-docs: {error}. Run it from the root of the repository.") from error
    if BEGIN not in text or END not in text:
        raise click.UsageError(f"--write-docs: {GUARANTEES} has no {BEGIN} and {END}.")


if __name__ == "__main__":
    main()
