"""Asks for the lag of all shards again and again, a few at a time, in a thread of its own.

A round of many shards takes long on purpose: a shard has five reads a second for everybody who reads it, and what is
asked for here must cost neither the fleet nor this machine much.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pykcl.errors import PyKclError, TemporaryError
from pykcl.model.lease import Lease
from pykcl.operate.lag import SIDE_BY_SIDE, LagSource
from pykcl.runtime import Runtime, Task
from pykcl.ui.rows import Measured

log = logging.getLogger("pykcl.ui")

SHARDS_PER_SECOND = 16.0
READS_A_ROUND = 3
"""Of one shard. A stretch without records is crossed in as many rounds as it takes."""
_PAUSE_AFTER_ERROR = 10.0


class LagRounds:
    """latest: what is known, by lease key; each value stays until the next one, and is as old as its `at`.

    source: opened when there is something to ask; opens again where that failed. every: seconds from one round to the
    next, if there are few shards.
    """

    def __init__(self, source: Callable[[], LagSource], every: float, runtime: Runtime) -> None:
        self._open, self._every, self._runtime = source, every, runtime
        self._lock = runtime.lock()
        self._over = runtime.event()
        self._leases: Sequence[Lease] = ()
        self._source: LagSource | None = None
        self._task: Task | None = None
        self._latest: dict[str, Measured] = {}
        self._problem = ""

    def start(self) -> None:
        self._task = self._runtime.spawn("pykcl-ui-lag", self._run)

    def stop(self) -> None:
        self._over.set()

    def watch(self, leases: Sequence[Lease]) -> None:
        """What the next round is about: leases that somebody may read now."""
        with self._lock:
            self._leases = tuple(leases)
            for gone in self._latest.keys() - {lease.key for lease in leases}:
                del self._latest[gone]

    def latest(self) -> dict[str, Measured]:
        with self._lock:
            return dict(self._latest)

    @property
    def problem(self) -> str:
        """Why nothing can be asked; "" while it can."""
        return self._problem

    @property
    def told(self) -> str:
        """Where the lag comes from and what that costs, for people."""
        count = len(self._leases)
        seconds = max(self._every, count / SHARDS_PER_SECOND)
        return (
            f"Lag: Kinesis, each shard every {seconds:.0f} s; it costs one of the 5 reads a second of the shard that "
            "all its readers share, and up to three while it looks for the next record."
        )

    def _run(self) -> None:
        while not self._over.is_set():
            began = self._runtime.monotonic()
            with self._lock:
                leases = self._leases
            try:
                self._round(leases)
                self._problem = ""
                rest = self._every if leases else 0.5
            except PyKclError as error:
                self._problem = str(error)
                rest = _PAUSE_AFTER_ERROR
                if not isinstance(error, TemporaryError):
                    self._source = None
            self._over.wait(max(0.2, rest - (self._runtime.monotonic() - began)))

    def _round(self, leases: Sequence[Lease]) -> None:
        if leases and self._source is None:
            self._source = self._open()
        for first in range(0, len(leases), SIDE_BY_SIDE):
            if self._over.is_set() or self._source is None:
                return
            began = self._runtime.monotonic()
            part = leases[first : first + SIDE_BY_SIDE]
            found = self._source.lags(self._as_they_are(part))
            now = self._runtime.utcnow_millis()
            with self._lock:
                self._latest |= {
                    key: Measured(now, lag.behind, "Kinesis", lag.why or _WORDS.get(lag.verdict, ""))
                    for key, lag in found.items()
                }
            if first + SIDE_BY_SIDE < len(leases):
                spent = self._runtime.monotonic() - began
                self._over.wait(max(0.0, SIDE_BY_SIDE / SHARDS_PER_SECOND - spent))

    def _as_they_are(self, leases: Sequence[Lease]) -> list[Lease]:
        """With the checkpoints of the latest look: those of the beginning of a long round are old."""
        with self._lock:
            now = {lease.key: lease for lease in self._leases}
        return [now[lease.key] for lease in leases if lease.key in now]


_WORDS = {
    "gone": "Kinesis has dropped the shard",
    "trimmed": "Kinesis has dropped the checkpointed record, and perhaps unread ones behind it",
}
