"""`pykcl doctor`: check everything that a worker and its fleet need, or a program that puts records."""

from __future__ import annotations

import os
import sys
import textwrap
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.console import say
from pykcl.cli.errors import ExitCode
from pykcl.cli.options import Verb, refuse_of_others
from pykcl.cli.output import (
    Colour,
    Column,
    Format,
    format_option,
    json_text,
    painted,
    render,
    terminal_width,
    text_width,
)
from pykcl.cli.target import Target, fleet_options
from pykcl.errors import ConfigError, printable

if TYPE_CHECKING:
    from pykcl.operate.doctor.facts import Facts, FileFacts, Program
    from pykcl.operate.doctor.findings import Finding

MARKS: Mapping[str, tuple[str, Colour]] = {
    "ok": ("✓", "green"),
    "info": ("·", "cyan"),
    "warning": ("!", "yellow"),
    "error": ("✗", "red"),
}
_TOPIC_WIDTH = 11
_WIDE = 110
_OF = {
    "compression": ("producer",),
    **dict.fromkeys(("application", "table", "failover", "properties", "no_sample", "no_lag"), ("worker",)),
}


@click.command(cls=Verb)
@fleet_options(lease_stores="refused")
@format_option
@click.option(
    "--for",
    "whose",
    type=click.Choice(["worker", "producer"]),
    default="worker",
    show_default=True,
    help="Check what a worker and its fleet need, or a program that puts records.",
)
@click.option(
    "--compression",
    type=click.Choice(["gzip", "zstd"]),
    help="With --for producer: check that it can compress so.",
)
@click.option(
    "--no-sample", is_flag=True, help="Scan once: faster, but does not show which workers are alive."
)
@click.option(
    "--no-lag", is_flag=True, help="Do not ask Kinesis for the lag, which takes one read of each shard."
)
@click.option(
    "--simulate-iam",
    is_flag=True,
    help="Ask IAM whether the worker or producer has all required permissions, including write permissions.",
)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write a zip for a bug report, without names and secrets.",
)
@click.option(
    "--keep-names", is_flag=True, help="With --bundle: keep the names of streams, tables and workers."
)
def doctor(
    target: Target,
    output: Format,
    whose: Program,
    compression: str | None,
    no_sample: bool,
    no_lag: bool,
    simulate_iam: bool,
    bundle: Path | None,
    keep_names: bool,
) -> None:
    """Check credentials, permissions, stream, lease table and fleet.

    No option is required; with --application and --stream it checks more. --for producer needs --stream, and checks
    what a program needs that only puts records. It only reads, and does not disturb the fleet. If it knows the failover
    time (from --failover or a file), it watches the heartbeats of the workers for one and a half times as long. Prints
    a fix for each problem; `-o wide` also shows the ids.

    --bundle writes versions, options, leases and findings as text into a new zip file. Names of applications, tables,
    streams, consumers, workers, accounts and roles are replaced by hashes; credentials, records, endpoints and the
    contents of a .properties file are never in it.

    The exit code is 3 if a finding is an error.
    """
    if keep_names and bundle is None:
        raise click.UsageError("--keep-names goes with --bundle FILE.")
    refuse_of_others(whose, _OF)
    if whose == "producer":
        target.refuse_without("stream")
    file = _file_facts(target.properties) if target.properties is not None else None
    facts, findings = examine(
        target, whose, compression, watch=not no_sample, lag=not no_lag, simulate_iam=simulate_iam, file=file
    )
    say(answer(target, findings, output, whose))
    if bundle is not None:
        _write_bundle(bundle, facts, keep_names=keep_names)
    sys.exit(ExitCode.FINDING if any(one.level == "error" for one in findings) else ExitCode.OK)


def examine(
    target: Target,
    whose: Program = "worker",
    compression: str | None = None,
    *,
    watch: bool = True,
    lag: bool = True,
    simulate_iam: bool = False,
    file: FileFacts | None = None,
) -> tuple[Facts, list[Finding]]:
    """Return the facts and the findings. file: is checked, too; its texts name programs and paths."""
    from pykcl.operate.doctor.checks import diagnose
    from pykcl.operate.doctor.gather import Question, gather
    from pykcl.runtime import SystemRuntime

    question = Question(
        config=target.config,
        clients=target.clients,
        program=whose,
        compression=compression,
        application=target.application,
        table=target.table,
        stream=target.stream,
        failover=target.failover,
        named_regions=_regions_of_environment(),
        watch=watch,
        lag=lag,
        simulate_iam=simulate_iam,
        file=file,
    )
    facts = gather(question, SystemRuntime())
    return facts, diagnose(facts)


