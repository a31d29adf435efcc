"""Convert properties to a Config and client settings, with a verdict for every key. Pure: sends no requests."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pykcl.aws.credentials import ClientSpec
from pykcl.compat.properties.credentials import Service, Services, shown_providers
from pykcl.compat.properties.keys import (
    AS_JAVA,
    HIDDEN,
    JAVA_ONLY,
    KEYS,
    NO_KEYS,
    Flag,
    Key,
    KeyVerdict,
    Meaning,
    Number,
    shown_command,
    shown_endpoint,
    shown_key,
    shown_value,
)
from pykcl.compat.properties.parsing import (
    Given,
    Properties,
    Retrieval,
    capital_mode_row,
    given,
    mode_row,
    read_properties,
    retrieval_of,
)
from pykcl.config import Config
from pykcl.errors import NO_UTF8, ConfigError, is_utf8

log = logging.getLogger("pykcl.properties")

EntryPoint = Literal["multilang", "kclpy", "native"]
"""What processes the records: children of executableName, a kclpy program in this process, or a RecordProcessor."""
ClientSpecs = Mapping[str, ClientSpec]

_METRICS = {"metrics": "cloudwatch", "metrics_level": "DETAILED", "metrics_buffer_time": 10.0}
"""Defaults of Java's daemon, so that existing CloudWatch alarms keep their data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpretation:
    """Meaning of a properties file.

    executable: command line of a child. timeout: seconds that a call may take (timeoutInSeconds).
    clients: settings per service in use, for `aws.credentials.open_specified_clients`. notices: consequences of absent
    keys, which the table of verdicts does not show.
    """

    config: Config
    executable: tuple[str, ...] = field(repr=False)
    timeout: float | None
    verdicts: tuple[KeyVerdict, ...]
    clients: ClientSpecs
    notices: tuple[str, ...]


def interpret(
    properties: Mapping[str, str], *, entry_point: EntryPoint, accepts_polling: bool = False
) -> Interpretation:
    """Return the meaning of the properties for this entry point. Errors name the line if `read_properties` read them.

    accepts_polling: records are polled, also where Java uses enhanced fan-out. Raises ConfigError that names the key,
    for a value that Java would silently replace, a contradiction or a missing key.
    """
    reading = _Reading(properties, entry_point, retrieval_of(properties, accepts_polling=accepts_polling))
    for key in properties:
        reading.take(key)
    return reading.result()


def load(path: str | Path) -> Config:
    """Return the Config that a MultiLangDaemon's .properties file gives to a RecordProcessor.

    Logs the keys that have no effect. Raises ConfigError that names file, line and key; also for a file with an
    endpoint, credentials or a region for one service, which a Config does not hold.
    """
    path = Path(path)
    found = interpret(read_properties(path), entry_point="native")
    for service, spec in found.clients.items():
        if not spec.is_found_by_boto3(found.config.effective_region):
            raise ConfigError(
                f"{path.name} sets an endpoint, credentials or a region for {service}, which a Config does not hold. "
                "Do: use `pykcl run --properties`, which reads the whole file, or pass the clients of "
                "pykcl.aws.credentials.open_specified_clients to Worker."
            )
    for row in found.verdicts:
        if row.verdict == "unknown" or row.literal:
            log.warning("%s: %s: %s", path.name, row.key, row.literal or row.text)
    for notice in found.notices:
        log.info("%s: %s", path.name, notice)
    return found.config


