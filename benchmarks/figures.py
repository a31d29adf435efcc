"""Medians, spread and ratios of paired measurements, with their confidence intervals. No clock, no I/O."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Spread:
    """The median and the quarter and three-quarter points."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not values:
            raise ValueError("nothing was measured")
        low, high = quantile(values, 0.25), quantile(values, 0.75)
        return cls(statistics.median(values), low, high)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the ratios of neighbours in time, and the interval it lies in with 95 % confidence."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f}-{self.high:.2f})"


def paired_ratio(theirs: Sequence[float], ours: Sequence[float], seed: int = 1) -> Ratio:
    """How many times less ours are. Both in the order they were measured: the n-th are of the same round.

    The interval is a bootstrap of the rounds: they are drawn anew, with repetition, and the median taken each time. With
    one round it is that round's ratio and says nothing. Raises ValueError for what is not in pairs or not positive.
    """
    if len(theirs) != len(ours) or not theirs:
        raise ValueError(f"{len(theirs)} and {len(ours)} measurements are no pairs")
    if min(*theirs, *ours) <= 0:
        raise ValueError("a measurement is not positive: too little was measured")
    ratios = [other / own for other, own in zip(theirs, ours, strict=True)]
    chance = random.Random(seed)
    medians = [statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)]
    outside = (1 - CONFIDENCE) / 2
    return Ratio(statistics.median(ratios), quantile(medians, outside), quantile(medians, 1 - outside))


def quantile(values: Sequence[float], part: float) -> float:
    """Between the neighbours in order, straight. part: from 0, the smallest, to 1."""
    ordered = sorted(values)
    at = part * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)
