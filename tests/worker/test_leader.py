"""Leader duty: whom Java's rule elects tells of hash keys that nobody reads, and fills in hash ranges. Nobody else."""

import pytest

from pykcl.errors import TemporaryError
from pykcl.events import (
    FailureResolved,
    FailureStarted,
    HashRangeFilled,
    LeaderElected,
    LeadershipMoved,
    UncoveredHashRangeClosed,
    UncoveredHashRangeFound,
)
from pykcl.testing.fleet import STREAM, TABLE
from pykcl.testing.memory.dynamodb import Fault, denied
from pykcl.testing.memory.stream import MemoryStream
from tests.java_peer.peer import java_peer

RANGE = {"startingHashKey", "endingHashKey"}
AUDIT = 10.0
OPTIONS = {"audit_interval": AUDIT, "shard_sync_interval": 3600.0, "cleanup_interval": 0.0}
JAVA = {"startup_wait": 60.0, "auditor_interval": 20.0, "election_interval": 30.0, "parent_poll": 1.0}
THREE_AUDITS = 4 * AUDIT


def started(fleet, *names, **options):
    """pykcl workers that all own leases."""
    workers = [fleet.start(name, **{**OPTIONS, **options}) for name in names]
    fleet.wait(lambda: set(names) <= set(fleet.owners().values()), what=f"leases of {names}")
    return workers


def noting_authors(fleet):
    """From now on the changes of rows tell who made them."""
    fleet.dynamodb._author = lambda: fleet.simulation.current_group
    return fleet


def beside_java(fleet, name, **options):
    """Two pykcl workers, p1 and p2, and a Java worker, all of which own leases. The Java worker, and what it tells."""
    told = []
    started(noting_authors(fleet), "p1", "p2")
    peer = java_peer(fleet, name, on_event=told.append, **{**JAVA, **options})
    peer.start()
    fleet.wait(lambda: name in fleet.owners().values(), what=f"a lease of {name}")
    return peer, told


def edit(fleet, key, change):
    """Put change(row) where the row is; None: delete it."""
    rows = fleet.dynamodb.tables[TABLE].rows
    row = change(dict(rows[key]))
    if row is None:
        del rows[key]
    else:
        rows[key] = row


def drop_ranges(fleet):
    """As a version before 2.3 would have left them. What the rows were, by key."""
    before = fleet.items()
    for key in before:
        edit(fleet, key, lambda row: {name: value for name, value in row.items() if name not in RANGE})
    return before


def ranges(items):
    return {key: {name: item.get(name) for name in RANGE} for key, item in items.items()}


def junk(row):
    """A row that cannot be read, by what its owner never writes: it would put a checkpoint back."""
    return {**row, "parentShardId": {"S": "junk"}}


def told_by(fleet, kind):
    return [name for name, event in fleet.events if isinstance(event, kind)]


def fills(fleet):
    """Who wrote a hash range, and nothing else, into which row."""
    return [
        (change.author, change.key)
        for change in fleet.dynamodb.changes
        if change.before
        and change.after
        and {n for n in {*change.before, *change.after} if change.before.get(n) != change.after.get(n)}
        <= RANGE
    ]


@pytest.fixture
def listings(monkeypatch):
    """Grows by the name of a stream with every ListShards; `listings.fails`: whether they fail."""

    class Listings(list):
        fails = False

    found, list_shards = Listings(), MemoryStream.list_shards

    def counted(self):
        found.append(self.name)
        if found.fails:
            raise TemporaryError("no listing today")
        return list_shards(self)

    monkeypatch.setattr(MemoryStream, "list_shards", counted)
    return found


# -- beside Java -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("java", "leads"), [("java", "p2"), ("zj", "zj")])
def test_the_deleted_row_of_an_open_shard_comes_back_whichever_side_is_elected(new_fleet, java, leads):
    fleet = new_fleet(shards=6)
    beside_java(fleet, java)
    fleet.simulation.sleep(2 * AUDIT)
    key = fleet.open_shards()[0]
    edit(fleet, key, lambda row: None)
    fleet.wait(lambda: key in fleet.rows(), THREE_AUDITS + 60, "the row")
    fleet.wait_delivered(fleet.put(60))
    elected = told_by(fleet, LeaderElected)
    assert (elected[-1] == leads) if leads != java else not fleet.happened(UncoveredHashRangeFound)


