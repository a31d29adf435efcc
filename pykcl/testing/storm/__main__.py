"""`python -m pykcl.testing.storm --seeds 100`: storms over many seeds, and the verdict over all of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import click

from pykcl.testing.storm.effect import Effects
from pykcl.testing.storm.faults import known
from pykcl.testing.storm.report import BEGIN, END, Run, Totals, as_json, as_markdown, as_text, put_into
from pykcl.testing.storm.runner import Job, Pool, SeedResult, load_processor, run_job

GUARANTEES = Path("docs/guarantees.md")
FIXED_COMMIT = "0" * 12
"""Stands for the commit where there is none to ask for."""

_SHOWN_FAILURES = 5
_SAID_EVERY = 15.0


def current_commit() -> str:
    """The commit of the working folder, with a + when files differ from it; FIXED_COMMIT outside of git."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return FIXED_COMMIT
    found = done.stdout.strip()
    return found if done.returncode == 0 and re.fullmatch(r"[0-9a-f]{7,}\+?", found) else FIXED_COMMIT


def first_seed_of(commit: str) -> int:
    """Where the seeds of a commit begin: each has others, so that in time all kinds of storms are seen."""
    return int(commit[:7], 16) * 1000


class Campaign:
    """Many storms, those they are compared with, and what is said meanwhile.

    seeds: in order. template: the job of each of them. until: when to begin no more, monotonic seconds.
    count: how many seeds it is to have.
    """

    def __init__(self, seeds: range, template: Job, commit: str, until: float) -> None:
        self._seeds = deque(seeds)
        self.count = len(seeds)
        self._template, self._commit, self._until = template, commit, until
        self._comparisons: deque[Job] = deque()
        self._began = self._said = time.monotonic()
        self.totals = Totals()
        self.effects = Effects(len(seeds), template.off)
        self.failures = 0

    def next_job(self) -> Job | None:
        # At least one: a run that tried nothing must not pass.
        if time.monotonic() >= self._until and len(self._seeds) < self.count:
            return None
        if self._comparisons:
            return self._comparisons.popleft()
        if not self._seeds:
            return None
        template = self._template
        return Job(self._seeds.popleft(), template.off, template.full, template.processor, template.blind)

    def done(self, result: SeedResult) -> None:
        is_comparison = self.effects.is_comparison(result.job)
        self.totals.add(result, is_comparison=is_comparison)
        if not result.kept:
            self._report(result, result.verdict)
        if is_comparison:
            wrong = self.effects.compare(result)
            if wrong is not None:
                self._report(result, wrong)
        else:
            self._comparisons += self.effects.note(result)
        self._say_progress()

    def _report(self, result: SeedResult, what: str) -> None:
        self.failures += 1
        self._clear_line()
        click.echo(failure_line(result.job, what, self._commit))
        if self.failures <= _SHOWN_FAILURES:
            click.echo("\n".join(f"    {line}" for line in result.details))

    def _say_progress(self) -> None:
        now, totals = time.monotonic(), self.totals
        compared = f", {totals.storms - totals.seeds} compared" if totals.storms > totals.seeds else ""
        line = (
            f"{totals.seeds} of {self.count} seeds{compared}, {self.failures} failures, "
            f"{totals.virtual_seconds / 3600:.1f} virtual hours in {(now - self._began) / 60:.1f} minutes"
        )
        if sys.stderr.isatty():
            click.echo(f"\r{line}\x1b[K", nl=False, err=True)
        elif now - self._said >= _SAID_EVERY:
            self._said = now
            click.echo(line, err=True)

    def _clear_line(self) -> None:
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", nl=False, err=True)

    def end(self) -> float:
        """Real seconds it took."""
        self._clear_line()
        return time.monotonic() - self._began


def failure_line(job: Job, what: str, commit: str) -> str:
    return f"seed={job.seed} commit={commit} {what}; replay: {job.replay}"


