"""The metrics pipeline of one worker by its Config: the meter, its sinks, and the publisher to CloudWatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pykcl.config import Config
from pykcl.metrics.catalog import ALL, DIMENSIONS, OPERATION, parts
from pykcl.metrics.cloudwatch import Failures, Publisher, Sender, Statistics
from pykcl.metrics.meter import Meter, MetricsSink
from pykcl.runtime import Runtime

if TYPE_CHECKING:
    from pykcl.metrics.prometheus import PrometheusSink


def dimensions_of(config: Config) -> tuple[str, ...]:
    """Return the enabled dimensions; Operation always is, as in KCL."""
    named = set(parts(config.metrics_dimensions))
    return DIMENSIONS if ALL in named else tuple(name for name in DIMENSIONS if name in named | {OPERATION})


class MetricsPipeline:
    """Created with the worker, so that a missing package is reported at once; sends nothing before `start`.

    sinks: of the application's own, besides those that `config` names. Raises ConfigError for a missing package.
    """

    def __init__(
        self, config: Config, runtime: Runtime, worker_id: str, sinks: Sequence[MetricsSink] = ()
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._publisher: Publisher | None = None
        self._statistics: Statistics | None = None
        self.prometheus: PrometheusSink | None = None
        kinds, dimensions = config.metrics_sinks, dimensions_of(config)
        own: list[MetricsSink] = []
        if "cloudwatch" in kinds:
            self._statistics = Statistics(runtime, config.metrics_queue_size)
            own.append(self._statistics)
        if "prometheus" in kinds:
            from pykcl.metrics.prometheus import PrometheusSink

            self.prometheus = PrometheusSink(runtime, worker_id, dimensions=dimensions)
            own.append(self.prometheus)
        if "otel" in kinds:
            from pykcl.metrics.opentelemetry import OpenTelemetrySink

            own.append(OpenTelemetrySink(worker_id, dimensions=dimensions))
        self.sinks: tuple[MetricsSink, ...] = (*own, *sinks)
        self.meter = Meter(runtime, self.sinks, level=config.metrics_level, dimensions=dimensions)

    def connect(self, sender: Callable[[], Sender], trouble: Failures) -> None:
        """sender: creates the sender to CloudWatch; called only where that is on. Raises what it raises."""
        if self._statistics is not None:
            interval = self._config.metrics_buffer_time
            self._publisher = Publisher(self._statistics, sender(), self._runtime, trouble, interval=interval)

    def start(self, name: str) -> None:
        """Start to publish, where CloudWatch is on."""
        if self._publisher is not None:
            self._publisher.start(name)

    def exposition(self) -> tuple[bytes, str] | None:
        """Return the page for Prometheus and its content type; None where Prometheus is off."""
        return self.prometheus.exposition() if self.prometheus is not None else None

    def stop(self, within: float) -> None:
        """Publish what is left, for `within` seconds at most."""
        if self._publisher is not None:
            self._publisher.stop(within)
