"""The hosts of a storm: starting, stopping, killing and freezing them, and judging how they end."""

from __future__ import annotations

import random
from collections.abc import Callable

from pykcl.errors import InternalError, SetupError
from pykcl.testing.storm.hosts import JavaHost, WorkerHost
from pykcl.testing.storm.promises import Promise
from pykcl.testing.storm.world import FAILOVER, World

GRACE, STOP_MARGIN = 25.0, 6.0
_HELPERS = 8
_OWN_THREADS = 3


class StormFleet:
    """alive: hosts that have neither been killed nor asked to stop. struck, forbidden: hosts that may fail for it.

    wanted: how many workers there should be. clock_rate: how fast the next worker's clock runs.
    """

    def __init__(self, world: World, wanted: int) -> None:
        self._world = world
        self.wanted = wanted
        self.clock_rate: Callable[[], float] = lambda: 1.0
        self.alive: dict[str, WorkerHost | JavaHost] = {}
        self.leaving: dict[str, WorkerHost | JavaHost] = {}
        self.struck: set[str] = set()
        self.forbidden: set[str] = set()
        self.frozen_ever: set[str] = set()
        self.stops: dict[str, float] = {}
        self.phase = "storm"
        self._asked_in_calm: set[str] = set()
        self._count = 0
        self._java_count = 0

    @property
    def started(self) -> int:
        """How many workers there have been."""
        return self._count + self._java_count

    def next_name(self) -> str:
        return f"w{self._count + 1}"

    def start(self, worker_id: str | None = None) -> WorkerHost:
        name = self.next_name()
        self._count += 1
        self._world.simulation.clock(name).run_at(self.clock_rate(), self._world.simulation.now)
        worker = self._world.worker(name, worker_id=worker_id, stop=lambda: self._stopped_by_processor(name))
        host = WorkerHost(name, worker, self._world.simulation, self._ended)
        self.alive[name] = host
        return host

    def start_java(self, rng: random.Random) -> bool:
        # Java begins a lease at LATEST when it comes to read it, whatever was put since the lease was made.
        at_latest = self._world.options["start"] == "LATEST"
        if at_latest or sum(isinstance(host, JavaHost) for host in self.alive.values()) >= 2:
            return False
        self._java_count += 1
        host = self._world.java(f"java{self._java_count}", rng)
        self.alive[host.name] = host
        return True

    def workers(self) -> list[WorkerHost]:
        return [host for _, host in sorted(self.alive.items()) if isinstance(host, WorkerHost)]

    def awake_workers(self) -> list[WorkerHost]:
        return [host for host in self.workers() if not self._world.simulation.is_frozen(host.name)]

    def kill(self, name: str) -> None:
        self._world.simulation.kill(name)
        self._world.beliefs.forget(name)
        self._world.delivery.fates[name] = "crash"
        del self.alive[name]

    def freeze(self, name: str, seconds: float) -> None:
        self._world.simulation.freeze(name, seconds)
        self._world.thaws_at[name] = self._world.simulation.now + seconds
        self._world.delivery.fates[name] = "pause"
        self.frozen_ever.add(name)

    def ask_to_stop(self, host: WorkerHost | JavaHost) -> None:
        self.alive.pop(host.name, None)
        self.leaving[host.name] = host
        if self.phase == "calm":
            self._asked_in_calm.add(host.name)
        host.ask_to_stop()

    def _stopped_by_processor(self, name: str) -> None:
        host = self.alive.get(name)
        if isinstance(host, WorkerHost):
            # Called by its own processor: the first call only asks, the process then stops in order.
            host.worker.stop()
            self.alive.pop(name)
            self.leaving[name] = host
            host.ask_to_stop()

    def all_have_left(self) -> bool:
        return all(host.is_over for host in self.leaving.values())

    # -- judging -----------------------------------------------------------------------------------------------

    def look_after(self) -> None:
        """Hosts that ended by themselves leave the fleet, for a reason; and nobody has threads too many."""
        for host in self.workers():
            if host.is_over or host.worker.failure is not None:
                self._judge_failure(host)
                del self.alive[host.name]
                self.leaving[host.name] = host
            else:
                self._judge_threads(host)

    def _judge_failure(self, host: WorkerHost) -> None:
        failure = host.failure or host.worker.failure
        allowed: tuple[type[BaseException], ...] = ()
        if host.name in self.struck:
            allowed += (InternalError,)
        if host.name in self.forbidden:
            allowed += (SetupError,)
        fine = host.was_asked or isinstance(failure, allowed)
        self._world.verdict.expect(fine, Promise.NO_FALSE_ALARM, f"{host.name} ended: {failure!r}")

    def _judge_threads(self, host: WorkerHost) -> None:
        names = [task.name for task in self._world.simulation.unfinished(host.name)]
        readers = [name for name in names if name.startswith("pykcl-shardId")]
        twice = sorted({name for name in readers if readers.count(name) > 1})
        self._world.verdict.expect(not twice, Promise.THREADS, f"{host.name} reads twice: {twice}")
        others = [name for name in names if name.startswith("pykcl-") and name not in readers]
        few = len(others) <= _OWN_THREADS + _HELPERS
        self._world.verdict.expect(few, Promise.THREADS, f"{host.name} has {others}")

    def _ended(self, host: WorkerHost, seconds: float) -> None:
        """Called by the host's own thread when its worker's stop returned."""
        self.stops[self.phase] = max(self.stops.get(self.phase, 0.0), seconds)
        if host.name in self.frozen_ever:
            return
        longest = (GRACE + STOP_MARGIN) / self._world.simulation.clock(host.name).rate
        self._world.verdict.expect(
            seconds <= longest, Promise.STOP, f"{host.name} took {seconds:.1f} s to stop"
        )
        left = [t.name for t in self._world.simulation.unfinished(host.name) if t.name.startswith("pykcl-")]
        told = self._world.left_behind.get(host.name, frozenset())
        fine = told.issuperset(left) or host.name in self.struck
        self._world.verdict.expect(fine, Promise.THREADS, f"{host.name} left {left}")
        # Only user code may keep a stop from ending: what reads and delivers runs in threads named after shards.
        own = [name for name in left if not name.startswith("pykcl-shardId")]
        if len(own) < len(left):
            # A heartbeat waits for the checkpoint that user code is writing.
            own = [name for name in own if "-renewer-" not in name]
        self._world.verdict.expect(
            not own or host.name in self.struck, Promise.STOP, f"{host.name} could not stop {own}"
        )
        if host.name in self._asked_in_calm and not host.timed_out:
            self._world.delivery.fates[host.name] = "clean stop"


def failover_bound(table_pages: int = 1) -> float:
    """Seconds until the leases of a dead worker are read again: the owner's time, two looks at the table, a start."""
    return FAILOVER + 4.0 * table_pages
