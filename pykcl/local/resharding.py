"""Split, merge and uniform scaling of one stream, with the checks Kinesis makes."""

from __future__ import annotations

from pykcl.local.errors import ACCOUNT, in_use, invalid_argument, limit_exceeded, not_found
from pykcl.local.shards import HASH_KEYS, LocalShard, LocalStream


def create_shards(stream: LocalStream, count: int, now_millis: int) -> None:
    """The first shards of a stream: equal parts of the hash space."""
    for start, end in uniform_ranges(count):
        stream.add_shard(start, end, (), now_millis)
    stream.route_anew()


def uniform_ranges(count: int) -> list[tuple[int, int]]:
    """`count` closed ranges that together cover 0..2^128-1."""
    edges = [number * HASH_KEYS // count for number in range(count + 1)]
    return [(edges[number], edges[number + 1] - 1) for number in range(count)]


def eligible(stream: LocalStream, shard_id: str) -> LocalShard:
    """The open shard of that id. Raises AwsError when there is none or it was split or merged already."""
    shard = stream.shards.get(shard_id)
    if shard is None:
        raise not_found(f"Could not find shard {shard_id} in stream {stream.name} under account {ACCOUNT}.")
    if not shard.is_open:
        raise invalid_argument(
            f"Shard {shard_id} in stream {stream.name} under account {ACCOUNT} has already been merged or "
            "split, and thus is not eligible for merging or splitting."
        )
    return shard


def require_active(stream: LocalStream) -> None:
    if stream.status != "ACTIVE":
        raise in_use(
            f"Stream {stream.name} under account {ACCOUNT} not ACTIVE, instead in state {stream.status}"
        )


def check_split(stream: LocalStream, shard_id: str, new_first_key: int) -> None:
    """Raises AwsError as SplitShard does."""
    require_active(stream)
    shard = eligible(stream, shard_id)
    if not shard.first_key + 1 < new_first_key < shard.last_key:
        raise invalid_argument(
            f"NewStartingHashKey {new_first_key} used in SplitShard() on shard {shard_id} in stream "
            f"{stream.name} under account {ACCOUNT} is not both greater than one plus the shard's "
            f"StartingHashKey {shard.first_key} and less than the shard's EndingHashKey {shard.last_key}."
        )


def check_merge(stream: LocalStream, shard_id: str, adjacent_id: str) -> None:
    """Raises AwsError as MergeShards does."""
    require_active(stream)
    first, second = sorted(
        (eligible(stream, shard_id), eligible(stream, adjacent_id)), key=lambda shard: shard.first_key
    )
    if first.last_key + 1 != second.first_key:
        raise invalid_argument(
            f"Shards {shard_id} and {adjacent_id} in stream {stream.name} under account {ACCOUNT} "
            "are not an adjacent pair of shards eligible for merging"
        )


def check_update_count(stream: LocalStream, target: int) -> None:
    """Raises AwsError as UpdateShardCount does."""
    require_active(stream)
    current = len(stream.open_shards)
    if not 1 <= target <= 10_000:
        raise invalid_argument(f"TargetShardCount {target} must be between 1 and 10000.")
    if target > 2 * current or 2 * target < current:
        raise limit_exceeded(
            f"UpdateShardCount cannot scale from {current} to {target} open shards: one call may at most "
            "double and at least halve the current count."
        )


def split(stream: LocalStream, shard: LocalShard, new_first_key: int, now_millis: int) -> None:
    """Close a shard and open its two children, the lower one first."""
    moment = _close(stream, shard, now_millis)
    stream.add_shard(shard.first_key, new_first_key - 1, (shard.shard_id,), moment)
    stream.add_shard(new_first_key, shard.last_key, (shard.shard_id,), moment)
    stream.route_anew()


def merge(stream: LocalStream, shard: LocalShard, adjacent: LocalShard, now_millis: int) -> None:
    """Close two neighbours at one moment and open their child."""
    latest = max(now_millis, shard.latest_arrival + 1, adjacent.latest_arrival + 1)
    moment = _close(stream, shard, latest)
    _close(stream, adjacent, latest)
    stream.add_shard(
        min(shard.first_key, adjacent.first_key),
        max(shard.last_key, adjacent.last_key),
        (shard.shard_id, adjacent.shard_id),
        moment,
    )
    stream.route_anew()


def scale_uniformly(stream: LocalStream, target: int, now_millis: int) -> None:
    """Split at every edge of the wanted equal ranges, then merge what lies inside one range."""
    wanted = uniform_ranges(target)
    for edge, _ in wanted[1:]:
        shard = stream.shard_for("", edge)
        if shard.first_key < edge:
            split(stream, shard, edge, now_millis)
    for first_key, last_key in wanted:
        while True:
            inside = [s for s in stream.open_shards if first_key <= s.first_key and s.last_key <= last_key]
            if len(inside) < 2:
                break
            merge(stream, inside[0], inside[1], now_millis)


def _close(stream: LocalStream, shard: LocalShard, now_millis: int) -> int:
    # The ending number is drawn after the last record's and before the children's: all comparisons then hold.
    return shard.close(stream.sequencer.next(shard.index, now_millis), now_millis)
