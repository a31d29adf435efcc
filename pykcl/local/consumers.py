"""Consumers of enhanced fan-out, and their subscriptions: the events that SubscribeToShard pushes.

Not thread-safe by itself: `LocalKinesis` holds its lock around every call. Nothing here waits: whoever sends the events
asks for the next one when `Subscription.on_change` was called, and at its `due_at`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pykcl.local.errors import ACCOUNT, AwsError, in_use, limit_exceeded, not_found
from pykcl.local.shards import LocalShard, LocalStream, StoredRecord, following
from pykcl.model.shard import Shard

MAX_CONSUMERS = 20
"""Limit of one stream (quotas of Kinesis). It is 50 with On-demand Advantage, which is not here."""
MAX_CREATING = 5
MIN_CALL_MILLIS = 1_000
"""SubscribeToShard: one call a second for each consumer and shard."""
TAKEOVER_MILLIS = 5_000
"""Age of a subscription from which on another call takes it over."""
SILENCE_MILLIS = 5_000
"""An event without records comes after so long without one. AWS sends them, and documents no time."""
MAX_EVENT_RECORDS = 500
MAX_EVENT_BYTES = 1024 * 1024
"""Bounds of one event. AWS documents none."""


@dataclass(slots=True)
class Consumer:
    """A registered consumer. created_at: epoch milliseconds. status: CREATING, ACTIVE or DELETING, until changes_at.

    called_at: time of the last call of SubscribeToShard, by shard. subscriptions: the last one to each shard, also if
    it has ended, with the time of its call.
    """

    name: str
    arn: str
    created_at: int
    status: str
    changes_at: int | None
    called_at: dict[str, int] = field(default_factory=dict)
    subscriptions: dict[str, tuple[int, Subscription]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PushedEvent:
    """A SubscribeToShardEvent. continuation: None exactly at the end of a closed shard, where children are given."""

    records: list[StoredRecord]
    continuation: str | None
    millis_behind_latest: int
    children: tuple[Shard, ...]


class Subscription:
    """One call of SubscribeToShard, until it ends. on_change: called when an event may be due, by any thread.

    ended: no event will follow.
    """

    def __init__(self, stream: LocalStream, shard: LocalShard, position: str, now: int, until: int) -> None:
        self.on_change: Callable[[], None] = _nothing
        self.ended = False
        self.stream, self.shard = stream, shard
        self._due_at = now
        self._position = position
        self._until = until
        self._over: AwsError | None = None
        self._is_known = False
        shard.listeners.append(self._changed)

    @property
    def due_at(self) -> int:
        """Time at which the next event may be due though nobody calls `on_change`, epoch milliseconds."""
        changes_at = self.stream.changes_at
        return self._due_at if changes_at is None else min(self._due_at, changes_at)

    def end(self, error: AwsError | None = None) -> None:
        """End it. error: the last message of the stream; None: there is none, as at the end of the five minutes."""
        if self.ended:
            return
        self.ended, self._over = True, error
        self.shard.listeners.remove(self._changed)
        self.on_change()

    def _changed(self) -> None:
        """Note that the shard has another record, or has ended. Reported once, until the next event is asked for."""
        if not self._is_known:
            self._is_known = True
            self.on_change()

    def next(self, now: int, *, end_alone: bool) -> PushedEvent | None:
        """Return the event that is due; None: none is. Raises AwsError once, where the stream ends with one.

        end_alone: the end of a closed shard comes in an event of its own, after that of its last record.
        """
        self._is_known = False
        if not self.ended and now >= self._until:
            self.end()
        if not self.ended and self.stream.shards.get(self.shard.shard_id) is not self.shard:
            self.end(_unknown_shard(self.stream, self.shard.shard_id))
        if self._over is not None:
            error, self._over = self._over, None
            raise error
        if self.ended:
            return None
        event = self._news(now, end_alone)
        if event is None and now >= self._due_at:
            # Progress is reported even if there is nothing to read.
            number = self.stream.sequencer.next(self.shard.index, now)
            self._position = following(number)
            event = PushedEvent([], number, 0, ())
        if event is not None:
            self._due_at = min(now + SILENCE_MILLIS, self._until)
            if event.continuation is None:
                self.end()
        return event

    def _news(self, now: int, end_alone: bool) -> PushedEvent | None:
        """Return an event with records, or with the end of the shard; None: there is neither."""
        shard = self.shard
        first = shard.at_or_after(self._position)
        records = shard.page(first, first + MAX_EVENT_RECORDS, MAX_EVENT_BYTES)
        unread = first + len(records)
        is_last = unread == len(shard.records)
        if is_last and shard.closed_at is not None and not (records and end_alone):
            behind = max(0, now - shard.closed_at)
            return PushedEvent(records, None, behind, self.stream.children_of(shard))
        if not records:
            return None
        self._position = following(records[-1].sequence_number)
        behind = 0 if is_last else max(0, now - shard.records[unread].arrived_at_millis)
        return PushedEvent(records, records[-1].sequence_number, behind, ())


def _nothing() -> None:
    """Stand in until somebody waits."""


class Consumers:
    """The consumers of one stream, by name. state_millis: how long they stay CREATING and DELETING."""

    def __init__(self, stream: LocalStream, state_millis: int) -> None:
        self._stream, self._state_millis = stream, state_millis
        self._by_name: dict[str, Consumer] = {}
        self._last_suffix = 0

    def all(self, now: int) -> list[Consumer]:
        """Return them by name, in any state, after the changes that are due."""
        for name, consumer in list(self._by_name.items()):
            if consumer.changes_at is not None and now >= consumer.changes_at:
                consumer.changes_at = None
                if consumer.status == "DELETING":
                    del self._by_name[name]
                else:
                    consumer.status = "ACTIVE"
        return [consumer for _, consumer in sorted(self._by_name.items())]

    def find(self, now: int, *, name: str | None = None, arn: str | None = None) -> Consumer:
        """Return the one of that name or ARN. Raises AwsError ResourceNotFoundException."""
        for consumer in self.all(now):
            if consumer.name == name if arn is None else consumer.arn == arn:
                return consumer
        raise self._unknown(name or str(arn).partition("/consumer/")[2])

    def register(self, name: str, now: int) -> Consumer:
        """Add one. Raises AwsError as RegisterStreamConsumer does."""
        known, stream = self.all(now), self._stream
        if name in self._by_name:
            raise in_use(f"Consumer {name} of stream {stream.name} under account {ACCOUNT} already exists.")
        creating = sum(one.status == "CREATING" for one in known)
        if len(known) >= MAX_CONSUMERS or creating >= MAX_CREATING:
            raise limit_exceeded(
                f"Stream {stream.name} under account {ACCOUNT} has {len(known)} consumers of at most {MAX_CONSUMERS}, "
                f"{creating} of them in state CREATING of at most {MAX_CREATING}."
            )
        # Whole seconds, as at AWS. Consumers of one name, registered one after the other, have different ARNs.
        self._last_suffix = max(now // 1000, self._last_suffix + 1)
        arn = f"{stream.arn}/consumer/{name}:{self._last_suffix}"
        self._by_name[name] = consumer = Consumer(name, arn, now, "CREATING", now + self._state_millis)
        return consumer

    def deregister(self, consumer: Consumer, now: int) -> None:
        """Delete one, after a while. Its subscriptions end at once."""
        consumer.status, consumer.changes_at = "DELETING", now + self._state_millis
        self._end(consumer)

    def end_all(self) -> None:
        """End all subscriptions: the stream is deleted."""
        for consumer in self._by_name.values():
            self._end(consumer)

    def subscribe(
        self, consumer: Consumer, shard: LocalShard, position: str, now: int, until: int
    ) -> Subscription:
        """Subscribe to a shard from a position on, until a time. Raises AwsError as SubscribeToShard does.

        A former subscription of the consumer to that shard ends if it is old enough.
        """
        shard_id, stream = shard.shard_id, self._stream
        if consumer.status != "ACTIVE":
            raise in_use(f"Consumer {consumer.arn} is in state {consumer.status}, not ACTIVE.")
        called_at, consumer.called_at[shard_id] = consumer.called_at.get(shard_id), now
        if called_at is not None and now - called_at < MIN_CALL_MILLIS:
            raise limit_exceeded(f"Rate exceeded for consumer {consumer.arn} and shard {shard_id}.")
        former = consumer.subscriptions.get(shard_id)
        if former is not None and now - former[0] < TAKEOVER_MILLIS:
            raise in_use(
                "Another active subscription exists for this consumer: "
                f"{ACCOUNT}:{stream.name}:{shard_id}:{consumer.name}"
            )
        if former is not None:
            former[1].end(in_use(f"Another subscription to {shard_id} has taken over for {consumer.arn}."))
        subscription = Subscription(stream, shard, position, now, until)
        consumer.subscriptions[shard_id] = now, subscription
        return subscription

    def _end(self, consumer: Consumer) -> None:
        for _, subscription in consumer.subscriptions.values():
            subscription.end(self._unknown(consumer.name))

    def _unknown(self, name: str) -> AwsError:
        stream = self._stream.name
        return not_found(f"Consumer {name} of stream {stream} under account {ACCOUNT} does not exist.")


def _unknown_shard(stream: LocalStream, shard_id: str) -> AwsError:
    return not_found(f"Shard {shard_id} in stream {stream.name} under account {ACCOUNT} does not exist")
