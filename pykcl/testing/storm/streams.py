"""The stream as one worker of a storm sees it: with faults, with a reading budget, and with short sequence numbers."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pykcl.errors import (
    AnswerRefused,
    IteratorExpired,
    PositionRefused,
    SetupError,
    TemporaryError,
    Throttled,
)
from pykcl.interfaces import Coming, Fetched
from pykcl.local.shards import HOUR_MILLIS
from pykcl.local.stream import LocalKinesis
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.shard import ShardListing, StreamDescription
from pykcl.runtime import Runtime
from pykcl.testing.memory.stream import LaterPage, MemoryStream
from pykcl.testing.storm.faults import Faults

STREAM = "orders"
READS_PER_SECOND = 5
_STALEST_LISTING = 5.0
_DIGITS_AFTER_MILLIS = 41


class ShortNumbers:
    """Sequence numbers of different lengths, so that nobody who compares them as text passes for correct.

    Those of Kinesis have 56 digits; here the part that never changes is taken off. since: epoch milliseconds.
    """

    def __init__(self, since: int) -> None:
        self._base = int(f"49{since:013d}" + "0" * _DIGITS_AFTER_MILLIS)

    def shorten(self, sequence_number: str) -> str:
        return str(int(sequence_number) - self._base)

    def lengthen(self, sequence_number: str) -> str:
        """Raises PositionRefused for what Kinesis would not take for a number."""
        if not sequence_number.isdecimal():
            raise PositionRefused("InvalidArgumentException")
        return str(int(sequence_number) + self._base)


_UNUSABLE_KEYS = (
    "KMSAccessDeniedException", "KMSDisabledException", "KMSInvalidStateException", "KMSNotFoundException",
    "KMSOptInRequired", "KMSThrottlingException",
)  # fmt: skip


@dataclass(slots=True)
class Outages:
    """Until when which service is down, for whom ("" for everybody); and which action is forbidden to whom.

    locked: until when GetRecords is refused for the stream's encryption key, and with which error code, by host.
    refused: hosts that were refused an action, and may give up for it.
    """

    down: dict[tuple[str, str], float] = field(default_factory=dict)
    forbidden: dict[tuple[str, str], float] = field(default_factory=dict)
    locked: dict[str, tuple[float, str]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def is_down(self, service: str, host: str, now: float) -> bool:
        return max(self.down.get((service, host), 0.0), self.down.get((service, ""), 0.0)) > now

    def forbids(self, action: str, host: str, now: float) -> str | None:
        """The kind of fault that refuses this action to this host, or None."""
        until = self.forbidden.get((action, host), 0.0)
        if until <= now:
            return None
        self.refused.add(host)
        return "F14.start" if until == float("inf") else "F14.while"

    def lock(self, host: str, until: float, rng: random.Random) -> None:
        """From now on the stream's encryption key is of no use to this host ("": to nobody)."""
        self.locked[host] = (until, rng.choice(_UNUSABLE_KEYS))

    def why_locked(self, host: str, now: float) -> str | None:
        """The error code with which GetRecords is refused now, or None."""
        return next(
            (code for who in (host, "") for until, code in (self.locked.get(who, (0.0, "")),) if until > now),
            None,
        )

    def heal(self) -> None:
        self.down.clear()
        self.forbidden.clear()
        self.locked.clear()


class SlowPage(LaterPage):
    """`ports.Asked`: there at `there_at` (virtual seconds), or (never_tells) only for who waits for it."""

    def __init__(
        self,
        fetch: Callable[[], Fetched],
        runtime: Runtime,
        now: Callable[[], float],
        *,
        there_at: float,
        never_tells: bool,
    ) -> None:
        super().__init__(fetch)
        self._runtime, self._now = runtime, now
        self.there_at = there_at
        self._never_tells = never_tells

    def look(self) -> Coming:
        if self._now() < self.there_at:
            return Coming.NOT_YET
        return Coming.TO_BE_WAITED_FOR if self._never_tells else super().look()

    def page(self) -> Fetched:
        self._runtime.event().wait(max(0.0, self.there_at - self._now()))
        return super().page()


