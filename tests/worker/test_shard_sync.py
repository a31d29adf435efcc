"""Shard sync: which leases are created from a listing, restored or deleted, and what a listing that lags does not do."""

import dataclasses
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace

import pytest
from botocore.exceptions import ReadTimeoutError

from pykcl.errors import (
    ShardGone,
    TemporaryError,
)
from pykcl.events import (
    DataLost,
    FailureResolved,
    FailureStarted,
    LeaseCreated,
    LeaseDeleted,
    LeaseTaken,
    StartingAtLatest,
    UnreadShardLost,
)
from pykcl.local.errors import AwsError
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease
from pykcl.model.lease_writes import to_item
from pykcl.model.shard import Shard, ShardListing
from pykcl.planning.lease_view import LeaseView
from pykcl.processor import Batch
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault, denied, throttled, timed_out
from pykcl.testing.runtime import Simulation
from pykcl.worker.shard_sync import MAX_QUESTIONS, LeaseCleaner
from pykcl.worker.stream_identity import ExpiredShardCheck

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


PARENT = "shardId-000000000000"


OLDEST = "shardId-000000000001"
"""In a deep merge: split into 2 and 3, 2 into 4 and 5, and 4 merged with 0 into 6."""


GONE = "shardId-000000000099"


def _shard(number):
    return f"shardId-{number:012}"


class _Listing:
    """What ListShards tells from now on: what is true, or without some shards, or what was true at a moment."""

    def __init__(self, fleet):
        self._truth = fleet.kinesis.list_shards
        self.without = frozenset()
        self.frozen = None
        self.calls = 0
        fleet.kinesis.list_shards = self._list

    def _list(self, stream, shard_filter=None, operation="ListShards"):
        shards = self._truth(stream, shard_filter, operation)
        if operation is None:
            return shards
        self.calls += 1
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


def _moment(millis):
    return datetime.fromtimestamp(millis / 1000, tz=UTC)


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


def _deep_merge(fleet):
    put = fleet.put(10)
    for shard in ("1", "2"):
        fleet.kinesis.split(STREAM, f"shardId-{shard:0>12}")
        put += fleet.put(10)
    fleet.kinesis.merge(STREAM, PARENT, "shardId-000000000004")
    return put + fleet.put(10)


def _put_gone(fleet, counter=5, **more):
    fleet.dynamodb.put_raw(TABLE, {
        "leaseKey": {"S": GONE}, "leaseCounter": {"N": str(counter)}, "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "7"}, "checkpointSubSequenceNumber": {"N": "0"}, **more,
    })  # fmt: skip


def _work_beside_a_lease_of_a_shard_that_is_gone(fleet):
    """w1 has all the leases it may have, so that only its cleaner comes to the one of which a record was read once."""
    fleet.start("w1", max_leases=1, cleanup_interval=5.0).wait_ready(30)
    _put_gone(fleet)


def _told_lost(fleet):
    return [(event.shard, event.checkpoint, event.resumed_at) for event in fleet.happened(DataLost)]


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
    (trouble,) = (event for event in fleet.happened(FailureStarted) if event.shard == _shard(0))
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
    go_on = _held_up(fleet, "w1", _shard(1), initial_position="LATEST")
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
    fleet.worker("w1", initial_position="LATEST")._connect()
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
    fleet.start("w1", initial_position="LATEST")
    fleet.wait_delivered(put)
    _check_order(fleet)


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "LATEST"])
def test_a_shard_in_the_middle_that_is_not_listed_for_a_while_is_read_before_its_children(new_fleet, start):
    fleet = new_fleet(shards=1)
    listing = _Listing(fleet)
    go_on = _held_up(fleet, "w1", _shard(0), shard_sync_interval=5.0, initial_position=start)
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
    worker = fleet.start("w1", initial_position=_moment(start) if at_a_time else "TRIM_HORIZON")
    fleet.simulation.sleep(20)
    assert fleet.items() == {}
    (trouble,) = fleet.happened(FailureStarted)
    assert trouble.what == "checking the list of shards"
    assert _shard(0) in trouble.cause
    assert not fleet.happened(FailureResolved)
    listing.heal()
    fleet.wait_delivered(put, 60)
    assert [event.what for event in fleet.happened(FailureResolved)] == [trouble.what]
    assert worker.failure is None
    _check_order(fleet)
    assert fleet.ledger.duplicates == 0


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "LATEST"])
def test_a_merge_that_is_not_listed_for_a_while_does_not_bring_its_parents_back(new_fleet, start):
    fleet = new_fleet(shards=2)
    listing = _Listing(fleet)
    worker = fleet.start("w1", initial_position=start, shard_sync_interval=5.0, cleanup_interval=5.0)
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
    assert [event.what for event in fleet.happened(FailureResolved)] == ["checking the list of shards"]


