"""How far behind the tip of the stream each lease is.

The table does not say: it holds a position, and only whoever reads the stream knows when the record behind it arrived.
Kinesis itself is one source; what workers tell of themselves, and CloudWatch, are others (`lag_sources`).

What the look at Kinesis costs, per lease that has not ended: one GetShardIterator and one GetRecords call of at most
two records, as long as records keep coming. One call covers a bounded span of stream time: where nothing came behind
the checkpoint for hours, pages are empty, and only the next record or the tip of the shard tells the lag. The calls are
five a second and the bytes 2 MB a second for each shard, shared by everybody who reads it without enhanced fan-out; so
no shard is asked more than four times per second, and few at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypeVar

from pykcl.errors import PyKclError, ShardGone, Throttled
from pykcl.interfaces import Stream
from pykcl.model.checkpoint import Checkpoint, ReadFrom, StartPosition
from pykcl.model.kpl import deaggregate
from pykcl.model.lease import Lease, first_read
from pykcl.model.record import Record
from pykcl.operate.side_by_side import side_by_side
from pykcl.runtime import Runtime

SIDE_BY_SIDE = 16
"""Shards asked at the same moment."""
MOST_READS = 300
"""Of one shard, for one answer. AWS takes some 250 to cross a day without records."""
_PAGE = 2
"""Records: the checkpointed one, which may be an aggregate that is half done, and the next."""
_PAUSE = 0.25
_PAUSE_AFTER_THROTTLING = 1.0
_MARGIN_MILLIS = 10_000
"""How much earlier than where the last page ended the next answer begins: the two clocks are not exactly one."""

Answer = TypeVar("Answer")
Verdict = Literal["read", "told", "ended", "gone", "trimmed", "unknown"]


@dataclass(frozen=True, slots=True)
class ShardLag:
    """One lease.

    behind: seconds for which its oldest unread record has been waiting; 0.0 where there is none; None where nobody
    knows. verdict: "ended": the shard is read to its
    end, "told": a worker or CloudWatch says so, "gone": Kinesis has dropped the shard, "trimmed": it has dropped the
    checkpointed record, and perhaps unread ones behind it. why: of an unknown lag, for people. reads: GetRecords
    calls it took.
    """

    behind: float | None
    verdict: Verdict = "read"
    why: str = ""
    reads: int = 0


class LagSource(Protocol):
    """Tells the lag of leases. cost: what asking it costs, for people."""

    @property
    def cost(self) -> str: ...

    def lags(self, leases: Sequence[Lease]) -> Mapping[str, ShardLag]:
        """By lease key. Never raises for one lease; raises SetupError where nothing at all can be asked."""


@dataclass(frozen=True, slots=True)
class _Crossed:
    """Between the checkpoint and that time, epoch milliseconds, nothing unread lies. is_kept: the checkpointed record
    is still there, or none is checkpointed."""

    checkpoint: Checkpoint
    until_millis: int
    is_kept: bool


class KinesisLag:
    """Asks the stream. start: where the fleet starts without a checkpoint; shard_of: lease key -> shard id.

    most_reads: of one shard for one answer; the next answer for the same checkpoint goes on where this one ended.
    """

    def __init__(
        self,
        stream: Stream,
        runtime: Runtime,
        *,
        start: StartPosition | None = None,
        shard_of: Callable[[str], str] = str,
        most_reads: int = MOST_READS,
    ) -> None:
        self._stream, self._runtime = stream, runtime
        self._start = start or StartPosition("TRIM_HORIZON")
        self._shard_of = shard_of
        self._most_reads = most_reads
        self._crossed: dict[str, _Crossed] = {}

    @property
    def cost(self) -> str:
        return (
            "Every shard was read once for this: 1 of the 5 GetRecords calls a second that all its readers without "
            "enhanced fan-out share, and at most two records of its 2 MB/s. An idle shard takes more, up to 4 a second."
        )

    def lags(self, leases: Sequence[Lease]) -> Mapping[str, ShardLag]:
        by_key = {lease.key: lease for lease in leases}
        return side_by_side(
            by_key, lambda key: self._lag_of(by_key[key]), self._runtime, most=SIDE_BY_SIDE, name="lag"
        )

    def _lag_of(self, lease: Lease) -> ShardLag:
        if lease.is_ended:
            self._crossed.pop(lease.key, None)
            return ShardLag(0.0, "ended")
        try:
            return self._read(lease)
        except ShardGone:
            return ShardLag(
                None, "gone", "Kinesis does not know the shard: it was trimmed, or is another stream's"
            )
        except PyKclError as error:
            return ShardLag(None, "unknown", str(error))

    def _read(self, lease: Lease) -> ShardLag:
        shard, start = self._shard_of(lease.key), first_read(lease, self._start)
        crossed = self._crossed.get(lease.key)
        if crossed is None or crossed.checkpoint != lease.checkpoint:
            crossed = None
        begin = start if crossed is None else ReadFrom("AT_TIMESTAMP", at_millis=crossed.until_millis)
        is_kept = lease.checkpoint.is_sentinel if crossed is None else crossed.is_kept
        iterator = self._patiently(lambda: self._stream.open(shard, begin))
        behind = 0
        for reads in range(1, self._most_reads + 1):
            if reads > 1:
                self._runtime.event().wait(_PAUSE)
            page = self._patiently(partial(self._stream.fetch, shard, iterator, _PAGE))
            now, behind = self._stream.server_time_millis(), page.millis_behind_latest or 0
            unread = oldest_unread(lease, page.records)
            if unread is not None:
                # Opened at a number Kinesis has dropped, a shard begins with its oldest record, and nothing says so.
                is_kept |= page.records[0].sequence_number == lease.checkpoint.sequence_number
                waits = max(0, now - unread.arrived_at_millis, behind) / 1000
                return ShardLag(waits, "read" if is_kept else "trimmed", reads=reads)
            is_kept |= bool(page.records)
            # "LATEST" opened again would be a later one, and nothing before it counts.
            if start.kind != "LATEST":
                until = max(start.at_millis or 0, now - behind - _MARGIN_MILLIS)
                self._crossed[lease.key] = _Crossed(lease.checkpoint, until, is_kept)
            if page.next_iterator is None or (behind == 0 and len(page.records) < _PAGE):
                return ShardLag(0.0, reads=reads)
            iterator = page.next_iterator
        why = (
            f"{self._most_reads} reads found no record behind the checkpoint; the shard is at most "
            f"{behind / 3_600_000:.1f} hours behind"
        )
        return ShardLag(None, "unknown", why, self._most_reads)

    def _patiently(self, call: Callable[[], Answer]) -> Answer:
        """Once more after a second if the shard's calls are used up; then whoever works on it has the right of way."""
        try:
            return call()
        except Throttled:
            self._runtime.event().wait(_PAUSE_AFTER_THROTTLING)
            return call()


