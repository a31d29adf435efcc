"""Record processors of version 2: inputs are objects, and one `shutdown` covers a lost lease and the end of a shard."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from pykcl.compat.kclpy.messages import (
    InitializeInput,
    ProcessRecordsInput,
    ShutdownInput,
    ShutdownRequestedInput,
    unwritten,
)


class RecordProcessorBase:
    """Base of a program's processor."""

    version = 2

    @abstractmethod
    def initialize(self, initialize_input: InitializeInput) -> None:
        """Called once, before the first batch."""
        raise unwritten(self, "initialize")

    @abstractmethod
    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Called with each batch."""
        raise unwritten(self, "process_records")

    @abstractmethod
    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Called once: with reason "TERMINATE" the shard has ended and must be checkpointed, with "ZOMBIE" the lease is
        lost and nothing can be."""
        raise unwritten(self, "shutdown")

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None:
        """Called when the worker stops: the last chance to checkpoint."""


class V1toV2Processor(RecordProcessorBase):
    """A processor of version 1, called as one of version 2."""

    def __init__(self, delegate: Any) -> None:
        self.delegate = delegate

    def initialize(self, initialize_input: InitializeInput) -> Any:
        return self.delegate.initialize(initialize_input.shard_id)

    def process_records(self, process_records_input: ProcessRecordsInput) -> Any:
        return self.delegate.process_records(
            process_records_input.records, process_records_input.checkpointer
        )

    def shutdown(self, shutdown_input: ShutdownInput) -> Any:
        return self.delegate.shutdown(shutdown_input.checkpointer, shutdown_input.reason)

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> Any:
        return self.delegate.shutdown_requested(shutdown_requested_input.checkpointer)