def test_an_expired_parent_holds_nothing_up_and_is_asked_for_twice(new_fleet):
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
    fleet.wait(lambda: creations, 9, "the first creation")
    fleet.wait_delivered(put, 180)  # a day without records is crossed in some 300 reads
    assert asked.count(_shard(0)) == 2


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
    # Each is asked for twice, some seconds apart, and every seventh question is refused.
    assert fleet.simulation.now - began < 2 * 9 * 2 + 10
    assert len(asked) == 120 + 19


def test_an_application_at_latest_starts_with_every_open_shard_only(new_fleet):
    fleet = new_fleet(shards=4)
    listing = _Listing(fleet)
    old = fleet.put(20)
    fleet.simulation.sleep(3)
    listing.without = {_shard(2)}
    worker = fleet.start("w1", initial_position="LATEST")
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
    fleet.start("w1", initial_position="LATEST")
    fleet.wait(lambda: _shard(0) in fleet.rows(), 10, "the first lease of the start")
    fleet.simulation.kill("w1")
    fleet.dynamodb.fault = None
    listing.without = {_shard(1)}
    worker = fleet.start("w2", initial_position="LATEST")
    fleet.simulation.sleep(60)
    assert fleet.owners() == {_shard(0): None}
    assert not worker.wait_ready(0)
    listing.heal()
    assert worker.wait_ready(60)
    fleet.wait_delivered(fleet.put(20))


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
        with pytest.raises(TemporaryError, match="one answer proves nothing"):
            gone.confirm(["a", "b", "c"])
        assert [shard for shard, _ in stream.asked] == ["a", "b", "b", "b", "c"]
        simulation.sleep(4)
        gone.confirm(["a", "b", "c"])
        assert [shard for shard, _ in stream.asked][5:] == ["a", "b", "c"]
        gone.confirm(["c", "b", "a"])
        gone.confirm([])
        assert len(stream.asked) == 8


def test_a_shard_that_kinesis_denies_once_and_knows_again_is_not_gone():
    with Simulation() as simulation:
        stream = _Answers(a=ShardGone("a"))
        gone = ExpiredShardCheck(stream, simulation.runtime("w1"))
        for answer, match in (
            (ShardGone("a"), "one answer"),
            ("iterator", "lacks a"),
            (ShardGone("a"), "one answer"),
        ):
            stream.answers["a"] = answer
            with pytest.raises(TemporaryError, match=match):
                gone.confirm(["a"])
            simulation.sleep(4)
        gone.confirm(["a"])


def test_a_shard_that_is_read_between_two_denials_is_not_gone(new_fleet):
    """Seed 239927288255: 1) Kinesis denies a shard that it does not list yet; 2) the worker reads it to its end; 3) Kinesis
    denies it once more, and its row was deleted before its children had started."""
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(1))
    check = worker._manager._context.expired_shards
    denials = []

    def fault(operation, stream, shard):
        if operation == "GetShardIterator":
            denials.append(shard)
            raise AwsError("ResourceNotFoundException", "a blip")

    for _ in range(2):
        fleet.kinesis.fault = fault
        assert not check.is_gone(_shard(0))
        fleet.kinesis.fault = None
        fleet.wait_delivered(fleet.put(1))
        fleet.simulation.sleep(5)
    assert len(denials) == 2


