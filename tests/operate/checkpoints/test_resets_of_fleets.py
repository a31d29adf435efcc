"""Resets beside the unmodified worker: what is delivered afterwards is exactly what arrived from the time on."""

import pytest
from checkpoint_kit import (
    DiedError,
    Operator,
    clean_rows,
    every_record,
    put_aggregate,
    start,
    stop_all,
    user_records,
)

from pykcl.errors import Refused
from pykcl.model.checkpoint import AT_TRIM_HORIZON
from pykcl.operate.checkpoints.plan import Destination
from pykcl.operate.idle import wait_until_idle
from pykcl.operate.snapshot import known_failover
from pykcl.testing.fleet import STREAM

A, B, C = (f"shardId-{number:012d}" for number in range(3))


def read_all(fleet, name="w1", **options):
    """A worker reads everything that there is and stops."""
    fleet.start(name, failover_time=10.0, **options)
    fleet.wait_delivered(list(every_record(fleet)), timeout=600)
    fleet.simulation.sleep(3)
    stop_all(fleet)
    fleet.ledger.delivered.clear()


def put_over_time(fleet, count, prefix="r", pause=1.0):
    found = []
    for _ in range(count):
        found += fleet.put(1, prefix)
        fleet.simulation.sleep(pause)
    return found


def delivered_after(fleet, seconds=60, name="w2", **options):
    """What a new worker is given in this time, in order."""
    fleet.start(name, failover_time=10.0, **options)
    fleet.simulation.sleep(seconds)
    stop_all(fleet)
    return [record.data for _, record in fleet.ledger.delivered]


def from_on(fleet, millis):
    return {data for data, arrived in every_record(fleet).items() if arrived >= millis}


def test_after_a_reset_to_a_time_exactly_what_arrived_from_then_on_is_delivered(new_fleet):
    fleet = new_fleet(shards=2)
    operator = Operator(fleet)
    put_over_time(fleet, 20)
    at = operator.now_millis()
    later = put_over_time(fleet, 20)
    read_all(fleet)
    operator.reset_to(at)
    got = delivered_after(fleet)
    assert sorted(got) == sorted(later)
    first = {}
    for _, record in fleet.ledger.delivered:
        first.setdefault(record.shard_id, record.data)
    stored = [record for record in user_records(fleet.kinesis) if record.arrived_at_millis >= at]
    expected = {}
    for record in stored:
        expected.setdefault(record.shard_id, record.data)
    assert len(expected) == 2
    assert first == expected, "the first delivered is the first that arrived from then on"


def test_the_whole_of_an_aggregate_before_the_time_is_done_and_one_after_it_comes_whole(new_fleet):
    fleet = new_fleet(shards=1)
    operator = Operator(fleet)
    put_aggregate(fleet, b"a1", b"a2", b"a3")
    fleet.simulation.sleep(5)
    at = operator.now_millis()
    fleet.simulation.sleep(1)
    put_aggregate(fleet, b"b1", b"b2")
    read_all(fleet)
    operator.reset_to(at)
    assert fleet.rows()[A].checkpoint.sub_sequence_number == 2
    assert delivered_after(fleet) == [b"b1", b"b2"]


def test_a_shard_without_records_before_the_time_begins_at_its_oldest_and_never_at_latest(new_fleet):
    fleet = new_fleet(shards=2)
    operator = Operator(fleet)
    fleet.simulation.sleep(5)
    at = operator.now_millis()
    fleet.kinesis.put_record(STREAM, b"only", "", 0)
    read_all(fleet)
    operator.reset_to(at)
    assert {row.checkpoint for row in fleet.rows().values()} == {AT_TRIM_HORIZON}
    assert delivered_after(fleet) == [b"only"]


