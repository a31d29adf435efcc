"""What a fleet promises, on the unmodified worker: nothing lost, order, fair shares, clean hand-overs."""

from itertools import pairwise

from pykcl.events import LeaseLost, LeaseTaken
from pykcl.model.checkpoint import AT_SHARD_END
from pykcl.testing.fleet import STREAM


def test_three_workers_share_the_shards_evenly_and_then_move_nothing(new_fleet):
    fleet = new_fleet(shards=7)
    for name in ("w1", "w2", "w3"):
        fleet.start(name)
    fleet.wait(
        lambda: sorted(fleet.load().values()) == [2, 2, 3] and None not in fleet.load(), what="balance"
    )
    fleet.simulation.sleep(30)
    taken = len(fleet.happened(LeaseTaken))
    fleet.simulation.sleep(120)
    assert len(fleet.happened(LeaseTaken)) == taken
    assert sorted(fleet.load().values()) == [2, 2, 3]


def test_a_killed_workers_shards_are_delivered_elsewhere_within_failover_and_two_scans(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.start("w1")
    fleet.start("w2")
    fleet.wait(lambda: sorted(fleet.load().values()) == [2, 2] and None not in fleet.load(), what="balance")
    fleet.wait_delivered(fleet.put(20))
    fleet.simulation.kill("w2")
    killed_at = fleet.simulation.now
    fleet.wait_delivered(fleet.put(40))
    assert fleet.simulation.now - killed_at <= 10 + 2 * 1.1 + 1
    assert set(fleet.load()) == {"w1"}


def test_a_stopped_worker_releases_everything_and_peers_deliver_within_three_seconds(new_fleet):
    fleet = new_fleet(shards=4)
    w1 = fleet.start("w1")
    fleet.start("w2")
    fleet.wait(lambda: sorted(fleet.load().values()) == [2, 2] and None not in fleet.load(), what="balance")
    fleet.wait_delivered(fleet.put(20))
    fleet.simulation.sleep(10)
    before = fleet.ledger.duplicates
    rows = {key: row for key, row in fleet.rows().items() if row.owner == "w1"}
    w1.stop()
    stopped_at = fleet.simulation.now
    writes = {key: [w for w in fleet.dynamodb.changes if w.key == key] for key in rows}
    fleet.wait_delivered(fleet.put(40))
    assert fleet.simulation.now - stopped_at <= 3
    assert fleet.ledger.duplicates == before, "a clean hand-over repeats nothing"
    for key, row in rows.items():
        released = writes[key][-1].after
        assert "leaseOwner" not in released
        assert int(released["leaseCounter"]["N"]) > row.counter


def test_children_start_after_their_parents_across_nested_splits_and_a_merge(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1")
    fleet.start("w2")
    put = fleet.put(20)
    for _ in range(2):
        for shard in fleet.open_shards()[:2]:
            fleet.kinesis.split(STREAM, shard)
            put += fleet.put(10)
    neighbours = sorted(
        (s for s in fleet.kinesis.list_shards(STREAM, operation=None) if s.is_open),
        key=lambda s: s.hash_range.first,
    )
    fleet.kinesis.merge(STREAM, neighbours[0].shard_id, neighbours[1].shard_id)
    put += fleet.put(30)
    fleet.wait_delivered(put, 300)

    shards = {s.shard_id: s for s in fleet.kinesis.list_shards(STREAM, operation=None)}
    first, last = {}, {}
    for number, (_, record) in enumerate(fleet.ledger.delivered):
        first.setdefault(record.shard_id, number)
        last[record.shard_id] = number
    distinct_last = {}
    seen = set()
    for number, (_, record) in enumerate(fleet.ledger.delivered):
        if record.data not in seen:
            distinct_last[record.shard_id] = number
            seen.add(record.data)
    for shard in shards.values():
        for parent in shard.parents:
            if shard.shard_id in first and parent in distinct_last:
                assert distinct_last[parent] < first[shard.shard_id], (
                    f"{shard.shard_id} before its parent {parent}"
                )


def test_a_parents_row_ends_with_its_children_named_no_owner_and_sub_sequence_zero(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", cleanup_interval=0.0)
    fleet.wait_delivered(fleet.put(5))
    parent = fleet.open_shards()[0]
    fleet.kinesis.split(STREAM, parent)
    fleet.wait_delivered(fleet.put(20))
    fleet.wait(lambda: fleet.rows()[parent].is_ended, what="the parent's end")
    row = fleet.rows()[parent]
    assert row.checkpoint == AT_SHARD_END
    assert row.owner is None
    assert set(row.children) == set(fleet.open_shards())
    writes = fleet.dynamodb.changes
    ended_at = next(
        n for n, w in enumerate(writes) if w.key == parent and w.after and "childShardIds" in w.after
    )
    for child in row.children:
        created_at = next(n for n, w in enumerate(writes) if w.key == child)
        assert created_at < ended_at, "a child's row exists before SHARD_END can be seen"
        item = writes[created_at].after
        assert item["checkpoint"] == {"S": "TRIM_HORIZON"}
        assert item["parentShardId"] == {"SS": [parent]}


def test_every_write_moves_the_counter_by_exactly_one(new_fleet):
    fleet = new_fleet(shards=3)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(10))
    fleet.start("w2")
    fleet.simulation.sleep(40)
    fleet.workers["w2"].stop()
    by_key = {}
    for write in fleet.dynamodb.changes:
        if write.after:
            by_key.setdefault(write.key, []).append(int(write.after["leaseCounter"]["N"]))
    assert by_key
    for counters in by_key.values():
        assert counters[0] == 0
        assert all(later == earlier + 1 for earlier, later in pairwise(counters))


def test_a_frozen_worker_that_wakes_up_writes_nothing_and_hears_that_its_leases_are_lost(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(10))
    fleet.start("w2")
    fleet.wait(lambda: sorted(fleet.load().values()) == [1, 1] and None not in fleet.load(), what="balance")
    fleet.simulation.sleep(10)
    mine = next(key for key, owner in fleet.owners().items() if owner == "w1")
    fleet.simulation.freeze("w1", 40)
    put = fleet.put(20)
    fleet.wait_delivered(put)
    row = fleet.rows()[mine]
    fleet.simulation.sleep(25)
    fleet.simulation.sleep(0.5)
    fleet.wait(lambda: ("w1", "lease_lost", mine) in fleet.ledger.calls, what="lease_lost")
    assert fleet.ledger.calls.count(("w1", "lease_lost", mine)) == 1
    assert fleet.rows()[mine].checkpoint >= row.checkpoint


def test_a_lease_taken_by_a_java_worker_is_given_up_and_its_checkpoints_are_refused(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(5)
    key, row = next(iter(fleet.rows().items()))
    fleet.dynamodb.update_item(
        TableName="orders-app",
        Key={"leaseKey": {"S": key}},
        Expected={"leaseCounter": {"Value": {"N": str(row.counter)}}},
        AttributeUpdates={
            "leaseCounter": {"Action": "PUT", "Value": {"N": str(row.counter + 1)}},
            "leaseOwner": {"Action": "PUT", "Value": {"S": "java"}},
            "ownerSwitchesSinceCheckpoint": {"Action": "ADD", "Value": {"N": "1"}},
        },
    )
    fleet.wait(lambda: fleet.happened(LeaseLost), what="the loss")
    event = fleet.happened(LeaseLost)[0]
    assert (event.shard, event.new_owner) == (key, "java")
    assert fleet.ledger.calls[-1] == ("w1", "lease_lost", key)
    assert fleet.rows()[key].owner == "java"
    assert fleet.rows()[key].counter == row.counter + 1


def test_a_worker_takes_no_more_than_max_leases(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.start("w1", max_leases=3)
    fleet.simulation.sleep(60)
    assert fleet.load() == {"w1": 3, None: 1}


def test_two_applications_on_one_stream_do_not_meet(new_fleet):
    fleet = new_fleet(shards=2)
    put = fleet.put(10)
    fleet.start("w1")
    fleet.start("w2", table_name="other-app")
    fleet.wait(lambda: all(count == 2 for count in fleet.ledger.payloads.values()) and fleet.ledger.payloads)
    assert sorted(set(fleet.ledger.by("w1"))) == sorted(put) == sorted(set(fleet.ledger.by("w2")))


def test_ended_leases_are_deleted_once_their_children_have_moved_on(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", cleanup_interval=30.0)
    fleet.wait_delivered(fleet.put(5))
    parent = fleet.open_shards()[0]
    fleet.kinesis.split(STREAM, parent)
    fleet.wait_delivered(fleet.put(20))
    fleet.wait(lambda: parent not in fleet.rows(), what="the deletion of the ended lease")
    assert set(fleet.rows()) == set(fleet.open_shards())
    fleet.simulation.sleep(200)
    assert set(fleet.rows()) == set(fleet.open_shards()), "a deleted parent is not created again"
