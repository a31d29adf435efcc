"""Bounds what comes twice: with automatic checkpoints, what was done is in the row before the next batch begins."""

from __future__ import annotations

from collections.abc import Callable

from pykcl.testing.storm.judge import Verdict
from pykcl.testing.storm.ownership import Ownership
from pykcl.testing.storm.places import Place
from pykcl.testing.storm.promises import Promise

_MOMENT = 0.05


class DebtJudge:
    """interval: of checkpoint="interval"; 0: after each batch; None: by hand, so nothing is promised.

    durable: the checkpoint in the row of a host that took it last; None: it is another's by now. failed: whether a
    write of a host for a lease failed since a time. on_clock: virtual seconds while a host's clock counts so many.
    """

    def __init__(
        self,
        verdict: Verdict,
        *,
        interval: float | None,
        now: Callable[[], float],
        durable: Callable[[str, str], Place | None],
        failed: Callable[[str, str, float], bool],
        on_clock: Callable[[str, float], float],
    ) -> None:
        self._verdict, self._interval, self._now = verdict, interval, now
        self._durable, self._failed, self._on_clock = durable, failed, on_clock

    def batch_begins(self, owning: Ownership) -> None:
        """Everything that returned before is durable, apart from what the interval allows to be owed."""
        durable = self._durable(owning.host, owning.shard_id) if owning.returned else None
        if self._interval is None or durable is None:
            return
        due = [entry for entry in self._due(owning.host, owning.returned) if entry[1] > durable]
        owning.returned = [entry for entry in owning.returned if entry[1] > durable]
        if not due or self._failed(owning.host, owning.shard_id, due[-1][0]):
            return
        what = f"{owning.host} {owning.shard_id}: {due[-1][1]} was done, and its row is at {durable}"
        self._verdict.expect(False, Promise.NO_DUPLICATES, what)

    def comes_again(self, last: Ownership, repeated: list[Place], cause: str) -> None:
        """In calm weather no more than the batch that ran, and what the interval allows, of what this owner had."""
        if self._interval is None or not last.in_calm or cause not in ("crash", "steal"):
            return
        # What returned after the lease was gone could not be written any more.
        before = [entry for entry in last.returned if entry[1] not in last.running]
        due = self._due(last.host, before)
        upto = due[-1][1] if due else (0, 0)
        more = [p for p in repeated if p in last.delivered and p <= upto and p not in last.running]
        what = (
            f"{len(more)} more records of {last.shard_id} than the running batch come again after a {cause}"
        )
        self._verdict.expect(not more, Promise.NO_DUPLICATES, what)

    def _due(self, host: str, returned: list[tuple[float, Place]]) -> list[tuple[float, Place]]:
        """Those of the batches that must be durable before another one begins."""
        if not returned or not self._interval:
            return returned
        owed_since = returned[-1][0] - self._on_clock(host, self._interval) - _MOMENT
        return [entry for entry in returned if entry[0] <= owed_since]
