"""What simulated storms over whole fleets brought to light, each as one directed test of the unmodified worker."""

import dataclasses
from contextlib import suppress
from datetime import datetime, timezone

import pytest
from botocore.exceptions import ReadTimeoutError

from pykcl.errors import CheckpointRefused, IteratorExpired, ShardGone, StopTimedOut, TemporaryError
from pykcl.events import (
    LeaseCreated,
    LeaseDeleted,
    LeaseHandedBack,
    LeaseTaken,
    LeaseTakenAway,
    LossReason,
    StartingAtLatest,
    ThreadsLeft,
    TroubleBegan,
    TroubleEnded,
)
from pykcl.local.errors import AwsError
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease
from pykcl.model.lease_writes import to_item
from pykcl.model.shard import Shard, ShardListing
from pykcl.planning.lease_view import LeaseView
from pykcl.planning.lifecycle import State
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault
from pykcl.testing.memory.faults import denied
from pykcl.testing.simulation import Simulation
from pykcl.worker.failure_tracker import FailureTracker
from pykcl.worker.held_leases import HeldLeases, Loss
from pykcl.worker.lease_renewer import LeaseRenewer
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.shard_sync import LeaseCleaner
from pykcl.worker.stream_identity import ExpiredShardCheck


def _shard(number):
    return f"shardId-{number:012}"


class _Listing:
    """What ListShards tells from now on: what is true, or without some shards, or what was true at a moment."""

    def __init__(self, fleet):
        self._truth = fleet.kinesis.list_shards
        self.without = frozenset()
        self.frozen = None
        fleet.kinesis.list_shards = self._list

    def _list(self, stream, shard_filter=None, operation="ListShards"):
        shards = self._truth(stream, shard_filter, operation)
        if operation is None:
            return shards
        return [shard for shard in self.frozen or shards if shard.shard_id not in self.without]

    def freeze(self):
        self.frozen = self._truth(STREAM, operation=None)

    def heal(self):
        self.frozen, self.without = None, frozenset()


def _asked(fleet):
    """The shards of every GetShardIterator call from now on."""
    asked = []

    def note(operation, stream, shard):
        if operation == "GetShardIterator":
            asked.append(shard)

    fleet.kinesis.fault = note
    return asked


def _check_order(fleet):
    """Every delivery of a shard comes after the last one of each of its parents."""
    first, last = {}, {}
    for number, (_, record) in enumerate(fleet.ledger.delivered):
        first.setdefault(record.shard_id, number)
        last[record.shard_id] = number
    for shard in fleet.kinesis.list_shards(STREAM, operation=None):
        for parent in shard.parents:
            if shard.shard_id in first and parent in last:
                assert last[parent] < first[shard.shard_id], f"{shard.shard_id} before the end of {parent}"


def _held_up(fleet, name, shard, **options):
    """Start a worker whose processor waits at that shard; return the event that lets it go on."""
    go_on = fleet.simulation.runtime(name).event()

    def wait(batch):
        if batch.shard_id == shard:
            go_on.wait()

    fleet.start(name, processor=lambda: RecordingProcessor(name, fleet.ledger, wait), **options)
    return go_on


# -- a listing that lacks a parent -----------------------------------------------------------------------------


def test_a_merge_gets_no_lease_from_a_listing_older_than_its_other_parent(new_fleet):
    fleet = new_fleet(shards=2)
    listing = _Listing(fleet)
    put = fleet.put(20)
    go_on = _held_up(fleet, "w1", _shard(1), shard_sync_interval=5.0)
    fleet.wait(lambda: ("w1", "process_records", _shard(1)) in fleet.ledger.calls)
    listing.freeze()
    fleet.kinesis.split(STREAM, _shard(1))
    put += fleet.put(20)
    # Its other parent has no lease before shard 1 has ended, and is not in the frozen listing.
    fleet.kinesis.merge(STREAM, _shard(0), _shard(2))
    put += fleet.put(20)
    fleet.wait(lambda: ("w1", "shard_ended", _shard(0)) in fleet.ledger.calls)
    fleet.simulation.sleep(60)
    assert _shard(4) not in fleet.rows()
    assert not fleet.rows()[_shard(0)].is_ended
    (trouble,) = (event for event in fleet.happened(TroubleBegan) if event.shard == _shard(0))
    assert trouble.what == "ending"
    assert _shard(2) in trouble.cause
    listing.heal()
    go_on.set()
    fleet.wait_delivered(put, 300)
    _check_order(fleet)
    assert fleet.ledger.duplicates == 0


