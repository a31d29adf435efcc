"""Record processors of version 3: one method for each thing that can happen."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from pykcl.compat.kclpy.messages import (
    InitializeInput,
    LeaseLostInput,
    ProcessRecordsInput,
    ShardEndedInput,
    ShutdownInput,
    ShutdownRequestedInput,
    unwritten,
)


class RecordProcessorBase:
    """Base of a program's processor."""

    version = 3

    @abstractmethod
    def initialize(self, initialize_input: InitializeInput) -> None:
        """Called once, before the first batch."""
        raise unwritten(self, "initialize")

    @abstractmethod
    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Called with each batch."""
        raise unwritten(self, "process_records")

    @abstractmethod
    def lease_lost(self, lease_lost_input: LeaseLostInput) -> None:
        """Called once when another worker has the lease. Nothing can be checkpointed any more."""
        raise unwritten(self, "lease_lost")

    @abstractmethod
    def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
        """Called when every record was delivered; again until it has checkpointed."""
        raise unwritten(self, "shard_ended")

    @abstractmethod
    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None:
        """Called when the worker stops: the last chance to checkpoint."""
        raise unwritten(self, "shutdown_requested")


class V2toV3Processor(RecordProcessorBase):
    """A processor of version 2, called as one of version 3."""

    def __init__(self, delegate: Any) -> None:
        self.delegate = delegate

    def initialize(self, initialize_input: InitializeInput) -> Any:
        return self.delegate.initialize(initialize_input)

    def process_records(self, process_records_input: ProcessRecordsInput) -> Any:
        return self.delegate.process_records(process_records_input)

    def lease_lost(self, lease_lost_input: LeaseLostInput) -> Any:
        return self.delegate.shutdown(ShutdownInput.zombie())

    def shard_ended(self, shard_ended_input: ShardEndedInput) -> Any:
        return self.delegate.shutdown(ShutdownInput.terminate(shard_ended_input.checkpointer))

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> Any:
        return self.delegate.shutdown_requested(shutdown_requested_input)
