"""Where a shard iterator begins, and what one GetRecords answer holds."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from pykcl.local.errors import ACCOUNT, invalid_argument
from pykcl.local.iterators import Place, write_iterator
from pykcl.local.shards import LocalShard, LocalStream, StoredRecord, following, millis_in, shard_index_in
from pykcl.model.shard import Shard


@dataclass(frozen=True, slots=True)
class Page:
    """One GetRecords answer. next_iterator is None exactly when the end of a closed shard is reached.

    millis_behind_latest: age of what is to be read next, 0 at the tip. children: at the end of a shard.
    """

    records: list[StoredRecord]
    next_iterator: str | None
    millis_behind_latest: int
    children: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """How far one GetRecords call gets, as on AWS: a bounded span of stream time, however little is in it.

    So an idle or sparse shard is crossed in many calls, most of them empty (API reference, GetRecords: "It might take
    multiple calls to get to a portion of the shard that contains records"). AWS documents no length; an idle day was
    seen to take some 250 calls.

    shortest, longest: bounds in seconds; each call draws between them, short spans as often as long ones.
    end_alone: how probable it is that the end of a closed shard is a page of its own, behind that of the last record.
    """

    shortest: float = 60.0
    longest: float = 900.0
    end_alone: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.shortest <= self.longest or not 0 <= self.end_alone <= 1:
            raise ValueError(
                f"{self} cannot be: it needs 0 < shortest <= longest (seconds) and 0 <= end_alone <= 1."
            )

    def millis(self, rng: random.Random) -> int:
        """The span of one call."""
        low, high = math.log(self.shortest), math.log(self.longest)
        return max(1, round(math.exp(rng.uniform(low, high)) * 1000))


def read_page(
    stream: LocalStream, shard: LocalShard, place: Place, *, limit: int, span: int, end_alone: bool
) -> Page:
    """The answer to a call at `place`. place.issued_at: the time now. span: milliseconds of stream time it covers."""
    now = place.issued_at
    first = shard.at_or_after(place.position)
    until = max(place.reached, shard.created_at, stream.horizon(now)) + span
    covered = len(shard.records) if until >= now else shard.arrived_before(first, until)
    records = shard.page(first, min(first + limit, covered))
    unread = first + len(records)
    is_cut = unread < covered
    reached = records[-1].arrived_at_millis if is_cut and records else min(until, now)
    if records:
        place = replace(place, position=following(records[-1].sequence_number))
    if not is_cut and shard.closed_at is not None and until >= min(shard.closed_at, now):
        behind = max(0, now - shard.closed_at)
        if not (records and end_alone):
            return Page(records, None, behind, stream.children_of(shard))
        return Page(records, write_iterator(replace(place, reached=reached)), max(1, behind), ())
    behind = now - (shard.records[unread].arrived_at_millis if is_cut else reached)
    return Page(records, write_iterator(replace(place, reached=reached)), max(0, behind), ())


def start_of(
    stream: LocalStream,
    shard: LocalShard,
    kind: str,
    *,
    sequence_number: str | None,
    at_millis: int | None,
    now: int,
) -> tuple[str, int]:
    """Position and stream time (epoch milliseconds) at which an iterator of that kind begins."""
    tip = following(stream.sequencer.last)
    if kind == "TRIM_HORIZON":
        return shard.starting_sequence_number, shard.created_at
    if kind == "LATEST":
        return tip, now
    if kind == "AT_TIMESTAMP":
        if at_millis is None:
            raise invalid_argument(f"Must specify timestampInMillis parameter for iterator of type {kind}.")
        if at_millis > now:
            raise invalid_argument(
                "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
                f"timestampInMillis: {at_millis}, currentTimestampInMillis: {now}"
            )
        return shard.position_at_time(at_millis, tip), at_millis
    if kind not in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        raise invalid_argument(f"Unknown ShardIteratorType {kind}.")
    if sequence_number is None:
        raise invalid_argument(f"Must specify startingSequenceNumber parameter for iterator of type {kind}.")
    _check_number(stream, shard, sequence_number)
    position = sequence_number if kind == "AT_SEQUENCE_NUMBER" else following(sequence_number)
    return position, min(millis_in(sequence_number), now)


def _check_number(stream: LocalStream, shard: LocalShard, number: str) -> None:
    index = shard_index_in(number)
    last = shard.ending_sequence_number or stream.sequencer.last
    if index is not None and index != shard.index:
        raise invalid_argument(
            f"Invalid StartingSequenceNumber. It encodes shardId-{index:012d}, while it was used in a call "
            f"to a shard with {shard.shard_id}"
        )
    if index is None or not shard.starting_sequence_number <= number <= last:
        raise invalid_argument(
            f"StartingSequenceNumber {number} used in GetShardIterator on shard {shard.shard_id} in stream "
            f"{stream.name} under account {ACCOUNT} is invalid because it did not come from this stream."
        )
