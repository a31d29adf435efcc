"""Letters in files: durable when `send` returns, private, and readable whatever was cut off (A3, acceptance 5)."""

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pykcl import dead_letters
from pykcl.config import Config
from pykcl.dead_letters import LetterFiles, open_destination
from pykcl.errors import SetupError, TemporaryError
from pykcl.model.dead_letter import Address
from pykcl.model.letter_json import read_letter
from pykcl.operate.dead_letters.sources import FileSource
from pykcl.runtime import SystemRuntime
from tests.letters import DAY, letter, record

ROOT = Path(__file__).parents[2]
CONFIG = Config(application="orders-app", stream="orders")


def destination(folder, worker="host:7:abc"):
    return open_destination(Address.parse(f"file:{folder}"), CONFIG, SystemRuntime(), worker_id=worker)


def files(folder):
    return sorted(path for path in folder.iterdir() if path.name.endswith(".jsonl"))


def found(folder):
    return [one for chunk in FileSource(folder).chunks() for one in chunk]


def test_one_file_for_each_worker_and_day_readable_by_the_owner_alone(tmp_path):
    folder = tmp_path / "letters"
    first, second = destination(folder), destination(folder, "host/../8")
    first.send([letter(), letter(record(101))])
    first.send([letter(record(102), created_at=DAY + 86_400_000)])
    second.send([letter(record(103))])
    assert [path.name for path in files(folder)] == [
        "orders-app-host_.._8-2025-11-23.letters.jsonl",
        "orders-app-host_7_abc-2025-11-23.letters.jsonl",
        "orders-app-host_7_abc-2025-11-24.letters.jsonl",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(folder)} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(one.letter.first.sequence_number for one in found(folder)) == ["100", "101", "102", "103"]


def test_the_file_and_the_new_name_are_durable_before_send_returns(tmp_path, monkeypatch):
    synced = []
    real = os.fsync

    def fsync(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").resolve())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    folder = tmp_path / "letters"
    target = destination(folder)
    target.send([letter()] * 3)
    [path] = files(folder)
    # The directory in its parent, the file in the directory, the lines in the file: one fsync for all of them.
    assert synced == [tmp_path, folder, path]
    del synced[:]
    target.send([letter()])
    assert synced == [path]


def test_a_line_that_was_cut_off_is_ended_and_reported_by_its_number(tmp_path):
    target = destination(tmp_path)
    target.send([letter()])
    [path] = files(tmp_path)
    with path.open("ab") as file:
        file.write(path.read_bytes()[:100])
    one, torn = found(tmp_path)
    assert (one.letter.id, torn.is_torn, torn.place) == (letter().id, True, f"{path.name}:2")
    target.send([letter(record(101))])
    one, torn, last = found(tmp_path)
    assert (one.letter.id, torn.is_torn, last.letter.id) == (letter().id, True, letter(record(101)).id)


def test_a_full_disk_is_temporary_and_hides_no_letter(tmp_path, monkeypatch):
    target = destination(tmp_path)
    target.send([letter()])
    real, room = os.write, [50]

    def write(descriptor, data):
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(descriptor, bytes(data[: room[0]]))
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(TemporaryError, match="No space left"):
        target.send([letter(record(101))])
    monkeypatch.setattr(os, "write", real)
    target.send([letter(record(101))])
    assert [one.letter and one.letter.id for one in found(tmp_path)] == [
        letter().id, None, letter(record(101)).id,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EIO, TemporaryError), (errno.EROFS, SetupError), (errno.EACCES, SetupError)],
)
def test_what_cannot_be_written_is_an_error(tmp_path, monkeypatch, number, kind):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(kind, match=os.strerror(number)):
        destination(tmp_path).send([letter()])


def test_a_missing_parent_a_file_a_link_and_a_pipe_are_refused(tmp_path):
    with pytest.raises(SetupError, match="No such file"):
        destination(tmp_path / "not-mounted" / "letters").send([letter()])
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="Not a directory"):
        destination(tmp_path / "file").send([letter()])
    folder = tmp_path / "letters"
    destination(folder).send([letter()])
    [path] = files(folder)
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")
    with pytest.raises(SetupError, match="Dead letters cannot be written"):
        destination(folder).send([letter()])
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SetupError, match="no ordinary file"):
        destination(folder).send([letter()])


def test_a_directory_that_was_deleted_is_created_again(tmp_path):
    target = destination(tmp_path / "letters")
    target.send([letter()])
    [path] = files(tmp_path / "letters")
    path.unlink()
    (tmp_path / "letters").rmdir()
    target.send([letter()])
    assert len(found(tmp_path / "letters")) == 1


def test_a_process_that_is_killed_within_a_line_leaves_every_acknowledged_letter(tmp_path):
    program = f"""
import os, signal
from pathlib import Path
from pykcl.dead_letters import LetterFiles
from pykcl.runtime import SystemRuntime
from tests.letters import letter, record
target = LetterFiles(Path({str(tmp_path)!r}), "w", SystemRuntime())
for number in range(5):
    target.send([letter(record(number))])
real = os.write
def half(descriptor, data):
    real(descriptor, bytes(data[:len(data) // 2]))
    os.kill(os.getpid(), signal.SIGKILL)
os.write = half
target.send([letter(record(5))])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == -9
    LetterFiles(tmp_path, "w", SystemRuntime()).send([letter(record(5))])
    letters = [one.letter for one in found(tmp_path) if one.letter is not None]
    assert [one.first.sequence_number for one in letters] == ["0", "1", "2", "3", "4", "5"]


def test_a_large_letter_is_divided_and_its_parts_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(dead_letters, "MAX_PART_BYTES", 4000)
    records = tuple(record(number, b"x" * 300) for number in range(20))
    destination(tmp_path).send([letter(*records)])
    assert tuple(one for part in found(tmp_path) for one in part.letter.records()) == records


def test_a_file_is_json_lines(tmp_path):
    destination(tmp_path).send([letter(), letter(record(101))])
    [path] = files(tmp_path)
    lines = path.read_text("ascii").splitlines()
    assert [json.loads(line)["pykcl"]["id"] for line in lines] == [read_letter(line).id for line in lines]
