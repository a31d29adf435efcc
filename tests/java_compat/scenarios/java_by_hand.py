"""`JavaByHand`: a Java worker whose requests are sent one at a time, when the test says so.

For stories in which it matters what happens between two requests. It has no threads and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.shard import Shard
from pykcl.runtime import Runtime
from tests.java_peer.lease import JavaLease, new_lease
from tests.java_peer.lease_table import JavaTable
from tests.java_peer.options import JavaVersion


class JavaByHand:
    """A worker called `name`, on the table `table` of a boto3 DynamoDB client.

    held: the leases as it last wrote them. What it lost stays there, so that its later attempts can be watched. Every
    method that reads rows raises RowUnreadable for one that this version cannot read.
    """

    def __init__(
        self, name: str, *, client: Any, table: str, runtime: Runtime, version: JavaVersion = "2.7.2"
    ) -> None:
        self.name = name
        self.held: dict[str, JavaLease] = {}
        self.table = JavaTable(client, table, runtime, attempts=1, version=version)

    def create_table(self) -> None:
        self.table.prepare()

    def scan(self) -> Mapping[str, JavaLease]:
        """Every lease by key."""
        return {lease.key: lease for lease in self.table.scan()}

    def create(self, shard: Shard, at: Checkpoint = AT_TRIM_HORIZON) -> bool:
        """Whether there was no such row."""
        return self.table.create(new_lease(shard, at))

    def take(self, key: str, *, seen: JavaLease | None = None) -> bool:
        """Take or steal the lease. seen: as an earlier scan showed it; by default it is read now."""
        seen = seen or self.scan()[key]
        if not self.table.take(seen, self.name):
            return False
        switched = seen.owner is not None and seen.owner != self.name
        self.held[key] = seen.with_(
            owner=self.name,
            counter=seen.counter + 1,
            owner_switches=seen.owner_switches + (1 if switched else 0),
            checkpoint_owner=None,
        )
        return True

    def renew(self, key: str) -> bool:
        """One heartbeat; False: the lease is lost."""
        return self._moved(key, self.table.renew(self.held[key]))

    def checkpoint(self, key: str, at: Checkpoint) -> bool:
        """False: the lease is lost."""
        return self._update(key, checkpoint=at, owner_switches=0, pending=None, pending_state=None)

    def prepare_checkpoint(self, key: str, at: Checkpoint, state: bytes | None = None) -> bool:
        """False: the lease is lost."""
        return self._update(key, pending=at, pending_state=state)

    def end(self, key: str, children: Iterable[Shard]) -> bool:
        """The end of a shard in Java's order: the children's rows, their names, SHARD_END. False: it is lost."""
        known = sorted(children, key=lambda child: child.shard_id)
        for child in known:
            self.create(child)
        self.table.set_children(key, tuple(child.shard_id for child in known))
        return self.checkpoint(key, AT_SHARD_END)

    def delete(self, key: str) -> None:
        """As Java's cleanup does it: without a condition."""
        self.table.delete(key)

    def _update(self, key: str, **changes: Any) -> bool:
        self.held[key] = self.held[key].with_(**changes)
        return self._moved(key, self.table.update(self.held[key]))

    def _moved(self, key: str, written: bool) -> bool:
        if written:
            self.held[key] = self.held[key].with_(counter=self.held[key].counter + 1)
        return written