class _Reading:
    def __init__(self, properties: Mapping[str, str], entry_point: EntryPoint, retrieval: Retrieval) -> None:
        self._properties = properties
        self._entry_point = entry_point
        self._source = getattr(properties, "source", "the properties")
        self._options: dict[str, Any] = {
            **_METRICS,
            **({} if entry_point == "native" else {"checkpoint_mode": "manual"}),
            **({"retrieval": "fanout-or-polling"} if retrieval.pushes else {}),
        }
        self._from: dict[str, Given] = {}
        self._seen: dict[str, str] = {}
        self._rows: list[KeyVerdict] = []
        self._executable: tuple[str, ...] = ()
        self._timeout: float | None = None
        self._retrieval = retrieval
        self.services = Services()
        self._special: dict[str, Callable[[Given], Meaning]] = {
            "executableName": self._program,
            "applicationName": lambda value: self._text(value, "application"),
            "streamName": self._stream_name,
            "streamArn": self._stream_arn,
            "regionName": self.services.region_of_all,
            "AwsCredentialsProvider": self.services.credentials_of_all,
            "AwsCredentialsProviderDynamoDB": lambda value: self.services.credentials_of("dynamodb", value),
            "AwsCredentialsProviderCloudWatch": self._credentials_of_metrics,
            "metricsLevel": self._metrics_level,
            "metricsEnabledDimensions": self._metrics_dimensions,
            "kinesisEndpoint": lambda value: self.services.endpoint("kinesis", value),
            "dynamoDBEndpoint": lambda value: self.services.endpoint("dynamodb", value),
            "disableWorkerMetrics": self._worker_metrics,
            "workerMetricsTableName": lambda value: self._text(value, "worker_metrics_table"),
            "coordinatorStateTableName": lambda value: self._text(value, "coordinator_state_table"),
            "tableName": lambda value: self._text(value, "table_name"),
            "workerId": lambda value: self._text(value, "worker_id"),
            "initialPositionInStream": self._position,
            "initialPositionInStreamExtended": self._position_in_time,
            "retrievalMode": lambda _: mode_row(self._retrieval),
            "fanoutConfig.consumerArn": lambda value: self._text(value, "consumer"),
            "fanoutConfig.consumerName": self._consumer_name,
            "cleanupLeasesUponShardCompletion": self._cleanup,
            "timeoutInSeconds": self._time_out,
        }

    # -- one key -----------------------------------------------------------------------------------------------

    def take(self, key: str) -> None:
        value = given(self._properties, key)
        name = canonical(key)
        self._refuse_two_spellings(value, name)
        verdict, text = self._meaning(value, name)
        first = getattr(self._properties, "repeated", {}).get(key)
        if first is not None:
            text += f" (set twice, first in line {first}: the last one counts, as in Java)"
        literal = value.literal if verdict in ("honoured", "mapped") else ""
        self._rows.append(KeyVerdict(shown_key(key), shown(key, name, value.text), verdict, text, literal))

    def _refuse_two_spellings(self, value: Given, name: str) -> None:
        before = self._seen.setdefault(name, value.key)
        if before != value.key and self._properties[before].strip() != value.text:
            raise value.refuse(
                f"and {before} spell the same setting with different values; Java picks one of them by chance. "
                "Keep one."
            )

    def _meaning(self, value: Given, name: str) -> Meaning:
        if name == "RetrievalMode":
            return capital_mode_row(self._retrieval)
        key = KEYS.get(name)
        nested = nested_key(name)
        if key is None and nested is None:
            return unknown_row(name)
        if not value.text:
            return AS_JAVA, "it has no value"
        return self._nested(nested, value) if key is None else self._known(key, value)

    def _known(self, key: Key, value: Given) -> Meaning:
        name = key.name
        if name.startswith("fanoutConfig.") and not self._retrieval.pushes:
            verdict = JAVA_ONLY if self._retrieval.java_uses_fanout else AS_JAVA
            return verdict, "the stream is read by polling"
        if name in self._special:
            verdict, text = self._special[name](value)
            return verdict, text or key.text
        if isinstance(key.effect, Number):
            return self._number(key, key.effect, value)
        if isinstance(key.effect, Flag):
            self._set(key.effect.field, value.flag(), value)
            return key.verdict, f"{key.effect.field}={self._options[key.effect.field]}: {key.text}"
        return key.verdict, key.text

    def _set(self, option: str, content: object, value: Given) -> None:
        self._options[option] = content
        self._from[option] = value

    def _text(self, value: Given, option: str) -> Meaning:
        self._set(option, value.text, value)
        return "honoured", ""

    def _number(self, key: Key, number: Number, value: Given) -> Meaning:
        asked = value.number(unit=number.unit)
        if asked == 0 and number.zero_is_unset:
            default = self._options.get(number.field, Config.__dataclass_fields__[number.field].default)
            taken = number.absent or default
            # None for idle_time_between_reads: pykcl adapts the interval.
            here = number.field + (" as by default" if taken is None else f"={taken:.10g}")
            if key.default == "0":
                # Java's 0 is not a timeout of 0 s: with that here, every stop would be late, even of an idle worker.
                return "mapped", f"0 is Java's default, the same as no value; here {here}: {key.text}"
            return AS_JAVA, f"Java treats 0 as no value and uses {key.default}; here {here}"
        if asked < 0 or (number.beyond == "refuse" and not number.least <= asked <= number.most):
            unit = f" {number.unit}" if number.unit else ""
            raise value.refuse(f"is out of range. Write {number.least} to {number.most}{unit}.")
        taken = min(max(asked, number.least), number.most)
        content = taken / number.scale if number.scale > 1 else taken
        self._set(number.field, content, value)
        if taken != asked:
            return (
                "mapped",
                f"{number.field}={content:.10g}, the nearest value that pykcl accepts: {key.text}",
            )
        return key.verdict, f"{number.field}={content:.10g}: {key.text}"

    # -- keys with their own rule -----------------------------------------------------------------------

    def _program(self, value: Given) -> Meaning:
        if self._entry_point != "multilang":
            return JAVA_ONLY, "the program runs in this process"
        if not is_utf8(value.text):
            raise value.refuse(f"{NO_UTF8}, so no child can be started. Write it whole, in UTF-8.")
        # At blanks only, as Java does: quotes mean nothing.
        self._executable = tuple(part for part in value.text.split(" ") if part)
        return "honoured", ""

    def _stream_name(self, value: Given) -> Meaning:
        if self._properties.get("streamArn", "").strip():
            return "honoured", "same stream as streamArn"
        return self._text(value, "stream")

    def _stream_arn(self, value: Given) -> Meaning:
        if not _is_stream_arn(value.text):
            raise value.refuse(
                "is not a stream ARN. Write one, such as arn:aws:kinesis:eu-west-1:123456789012:stream/orders, or "
                "use streamName."
            )
        self._set("stream", value.text, value)
        name = self._properties.get("streamName", "").strip()
        if name and value.text.rpartition("/")[2] != name:
            raise value.refuse(
                "and streamName name different streams. Keep one of them. (Java takes the ARN's.)"
            )
        return (
            "honoured",
            "the whole ARN; Java uses only its name, and reads that stream in its own account and region",
        )

    def _position(self, value: Given) -> Meaning:
        position = value.choice(("LATEST", "TRIM_HORIZON", "AT_TIMESTAMP"))
        if times := spellings(self._properties, _TIME):
            return AS_JAVA, f"{times[0]} is used (Java uses either, by chance)"
        if position == "AT_TIMESTAMP":
            raise value.refuse(
                "is AT_TIMESTAMP without a time. Write initialPositionInStreamExtended=SECONDS_SINCE_1970."
            )
        self._set("initial_position", position, value)
        return "honoured", ""

    def _position_in_time(self, value: Given) -> Meaning:
        at = value.epoch_seconds()
        self._set("initial_position", at, value)
        text = f"an application without leases starts at {at.isoformat()}"
        if value.key == _TIME:
            return "honoured", text
        return "mapped", f"{text}. This differs: KCL 2 and 3 ignore this key: they read {_TIME}"

    def _consumer_name(self, value: Given) -> Meaning:
        if self._properties.get("fanoutConfig.consumerArn", "").strip():
            return AS_JAVA, "the ARN of the consumer is used"
        return self._text(value, "consumer")

    def _cleanup(self, value: Given) -> Meaning:
        if value.flag():
            return "honoured", ""
        self._set("cleanup_interval", 0.0, value)
        return (
            "honoured",
            "cleanup_interval=0: leases of ended shards are kept. This differs: Java ignores false and deletes them",
        )

    def _worker_metrics(self, value: Given) -> Meaning:
        if not value.flag():
            return (
                "honoured",
                "CPU utilisation is reported where it can be and other workers of the fleet report theirs",
            )
        self._set("worker_metrics", "throughput", value)
        return (
            "honoured",
            "worker_metrics='throughput': no CPU utilisation is reported to the leader of a KCL 3.x fleet",
        )

    def _time_out(self, value: Given) -> Meaning:
        seconds = value.number(unit="seconds")
        if not 1 <= seconds <= 1_000_000:
            raise value.refuse("is out of range. Write 1 to 1000000, or leave it out for no limit.")
        self._timeout = float(seconds)
        if self._entry_point == "multilang":
            return "mapped", "a child that takes longer is ended and restarted (Java stops the whole worker)"
        self._set("processor_timeout", self._timeout, value)
        return (
            "mapped",
            "processor_timeout: a call that takes longer loses its lease (Java stops the whole worker)",
        )

    def _metrics_level(self, value: Given) -> Meaning:
        level = value.choice(("NONE", "SUMMARY", "DETAILED"))
        if level == "NONE":
            for name in _METRICS.keys() - self._from.keys():
                del self._options[name]
            self._set("metrics", "none", value)
            return "honoured", "metrics=none: nothing is published"
        self._set("metrics_level", level, value)
        return "honoured", ""

    def _metrics_dimensions(self, value: Given) -> Meaning:
        self._set("metrics_dimensions", value.text, value)
        return "honoured", ""

    def _credentials_of_metrics(self, value: Given) -> Meaning:
        if self._properties.get("metricsLevel", "").strip().upper() == "NONE":
            return AS_JAVA, "nothing is published: metricsLevel=NONE"
        return self.services.credentials_of("cloudwatch", value)

    def _nested(self, nested: NestedKey | None, value: Given) -> Meaning:
        if nested is None or nested.service is None or nested.what is None:
            return JAVA_ONLY, "a setting of Java's own client"
        if nested.what == "region":
            return self.services.own_region(nested.service, value)
        if nested.what == "endpoint":
            return self.services.endpoint(nested.service, value)
        return self.services.own_credentials(nested.service, value)

    # -- all of them -------------------------------------------------------------------------------------------

    def result(self) -> Interpretation:
        self._require()
        self._refuse_a_lost_time()
        for key in KEYS.values():
            if isinstance(key.effect, Number) and key.effect.absent is not None:
                self._options.setdefault(key.effect.field, key.effect.absent)
        if "processor_timeout" in self._options and self._timeout is not None:
            default = Config.__dataclass_fields__["processor_warn_after"].default
            warn = min(self._timeout, self._options.get("processor_warn_after", default))
            self._options["processor_warn_after"] = warn
        self._options["region"] = self.services.region
        config = self._config()
        self._refuse_another_region(config)
        notices = [notice for notice in (self._retrieval.notice,) if notice]
        return Interpretation(
            config=config,
            executable=self._executable,
            timeout=self._timeout,
            verdicts=tuple(self._rows),
            clients=self.services.specs(metrics=bool(config.metrics_sinks)),
            notices=tuple(notices),
        )

    def _require(self) -> None:
        required = {
            "applicationName": (self._options.get("application"), "applicationName=orders-app"),
            "streamName (or streamArn)": (self._options.get("stream"), "streamName=orders"),
        }
        if self._entry_point == "multilang":
            required["executableName"] = (self._executable, "executableName=python3 app.py")
        for name, (content, example) in required.items():
            if not content:
                instead = self._meant(name) or f"Write a line such as {example}"
                raise ConfigError(f"{self._source}: {name} is missing or empty. {instead}")

    def _refuse_a_lost_time(self) -> None:
        """Raise ConfigError for a misspelt key with a time to start at: the application would start at LATEST."""
        if "initial_position" in self._options:
            return
        for key in self._properties:
            value = given(self._properties, key)
            if is_unknown(key) and nearest(key) in _STARTS and value.is_whole:
                raise value.refuse(
                    "is no key, so an application without leases would start at LATEST (in Java, too). If it asks for "
                    f"a time, write {_TIME}; else delete the line."
                )

    def _meant(self, wanted: str) -> str | None:
        """Return a hint at an unknown key in the file that was probably meant for one of the `wanted` names."""
        for key in self._properties:
            near = nearest(key)
            if is_unknown(key) and near is not None and near in wanted:
                is_case = near.lower() == key.lower()
                why = "keys are case-sensitive" if is_case else "nothing reads it"
                place = (
                    self._properties.place(key) if isinstance(self._properties, Properties) else self._source
                )
                return f"There is {shown_key(key)} in {place}, and {why}: write {near}"
        return None

    def _config(self) -> Config:
        try:
            options = dict(self._options)
            # `_refuse_another_region` reports a conflict of regions by the names of the keys.
            options["region"] = None if options["stream"].startswith("arn:") else options["region"]
            return Config(**options)
        except ConfigError as error:
            text = str(error)
        for option, value in self._from.items():
            if text.startswith((f"{option}=", f"{option} ")):
                raise value.refuse(f"is not valid: {text}")
        raise ConfigError(f"{self._source}: {text}")

    def _refuse_another_region(self, config: Config) -> None:
        region = self.services.spec("kinesis").region
        if config.stream_arn is not None and region not in (None, config.effective_region):
            name = config.stream_name
            has_name = self._properties.get("streamName", "").strip()
            how = (
                "delete the streamArn line"
                if has_name
                else f"replace the streamArn line by streamName={name}"
            )
            raise self._from["stream"].refuse(
                f"is in {config.effective_region}, but the region is {region}. Do: {how} to read stream {name!r} in "
                f"{region}, as Java does. To read the stream of the ARN, delete the region."
            )


