"""The catalogues in docs/operate/monitoring.md, made from the code. `python tests/docs/metrics_table.py` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pykcl.metrics.catalog import CATALOGUE, PRODUCER_CATALOGUE, Measure
from pykcl.metrics.opentelemetry import PREFIX, otel_name
from pykcl.metrics.prometheus import prometheus_name

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "monitoring.md"
HEAD = (
    "operation",
    "metric",
    "dimensions besides",
    "unit",
    "level",
    "Prometheus",
    "OpenTelemetry",
    "meaning",
)


def rows(catalogue: Sequence[Measure]) -> list[tuple[str, ...]]:
    return [
        (
            f"`{one.operation}`",
            f"`{one.name}`" + (" (ours)" if one.is_ours else ""),
            ", ".join(one.dimensions[1:]) or "\N{EN DASH}",
            one.unit,
            one.level,
            f"`{prometheus_name(one)}`" if prometheus_name(one) else "\N{EN DASH}",
            f"`…{otel_name(one.name).removeprefix(PREFIX)}`",
            one.text,
        )
        for one in catalogue
    ]


def written() -> str:
    """The text of the page with each table between its two marks."""
    text = PAGE.read_text("utf-8")
    # Without the operation, which a producer has none of.
    for mark, lines in (
        ("catalogue", [HEAD, *rows(CATALOGUE)]),
        ("producer", [line[1:] for line in (HEAD, *rows(PRODUCER_CATALOGUE))]),
    ):
        lines.insert(1, ("---",) * len(lines[0]))
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
        before, _, rest = text.partition(begin)
        note = f"Names of OpenTelemetry begin with `{PREFIX}`."
        text = f"{before}{begin}\n{note}\n\n{table}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(written(), "utf-8")
