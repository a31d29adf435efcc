"""pykcl: the Kinesis Client Library in pure Python, on the same lease table as Amazon's Java KCL 2.x."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pykcl.config import Config
    from pykcl.errors import (
        CheckpointRefused,
        ConfigError,
        DeadLettersUnsent,
        FatalError,
        InternalError,
        LeaseLostError,
        NativeFleet,
        ProcessingError,
        ProcessorFailed,
        PyKclError,
        RestartShard,
        SetupError,
        StopTimedOut,
        StreamMissing,
        TableGone,
        TemporaryError,
        WrongStream,
        WrongTable,
    )
    from pykcl.interfaces import DeadLetterDestination
    from pykcl.model.checkpoint import Checkpoint
    from pykcl.model.dead_letter import Condition, DeadLetter
    from pykcl.model.lease import PendingCheckpoint
    from pykcl.model.record import Record
    from pykcl.processor import (
        Batch,
        Checkpointer,
        FailedAt,
        InitializationInput,
        LeaseLostInput,
        PreparedCheckpoint,
        RecordProcessor,
        Reject,
        ShardEndedInput,
        ShutdownRequestedInput,
    )
    from pykcl.worker.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Checkpoint",
    "CheckpointRefused",
    "Checkpointer",
    "Condition",
    "Config",
    "ConfigError",
    "DeadLetter",
    "DeadLetterDestination",
    "DeadLettersUnsent",
    "FailedAt",
    "FatalError",
    "InitializationInput",
    "InternalError",
    "LeaseLostError",
    "LeaseLostInput",
    "NativeFleet",
    "PendingCheckpoint",
    "PreparedCheckpoint",
    "ProcessingError",
    "ProcessorFailed",
    "PyKclError",
    "Record",
    "RecordProcessor",
    "Reject",
    "RestartShard",
    "SetupError",
    "ShardEndedInput",
    "ShutdownRequestedInput",
    "StopTimedOut",
    "StreamMissing",
    "TableGone",
    "TemporaryError",
    "Worker",
    "WrongStream",
    "WrongTable",
    "__version__",
]

# Each name is fetched from its home when it is first used: `import pykcl` costs milliseconds, and a program
# that needs only RecordProcessor does not load the worker.
_HOMES = {
    "Batch": "pykcl.processor",
    "Checkpoint": "pykcl.model.checkpoint",
    "CheckpointRefused": "pykcl.errors",
    "Checkpointer": "pykcl.processor",
    "Config": "pykcl.config",
    "Condition": "pykcl.model.dead_letter",
    "ConfigError": "pykcl.errors",
    "DeadLetter": "pykcl.model.dead_letter",
    "DeadLetterDestination": "pykcl.interfaces",
    "DeadLettersUnsent": "pykcl.errors",
    "FailedAt": "pykcl.processor",
    "FatalError": "pykcl.errors",
    "InitializationInput": "pykcl.processor",
    "InternalError": "pykcl.errors",
    "LeaseLostInput": "pykcl.processor",
    "LeaseLostError": "pykcl.errors",
    "NativeFleet": "pykcl.errors",
    "PendingCheckpoint": "pykcl.model.lease",
    "PreparedCheckpoint": "pykcl.processor",
    "ProcessingError": "pykcl.errors",
    "ProcessorFailed": "pykcl.errors",
    "Reject": "pykcl.processor",
    "RestartShard": "pykcl.errors",
    "PyKclError": "pykcl.errors",
    "Record": "pykcl.model.record",
    "RecordProcessor": "pykcl.processor",
    "SetupError": "pykcl.errors",
    "ShardEndedInput": "pykcl.processor",
    "ShutdownRequestedInput": "pykcl.processor",
    "StopTimedOut": "pykcl.errors",
    "StreamMissing": "pykcl.errors",
    "TableGone": "pykcl.errors",
    "TemporaryError": "pykcl.errors",
    "Worker": "pykcl.worker.worker",
    "WrongStream": "pykcl.errors",
    "WrongTable": "pykcl.errors",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pykcl' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
