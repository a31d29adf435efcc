"""While a simulation runs, real time, real threads and global chance refuse pykcl's own modules.

A module that looked at the real clock, or drew from the global generator, would take another course each time and no
seed could bring a failure back. Only `pykcl.runtime` may, the in-memory services, whose locks nobody waits for, and
what speaks to real processes, which no seed commands.
Two ways past cannot be watched here: the clock of `datetime`, whose classes cannot be patched, and what a function
took as a default or into a closure before the simulation began. tests/test_architecture.py looks for them in the
source.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, ClassVar

_ALLOWED = ("pykcl.runtime", "pykcl.testing.simulation.", "pykcl.local.", "pykcl.compat.multilang.")
_FUNCTIONS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (time, ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
            "process_time_ns", "thread_time", "thread_time_ns", "sleep", "localtime", "gmtime", "ctime")),
    (threading, ("Lock", "RLock", "current_thread", "get_ident", "get_native_id")),
    (random, ("random", "uniform", "randint", "choice", "choices", "shuffle", "sample", "randrange", "getrandbits",
              "randbytes", "gauss", "expovariate", "triangular", "betavariate", "normalvariate", "seed")),
    (os, ("urandom", "getrandom")),
    (uuid, ("uuid1", "uuid4")),
    (secrets, ("choice", "randbelow", "randbits", "token_bytes", "token_hex", "token_urlsafe")),
)  # fmt: skip
_THREADS = ("Thread", "Event", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "Timer")


class SeamCrossed(AssertionError):
    """A module of pykcl went past the Runtime. The message names the module and what it called."""


class GuardedSeam:
    """Closes the ways past the Runtime, process-wide, and opens them again. May be nested.

    crossed: who went past it since it was closed. Whoever catches SeamCrossed like any other error, as a worker does
    with what its processor raises, must not hide it: the simulation raises it at its end.
    """

    _depth = 0
    _before: ClassVar[list[tuple[Any, str, Any]]] = []
    crossed: ClassVar[list[SeamCrossed]] = []

    def close(self) -> None:
        GuardedSeam._depth += 1
        if GuardedSeam._depth > 1:
            return
        GuardedSeam.crossed.clear()
        guards: dict[int, Callable[..., Any]] = {}
        for module, names in _FUNCTIONS:
            for name in names:
                # Not every system has each of them.
                if hasattr(module, name):
                    original = getattr(module, name)
                    guards[id(original)] = self._guard(module, name, f"{module.__name__}.{name}")
        for name in _THREADS:
            self._guard(getattr(threading, name), "__init__", f"threading.{name}")
        self._guard(random.Random, "__init__", "random.Random() without a seed", only=_has_no_seed)
        self._guard_early_bound(guards)

    def open(self) -> None:
        GuardedSeam._depth -= 1
        if GuardedSeam._depth == 0:
            while GuardedSeam._before:
                owner, name, value = GuardedSeam._before.pop()
                setattr(owner, name, value)

    def _guard(
        self, owner: Any, name: str, shown: str, *, only: Callable[..., bool] = lambda *_, **__: True
    ) -> Callable[..., Any]:
        value = getattr(owner, name)
        guard = _guarded(value, shown, only)
        self._put(owner, name, guard)
        return guard

    def _put(self, owner: Any, name: str, value: Any) -> None:
        GuardedSeam._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def _guard_early_bound(self, guards: dict[int, Callable[..., Any]]) -> None:
        """What `from time import monotonic` left in a module of pykcl is not the function that was just replaced."""
        watched = [module for name, module in list(sys.modules.items()) if _is_watched(name)]
        for module in watched:
            for name, value in list(vars(module).items()):
                if id(value) in guards:
                    self._put(module, name, guards[id(value)])


def _is_watched(name: str) -> bool:
    return name.startswith("pykcl.") and not name.startswith(_ALLOWED)


def _has_no_seed(_generator: random.Random, *seed: Any, **named: Any) -> bool:
    return seed in ((), (None,)) and not named


def _guarded(function: Callable[..., Any], shown: str, only: Callable[..., bool]) -> Callable[..., Any]:
    def guard(*args: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        # A module that was imported meanwhile keeps the guard for good: it must rest when no simulation runs.
        if GuardedSeam._depth and _is_watched(caller) and only(*args, **options):
            crossed = SeamCrossed(
                f"{caller} called {shown} inside a simulation. Do: ask the Runtime, so that the seed decides."
            )
            GuardedSeam.crossed.append(crossed)
            raise crossed
        return function(*args, **options)

    return guard
