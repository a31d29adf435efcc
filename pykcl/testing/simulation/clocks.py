"""The clocks of one group of simulated threads: one may run fast or slow, the other may jump."""

from __future__ import annotations

EPOCH_MILLIS = 1_790_000_000_000
"""What the wall clocks show at simulated time 0, epoch milliseconds."""


class GroupClock:
    """How a worker's clocks stand to simulated time.

    rate: seconds of its monotonic clock per simulated second. wall_offset: milliseconds its wall clock is wrong by.
    """

    def __init__(self, rate: float = 1.0) -> None:
        self._rate = rate
        self._since = 0.0
        self._shown = 0.0
        self.wall_offset = 0

    @property
    def rate(self) -> float:
        return self._rate

    def run_at(self, rate: float, now: float) -> None:
        """From now on run at this rate; what the clock shows does not jump."""
        self._shown, self._since, self._rate = self.monotonic(now), now, rate

    def monotonic(self, now: float) -> float:
        return self._shown + (now - self._since) * self._rate

    def wall_millis(self, now: float) -> int:
        return EPOCH_MILLIS + int(now * 1000) + self.wall_offset

    def real_seconds(self, seconds: float) -> float:
        """How much simulated time passes while this clock counts `seconds`."""
        return seconds / self._rate
