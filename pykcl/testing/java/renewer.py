"""The leases a Java worker holds in memory, renewed every third of the fail-over time.

Java KCL 2.7.3 `leases/dynamodb/DynamoDBLeaseRenewer.java`. Java renews with up to twenty threads; here one after the
other, so that under slow answers this worker loses leases somewhat sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pykcl.runtime import Lock, Runtime
from pykcl.testing.java.failures import DependencyFailed
from pykcl.testing.java.lease import JavaLease
from pykcl.testing.java.table import JavaTable


@dataclass(slots=True, eq=False)
class Held:
    """The lease as its holder last wrote it. Being this very object is Java's concurrency token.

    throughput: (3.x) KB/s of what was read, a moving average; None before there was anything. unreported: bytes read
    since the last renewal.
    """

    lease: JavaLease
    moved_at: float
    lock: Lock
    throughput: float | None = None
    unreported: int = 0

    def average(self, seconds: float) -> float | None:
        """The throughput as of now, `seconds` after the last renewal."""
        if self.unreported or self.throughput is not None:
            latest = self.unreported / 1024 / max(seconds, 1.0)
            before = latest if self.throughput is None else self.throughput
            self.throughput = (before + latest) / 2
        self.unreported = 0
        return self.throughput


class LeaseRenewer:
    """All writes of the holder go through here. Any task may call."""

    def __init__(
        self, table: JavaTable, runtime: Runtime, failover: float, on_lost: Callable[[JavaLease], None]
    ) -> None:
        self._table = table
        self._runtime = runtime
        self._failover = failover
        self._on_lost = on_lost
        self._held: dict[str, Held] = {}

    def adopt_own(self, worker: str) -> None:
        """At start: the rows that already name this worker are renewed, expired or not. Raises as `scan`."""
        for lease in self._table.scan():
            if lease.owner == worker and self._table.renew(lease):
                self.add(lease.with_(counter=lease.counter + 1))

    def add(self, lease: JavaLease) -> None:
        """A lease just taken, as the row is now."""
        self._held[lease.key] = Held(lease, self._runtime.monotonic(), self._runtime.lock())

    def drop(self, held: Held) -> None:
        """Forget it, and let its row expire."""
        if self._held.get(held.lease.key) is held:
            del self._held[held.lease.key]
            self._on_lost(held.lease)

    def clear(self) -> None:
        self._held.clear()

    def current(self) -> list[Held]:
        """What is held and, by our own clock, not expired."""
        return [held for held in list(self._held.values()) if self.is_held(held)]

    def is_held(self, held: Held) -> bool:
        fresh = self._runtime.monotonic() - held.moved_at <= self._failover
        return fresh and self._held.get(held.lease.key) is held

    def renew_all(self) -> None:
        for held in list(self._held.values()):
            self._renew(held)

    def _renew(self, held: Held) -> None:
        with held.lock:
            if not self.is_held(held):
                self.drop(held)
                return
            try:
                seconds = self._runtime.monotonic() - held.moved_at
                renewed = self._table.renew(held.lease, held.average(seconds))
            except DependencyFailed:
                # Kept until it expires by our own clock; the next round tries again.
                return
            if renewed:
                self._moved_on(held, held.lease)
            else:
                self.drop(held)

    def update(self, held: Held, change: Callable[[JavaLease], JavaLease]) -> bool:
        """Write a changed lease; False when the lease is lost. Raises DependencyFailed.

        As in Java the lease in memory is changed even if the write then fails: the next write carries it along.
        """
        with held.lock:
            if not self.is_held(held):
                return False
            held.lease = change(held.lease)
            if self._table.update(held.lease):
                self._moved_on(held, held.lease)
                return True
            self.drop(held)
            return False

    def _moved_on(self, held: Held, lease: JavaLease) -> None:
        held.lease = lease.with_(counter=lease.counter + 1)
        held.moved_at = self._runtime.monotonic()
