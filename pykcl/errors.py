"""Everything pykcl raises on purpose, sorted by what the caller can do about it."""

from __future__ import annotations

from typing import TypeVar

from pykcl.error_catalog import docs_of, hint_of, with_names

Raised = TypeVar("Raised", bound="PyKclError")


class PyKclError(Exception):
    """Base of everything pykcl raises on purpose. Its text is one line, whatever the names in it came from.

    code: of the mistake it is about, such as "E05"; None where it is about none of the troubleshooting page.
    """

    code: str | None = None
    _hint: str | None = None
    _records = 0
    _names: dict[str, str] = {}  # noqa: RUF012 - replaced as a whole, never changed

    @property
    def hint(self) -> str | None:
        """The next command or edit; None without a code."""
        if self._hint:
            return with_names(self._hint, self._names)
        return hint_of(self.code, self._names, records=self._records)

    @property
    def docs(self) -> str | None:
        """Address of the page about the mistake; None without a code."""
        return docs_of(self.code)

    @property
    def explanation(self) -> str | None:
        """Code, hint and address of the page in one line; None where it is about no mistake. Without the hint where the
        text ends with it."""
        if self.code is None:
            return None
        said = str(self).endswith(f"Do: {self.hint}.")
        return printable(f"{self.code}. {'' if said else f'Do: {self.hint}. '}{self.docs}")

    def about(self: Raised, code: str, hint: str | None = None, *, records: int = 0) -> Raised:
        """Say which mistake this is, and (better than the general hint) what to do about it. Returns the error.

        records: over how many it was made.
        """
        self.code, self._hint, self._records = code, hint, records
        return self

    def naming(
        self: Raised,
        *,
        application: str | None = None,
        stream: str | None = None,
        table: str | None = None,
        shard: str | None = None,
    ) -> Raised:
        """Put these names, as far as they are known, in their places in the hint. Returns the error."""
        names = {"APPLICATION": application, "STREAM": stream, "TABLE": table, "SHARD": shard}
        self._names = {
            **self._names,
            **{word: name for word, name in names.items() if name is not None},
        }
        return self

    def __str__(self) -> str:
        # A lease key or an owner is what somebody wrote into a row: it must not forge a line or drive a terminal.
        return printable(super().__str__())


def printable(text: str) -> str:
    """`text` as one line that drives no terminal: what cannot be printed is shown as Python would write it."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def shown(value: object) -> str:
    """Return a value of any type as an error message shows it: cut."""
    try:
        return repr(value)[:200]
    except ValueError:
        # A whole number of more digits than Python is willing to write down.
        return f"<a {type(value).__name__} too long to show>"


NO_UTF8 = "holds half of a character (\\ud800 to \\udfff alone), or a byte that is no UTF-8"


def is_utf8(text: str) -> bool:
    """Return True if the text can be encoded as UTF-8. Text of JSON, a file or the environment may not be."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class ConfigError(PyKclError, ValueError):
    """The configuration contradicts itself or names something unknown. Change it; the message says what and how."""


class NotAProcessor(ConfigError):
    """`processor=` neither is nor makes a record processor. Trying again makes no better one, so the worker stops."""

    code = "E15"


class SetupError(PyKclError):
    """The surroundings are not as configured: region, credentials, permissions, stream, table. Fix, then restart."""


class FatalError(SetupError):
    """The whole worker must stop, however long it has worked: waiting does not help. `Worker.run` raises it."""


class StreamMissing(FatalError):
    """The stream does not exist in that region and account, or is being deleted."""

    code = "E03"


class WrongStream(FatalError):
    """The lease table belongs to another stream, or to an earlier stream of the same name. Nothing was read."""

    code = "E07"


class WrongTable(SetupError):
    """A table of that name exists and is not a lease table. Nothing was changed in it."""

    code = "E05"


class NativeFleet(SetupError):
    """Java KCL 3.x works on the lease table in its own mode, in which a leader assigns the leases. Nothing was
    changed."""

    code = "E06"


class TableGone(FatalError):
    """The lease table was deleted while the worker ran, and perhaps made anew. All delivery has stopped; positions are
    gone with it."""


class LeaseLostError(PyKclError):
    """This worker may no longer write for the shard. Stop work on it, do not retry; another worker continues."""

    code = "E10"


