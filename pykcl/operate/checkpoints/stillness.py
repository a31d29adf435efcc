"""Whether a fleet has stopped: no counter moved for the fail-over time. Rows carry no time, so it takes that long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pykcl.errors import Refused
from pykcl.interfaces import LeaseTable
from pykcl.model.lease import Lease, Row
from pykcl.runtime import Runtime

_MOST_BETWEEN_SCANS = 2.0
"""Seconds: a worker that lives shows with its next heartbeat, and nobody waits much longer than that to be refused."""
_SHOWN = 5


def movers(before: Iterable[Row], after: Iterable[Row]) -> dict[str, str]:
    """Leases that changed between two scans -> who did it, as far as the rows say. Both ways: a row that came or went
    was put or deleted by somebody."""
    first, second = _leases(before), _leases(after)
    return {
        key: _worker(second.get(key) or first[key])
        for key in sorted(first.keys() | second.keys())
        if _mark(first.get(key)) != _mark(second.get(key))
    }


def wait_until_still(
    table: LeaseTable,
    runtime: Runtime,
    *,
    failover: float,
    patience: float = 0.0,
    on_moving: Callable[[Mapping[str, str]], None] = lambda _: None,
) -> tuple[Row, ...]:
    """The rows, once nothing has moved for `failover` seconds.

    patience: seconds to wait for the fleet to stop, beside that. on_moving: told what still moves.
    Raises Refused when it does not stop, TemporaryError, SetupError.
    """
    pause = runtime.event()
    begun = runtime.monotonic()
    rows, since = table.scan().rows, runtime.monotonic()
    while (left := since + failover - runtime.monotonic()) > 0:
        pause.wait(min(left, _MOST_BETWEEN_SCANS))
        now = table.scan().rows
        moving = movers(rows, now)
        if moving:
            on_moving(moving)
            if runtime.monotonic() - begun >= patience:
                raise Refused(_refusal(moving, failover, patience))
            since = runtime.monotonic()
        rows = now
    return rows


def told(moving: Mapping[str, str]) -> str:
    """In one sentence: "2 workers are active (w1, w2): their leases moved"."""
    workers = list(dict.fromkeys(moving.values()))
    names = ", ".join(workers[:_SHOWN]) + (", …" if len(workers) > _SHOWN else "")
    leases = "1 lease" if len(moving) == 1 else f"{len(moving)} leases"
    return f"{leases} moved while this was looked at; active: {names}"


def _refusal(moving: Mapping[str, str], failover: float, patience: float) -> str:
    waited = f" within {patience:g} s" if patience else ""
    return (
        f"The fleet has not stopped{waited}: {told(moving)}. Nothing was written. Do: stop its workers, or let this "
        f"wait for it: --wait-idle 5m. A lease counts as still after {failover:g} s."
    )


def _leases(rows: Iterable[Row]) -> dict[str, Lease]:
    return {row.key: row for row in rows if isinstance(row, Lease)}


def _mark(lease: Lease | None) -> tuple[int, str | None, str | None] | None:
    return None if lease is None else (lease.counter, lease.owner, lease.checkpoint_owner)


def _worker(lease: Lease) -> str:
    return lease.actual_owner or "somebody unknown"
