"""Dashboards draw metrics that exist, as they are sent."""

import json
import re
import threading

import pytest

from pykcl import RecordProcessor, Worker
from pykcl.cli.local import local_environment
from pykcl.local.server import LocalAws
from pykcl.metrics.choices import DIMENSIONS
from pykcl.metrics.names import CATALOGUE
from pykcl.metrics.prometheus import kind_of, prometheus_name
from pykcl.operate.dashboards.cloudwatch import cloudwatch_dashboard
from pykcl.operate.dashboards.grafana import grafana_dashboard
from pykcl.operate.dashboards.panels import PANELS

SEARCH = re.compile(
    r"""SEARCH\('\{"?(?P<namespace>[^",]+)"?,(?P<dimensions>[A-Za-z,]+)\} MetricName="(?P<name>[^"]+)" """
    r"""Operation="(?P<operation>[^"]+)"', '(Maximum|Sum|Average)', 60\)\Z"""
)
OF = {"namespace": "orders-app", "region": "eu-west-1", "dimensions": DIMENSIONS}


def searches(dashboard):
    """(dimensions, metric, operation) of every expression."""
    text = json.dumps(dashboard)
    expressions = [
        one for one in _values(json.loads(text)) if isinstance(one, str) and one.startswith("SEARCH")
    ]
    found = [SEARCH.match(one) for one in expressions]
    assert all(found), expressions
    return {(one["dimensions"], one["name"], one["operation"]) for one in found}


def _values(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _values(inner)
    else:
        yield value


KNOWN = {(",".join(one.dimensions), one.name, one.operation) for one in CATALOGUE}


def test_every_metric_that_is_drawn_is_in_the_catalogue_with_these_dimensions():
    drawn = searches(cloudwatch_dashboard("orders-app", **OF))
    assert len(drawn) == sum(len(panel.measures) for panel in PANELS)
    assert drawn <= KNOWN
    assert searches(grafana_dashboard("orders-app", "cloudwatch", **OF)) == drawn


def test_dimensions_that_workers_do_not_send_are_not_searched_for():
    drawn = searches(cloudwatch_dashboard("orders-app", **{**OF, "dimensions": ("Operation",)}))
    assert {dimensions for dimensions, _, _ in drawn} == {"Operation"}


def test_cloudwatch_takes_the_dashboard_and_finds_what_a_worker_has_sent(monkeypatch):
    import boto3

    delivered = threading.Event()

    class Orders(RecordProcessor):
        def process_records(self, batch):
            delivered.set()

    with LocalAws() as aws:
        for name, value in local_environment(aws.url).items():
            monkeypatch.setenv(name, value)
        aws.kinesis.create_stream("orders", 1)
        aws.kinesis.put_record("orders", b"x", "key", 0)
        with Worker(
            "orders-app", stream="orders", processor=Orders, start="TRIM_HORIZON", metrics="cloudwatch"
        ):
            assert delivered.wait(60)
        cloudwatch = boto3.client("cloudwatch")
        body = cloudwatch_dashboard("orders-app", **OF)
        cloudwatch.put_dashboard(DashboardName="orders", DashboardBody=json.dumps(body))
        assert json.loads(cloudwatch.get_dashboard(DashboardName="orders")["DashboardBody"]) == body
        sent = {
            (
                ",".join(one["Name"] for one in metric["Dimensions"]),
                metric["MetricName"],
                next(one["Value"] for one in metric["Dimensions"] if one["Name"] == "Operation"),
            )
            for page in cloudwatch.get_paginator("list_metrics").paginate(Namespace="orders-app")
            for metric in page["Metrics"]
        }
        cloudwatch.close()
    drawn = searches(body)
    names = {(name, operation) for _, name, operation in sent}
    assert {"MillisBehindLatest", "RecordsProcessed", "NumWorkers"} <= {name for name, _ in names}
    # What was sent and is drawn is found: the schema of a SEARCH must be the metric's own, to the last dimension.
    both = {one for one in drawn if one[1:] in names}
    assert len(both) >= 5
    assert both <= sent


@pytest.mark.parametrize("dimensions", [DIMENSIONS, ("Operation", "WorkerIdentifier")])
def test_grafana_asks_prometheus_by_the_names_and_labels_that_are_exposed(dimensions):
    names = {prometheus_name(one): one for one in CATALOGUE}
    dashboard = grafana_dashboard("orders-app", "prometheus", **{**OF, "dimensions": dimensions})
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) == sum(len(panel.measures) for panel in PANELS)
    for expression in expressions:
        for word in re.findall(r"pykcl_\w+", expression):
            name = re.sub(r"_(bucket|sum|count)\Z", "", word) if word not in names else word
            assert name in names, word
            assert (kind_of(names[name]) == "histogram") == (name != word)
        labels = set(re.findall(r"by \(([a-z, ]+)\)", expression))
        told = {one for part in labels for one in part.split(", ")}
        assert (
            told <= {"shard", "worker", "cause", "le"}
            if "ShardId" in dimensions
            else told <= {"worker", "le"}
        )
        assert expression.count("(") == expression.count(")")


def test_panels_do_not_overlap_and_every_one_says_what_it_means():
    for dashboard, key in ((cloudwatch_dashboard("a", **OF)["widgets"], None), (grafana_dashboard("a", "prometheus", **OF)["panels"], "gridPos")):  # fmt: skip
        cells = []
        for one in dashboard:
            at = one[key] if key else {"x": one["x"], "y": one["y"], "w": one["width"], "h": one["height"]}
            cells += [
                (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
            ]
        assert len(cells) == len(set(cells))
    assert all(panel.text.endswith(".") for panel in PANELS)
