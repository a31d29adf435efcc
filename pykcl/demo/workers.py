"""Worker processes of the demo: the program they run, and how the demo starts, freezes, kills and ends them.

`python -m pykcl.demo.workers` is one worker. Processes are signalled by their own process id, never by name.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from pykcl.config import Config
from pykcl.demo.record_log import RecordLogWriter, is_poison, process_batch
from pykcl.errors import PyKclError
from pykcl.events import Event
from pykcl.processor import Batch, InitializationInput, RecordProcessor
from pykcl.worker.options import WorkerSeams
from pykcl.worker.worker import Worker

_LOG_LINES = 15
_LEAVE_SECONDS = 3.0


class DemoError(PyKclError):
    """The demo could not be completed; there is no verdict."""


class WorkerProcess:
    """One worker: the leader of a process group, and its children. state: "running", "killed", "leaving" (SIGTERM
    sent) or "stopped".
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.record_log = folder / f"{name}.jsonl"
        self._log = folder / f"{name}.log"
        self.state = "running"

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], where: Path | None = None
    ) -> None:
        """Start the process; call this first, and once. The process ends by itself when its standard input does."""
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
        """Raise DemoError if the process ended without a signal from the demo."""
        code = self.exit_code
        if self.state == "running" and code is not None:
            raise DemoError(
                f"{self.name} ended by itself, exit code {code}. End of its log:\n{self.log_tail()}"
            )

    def freeze(self) -> None:
        """Suspend the process so that its state can be read. Returns when it is suspended."""
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
        """Return True if the process has ended, after waiting for that for up to `within` seconds."""
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
        """Signal the group, unless its leader has been waited for: its number may be another group's by then."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)


def python_worker(
    name: str, folder: Path, environment: Mapping[str, str], dead_letters: Path
) -> WorkerProcess:
    """Start a Python worker. environment: see `worker_environment`. dead_letters: the directory of its letters."""
    worker = WorkerProcess(name, folder)
    command = [sys.executable, "-m", "pykcl.demo.workers", "--worker-id", name]
    options = ["--record-log", str(worker.record_log), "--dead-letters", str(dead_letters)]
    worker.start([*command, *options], environment)
    return worker


def end_all(workers: list[WorkerProcess]) -> None:
    """End every process: SIGTERM, a short wait, SIGKILL."""
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
    """Return `environment` for a process that sends requests to the local AWS only."""
    own = {name: value for name, value in environment.items() if not name.startswith("AWS_")}
    if paths := [path for path in own.get("PYTHONPATH", "").split(os.pathsep) if path]:
        # Not every worker starts in this folder, and "." would mean another one there.
        own["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
    return {
        **own,
        **local,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        # A proxy must not be asked for 127.0.0.1.
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


STREAM = "demo"
APPLICATION = "pykcl-demo"
FAILOVER_TIME = 3.0
MAX_ATTEMPTS = 2

BREAK_VARIABLE = "PYKCL_DEMO_BREAK"
CHECKPOINT_BEFORE_DELIVERY = "checkpoint-before-delivery"


def config(
    worker_id: str = "observer",
    *,
    stream: str = STREAM,
    application: str = APPLICATION,
    dead_letters: Path | None = None,
) -> Config:
    """Return the configuration of every worker of the demo, with short timeouts so that it takes a minute.

    dead_letters: the directory of its letters; None: it gives up no record.
    """
    keeps = dead_letters is not None
    return Config(
        application=application,
        stream=stream,
        worker_id=worker_id,
        initial_position="TRIM_HORIZON",
        failover_time=FAILOVER_TIME,
        idle_time_between_reads=0.5,
        parent_shard_poll_interval=0.5,
        shard_sync_interval=10.0,
        shutdown_grace=10.0,
        max_attempts=MAX_ATTEMPTS if keeps else None,
        bisect=keeps,
        dead_letters=f"file:{dead_letters}" if keeps else None,
    )


class PoisonRecord(Exception):
    """A record that DemoProcessor cannot process."""


class DemoProcessor(RecordProcessor):
    """Process each batch and log its records. Raises PoisonRecord, before any record of the batch is processed."""

    def __init__(self, record_log: RecordLogWriter) -> None:
        self._record_log = record_log
        self._run = 0

    def initialize(self, init: InitializationInput) -> None:
        self._run = init.fencing_token

    def process_records(self, batch: Batch) -> None:
        if any(is_poison(record.data) for record in batch):
            raise PoisonRecord("the demo put it")
        process_batch(self._record_log, self._run, batch)


class CheckpointsTooEarly(DemoProcessor):
    """Checkpoint a batch before processing it: a wrong build, to prove that the demo fails one."""

    def process_records(self, batch: Batch) -> None:
        batch.checkpointer.checkpoint()
        super().process_records(batch)


@click.command()
@click.option("--worker-id", required=True)
@click.option("--record-log", "path", type=click.Path(path_type=Path), required=True)
@click.option("--stream", default=STREAM)
@click.option("--application", default=APPLICATION)
@click.option("--dead-letters", type=click.Path(path_type=Path))
def main(worker_id: str, path: Path, stream: str, application: str, dead_letters: Path | None) -> None:
    """Run until SIGTERM, or until the demo that started this process has ended."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    record_log = RecordLogWriter(path, worker_id)
    broken = os.environ.get(BREAK_VARIABLE) == CHECKPOINT_BEFORE_DELIVERY
    kind = CheckpointsTooEarly if broken else DemoProcessor
    # At once, in the thread of the event: this process is killed, and what happened before has to be in its log.
    worker = Worker._with(
        WorkerSeams(listeners=[lambda event: log_event(record_log, event)]),
        processor=lambda: kind(record_log),
        config=config(worker_id, stream=stream, application=application, dead_letters=dead_letters),
    )
    threading.Thread(target=_stop_with_the_parent, name="demo-parent", daemon=True).start()
    worker.run()


def log_event(record_log: RecordLogWriter, event: Event) -> None:
    # Every line of a record log names its worker already.
    fields = {name: value for name, value in asdict(event).items() if name != "worker_id"}
    record_log.event(type(event).__name__, **fields)


def _stop_with_the_parent() -> None:
    """Stop when standard input ends: its other end closes when the parent ends, even by kill -9."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
