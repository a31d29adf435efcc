"""Judges that each gap that retention tore is told of once by whoever reads across it, and that no other is."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable

from pykcl.events import DataLost
from pykcl.testing.storm.judge import Verdict
from pykcl.testing.storm.ledger import Ledger
from pykcl.testing.storm.ownership import Ownership
from pykcl.testing.storm.places import place_in
from pykcl.testing.storm.promises import Promise


class LossJudge:
    """is_gone: whether Kinesis knows a shard no more."""

    def __init__(self, ledger: Ledger, verdict: Verdict, *, is_gone: Callable[[str], bool]) -> None:
        self._ledger, self._verdict, self._is_gone = ledger, verdict, is_gone
        self._told: defaultdict[tuple[str, str], list[str]] = defaultdict(list)

    def heard(self, host: str, event: DataLost) -> None:
        self._told[host, event.shard].append(event.checkpoint)
        true = self._is_gone(event.shard) or self._is_lost(event.shard, event.checkpoint)
        self._expect(true, f"{host} gives a false alarm about {event.shard} at {event.checkpoint}")

    def _is_lost(self, shard_id: str, checkpoint: str) -> bool:
        """The record of the checkpoint is gone; of one that the ledger does not know, any record."""
        place = place_in(checkpoint)
        shard = self._ledger.shard(shard_id)
        index = bisect_left(shard.put, (place[0], -1))
        if index < len(shard.put) and shard.put[index][0] == place[0]:
            return shard.put[index] in shard.trimmed
        return shard.is_trimmed

    def begins(self, owning: Ownership) -> None:
        owning.told = len(self._told[owning.host, owning.shard_id])

    def batch_is_over(self, owning: Ownership) -> None:
        """It is done, or was skipped: what was told before belongs to it."""
        owning.told = len(self._told[owning.host, owning.shard_id])

    def reads_on(self, owning: Ownership, lacks: bool) -> None:
        """The next batch, or the end. lacks: whether records before it were trimmed and not given."""
        told = self._told[owning.host, owning.shard_id][owning.told :]
        where = f"{owning.host} {owning.shard_id} after {owning.after}"
        if lacks and owning.after[0] > 0:
            self._expect(bool(told), f"{where}: records are missing, and it does not tell")
        once = self._is_one_gap_each(owning.shard_id, told)
        self._expect(once or self._is_gone(owning.shard_id), f"{where}: told of after {', '.join(told)}")

    def _is_one_gap_each(self, shard_id: str, told: list[str]) -> bool:
        """1) It reads across a gap and tells; 2) what it finds is an aggregate of another shard, which no batch brings;
        3) retention takes that, and what came behind it: another gap, and the next batch is behind both."""
        shard = self._ledger.shard(shard_id)
        return len(set(told)) == len(told) and all(shard.is_dropped(place_in(at)[0]) for at in told[1:])

    def _expect(self, holds: bool, what: str) -> None:
        self._verdict.expect(holds, Promise.LOSS_REPORTED, what)
