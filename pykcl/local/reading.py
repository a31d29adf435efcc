"""Where a shard iterator begins, and what one GetRecords answer holds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pykcl.local.errors import ACCOUNT, invalid_argument
from pykcl.local.iterators import Place, write_iterator
from pykcl.local.shards import LocalShard, LocalStream, StoredRecord, following, shard_index_in
from pykcl.model.shard import Shard


@dataclass(frozen=True, slots=True)
class Page:
    """One GetRecords answer. next_iterator is None exactly when the end of a closed shard is reached.

    millis_behind_latest: age of the next unread record, 0 at the tip. children: at the end of a shard.
    """

    records: list[StoredRecord]
    next_iterator: str | None
    millis_behind_latest: int
    children: tuple[Shard, ...]


def page_up_to(
    stream: LocalStream, shard: LocalShard, unread: int, records: list[StoredRecord], place: Place
) -> Page:
    """The answer whose next unread record has index `unread`. place.issued_at is the time now."""
    at_tip = unread >= len(shard.records)
    if at_tip and not shard.is_open:
        return Page(records, None, 0, stream.children_of(shard))
    behind = 0 if at_tip else max(0, place.issued_at - shard.records[unread].arrived_at_millis)
    if records:
        place = replace(place, position=following(records[-1].sequence_number))
    return Page(records, write_iterator(place), behind, ())


def start_of(
    stream: LocalStream,
    shard: LocalShard,
    kind: str,
    *,
    sequence_number: str | None,
    at_millis: int | None,
    now: int,
) -> str:
    """Where an iterator of that kind begins."""
    tip = following(stream.sequencer.last)
    if kind == "TRIM_HORIZON":
        return shard.starting_sequence_number
    if kind == "LATEST":
        return tip
    if kind == "AT_TIMESTAMP":
        if at_millis is None:
            raise invalid_argument(f"Must specify timestampInMillis parameter for iterator of type {kind}.")
        if at_millis > now:
            raise invalid_argument(
                "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
                f"timestampInMillis: {at_millis}, currentTimestampInMillis: {now}"
            )
        return shard.position_at_time(at_millis, tip)
    if kind not in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        raise invalid_argument(f"Unknown ShardIteratorType {kind}.")
    if sequence_number is None:
        raise invalid_argument(f"Must specify startingSequenceNumber parameter for iterator of type {kind}.")
    _check_number(stream, shard, sequence_number)
    return sequence_number if kind == "AT_SEQUENCE_NUMBER" else following(sequence_number)


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
