"""Checkpoints with the meaning and the error names of Java KCL, over a pykcl checkpointer.

As a MultiLangDaemon handles a checkpoint request of a child, and as users of amazon_kclpy know it.
"""

from __future__ import annotations

from pykcl.errors import (
    CheckpointRefused,
    LeaseLostError,
    PyKclError,
    SetupError,
    TableGone,
    TemporaryError,
    Throttled,
)
from pykcl.processor import Checkpointer

SHUTDOWN = "ShutdownException"
THROTTLING = "ThrottlingException"
INVALID_STATE = "InvalidStateException"
DEPENDENCY = "KinesisClientLibDependencyException"
ILLEGAL_ARGUMENT = "IllegalArgumentException"


class JavaCheckpointError(Exception):
    """A checkpoint that was not written. value: the simple name of the exception that Java would have thrown."""

    def __init__(self, value: str, message: str) -> None:
        super().__init__(message)
        self.value = value


class JavaCheckpoints:
    """checkpointer: of the running call; None where Java has none either (initialize, leaseLost)."""

    def __init__(self, checkpointer: Checkpointer | None) -> None:
        self._checkpointer = checkpointer

    def checkpoint(self, sequence_number: str | None = None, sub_sequence_number: int | None = None) -> None:
        """Checkpoint as Java's RecordProcessorCheckpointer does.

        Without a sequence number at the largest delivered position, or at the end of an ended shard; a sub-sequence
        number alone has no effect. A sequence number alone means its first record (sub-sequence number 0).
        Raises JavaCheckpointError; then nothing was written, or after a temporary error possibly so.
        """
        if self._checkpointer is None:
            raise JavaCheckpointError(
                INVALID_STATE, "There is nothing to checkpoint here: no record was delivered."
            )
        try:
            if sequence_number is None:
                self._checkpointer.checkpoint()
            else:
                self._checkpointer.checkpoint(sequence_number, sub_sequence_number or 0)
        except (PyKclError, TypeError, ValueError) as error:
            raise JavaCheckpointError(name_of(error), str(error)) from error


def name_of(error: Exception) -> str:
    """Return the simple name of the exception that Java would throw.

    Source: MultiLangDaemon sends the class name of the exception of its checkpointer (2.x, 3.x). Java has one name for
    a lost lease and a stopping worker; a deleted table is an invalid state.
    """
    if isinstance(error, LeaseLostError):
        return SHUTDOWN
    if isinstance(error, Throttled):
        return THROTTLING
    if isinstance(error, TableGone):
        return INVALID_STATE
    if isinstance(error, TemporaryError | SetupError):
        return DEPENDENCY
    if isinstance(error, CheckpointRefused | TypeError | ValueError):
        return ILLEGAL_ARGUMENT
    return INVALID_STATE
