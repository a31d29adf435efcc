"""Prometheus: KCL's names with Prometheus' units, collected at each scrape.

Values are added up here and turned into the library's families at each scrape, so that measuring costs two look-ups.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from pykcl.errors import ConfigError
from pykcl.metrics.catalog import APPLICATION_BEHIND_LATEST, CATALOGUE, Measure, snake_case
from pykcl.metrics.meter import Value
from pykcl.runtime import Runtime

PREFIX = "pykcl_"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper edges in seconds; one more bucket takes the rest."""
MOST_LEFT_SHARDS = 1000
LABELS = {"Operation": "operation", "ShardId": "shard", "WorkerIdentifier": "worker", "Cause": "cause"}
_RENAMED = {
    "MillisBehindLatest": "behind_latest_seconds",
    "Time": "task_seconds",
    "Success": "task_success_total",
}
_OF_SEVERAL = {
    "task_success_total": "Number of tasks that succeeded.",
    "task_seconds": "Time that a task took.",
    "update_lease_success_total": "Number of checkpoint writes that succeeded.",
    "update_lease_seconds": "Time that a checkpoint write took.",
    "create_lease_success_total": "Number of creations of a lease that succeeded.",
    "create_lease_seconds": "Time that the creation of a lease took.",
}
"""Help of the families that hold a metric of several operations, without the prefix."""
Kind = Literal["counter", "gauge", "histogram"]


def kind_of(measure: Measure) -> Kind:
    """Return the kind: a histogram for times, a gauge for states, a counter for everything else."""
    if measure.is_state:
        return "gauge"
    return "histogram" if measure.unit == "Milliseconds" else "counter"


def prometheus_name(measure: Measure) -> str | None:
    """Its name; None for the one of all shards together, which Prometheus works out by itself: max()."""
    if measure is APPLICATION_BEHIND_LATEST:
        return None
    if measure.name in _RENAMED:
        return PREFIX + _RENAMED[measure.name]
    words = snake_case(measure.name).replace(".", "_")
    if words.endswith("_time"):
        return f"{PREFIX}{words.removesuffix('_time')}_seconds"
    return PREFIX + words + ("_total" if kind_of(measure) == "counter" else "")


@dataclass(slots=True)
class _Histogram:
    sum: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))


