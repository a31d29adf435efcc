"""Kinesis and DynamoDB as one host sees them: with faults, a reading budget and short sequence numbers."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pykcl.aws import server_clock
from pykcl.aws.errors import sort_failure
from pykcl.errors import (
    AnswerRefused,
    IteratorExpired,
    PositionRefused,
    SetupError,
    ShardGone,
    TemporaryError,
    Throttled,
)
from pykcl.interfaces import Fetched, PageStatus
from pykcl.local.shards import HOUR_MILLIS
from pykcl.local.stream import LocalKinesis
from pykcl.model.absence import GONE_AFTER
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.shard import ShardListing, StreamDescription
from pykcl.runtime import Runtime
from pykcl.stores.expressions import Item, aws_error, copy_item
from pykcl.stores.requests import Params, segment_of, spread_order
from pykcl.testing.memory.dynamodb import Fault, MemoryDynamoDB, absent, denied, failing, throttled, timed_out
from pykcl.testing.memory.stream import LaterPage, MemoryStream
from pykcl.testing.simulation.faults import Faults

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

_REPLACED_KEYS = ("ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException")
_PROXY_SECONDS = (20, 300)

T = TypeVar("T")


def _lasting(what: Mapping[str, tuple[float, T]], host: str, now: float) -> T | None:
    """Return what lasts for this host, or for all, until a time that is to come."""
    return next((it for who in (host, "") if who in what for until, it in (what[who],) if until > now), None)


@dataclass(slots=True)
class Outages:
    """Outages of services with their end, by host ("" for all), and forbidden actions by host.

    replaced: until when every action is refused for the credentials, and with which error code, by host.
    locked: until when GetRecords is refused for the stream's encryption key, and with which error code, by host.
    proxied: until when a proxy with a clock of its own stands before Kinesis, and by how much that is ahead
    (milliseconds, negative: behind), by host.
    refused: hosts that were refused an action, and may give up for it.
    """

    down: dict[tuple[str, str], float] = field(default_factory=dict)
    forbidden: dict[tuple[str, str], float] = field(default_factory=dict)
    replaced: dict[str, tuple[float, str]] = field(default_factory=dict)
    locked: dict[str, tuple[float, str]] = field(default_factory=dict)
    proxied: dict[str, tuple[float, int]] = field(default_factory=dict)
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

    def replace_keys(self, host: str, until: float, rng: random.Random) -> None:
        """Let somebody replace the credentials of this host, which has the new ones only then."""
        self.replaced[host] = (until, rng.choice(_REPLACED_KEYS))

    def refuses_keys(self, action: str, host: str, now: float) -> Exception | None:
        """Return the answer to any action of this host while its credentials are refused, or None."""
        code = _lasting(self.replaced, host, now)
        if code is None:
            return None
        self.refused.add(host)
        return aws_error(code, "The security token included in the request is expired or invalid", action)

    def lock(self, host: str, until: float, rng: random.Random) -> None:
        """Make the stream's encryption key unusable for this host ("": for all) from now on."""
        self.locked[host] = (until, rng.choice(_UNUSABLE_KEYS))

    def why_locked(self, host: str, now: float) -> str | None:
        """The error code with which GetRecords is refused now, or None."""
        return _lasting(self.locked, host, now)

    def put_proxy(self, host: str, now: float, rng: random.Random) -> None:
        """Put a proxy with a clock of its own before Kinesis, for this host ("": for all), from now on for a while."""
        ahead = rng.choice((-1, 1, 1)) * rng.randint(*_PROXY_SECONDS) * 1000
        self.proxied[host] = (now + rng.uniform(5, 120), ahead)

    def ahead_millis(self, host: str, now: float) -> int:
        """Return by how much the Date headers of Kinesis' answers to this host are ahead."""
        return _lasting(self.proxied, host, now) or 0

    def heal(self) -> None:
        self.down.clear()
        self.forbidden.clear()
        self.replaced.clear()
        self.locked.clear()
        self.proxied.clear()


