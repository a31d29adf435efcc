"""Rows that KCL 3.x keeps beside the leases: the metrics that a worker reports, and the lock of the leader.

Forms are those of Java KCL 3.5.1 (`worker/metricstats/WorkerMetricStats.java`, `leader/LeaderLock.java`) and of the
lock client that it uses (amazon-dynamodb-lock-client 1.4.0). Rows are input from outside: what is not of that form is
None here, as for the leader it is a worker without metrics, or no lock. KCL 3.0-3.4 keeps both in tables of their own,
with the same attributes under another key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pykcl.model.lease import AttributeValue, ForeignRow
from pykcl.model.lease_item import LEADER_KEY, LEADER_KIND, LEASE_KEY, MAX_NAME, METRICS_KIND

CPU = "C"
"""The name of CPU utilisation among the metrics of a report."""
SINGLE_TABLE_SUPPORT = 1
"""The value of `sup` that KCL 3.5 reports: the worker can work with all rows in the lease table."""

_RELEASED = "1"
_OLD_KEY = "wid"
"""Key of the metrics table of KCL 3.0-3.4."""
_MAX_VALUES = 100
_is_time = re.compile(r"[0-9]{1,12}\Z").match
_is_number = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:E[+-]?[0-9]{1,2})?\Z").match


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """One report of a worker.

    reported_at: epoch seconds. values: the last averages of each metric, percent, oldest first; empty off EC2, ECS and
    EKS, where the leader goes by the throughput of the leases alone. limits: the highest each may reach, percent.
    supports: SINGLE_TABLE_SUPPORT or later; None where other tables are in use.
    """

    worker: str
    reported_at: int
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    limits: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    supports: int | None = SINGLE_TABLE_SUPPORT


@dataclass(frozen=True, slots=True)
class LeaderLock:
    """The lock as its row shows it.

    version: another text after each heartbeat of its owner; the only sign of life. lease_seconds: how long others wait
    for another version before they take it. is_released: its owner has given it up.
    """

    owner: str
    version: str
    lease_seconds: float
    is_released: bool = False


@dataclass(frozen=True, slots=True)
class FleetWrite:
    """A write of a row that is no lease. It has no counter: its condition is that the row is as it was seen.

    key: of the row. method: of a boto3 client. request: its parameters without TableName.
    is_in_lease_table: False for the metrics table of KCL 3.0-3.4.
    """

    key: str
    method: str
    request: Mapping[str, Any]
    is_in_lease_table: bool = True


def metrics_of(row: ForeignRow) -> WorkerMetrics | None:
    """Return the report in a row; None for any other row, and for one that is not understood."""
    item = row.item
    at = _text(item.get("lut"), "N")
    worker = _text(item.get("leaseKey"), "S") or _text(item.get("wid"), "S")
    if row.kind != METRICS_KIND or not worker or at is None or not _is_time(at):
        return None
    values, limits = _series(item.get("sts")), _series(item.get("opr"))
    if values is None or limits is None:
        return None
    supports = _text(item.get("sup"), "N")
    known = int(supports) if supports is not None and _is_time(supports) else None
    return WorkerMetrics(worker, int(at), values, limits, known)


def lock_of(row: ForeignRow) -> LeaderLock | None:
    """Return the lock in a row; None for any other row, and for one that is not understood."""
    item = row.item
    owner, version = _text(item.get("ownerName"), "S"), _text(item.get("recordVersionNumber"), "S")
    millis = _text(item.get("leaseDuration"), "S")
    if row.kind != LEADER_KIND or not owner or not version or millis is None or not _is_time(millis):
        return None
    return LeaderLock(owner[:MAX_NAME], version[:MAX_NAME], int(millis) / 1000, "isReleased" in item)


def report(metrics: WorkerMetrics) -> FleetWrite:
    """Put or replace the row of this worker's metrics; in the table of KCL 3.0-3.4 if it supports no other.

    Java puts it whatever is there. Here the row must be one of metrics, or absent: a worker identifier that equals the
    key of a lease must not turn the lease into something else.
    """
    update = "SET lut = :at, sts = :values, opr = :limits"
    values: dict[str, AttributeValue] = {
        ":at": {"N": str(metrics.reported_at)},
        ":values": _series_map(metrics.values),
        ":limits": _series_map(metrics.limits),
    }
    condition = f"attribute_not_exists({_OLD_KEY}) OR attribute_exists(lut)"
    if metrics.supports is not None:
        update += ", entityType = :kind, sup = :supports, slu = :at"
        values |= {":kind": {"S": METRICS_KIND}, ":supports": {"N": str(metrics.supports)}}
        condition = "attribute_not_exists(leaseKey) OR entityType = :kind"
    return _write(metrics, "update_item", condition, values, UpdateExpression=update)


def withdraw(metrics: WorkerMetrics) -> FleetWrite:
    """Delete the row of this worker's metrics: the leader assigns nothing to it any more. A later report is kept.

    Java's leader asks for exactly this report. Here an earlier one goes, too: 1) a report is put; 2) the next one is
    sent, and no answer comes; 3) the worker leaves, and does not know which of the two is there.
    """
    values: dict[str, AttributeValue] = {":at": {"N": str(metrics.reported_at)}}
    condition = "lut <= :at"
    if metrics.supports is not None:
        values[":kind"] = {"S": METRICS_KIND}
        condition += " AND entityType = :kind"
    return _write(metrics, "delete_item", condition, values)


def _write(
    metrics: WorkerMetrics, method: str, condition: str, values: Mapping[str, AttributeValue], **more: str
) -> FleetWrite:
    in_lease_table = metrics.supports is not None
    request = {
        "Key": {"leaseKey" if in_lease_table else _OLD_KEY: {"S": metrics.worker}},
        "ConditionExpression": condition,
        "ExpressionAttributeValues": values,
        **more,
    }
    return FleetWrite(metrics.worker, method, request, in_lease_table)


def take_lock(seen: LeaderLock | None, lock: LeaderLock) -> FleetWrite:
    """Put this worker's lock in the place of the one that was seen, or of none.

    The condition is stronger than Java's for a released lock: its version, too, must be the one that was seen.
    """
    item: dict[str, AttributeValue] = {
        LEASE_KEY: {"S": LEADER_KEY},
        "entityType": {"S": LEADER_KIND},
        "ownerName": {"S": lock.owner},
        "leaseDuration": {"S": _millis_text(lock)},
        "recordVersionNumber": {"S": lock.version},
    }
    request: dict[str, Any] = {"Item": item, "ConditionExpression": f"attribute_not_exists({LEASE_KEY})"}
    if seen is not None:
        condition = f"attribute_exists({LEASE_KEY}) AND recordVersionNumber = :seen"
        values: dict[str, AttributeValue] = {":seen": {"S": seen.version}}
        if seen.is_released:
            condition += " AND isReleased = :released"
            values[":released"] = {"S": _RELEASED}
        request |= {"ConditionExpression": condition, "ExpressionAttributeValues": values}
    return FleetWrite(LEADER_KEY, "put_item", request)


def keep_lock(held: LeaderLock, lock: LeaderLock) -> FleetWrite:
    """Show that the owner of the lock is alive: give it another version."""
    values: dict[str, AttributeValue] = {
        ":version": {"S": lock.version},
        ":duration": {"S": _millis_text(lock)},
    }
    return _change_lock(held, "SET leaseDuration = :duration, recordVersionNumber = :version", values)


def release_lock(held: LeaderLock) -> FleetWrite:
    """Give the lock up, so that others need not wait for its duration. The row stays."""
    return _change_lock(held, "SET isReleased = :released", {":released": {"S": _RELEASED}})


def _change_lock(held: LeaderLock, update: str, values: Mapping[str, AttributeValue]) -> FleetWrite:
    request = {
        "Key": {LEASE_KEY: {"S": LEADER_KEY}},
        "UpdateExpression": update,
        "ConditionExpression": f"attribute_exists({LEASE_KEY}) AND recordVersionNumber = :seen AND ownerName = :owner",
        "ExpressionAttributeValues": {":seen": {"S": held.version}, ":owner": {"S": held.owner}, **values},
    }
    return FleetWrite(LEADER_KEY, "update_item", request)


def _millis_text(lock: LeaderLock) -> str:
    return str(round(lock.lease_seconds * 1000))


def _text(value: object, kind: str) -> str | None:
    text = value.get(kind) if isinstance(value, Mapping) else None
    return text if isinstance(text, str) and len(text) <= MAX_NAME else None


def _series(value: object) -> dict[str, tuple[float, ...]] | None:
    """Return the numbers of each metric; None for what is not of that form."""
    found = value.get("M") if isinstance(value, Mapping) else None
    if not isinstance(found, Mapping) or len(found) > _MAX_VALUES:
        return None
    series: dict[str, tuple[float, ...]] = {}
    for name, listed in found.items():
        numbers = listed.get("L") if isinstance(listed, Mapping) else None
        if not isinstance(numbers, list) or len(numbers) > _MAX_VALUES:
            return None
        texts = [_text(number, "N") for number in numbers]
        if not all(text is not None and _is_number(text) for text in texts):
            return None
        series[str(name)] = tuple(float(text) for text in texts if text is not None)
    return series


def _series_map(series: Mapping[str, tuple[float, ...]]) -> AttributeValue:
    return {
        "M": {
            name: {"L": [{"N": decimal_text(number)} for number in numbers]}
            for name, numbers in series.items()
        }
    }


def decimal_text(number: float) -> str:
    """Return a number as Java writes it: six decimals, rounded half up, and no trailing zeros."""
    millionths = math.floor(abs(number) * 1_000_000 + 0.5)
    whole, rest = divmod(millionths, 1_000_000)
    text = f"{whole}.{rest:06d}".rstrip("0").rstrip(".")
    return f"-{text}" if number < 0 and text != "0" else text
