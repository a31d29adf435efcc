"""Hands that reach into the lease table without its rules: an operator, and a library that puts counters back."""

from __future__ import annotations

import random
from collections.abc import Callable

from pykcl.testing.memory.values import Item
from pykcl.testing.storm.dynamo_faults import REQUEST_SECONDS
from pykcl.testing.storm.fleet import StormFleet
from pykcl.testing.storm.places import END, LIBRARY, checkpoint_place
from pykcl.testing.storm.world import FAILOVER, TABLE, World

_LOOK = 0.5
_PATIENCE = 120.0
_LATEST_REQUEST = 2 * REQUEST_SECONDS
_RANGE = {"startingHashKey", "endingHashKey"}
_NULL: Item = {"startingHashKey": {"NULL": True}, "endingHashKey": {"NULL": True}}
_WITHOUT_RANGE: tuple[tuple[set[str], Item], ...] = ((_RANGE, {}), ({"endingHashKey"}, {}), (_RANGE, _NULL))
"""What of a row to remove, and what to put."""


class Operators:
    """F15.deleted, F15.counter, F15.ranges. What they do is their own fault; that nothing is lost by it is pykcl's."""

    def __init__(self, world: World, fleet: StormFleet) -> None:
        self._world, self._fleet = world, fleet
        self._taken = 0

    def delete_row(self, rng: random.Random) -> bool:
        """The row of a lease that is held by an owner who believes in it, while no other row depends on it."""
        late = self._world.dynamodb.postponed_keys()
        key = self._choose(rng, lambda key, row: key not in late and self._is_read(key, row))
        if key is None:
            return False
        row = self._world.dynamodb.tables[TABLE].rows.pop(key)
        self._world.observer.fleet.names(row)
        self._world.deleted_rows.deleted(key, row)
        self._world.beliefs.stolen(key)
        self._world.dynamo_faults.changed_by_hand(key)
        if self._world.options["start"] == "LATEST":
            # A worker that never saw the row cannot tell it from one that never was; none may start meanwhile.
            self._wait_for(key, row)
        return True

    def put_counter_back(self, rng: random.Random) -> bool:
        """Taken with counter 1, without looking at the one before, and some seconds later given back with 0."""
        # A write that is still under way could find its condition fulfilled once more: nothing can protect from that.
        late = self._world.dynamodb.postponed_keys()
        key = self._choose(rng, lambda key, row: checkpoint_place(row) != END and key not in late)
        if key is None:
            return False
        self._taken += 1
        # A name of its own each time: the same name with the same counter would be the same row as before.
        owner = f"{LIBRARY}-{self._taken}"
        # Rows are replaced, never changed in place.
        rows = self._world.dynamodb.tables[TABLE].rows
        self._world.observer.fleet.names(rows[key])
        rows[key] = {**rows[key], "leaseOwner": {"S": owner}, "leaseCounter": {"N": "1"}}
        self._world.beliefs.stolen(key)
        self._world.dynamo_faults.changed_by_hand(key)
        seconds = rng.uniform(_LATEST_REQUEST, 1.5 * FAILOVER)
        self._world.simulation.spawn(owner, LIBRARY, lambda: self._give_back(key, owner, seconds))
        return True

    def drop_ranges(self, rng: random.Random) -> bool:
        """Rows as versions before 2.3 leave them, or with half of their hash range, or with NULL for it."""
        rows = self._world.rows()
        keys = [
            key for key, row in sorted(rows.items()) if row.keys() >= _RANGE and checkpoint_place(row) != END
        ]
        # The scripted Java worker has no word for NULL.
        gone, left = _WITHOUT_RANGE[rng.randrange(2 if self._world.faults.has("F20") else 3)]
        chosen = [key for key in keys if rng.random() < 0.5]
        for key in chosen:
            kept = {name: value for name, value in rows[key].items() if name not in gone}
            self._world.dynamodb.tables[TABLE].rows[key] = kept | left
        return bool(chosen)

    def _choose(self, rng: random.Random, fits: Callable[[str, Item], bool]) -> str | None:
        keys = sorted(key for key, row in self._world.rows().items() if fits(key, row))
        return rng.choice(keys) if keys else None

    def _is_read(self, key: str, row: Item) -> bool:
        world = self._world
        owner = row.get("leaseOwner", {}).get("S")
        awake = [host for host in self._fleet.awake_workers() if host.worker_id == owner]
        if (
            not any(world.beliefs.believes(host.name, key) for host in awake)
            or key not in world.open_shards()
        ):
            return False
        others = {other: row for other, row in world.rows().items() if other != key}
        if world.options["start"] == "LATEST":
            # Without a row that tells since when, a worker started just now would begin the shard at that moment.
            others = {
                other: row
                for other, row in others.items()
                if "latestFrom" in row.get("pykcl", {}).get("M", {})
            }
        return bool(others) and not set(world.ledger.children(key)) & world.rows().keys()

    def _wait_for(self, key: str, row: Item) -> None:
        """Until it is there again.

        1) It is deleted; 2) before anybody has put it back, the last worker that saw it is stopped; 3) nobody can know
        what it said, and who starts next would begin its shard at LATEST. docs/guarantees.md promises nothing then: the
        operator repairs it. Where somebody is left who saw it, and does not put it back, that is for the judges.
        """
        world, began = self._world, self._world.simulation.now
        while key not in world.rows() and world.simulation.now < began + _PATIENCE:
            world.simulation.sleep(_LOOK)
        joined = [world.observer.joined.get(host.name) for host in self._fleet.workers()]
        if key not in world.rows() and not any(at is not None and at < began for at in joined):
            world.dynamodb.tables[TABLE].rows[key] = row
            world.deleted_rows.put_back(key)

    def _give_back(self, key: str, owner: str, seconds: float) -> None:
        self._world.simulation.sleep(seconds)
        if self._world.owners().get(key) == owner:
            rows = self._world.dynamodb.tables[TABLE].rows
            self._world.observer.fleet.names(rows[key])
            rows[key] = {**rows[key], "leaseCounter": {"N": "0"}}
            del rows[key]["leaseOwner"]
            self._world.beliefs.stolen(key)