def family(fleet, kind="pykcl"):
    """Put, split, put, merge, put: the rows of what was read are cleaned up. (times before each) -> nothing lost."""
    times = [Operator(fleet).now_millis()]
    start(fleet, "w1", kind)
    put_over_time(fleet, 10, "before")
    times.append(Operator(fleet).now_millis())
    put_over_time(fleet, 10, "middle")
    fleet.kinesis.split(STREAM, A)
    times.append(Operator(fleet).now_millis())
    put_over_time(fleet, 10, "after")
    fleet.simulation.sleep(60)
    halves = sorted(fleet.open_shards())[-2:]
    fleet.kinesis.merge(STREAM, *halves)
    put_over_time(fleet, 10, "end")
    times.append(Operator(fleet).now_millis())
    put_over_time(fleet, 5, "last")
    fleet.wait_delivered(list(every_record(fleet)), timeout=900)
    fleet.wait(lambda: A not in fleet.rows(), 900, "the parent's row to be cleaned up")
    fleet.wait(lambda: not any(key in fleet.rows() for key in halves), 900, "the halves to be cleaned up")
    fleet.simulation.sleep(5)
    stop_all(fleet)
    fleet.ledger.delivered.clear()
    return times


def parents_first(fleet):
    """Every record of a parent was delivered before the first one of its child."""
    parents = {shard.shard_id: shard.parents for shard in fleet.kinesis.list_shards(STREAM, operation=None)}
    first, last = {}, {}
    for number, (_, record) in enumerate(fleet.ledger.delivered):
        first.setdefault(record.shard_id, number)
        last[record.shard_id] = number
    for child, above in parents.items():
        for parent in above:
            if child in first and parent in last:
                assert last[parent] < first[child], (parent, child)


@pytest.mark.parametrize("which", range(4))
def test_ancestors_that_were_cleaned_up_are_read_again_before_their_children(new_fleet, which):
    fleet = new_fleet(shards=1)
    operator = Operator(fleet)
    at = family(fleet)[which]
    operator.reset_to(at)
    got = delivered_after(fleet, 200)
    assert sorted(got) == sorted(from_on(fleet, at)), "nothing from then on is skipped, nothing else comes"
    assert len(got) == len(set(got))
    parents_first(fleet)


@pytest.mark.parametrize("which", range(4))
def test_java_workers_resume_exactly_there_too(new_fleet, which):
    fleet = new_fleet(shards=1)
    at = family(fleet, "java")[which]
    Operator(fleet).reset_to(at)
    start(fleet, "j2", "java")
    fleet.wait_delivered(list(from_on(fleet, at)), timeout=2000)
    fleet.simulation.sleep(60)
    stop_all(fleet)
    got = [record.data for _, record in fleet.ledger.delivered]
    assert sorted(got) == sorted(from_on(fleet, at))
    parents_first(fleet)


@pytest.mark.parametrize("which", range(4))
def test_the_backup_undoes_it(new_fleet, which):
    fleet = new_fleet(shards=1)
    operator = Operator(fleet)
    at = family(fleet)[which]
    before = clean_rows(fleet)
    saved = operator.reset_to(at)
    assert clean_rows(fleet) != before
    operator.restore(saved)
    assert clean_rows(fleet) == before
    assert delivered_after(fleet, 200) == [], "all of it was read before"


def test_the_backup_undoes_it_even_when_a_fleet_has_read_in_between(new_fleet):
    fleet = new_fleet(shards=1)
    operator = Operator(fleet)
    at = family(fleet)[1]
    before = clean_rows(fleet)
    saved = operator.reset_to(at)
    delivered_after(fleet, 3)
    operator.still()
    operator.restore(saved)
    assert clean_rows(fleet) == before
    fleet.ledger.delivered.clear()
    assert delivered_after(fleet, 200, name="w3") == []


@pytest.mark.parametrize("dies_before", range(4))
def test_a_tool_that_dies_between_two_rows_leaves_what_a_second_run_completes(new_fleet, dies_before):
    fleet = new_fleet(shards=1)
    operator = Operator(fleet)
    at = family(fleet)[1]
    before = clean_rows(fleet)
    plan = operator.plan_to(at)
    saved = operator.backup(plan)
    assert len(plan.changes) == 4
    with pytest.raises(DiedError):
        operator.apply_plan(plan, dies_before)
    half = clean_rows(fleet)
    again = Operator(fleet, "again")
    again.apply_plan(again.plan_to(at))
    assert (half == before) is (dies_before == 0)
    got = delivered_after(fleet, 200)
    assert sorted(got) == sorted(from_on(fleet, at))
    parents_first(fleet)
    again.still()
    again.restore(saved)
    assert clean_rows(fleet) == before


