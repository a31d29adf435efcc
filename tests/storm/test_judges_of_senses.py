"""The judges see when a worker is wrong about its fleet, and when it joins one that it has to refuse."""

import pytest
from judging import broken_by, storm_verdict
from storm_seeds import FINE_WEATHER

from pykcl.events import FleetJoined
from pykcl.planning import fleet_sense
from pykcl.planning.fleet_sense import sense_fleet
from pykcl.planning.rhythm import Rhythm, RhythmWatch
from pykcl.planning.twins import TwinWatch
from pykcl.testing.storm import Promise, PromiseBroken, run_storm
from pykcl.testing.storm.excuses import Freezes
from pykcl.testing.storm.fleet_judge import FleetJudge
from pykcl.testing.storm.judge import Verdict
from pykcl.worker import fleet_watch
from pykcl.worker.fleet_watch import FleetWatch


def test_a_worker_that_takes_pykcl_for_java(monkeypatch):
    monkeypatch.setattr(fleet_sense, "_is_noted", lambda lease: False)
    assert storm_verdict() is Promise.NO_FALSE_ALARM


def test_a_worker_that_sees_nobody(monkeypatch):
    monkeypatch.setattr(fleet_watch, "sense_fleet", lambda rows, **o: sense_fleet((), **o))
    assert storm_verdict() is Promise.NO_FALSE_ALARM


def test_a_worker_that_hears_another_rhythm(monkeypatch):
    monkeypatch.setattr(RhythmWatch, "observe", lambda *a, **o: [Rhythm("w1", 5.0, is_faster=True)])
    assert storm_verdict() is Promise.NO_FALSE_ALARM


def test_a_worker_that_sees_a_twin(monkeypatch):
    monkeypatch.setattr(TwinWatch, "observe", lambda *a: "shardId-000000000000")
    assert storm_verdict() is Promise.NO_FALSE_ALARM


def test_a_worker_that_takes_any_fleet_for_a_native_one(monkeypatch):
    real = sense_fleet
    monkeypatch.setattr(
        fleet_watch, "sense_fleet", lambda rows, **o: real(rows, **{**o, "handing_off": True})
    )
    assert storm_verdict() is Promise.NO_FALSE_ALARM


def test_a_worker_that_joins_a_native_fleet(monkeypatch):
    off = FINE_WEATHER - {"F13.foreign"}
    assert run_storm(3, off=off, full=True).verdict == "kept"
    monkeypatch.setattr(FleetWatch, "join", lambda self, rows: None)
    broken = run_storm(3, off=off, full=True).broken
    assert isinstance(broken, PromiseBroken)
    assert broken.promise in (Promise.FOREIGN_KEPT, Promise.NO_FALSE_ALARM)


@pytest.mark.parametrize(
    ("named_at", "frozen", "may"),
    [(100.0, 0.0, True), (None, 0.0, False), (70.0, 0.0, False), (70.0, 25.0, True)],
    ids=["named now", "never named", "named long ago", "named before it stood still"],
)
def test_a_peer_that_was_in_a_row_a_moment_ago_may_be_told_of(named_at, frozen, may):
    clock, verdict = [0.0], Verdict()
    freezes = Freezes(lambda: clock[0])
    judge = FleetJudge(verdict, now=lambda: clock[0], rows=dict, worker_ids={"w1": "w1"}, frozen=freezes)
    if named_at is not None:
        clock[0] = named_at
        judge.names({"leaseOwner": {"S": "java1"}})
    clock[0] = 72.0
    freezes.add("w1", frozen)
    clock[0] = 100.0
    judge.heard("w1", FleetJoined(
        beside="1 Java worker", kind="Java KCL 2.x", java_workers=1, pykcl_workers=0, failover_time=10.0, evidence=(),
    ))  # fmt: skip
    assert broken_by(verdict) is (None if may else Promise.NO_FALSE_ALARM)