class SlowPage(LaterPage):
    """A PendingRead: ready at `there_at` (virtual seconds), or (never_ready) only for a caller that waits."""

    def __init__(
        self,
        fetch: Callable[[], Fetched],
        runtime: Runtime,
        now: Callable[[], float],
        *,
        there_at: float,
        never_ready: bool,
    ) -> None:
        super().__init__(fetch)
        self._runtime, self._now = runtime, now
        self.there_at = there_at
        self._never_ready = never_ready

    def poll(self) -> PageStatus:
        if self._now() < self.there_at:
            return PageStatus.PENDING
        return PageStatus.NEEDS_WAIT if self._never_ready else super().poll()

    def page(self) -> Fetched:
        self._runtime.event().wait(max(0.0, self.there_at - self._now()))
        return super().page()


class FaultyStream:
    """`ports.Stream` for one host.

    over_budget: called with a shard that this host reads more often than Kinesis allows. listing_before: the answer
    of ListShards so many seconds ago; None for who believes every listing, as Java does: it gets sound ones.
    on_fetch: called with the shard and the (long) sequence number of each fetched record. pushes_in: of MemoryStream.
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
        pushes_in: Callable[[], Runtime] | None = None,
    ) -> None:
        self._inner = MemoryStream(
            kinesis, STREAM, runtime, switch, gone_after=GONE_AFTER, pushes_in=pushes_in
        )
        self._host, self._numbers, self._faults, self._outages = host, numbers, faults, outages
        self._now = now
        self._runtime, self._switch = runtime, switch
        self._kinesis_millis = kinesis_millis
        self._over_budget = over_budget
        self._listing_before = listing_before
        self._on_fetch = on_fetch
        self._denied: set[str] = set()
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
        self._deny_perhaps(shard_id)
        return self._inner.open(shard_id, self._lengthened(start))

    def _lengthened(self, start: ReadFrom) -> ReadFrom:
        if start.sequence_number is None:
            return start
        return replace(start, sequence_number=self._numbers.lengthen(start.sequence_number))

    def fetch(self, shard_id: str, iterator: str, limit: int) -> Fetched:
        self._count_read(shard_id)
        self._fail_perhaps("GetRecords")
        self._refuse_if_locked(shard_id)
        self._deny_perhaps(shard_id)
        faults = self._faults
        if faults.happens("F10.expired", shard_id):
            raise IteratorExpired("ExpiredIteratorException")
        if faults.happens("F10.empty", shard_id):
            return Fetched([], iterator, 1000, (), 0)
        if faults.happens("F10.refused", shard_id):
            # The adapter lets no such answer through: neither an iterator nor children.
            raise AnswerRefused(f"Kinesis ended {shard_id} without naming its children.")
        return self._shortened(shard_id, self._inner.fetch(shard_id, iterator, limit))

    def _shortened(self, shard_id: str, fetched: Fetched) -> Fetched:
        """Return the page with the numbers of this simulation."""
        for record in fetched.records:
            self._on_fetch(shard_id, record.sequence_number)
            record.sequence_number = self._numbers.shorten(record.sequence_number)
        return fetched

    max_pending_pages = 16

    def request_page(
        self, shard_id: str, iterator: str, limit: int, fetch: Callable[[], Fetched] | None = None
    ) -> SlowPage | None:
        """fetch: how the page is fetched as soon as it is there, if not by `fetch`."""
        fetch = fetch or (lambda: self.fetch(shard_id, iterator, limit))
        self._switch()
        there_at, never_ready = self._now(), False
        if self._faults.happens("F10.slow", shard_id):
            rng = self._faults.rng("F10.slow")
            if rng.random() < 0.25:
                return None  # as without a connection
            there_at += rng.uniform(0.0, 1.0)
            never_ready = rng.random() < 0.25
        return SlowPage(fetch, self._runtime, self._now, there_at=there_at, never_ready=never_ready)

    def wait_for_any(self, asked: Sequence[SlowPage], timeout: float) -> None:
        soonest = min((page.there_at for page in asked), default=0.0)
        self._runtime.event().wait(max(0.0, min(timeout, soonest - self._now())))

    def starts_anew(self, shard_id: str) -> None:
        """This host took the lease: the pace of an earlier ownership is not its own any more."""
        self._reads.pop(shard_id, None)

    def server_time_millis(self, *, as_seen: bool = False) -> int:
        # Each host's own clock is right here; see F4.wall and F22.clock.
        own = self._kinesis_millis()
        seen = own + self._outages.ahead_millis(self._host, self._now())
        return (seen if as_seen else server_clock.vouched_millis(seen, own)) // 1000 * 1000

    def _fail_perhaps(self, action: str) -> None:
        now = self._now()
        forbidden = self._outages.forbids(action, self._host, now)
        if forbidden is not None:
            self._faults.note(forbidden, f"{action} by {self._host}")
            raise SetupError(f"AccessDeniedException: {action} is not allowed.")
        refusal = self._outages.refuses_keys(action, self._host, now)
        if refusal is not None:
            self._faults.note("F14.credentials", f"{action} by {self._host}")
            raise sort_failure(refusal, doing=action)
        if self._outages.is_down("kinesis", self._host, now):
            raise TemporaryError("InternalFailure")
        if self._faults.happens("F5.kinesis", f"{action} by {self._host}"):
            if self._faults.rng("F5.kinesis").random() < 0.5:
                raise Throttled("ProvisionedThroughputExceededException")
            raise TemporaryError("InternalFailure")

    def _deny_perhaps(self, shard_id: str) -> None:
        # Java ends a shard at one such answer. Two in a row would be what Kinesis says of a shard that is gone.
        if shard_id in self._denied:
            self._denied.remove(shard_id)
        elif self._listing_before is not None and self._faults.happens(
            "F9.denied", f"{shard_id} to {self._host}"
        ):
            self._denied.add(shard_id)
            raise ShardGone("ResourceNotFoundException")

    def _refuse_if_locked(self, shard_id: str) -> None:
        code = self._outages.why_locked(self._host, self._now())
        if code is None:
            return
        self._faults.note("F10.kms", f"{code} for {self._host} {shard_id}")
        if code == "KMSThrottlingException":
            raise Throttled(code)
        self._outages.refused.add(self._host)
        raise SetupError(f"reading failed: the stream's KMS key cannot be used ({code}).")

    def _count_read(self, shard_id: str) -> None:
        reads = self._reads.setdefault(shard_id, deque(maxlen=READS_PER_SECOND + 1))
        reads.append(self._now())
        # Its clock may run a tenth fast; what it takes for a second is then shorter.
        if len(reads) > READS_PER_SECOND and reads[-1] - reads[0] < 0.9:
            self._over_budget(shard_id)


def past_retention(retention_hours: int, keep_seconds: float) -> int:
    """Return the milliseconds to advance Kinesis' clock by, so that only the last `keep_seconds` are retained."""
    return int(retention_hours * HOUR_MILLIS - keep_seconds * 1000)


