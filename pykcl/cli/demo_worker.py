"""One worker of the demo, a process of its own: `python -m pykcl.cli.demo_worker`. Started by `pykcl demo` only."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import click

from pykcl.cli.demo_ledger import LedgerFile
from pykcl.cli.demo_work import work_on
from pykcl.config import Config
from pykcl.events import Event
from pykcl.processor import Batch, Initialization, RecordProcessor
from pykcl.worker.worker import Worker

STREAM = "demo"
APPLICATION = "pykcl-demo"
FAILOVER_TIME = 3.0

BREAK_VARIABLE = "PYKCL_DEMO_BREAK"
CHECKPOINT_BEFORE_DELIVERY = "checkpoint-before-delivery"


def config(worker_id: str = "observer", *, stream: str = STREAM, application: str = APPLICATION) -> Config:
    """What every worker of the demo is told: patience cut short, so that there is something to see."""
    return Config(
        application=application,
        stream=stream,
        worker_id=worker_id,
        start="TRIM_HORIZON",
        failover_time=FAILOVER_TIME,
        idle_time=0.5,
        parent_poll_interval=0.5,
        shard_sync_interval=10.0,
        shutdown_grace=10.0,
    )


class DemoProcessor(RecordProcessor):
    """Works on each batch and writes down what is done of it."""

    def __init__(self, ledger: LedgerFile) -> None:
        self._ledger = ledger
        self._run = 0

    def initialize(self, init: Initialization) -> None:
        self._run = init.fencing_token

    def process_records(self, batch: Batch) -> None:
        work_on(self._ledger, self._run, batch.records)


class CheckpointsTooEarly(DemoProcessor):
    """A wrong build, for the proof that the demo notices one: says that a batch is done before it is."""

    def process_records(self, batch: Batch) -> None:
        batch.checkpointer.checkpoint()
        super().process_records(batch)


@click.command()
@click.option("--worker-id", required=True)
@click.option("--ledger", "path", type=click.Path(path_type=Path), required=True)
@click.option("--stream", default=STREAM)
@click.option("--application", default=APPLICATION)
def main(worker_id: str, path: Path, stream: str, application: str) -> None:
    """Work until SIGTERM, or until the demo that started this process is gone."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    ledger = LedgerFile(path, worker_id)
    broken = os.environ.get(BREAK_VARIABLE) == CHECKPOINT_BEFORE_DELIVERY
    kind = CheckpointsTooEarly if broken else DemoProcessor
    worker = Worker(
        processor=lambda: kind(ledger),
        config=config(worker_id, stream=stream, application=application),
        listeners=[lambda event: _write_down(ledger, event)],
    )
    threading.Thread(target=_stop_with_the_parent, name="demo-parent", daemon=True).start()
    worker.run()


def _write_down(ledger: LedgerFile, event: Event) -> None:
    # The ledger says itself which worker writes.
    fields = {name: value for name, value in asdict(event).items() if name != "worker_id"}
    ledger.note(type(event).__name__, **fields)


def _stop_with_the_parent() -> None:
    """The other end of stdin closes when the parent ends, even by kill -9: no worker stays behind."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
