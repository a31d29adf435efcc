"""Every judge reports the promise it watches over when it is fed what breaks it, and nothing when it is not."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from storm_seeds import FINE_WEATHER

from pykcl.errors import InternalError
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.simulation import Simulation
from pykcl.testing.storm import Promise, PromiseBroken, run_storm
from pykcl.testing.storm.belief_judge import BeliefJudge
from pykcl.testing.storm.calm import Calm
from pykcl.testing.storm.delivery_judge import DeliveryJudge
from pykcl.testing.storm.fleet import StormFleet
from pykcl.testing.storm.judge import Verdict
from pykcl.testing.storm.ledger import Ledger
from pykcl.testing.storm.outcome import Figures
from pykcl.testing.storm.places import END, place_of
from pykcl.testing.storm.row_judge import RowJudge
from pykcl.worker import lease_manager
from pykcl.worker.lease_manager import LeaseManager
from pykcl.worker.shard_delivery import ShardDelivery
from pykcl.worker.shard_reader import ShardReader
from pykcl.worker.worker import Worker


def broken_by(verdict):
    """The promise of which the verdict says that it was broken; None: none."""
    try:
        verdict.check()
    except PromiseBroken as broken:
        return broken.promise
    return None


def storm_verdict(seed=3, off=FINE_WEATHER):
    outcome = run_storm(seed, off=off)
    assert outcome.broken is None or isinstance(outcome.broken, PromiseBroken), outcome.broken
    return outcome.broken.promise if outcome.broken is not None else None


def test_every_promise_is_broken_by_a_test_of_this_file():
    tested = set(re.findall(r"Promise\.([A-Z_]+)", Path(__file__).read_text("utf-8")))
    assert tested == {promise.name for promise in Promise}


def test_the_first_broken_promise_is_kept_and_a_blind_verdict_keeps_none():
    verdict, blind = Verdict(), Verdict(blind=True)
    for one in (verdict, blind):
        one.expect(True, Promise.STOP, "fine")
        one.expect(False, Promise.BALANCE, "first")
        one.expect(False, Promise.STOP, "second")
    assert broken_by(verdict) is Promise.BALANCE
    assert broken_by(blind) is None


# -- the ledger ------------------------------------------------------------------------------------------------


def test_the_ledger_owes_what_was_neither_delivered_nor_trimmed():
    horizon = [0]
    ledger = Ledger(lambda: horizon[0])
    for number in (1, 2, 10):
        ledger.shard("s").add((number, 0), number * 100)
    ledger.delivered("s", [(2, 0)])
    assert ledger.owed() == {"s": 2}
    assert ledger.shard("s").first_owed() == (1, 0)
    assert ledger.shard("s").after((2, 0)) == [(10, 0)]
    horizon[0] = 300
    assert ledger.shard("s").first_owed() == (10, 0)
    assert ledger.shard("s").never_delivered() == [(1, 0)]
    ledger.delivered("s", [(10, 0)])
    assert ledger.owed() == {}
    assert (ledger.records(), ledger.deliveries) == (3, 2)


def test_places_are_ordered_as_numbers_with_sentinels_before_and_the_end_behind():
    names = ["AT_TIMESTAMP", "TRIM_HORIZON", "LATEST", "9", "10", "SHARD_END"]
    places = [place_of(name, 0) for name in names]
    assert places == sorted(places)
    assert place_of("9", 3) < place_of("10", 0)
    with pytest.raises(ValueError, match="invalid literal"):
        place_of("SOMEWHERE", 0)


# -- deliveries ------------------------------------------------------------------------------------------------


@pytest.fixture
def delivery():
    """A judge over one shard with records 1 to 4 and its child with record 9; `verdict` is beside it."""
    ledger, verdict = Ledger(lambda: 0), Verdict()
    ledger.parents.update(parent=(), child=("parent",))
    for number in (1, 2, 3, 4):
        ledger.shard("parent").add((number, 0), 0)
    ledger.shard("child").add((9, 0), 0)
    judge = DeliveryJudge(ledger, verdict)
    judge.verdict = verdict
    return judge


def _given(judge, owning, *numbers):
    places = [(number, 0) for number in numbers]
    with owning.call(judge, "process_records"):
        judge.called(owning, "process_records")
        judge.batch_begins(owning, places)
        judge.delivered(owning, places)


def test_a_life_in_order_breaks_nothing(delivery):
    parent = delivery.ownership_begins("w1", "parent", place_of("TRIM_HORIZON", 0))
    _given(delivery, parent, 1, 2)
    _given(delivery, parent, 3, 4)
    delivery.called(parent, "shard_ended")
    delivery.shard_ends(parent)
    child = delivery.ownership_begins("w2", "child", place_of("TRIM_HORIZON", 0))
    _given(delivery, child, 9)
    delivery.called(child, "lease_lost")
    delivery.ownership_lost(child)
    assert broken_by(delivery.verdict) is None


@pytest.mark.parametrize("numbers", [(2,), (1, 3), (2, 1), (1, 1), (7,)])
def test_a_batch_with_a_gap_a_repeat_or_another_order(delivery, numbers):
    _given(delivery, delivery.ownership_begins("w1", "parent", (0, 0)), *numbers)
    assert broken_by(delivery.verdict) is Promise.NO_GAP


def test_the_end_of_a_shard_that_still_owes(delivery):
    delivery.shard_ends(delivery.ownership_begins("w1", "parent", (0, 0)))
    assert broken_by(delivery.verdict) is Promise.NO_GAP


def test_a_child_before_its_parent(delivery):
    _given(delivery, delivery.ownership_begins("w1", "parent", (0, 0)), 1, 2, 3)
    _given(delivery, delivery.ownership_begins("w2", "child", (0, 0)), 9)
    assert broken_by(delivery.verdict) is Promise.PARENTS_FIRST


def test_two_calls_at_once(delivery):
    owning = delivery.ownership_begins("w1", "parent", (0, 0))
    with owning.call(delivery, "process_records"), owning.call(delivery, "shard_ended"):
        pass
    assert broken_by(delivery.verdict) is Promise.LIFE_CYCLE


def test_a_batch_after_the_end_of_the_shard(delivery):
    owning = delivery.ownership_begins("w1", "parent", (0, 0))
    owning.state = "ended"
    delivery.called(owning, "process_records")
    assert broken_by(delivery.verdict) is Promise.LIFE_CYCLE


def test_a_call_after_the_lease_was_lost(delivery):
    owning = delivery.ownership_begins("w1", "parent", (0, 0))
    delivery.ownership_lost(owning)
    delivery.called(owning, "lease_lost")
    assert broken_by(delivery.verdict) is Promise.SILENT_AFTER_LOSS


def test_a_batch_without_belief_in_the_lease(delivery):
    delivery.believes = lambda host, shard_id: False
    _given(delivery, delivery.ownership_begins("w1", "parent", (0, 0)), 1)
    assert broken_by(delivery.verdict) is Promise.SILENT_AFTER_LOSS


def test_a_batch_in_calm_weather_after_the_thief_began(delivery):
    old = delivery.ownership_begins("w1", "parent", (0, 0))
    delivery.ownership_begins("w2", "parent", (0, 0))
    delivery.is_calm = True
    _given(delivery, old, 1)
    assert broken_by(delivery.verdict) is Promise.ONE_OWNER


def test_what_comes_again_after_a_clean_stop_and_after_a_crash(delivery):
    _given(delivery, delivery.ownership_begins("w1", "parent", (0, 0)), 1, 2)
    delivery.fates["w1"] = "crash"
    delivery.ownership_begins("w2", "parent", (0, 0))
    assert broken_by(delivery.verdict) is None
    assert delivery.duplicates == {"crash": 2}
    _given(delivery, delivery.ownership_begins("w2", "parent", (2, 0)), 3)
    delivery.fates["w2"] = "clean stop"
    delivery.released.add(("w2", "parent"))
    delivery.ownership_begins("w3", "parent", (2, 0))
    assert broken_by(delivery.verdict) is Promise.NO_DUPLICATES


# -- rows ------------------------------------------------------------------------------------------------------


def _row(place="TRIM_HORIZON", counter=1, **more):
    row = {
        "leaseKey": {"S": "parent"}, "leaseCounter": {"N": str(counter)}, "leaseOwner": {"S": "w1"},
        "checkpoint": {"S": place}, "checkpointSubSequenceNumber": {"N": "0"},
    }  # fmt: skip
    return row | more


@pytest.fixture
def rows(delivery):
    """A row judge over the same shards; w1 is ours, java1 is not; `table` is the lease table, `gone` what Kinesis forgot."""
    table, gone = {"parent": _row(), "child": _row()}, set()
    judge = RowJudge(
        delivery.ledger, delivery.verdict,
        is_peer=lambda host: host.startswith("java"), rows=lambda: table, is_gone=gone.__contains__,
    )  # fmt: skip
    return SimpleNamespace(
        judge=judge, verdict=delivery.verdict, ledger=delivery.ledger, table=table, gone=gone
    )


def _changed(rows, before, after, *, operation="UpdateItem", key="parent", author="w1"):
    rows.judge.row_changed(Change(operation, "leases", key, before, after, author))
    return broken_by(rows.verdict)


def test_a_checkpoint_up_to_what_was_delivered_breaks_nothing(rows):
    rows.ledger.delivered("parent", [(1, 0), (2, 0)])
    assert _changed(rows, _row(), _row("2", 2)) is None


def test_a_checkpoint_before_its_delivery(rows):
    rows.ledger.delivered("parent", [(1, 0)])
    assert _changed(rows, _row(), _row("2", 2)) is Promise.CHECKPOINT_AFTER_DELIVERY


def test_a_shard_end_before_its_delivery_even_by_java(rows):
    rows.ledger.delivered("parent", [(1, 0)])
    after = _row("SHARD_END", 2)
    assert _changed(rows, _row(), after, author="java1") is Promise.CHECKPOINT_AFTER_DELIVERY


@pytest.mark.parametrize(
    ("old", "new"), [("2", "1"), ("SHARD_END", "2"), ("10", "9"), ("1", "TRIM_HORIZON"), ("1", "junk")]
)
def test_a_checkpoint_that_moves_back_or_is_none(rows, old, new):
    rows.ledger.delivered("parent", [(number, 0) for number in (1, 2, 3, 4)])
    assert _changed(rows, _row(old), _row(new, 2)) is Promise.CHECKPOINT_FORWARD


def test_a_checkpoint_where_no_record_is(rows):
    rows.ledger.delivered("parent", [(number, 0) for number in (1, 2, 3, 4)])
    after = _row("2", 2, checkpointSubSequenceNumber={"N": "7"})
    assert _changed(rows, _row(), after) is Promise.CHECKPOINT_FORWARD


@pytest.mark.parametrize("counter", [1, 3, 0])
def test_a_counter_that_does_not_rise_by_one(rows, counter):
    assert _changed(rows, _row(), _row(counter=counter)) is Promise.COUNTER_BY_ONE


def test_an_attribute_of_others_that_disappears(rows):
    assert _changed(rows, _row(theirs={"S": "x"}), _row(counter=2)) is Promise.FOREIGN_KEPT


def test_a_write_to_a_row_that_is_not_of_the_stream(rows):
    assert _changed(rows, _row(), _row(counter=2), key="Leader") is Promise.FOREIGN_KEPT


@pytest.mark.parametrize(("operation", "condition"), [
    ("UpdateItem", ""), ("UpdateItem", "leaseOwner = :me"), ("PutItem", "leaseCounter = :c"), ("DeleteItem", ""),
])  # fmt: skip
def test_a_request_without_its_condition(rows, operation, condition):
    rows.judge.request_sent(operation, {"ConditionExpression": condition}, "java1")
    assert broken_by(rows.verdict) is None
    rows.judge.request_sent(operation, {"ConditionExpression": condition}, "w1")
    assert broken_by(rows.verdict) is Promise.CONDITIONAL


def test_an_update_that_creates_and_a_creation_that_overwrites(rows):
    assert _changed(rows, None, _row()) is Promise.CONDITIONAL
    other = Verdict()
    rows.judge._verdict = other
    rows.judge.row_changed(Change("PutItem", "leases", "parent", _row(), _row(), "w1"))
    assert broken_by(other) is Promise.CONDITIONAL


@pytest.mark.parametrize(("row", "child", "is_gone", "allowed"), [
    ("SHARD_END", "9", False, True), ("2", "9", False, False), ("SHARD_END", "TRIM_HORIZON", False, False),
    ("2", "TRIM_HORIZON", True, True),
])  # fmt: skip
def test_a_deletion_needs_the_end_and_children_begun_or_that_the_shard_is_gone(
    rows, row, child, is_gone, allowed
):
    rows.table["child"] = _row(child)
    del rows.table["parent"]
    rows.gone.update({"parent"} if is_gone else ())
    found = _changed(rows, _row(row), None, operation="DeleteItem")
    assert found is (None if allowed else Promise.DELETION_BY_EVIDENCE)


# -- beliefs ---------------------------------------------------------------------------------------------------


class _Held(dict):
    """What a worker believes: as HeldLeases looks to the judge."""

    version = 0

    def glance(self):
        return dict(self)


@pytest.mark.parametrize(("stolen", "frozen", "gave_up", "broken_after"), [
    (False, False, False, 0.0), (True, False, False, 5.0), (False, True, False, None), (False, False, True, None),
])  # fmt: skip
def test_two_who_believe_in_one_lease(stolen, frozen, gave_up, broken_after):
    now, verdict = [0.0], Verdict()
    judge = BeliefJudge(
        verdict, now=lambda: now[0], is_frozen=lambda host: frozen and host == "w1",
        steal_overlap=lambda: 5.0, drift_overlap=lambda one, other: 0.0,
    )  # fmt: skip
    for host in ("w1", "w2"):
        judge.watch(host, _Held(parent=SimpleNamespace(glance=lambda: True)))
    if stolen:
        judge.stolen("parent")
    if gave_up:
        judge.wrote_owner("w1", "parent", None)
    judge.look()
    for now[0] in (4.0, 6.0):
        judge.look()
    expected = None if broken_after is None else Promise.ONE_OWNER
    assert broken_by(verdict) is expected
    assert judge.worst["steal"] == (4.0 if stolen else 0.0) or broken_after != 5.0


# -- the fleet, by workers that are broken on purpose ----------------------------------------------------------


def test_a_storm_in_fine_weather_breaks_nothing():
    assert storm_verdict() is None


def test_a_worker_that_never_steals(monkeypatch):
    plan = lease_manager.calculate_acquire
    monkeypatch.setattr(
        lease_manager,
        "calculate_acquire",
        lambda *a, **o: [p for p in plan(*a, **o) if p.reason != "rebalance"],
    )
    assert storm_verdict() is Promise.BALANCE


def test_a_worker_that_waits_too_long_for_the_dead(monkeypatch):
    plan = lease_manager.calculate_acquire
    monkeypatch.setattr(
        lease_manager, "calculate_acquire", lambda *a, **o: plan(*a, **{**o, "failover_time": 300.0})
    )
    assert storm_verdict() is Promise.FAILOVER


def test_a_worker_that_stops_without_stopping(monkeypatch):
    monkeypatch.setattr(Worker, "stop", lambda self, grace=None: None)
    assert storm_verdict() is Promise.THREADS


def test_a_worker_that_reads_without_a_pause(monkeypatch):
    init = ShardDelivery.__init__
    monkeypatch.setattr(
        ShardDelivery,
        "__init__",
        lambda self, *a, pause, **o: init(self, *a, pause=lambda s: pause(0.01), **o),
    )
    assert storm_verdict() is Promise.BUDGETS


def test_a_worker_that_fails_for_no_reason(monkeypatch):
    def fail(self):
        raise RuntimeError("at random")

    monkeypatch.setattr(LeaseManager, "_reap", fail)
    assert storm_verdict() is Promise.NO_FALSE_ALARM


def test_a_worker_that_reads_nothing(monkeypatch):
    fetch = ShardReader.read
    monkeypatch.setattr(ShardReader, "read", lambda self, give_up: fetch(self, give_up) and None)
    assert storm_verdict() in (Promise.ALL_DELIVERED, Promise.NO_GAP)


@pytest.mark.parametrize(("must", "reported", "fine"), [
    (["s"], ["s"], True), (["s"], [], False), ([], ["s"], True), ([], ["whole"], False), ([], [], True),
])  # fmt: skip
def test_a_loss_that_nobody_tells_of_and_an_alarm_about_none(must, reported, fine):
    world, fleet = _fleet_of_one()
    world.ledger = Ledger(lambda: 100)
    world.ledger.shard("s").add((1, 0), 50)
    world.ledger.shard("whole").add((2, 0), 150)
    world.must_be_reported, world.is_gone = set(must), lambda key: False
    world.lost = [SimpleNamespace(shard=shard) for shard in reported]
    calm = Calm(world, fleet, SimpleNamespace(), Figures())
    if fine:
        calm._losses_were_reported()
        return
    with pytest.raises(PromiseBroken) as broken:
        calm._losses_were_reported()
    assert broken.value.promise is Promise.LOSS_REPORTED


def _fleet_of_one():
    verdict = Verdict()
    simulation = Simulation()
    world = SimpleNamespace(
        verdict=verdict, simulation=simulation, delivery=SimpleNamespace(fates={}), taken=0, thaws_at={}, left_behind={},
        faults=SimpleNamespace(strained=False),
    )  # fmt: skip
    return world, StormFleet(world, 2)


def test_a_stop_that_takes_too_long():
    world, fleet = _fleet_of_one()
    host = SimpleNamespace(name="w1", timed_out=False)
    fleet._ended(host, 30.0)
    assert broken_by(world.verdict) is None
    fleet._ended(host, 32.0)
    assert broken_by(world.verdict) is Promise.STOP


def test_a_failure_is_an_alarm_only_where_there_is_a_reason():
    world, fleet = _fleet_of_one()
    host = SimpleNamespace(
        name="w1", failure=InternalError("x"), worker=SimpleNamespace(failure=None), was_asked=False
    )
    fleet.struck.add("w1")
    fleet._judge_failure(host)
    assert broken_by(world.verdict) is None
    fleet.struck.clear()
    fleet._judge_failure(host)
    assert broken_by(world.verdict) is Promise.NO_FALSE_ALARM


def test_leases_that_move_at_rest():
    world, fleet = _fleet_of_one()
    fleet.look_after = lambda: None
    figures = Figures()

    def sleep(seconds):
        world.taken += 1

    world.simulation = SimpleNamespace(sleep=sleep, now=0.0)
    with pytest.raises(PromiseBroken) as broken:
        calm = Calm(world, fleet, SimpleNamespace(), figures)
        calm._nothing_moves()
        world.verdict.check()
    assert broken.value.promise is Promise.NO_CHURN
    assert figures.moves_at_rest == 1
    assert END > (10**100, 0)
