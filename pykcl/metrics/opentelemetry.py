"""OpenTelemetry: instruments and attributes of KCL 3.5 (`OtelMetricsScope`, `OtelMetricNameTransformer`).

Only the API is used: which provider, reader and exporter there are is the application's choice, and without one every
value is dropped by the API itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pykcl.errors import ConfigError
from pykcl.metrics.catalog import PRODUCER_CATALOGUE, Measure, snake_case
from pykcl.metrics.meter import Value

METER = "software.amazon.kinesis"
PREFIX = "aws.kinesis.client."
ATTRIBUTES = {
    "Operation": "aws.kinesis.operation",
    "StreamName": "aws.kinesis.stream.name",
    "ShardId": "aws.kinesis.shard.id",
    "WorkerIdentifier": "aws.kinesis.consumer.name",
    "Cause": "aws.kinesis.cause",
    "ErrorCode": "aws.kinesis.error.code",
}
_RENAMED = {
    "MillisBehindLatest": "consumer.lag.duration",
    "DataBytesProcessed": "records.size",
    "NumStreamsToSync": "streams.pending_sync",
    "NumWorkers": "workers",
}
_GAUGES = frozenset(
    {"CurrentLeases", "TotalLeases", "NumWorkers", "ExpiredLeases", "VeryOldLeases", "NumStreamsToSync"}
    | {one.name for one in PRODUCER_CATALOGUE if one.is_state}
)
"""Counts that Java records as they are, and states of a producer; all other counts are added up."""
MOST_REMEMBERED = 50_000
"""Attributes of values, by metric and shard."""
_UNITS = {"Count": "1", "Milliseconds": "ms", "Bytes": "By", "Percent": "%"}


def otel_name(name: str) -> str:
    """Return the name of the instrument for a name of KCL."""
    if name in _RENAMED:
        return PREFIX + _RENAMED[name]
    if name.endswith(".Time"):
        name = name.removesuffix(".Time") + ".duration"
    return PREFIX + snake_case(name.removesuffix(".Count"))


class OpenTelemetrySink:
    """meter_provider: an opentelemetry.metrics.MeterProvider, by default the global one.

    Raises ConfigError where the package opentelemetry-api is not installed.
    """

    def __init__(self, owner: str, *, dimensions: Sequence[str], meter_provider: Any = None) -> None:
        try:
            from opentelemetry.metrics import get_meter
        except ModuleNotFoundError:
            raise ConfigError(
                "metrics='otel' needs the package opentelemetry-api. Do: pip install 'pykcl[otel]'."
            ) from None
        from pykcl import __version__

        self._meter = get_meter(METER, __version__, meter_provider)
        self._dimensions = frozenset(dimensions)
        self._record: dict[Measure, Callable[[float, Mapping[str, str]], None]] = {}
        self.begin_anew(owner)

    def begin_anew(self, owner: str) -> None:
        """Name this worker, or this stream of a producer, from here on."""
        self._owner = owner
        self._attributes: dict[tuple[Measure, str], Mapping[str, str]] = {}

    def take(self, label: str, values: Sequence[Value]) -> None:
        for measure, value in values:
            record = self._record.get(measure)
            if record is None:
                # Two threads may both come here: the API gives both the same instrument.
                record = self._record[measure] = self._instrument(measure)
            key = (measure, label if measure.is_labelled else "")
            attributes = self._attributes.get(key)
            if attributes is None:
                if len(self._attributes) >= MOST_REMEMBERED:
                    # What is measured behind the end of a lease is remembered once more, for shards of years.
                    self._attributes = {}
                attributes = self._attributes[key] = self._attributes_of(*key)
            record(value, attributes)

    def forget(self, shard: str) -> None:
        """A value that was recorded cannot be taken back; only what is remembered of the shard is dropped."""
        for key in [key for key in tuple(self._attributes) if key[1] == shard]:
            self._attributes.pop(key, None)

    def _instrument(self, measure: Measure) -> Callable[[float, Mapping[str, str]], None]:
        name, unit = otel_name(measure.name), _UNITS[measure.unit]
        if measure.name in _GAUGES:
            gauge: Callable[[float, Mapping[str, str]], None] = self._meter.create_gauge(name, unit).set
            return gauge
        if measure.unit == "Count":
            counter: Callable[[float, Mapping[str, str]], None] = self._meter.create_counter(name, unit).add
            return counter
        histogram: Callable[[float, Mapping[str, str]], None] = self._meter.create_histogram(
            name, unit
        ).record
        return histogram

    def _attributes_of(self, measure: Measure, label: str) -> Mapping[str, str]:
        found = {}
        for dimension in measure.dimensions:
            if dimension in self._dimensions:
                value = measure.value_of(dimension, label, self._owner)
                if value:
                    found[ATTRIBUTES[dimension]] = value
        return found