def _asking(context, stream):
    """The context of a worker that asks this stream."""
    check = ExpiredShardCheck(stream, context.runtime)
    return dataclasses.replace(context, stream=stream, expired_shards=check)


def test_a_cleaner_that_shall_stop_asks_no_further_question(new_fleet):
    fleet = new_fleet(shards=1)
    context = fleet.worker("w1", cleanup_interval=1.0)._connect()
    keys = [_shard(number) for number in range(100, 108)]
    stream = _Answers(**dict.fromkeys(keys, "iterator"))
    cleaner = LeaseCleaner(_asking(context, stream), lambda: len(stream.asked) == 3)
    cleaner.listed(ShardListing((Shard(_shard(0)),)))
    fleet.simulation.sleep(2)
    cleaner.clean(LeaseView().observe([Lease(key, Checkpoint("7")) for key in keys], 0.0))
    assert [shard for shard, _ in stream.asked] == keys[:3]


def test_a_broken_start_is_not_taken_for_finished_while_the_shard_it_left_out_is_not_listed(new_fleet):
    fleet = new_fleet(shards=3)
    listing = _Listing(fleet)
    left_out = _shard(2)
    refusals = [ReadTimeoutError(endpoint_url="x")] * 100

    def refuse_the_last(operation, params):
        is_it = operation == "PutItem" and params["Item"]["leaseKey"]["S"] == left_out
        return Fault(before=refusals.pop()) if is_it and refusals else None

    fleet.dynamodb.fault = refuse_the_last
    worker = fleet.start("w1", initial_position="LATEST")
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
    worker = fleet.start("w2", initial_position="LATEST")
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


def test_the_cleaner_asks_about_every_candidate_in_turn(new_fleet):
    fleet = new_fleet(shards=1)
    context = fleet.worker("w1", cleanup_interval=1.0)._connect()
    keys = [f"shardId-{number:012}" for number in range(100, 112)]
    view = LeaseView().observe([Lease(key, Checkpoint("7")) for key in keys], 0.0)
    asked = []

    class Patient:
        """Knows every shard it is asked about, so that no lease is deleted."""

        def open(self, shard_id, start):
            asked.append(shard_id)
            return "iterator"

    cleaner = LeaseCleaner(_asking(context, Patient()), lambda: False)
    cleaner.listed(ShardListing((Shard(FIRST),)))
    for expected in (keys[:MAX_QUESTIONS], keys[MAX_QUESTIONS:] + keys[: 2 * MAX_QUESTIONS - len(keys)]):
        fleet.simulation.sleep(2)
        asked.clear()
        cleaner.clean(view)
        assert asked == expected


