"""Checkpoints with the meaning and the error names of Java KCL, over a pykcl checkpointer.

What a MultiLangDaemon does with a child's checkpoint request, and so what amazon_kclpy's users know.
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
    """checkpointer: of the running call; None where Java has none, too (initialize, leaseLost)."""

    def __init__(self, checkpointer: Checkpointer | None) -> None:
        self._checkpointer = checkpointer

    def checkpoint(self, sequence_number: str | None = None, sub_sequence_number: int | None = None) -> None:
        """As `checkpoint` of Java's record processor checkpointer.

        Without a sequence number the largest delivered position, or the end of the shard where it has ended; a
        sub-sequence number alone says nothing. A sequence number without one means its first record (sub 0).
        Raises JavaCheckpointError; nothing was written then, or, for what may pass, it is not known to be.
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
    """The simple name of the exception Java would have thrown.

    Source: MultiLangDaemon hands on the class name of what its checkpointer threw (2.x, 3.x). Java has one name for a
    lease that is lost and for a worker that stops; a table that is gone is an invalid state.
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
