"""Everything pykcl raises on purpose, sorted by what the caller can do about it."""

from __future__ import annotations


class PyKclError(Exception):
    """Base of everything pykcl raises on purpose. Its text is one line, whatever the names in it came from."""

    def __str__(self) -> str:
        # A lease key or an owner is what somebody wrote into a row: it must not forge a line or drive a terminal.
        return printable(super().__str__())


def printable(text: str) -> str:
    """`text` as one line that drives no terminal: what cannot be printed is shown as Python would write it."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


class ConfigError(PyKclError, ValueError):
    """The configuration contradicts itself or names something unknown. Change it; the message says what and how."""


class SetupError(PyKclError):
    """The surroundings are not as configured: region, credentials, permissions, stream, table. Fix, then restart."""


class StreamMissing(SetupError):
    """The stream does not exist in that region and account, or is being deleted."""


class WrongStream(SetupError):
    """The lease table belongs to another stream, or to an earlier stream of the same name. Nothing was read."""


class WrongTable(SetupError):
    """A table of that name exists and is not a lease table. Nothing was changed in it."""


class NativeFleet(SetupError):
    """Java KCL 3.x works on the lease table in its own mode, in which a leader assigns the leases. Nothing was
    changed."""


class TableGone(SetupError):
    """The lease table was deleted while the worker ran, and perhaps made anew. All delivery has stopped; positions are
    gone with it."""


class LeaseLost(PyKclError):
    """This worker may no longer write for the shard. Stop work on it, do not retry; another worker continues."""


class CheckpointRefused(PyKclError, ValueError):
    """The position lies behind the last checkpoint or beyond what was delivered. Checkpoint a delivered record."""


class ProcessorFailed(PyKclError):
    """A record processor raised and `on_error="raise"` stops the worker. `__cause__` is its exception."""


class StopTimedOut(PyKclError):
    """`stop()` waited for the whole grace period and these threads had not ended. `threads` names them."""

    def __init__(self, message: str, threads: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.threads = threads


class TemporaryError(PyKclError):
    """AWS did not do it this time: throttled, unreachable, or failing. The same call may work later."""


class Throttled(TemporaryError):
    """Refused for its rate. Slow down, then call again."""


class IteratorExpired(PyKclError):
    """The shard iterator is older than five minutes or was refused. Open a new one at the last delivered record."""


class ShardGone(PyKclError):
    """Kinesis says that the shard does not exist: it was trimmed away, or belongs to another stream."""


class AnswerRefused(TemporaryError):
    """An AWS answer that cannot be true, such as a page with both a next iterator and child shards."""


class PositionRefused(TemporaryError):
    """Kinesis knows the shard but not the position its lease row names: the row must be corrected by a person.

    Other shards are not concerned. It is asked again now and then, so that a corrected row is picked up.
    """


class InternalError(PyKclError):
    """A bug in pykcl: a thread nobody can do without has died, so the worker stops. `__cause__` is what it died of."""
