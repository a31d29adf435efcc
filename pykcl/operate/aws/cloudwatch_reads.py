"""Reads the lag of workers from CloudWatch: GetMetricData of KCL's MillisBehindLatest, shard by shard.

Facts of the CloudWatch API (2010-08-01) this rests on: a call names at most 500 metrics, and its pages are linked by
NextToken; a datapoint stands for a period and has its start; the Id of a query starts with a lower-case letter; the
StatusCode of a result without values may be InternalError or Forbidden. AWS charges by requested metric, not by call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from pykcl.aws.errors import MALFORMED, aws_errors, calling, sort_failure
from pykcl.errors import PyKclError, TemporaryError
from pykcl.metrics.catalog import MILLIS_BEHIND_LATEST

_WINDOW = 600.0
"""Seconds before now in which values are read."""
_MAX_METRICS = 500
_PERIOD = 60
_DOING = "asking CloudWatch for MillisBehindLatest (cloudwatch:GetMetricData)"
_BAD = frozenset({"InternalError", "Forbidden"})


@dataclass(frozen=True, slots=True)
class ReportedLag:
    """millis: the maximum of one minute. at_millis: the start of that minute, epoch milliseconds."""

    millis: float
    at_millis: int


class MetricReader:
    """client: of boto3, for CloudWatch; it retries by itself.

    namespace: of KCL's metrics, which is the application's name unless configured.
    """

    def __init__(self, client: Any, namespace: str) -> None:
        self._cloudwatch, self.namespace = client, namespace

    def behind(self, shards: Sequence[str], now_millis: int) -> dict[str, ReportedLag]:
        """Return the newest value of the last ten minutes by shard id; shards without one are left out.

        Raises SetupError, TemporaryError, ConfigError as any call of AWS.
        """
        found: dict[str, ReportedLag] = {}
        for first in range(0, len(shards), _MAX_METRICS):
            found |= self._some(shards[first : first + _MAX_METRICS], now_millis)
        return found

    def _some(self, shards: Sequence[str], now_millis: int) -> dict[str, ReportedLag]:
        now = datetime.fromtimestamp(now_millis / 1000, tz=timezone.utc)
        request: dict[str, Any] = {
            "MetricDataQueries": [self._query(f"s{at}", shard) for at, shard in enumerate(shards)],
            "StartTime": now - timedelta(seconds=_WINDOW),
            # The current minute has datapoints, too.
            "EndTime": now + timedelta(seconds=_PERIOD),
            "ScanBy": "TimestampDescending",
        }
        found: dict[str, ReportedLag] = {}
        failure: PyKclError
        try:
            while True:
                answer = calling(self._cloudwatch.get_metric_data)(**request)
                for result in answer["MetricDataResults"]:
                    _fold(found, shards[int(result["Id"][1:])], result)
                if not answer.get("NextToken"):
                    return found
                request["NextToken"] = answer["NextToken"]
        except PyKclError:
            raise
        except aws_errors() as error:
            failure = sort_failure(error, doing=_DOING)
        except MALFORMED as error:
            failure = TemporaryError(f"{_DOING} got an answer that cannot be read ({type(error).__name__}).")
        raise failure

    def _query(self, name: str, shard: str) -> Mapping[str, Any]:
        dimensions = {"Operation": MILLIS_BEHIND_LATEST.operation, "ShardId": shard}
        metric = {
            "Namespace": self.namespace,
            "MetricName": MILLIS_BEHIND_LATEST.name,
            "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
        }
        return {"Id": name, "MetricStat": {"Metric": metric, "Period": _PERIOD, "Stat": "Maximum"}}


def _fold(found: dict[str, ReportedLag], shard: str, result: Mapping[str, Any]) -> None:
    if result.get("StatusCode") in _BAD:
        raise TemporaryError(f"{_DOING} was not answered for {shard} ({result['StatusCode']}). Try again.")
    for at, value in zip(result["Timestamps"], result["Values"], strict=True):
        at_millis = round(at.timestamp() * 1000)
        if shard not in found or at_millis > found[shard].at_millis:
            found[shard] = ReportedLag(float(value), at_millis)
