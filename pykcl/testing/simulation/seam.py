"""While a simulation runs, real time, real threads and global chance refuse pykcl's own modules.

A module that looked at the real clock, or drew from the global generator, would take another course each time and no
seed could bring a failure back. Only `pykcl.runtime` may, and the in-memory services, whose locks nobody waits for.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

_ALLOWED = ("pykcl.runtime", "pykcl.testing.simulation.", "pykcl.local.")
_TIME = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep")
_LOCKS = ("Lock", "RLock")
_CLASSES = ("Thread", "Event", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "Timer")
_CHANCE = (
    "random",
    "uniform",
    "randint",
    "choice",
    "choices",
    "shuffle",
    "sample",
    "randrange",
    "getrandbits",
)


class SeamCrossed(AssertionError):
    """A module of pykcl went past the Runtime. The message names the module and what it called."""


class GuardedSeam:
    """Closes the ways past the Runtime, process-wide, and opens them again. May be nested."""

    _depth = 0
    _before: ClassVar[list[tuple[Any, str, Any]]] = []

    def close(self) -> None:
        GuardedSeam._depth += 1
        if GuardedSeam._depth > 1:
            return
        for module, names in ((time, _TIME), (threading, _LOCKS), (random, _CHANCE)):
            for name in names:
                self._guard(module, name, f"{module.__name__}.{name}")
        for name in _CLASSES:
            self._guard(getattr(threading, name), "__init__", f"threading.{name}")

    def open(self) -> None:
        GuardedSeam._depth -= 1
        if GuardedSeam._depth == 0:
            while GuardedSeam._before:
                owner, name, value = GuardedSeam._before.pop()
                setattr(owner, name, value)

    def _guard(self, owner: Any, name: str, shown: str) -> None:
        value = getattr(owner, name)
        GuardedSeam._before.append((owner, name, value))
        setattr(owner, name, _guarded(value, shown))


def _guarded(function: Callable[..., Any], shown: str) -> Callable[..., Any]:
    def guard(*args: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith("pykcl.") and not caller.startswith(_ALLOWED):
            raise SeamCrossed(
                f"{caller} called {shown} inside a simulation. Do: ask the Runtime, so that the seed decides."
            )
        return function(*args, **options)

    return guard
