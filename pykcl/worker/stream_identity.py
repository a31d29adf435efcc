"""Identity of the stream: one that was deleted and created again is another one, and a shard may expire from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pykcl.errors import ShardGone, StreamMissing, TemporaryError, WrongStream
from pykcl.interfaces import Stream
from pykcl.model.absence import Absence
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.lease import Lease, Row
from pykcl.model.shard import StreamDescription
from pykcl.runtime import Runtime

_FRESH_SECONDS = 5.0
_SHARED_FAILURE_SECONDS = 1.0


class StreamIdentity:
    """The stream as it was when the worker started, and whether it still is that one. Thread-safe."""

    def __init__(self, description: StreamDescription, stream: Stream, runtime: Runtime, table: str) -> None:
        self.description = description
        self._stream = stream
        self._runtime = runtime
        self._table = table
        self._lock = runtime.lock()
        self._one_asks = runtime.lock()
        self._failed_at = float("-inf")
        self._failure = ""
        self._confirmed_at = runtime.monotonic()
        self._another = Absence()
        self._retention_hours = description.retention_hours
        self.ignores_keys = description.ignores_keys
        """By the latest answer: a stream may be switched at any time."""
        self._has_said_so = False

    def says_first_that_keys_are_ignored(self) -> bool:
        """True if the stream ignores partition keys, and this was not asked before while it did."""
        with self._lock:
            is_first, self._has_said_so = self.ignores_keys and not self._has_said_so, self.ignores_keys
            return is_first

    @property
    def retention_millis(self) -> int:
        """The retention period as last reported by Kinesis."""
        return self._retention_hours * 3_600_000

    def confirm(self, *, max_age: float = 0.0) -> None:
        """Ask Kinesis, unless it was asked less than `max_age` seconds ago.

        Raises WrongStream when the stream was made again, StreamMissing when there is none, TemporaryError.
        """
        asked_at = self._runtime.monotonic()
        with self._lock:
            if asked_at - self._confirmed_at < max_age:
                return
        was, now = self.description, self._stream.describe()
        if (now.arn, now.created_at) != (was.arn, was.created_at):
            if not self._another.is_proven(self._runtime.monotonic(), asked_at):
                raise TemporaryError(
                    f"Stream {was.name!r} seems to be another one, created at {now.created_at} (was {was.created_at}, "
                    "epoch ms). It is asked again, as an endpoint or credentials may be others for a moment."
                )
            raise WrongStream(
                f"Stream {was.name!r} was deleted and created again while this worker ran (created at "
                f"{now.created_at}, was {was.created_at}, epoch ms). The leases describe records that no longer "
                "exist; nothing of the new stream was read. Do: stop all workers, then start them under another "
                f"application name, or delete the lease table {self._table!r} first."
            )
        with self._lock:
            self._another.found()
            self._confirmed_at = max(self._confirmed_at, asked_at)
            self._retention_hours = now.retention_hours
            self.ignores_keys = now.ignores_keys

    def confirm_before_opening(self) -> None:
        """Confirm as `confirm` does, where an answer of the last seconds or a failure of the last second is enough.

        Many shards are opened at once: an account may ask twenty times a second, and in an outage all shards of all
        workers want to know.
        """
        with self._one_asks:
            if self._runtime.monotonic() - self._failed_at < _SHARED_FAILURE_SECONDS:
                raise TemporaryError(self._failure)
            try:
                self.confirm(max_age=_FRESH_SECONDS)
            except TemporaryError as error:
                self._failed_at, self._failure = self._runtime.monotonic(), str(error)
                raise

    def conflicts_with(self, lease: Lease) -> bool:
        """True if the lease's metadata name another stream, or an earlier one of that name."""
        return lease.metadata is not None and lease.metadata.conflicts_with(self.description)

    def refuse_foreign_leases(self, rows: Iterable[Row]) -> None:
        """Raise WrongStream when the table holds leases of another stream: one application reads one stream."""
        conflicts = [row for row in rows if isinstance(row, Lease) and self.conflicts_with(row)]
        metadata = conflicts[0].metadata if conflicts else None
        if metadata is None:
            return
        if metadata.stream_arn == self.description.arn:
            why = (
                f"an earlier stream of that name (created at {metadata.stream_created_at} epoch ms, the present one at "
                f"{self.description.created_at}): it was deleted and created again"
            )
        else:
            why = f"stream {metadata.stream_arn}"
        raise WrongStream(
            f"{len(conflicts)} leases in table {self._table!r} belong to {why}. This worker reads "
            f"{self.description.arn}. Nothing was read or changed. Do: use another application name for this stream, "
            "or, if the old positions are worthless, stop all workers and delete the table."
        )


