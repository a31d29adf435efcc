"""What the judges share: the first broken promise is kept, and told to whoever asks."""

from __future__ import annotations

from pykcl.testing.storm.promises import Promise, PromiseBroken


class Verdict:
    """Threads of workers note what they break; the storm's own thread raises it from `check`.

    blind: no promise counts as broken, to show that the judges are what catches a broken worker.
    """

    def __init__(self, *, blind: bool = False) -> None:
        self._blind = blind
        self._broken: PromiseBroken | None = None

    def expect(self, holds: bool, promise: Promise, what: str) -> None:
        if not holds and self._broken is None and not self._blind:
            self._broken = PromiseBroken(promise, what)

    def check(self) -> None:
        """Raise PromiseBroken if anything was broken so far."""
        if self._broken is not None:
            raise self._broken
