"""Shards of which Kinesis itself has said that it does not know them: a listing that lacks one proves nothing."""

from __future__ import annotations

from collections.abc import Iterable

from pykcl.errors import ShardGone, TemporaryError
from pykcl.model.checkpoint import ReadFrom
from pykcl.ports import Stream
from pykcl.runtime import Runtime


class GoneShards:
    """Asks once for each shard, with a GetShardIterator call. Thread-safe."""

    def __init__(self, stream: Stream, runtime: Runtime) -> None:
        self._stream = stream
        self._lock = runtime.lock()
        self._known: set[str] = set()

    def confirm(self, shard_ids: Iterable[str]) -> None:
        """Raise TemporaryError if Kinesis still knows one of them: the listing that lacks it was old or incomplete.

        A parent without a lease and without a shard counts as read. If it only looks so, 1) its child gets a lease,
        2) the child is read, 3) no shard with a leased descendant is ever begun: the parent's records are skipped.
        """
        with self._lock:
            unknown = sorted(set(shard_ids) - self._known)
        for shard_id in unknown:
            try:
                self._stream.open(shard_id, ReadFrom("TRIM_HORIZON"))
            except ShardGone:
                with self._lock:
                    self._known.add(shard_id)
            else:
                raise TemporaryError(
                    f"The list of shards lacks {shard_id}, which Kinesis knows; it is asked for again."
                )