def _off(_context: click.Context, _option: click.Parameter, text: str) -> frozenset[str]:
    try:
        return known(name.strip() for name in text.split(",") if name.strip())
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _processor(_context: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    try:
        if name is not None:
            load_processor(name)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return name


@click.command(context_settings={"show_default": True})
@click.option("--seeds", type=click.IntRange(1, 10_000_000), default=100, help="How many storms.")
@click.option(
    "--first", type=click.IntRange(0), default=0, help="The first seed; with --commit, counted from there."
)
@click.option(
    "--seed", type=click.IntRange(0), default=None, help="Replay this one storm, and tell its course."
)
@click.option("--jobs", type=click.IntRange(1, 256), default=None, help="Processes.  [default: one per core]")
@click.option("--processor", callback=_processor, metavar="MODULE:CLASS", help="A processor of yours.")
@click.option("--off", callback=_off, default="", metavar="F1,F6.take", help="Kinds of faults to leave out.")
@click.option(
    "--full", is_flag=True, help="Four workers, eight shards and every kind of fault in every storm."
)
@click.option("--blind", is_flag=True, help="Judge nothing: shows that the judges are what finds a bug.")
@click.option("--figures", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures as JSON.")
@click.option("--write-docs", is_flag=True, help=f"Write the figures of a run that passes into {GUARANTEES}.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="Begin no more storms after that.")
@click.option("--commit", is_flag=True, help="Seeds that follow from the hash of the commit.")
@click.pass_context
def main(
    context: click.Context,
    seeds: int,
    first: int,
    seed: int | None,
    jobs: int | None,
    processor: str | None,
    off: frozenset[str],
    full: bool,
    blind: bool,
    figures: Path | None,
    write_docs: bool,
    minutes: float | None,
    commit: bool,
) -> None:
    """Run fleets of the unmodified worker through simulated storms of faults, and judge every step of them.

    Ends with 0 when all promises were kept, with 1 when one was broken, with 2 when it was called wrongly.
    """
    version = current_commit()
    template = Job(seed or 0, off, full, processor, blind)
    if seed is not None:
        if write_docs or figures or commit or minutes:
            raise click.UsageError(
                "--seed replays one storm: it goes with neither figures, --commit nor --minutes."
            )
        context.exit(_replay(template, version))
    if commit:
        first += first_seed_of(version)
        click.echo(f"commit {version}: seeds {first} to {first + seeds - 1}")
    if write_docs:
        _must_hold_figures()
    until = time.monotonic() + minutes * 60 if minutes else float("inf")
    processes = min(jobs or _cores(), seeds)
    campaign = Campaign(range(first, first + seeds), template, version, until)
    with Pool(processes) as pool:
        pool.run(campaign.next_job, campaign.done)
    totals = campaign.totals
    run = Run(
        version, first, first + totals.seeds - 1, full, processes, campaign.end(), totals, campaign.effects
    )
    context.exit(_conclude(run, campaign, figures, write_docs))


def _conclude(run: Run, campaign: Campaign, figures: Path | None, write_docs: bool) -> int:
    click.echo(f"\n{as_text(run)}")
    missing = run.effects.not_exercised()
    for reason, names in missing.items():
        click.echo(f"not exercised, {reason}: {', '.join(names)}")
    if figures is not None:
        figures.write_text(json.dumps(as_json(run), indent=2) + "\n", "utf-8")
    failure = _failure(run, campaign)
    if failure is not None:
        click.echo(f"FAIL: {failure}")
        return 1
    if write_docs:
        put_into(GUARANTEES, as_markdown(run))
    if run.totals.seeds < campaign.count:
        click.echo(
            f"PASS, CUT SHORT: the time was over after {run.totals.seeds} of {campaign.count} seeds; "
            "of the others nothing is known"
        )
    else:
        click.echo(f"PASS: {run.totals.seeds} seeds, every promise kept")
    return 0


def _failure(run: Run, campaign: Campaign) -> str | None:
    totals = run.totals
    if campaign.failures:
        return f"{campaign.failures} of {totals.storms} storms broke a promise"
    if totals.seeds == totals.broken:
        return "no storm came to its end: nothing is shown. Do: give it more time"
    if run.effects.fails_the_run:
        missing = sum(map(len, run.effects.not_exercised().values()))
        return f"{missing} kinds of faults were not exercised in {totals.seeds} storms"
    return None


def _cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _must_hold_figures() -> None:
    """Told before the storms, not after an hour of them."""
    try:
        text = GUARANTEES.read_text("utf-8")
    except OSError as error:
        raise click.UsageError(f"--write-docs: {error}. Run it from the root of the repository.") from error
    if BEGIN not in text or END not in text:
        raise click.UsageError(f"--write-docs: {GUARANTEES} has no {BEGIN} and {END}.")


def _replay(job: Job, commit: str) -> int:
    result = run_job(job)
    click.echo(
        f"seed {job.seed}: digest {result.digest or '-'}, {result.virtual_seconds:.0f} virtual seconds "
        f"in {result.cpu_seconds:.1f} s"
    )
    if result.kept:
        click.echo("kept: every promise")
        return 0
    click.echo(failure_line(job, result.verdict, commit))
    click.echo("\n".join(f"    {line}" for line in result.details))
    return 1


if __name__ == "__main__":
    main()