def test_rows_without_a_hash_range_get_it_from_the_pykcl_worker_that_is_elected(new_fleet):
    fleet = new_fleet(shards=6)
    _, told = beside_java(fleet, "java")
    fleet.simulation.sleep(2 * AUDIT)
    before = drop_ranges(fleet)
    fleet.wait(lambda: ranges(fleet.items()) == ranges(before), 2 * AUDIT, "the hash ranges")
    # Java puts what it holds in memory with each checkpoint; without records it makes none.
    assert sorted(fills(fleet)) == sorted(("p2", key) for key in before)
    assert sorted(event.shard for event in fleet.happened(HashRangeFilled)) == sorted(before)
    assert set(told_by(fleet, HashRangeFilled)) == {"p2"}
    fleet.wait_delivered(fleet.put(60))
    fleet.simulation.sleep(15)
    assert not [event for event in told if event.action in ("lost", "failed")]


def test_pykcl_works_on_rows_without_a_hash_range_and_leaves_them_to_the_java_worker_that_is_elected(
    new_fleet,
):
    fleet = new_fleet(shards=6)
    _, told = beside_java(fleet, "zj", auditor_interval=60.0)
    before = drop_ranges(fleet)
    fleet.wait_delivered(fleet.put(60))
    fleet.wait(lambda: ranges(fleet.items()) == ranges(before), 200.0, "the hash ranges")
    fleet.wait_delivered(fleet.put(60))
    assert fleet.ledger.by("p1")
    assert fleet.ledger.by("p2")
    assert not fleet.happened(HashRangeFilled)
    assert not [author for author, _ in fills(fleet) if author != "zj"]
    assert not [event for event in told if event.action in ("lost", "failed")]


def test_who_is_not_elected_tells_nothing_and_writes_nothing(new_fleet):
    fleet = new_fleet(shards=6)
    beside_java(fleet, "zj", auditor_interval=1e6)
    fleet.simulation.sleep(2 * AUDIT)
    before = len(fleet.events)
    drop_ranges(fleet)
    edit(fleet, next(key for key, owner in fleet.owners().items() if owner == "p1"), junk)
    fleet.simulation.sleep(5 * AUDIT)
    new = [event for _, event in fleet.events[before:]]
    assert not [
        one
        for one in new
        if isinstance(
            one, UncoveredHashRangeFound | UncoveredHashRangeClosed | HashRangeFilled | LeaderElected
        )
    ]
    assert not fills(fleet)


# -- holes -----------------------------------------------------------------------------------------------------


def test_keys_that_no_listing_brings_a_lease_are_told_once_by_the_leader_and_their_closing_too(new_fleet):
    fleet = new_fleet(shards=4)
    started(fleet, "p1", "p2")
    key = fleet.open_shards()[1]
    row = fleet.items()[key]
    edit(fleet, key, junk)
    fleet.wait(lambda: fleet.happened(UncoveredHashRangeFound), THREE_AUDITS, "the hole")
    fleet.simulation.sleep(5 * AUDIT)
    (hole,) = fleet.happened(UncoveredHashRangeFound)
    assert (hole.first, hole.last) == (row["startingHashKey"]["S"], row["endingHashKey"]["S"])
    assert (hole.audits, hole.shards) == (3, (key,))
    assert not fleet.happened(UncoveredHashRangeClosed)
    edit(fleet, key, lambda _: row)
    fleet.wait(lambda: fleet.happened(UncoveredHashRangeClosed), 2 * AUDIT, "the end of the hole")
    fleet.simulation.sleep(3 * AUDIT)
    (closed,) = fleet.happened(UncoveredHashRangeClosed)
    assert (closed.first, closed.last) == (hole.first, hole.last)
    assert told_by(fleet, UncoveredHashRangeFound) == told_by(fleet, UncoveredHashRangeClosed) == ["p1"]


def test_a_hole_that_is_gone_before_it_was_found_so_often_is_not_told(new_fleet):
    fleet = new_fleet(shards=4)
    started(fleet, "p1", "p2")
    key = fleet.open_shards()[1]
    row = fleet.items()[key]
    edit(fleet, key, junk)
    fleet.simulation.sleep(1.5 * AUDIT)
    edit(fleet, key, lambda _: row)
    fleet.simulation.sleep(5 * AUDIT)
    assert not fleet.happened(UncoveredHashRangeFound)
    assert not fleet.happened(UncoveredHashRangeClosed)


def test_when_the_leader_dies_the_next_one_tells_at_once_of_what_it_has_confirmed(new_fleet):
    fleet = new_fleet(shards=4)
    started(fleet, "p1", "p2")
    key = next(key for key, owner in fleet.owners().items() if owner == "p2")
    edit(fleet, key, junk)
    fleet.wait(lambda: fleet.happened(UncoveredHashRangeFound), THREE_AUDITS, "the hole")
    fleet.simulation.kill("p1")
    fleet.wait(lambda: "p1" not in fleet.owners().values(), what="the taking of p1's leases")
    fleet.simulation.sleep(1.5 * AUDIT)
    assert told_by(fleet, LeaderElected) == told_by(fleet, UncoveredHashRangeFound) == ["p1", "p2"]
    assert fleet.happened(UncoveredHashRangeFound)[1].audits > 3


