"""Checkpointers of a processor: over the MultiLang protocol, or directly at the lease of its shard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pykcl.compat.kclpy.checkpoint_error import CheckpointError
from pykcl.compat.kclpy.messages import CheckpointInput
from pykcl.compat.multilang.protocol import (
    ILLEGAL_ARGUMENT,
    INVALID_STATE,
    JavaCheckpointError,
    JavaCheckpoints,
)
from pykcl.processor import Checkpointer as PykclCheckpointer


class Checkpointer:
    """Request a checkpoint from the daemon and wait for the answer; only for the thread of the conversation."""

    def __init__(self, io_handler: Any) -> None:
        self.io_handler = io_handler

    def checkpoint(self, sequence_number: Any = None, sub_sequence_number: Any = None) -> None:
        """Checkpoint at this position; without arguments after all delivered records, or at the end of an ended shard.

        A sequence number without a sub-sequence number means the first record of its aggregate.
        Raises CheckpointError.
        """
        self.io_handler.write_action(
            {
                "action": "checkpoint",
                "sequenceNumber": sequence_number,
                "subSequenceNumber": sub_sequence_number,
            }
        )
        answer = self.io_handler.load_action(self.io_handler.read_line())
        if not isinstance(answer, CheckpointInput):
            raise CheckpointError(INVALID_STATE)
        if answer.error is not None:
            raise CheckpointError(answer.error)


class LeaseCheckpointer(Checkpointer):
    """The checkpointer of a shard, the same in every call, as in a child of the daemon: a program may keep it, and use
    it from any thread. Without arguments it checkpoints the last delivered batch; if the processor raised on that, the
    batch before."""

    def __init__(self) -> None:
        super().__init__(None)
        # The target without a sequence number, and the one that checks a given sequence number.
        self._java = self._named = JavaCheckpoints(None)

    @contextmanager
    def handed(self, checkpointer: PykclCheckpointer | None) -> Iterator[LeaseCheckpointer]:
        """Use `checkpointer` from now on; None: use none during the block.

        After a block that raises, checkpoint() without arguments has its previous target again:
        1) A batch raises, and is to be delivered again; 2) a thread of the program calls checkpoint(), as it does every
        second; 3) the worker stops, or releases the lease. If 2 checkpointed the batch of 1, no worker would deliver it
        again. Each attempt restores what it found, so the next one never finds the target of a failed one. A sequence
        number may still name a record of that batch, as the program states that it is done.
        """
        before = self._java, self._named
        self._java = self._named = JavaCheckpoints(checkpointer)
        token = _of_caller.set(self)
        try:
            yield self
        except BaseException:
            self._java = before[0]
            raise
        finally:
            _of_caller.reset(token)
            if checkpointer is None:
                self._java, self._named = before

    def checkpoint(self, sequence_number: Any = None, sub_sequence_number: Any = None) -> None:
        try:
            meant = self._java if sequence_number is None else self._named
            meant.checkpoint(_sequence_number(sequence_number), _sub_sequence_number(sub_sequence_number))
        except JavaCheckpointError as error:
            raise CheckpointError(error.value) from error


class CheckpointerOfCaller(Checkpointer):
    """`KCLProcess.checkpointer` in a process with many shards: of the shard whose method runs in this thread."""

    def __init__(self) -> None:
        super().__init__(None)

    def checkpoint(self, sequence_number: Any = None, sub_sequence_number: Any = None) -> None:
        checkpointer = _of_caller.get()
        if checkpointer is None:
            raise CheckpointError(INVALID_STATE)
        checkpointer.checkpoint(sequence_number, sub_sequence_number)


_of_caller: ContextVar[LeaseCheckpointer | None] = ContextVar("pykcl_kclpy_checkpointer", default=None)


def _sequence_number(given: Any) -> str | None:
    """Convert as Java does, which reads the digits of a JSON number. Raises TypeError for what is not JSON."""
    return given if given is None or isinstance(given, str) else json.dumps(given)


def _sub_sequence_number(given: Any) -> int | None:
    """Convert as Java does, which parses text as a number and truncates fractions."""
    if given is None or given == "":
        return None
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise JavaCheckpointError(
            ILLEGAL_ARGUMENT, f"A sub-sequence number is a number, not {type(given).__name__}."
        )
    try:
        return int(given)
    except (ValueError, OverflowError):
        raise JavaCheckpointError(ILLEGAL_ARGUMENT, "The sub-sequence number is not a number.") from None
