"""The scripted Java worker by itself does what Java does: it would be no use as a peer otherwise."""

import json
import random
from pathlib import Path

import pytest

from pykcl.model.checkpoint import AT_LATEST, AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint, StartPosition
from pykcl.model.shard import HashRange, Shard
from pykcl.testing.fleet import STREAM, TABLE
from pykcl.testing.memory.dynamodb import Fault, failing, timed_out
from pykcl.testing.memory.stream import MemoryStream
from tests.java_peer.coordination import (
    LeaseCleanup,
    LeaseTaker,
    first_hole,
    first_leases,
    missing_leases,
    ranges_to_fill,
)
from tests.java_peer.lease import JavaLease
from tests.java_peer.lease_table import JavaRequests, JavaTable

OLDEST, NEWEST = StartPosition("TRIM_HORIZON"), StartPosition("LATEST")


def test_two_workers_consume_a_stream_through_a_split_and_a_merge(new_fleet):
    fleet = new_fleet(shards=3)
    fleet.start_java("j1")
    fleet.start_java("j2")
    fleet.put_everywhere(3)
    fleet.wait_all_delivered()
    fleet.wait_balanced("j1", "j2")
    fleet.put_everywhere(2, packed=3)
    fleet.split(fleet.open_shards()[0])
    fleet.put_everywhere(2, packed=3)
    fleet.merge_first_two()
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.wait(lambda: set(fleet.rows()) == set(fleet.open_shards()), what="deletion of the ended leases")
    fleet.wait_balanced("j1", "j2")


