"""F13: the lease table is deleted under a working fleet, and later restored from a backup."""

from __future__ import annotations

from pykcl.errors import SetupError
from pykcl.testing.storm.fleet import StormFleet
from pykcl.testing.storm.hosts import WorkerHost
from pykcl.testing.storm.producer import Producer
from pykcl.testing.storm.promises import Promise
from pykcl.testing.storm.world import TABLE, World

_NOTICED_AFTER = 60.0
_LOOK = 0.1


def lose_and_restore_the_table(world: World, fleet: StormFleet, producer: Producer) -> None:
    """Every worker must stop with a clear error, deliver nothing any more, and not make the table anew."""
    for name in sorted(fleet.alive):
        if not isinstance(fleet.alive[name], WorkerHost):
            fleet.kill(name)
    backup = world.dynamodb.tables[TABLE]
    world.dynamodb.delete_table(TableName=TABLE)
    # What is still starting may rightly make a table: it never knew the old one.
    working = [host for host in fleet.workers() if host.has_started]
    for host in fleet.workers():
        if not host.has_started:
            fleet.kill(host.name)
    thawing = 60.0 if any(world.simulation.is_frozen(host.name) for host in working) else 0.0
    deadline = world.simulation.now + _NOTICED_AFTER + thawing
    while not all(host.is_over for host in working) and world.simulation.now < deadline:
        if TABLE in world.dynamodb.tables:
            break
        world.simulation.sleep(_LOOK)
    made_anew = TABLE in world.dynamodb.tables
    world.verdict.expect(not made_anew, Promise.NO_FALSE_ALARM, "a worker made the lost lease table anew")
    for host in working:
        told = isinstance(host.failure, SetupError) or host.was_asked or host.name in fleet.struck
        world.verdict.expect(
            told, Promise.NO_FALSE_ALARM, f"{host.name} did not tell of the loss: {host.failure!r}"
        )
        fleet.alive.pop(host.name, None)
    before = world.delivery.batches
    producer.put_some()
    world.simulation.sleep(5.0)
    world.verdict.expect(
        world.delivery.batches == before,
        Promise.SILENT_AFTER_LOSS,
        "records were delivered without a lease table",
    )
    world.dynamodb.tables[TABLE] = backup
