"""pykcl: the Kinesis Client Library in pure Python, on the same lease table as Amazon's Java KCL 2.x."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pykcl.config import Config
    from pykcl.errors import (
        BufferFull,
        CheckpointRefused,
        ConfigError,
        DeadLettersUnsent,
        FatalError,
        FlushTimedOut,
        InternalError,
        LeaseLostError,
        NativeFleet,
        NotDelivered,
        ProcessingError,
        ProcessorFailed,
        PyKclError,
        RecordRefused,
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
    from pykcl.handlers.app import App
    from pykcl.handlers.async_consumer import AsyncConsumer
    from pykcl.handlers.consumer import Consumer, Ended
    from pykcl.handlers.functions import Context, handler
    from pykcl.handlers.lambda_processor import lambda_processor
    from pykcl.handlers.windows import Window
    from pykcl.interfaces import DeadLetterDestination
    from pykcl.metrics.catalog import Measure
    from pykcl.metrics.meter import MetricsSink
    from pykcl.model.checkpoint import Checkpoint, StartPosition
    from pykcl.model.dead_letter import Condition, DeadLetter
    from pykcl.model.lease import PendingCheckpoint
    from pykcl.model.new_record import NewRecord, hash_key_of
    from pykcl.model.record import Record
    from pykcl.processor import (
        Acknowledgements,
        Batch,
        Checkpointer,
        FailedAt,
        InitializationInput,
        LeaseLostInput,
        PreparedCheckpoint,
        ProcessorFactory,
        RecordProcessor,
        Reject,
        ShardEndedInput,
        ShutdownRequestedInput,
    )
    from pykcl.producer.accumulator import PutResult
    from pykcl.producer.async_producer import AsyncProducer
    from pykcl.producer.producer import Producer, PutFailed
    from pykcl.status import (
        Activity,
        CallStatus,
        ErrorStatus,
        FailureStatus,
        LeaseStatus,
        LoopStatus,
        WorkerStatus,
    )
    from pykcl.stores import SQLiteLeaseTable
    from pykcl.worker.options import DeadLetters
    from pykcl.worker.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Acknowledgements",
    "Activity",
    "App",
    "AsyncConsumer",
    "AsyncProducer",
    "Batch",
    "BufferFull",
    "CallStatus",
    "Checkpoint",
    "CheckpointRefused",
    "Checkpointer",
    "Condition",
    "Config",
    "ConfigError",
    "Consumer",
    "Context",
    "DeadLetter",
    "DeadLetterDestination",
    "DeadLetters",
    "DeadLettersUnsent",
    "Ended",
    "ErrorStatus",
    "Event",
    "FailedAt",
    "FailureStatus",
    "FatalError",
    "FlushTimedOut",
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
    "NewRecord",
    "NotDelivered",
    "PendingCheckpoint",
    "PreparedCheckpoint",
    "ProcessingError",
    "ProcessorFactory",
    "ProcessorFailed",
    "Producer",
    "PutFailed",
    "PutResult",
    "PyKclError",
    "Record",
    "RecordProcessor",
    "RecordRefused",
    "Reject",
    "RestartShard",
    "SQLiteLeaseTable",
    "SetupError",
    "ShardEndedInput",
    "ShutdownRequestedInput",
    "StartPosition",
    "StopTimedOut",
    "StreamMissing",
    "TableGone",
    "TemporaryError",
    "Window",
    "Worker",
    "WorkerStatus",
    "WrongStream",
    "WrongTable",
    "__version__",
    "handler",
    "hash_key_of",
    "lambda_processor",
]

# Each name is fetched from its home when it is first used: `import pykcl` costs milliseconds, and a program
# that needs only RecordProcessor does not load the worker.
_HOMES = {
    "Acknowledgements": "pykcl.processor",
    "Activity": "pykcl.status",
    "App": "pykcl.handlers.app",
    "AsyncConsumer": "pykcl.handlers.async_consumer",
    "AsyncProducer": "pykcl.producer.async_producer",
    "Batch": "pykcl.processor",
    "BufferFull": "pykcl.errors",
    "CallStatus": "pykcl.status",
    "Checkpoint": "pykcl.model.checkpoint",
    "CheckpointRefused": "pykcl.errors",
    "Checkpointer": "pykcl.processor",
    "Condition": "pykcl.model.dead_letter",
    "Config": "pykcl.config",
    "ConfigError": "pykcl.errors",
    "Consumer": "pykcl.handlers.consumer",
    "Context": "pykcl.handlers.functions",
    "DeadLetter": "pykcl.model.dead_letter",
    "DeadLetterDestination": "pykcl.interfaces",
    "DeadLetters": "pykcl.worker.options",
    "DeadLettersUnsent": "pykcl.errors",
    "Ended": "pykcl.handlers.consumer",
    "ErrorStatus": "pykcl.status",
    "Event": "pykcl.events",
    "FailedAt": "pykcl.processor",
    "FailureStatus": "pykcl.status",
    "FatalError": "pykcl.errors",
    "FlushTimedOut": "pykcl.errors",
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
    "NewRecord": "pykcl.model.new_record",
    "NotDelivered": "pykcl.errors",
    "PendingCheckpoint": "pykcl.model.lease",
    "PreparedCheckpoint": "pykcl.processor",
    "ProcessingError": "pykcl.errors",
    "ProcessorFactory": "pykcl.processor",
    "ProcessorFailed": "pykcl.errors",
    "Producer": "pykcl.producer.producer",
    "PutFailed": "pykcl.producer.producer",
    "PutResult": "pykcl.producer.accumulator",
    "PyKclError": "pykcl.errors",
    "Record": "pykcl.model.record",
    "RecordProcessor": "pykcl.processor",
    "RecordRefused": "pykcl.errors",
    "Reject": "pykcl.processor",
    "RestartShard": "pykcl.errors",
    "SQLiteLeaseTable": "pykcl.stores",
    "SetupError": "pykcl.errors",
    "ShardEndedInput": "pykcl.processor",
    "ShutdownRequestedInput": "pykcl.processor",
    "StartPosition": "pykcl.model.checkpoint",
    "StopTimedOut": "pykcl.errors",
    "StreamMissing": "pykcl.errors",
    "TableGone": "pykcl.errors",
    "TemporaryError": "pykcl.errors",
    "Window": "pykcl.handlers.windows",
    "Worker": "pykcl.worker.worker",
    "WorkerStatus": "pykcl.status",
    "WrongStream": "pykcl.errors",
    "WrongTable": "pykcl.errors",
    "handler": "pykcl.handlers.functions",
    "hash_key_of": "pykcl.model.new_record",
    "lambda_processor": "pykcl.handlers.lambda_processor",
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