def test_a_leader_that_another_worker_replaces_says_who_leads(new_fleet):
    fleet = new_fleet(shards=6)
    started(fleet, "p1", "p2")
    fleet.wait(lambda: fleet.happened(LeaderElected), THREE_AUDITS, "a leader")
    started(fleet, "p3")
    fleet.wait(lambda: fleet.happened(LeadershipMoved), THREE_AUDITS, "another leader")
    fleet.wait(lambda: len(fleet.happened(LeaderElected)) == 2, THREE_AUDITS, "its election")
    assert told_by(fleet, LeaderElected) == ["p1", "p3"]
    assert [(name, e.leader) for name, e in fleet.events if isinstance(e, LeadershipMoved)] == [("p1", "p3")]


def test_the_children_of_a_shard_that_another_library_ended_without_them_get_their_leases(new_fleet):
    """The shards are listed once an hour here: it is the audit that has them listed."""
    fleet = new_fleet(shards=2)
    started(fleet, "p1")
    parent = fleet.open_shards()[0]
    theirs = {"leaseOwner": {"S": "other"}, "leaseCounter": {"N": "100"}}
    edit(fleet, parent, lambda row: {**row, **theirs})
    fleet.simulation.sleep(5)
    fleet.kinesis.split(STREAM, parent)
    end = {
        "checkpoint": {"S": "SHARD_END"},
        "checkpointSubSequenceNumber": {"N": "0"},
        "leaseCounter": {"N": "101"},
    }
    edit(
        fleet,
        parent,
        lambda row: {name: value for name, value in {**row, **end}.items() if name != "leaseOwner"},
    )
    fleet.simulation.sleep(AUDIT)
    assert not set(fleet.open_shards()) <= fleet.rows().keys()
    fleet.wait(lambda: set(fleet.open_shards()) <= fleet.rows().keys(), THREE_AUDITS, "the children's leases")
    fleet.wait(lambda: fleet.happened(UncoveredHashRangeClosed), 2 * AUDIT, "the end of the hole")
    fleet.wait_delivered(fleet.put(30))


def test_a_hole_that_listing_does_not_mend_costs_one_listing_for_each_audit(new_fleet, listings):
    fleet = new_fleet(shards=4)
    started(fleet, "p1")
    edit(fleet, fleet.open_shards()[1], junk)
    fleet.wait(lambda: fleet.happened(UncoveredHashRangeFound), THREE_AUDITS, "the hole")
    fleet.simulation.sleep(AUDIT / 2)
    before = len(listings)
    fleet.simulation.sleep(10 * AUDIT)
    # An audit comes with a scan, and alone a worker scans once in a heartbeat.
    assert 7 <= len(listings) - before <= 11


def test_while_listing_fails_an_audit_does_not_make_it_come_sooner(new_fleet, listings):
    fleet = new_fleet(shards=4)
    started(fleet, "p1", audit_interval=1.0, audit_confidence_threshold=1)
    listings.fails = True
    edit(fleet, fleet.open_shards()[1], junk)
    fleet.wait(lambda: fleet.happened(UncoveredHashRangeFound), THREE_AUDITS, "the hole")
    before = len(listings)
    fleet.simulation.sleep(120)
    # 2, 4, 8, 16, 30, 30… seconds, spread; for each audit it would be 120.
    assert 4 <= len(listings) - before <= 16


def test_with_an_interval_of_zero_nobody_audits(new_fleet):
    fleet = new_fleet(shards=4)
    started(fleet, "p1", audit_interval=0.0)
    drop_ranges(fleet)
    edit(fleet, fleet.open_shards()[1], junk)
    fleet.simulation.sleep(400)
    assert not fleet.happened(LeaderElected)
    assert not fleet.happened(UncoveredHashRangeFound)
    assert not fills(fleet)


def test_the_first_audit_comes_after_a_minute_where_the_others_come_later(new_fleet):
    fleet = new_fleet(shards=2)
    started(fleet, "p1", audit_interval=500.0)
    drop_ranges(fleet)
    fleet.simulation.sleep(45)
    assert not fills(fleet)
    fleet.wait(lambda: len(fills(fleet)) == 2, 20.0, "the first audit")


@pytest.mark.parametrize("checkpoint", ["SHARD_END", "junk"])
def test_a_dead_worker_that_only_a_row_nobody_takes_still_names_does_not_lead_for_ever(new_fleet, checkpoint):
    fleet = new_fleet(shards=4)
    started(fleet, "p1")
    edit(fleet, fleet.open_shards()[1], junk)
    row = {
        "leaseKey": {"S": "shardId-000000000999"},
        "leaseOwner": {"S": "dead"},
        "checkpoint": {"S": checkpoint},
    }
    for name in ("leaseCounter", "ownerSwitchesSinceCheckpoint", "checkpointSubSequenceNumber"):
        row[name] = {"N": "0"}
    fleet.dynamodb.put_raw(TABLE, row)
    fleet.simulation.sleep(75)
    assert not fleet.happened(LeaderElected), "Java would count it, and take its leases"
    fleet.simulation.sleep(45)
    assert told_by(fleet, UncoveredHashRangeFound) == ["p1"]


