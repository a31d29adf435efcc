"""pykcl: the Kinesis Client Library in pure Python, on the same lease table as Amazon's Java KCL 2.x."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pykcl.config import Config
    from pykcl.errors import (
        CheckpointRefused,
        ConfigError,
        FatalError,
        InternalError,
        LeaseLostError,
        NativeFleet,
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
    from pykcl.event_dispatch import Listener
    from pykcl.events import Event
    from pykcl.metrics.catalog import Measure
    from pykcl.metrics.meter import MetricsSink
    from pykcl.model.checkpoint import Checkpoint, StartPosition
    from pykcl.model.lease import PendingCheckpoint
    from pykcl.model.record import Record
    from pykcl.processor import (
        Batch,
        Checkpointer,
        InitializationInput,
        LeaseLostInput,
        PreparedCheckpoint,
        ProcessorFactory,
        RecordProcessor,
        ShardEndedInput,
        ShutdownRequestedInput,
    )
    from pykcl.status import (
        Activity,
        CallStatus,
        ErrorStatus,
        FailureStatus,
        LeaseStatus,
        LoopStatus,
        WorkerStatus,
    )
    from pykcl.worker.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Activity",
    "Batch",
    "CallStatus",
    "Checkpoint",
    "CheckpointRefused",
    "Checkpointer",
    "Config",
    "ConfigError",
    "ErrorStatus",
    "Event",
    "FailureStatus",
    "FatalError",
    "InitializationInput",
    "InternalError",
    "LeaseLostError",
    "LeaseLostInput",
    "LeaseStatus",
    "Listener",
    "LoopStatus",
    "Measure",
    "MetricsSink",
    "NativeFleet",
    "PendingCheckpoint",
    "PreparedCheckpoint",
    "ProcessorFactory",
    "ProcessorFailed",
    "PyKclError",
    "Record",
    "RecordProcessor",
    "RestartShard",
    "SetupError",
    "ShardEndedInput",
    "ShutdownRequestedInput",
    "StartPosition",
    "StopTimedOut",
    "StreamMissing",
    "TableGone",
    "TemporaryError",
    "Worker",
    "WorkerStatus",
    "WrongStream",
    "WrongTable",
    "__version__",
]

# Each name is fetched from its home when it is first used: `import pykcl` costs milliseconds, and a program
# that needs only RecordProcessor does not load the worker.
_HOMES = {
    "Activity": "pykcl.status",
    "Batch": "pykcl.processor",
    "CallStatus": "pykcl.status",
    "Checkpoint": "pykcl.model.checkpoint",
    "CheckpointRefused": "pykcl.errors",
    "Checkpointer": "pykcl.processor",
    "Config": "pykcl.config",
    "ConfigError": "pykcl.errors",
    "ErrorStatus": "pykcl.status",
    "Event": "pykcl.events",
    "FailureStatus": "pykcl.status",
    "FatalError": "pykcl.errors",
    "InitializationInput": "pykcl.processor",
    "InternalError": "pykcl.errors",
    "LeaseLostError": "pykcl.errors",
    "LeaseLostInput": "pykcl.processor",
    "LeaseStatus": "pykcl.status",
    "Listener": "pykcl.event_dispatch",
    "LoopStatus": "pykcl.status",
    "Measure": "pykcl.metrics.catalog",
    "MetricsSink": "pykcl.metrics.meter",
    "NativeFleet": "pykcl.errors",
    "PendingCheckpoint": "pykcl.model.lease",
    "PreparedCheckpoint": "pykcl.processor",
    "ProcessorFactory": "pykcl.processor",
    "ProcessorFailed": "pykcl.errors",
    "PyKclError": "pykcl.errors",
    "Record": "pykcl.model.record",
    "RecordProcessor": "pykcl.processor",
    "RestartShard": "pykcl.errors",
    "SetupError": "pykcl.errors",
    "ShardEndedInput": "pykcl.processor",
    "ShutdownRequestedInput": "pykcl.processor",
    "StartPosition": "pykcl.model.checkpoint",
    "StopTimedOut": "pykcl.errors",
    "StreamMissing": "pykcl.errors",
    "TableGone": "pykcl.errors",
    "TemporaryError": "pykcl.errors",
    "Worker": "pykcl.worker.worker",
    "WorkerStatus": "pykcl.status",
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
