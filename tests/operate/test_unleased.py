"""Shards without a lease: which there are, what each waits for, and for how long it has."""

from dataclasses import replace

import pytest
from fleet_table import at, ended, lease, note, shard

from pykcl.local.stream import LocalKinesis
from pykcl.model.checkpoint import AT_LATEST, AT_TRIM_HORIZON, Checkpoint, StartPosition
from pykcl.model.lease import PykclMetadata, Standstill
from pykcl.model.shard import Shard
from pykcl.operate.lag import KinesisLag, ShardLag, total_of, with_standstills, with_unleased
from pykcl.operate.unleased import unleased_shards
from pykcl.testing.memory.stream import MemoryStream

LATEST, HORIZON = StartPosition("LATEST"), StartPosition("TRIM_HORIZON")


def closed(number, *parents):
    return Shard(shard(number), tuple(map(shard, parents)), ending_sequence_number="9")


def opened(number, *parents):
    return Shard(shard(number), tuple(map(shard, parents)))


def unleased(shards, *leases, start=LATEST, unreadable=()):
    rows = {one.key: one for one in leases}
    found = unleased_shards(start, shards, rows, set(map(shard, unreadable)))
    return {one.key: one.waits_for for one in found}


def test_the_children_of_a_shard_that_has_not_ended_wait_for_it():
    shards = [closed(0), opened(1, 0), opened(2, 0)]
    assert unleased(shards, lease(0, "w1")) == {shard(1): (shard(0),), shard(2): (shard(0),)}


def test_a_run_over_some_shards_lacks_no_other():
    run = PykclMetadata(until=1, shards="000")
    shards = [closed(0), opened(1), opened(2, 0), opened(3)]
    assert unleased(shards, replace(lease(0, "w1"), metadata=run)) == {shard(2): (shard(0),)}


def test_all_generations_wait_for_the_nearest_ancestor_that_has_a_row():
    shards = [closed(0), closed(1, 0), opened(2, 1)]
    assert unleased(shards, lease(0, "w1")) == {shard(1): (shard(0),), shard(2): (shard(0),)}
    assert unleased(shards, ended(0, 1), lease(1)) == {shard(2): (shard(1),)}


def test_the_child_of_a_merge_waits_for_the_parents_that_have_not_ended():
    shards = [closed(0), closed(1), opened(2, 0, 1)]
    assert unleased(shards, lease(0), lease(1)) == {shard(2): (shard(0), shard(1))}
    assert unleased(shards, ended(0, 2), lease(1)) == {shard(2): (shard(1),)}


def test_a_parent_whose_row_cannot_be_read_may_not_have_ended():
    assert unleased([closed(0), opened(1, 0)], unreadable=[0]) == {shard(1): (shard(0),)}


def test_a_child_of_ended_parents_waits_for_a_worker():
    assert unleased([closed(0), opened(1, 0)], ended(0)) == {shard(1): ()}
    assert unleased([opened(0), opened(1)], lease(0)) == {shard(1): ()}


def test_what_was_read_or_passed_over_waits_for_nothing():
    shards = [closed(0), closed(1, 0), opened(2, 1)]
    assert unleased(shards, lease(2)) == {}
    assert unleased([closed(0), opened(1, 0)], start=LATEST) == {shard(1): ()}, "0 is from before the start"


def test_before_the_first_lease_a_shard_waits_for_the_oldest():
    shards = [closed(0), closed(1, 0), opened(2, 1)]
    expected = {shard(0): (), shard(1): (shard(0),), shard(2): (shard(0),)}
    assert unleased(shards, start=HORIZON) == expected


def test_a_shard_is_measured_from_where_its_reader_will_begin():
    shards = [closed(0), opened(1, 0)]
    (child,) = unleased_shards(LATEST, shards, {shard(0): lease(0)})
    assert child.lease.checkpoint == AT_TRIM_HORIZON
    assert child.lease.parents == (shard(0),)
    (leaf,) = unleased_shards(LATEST, [opened(1)], {})
    assert leaf.lease.checkpoint == AT_LATEST


