"""Hosts of a simulation: starting, stopping, killing and freezing them, and checking how they end."""

from __future__ import annotations

import random
from collections.abc import Callable

from pykcl.errors import InternalError, ProcessorFailed, SetupError, TableGone
from pykcl.testing.simulation.guarantees import Guarantee
from pykcl.testing.simulation.producer import MOST_SHARDS
from pykcl.testing.simulation.world import FAILOVER, SETTLING, SLOWEST_CLOCK, JavaHost, WorkerHost, World

GRACE, STOP_MARGIN = 25.0, 6.0
_SCAN_SECONDS = 2.0
_HELPERS = 8
_OWN_THREADS = 3
_CAUSED_WITHIN = 5.0
"""Seconds between the cause of a failure and the failure."""


class SimulatedFleet:
    """alive: hosts that have neither been killed nor asked to stop. struck: whose threads died, and when. forbidden:
    hosts that were refused something. Both may fail of it, when it happens to them.

    wanted: how many workers there should be. clock_rate: how fast the next worker's clock runs.
    """

    def __init__(self, world: World, wanted: int) -> None:
        self._world = world
        self.wanted = wanted
        self.clock_rate: Callable[[], float] = lambda: 1.0
        self.alive: dict[str, WorkerHost | JavaHost] = {}
        self.leaving: dict[str, WorkerHost | JavaHost] = {}
        self.struck = world.observer.struck
        self.forbidden = world.outages.refused
        self.stops: dict[str, float] = {}
        self.phase = "faults"
        self._asked_at_rest: set[str] = set()
        self._not_checked: dict[str, WorkerHost] = {}
        self._count = 0
        self._java_count = 0
        world.observer.ownership.is_stopping = self._is_stopping

    @property
    def started(self) -> int:
        """Number of workers so far."""
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
        # Java starts a lease at LATEST when it comes to read it, whatever was put since the lease was made.
        # And it is not given the time of a start at a time.
        from_the_start = self._world.options["initial_position"] == "TRIM_HORIZON"
        if not from_the_start or sum(isinstance(host, JavaHost) for host in self.alive.values()) >= 2:
            return False
        self._java_count += 1
        host = self._world.java(f"java{self._java_count}", rng)
        self.alive[host.name] = host
        return True

    def fewest(self) -> int:
        """Return the number of workers that can hold the leases of all shards of a simulation."""
        most = self._world.options.get("max_leases", MOST_SHARDS)
        return int(-(-MOST_SHARDS // most))

    def workers(self) -> list[WorkerHost]:
        return [host for _, host in sorted(self.alive.items()) if isinstance(host, WorkerHost)]

    def awake_workers(self) -> list[WorkerHost]:
        return [host for host in self.workers() if not self._world.simulation.is_frozen(host.name)]

    def kill(self, name: str) -> None:
        self._world.simulation.kill(name)
        self._world.observer.killed(name)
        self._world.delivery.fates[name] = "crash"
        for hosts in (self.alive, self.leaving, self._not_checked):
            hosts.pop(name, None)

    def freeze(self, name: str, seconds: float) -> None:
        self._world.simulation.freeze(name, seconds)
        self._world.delivery.fates[name] = "pause"
        self._world.observer.frozen.add(name, seconds)

    def ask_to_stop(self, host: WorkerHost | JavaHost) -> None:
        self.alive.pop(host.name, None)
        self._leaves(host)
        if self.phase == "rest":
            self._asked_at_rest.add(host.name)
        host.ask_to_stop()

    def _stopped_by_processor(self, name: str) -> bool:
        """False: it was asked before."""
        host = self.alive.get(name)
        if not isinstance(host, WorkerHost):
            return False
        # Called by its own processor: the first call only asks, the process then stops in order.
        host.was_asked = True
        host.worker.stop()
        self.alive.pop(name, None)
        self._leaves(host)
        host.ask_to_stop()
        return True

    def _leaves(self, host: WorkerHost | JavaHost) -> None:
        self.leaving[host.name] = host
        if isinstance(host, WorkerHost):
            self._not_checked[host.name] = host

    def _is_stopping(self, name: str) -> bool:
        host = self.alive.get(name)
        return not isinstance(host, WorkerHost) or host.was_asked or host.worker.failure is not None

    def all_have_left(self) -> bool:
        return all(host.is_over for host in self.leaving.values())

    # -- judging -----------------------------------------------------------------------------------------------

    def replace_dead(self) -> None:
        """Hosts that ended by themselves leave the fleet, for a reason; and nobody has threads too many."""
        for host in self.workers():
            if host.is_over or host.worker.failure is not None:
                del self.alive[host.name]
                self._leaves(host)
            else:
                self._check_threads(host)
        for host in [host for host in self._not_checked.values() if host.is_over or not host.was_asked]:
            del self._not_checked[host.name]
            self._check_failure(host)
        self._world.observer.poll()

    def _check_failure(self, host: WorkerHost) -> None:
        """Check what it ended with, whether it was asked to end or not: a failure needs a cause shortly before it."""
        failure = host.failure or host.worker.failure
        fine = host.was_asked if failure is None else self.has_cause(host, failure)
        self._world.violations.expect(fine, Guarantee.NO_FALSE_ALARM, f"{host.name} ended: {failure!r}")

    def has_cause(self, host: WorkerHost, failure: Exception) -> bool:
        """Return whether something that may end a worker with this failure was done to it shortly before."""
        seen = self._world.observer
        since = seen.frozen.awake_seconds_before(host.name, host.fine_at, _CAUSED_WITHIN)
        if isinstance(failure, InternalError):
            return seen.struck.since(host.name, since)
        if isinstance(failure, ProcessorFailed):
            return self._world.options.get("on_error") == "raise" and seen.raised.since(host.name, since)
        if isinstance(failure, TableGone):
            return seen.without_table.since(host.name, since)
        if not isinstance(failure, SetupError) or host.name not in self.forbidden or host.had_joined:
            return False
        # Once it has worked, or has joined as a spare one, a permission that is refused is trouble that may pass.
        worked = max(seen.took.get(host.name, since), seen.read.get(host.name, since))
        return worked >= since and seen.denied.since(host.name, since)

    def _check_threads(self, host: WorkerHost) -> None:
        names = [task.name for task in self._world.simulation.unfinished(host.name)]
        readers = [name for name in names if name.startswith("pykcl-shardId")]
        twice = sorted({name for name in readers if readers.count(name) > 1})
        self._world.violations.expect(not twice, Guarantee.THREADS, f"{host.name} reads twice: {twice}")
        others = [name for name in names if name.startswith("pykcl-") and name not in readers]
        few = len(others) <= _OWN_THREADS + _HELPERS
        self._world.violations.expect(few, Guarantee.THREADS, f"{host.name} has {others}")

    def _ended(self, host: WorkerHost, seconds: float) -> None:
        """Called by the host's own thread when its worker's stop returned."""
        self.stops[self.phase] = max(self.stops.get(self.phase, 0.0), seconds)
        self._check_failure(host)
        world = self._world
        started = world.simulation.now - seconds
        stood_still = world.observer.frozen.seconds_since(host.name, started)
        longest = (GRACE + STOP_MARGIN) / world.simulation.clock(host.name).rate + stood_still
        world.violations.expect(
            seconds <= longest, Guarantee.STOP, f"{host.name} took {seconds:.1f} s to stop"
        )
        left = [t.name for t in world.simulation.unfinished(host.name) if t.name.startswith("pykcl-")]
        reported = world.left_behind.get(host.name, frozenset())
        world.violations.expect(reported.issuperset(left), Guarantee.THREADS, f"{host.name} left {left}")
        world.observer.lives.host_stopped(host.name, left)
        # Only user code may keep a stop from ending: what reads and delivers runs in threads named after shards.
        own = [name for name in left if not name.startswith("pykcl-shardId")]
        if len(own) < len(left):
            # A heartbeat waits for the checkpoint that user code is writing.
            own = [name for name in own if "-renewer-" not in name]
        world.violations.expect(
            not own or stood_still > 0, Guarantee.STOP, f"{host.name} could not stop {own}"
        )
        if host.name in self._asked_at_rest and not host.timed_out:
            world.delivery.fates[host.name] = "clean stop"


def failover_bound() -> float:
    """Seconds until the leases of a dead worker are read again: they expire, and the next scan of the table finds them.

    Or they are stolen just before: then the thief waits for as long as a robbed owner may take to notice.
    """
    return (FAILOVER + SETTLING) / SLOWEST_CLOCK + _SCAN_SECONDS