def test_a_merge_is_not_prepared_by_a_scan_older_than_the_lease_above_its_other_parent(new_fleet):
    """Shard 2, between the leased one and the merge's parent, would look like one that the start passed over."""
    fleet = new_fleet(shards=2)
    go_on = _held_up(fleet, "w1", _shard(1), start="LATEST")
    assert fleet.workers["w1"].wait_ready(30)
    put = fleet.put(20)
    fleet.wait(lambda: ("w1", "process_records", _shard(1)) in fleet.ledger.calls)
    scan = fleet.dynamodb.scan

    def without_the_lease_above(**params):
        answer = scan(**params)
        if params.get("ConsistentRead"):
            return answer
        return {**answer, "Items": [item for item in answer["Items"] if item["leaseKey"]["S"] != _shard(1)]}

    fleet.dynamodb.scan = without_the_lease_above
    for split in (1, 2):
        fleet.kinesis.split(STREAM, _shard(split))
        put += fleet.put(20)
    fleet.kinesis.merge(STREAM, _shard(0), _shard(4))
    put += fleet.put(20)
    fleet.wait(lambda: _shard(6) in fleet.rows(), what="the lease of the merge")
    fleet.dynamodb.scan = scan
    go_on.set()
    fleet.wait_delivered(put, 300)
    _check_order(fleet)


def test_a_missing_parent_gets_no_lease_by_a_scan_older_than_the_lease_above_it(new_fleet):
    """No lease would begin at LATEST here. But with one for shard 4 nothing above it is waited for, or, where a Java
    worker ends shard 1, ever read."""
    fleet = new_fleet(shards=2)
    fleet.worker("w1", start="LATEST")._connect()
    for number, checkpoint in ((0, "SHARD_END"), (1, "LATEST")):
        lease = Lease(_shard(number), Checkpoint(checkpoint))
        fleet.dynamodb.put_item(TableName=TABLE, Item=to_item(lease))
    fleet.kinesis.split(STREAM, _shard(1))
    # Into shards 2 and 3, then into shard 4: nothing into shard 0, which has been read.
    put = [b"2", b"3", b"4"]
    fleet.kinesis.put_record(STREAM, put[0], "key", 2**127)
    fleet.kinesis.put_record(STREAM, put[1], "key", 2**128 - 1)
    fleet.kinesis.merge(STREAM, _shard(2), _shard(3))
    fleet.kinesis.put_record(STREAM, put[2], "key", 2**127)
    fleet.kinesis.merge(STREAM, _shard(0), _shard(4))
    put += fleet.put(20)
    scan = fleet.dynamodb.scan

    def without_the_lease_above(**params):
        answer = scan(**params)
        if params.get("ConsistentRead") or fleet.simulation.now > began + 1.0:
            return answer
        return {**answer, "Items": [item for item in answer["Items"] if item["leaseKey"]["S"] != _shard(1)]}

    began, fleet.dynamodb.scan = fleet.simulation.now, without_the_lease_above
    fleet.start("w1", start="LATEST")
    fleet.wait_delivered(put)
    _check_order(fleet)


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "LATEST"])
def test_a_shard_in_the_middle_that_is_not_listed_for_a_while_is_read_before_its_children(new_fleet, start):
    fleet = new_fleet(shards=1)
    listing = _Listing(fleet)
    go_on = _held_up(fleet, "w1", _shard(0), shard_sync_interval=5.0, start=start)
    assert fleet.workers["w1"].wait_ready(30)
    put = fleet.put(10)
    fleet.wait(lambda: ("w1", "process_records", _shard(0)) in fleet.ledger.calls)
    listing.without = {_shard(1)}
    fleet.kinesis.split(STREAM, _shard(0))
    put += fleet.put(20)
    fleet.kinesis.split(STREAM, _shard(1))
    put += fleet.put(20)
    fleet.simulation.sleep(30)
    assert set(fleet.rows()) == {_shard(0)}
    listing.heal()
    go_on.set()
    fleet.wait_delivered(put, 300)
    _check_order(fleet)
    assert fleet.ledger.duplicates == 0


