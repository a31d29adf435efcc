"""A fleet of Java and pykcl workers in which every write of a row and every delivery is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pykcl.model import lease_item
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.kpl import aggregate
from pykcl.model.lease import Lease
from pykcl.model.lease_writes import LeaseWrite
from pykcl.model.record import Record
from pykcl.model.shard import Shard
from pykcl.processor import Batch, InitializationInput
from pykcl.testing.fleet import STREAM, TABLE, Fleet, RecordingProcessor
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.runtime import Simulation
from pykcl.worker.worker import Worker
from tests.java_peer import JavaEvent, JavaPeer
from tests.java_peer.lease_table import JavaRequests
from tests.java_peer.peer import java_peer

JAVA = {
    "parent_poll": 1.0,
    "startup_wait": 5.0,
    "auditor_interval": 20.0,
    "election_interval": 30.0,
    "cleanup_interval": 10.0,
}
PYKCL = {"cleanup_interval": 10.0, "shard_sync_interval": 10.0, "parent_shard_poll_interval": 1.0}


class Changes(list[Change]):
    def __init__(self, seen: Callable[[Change], None]) -> None:
        super().__init__()
        self._seen = seen

    def append(self, change: Change) -> None:
        super().append(change)
        self._seen(change)


class CheckedProcessor(RecordingProcessor):
    def __init__(self, name: str, mixed: MixedFleet) -> None:
        super().__init__(name, mixed.ledger)
        self._mixed = mixed

    def initialize(self, init: InitializationInput) -> None:
        super().initialize(init)
        self._mixed.starts.append((self.worker, init.shard_id, init.position))
        self._mixed.pendings.append(init.pending)

    def process_records(self, batch: Batch) -> None:
        self._mixed.given(batch.shard_id, batch.records)
        super().process_records(batch)
        self._mixed.returned(batch.shard_id, batch.records)


class MixedFleet(Fleet):
    """starts: (worker, shard, position) of every reader. broken: what was guaranteed and not kept."""

    def __init__(self, simulation: Simulation, shards: int = 2) -> None:
        super().__init__(simulation, shards=shards)
        self.java: dict[str, JavaPeer] = {}
        self.java_events: list[JavaEvent] = []
        self.starts: list[tuple[str, str, Checkpoint]] = []
        self.pendings: list[Any] = []
        self.broken: list[str] = []
        self.positions: dict[str, list[Checkpoint]] = {}
        self.done: dict[str, set[Checkpoint]] = {}
        self.dynamodb.changes = Changes(self._row_changed)

    def items(self) -> dict[str, Any]:
        return self.dynamodb.rows(TABLE) if TABLE in self.dynamodb.tables else {}

    # -- workers -----------------------------------------------------------------------------------------------

    def start_java(
        self,
        name: str,
        *,
        application: Callable[[str, str, Sequence[Record]], Checkpoint | None] | None = None,
        **options: Any,
    ) -> JavaPeer:
        def checked(peer: str, shard: str, records: Sequence[Record]) -> Checkpoint | None:
            self.given(shard, records)
            chosen = application(peer, shard, records) if application is not None else None
            self.returned(shard, records)
            return chosen

        peer = java_peer(self, name, application=checked, on_event=self._java_did, **{**JAVA, **options})
        self.java[name] = peer
        peer.start()
        return peer

    def pykcl_worker(self, name: str, **options: Any) -> Worker:
        """Not started."""
        return self.worker(name, **{"processor": lambda: CheckedProcessor(name, self), **PYKCL, **options})

    def start_pykcl(self, name: str, **options: Any) -> Worker:
        worker = self.pykcl_worker(name, **options)
        worker.start()
        return worker

    def _java_did(self, event: JavaEvent) -> None:
        self.java_events.append(event)
        if event.action == "initialized" and event.position is not None:
            self.starts.append((event.peer, event.shard, event.position))
        if "RowUnreadable" in event.detail:
            self.broken.append(f"Java cannot read the table: {event.detail}")

    def java_did(self, action: str) -> list[JavaEvent]:
        return [event for event in self.java_events if event.action == action]

    def kill_before_shard_end(self, name: str) -> None:
        """Kill a Java worker between two writes: of the children of a shard that is split, and of the shard's end."""
        key = min(key for key, owner in self.owners().items() if owner == name and self.shards()[key].is_open)
        self.simulation.kill(name)
        self.split(key)
        children = tuple(shard.shard_id for shard in self.shards().values() if key in shard.parents)
        self.dynamodb.update_item(**JavaRequests(TABLE).child_shards(key, children))

    # -- the stream --------------------------------------------------------------------------------------------

    def shards(self) -> dict[str, Shard]:
        return {shard.shard_id: shard for shard in self.kinesis.list_shards(STREAM, operation=None)}

    def neighbours(self) -> list[Shard]:
        """The open shards in the order of their hash keys."""
        found = [shard for shard in self.shards().values() if shard.is_open]
        return sorted(found, key=lambda shard: shard.hash_range.first)

    def split(self, shard: str) -> None:
        self.kinesis.split(STREAM, shard)

    def merge_first_two(self) -> None:
        first, second, *_ = self.neighbours()
        self.kinesis.merge(STREAM, first.shard_id, second.shard_id)

    def put_everywhere(self, count: int = 1, *, packed: int = 1) -> None:
        """Into each open shard `count` Kinesis records, of `packed` user records each."""
        for shard in self.neighbours():
            for _ in range(count):
                self._put += 1
                key = shard.hash_range.first
                parts = [f"p{self._put}.{number}".encode() for number in range(packed)]
                data = parts[0]
                if packed > 1:
                    (one,) = aggregate(("k", str(key), part) for part in parts)
                    data = one.data
                where = self.kinesis.put_record(STREAM, data, "k", key)
                known = self.positions.setdefault(where.shard_id, [])
                known += [Checkpoint(where.sequence_number, number) for number in range(packed)]

    # -- guarantees ----------------------------------------------------------------------------------------------

    def undelivered(self, shard: str) -> list[Checkpoint]:
        done = self.done.get(shard, set())
        return [position for position in self.positions.get(shard, ()) if position not in done]

    def given(self, shard: str, records: Sequence[Record]) -> None:
        for ancestor in self._ancestors(shard):
            if self.undelivered(ancestor):
                self.broken.append(f"{shard} was read before its ancestor {ancestor} was done")

    def returned(self, shard: str, records: Sequence[Record]) -> None:
        self.done.setdefault(shard, set()).update(record.position for record in records)

    def _ancestors(self, shard: str) -> set[str]:
        shards, found = self.shards(), set()
        ahead = list(shards[shard].parents)
        while ahead:
            parent = ahead.pop()
            found.add(parent)
            ahead += shards[parent].parents
        return found

    def _row_changed(self, change: Change) -> None:
        before, after = change.before, change.after
        if before and not after:
            self._row_deleted(change.key, before)
        if not before or not after:
            return
        step = int(after["leaseCounter"]["N"]) - int(before["leaseCounter"]["N"])
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        # The two writes that Java does not fence.
        is_unfenced = step == 0 and changed <= {"childShardIds", "startingHashKey", "endingHashKey"}
        # A leader of KCL 3.x asks the owner for the lease: it names the next one, and the owner works on.
        is_asked_for = step == 0 and changed == {"leaseOwner", "checkpointOwner"}
        is_asked_for &= after.get("checkpointOwner") == before.get("leaseOwner")
        if step != 1 and not is_unfenced and not is_asked_for:
            self.broken.append(f"the counter of {change.key} moved by {step}")
        old, new = _position(before), _position(after)
        if new < old or (old.is_shard_end and new != old):
            self.broken.append(f"the checkpoint of {change.key} went back from {old} to {new}")
        passed = [each for each in self.undelivered(change.key) if each <= new]
        if new != old and passed:
            self.broken.append(f"the checkpoint {new} of {change.key} passes undelivered {passed[0]}")

    def _row_deleted(self, key: str, before: Any) -> None:
        rows, shards = self.dynamodb.tables[TABLE].rows, self.shards()
        children = [shard.shard_id for shard in shards.values() if key in shard.parents]
        begun = all(child in rows and not _position(rows[child]).is_start for child in children)
        if not _position(before).is_shard_end or not begun:
            self.broken.append(f"the row of {key} was deleted too early: children {children}")
        if any(parent in rows for parent in shards[key].parents):
            self.broken.append(f"the row of {key} was deleted before those of its parents")

    def check(self) -> None:
        assert not self.broken, self.broken[:3]

    def wait_all_delivered(self, timeout: float = 240.0) -> None:
        def over() -> bool:
            return bool(self.broken) or not any(map(self.undelivered, self.positions))

        self.wait(over, timeout, "delivery of everything")
        self.check()

    def wait_balanced(self, *names: str, timeout: float = 300.0) -> None:
        """Each of these owns as many unended leases as the others, give or take one, and nobody else owns any."""

        def even() -> bool:
            load = self.load()
            held = [load[name] for name in names]
            return bool(load) and load.keys() <= set(names) and max(held) - min(held) <= 1

        self.wait(even, timeout, f"an even load for {names}")

    def wait_owner(self, name: str, shard: str, timeout: float = 120.0) -> None:
        self.wait(lambda: self.owners().get(shard) == name, timeout, f"{name} to own {shard}")

    def last_checkpoint_at(self, shard: str, position: Checkpoint) -> bool:
        return self.rows()[shard].checkpoint == position


def _position(item: Any) -> Checkpoint:
    return Checkpoint(item["checkpoint"]["S"], int(item["checkpointSubSequenceNumber"]["N"]))


def leave_out_of_updates(monkeypatch: pytest.MonkeyPatch, name: str, kinds: set[str]) -> None:
    """From now on pykcl's writes of these kinds do not set the attribute."""
    update = LeaseWrite._update

    def without(self: LeaseWrite) -> tuple[str, dict[str, Any]]:
        text, values = update(self)
        if self.kind in kinds and f":{name}" in values:
            del values[f":{name}"]
            text = text.replace(f", {name} = :{name}", "").replace(f"{name} = :{name}, ", "")
        return text, values

    monkeypatch.setattr(LeaseWrite, "_update", without)


def leave_out_of_creations(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """From now on the rows that pykcl creates lack the attribute."""
    to_item = lease_item.to_item

    def without(lease: Lease) -> dict[str, Any]:
        item = dict(to_item(lease))
        del item[name]
        return item

    monkeypatch.setattr("pykcl.model.lease_writes.to_item", without)