def _is_stream_arn(text: str) -> bool:
    try:
        return Config(application="any", stream=text).stream_arn is not None
    except ConfigError:
        return False


# -- names of keys ---------------------------------------------------------------------------------------------

_CREDENTIALS = "AwsCredentialsProvider"
_ENDPOINTS = ("kinesisEndpoint", "dynamoDBEndpoint")
_TIME = "initialPositionInStreamExtended"
TIME_OF_1X = "timestampAtInitialPositionInStream"
"""Spelling that KCL 1.x reads and later versions do not."""
_ALIASES = {"workerIdentifier": "workerId", TIME_OF_1X: _TIME}
_STARTS = ("initialPositionInStream", _TIME, TIME_OF_1X)
_BEANS: dict[str, Service | None] = {
    "kinesisClient": "kinesis",
    "dynamoDbClient": "dynamodb",
    "cloudWatchClient": "cloudwatch",
    "kinesisCredentialsProvider": None,
    "dynamoDBCredentialsProvider": None,
    "cloudWatchCredentialsProvider": None,
}
_OF_CLIENTS: dict[str, Literal["region", "endpoint", "credentials"]] = {
    "region": "region",
    "endpointOverride": "endpoint",
    "credentialsProvider": "credentials",
}


@dataclass(frozen=True, slots=True)
class NestedKey:
    """A key below one of Java's beans. service, what: None if pykcl has no such setting."""

    service: Service | None
    what: Literal["region", "endpoint", "credentials"] | None


