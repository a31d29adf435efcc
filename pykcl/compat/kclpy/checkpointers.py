"""What a processor checkpoints with: over the MultiLang protocol, or straight at the lease of its shard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pykcl.compat.java_checkpoints import (
    ILLEGAL_ARGUMENT,
    INVALID_STATE,
    JavaCheckpointError,
    JavaCheckpoints,
)
from pykcl.compat.kclpy.checkpoint_error import CheckpointError
from pykcl.compat.kclpy.messages import CheckpointInput
from pykcl.processor import Checkpointer as PykclCheckpointer


class Checkpointer:
    """Asks the daemon for a checkpoint and waits for its answer; for the one thread of the conversation only."""

    def __init__(self, io_handler: Any) -> None:
        self.io_handler = io_handler

    def checkpoint(self, sequence_number: Any = None, sub_sequence_number: Any = None) -> None:
        """Everything up to here is done; without arguments all that was delivered, or the shard where it has ended.

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
    """The same one in every call for a shard, as in a child of the daemon: a program may keep it, and may use it from
    any of its threads. Without arguments it means what was delivered last, unless the processor raised then: what was
    delivered before."""

    def __init__(self) -> None:
        super().__init__(None)
        # What is meant without a sequence number, and what judges one that is named.
        self._java = self._named = JavaCheckpoints(None)

    @contextmanager
    def handed(self, checkpointer: PykclCheckpointer | None) -> Iterator[LeaseCheckpointer]:
        """Let it stand for `checkpointer` from now on; for None, as long as the block lasts, for none.

        Behind a block that raises it means without arguments what it meant before, for:
        1) A batch raises, and is to come again; 2) a thread of the program says checkpoint(), as it does every second;
        3) the worker is stopped, or hands the lease back. Had 2 meant the batch of 1, nobody would be given it again.
        Each attempt puts back what it found, so what the next one finds is never of a failed one. A sequence number may
        still name a record of that batch: who names it has done it.
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
    """`KCLProcess.checkpointer` where one process has many shards: of the one whose method runs in this thread."""

    def __init__(self) -> None:
        super().__init__(None)

    def checkpoint(self, sequence_number: Any = None, sub_sequence_number: Any = None) -> None:
        checkpointer = _of_caller.get()
        if checkpointer is None:
            raise CheckpointError(INVALID_STATE)
        checkpointer.checkpoint(sequence_number, sub_sequence_number)


_of_caller: ContextVar[LeaseCheckpointer | None] = ContextVar("pykcl_kclpy_checkpointer", default=None)


def _sequence_number(given: Any) -> str | None:
    """As it arrives at Java, which takes a JSON number for its digits. Raises TypeError for what is no JSON, too."""
    return given if given is None or isinstance(given, str) else json.dumps(given)


def _sub_sequence_number(given: Any) -> int | None:
    """As it arrives at Java, which reads a number out of text and cuts off fractions."""
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
