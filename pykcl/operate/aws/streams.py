"""Kinesis requests of an operator: list and describe streams, and put records.

Every call is one attempt; the caller retries. This relies on the Kinesis API (2013-12-02) as follows: ListShards takes
the stream or a NextToken, never both; a ShardFilter of type FROM_TIMESTAMP returns the shards that were open at that
time or later; PutRecords returns one entry per record, in order, and those with an ErrorCode were not put.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pykcl.aws.errors import BAD_ARGUMENT, OPERATOR, answer_of
from pykcl.aws.kinesis_decode import put_answers, put_entry, shards_of
from pykcl.errors import AnswerRefused, PyKclError
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.new_record import NewRecord, PutAnswer
from pykcl.model.shard import DEFAULT_RECORD_BYTES, Shard


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """One stream in ListStreams or DescribeStreamSummary; None for missing fields.

    created_at: epoch milliseconds. largest_record: bytes. distribution: RecordDistributionStrategy, if it is on-demand.
    """

    name: str
    arn: str | None = None
    status: str | None = None
    mode: str | None = None
    created_at: int | None = None
    retention_hours: int | None = None
    open_shards: int | None = None
    consumers: int | None = None
    encryption: str | None = None
    key_id: str | None = None
    largest_record: int = DEFAULT_RECORD_BYTES
    shard_metrics: tuple[str, ...] = ()
    distribution: str | None = None

    def bill(self, consumers: int) -> str:
        """Return the words for what so many consumers of enhanced fan-out are billed for."""
        shards = self.open_shards
        if shards is None:
            return "AWS bills each consumer for every open shard and hour, and for what it reads."
        return (
            f"AWS bills {consumers} x {shards} = {consumers * shards} consumer-shard-hours an hour, and what is read "
            "by them."
        )


@dataclass(frozen=True, slots=True)
class Consumer:
    """A registered consumer of enhanced fan-out. created_at: epoch milliseconds."""

    name: str
    arn: str
    status: str
    created_at: int | None


class StreamAdmin:
    """client: a boto3 Kinesis client of one attempt per call.

    Every method may raise Throttled, TemporaryError and SetupError; no text carries payloads or partition keys.
    A stream that was described by its name is asked for by name where an endpoint, such as kinesalite, refuses ARNs.
    """

    def __init__(self, client: Any) -> None:
        self._kinesis = client
        self._names: dict[str, str] = {}
        self._refuses_arns = False

    def address(self, stream: str) -> dict[str, Any]:
        """Return the fields of a request that name a stream, given by its name or ARN."""
        if self._refuses_arns:
            stream = self._names.get(stream, stream)
        return {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}

    def streams(self) -> list[StreamSummary]:
        """Return every stream of the account and region, by name."""
        found: dict[str, StreamSummary] = {}
        request: dict[str, Any] = {}
        while True:
            answer = answer_of("Listing the streams", self._kinesis.list_streams, request, who=OPERATOR)
            before = len(found)
            for entry in _list(answer, "StreamSummaries"):
                found[_text(entry, "StreamName")] = _summary(entry)
            # Some emulators return the names only.
            for name in _list(answer, "StreamNames"):
                found.setdefault(str(name), StreamSummary(str(name)))
            if not answer.get("HasMoreStreams"):
                return [found[name] for name in sorted(found)]
            if len(found) == before:
                raise AnswerRefused("Listing the streams does not end: a page repeated.")
            token = answer.get("NextToken")
            request = {"NextToken": token} if token else {"ExclusiveStartStreamName": max(found)}

    def summary(self, stream: str) -> StreamSummary:
        """Describe the stream of this name or ARN. Raises SetupError without one."""
        doing = f"Describing stream {stream!r}"
        answer = self._ask(doing, self._kinesis.describe_stream_summary, self.address(stream))
        found = _summary(answer.get("StreamDescriptionSummary"))
        if found.arn and found.arn != stream:
            self._names[found.arn] = found.name
        return found

    def consumers(self, arn: str) -> list[Consumer]:
        """Return the consumers registered for enhanced fan-out, by name."""
        found: dict[str, Consumer] = {}
        request: dict[str, Any] = {"StreamARN": arn}
        while True:
            answer = answer_of(
                "Listing the consumers of the stream",
                self._kinesis.list_stream_consumers,
                request,
                who=OPERATOR,
            )
            before = len(found)
            found |= {one.name: one for one in map(_consumer, _list(answer, "Consumers"))}
            token = answer.get("NextToken")
            if not token:
                return [found[name] for name in sorted(found)]
            if len(found) == before:
                raise AnswerRefused("Listing the consumers of the stream does not end: a page repeated.")
            request = {"StreamARN": arn, "NextToken": token}

    def deregister_consumer(self, arn: str) -> None:
        """Delete a consumer. Its subscriptions end at once."""
        answer_of(
            "Deregistering the consumer",
            self._kinesis.deregister_stream_consumer,
            {"ConsumerARN": arn},
            who=OPERATOR,
        )

    def shards(self, stream: str, since: ReadFrom | None = None) -> list[Shard]:
        """Return the listed shards by id; since: only those with records from there on (LATEST: the open ones)."""
        request = self.address(stream)
        if since is not None and since.kind == "LATEST":
            request["ShardFilter"] = {"Type": "AT_LATEST"}
        elif since is not None and since.kind == "AT_TIMESTAMP":
            moment = datetime.fromtimestamp((since.at_millis or 0) / 1000, tz=UTC)
            request["ShardFilter"] = {"Type": "FROM_TIMESTAMP", "Timestamp": moment}
        doing = f"Listing the shards of stream {stream!r}"
        found: dict[str, Shard] = {}
        while True:
            answer = self._ask(doing, self._kinesis.list_shards, request)
            before = len(found)
            found |= shards_of(answer)
            token = answer.get("NextToken")
            if not token:
                return [found[shard_id] for shard_id in sorted(found)]
            if len(found) == before:
                raise AnswerRefused(f"{doing} does not end: a page repeated.")
            request = {"NextToken": token}

    def put(self, stream: str, records: Sequence[NewRecord]) -> list[PutAnswer]:
        """Put records; return one answer per record, in order. Raises AnswerRefused for an answer of another length."""
        request = {**self.address(stream), "Records": [put_entry(record) for record in records]}
        answer = self._ask(f"Putting records into stream {stream!r}", self._kinesis.put_records, request)
        return put_answers(answer, len(records))

    def _ask(
        self, doing: str, method: Callable[..., Mapping[str, Any]], request: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        name = self._names.get(request.get("StreamARN", ""))

        def refusal(code: str | None, failure: PyKclError) -> PyKclError:
            return _ArnRefused() if name is not None and code in BAD_ARGUMENT else failure

        try:
            return answer_of(doing, method, request, who=OPERATOR, refusal=refusal)
        except _ArnRefused:
            others = {key: value for key, value in request.items() if key != "StreamARN"}
        answer = answer_of(doing, method, {"StreamName": name, **others}, who=OPERATOR)
        self._refuses_arns = True
        return answer


class _ArnRefused(PyKclError):
    """The request was refused, perhaps for the ARN in it."""


def _list(answer: Mapping[str, Any], name: str) -> list[Any]:
    value = answer.get(name)
    return value if isinstance(value, list) else []


def _summary(answer: Any) -> StreamSummary:
    if not isinstance(answer, Mapping):
        raise AnswerRefused("The description of a stream came without its summary. Ask again.")
    mode = answer.get("StreamModeDetails")
    metrics = [
        str(name)
        for entry in _list(answer, "EnhancedMonitoring")
        for name in _list(entry, "ShardLevelMetrics")
    ]
    return StreamSummary(
        name=_text(answer, "StreamName"),
        arn=answer.get("StreamARN"),
        status=answer.get("StreamStatus"),
        mode=mode.get("StreamMode") if isinstance(mode, Mapping) else None,
        created_at=_millis(answer.get("StreamCreationTimestamp")),
        retention_hours=answer.get("RetentionPeriodHours"),
        open_shards=answer.get("OpenShardCount"),
        consumers=answer.get("ConsumerCount"),
        encryption=answer.get("EncryptionType"),
        key_id=answer.get("KeyId"),
        largest_record=(answer.get("MaxRecordSizeInKiB") or 0) * 1024 or DEFAULT_RECORD_BYTES,
        shard_metrics=tuple(sorted(metrics)),
        distribution=answer.get("RecordDistributionStrategy"),
    )


def _consumer(answer: Any) -> Consumer:
    return Consumer(
        _text(answer, "ConsumerName"),
        _text(answer, "ConsumerARN"),
        str(answer.get("ConsumerStatus")),
        _millis(answer.get("ConsumerCreationTimestamp")),
    )


def _text(answer: Any, name: str) -> str:
    value = answer.get(name) if isinstance(answer, Mapping) else None
    if not isinstance(value, str) or not value:
        raise AnswerRefused(f"An answer of Kinesis lacks {name}. Ask again.")
    return value


def _millis(value: Any) -> int | None:
    return round(value.timestamp() * 1000) if isinstance(value, datetime) else None
