"""Prometheus: KCL's names with Prometheus' units, collected at each scrape.

Values are added up here and turned into the library's families at each scrape, so that measuring costs two look-ups.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import add
from typing import Any, Literal

from pykcl.errors import ConfigError
from pykcl.metrics.catalog import APPLICATION_BEHIND_LATEST, CATALOGUE, PRODUCER, Measure, snake_case
from pykcl.metrics.meter import Value
from pykcl.runtime import Runtime

PREFIX = "pykcl_"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper edges in seconds; one more bucket takes the rest."""
LEAVES_AFTER = 300.0
"""Seconds for which the counts of a shard that has left stay: some scrapes, so that each has seen the last ones."""
MOST_LEFT_SHARDS = 1000
"""Shards that have left and stay, at most; beyond it the first ones leave sooner."""
_ALL_SHARDS = "_all_shards"
LABELS = {
    "Operation": "operation",
    "StreamName": "stream",
    "ShardId": "shard",
    "WorkerIdentifier": "worker",
    "Cause": "cause",
    "ErrorCode": "error",
}
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
    if measure.operation == PRODUCER:
        words = f"producer_{words}"
    if words.endswith("_time"):
        return f"{PREFIX}{words.removesuffix('_time')}_seconds"
    return PREFIX + words + ("_total" if kind_of(measure) == "counter" else "")


@dataclass(slots=True)
class _Histogram:
    sum: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))


_Numbers = Mapping[tuple[Measure, str], float]
_Histograms = Mapping[tuple[Measure, str], tuple[float, tuple[int, ...]]]


class PrometheusSink:
    """A sink, and a collector of prometheus_client: `registry.register(sink)`, or `exposition()` for a page of its own.

    The gauges of a shard go with its lease, its counters and histograms LEAVES_AFTER that. Each of these has a family
    of all shards together, without the label, in which they stay. That is no series of the same family: what it took
    over from a shard would be an increase to rate(), which has seen it as the shard's already.
    Raises ConfigError where the package prometheus-client is not installed.
    """

    def __init__(
        self,
        runtime: Runtime,
        owner: str,
        *,
        dimensions: Sequence[str],
        catalogue: Sequence[Measure] = CATALOGUE,
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ModuleNotFoundError:
            raise ConfigError(
                "metrics='prometheus' needs the package prometheus-client. Do: pip install 'pykcl[prometheus]'."
            ) from None
        self._runtime = runtime
        self._dimensions = frozenset(dimensions)
        self._of_name, self._of_total = _by(prometheus_name, catalogue), _by(total_name, catalogue)
        self._registry: Any = CollectorRegistry()
        self.begin_anew(owner)
        self._registry.register(self)

    def begin_anew(self, owner: str) -> None:
        """Forget all values: from here on they are of this worker, or of a producer of this stream."""
        self._owner = owner
        self._lock = self._runtime.lock()
        self._numbers: dict[tuple[Measure, str], float] = {}
        self._histograms: dict[tuple[Measure, str], _Histogram] = {}
        # Shards that have left, and when; and those that were measured again, and when last: such a one is back, or
        # something of it ended behind its lease, which is to leave, too.
        self._left: OrderedDict[str, float] = OrderedDict()
        self._back: OrderedDict[str, float] = OrderedDict()
        # What was counted of shards whose series have gone.
        self._past_numbers: dict[Measure, float] = {}
        self._past_histograms: dict[Measure, _Histogram] = {}

    def take(self, label: str, values: Sequence[Value]) -> None:
        with self._lock:
            if self._left.pop(label, None) is not None or label in self._back:
                self._back[label] = self._runtime.monotonic()
                self._back.move_to_end(label)
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
            self._back.pop(shard, None)
            self._left[shard] = self._runtime.monotonic()
            self._left.move_to_end(shard)
            self._drop_old()

    def exposition(self) -> tuple[bytes, str]:
        """The page for a scrape, and its content type."""
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Any]:
        """The families of prometheus_client, as it asks for them at a scrape."""
        with self._lock:
            self._drop_old()
            numbers = dict(self._numbers)
            histograms = {key: (one.sum, tuple(one.counts)) for key, one in self._histograms.items()}
            past = (
                self._past_numbers.copy(),
                {measure: (one.sum, tuple(one.counts)) for measure, one in self._past_histograms.items()},
            )
        yield from self._families(self._of_name, self._dimensions, numbers, histograms)
        if "ShardId" in self._dimensions:
            of_shards = {measure for measures in self._of_total.values() for measure in measures}
            totals = _totals(of_shards, numbers, histograms, *past)
            yield from self._families(self._of_total, self._dimensions - {"ShardId"}, *totals)

    def _families(
        self,
        families: Mapping[str, Sequence[Measure]],
        dimensions: frozenset[str],
        numbers: _Numbers,
        histograms: _Histograms,
    ) -> Iterator[Any]:
        for name, measures in families.items():
            wanted = {name for measure in measures for name in measure.dimensions} & dimensions
            labels = [LABELS[name] for name in LABELS if name in wanted]
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
        numbers: _Numbers,
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
        histograms: _Histograms,
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

    def _values(self, measure: Measure, label: str, labels: Sequence[str]) -> list[str]:
        """One for each label, empty (which is to Prometheus as none) where this measure has none such."""
        known = {LABELS[name]: measure.value_of(name, label, self._owner) for name in measure.dimensions}
        return [known.get(name, "") for name in labels]

    def _drop_old(self) -> None:
        """Move what was counted of shards that left long ago to the past."""
        until = self._runtime.monotonic() - LEAVES_AFTER
        gone = set()
        # A stream that is resharded for years must not fill the memory, nor one whose leases all move at once.
        while len(self._left) > MOST_LEFT_SHARDS:
            gone.add(self._left.popitem(last=False)[0])
        for some in (self._left, self._back):
            while some and next(iter(some.values())) <= until:
                gone.add(some.popitem(last=False)[0])
        if not gone:
            return
        for measure, shard in [key for key in self._numbers if key[1] in gone]:
            value = self._numbers.pop((measure, shard))
            if not measure.is_state:
                self._past_numbers[measure] = self._past_numbers.get(measure, 0.0) + value
        for measure, shard in [key for key in self._histograms if key[1] in gone]:
            one = self._histograms.pop((measure, shard))
            past = self._past_histograms.setdefault(measure, _Histogram())
            past.sum += one.sum
            past.counts = list(map(add, past.counts, one.counts))


