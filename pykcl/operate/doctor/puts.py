"""A stream that a program puts into: the permission, by a dry run, the room that there is, and what was throttled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from pykcl.aws.errors import MALFORMED, OPERATOR, answer_of
from pykcl.errors import PyKclError
from pykcl.operate.aws.iam import Probe, Prober, Trouble, is_aws
from pykcl.operate.doctor.facts import Facts, StreamFacts
from pykcl.operate.doctor.findings import Finding, command, found, many
from pykcl.runtime import Runtime

MIB = 1024 * 1024
THROTTLED_WITHIN = 900
"""Seconds in which records that Kinesis refused are counted."""
_PUT = "kinesis:PutRecords"
_KEY = "dry run"
_KEY_OF_AWS = "alias/aws/kinesis"


def dry_put(client: Any, named: Mapping[str, Any], runtime: Runtime) -> Probe | None:
    """Ask Kinesis for a dry run of a put; None where that could put the record. named: the stream, as in a request.

    Only Kinesis of AWS is asked: another endpoint may not know the member, and would put the record. A dry run checks
    no key of an encrypted stream. Sources: "Test your permissions and request inputs with dry run" in the developer
    guide of Kinesis, and botocore, which has the member since September 2026.
    """
    members = client.meta.service_model.operation_model("PutRecords").input_shape.members
    if "DryRun" not in members or not _is_kinesis_of_aws(client.meta.endpoint_url):
        return None
    # One by itself: the error that a dry run ends with is none.
    prober = Prober(runtime)
    one = {"Data": _KEY.encode(), "PartitionKey": _KEY}
    prober.ask(_PUT, lambda: client.put_records(**named, Records=[one], DryRun=True))
    trouble = prober.trouble_of(_PUT)
    if trouble is None:
        put = f"A dry run was answered as a put: there may be a record with the partition key {_KEY!r}."
        return Probe(_PUT, Trouble("refused", put))
    return Probe(_PUT, None if trouble.code == "DryRunOperationException" else trouble)


def _is_kinesis_of_aws(endpoint: str) -> bool:
    url = urlsplit(endpoint)
    return (
        url.scheme == "https"
        and is_aws(endpoint)
        and (url.hostname or "").startswith(("kinesis.", "kinesis-fips."))
    )


def throttled_puts(client: Any, stream: str, runtime: Runtime) -> int | None:
    """Return the records that Kinesis has refused for the rate of a shard within THROTTLED_WITHIN, whoever put them.

    client: of boto3, for CloudWatch. None where it does not answer: few may call GetMetricData, and none need it.
    """
    now = datetime.fromtimestamp(runtime.utcnow_millis() / 1000, tz=UTC)
    metric = {
        "Namespace": "AWS/Kinesis",
        "MetricName": "WriteProvisionedThroughputExceeded",
        "Dimensions": [{"Name": "StreamName", "Value": stream}],
    }
    # By the minute: a longer period that begins before StartTime is left out.
    query = {"Id": "refused", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}}
    request = {
        "MetricDataQueries": [query],
        "StartTime": now - timedelta(seconds=THROTTLED_WITHIN),
        "EndTime": now,
    }
    try:
        answer = answer_of(
            "Asking CloudWatch for refused records", client.get_metric_data, request, who=OPERATOR
        )
        values = [float(value) for one in answer["MetricDataResults"] for value in one["Values"]]
    except (PyKclError, *MALFORMED):
        return None
    return round(sum(values))


def check_puts(facts: Facts) -> Iterator[Finding]:
    """Return the findings about the room for records. Pure."""
    stream = facts.stream
    if stream is None or not stream.open_shards or stream.shards is None:
        return
    yield found("puts-ok", _room(stream))
    if facts.throttled_puts:
        more = command("aws", "kinesis", "update-shard-count", "--stream-name", stream.name) + (
            f" --target-shard-count {2 * stream.open_shards} --scaling-type UNIFORM_SCALING"
        )
        yield found(
            "puts-throttled",
            f"Kinesis has refused {many(facts.throttled_puts, 'record')} within {THROTTLED_WITHIN // 60} minutes, as "
            "more was put into a shard than it takes (WriteProvisionedThroughputExceeded). A producer puts them again, "
            "later. Either one partition key has too many records, or there are too few shards.",
            # Kinesis refuses that for an on-demand stream, whose shards it splits by itself.
            command("pykcl", "streams", "describe", stream.name, "--tree")
            if stream.mode == "ON_DEMAND"
            else more,
        )
    if stream.encryption == "KMS" and not (stream.key_id or "").endswith(_KEY_OF_AWS):
        yield found(
            "key-untried",
            "The stream is encrypted with a key of your own: a producer needs kms:GenerateDataKey on it. Nothing "
            "short of a put shows whether it has that.",
            command("pykcl", "streams", "describe", stream.name) + "   (names the key)",
        )


def _room(stream: StreamFacts) -> str:
    shards, largest = stream.open_shards or 0, stream.largest_record / MIB
    grows = "; Kinesis adds shards as more is put" if stream.mode == "ON_DEMAND" else ""
    return (
        f"{many(shards, 'open shard')} for {shards:,} MiB and {shards * 1000:,} Kinesis records a second{grows}. A "
        f"record has at most {largest:g} MiB with its partition key"
    )
