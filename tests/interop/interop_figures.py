"""What a fleet amounts to: `Figures`, as text for the terminal, as JSON, and as the tables of docs/guides/mixed-fleet.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from fleet_duplicates import DUPLICATES, unexplained
from fleet_evidence import Evidence
from interop_verdict import CAUSES, checks_of, duplicates, duplicates_by_kind, handovers
from java_worker import LogLine

BEGIN, END = "<!-- interop: begin -->", "<!-- interop: end -->"
_DIFFERS = re.compile(r"shardId-\d+|\b[jp]\d\b|@?\b[0-9a-f-]{7,}\b|\d+")
_WORDS = {
    "killed": "kill -9", "frozen": "SIGSTOP", "terminated": "SIGTERM", "stolen": "taken from a living owner",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figures:
    """fleet: its name. made: Kinesis records, plain and by encoder. put: user records. balances: leases of each worker.

    seconds: by cause, then by "kind → kind", of each lease. foreign: writes by pykcl to what is no lease. beyond: Java
    ERROR lines of which the control run has none alike; None where there was none. java_errors: all of them.
    """

    fleet: str
    kinds: dict[str, str]
    made: dict[str, int]
    put: int
    lost: int
    out_of_order: int
    duplicates: int
    duplicates_by_kind: dict[str, int]
    unexplained: int
    balances: list[dict[str, int]]
    seconds: dict[str, dict[str, list[float]]]
    pykcl_writes: int
    foreign: int
    java_errors: list[str]
    beyond: list[str] | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def figures_of(
    evidence: Evidence,
    fleet: str,
    kinds: Mapping[str, str],
    *,
    made: Mapping[str, int],
    balances: Sequence[Mapping[str, int]],
    errors: Sequence[str],
    beyond: Sequence[str] | None,
) -> Figures:
    """kinds: of each worker, such as "pykcl" or "Java 2.7.2". errors: of Java, see `error_lines`; beyond: some of them."""
    checks = {check.name: check for check in checks_of(evidence)}
    seconds: dict[str, dict[str, list[float]]] = {}
    for one in handovers(evidence):
        pair = " → ".join(kinds[name].partition(" ")[0] for name in (one.worker, one.successor))
        seconds.setdefault(one.what, {}).setdefault(pair, []).append(one.seconds)
    return Figures(
        fleet=fleet,
        kinds=dict(kinds),
        made=dict(made),
        put=sum(map(len, evidence.records.values())),
        lost=len(checks["nothing lost"].problems),
        out_of_order=len(checks["order per shard, no gaps"].problems),
        duplicates=duplicates(evidence),
        duplicates_by_kind=dict(sorted(duplicates_by_kind(evidence).items())),
        unexplained=len(unexplained(evidence)),
        balances=[dict(balance) for balance in balances],
        seconds={
            cause: {pair: sorted(each) for pair, each in sorted(pairs.items())}
            for cause, pairs in seconds.items()
        },
        pykcl_writes=sum(not write.by_java for write in evidence.writes),
        foreign=len(checks["pykcl writes leases only"].problems),
        java_errors=list(errors),
        beyond=None if beyond is None else list(beyond),
    )


# -- what Java logs as errors --------------------------------------------------------------------------------------


def error_lines(worker: str, lines: Iterable[LogLine]) -> list[str]:
    return [f"{worker} {line.logger}: {line.text[:300]}" for line in lines]


def alike(line: str) -> str:
    """An error line without what differs from run to run: worker, shard, numbers."""
    return _DIFFERS.sub("*", line)


def errors_beyond(lines: Sequence[str], control: Iterable[str]) -> list[str]:
    """Those of which the control run has none alike."""
    known = {alike(line) for line in control}
    return [line for line in lines if alike(line) not in known]


# -- text ----------------------------------------------------------------------------------------------------------


def report(evidence: Evidence, figures: Figures) -> str:
    """All checks, and the figures."""
    lines = [figures.fleet]
    for check in checks_of(evidence):
        lines.append(f"{check.name:<34}{check.verdict:<14}{check.examined}")
        lines += [f"    {problem}" for problem in check.problems[:8]]
    made = ", ".join(
        f"{count} {'aggregates by ' * (kind != 'plain')}{kind}" for kind, count in figures.made.items()
    )
    by_kind = ", ".join(f"{count} {DUPLICATES[kind]}" for kind, count in figures.duplicates_by_kind.items())
    lines += [
        f"records put {figures.put} ({made}), lost {figures.lost}, out of order {figures.out_of_order}",
        f"duplicates {figures.duplicates} ({by_kind or 'none'}), explained by tails without a checkpoint "
        f"{figures.duplicates - figures.unexplained}, unexplained {figures.unexplained}",
        "leases per worker at balance " + " · ".join(_balance(balance) for balance in figures.balances),
        f"writes by pykcl {figures.pykcl_writes}, to what is no lease {figures.foreign}",
        f"Java ERROR lines {len(figures.java_errors)}"
        + ("" if figures.beyond is None else f", beyond those of Java alone {len(figures.beyond or ())}"),
    ]
    lines += [
        f"    {line}" for line in (figures.java_errors if figures.beyond is None else figures.beyond)[:8]
    ]
    for cause in CAUSES:
        for pair, seconds in figures.seconds.get(cause, {}).items():
            lines.append(f"{_WORDS[cause]}, {pair}: {', '.join(f'{second:.1f}' for second in seconds)} s")
    return "\n".join(lines)


def _balance(balance: Mapping[str, int]) -> str:
    return " ".join(f"{worker}={count}" for worker, count in balance.items())


HEAD = ("fleet", "records", "lost", "out of order", "duplicates", "of them unexplained", "leases at balance, max - min",
        "foreign writes", "Java ERROR lines beyond control")  # fmt: skip


def _row(figures: Figures) -> list[str]:
    spread = max((max(one.values()) - min(one.values()) for one in figures.balances), default=0)
    return [figures.fleet, *(str(number) for number in (
        figures.put, figures.lost, figures.out_of_order, figures.duplicates, figures.unexplained, spread, figures.foreign,
        len(figures.beyond or ()),
    ))]  # fmt: skip


SECONDS_HEAD = ("what ended the old owner", "from → to", "leases", "median", "longest")


def _second_rows(all_figures: Sequence[Figures]) -> list[list[str]]:
    rows = []
    for cause in CAUSES:
        pairs = sorted({pair for figures in all_figures for pair in figures.seconds.get(cause, {})})
        for pair in pairs:
            each = [s for figures in all_figures for s in figures.seconds.get(cause, {}).get(pair, [])]
            rows.append([_WORDS[cause], pair, str(len(each)), f"{median(each):.1f} s", f"{max(each):.1f} s"])
    return rows


def summary(all_figures: Sequence[Figures]) -> str:
    """Two tables for the terminal."""
    tables = ((HEAD, [_row(figures) for figures in all_figures]), (SECONDS_HEAD, _second_rows(all_figures)))
    return "\n\n".join(_aligned([list(head), *rows]) for head, rows in tables)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def markdown(all_figures: Sequence[Figures]) -> str:
    """The same for the page."""
    tables = ((HEAD, [_row(figures) for figures in all_figures]), (SECONDS_HEAD, _second_rows(all_figures)))
    parts = [
        "\n".join(f"| {' | '.join(row)} |" for row in [list(head), ["---"] * len(head), *rows])
        for head, rows in tables
    ]
    return "\n\n".join(parts)


def written_into(page: str, all_figures: Sequence[Figures]) -> str:
    """The text of a page with its figures replaced. Raises ValueError where it has no place for them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"The page has no {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n{markdown(all_figures)}\n{END}{after}"