@pytest.mark.parametrize("at_a_time", [False, True], ids=["TRIM_HORIZON", "AT_TIMESTAMP"])
def test_an_application_starts_with_the_whole_listing_only(new_fleet, at_a_time):
    fleet = new_fleet(shards=2, listing_lag=0)
    listing = _Listing(fleet)
    start = fleet.simulation.runtime("clock").utcnow_millis() - 1000
    put = fleet.put(20)
    fleet.kinesis.split(STREAM, _shard(0))
    put += fleet.put(20)
    listing.without = {_shard(0)}
    worker = fleet.start("w1", start=_moment(start) if at_a_time else "TRIM_HORIZON")
    fleet.simulation.sleep(20)
    assert fleet.items() == {}
    (trouble,) = fleet.happened(TroubleBegan)
    assert trouble.what == "checking the list of shards"
    assert _shard(0) in trouble.cause
    assert not fleet.happened(TroubleEnded)
    listing.heal()
    fleet.wait_delivered(put, 60)
    assert [event.what for event in fleet.happened(TroubleEnded)] == [trouble.what]
    assert worker.failure is None
    _check_order(fleet)
    assert fleet.ledger.duplicates == 0


def _moment(millis):
    return datetime.fromtimestamp(millis / 1000, tz=timezone.utc)


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "LATEST"])
def test_a_merge_that_is_not_listed_for_a_while_does_not_bring_its_parents_back(new_fleet, start):
    fleet = new_fleet(shards=2)
    listing = _Listing(fleet)
    worker = fleet.start("w1", start=start, shard_sync_interval=5.0, cleanup_interval=5.0)
    assert worker.wait_ready(30)
    put = fleet.put(20)
    fleet.kinesis.merge(STREAM, _shard(0), _shard(1))
    put += fleet.put(20)
    fleet.wait_delivered(put)
    fleet.kinesis.split(STREAM, _shard(2))
    put += fleet.put(20)
    fleet.wait_delivered(put)
    fleet.wait(lambda: set(fleet.rows()) == {_shard(3), _shard(4)}, 60, "the clean-up of what was read")
    created = len(fleet.happened(LeaseCreated))
    listing.without = {_shard(2)}
    fleet.simulation.sleep(60)
    listing.heal()
    fleet.simulation.sleep(60)
    assert len(fleet.happened(LeaseCreated)) == created
    assert fleet.ledger.duplicates == 0
    assert [event.what for event in fleet.happened(TroubleEnded)] == ["checking the list of shards"]


