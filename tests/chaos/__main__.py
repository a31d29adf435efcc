"""`python tests/chaos --minutes 5 --seed 3`: real processes under fire, and the verdict over them."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

sys.path.append(str(Path(__file__).parents[1] / "fleet"))

from chaos_breaks import BREAKS
from chaos_checks import Check, all_checks
from chaos_processes import Settings
from chaos_report import figure_lines, table
from chaos_run import Run
from chaos_schedule import schedule
from fleet_evidence import load

LONG = 3.0
"""Minutes from which on everything must have happened: a check that examined nothing fails the run."""


@click.command()
@click.option("--minutes", type=click.FloatRange(0.1, 600), default=5.0, show_default=True)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Of the schedule, the records and the faults."
)
@click.option("--workers", type=click.IntRange(2, 16), default=3, show_default=True)
@click.option(
    "--shards", type=click.Choice(["2", "4", "8"]), default="8", show_default=True, help="At the start."
)
@click.option(
    "--rate", type=click.IntRange(1, 5000), default=120, show_default=True, help="User records per second."
)
@click.option("--failover-time", type=click.FloatRange(1), default=4.0, show_default=True, help="Seconds.")
@click.option("--break", "break_", type=click.Choice(sorted(BREAKS)), help="Run a wrong build; it must fail.")
@click.option("--keep", is_flag=True, help="Keep the files of a run that passed, too.")
@click.option(
    "--judge",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Judge the files of an earlier run.",
)
def main(
    minutes: float,
    seed: int,
    workers: int,
    shards: str,
    rate: int,
    failover_time: float,
    break_: str | None,
    keep: bool,
    judge: Path | None,
) -> None:
    """Kill, freeze, stop and starve real workers on a local AWS; then check that they kept every promise."""
    if judge is not None:
        sys.exit(0 if _judge(judge, long=True) else 1)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    folder = Path(tempfile.mkdtemp(prefix="pykcl-chaos-"))
    settings = Settings(folder, failover_time, int(shards), break_ or "")
    print(
        f"seed {seed}, {minutes:g} minutes, {workers} workers, {shards} shards; files in {folder}", flush=True
    )
    try:
        with Run(settings, seed=seed, workers=workers, rate=rate, say=_say) as run:
            run.wait_for_fleet()
            for step in schedule(seed):
                if run.seconds >= minutes * 60:
                    break
                run.do(step)
            run.finish()
        passed = _judge(folder, long=minutes >= LONG)
    except KeyboardInterrupt:
        print(f"interrupted; every process was ended; files in {folder}")
        sys.exit(130)
    if passed and not keep:
        shutil.rmtree(folder)
    elif not passed:
        print(f"files: {folder}")
        print(f"seed {seed}: replay with {_command(sys.argv[1:])}")
    sys.exit(0 if passed else 1)


def _say(line: str) -> None:
    print(line, flush=True)


def _judge(folder: Path, *, long: bool) -> bool:
    evidence = load(folder)
    checks = all_checks(evidence)
    print(f"\n{figure_lines(evidence)}\n\n{table(checks)}\n")
    failures = failed(checks, long=long)
    print("PASS" if not failures else f"FAIL: {', '.join(failures)}", flush=True)
    return not failures


def failed(checks: Sequence[Check], *, long: bool) -> list[str]:
    """Names of the checks that fail the run; in a long one also those that examined nothing."""
    return [check.name for check in checks if check.problems or (long and not check.exercised)]


def _command(arguments: Sequence[str]) -> str:
    return " ".join(["tox -e chaos --", *arguments])


if __name__ == "__main__":
    main()
