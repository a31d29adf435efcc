"""`LocalKinesis`: Kinesis in memory, without sockets. The clock is injected; any number of threads may call.

Streams are given by name or ARN. Errors of AWS are raised as `AwsError`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pykcl.local.consumers import Consumer, Consumers, PushedEvent, Subscription
from pykcl.local.errors import (
    ACCOUNT,
    REGION,
    AwsError,
    in_use,
    invalid,
    invalid_argument,
    not_found,
    throttled,
)
from pykcl.local.iterators import (
    Page,
    ReadPosition,
    ReadSpan,
    read_iterator,
    read_page,
    start_of,
    write_iterator,
)
from pykcl.local.shards import (
    HASH_KEYS,
    LARGEST_MAX_RECORD_KIB,
    SMALLEST_MAX_RECORD_KIB,
    LocalShard,
    LocalStream,
    check_merge,
    check_split,
    check_update_count,
    create_shards,
    eligible,
    merge_shards,
    require_active,
    scale_shards,
    split_shard,
)
from pykcl.model.shard import Shard

FILTER_TYPES = (
    "AFTER_SHARD_ID",
    "AT_TRIM_HORIZON",
    "FROM_TRIM_HORIZON",
    "AT_LATEST",
    "AT_TIMESTAMP",
    "FROM_TIMESTAMP",
)


@dataclass(frozen=True, slots=True)
class ShardFilter:
    """A filter of ListShards. shard_id: for AFTER_SHARD_ID; at_millis, epoch: for the *_TIMESTAMP types."""

    type: str
    shard_id: str | None = None
    at_millis: int | None = None


def select(
    stream: LocalStream, shard_filter: ShardFilter | None, now_millis: int, as_of: int | None = None
) -> list[LocalShard]:
    """Return the shards of a listing, by id. Raises AwsError InvalidArgumentException for an incomplete filter.

    as_of: the time that the listing shows, epoch milliseconds; None for now. The first shards of a stream are always
    listed. Trimmed shards have left the stream already, so FROM_TRIM_HORIZON selects all.
    """
    kind = "FROM_TRIM_HORIZON" if shard_filter is None else shard_filter.type
    wanted: Callable[[LocalShard], bool]
    horizon = stream.horizon(now_millis)
    if kind == "AT_LATEST":
        wanted = partial(_is_open, as_of)
    elif kind == "FROM_TRIM_HORIZON":
        wanted = _always
    elif kind == "AT_TRIM_HORIZON":
        wanted = partial(_open_at, horizon)
    else:
        wanted = _by_value(kind, shard_filter, horizon)
    return [shard for shard in stream.shards.values() if _is_shown(as_of, shard) and wanted(shard)]


def _by_value(kind: str, given: ShardFilter | None, horizon: int) -> Callable[[LocalShard], bool]:
    if given is not None and kind == "AFTER_SHARD_ID" and given.shard_id is not None:
        return partial(_after, given.shard_id)
    if given is not None and kind in ("AT_TIMESTAMP", "FROM_TIMESTAMP") and given.at_millis is not None:
        return partial(_open_at if kind == "AT_TIMESTAMP" else _open_since, max(horizon, given.at_millis))
    raise invalid_argument(f"ShardFilter of type {kind} is unknown, or lacks its ShardId or Timestamp.")


def _always(_: LocalShard) -> bool:
    return True


def _is_shown(as_of: int | None, shard: LocalShard) -> bool:
    return as_of is None or not shard.parents or shard.created_at <= as_of


def _is_open(as_of: int | None, shard: LocalShard) -> bool:
    return shard.is_open if as_of is None else shard.is_open_at(as_of)


def _after(shard_id: str, shard: LocalShard) -> bool:
    return shard.shard_id > shard_id


def _open_at(at: int, shard: LocalShard) -> bool:
    return shard.created_at <= at and (shard.closed_at is None or at < shard.closed_at)


def _open_since(at: int, shard: LocalShard) -> bool:
    return shard.closed_at is None or shard.closed_at >= at


__all__ = [
    "AwsError",
    "Entry",
    "FaultHook",
    "LocalKinesis",
    "Page",
    "Put",
    "ReadSpan",
    "ShardFilter",
    "StreamView",
]

MAX_PAGE_RECORDS = 10_000
SUBSCRIPTION_SECONDS = 300.0
"""Duration of a subscription, as at AWS."""

FaultHook = Callable[[str, str, str], None]


@dataclass(frozen=True, slots=True)
class Put:
    """Shard and sequence number of a record that was put."""

    shard_id: str
    sequence_number: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One record to put. explicit_hash_key: 0..2^128-1, decides the shard instead of the partition key."""

    data: bytes
    partition_key: str
    explicit_hash_key: int | None = None