def _write_bundle(path: Path, facts: Facts, *, keep_names: bool) -> None:
    """Write the zip, readable by its owner only. Raises ConfigError for a place that cannot be written."""
    from pykcl.operate.doctor.bundle import bundle_of, redactor_of
    from pykcl.operate.doctor.checks import diagnose
    from pykcl.runtime import SystemRuntime
    from pykcl.times import format_time

    runtime = SystemRuntime()
    redactor = None if keep_names else redactor_of(facts, runtime.token() + runtime.token())
    # Findings about a .properties file name programs and paths of this machine; hosts are endpoints.
    findings = diagnose(replace(facts, file=None, account=replace(facts.account, hosts={})))
    now = format_time(runtime.utcnow_millis(), milliseconds=False)
    texts = bundle_of(facts, findings, redactor, now)
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} exists, and is not overwritten. Do: --bundle another name.") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}). Do: --bundle another place."
        ) from None
    with os.fdopen(number, "wb") as opened, zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, text in texts.items():
            bundle.writestr(f"pykcl-report/{name}", text)
    say(f"wrote {path} ({path.stat().st_size} bytes):", err=True)
    for line in texts["README.txt"].splitlines()[2:]:
        say(line or " ", err=True)


def _file_facts(path: Path) -> FileFacts:
    """Return what `pykcl multilangd` would report. Raises ConfigError for a file that cannot be read or parsed."""
    from pykcl.compat.multilang.command import unfitness
    from pykcl.compat.properties import interpret, read_properties
    from pykcl.operate.doctor.facts import FileFacts

    properties = read_properties(path)
    # Who runs the program in this process needs no executableName.
    has_program = bool(properties.get("executableName", "").strip())
    found = interpret(properties, entry_point="multilang" if has_program else "kclpy")
    unfit = unfitness(found.executable) if has_program else None
    return FileFacts(
        name=str(path),
        unfit=(unfit.what, unfit.do) if unfit is not None else None,
        unknown=tuple(
            (properties.place(row.key), row.key, row.text)
            for row in found.verdicts
            if row.verdict == "unknown"
        ),
        literal=tuple(
            (properties.place(row.key), row.key, f"{row.literal}.") for row in found.verdicts if row.literal
        ),
        notice=" ".join(found.notices),
    )


def answer(target: Target, findings: Sequence[Finding], output: Format, whose: Program = "worker") -> str:
    """Return the whole answer in that format."""
    rows = [row_of(one) for one in findings]
    if output == "table":
        return "\n".join([*(line for one in findings for line in _lines(one)), _summary(findings)])
    if output == "json":
        fleet = {"application": target.application, "table": target.table} if whose == "worker" else {}
        about = {**fleet, "stream": target.stream_name}
        return json_text({**about, **_counts(findings), "findings": rows}, indent=2)
    text = render(rows, _COLUMNS, output)
    return f"{text}\n{_summary(findings)}" if output == "wide" else text


def row_of(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "level": finding.level,
        "topic": finding.topic,
        "text": finding.text,
        "fix": finding.fix,
        "code": finding.code,
    }


_COLUMNS = (
    Column("level", weight=9, colour=lambda row: MARKS[str(row["level"])][1]),
    Column("id", weight=9),
    Column("code", weight=6),
    Column("topic", wide=True),
    Column("text", weight=8),
    Column("fix", weight=7),
)


def _lines(finding: Finding) -> list[str]:
    mark, colour = MARKS[finding.level]
    head = f"{finding.topic:<{_TOPIC_WIDTH}} "
    width = max(30, min(terminal_width() or _WIDE, _WIDE))
    # A narrow terminal has no room for an indent as wide as the topics.
    indent = " " * (len(head) + 2 if width >= 60 else 4)
    text = f"{head}{printable(finding.text)}"
    first, *rest = textwrap.wrap(text, width - 2, subsequent_indent=indent[2:], break_on_hyphens=False)
    lines = [f"{painted(mark, colour)} {first}", *("  " + line for line in rest)]
    if finding.code and finding.level in ("warning", "error"):
        code = f"→ {finding.code}"
        if text_width(lines[-1]) + 2 + len(code) <= width:
            lines[-1] += f"  {code}"
        else:
            lines.append(f"{indent}{code}")
    if finding.fix:
        # In one line, however long, so that it can be copied.
        lines.append(f"{indent}Do: {printable(finding.fix)}")
    return lines


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    from pykcl.operate.doctor.findings import count

    return {"errors": count(findings, "error"), "warnings": count(findings, "warning")}


def _summary(findings: Sequence[Finding]) -> str:
    counts = _counts(findings)
    text = ", ".join(
        f"{number} {name if number != 1 else name[:-1]}" for name, number in counts.items() if number
    )
    code = f"  (exit {ExitCode.FINDING:d})" if counts["errors"] else ""
    return (text or "Nothing is wrong.") + code


def _regions_of_environment() -> dict[str, str]:
    return {
        name: os.environ[name]
        for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "PYKCL_REGION")
        if os.environ.get(name)
    }
