"""How a command that stays until somebody ends it hears of that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pykcl.worker.signals import stop_signals_go_to

_LOOK_EVERY = 0.2


class Stop:
    """Whether somebody asked this command to end."""

    def __init__(self) -> None:
        self._is_asked = False

    def ask(self, *_: object) -> None:
        # No event: the handler of a signal runs in the middle of whatever the main thread does, and that may be
        # waiting for this very event, with its lock in hand.
        self._is_asked = True

    def wait(self) -> None:
        """Until then."""
        while not self._is_asked:
            time.sleep(_LOOK_EVERY)


@contextmanager
def stop_by_signals() -> Iterator[Stop]:
    """SIGTERM and SIGINT ask for it; afterwards they do what they did before."""
    stop = Stop()
    with stop_signals_go_to(stop.ask):
        yield stop
