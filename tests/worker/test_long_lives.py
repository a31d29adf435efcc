"""A worker that runs for months: what it remembers of shards is forgotten with them."""

import types
from collections import deque
from collections.abc import Iterator
from typing import Any

from pykcl.testing.fleet import STREAM

GENERATIONS = 12
_LEFT_OUT = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    str,
    bytes,
    int,
    float,
    bool,
    type(None),
)


def containers(root: Any, stop: set[int]) -> Iterator[tuple[str, Any]]:
    """Every dict, set, list and deque that an object of pykcl below the root holds, with the path to it. stop: ids of what is not walked."""
    waiting, seen = [("worker", root)], set(stop)
    while waiting:
        path, thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _LEFT_OUT):
            continue
        seen.add(id(thing))
        if isinstance(thing, dict):
            yield path, thing
            waiting += [(f"{path}[…]", each) for each in thing.values()]
        elif isinstance(thing, (list, tuple, set, frozenset, deque)):
            yield path, thing
            waiting += [(f"{path}[…]", each) for each in thing]
        elif type(thing).__module__.startswith("pykcl") and not type(thing).__module__.startswith(
            "pykcl.testing"
        ):
            names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
            names += list(getattr(thing, "__dict__", ()))
            waiting += [(f"{path}.{name}", getattr(thing, name, None)) for name in names]


def shards_in(container: Any, shards: set[str]) -> set[str]:
    parts = [part for each in container for part in (each if isinstance(each, tuple) else (each,))]
    return {part for part in parts if isinstance(part, str) and part in shards}


def test_a_worker_forgets_shards_whose_leases_are_deleted(new_fleet):
    """Java KCL before 3.5.2 kept what it knew of streams that were gone until another worker led."""
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", cleanup_interval=30.0)
    old: set[str] = set()
    for _ in range(GENERATIONS):
        fleet.wait_delivered(fleet.put(3))
        (shard,) = fleet.open_shards()
        fleet.kinesis.split(STREAM, shard)
        fleet.wait_delivered(fleet.put(4))
        halves = fleet.open_shards()
        fleet.kinesis.merge(STREAM, *halves)
        fleet.wait_delivered(fleet.put(2))
        old |= {shard, *halves}
        fleet.wait(lambda: len(fleet.rows()) == 1, what="the deletion of ended leases")
    now = fleet.kinesis._now
    fleet.kinesis._now = lambda: now() + 25 * 3600 * 1000
    fleet.simulation.sleep(3600)
    kept = {path: shards_in(one, old) for path, one in containers(worker, {id(fleet), id(fleet.ledger)})}
    # The parents of the last one stand in its row.
    assert {path: len(shards) for path, shards in kept.items() if len(shards) > 2} == {}
