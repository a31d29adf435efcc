"""A dashboard body for CloudWatch: a SEARCH for every metric, so that new shards and workers appear by themselves.

SEARCH finds the metrics of a namespace whose set of dimensions is exactly the one in braces.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pykcl.metrics.choices import OPERATION
from pykcl.metrics.names import Measure
from pykcl.operate.dashboards.panels import PANELS, Panel

PERIOD = 60
_COLUMNS, _WIDTH, _HEIGHT, _HEAD = 2, 12, 6, 2


def cloudwatch_dashboard(
    application: str, *, namespace: str, region: str, dimensions: Collection[str]
) -> dict[str, Any]:
    """The body for PutDashboard. dimensions: that the workers send, by name (`metering.dimensions_of`)."""
    widgets: list[dict[str, Any]] = [
        {
            "type": "text", "x": 0, "y": 0, "width": _WIDTH * _COLUMNS, "height": _HEAD,
            "properties": {"markdown": f"# {application}\nNamespace `{namespace}`, by KCL's names. Made by pykcl."},
        }
    ]  # fmt: skip
    for number, panel in enumerate(PANELS):
        widgets.append(
            {
                "type": "metric",
                "x": number % _COLUMNS * _WIDTH,
                "y": _HEAD + number // _COLUMNS * _HEIGHT,
                "width": _WIDTH,
                "height": _HEIGHT,
                "properties": _metric(panel, namespace, region, dimensions),
            }
        )
    return {"start": "-PT3H", "widgets": widgets}


def _metric(panel: Panel, namespace: str, region: str, dimensions: Collection[str]) -> dict[str, Any]:
    metrics = [
        [{"expression": search(measure, namespace, panel.statistic, dimensions), "id": f"e{number}", "period": PERIOD}]
        for number, measure in enumerate(panel.measures)
    ]  # fmt: skip
    return {
        "title": panel.title,
        "region": region,
        "view": "timeSeries",
        "stacked": False,
        "period": PERIOD,
        "metrics": metrics,
        "yAxis": {"left": {"label": panel.unit.capitalize(), "showUnits": False, "min": 0}},
    }


def dimensions_sent(measure: Measure, dimensions: Collection[str]) -> tuple[str, ...]:
    """Those of the measure that are on, in its order."""
    return tuple(name for name in measure.dimensions if name in dimensions)


def search(measure: Measure, namespace: str, statistic: str, dimensions: Collection[str]) -> str:
    """The expression that finds this metric for every shard or worker."""
    sent = dimensions_sent(measure, dimensions)
    schema = ",".join([_quoted(namespace), *sent])
    operation = f' {OPERATION}="{measure.operation}"' if OPERATION in sent else ""
    return f"SEARCH('{{{schema}}} MetricName=\"{measure.name}\"{operation}', '{statistic}', {PERIOD})"


def _quoted(namespace: str) -> str:
    """A namespace that is more than a word stands in double quotes."""
    return namespace if namespace.isalnum() else f'"{namespace}"'
