"""The demo's worker processes: started, frozen, killed and ended by their own process id, never by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pykcl.errors import PyKclError

_LOG_LINES = 15
_LEAVE_SECONDS = 3.0


class DemoBroken(PyKclError):
    """The demo could not be carried out; there is no verdict."""


class WorkerProcess:
    """One worker: the leader of a process group, and whatever it starts. state: "running", "killed", "leaving"
    (SIGTERM sent) or "stopped".
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.ledger = folder / f"{name}.jsonl"
        self._log = folder / f"{name}.log"
        self.state = "running"

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], where: Path | None = None
    ) -> None:
        """Once, before anything else is asked of it. It ends by itself when its standard input does."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own modules, by the running interpreter
                command,
                cwd=where,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal is for the demo, which then ends its workers in order.
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def require_alive(self) -> None:
        """Raise DemoBroken if it ended without having been told to."""
        code = self.exit_code
        if self.state == "running" and code is not None:
            raise DemoBroken(f"{self.name} ended by itself, exit code {code}. Last words:\n{self.log_tail()}")

    def freeze(self) -> None:
        """Stop it in its tracks, so that it can be looked at. Returns when it stands still."""
        self._send_all(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def thaw(self) -> None:
        self._send_all(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.state = "killed"
        self._send_all(signal.SIGKILL)
        self._process.wait()

    def terminate(self) -> None:
        self.state = "leaving"
        self._process.terminate()

    def has_stopped(self, within: float = 0.0) -> bool:
        """Whether it has ended, waiting for that for so many seconds."""
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            return False
        if self.state == "leaving":
            self.state = "stopped"
        return True

    def log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:]) or "(none)"

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _send_all(self, number: signal.Signals) -> None:
        """Nothing when it has been waited for: from then on its number may be another group's."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)


def python_worker(name: str, folder: Path, environment: Mapping[str, str]) -> WorkerProcess:
    """Starts one. environment: see `worker_environment`."""
    worker = WorkerProcess(name, folder)
    command = [sys.executable, "-m", "pykcl.cli.demo_worker", "--worker-id", name]
    worker.start([*command, "--ledger", str(worker.ledger)], environment)
    return worker


def end_all(workers: list[WorkerProcess]) -> None:
    """Leave nothing behind, whatever happened: SIGTERM, a little patience, SIGKILL."""
    running = [worker for worker in workers if worker.exit_code is None]
    for worker in running:
        worker.thaw()
        worker.terminate()
    deadline = time.monotonic() + _LEAVE_SECONDS
    for worker in running:
        if not worker.has_stopped(max(0.0, deadline - time.monotonic())):
            worker.kill()
    for worker in workers:
        worker.close()


def worker_environment(environment: Mapping[str, str], local: Mapping[str, str]) -> dict[str, str]:
    """`environment` for a process that shall talk to the local AWS and to nothing else."""
    own = {name: value for name, value in environment.items() if not name.startswith("AWS_")}
    if paths := [path for path in own.get("PYTHONPATH", "").split(os.pathsep) if path]:
        # Not every worker starts in this folder; in another one nobody would find what "." means.
        own["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
    return {
        **own,
        **local,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        # A proxy for the outside world must not be asked for 127.0.0.1.
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
