"""The queue of a program that iterates: records of all shards of a process, fair among shards, in order within each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pykcl.model.record import Key, Record
from pykcl.processor import (
    Acknowledgements,
    Batch,
    Checkpointer,
    InitializationInput,
    LeaseLostInput,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from pykcl.runtime import Runtime
from pykcl.worker.ack_delivery import Intake

_CHECK_EVERY = 0.05
"""Seconds between two questions whether the lease of a shard is still held, while its records are taken."""


class Feed(RecordProcessor, Intake):
    """The records of one shard under one lease. Its attributes belong to the queue, under its lock.

    records: not taken yet. out: taken and not acked, with the time of that. accepts: False once no more is wanted.
    rests_until: no record is taken before that, monotonic seconds.
    """

    def __init__(self, queue: RecordQueue) -> None:
        self.intake = self
        self._queue = queue
        self.records: deque[Record] = deque()
        self.out: dict[Key, float] = {}
        self.shard_id = ""
        # Of the last batch, whose records are not kept: nobody counts the bytes of those that are done.
        self.acks: Acknowledgements | None = None
        self.checkpointer: Checkpointer | None = None
        self.check_at = self.rests_until = 0.0
        self.accepts = False

    # -- for the thread of the lease -----------------------------------------------------------------------------

    def initialize(self, init: InitializationInput) -> None:
        self.shard_id = init.shard_id
        self._queue.join(self)

    def process_records(self, batch: Batch) -> None:
        self._queue.put(self, batch)

    def shutdown_requested(self, request: ShutdownRequestedInput) -> None:
        # The next owner gets what nobody has taken; what is taken may still be acked.
        self._queue.drop(self)

    def shard_ended(self, end: ShardEndedInput) -> None:
        self._queue.leave(self)

    def lease_lost(self, loss: LeaseLostInput) -> None:
        self._queue.leave(self)

    def room(self) -> int:
        return self._queue.room(self)

    def is_owed(self) -> bool:
        return bool(self.out)

    def since(self, delivered: float) -> float:
        return self._queue.since(self, delivered)


class RecordQueue:
    """Thread-safe. Nothing is called under its lock but the clock, and the lease that is asked whether it is held.

    most: records of all shards that are delivered and not acked, but at least one for each shard. on_news: called,
    without the lock, after what may end a wait of the program.
    """

    def __init__(self, runtime: Runtime, most: int, on_news: Callable[[], None]) -> None:
        self._lock = runtime.lock()
        self._now = runtime.monotonic
        self._most, self._on_news = most, on_news
        self._feeds: dict[str, Feed] = {}
        # Those with records, in the order of their turns.
        self._ring: deque[Feed] = deque()
        # Records that wait or are out, and shards that accept more.
        self._count = self._accepting = 0
        self._taken_at = 0.0
        self._is_closed = False

    def feed(self) -> Feed:
        """Make the processor of one lease."""
        return Feed(self)

    # -- for the threads of the leases ---------------------------------------------------------------------------

    def join(self, feed: Feed) -> None:
        """Begin with a shard. An earlier feed of the same one is over."""
        with self._lock:
            before = self._feeds.get(feed.shard_id)
            if before is not None:
                self._forget(before)
            self._feeds[feed.shard_id] = feed
            if not self._is_closed:
                feed.accepts = True
                self._accepting += 1

    def put(self, feed: Feed, batch: Batch) -> None:
        with self._lock:
            feed.acks, feed.checkpointer = batch.acks, batch.checkpointer
            if not feed.accepts:
                return
            is_first = not feed.records
            feed.records.extend(batch.records)
            self._count += len(batch)
            if is_first and feed.records:
                self._ring.append(feed)
        self._on_news()

    def drop(self, feed: Feed) -> None:
        """Drop what is not taken, and accept no more."""
        with self._lock:
            self._empty(feed)

    def leave(self, feed: Feed) -> None:
        """End with a shard: acks of its records have no effect any more."""
        with self._lock:
            self._forget(feed)
            if self._feeds.get(feed.shard_id) is feed:
                del self._feeds[feed.shard_id]

    def room(self, feed: Feed) -> int:
        """Return how many records to add to a shard now: its share, less those that are there.

        Nothing while more than half of its share is there and some wait to be taken, so that a program that takes one
        by one does not cost a delivery for each.
        """
        with self._lock:
            if not feed.accepts:
                return 0
            share = max(1, self._most // self._accepting)
            mine = len(feed.records) + len(feed.out)
            if feed.records and mine * 2 > share:
                return 0
            # A shard that had a larger share before others came may hold more than its own now.
            return min(share, max(1, self._most - (self._count - mine))) - mine

    def since(self, feed: Feed, delivered: float) -> float:
        """Return the time at which the first record that is out was taken; without any, the last one of any shard."""
        with self._lock:
            return next(iter(feed.out.values()), max(delivered, self._taken_at))

    # -- for the program -----------------------------------------------------------------------------------------

    def take(self) -> Record | None:
        """Take the next record of the shard whose turn it is; None: there is none now."""
        with self._lock:
            found = self._take()
        if found is None:
            return None
        feed, record = found
        feed.moved()
        return record

    def ack(self, record: Record) -> bool:
        """Settle a record that was taken. False: it was settled before, or its lease is gone."""
        acks = self._settle(record, keep=False)
        if acks is None:
            return False
        done = acks[1].ack(record)
        acks[0].moved()
        return done

    def reject(self, record: Record, reason: str) -> bool:
        """Keep a record that was taken as a dead letter, then settle it. Raises what the destination raises."""
        acks = self._settle(record, keep=True)
        if acks is None or not acks[1].reject(record, reason):
            return False
        self._settle(record, keep=False)
        acks[0].moved()
        return True

    def is_out(self, record: Record) -> bool:
        """Return True for a record that was taken, and that an ack would settle."""
        return self._settle(record, keep=True) is not None

    def is_lost(self, record: Record) -> bool:
        """Return True for a record that no ack would settle. Asks its lease, which may be lost since a moment ago."""
        found = self._settle(record, keep=True)
        return found is None or bool(getattr(found[0].checkpointer, "is_lost", False))

    def put_back(self, record: Record, pause: float = 0.0) -> None:
        """Let a record that was taken, and is not settled, be the next one of its shard again, after a pause."""
        with self._lock:
            feed = self._feeds.get(record.shard_id)
            key = record.sequence_number, record.sub_sequence_number
            if feed is None or feed.out.pop(key, None) is None:
                return
            if feed.accepts:
                if feed.records:
                    self._ring.remove(feed)
                feed.records.appendleft(record)
                self._ring.appendleft(feed)
                feed.check_at, feed.rests_until = 0.0, self._now() + pause
            else:
                self._count -= 1
        feed.moved()

    def rest(self) -> float | None:
        """Return the seconds until the end of the first pause of a shard; None: there is none."""
        with self._lock:
            now = self._now()
            # Also of one that may be taken again since this moment: if its shard is paused, it rests once more.
            left = (feed.rests_until - now for feed in self._ring)
            return min((seconds if seconds > 0 else _CHECK_EVERY for seconds in left), default=None)

    def close(self) -> None:
        """Drop everything: nothing is taken or acked any more."""
        with self._lock:
            self._is_closed = True
            for feed in self._feeds.values():
                self._forget(feed)
        self._on_news()

    # -- under the lock ------------------------------------------------------------------------------------------

    def _take(self) -> tuple[Feed, Record] | None:
        ring, resting = self._ring, 0
        while ring:
            feed = ring[0]
            now = self._now()
            is_paused = getattr(feed.acks, "is_paused", False)
            if now >= feed.check_at or is_paused:
                # 1) The machine is suspended for longer than the leases last; 2) the program goes on before the
                # threads of the leases do: it would get records that another worker has by now.
                if getattr(feed.checkpointer, "is_lost", False):
                    self._empty(feed)
                    continue
                if is_paused or getattr(feed.checkpointer, "is_in_doubt", False):
                    feed.rests_until = max(feed.rests_until, now + _CHECK_EVERY)
                if now < feed.rests_until:
                    ring.rotate(-1)
                    resting += 1
                    if resting >= len(ring):
                        break
                    continue
                feed.check_at = now + _CHECK_EVERY
            record = feed.records.popleft()
            if not feed.records:
                ring.popleft()
            elif len(ring) > 1:
                ring.rotate(-1)
            feed.out[record.sequence_number, record.sub_sequence_number] = self._taken_at = now
            return feed, record
        return None

    def _settle(self, record: Record, *, keep: bool) -> tuple[Feed, Acknowledgements] | None:
        key = record.sequence_number, record.sub_sequence_number
        with self._lock:
            feed = self._feeds.get(record.shard_id)
            if feed is None or key not in feed.out or feed.acks is None:
                return None
            if not keep:
                del feed.out[key]
                self._count -= 1
            return feed, feed.acks

    def _empty(self, feed: Feed) -> None:
        if feed.accepts:
            feed.accepts = False
            self._accepting -= 1
        if feed.records:
            self._count -= len(feed.records)
            feed.records.clear()
            self._ring.remove(feed)

    def _forget(self, feed: Feed) -> None:
        self._empty(feed)
        self._count -= len(feed.out)
        feed.out.clear()