REQUEST_SECONDS = 1.2
_LOST_HEARTBEATS = 0.3
_SET_UP = ("CreateTable", "DescribeTable")
_READS = ("Scan", "GetItem", "Query")


_KINDS_BY_VALUE = (
    (":at", "report"),
    (":checkpoint", "checkpoint"),
    (":pendingCheckpoint", "checkpoint"),
    (":checkpointOwner", "assign"),
    (":leaseOwner", "take"),
    (":startingHashKey", "fill"),
    (":pykcl", "adopt"),
)
"""The first value that an update has says what it is for."""


def kind_of_write(operation: str, params: Params) -> str:
    """create, take, renew, checkpoint, shard_end, release, fill or delete.

    In a fleet of KCL 3.x also adopt and hand_over, of a leader assign, and of its lock lock; and of a worker's metrics
    report and withdraw.
    """
    values = params.get("ExpressionAttributeValues", {})
    if params.get("Key", params.get("Item", {})).get("leaseKey") == {"S": "Leader"}:
        return "lock"
    if operation != "UpdateItem":
        return "create" if operation == "PutItem" else "withdraw" if ":at" in values else "delete"
    if values.get(":checkpoint") == {"S": "SHARD_END"}:
        return "shard_end"
    if "ADD leaseCounter" in params.get("UpdateExpression", ""):
        # Its author does not know the counter.
        return "assign"
    kind = next((kind for name, kind in _KINDS_BY_VALUE if name in values), None)
    if kind in (None, "adopt"):
        # Each of these may change the private map, too.
        removed = params.get("UpdateExpression", "").partition(" REMOVE ")[2]
        if "leaseOwner" in removed:
            kind = "release"
        elif "checkpointOwner" in removed:
            kind = "hand_over"
    return kind or "renew"


