"""The processes of a storm: each runs one worker the way a program would, until it is stopped, killed or gives up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pykcl.errors import PyKclError, StopTimedOut
from pykcl.testing.java.peer import JavaPeer
from pykcl.testing.simulation import SimTask, Simulation
from pykcl.worker.worker import Worker

_LOOK = 1.0


class Host(Protocol):
    """name: of the process and of its threads' group. worker_id: in the lease table."""

    name: str
    worker_id: str

    @property
    def is_over(self) -> bool:
        """Whether it has stopped, by itself or because it was asked to."""

    def ask_to_stop(self) -> None: ...


class WorkerHost:
    """A pykcl worker in a process of its own. on_end: told when it ended, with the seconds its stop took.

    fine_at: when it was last seen not to have failed. had_joined: whether it had joined its fleet by then.
    """

    def __init__(
        self,
        name: str,
        worker: Worker,
        simulation: Simulation,
        on_end: Callable[[WorkerHost, float], None],
    ) -> None:
        self.name = name
        self.worker = worker
        self.worker_id = worker.worker_id
        self.failure: Exception | None = None
        self.timed_out = False
        self.has_started = False
        self.was_asked = False
        self.fine_at = simulation.now
        self.had_joined = False
        self._simulation = simulation
        self._on_end = on_end
        self._asked = simulation.runtime(name).event()
        self.task: SimTask = simulation.spawn(f"{name}-main", name, self._run)

    @property
    def is_over(self) -> bool:
        return self.task.finished

    def ask_to_stop(self) -> None:
        self.was_asked = True
        self._asked.set()
        if not self.has_started:
            # As a signal handler would: a start that waits for something gives up.
            self._simulation.spawn(f"{self.name}-signal", self.name, self._stop_quietly)

    def stop_again(self) -> None:
        """A second call of stop while the first one runs."""
        self._simulation.spawn(f"{self.name}-again", self.name, self._stop_quietly)

    def _run(self) -> None:
        try:
            self.worker.start()
        except PyKclError as error:
            self.failure = error
            return
        self.has_started = True
        while not self._asked.is_set() and self.worker.failure is None:
            self.fine_at, self.had_joined = self._simulation.now, self.worker.has_joined
            self._asked.wait(_LOOK)
        began = self._simulation.now
        self._stop_quietly()
        self.failure = self.worker.failure
        self._on_end(self, self._simulation.now - began)

    def _stop_quietly(self) -> None:
        try:
            self.worker.stop()
        except StopTimedOut:
            self.timed_out = True


class JavaHost:
    """A scripted Java KCL 2.x worker."""

    def __init__(self, peer: JavaPeer, simulation: Simulation) -> None:
        self.name = self.worker_id = peer.name
        self._peer = peer
        self._simulation = simulation
        self._stopping: SimTask | None = None
        peer.start()

    @property
    def is_over(self) -> bool:
        return self._stopping is not None and self._stopping.finished

    def ask_to_stop(self) -> None:
        if self._stopping is None:
            self._stopping = self._simulation.spawn(f"{self.name}-stop", self.name, self._peer.stop)