def canonical(key: str) -> str:
    """Return the name of the setting. Java ignores the case of AwsCredentialsProvider, but not of its suffix."""
    if key.lower().startswith(_CREDENTIALS.lower()):
        return _CREDENTIALS + re.sub(_CREDENTIALS, "", key, count=1, flags=re.IGNORECASE)
    return _ALIASES.get(key, key)


def spellings(properties: Mapping[str, str], name: str) -> list[str]:
    """Return the keys of the file that set `name`, as they are spelled there, and have a value."""
    return [key for key, value in properties.items() if canonical(key) == name and value.strip()]


def nested_key(name: str) -> NestedKey | None:
    """Return None if `name` is not a nested key of one of Java's beans."""
    bean, dot, rest = name.partition(".")
    if not dot or bean not in _BEANS:
        return None
    service = _BEANS[bean]
    return NestedKey(service, _OF_CLIENTS.get(rest) if service else None)


def unknown_row(name: str) -> Meaning:
    """Return the meaning of a key that Java does not know."""
    if name in NO_KEYS:
        return AS_JAVA, NO_KEYS[name]
    near = nearest(name)
    hint = f"Did you mean {near}?" if near else "No key has a similar name."
    return "unknown", f"has no effect, in Java either. {hint}"


_WORDS_OF_CLIENTS = {"kinesis": "kinesisClient", "dynamo": "dynamoDbClient", "cloudwatch": "cloudWatchClient"}
_WORDS_OF_SETTINGS = {"region": "region", "endpoint": "endpointOverride", "credential": "credentialsProvider"}