@pytest.fixture
def kinesis(clock):
    clock.utcnow_millis = lambda: 1_790_000_000_000 + int(clock.now * 1000)
    found = LocalKinesis(clock.utcnow_millis, listing_lag=0)
    found.create_stream("orders", 1)
    return found


def measured(kinesis, clock, *leases):
    source = KinesisLag(MemoryStream(kinesis, "orders", clock), clock)
    rows = {one.key: one for one in leases}
    unleased = source.unleased(rows, ())
    lags = source.lags([*leases, *(one.lease for one in unleased)])
    return with_unleased(unleased, with_standstills(leases, lags), rows, clock.utcnow_millis())


def test_a_shard_without_a_lease_is_behind_by_the_age_of_its_oldest_record(kinesis, clock):
    last = kinesis.put_record("orders", b"x", "key").sequence_number
    kinesis.split("orders", shard(0))
    child = kinesis.put_record("orders", b"x", "key").shard_id
    clock.now += 40
    lags = measured(kinesis, clock, lease(0, "w1", Checkpoint(last)))
    assert lags[shard(0)].behind == 0.0
    assert lags[child].verdict == "no lease"
    assert lags[child].behind == pytest.approx(40, abs=1)
    assert lags[child].why == (
        f"waits for the end of {shard(0)} (since 40s; it was read, and its end is not written)"
    )
    assert total_of(lags, 5.0).late == 1


def test_a_shard_below_one_that_is_far_behind_is_named_with_it(kinesis, clock):
    kinesis.put_record("orders", b"x", "key")
    clock.now += 100
    kinesis.split("orders", shard(0))
    lags = measured(kinesis, clock, lease(0, "w1", AT_TRIM_HORIZON))
    assert lags[shard(1)].verdict == "no lease"
    assert lags[shard(1)].why == f"waits for the end of {shard(0)} (it is 1m40s behind)"


def test_an_empty_shard_is_behind_since_the_end_of_its_parent_cannot_be_written(kinesis, clock):
    """An alarm does not wait for the first record."""
    last = Checkpoint(kinesis.put_record("orders", b"x", "key").sequence_number)
    kinesis.split("orders", shard(0))
    standstill = Standstill(last, clock.utcnow_millis(), cause="shard_ended has not returned")
    clock.now += 50
    lags = measured(kinesis, clock, lease(0, "w1", last, metadata=note("w1", standstill=standstill)))
    assert lags[shard(1)].behind == pytest.approx(50, abs=1)
    assert "its end is not written: shard_ended has not returned" in lags[shard(1)].why


def test_a_note_of_records_that_fail_says_nothing_of_the_wait_of_the_children(kinesis, clock):
    first = Checkpoint(kinesis.put_record("orders", b"x", "key").sequence_number)
    kinesis.put_record("orders", b"x", "key")
    standstill = Standstill(first, clock.utcnow_millis(), records=1, cause="process_records raised")
    clock.now += 500
    kinesis.split("orders", shard(0))
    lags = measured(kinesis, clock, lease(0, "w1", first, metadata=note("w1", standstill=standstill)))
    assert lags[shard(1)].behind == 0.0


def test_two_parents_are_named_each():
    shards = [closed(0), closed(1), opened(2, 0, 1)]
    rows = {shard(0): lease(0, "w1", at(1)), shard(1): lease(1, "w1", at(2))}
    lags = {
        shard(0): ShardLag(0.0, is_at_end=True),
        shard(1): ShardLag(9.0),
        shard(2): ShardLag(None, "unknown", "x"),
    }
    found = with_unleased(unleased_shards(LATEST, shards, rows), lags, rows, 0)[shard(2)]
    assert found.behind is None
    assert f"{shard(0)} was read, and its end is not written; {shard(1)} is 9.0s behind); x" in found.why
