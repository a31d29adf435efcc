"""The workers of a run: `pykcl run`, perhaps of a wrong build, one of which can be told to hang."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chaos_breaks import BREAK_VARIABLE
from fleet_processes import PykclWorker, Server

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Settings:
    """failover_time: seconds. break_: which wrong build the workers are, empty for the right one."""

    folder: Path
    failover_time: float
    shards: int
    break_: str = ""
    grace: float = 25.0


class Child(PykclWorker):
    """One `pykcl run`."""

    def __init__(self, settings: Settings, server: Server, worker: str) -> None:
        options = {
            "failover_time": settings.failover_time, "idle_time_between_reads": 0.3, "parent_shard_poll_interval": 0.3,
            "shard_sync_interval": 5, "cleanup_interval": 8, "max_records": 40, "shutdown_grace": settings.grace,
        }  # fmt: skip
        super().__init__(
            settings.folder, server.url, worker, options,
            consumer="consumer:Consumer", place=HERE, more={BREAK_VARIABLE: settings.break_},
        )  # fmt: skip
        self.hang_file = settings.folder / f"{worker}.jsonl.hang"
