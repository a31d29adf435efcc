"""The file that is there while the worker lives."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from health_kit import WELL, Frozen, loop

from pykcl.errors import SetupError
from pykcl.health import service
from pykcl.health.probes import Verdict
from pykcl.health.service import HealthFile, HealthService

GOOD, BAD = Verdict(), Verdict(("thread pykcl-manager died of KeyError",))


def until(condition, what, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)


def test_it_is_replaced_as_a_whole_while_the_worker_lives(tmp_path):
    path = tmp_path / "health"
    file = HealthFile(path)
    file.prepare()
    assert not path.exists()
    file.renew(GOOD, BAD, "running")
    told = json.loads(path.read_bytes())
    assert (told["live"], told["ready"], told["state"]) == (True, False, "running")
    assert told["why"] == ["thread pykcl-manager died of KeyError"]
    first = path.stat()
    file.renew(GOOD, GOOD, "running")
    assert path.stat().st_ino != first.st_ino
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["health"], "nothing is left beside it"


def test_it_goes_with_the_worker_and_comes_back(tmp_path):
    path = tmp_path / "health"
    file = HealthFile(path)
    file.renew(GOOD, GOOD, "running")
    file.renew(BAD, BAD, "running")
    assert not path.exists()
    file.renew(GOOD, GOOD, "running")
    assert path.exists()


def test_what_an_earlier_process_left_is_no_sign_of_life(tmp_path):
    path = tmp_path / "health"
    path.write_text("{}")
    HealthFile(path).prepare()
    assert not path.exists()


def test_a_link_that_somebody_put_there_is_replaced_and_not_followed(tmp_path):
    path, target = tmp_path / "health", tmp_path / "target"
    target.write_text("mine")
    path.symlink_to(target)
    HealthFile(path).renew(GOOD, GOOD, "running")
    assert target.read_text() == "mine"
    assert not path.is_symlink()


def test_it_stays_where_it_was_named_when_the_program_changes_its_folder(tmp_path, monkeypatch):
    there, elsewhere, linked = tmp_path / "there", tmp_path / "elsewhere", tmp_path / "far" / "linked"
    for folder in (there, elsewhere, linked):
        folder.mkdir(parents=True)
    (there / "link").symlink_to(linked)
    monkeypatch.chdir(there)
    files = [HealthFile(Path("health")), HealthFile(Path("link/../health"))]
    monkeypatch.chdir(elsewhere)
    for file, path in zip(files, (there / "health", tmp_path / "far" / "health"), strict=True):
        file.prepare()
        file.renew(GOOD, GOOD, "running")
        assert path.exists(), "a link means what it meant"
        file.remove()
        assert not path.exists()
    assert not list(elsewhere.iterdir())


def test_a_folder_that_is_not_there_is_told_before_the_worker_starts(tmp_path):
    with pytest.raises(SetupError, match="cannot be written: No such file or directory"):
        HealthService(file=tmp_path / "none" / "health").__enter__()


def test_a_disk_that_is_full_is_told_once_and_again_after_it_worked(tmp_path, caplog):
    folder = tmp_path / "folder"
    folder.mkdir()
    file = HealthFile(folder / "health")
    folder.rmdir()
    file.renew(GOOD, GOOD, "running")
    file.renew(GOOD, GOOD, "running")
    assert caplog.text.count("health file cannot be renewed") == 1
    folder.mkdir()
    file.renew(GOOD, GOOD, "running")
    assert (folder / "health").exists()


def test_the_service_renews_it_and_tells_each_change_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(service, "CHECK_SECONDS", 0.01)
    caplog.set_level("INFO")
    path = tmp_path / "health"
    worker = Frozen(WELL)
    with HealthService(file=path) as health:
        until(path.exists, "the file")
        assert json.loads(path.read_bytes())["state"] == "new"
        health.watch(worker)
        until(lambda: path.exists() and json.loads(path.read_bytes())["ready"], "a ready worker")
        worker._status = replace(WELL, loops=(loop(state="died", died_of="KeyError"),))
        until(lambda: not path.exists(), "the end of the file")
        until(lambda: "worker is not live" in caplog.text, "the line in the log")
        worker._status = WELL
        until(lambda: "worker is live again" in caplog.text and path.exists(), "its return")
    assert not path.exists()
    for line in (
        "worker is not live why=",
        "worker is live again",
        "worker is not ready why=",
        "worker is ready again",
    ):
        assert caplog.text.count(line) == 1, line


def test_a_look_that_fails_is_told_and_the_next_one_counts(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(service, "CHECK_SECONDS", 0.01)
    path = tmp_path / "health"

    class Broken(Frozen):
        def status(self):
            if not path.exists():
                return super().status()
            raise ValueError("CANARY")

    with HealthService(file=path) as health:
        health.watch(Broken(WELL))
        until(lambda: "checking the worker's health failed error=ValueError" in caplog.text, "the report")
    assert "CANARY" not in caplog.text
