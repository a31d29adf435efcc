"""The catalogue in docs/operate/monitoring.md, made from the code. `python tests/docs/metrics_table.py` writes it."""

from __future__ import annotations

from pathlib import Path

from pykcl.metrics.catalog import CATALOGUE
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


def rows() -> list[tuple[str, ...]]:
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
        for one in CATALOGUE
    ]


def written() -> str:
    """The text of the page with its table between the two marks."""
    lines = [HEAD, ("---",) * len(HEAD), *rows()]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    begin, end = "<!-- catalogue: begin -->", "<!-- catalogue: end -->"
    before, _, rest = PAGE.read_text("utf-8").partition(begin)
    note = f"Names of OpenTelemetry begin with `{PREFIX}`."
    return f"{before}{begin}\n{note}\n\n{table}\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    PAGE.write_text(written(), "utf-8")
