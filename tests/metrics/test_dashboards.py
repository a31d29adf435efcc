"""The dashboards under deploy/ draw metrics that exist, as they are sent."""

import json
import re
import threading
from pathlib import Path

from pykcl import RecordProcessor, Worker
from pykcl.cli.local import local_environment
from pykcl.local.server import LocalAws
from pykcl.metrics.catalog import CATALOGUE
from pykcl.metrics.prometheus import LABELS, kind_of, prometheus_name

FOLDER = Path(__file__).parents[2] / "deploy" / "dashboards"
CLOUDWATCH = json.loads((FOLDER / "cloudwatch.json").read_text("utf-8"))
GRAFANA = json.loads((FOLDER / "grafana.json").read_text("utf-8"))

SEARCH = re.compile(
    r"""SEARCH\('\{"?(?P<namespace>[^",]+)"?,(?P<dimensions>[A-Za-z,]+)\} MetricName="(?P<name>[^"]+)" """
    r"""Operation="(?P<operation>[^"]+)"', '(Maximum|Sum|Average)', 60\)\Z"""
)


def searches(dashboard):
    """(dimensions, metric, operation) of every expression."""
    expressions = [one for one in _values(dashboard) if isinstance(one, str) and one.startswith("SEARCH")]
    found = [SEARCH.match(one) for one in expressions]
    assert all(found), expressions
    return [(one["dimensions"], one["name"], one["operation"]) for one in found]


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
    drawn = searches(CLOUDWATCH)
    assert len(drawn) > 15
    assert set(drawn) <= KNOWN


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
            "orders-app",
            stream="orders",
            processor=Orders,
            initial_position="TRIM_HORIZON",
            metrics="cloudwatch",
        ):
            assert delivered.wait(60)
        cloudwatch = boto3.client("cloudwatch")
        cloudwatch.put_dashboard(DashboardName="orders", DashboardBody=json.dumps(CLOUDWATCH))
        assert json.loads(cloudwatch.get_dashboard(DashboardName="orders")["DashboardBody"]) == CLOUDWATCH
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
    drawn = searches(CLOUDWATCH)
    names = {(name, operation) for _, name, operation in sent}
    assert {"MillisBehindLatest", "RecordsProcessed", "NumWorkers"} <= {name for name, _ in names}
    # What was sent and is drawn is found: the schema of a SEARCH must be the metric's own, to the last dimension.
    both = {one for one in drawn if one[1:] in names}
    assert len(both) >= 5
    assert both <= sent


def test_grafana_asks_prometheus_by_the_names_and_labels_that_are_exposed():
    measures = {(prometheus_name(one), one.operation): one for one in CATALOGUE}
    names = {name for name, _ in measures}
    expressions = [target["expr"] for panel in GRAFANA["panels"] for target in panel["targets"]]
    assert len(expressions) > 15
    for expression in expressions:
        operation = re.findall(r'operation="(\w+)"', expression)[0]
        grouped = {
            label for part in re.findall(r"by \(([a-z, ]+)\)", expression) for label in part.split(", ")
        }
        for word in re.findall(r"pykcl_\w+", expression):
            name = word if word in names else re.sub(r"_(bucket|sum|count)\Z", "", word)
            measure = measures[name, operation]
            assert (kind_of(measure) == "histogram") == (name != word)
            assert grouped <= {LABELS[one] for one in measure.dimensions} | {"le"}
        assert expression.count("(") == expression.count(")")


def test_panels_do_not_overlap():
    widgets = [(one["x"], one["y"], one["width"], one["height"]) for one in CLOUDWATCH["widgets"]]
    panels = [tuple(one["gridPos"][name] for name in "xywh") for one in GRAFANA["panels"]]
    for boxes in (widgets, panels):
        cells = [(x + right, y + down) for x, y, w, h in boxes for right in range(w) for down in range(h)]
        assert len(cells) == len(set(cells))
