"""`python -m pykcl.testing.simulation --seeds 100`: run simulations, with a processor of yours or without."""

from __future__ import annotations

import click

from pykcl.testing.simulation.faults import known
from pykcl.testing.simulation.runner import Campaign, Job, cores, failure_line, load_processor, run_job


def parse_off(_context: click.Context, _option: click.Parameter, text: str) -> frozenset[str]:
    try:
        return known(name.strip() for name in text.split(",") if name.strip())
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
@click.option("--first", type=click.IntRange(0), default=0, help="The first seed.")
@click.option(
    "--seed", type=click.IntRange(0), default=None, help="Run this one simulation, and print its events."
)
@click.option("--jobs", type=click.IntRange(1, 256), default=None, help="Processes.  [default: one per core]")
@click.option("--processor", callback=_parse_processor, metavar="MODULE:CLASS", help="A processor of yours.")
@click.option(
    "--off", callback=parse_off, default="", metavar="F1,F6.take", help="Kinds of faults to leave out."
)
@click.option(
    "--full", is_flag=True, help="Four workers, eight shards and every kind of fault with every seed."
)
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
) -> None:
    """Run fleets of the unmodified worker through simulated faults, and check every step of them.

    Exit with 0 when every guarantee was kept, with 1 when one was broken, with 2 for a wrong call.
    """
    template = Job(seed or 0, off, full, processor)
    if seed is not None:
        context.exit(_replay(template))
    campaign = Campaign(range(first, first + seeds), template)
    campaign.run(min(jobs or cores(), seeds))
    if campaign.failures:
        click.echo(f"FAIL: {campaign.failures} of {seeds} simulations broke a guarantee")
        context.exit(1)
    click.echo(
        f"PASS: {seeds} seeds, every guarantee kept in {campaign.virtual_seconds / 3600:.1f} simulated hours"
    )


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


if __name__ == "__main__":
    main()
