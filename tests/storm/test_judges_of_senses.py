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


@pytest.mark.parametrize("is_named", [True, False])
def test_a_peer_that_was_in_a_row_a_moment_ago_may_be_told_of(is_named):
    verdict = Verdict()
    judge = FleetJudge(verdict, now=lambda: 100.0, rows=dict, worker_ids={"w1": "w1"})
    if is_named:
        judge.names({"leaseOwner": {"S": "java1"}})
    judge.heard("w1", FleetJoined(
        beside="1 Java worker", kind="Java KCL 2.x", java_workers=1, pykcl_workers=0, failover_time=10.0, evidence=(),
    ))  # fmt: skip
    assert broken_by(verdict) is (None if is_named else Promise.NO_FALSE_ALARM)
