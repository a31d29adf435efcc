"""Which keys of a file decide each field of Config, in the order in which they count."""

from __future__ import annotations

from collections.abc import Mapping

from pykcl.compat.properties.keys import KEYS

_BY_HAND: Mapping[str, tuple[str, ...]] = {
    "application": ("applicationName",),
    "stream": ("streamArn", "streamName"),
    "table_name": ("tableName",),
    "region": ("regionName",),
    "worker_id": ("workerId",),
    "start": ("initialPositionInStreamExtended", "initialPositionInStream"),
    "cleanup_interval": ("cleanupLeasesUponShardCompletion",),
    "processor_timeout": ("timeoutInSeconds",),
    "state_table": ("coordinatorStateTableName",),
    "metrics_level": ("metricsLevel",),
    "metrics_dimensions": ("metricsEnabledDimensions",),
}
"""Of the keys that are more than a number or a flag."""

KEYS_OF_FIELD: Mapping[str, tuple[str, ...]] = {
    **_BY_HAND,
    **{key.effect.field: (key.name,) for key in KEYS.values() if key.effect is not None},
}
"""Field of Config -> keys. A field that no key decides is not in it."""
