"""A dashboard for Grafana (schema 39, from Grafana 10 on), over Prometheus or over CloudWatch.

It is imported with the data source chosen by hand; over Prometheus an application is chosen by its scrape job.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from pykcl.metrics.names import Measure
from pykcl.metrics.prometheus import LABELS, kind_of, prometheus_name
from pykcl.operate.dashboards.cloudwatch import PERIOD, search
from pykcl.operate.dashboards.panels import PANELS, Panel

Source = Literal["prometheus", "cloudwatch"]
_SCHEMA = 39
_WIDTH, _HEIGHT = 12, 8
_UNITS = {"milliseconds": "ms", "count": "short", "bytes": "bytes"}
_INPUT = "DS_PYKCL"


def grafana_dashboard(
    application: str, source: Source, *, namespace: str, region: str, dimensions: Collection[str]
) -> dict[str, Any]:
    """The JSON model to import. namespace, region: of CloudWatch."""
    datasource = {"type": source, "uid": "${" + _INPUT + "}"}
    panels: list[dict[str, Any]] = []
    for panel in PANELS:
        if source == "prometheus":
            targets = [_prometheus(one, panel, dimensions) for one in panel.measures]
        else:
            targets = [
                _cloudwatch(search(one, namespace, panel.statistic, dimensions), region)
                for one in panel.measures
            ]
        panels.append(_panel(len(panels), panel, source, targets, datasource))
    name = "Prometheus" if source == "prometheus" else "CloudWatch"
    return {
        "__inputs": [{"name": _INPUT, "label": name, "type": "datasource", "pluginId": source, "pluginName": name}],
        "title": f"pykcl: {application}",
        "uid": None,
        "tags": ["pykcl", "kinesis"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_job(datasource)] if source == "prometheus" else []},
        "panels": panels,
    }  # fmt: skip


def promql(measure: Measure, panel: Panel, dimensions: Collection[str]) -> str | None:
    """The query; None for what Prometheus is not told. Times are in seconds there."""
    name = prometheus_name(measure)
    if name is None:
        return None
    labels = [LABELS[one] for one in measure.dimensions if one in dimensions and LABELS[one] != "operation"]
    by = f" by ({', '.join(labels)})" if labels else ""
    chosen = f'{{job=~"$job", operation="{measure.operation}"}}'
    kind = kind_of(measure)
    if kind == "gauge":
        return f"max{by} ({name}{chosen})"
    if kind == "counter":
        return f"sum{by} (increase({name}{chosen}[$__rate_interval]))"
    spent, calls = (f"sum{by} (rate({name}_{part}{chosen}[$__rate_interval]))" for part in ("sum", "count"))
    if panel.statistic == "Average":
        return f"{spent} / {calls}"
    more = ", ".join(["le", *labels])
    return f"histogram_quantile(1, sum by ({more}) (rate({name}_bucket{chosen}[$__rate_interval])))"


def _prometheus(measure: Measure, panel: Panel, dimensions: Collection[str]) -> dict[str, Any]:
    labels = [LABELS[one] for one in measure.dimensions if one in dimensions and LABELS[one] != "operation"]
    legend = " ".join("{{" + label + "}}" for label in labels)
    if len(panel.measures) > 1 or not legend:
        legend = f"{measure.name} {legend}".strip()
    return {"expr": promql(measure, panel, dimensions), "legendFormat": legend, "range": True}


def _cloudwatch(expression: str, region: str) -> dict[str, Any]:
    return {
        "queryMode": "Metrics",
        "metricQueryType": 0,
        "metricEditorMode": 1,
        "region": region,
        "expression": expression,
        "period": str(PERIOD),
        "matchExact": True,
    }


def _panel(
    number: int, panel: Panel, source: Source, targets: list[dict[str, Any]], datasource: dict[str, str]
) -> dict[str, Any]:
    unit = "s" if source == "prometheus" and panel.unit == "milliseconds" else _UNITS[panel.unit]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": datasource,
        "gridPos": {"x": number % 2 * _WIDTH, "y": number // 2 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": datasource, **target}
            for at, target in enumerate(targets)
        ],
    }


def _job(datasource: dict[str, str]) -> dict[str, Any]:
    query = "label_values(pykcl_current_leases, job)"
    return {
        "name": "job",
        "label": "Job",
        "type": "query",
        "datasource": datasource,
        "query": {"query": query, "refId": "job"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
