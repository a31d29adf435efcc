"""Heartbeats for every held lease, independent of user code and of each other."""

from __future__ import annotations

from collections.abc import Callable

from pykcl.errors import LeaseLost, SetupError, TableGone, TemporaryError
from pykcl.runtime import Runtime, Task
from pykcl.worker.held_leases import HeldLease, HeldLeases
from pykcl.worker.trouble import Trouble
from pykcl.worker.vital import vital

MOST_HELPERS = 8


class LeaseRenewer:
    """One thread that knows which heartbeat is due next, and up to eight helpers that send them.

    A helper is started when one more could be needed, so that one slow answer never delays another lease.
    """

    def __init__(
        self,
        held: HeldLeases,
        runtime: Runtime,
        trouble: Trouble,
        *,
        name: str,
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self._held = held
        self._runtime = runtime
        self._name = name
        self._on_fatal = on_fatal
        self._trouble = trouble
        self._stop = runtime.event()
        self._lock = runtime.lock()
        self._queue: list[HeldLease] = []
        self._under_way: set[HeldLease] = set()
        self._work = runtime.event()
        self._tasks: list[Task] = []
        self._helpers = 0

    def start(self) -> None:
        self._spawn(f"{self._name}-renewer", self._run)

    def stop(self) -> None:
        """Ask all threads to end. Heartbeats cease; leases still held expire for everyone after their deadline."""
        with self._lock:
            # Under the lock: a helper that finds the queue empty either clears `_work` before this, and is woken, or
            # sees that it must not. 1) It sees no stop; 2) both are set; 3) it clears `_work`, and sleeps on.
            self._stop.set()
            self._work.set()
        self._held.changed.set()

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(self._tasks)

    def _spawn(self, name: str, body: Callable[[], None]) -> None:
        self._tasks.append(self._runtime.spawn(name, vital(body, name, self._on_fatal)))

    def _run(self) -> None:
        while True:
            # Cleared before looking: what is added or asked for after the look sets it again and is not overslept.
            self._held.changed.clear()
            if self._stop.is_set():
                return
            pause = self._dispatch()
            self._held.changed.wait(pause)

    def _dispatch(self) -> float:
        """Queue every heartbeat that is due; return the seconds until the next one is."""
        now = self._runtime.monotonic()
        soonest = 1.0
        due: list[HeldLease] = []
        with self._lock:
            waiting = self._under_way.union(self._queue)
        for held in self._held.all():
            if held in waiting or held.is_over:
                continue
            left = held.next_renewal - now
            if left <= 0:
                due.append(held)
            else:
                soonest = min(soonest, left)
        if due:
            self._hand_out(due)
        return max(soonest, 0.01)

    def _hand_out(self, due: list[HeldLease]) -> None:
        with self._lock:
            # Under the lock, with the helpers: 1) this thread sees no stop; 2) the stop comes, and its caller waits for
            # the threads that there are; 3) a helper is started that nobody waits for.
            if self._stop.is_set():
                return
            self._queue.extend(due)
            while self._helpers < min(MOST_HELPERS, len(self._held)):
                self._helpers += 1
                self._spawn(f"{self._name}-renewer-{self._helpers}", self._help)
        self._work.set()

    def _help(self) -> None:
        while not self._stop.is_set():
            held = self._next()
            if held is None:
                self._work.wait(5.0)
                continue
            try:
                self._beat(held)
            finally:
                with self._lock:
                    self._under_way.discard(held)

    def _next(self) -> HeldLease | None:
        with self._lock:
            if not self._queue:
                if not self._stop.is_set():
                    self._work.clear()
                return None
            held = self._queue.pop(0)
            self._under_way.add(held)
            return held

    def _beat(self, held: HeldLease) -> None:
        try:
            held.renew_if_due()
        except LeaseLost:
            # Its lease worker has been woken and tells the processor.
            return
        except TableGone as error:
            self._on_fatal(error)
        except (TemporaryError, SetupError) as error:
            # A set-up error too: these leases were taken with the same permissions a moment ago.
            self._trouble.failed("renewing leases", error)
        else:
            self._trouble.worked("renewing leases")
