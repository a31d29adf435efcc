"""Changes of the lease table by others than its workers: operators, foreign rows, a table that is deleted.

Operators delete rows and move checkpoints, and other libraries put counters back (F15); rows and tables of other
applications lie in the way (F13.foreign, F15); the table is deleted under a working fleet, perhaps created again by
others, and restored (F13).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pykcl.errors import NativeFleet, SetupError, TableGone
from pykcl.testing.fleet import TABLE
from pykcl.testing.memory.dynamodb import Change, Table
from pykcl.testing.memory.expressions import Item
from pykcl.testing.simulation.chaos import Producer
from pykcl.testing.simulation.delivery import AT_LATEST, END, FIRST, LIBRARY, checkpoint_position
from pykcl.testing.simulation.guarantees import Guarantee
from pykcl.testing.simulation.service_faults import REQUEST_SECONDS
from pykcl.testing.simulation.world import FAILOVER, WorkerHost
from tests.simulation.checkers.rows import worker_on
from tests.simulation.world import CheckedFleet, CheckedWorld

_WAIT_SECONDS = 0.5
_PATIENCE = 120.0
_NEAR = 20
"""Records by which a checkpoint is moved at most, unless it is to the first one."""
_LATEST_REQUEST = 2 * REQUEST_SECONDS
_RANGE = {"startingHashKey", "endingHashKey"}
_NULL: Item = {"startingHashKey": {"NULL": True}, "endingHashKey": {"NULL": True}}
_WITHOUT_RANGE: tuple[tuple[set[str], Item], ...] = ((_RANGE, {}), ({"endingHashKey"}, {}), (_RANGE, _NULL))
"""What of a row to remove, and what to put."""


class Operators:
    """F15.deleted, F15.counter, F15.checkpoint, F15.reset, F15.ranges. What they do is their own fault; that nothing is
    lost by it is pykcl's."""

    def __init__(self, world: CheckedWorld, fleet: CheckedFleet) -> None:
        self._world, self._fleet = world, fleet
        self._taken = 0

    def delete_row(self, rng: random.Random) -> bool:
        """The row of a lease that is held by an owner who believes in it, while no other row depends on it."""
        late = self._world.dynamodb.postponed_keys()
        key = self._choose(
            rng, lambda key, row: key not in late | self._world.edits.pending and self._is_read(key, row)
        )
        if key is None:
            return False
        row = self._world.dynamodb.tables[TABLE].rows.pop(key)
        self._world.observer.fleet.names(row)
        self._world.deleted_rows.deleted(key, row)
        self._world.edits.deleted(key)
        self._world.beliefs.stolen(key)
        self._world.dynamo_faults.changed_by_hand(key)
        if self._world.options["initial_position"] == "LATEST":
            # A worker that never saw the row cannot distinguish it from one that never was; none may start meanwhile.
            self._wait_for(key, row)
        return True

    def put_counter_back(self, rng: random.Random) -> bool:
        """Taken with counter 1, without looking at the one before, and some seconds later given back with 0."""
        # A write that is still under way could find its condition fulfilled once more: nothing can protect from that.
        late = self._world.dynamodb.postponed_keys() | self._world.edits.pending
        key = self._choose(rng, lambda key, row: checkpoint_position(row) != END and key not in late)
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

    def move_checkpoint(self, rng: random.Random) -> bool:
        """Forward, back, or to its end, under an owner that is at work. The counter, which is the fence, stays."""
        return self._edit(rng, rng.choice(["forward", "back", "forward", "back", "end"]), 0)

    def move_checkpoint_and_counter(self, rng: random.Random) -> bool:
        """The same with the counter: the ownership ends. Where every worker notes the true time, also to LATEST."""
        step, place = rng.choice([1, 5]), rng.choice(["forward", "back", "latest"])
        faults = self._world.faults
        if place == "latest" and (faults.has_java or faults.has("F5.date")):
            # Java begins at LATEST when it comes to open the shard, and notes that nowhere. By a clock that is behind a
            # worker begins too early, as it should.
            place = "forward"
        return self._edit(rng, place, step)

    def _edit(self, rng: random.Random, place: str, step: int) -> bool:
        world = self._world
        key = self._choose(
            rng, lambda key, row: key not in world.edits.pending and self._is_worked_on(key, row)
        )
        row = world.row(key) if key is not None else None
        if key is None or row is None:
            return False
        wanted = self._place(rng, key, row, place)
        if wanted is None:
            return False
        counter = {"leaseCounter": {"N": str(int(row["leaseCounter"]["N"]) + step)}}
        rows = world.dynamodb.tables[TABLE].rows
        rows[key] = {**row, **wanted, **counter}
        world.edits.edit(key, row, rows[key])
        world.rows_checker.edited(key, rows[key])
        world.simulation.trace.remark(world.simulation.now, f"edited: {key} to {wanted} +{step}")
        if place == "end":
            self._see_that_it_does_not_end(key, worker_on(row))
        return True

    def _place(self, rng: random.Random, key: str, row: Item, place: str) -> Item | None:
        """Return the checkpoint to write; None: there is none of this kind."""
        world, at = self._world, checkpoint_position(row)
        if place == "end":
            # 1) The shard has children; 2) a scan shows its lease as ended; 3) theirs are taken before that is put right.
            return _at("SHARD_END") if key in world.open_shards() else None
        if place == "latest":
            return _at("LATEST") if at != AT_LATEST else None
        shard = world.record_log.shard(key)
        # Conditions of writes compare sequence numbers only: what differs within a record is put back one write later.
        known = [p for p in shard.put if p not in shard.trimmed and p[0] != at[0]]
        if place == "back":
            behind = [_at(str(number), sub) for number, sub in known if number < at[0]]
            return rng.choice([_at("TRIM_HORIZON"), *behind[-_NEAR:]]) if at > FIRST else None
        ahead = [_at(str(number), sub) for number, sub in known if number > at[0]]
        return rng.choice(ahead[:_NEAR]) if ahead else None

    def _see_that_it_does_not_end(self, key: str, owner: str | None) -> None:
        """Wait until its owner has put the checkpoint back. An operator who sees that it has none any more does so."""
        world = self._world
        while key in world.edits.pending and key in world.rows():
            if not any(
                host.worker_id == owner and world.beliefs.believes(host.name, key)
                for host in self._fleet.workers()
            ):
                row = world.row(key)
                world.dynamodb.tables[TABLE].rows[key] = {**row, **world.edits.taken_back(key)}
            world.simulation.sleep(_WAIT_SECONDS)

    def _is_worked_on(self, key: str, row: Item) -> bool:
        """Return whether a pykcl worker is at work on the lease, and believes in it."""
        owner = worker_on(row)
        hosts = [host for host in self._fleet.awake_workers() if host.worker_id == owner]
        return checkpoint_position(row) != END and any(
            self._world.beliefs.believes(host.name, key) for host in hosts
        )

    def drop_ranges(self, rng: random.Random) -> bool:
        """Rows as versions before 2.3 leave them, or with half of their hash range, or with NULL for it."""
        rows = self._world.rows()
        keys = [
            key
            for key, row in sorted(rows.items())
            if row.keys() >= _RANGE and checkpoint_position(row) != END
        ]
        # The scripted Java worker has no word for NULL.
        gone, left = _WITHOUT_RANGE[rng.randrange(2 if self._world.faults.has_java else 3)]
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
        if world.options["initial_position"] == "LATEST":
            # 1) A worker is started, and its first scan waits for an answer; 2) the row is deleted; 3) the last worker that
            # saw it is stopped; 4) the one of step 1 would start the shard at LATEST.
            if any(host.name not in world.observer.joined for host in self._fleet.workers()):
                return False
            # Without a row that records the start, a worker that starts now would start the shard at this moment.
            others = {
                other: row
                for other, row in others.items()
                if "latestFrom" in row.get("pykcl", {}).get("M", {})
            }
        return bool(others) and not set(world.record_log.children(key)) & world.rows().keys()

    def _wait_for(self, key: str, row: Item) -> None:
        """Wait until the row is restored.

        1) The row is deleted; 2) before a worker restores it, the last worker that saw it is stopped; 3) its content is
        unknown, and the next worker would start its shard at LATEST. The operator repairs that, see
        docs/concepts/guarantees.md. If a worker that saw the row is left and does not restore it, the checkers report
        that.
        """
        world, started = self._world, self._world.simulation.now
        while key not in world.rows() and world.simulation.now < started + _PATIENCE:
            world.simulation.sleep(_WAIT_SECONDS)
        joined = [world.observer.joined.get(host.name) for host in self._fleet.workers()]
        if key not in world.rows() and not any(at is not None and at < started for at in joined):
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