@dataclass(frozen=True, slots=True)
class StreamView:
    """Description of a stream. created_at: epoch milliseconds. distribution: None unless it is on-demand."""

    name: str
    arn: str
    status: str
    mode: str
    retention_hours: int
    created_at: int
    open_shards: int
    max_record_kib: int
    distribution: str | None = None


AUTO, USER_PARTITION_KEY = "AUTO", "USER_PARTITION_KEY"
"""RecordDistributionStrategy of an on-demand stream."""


class LocalKinesis:
    """Streams of one account and region.

    now_millis: the clock, epoch milliseconds. limits: enforce the per-shard rates of Kinesis. state_seconds: duration
    of CREATING, UPDATING and DELETING (0: instantly done). read_span: stream time that one GetRecords call covers.
    listing_lag: seconds for which ListShards may not show a reshard yet. subscription_seconds: until a subscription
    ends. seed: of these. fault: called with (operation, stream name, shard id or "") before every operation; an
    exception of it is the operation's result. A hook may wait, but not when operations come over the wire: all of
    Kinesis would wait with it.
    """

    def __init__(
        self,
        now_millis: Callable[[], int],
        *,
        limits: bool = False,
        state_seconds: float = 0.0,
        read_span: ReadSpan | None = None,
        listing_lag: float = 0.5,
        subscription_seconds: float = SUBSCRIPTION_SECONDS,
        seed: int = 0,
        fault: FaultHook | None = None,
    ) -> None:
        self.fault = fault
        self.read_span = read_span or ReadSpan()
        self.subscription_seconds = subscription_seconds
        self._listing_lag_millis = round(listing_lag * 1000)
        self._rng = random.Random(seed)  # noqa: S311 - reproducible
        self._now = now_millis
        self._limits = limits
        self._state_millis = round(state_seconds * 1000)
        self._lock = threading.RLock()
        self._streams: dict[str, LocalStream] = {}
        self._consumers: dict[str, Consumers] = {}
        self._created = 0

    def now_millis(self) -> int:
        """Return the time by the injected clock, epoch milliseconds."""
        return self._now()

    # Streams

    def create_stream(
        self, name: str, shards: int = 1, *, mode: str = "PROVISIONED", distribution: str | None = None
    ) -> None:
        """Create a stream. distribution: of an on-demand one; None: by partition keys.

        Raises AwsError ResourceInUseException if it exists."""
        self._enter("CreateStream", name)
        with self._lock:
            now = self._now()
            if name in self._streams:
                raise in_use(f"Stream {name} under account {ACCOUNT} already exists.")
            self._created += 1
            arn = f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/{name}"
            stream = LocalStream(name, arn, f"{now}-{self._created}", now, self._limits)
            stream.mode, stream.distribution = mode, distribution
            self._streams[name] = stream
            self._consumers[name] = Consumers(stream, self._state_millis)
            self._change(stream, "CREATING", lambda at: create_shards(stream, shards, at), now)

    def delete_stream(self, stream: str, *, with_consumers: bool = True) -> None:
        """Delete a stream. with_consumers: False raises AwsError ResourceInUseException if it has any."""
        self._enter("DeleteStream", stream)
        with self._lock:
            now = self._now()
            found = self._find(stream, now)
            if not with_consumers and self._consumers[found.name].all(now):
                raise in_use(
                    f"Stream {found.name} under account {ACCOUNT} has consumers. Deregister them, or delete it with "
                    "EnforceConsumerDeletion."
                )
            self._consumers[found.name].end_all()
            found.change = None
            self._change(found, "DELETING", lambda _: self._remove(found), now)

    def describe(self, stream: str, operation: str | None = "DescribeStreamSummary") -> StreamView:
        """Describe a stream in any state. operation: name for the fault hook; None: do not call it."""
        self._enter(operation, stream)
        with self._lock:
            return _view(self._find(stream, self._now()))

    def list_streams(self) -> list[StreamView]:
        """Return every stream, by name."""
        self._enter("ListStreams", "")
        with self._lock:
            now = self._now()
            for stream in list(self._streams.values()):
                self._apply_due_change(stream, now)
            return [_view(stream) for _, stream in sorted(self._streams.items())]

    def set_retention(self, stream: str, hours: int) -> None:
        """Set the retention: 24 to 8,760 hours. Trimmed records do not come back."""
        self._enter("SetRetention", stream)
        with self._lock:
            now = self._now()
            found = self._find(stream, now)
            require_active(found)
            if not 24 <= hours <= 8760:
                raise invalid_argument(f"RetentionPeriodHours {hours} must be between 24 and 8760.")
            found.trim(now)
            found.retention_hours = hours
            found.trim(now)

    def set_max_record_size(self, stream: str, kib: int) -> None:
        """Set the max record size: 1,024 to 10,240 KiB for payload and partition key together."""
        self._enter("UpdateMaxRecordSize", stream)
        with self._lock:
            found = self._find(stream, self._now())
            require_active(found)
            if not SMALLEST_MAX_RECORD_KIB <= kib <= LARGEST_MAX_RECORD_KIB:
                raise invalid(
                    f"MaxRecordSizeInKiB {kib} must be between {SMALLEST_MAX_RECORD_KIB} and {LARGEST_MAX_RECORD_KIB}."
                )
            found.max_record_kib = kib

    def set_distribution(self, stream: str, strategy: str) -> None:
        """Set the RecordDistributionStrategy of an on-demand stream."""
        self._enter("UpdateStreamRecordDistributionStrategy", stream)
        with self._lock:
            found = self._find(stream, self._now())
            require_active(found)
            if found.mode != "ON_DEMAND":
                raise invalid("RecordDistributionStrategy is supported for streams in ON_DEMAND mode only.")
            found.distribution = strategy

    def tags(self, stream: str) -> dict[str, str]:
        """Return a copy of the stream's tags."""
        with self._lock:
            return dict(self._find(stream, self._now()).tags)

    def set_tags(self, stream: str, tags: dict[str, str], remove: Sequence[str] = ()) -> None:
        self._enter("AddTagsToStream", stream)
        with self._lock:
            found = self._find(stream, self._now())
            found.tags.update(tags)
            for key in remove:
                found.tags.pop(key, None)

    def list_shards(
        self, stream: str, shard_filter: ShardFilter | None = None, operation: str | None = "ListShards"
    ) -> list[Shard]:
        """Return the shards that Kinesis lists, closed ones too, by id.

        operation: name for the fault hook; None: do not call it, and return the shards as they are now.
        """
        self._enter(operation, stream)
        with self._lock:
            now = self._now()
            found = self._find(stream, now)
            found.trim(now)
            lag = self._rng.randint(0, self._listing_lag_millis) if operation is not None else 0
            as_of = now - lag if lag else None
            return [shard.view(as_of) for shard in select(found, shard_filter, now, as_of)]

    def incarnation(self, stream: str) -> str:
        """Return an id that differs between streams of one name, created one after the other."""
        with self._lock:
            return self._find(stream, self._now()).incarnation

    def put_counts(self, stream: str) -> dict[str, int]:
        """Return the number of records ever put by shard id, trimmed ones included."""
        with self._lock:
            return dict(self._find(stream, self._now()).put_counts)

    # Resharding

    def split(self, stream: str, shard_id: str, new_starting_hash_key: int | None = None) -> None:
        """Split a shard, by default in its middle. Raises AwsError as SplitShard does."""
        self._enter("SplitShard", stream, shard_id)
        with self._lock:
            now = self._now()
            found = self._active(stream, now)
            require_active(found)
            shard = eligible(found, shard_id)
            key = new_starting_hash_key
            if key is None:
                key = (shard.first_key + shard.last_key + 1) // 2
            check_split(found, shard_id, key)
            self._change(found, "UPDATING", lambda at: split_shard(found, shard, key, at), now)

    def merge(self, stream: str, shard_id: str, adjacent_id: str) -> None:
        """Merge two adjacent shards. Raises AwsError as MergeShards does."""
        self._enter("MergeShards", stream, shard_id)
        with self._lock:
            now = self._now()
            found = self._active(stream, now)
            check_merge(found, shard_id, adjacent_id)
            first, second = found.shards[shard_id], found.shards[adjacent_id]
            self._change(found, "UPDATING", lambda at: merge_shards(found, first, second, at), now)

    def update_shard_count(self, stream: str, target: int) -> int:
        """Scale to `target` equal shards; return the previous count. Raises AwsError as UpdateShardCount does."""
        self._enter("UpdateShardCount", stream)
        with self._lock:
            now = self._now()
            found = self._active(stream, now)
            check_update_count(found, target)
            before = len(found.open_shards)
            self._change(found, "UPDATING", lambda at: scale_shards(found, target, at), now)
            return before

    # Records

    def put_record(
        self, stream: str, data: bytes, partition_key: str, explicit_hash_key: int | None = None
    ) -> Put:
        """Put one record. Raises AwsError: ResourceNotFoundException, ProvisionedThroughputExceededException, ..."""
        self._enter("PutRecord", stream)
        with self._lock:
            now = self._now()
            return self._put(self._active(stream, now), Entry(data, partition_key, explicit_hash_key), now)

    def put_records(self, stream: str, entries: Sequence[Entry]) -> list[Put | AwsError]:
        """Put records; return a result per entry, in order. Entries over a shard's rate fail alone."""
        self._enter("PutRecords", stream)
        with self._lock:
            now = self._now()
            found = self._active(stream, now)
            results: list[Put | AwsError] = []
            for entry in entries:
                try:
                    results.append(self._put(found, entry, now))
                except AwsError as error:
                    if error.code != "ProvisionedThroughputExceededException":
                        raise
                    results.append(error)
            return results

    def get_shard_iterator(
        self,
        stream: str,
        shard_id: str,
        kind: str,
        *,
        sequence_number: str | None = None,
        at_millis: int | None = None,
    ) -> str:
        """Return an iterator of one of the five kinds.

        Raises AwsError for an unknown shard or a number of another one.
        """
        self._enter("GetShardIterator", stream, shard_id)
        with self._lock:
            now = self._now()
            found, shard, (sequence, reached) = self._start(
                stream, shard_id, kind, now, sequence_number, at_millis
            )
            if shard.limits is not None and not shard.limits.may_iterate(now):
                raise throttled(shard_id, found.name)
            return write_iterator(
                ReadPosition(found.name, found.incarnation, shard_id, sequence, reached, now)
            )

    def get_records(self, iterator: str, limit: int = MAX_PAGE_RECORDS) -> Page:
        """Return at most `limit` records (1..10,000) and 10 MiB, of one `read_span`. Raises AwsError."""
        position = read_iterator(iterator, self._now())
        self._enter("GetRecords", position.stream, position.shard_id)
        with self._lock:
            now = self._now()
            stream = self._active(position.stream, now)
            if stream.incarnation != position.incarnation:
                raise invalid_argument("Invalid ShardIterator.")
            stream.trim_shard(position.shard_id, now)
            shard = stream.shard(position.shard_id)
            if shard.limits is not None and not shard.limits.may_read(now):
                raise throttled(shard.shard_id, stream.name)
            page = read_page(
                stream,
                shard,
                position._replace(issued_at=now),
                limit=limit,
                span=self.read_span.millis(self._rng),
                end_alone=self._rng.random() < self.read_span.end_alone,
            )
            if shard.limits is not None:
                shard.limits.read_bytes.spend(sum(record.size for record in page.records))
            return page

    # Consumers of enhanced fan-out

    def register_consumer(self, stream: str, name: str) -> Consumer:
        """Register a consumer. Raises AwsError as RegisterStreamConsumer does."""
        self._enter("RegisterStreamConsumer", stream)
        with self._lock:
            now = self._now()
            return self._consumers[self._active(stream, now).name].register(name, now)

    def deregister_consumer(self, stream: str, *, name: str | None = None, arn: str | None = None) -> None:
        """Delete the consumer of that name or ARN; its subscriptions end. Raises AwsError."""
        self._enter("DeregisterStreamConsumer", stream)
        with self._lock:
            now = self._now()
            consumers = self._consumers[self._find(stream, now).name]
            consumers.deregister(consumers.find(now, name=name, arn=arn), now)

    def describe_consumer(
        self, stream: str, *, name: str | None = None, arn: str | None = None
    ) -> tuple[Consumer, StreamView]:
        """Return the consumer of that name or ARN, and its stream. Raises AwsError ResourceNotFoundException."""
        self._enter("DescribeStreamConsumer", stream)
        with self._lock:
            now = self._now()
            found = self._find(stream, now)
            return self._consumers[found.name].find(now, name=name, arn=arn), _view(found)

    def list_consumers(self, stream: str, operation: str | None = "ListStreamConsumers") -> list[Consumer]:
        """Return the consumers of a stream, by name."""
        self._enter(operation, stream)
        with self._lock:
            now = self._now()
            return self._consumers[self._find(stream, now).name].all(now)

    def subscribe(
        self,
        consumer_arn: str,
        shard_id: str,
        kind: str,
        *,
        sequence_number: str | None = None,
        at_millis: int | None = None,
    ) -> Subscription:
        """Subscribe to a shard, from the start of one of the kinds of iterators on. Raises AwsError."""
        stream = consumer_arn.partition("/consumer/")[0]
        self._enter("SubscribeToShard", stream, shard_id)
        with self._lock:
            now = self._now()
            found, shard, (position, _) = self._start(stream, shard_id, kind, now, sequence_number, at_millis)
            consumers = self._consumers[found.name]
            consumer = consumers.find(now, arn=consumer_arn)
            until = now + round(self.subscription_seconds * 1000)
            return consumers.subscribe(consumer, shard, position, now, until)

    def next_event(self, subscription: Subscription) -> PushedEvent | None:
        """Return the event that is due; None: none is, or the subscription has ended. Raises AwsError in its place."""
        with self._lock:
            now = self._now()
            self._apply_due_change(subscription.stream, now)
            subscription.stream.trim_shard(subscription.shard.shard_id, now)
            return subscription.next(now, end_alone=self._rng.random() < self.read_span.end_alone)

    def end(self, subscription: Subscription) -> None:
        """End it without a word: its client is gone."""
        with self._lock:
            subscription.end()

    def _enter(self, operation: str | None, stream: str, shard_id: str = "") -> None:
        """Call the fault hook, outside the lock, so that it may wait for other threads."""
        if self.fault is not None and operation is not None:
            self.fault(operation, _name(stream), shard_id)

    # The rest runs inside the lock.

    def _start(
        self,
        stream: str,
        shard_id: str,
        kind: str,
        now: int,
        sequence_number: str | None,
        at_millis: int | None,
    ) -> tuple[LocalStream, LocalShard, tuple[str, int]]:
        """Return the stream, the shard, and where reads of it start. Raises AwsError."""
        found = self._active(stream, now)
        found.trim_shard(shard_id, now)
        shard = found.shard(shard_id)
        where = start_of(found, shard, kind, sequence_number=sequence_number, at_millis=at_millis, now=now)
        return found, shard, where

    def _find(self, stream: str, now: int) -> LocalStream:
        """Return the stream in any state, after the changes that are due."""
        name = _name(stream)
        found = self._streams.get(name)
        if found is not None:
            self._apply_due_change(found, now)
            found = self._streams.get(name)
        if found is None or (stream.startswith("arn:") and stream != found.arn):
            raise not_found(f"Stream {name} under account {ACCOUNT} not found.")
        return found

    def _active(self, stream: str, now: int) -> LocalStream:
        """Return the stream if it is ACTIVE or UPDATING: in other states its data plane does not exist."""
        found = self._find(stream, now)
        if found.status == "DELETING" or not found.open_shards:
            raise not_found(f"Stream {found.name} under account {ACCOUNT} not found.")
        return found

    def _change(self, stream: LocalStream, status: str, change: Callable[[int], None], now: int) -> None:
        """Do `change` after `state_seconds`, for which the status lasts."""
        stream.status = status
        stream.change = change
        stream.changes_at = now + self._state_millis
        self._apply_due_change(stream, now)

    def _apply_due_change(self, stream: LocalStream, now: int) -> None:
        if stream.changes_at is None or now < stream.changes_at:
            return
        at, change = stream.changes_at, stream.change
        stream.changes_at = stream.change = None
        stream.status = "ACTIVE"
        if change is not None:
            change(at)

    def _remove(self, stream: LocalStream) -> None:
        self._streams.pop(stream.name, None)
        self._consumers.pop(stream.name, None)

    def _put(self, stream: LocalStream, entry: Entry, now: int) -> Put:
        key = entry.explicit_hash_key
        if key is not None and not 0 <= key < HASH_KEYS:
            raise invalid_argument(
                "Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. "
                f"Specified value was {key}"
            )
        size = len(entry.data) + len(entry.partition_key.encode())
        if size > stream.max_record_kib * 1024:
            raise invalid_argument(
                f"A record of {size} bytes (payload and partition key) is larger than the maximum record size of "
                f"stream {stream.name}, {stream.max_record_kib} KiB."
            )
        if stream.distribution == AUTO:
            # AWS says evenly, and by no key.
            shard = min(stream.open_shards, key=lambda one: stream.put_counts.get(one.shard_id, 0))
        else:
            shard = stream.shard_for(entry.partition_key, key)
        if shard.limits is not None and not shard.limits.may_write(size, now):
            raise throttled(shard.shard_id, stream.name)
        number = stream.sequencer.next(shard.index, now)
        shard.append(entry.data, entry.partition_key, number, now)
        stream.put_counts[shard.shard_id] = stream.put_counts.get(shard.shard_id, 0) + 1
        return Put(shard.shard_id, number)


def _name(stream: str) -> str:
    return stream.partition(":stream/")[2] if stream.startswith("arn:") else stream


def _view(stream: LocalStream) -> StreamView:
    return StreamView(
        stream.name,
        stream.arn,
        stream.status,
        stream.mode,
        stream.retention_hours,
        stream.created_at,
        len(stream.open_shards),
        stream.max_record_kib,
        (stream.distribution or USER_PARTITION_KEY) if stream.mode == "ON_DEMAND" else None,
    )
