"""What a simulation remembers of its course: a hash over everything, and the last lines for people."""

from __future__ import annotations

import hashlib
from collections import deque

LAST_LINES = 60


class Trace:
    """The hash tells two courses apart; the lines tell what happened before something broke."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self._pending: list[str] = []
        self._lines: deque[str] = deque(maxlen=LAST_LINES)

    def step(self, name: str, now: float) -> None:
        """One decision of the scheduler: who goes on, and when. For the hash only."""
        self._pending.append(f"{name}@{now!r}")
        if len(self._pending) > 500:
            self._fold()

    def add(self, now: float, text: str) -> None:
        """Something that happened, at simulated time `now`."""
        self._pending.append(text)
        self._lines.append(f"{now:10.3f}  {text}")

    def remark(self, now: float, text: str) -> None:
        """What is put in from outside, such as a fault: for people only, for what counts is what follows from it."""
        self._lines.append(f"{now:10.3f}  {text}")

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits; equal for equal courses."""
        self._fold()
        return self._hash.hexdigest()

    @property
    def last_lines(self) -> list[str]:
        return list(self._lines)

    def _fold(self) -> None:
        self._hash.update("\n".join(self._pending).encode())
        self._pending.clear()
