"""The checkers see when a worker is wrong about its fleet, and when it joins one that it has to refuse."""

from types import SimpleNamespace

import pytest

from pykcl.events import FleetJoined, FleetUpgradedToV3
from pykcl.planning import fleet_protocol
from pykcl.planning.fleet_protocol import sense_fleet
from pykcl.testing.fleet import TABLE
from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.simulation import Guarantee, GuaranteeBroken
from pykcl.testing.simulation.faults import Freezes
from pykcl.testing.simulation.guarantees import Violations
from pykcl.worker import fleet_monitor
from pykcl.worker.fleet_monitor import FleetMonitor
from tests.simulation.checkers.events import EventChecker
from tests.simulation.checking import broken_by, broken_in_simulation, row
from tests.simulation.course import run_simulation
from tests.simulation.lease_table_actions import _check_writes, _Writes, lose_and_restore_the_table
from tests.simulation.seeds import NO_FAULTS


def test_a_worker_that_takes_pykcl_for_java(monkeypatch):
    monkeypatch.setattr(fleet_protocol, "is_of_pykcl", lambda lease: False)
    assert broken_in_simulation() is Guarantee.NO_FALSE_ALARM


def test_a_worker_that_sees_nobody(monkeypatch):
    monkeypatch.setattr(fleet_monitor, "sense_fleet", lambda rows, **o: sense_fleet((), **o))
    assert broken_in_simulation() is Guarantee.NO_FALSE_ALARM


def test_a_worker_that_takes_any_fleet_for_a_native_one(monkeypatch):
    real = sense_fleet
    monkeypatch.setattr(
        fleet_monitor, "sense_fleet", lambda rows, **o: real(rows, **{**o, "handing_off": True})
    )
    assert broken_in_simulation() is Guarantee.NO_FALSE_ALARM


@pytest.mark.slow
def test_a_worker_that_joins_a_native_fleet(monkeypatch):
    off = NO_FAULTS - {"F13.foreign"}
    assert run_simulation(3, off=off, full=True).summary == "kept"
    monkeypatch.setattr(FleetMonitor, "join", lambda self, rows: None)
    broken = run_simulation(3, off=off, full=True).broken
    assert isinstance(broken, GuaranteeBroken)
    assert broken.guarantee in (Guarantee.FOREIGN_KEPT, Guarantee.NO_FALSE_ALARM)


@pytest.mark.parametrize(
    ("named_at", "frozen", "may"),
    [(100.0, 0.0, True), (None, 0.0, False), (70.0, 0.0, False), (70.0, 25.0, True)],
    ids=["named now", "never named", "named long ago", "named before it stood still"],
)
def test_a_peer_that_was_in_a_row_a_moment_ago_may_be_reported(named_at, frozen, may):
    clock, violations = [0.0], Violations()
    freezes = Freezes(lambda: clock[0])
    checker = EventChecker(
        violations, now=lambda: clock[0], rows=dict, worker_ids={"w1": "w1"}, frozen=freezes
    )
    if named_at is not None:
        clock[0] = named_at
        checker.names({"leaseOwner": {"S": "java1"}})
    clock[0] = 72.0
    freezes.add("w1", frozen)
    clock[0] = 100.0
    checker.heard("w1", _joined_one_java_worker())
    assert broken_by(violations) is (None if may else Guarantee.NO_FALSE_ALARM)


def _joined_one_java_worker():
    return _joined("1 Java worker", "Java KCL 2.x", java_workers=1)


def _joined(beside, kind, java_workers=0):
    return FleetJoined(
        beside=beside, kind=kind, java_workers=java_workers, pykcl_workers=0, failover_time=10.0, evidence=(),
    )  # fmt: skip


@pytest.mark.parametrize(("between", "may"), [({}, False), ({"leaseOwner": {"S": "other-library-1"}}, True)])
def test_an_owner_of_long_ago_who_took_the_lease_again_just_now_need_not_be_reported(between, may):
    """What other hands do to a row is seen only in the write that follows. Seed 40045 --off F4.rate, of another worker."""
    clock, violations = [0.0], Violations()
    now = row(leaseOwner={"S": "w1"})
    checker = EventChecker(
        violations,
        now=lambda: clock[0],
        rows=lambda: {"parent": now},
        worker_ids={"w1": "w1", "w2": "w2"},
        frozen=Freezes(lambda: clock[0]),
    )
    checker.row_changed(Change("UpdateItem", TABLE, "parent", row(), now, "w1"))
    clock[0] = 100.0
    checker.row_changed(Change("UpdateItem", TABLE, "parent", now | between, now, "w1"))
    checker.heard("w2", _joined("nobody else", "alone"))
    assert broken_by(violations) is (None if may else Guarantee.NO_FALSE_ALARM)