def _totals(
    of_shards: Collection[Measure],
    numbers: _Numbers,
    histograms: _Histograms,
    past_numbers: Mapping[Measure, float],
    past_histograms: Mapping[Measure, tuple[float, tuple[int, ...]]],
) -> tuple[_Numbers, _Histograms]:
    """Return the sums over all shards, and the past. Each counter is there from the begin, as rate() misses what a
    series begins with."""
    sums = {one: 0.0 for one in of_shards if kind_of(one) == "counter" and one.level == "SUMMARY"}
    sums |= past_numbers
    for (measure, _), value in numbers.items():
        if measure in of_shards:
            sums[measure] = sums.get(measure, 0.0) + value
    times = dict(past_histograms)
    nothing = (0.0, (0,) * (len(BUCKETS) + 1))
    for (measure, _), (total, counts) in histograms.items():
        if measure in of_shards:
            before = times.get(measure, nothing)
            times[measure] = before[0] + total, tuple(map(add, before[1], counts))
    return {(measure, ""): value for measure, value in sums.items()}, {
        (measure, ""): value for measure, value in times.items()
    }


def _help(name: str, measures: Sequence[Measure]) -> str:
    text = measures[0].text
    if len(measures) > 1:
        text = f"{_OF_SEVERAL[name.removeprefix(PREFIX).replace(_ALL_SHARDS, '')]} The label operation names the task."
    return f"{text} All shards together, also those that have left." if _ALL_SHARDS in name else text


def _by(name_of: Callable[[Measure], str | None], catalogue: Sequence[Measure]) -> dict[str, list[Measure]]:
    found: dict[str, list[Measure]] = {}
    for measure in catalogue:
        name = name_of(measure)
        if name is not None:
            found.setdefault(name, []).append(measure)
    return found


def total_name(measure: Measure) -> str | None:
    """Return the name of the family that is the sum over all shards; None for what is no counter of a shard."""
    name = prometheus_name(measure)
    if name is None or measure.dimension != "ShardId" or measure.is_state:
        return None
    end = "_total" if kind_of(measure) == "counter" else "_seconds"
    return f"{name.removesuffix(end)}{_ALL_SHARDS}{end}"