def test_an_ended_lease_keeps_its_owner_and_names_its_children(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start_java("j1", cleanup_interval=1e6)
    (parent,) = fleet.open_shards()
    fleet.put_everywhere(2)
    fleet.split(parent)
    fleet.wait(lambda: parent in fleet.rows() and fleet.rows()[parent].is_ended, what="the end of the parent")
    row = fleet.rows()[parent]
    assert row.checkpoint == AT_SHARD_END
    assert row.owner == "j1"
    assert set(row.children) == set(fleet.open_shards())
    counter = row.counter
    fleet.simulation.sleep(10)
    assert fleet.rows()[parent].counter > counter, "it is renewed until it is deleted"


def test_a_checkpoint_holds_the_sub_sequence_number_of_the_last_user_record(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start_java("j1")
    fleet.put_everywhere(packed=4)
    fleet.wait_all_delivered()
    (shard,) = fleet.open_shards()
    last = fleet.positions[shard][-1]
    assert last.sub_sequence_number == 3
    fleet.wait(lambda: fleet.last_checkpoint_at(shard, last), what="the checkpoint")


def test_after_a_stop_the_rows_keep_their_owner_and_expire(new_fleet):
    fleet = new_fleet(shards=2)
    j1 = fleet.start_java("j1")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    j1.stop()
    assert not j1.is_alive
    assert set(fleet.owners().values()) == {"j1"}
    stood = {key: row.counter for key, row in fleet.rows().items()}
    fleet.simulation.sleep(15)
    assert {key: row.counter for key, row in fleet.rows().items()} == stood
    fleet.start_java("j2")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    assert set(fleet.owners().values()) == {"j2"}


def test_a_worker_restarted_under_its_name_has_its_leases_back_at_once(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start_java("j1").stop()
    fleet.start_java("j1")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.java["j1"].stop()
    restarted_at = fleet.simulation.now
    fleet.start_java("j1")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    assert fleet.simulation.now - restarted_at < 1.0


def test_a_worker_that_stood_still_for_longer_than_the_fail_over_time_gives_its_leases_up_itself(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start_java("j1")
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    fleet.simulation.freeze("j1", 11)
    stood = {key: row.counter for key, row in fleet.rows().items()}
    fleet.simulation.sleep(12)
    assert {event.shard for event in fleet.java_did("lost")} == set(fleet.open_shards())
    assert {key: row.counter for key, row in fleet.rows().items()} == stood
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()


def test_an_unread_child_keeps_the_row_of_its_parent_and_that_one_those_of_its_children(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start_java("j1")
    (parent,) = fleet.open_shards()
    fleet.put_everywhere(1)
    fleet.split(parent)
    child, _ = fleet.open_shards()
    fleet.split(child)
    fleet.wait(lambda: child in fleet.rows() and fleet.rows()[child].is_ended, what="two generations to end")
    fleet.simulation.sleep(60)
    assert {parent, child} <= set(fleet.rows())
    fleet.put_everywhere(1)
    fleet.wait(lambda: set(fleet.rows()) == set(fleet.open_shards()), what="deletion of the ended leases")
    assert [event.shard for event in fleet.java_did("deleted")] == [parent, child]


def test_a_merge_is_not_ended_while_the_other_parent_has_no_row(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start_java("j1", auditor_interval=1e6)
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    first, second = fleet.open_shards()
    with fleet.dynamodb._lock:
        row = fleet.dynamodb.tables[TABLE].rows.pop(second)
    fleet.merge_first_two()
    fleet.simulation.sleep(60)
    assert set(fleet.rows()) == {first}
    assert not fleet.rows()[first].is_ended
    fleet.dynamodb.put_raw(TABLE, row)
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()


def fail_first(fleet, wanted, fault):
    """Put `fault` into the first request that `wanted(operation, params)` is true for; return what was hit."""
    hit = []

    def choose(operation, params):
        if hit or not wanted(operation, params):
            return None
        hit.append(params)
        return fault

    fleet.dynamodb.fault = choose
    return hit


def is_renewal(operation, params):
    return operation == "UpdateItem" and params["AttributeUpdates"].keys() == {"leaseCounter"}


def is_checkpoint(operation, params):
    return operation == "UpdateItem" and "checkpoint" in params["AttributeUpdates"]


def test_a_renewal_whose_answer_was_lost_keeps_the_lease(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start_java("j1")
    hit = fail_first(fleet, is_renewal, Fault(after=timed_out()))
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.simulation.sleep(30)
    assert hit
    assert not fleet.java_did("lost")


def test_a_checkpoint_whose_answer_was_lost_costs_the_lease_until_it_expires(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start_java("j1")
    hit = fail_first(fleet, is_checkpoint, Fault(after=timed_out()))
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.wait(lambda: fleet.java_did("lost"), what="the loss")
    assert hit
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    assert len(fleet.java_did("taken")) == 2


def test_a_checkpoint_that_never_arrived_is_made_later(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start_java("j1", sdk_attempts=1)
    hit = fail_first(fleet, is_checkpoint, Fault(before=failing()))
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    (shard,) = fleet.open_shards()
    fleet.wait(lambda: fleet.last_checkpoint_at(shard, fleet.positions[shard][-1]), what="the checkpoint")
    assert hit
    assert not fleet.java_did("lost")


def test_a_row_java_cannot_read_stops_its_scans(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start_java("j1")
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    fleet.dynamodb.put_raw(TABLE, {"leaseKey": {"S": "Migration3.0"}, "entityType": {"S": "X"}})
    fleet.wait(lambda: fleet.broken, what="a failed scan")
    assert "Migration3.0" in fleet.broken.pop()
    fleet.broken.clear()


def test_attributes_java_does_not_know_survive_its_writes(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start_java("j1")
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    (shard,) = fleet.open_shards()
    fleet.java["j1"].stop()
    private = {"M": {"x": {"N": "1"}}}
    fleet.dynamodb.put_raw(TABLE, {**fleet.items()[shard], "somebodys": private})
    fleet.start_java("j2")
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.simulation.sleep(5)
    assert fleet.items()[shard]["leaseOwner"] == {"S": "j2"}
    assert fleet.items()[shard]["somebodys"] == private


def test_the_leader_creates_a_lease_that_is_missing_and_fills_in_hash_ranges(new_fleet):
    fleet = new_fleet(shards=3)
    fleet.start_java("j1")
    fleet.start_java("j2")
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    first, second, _ = fleet.open_shards()
    with fleet.dynamodb._lock:
        del fleet.dynamodb.tables[TABLE].rows[first]
        row = fleet.dynamodb.tables[TABLE].rows[second]
        del row["startingHashKey"], row["endingHashKey"]
    fleet.wait(lambda: first in fleet.rows(), 300, "the missing lease")
    assert fleet.rows()[second].hash_range is not None
    again = [event for event in fleet.java_did("created") if event.shard == first]
    assert len(again) == 2
    assert len({event.peer for event in fleet.java_did("created")[3:]}) == 1


def test_an_application_may_prepare_its_checkpoints(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start_java("j1", two_phase=True)
    fleet.put_everywhere(3)
    fleet.wait_all_delivered()
    fleet.wait(lambda: fleet.java_did("checkpointed"), what="a checkpoint")
    prepared = [event.position for event in fleet.java_did("prepared")]
    assert prepared[: len(fleet.java_did("checkpointed"))] == [
        event.position for event in fleet.java_did("checkpointed")
    ]
    (row,) = fleet.rows().values()
    assert row.pending is None


def test_a_start_at_latest_skips_what_was_there_before(new_fleet):
    fleet = new_fleet(shards=2)
    old = fleet.put(5, "old")
    fleet.start_java("j1", start=NEWEST)
    fleet.wait(lambda: len(fleet.starts) == 2, what="two readers")
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    assert not set(old) & fleet.ledger.payloads.keys()


FAMILY = {0: (), 1: (), 2: (), 3: (), 4: (), 5: (), 6: (0, 1), 7: (2, 3), 8: (6, 7), 9: (5,), 10: (5,)}
OPEN = {4, 8, 9, 10}
SHARDS = [
    Shard(str(key), tuple(map(str, parents)), None, str(key), None if key in OPEN else "99")
    for key, parents in FAMILY.items()
]


@pytest.mark.parametrize(("start", "created"), [(NEWEST, ["6"]), (OLDEST, ["0", "1"])])
def test_missing_leases_are_those_of_javas_own_worked_example(start, created):
    assert [lease.key for lease in missing_leases(SHARDS, {"4", "5", "7"}, start)] == created


def test_the_first_leases_are_the_oldest_or_the_open_shards():
    oldest = first_leases(SHARDS, OLDEST)
    assert [lease.key for lease in oldest] == ["0", "1", "2", "3", "4", "5"]
    assert {lease.checkpoint for lease in oldest} == {AT_TRIM_HORIZON}
    newest = first_leases(SHARDS, NEWEST)
    assert [lease.key for lease in newest] == ["4", "8", "9", "10"]
    assert {lease.checkpoint for lease in newest} == {AT_LATEST}


def lease(key, owner=None, counter=0, checkpoint=AT_TRIM_HORIZON, keys=None):
    hash_range = HashRange(keys[0], keys[1]) if keys else None
    return JavaLease(key, checkpoint, counter=counter, owner=owner, hash_range=hash_range)


def test_holes_are_what_unended_leases_leave_uncovered():
    top = 2**128 - 1
    assert first_hole([lease("a", keys=(0, 9)), lease("b", keys=(10, top))]) is None
    assert first_hole([lease("a", keys=(0, 9)), lease("b", keys=(11, top))]) == (10, 10)
    ended = lease("b", checkpoint=AT_SHARD_END, keys=(10, top))
    assert first_hole([lease("a", keys=(0, 9)), ended]) == (10, top)
    assert first_hole([]) == (0, top)


def test_only_listed_shards_give_hash_ranges_to_rows_without_one():
    listed = {"a": Shard("a", hash_range=HashRange(0, 9))}
    rows = [lease("a"), lease("gone"), lease("b", keys=(1, 2))]
    assert ranges_to_fill(rows, listed) == {"a": HashRange(0, 9)}


class TestLeaseTaker:
    """At times 0, 10, 20 ...; failover time 10."""

    def taker(self, **options):
        return LeaseTaker("me", 10.0, options.get("max_leases", 100), options.get("max_steal", 1))

    def choose(self, taker, now):
        chosen, is_steal = taker.choose(now, random.Random(1))
        return sorted(lease.key for lease in chosen), is_steal

    def test_the_first_to_scan_takes_all_new_leases_at_once(self):
        taker = self.taker()
        taker.observe([lease("a"), lease("b"), lease("c", "other", 4)], 0)
        assert self.choose(taker, 0) == (["a", "b"], False)

    def test_but_no_more_than_its_limit(self):
        taker = self.taker(max_leases=1)
        taker.observe([lease("a"), lease("b")], 0)
        assert len(self.choose(taker, 0)[0]) == 1

    def test_a_lease_is_expired_when_its_counter_stood_still_for_longer_than_the_fail_over_time(self):
        taker = self.taker()
        taker.observe([lease("a", "other", 4)], 0)
        taker.observe([lease("a", "other", 4)], 10)
        assert self.choose(taker, 10) == ([], True)
        assert self.choose(taker, 10.1) == (["a"], False)

    def test_a_counter_that_moved_in_either_direction_is_a_sign_of_life(self):
        taker = self.taker()
        taker.observe([lease("a", "other", 4)], 0)
        taker.observe([lease("a", "other", 3)], 20)
        assert self.choose(taker, 20) == ([], True)

    def test_it_takes_no_more_of_the_available_than_its_share(self):
        taker = self.taker()
        rows = [lease(name, "other", 1) for name in "abc"]
        taker.observe([*rows, lease("d", "dead", 1)], 0)
        taker.observe([*(row.with_(counter=2) for row in rows), lease("d", "dead", 1)], 20)
        assert self.choose(taker, 20) == (["d"], False)

    def test_it_steals_from_the_most_loaded_as_many_as_are_over_the_target(self):
        taker = self.taker(max_steal=10)
        taker.observe([lease(name, "other", 1) for name in "abcdef"], 0)
        chosen, is_steal = self.choose(taker, 0)
        assert (len(chosen), is_steal) == (3, True)

    def test_it_steals_one_although_the_victim_is_at_the_target_if_it_needs_two(self):
        taker = self.taker()
        taker.observe([*(lease(n, "one", 1) for n in "ab"), *(lease(n, "two", 1) for n in "cd")], 0)
        chosen, is_steal = self.choose(taker, 0)
        assert (len(chosen), is_steal) == (1, True)

    def test_it_is_content_with_one_less_than_the_others(self):
        taker = self.taker()
        taker.observe([lease("a", "other", 1), lease("b", "other", 1), lease("c", "me", 1)], 0)
        assert self.choose(taker, 0) == ([], True)

    def test_ended_leases_count_like_any_others(self):
        taker = self.taker()
        rows = [lease("a", "me", 1, AT_SHARD_END), lease("b", "me", 1, AT_SHARD_END)]
        taker.observe([*rows, lease("c", "other", 1), lease("d", "other", 1)], 0)
        assert self.choose(taker, 0) == ([], False)


def test_ended_lease_of_a_dead_worker_is_taken_and_cleaned_up_by_another(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start_java("j1", cleanup_interval=1e6)
    (parent,) = fleet.open_shards()
    fleet.put_everywhere(1)
    fleet.split(parent)
    fleet.put_everywhere(1)
    fleet.wait_all_delivered()
    fleet.simulation.kill("j1")
    fleet.start_java("j2")
    fleet.wait(lambda: parent not in fleet.rows(), what="deletion of the ended lease")
    assert [event.peer for event in fleet.java_did("deleted")] == ["j2"]
    assert ("j2", parent) not in [(worker, shard) for worker, shard, _ in fleet.starts]


def test_a_stream_position_inside_an_aggregated_record_is_resumed_there(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start_java("j1", application=lambda _, __, records: records[2].position)
    (shard,) = fleet.open_shards()
    fleet.put_everywhere(packed=5)
    fleet.wait(lambda: fleet.java_did("checkpointed"), what="a checkpoint")
    fleet.simulation.kill("j1")
    fleet.start_java("j2")
    fleet.wait(lambda: fleet.ledger.by("j2"), what="the rest")
    assert fleet.ledger.by("j2") == [b"p1.3", b"p1.4"]
    assert fleet.starts[-1] == ("j2", shard, Checkpoint(fleet.positions[shard][0].sequence_number, 2))
    assert fleet.kinesis.put_counts(STREAM)[shard] == 1


FIXTURE = Path(__file__).parents[1] / "fixtures" / "requests-java-2.7.2.jsonl"


def shape(value):
    """Names and types, no values."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in sorted(value.items())}
    return (
        sorted({type(each).__name__ for each in value}) if isinstance(value, list) else type(value).__name__
    )


def shape_text(operation, params):
    return f"{operation} {shape(params)}"


def test_a_worker_sends_requests_of_every_recorded_shape_and_no_others(new_fleet):
    recorded = {
        shape_text(each["operation"], each["request"])
        for each in map(json.loads, FIXTURE.read_text().splitlines())
        if each["operation"] != "ListTables"
    }
    delete = shape_text("DeleteItem", JavaRequests("t").delete("k"))
    fleet = new_fleet(shards=3)
    fleet.start_java("j1")
    fleet.put_everywhere(2)
    fleet.wait_balanced("j1")
    fleet.start_java("j2")
    fleet.wait_balanced("j1", "j2")
    fleet.merge_first_two()
    fleet.split(fleet.open_shards()[0])
    fleet.put_everywhere(2)
    fleet.wait_all_delivered()
    fleet.wait(lambda: set(fleet.rows()) == set(fleet.open_shards()), what="deletion of the ended leases")
    fleet.put_everywhere(2)
    fleet.kill_before_shard_end("j1")
    fleet.wait_all_delivered()
    sent = {shape_text(operation, params) for operation, params in fleet.dynamodb.requests}
    assert sent == {*recorded, delete}


def test_cleanup_deletes_a_row_only_after_those_of_its_parents(new_fleet):
    fleet = new_fleet(shards=1)
    runtime = fleet.simulation.runtime("j1")
    table = JavaTable(fleet.dynamodb, TABLE, runtime, 1)
    table.prepare()
    rows = [
        JavaLease("parent", AT_SHARD_END),
        JavaLease("child", AT_SHARD_END, parents=("parent",)),
        JavaLease("grandchild", Checkpoint("7"), parents=("child",)),
    ]
    for row in rows:
        table.create(row)
    table.set_children("parent", ("child",))
    table.set_children("child", ("grandchild",))
    deleted = []
    cleanup = LeaseCleanup(table, MemoryStream(fleet.kinesis, STREAM, runtime), deleted.append)
    fleet.dynamodb.changes = []
    for key in ("child", "parent"):
        cleanup.add(key)
    cleanup.run()
    assert deleted == ["parent"]
    cleanup.run()
    assert deleted == ["parent", "child"]
