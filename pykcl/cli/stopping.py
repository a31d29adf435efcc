"""Stop signals of a command that runs until it is interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pykcl.runtime import SignalEvent
from pykcl.worker.signals import stop_signals_go_to


@contextmanager
def stop_by_signals() -> Iterator[SignalEvent]:
    """An event that SIGTERM and SIGINT set during the block. The previous handlers are restored after it."""
    stop = SignalEvent()
    with stop_signals_go_to(lambda *_: stop.set()):
        yield stop
