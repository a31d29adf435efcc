"""F13: the lease table is deleted under a working fleet, perhaps made anew by others, and later restored."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

from pykcl.errors import TableGone
from pykcl.testing.memory.dynamodb import Change, Table
from pykcl.testing.memory.values import Item
from pykcl.testing.storm.fleet import StormFleet
from pykcl.testing.storm.hosts import WorkerHost
from pykcl.testing.storm.places import END, checkpoint_place
from pykcl.testing.storm.producer import Producer
from pykcl.testing.storm.promises import Promise
from pykcl.testing.storm.world import TABLE, World

_NOTICED_AFTER = 60.0
_NOTICED_ANEW_AFTER = 120.0
"""Every heartbeat meets a table that is not there; that it is another one is found by a scan that succeeds."""
_STILL_UNDER_WAY = 5.0
_LOOK = 0.1
_THE_DEAD = ""
"""Hosts that were killed stand still no more."""


def lose_and_restore_the_table(
    world: World, fleet: StormFleet, producer: Producer, *, is_made_anew: bool = False
) -> None:
    """Every worker must stop with a clear error, deliver nothing any more, and not make the table or its rows anew."""
    backup = world.dynamodb.tables[TABLE]
    working = _keep_only_who_works(world, fleet)
    for row in world.rows().values():
        # 1) Another library takes a lease by hand: no request of a host names it; 2) a worker scans that row; 3) the
        # table is deleted, and the row is nowhere any more; 4) the answer comes, and the worker tells whom it joined.
        world.observer.fleet.names(row)
    world.dynamodb.delete_table(TableName=TABLE)
    if is_made_anew:
        _make_anew(world, backup, world.faults.rng("F13.recreated"))
    writes = _Writes(world)
    thawing = 60.0 if any(world.simulation.is_frozen(host.name) for host in working) else 0.0
    deadline = world.simulation.now + thawing + (_NOTICED_ANEW_AFTER if is_made_anew else _NOTICED_AFTER)
    while True:
        if is_made_anew:
            # Also those that were asked to stop before, who may find out at any time.
            hosts = (*fleet.alive, *fleet.leaving)
            for name in hosts:
                world.observer.without_table.add(name)
            writes.look(hosts)
        if all(host.is_over for host in working) or world.simulation.now >= deadline:
            break
        if TABLE in world.dynamodb.tables and not is_made_anew:
            break
        world.simulation.sleep(_LOOK)
    if is_made_anew:
        _judge_writes(world, backup, *writes.early_and_late())
    else:
        made_anew = TABLE in world.dynamodb.tables
        world.verdict.expect(not made_anew, Promise.NO_FALSE_ALARM, "a worker made the lost lease table anew")
    _judge_ends(world, fleet, working)
    _nothing_is_delivered(world, producer)
    world.dynamodb.tables[TABLE] = backup


class _Writes:
    """Those since now, when the table is lost: what a host has under way then is over some seconds later.

    Seconds in which it does not stand still: 1) it has planned a take, and stands still; 2) another deploy puts that
    row into the table made anew; 3) it goes on, and takes it, before its next look tells it of the loss.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._lost_at, self._first = world.simulation.now, len(world.dynamodb.changes)
        self._late_from: dict[str, float] = {}

    def look(self, hosts: Iterable[str]) -> None:
        """Now and then: whose writes are late from now on."""
        for host in (_THE_DEAD, *hosts):
            stood_still = self._world.observer.frozen.seconds_since(host, self._lost_at)
            is_late = self._world.simulation.now - self._lost_at - stood_still >= _STILL_UNDER_WAY
            if self._late_from.get(host, math.inf) == math.inf:
                self._late_from[host] = len(self._world.dynamodb.changes) if is_late else math.inf

    def early_and_late(self) -> tuple[list[Change], list[Change]]:
        early: list[Change] = []
        late: list[Change] = []
        of_the_dead = self._late_from.get(_THE_DEAD, math.inf)
        for number, change in enumerate(self._world.dynamodb.changes[self._first :], self._first):
            is_late = number >= self._late_from.get(change.author, of_the_dead)
            (late if is_late else early).append(change)
        return early, late


