"""Actions that a step of a simulation may take, each under the fault it belongs to.

Stops in phases that last no longer than one request (F18) happen at the very request.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from pykcl.local.shards import HOUR_MILLIS
from pykcl.testing.memory.dynamodb import Params
from pykcl.testing.runtime import SimTask
from pykcl.testing.simulation.faults import Faults
from pykcl.testing.simulation.fleet import SimulatedFleet
from pykcl.testing.simulation.lease_table_actions import Foreigners, Operators
from pykcl.testing.simulation.producer import Producer
from pykcl.testing.simulation.service_faults import kind_of_write, past_retention
from pykcl.testing.simulation.world import FAILOVER, LONG_RETENTION_HOURS, TABLE, WorkerHost, World


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
_NOTED_WHEN_FELT = {"F10.kms", "F14.start", "F14.while"}
"""Nothing has happened yet when they are arranged."""
_LATE_WRITES_LAND = 0.4


class Chaos:
    """One step after the other, at random moments; `rng` decides what is no fault: records, reshards, new workers."""

    def __init__(self, world: World, fleet: SimulatedFleet, producer: Producer, rng: random.Random) -> None:
        self._world, self._fleet, self._producer, self._rng = world, fleet, producer, rng
        self._faults: Faults = world.faults
        self._foreigners = Foreigners(world, fleet)
        operators = Operators(world, fleet)
        world.on_request = StopPhases(world, fleet).request_sent
        self._actions: dict[str, Callable[[random.Random], bool]] = {
            "F1": self._kill,
            "F2": self._strike,
            "F3": self._freeze,
            "F4.wall": self._jump,
            "F5.outage": self._outage,
            "F10.kms": self._lock_the_key,
            "F11": self._reshard_wildly,
            "F12": self._let_retention_pass,
            "F12.lowered": self._lower_retention,
            "F13.foreign": self._foreigners.visit_another_table,
            "F14.start": self._start_forbidden,
            "F14.while": self._forbid,
            "F15": self._foreigners.put_rows,
            "F15.deleted": operators.delete_row,
            "F15.counter": operators.put_counter_back,
            "F15.ranges": operators.drop_ranges,
            "F18.stop": lambda rng: self._stop(self._any_host(rng)),
            "F18.starting": self._stop_at_once,
            "F18.busy": lambda rng: self._stop(self._doing(rng, "process_records")),
            "F18.waiting": lambda rng: self._stop(self._doing(rng, "waiting for parents")),
            "F18.ending": lambda rng: self._stop(self._doing(rng, "ending", "shard_ended")),
            "F18.twice": self._stop_twice,
            "F19.rolling": self._roll,
            "F19.same": self._start_duplicate,
            "F20": self._start_java,
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

    def check(self) -> None:
        self._foreigners.check()
        self._world.violations.check()

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
        self._fleet.struck.add(host.name)
        self._world.simulation.strike(rng.choice(tasks))
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
        self._world.outages.forbidden[(rng.choice(_ACTIONS), name)] = float("inf")
        self._fleet.start()
        return True

    def _start_java(self, rng: random.Random) -> bool:
        return self._fleet.start_java(rng)

    # -- surroundings ------------------------------------------------------------------------------------------

    def _forbid(self, rng: random.Random) -> bool:
        host = self._any_host(rng)
        if host is None:
            return False
        until = self._world.simulation.now + rng.uniform(1, 40)
        self._world.outages.forbidden[(rng.choice(_ACTIONS), host.name)] = until
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
        """Lower the retention while workers read the hours that passed: records older than a day go at once."""
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
