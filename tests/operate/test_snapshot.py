"""Rows of every kind in one scan, names as they are shown, counters over several scans, and the failover time."""

import pytest
from fleet_table import NAME, FleetTable, ended, lease, note, shard

from pykcl.model.lease_item import to_item
from pykcl.model.shard import short_shard
from pykcl.operate.hints import hints_of
from pykcl.operate.snapshot import known_failover
from pykcl.operate.states import LeaseState, counts, states_of

MULTI = "123456789012:orders:1790000000"


def test_rows_of_kcl_3x_are_foreign_and_no_lease_is_made_of_them(table):
    table.put(lease(0, "w1"))
    table.put_item(leaseKey={"S": "w1"}, entityType={"S": "WORKER_METRIC_STATS"}, lut={"N": "5"})
    table.put_item(leaseKey={"S": "Leader"}, entityType={"S": "LEADER"}, leaseOwner={"S": "w1"})
    view = table.view()
    assert list(view.leases) == [shard(0)]
    assert {row.kind for row in view.foreign} == {"WORKER_METRIC_STATS", "LEADER"}
    assert view.schema == "KCL 3.x"
    states = states_of(table.sampler().poll(), 10)
    assert counts(states) == {"UNKNOWN": 1, "FOREIGN": 2}


def test_leases_of_several_streams_are_shown_with_their_own_families(table):
    for number, parents in ((0, ()), (1, (shard(0),))):
        item = to_item(lease(number, "w1", parents=parents))
        table.put_item(**{**item, "leaseKey": {"S": f"{MULTI}:{shard(number)}"}, "streamName": {"S": MULTI}, "shardId": {"S": shard(number)}})  # fmt: skip
    view = table.view()
    assert view.schema == "KCL, several streams"
    assert view.streams[f"{MULTI}:{shard(1)}"] == MULTI
    states = states_of(table.sampler().poll(), 10)
    assert states[f"{MULTI}:{shard(1)}"].waits_for == (f"{MULTI}:{shard(0)}",)
    assert states[f"{MULTI}:{shard(1)}"].state is LeaseState.WAITING


def test_rows_as_kcl_1x_wrote_them_are_leases(table):
    table.put_item(leaseKey={"S": shard(0)}, leaseCounter={"N": "7"}, leaseOwner={"S": "old"}, ownerSwitchesSinceCheckpoint={"N": "0"}, checkpoint={"S": "TRIM_HORIZON"})  # fmt: skip
    view = table.view()
    assert view.leases[shard(0)].owner == "old"
    assert view.schema == "KCL 1.x or 2.x before 2.3"


def test_junk_that_only_looks_like_a_lease_is_unreadable_and_blocks_its_children(table):
    table.put_item(leaseKey={"S": shard(0)}, leaseCounter={"S": "seven"}, checkpoint={"S": "TRIM_HORIZON"})
    table.put(lease(1, "w1", parents=(shard(0),)))
    found = table.sampler().poll()
    states = states_of(found, 10)
    assert states[shard(0)].state is LeaseState.UNREADABLE
    assert states[shard(1)].state is LeaseState.WAITING
    assert any("cannot be understood" in hint for hint in hints_of(found, states, 10, is_known=True))


def test_an_empty_table_is_said_to_be_empty(table):
    found = table.sampler().poll_until_moved(10)
    assert found.samples == 1
    states = states_of(found, 10)
    assert states == {}
    assert found.snapshot.schema == "empty"
    assert "no rows" in hints_of(found, states, 10, is_known=True)[0]


def test_short_names_are_numbers_and_other_names_stay():
    assert short_shard(shard(3)) == "003"
    assert short_shard(shard(12345)) == "12345"
    assert short_shard(f"{MULTI}:{shard(3)}") == f"{MULTI}:003"
    assert short_shard("w1") == "w1"
    assert short_shard("shardId-3") == "shardId-3"


# -- several scans ---------------------------------------------------------------------------------------------


def state(found, number, failover=10.0):
    return states_of(found, failover)[shard(number)].state


def test_one_look_cannot_tell_who_is_alive(table):
    table.put(lease(0, "w1"), lease(1), ended(2, 3), lease(3, "w1", parents=(shard(2),)))
    found = table.sampler().poll()
    assert [state(found, number) for number in range(4)] == [
        LeaseState.UNKNOWN, LeaseState.UNOWNED, LeaseState.ENDED, LeaseState.UNKNOWN,
    ]  # fmt: skip
    assert found.moved == {}


def test_a_counter_that_moves_is_active_and_sampling_stops_as_soon_as_all_have_moved(table, clock):
    table.put(lease(0, "w1"), lease(1, "w2"))
    clock.meanwhile = lambda: table.renew(0, 1)
    found = table.sampler().poll_until_moved(10.0)
    assert found.samples == 2
    assert 5.0 < found.span < 7.0
    assert state(found, 0) is state(found, 1) is LeaseState.ACTIVE
    assert found.moved == {shard(0): 1, shard(1): 1}