class CheckpointRefused(PyKclError, ValueError):
    """The position lies behind the last checkpoint or beyond what was delivered. Checkpoint a delivered record."""

    code = "E13"


class RestartShard(PyKclError):
    """Raised *by* a record processor that is of no use any more (a process it stood for has died, say).

    After a back-off the shard begins anew under the same lease, at its last checkpoint and with a new instance. The old
    one is called no more, but for lease_lost or shutdown_requested in the meantime. Its checkpointers raise
    LeaseLostError. If no new one gets past that place for `retry_timeout`, the lease is handed back and left alone.
    """


class ProcessingError(PyKclError):
    """Raised *by* `process_records` to say which of its records are done, and which are not: FailedAt, Reject."""


class DeadLettersUnsent(SetupError):
    """The destination did not keep the dead letters of a shard. Its checkpoint stands before them, and its lease was
    handed back. `__cause__` is the error of the destination."""

    code = "E22"


class ProcessorFailed(PyKclError):
    """A record processor raised and `on_error="raise"` stops the worker. `__cause__` is its exception."""

    code = "E12"


class StopTimedOut(PyKclError):
    """`stop()` waited for the whole grace period and these threads had not ended. `threads` names them."""

    def __init__(self, message: str, threads: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.threads = threads


class TemporaryError(PyKclError):
    """AWS did not do it this time: throttled, unreachable, or failing; or the system did not, which had no thread to
    give. The same call may work later."""


class TableNotActive(TemporaryError):
    """The lease table is being made, which takes AWS seconds. The same call works once it is ACTIVE."""


class LeaseInDoubt(TemporaryError):
    """No heartbeat of a lease was answered in time, and none was refused: nothing is done for it until one is."""


class Throttled(TemporaryError):
    """Refused for its rate. Slow down, then call again."""


class IteratorExpired(PyKclError):
    """The shard iterator is older than five minutes or was refused. Open a new one at the last delivered record."""


class ShardGone(PyKclError):
    """Kinesis says that the shard does not exist: it was trimmed away, or belongs to another stream."""


class SubscriptionOver(PyKclError):
    """A subscription of enhanced fan-out has ended in good order, as each does after five minutes. Subscribe again."""


class SubscriptionTaken(TemporaryError):
    """Another subscription of the same consumer reads this shard, or began less than five seconds ago."""


class ConsumerGone(TemporaryError):
    """Kinesis no longer has the consumer of enhanced fan-out."""


class AnswerRefused(TemporaryError):
    """An AWS answer that cannot be true, such as a page with both a next iterator and child shards."""


class PositionRefused(TemporaryError):
    """Kinesis knows the shard, but not the position in its lease row: an operator must correct the row.

    Other shards are not affected. The worker tries again from time to time, and so picks up a corrected row.
    """


class RecordRefused(PyKclError, ValueError):
    """Kinesis takes no such record: its key, its explicit hash key or its size. Nothing was put. Change the record."""


class BufferFull(PyKclError):
    """The producer holds as many records as it may, or was closed while this one waited for room. It was not taken."""


class NotDelivered(PyKclError):
    """A record was given up: its time ran out, the producer was closed, or one before it in its shard was given up.

    perhaps_put: it may be in the stream all the same, as a request with it had no answer. A record that is given up for
    another error and may be there has this one, too; `__cause__` is the other.
    """

    def __init__(self, message: str, *, perhaps_put: bool = False) -> None:
        super().__init__(message)
        self.perhaps_put = perhaps_put


class FlushTimedOut(PyKclError):
    """Some records were not put within the time-out of a flush. They are still being sent. Flush again.

    pending: their number.
    """

    def __init__(self, message: str, pending: int = 0) -> None:
        super().__init__(message)
        self.pending = pending


class Refused(PyKclError):
    """The operation would do harm now, or the state has changed since it was shown. Nothing was written."""


class InternalError(PyKclError):
    """A bug in pykcl: a required thread has died, so the worker stops. `__cause__` is the error that ended it."""


NOT_THE_DATA = (MemoryError, OSError, PyKclError)
"""Errors of a decoder or a serializer that are no verdict on the data: there is no memory, or a registry of schemas is
away."""
