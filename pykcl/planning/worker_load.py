"""The load of a worker beside that of its fleet, in Java's arithmetic: who is overloaded when a leader balances."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

FAILED: Final = -1.0
"""The value that a report has for a metric that could not be measured."""
BAND_POINTS: Final = 5.0
"""Percentage points around the average within which nothing moves, where the threshold is narrower; Java 3.5.3 has such
a band, too."""
_CHANCE: Final = 2.0
"""Five standard deviations of a mean throughput of 1 KiB a second, averaged as leases report it, where records of 4 KiB
come by chance; KiB a second."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a worker by one metric, the average of the fleet, and the most that it may be.

    Java 3.5.1 leaves it as it is within a threshold, in percent of the average. In a quiet fleet that moves leases for
    ever, as every load is beyond it now and then: 1) four workers use 2 % CPU, one of them 2.3 % for a minute; 2) it
    hands over a lease, or ten; 3) another one does so a minute later. By throughput it is worse: 1) half of all workers
    are above the average; 2) each of these is above its limit, which is that average; so the threshold has no effect.
    Here such moves are left out, and no others are made.

    points: the load must be beyond the average by as many, too.
    """

    value: float
    average: float
    limit: float = math.inf
    points: float = 0.0

    def band(self, threshold: int) -> tuple[float, float]:
        """Return the ends of the range within which nothing moves. threshold: percent."""
        share = threshold / 100
        lower, upper = self.average * (1.0 - share), self.average * (1.0 + share)
        if not self.points:
            return lower, upper
        return min(lower, self.average - self.points), max(upper, self.average + self.points)


@dataclass(frozen=True, slots=True)
class Standing:
    """The standing of a worker: at or above the range around the average, above it, below it; above its limit."""

    is_at_top: bool
    is_above: bool
    is_below: bool
    is_hot: bool


def standing(loads: Sequence[Load], threshold: int) -> Standing:
    """Return the standing of a worker by all of these loads."""
    pairs = [(load.value, *load.band(threshold)) for load in loads]
    return Standing(
        is_at_top=all(value >= upper for value, _, upper in pairs),
        is_above=all(value > upper for value, _, upper in pairs),
        is_below=all(value < lower for value, lower, _ in pairs),
        is_hot=all(load.value > load.limit for load in loads),
    )


def points_by_chance(throughput: float) -> float:
    """Return the percentage points around an average throughput, KiB a second, that come by chance.

    1) Each of 12 leases gets a record every ten seconds; 2) whoever has two at the moment is far above the average; 3)
    where the next ones come, nobody knows.
    """
    return 100 * _CHANCE / math.sqrt(throughput) if throughput > 0 else math.inf


def mean(numbers: Collection[float]) -> float:
    """Return the mean as Java's streams compute it: by Kahan's sum. 0 for nothing."""
    total = lost = plain = 0.0
    for number in numbers:
        plain += number
        corrected = number - lost
        after = total + corrected
        total, lost = after, (after - total) - corrected
    exact = total - lost
    if math.isnan(exact) and math.isinf(plain):
        exact = plain
    return exact / len(numbers) if numbers else 0.0


def moving_average(values: Iterable[float], alpha: float) -> float:
    """Return the exponential moving average without the failed measurements; 0 where all failed."""
    average: float | None = None
    for value in values:
        if value != FAILED:
            average = value if average is None else alpha * value + (1 - alpha) * average
    return 0.0 if average is None else average


def ratio(part: float, whole: float) -> float:
    """Divide as Java does: by zero, too."""
    if whole != 0:
        return part / whole
    if part == 0 or math.isnan(part):
        return math.nan
    return math.copysign(math.inf, part) * math.copysign(1.0, whole)


def rank(number: float) -> tuple[bool, float, float]:
    """Return a key that sorts numbers as Java does: NaN is the largest, and -0 is less than 0."""
    if math.isnan(number):
        return (True, 0.0, 0.0)
    return (False, number, math.copysign(1.0, number))


def smaller(one: float, other: float) -> float:
    """Return the smaller number; NaN if either is."""
    if math.isnan(one) or math.isnan(other):
        return math.nan
    return min(one, other, key=rank)


def in_hash_order(names: Collection[str]) -> list[str]:
    """Return names in the order of Java's HashMap: the first of two metrics by which as much is to be taken decides."""
    size = max(2, 1 << (int(len(names) / 0.75 + 1) - 1).bit_length())

    def place(name: str) -> tuple[int, int]:
        units, code = name.encode("utf-16-be", "surrogatepass"), 0
        for high, low in zip(units[::2], units[1::2], strict=True):
            code = (31 * code + 256 * high + low) & 0xFFFFFFFF
        spread = code ^ (code >> 16)
        return spread & (size - 1), spread & max(15, size - 1)

    return sorted(names, key=place)