def test_a_java_worker_that_renews_what_has_ended_leads_on(new_fleet):
    fleet = new_fleet(shards=4)
    started(fleet, "p1")
    edit(fleet, fleet.open_shards()[1], junk)
    row = {
        "leaseKey": {"S": "shardId-000000000999"},
        "leaseOwner": {"S": "java"},
        "checkpoint": {"S": "SHARD_END"},
    }
    for number in range(50):
        for name in ("leaseCounter", "ownerSwitchesSinceCheckpoint", "checkpointSubSequenceNumber"):
            row[name] = {"N": str(number) if name == "leaseCounter" else "0"}
        fleet.dynamodb.put_raw(TABLE, dict(row))
        fleet.simulation.sleep(3.3)
    assert not fleet.happened(LeaderElected)


# -- trouble ---------------------------------------------------------------------------------------------------


def of_fills(fault):
    """A fault hook that puts this into every write of a hash range."""
    return lambda operation, params: (
        fault
        if ":startingHashKey" in params.get("ExpressionAttributeValues", {}) and operation == "UpdateItem"
        else None
    )


def test_a_write_that_is_refused_is_told_once_and_keeps_nobody_from_reading(new_fleet):
    fleet = new_fleet(shards=4)
    (worker,) = started(fleet, "p1")
    fleet.dynamodb.fault = of_fills(Fault(before=denied("UpdateItem")))
    before = drop_ranges(fleet)
    fleet.wait(lambda: fleet.happened(FailureStarted), 2 * AUDIT, "trouble")
    fleet.simulation.sleep(5 * AUDIT)
    fleet.wait_delivered(fleet.put(30))
    (trouble,) = fleet.happened(FailureStarted)
    assert (trouble.what, trouble.shard) == ("filling in hash ranges", None)
    assert "dynamodb:UpdateItem" in trouble.cause
    assert worker.failure is None
    assert not fleet.happened(FailureResolved)
    fleet.dynamodb.fault = None
    fleet.wait(lambda: ranges(fleet.items()) == ranges(before), 2 * AUDIT, "the hash ranges")
    assert [event.what for event in fleet.happened(FailureResolved)] == ["filling in hash ranges"]


def test_a_stop_waits_for_the_one_write_under_way(new_fleet):
    fleet = new_fleet(shards=6)
    (worker,) = started(fleet, "p1")
    fleet.dynamodb.fault = of_fills(Fault(delay=1.5))
    drop_ranges(fleet)
    fleet.wait(lambda: fills(fleet), 2 * AUDIT, "the first hash range")
    done = len(fills(fleet))
    worker.stop()
    assert len(fills(fleet)) <= done + 1
    assert worker.failure is None


def test_slow_writes_do_not_keep_the_manager_from_its_leases(new_fleet):
    fleet = new_fleet(shards=8)
    (worker,) = started(fleet, "p1")
    fleet.dynamodb.fault = of_fills(Fault(delay=1.1))
    before = drop_ranges(fleet)
    fleet.wait(lambda: fills(fleet), 2 * AUDIT, "the first hash range")
    fleet.simulation.sleep(worker.config.write_timeout + 1.5)
    assert 3 <= len(fills(fleet)) <= 4
    assert not fleet.happened(FailureStarted), "what is not sent is for the next audit, and no trouble"
    fleet.wait(lambda: ranges(fleet.items()) == ranges(before), 3 * AUDIT, "the hash ranges")


def test_a_row_that_is_deleted_under_the_write_is_not_made_again(new_fleet):
    fleet = new_fleet(shards=4)
    started(fleet, "p1")
    gone = fleet.open_shards()[2]
    stubs = []

    def delete_first(operation, params):
        if operation == "UpdateItem" and ":startingHashKey" in params["ExpressionAttributeValues"]:
            fleet.dynamodb.tables[TABLE].rows.pop(gone, None)
        return

    def look():
        row = fleet.dynamodb.tables[TABLE].rows.get(gone)
        if row is not None and "leaseCounter" not in row:
            stubs.append(row)
        return len(fills(fleet)) >= 3

    fleet.dynamodb.fault = delete_first
    drop_ranges(fleet)
    fleet.wait(look, 2 * AUDIT, "the other rows")
    fleet.dynamodb.fault = None
    assert not stubs
    assert gone not in {key for _, key in fills(fleet)}
