"""The judges see when a worker is wrong about its fleet, and when it joins one that it has to refuse."""

from judging import storm_verdict
from storm_seeds import FINE_WEATHER

from pykcl.planning import fleet_sense
from pykcl.planning.fleet_sense import sense_fleet
from pykcl.planning.rhythm import Rhythm, RhythmWatch
from pykcl.planning.twins import TwinWatch
from pykcl.testing.storm import Promise, PromiseBroken, run_storm
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
    assert broken.promise is Promise.FOREIGN_KEPT
