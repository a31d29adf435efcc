"""`python tests/verify_aws --region eu-west-1`: asks AWS itself what docs/about/verification.md lists, and removes what it made."""

from __future__ import annotations

import math
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import botocore
import click
from botocore.exceptions import ClientError
from verify_account import AWS_ERRORS, PREFIX, Account, new_prefix, why
from verify_fleet import fleet
from verify_limits import clock, throttles
from verify_push import fanout
from verify_puts import producer
from verify_reads import aggregated, begin_sparse, large, reshard, sparse, starts
from verify_report import Findings, markdown, questions
from verify_run import Run, is_unknown
from verify_suites import lease_table, streams

import pykcl
from pykcl.errors import PyKclError

SHARD_HOUR, OTHER = 0.015, 0.10
"""USD. List price of a provisioned shard-hour in us-east-1, which is that of a consumer-shard-hour, too; and what requests
and payload come to, on the safe side."""
INTERRUPTED = 130
MOST_LINES = 10


@dataclass(frozen=True)
class Step:
    """shards: with those of a reshard. minutes: on AWS, about. begin: what has to be done before all other steps.

    consumers: of enhanced fan-out, each billed for the shards.
    """

    about: str
    run: Callable[[Run], None]
    streams: int
    shards: int
    tables: int
    minutes: float
    begin: Callable[[Run], None] | None = None
    consumers: int = 0


STEPS = {
    "lease-table": Step("the suite of the lease table", lease_table, 0, 0, 2, 12),
    "streams": Step("the suite of the stream", streams, 70, 130, 0, 25),
    "starts": Step("the five starts, and pages in every form", starts, 1, 1, 0, 2),
    "reshard": Step("a split and a merge, read to the end of their shards", reshard, 1, 4, 0, 3),
    "aggregated": Step("KPL aggregates", aggregated, 1, 1, 0, 1),
    "large": Step("records of 10 MiB", large, 1, 1, 0, 3),
    "producer": Step("records of a Producer, also over a split", producer, 1, 3, 0, 3),
    "fanout": Step("subscriptions of enhanced fan-out", fanout, 1, 1, 0, 3, consumers=1),
    "throttles": Step("too many reads, too many bytes", throttles, 1, 1, 0, 2),
    "clock": Step("requests signed ten minutes ahead", clock, 0, 0, 0, 0),
    "fleet": Step("the script of pykcl demo, with its verdict", fleet, 1, 8, 1, 5),
    "sparse": Step("a stream that lay idle for --minutes", sparse, 1, 2, 0, 2, begin_sparse),
}


@click.command()
@click.option("--region", required=True, help="Where everything is made, such as eu-west-1.")
@click.option("--endpoint", metavar="URL", help="Of a local AWS, to try this command without an account.")
@click.option("--only", metavar="STEPS", help=f"Some of: {', '.join(STEPS)}. Default: all.")
@click.option(
    "--minutes",
    type=click.FloatRange(0, 600),
    default=30.0,
    show_default=True,
    help="How long the sparse stream lies idle. Other steps run meanwhile.",
)
@click.option(
    "--cases", default="", metavar="EXPRESSION", help="Of the two suites: those that pytest -k finds."
)
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help="Default: verify-aws-….md here."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--clean-up", metavar="PREFIX", help="Remove what an earlier run left; do nothing else.")
def main(
    region: str,
    endpoint: str | None,
    only: str | None,
    minutes: float,
    cases: str,
    report: Path | None,
    yes: bool,
    clean_up: str | None,
) -> None:
    """Answer the questions of docs/about/verification.md in an AWS account, and remove everything again.

    Exit code 0 if every check held and everything was removed, 1 if not, 2 if it was called wrongly, 130 after Ctrl-C.
    """
    names = list(dict.fromkeys(name.strip() for name in only.split(","))) if only else list(STEPS)
    if unknown := [name for name in names if name not in STEPS]:
        raise click.UsageError(f"--only names {', '.join(unknown)}; there are {', '.join(STEPS)}.")
    if clean_up is not None and not PREFIX.match(clean_up):
        raise click.UsageError("--clean-up takes the prefix of a run, such as pykcl-verify-0123abcd.")
    if report is not None and not report.absolute().parent.is_dir():
        raise click.UsageError(f"--report: there is no folder {report.parent}.")
    _set_environment(region, endpoint)
    account = Account(clean_up or new_prefix())
    try:
        account.require_access()
    except PyKclError as error:
        raise click.ClickException(str(error)) from None
    _say(plan(account, [] if clean_up else names, minutes))
    _ask(yes)
    with _interruptible():
        if clean_up is not None:
            sys.exit(1 if _removed(account) else 0)
        sys.exit(
            _perform(account, names, minutes, cases, report or Path(f"verify-aws-{account.prefix[-8:]}.md"))
        )


