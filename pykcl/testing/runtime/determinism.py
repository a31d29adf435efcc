"""Refusal of real time, real threads and global chance to pykcl's own modules while a simulation runs.

A module that read the real clock, or drew from the global generator, would take another course each time and no
seed could bring a failure back. Only `pykcl.runtime` may, the in-memory services, whose locks nobody waits for, and
what speaks to real processes, which no seed commands.
Two ways past cannot be watched here: the clock of `datetime`, whose classes cannot be patched, and what a function
took as a default or into a closure before the simulation began. tests/test_architecture.py finds them in the
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

_ALLOWED = ("pykcl.runtime", "pykcl.testing.runtime.", "pykcl.local.", "pykcl.compat.multilang.")
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


class RuntimeBypassed(AssertionError):
    """A module of pykcl went past the Runtime. The message names the module and what it called."""


class DeterminismGuard:
    """Close the ways past the Runtime, in the whole process, and open them again. May be nested.

    crossed: errors since it was closed. A worker catches RuntimeBypassed like any other error of its processor, so the
    simulation raises it again at its end.
    """

    _depth = 0
    _before: ClassVar[list[tuple[Any, str, Any]]] = []
    crossed: ClassVar[list[RuntimeBypassed]] = []

    def close(self) -> None:
        DeterminismGuard._depth += 1
        if DeterminismGuard._depth > 1:
            return
        DeterminismGuard.crossed.clear()
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
        DeterminismGuard._depth -= 1
        if DeterminismGuard._depth == 0:
            while DeterminismGuard._before:
                owner, name, value = DeterminismGuard._before.pop()
                setattr(owner, name, value)

    def _guard(
        self, owner: Any, name: str, shown: str, *, only: Callable[..., bool] = lambda *_, **__: True
    ) -> Callable[..., Any]:
        value = getattr(owner, name)
        guard = _guarded(value, shown, only)
        self._put(owner, name, guard)
        return guard

    def _put(self, owner: Any, name: str, value: Any) -> None:
        DeterminismGuard._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def _guard_early_bound(self, guards: dict[int, Callable[..., Any]]) -> None:
        """Replace names that `from time import monotonic` has bound in modules of pykcl, too."""
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
        if DeterminismGuard._depth and _is_watched(caller) and only(*args, **options):
            crossed = RuntimeBypassed(
                f"{caller} called {shown} inside a simulation. Do: ask the Runtime, so that the seed decides."
            )
            DeterminismGuard.crossed.append(crossed)
            raise crossed
        return function(*args, **options)

    return guard
