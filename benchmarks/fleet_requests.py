"""Counts what a simulated fleet asks DynamoDB for: requests and capacity units, by kind, as the table itself tells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.simulated_fleets import RunningFleet, quiet
from pykcl.stores.expressions import item_bytes
from pykcl.testing.fleet import TABLE
from pykcl.testing.runtime import Simulation
from tests.java_peer.peer import JavaPeer, java_peer

_READS = frozenset({"Scan", "GetItem"})
_COUNTED = {
    "scan": "Scan", "get_item": "GetItem", "put_item": "PutItem", "update_item": "UpdateItem",
    "delete_item": "DeleteItem",
}  # fmt: skip
_START_SECONDS = 1200.0


@dataclass(slots=True)
class Counts:
    """By operation; a write whose condition failed costs as one that was done, and counts as "UpdateItem, refused"."""

    requests: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    units: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, kind: str, units: float) -> None:
        self.requests[kind] += 1
        self.units[kind] += units

    @property
    def read_units(self) -> float:
        return sum(units for kind, units in self.units.items() if kind in _READS)

    @property
    def write_units(self) -> float:
        return sum(units for kind, units in self.units.items() if kind not in _READS)


class CountingClient:
    """A DynamoDB client in front of another, that asks it for the units of each request. counts: since `clear`."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.counts = Counts()

    def clear(self) -> None:
        self.counts = Counts()

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._client, name)
        return self._counted(_COUNTED[name], operation) if name in _COUNTED else operation

    def _counted(self, kind: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(**params: Any) -> Any:
            try:
                answer = operation(**{**params, "ReturnConsumedCapacity": "TOTAL"})
            except Exception as error:
                if "ConditionalCheckFailed" in str(getattr(error, "response", "")):
                    self.counts.add(f"{kind}, refused", 1.0)
                raise
            self.counts.add(kind, answer["ConsumedCapacity"]["CapacityUnits"])
            return answer

        return call


@dataclass(frozen=True, slots=True)
class Job:
    library: str
    shards: int
    workers: int
    seconds: float
    failover: float
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Recorded:
    """seconds: how long was counted, at rest, after the leases were evenly spread. row_bytes: mean size of a row."""

    job: Job
    requests: dict[str, int]
    units: dict[str, float]
    read_units: float
    write_units: float
    row_bytes: float


def record(job: Job) -> Recorded:
    """Runs the fleet and counts. library: "pykcl", the worker itself; "java", the scripted actor of Java KCL 2.7."""
    with quiet(), Simulation(seed=job.seed) as simulation:
        fleet = RunningFleet(simulation, job.workers, job.shards, failover_time=job.failover)
        counting = CountingClient(fleet.fleet.dynamodb)
        fleet.fleet.dynamodb = counting
        if job.library == "pykcl":
            fleet.start()
        else:
            _start_java(fleet, job)
        # What a start leaves behind (a listing, first audits) is over, and the phases of the fleet are mixed.
        simulation.sleep(3 * job.failover)
        counting.clear()
        simulation.sleep(job.seconds)
        counts = counting.counts
        rows = fleet.fleet.dynamodb.rows(TABLE).values()
        size = sum(item_bytes(row) for row in rows) / len(rows)
        return Recorded(
            job, dict(counts.requests), dict(counts.units), counts.read_units, counts.write_units, size
        )


def _start_java(fleet: RunningFleet, job: Job) -> None:
    """Without a table Java's peers make one; they wait their random time and take the leases in their own rhythm."""
    peers: list[JavaPeer] = [
        java_peer(fleet.fleet, name, failover=job.failover, idle=10.0) for name in fleet.names
    ]
    for peer in peers:
        peer.start()
    # Java's rule leaves owners one lease apart for good: every lease owned, nobody with none.
    fleet.wait(
        lambda: sum(fleet.held().values()) == job.shards and len(fleet.held()) == job.workers,
        _START_SECONDS,
        "all leases in Java's hands",
    )
