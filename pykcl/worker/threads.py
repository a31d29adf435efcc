"""Liveness of the worker's own threads: heartbeats, a stop of the worker when one dies, and threads for processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from pykcl.errors import InternalError
from pykcl.runtime import Runtime, Task
from pykcl.status import LoopStatus


class ThreadHeartbeat:
    """Heartbeat of one loop, which alone calls `beat` and `rest`; any thread may call `status`.

    No lock: each mark is one value put in place of another. patience: seconds that one piece of its work may take.
    """

    def __init__(self, name: str, runtime: Runtime, *, patience: float) -> None:
        self.name = name
        self._runtime = runtime
        self._patience = patience
        self._task: Task | None = None
        self._ended = False
        self._died_of: str | None = None
        now = runtime.monotonic()
        # (began the last piece of work, begins the next one): monotonic seconds.
        self._mark = (now, now)

    def beat(self) -> None:
        """A piece of work begins."""
        now = self._runtime.monotonic()
        self._mark = (now, now)

    def rest(self, seconds: float) -> None:
        """Nothing is to be done for so long; who is woken earlier begins earlier."""
        self._mark = (self._mark[0], self._runtime.monotonic() + seconds)

    def spawn(self, body: Callable[[], None], on_fatal: Callable[[Exception], None]) -> Task:
        """Start the loop in a thread of its own, which the worker cannot do without; see stop_worker_on_crash."""

        def run() -> None:
            try:
                body()
            except BaseException as error:
                self._died_of = type(error).__name__
                raise
            self._ended = True

        self._task = self._runtime.spawn(self.name, stop_worker_on_crash(run, self.name, on_fatal))
        return self._task

    def status(self, now: float) -> LoopStatus:
        """now: monotonic seconds."""
        # In this order: a thread that ends between the two reads has said so before it is found dead.
        is_dead = self._task is not None and not self._task.is_alive()
        has_died = self._died_of is not None or (is_dead and not self._ended)
        began, due = self._mark
        return LoopStatus(
            name=self.name,
            state="died" if has_died else "ended" if self._ended else "running",
            died_of=self._died_of,
            attempted_ago=max(0.0, now - began),
            overdue=max(0.0, now - due),
            patience=self._patience,
        )


def stop_worker_on_crash(
    body: Callable[[], None], name: str, on_fatal: Callable[[Exception], None]
) -> Callable[[], None]:
    """Wrap `body`: whatever ends it unexpectedly is given to `on_fatal`, and raised again."""

    def run() -> None:
        try:
            body()
        except BaseException as error:
            failure = InternalError(
                f"Thread {name} died of {type(error).__name__}, which is a bug in pykcl. The worker stops; its leases "
                "are released. Do: start it again, and report the traceback."
            )
            failure.__cause__ = error
            on_fatal(failure)
            raise

    return run


class Helper(Protocol):
    """Something with threads of its own."""

    def close(self, until: float) -> list[str]:
        """End its threads; return the names of those that have not ended `until` then, monotonic seconds."""


Made = TypeVar("Made", bound=Helper)


class Helpers:
    """Objects that the processors of one worker share: each begins with its first use, and ends with the worker.

    on_fatal: called when a thread of `spawn` dies."""

    def __init__(self, runtime: Runtime, on_fatal: Callable[[Exception], None]) -> None:
        self.runtime = runtime
        self.on_fatal = on_fatal
        self._lock = runtime.lock()
        self._made: dict[object, Any] = {}

    def spawn(self, name: str, body: Callable[[], None]) -> Task:
        """Start a thread that the worker cannot do without."""
        return self.runtime.spawn(name, stop_worker_on_crash(body, name, self.on_fatal))

    def get(self, make: Callable[[Helpers], Made]) -> Made:
        """Return what `make` has made for this worker; it is called once, and must not wait."""
        with self._lock:
            if make not in self._made:
                self._made[make] = make(self)
            return cast(Made, self._made[make])

    def close(self, until: float) -> list[str]:
        """End the threads of all; return the names of those that have not ended `until` then."""
        with self._lock:
            made, self._made = list(self._made.values()), {}
        return [name for each in made for name in each.close(until)]
