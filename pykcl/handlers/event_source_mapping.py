"""The event source mapping of a Lambda function as options of pykcl: of `aws lambda get-event-source-mapping`, of
`create-event-source-mapping`, or the properties of `AWS::Lambda::EventSourceMapping` as JSON.

Every key of the mapping gets a line that says what becomes of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pykcl.errors import ConfigError
from pykcl.handlers.filters import criteria_of
from pykcl.handlers.lambda_processor import FunctionName
from pykcl.handlers.windows import LONGEST
from pykcl.model.metered_json import NotJson, read_json

_STREAM = re.compile(
    r"(arn:[a-z0-9-]+:kinesis:[a-z0-9-]+:[0-9]{12}:stream/[A-Za-z0-9_.-]{1,128})(/consumer/.+)?\Z"
)
_SERVICES = {
    "dynamodb": "DynamoDB",
    "sqs": "SQS",
    "kafka": "Amazon MSK",
    "mq": "Amazon MQ",
    "rds": "Amazon DocumentDB",
}
_OTHER_SOURCES = {
    "SelfManagedEventSource": "Apache Kafka",
    "SelfManagedKafkaEventSourceConfig": "Apache Kafka",
    "AmazonManagedKafkaEventSourceConfig": "Amazon MSK",
    "DocumentDBEventSourceConfig": "Amazon DocumentDB",
    "Topics": "Apache Kafka",
    "Queues": "Amazon MQ",
}
_WITHOUT_COUNTERPART = {
    "UUID": "not used: names the mapping in Lambda",
    "EventSourceMappingArn": "not used: names the mapping in Lambda",
    "LastModified": "not used: state of the mapping in Lambda",
    "LastProcessingResult": "not used: state of the mapping in Lambda",
    "StateTransitionReason": "not used: state of the mapping in Lambda",
    "ResponseMetadata": "not used: of the answer of AWS",
    "Tags": "not used: pykcl has no tags",
    "KMSKeyArn": "not used: the patterns of this file are read as they are",
    "MetricsConfig": "not used: see metrics and metrics_level",
    "LoggingConfig": "not used: see --log-format and --verbose",
    "ScalingConfig": "not used: for SQS only",
    "ProvisionedPollerConfig": "not used: start as many processes as are needed (--processes)",
    "SourceAccessConfigurations": "not used: for other sources only",
}


@dataclass(frozen=True, slots=True)
class EventSourceMapping:
    """options: fields of Config. reports_failures: whether FunctionResponseTypes has ReportBatchItemFailures. window:
    seconds of a tumbling window; None: there are none. function: name or ARN of the function; "" if unknown. outcomes:
    what becomes of each key, in the order of the file."""

    options: Mapping[str, Any]
    reports_failures: bool = False
    filter_criteria: Mapping[str, Any] | None = None
    window: int | None = None
    function: str = ""
    outcomes: tuple[tuple[str, str], ...] = ()


def mapping_of(text: str) -> EventSourceMapping:
    """Parse a mapping. Raises ConfigError for what is none, is of another service, or has a value out of range."""
    try:
        found = read_json(text)
    except NotJson:
        raise ConfigError(
            "it is not JSON. Do: aws lambda get-event-source-mapping --uuid UUID > esm.json"
        ) from None
    found = _only_one(found)
    _refuse_other_sources(found)
    reading = _Reading()
    for key, value in found.items():
        read = _KEYS.get(key)
        if value is None and key != "EventSourceArn":
            outcome = "no value"
        elif read is not None:
            outcome = read(reading, key, value, found)
        else:
            outcome = _WITHOUT_COUNTERPART.get(key, "not used: pykcl does not know this key")
        reading.outcomes.append((key, outcome))
    return EventSourceMapping(
        reading.options,
        reading.reports_failures,
        reading.filter_criteria,
        reading.window,
        reading.function,
        tuple(reading.outcomes),
    )


@dataclass(slots=True)
class _Reading:
    options: dict[str, Any] = field(default_factory=dict)
    reports_failures: bool = False
    filter_criteria: Mapping[str, Any] | None = None
    window: int | None = None
    function: str = ""
    outcomes: list[tuple[str, str]] = field(default_factory=list)

    def set(self, name: str, value: Any) -> str:
        self.options[name] = value
        return f"{name}={value!r}"


def _only_one(found: Any) -> Mapping[str, Any]:
    listed = found.get("EventSourceMappings") if isinstance(found, Mapping) else None
    if isinstance(listed, list):
        if len(listed) != 1:
            raise ConfigError(
                f"it lists {len(listed)} mappings. Do: aws lambda get-event-source-mapping --uuid UUID, for one of them"
            )
        found = listed[0]
    if isinstance(found, Mapping) and isinstance(found.get("Properties"), Mapping):
        found = found["Properties"]  # a resource of a template
    if not isinstance(found, Mapping):
        raise ConfigError("it is not the JSON object of an event source mapping")
    return found


def _refuse_other_sources(found: Mapping[str, Any]) -> None:
    for key, service in _OTHER_SOURCES.items():
        if found.get(key):
            raise ConfigError(f"it is a mapping of {service} ({key}); pykcl reads Kinesis streams only")
    arn = found.get("EventSourceArn")
    if not isinstance(arn, str):
        raise ConfigError("it has no EventSourceArn that is text, so it is no mapping of a Kinesis stream")
    service = (arn.split(":") + [""] * 3)[2]
    if service in _SERVICES:
        raise ConfigError(
            f"it is a mapping of {_SERVICES[service]} ({arn[:200]}); pykcl reads Kinesis streams only"
        )
    if not _STREAM.match(arn):
        raise ConfigError(f"EventSourceArn {arn[:200]!r} is no ARN of a Kinesis stream")


# -- one function for each key that has a counterpart ---------------------------------------------------------


def _stream(reading: _Reading, key: str, value: Any, _: Mapping[str, Any]) -> str:
    stream, consumer = _STREAM.match(value).groups()  # type: ignore[union-attr]
    outcome = reading.set("stream", stream)
    return f"{outcome}; polled, and not read by its consumer with enhanced fan-out" if consumer else outcome


def _start(reading: _Reading, key: str, value: Any, found: Mapping[str, Any]) -> str:
    if value != "AT_TIMESTAMP":
        return reading.set("initial_position", _text(key, value))
    at = found.get("StartingPositionTimestamp")
    if at is None:
        raise ConfigError("StartingPosition is AT_TIMESTAMP, and there is no StartingPositionTimestamp")
    return reading.set("initial_position", _time(at))


def _start_time(reading: _Reading, key: str, value: Any, found: Mapping[str, Any]) -> str:
    if found.get("StartingPosition") == "AT_TIMESTAMP":
        return f"initial_position={_time(value)!r}"
    return "not used: StartingPosition is not AT_TIMESTAMP"


def _time(value: Any) -> str:
    if isinstance(value, str) and not _SECONDS.match(value):
        return value
    try:
        return datetime.fromtimestamp(float(value), UTC).isoformat()
    except (TypeError, ValueError, OverflowError, OSError):
        raise ConfigError(f"StartingPositionTimestamp is no time: {value!r:.100}") from None


def _batch_size(reading: _Reading, key: str, value: Any, _: Mapping[str, Any]) -> str:
    return reading.set("batch_size", _whole(key, value, 1, 10_000))


def _window(reading: _Reading, key: str, value: Any, _: Mapping[str, Any]) -> str:
    return reading.set("batch_window", float(_whole(key, value, 0, 300)))


def _parallelization(reading: _Reading, key: str, value: Any, _: Mapping[str, Any]) -> str:
    if (factor := _whole(key, value, 1, 10)) == 1:
        return "as here: one call at a time for each shard"
    return (
        f"not used: use --processes {factor}, where each has a copy of the module, as in Lambda; one process makes one "
        f"call at a time. Only if calls share nothing that they change: --handler-is-thread-safe --concurrency {factor}"
    )


def _retries(reading: _Reading, key: str, value: Any, _: Mapping[str, Any]) -> str:
    retries = _whole(key, value, -1, 10_000)
    return reading.set("max_attempts", None if retries < 0 else retries + 1)


def _age(reading: _Reading, key: str, value: Any, _: Mapping[str, Any]) -> str:
    seconds = _whole(key, value, -1, 604_800)
    return reading.set("max_record_age", None if seconds < 0 else float(seconds))


def _bisect(reading: _Reading, key: str, value: Any, _: Mapping[str, Any]) -> str:
    return reading.set("bisect", _flag(key, value))


def _response_types(reading: _Reading, key: str, value: Any, _: Mapping[str, Any]) -> str:
    if not isinstance(value, list) or not set(map(str, value)) <= {"ReportBatchItemFailures"}:
        raise ConfigError(f"{key} is a list with ReportBatchItemFailures, or an empty one: {value!r:.100}")
    reading.reports_failures = bool(value)
    return "--report-batch-item-failures" if value else "the response is ignored"


def _destination(reading: _Reading, key: str, value: Any, _: Mapping[str, Any]) -> str:
    given = _object(key, value)
    arn = _object(f"{key}.OnFailure", given.get("OnFailure")).get("Destination")
    outcome = "no destination" if arn is None else reading.set("dead_letters", _text(f"{key}.OnFailure", arn))
    if _object(f"{key}.OnSuccess", given.get("OnSuccess")):
        outcome += "; OnSuccess not used: Lambda has it for other sources only"
    return outcome


def _tumbling(reading: _Reading, key: str, value: Any, _: Mapping[str, Any]) -> str:
    reading.window = _whole(key, value, 0, LONGEST) or None
    return "no windows" if reading.window is None else f"--window {value}"


def _filters(reading: _Reading, key: str, value: Any, _: Mapping[str, Any]) -> str:
    if criteria_of(value) is None:
        return "no filter"
    reading.filter_criteria = value
    count = len(value["Filters"])
    return f"{count} pattern{'' if count == 1 else 's'}"


def _filter_error(reading: _Reading, key: str, value: Any, _: Mapping[str, Any]) -> str:
    if value:
        raise ConfigError(
            f"{key}: the patterns could not be read, so that the handler would get every record"
        )
    return "no error"


def _function(reading: _Reading, key: str, value: Any, _: Mapping[str, Any]) -> str:
    """Note the function; a reference in a template is no name yet."""
    try:
        name = FunctionName.parse(value)
    except ConfigError:
        return "not used: no name or ARN of a function; see --function-name"
    reading.function = value
    return f"--function-name {name.name}; --lambda names the handler"


def _state(reading: _Reading, key: str, value: Any, _: Mapping[str, Any]) -> str:
    if value in ("Disabled", "Disabling", False, "false"):
        return "not used: the worker runs all the same"
    return "not used. As long as the mapping is enabled, Lambda processes the same records, too"


_KEYS: dict[str, Callable[[_Reading, str, Any, Mapping[str, Any]], str]] = {
    "EventSourceArn": _stream,
    "StartingPosition": _start,
    "StartingPositionTimestamp": _start_time,
    "BatchSize": _batch_size,
    "MaximumBatchingWindowInSeconds": _window,
    "ParallelizationFactor": _parallelization,
    "MaximumRetryAttempts": _retries,
    "MaximumRecordAgeInSeconds": _age,
    "BisectBatchOnFunctionError": _bisect,
    "FunctionResponseTypes": _response_types,
    "DestinationConfig": _destination,
    "TumblingWindowInSeconds": _tumbling,
    "FilterCriteria": _filters,
    "FilterCriteriaError": _filter_error,
    "FunctionArn": _function,
    "FunctionName": _function,
    "State": _state,
    "Enabled": _state,
}


# -- values ----------------------------------------------------------------------------------------------------


_DIGITS = re.compile(r"-?[0-9]{1,9}\Z")
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?\Z")
_FLAGS = {"true": True, "false": False}


def _whole(key: str, value: Any, least: int, most: int) -> int:
    # CloudFormation writes numbers and flags as text, too.
    if isinstance(value, str) and _DIGITS.match(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{key} is a whole number from {least} to {most}: {value!r:.100}")
    return value


def _flag(key: str, value: Any) -> bool:
    value = _FLAGS.get(value, value) if isinstance(value, str) else value
    if not isinstance(value, bool):
        raise ConfigError(f"{key} is true or false: {value!r:.100}")
    return value


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{key} is text: {value!r:.100}")
    return value


def _object(key: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} is an object: {value!r:.100}")
    return value