@pytest.mark.parametrize(
    ("in_a_row", "reported_after", "may"), [(True, 10.0, True), (True, 25.0, False), (False, 10.0, False)]
)
def test_an_owner_by_other_hands_may_be_reported_for_a_moment_after_the_table_is_lost(
    in_a_row, reported_after, may
):
    """No request of a host names it: what it wrote shows in its row alone, as long as there is the table."""
    clock, violations = [100.0], Violations()
    rows = {"parent": row(leaseOwner={"S": "other-library-1"})} if in_a_row else {}
    tables = {TABLE: SimpleNamespace(rows=rows)}

    def still_there():
        return tables[TABLE].rows if TABLE in tables else {}

    def pass_time(seconds):
        clock[0] += seconds

    checker = EventChecker(
        violations,
        now=lambda: clock[0],
        rows=still_there,
        worker_ids={"w1": "w1"},
        frozen=Freezes(lambda: clock[0]),
    )
    reported = []

    def delivers_nothing():
        pass_time(reported_after)
        checker.heard("w1", _joined_one_java_worker())
        reported.append(clock[0])

    world = SimpleNamespace(
        rows=still_there, violations=violations, delivery=SimpleNamespace(batches=0), observer=SimpleNamespace(fleet=checker),
        dynamodb=SimpleNamespace(tables=tables, changes=[], delete_table=lambda **table: tables.pop(table["TableName"])),
        edits=SimpleNamespace(deleted=lambda *keys: None),
    )  # fmt: skip
    world.simulation = SimpleNamespace(now=clock[0], sleep=pass_time)
    fleet = SimpleNamespace(alive={}, leaving={}, workers=list)
    lose_and_restore_the_table(world, fleet, SimpleNamespace(put_some=delivers_nothing))
    assert reported
    assert broken_by(violations) is (None if may else Guarantee.NO_FALSE_ALARM)


def _change(author, owner_before, owner_after):
    def row(owner):
        return {"leaseKey": {"S": "s"}, **({"leaseOwner": {"S": owner}} if owner else {})}

    return Change("UpdateItem", TABLE, "s", row(owner_before), row(owner_after), author=author)


TAKE, HEARTBEAT, RELEASE = ("w1", None, "w1"), ("w1", "w1", "w1"), ("w1", "w1", None)


@pytest.mark.parametrize(
    ("early", "late", "may"),
    [
        ([], [HEARTBEAT], False),
        ([], [TAKE], False),
        ([TAKE], [HEARTBEAT, RELEASE], True),
        ([TAKE], [HEARTBEAT, TAKE], False),
        ([HEARTBEAT], [HEARTBEAT], False),
        ([("w2", None, "w2")], [HEARTBEAT], False),
    ],
    ids=["of the old table", "taken late", "taken in time", "taken again", "never taken", "another's"],
)
def test_in_a_table_made_anew_who_took_a_lease_there_before_it_knew_may_end_it_in_order(early, late, may):
    """Seed 140547670013 of another commit: its batch took 15 s, and its checkpoint came behind that."""
    violations = Violations()
    world = SimpleNamespace(violations=violations)
    backup = SimpleNamespace(rows={"s": {}})
    changes = ([_change(*one) for one in part] for part in (early, late))
    _check_writes(world, backup, *changes)
    assert broken_by(violations) is (None if may else Guarantee.SILENT_AFTER_LOSS)


@pytest.mark.parametrize(
    ("author", "stands_still", "written_after", "is_late"),
    [
        ("w1", 0.0, 4.0, False),
        ("w1", 0.0, 6.0, True),
        ("w1", 6.0, 6.0, False),
        ("w1", 6.0, 12.0, True),
        ("w2", 6.0, 6.0, True),
        ("w3, who is dead", 6.0, 4.0, False),
        ("w3, who is dead", 6.0, 6.0, True),
    ],
)
def test_writes_after_the_table_is_lost_are_late_by_the_seconds_in_which_their_host_did_not_stand_still(
    author, stands_still, written_after, is_late
):
    """Seed 880002054: a worker stood still from before the loss until 5.5 s after it, and took a lease."""
    clock = [90.0]
    frozen = Freezes(lambda: clock[0])
    frozen.add("w1", 10.0 + stands_still)
    clock[0] = 100.0
    world = SimpleNamespace(
        simulation=SimpleNamespace(now=clock[0]),
        dynamodb=SimpleNamespace(changes=[_change("w1", "w1", None)]),
        observer=SimpleNamespace(frozen=frozen),
    )
    writes = _Writes(world)
    write = _change(author, None, author)
    for _ in range(150):
        clock[0] = world.simulation.now = clock[0] + 0.1
        if clock[0] >= 100.0 + written_after and write not in world.dynamodb.changes:
            world.dynamodb.changes.append(write)
        writes.poll(["w1", "w2"])
    assert writes.early_and_late() == (([], [write]) if is_late else ([write], []))


@pytest.mark.parametrize(("worker_id", "is_native", "may"), [
    ("shardId-000000000009", True, True),
    ("shardId-000000000009", False, False),
    ("w9", True, False),
])  # fmt: skip
def test_only_a_worker_that_is_called_as_a_lease_follows_no_leader(worker_id, is_native, may):
    violations = Violations()
    checker = EventChecker(
        violations, now=float, rows=dict, worker_ids={"w9": worker_id}, frozen=Freezes(float)
    )
    checker.is_native = is_native
    checker.heard("w9", FleetUpgradedToV3(beside="1 Java worker", evidence=()))
    assert broken_by(violations) is (None if may else Guarantee.NO_FALSE_ALARM)