class DynamoFaults:
    """A fault hook of MemoryDynamoDB. host: who is asking; only hosts named in `spares` are left in peace.

    rows: the leases as they are.
    """

    def __init__(
        self,
        faults: Faults,
        outages: Outages,
        *,
        host: Callable[[], str],
        now: Callable[[], float],
        spares: Callable[[str], bool],
        rows: Callable[[], Mapping[str, Item]],
    ) -> None:
        self._faults, self._outages = faults, outages
        self._host, self._now, self._spares, self._rows = host, now, spares, rows
        self._by_hand: set[str] = set()

    def __call__(self, operation: str, params: Params) -> Fault | None:
        host, now = self._host(), self._now()
        if self._spares(host):
            return None
        if self._outages.is_down("dynamodb", host, now):
            return Fault(before=timed_out(), delay=REQUEST_SECONDS)
        if self._faults.healed:
            return self._after_healing(operation, params, host)
        forbidden = self._outages.forbids(operation, host, now)
        if forbidden is not None:
            return Fault(
                before=denied(operation),
                on_effect=lambda: self._faults.note(forbidden, f"{operation} by {host}"),
            )
        refusal = self._outages.refuses_keys(operation, host, now)
        if refusal is not None:
            return Fault(
                before=refusal,
                on_effect=lambda: self._faults.note("F14.credentials", f"{operation} by {host}"),
            )
        return self._while_faults_last(operation, params, host)

    def _while_faults_last(self, operation: str, params: Params, host: str) -> Fault | None:
        if operation in _SET_UP:
            return self._refused(operation, host)
        # Not to a scripted Java worker, which has no word for it.
        if host.startswith("w") and self._faults.happens("F5.absent", f"{operation} by {host}"):
            return Fault(before=absent(operation))
        if operation in _READS:
            return self._of_read(operation, params, host)
        return self._of_write(operation, params, host)

    def _after_healing(self, operation: str, params: Params, host: str) -> Fault | None:
        if host == self._faults.far_away:
            return Fault(late_answer=0.95 * REQUEST_SECONDS)
        return self._lost_heartbeat(operation, params) if self._faults.strained else None

    def _lost_heartbeat(self, operation: str, params: Params) -> Fault | None:
        is_heartbeat = operation == "UpdateItem" and kind_of_write(operation, params) == "renew"
        rng = self._faults.rng("F6.renew")
        if not is_heartbeat or rng.random() >= _LOST_HEARTBEATS:
            return None
        return Fault(after=timed_out(), delay=rng.choice([0, 1.0]))

    def _of_read(self, operation: str, params: Params, host: str) -> Fault | None:
        if "ExclusiveStartKey" in params and self._faults.happens("F8.broken", host):
            return Fault(before=failing(operation))
        return self._refused(operation, host)

    def _of_write(self, operation: str, params: Params, host: str) -> Fault | None:
        kind = kind_of_write(operation, params)
        faults = self._faults
        about = f"{kind} by {host}"
        if faults.is_due(f"F6.{kind}"):
            # A client that waited for its answer as long as it may, or one that was cut off at once.
            seconds = faults.rng(f"F6.{kind}").choice([0, REQUEST_SECONDS])
            return Fault(
                after=timed_out(), late_answer=seconds, on_effect=lambda: faults.note(f"F6.{kind}", about)
            )
        if faults.is_due("F7") and not self._may_come_true_again(params):
            return Fault(
                postponed=timed_out(),
                delay=faults.rng("F7").choice([0, REQUEST_SECONDS]),
                on_effect=lambda: faults.note("F7", about),
            )
        return self._refused(operation, host)

    def changed_by_hand(self, key: str) -> None:
        """Note a row that was written without reading its counter, so that a counter may come back."""
        self._by_hand.add(key)

    def is_changed_by_hand(self, key: str) -> bool:
        """Return whether its counter may have come back."""
        return key in self._by_hand

    def _may_come_true_again(self, params: Params) -> bool:
        """Return True for a write that is refused now, but accepted when the counter has its expected value again.

        No condition on a counter protects from that. So such a write is not kept under way; those that were under way
        already are why such a hand spares their rows.
        """
        key = params.get("Key", {}).get("leaseKey", {}).get("S")
        seen = params.get("ExpressionAttributeValues", {}).get(":seenCounter")
        return (
            key in self._by_hand
            and seen is not None
            and seen != self._rows().get(key, {}).get("leaseCounter")
        )

    def _refused(self, operation: str, host: str) -> Fault | None:
        faults = self._faults
        if faults.happens("F5.dynamodb", f"{operation} by {host}"):
            rng = faults.rng("F5.dynamodb")
            error = rng.choice([throttled(operation), failing(operation), timed_out()])
            return Fault(before=error, delay=rng.choice([0, REQUEST_SECONDS]))
        if faults.happens("F5.slow", f"{operation} by {host}"):
            rng = faults.rng("F5.slow")
            # On its way there, or on its way back: then the row has moved long before its writer hears of it.
            before = rng.choice([0.0, 1.0]) * rng.uniform(0, REQUEST_SECONDS)
            return Fault(delay=before, late_answer=rng.uniform(0, REQUEST_SECONDS - before))
        return None


