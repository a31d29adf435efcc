"""Random outages of the lease table, the same for every worker: nothing is lost, and nothing comes twice that nobody took.

`python -m tests.worker.test_random_outages 0 4000` runs 4,000 seeds from 0 on, and prints those that fail, and figures.
"""

import logging
import random
import sys
import traceback
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field

import pytest

from pykcl.events import LeaseDoubted, LeaseTaken
from pykcl.model.lease_writes import parse_row
from pykcl.testing.fleet import Fleet, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault, failing, throttled, timed_out, unreachable
from pykcl.testing.runtime import Simulation
from pykcl.worker.held_leases import HeldLease, Loss, LossReason
from tests.mutants.mutant import Patch

FIXED, SEEDS = (0, 1, 3, 4, 8, 9, 16, 22, 28, 36), range(1000, 1100)
TIMEOUT = 1.2
"""Seconds after which a worker of a Fleet gives a request up."""
WRITES = ("PutItem", "UpdateItem", "DeleteItem")


@dataclass
class Outage:
    """What a seed draws.

    share: of the requests that fail. writes_only: reads are answered as ever. some_land: half of the writes take
    effect, up to some seconds late, and their senders hear nothing of it.
    """

    rng: random.Random
    kind: str
    share: float
    seconds: float
    writes_only: bool

    @classmethod
    def drawn(cls, rng):
        kind = rng.choice(["errors", "hangs", "lost answers", "throttles", "throttles"])
        share = (
            rng.choice([1.0, rng.uniform(0.5, 1.0), rng.uniform(0.8, 1.0)]) if kind == "throttles" else 1.0
        )
        return cls(rng, kind, share, 600 ** rng.random(), rng.random() < 0.5)

    @property
    def lets_writes_through(self):
        return self.share < 1.0 or self.kind == "lost answers"

    def __str__(self):
        of = "writes" if self.writes_only else "requests"
        return f"{self.seconds:.0f} s of {self.kind}, {self.share:.0%} of the {of}"

    def fault(self, operation, params):
        if (self.writes_only and operation not in WRITES) or self.rng.random() >= self.share:
            return None
        if self.kind == "throttles":
            return Fault(before=throttled(operation))
        if self.kind == "errors":
            return Fault(before=self.rng.choice([failing(operation), unreachable()]))
        if self.kind == "lost answers" and operation in WRITES and self.rng.random() < 0.5:
            return Fault(postponed=timed_out(), delay=TIMEOUT)
        return Fault(before=timed_out(), delay=TIMEOUT)


@dataclass
class Course:
    """What happened in the course of a seed. made: each processor, in order. taken: takes from another worker during the
    outage and after it, by shard."""

    outage: Outage
    workers: int
    made: list = field(default_factory=list)
    taken: Counter = field(default_factory=Counter)
    doubts: int = 0
    duplicates: int = 0


def course(seed):
    """Run one seed. Raises AssertionError for a record that is lost, that comes twice though nobody took its lease, or
    out of order, and for a second processor of a lease that nobody took."""
    rng = random.Random(f"outages/{seed}")
    with Simulation(seed=seed) as simulation:
        workers = rng.choice([1, 3])
        fleet = Fleet(simulation, shards=rng.choice([workers, 2 * workers]))
        done = Course(Outage.drawn(rng), workers)
        _start(fleet, rng, done)
        put, before = fleet.put(40), len(done.made)
        fleet.wait_delivered(put)
        changes = []
        fleet.dynamodb.on_change = lambda change: changes.append((simulation.now, change))
        put += _live_through(fleet, rng, done.outage)
        fleet.wait_delivered(put, 600)
        simulation.sleep(60.0)
        assert not [worker.failure for worker in fleet.workers.values() if worker.failure is not None]
        takes = [
            change for _, change in changes if "leaseOwner = " in change.params.get("UpdateExpression", "")
        ]
        done.taken.update(
            take.key for take in takes if take.before.get("leaseOwner") != take.after["leaseOwner"]
        )
        done.doubts, done.duplicates = len(fleet.happened(LeaseDoubted)), fleet.ledger.duplicates
        _check_takes(done, takes, done.made[before:])
        _check_expiry(fleet, changes)
        _check_records(done)
        return done


