"""What is said of doors can be wrong, and then is said: shown with doors that only tell what they are told to."""

import base64
import json
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import kclpy_package
import pytest
from fleet_rows import SHARD_END
from program_verdict import Outcome, differences, outcome_of

A, B = "shardId-000000000000", "shardId-000000000001"


@dataclass
class Told:
    """A door whose program worked on these (shard, sequence number, number) and whose table stands so."""

    done: list = field(default_factory=lambda: [(A, "10", 1), (A, "11", 2), (B, "12", 3)])
    table: dict = field(default_factory=lambda: {A: SHARD_END, B: (12, 0)})
    history: dict = field(default_factory=lambda: {A: [(11, 0), SHARD_END], B: [(12, 0)]})
    asked: dict = field(default_factory=lambda: {A: [((), None)], B: [(("12",), None)]})
    ended: tuple = (A,)
    exit: int | None = 0
    exited_by_itself: int | None = None
    start: str = "TRIM_HORIZON"

    def notes(self, *what):
        if what == ("initialize",):
            return [{"shard": shard, "at": [self.start, 0]} for shard in self.table]
        payloads = [(s, q, base64.b64encode(json.dumps({"n": n}).encode()).decode()) for s, q, n in self.done]
        return [{"shard": s, "record": [q, 0, "key", data, 1, "then"]} for s, q, data in payloads]

    def records(self):
        return {shard: [tuple(n["record"]) for n in self.notes() if n["shard"] == shard] for shard in (A, B)}

    def worked_on(self):
        return [(sequence, 0) for _, sequence, _ in self.done]

    def answers(self):
        return self.asked

    def checkpoints(self):
        return self.history

    def rows(self):
        return self.table

    def shards(self, what):
        return set(self.ended)


def test_doors_that_are_alike_do_not_differ():
    assert differences({"java": Told(exit=143), "multilangd": Told()}, 3) == []


@pytest.mark.parametrize(
    ("ours", "says"),
    [
        (Told(done=[(A, "10", 1), (B, "12", 3)]), f"records of {A}"),
        (Told(done=[(A, "10", 1), (A, "11", 7), (B, "12", 3)]), f"records of {A}"),
        (Told(done=[(A, "11", 2), (A, "10", 1), (B, "12", 3)]), "out of order"),
        (Told(done=[(A, "10", 1), (A, "10", 1), (A, "11", 2), (B, "12", 3)]), "twice"),
        (Told(asked={A: [((), "CheckpointError ShutdownException")], B: [(("12",), None)]}), f"answers to checkpoints of {A}"),
        (Told(history={A: [SHARD_END], B: [(12, 0)]}), f"checkpoints in the table of {A}"),
        (Told(table={A: SHARD_END, B: (12, 1)}), f"last checkpoints of {B}"),
        (Told(table={A: SHARD_END}), f"last checkpoints of {B}"),
        (Told(start="LATEST"), f"starts of {A}"),
        (Told(ended=()), f"ends of {A}"),
        (Told(exit=70), "ended with 70"),
    ],
)  # fmt: skip
def test_a_door_that_differs_from_java_is_told_of(ours, says):
    assert says in "\n".join(differences({"java": Told(exit=143), "here": ours}, 3))


def test_java_itself_must_have_worked_on_what_was_put():
    assert differences({"java": Told()}, 4) == ["java worked on 3 of 4 records"]


PLACES = {1: (A, 10), 2: (A, 11), 3: (B, 12)}


@pytest.mark.parametrize(
    ("door", "outcome"),
    [
        (Told(), Outcome()),
        (Told(done=[(A, "10", 1), (B, "12", 3)]), Outcome(lost=frozenset({2}))),
        (Told(done=[(A, "10", 1), (A, "10", 1), (A, "11", 2), (B, "12", 3)]), Outcome(again=frozenset({1}))),
        (Told(table={A: (10, 0), B: (12, 0)}, done=[(A, "10", 1), (B, "12", 3)]), Outcome(waits=frozenset({2}))),
        (Told(table={A: (10, 0)}, exited_by_itself=1), Outcome(exit=1, waits=frozenset({2, 3}))),
    ],
)  # fmt: skip
def test_what_became_of_each_record_follows_from_the_table_and_from_what_was_worked_on(door, outcome):
    assert outcome_of(door, PLACES, Outcome()) == outcome


@pytest.mark.parametrize(
    ("bring", "what"), [(kclpy_package.installed, "install"), (kclpy_package.unpacked, "download")]
)
def test_without_pip_there_is_a_reason_and_nothing_is_kept(tmp_path, monkeypatch, bring, what):
    failed = subprocess.CompletedProcess([sys.executable], 1, "", "no index")
    monkeypatch.setattr(kclpy_package.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(kclpy_package.Unavailable, match=f"could not {what} amazon_kclpy"):
        bring(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_source_is_unpacked_once_and_as_a_whole(tmp_path, monkeypatch):
    asked = []

    def downloaded(command, **_):
        asked.append(command)
        sample = tmp_path / "sample.properties"
        sample.write_text("streamName = kclpysample")
        with tarfile.open(Path(command[command.index("--dest") + 1]) / "kclpy.tar.gz", "w:gz") as archive:
            archive.add(sample, "amazon_kclpy-3.2.0/samples/sample.properties")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(kclpy_package.subprocess, "run", downloaded)
    folders = [kclpy_package.unpacked(tmp_path / "cache") for _ in range(2)]
    assert folders[0] == folders[1]
    assert len(asked) == 1
    assert (folders[0] / "samples" / "sample.properties").read_text() == "streamName = kclpysample"
    assert list((tmp_path / "cache").iterdir()) == [folders[0]]