@pytest.mark.parametrize("dies_before", range(1, 4))
def test_a_fleet_that_starts_on_a_half_done_reset_reads_on_and_skips_nothing_new(new_fleet, dies_before):
    fleet = new_fleet(shards=1)
    operator = Operator(fleet)
    at = family(fleet)[1]
    plan = operator.plan_to(at)
    assert len(plan.changes) == 4
    with pytest.raises(DiedError):
        operator.apply_plan(plan, dies_before)
    new = fleet.put(5, "new")
    assert set(new) <= set(delivered_after(fleet, 200))


def test_a_reset_is_refused_while_a_worker_lives_and_goes_on_once_it_has_stopped(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.put(10)
    fleet.start("w1", failover_time=10.0)
    fleet.wait(lambda: set(fleet.owners().values()) == {"w1"}, what="the leases")
    operator = Operator(fleet)
    begun = fleet.simulation.now
    with pytest.raises(Refused, match="active: w1"):
        wait_until_idle(operator.scan, operator.runtime, failover=60.0)
    assert fleet.simulation.now - begun < 10, "the first heartbeat is enough, and w1 has one each 5 s"
    begun = fleet.simulation.now
    with pytest.raises(Refused, match="within 30 s"):
        operator.still(patience=30.0)
    assert fleet.simulation.now - begun < 60
    stop_all(fleet)
    begun = fleet.simulation.now
    operator.still(patience=30.0)
    assert 10 <= fleet.simulation.now - begun <= 25


def test_the_rows_of_a_fleet_tell_its_fail_over_time(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1", failover_time=7.0)
    fleet.wait(lambda: set(fleet.owners().values()) == {"w1"}, what="the leases")
    operator = Operator(fleet)
    assert known_failover(None, operator.situation().leases.values()) == (7.0, True)
    stop_all(fleet)
    assert known_failover(None, operator.situation().leases.values()) == (7.0, True)


def test_nothing_is_written_once_a_worker_has_the_lease(new_fleet):
    fleet = new_fleet(shards=1)
    put_over_time(fleet, 5)
    read_all(fleet)
    operator = Operator(fleet)
    plan = operator.plan(Destination("earliest"))
    fleet.start("w2", failover_time=10.0)
    fleet.wait(lambda: fleet.owners()[A] == "w2", what="the lease")
    before = fleet.rows()[A].checkpoint
    with pytest.raises(Refused, match="'w2' has it"):
        operator.apply_plan(plan)
    assert fleet.rows()[A].checkpoint == before
    fleet.simulation.sleep(30)
    assert fleet.ledger.delivered == []


def test_an_owner_that_wakes_up_after_the_reset_cannot_write_over_it(new_fleet):
    fleet = new_fleet(shards=1)
    put_over_time(fleet, 5)
    fleet.start("w1", failover_time=10.0, checkpoint_mode="manual")
    fleet.wait(lambda: fleet.owners() == {A: "w1"}, what="the lease")
    fleet.simulation.freeze("w1", 40)
    operator = Operator(fleet)
    operator.still(patience=60)
    plan = operator.plan(Destination("latest"))
    operator.apply_plan(plan)
    wanted = plan.changes[0].new.checkpoint
    assert fleet.rows()[A].owner is None
    fleet.simulation.sleep(25)
    assert fleet.rows()[A].checkpoint == wanted


def test_of_two_resets_at_once_one_writes_and_the_other_is_refused(new_fleet):
    fleet = new_fleet(shards=1)
    at = family(fleet)[1]
    one, other = Operator(fleet, "one"), Operator(fleet, "other")
    first, second = one.plan_to(at), other.plan(Destination("earliest"))
    assert len(first.changes) >= 2
    one.apply_plan(first)
    with pytest.raises(Refused, match="not as it was seen"):
        other.apply_plan(second)
    got = delivered_after(fleet, 200)
    assert sorted(got) == sorted(from_on(fleet, at))


def test_to_latest_goes_behind_the_newest_record_of_that_moment_and_never_writes_latest(new_fleet):
    fleet = new_fleet(shards=3)
    fleet.put(30)
    fleet.start("w1", failover_time=10.0)
    fleet.wait(fleet.rows, what="the leases")
    stop_all(fleet)
    fleet.simulation.sleep(60)
    fleet.put(20, "old")
    operator = Operator(fleet)
    operator.still()
    operator.apply_plan(operator.plan(Destination("latest")))
    assert {row.checkpoint.is_sentinel for row in fleet.rows().values()} <= {False}
    # Before any worker has started: LATEST in a row would skip these.
    fleet.simulation.sleep(1)
    new = fleet.put(20, "new")
    fleet.ledger.delivered.clear()
    assert sorted(delivered_after(fleet)) == sorted(new)


def test_to_latest_is_behind_what_arrived_in_this_very_second(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(3)
    read_all(fleet)
    operator = Operator(fleet)
    operator.still()
    # Kinesis tells its clock to the second, rounded down.
    fleet.simulation.sleep(int(fleet.simulation.now) + 1.7 - fleet.simulation.now)
    fleet.put(3, "just")
    operator.apply_plan(operator.plan(Destination("latest")))
    fleet.simulation.sleep(2)
    new = fleet.put(3, "new")
    assert delivered_after(fleet) == new


def test_to_latest_below_a_shard_that_was_not_read_to_its_end(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(10)
    read_all(fleet)
    fleet.put(10, "unread")
    fleet.kinesis.split(STREAM, A)
    fleet.simulation.sleep(5)
    fleet.put(10, "unread-below")
    operator = Operator(fleet)
    fleet.simulation.sleep(3)
    operator.still()
    operator.apply_plan(operator.plan(Destination("latest")))
    fleet.simulation.sleep(1)
    new = fleet.put(10, "new")
    assert sorted(delivered_after(fleet, 120)) == sorted(new)


def test_to_earliest_reads_everything_that_is_kept_in_order(new_fleet):
    fleet = new_fleet(shards=1)
    family(fleet)
    operator = Operator(fleet)
    operator.still()
    operator.apply_plan(operator.plan(Destination("earliest")))
    got = delivered_after(fleet, 300)
    assert sorted(got) == sorted(every_record(fleet))
    parents_first(fleet)


def test_a_time_before_retention_begins_at_the_oldest_and_the_plan_says_so(new_fleet):
    fleet = new_fleet(shards=1)
    put_over_time(fleet, 3, "gone")
    at = Operator(fleet).now_millis()
    read_all(fleet)
    fleet.simulation.sleep(25 * 3600)
    kept = put_over_time(fleet, 3, "kept")
    operator = Operator(fleet)
    plan = operator.plan_to(at)
    assert "is before the retention period (24 h" in plan.hints[0]
    operator.apply_plan(plan)
    assert delivered_after(fleet) == kept


@pytest.mark.parametrize("kind", ["time", "latest"])
def test_a_pending_checkpoint_goes_and_the_backup_brings_it_back(new_fleet, kind):
    from pykcl.model import lease_writes
    from pykcl.model.checkpoint import Checkpoint
    from pykcl.model.lease import PendingCheckpoint

    fleet = new_fleet(shards=1)
    put_over_time(fleet, 6)
    fleet.start("w1", failover_time=10.0, checkpoint_mode="manual")
    fleet.wait(lambda: fleet.owners() == {A: "w1"}, what="the lease")
    fleet.simulation.freeze("w1", 10_000)
    fleet.simulation.sleep(1)
    operator = Operator(fleet)
    row = fleet.rows()[A]
    last = fleet.ledger.delivered[-1][1] if fleet.ledger.delivered else None
    position = last.position if last else Checkpoint("1")
    operator.table.write(
        lease_writes.prepare(row, PendingCheckpoint(position, b"\x00state")), until=fleet.simulation.now + 9e9
    )
    before = clean_rows(fleet)
    plan = operator.plan(Destination(kind, at_millis=operator.now_millis() - 3000))
    saved = operator.backup(plan)
    operator.apply_plan(plan)
    assert fleet.rows()[A].pending is None
    operator.restore(saved)
    assert clean_rows(fleet) == before
    assert fleet.rows()[A].pending.state == b"\x00state"
