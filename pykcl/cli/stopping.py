"""How a command that stays until somebody ends it hears of that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pykcl.runtime import SignalEvent
from pykcl.worker.signals import stop_signals_go_to


@contextmanager
def stop_by_signals() -> Iterator[SignalEvent]:
    """SIGTERM and SIGINT set it; afterwards they do what they did before."""
    stop = SignalEvent()
    with stop_signals_go_to(lambda *_: stop.set()):
        yield stop
