"""Letters of the demo as the verdict reads them, and the processors before and after the mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykcl.dead_letters import LetterFiles
from pykcl.demo.record_log import RecordLogReader, RecordLogWriter, payload
from pykcl.demo.redrive import RECORD_LOG_VARIABLE, REDRIVE, MendedProcessor, kept_letters
from pykcl.demo.verdict import Letter
from pykcl.demo.workers import DemoError, DemoProcessor, PoisonRecord
from pykcl.model.letter_json import letter_text, read_letter
from pykcl.model.record import Record
from pykcl.operate.dead_letters.redrive import ToHandler
from pykcl.runtime import SystemRuntime
from tests.letters import letter, record


def poison(number: int) -> Record:
    return record(100 + number, payload(number, 60, poison=True))


def test_the_letters_of_all_workers_are_read_with_the_numbers_of_their_records(tmp_path: Path):
    assert kept_letters(tmp_path / "none") == []
    kept = [letter(poison(7)), letter(poison(8), poison(9))]
    for worker, one in zip(("py-1", "py-2"), kept, strict=True):
        LetterFiles(tmp_path, worker, SystemRuntime()).send([one])
    assert kept_letters(tmp_path) == [Letter(kept[0].id, (7,)), Letter(kept[1].id, (8, 9))]


def test_a_letter_that_cannot_be_read_is_an_error_of_the_demo(tmp_path: Path):
    (tmp_path / "x.letters.jsonl").write_text('{"cut off\n')
    with pytest.raises(DemoError, match="a dead letter of the workers cannot be read"):
        kept_letters(tmp_path)


def test_poison_fails_its_batch_before_any_record_is_logged_and_the_mended_processor_logs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = tmp_path / "redrive.jsonl"
    monkeypatch.setenv(RECORD_LOG_VARIABLE, str(log))
    logs, batch = RecordLogReader(), [record(101, payload(1, 60)), poison(2), record(103, payload(3, 60))]
    logs.add(log)
    kept = read_letter(letter_text(letter(*batch)))
    (problem,) = ToHandler(lambda: DemoProcessor(RecordLogWriter(log, "py-1"))).redrive([(kept, batch)])
    assert problem.startswith(f"process_records raised {PoisonRecord.__name__} at workers.py")
    logs.poll()
    assert logs.deliveries == []
    assert ToHandler(MendedProcessor).redrive([(kept, batch)]) == [""]
    logs.poll()
    assert [(one.worker, one.id) for one in logs.deliveries] == [(REDRIVE, 1), (REDRIVE, 2), (REDRIVE, 3)]
