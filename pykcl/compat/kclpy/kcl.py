"""amazon_kclpy.kcl: KCLProcess, Checkpointer, CheckpointError and the record processor of version 1.

Protocol: Java's MultiLangDaemon writes one JSON object per line to the child's standard input and reads JSON lines from
its standard output, one conversation per shard (KCL 2.x and 3.x `multilang`).
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from abc import abstractmethod
from typing import Any, TextIO

from pykcl.compat.kclpy import dispatch, launch, messages
from pykcl.compat.kclpy.adapter import as_version_3, one_of, version_of
from pykcl.compat.kclpy.checkpoint_error import CheckpointError
from pykcl.compat.kclpy.checkpointers import Checkpointer, CheckpointerOfCaller
from pykcl.compat.kclpy.messages import unwritten
from pykcl.compat.kclpy.v2 import processor as v2processor
from pykcl.compat.kclpy.v3 import processor as v3processor

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "KCLProcess",
    "RecordProcessorBase",
    "dispatch",
    "messages",
    "v2processor",
    "v3processor",
]

log = logging.getLogger("pykcl.kclpy")

_STANDARD_INPUT, _STANDARD_OUTPUT, _STANDARD_ERROR = sys.stdin, sys.stdout, sys.stderr
"""Of when this module is imported: a program may point sys.stdout elsewhere, to keep print() out of the protocol."""


class _IOHandler:
    """The conversation with a MultiLangDaemon, line by line."""

    def __init__(self, input_file: TextIO, output_file: TextIO, error_file: TextIO) -> None:
        self.input_file = input_file
        self.output_file = output_file
        self.error_file = error_file

    def write_line(self, line: str) -> None:
        # A line of its own, also behind something that was printed without an end of line.
        self.output_file.write(f"\n{line}\n")
        self.output_file.flush()

    def write_error(self, error_message: str) -> None:
        self.error_file.write(f"{error_message}\n")
        self.error_file.flush()

    def read_line(self) -> str:
        return self.input_file.readline()

    def load_action(self, line: str) -> Any:
        return json.loads(line, object_hook=dispatch.message_decode)

    def write_action(self, response: dict[str, Any]) -> None:
        self.write_line(json.dumps(response))


class RecordProcessorBase:
    """Base of a program's processor, version 1."""

    version = 1

    @abstractmethod
    def initialize(self, shard_id: str) -> None:
        """Called once, before the first batch."""
        raise unwritten(self, "initialize")

    @abstractmethod
    def process_records(self, records: list[messages.Record], checkpointer: Checkpointer) -> None:
        """Called with each batch."""
        raise unwritten(self, "process_records")

    @abstractmethod
    def shutdown(self, checkpointer: Checkpointer, reason: str) -> None:
        """Called once: with reason "TERMINATE" the shard has ended and must be checkpointed, with "ZOMBIE" the lease is
        lost and nothing can be."""
        raise unwritten(self, "shutdown")

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        """Called when the worker stops: the last chance to checkpoint."""


class KCLProcess:
    """Run a record processor.

    Under `pykcl run --kclpy`, unless other files are given: as a pykcl Worker in this process, with one instance of the
    processor for each shard. Else as the child of a MultiLangDaemon: one shard, over these files.

    record_processor: an instance of version 1, 2 or 3; or, an extension of pykcl, a class or a function without
    arguments that creates one. Raises ConfigError for anything else.
    """

    def __init__(
        self,
        record_processor: Any,
        input_file: TextIO = _STANDARD_INPUT,
        output_file: TextIO = _STANDARD_OUTPUT,
        error_file: TextIO = _STANDARD_ERROR,
    ) -> None:
        self.io_handler = _IOHandler(input_file, output_file, error_file)
        self._launch = launch.current() if _is_standard_input(input_file) else None
        if self._launch is not None:
            self.processor = record_processor
            self.checkpointer: Any = CheckpointerOfCaller()
            return
        self.checkpointer = Checkpointer(self.io_handler)
        one = one_of(record_processor)
        self.processor = as_version_3(one, version_of(one))

    def run(self) -> None:
        """Run until the worker is stopped, or the daemon closes the standard input.

        As a worker, raises the error that stopped it, and SystemExit if a method of the processor called sys.exit().
        """
        if self._launch is not None:
            self._warn_of_overrides()
            self._launch.run(self.processor)
            return
        while line := self.io_handler.read_line():
            self._handle_a_line(line)

    def _warn_of_overrides(self) -> None:
        changed = [
            name for name in _OF_THE_CONVERSATION if getattr(type(self), name) is not _AS_WRITTEN[name]
        ]
        if changed:
            log.warning(
                "KCLProcess.%s of the program is not called, because no daemon takes part in this process.",
                ", ".join(changed),
            )

    def _handle_a_line(self, line: str) -> None:
        action = self.io_handler.load_action(line)
        self._perform_action(action)
        self._report_done(action.action)

    def _perform_action(self, action: messages.MessageDispatcher) -> None:
        try:
            action.dispatch(self.checkpointer, self.processor)
        except Exception:  # noqa: BLE001 - as amazon_kclpy: printed, and reported as done
            traceback.print_exc(file=self.io_handler.error_file)
            self.io_handler.error_file.flush()

    def _report_done(self, response_for: str | None = None) -> None:
        self.io_handler.write_action({"action": "status", "responseFor": response_for})


_OF_THE_CONVERSATION = ("_handle_a_line", "_perform_action", "_report_done")
_AS_WRITTEN = {name: getattr(KCLProcess, name) for name in _OF_THE_CONVERSATION}


def _is_standard_input(file: Any) -> bool:
    """Return True for the standard input, also if the program opened it again to set its encoding or buffer."""
    if file is _STANDARD_INPUT:
        return True
    try:
        return os.path.sameopenfile(file.fileno(), 0)
    except (AttributeError, OSError, ValueError):
        # Not a file of the system, closed, or there is no standard input.
        return False
