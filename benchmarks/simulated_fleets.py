"""Whole fleets of the real worker in a simulation: everything runs but AWS and the clock (`pykcl.testing.runtime`).

All times are simulated seconds.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from pykcl.processor import Batch, InitializationInput, RecordProcessor
from pykcl.testing.fleet import TABLE, Fleet
from pykcl.testing.runtime import Simulation

IDLE_TIME_BETWEEN_READS = 10.0
"""Pause between two reads of an empty shard. Longer than by default, because reads cost most of the real time of a
simulation and touch neither the lease table nor the finding of a dead owner."""
_START_SECONDS = 600.0
_WORKER = "ip-10-0-17-{:04d}.eu-west-1.compute.internal:21735:4f2a9c1e"
"""As long as such names are: they are in every row, and rows are paid for by their size."""
Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


class Readings(RecordProcessor):
    """Notes who began to read which shard, and when."""

    def __init__(self, worker: str, notes: list[tuple[float, str, str]], now: Callable[[], float]) -> None:
        self._worker, self._notes, self._now = worker, notes, now

    def initialize(self, init: InitializationInput) -> None:
        self._notes.append((self._now(), self._worker, init.shard_id))

    def process_records(self, batch: Batch) -> None:
        """Nothing is put into these streams."""


class RunningFleet:
    """So many pykcl workers over so many shards. notes: (when, worker, shard) of each beginning of a reading."""

    def __init__(self, simulation: Simulation, workers: int, shards: int, **options: Any) -> None:
        self.simulation = simulation
        self.fleet = Fleet(simulation, shards)
        self.notes: list[tuple[float, str, str]] = []
        self.names = [_WORKER.format(number) for number in range(workers)]
        self._shards = shards
        self._options = {"idle_time_between_reads": IDLE_TIME_BETWEEN_READS, **options}

    def start(self) -> None:
        for name in self.names:
            self._start(name)
        self.settle()

    def _start(self, name: str) -> None:
        self.fleet.start(
            name, processor=lambda: Readings(name, self.notes, lambda: self.simulation.now), **self._options
        )

    def settle(self) -> None:
        """Until every lease has an owner that lives, and no owner has more than its share."""
        most = -(-self._shards // len(self.names))

        def is_even() -> bool:
            held = self.held()
            return sum(held.values()) == self._shards and max(held.values()) <= most

        self.wait(is_even, _START_SECONDS, "an even fleet")

    def wait(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        """Looks once a second: a look at all rows costs as much as many steps of the workers."""
        until = self.simulation.now + timeout
        while not condition():
            if self.simulation.now >= until:
                raise AssertionError(f"{what} did not come within {timeout:g} simulated seconds")
            self.simulation.sleep(1.0)

    def held(self) -> Counter[str]:
        """How many leases each living worker has, as the table says."""
        return Counter(owner for owner in self.owners().values() if owner in self.names)

    def owners(self) -> dict[str, str]:
        if TABLE not in self.fleet.dynamodb.tables:
            return {}
        rows = self.fleet.dynamodb.tables[TABLE].rows
        return {key: row["leaseOwner"]["S"] for key, row in rows.items() if "leaseOwner" in row}

    def leases_of(self, name: str) -> list[str]:
        return sorted(key for key, owner in self.owners().items() if owner == name)

    def read_elsewhere(self, shards: Iterable[str], name: str, since: float, timeout: float) -> list[float]:
        """Waits until somebody else reads each of these; for each, how long after `since` that began."""
        wanted = set(shards)

        def begun() -> dict[str, float]:
            return {
                shard: at
                for at, worker, shard in reversed(self.notes)
                if at >= since and worker != name and shard in wanted
            }

        self.wait(lambda: begun().keys() == wanted, timeout, f"take-over from {name}")
        return [at - since for at in begun().values()]


@contextmanager
def running_fleet(seed: int, workers: int, shards: int, **options: Any) -> Iterator[RunningFleet]:
    """Started and even."""
    with quiet(), Simulation(seed=seed) as simulation:
        fleet = RunningFleet(simulation, workers, shards, **options)
        fleet.start()
        yield fleet


@contextmanager
def quiet() -> Iterator[None]:
    """What the workers log is not shown meanwhile: leases that change hands are the very thing asked for."""
    logger = logging.getLogger("pykcl")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def on_all_cores(
    ask: Callable[[Asked], Answered], jobs: list[Asked], processes: int | None
) -> list[Answered]:
    """The answers in the order of the jobs. A simulation has one thread running: a process each."""
    processes = min(processes or os.cpu_count() or 1, len(jobs))
    if processes == 1:
        return [ask(job) for job in jobs]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(ask, jobs))