def _keep_only_who_works(world: World, fleet: StormFleet) -> list[WorkerHost]:
    """What is still starting may rightly make a table, or use the new one: it never knew the old one.

    So may who was asked to stop while it starts: it makes the table it has found missing before it heeds that.
    """
    for name, host in sorted({**fleet.leaving, **fleet.alive}.items()):
        is_leaving = name in fleet.leaving
        works = isinstance(host, WorkerHost) and host.has_started
        if not works and not (is_leaving and host.is_over):
            fleet.kill(name)
    return fleet.workers()


def _make_anew(world: World, old: Table, rng: random.Random) -> None:
    """Empty; or with the rows that another deploy has put by now, at the start position and owned by nobody."""
    world.dynamodb.create_table(
        TableName=TABLE,
        KeySchema=old.schema,
        AttributeDefinitions=old.attributes,
        BillingMode="PAY_PER_REQUEST",
    )
    world.dynamodb.tables[TABLE].status = "ACTIVE"
    if rng.random() < 0.5:
        for row in old.rows.values():
            # One that was hardly taken is the same in both tables: no lease of anybody can be told from it.
            if _is_lease(row) and int(row["leaseCounter"]["N"]) > 1:
                world.dynamodb.put_raw(TABLE, _at_the_start(row))
                # Who scanned before may take it there, until the heartbeat of the one who had it is refused.
                world.beliefs.stolen(row["leaseKey"]["S"])


def _is_lease(row: Item) -> bool:
    try:
        return checkpoint_place(row) < END and int(row["leaseCounter"]["N"]) >= 0
    except (KeyError, ValueError):
        return False


def _at_the_start(row: Item) -> Item:
    return {
        **{name: value for name, value in row.items() if name != "leaseOwner"},
        "leaseCounter": {"N": "0"},
        "checkpoint": {"S": "TRIM_HORIZON"},
        "checkpointSubSequenceNumber": {"N": "0"},
    }


def _judge_writes(world: World, backup: Table, early: Sequence[Change], late: Sequence[Change]) -> None:
    """Who worked with the old table may have sent a write before it knew; after that it writes nothing.

    But 1) the new table has the row of a lease, put by another deploy; 2) a scan shows it to a worker that has not
    noticed yet, and it takes the lease there, and reads from where that row says; 3) it notices, ends its batch,
    checkpoints and releases: what it writes for that lease is true in the new table.
    """
    taken = {(c.author, c.key) for c in early if _is_take(c)}
    ours = [
        c
        for c in late
        if c.table == TABLE
        and c.author.startswith("w")
        and c.key in backup.rows
        and (_is_take(c) or (c.author, c.key) not in taken)
    ]
    what = ", ".join(f"{c.operation} of {c.key} by {c.author}" for c in ours[:3])
    world.verdict.expect(not ours, Promise.SILENT_AFTER_LOSS, f"in a table made anew: {what}")


def _is_take(change: Change) -> bool:
    if change.before is None or change.after is None:
        return False
    owner = change.after.get("leaseOwner")
    return owner is not None and owner != change.before.get("leaseOwner")


def _judge_ends(world: World, fleet: StormFleet, working: Sequence[WorkerHost]) -> None:
    for host in working:
        failure = host.failure
        told = host.was_asked or host.name in fleet.struck or isinstance(failure, TableGone)
        # Its processor may have stopped it, or who may not describe the table says that.
        told = told or (failure is not None and fleet.has_cause(host, failure))
        world.verdict.expect(
            told, Promise.NO_FALSE_ALARM, f"{host.name} did not tell of the loss: {failure!r}"
        )
        fleet.alive.pop(host.name, None)


def _nothing_is_delivered(world: World, producer: Producer) -> None:
    before = world.delivery.batches
    producer.put_some()
    world.simulation.sleep(5.0)
    world.verdict.expect(
        world.delivery.batches == before,
        Promise.SILENT_AFTER_LOSS,
        "records were delivered without a lease table",
    )
