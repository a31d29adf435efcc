"""Which shards a ListShards filter selects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pykcl.local.errors import invalid_argument
from pykcl.local.shards import LocalShard, LocalStream

FILTER_TYPES = (
    "AFTER_SHARD_ID",
    "AT_TRIM_HORIZON",
    "FROM_TRIM_HORIZON",
    "AT_LATEST",
    "AT_TIMESTAMP",
    "FROM_TIMESTAMP",
)


@dataclass(frozen=True, slots=True)
class ShardFilter:
    """A filter of ListShards. shard_id: for AFTER_SHARD_ID; at_millis, epoch: for the *_TIMESTAMP types."""

    type: str
    shard_id: str | None = None
    at_millis: int | None = None


def select(
    stream: LocalStream, shard_filter: ShardFilter | None, now_millis: int, as_of: int | None = None
) -> list[LocalShard]:
    """The selected shards, by id. Raises AwsError InvalidArgumentException for an incomplete filter.

    as_of: the moment that the listing shows, epoch milliseconds, if it is not now. The first shards of a stream are
    always listed. Trimmed shards have left the stream already, so FROM_TRIM_HORIZON takes all.
    """
    kind = "FROM_TRIM_HORIZON" if shard_filter is None else shard_filter.type
    wanted: Callable[[LocalShard], bool]
    horizon = stream.horizon(now_millis)
    if kind == "AT_LATEST":
        wanted = partial(_is_open, as_of)
    elif kind == "FROM_TRIM_HORIZON":
        wanted = _always
    elif kind == "AT_TRIM_HORIZON":
        wanted = partial(_open_at, horizon)
    else:
        wanted = _by_value(kind, shard_filter, horizon)
    return [shard for shard in stream.shards.values() if _is_shown(as_of, shard) and wanted(shard)]


def _by_value(kind: str, given: ShardFilter | None, horizon: int) -> Callable[[LocalShard], bool]:
    if given is not None and kind == "AFTER_SHARD_ID" and given.shard_id is not None:
        return partial(_after, given.shard_id)
    if given is not None and kind in ("AT_TIMESTAMP", "FROM_TIMESTAMP") and given.at_millis is not None:
        return partial(_open_at if kind == "AT_TIMESTAMP" else _open_since, max(horizon, given.at_millis))
    raise invalid_argument(f"ShardFilter of type {kind} is unknown, or lacks its ShardId or Timestamp.")


def _always(_: LocalShard) -> bool:
    return True


def _is_shown(as_of: int | None, shard: LocalShard) -> bool:
    return as_of is None or not shard.parents or shard.created_at <= as_of


def _is_open(as_of: int | None, shard: LocalShard) -> bool:
    return shard.is_open if as_of is None else shard.is_open_at(as_of)


def _after(shard_id: str, shard: LocalShard) -> bool:
    return shard.shard_id > shard_id


def _open_at(moment: int, shard: LocalShard) -> bool:
    return shard.created_at <= moment and (shard.closed_at is None or moment < shard.closed_at)


def _open_since(moment: int, shard: LocalShard) -> bool:
    return shard.closed_at is None or shard.closed_at >= moment