def nearest(name: str) -> str | None:
    """Return the key that was probably meant: one of the same letters, the setting of the client that the name speaks
    of, or the key with the most similar name, ignoring case; None if there is none."""
    by_lower = {known.lower(): known for known in (*KEYS, *_ALIASES)}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    for word, client in _WORDS_OF_CLIENTS.items():
        for part, setting in _WORDS_OF_SETTINGS.items():
            if word in name.lower() and part in name.lower():
                return f"{client}.{setting}"
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None


def is_unknown(key: str) -> bool:
    """Return True for a key that no version of Java's daemon knows."""
    name = canonical(key)
    return name not in KEYS and name not in NO_KEYS and nested_key(name) is None


def shown(key: str, name: str, value: str) -> str:
    """Return the value as it may be printed; *** for an unknown key or a possible secret."""
    nested = nested_key(name)
    if name in (_CREDENTIALS, _CREDENTIALS + "DynamoDB", _CREDENTIALS + "CloudWatch") or (
        nested is not None and nested.what == "credentials"
    ):
        return shown_providers(value)
    if name == "executableName":
        return shown_command(value)
    if name in _ENDPOINTS or (nested is not None and nested.what == "endpoint"):
        return shown_endpoint(value)
    is_known = name in KEYS or name in NO_KEYS or name == "RetrievalMode"
    if not is_known and (nested is None or nested.what is None):
        return HIDDEN
    return shown_value(key, value)
