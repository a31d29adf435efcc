"""Dead letters of the demo: read for the verdict, and redriven by `pykcl dead-letters redrive` with a mended processor.

The redrive is a process like the workers, with a record log of its own, in which its deliveries are those of REDRIVE.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pykcl.demo.record_log import RecordLogWriter, payload_id, process_batch
from pykcl.demo.verdict import Letter
from pykcl.demo.workers import APPLICATION, STREAM, DemoError, DemoProcessor, WorkerProcess
from pykcl.model.letter_json import NotALetter, read_letter
from pykcl.processor import Batch

REDRIVE = "redrive"
"""Worker in the record log of the redrive."""
RECORD_LOG_VARIABLE = "DEMO_REDRIVE_LOG"
"""Not PYKCL_…: those are the options of Config."""
LETTERS = "dead-letters"
"""Name of the directory in the folder of the demo."""


class MendedProcessor(DemoProcessor):
    """Process the records that DemoProcessor refuses, too. Created by the command without arguments."""

    def __init__(self) -> None:
        super().__init__(RecordLogWriter(Path(os.environ[RECORD_LOG_VARIABLE]), REDRIVE))

    def process_records(self, batch: Batch) -> None:
        process_batch(self._record_log, self._run, batch)


def start_redrive(folder: Path, environment: Mapping[str, str]) -> WorkerProcess:
    """Redrive all letters. folder: of the demo. environment: see `worker_environment`."""
    process = WorkerProcess(REDRIVE, folder)
    command = [
        sys.executable, "-m", "pykcl", "dead-letters", "redrive", f"file:{folder / LETTERS}",
        "--to-handler", f"{__name__}:{MendedProcessor.__name__}", "--execute",
        "--application", APPLICATION, "--stream", STREAM,
    ]  # fmt: skip
    process.start(command, {**environment, RECORD_LOG_VARIABLE: str(process.record_log)})
    return process


def kept_letters(directory: Path) -> list[Letter]:
    """Return the letters in all files of a directory, redriven or not; none if there is no directory.

    Raises DemoError for one that cannot be read.
    """
    lines = [
        line for path in sorted(directory.glob("*.letters.jsonl")) for line in path.read_bytes().splitlines()
    ]
    try:
        return [
            Letter(letter.id, tuple(payload_id(record.data) for record in letter.records()))
            for letter in map(read_letter, lines)
        ]
    except NotALetter as error:
        raise DemoError(f"a dead letter of the workers cannot be read: {error}") from error