class PrometheusSink:
    """A sink, and a collector of prometheus_client: `registry.register(sink)`, or `exposition()` for a page of its own.

    Series of a shard stay after its lease has gone, so that the last scrape sees all that was counted; its gauges go at
    once. Raises ConfigError where the package prometheus-client is not installed.
    """

    def __init__(self, runtime: Runtime, worker_id: str, *, dimensions: Sequence[str]) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ModuleNotFoundError:
            raise ConfigError(
                "metrics='prometheus' needs the package prometheus-client. Do: pip install 'pykcl[prometheus]'."
            ) from None
        self._runtime = runtime
        self._dimensions = frozenset(dimensions)
        self._registry: Any = CollectorRegistry()
        self.begin_anew(worker_id)
        self._registry.register(self)

    def begin_anew(self, worker_id: str) -> None:
        """Forget all values: from here on they are of this worker."""
        self._worker_id = worker_id
        self._lock = self._runtime.lock()
        self._numbers: dict[tuple[Measure, str], float] = {}
        self._histograms: dict[tuple[Measure, str], _Histogram] = {}
        self._left: OrderedDict[str, None] = OrderedDict()

    def take(self, label: str, values: Sequence[Value]) -> None:
        with self._lock:
            self._left.pop(label, None)
            for measure, value in values:
                key = (measure, label if measure.is_labelled else "")
                if measure.is_state:
                    self._numbers[key] = value / 1000 if measure.unit == "Milliseconds" else value
                elif measure.unit == "Milliseconds":
                    found = self._histograms.get(key)
                    if found is None:
                        found = self._histograms[key] = _Histogram()
                    found.sum += value / 1000
                    found.counts[bisect_left(BUCKETS, value / 1000)] += 1
                else:
                    self._numbers[key] = self._numbers.get(key, 0.0) + value

    def forget(self, shard: str) -> None:
        with self._lock:
            for key in [key for key in self._numbers if key[1] == shard and key[0].is_state]:
                del self._numbers[key]
            self._left[shard] = None
            self._left.move_to_end(shard)
            # A stream that is resharded for years must not fill the memory.
            while len(self._left) > MOST_LEFT_SHARDS:
                self._drop(self._left.popitem(last=False)[0])

    def exposition(self) -> tuple[bytes, str]:
        """The page for a scrape, and its content type."""
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Any]:
        """The families of prometheus_client, as it asks for them at a scrape."""
        with self._lock:
            numbers = dict(self._numbers)
            histograms = {key: (one.sum, tuple(one.counts)) for key, one in self._histograms.items()}
        for name, measures in _FAMILIES.items():
            labels = self._labels_of(measures)
            if kind_of(measures[0]) == "histogram":
                yield self._histogram(name, measures, labels, histograms)
            else:
                yield self._number(name, measures, labels, numbers)

    def describe(self) -> Iterable[Any]:
        """No family in advance: registering must not ask for them all."""
        return ()

    def _number(
        self,
        name: str,
        measures: Sequence[Measure],
        labels: Sequence[str],
        numbers: dict[tuple[Measure, str], float],
    ) -> Any:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        made = CounterMetricFamily if kind_of(measures[0]) == "counter" else GaugeMetricFamily
        family = made(name.removesuffix("_total"), _help(name, measures), labels=labels)
        for (measure, label), value in numbers.items():
            if measure in measures:
                family.add_metric(self._values(measure, label, labels), value)
        return family

    def _histogram(
        self,
        name: str,
        measures: Sequence[Measure],
        labels: Sequence[str],
        histograms: dict[tuple[Measure, str], tuple[float, tuple[int, ...]]],
    ) -> Any:
        from prometheus_client.core import HistogramMetricFamily
        from prometheus_client.utils import floatToGoString

        edges = [*map(floatToGoString, BUCKETS), "+Inf"]
        family = HistogramMetricFamily(name, _help(name, measures), labels=labels)
        for (measure, label), (total, counts) in histograms.items():
            if measure in measures:
                buckets = list(zip(edges, map(float, accumulate(counts)), strict=True))
                family.add_metric(self._values(measure, label, labels), buckets, total)
        return family

    def _labels_of(self, measures: Sequence[Measure]) -> list[str]:
        wanted = {name for measure in measures for name in measure.dimensions} & self._dimensions
        return [LABELS[name] for name in LABELS if name in wanted]

    def _values(self, measure: Measure, label: str, labels: Sequence[str]) -> list[str]:
        """One for each label, empty (which is to Prometheus as none) where this measure has none such."""
        known = {"operation": measure.operation}
        for name in measure.dimensions[1:]:
            known[LABELS[name]] = self._worker_id if name == "WorkerIdentifier" else label
        return [known.get(name, "") for name in labels]

    def _drop(self, shard: str) -> None:
        for number in [key for key in self._numbers if key[1] == shard]:
            del self._numbers[number]
        for histogram in [key for key in self._histograms if key[1] == shard]:
            del self._histograms[histogram]


def _help(name: str, measures: Sequence[Measure]) -> str:
    if len(measures) == 1:
        return measures[0].text
    return f"{_OF_SEVERAL[name.removeprefix(PREFIX)]} The label operation names the task."


def _families() -> dict[str, list[Measure]]:
    found: dict[str, list[Measure]] = {}
    for measure in CATALOGUE:
        name = prometheus_name(measure)
        if name is not None:
            found.setdefault(name, []).append(measure)
    return found


_FAMILIES = _families()
