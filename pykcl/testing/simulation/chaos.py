"""The producer of a simulation, and the actions that a step may take, each under the fault it belongs to.

Stops in phases that last no longer than one request (F18) happen at the very request.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from pykcl.local.errors import AwsError
from pykcl.local.shards import HOUR_MILLIS
from pykcl.model.kpl import aggregate
from pykcl.model.record import Record
from pykcl.model.shard import Shard
from pykcl.stores.requests import Params
from pykcl.testing.fleet import STREAM, TABLE
from pykcl.testing.input_records import InputRecord, put_all
from pykcl.testing.runtime import SimTask
from pykcl.testing.simulation.delivery import position_of
from pykcl.testing.simulation.faults import Faults
from pykcl.testing.simulation.service_faults import kind_of_write, past_retention
from pykcl.testing.simulation.world import (
    FAILOVER,
    LONG_RETENTION_HOURS,
    MOST_SHARDS,
    SimulatedFleet,
    WorkerHost,
    World,
)


class Producer:
    """inputs: records of a user, which are put in turn, again and again, instead of small texts.

    is_on: whether records are put and shards are split; before a start at LATEST nothing may happen.
    """

    def __init__(self, world: World, rng: random.Random, inputs: Sequence[InputRecord] = ()) -> None:
        self._world, self._rng = world, rng
        self._inputs = inputs
        self._count = 0
        self.is_on = True

    def put_before(self) -> None:
        """Put a record before the start of the first worker, which is owed to nobody."""
        if self._inputs:
            puts = [(r.shard_id, r.sequence_number, r.sub_sequence_number) for r in self._put_input()]
        else:
            put = self._world.kinesis.put_record(STREAM, b"before", "before")
            puts = [(put.shard_id, put.sequence_number, 0)]
        for shard_id, number, sub in puts:
            position = position_of(self._world.numbers.shorten(number), sub)
            self._world.record_log.shard(shard_id).before.add(position)

    def put_the_rest(self) -> None:
        """Put the records of the user that had no turn yet."""
        while self._count < len(self._inputs):
            self._put_one()

    def put_some(self) -> None:
        if not self.is_on:
            return
        for _ in range(self._rng.randint(1, 6)):
            self._put_one()

    def put_on_every_shard(self, *, aggregated: bool = False, chance: random.Random | None = None) -> None:
        """One record on each, or three in one. chance: on every second one, by this generator."""
        for shard in self._world.kinesis.list_shards(STREAM, operation=None):
            if not shard.is_open or (chance is not None and chance.random() < 0.5):
                continue
            if self._inputs:
                # Each where its key belongs: the order of a key holds within a shard.
                self._put_one()
                continue
            first = _first_key(shard)
            if aggregated:
                (packed,) = aggregate(("k", str(first), b"calm") for _ in range(3))
                self._put(packed.data, packed.partition_key, first, 3)
            else:
                self._put(b"calm", "k", first, 1)

    def _put_one(self) -> None:
        if self._inputs:
            counts = Counter((record.shard_id, record.sequence_number) for record in self._put_input())
            for (shard_id, number), count in counts.items():
                self._enter(shard_id, number, count)
            return
        self._count += 1
        key = f"k{self._rng.randint(0, 50)}"
        count = self._rng.choice([1, 1, 1, self._rng.randint(2, 6)])
        data = [f"{self._count}.{number}".encode() for number in range(count)]
        malformed = self._world.faults.is_due("F16")
        if count == 1 and not malformed:
            self._put(data[0], key, None, 1)
            return
        (packed,) = aggregate((key, None, part) for part in data)
        if malformed:
            self._put_malformed(packed.data, packed.partition_key)
        else:
            self._put(packed.data, packed.partition_key, None, count)

    def _put_input(self) -> list[Record]:
        given = self._inputs[self._count % len(self._inputs)]
        self._count += 1
        return put_all(self._world.kinesis, STREAM, [given])

    def _put_malformed(self, blob: bytes, key: str) -> None:
        rng = self._world.faults.rng("F16")
        how = rng.choice(["cut", "garbage", "elsewhere"])
        if how == "cut":
            self._note_malformed(*self._put(blob[: rng.randint(5, len(blob) - 1)], key, None, 1))
        elif how == "garbage":
            place = rng.randrange(4, len(blob))
            blob = blob[:place] + bytes([blob[place] ^ 0xFF]) + blob[place + 1 :]
            self._note_malformed(*self._put(blob, key, None, 1))
        else:
            # Put into a shard that its keys do not hash into: dropped and reported, as Java does.
            shards = self._world.kinesis.list_shards(STREAM, operation=None)
            shard = rng.choice([shard for shard in shards if shard.is_open])
            put = self._world.kinesis.put_record(STREAM, b"plain", key)
            self._enter(put.shard_id, put.sequence_number, 1)
            if put.shard_id != shard.shard_id:
                dropped = self._world.kinesis.put_record(STREAM, blob, key, _first_key(shard))
                short = int(self._world.numbers.shorten(dropped.sequence_number))
                self._world.record_log.shard(dropped.shard_id).drop(short, self._world.kinesis_millis())
                self._note_malformed(dropped.shard_id, dropped.sequence_number)

    def _note_malformed(self, shard_id: str, sequence_number: str) -> None:
        """Note a malformed record; it has no effect before a worker fetches it."""
        self._world.malformed.add((shard_id, sequence_number))

    def _put(self, data: bytes, key: str, hash_key: int | None, count: int) -> tuple[str, str]:
        put = self._world.kinesis.put_record(STREAM, data, key, hash_key)
        self._enter(put.shard_id, put.sequence_number, count)
        return put.shard_id, put.sequence_number

    def _enter(self, shard_id: str, sequence_number: str, count: int) -> None:
        short = int(self._world.numbers.shorten(sequence_number))
        for number in range(count):
            self._world.record_log.shard(shard_id).add((short, number), self._world.kinesis_millis())

    def reshard(self) -> None:
        """Split a shard or merge two, at random."""
        if not self.is_on:
            return
        rng, kinesis = self._rng, self._world.kinesis
        shards = [shard for shard in kinesis.list_shards(STREAM, operation=None) if shard.is_open]
        shards.sort(key=_first_key)
        try:
            if len(shards) > 1 and (len(shards) >= MOST_SHARDS or rng.random() < 0.45):
                left = rng.randrange(len(shards) - 1)
                kinesis.merge(STREAM, shards[left].shard_id, shards[left + 1].shard_id)
            else:
                kinesis.split(STREAM, rng.choice(shards).shard_id)
        except AwsError as refusal:
            # A shard of one hash key cannot be split; everything else is a mistake of ours.
            if refusal.code != "InvalidArgumentException":
                raise
        self._world.note_shards()


def _first_key(shard: Shard) -> int:
    assert shard.hash_range is not None
    return shard.hash_range.first


class StopPhases:
    """Called with every request to DynamoDB by the thread that sends it, before it is sent."""

    def __init__(self, world: World, fleet: SimulatedFleet) -> None:
        self._faults, self._fleet = world.faults, fleet

    def request_sent(self, operation: str, params: Params, name: str) -> None:
        """name: of the host that sends it."""
        if params.get("TableName") != TABLE or not name.startswith("w"):
            return
        if operation == "CreateTable":
            self._stop("F18.creating", name)
        elif operation == "UpdateItem":
            kind = kind_of_write(operation, params)
            if kind == "checkpoint":
                self._stop("F18.checkpoint", name)
            elif kind == "release":
                self._stop("F18.releasing", name)

    def _stop(self, fault: str, name: str) -> None:
        if not self._faults.is_due(fault):
            return
        host = self._fleet.alive.get(name)
        if isinstance(host, WorkerHost):
            self._fleet.ask_to_stop(host)
            self._faults.note(fault, name)
            return
        leaving = self._fleet.leaving.get(name)
        if fault == "F18.releasing" and isinstance(leaving, WorkerHost) and not leaving.is_over:
            leaving.stop_again()
            self._faults.note(fault, name)


_RATES = (0.9, 0.93, 0.97, 1.03, 1.07, 1.1)
_ACTIONS = (
    "Scan", "GetItem", "UpdateItem", "PutItem", "DeleteItem", "DescribeTable",
    "GetRecords", "GetShardIterator", "ListShards", "DescribeStreamSummary",
)  # fmt: skip
_NOTED_WHEN_FELT = {"F10.kms", "F14.start", "F14.while", "F14.credentials"}
"""Nothing has happened yet when they are arranged."""
_LATE_WRITES_LAND = 0.4


class Chaos:
    """One step after the other, at random moments; `rng` decides what is no fault: records, reshards, new workers.

    forbidden: requests that a worker may not be allowed.
    """

    forbidden: Sequence[str] = _ACTIONS

    def __init__(self, world: World, fleet: SimulatedFleet, producer: Producer, rng: random.Random) -> None:
        self._world, self._fleet, self._producer, self._rng = world, fleet, producer, rng
        self._faults: Faults = world.faults
        world.on_request = StopPhases(world, fleet).request_sent
        self._actions = self.actions()

    def actions(self) -> dict[str, Callable[[random.Random], bool]]:
        """Return what may be done under each kind of fault, in the order of the kinds; whether it could be done."""
        return {
            "F1": self._kill,
            "F2": self._strike,
            "F3": self._freeze,
            "F4.wall": self._jump,
            "F5.outage": self._outage,
            "F5.date": self._put_proxy,
            "F10.kms": self._lock_the_key,
            "F11": self._reshard_wildly,
            "F12": self._let_retention_pass,
            "F12.lowered": self._lower_retention,
            "F14.start": self._start_forbidden,
            "F14.while": self._forbid,
            "F14.credentials": self._replace_keys,
            "F18.stop": lambda rng: self._stop(self._any_host(rng)),
            "F18.starting": self._stop_at_once,
            "F18.busy": lambda rng: self._stop(self._doing(rng, "process_records")),
            "F18.waiting": lambda rng: self._stop(self._doing(rng, "waiting for parents")),
            "F18.ending": lambda rng: self._stop(self._doing(rng, "ending", "shard_ended")),
            "F18.twice": self._stop_twice,
            "F19.rolling": self._roll,
            "F19.same": self._start_duplicate,
        }

    def step(self) -> None:
        """Something happens, or nothing."""
        rng = self._rng
        if rng.random() < 0.7:
            self._producer.put_some()
        if rng.random() < 0.08:
            self._producer.reshard()
        if len(self._fleet.alive) < 2 or (len(self._fleet.alive) < self._fleet.wanted and rng.random() < 0.3):
            self._fleet.start()
        if rng.random() < _LATE_WRITES_LAND:
            self._world.dynamodb.deliver_postponed()
        for name, act in self._actions.items():
            if self._faults.is_due(name) and act(self._faults.rng(name)) and name not in _NOTED_WHEN_FELT:
                self._faults.note(name)

    # -- deaths ------------------------------------------------------------------------------------------------

    def _any_host(self, rng: random.Random) -> WorkerHost | None:
        hosts = self._fleet.awake_workers()
        return rng.choice(hosts) if hosts else None

    def _doing(self, rng: random.Random, *activities: str) -> WorkerHost | None:
        hosts = [
            h for h in self._fleet.awake_workers() if set(activities) & set(h.worker.activities.values())
        ]
        return rng.choice(hosts) if hosts else None

    def _kill(self, rng: random.Random) -> bool:
        names = sorted(name for name in self._fleet.alive if not self._world.simulation.is_frozen(name))
        if not names:
            return False
        self._fleet.kill(rng.choice(names))
        return True

    def _strike(self, rng: random.Random) -> bool:
        host = self._any_host(rng)
        tasks: list[SimTask] = []
        if host is not None and host.has_started:
            tasks = [t for t in self._world.simulation.unfinished(host.name) if t.name.startswith("pykcl-")]
        if host is None or not tasks:
            return False
        self._fleet.strike(host.name, rng.choice(tasks))
        return True

    def _freeze(self, rng: random.Random) -> bool:
        names = sorted(name for name in self._fleet.alive if not self._world.simulation.is_frozen(name))
        if not names:
            return False
        self._fleet.freeze(rng.choice(names), rng.uniform(0, 5 * FAILOVER))
        return True

    def _stop(self, host: WorkerHost | None) -> bool:
        if host is None:
            return False
        self._fleet.ask_to_stop(host)
        return True

    def _stop_at_once(self, rng: random.Random) -> bool:
        host = self._fleet.start()
        self._world.simulation.sleep(rng.uniform(0, 1.0))
        return self._stop(host)

    def _stop_twice(self, rng: random.Random) -> bool:
        host = self._any_host(rng)
        if host is None or not host.has_started:
            return False
        self._fleet.ask_to_stop(host)
        self._world.simulation.sleep(rng.uniform(0, 2.0))
        host.stop_again()
        return True

    def _roll(self, rng: random.Random) -> bool:
        old = self._fleet.awake_workers()
        for host in old:
            self._fleet.start()
            self._world.simulation.sleep(rng.uniform(0, 8))
            self._fleet.ask_to_stop(host)
            self._producer.put_some()
            self._world.simulation.sleep(rng.uniform(0, 8))
        return bool(old)

    # -- births ------------------------------------------------------------------------------------------------

    def _start_duplicate(self, rng: random.Random) -> bool:
        host = self._any_host(rng)
        if host is None:
            return False
        self._fleet.start(worker_id=host.worker_id)
        return True

    def _start_forbidden(self, rng: random.Random) -> bool:
        name = self._fleet.next_name()
        self._world.outages.forbidden[(rng.choice(self.forbidden), name)] = float("inf")
        self._fleet.start()
        return True

    # -- surroundings ------------------------------------------------------------------------------------------

    def _forbid(self, rng: random.Random) -> bool:
        host = self._any_host(rng)
        if host is None:
            return False
        until = self._world.simulation.now + rng.uniform(1, 40)
        self._world.outages.forbidden[(rng.choice(self.forbidden), host.name)] = until
        return True

    def _replace_keys(self, rng: random.Random) -> bool:
        host = self._any_host(rng)
        if host is None:
            return False
        # A worker that starts meanwhile finds the new ones.
        for each in self._fleet.awake_workers() if rng.random() < 0.5 else [host]:
            self._world.outages.replace_keys(each.name, self._world.simulation.now + rng.uniform(1, 40), rng)
        return True

    def _lock_the_key(self, rng: random.Random) -> bool:
        host = self._any_host(rng)
        who = host.name if host is not None and rng.random() < 0.5 else ""
        self._world.outages.lock(who, self._world.simulation.now + rng.uniform(1, 40), rng)
        return True

    def _outage(self, rng: random.Random) -> bool:
        service = rng.choice(["dynamodb", "dynamodb", "kinesis"])
        host = self._any_host(rng)
        who = host.name if host is not None and rng.random() < 0.5 else ""
        self._world.outages.down[(service, who)] = self._world.simulation.now + rng.uniform(1, 40)
        return True

    def _put_proxy(self, rng: random.Random) -> bool:
        host = self._any_host(rng)
        who = host.name if host is not None and rng.random() < 0.5 else ""
        self._world.outages.put_proxy(who, self._world.simulation.now, rng)
        return True

    def _jump(self, rng: random.Random) -> bool:
        host = self._any_host(rng)
        if host is None:
            return False
        self._world.simulation.clock(host.name).wall_offset += rng.randint(-12, 12) * HOUR_MILLIS
        return True

    def clock_rate(self) -> float:
        """Return the clock rate of the next worker."""
        rng = self._faults.rng("F4.rate")
        return rng.choice(_RATES) if self._faults.happens("F4.rate") else 1.0

    def _reshard_wildly(self, rng: random.Random) -> bool:
        for _ in range(rng.randint(2, 6)):
            self._producer.reshard()
            if rng.random() < 0.5:
                self._producer.put_some()
            self._world.simulation.sleep(rng.choice([0, 0, 0.5, 2.0]))
        return True

    def _let_retention_pass(self, rng: random.Random) -> bool:
        self._world.kinesis_skew += past_retention(24, rng.uniform(5, 90))
        self._world.note_trimming()
        return True

    def _lower_retention(self, rng: random.Random) -> bool:
        """Lower the retention while workers read past hours: records older than a day are removed at once."""
        world = self._world
        for _ in range(rng.randint(3, 8)):
            self._producer.put_some()
            world.kinesis_skew += rng.randint(1, 3) * HOUR_MILLIS
        # Now it lags, and has crossed a few hours at most when these records go.
        world.kinesis_skew += 22 * HOUR_MILLIS
        world.simulation.sleep(rng.choice([0.5, 2, 5]))
        world.set_retention(24)
        world.note_trimming()
        world.simulation.sleep(rng.uniform(0, 30))
        world.set_retention(LONG_RETENTION_HOURS)
        return True
