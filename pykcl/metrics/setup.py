"""The metrics pipeline of a worker or producer by its Config: the meter, its sinks, and the publisher to CloudWatch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pykcl.config import Config
from pykcl.errors import ConfigError
from pykcl.metrics.catalog import ALL, CATALOGUE, DIMENSIONS, OPERATION, Measure, parts
from pykcl.metrics.cloudwatch import Failures, Publisher, Sender, Statistics
from pykcl.metrics.meter import Meter, MetricsSink
from pykcl.runtime import Runtime

if TYPE_CHECKING:
    from pykcl.metrics.opentelemetry import OpenTelemetrySink
    from pykcl.metrics.prometheus import PrometheusSink


def dimensions_of(config: Config) -> tuple[str, ...]:
    """Return the enabled dimensions; Operation always is, as in KCL."""
    named = set(parts(config.metrics_dimensions))
    return DIMENSIONS if ALL in named else tuple(name for name in DIMENSIONS if name in named | {OPERATION})


def given_sinks(given: Any) -> tuple[MetricsSink, ...]:
    """Return the sinks of metrics_sinks=; None is none. Raises ConfigError."""
    if given is not None and (isinstance(given, str) or not isinstance(given, Iterable)):
        raise ConfigError(
            f"metrics_sinks={type(given).__name__} is no list of sinks. Do: metrics_sinks=[sink]; a sink of pykcl's "
            "own is an option, such as metrics='otel'."
        )
    found = tuple(each for each in given or () if each is not None)
    for each in found:
        missing = [name for name in ("take", "forget") if not callable(getattr(each, name, None))]
        if missing:
            raise ConfigError(
                f"metrics_sinks= holds {type(each).__name__}, which is no sink: it has no {' and no '.join(missing)}. "
                "Do: write both, as in pykcl.MetricsSink."
            )
    return found


class MetricsPipeline:
    """Created with the worker, so that a missing package is reported at once; sends nothing before `start`.

    It measures once `begin_anew` was called. sinks: of the application's own, besides those that `config` names. Raises
    ConfigError for a missing package. catalogue, dimensions: of what is measured; by default those of a worker.
    """

    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        sinks: Sequence[MetricsSink] = (),
        *,
        catalogue: Sequence[Measure] = CATALOGUE,
        dimensions: Sequence[str] | None = None,
    ) -> None:
        self._config, self._runtime, self._given = config, runtime, tuple(sinks)
        self.dimensions = dimensions = tuple(dimensions or dimensions_of(config))
        self.prometheus: PrometheusSink | None = None
        self._otel: OpenTelemetrySink | None = None
        if "prometheus" in config.metrics_sinks:
            from pykcl.metrics.prometheus import PrometheusSink

            self.prometheus = PrometheusSink(runtime, "", dimensions=dimensions, catalogue=catalogue)
        if "otel" in config.metrics_sinks:
            from pykcl.metrics.opentelemetry import OpenTelemetrySink

            self._otel = OpenTelemetrySink("", dimensions=dimensions)

    def begin_anew(self, owner: str) -> None:
        """Measure from here on as this worker, or as a producer of this stream.

        What was measured before is forgotten, as that of another process.

        Called right after a fork, too: it takes no lock. Sinks that the application may have registered stay.
        """
        config = self._config
        self._publisher: Publisher | None = None
        self._statistics: Statistics | None = None
        own: list[MetricsSink] = []
        if "cloudwatch" in config.metrics_sinks:
            self._statistics = Statistics(self._runtime, config.metrics_queue_size)
            own.append(self._statistics)
        for kept in (self.prometheus, self._otel):
            if kept is not None:
                kept.begin_anew(owner)
                own.append(kept)
        self.sinks: tuple[MetricsSink, ...] = (*own, *self._given)
        self.meter = Meter(self._runtime, self.sinks, level=config.metrics_level, dimensions=self.dimensions)

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
