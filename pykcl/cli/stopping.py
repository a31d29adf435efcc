"""How a command that stays until somebody ends it hears of that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pykcl.worker.signals import stop_signals_go_to

_LOOK_EVERY = 0.2


class SignalEvent:
    """A `pykcl.runtime.Event` that the handler of a signal may set.

    It has no lock: a handler runs in the middle of whatever the main thread does, and that may be waiting for this very
    event, with its lock in hand. So who waits looks every 0.2 s.
    """

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None, /) -> bool:
        """Until it is set, or for `timeout` seconds; whether it is."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._is_set:
            left = _LOOK_EVERY if until is None else min(_LOOK_EVERY, until - time.monotonic())
            if left <= 0:
                break
            time.sleep(left)
        return self._is_set


@contextmanager
def stop_by_signals() -> Iterator[SignalEvent]:
    """SIGTERM and SIGINT set it; afterwards they do what they did before."""
    stop = SignalEvent()
    with stop_signals_go_to(lambda *_: stop.set()):
        yield stop