def test_an_expired_parent_holds_nothing_up_and_is_asked_for_once(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.kinesis.split(STREAM, _shard(0))
    fleet.simulation.sleep(25 * 3600)
    assert _shard(0) not in {shard.shard_id for shard in fleet.kinesis.list_shards(STREAM)}
    put = fleet.put(20)
    asked = _asked(fleet)
    began, creations = fleet.simulation.now, []

    def refuse(operation, params):
        # So that several listings look at the same children.
        if operation != "PutItem":
            return None
        creations.append(fleet.simulation.now)
        return Fault(before=ReadTimeoutError(endpoint_url="-")) if creations[-1] < began + 30 else None

    fleet.dynamodb.fault = refuse
    fleet.start("w1")
    fleet.wait(lambda: creations, 5, "the first creation")
    fleet.wait_delivered(put, 180)  # a day without records is crossed in some 300 reads
    assert asked.count(_shard(0)) == 1


def test_many_expired_parents_are_asked_for_as_fast_as_kinesis_answers(new_fleet):
    fleet = new_fleet(shards=60)
    for shard in fleet.open_shards():
        fleet.kinesis.split(STREAM, shard)
    fleet.simulation.sleep(25 * 3600)
    asked = []

    def limit(operation, stream, shard):
        # Six questions, then none for a moment.
        if operation == "GetShardIterator" and not fleet.dynamodb.changes:
            asked.append(shard)
            if len(asked) % 7 == 0:
                raise AwsError("ProvisionedThroughputExceededException", "too many")

    fleet.kinesis.fault = limit
    began = fleet.simulation.now
    fleet.start("w1")
    fleet.wait(lambda: fleet.dynamodb.changes, 300, "the first lease")
    assert fleet.simulation.now - began < 9 * 2 + 10
    assert len(asked) == 60 + 9


def test_an_application_at_latest_starts_with_every_open_shard_only(new_fleet):
    fleet = new_fleet(shards=4)
    listing = _Listing(fleet)
    old = fleet.put(20)
    fleet.simulation.sleep(3)
    listing.without = {_shard(2)}
    worker = fleet.start("w1", start="LATEST")
    assert not worker.wait_ready(20)
    assert fleet.items() == {}
    assert not fleet.happened(StartingAtLatest)
    listing.heal()
    assert worker.wait_ready(30)
    new = fleet.put(20)
    fleet.wait_delivered(new)
    assert not set(old) & set(fleet.ledger.payloads)
    assert [event.shards for event in fleet.happened(StartingAtLatest)] == [4]
    assert len(fleet.happened(LeaseCreated)) == 4


def test_nobody_reads_from_half_a_start_while_the_listing_lacks_a_shard(new_fleet):
    fleet = new_fleet(shards=3)
    listing = _Listing(fleet)

    def refuse(operation, params):
        late = operation == "PutItem" and params["Item"]["leaseKey"]["S"] != _shard(0)
        return Fault(before=ReadTimeoutError(endpoint_url="-")) if late else None

    fleet.dynamodb.fault = refuse
    fleet.start("w1", start="LATEST")
    fleet.wait(lambda: _shard(0) in fleet.rows(), 10, "the first lease of the start")
    fleet.simulation.kill("w1")
    fleet.dynamodb.fault = None
    listing.without = {_shard(1)}
    worker = fleet.start("w2", start="LATEST")
    fleet.simulation.sleep(60)
    assert fleet.owners() == {_shard(0): None}
    assert not worker.wait_ready(0)
    listing.heal()
    assert worker.wait_ready(60)
    fleet.wait_delivered(fleet.put(20))


class _Answers:
    """A stream that says of each shard whether it knows it; or raises what the test put there."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def open(self, shard_id, start):
        self.asked.append((shard_id, start.kind))
        answer = self.answers[shard_id]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_what_kinesis_does_not_know_is_remembered_and_the_rest_is_asked_again():
    with Simulation() as simulation:
        stream = _Answers(a=ShardGone("a"), b="iterator", c=ShardGone("c"))
        gone = ExpiredShardCheck(stream, simulation.runtime("w1"))
        with pytest.raises(TemporaryError, match="lacks b"):
            gone.confirm(["c", "b", "a"])
        assert stream.asked == [("a", "TRIM_HORIZON"), ("b", "TRIM_HORIZON")]
        stream.answers["b"] = TemporaryError("busy")
        with pytest.raises(TemporaryError, match="busy"):
            gone.confirm(["a", "b"])
        stream.answers["b"] = ShardGone("b")
        gone.confirm(["a", "b", "c"])
        assert [shard for shard, _ in stream.asked] == ["a", "b", "b", "b", "c"]
        gone.confirm(["c", "b", "a"])
        gone.confirm([])
        assert len(stream.asked) == 5
        assert len(gone) == 3


# -- stopping --------------------------------------------------------------------------------------------------


def _silent(*operations):
    """A fault: DynamoDB takes these requests and does not answer. Its list tells which came."""
    came = []

    def fault(operation, params):
        if operation not in operations:
            return None
        came.append(params)
        return Fault(before=ReadTimeoutError(endpoint_url="-"), delay=2.0)

    return fault, came


def test_a_stop_does_not_wait_for_all_the_leases_that_are_due_for_deletion(new_fleet):
    fleet = new_fleet(shards=6)
    worker = fleet.start("w1", cleanup_interval=60.0)
    parents = fleet.open_shards()
    fleet.wait_delivered(fleet.put(30))
    for shard in parents:
        fleet.kinesis.split(STREAM, shard)
    fleet.wait_delivered(fleet.put(60))
    fleet.dynamodb.fault, came = _silent("DeleteItem")
    fleet.wait(lambda: came, 120, "the first deletion")
    assert {key for key, row in fleet.rows().items() if row.is_ended} == set(parents)
    began = fleet.simulation.now
    worker.stop(grace=12.0)
    assert fleet.simulation.now - began < 12
    assert not fleet.happened(ThreadsLeft)
    assert not fleet.simulation.unfinished("w1")
    assert not fleet.happened(LeaseDeleted)


def test_a_stop_does_not_wait_for_all_the_leases_of_a_start(new_fleet):
    fleet = new_fleet(shards=6)
    worker = fleet.worker("w1")
    fleet.dynamodb.fault, came = _silent("PutItem")
    worker.start()
    fleet.wait(lambda: came, 30, "the first creation")
    fleet.dynamodb.fault = lambda operation, params: Fault(delay=4.0) if operation == "PutItem" else None
    worker.stop(grace=12.0)
    assert not fleet.happened(ThreadsLeft)
    assert not fleet.simulation.unfinished("w1")


def test_a_stop_does_not_wait_for_the_answers_about_all_expired_parents(new_fleet):
    fleet = new_fleet(shards=12)
    for shard in fleet.open_shards():
        fleet.kinesis.split(STREAM, shard)
    fleet.simulation.sleep(25 * 3600)
    asked = []

    def slow(operation, stream, shard):
        if operation == "GetShardIterator":
            asked.append(shard)
            fleet.simulation.sleep(2.0)

    fleet.kinesis.fault = slow
    worker = fleet.start("w1")
    fleet.wait(lambda: len(asked) == 2, 30, "the second question")
    began = fleet.simulation.now
    worker.stop(grace=8.0)
    assert fleet.simulation.now - began < 3
    assert len(asked) == 2
    assert not fleet.simulation.unfinished("w1")
    assert fleet.items() == {}


def test_a_cleaner_that_shall_stop_asks_no_further_question(new_fleet):
    fleet = new_fleet(shards=1)
    context = fleet.worker("w1", cleanup_interval=1.0)._connect()
    keys = [_shard(number) for number in range(100, 108)]
    stream = _Answers(**dict.fromkeys(keys, "iterator"))
    cleaner = LeaseCleaner(dataclasses.replace(context, stream=stream), lambda: len(stream.asked) == 3)
    cleaner.listed(ShardListing((Shard(_shard(0)),)))
    fleet.simulation.sleep(2)
    cleaner.clean(LeaseView().observe([Lease(key, Checkpoint("7")) for key in keys], 0.0))
    assert [shard for shard, _ in stream.asked] == keys[:3]


def test_a_manager_that_is_still_busy_at_the_end_of_the_grace_is_named(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", shard_sync_interval=5.0)
    fleet.wait_delivered(fleet.put(3))
    answers, hanging = fleet.simulation.runtime("w1").event(), []

    def hang(operation, stream, shard):
        if operation == "ListShards":
            hanging.append(operation)
            answers.wait()

    fleet.kinesis.fault = hang
    fleet.wait(lambda: hanging, 30, "a listing without an answer")
    with pytest.raises(StopTimedOut, match="pykcl-manager") as caught:
        worker.stop(grace=3.0)
    assert caught.value.threads == ("pykcl-manager",)
    assert [event.threads for event in fleet.happened(ThreadsLeft)] == [("pykcl-manager",)]
    answers.set()
    fleet.wait(lambda: not fleet.simulation.unfinished("w1"), 10, "the end of the manager")
    assert set(fleet.owners().values()) == {None}


# -- reading ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backlog", [0, 400])
def test_refused_iterators_never_make_more_than_five_reads_a_second_of_a_shard(new_fleet, backlog):
    fleet = new_fleet(shards=1)
    put = fleet.put(backlog)
    worker = fleet.worker("w1", max_records=5, idle_time=0.2)
    _, stream = worker._adapters
    fetch, reads = stream.fetch, []

    def refusing(shard_id, iterator, limit):
        reads.append(fleet.simulation.now)
        if len(reads) % 2 == 0:
            raise IteratorExpired("ExpiredIteratorException")
        return fetch(shard_id, iterator, limit)

    stream.fetch = refusing
    worker.start()
    fleet.wait_delivered(put)
    fleet.wait(lambda: len(reads) > 40)
    within = [later - earlier for earlier, later in zip(reads, reads[5:], strict=False)]
    assert min(within) > 0.999, "six reads take a second"
    assert fleet.ledger.duplicates == 0


# -- what listeners and operators see --------------------------------------------------------------------------


def test_a_lease_is_told_of_before_it_counts_as_held(new_fleet):
    fleet = new_fleet(shards=3)
    seen = []

    class Watching(list):
        def append(self, entry):
            name, event = entry
            if isinstance(event, LeaseTaken):
                seen.append((event.shard, event.shard in fleet.workers[name].held.snapshot()))
            super().append(entry)

    fleet.events = Watching()
    worker = fleet.start("w1")
    fleet.wait(lambda: len(worker.held) == 3)
    assert sorted(seen) == [(_shard(number), False) for number in range(3)]
    assert sorted(worker.held.snapshot()) == [_shard(number) for number in range(3)]


def test_before_the_start_nothing_is_held_and_nothing_is_done(new_fleet):
    worker = new_fleet().worker("w1")
    assert worker.activities == {}
    assert worker.held.snapshot() == {}
    assert worker.held.version == 0


def test_activities_name_the_state_or_the_method_that_runs_for_each_lease(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.put(10)
    go_on = _held_up(fleet, "w1", _shard(0))
    worker = fleet.workers["w1"]
    fleet.wait(
        lambda: worker.activities == {_shard(0): "process_records", _shard(1): "reading"},
        30,
        "one busy and one idle lease",
    )
    fleet.simulation.freeze("w1", 60)
    idle = next(each for each, _ in worker._manager.workers() if each.key == _shard(1))
    for state in State:
        idle.state = state
        assert worker.activities == {_shard(0): "process_records", _shard(1): state.value}
    idle.state = State.READING
    go_on.set()
    worker.stop(grace=90.0)
    assert worker.activities.keys() == set(worker.leases)


def test_activities_survive_a_call_that_returns_at_that_very_moment(new_fleet, monkeypatch):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1")
    fleet.wait(lambda: worker.leases)
    answers = iter([("process_records", 1.0)])
    monkeypatch.setattr(LeaseWorker, "busy", property(lambda _: next(answers, None)))
    fleet.simulation.freeze("w1", 60)
    assert worker.activities == {_shard(0): "process_records"}


def test_a_lease_is_valid_without_a_lock_as_long_as_it_is_believed(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", failover_time=10.0)
    fleet.wait(lambda: len(worker.held) == 1)
    before = worker.held.version
    held = worker.held.snapshot()[_shard(0)]
    assert held.is_valid_unlocked()
    copy = worker.held.snapshot()
    copy.clear()
    assert worker.held.snapshot(), "a copy is handed out"
    fleet.dynamodb.fault, _ = _silent("UpdateItem")
    deadline = held.deadline
    runtime = fleet.simulation.runtime("w1")
    while runtime.monotonic() < deadline - 0.5:
        assert held.is_valid_unlocked()
        fleet.simulation.sleep(0.25)
    fleet.simulation.sleep(0.6)
    assert not held.is_valid_unlocked()
    fleet.wait(lambda: worker.held.snapshot().get(_shard(0)) is not held, 30, "the end of the registration")
    assert worker.held.version > before


def test_what_was_released_or_lost_is_no_longer_valid_without_a_lock(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1")
    fleet.wait(lambda: len(worker.held) == 2)
    first, second = (worker.held.snapshot()[_shard(number)] for number in range(2))
    first.lose(Loss.of(LossReason.OTHER))
    assert (first.is_valid_unlocked(), second.is_valid_unlocked()) == (False, True)
    worker.stop()
    assert not second.is_valid_unlocked()
    assert worker.held.snapshot() == {}


def test_a_broken_start_is_not_taken_for_finished_while_the_shard_it_left_out_is_not_listed(new_fleet):
    fleet = new_fleet(shards=3)
    listing = _Listing(fleet)
    left_out = _shard(2)
    refusals = [ReadTimeoutError(endpoint_url="x")] * 100

    def refuse_the_last(operation, params):
        is_it = operation == "PutItem" and params["Item"]["leaseKey"]["S"] == left_out
        return Fault(before=refusals.pop()) if is_it and refusals else None

    fleet.dynamodb.fault = refuse_the_last
    worker = fleet.start("w1", start="LATEST")
    fleet.wait(lambda: len(fleet.rows()) == 2, what="two of three leases")
    listing.without = {left_out}
    fleet.simulation.sleep(10)
    refusals.clear()
    fleet.simulation.sleep(30)
    assert left_out not in fleet.rows()
    assert not worker.wait_ready(0)
    fleet.simulation.sleep(1)
    payloads = fleet.put(20)
    listing.heal()
    fleet.wait(lambda: worker.wait_ready(0), what="readiness")
    fleet.wait_delivered(payloads + fleet.put(20))


def test_a_lease_given_up_is_left_alone_also_when_its_release_got_no_answer(new_fleet):
    fleet = new_fleet(shards=1)

    def answer_releases_too_late(operation, params):
        released = (
            operation == "UpdateItem" and "leaseOwner" in params["UpdateExpression"].partition(" REMOVE ")[2]
        )
        return Fault(after=ReadTimeoutError(endpoint_url="-"), delay=12.0) if released else None

    def always_raise(batch):
        raise ValueError

    fleet.dynamodb.fault = answer_releases_too_late
    fleet.put(1)
    fleet.start("w1", retry_for=20.0, processor=lambda: RecordingProcessor("w1", fleet.ledger, always_raise))
    fleet.wait(lambda: fleet.happened(LeaseHandedBack), 60, "the lease to be given up")
    given_up = fleet.simulation.now
    fleet.wait(lambda: len(fleet.happened(LeaseTaken)) == 2, 60, "the lease to be taken again")
    assert fleet.simulation.now - given_up >= 20


def test_a_record_of_another_shard_is_no_checkpoint(new_fleet):
    fleet = new_fleet(shards=2)
    batches = {}

    class Mixed(RecordingProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            batches[batch.shard_id] = batch

    put = fleet.put(40)
    fleet.start("w1", checkpoint="manual", processor=lambda: Mixed("w1", fleet.ledger))
    fleet.wait_delivered(put)
    one, other = batches.values()
    foreign = min(one.records[0], other.records[0], key=lambda record: record.position)
    mine = other if foreign in one.records else one
    with pytest.raises(CheckpointRefused, match=f"{mine.shard_id} at a record of {foreign.shard_id}"):
        mine.checkpointer.checkpoint(foreign)
    assert all(row.checkpoint.is_start for row in fleet.rows().values())


class _Beating:
    """A lease that is held, as the renewer sees it; `beat` is set at its first heartbeat."""

    key, is_over, next_renewal = "A", False, 0.0

    def __init__(self, key, runtime, beat):
        self.key, self._runtime, self._beat = key, runtime, beat

    deadline = float("inf")

    def renew_if_due(self, give):
        self.next_renewal = self._runtime.monotonic() + 100.0
        self._beat.set()


@pytest.mark.parametrize("seed", range(30))
def test_heartbeats_that_are_told_to_stop_do_not_sleep_first(seed):
    """1) A helper sees no stop; 2) the stop wakes all helpers; 3) the helper clears what wakes them, and sleeps."""
    with Simulation(seed=seed) as simulation:
        runtime = simulation.runtime("w1")
        held, beat = HeldLeases(runtime), runtime.event()
        for key in "ABCD":
            held.add(_Beating(key, runtime, beat))
        trouble = FailureTracker(lambda event: None, runtime)
        renewer = LeaseRenewer(held, runtime, trouble, name="w1", on_fatal=pytest.fail)
        renewer.start()
        beat.wait()
        renewer.stop()
        asked = simulation.now
        simulation.run_until(lambda: not any(task.is_alive() for task in renewer.tasks), 10.0)
        assert simulation.now < asked + 0.2


@pytest.mark.parametrize("seed", range(30))
def test_no_thread_for_heartbeats_begins_once_they_are_told_to_stop(seed):
    """1) The renewer sees no stop; 2) the stop waits for the threads that there are; 3) a helper is started."""
    with Simulation(seed=seed) as simulation:
        runtime = simulation.runtime("w1")
        held, beat = HeldLeases(runtime), runtime.event()
        renewer = LeaseRenewer(
            held, runtime, FailureTracker(lambda event: None, runtime), name="w1", on_fatal=pytest.fail
        )
        renewer.start()
        for key in "ABCD":
            held.add(_Beating(key, runtime, beat))
        renewer.stop()
        there = renewer.tasks
        simulation.run_until(lambda: not any(task.is_alive() for task in renewer.tasks), 10.0)
        assert renewer.tasks == there


def test_a_lease_that_cannot_be_taken_is_not_asked_for_in_a_spin(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1")
    fleet.wait(lambda: len(fleet.happened(LeaseTaken)) == 2)
    asked = []

    def forbid(operation, params):
        if operation != "UpdateItem":
            return None
        asked.append(fleet.simulation.now)
        return Fault(before=denied(operation))

    fleet.dynamodb.fault = forbid
    fleet.wait(lambda: len(fleet.happened(LeaseTakenAway)) == 2, 30, "both leases to lapse")
    fleet.simulation.sleep(5.0)
    asked.clear()
    fleet.simulation.sleep(20.0)
    assert 20 <= len(asked) <= 50
    fleet.dynamodb.fault = None
    fleet.wait(lambda: len(fleet.happened(LeaseTaken)) == 4, 5, "both leases to be taken again")


def test_half_a_start_at_latest_is_neither_read_nor_called_ready_by_who_cannot_list_the_shards(new_fleet):
    """1) w1 creates one of two leases, and is throttled; 2) w2, whose listing fails, finds that one, and reads it; 3) it
    calls the application ready; 4) what is put into the other shard from then on comes before its lease."""
    fleet = new_fleet(shards=2)
    truth, is_throttled = fleet.kinesis.list_shards, [True]

    def list_shards(stream, shard_filter=None, operation="ListShards"):
        if operation is not None and is_throttled:
            raise AwsError("ProvisionedThroughputExceededException", "too many")
        return truth(stream, shard_filter, operation)

    fleet.kinesis.list_shards = list_shards
    worker = fleet.start("w2", start="LATEST")
    fleet.wait(lambda: TABLE in fleet.dynamodb.tables)
    fleet.dynamodb.put_item(
        TableName=TABLE,
        Item={
            "leaseKey": {"S": _shard(0)},
            "leaseCounter": {"N": "0"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": "LATEST"},
            "checkpointSubSequenceNumber": {"N": "0"},
        },
    )
    assert not worker.wait_ready(20.0)
    assert not fleet.happened(LeaseTaken)
    is_throttled.clear()
    assert worker.wait_ready(60.0)
    assert len(fleet.happened(LeaseTaken)) == 2


def test_of_two_stops_neither_returns_before_the_heartbeats_have_ended(new_fleet):
    fleet = new_fleet(shards=2)
    hang = fleet.simulation.runtime("w1").event()
    worker = fleet.start(
        "w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, lambda batch: hang.wait())
    )
    fleet.put(9)
    fleet.wait(lambda: any(call[1] == "process_records" for call in fleet.ledger.calls))
    left = []

    def stop():
        with suppress(StopTimedOut):
            worker.stop(grace=7.0)
        left.append({task.name for task in fleet.simulation.unfinished("w1") if "renewer" in task.name})

    for name in ("one", "other"):
        fleet.simulation.runtime("main").spawn(name, stop)
    fleet.wait(lambda: len(left) == 2, 30)
    assert left == [set(), set()]


def test_the_shards_of_a_worker_ask_together_for_a_stream_that_kinesis_does_not_describe(new_fleet):
    """An account may ask twenty times a second, and the shards of one worker alone would ask more often."""
    fleet = new_fleet(shards=16)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(40))
    describe, get_records, asked = fleet.kinesis.describe, fleet.kinesis.get_records, []
    began = fleet.simulation.now

    def fails(stream, operation="DescribeStreamSummary"):
        if operation is None:
            return describe(stream, operation)
        asked.append(fleet.simulation.now)
        raise AwsError("LimitExceededException", "too many")

    def expires(iterator, limit):
        raise AwsError("ExpiredIteratorException", "too old")

    fleet.kinesis.describe, fleet.kinesis.get_records = fails, expires
    fleet.simulation.sleep(30.0)
    assert 10 <= len(asked) <= 35
    fleet.kinesis.describe, fleet.kinesis.get_records = describe, get_records
    fleet.wait_delivered(fleet.put(40))
    assert fleet.simulation.now < began + 60.0
