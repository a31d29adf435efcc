"""pykcl: the Kinesis Client Library in pure Python, on the same lease table as Amazon's Java KCL 2.x."""

from pykcl.config import Config
from pykcl.errors import (
    CheckpointRefused,
    ConfigError,
    LeaseLost,
    ProcessorFailed,
    PyKclError,
    SetupError,
    StopTimedOut,
    StreamMissing,
    TableGone,
    TemporaryError,
    WrongStream,
    WrongTable,
)
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import PendingCheckpoint
from pykcl.model.record import Record
from pykcl.processor import (
    Batch,
    Checkpointer,
    Initialization,
    LeaseLoss,
    PreparedCheckpoint,
    RecordProcessor,
    ShardEnd,
    ShutdownRequest,
)
from pykcl.worker.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Checkpoint",
    "CheckpointRefused",
    "Checkpointer",
    "Config",
    "ConfigError",
    "Initialization",
    "LeaseLoss",
    "LeaseLost",
    "PendingCheckpoint",
    "PreparedCheckpoint",
    "ProcessorFailed",
    "PyKclError",
    "Record",
    "RecordProcessor",
    "SetupError",
    "ShardEnd",
    "ShutdownRequest",
    "StopTimedOut",
    "StreamMissing",
    "TableGone",
    "TemporaryError",
    "Worker",
    "WrongStream",
    "WrongTable",
    "__version__",
]
