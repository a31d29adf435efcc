"""Sends statistics to CloudWatch: PutMetricData, under KCL's names and dimensions.

Requests above 10 KiB are sent gzipped; botocore does that for PutMetricData by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pykcl.aws.clients import cloudwatch_client
from pykcl.aws.errors import MALFORMED, aws_errors, calling, error_code, sort_failure
from pykcl.config import Config
from pykcl.errors import SetupError, TemporaryError
from pykcl.metrics.cloudwatch import SendAnswer, StatisticSet
from pykcl.metrics.setup import dimensions_of

_DOING = "sending metrics to CloudWatch"
_FOREIGN = re.compile(r"[^\x20-\x7e]")
_LONGEST = 1024
_NEVER_ARRIVED = frozenset(
    {"EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "SSLError", "ConnectionError"}
)
"""Exceptions of botocore, by name: the connection was not made, so that the request was certainly not heard."""


class CloudWatchSender:
    """A `metrics.cloudwatch.Sender`. client: of boto3, for CloudWatch. owner: the worker, or the stream of a producer.
    dimensions: the names that are on."""

    def __init__(self, client: Any, namespace: str, owner: str, dimensions: Sequence[str]) -> None:
        self._client = client
        self._namespace = namespace
        self._owner = owner
        self._dimensions = frozenset(dimensions)

    def send(self, sets: Sequence[StatisticSet], /) -> SendAnswer:
        data = [self._datum(one) for one in sets]
        try:
            calling(self._client.put_metric_data)(Namespace=self._namespace, MetricData=data)
        except aws_errors() as error:
            failure = sort_failure(error, doing=_DOING)
            # PutMetricData adds up: what may have arrived must not be sent again.
            answered = error_code(error) is not None
            arrived = not answered and type(error).__name__ not in _NEVER_ARRIVED
            again = isinstance(failure, TemporaryError) and not arrived
            return SendAnswer("later" if again else "lost", failure)
        except MALFORMED as error:
            return SendAnswer(
                "lost", SetupError(f"{_DOING} got no answer of CloudWatch's ({type(error).__name__}).")
            )
        return SendAnswer("sent")

    def _datum(self, one: StatisticSet) -> Mapping[str, Any]:
        return {
            "MetricName": one.measure.name,
            "Dimensions": [
                {"Name": name, "Value": value} for name, value in self._dimensions_of(one) if value
            ],
            "Timestamp": datetime.fromtimestamp(one.at_millis / 1000, tz=UTC),
            "StatisticValues": {
                "SampleCount": float(one.count),
                "Sum": float(one.sum),
                "Minimum": float(one.minimum),
                "Maximum": float(one.maximum),
            },
            "Unit": one.measure.unit,
        }

    def _dimensions_of(self, one: StatisticSet) -> list[tuple[str, str]]:
        return [
            (name, _allowed(one.measure.value_of(name, one.label, self._owner)))
            for name in one.measure.dimensions
            if name in self._dimensions
        ]


def cloudwatch_sender(
    config: Config,
    owner: str,
    *,
    dimensions: Sequence[str] | None = None,
    session: Any = None,
    clients: Mapping[str, Any] | None = None,
) -> CloudWatchSender:
    """dimensions: None: those that `config` names. clients: as in `connect`.

    Raises ConfigError without a region, SetupError without credentials.
    """
    client = (clients or {}).get("cloudwatch") or cloudwatch_client(config, session=session)
    namespace = config.metrics_namespace or config.application
    return CloudWatchSender(client, namespace, owner, dimensions or dimensions_of(config))


def _allowed(value: str) -> str:
    """CloudWatch takes printable ASCII, and would refuse the whole batch for anything else."""
    return _FOREIGN.sub("?", value)[:_LONGEST]