class StaleScan:
    """A client whose Scan, as is its right, now and then shows rows as they were a moment ago (F8.stale).

    was: the row of a key as it was so many seconds ago, or None; and the keys that changed since.
    """

    def __init__(
        self,
        client: MemoryDynamoDB,
        faults: Faults,
        host: str,
        was: Callable[[float], Mapping[str, Item | None]],
    ) -> None:
        self._client, self._faults, self._host, self._was = client, faults, host, was

    def __call__(self, **params: Any) -> dict[str, Any]:
        answer = self._client.scan(**params)
        if (
            params.get("ConsistentRead")
            or self._faults.healed
            or not self._faults.happens("F8.stale", self._host)
        ):
            return answer
        before = self._was(self._faults.rng("F8.stale").uniform(0.1, 2.0))
        page = {item.get("leaseKey", {}).get("S", ""): item for item in answer["Items"]}
        # What was deleted since is still there for this replica, on the page that its key belongs to.
        page.update(
            {key: row for key, row in before.items() if key in page or _belongs_to(params, answer, key)}
        )
        return {
            **answer,
            "Items": [copy_item(page[key]) for key in sorted(page, key=spread_order) if page[key]],
        }


def _belongs_to(params: Params, answer: Mapping[str, Any], key: str) -> bool:
    """Return whether a row of this key would be on that page of a scan."""
    segment, segments = segment_of(params)
    if spread_order(key)[0] % segments != segment:
        return False
    first, last = params.get("ExclusiveStartKey"), answer.get("LastEvaluatedKey")
    after_first = first is None or spread_order(first["leaseKey"]["S"]) < spread_order(key)
    return after_first and (last is None or spread_order(key) <= spread_order(last["leaseKey"]["S"]))
