"""Sinks for tests, and what they saw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from pykcl.metrics.catalog import CATALOGUE, Measure


class Recorder:
    """Keeps every value: by operation, name and label."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        self.forgotten: list[str] = []

    def take(self, label, values):
        for measure, value in values:
            key = (measure.operation, measure.name, label if measure.is_labelled else "")
            self.values[key].append(value)

    def forget(self, shard):
        self.forgotten.append(shard)

    def of(self, measure: Measure, label: str | None = None) -> list[float]:
        """Of one label, or of all."""
        return [
            value
            for (operation, name, found), values in self.values.items()
            if (operation, name) == (measure.operation, measure.name) and label in (None, found)
            for value in values
        ]

    def labels(self, measure: Measure) -> set[str]:
        return {key[2] for key in self.values if key[:2] == (measure.operation, measure.name)}

    def seen(self) -> set[Measure]:
        return {one for one in CATALOGUE if self.of(one)}


class CloudWatch:
    """What a boto3 client for CloudWatch is to us. answer: called first, may raise, may wait."""

    def __init__(self, answer: Callable[[], None] = lambda: None) -> None:
        self.requests: list[dict] = []
        self.answer = answer

    def put_metric_data(self, **request):
        self.answer()
        self.requests.append(request)

    def data(self, name: str, **dimensions: str) -> list[dict]:
        wanted = [{"Name": key, "Value": value} for key, value in dimensions.items()]
        return [
            datum
            for request in self.requests
            for datum in request["MetricData"]
            if datum["MetricName"] == name and all(one in datum["Dimensions"] for one in wanted)
        ]

    def sum(self, name: str, **dimensions: str) -> float:
        return sum(datum["StatisticValues"]["Sum"] for datum in self.data(name, **dimensions))