def _start(fleet, rng, done):
    """Start the workers, and wait until each has its share."""

    def is_slow(batch):
        if rng.random() < 0.05:
            fleet.simulation.sleep(rng.choice([2.0, 15.0, 40.0]))

    class Noting(RecordingProcessor):
        def initialize(self, init):
            super().initialize(init)
            self.records = []
            done.made.append(self)

        def process_records(self, batch):
            super().process_records(batch)
            self.records += batch

    names = [f"w{number + 1}" for number in range(done.workers)]
    options = {"failover_time": rng.choice([10.0, 20.0, 30.0])}
    if rng.random() < 0.5:
        options |= {"checkpoint_mode": "interval", "checkpoint_interval": 600.0}
    for name in names:
        fleet.start(name, processor=lambda name=name: Noting(name, fleet.ledger, is_slow), **options)
    share = len(fleet.open_shards()) // len(names)
    fleet.wait(lambda: fleet.load() == dict.fromkeys(names, share), 300, "the balance")
    fleet.simulation.sleep(30.0)


def _live_through(fleet, rng, outage):
    """Put records before, during and after the outage; return their payloads."""
    put, simulation = [], fleet.simulation
    fleet.simulation.sleep(rng.uniform(0.0, 10.0))
    until = simulation.now + outage.seconds
    fleet.dynamodb.fault = outage.fault
    while simulation.now < until:
        put += fleet.put(rng.randint(0, 4))
        simulation.sleep(min(until - simulation.now, rng.choice([0.3, 3.0])))
        fleet.dynamodb.deliver_postponed()
    fleet.dynamodb.fault = None
    put += fleet.put(20)
    simulation.sleep(2 * TIMEOUT)
    fleet.dynamodb.deliver_postponed()
    return put + fleet.put(20)


def _check_takes(done, takes, new):
    """Each processor that was made since the outage began has its take, from another worker, and begins where the row
    was then; and where nobody could write, nobody took anything."""
    assert done.outage.lets_writes_through or not done.taken
    assert {take.key for take in takes} <= done.taken.keys(), "taken from itself"
    made = Counter(processor.init.shard_id for processor in new)
    assert not made - done.taken, "more processors than takes"
    rows = {(row.key, row.owner, row.counter): row for row in (parse_row(take.after) for take in takes)}
    for processor in new:
        init = processor.init
        row = rows[init.shard_id, processor.worker, init.fencing_token]
        assert row.checkpoint == init.position


def _check_expiry(fleet, changes):
    """A lease that was taken as expired had stood still for the whole failover time."""
    moved_at = {}
    expired = {
        (event.shard, str(event.counter)) for event in fleet.happened(LeaseTaken) if event.reason == "expired"
    }
    for at, change in changes:
        if (change.key, change.after["leaseCounter"]["N"]) in expired and change.key in moved_at:
            assert at - moved_at[change.key] > fleet.workers["w1"].config.failover_time
        moved_at[change.key] = at


def _check_records(done):
    """Each processor was given the records behind its start, in order and without a gap; all of them together none
    twice, but of leases that were taken."""
    by_shard = {}
    for processor in done.made:
        by_shard.setdefault(processor.init.shard_id, []).append(processor)
    for shard, processors in by_shard.items():
        given = [record.position for processor in processors for record in processor.records]
        every = sorted(set(given))
        assert len(given) == len(every) or shard in done.taken
        for processor in processors:
            begin = bisect_right(every, processor.init.position)
            got = [record.position for record in processor.records]
            assert got == every[begin : begin + len(got)]


@pytest.mark.parametrize("seed", [*FIXED, *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS)])
def test_an_outage_loses_nothing_and_repeats_nothing_but_of_leases_that_another_worker_took(seed):
    course(seed)


def _silence_taken_for_a_loss(check):
    def at_once(self, **options):
        if self.is_in_doubt:
            self.lose(Loss.of(LossReason.EXPIRED))
        return check(self, **options)

    return at_once


def test_a_worker_that_takes_silence_for_a_loss_is_caught():
    with Patch() as patch:
        patch.replace(HeldLease, "check", _silence_taken_for_a_loss)
        assert any(_fails(seed) for seed in FIXED)
        assert all(patch.called.values())


def _fails(seed):
    try:
        course(seed)
    except AssertionError:
        return True
    return False


def main(first, count):
    """Run the seeds; return how many of them failed."""
    logging.disable()
    figures, failed = Counter(), []
    for seed in range(first, first + count):
        try:
            done = course(seed)
        except Exception:  # noqa: BLE001 - the seeds after it run, too
            failed.append(seed)
            print(f"seed {seed} failed:\n{traceback.format_exc()}", flush=True)
            continue
        figures[f"fleets of {done.workers}"] += 1
        figures[done.outage.kind] += 1
        figures["with a lease in doubt"] += done.doubts > 0
        figures["with a lease taken by another worker"] += bool(done.taken)
        figures["with duplicates, all of such leases"] += done.duplicates > 0
        figures["such duplicates"] += done.duplicates
    print(f"{count} seeds from {first}, {len(failed)} failed: {failed}\n{dict(figures)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])) > 0)