def plan(account: Account, names: Sequence[str], minutes: float) -> str:
    """The announcement: the things that will be made, for how long, and at which cost."""
    where = f"{account.region}" if account.is_aws else "the local AWS of --endpoint"
    if not names:
        return f"Every stream and table of {where} is deleted that is called {account.prefix}-… and has that tag."
    steps = {name: STEPS[name] for name in names}
    took = sum(step.minutes for name, step in steps.items() if name != "sparse")
    took = max(took, minutes) + steps["sparse"].minutes if "sparse" in steps else took
    lines = [f"In {where} this makes, under names that begin with {account.prefix}, uses and removes:"]
    for name, step in steps.items():
        parts = [f"{step.streams} stream(s), {step.shards} shard(s)"] if step.streams else []
        parts += [f"{step.consumers} consumer(s)"] if step.consumers else []
        parts += [f"{step.tables} table(s)"] if step.tables else []
        lines.append(f"  {name:<12} {', '.join(parts) or 'nothing':<28} {step.about}")
    hours = math.ceil(max(took, 1) / 60)
    # Streams of the suite live for a minute; a shard costs an hour all the same, others as long as the run.
    shard_hours = sum(step.shards * (1 if name == "streams" else hours) for name, step in steps.items())
    consumer_hours = sum(step.shards * step.consumers * hours for step in steps.values())
    cost = (shard_hours + consumer_hours) * SHARD_HOUR + OTHER
    pushed = f" and {consumer_hours} consumer-shard-hours" if consumer_hours else ""
    lines.append(
        f"About {took:.0f} minutes on AWS and at most about {cost:.2f} USD: {shard_hours} shard-hours{pushed} at "
        f"{SHARD_HOUR} USD (list price of us-east-1), {OTHER:.2f} USD for requests. An estimate, no promise."
    )
    return "\n".join(lines)


def _ask(yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("Nobody is there to be asked. Add --yes if that is what you want.")
    click.confirm("Go on?", abort=True)


def _perform(account: Account, names: Sequence[str], minutes: float, cases: str, path: Path) -> int:
    findings = Findings(path.with_suffix(".jsonl"), questions())
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    interrupted = False
    left: list[str] = []
    try:
        with tempfile.TemporaryDirectory(prefix="pykcl-verify-") as folder:
            run_steps(Run(account, findings, minutes, cases, Path(folder), _say), names)
    except KeyboardInterrupt:
        interrupted = True
        findings.finish("failed: interrupted")
        _say("\ninterrupted")
    finally:
        # Also when this command itself has a defect: first of all nothing stays behind.
        left = _removed(account)
    about = {
        "began": began,
        "where": account.region if account.is_aws else "a local AWS, not AWS itself",
        "steps": ", ".join(names),
        "versions": f"pykcl {pykcl.__version__}, botocore {botocore.__version__}, "
        f"Python {platform.python_version()}",
    }
    path.write_text(markdown(findings, about, left), "utf-8")
    _say(
        f"{len(findings.checks) - len(findings.failed)} of {len(findings.checks)} checks held; report: {path}"
    )
    if interrupted:
        return INTERRUPTED
    return 0 if findings.held and not left else 1


def run_steps(run: Run, names: Sequence[str]) -> None:
    """One after the other; what fails is reported, and the next one begins. sparse comes last: it has to age."""
    broken = {name for name in names if not _attempt(run, name, STEPS[name].begin)}
    for name in sorted(names, key=list(STEPS).index):
        if name not in broken and _attempt(run, name, STEPS[name].run):
            run.findings.finish("done")


def _attempt(run: Run, name: str, action: Callable[[Run], None] | None) -> bool:
    """True if it went through; if not, the outcome of the step names the reason."""
    run.findings.step = name
    if action is None:
        return True
    run.say(f"{name}: {STEPS[name].about}")
    checks = len(run.findings.checks)
    try:
        action(run)
    except ClientError as error:
        outcome = f"failed: {error.operation_name} was refused with {why(error)}"
        if is_unknown(error):
            outcome = f"not possible here: the service has no {error.operation_name}"
    except Exception as error:  # noqa: BLE001 - whatever it is, the next step shall run
        outcome = (
            f"failed: {why(error)}"
            if isinstance(error, AWS_ERRORS)
            else f"failed: {type(error).__name__}: {error}"
        )
    else:
        failed = [check for check in run.findings.checks[checks:] if not check.held]
        for check in failed[:MOST_LINES]:
            run.say(f"  did not hold: {check.what}: {check.seen}")
        if len(failed) > MOST_LINES:
            run.say(f"  and {len(failed) - MOST_LINES} more: see the report")
        return True
    run.findings.finish(outcome)
    run.say(f"  {run.findings.outcomes[name]}")
    return False


def _removed(account: Account) -> list[str]:
    """Remove all of it; the rest that could not be removed, also printed."""
    before = {one: signal.signal(one, lambda *_: _say("still removing; wait")) for one in SIGNALS}
    _say("removing what was made …")
    try:
        left = account.remove_all()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _say("everything is removed" if not left else "could not be removed:")
    for line in left:
        _say(f"  {line}")
    return left


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind as Ctrl-C does, so that everything is removed."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _set_environment(region: str, endpoint: str | None) -> None:
    """In the environment, because the workers and pytest are processes of their own."""
    os.environ.update(AWS_DEFAULT_REGION=region, AWS_REGION=region)
    if endpoint:
        os.environ.update(AWS_ENDPOINT_URL=endpoint, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")


def _say(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
