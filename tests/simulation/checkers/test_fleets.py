"""The checkers see what is wrong with a whole fleet, by workers that are broken on purpose."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from pykcl.errors import InternalError, SetupError, TableGone
from pykcl.event_dispatch import EventFan
from pykcl.events import LeaseReleased, LeaseTaken, RetriesExhausted
from pykcl.model.checkpoint import Checkpoint
from pykcl.planning.lease_assignment import Fleet
from pykcl.planning.lifecycle import Signal
from pykcl.testing.fleet import TABLE
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.runtime import Simulation
from pykcl.testing.simulation import Guarantee, GuaranteeBroken, course
from pykcl.testing.simulation.delivery import END, RecordLog
from pykcl.testing.simulation.faults import Freezes, Marks
from pykcl.testing.simulation.guarantees import Figures, Violations
from pykcl.worker import lease_worker, shard_reader
from pykcl.worker.checkpointer import Progress
from pykcl.worker.lease_manager import LeaseManager
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.reading_place import ReadingPlace
from pykcl.worker.record_delivery import RecordDelivery
from pykcl.worker.shard_reader import ShardReader
from pykcl.worker.worker import Worker
from tests.simulation import processors
from tests.simulation.checkers.lifecycle import LifecycleChecker
from tests.simulation.checkers.losses import DeletedRows
from tests.simulation.checking import broken_by, broken_in_simulation, row
from tests.simulation.course import run_simulation
from tests.simulation.faults import FleetFaults
from tests.simulation.lease_table_actions import Operators
from tests.simulation.quiescence import FleetQuiescence
from tests.simulation.seeds import NO_FAULTS
from tests.simulation.world import CheckedFleet


def test_a_simulation_in_fine_weather_breaks_nothing():
    assert broken_in_simulation() is None


def test_a_worker_that_never_steals(monkeypatch):
    monkeypatch.setattr(Fleet, "_steal", lambda *_: [])
    assert broken_in_simulation() is Guarantee.BALANCE


@pytest.mark.slow
def test_a_worker_that_waits_too_long_for_the_dead(monkeypatch):
    see = Fleet.seen_by
    monkeypatch.setattr(Fleet, "seen_by", lambda *a, **o: see(*a, **{**o, "failover_time": 300.0}))
    assert broken_in_simulation() is Guarantee.FAILOVER


def test_a_worker_that_stops_without_stopping(monkeypatch):
    monkeypatch.setattr(Worker, "stop", lambda self, grace=None: None)
    assert broken_in_simulation() is Guarantee.THREADS


def test_a_worker_that_reads_without_a_pause(monkeypatch):
    pace = shard_reader.after_page
    hasty = {"pause": 0.01, "min_pause": 0.01, "max_pause": 0.01}
    monkeypatch.setattr(shard_reader, "after_page", lambda *a, **o: replace(pace(*a, **o), **hasty))
    assert broken_in_simulation() is Guarantee.BUDGETS


def test_a_worker_that_fails_for_no_reason(monkeypatch):
    def fail(self):
        raise RuntimeError("at random")

    monkeypatch.setattr(LeaseManager, "_reap", fail)
    assert broken_in_simulation() is Guarantee.NO_FALSE_ALARM


@pytest.mark.slow
def test_a_worker_that_reads_nothing(monkeypatch):
    fetch = ShardReader.read
    monkeypatch.setattr(ShardReader, "read", lambda self, give_up: fetch(self, give_up) and None)
    assert broken_in_simulation() in (Guarantee.ALL_DELIVERED, Guarantee.NO_GAP)


@pytest.mark.parametrize(("must", "reported", "fine"), [
    ({(1, 0)}, ["s"], True), ({(1, 0)}, [], False), (set(), ["s"], True), (set(), ["whole"], False), (set(), [], True),
    ({(0, 9)}, [], True),
])  # fmt: skip
def test_a_loss_that_nobody_reports_and_an_alarm_about_none(must, reported, fine):
    world, fleet = _fleet_of_one()
    world.record_log = RecordLog(lambda: 100)
    world.record_log.shard("s").add((1, 0), 50)
    world.record_log.shard("whole").add((2, 0), 150)
    world.must_be_reported, world.is_gone = {"s": must}, lambda key: False
    world.lost = [SimpleNamespace(shard=shard) for shard in reported]
    quiescence = FleetQuiescence(world, fleet, SimpleNamespace(), Figures())
    if fine:
        quiescence._losses_were_reported()
        return
    with pytest.raises(GuaranteeBroken) as broken:
        quiescence._losses_were_reported()
    assert broken.value.guarantee is Guarantee.LOSS_REPORTED


@pytest.mark.parametrize(("deleted", "read", "anew", "joined", "fine"), [
    ("s", "1", "TRIM_HORIZON", 1001.0, True), ("s", "3", "TRIM_HORIZON", 1001.0, False), ("s", "1", "1", 1001.0, False),
    ("s", "1", "TRIM_HORIZON", 999.0, False), ("s", "1", None, 1001.0, False), ("other", "1", "TRIM_HORIZON", 1001.0, False),
], ids=["nobody can know", "read across", "put back", "made anew by one who saw it", "away", "another row"])  # fmt: skip
def test_a_loss_may_stay_unreported_only_where_a_newcomer_made_the_deleted_row_anew(
    monkeypatch, deleted, read, anew, joined, fine
):
    """Retention took 2 and 4 of "s", and nobody reports of it. At 1000 an operator deletes a row."""
    world, fleet = _fleet_of_one()
    world.record_log = RecordLog(lambda: 100)
    for number in (2, 4):
        world.record_log.shard("s").add((number, 0), 50)
    world.must_be_reported, world.is_gone, world.lost = {"s": {(2, 0), (4, 0)}}, lambda key: False, []
    world.deleted_rows = DeletedRows(world.must_be_reported, now=lambda: 1000.0, joined={"w1": joined})
    world.dynamodb = SimpleNamespace(
        tables={TABLE: SimpleNamespace(rows={deleted: row(read)})}, postponed_keys=set
    )
    world.observer.fleet = SimpleNamespace(names=lambda row: None)
    world.beliefs, world.options = (
        SimpleNamespace(stolen=lambda key: None),
        {"initial_position": "TRIM_HORIZON"},
    )
    world.dynamo_faults = SimpleNamespace(changed_by_hand=lambda key: None)
    world.edits = SimpleNamespace(deleted=lambda key: None)
    monkeypatch.setattr(Operators, "_choose", lambda self, rng, fits: deleted)
    assert Operators(world, fleet).delete_row(None)
    if anew is not None:
        world.deleted_rows.row_changed(Change("PutItem", TABLE, deleted, None, row(anew), author="w1"))
    quiescence = FleetQuiescence(world, fleet, SimpleNamespace(), Figures())
    if fine:
        quiescence._losses_were_reported()
        return
    with pytest.raises(GuaranteeBroken) as broken:
        quiescence._losses_were_reported()
    assert broken.value.guarantee is Guarantee.LOSS_REPORTED


@pytest.mark.parametrize(("is_gone", "is_alive", "reported", "fine", "left"), [
    (True, True, [], False, {"s"}), (True, True, ["s"], True, {"s"}), (True, False, [], True, set()), (False, True, [], True, {"s"}),
], ids=["silent", "reported", "its owner left", "still there"])  # fmt: skip
def test_the_owner_of_a_deleted_row_has_to_report_where_its_shard_expired(
    monkeypatch, is_gone, is_alive, reported, fine, left
):
    world, fleet = _fleet_of_one()
    world.must_be_reported, world.is_gone = {"s": {(2, 0)}}, lambda key: is_gone
    world.deleted_rows = DeletedRows(world.must_be_reported, now=lambda: 1000.0, joined={})
    world.deleted_rows.deleted("s", row("1"))
    world.lost = [SimpleNamespace(shard=shard) for shard in reported]
    world.simulation.sleep = lambda seconds: setattr(world.simulation, "now", world.simulation.now + seconds)
    monkeypatch.setattr(fleet, "workers", lambda: [SimpleNamespace(worker_id="w1")] if is_alive else [])
    monkeypatch.setattr(fleet, "replace_dead", lambda: None)
    quiescence = FleetQuiescence(world, fleet, SimpleNamespace(), Figures())
    with nullcontext() if fine else pytest.raises(GuaranteeBroken) as broken:
        quiescence._owners_of_deleted_rows_report_expired_shards()
    assert fine or broken.value.guarantee is Guarantee.LOSS_REPORTED
    assert set(world.must_be_reported) == left


@pytest.mark.parametrize("joined", [999.0, 1001.0, None], ids=["one who saw it", "a newcomer", "nobody"])
def test_a_row_that_nobody_is_left_to_know_of_is_put_back_by_the_operator_who_deleted_it(monkeypatch, joined):
    """Seed 113430317076 of another commit: its owner was stopped before it had put the row back."""
    world, fleet = _fleet_of_one()
    rows = {"s": row("1")}
    world.simulation.sleep = lambda seconds: setattr(world.simulation, "now", world.simulation.now + seconds)
    world.simulation.now = 1000.0
    world.rows = lambda: rows
    world.deleted_rows = DeletedRows({}, now=lambda: 1000.0, joined={})
    world.dynamodb = SimpleNamespace(tables={TABLE: SimpleNamespace(rows=rows)}, postponed_keys=set)
    world.observer.fleet = SimpleNamespace(names=lambda row: None)
    world.observer.joined = {} if joined is None else {"w1": joined}
    world.beliefs, world.options = SimpleNamespace(stolen=lambda key: None), {"initial_position": "LATEST"}
    world.dynamo_faults = SimpleNamespace(changed_by_hand=lambda key: None)
    world.edits = SimpleNamespace(deleted=lambda key: None)
    monkeypatch.setattr(fleet, "workers", lambda: [SimpleNamespace(name="w1")])
    monkeypatch.setattr(Operators, "_choose", lambda self, rng, fits: "s")
    assert Operators(world, fleet).delete_row(None)
    assert rows == ({} if joined == 999.0 else {"s": row("1")})
    assert world.simulation.now == 1120.0


@pytest.mark.parametrize(("position", "joined", "may"), [
    ("LATEST", ["w1", "w2"], True),
    ("LATEST", ["w1"], False),
    ("TRIM_HORIZON", ["w1"], True),
])  # fmt: skip
def test_no_row_is_deleted_while_a_worker_that_may_start_its_shard_at_latest_has_seen_none(
    monkeypatch, position, joined, may
):
    """Seed 111715: the workers that had seen the row were stopped before it had its first answer."""
    world, fleet = _fleet_of_one()
    of_the_start = {"pykcl": {"M": {"latestFrom": {"N": "1"}}}}
    world.rows = lambda: {"s": row("1"), "other": row("1") | of_the_start}
    world.options = {"initial_position": position}
    world.beliefs = SimpleNamespace(believes=lambda host, key: True)
    world.open_shards, world.record_log = lambda: {"s"}, SimpleNamespace(children=lambda key: [])
    world.observer.joined = dict.fromkeys(joined, 1.0)
    workers = [SimpleNamespace(name=name, worker_id=name) for name in ("w1", "w2")]
    monkeypatch.setattr(fleet, "workers", lambda: workers)
    monkeypatch.setattr(fleet, "awake_workers", lambda: workers)
    assert Operators(world, fleet)._is_read("s", row("1") | {"leaseOwner": {"S": "w1"}}) is may


def _fleet_of_one():
    """A world of nothing but what a fleet looks at, whose time can be set; `w1` has a processor of "shard"."""
    violations, simulation = Violations(), Simulation()
    now = partial(getattr, simulation, "now")
    lives = LifecycleChecker(
        violations, now=now, believes=lambda host, key: False, doubts=lambda host, key: False, threads=lambda host: ["pykcl-shard"],
        cannot_report=lambda host, since: False, struck=lambda host, since: False,
    )  # fmt: skip
    observer = SimpleNamespace(
        frozen=Freezes(now), struck=Marks(now), denied=Marks(now), without_table=Marks(now), raised=Marks(now),
        read={}, took={}, lives=lives, ownership=SimpleNamespace(), look=lambda: None,
    )  # fmt: skip
    world = SimpleNamespace(
        violations=violations, simulation=simulation, delivery=SimpleNamespace(fates={}), taken=0, left_behind={},
        faults=SimpleNamespace(strained=False), observer=observer, outages=SimpleNamespace(refused=set()), options={},
    )  # fmt: skip
    return world, CheckedFleet(world, 2)


def _host(*, failure=None, was_asked=True, fine_at=0.0, timed_out=False, had_joined=False):
    return SimpleNamespace(
        name="w1", failure=failure, worker=SimpleNamespace(failure=None), was_asked=was_asked, fine_at=fine_at,
        had_joined=had_joined, timed_out=timed_out,
    )  # fmt: skip


@pytest.mark.parametrize(("seconds", "stood_still", "fine"), [
    (30.0, 0.0, True), (32.0, 0.0, False), (60.0, 40.0, True), (80.0, 40.0, False),
])  # fmt: skip
def test_a_stop_that_takes_too_long_apart_from_the_time_in_which_the_host_stood_still(
    seconds, stood_still, fine
):
    world, fleet = _fleet_of_one()
    # Long before the stop it stood still too: that is not a cause any more.
    world.observer.frozen.add("w1", 50.0)
    world.simulation.now += 1000.0
    world.observer.frozen.add("w1", stood_still)
    world.simulation.now += seconds
    fleet._ended(_host(), seconds)
    assert broken_by(world.violations) is (None if fine else Guarantee.STOP)


def _ended_with(fleet, failure, *, was_asked, fine_at):
    host = _host(failure=failure, was_asked=was_asked, fine_at=fine_at)
    fleet._check_failure(host)
    return broken_by(fleet._world.violations)


@pytest.mark.parametrize("was_asked", [True, False])
@pytest.mark.parametrize(("failure", "cause"), [
    (InternalError("x"), "struck"), (TableGone("x"), "without_table"), (SetupError("x"), "denied"),
])  # fmt: skip
def test_a_failure_needs_a_cause_shortly_before_it_also_after_the_worker_was_asked_to_stop(
    failure, cause, was_asked
):
    world, fleet = _fleet_of_one()
    world.outages.refused.add("w1")
    fine_at = world.simulation.now
    getattr(world.observer, cause).add("w1")
    assert _ended_with(fleet, failure, was_asked=was_asked, fine_at=fine_at) is None
    assert _ended_with(fleet, failure, was_asked=was_asked, fine_at=fine_at + 10) is Guarantee.NO_FALSE_ALARM


def test_the_time_in_which_a_host_stood_still_does_not_part_a_failure_from_its_cause():
    world, fleet = _fleet_of_one()
    world.observer.struck.add("w1")
    world.observer.frozen.add("w1", 30.0)
    world.simulation.now += 31.0
    assert _ended_with(fleet, InternalError("x"), was_asked=False, fine_at=world.simulation.now) is None


def test_a_refused_permission_is_no_reason_to_fail_for_a_worker_that_had_worked_with_it():
    world, fleet = _fleet_of_one()
    world.outages.refused.add("w1")
    world.observer.took["w1"] = world.observer.read["w1"] = world.simulation.now
    world.simulation.now += 100.0
    world.observer.denied.add("w1")
    fine_at = world.simulation.now
    assert _ended_with(fleet, SetupError("x"), was_asked=False, fine_at=fine_at) is Guarantee.NO_FALSE_ALARM


def test_a_refused_permission_is_no_reason_to_fail_for_a_spare_worker_that_has_joined():
    world, fleet = _fleet_of_one()
    world.outages.refused.add("w1")
    world.observer.denied.add("w1")
    host = _host(failure=SetupError("x"), was_asked=False, fine_at=world.simulation.now, had_joined=True)
    fleet._check_failure(host)
    assert broken_by(world.violations) is Guarantee.NO_FALSE_ALARM


def test_what_a_worker_ended_with_is_checked_when_its_stop_returns():
    world, fleet = _fleet_of_one()
    fleet._ended(_host(failure=InternalError("x")), 1.0)
    assert broken_by(world.violations) is Guarantee.NO_FALSE_ALARM


def test_a_worker_that_fails_when_it_is_asked_to_stop(monkeypatch):
    finish = Worker._finish

    def fail(self, *arguments):
        self._fail(InternalError("at random"))
        finish(self, *arguments)

    monkeypatch.setattr(Worker, "_finish", fail)
    assert broken_in_simulation() is Guarantee.NO_FALSE_ALARM


def test_threads_that_a_stop_left_and_did_not_report(monkeypatch):
    world, fleet = _fleet_of_one()
    world.observer.struck.add("w1")
    world.simulation = SimpleNamespace(
        now=world.simulation.now, clock=world.simulation.clock,
        unfinished=lambda host: [SimpleNamespace(name="pykcl-shardId-1")],
    )  # fmt: skip
    host = _host(timed_out=True)
    world.left_behind["w1"] = {"pykcl-shardId-1"}
    fleet._ended(host, 26.0)
    assert broken_by(world.violations) is None
    world.left_behind.clear()
    fleet._ended(host, 26.0)
    assert broken_by(world.violations) is Guarantee.THREADS


def test_a_processor_that_is_not_called_at_its_loss(monkeypatch):
    monkeypatch.setattr(LeaseWorker, "_lose", lambda self: Signal.DONE)
    assert broken_in_simulation() is Guarantee.LIFE_CYCLE


def test_a_processor_that_is_not_called_at_the_stop(monkeypatch):
    monkeypatch.setattr(RecordDelivery, "shut_down", lambda self: None)
    assert broken_in_simulation() is Guarantee.LIFE_CYCLE


def test_a_worker_that_starts_where_its_row_is_not(monkeypatch):
    started = lease_worker.InitializationInput

    def elsewhere(**given):
        number = given["position"].sequence_number
        later = Checkpoint(str(int(number) + 1)) if number.isdecimal() else given["position"]
        return started(**{**given, "position": later})

    monkeypatch.setattr(lease_worker, "InitializationInput", elsewhere)
    assert broken_in_simulation() is Guarantee.NO_GAP


def _emit_instead(monkeypatch, change):
    """Workers emit `change(event)` instead of each event; None: nothing."""
    emit = EventFan.emit

    def emit_changed(self, event):
        reported = change(event)
        if reported is not None:
            emit(self, reported)

    monkeypatch.setattr(EventFan, "emit", emit_changed)


@pytest.mark.slow
def test_a_gap_that_nobody_reports_beside_java_workers_who_never_report(monkeypatch):
    monkeypatch.setattr(ReadingPlace, "_notice_trimming", lambda self, fetched: None)
    with_java = NO_FAULTS - {"F20"}
    seed = next(seed for seed in range(100) if FleetFaults(seed, off=with_java).has("F20"))
    assert broken_in_simulation(seed, with_java) is Guarantee.LOSS_REPORTED


def _with_options(monkeypatch, **options):
    """Simulations whose workers have these options, whatever their seeds say."""
    drawn = course.draw_options
    monkeypatch.setattr(course, "draw_options", lambda *a, **o: drawn(*a, **o) | options)


@pytest.mark.parametrize("change", [
    lambda e: None if isinstance(e, LeaseTaken) and e.reason == "unowned" else e,
    lambda e: replace(e, reason="expired") if isinstance(e, LeaseTaken) and e.reason == "unowned" else e,
    lambda e: replace(e, counter=e.counter + 1) if isinstance(e, LeaseTaken) else e,
    lambda e: replace(e, from_owner="w9") if isinstance(e, LeaseTaken) else e,
], ids=["silent", "reason", "counter", "owner"])  # fmt: skip
def test_a_worker_that_lies_about_what_it_takes(monkeypatch, change):
    _emit_instead(monkeypatch, change)
    assert broken_in_simulation() is Guarantee.NO_FALSE_ALARM


def test_a_thief_that_does_not_wait_for_its_victim_to_notice(monkeypatch):
    monkeypatch.setattr(LeaseWorker, "_wait_for_old_owner", lambda self: Signal.SETTLED)
    assert broken_in_simulation() is Guarantee.ONE_OWNER


def test_a_deploy_that_repeats_records_of_a_worker_that_does_not_report_its_releases(monkeypatch):
    _emit_instead(monkeypatch, lambda event: None if isinstance(event, LeaseReleased) else event)
    monkeypatch.setattr(RecordDelivery, "flush_before_leaving", lambda self: None)
    _with_options(monkeypatch, checkpoint_mode="interval", checkpoint_interval=5.0)
    assert broken_in_simulation() is Guarantee.NO_DUPLICATES


def test_a_worker_that_takes_back_what_it_handed_back_without_a_word(monkeypatch):
    _emit_instead(monkeypatch, lambda event: None if isinstance(event, RetriesExhausted) else event)
    monkeypatch.setattr(
        LeaseWorker,
        "released_after_failure",
        property(lambda self: False, lambda self, value: None),
        raising=False,
    )
    outcome = run_simulation(3, off=NO_FAULTS, processor=processors.StumblesForEver)
    assert isinstance(outcome.broken, GuaranteeBroken)
    assert outcome.broken.guarantee is Guarantee.BUDGETS


def test_a_worker_that_checkpoints_only_every_third_batch(monkeypatch):
    flush, calls = RecordDelivery._flush, Counter()

    def seldom(self):
        calls[id(self)] += 1
        if calls[id(self)] % 3 == 0:
            flush(self)

    monkeypatch.setattr(RecordDelivery, "_flush", seldom)
    _with_options(monkeypatch, checkpoint_mode="auto", checkpoint_interval=10.0)
    assert broken_in_simulation() is Guarantee.NO_DUPLICATES


def test_a_worker_that_checkpoints_at_ten_times_its_interval(monkeypatch):
    seconds = Progress.seconds_since_write
    monkeypatch.setattr(Progress, "seconds_since_write", lambda self: seconds(self) / 10)
    _with_options(monkeypatch, checkpoint_mode="interval", checkpoint_interval=2.0)
    assert broken_in_simulation() is Guarantee.NO_DUPLICATES


def test_leases_that_move_at_rest():
    world, fleet = _fleet_of_one()
    fleet.replace_dead = lambda: None
    figures = Figures()

    def sleep(seconds):
        world.taken += 1

    world.simulation = SimpleNamespace(sleep=sleep, now=0.0)
    with pytest.raises(GuaranteeBroken) as broken:
        quiescence = FleetQuiescence(world, fleet, SimpleNamespace(), figures)
        quiescence._nothing_moves()
        world.violations.check()
    assert broken.value.guarantee is Guarantee.NO_CHURN
    assert figures.moves_at_rest == 1
    assert END > (10**100, 0)
