"""Random lives of a stream, then a reset to a random time, against what the stream itself says arrived from then on."""

import random

import pytest
from checkpoint_kit import Operator, clean_rows, every_record, put_aggregate, start, stop_all
from test_resets_of_fleets import from_on, parents_first

from pykcl.operate.checkpoints.plan import Destination
from pykcl.testing.fleet import STREAM, Fleet
from pykcl.testing.runtime import Simulation


def live(fleet, rng, kind):
    """Puts, splits and merges while a worker reads, cleans up and now and then is away; moments on the way."""
    moments = []
    start(fleet, "w0", kind)
    for number in range(rng.randint(4, 9)):
        moments.append(Operator(fleet).now_millis())
        for _ in range(rng.randint(0, 6)):
            fleet.put(rng.randint(1, 4))
            if rng.random() < 0.3:
                name = f"a{number}-{rng.random()}".encode()
                # All under one key, so that it stays inside of one shard.
                put_aggregate(fleet, name + b"-1", name + b"-2", name + b"-3", key=str(rng.random()))
            fleet.simulation.sleep(rng.choice([0.0, 0.001, 1.5, 40.0]))
        shards = sorted(fleet.open_shards())
        if rng.random() < 0.6:
            fleet.kinesis.split(STREAM, rng.choice(shards))
        elif len(shards) > 1:
            ranges = {s.shard_id: s.hash_range for s in fleet.kinesis.list_shards(STREAM, operation=None)}
            ordered = sorted(shards, key=lambda one: ranges[one].first)
            at = rng.randrange(len(ordered) - 1)
            fleet.kinesis.merge(STREAM, *ordered[at : at + 2])
        if rng.random() < 0.3:
            stop_all(fleet)
        elif not fleet.workers:
            start(fleet, f"w{number + 1}", kind)
        fleet.simulation.sleep(rng.choice([1.0, 30.0, 200.0]))
    moments.append(Operator(fleet).now_millis())
    return moments


@pytest.mark.parametrize("seed", range(16))
def test_whatever_the_stream_lived_through_a_reset_delivers_exactly_what_arrived_from_its_time_on(seed):
    rng = random.Random(seed)
    with Simulation(seed=seed) as simulation:
        fleet = Fleet(simulation, shards=rng.randint(1, 3))
        before_kind, after_kind = rng.choice(["pykcl", "java"]), rng.choice(["pykcl", "java"])
        moments = live(fleet, rng, before_kind)
        stop_all(fleet)
        fleet.ledger.delivered.clear()
        operator = Operator(fleet)
        operator.still()
        kind = rng.choice(["time", "time", "time", "latest", "earliest"])
        at = {"time": rng.choice(moments), "latest": operator.now_millis() + 1, "earliest": 0}[kind]
        before = clean_rows(fleet)
        plan = operator.plan(Destination(kind, at_millis=at))
        saved = operator.backup(plan)
        operator.apply_plan(plan)
        assert operator.plan(Destination("time", at_millis=at)).changes == () or kind != "time"
        halfway = fleet.dynamodb.scan(TableName="orders-app")["Items"]
        operator.restore(saved)
        assert clean_rows(fleet) == before
        for item in halfway:
            fleet.dynamodb.put_item(TableName="orders-app", Item=item)
        wanted = from_on(fleet, at)
        start(fleet, "reader", after_kind)
        fleet.wait_delivered(list(wanted), timeout=2000)
        fleet.simulation.sleep(20)
        stop_all(fleet)
        got = [record.data for _, record in fleet.ledger.delivered]
        assert sorted(got) == sorted(wanted)
        parents_first(fleet)
        assert every_record(fleet)