class StormStream:
    """`ports.Stream` for one host.

    over_budget: told of a shard that this host reads more often than Kinesis allows. listing_before: what ListShards
    would have told so many seconds ago; None for who believes every listing, as Java does: it gets sound ones.
    on_fetch: told the shard and the (long) sequence number of each fetched record.
    """

    def __init__(
        self,
        kinesis: LocalKinesis,
        runtime: Runtime,
        *,
        host: str,
        numbers: ShortNumbers,
        faults: Faults,
        outages: Outages,
        now: Callable[[], float],
        kinesis_millis: Callable[[], int],
        switch: Callable[[], None],
        over_budget: Callable[[str], None],
        listing_before: Callable[[float], ShardListing] | None,
        on_fetch: Callable[[str, str], None] = lambda shard_id, sequence_number: None,
    ) -> None:
        self._inner = MemoryStream(kinesis, STREAM, runtime, switch)
        self._host, self._numbers, self._faults, self._outages = host, numbers, faults, outages
        self._now = now
        self._runtime, self._switch = runtime, switch
        self._kinesis_millis = kinesis_millis
        self._over_budget = over_budget
        self._listing_before = listing_before
        self._on_fetch = on_fetch
        self._reads: dict[str, deque[float]] = {}

    @property
    def name(self) -> str:
        return STREAM

    def describe(self) -> StreamDescription:
        self._fail_perhaps("DescribeStreamSummary")
        return self._inner.describe()

    def list_shards(self) -> ShardListing:
        self._fail_perhaps("ListShards")
        listing = self._inner.list_shards()
        faults = self._faults
        if self._listing_before is None:
            return listing
        if faults.happens("F9.stale", self._host):
            return self._listing_before(faults.rng("F9.stale").uniform(0.5, _STALEST_LISTING))
        shards = listing.shards
        if len(shards) > 1 and faults.happens("F9.part", self._host):
            return ShardListing(shards[: len(shards) // 2], complete=False)
        if len(shards) > 1 and faults.happens("F9.missing", self._host):
            missing = faults.rng("F9.missing").choice(shards)
            return ShardListing(tuple(shard for shard in shards if shard is not missing))
        return listing

    def open(self, shard_id: str, start: ReadFrom) -> str:
        self._fail_perhaps("GetShardIterator")
        if start.sequence_number is not None:
            start = replace(start, sequence_number=self._numbers.lengthen(start.sequence_number))
        return self._inner.open(shard_id, start)

    def fetch(self, shard_id: str, iterator: str, limit: int) -> Fetched:
        self._count_read(shard_id)
        self._fail_perhaps("GetRecords")
        self._refuse_if_locked(shard_id)
        faults = self._faults
        if faults.happens("F10.expired", shard_id):
            raise IteratorExpired("ExpiredIteratorException")
        if faults.happens("F10.empty", shard_id):
            return Fetched([], iterator, 1000, (), 0)
        if faults.happens("F10.refused", shard_id):
            # The adapter lets no such answer through: neither an iterator nor children.
            raise AnswerRefused(f"Kinesis ended {shard_id} without naming its children.")
        fetched = self._inner.fetch(shard_id, iterator, limit)
        for record in fetched.records:
            self._on_fetch(shard_id, record.sequence_number)
            record.sequence_number = self._numbers.shorten(record.sequence_number)
        return fetched

    pages_at_a_time = 16

    def ask(self, shard_id: str, fetch: Callable[[], Fetched]) -> SlowPage | None:
        """fetch: how the page is fetched as soon as it is there."""
        self._switch()
        there_at, never_tells = self._now(), False
        if self._faults.happens("F10.slow", shard_id):
            rng = self._faults.rng("F10.slow")
            if rng.random() < 0.25:
                return None  # as without a connection
            there_at += rng.uniform(0.0, 1.0)
            never_tells = rng.random() < 0.25
        return SlowPage(fetch, self._runtime, self._now, there_at=there_at, never_tells=never_tells)

    def wait_for_answers(self, asked: Sequence[SlowPage], timeout: float) -> None:
        soonest = min((page.there_at for page in asked), default=0.0)
        self._runtime.event().wait(max(0.0, min(timeout, soonest - self._now())))

    def begins_anew(self, shard_id: str) -> None:
        """This host took the lease: the pace of an earlier ownership is not its own any more."""
        self._reads.pop(shard_id, None)

    def server_time_millis(self) -> int:
        return self._kinesis_millis() // 1000 * 1000

    def _fail_perhaps(self, action: str) -> None:
        now = self._now()
        forbidden = self._outages.forbids(action, self._host, now)
        if forbidden is not None:
            self._faults.note(forbidden, f"{action} by {self._host}")
            raise SetupError(f"AccessDeniedException: {action} is not allowed.")
        if self._outages.is_down("kinesis", self._host, now):
            raise TemporaryError("InternalFailure")
        if self._faults.happens("F5.kinesis", f"{action} by {self._host}"):
            if self._faults.rng("F5.kinesis").random() < 0.5:
                raise Throttled("ProvisionedThroughputExceededException")
            raise TemporaryError("InternalFailure")

    def _refuse_if_locked(self, shard_id: str) -> None:
        code = self._outages.why_locked(self._host, self._now())
        if code is None:
            return
        self._faults.note("F10.kms", f"{code} for {self._host} {shard_id}")
        if code == "KMSThrottlingException":
            raise Throttled(code)
        self._outages.refused.add(self._host)
        raise SetupError(f"GetRecords failed: the stream's KMS key cannot be used ({code}).")

    def _count_read(self, shard_id: str) -> None:
        reads = self._reads.setdefault(shard_id, deque(maxlen=READS_PER_SECOND + 1))
        reads.append(self._now())
        # Its clock may run a tenth fast; what it takes for a second is then shorter.
        if len(reads) > READS_PER_SECOND and reads[-1] - reads[0] < 0.9:
            self._over_budget(shard_id)


def past_retention(retention_hours: int, keep_seconds: float) -> int:
    """How many milliseconds to move Kinesis' clock on, so that only the last `keep_seconds` are still retained."""
    return int(retention_hours * HOUR_MILLIS - keep_seconds * 1000)
