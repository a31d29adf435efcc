"""A mixed fleet to which everything happens at random: faults, reshards, deaths, freezes, restarts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from pykcl.errors import CheckpointRefused, StopTimedOut
from pykcl.events import DataLost, InvalidLeaseRow
from pykcl.local.errors import AwsError
from pykcl.processor import Batch, ShardEndedInput
from pykcl.testing.fleet import STREAM
from pykcl.testing.memory.dynamodb import Fault, Params, failing, throttled, timed_out
from pykcl.testing.runtime import SimTask, Simulation
from tests.java_compat.mixed_fleet import CheckedProcessor, MixedFleet

MOST_WORKERS, MAX_SHARDS = 4, 7


def run_random_mixed_fleet(seed: int) -> MixedFleet:
    """One fleet from birth through chaos to rest; raises AssertionError, or returns what was left of it."""
    with Simulation(seed=seed) as simulation:
        story = Story(simulation, seed)
        story.run()
        return story.fleet


class HandProcessor(CheckedProcessor):
    """Checkpoints when and where it likes; in the end each time, else no row of a parent could be deleted."""

    def __init__(self, name: str, story: Story) -> None:
        super().__init__(name, story.fleet)
        self._story = story

    def process_records(self, batch: Batch) -> None:
        super().process_records(batch)
        if self._story.is_over or self._story.rng.random() < 0.6:
            try:
                batch.checkpointer.checkpoint(self._story.rng.choice(batch.records))
            except CheckpointRefused:
                # The batch is being retried and was checkpointed further the first time.
                return

    def shard_ended(self, end: ShardEndedInput) -> None:
        super().shard_ended(end)
        end.checkpointer.checkpoint()


class Story:
    """The seed decides what happens next."""

    def __init__(self, simulation: Simulation, seed: int) -> None:
        self.simulation = simulation
        # Not the simulation's generator: so the story does not depend on how often its threads switch.
        self.rng = rng = random.Random(seed * 6007 + 5)
        self.fleet = MixedFleet(simulation, shards=rng.randint(1, 4))
        self.fleet.dynamodb.fault = self._fault
        self.fleet.kinesis.fault = self._kinesis_fault
        self.is_over = False
        self.fails = rng.choice([0, 0, 0.03, 0.2])
        self.java_options: dict[str, Any] = {
            "max_leases_to_steal": rng.choice([1, 3]),
            "max_records": rng.choice([2, 10_000]),
            "two_phase": rng.random() < 0.3,
            "application": rng.choice([None, self._anywhere]),
        }
        self.pykcl_options: dict[str, Any] = {
            "max_leases_to_steal_at_one_time": rng.choice([1, 3]),
            "max_records": rng.choice([2, 10_000]),
            **rng.choice(
                [
                    {"checkpoint_mode": "auto"},
                    {"checkpoint_mode": "interval", "checkpoint_interval": 3.0},
                    {"checkpoint_mode": "manual"},
                ]
            ),
        }
        self.started = 0
        self.alive: dict[str, SimTask | None] = {}
        self.awake_at: dict[str, float] = {}

    def run(self) -> None:
        self.fleet.put_everywhere()
        for library in self.rng.sample(["java", "pykcl"], 2):
            self.start(library)
        for _ in range(self.rng.randint(12, 30)):
            self._something_happens()
            self.simulation.sleep(self.rng.choice([0.5, 3, 10, 25]) * self.rng.random())
            self.fleet.check()
        self._come_to_rest()

    def _something_happens(self) -> None:
        happenings: dict[Callable[[], object], int] = {
            self.put: 30,
            self.start: 10,
            self.stop: 6,
            self.kill: 6,
            self.freeze: 5,
            self.split: 8,
            self.merge: 6,
            self.fleet.dynamodb.deliver_postponed: 5,
        }
        (happening,) = self.rng.choices(list(happenings), list(happenings.values()))
        happening()

    # -- what may happen ---------------------------------------------------------------------------------------

    def put(self) -> None:
        self.fleet.put_everywhere(self.rng.randint(1, 3), packed=self.rng.choice([1, 1, 2, 5]))

    def start(self, library: str | None = None) -> None:
        if len(self.alive) >= MOST_WORKERS:
            return
        self.started += 1
        if (library or self.rng.choice(["java", "pykcl"])) == "java":
            name = f"j{self.started}"
            self.fleet.start_java(name, **self.java_options)
            self.alive[name] = None
        else:
            name = f"p{self.started}"
            options = dict(self.pykcl_options)
            if options["checkpoint_mode"] == "manual":
                options["processor"] = lambda: HandProcessor(name, self)
            worker = self.fleet.pykcl_worker(name, **options)
            self.alive[name] = self.simulation.spawn(f"{name}-start", name, worker.start)

    def stop(self) -> None:
        name = self._any_worker()
        if name is None:
            return
        task = self.alive[name]
        if task is None:
            self.fleet.java[name].stop()
            del self.alive[name]
        elif task.finished:
            del self.alive[name]
            try:
                self.fleet.workers[name].stop()
            except StopTimedOut:
                # Under faults its release may go unanswered; the leases then expire.
                assert self.fails > 0

    def kill(self) -> None:
        name = self._any_worker()
        if name is not None:
            self.simulation.kill(name)
            del self.alive[name]

    def freeze(self) -> None:
        name = self._any_worker()
        if name is not None:
            seconds = self.rng.uniform(1, 40)
            self.simulation.freeze(name, seconds)
            self.awake_at[name] = self.simulation.now + seconds

    def split(self) -> None:
        shards = self.fleet.open_shards()
        if len(shards) < MAX_SHARDS:
            self.fleet.split(self.rng.choice(shards))

    def merge(self) -> None:
        shards = self.fleet.neighbours()
        if len(shards) > 1:
            left = self.rng.randrange(len(shards) - 1)
            self.fleet.kinesis.merge(STREAM, shards[left].shard_id, shards[left + 1].shard_id)

    def _any_worker(self) -> str | None:
        moving = sorted(name for name in self.alive if self.awake_at.get(name, 0) <= self.simulation.now)
        return self.rng.choice(moving) if moving else None

    def _anywhere(self, _peer: str, _shard: str, records: Any) -> Any:
        """A Java application that checkpoints somewhere in the middle, or takes its time."""
        if self.rng.random() < 0.2:
            self.simulation.sleep(self.rng.uniform(0, 6))
        return self.rng.choice(records).position if self.rng.random() < 0.5 else None

    def _fault(self, operation: str, _params: Params) -> Fault | None:
        if self.rng.random() >= self.fails or operation in ("CreateTable", "DescribeTable"):
            return None
        rng = self.rng
        kinds = [Fault(before=rng.choice([throttled(operation), failing(operation), timed_out()]))]
        kinds.append(Fault(delay=rng.uniform(0, 4)))
        if operation not in ("Scan", "GetItem"):
            kinds.append(Fault(after=timed_out(), delay=rng.uniform(0, 4)))
        if operation == "UpdateItem":
            kinds.append(Fault(postponed=timed_out()))
        return rng.choice(kinds)

    def _kinesis_fault(self, operation: str, _stream: str, _shard: str) -> None:
        if (
            operation not in ("GetRecords", "GetShardIterator", "ListShards")
            or self.rng.random() >= self.fails
        ):
            return
        codes = ["ProvisionedThroughputExceededException", "InternalFailure"]
        if operation == "GetRecords":
            codes.append("ExpiredIteratorException")
        raise AwsError(self.rng.choice(codes), "at random")

    # -- the end -----------------------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        self.is_over, self.fails = True, 0
        self.fleet.dynamodb.deliver_postponed()
        self.simulation.sleep(max(0.0, max(self.awake_at.values(), default=0.0) - self.simulation.now))
        for library, prefix in (("java", "j"), ("pykcl", "p")):
            if not any(name.startswith(prefix) for name in self.alive):
                if len(self.alive) >= MOST_WORKERS:
                    self.kill()
                self.start(library)
        while len(self.fleet.open_shards()) < len(self.alive):
            self.split()
        self.fleet.put_everywhere()
        self.fleet.wait_all_delivered(400)
        self.fleet.put_everywhere()
        self.fleet.wait_all_delivered(400)
        self.fleet.wait(self._only_open_shards, 400, "deletion of the ended leases")
        self.fleet.wait_balanced(*self.alive)
        # Steals that were decided before it was even may still come; and the robbed notice at their next heartbeat.
        self.simulation.sleep(30)
        owners = self.fleet.owners()
        self.fleet.put_everywhere()
        self.fleet.wait_all_delivered()
        self.simulation.sleep(60)
        assert self.fleet.owners() == owners, f"moved without need: {owners} to {self.fleet.owners()}"
        for name in self.alive:
            failure = self.fleet.workers[name].failure if name in self.fleet.workers else None
            assert failure is None, f"{name} failed: {failure!r}"
        alarms = self.fleet.happened(DataLost) + self.fleet.happened(InvalidLeaseRow)
        assert not alarms, alarms[:3]

    def _only_open_shards(self) -> bool:
        return set(self.fleet.rows()) == set(self.fleet.open_shards())