def test_movement_is_counted_from_the_first_look_of_a_sampling(table, clock):
    table.put(lease(0, "w1"), lease(1, "w2"))
    clock.meanwhile = lambda: table.renew(0)
    found = table.sampler().poll_until_moved(10.0)
    assert found.samples > 2
    assert found.moved == {shard(0): found.samples - 1, shard(1): 0}


def test_an_unmoved_counter_is_stale_only_once_it_stood_still_for_the_failover_time(table, clock):
    table.put(lease(0, "w1"), lease(1, "w2"))
    clock.meanwhile = lambda: table.renew(0)
    sampler = table.sampler()
    found = sampler.poll_until_moved(10.0, longest=9.9)
    assert state(found, 1) is LeaseState.UNKNOWN
    assert state(found, 0) is LeaseState.ACTIVE
    clock.now += 0.2
    assert state(sampler.poll(), 1) is LeaseState.STALE


def test_by_default_a_known_failover_time_is_waited_out(table):
    table.put(lease(0, "w1"))
    found = table.sampler().poll_until_moved(10.0)
    assert state(found, 0) is LeaseState.STALE
    assert 10.0 <= found.span < 11.0


def test_without_a_known_failover_time_it_looks_for_six_seconds_and_says_unknown(table):
    table.put(lease(0, "w1"))
    found = table.sampler().poll_until_moved(None)
    assert found.span == pytest.approx(6.0)
    assert state(found, 0, failover=60.0) is LeaseState.UNKNOWN
    hints = hints_of(found, states_of(found, 60.0), 60.0, is_known=False)
    assert any("a guess" in hint and "--failover" in hint for hint in hints)


def test_an_owner_that_stopped_becomes_stale_although_it_was_seen_moving_before(table, clock):
    table.put(lease(0, "w1"))
    sampler = table.sampler()
    sampler.poll()
    table.renew(0)
    clock.now += 3
    assert state(sampler.poll(), 0) is LeaseState.ACTIVE
    clock.now += 9.9
    assert state(sampler.poll(), 0) is LeaseState.ACTIVE
    clock.now += 0.1
    assert state(sampler.poll(), 0) is LeaseState.STALE


def test_a_lease_waits_for_parents_whoever_owns_it_and_no_longer_once_they_ended_or_are_gone(table):
    table.put(lease(0, "w1"), lease(1, "w1"), lease(2, "w1", parents=(shard(0), shard(1))))
    sampler = table.sampler()
    status = states_of(sampler.poll(), 10)[shard(2)]
    assert (status.state, status.waits_for) == (LeaseState.WAITING, (shard(0), shard(1)))
    table.put(ended(0, 2))
    assert states_of(sampler.poll(), 10)[shard(2)].waits_for == (shard(1),)
    del table.client.tables[NAME].rows[shard(1)]
    assert states_of(sampler.poll(), 10)[shard(2)].state is LeaseState.UNKNOWN


def test_a_counter_that_went_back_is_told(table, clock):
    table.put(lease(0, "w1", counter=50))
    sampler = table.sampler()
    sampler.poll()
    table.put(lease(0, "w1", counter=1))
    found = sampler.poll()
    assert any("went back" in hint for hint in hints_of(found, states_of(found, 10), 10, is_known=True))


def noted(number, owner, millis, **more):
    return lease(number, owner, metadata=note(more.pop("by", owner), failover_millis=millis), **more)


@pytest.mark.parametrize(
    ("leases", "expected"),
    [
        ([], (60.0, False)),
        ([lease(0), lease(1)], (60.0, False)),
        ([noted(0, "w1", 10_000), noted(1, None, 5_000, by="w2")], (10.0, True)),
        ([noted(0, None, 10_000, by="w1"), noted(1, None, 20_000, by="w2")], (20.0, True)),
        ([noted(0, "w1", 10_000), lease(1)], (10.0, True)),
        ([noted(0, "w1", 10_000), lease(1, "java")], (60.0, False)),
        ([noted(0, "w1", 10_000), lease(1, "w0", metadata=note("w0"))], (60.0, False)),
        ([noted(0, "java", 10_000, by="w1")], (60.0, False)),
        ([noted(0, "java", 10_000, by="w1", checkpoint_owner="w1")], (10.0, True)),
        ([noted(0, "w1", 10_000), noted(1, None, 10**13, by="w2")], (60.0, False)),
        ([noted(0, None, 0, by="w1")], (60.0, False)),
    ],
    ids=[
        "no lease", "no note", "the longest", "a fleet that is stopped", "a lease nobody has had", "a lease of Java",
        "a lease of an older pykcl", "Java took it", "Java takes it over", "beyond belief", "no time at all",
    ],
)  # fmt: skip
def test_the_fail_over_time_is_the_longest_noted_where_every_owner_noted_one(leases, expected):
    assert known_failover(None, leases) == expected
    assert known_failover(7.0, leases) == (7.0, True)


def test_a_fail_over_time_that_the_rows_tell_is_no_guess(clock):
    table = FleetTable(clock)
    table.put(noted(0, "w1", 10_000))
    found = table.sampler().poll_until_moved(None)
    failover, is_known = known_failover(None, found.snapshot.leases.values())
    hints = hints_of(found, states_of(found, failover), failover, is_known=is_known)
    assert not any("a guess" in hint for hint in hints)