def _at(sequence_number: str, sub_sequence_number: int = 0) -> Item:
    return {
        "checkpoint": {"S": sequence_number},
        "checkpointSubSequenceNumber": {"N": str(sub_sequence_number)},
    }


_N0 = {"N": "0"}
_ELSEWHERE = "arn:aws:kinesis:us-east-1:123456789012:stream/elsewhere"
_MIGRATION = "Migration3.0"
_NATIVE = {
    "leaseKey": {"S": _MIGRATION},
    "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
    "cv": {"S": "CLIENT_VERSION_3X"},
}
FLEET_ROWS = ("Leader", _MIGRATION)
_MULTI_STREAM = "123456789012:other:1790000000000:shardId-000000000000"
_ROWS: dict[str, dict[str, Any]] = {
    "worker-metrics": {"entityType": {"S": "WORKER_METRIC_STATS"}, "sts": {"M": {"C": {"L": [_N0]}}}},
    "Leader": {"entityType": {"S": "LEADER"}, "leaderName": {"S": "x"}, "leaseDuration": {"N": "300000"}},
    _MIGRATION: {"entityType": {"S": "CLIENT_VERSION_MIGRATION"}, "cv": {"S": "CLIENT_VERSION_2X"}, "h": {"L": []}},
    _MULTI_STREAM: {
        "leaseCounter": {"N": "7"}, "checkpoint": {"S": "TRIM_HORIZON"}, "checkpointSubSequenceNumber": _N0,
        "ownerSwitchesSinceCheckpoint": _N0, "streamName": {"S": "123456789012:other:1790000000000"},
    },
    "junk": {"anything": {"B": b"\x00\xff"}, "more": {"SS": ["a", "b"]}, "null": {"NULL": True}},
    "shardId-999999999990": {"leaseCounter": {"S": "not a number"}, "checkpoint": {"S": "TRIM_HORIZON"}},
    "shardId-999999999991": {"leaseCounter": {"N": "3"}, "checkpoint": {"S": "9" * 500}},
    "shardId-999999999992": {"leaseCounter": {"N": "-5"}, "checkpoint": {"N": "12"}, "leaseOwner": {"S": "z" * 2000}},
}  # fmt: skip


