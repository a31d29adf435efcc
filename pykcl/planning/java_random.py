"""java.util.Random and Collections.shuffle, as the Java platform's documentation defines them.

Not for chance, but to come to the same order as a Java worker that was given the same seed.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any

_MULTIPLIER = 0x5DEECE66D
_STATE = 2**48 - 1
_INT = 2**31


class JavaRandom:
    """java.util.Random with a seed. `seed`: any integer; Java's are of 64 bits."""

    def __init__(self, seed: int) -> None:
        self._state = (seed ^ _MULTIPLIER) & _STATE

    def next_int(self, bound: int) -> int:
        """nextInt(bound): 0 <= answer < bound. Raises ValueError unless 0 < bound < 2^31."""
        if not 0 < bound < _INT:
            raise ValueError(f"the bound of a Java int is 1 to 2^31-1, not {bound}")
        if bound & (bound - 1) == 0:
            return (bound * self._next()) >> 31
        while True:
            bits = self._next()
            answer = bits % bound
            # The last run of numbers below 2^31 is cut short: Java throws it away, noticing that this int overflows.
            if bits - answer + bound - 1 < _INT:
                return answer

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Collections.shuffle(items, this), in place."""
        for size in range(len(items), 1, -1):
            chosen = self.next_int(size)
            items[size - 1], items[chosen] = items[chosen], items[size - 1]

    def _next(self) -> int:
        self._state = (self._state * _MULTIPLIER + 0xB) & _STATE
        return self._state >> 17
