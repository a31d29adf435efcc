"""`MultilangdWorker`: `pykcl multilangd` in the place of a Java worker, on the properties which that one was started with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fleet_processes import NAME_VARIABLE, PykclWorker, WorkerProcess, environment
from fleet_recording import POLICY_VARIABLE, RECORDING_VARIABLE, WORK_VARIABLE, WORKER_VARIABLE


class MultilangdWorker(WorkerProcess):
    """Runs the same record processor for each shard as the Java worker did. policy, work: see JavaWorker.

    successor_of: the worker whose properties file in `folder` it is started with. Nothing in it is changed but the
    workerId: each worker has its own, and the judges tell them apart by it.
    """

    STARTED = PykclWorker.STARTED

    def __init__(
        self, folder: Path, worker: str, *, successor_of: str, policy: str = "each", work: float = 0.0
    ) -> None:
        super().__init__(folder, worker)
        theirs = (folder / f"{successor_of}.properties").read_text("utf-8")
        line = f"workerId = {successor_of}\n"
        assert theirs.count(line) == 1
        file = folder / f"{worker}.properties"
        file.write_text(theirs.replace(line, f"workerId = {worker}\n"), "utf-8")
        more = {
            "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true", RECORDING_VARIABLE: str(self.recording), WORKER_VARIABLE: worker,
            POLICY_VARIABLE: policy, WORK_VARIABLE: str(work), NAME_VARIABLE: worker,
        }  # fmt: skip
        command = [sys.executable, "-m", "pykcl.cli", "multilangd", "--properties-file", str(file)]
        with self.log.open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment(**more), stdin=subprocess.DEVNULL, stdout=err, stderr=err,
                start_new_session=True,
            )  # fmt: skip