class Foreigners:
    """F13.foreign and F15: pykcl reads past all of it, and touches none of it. kinds: keys of rows to put."""

    kinds = frozenset(_ROWS)

    def __init__(self, world: CheckedWorld, fleet: CheckedFleet) -> None:
        self._world, self._fleet = world, fleet
        self._put: dict[str, dict[str, Any]] = {}
        self._tables = 0

    def put_rows(self, rng: random.Random) -> bool:
        """A row of each of a few kinds; or, in a lease of ours, an attribute we do not know."""
        if TABLE not in self._world.dynamodb.tables or self._world.faults.has("F20"):
            # Java 2.x cannot read a table with such rows in it; its own KCL 3.5 peers forbid that combination.
            return False
        leases = self._world.rows()
        if leases and rng.random() < 0.5:
            key = rng.choice(sorted(leases))
            number = {"N": str(rng.randint(1, 99))}
            note = {"throughputKBps": number, "later": number}
            self._world.dynamodb.tables[TABLE].rows[key] = {**leases[key], **note}
            return True
        key = rng.choice(sorted(self.kinds))
        # A table of such leases alone is that of another application, and refused.
        if key in self._put or (key == _MULTI_STREAM and not leases):
            return False
        if key == "Leader" and _MIGRATION not in self._put:
            # Left over in a fleet that went back to 2.x. Without that row a worker refuses to join a leader.
            self._put_row(_MIGRATION)
        self._put_row(key)
        return True

    def _put_row(self, key: str) -> None:
        self._put[key] = {"leaseKey": {"S": key}, **_ROWS[key]}
        self._world.dynamodb.put_raw(TABLE, self._put[key])

    def check(self) -> None:
        """Check FOREIGN_KEPT once more at the end: the rows are unchanged."""
        rows = self._world.dynamodb.rows(TABLE)
        for key, row in sorted(self._put.items()):
            self._world.violations.expect(
                rows.get(key) == row, Guarantee.FOREIGN_KEPT, f"the row {key} changed"
            )

    def visit_another_table(self, rng: random.Random) -> bool:
        """Start a worker with the name of a foreign table: it must refuse, and change nothing."""
        self._tables += 1
        table = f"other-{self._tables}"
        attribute = "leaseKey" if rng.random() < 0.5 else "id"
        self._world.dynamodb.create_table(
            TableName=table,
            KeySchema=[{"AttributeName": attribute, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": attribute, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        row: dict[str, Any] = {attribute: {"S": "shardId-000000000000"}}
        if attribute == "leaseKey":
            row |= {
                "leaseCounter": {"N": "4"},
                "checkpoint": {"S": "LATEST"},
                "checkpointSubSequenceNumber": _N0,
            }
            row |= {"ownerSwitchesSinceCheckpoint": _N0, "pykcl": {"M": {"streamArn": {"S": _ELSEWHERE}}}}
            if self._tables % 2 == 0:
                row = _NATIVE
        self._world.dynamodb.put_raw(table, row)
        self._world.simulation.spawn(f"visitor-{table}", f"w0{table}", lambda: self._visit(table, row))
        return True

    def _visit(self, table: str, row: dict[str, Any]) -> None:
        name = f"w0{table}"
        worker = self._world.worker(name, table=table, stop=lambda: False)
        refused = False
        try:
            worker.start()
        except NativeFleet:
            refused = row is _NATIVE
        except SetupError:
            # A run with an end refuses every table but its own, before it looks at what that is.
            refused = row is not _NATIVE or "until" in self._world.options
        worker.stop()
        found = self._world.dynamodb.rows(table)
        self._world.beliefs.forget(name)
        kept = list(found.values()) == [row]
        self._world.violations.expect(
            refused and kept,
            Guarantee.FOREIGN_KEPT,
            f"a worker on {table}: refused {refused}, row kept {kept}",
        )


_NOTICED_AFTER = 60.0
_NOTICED_ANEW_AFTER = 120.0
"""Every heartbeat meets a table that is not there; that it is another one is found by a scan that succeeds."""
_STILL_UNDER_WAY = 5.0
_POLL_SECONDS = 0.1
_THE_DEAD = ""
"""Stands for the killed hosts, which are never frozen."""


def lose_and_restore_the_table(
    world: CheckedWorld, fleet: CheckedFleet, producer: Producer, *, is_made_anew: bool = False
) -> None:
    """Delete the table: each worker must stop with a clear error, deliver nothing, and not create the table or rows."""
    backup = world.dynamodb.tables[TABLE]
    working = _keep_only_who_works(world, fleet)
    for row in world.rows().values():
        # 1) Another library takes a lease by hand: no request of a host names it; 2) a worker scans that row; 3) the
        # table is deleted, and the row with it; 4) the answer comes, and the worker reports the owner that it saw.
        world.observer.fleet.names(row)
    world.edits.deleted(*world.rows())
    world.dynamodb.delete_table(TableName=TABLE)
    if is_made_anew:
        _make_anew(world, backup, world.faults.rng("F13.recreated"))
    writes = _Writes(world)
    thawing = 60.0 if any(world.simulation.is_frozen(host.name) for host in working) else 0.0
    deadline = world.simulation.now + thawing + (_NOTICED_ANEW_AFTER if is_made_anew else _NOTICED_AFTER)
    while True:
        if is_made_anew:
            # Also hosts that were asked to stop before: they may notice the loss at any time.
            hosts = (*fleet.alive, *fleet.leaving)
            for name in hosts:
                world.observer.without_table.add(name)
            writes.poll(hosts)
        if all(host.is_over for host in working) or world.simulation.now >= deadline:
            break
        if TABLE in world.dynamodb.tables and not is_made_anew:
            break
        world.simulation.sleep(_POLL_SECONDS)
    if is_made_anew:
        _check_writes(world, backup, *writes.early_and_late())
    else:
        made_anew = TABLE in world.dynamodb.tables
        world.violations.expect(
            not made_anew, Guarantee.NO_FALSE_ALARM, "a worker created the lost lease table again"
        )
    _check_ends(world, fleet, working)
    _nothing_is_delivered(world, producer)
    world.dynamodb.tables[TABLE] = backup


class _Writes:
    """Writes after the loss of the table: early ones were in progress, and are over some seconds later.

    Seconds in which the host is frozen do not count: 1) it has planned a take, and freezes; 2) another deploy puts that
    row into the new table; 3) it thaws, and takes the lease, before its next scan shows the loss.
    """

    def __init__(self, world: CheckedWorld) -> None:
        self._world = world
        self._lost_at, self._first = world.simulation.now, len(world.dynamodb.changes)
        self._late_from: dict[str, float] = {}

    def poll(self, hosts: Iterable[str]) -> None:
        """Note the hosts whose writes are late from now on."""
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


def _keep_only_who_works(world: CheckedWorld, fleet: CheckedFleet) -> list[WorkerHost]:
    """Kill all hosts but those that work. A starting host may create a table, or use the new one, as it never saw the
    old one; so may one that was asked to stop while it starts, because it creates a missing table before it stops.
    """
    for name, host in sorted({**fleet.leaving, **fleet.alive}.items()):
        is_leaving = name in fleet.leaving
        works = isinstance(host, WorkerHost) and host.has_started
        if not works and not (is_leaving and host.is_over):
            fleet.kill(name)
    return fleet.workers()


def _make_anew(world: CheckedWorld, old: Table, rng: random.Random) -> None:
    """Create the table empty, or with the rows of another deploy, at the start position and without owners."""
    world.dynamodb.create_table(
        TableName=TABLE,
        KeySchema=old.schema,
        AttributeDefinitions=old.attributes,
        BillingMode="PAY_PER_REQUEST",
    )
    world.dynamodb.tables[TABLE].status = "ACTIVE"
    if rng.random() < 0.5:
        for row in old.rows.values():
            # One that was hardly taken is the same in both tables: no lease can be identified by it.
            if _is_lease(row) and int(row["leaseCounter"]["N"]) > 1:
                world.dynamodb.put_raw(TABLE, _at_the_start(row))
                # Who scanned before may take it there, until the heartbeat of the one who had it is refused.
                world.beliefs.stolen(row["leaseKey"]["S"])


def _is_lease(row: Item) -> bool:
    try:
        return checkpoint_position(row) < END and int(row["leaseCounter"]["N"]) >= 0
    except (KeyError, ValueError):
        return False


def _at_the_start(row: Item) -> Item:
    return {
        **{name: value for name, value in row.items() if name != "leaseOwner"},
        "leaseCounter": {"N": "0"},
        **_at("TRIM_HORIZON"),
    }


def _check_writes(
    world: CheckedWorld, backup: Table, early: Sequence[Change], late: Sequence[Change]
) -> None:
    """Check that a worker of the old table writes nothing after it has noticed the loss.

    Exception: 1) another deploy puts the row of a lease into the new table; 2) a scan shows it to a worker that has not
    noticed the loss; it takes the lease there, and reads from the checkpoint of that row; 3) it notices, ends its
    batch, checkpoints and releases: these writes are correct in the new table.
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
    world.violations.expect(not ours, Guarantee.SILENT_AFTER_LOSS, f"in the new table: {what}")


def _is_take(change: Change) -> bool:
    if change.before is None or change.after is None:
        return False
    owner = change.after.get("leaseOwner")
    return owner is not None and owner != change.before.get("leaseOwner")


def _check_ends(world: CheckedWorld, fleet: CheckedFleet, working: Sequence[WorkerHost]) -> None:
    for host in working:
        failure = host.failure
        reported = host.was_asked or host.name in fleet.struck or isinstance(failure, TableGone)
        # Its processor may have stopped it, or it reports that it may not describe the table.
        reported = reported or (failure is not None and fleet.has_cause(host, failure))
        world.violations.expect(
            reported, Guarantee.NO_FALSE_ALARM, f"{host.name} did not report the loss: {failure!r}"
        )
        fleet.alive.pop(host.name, None)


def _nothing_is_delivered(world: CheckedWorld, producer: Producer) -> None:
    before = world.delivery.batches
    producer.put_some()
    world.simulation.sleep(5.0)
    world.violations.expect(
        world.delivery.batches == before,
        Guarantee.SILENT_AFTER_LOSS,
        "records were delivered without a lease table",
    )