def test_a_merge_waits_for_the_ancestors_of_its_other_parent(new_fleet):
    fleet = new_fleet(shards=2)
    put = _deep_merge(fleet)

    def slowly(batch: Batch) -> None:
        if batch.shard_id == OLDEST:
            fleet.simulation.sleep(60)

    fleet.start("w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, slowly))
    fleet.wait_delivered(put, 600)
    _check_order(fleet)


def test_ancestors_whose_lease_could_not_be_created_yet_are_read_all_the_same(new_fleet):
    fleet = new_fleet(shards=2)
    put = _deep_merge(fleet)
    began = fleet.simulation.now

    def refuse(operation, params):
        late = operation == "PutItem" and params["Item"]["leaseKey"]["S"] == OLDEST
        return Fault(before=throttled(operation)) if late and fleet.simulation.now < began + 20 else None

    fleet.dynamodb.fault = refuse
    fleet.start("w1")
    fleet.simulation.sleep(15)
    assert fleet.ledger.delivered == [], "nobody reads before all leases of the start exist"
    fleet.wait_delivered(put, 300)
    _check_order(fleet)


def test_a_latest_application_that_was_away_for_longer_than_retention_reads_what_is_retained(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", initial_position="LATEST").wait_ready(30)
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(5)
    fleet.workers["w1"].stop()
    fleet.kinesis.split(STREAM, PARENT)
    fleet.simulation.sleep(10)
    for shard in fleet.open_shards():
        fleet.kinesis.split(STREAM, shard)
    fleet.simulation.sleep(25 * 3600)
    retained = fleet.put(20)
    closed = fleet.open_shards()[0]
    fleet.kinesis.split(STREAM, closed)
    retained += fleet.put(20)
    fleet.simulation.sleep(60)
    fleet.start("w2", initial_position="LATEST")
    fleet.wait_delivered(retained)


def test_the_lease_of_an_expired_shard_is_not_deleted_before_its_children_have_theirs(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", initial_position="LATEST").wait_ready(30)
    fleet.wait_delivered(fleet.put(3))
    fleet.simulation.sleep(5)
    fleet.workers["w1"].stop()
    fleet.kinesis.split(STREAM, PARENT)
    fleet.simulation.sleep(25 * 3600)
    retained = fleet.put(10)

    class NotForTheParent(RecordingProcessor):
        def initialize(self, init):
            if init.shard_id == PARENT:
                raise ValueError
            super().initialize(init)

    # Its reader never gets as far as asking Kinesis for the shard: only the cleaner could act.
    def make():
        return NotForTheParent("w2", fleet.ledger)

    fleet.start("w2", initial_position="LATEST", processor=make, retry_timeout=3600.0, cleanup_interval=5.0)
    fleet.simulation.sleep(120)
    assert PARENT in fleet.rows()
    fleet.simulation.kill("w2")
    fleet.start("w3", initial_position="LATEST", cleanup_interval=5.0)
    fleet.wait_delivered(retained)


@pytest.mark.parametrize("operation", ["Scan", "PutItem"])
def test_a_failure_after_a_listing_delays_the_start_only_as_long_as_it_lasts(new_fleet, operation):
    fleet = new_fleet(shards=2)
    put = fleet.put(10)
    began, failed = fleet.simulation.now, []

    def refuse(called, params):
        # The first scan is the one that looks for leases of another stream.
        if called != operation or fleet.simulation.now > began + 8:
            return None
        failed.append(called)
        return Fault(before=throttled(called)) if called != "Scan" or len(failed) > 1 else None

    fleet.dynamodb.fault = refuse
    fleet.start("w1")
    fleet.wait_delivered(put, 30)
    assert len(failed) > 1


def test_a_listing_that_fails_is_repeated_ever_more_slowly(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(3))
    asked = []

    def refuse(operation, stream, shard):
        if operation == "ListShards":
            asked.append(fleet.simulation.now)
            raise AwsError("LimitExceededException", "too many")

    fleet.kinesis.fault = refuse
    fleet.simulation.sleep(400)
    assert 5 <= len(asked) <= 40
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert len({round(gap, 3) for gap in gaps[-5:]}) > 1, "with jitter"
    fleet.kinesis.fault = None
    fleet.kinesis.split(STREAM, PARENT)
    fleet.wait_delivered(fleet.put(10), 60)


def test_a_loss_is_told_of_when_nobody_learns_that_the_last_sign_of_it_was_deleted(new_fleet):
    """1) The row of a gone shard is deleted; 2) the answer is lost, and so is every other for as long as a write is
    tried, or the process stood still for so long; 3) no worker finds the row again, and nobody spoke of the loss.
    """
    fleet, asked = new_fleet(shards=1), []

    def lose(operation, params):
        if operation != "DeleteItem":
            return None
        asked.append(fleet.simulation.now)
        return Fault(after=timed_out()) if len(asked) == 1 else Fault(before=timed_out(), delay=2.0)

    fleet.dynamodb.fault = lose
    _work_beside_a_lease_of_a_shard_that_is_gone(fleet)
    fleet.wait(lambda: asked and GONE not in fleet.items(), 60)
    fleet.simulation.sleep(60)
    assert not fleet.happened(LeaseDeleted)
    assert _told_lost(fleet) == [(GONE, "7:0", None)]


def test_a_loss_is_told_of_by_a_worker_that_dies_while_it_deletes_the_last_sign_of_it(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.dynamodb.fault = lambda called, params: Fault(late_answer=2.0) if called == "DeleteItem" else None
    _work_beside_a_lease_of_a_shard_that_is_gone(fleet)
    fleet.wait(lambda: GONE not in fleet.items(), 60)
    fleet.simulation.kill("w1")
    assert _told_lost(fleet) == [(GONE, "7:0", None)]


def test_a_loss_is_told_of_once_by_a_worker_that_may_not_delete_the_lease(new_fleet):
    fleet, refused = new_fleet(shards=1), []

    def refuse(operation, params):
        if operation != "DeleteItem":
            return None
        refused.append(fleet.simulation.now)
        return Fault(before=denied(operation))

    fleet.dynamodb.fault = refuse
    _work_beside_a_lease_of_a_shard_that_is_gone(fleet)
    fleet.wait(lambda: len(refused) > 2, 120)
    assert _told_lost(fleet) == [(GONE, "7:0", None)]


@pytest.mark.parametrize("change", [
    {}, {"counter": 6}, {"leaseOwner": {"S": "w2"}}, {"checkpoint": {"S": "SHARD_END"}}, {"checkpoint": {"S": "8"}}, None,
])  # fmt: skip
def test_a_loss_is_not_told_of_by_a_row_that_has_changed_since_it_was_seen(new_fleet, change):
    """Its reader tells by itself, or ended the shard without a loss."""

    def forgets(shard_id, start):
        raise ShardGone("no such shard")

    fleet = new_fleet(shards=1)
    fleet.start("w1", max_leases=1, cleanup_interval=0.0).wait_ready(30)
    context = fleet.worker("w2", cleanup_interval=1.0)._connect()
    cleaner = LeaseCleaner(_asking(context, SimpleNamespace(open=forgets)), stopping=lambda: False)
    cleaner.listed(ShardListing((Shard(PARENT),)))
    if change is not None:
        _put_gone(fleet, **change)
    fleet.simulation.sleep(2)
    seen = [Lease(GONE, Checkpoint("7"), counter=5), Lease(PARENT, Checkpoint("1"))]
    cleaner.clean(LeaseView().observe(seen, 0.0))
    assert not _told_lost(fleet), "one answer proves nothing"
    fleet.simulation.sleep(4)
    cleaner.clean(LeaseView().observe(seen, 0.0))
    assert _told_lost(fleet) == ([(GONE, "7:0", None)] if change == {} else [])
    assert (GONE in fleet.items()) is bool(change)


def _two_generations_later(fleet, *, is_ended):
    """A fleet that was away for longer than retention: of shard 0, which it has read, the grandchildren are left."""
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(10))
    fleet.simulation.sleep(5)
    worker.stop()
    for number in (0, 1, 2):
        fleet.kinesis.split(STREAM, _shard(number))
        fleet.put(10)
    if is_ended:
        # By a writer that is no KCL: it makes no leases for the children.
        item = fleet.items()[_shard(0)]
        fleet.dynamodb.put_raw(TABLE, {**item, "checkpoint": {"S": "SHARD_END"}})
    fleet.simulation.sleep(25 * 3600)


@pytest.mark.parametrize("is_ended", [True, False], ids=["ended by a foreign writer", "not ended"])
def test_shards_that_were_trimmed_before_they_had_a_lease_are_reported_with_their_hash_keys(
    new_fleet, is_ended
):
    """Their children are read from the beginning, and nothing else would say that anything is missing."""
    fleet = new_fleet(shards=1)
    _two_generations_later(fleet, is_ended=is_ended)
    for name in ("w2", "w3"):
        fleet.start(name, cleanup_interval=5.0)
    fleet.wait_delivered(fleet.put(20))
    fleet.simulation.sleep(300)
    unread = fleet.happened(UnreadShardLost)
    assert {event.shard for event in unread} == {_shard(1), _shard(2)}
    half = 2**127
    for event in unread:
        first = {_shard(1): 0, _shard(2): half}[event.shard]
        assert (event.first_key, event.last_key) == (str(first), str(first + half - 1))
        assert event.before == (_shard(0),)
        assert (
            event.after == {_shard(1): (_shard(3), _shard(4)), _shard(2): (_shard(5), _shard(6))}[event.shard]
        )
        assert event.code == "E18"
    for name in ("w2", "w3"):
        by_it = [event.shard for worker, event in fleet.events if worker == name and event in unread]
        assert len(by_it) == len(set(by_it)), "once by each worker"


def test_the_other_side_of_a_merge_that_was_trimmed_without_a_lease_is_reported_at_the_end_of_this_one(
    new_fleet,
):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(10))
    fleet.simulation.sleep(5)
    worker.stop()
    fleet.kinesis.split(STREAM, _shard(1))
    fleet.put(10)
    fleet.kinesis.merge(STREAM, _shard(0), _shard(2))
    item = fleet.items()[_shard(1)]
    fleet.dynamodb.put_raw(TABLE, {**item, "checkpoint": {"S": "SHARD_END"}})
    fleet.simulation.sleep(25 * 3600)
    fleet.start("w2")
    fleet.wait_delivered(fleet.put(20), 900.0)
    (event,) = fleet.happened(UnreadShardLost)
    assert (event.shard, event.before, event.after) == (_shard(2), (_shard(1),), (_shard(4),))
    assert (event.first_key, event.last_key) == (str(2**127), str(2**127 + 2**126 - 1))


def test_a_worker_that_is_stopped_before_it_has_asked_about_an_unlisted_shard_reports_no_loss_of_it(
    new_fleet,
):
    """Simulation 78304: the stop breaks off the questions to Kinesis, so the gap in the listing proves nothing."""
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(10))
    fleet.simulation.sleep(5)
    worker.stop()
    for number in (0, 1):
        fleet.kinesis.split(STREAM, _shard(number))
    item = fleet.items()[_shard(0)]
    fleet.dynamodb.put_raw(TABLE, {**item, "checkpoint": {"S": "SHARD_END"}})
    fleet.simulation.sleep(5)
    asked, listing = _asked(fleet), _Listing(fleet)
    listing.without = {_shard(1)}
    late = fleet.worker("w2")

    def stop_in_the_scan_behind_the_listing(operation, params):
        if operation == "Scan" and listing.calls:
            late.stop()

    fleet.dynamodb.fault = stop_in_the_scan_behind_the_listing
    late.start()
    fleet.simulation.sleep(5)
    late.stop()
    assert _shard(1) not in asked
    assert not fleet.happened(UnreadShardLost)


def test_a_start_on_a_stream_whose_first_shards_are_gone_reports_no_loss(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.kinesis.split(STREAM, _shard(0))
    fleet.simulation.sleep(25 * 3600)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(20))
    assert not fleet.happened(DataLost)


def test_a_start_that_was_broken_off_reports_no_loss_of_what_was_gone_before_it(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.kinesis.split(STREAM, _shard(0))
    fleet.simulation.sleep(25 * 3600)
    _refuse_all_rows_but(fleet, _shard(1))
    fleet.start("w1")
    fleet.wait(lambda: _shard(1) in fleet.rows(), 30, "the first lease of the start")
    fleet.dynamodb.fault = None
    fleet.wait_delivered(fleet.put(20))
    assert not fleet.happened(DataLost)


def _refuse_all_rows_but(fleet, shard):
    def refuse(operation, params):
        late = operation == "PutItem" and params["Item"]["leaseKey"]["S"] != shard
        return Fault(before=ReadTimeoutError(endpoint_url="-")) if late else None

    fleet.dynamodb.fault = refuse