def oldest_unread(lease: Lease, records: Sequence[Record]) -> Record | None:
    """The first of these Kinesis records of which not all user records lie at or below the checkpoint."""
    for record in records:
        if lease.checkpoint.is_sentinel or int(record.sequence_number) > int(
            lease.checkpoint.sequence_number
        ):
            return record
        if record.sequence_number == lease.checkpoint.sequence_number and _is_half_done(lease, record):
            return record
    return None


def _is_half_done(lease: Lease, record: Record) -> bool:
    *_, last = list(deaggregate(record, hash_range=lease.hash_range)) or [record]
    return last.sub_sequence_number > lease.checkpoint.sub_sequence_number


@dataclass(frozen=True, slots=True)
class TotalLag:
    """behind: seconds of the lease that is furthest behind; None where none is known. shard: its key.

    late: how many are behind by more than the threshold. unknown: how many nobody could tell of.
    """

    behind: float | None
    shard: str | None = None
    late: int = 0
    unknown: int = 0


def total_of(lags: Mapping[str, ShardLag], threshold: float | None = None) -> TotalLag:
    """threshold: seconds."""
    known = {key: lag.behind for key, lag in lags.items() if lag.behind is not None}
    worst = max(known, key=lambda key: known[key], default=None)
    late = sum(behind > threshold for behind in known.values()) if threshold is not None else 0
    unknown = sum(lag.behind is None for lag in lags.values())
    return TotalLag(known[worst] if worst is not None else None, worst, late, unknown)