def readable(stream: Stream) -> StreamDescription:
    """The stream, once it can be read. ACTIVE or UPDATING will do: a restart during a reshard must not block.

    Raises StreamMissing where it goes away, TemporaryError while it is not there yet.
    """
    found = stream.describe()
    if found.status == "DELETING":
        raise StreamMissing(
            f"Stream {found.arn} is being deleted. Do: create it again, or name another stream."
        )
    if found.status not in ("ACTIVE", "UPDATING"):
        raise TemporaryError(f"Stream {found.arn} is {found.status}; waiting until it is ACTIVE.")
    return found


def denied_once(what: str) -> TemporaryError:
    """Return the error for a shard that Kinesis denies, as long as that is no proof; see `Absence`."""
    return TemporaryError(f"Kinesis does not know {what}. It is asked again: one answer proves nothing.")


class ExpiredShardCheck:
    """The shards that Kinesis does not know any more, by GetShardIterator. Thread-safe.

    That is believed when it was said twice, some seconds apart, and this worker read nothing of the shard in between:
    1) a host of Kinesis denies a shard once, by mistake; 2) its parent counts as read, or its own row is deleted;
    3) records are skipped.
    """

    def __init__(self, stream: Stream, runtime: Runtime) -> None:
        self._stream, self._runtime = stream, runtime
        self._lock = runtime.lock()
        self._known: set[str] = set()
        self._unknown: dict[str, Absence] = {}

    def __len__(self) -> int:
        """Number of answers, so far, that a shard is unknown: it grows while others wait for their turn."""
        with self._lock:
            return len(self._known) + len(self._unknown)

    def confirm(self, shard_ids: Iterable[str], stopping: Callable[[], bool] = lambda: False) -> None:
        """Raise TemporaryError if Kinesis still knows one of them, or has not denied it twice.

        The listing that lacks it was old or incomplete then. stopping: ends the questions; nothing is proved by that.

        A parent without a lease and without a shard counts as read. If it only appears so, 1) its child gets a lease,
        2) the child is read, 3) no shard with a leased descendant is ever begun: the parent's records are skipped.
        """
        with self._lock:
            unknown = sorted(set(shard_ids) - self._known)
        doubtful = ""
        for shard_id in unknown:
            if stopping():
                break
            try:
                # What was denied a moment ago waits: Kinesis answers so many questions a second.
                if self._was_denied_just_now(shard_id) or not self.is_gone(shard_id):
                    doubtful = shard_id
            except ShardKnown:
                raise TemporaryError(
                    f"The list of shards lacks {shard_id}, which Kinesis knows; it is asked for again."
                ) from None
        if doubtful:
            raise denied_once(f"{doubtful}, which its list lacks")

    def _was_denied_just_now(self, shard_id: str) -> bool:
        with self._lock:
            absence = self._unknown.get(shard_id)
        return absence is not None and absence.is_fresh(self._runtime.monotonic())

    def is_gone(self, shard_id: str) -> bool:
        """Ask Kinesis; True if it does not know the shard, and has said so before, some seconds ago.

        Raises ShardKnown, TemporaryError, SetupError.
        """
        try:
            self._stream.open(shard_id, ReadFrom("TRIM_HORIZON"))
        except ShardGone:
            now = self._runtime.monotonic()
            with self._lock:
                is_proven = self._unknown.setdefault(shard_id, Absence()).is_proven(now)
                if is_proven:
                    self._known.add(shard_id)
                return is_proven
        self.found(shard_id)
        raise ShardKnown(f"Kinesis knows {shard_id}.")

    def found(self, shard_id: str) -> None:
        """Note that Kinesis answered a question about this shard: what it denied before was a mistake."""
        if shard_id in self._unknown or shard_id in self._known:  # hardly ever, and asked after each page
            with self._lock:
                self._unknown.pop(shard_id, None)
                self._known.discard(shard_id)


class ShardKnown(TemporaryError):
    """Kinesis knows a shard that seemed to have expired."""
