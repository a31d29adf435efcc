"""`pykcl leases`: who reads which shard, how far, and whether anybody is alive; and two careful writes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.durations import Duration
from pykcl.cli.exit_codes import EXIT_ERROR
from pykcl.cli.fleet_options import Target, complete_shards, fleet_options
from pykcl.cli.output import Format, format_option, render, say, show
from pykcl.cli.watching import repeat, tell_of_the_wait, watch_option

if TYPE_CHECKING:
    from pykcl.operate.release import ReleasePlan

SHARD = click.argument("shard", metavar="SHARD", shell_complete=complete_shards)
EXECUTE = click.option(
    "--execute", is_flag=True, help="Write. Without it, only what would be written is shown."
)


@click.group()
def leases() -> None:
    """Look at the leases of a fleet, whatever KCL it runs, and release or delete some.

    `list` and `describe` only read. `release` and `prune` show what they would write, and write with
    --execute.
    """


@leases.command("list")
@fleet_options("table")
@format_option
@watch_option
@click.option(
    "--sample",
    type=Duration(minimum=0.2, maximum=3600.0),
    metavar="TIME",
    help="How long counters are watched at most; by default the fail-over time, or 4s where it is unknown.",
)
@click.option("--no-sample", is_flag=True, help="Look once: fast, but nobody can tell then who is alive.")
@click.option("--owner", metavar="TEXT", help="Only leases whose owner's name has this in it.")
@click.option(
    "--state", "states", multiple=True, metavar="STATE", help="Only leases in this state; may be repeated."
)
def list_leases(
    target: Target,
    output: Format,
    watch: float | None,
    sample: float | None,
    no_sample: bool,
    owner: str | None,
    states: tuple[str, ...],
) -> None:
    """Every lease: its owner and the kind of owner, its state, its checkpoint, and whether its counter moves.

    Rows carry no time. So the table is looked at twice or more, until every owned lease has moved, or --sample is over.

    \b
    ACTIVE    somebody owns it, and its counter moves
    STALE     somebody owns it, and it stood still for the fail-over time: any worker may take it
    UNKNOWN   somebody owns it, and it was not watched for so long
    UNOWNED   nobody owns it
    WAITING   a parent shard has not ended, so it must not be read yet
    ENDED     its shard was read to the end
    FOREIGN   no lease: a row that KCL 3.x keeps in the table for itself
    """
    from pykcl.cli.lease_tables import LEASE_COLUMNS, lease_answer, wanted_states
    from pykcl.operate.aws.table_scan import TableScanner
    from pykcl.operate.sampler import Sampler
    from pykcl.operate.states import NO_MARKS
    from pykcl.runtime import SystemRuntime

    if no_sample and sample is not None:
        raise click.UsageError("--sample and --no-sample contradict each other.")
    wanted = wanted_states(states)
    runtime = SystemRuntime()
    scanner = TableScanner(target.clients.client("dynamodb"), str(target.table), runtime)
    sampler = Sampler(scanner.scan, runtime)
    _tell_pace(scanner.pace, output)

    marks = NO_MARKS

    def look() -> tuple[str, int]:
        nonlocal marks
        found = (
            sampler.poll()
            if no_sample or watch is not None
            else sampler.poll_until_moved(target.failover, longest=sample, on_wait=tell_of_the_wait)
        )
        answer = lease_answer(target, found, owner=owner, wanted=wanted, before=marks)
        marks = answer.marks
        return render(answer.rows, LEASE_COLUMNS, output, facts=answer.facts, hints=answer.hints), 0

    sys.exit(repeat(watch, look))


@leases.command()
@SHARD
@fleet_options("table")
@format_option
@click.option("--no-sample", is_flag=True, help="Look once, and do not wait for the counter to move.")
def describe(target: Target, shard: str, output: Format, no_sample: bool) -> None:
    """Everything the table says about one lease, and what it means.

    SHARD: a lease key, the number of a shard, such as 3, or the end of one key only.
    """
    from pykcl.cli.lease_tables import FACT_COLUMNS, describe_answer, key_of
    from pykcl.operate.aws.table_scan import TableScanner
    from pykcl.operate.sampler import Sampler
    from pykcl.runtime import SystemRuntime

    runtime = SystemRuntime()
    scanner = TableScanner(target.clients.client("dynamodb"), str(target.table), runtime)
    sampler = Sampler(scanner.scan, runtime)
    _tell_pace(scanner.pace, output)
    found = sampler.poll()
    key = key_of(shard, found.snapshot)
    lease = found.snapshot.leases.get(key)
    if not no_sample and lease is not None and lease.actual_owner is not None:
        found = sampler.poll_until_moved(
            target.failover, until=lambda seen: key in seen.alive, on_wait=tell_of_the_wait
        )
    answer = describe_answer(target, found, key)
    show(answer.rows, FACT_COLUMNS, output, facts=answer.facts, hints=answer.hints)


@leases.command()
@SHARD
@fleet_options("table")
@EXECUTE
def release(target: Target, shard: str, execute: bool) -> None:
    """Take a lease away from its owner, so that another worker may take it at once. SHARD: as in `describe`.

    Writes what an owner writes when it stops: no owner, the counter one higher, the checkpoint as it is; and only if
    counter and owner are still what was shown. An owner that is alive notices at its next renewal; what it has read
    since its last checkpoint comes again at the next owner. Nothing is lost.
    """
    from pykcl.cli.lease_tables import key_of
    from pykcl.operate.aws.row_writes import RowWriter
    from pykcl.operate.aws.table_scan import TableScanner
    from pykcl.operate.release import plan_release
    from pykcl.operate.release import release as do_release
    from pykcl.runtime import SystemRuntime

    runtime, client = SystemRuntime(), target.clients.client("dynamodb")
    key = key_of(shard, TableScanner(client, str(target.table), runtime).scan())
    table = RowWriter(client, str(target.table), runtime)
    plan = plan_release(key, table.read(key))
    _show_release(plan, execute)
    if not execute:
        return
    result = do_release(table, plan, lambda newer: _show_release(newer, True))
    if result.outcome == "released":
        say(f"RELEASED  read again: no owner, counter {result.row.counter}")
    else:
        say(f"RELEASED  and taken already, by {_inert(result.row.owner)}")


def _show_release(plan: ReleasePlan, execute: bool) -> None:
    seen, after = plan.seen, plan.write.after
    say("WRITES NOW" if execute else "PLAN (nothing written)")
    say(f"  lease       {_inert(seen.key)}")
    say(f"  owner       {_inert(seen.owner)}  →  -")
    say(f"  counter     {seen.counter}  →  {after.counter if after else '-'}")
    say(f"  checkpoint  {seen.checkpoint}  (stays)")
    say(f"  only if     counter is {seen.counter} and owner is {_inert(seen.owner)}")
    if not execute:
        say("Run it again with --execute to write.")


@leases.command()
@fleet_options("table", "stream")
@format_option
@EXECUTE
def prune(target: Target, output: Format, execute: bool) -> None:
    """Delete rows nobody needs any more: ended and all children begun, or of shards Kinesis has dropped.

    The rules are the workers' own, which do this by themselves; it is for tables whose fleet is gone. Every row is
    deleted only if it is still as it was shown, parents before children, and looked for again.
    """
    from pykcl.cli.lease_tables import PRUNE_COLUMNS, prune_row
    from pykcl.operate.aws.row_writes import RowWriter
    from pykcl.operate.aws.table_scan import TableScanner
    from pykcl.operate.prune import plan_prune
    from pykcl.operate.prune import prune as do_prune
    from pykcl.operate.states import marks_among
    from pykcl.runtime import SystemRuntime

    runtime, client = SystemRuntime(), target.clients.client("dynamodb")
    scanner = TableScanner(client, str(target.table), runtime)
    _tell_pace(scanner.pace, output)
    view = scanner.scan()
    plan = plan_prune(view, target.kinesis())
    facts: dict[str, Any] = {
        "application": target.table,
        "stream": plan.stream.name,
        "delete": len(plan.deletions),
        "keep": plan.kept,
        "written": "now" if execute else "nothing",
    }
    marks = marks_among(lease.actual_owner for lease in view.leases.values())
    rows = [prune_row(deletion, marks) for deletion in plan.deletions]
    hints = () if execute else ("Run it again with --execute to delete these rows.",)
    if not rows:
        hints = ("There is nothing to delete.",)
    show(rows, PRUNE_COLUMNS, output, facts=facts, hints=hints)
    if not execute:
        return
    results = list(_told(do_prune(RowWriter(client, str(target.table), runtime), plan)))
    if any(one != "deleted" for one in results):
        sys.exit(EXIT_ERROR)


def _told(results: Any) -> Any:
    """To standard error, as they come: a broken-off run has told what it has done."""
    for one in results:
        why = f" ({one.why})" if one.why else ""
        say(f"{one.outcome:<9}  {_inert(one.deletion.seen.key)}{_inert(why)}", err=True)
        yield one.outcome


def _inert(text: str | None) -> str:
    from pykcl.errors import printable

    return "-" if text is None else printable(text)


def _tell_pace(pace: str, output: Format) -> None:
    if pace:
        say(f"pykcl: {_inert(pace)}", err=True)
