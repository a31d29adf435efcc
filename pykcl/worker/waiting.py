"""How the thread of a lease worker waits: never past a stop, and never past the loss of its lease."""

from __future__ import annotations

from collections.abc import Callable

from pykcl.runtime import Runtime


class Waiting:
    """Of one thread. wake: set by whoever has news for it. check: raises LeaseLost. stopping: whether it shall stop."""

    def __init__(self, runtime: Runtime, check: Callable[[], None], stopping: Callable[[], bool]) -> None:
        self.wake = runtime.event()
        self._runtime = runtime
        self._check = check
        self._stopping = stopping

    def pause(self, seconds: float) -> bool:
        """Wait. True as soon as the worker shall stop. Raises LeaseLost as soon as the lease is lost."""
        until = self._runtime.monotonic() + seconds
        return self.sleep(lambda: until - self._runtime.monotonic())

    def sleep(self, left: Callable[[], float]) -> bool:
        """The same, as long as `left` tells that so many seconds are left. It is asked again at each `wake`."""
        while True:
            # Cleared before looking at what it announces: a stop requested after the look sets it again.
            self.wake.clear()
            self._check()
            if self._stopping():
                return True
            seconds = left()
            if seconds <= 0:
                return False
            self.wake.wait(seconds)
