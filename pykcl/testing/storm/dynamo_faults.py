"""What goes wrong with requests to the lease table, by what each request is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pykcl.testing.memory.dynamodb import Fault, MemoryDynamoDB, Params, spread_order
from pykcl.testing.memory.faults import denied, failing, throttled, timed_out
from pykcl.testing.memory.requests import segment_of
from pykcl.testing.memory.values import Item, copy_item
from pykcl.testing.storm.faults import Faults
from pykcl.testing.storm.streams import Outages

REQUEST_SECONDS = 1.2
_LOST_HEARTBEATS = 0.3
_SET_UP = ("CreateTable", "DescribeTable")
_READS = ("Scan", "GetItem")


def kind_of_write(operation: str, params: Params) -> str:
    """create, take, renew, checkpoint, shard_end, release, fill or delete."""
    if operation != "UpdateItem":
        return "create" if operation == "PutItem" else "delete"
    values = params.get("ExpressionAttributeValues", {})
    checkpoint = values.get(":checkpoint", {}).get("S")
    if checkpoint is not None:
        return "shard_end" if checkpoint == "SHARD_END" else "checkpoint"
    if ":pendingCheckpoint" in values:
        return "checkpoint"
    if ":leaseOwner" in values:
        return "take"
    if ":startingHashKey" in values:
        return "fill"
    return "release" if "leaseOwner" in params["UpdateExpression"].partition(" REMOVE ")[2] else "renew"


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
            return self._in_calm_weather(operation, params, host)
        forbidden = self._outages.forbids(operation, host, now)
        if forbidden is not None:
            return Fault(
                before=denied(operation),
                on_effect=lambda: self._faults.note(forbidden, f"{operation} by {host}"),
            )
        return self._in_the_storm(operation, params, host)

    def _in_the_storm(self, operation: str, params: Params, host: str) -> Fault | None:
        if operation in _SET_UP:
            return self._refused(operation, host)
        if operation in _READS:
            return self._of_read(operation, params, host)
        return self._of_write(operation, params, host)

    def _in_calm_weather(self, operation: str, params: Params, host: str) -> Fault | None:
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
        """The row, without a look at its counter: so that it may come to have a counter once more that it has had."""
        self._by_hand.add(key)

    def _may_come_true_again(self, params: Params) -> bool:
        """Whether it would be refused now, and accepted later, once the counter has come back to what it names.

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
    """Whether a row of this key would be on that page of a scan."""
    segment, segments = segment_of(params)
    if spread_order(key)[0] % segments != segment:
        return False
    first, last = params.get("ExclusiveStartKey"), answer.get("LastEvaluatedKey")
    after_first = first is None or spread_order(first["leaseKey"]["S"]) < spread_order(key)
    return after_first and (last is None or spread_order(key) <= spread_order(last["leaseKey"]["S"]))
