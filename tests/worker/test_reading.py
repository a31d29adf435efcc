"""Reading under failures: refused iterators, shards that seem gone, retention that overtakes, a small buffer."""

from dataclasses import replace
from itertools import pairwise

import pytest

from pykcl.errors import IteratorExpired
from pykcl.events import DataLost, HashRangeRefused
from pykcl.local.errors import AwsError
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.kpl import UserRecord, aggregate
from pykcl.testing.fleet import STREAM, RecordingProcessor
from pykcl.worker.reading_place import ReadingPlace
from pykcl.worker.shard_reader import ShardReader


@pytest.mark.parametrize("backlog", [0, 400])
def test_refused_iterators_never_make_more_than_five_reads_a_second_of_a_shard(new_fleet, backlog):
    fleet = new_fleet(shards=1)
    put = fleet.put(backlog)
    worker = fleet.worker("w1", max_records=5, idle_time_between_reads=0.2)
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


def test_one_stray_resource_not_found_does_not_end_the_reading_of_a_shard(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(6))
    hit = []

    def fault(operation, stream, shard):
        if operation in ("GetRecords", "GetShardIterator") and len(hit) < 2:
            hit.append(operation)
            raise AwsError("ResourceNotFoundException", "a blip")

    fleet.kinesis.fault = fault
    fleet.wait_delivered(fleet.put(6), 60)
    assert hit
    assert not fleet.happened(DataLost)


def test_iterators_that_are_refused_again_and_again_are_asked_for_slowly(new_fleet):
    fleet = new_fleet(shards=1)
    calls = []

    def fault(operation, stream, shard):
        if operation == "GetRecords":
            calls.append(fleet.simulation.now)
            raise AwsError("InvalidArgumentException", "never")

    fleet.kinesis.fault = fault
    put = fleet.put(3)
    fleet.start("w1")
    fleet.simulation.sleep(60)
    assert len(calls) < 40
    fleet.kinesis.fault = None
    fleet.wait_delivered(put)


def test_a_reader_that_retention_overtakes_while_it_runs_reports_what_it_could_not_read(new_fleet):
    fleet = new_fleet(shards=1)
    for _ in range(40):
        fleet.put(10)
        fleet.simulation.sleep(3600 / 2)
    # 20 hours of records, and a reader that needs three hours for a page of ten: after two pages it is 25 hours behind.
    context = fleet.worker("w1", max_records=10)._connect()
    shard = fleet.open_shards()[0]
    reader = ShardReader(context, shard, ReadingPlace(context, shard, None, ReadFrom("TRIM_HORIZON"), None))
    read = []
    for _ in range(6):
        while (page := reader.read(lambda: False)) is None:
            pass  # the iterator had expired
        read += [record.data for batch in page.batches for record in batch]
        fleet.simulation.sleep(3 * 3600)
        reader.finish(page)
    numbers = [int(data[1:]) for data in read]
    gaps = [later - earlier - 1 for earlier, later in pairwise(numbers) if later != earlier + 1]
    assert gaps
    assert len(fleet.happened(DataLost)) == len(gaps), "one report for each gap"


@pytest.mark.parametrize("shards", [3])
def test_a_small_buffer_lets_the_other_shards_read_while_one_processor_hangs(new_fleet, shards):
    fleet = new_fleet(shards=shards)
    hang = fleet.simulation.runtime("w1").event()
    stuck = fleet.open_shards()[0]

    def behaviour(batch):
        if batch.shard_id == stuck:
            hang.wait()

    put = fleet.put(30)
    fleet.start(
        "w1",
        max_buffered_bytes=28 * 1024 * 1024,
        processor=lambda: RecordingProcessor("w1", fleet.ledger, behaviour),
    )
    fleet.wait(
        lambda: {record.shard_id for _, record in fleet.ledger.delivered} == set(fleet.open_shards()[1:])
    )
    more = fleet.put(30)
    fleet.simulation.sleep(30)
    assert len(set(more) & set(fleet.ledger.payloads)) > 10
    hang.set()
    fleet.wait_delivered([*put, *more])


def test_an_aggregate_is_delivered_whole_on_a_stream_that_ignores_keys(new_fleet):
    """Kinesis puts it into any shard there, so all of its hash keys may lie outside of that one."""
    fleet = new_fleet(shards=1)
    fleet.kinesis.delete_stream(STREAM)
    fleet.kinesis.create_stream(STREAM, 2, mode="ON_DEMAND", distribution="AUTO")
    fleet.simulation.sleep(1)
    users = [UserRecord(f"key{number}", None, f"u{number}".encode()) for number in range(20)]
    (blob,) = aggregate(users)
    fleet.kinesis.put_record(STREAM, blob.data, blob.partition_key)
    fleet.start("w1")
    fleet.wait_delivered([user.data for user in users])


def test_a_shard_without_a_range_of_hash_keys_is_read_and_said_so_and_no_such_range_is_written(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.worker("w1")
    stream = worker._adapters[1]
    list_shards = stream.list_shards

    def listing():
        found = list_shards()
        first, *others = found.shards
        return replace(found, shards=(replace(first, hash_range=None, refused_range="start to end"), *others))

    stream.list_shards = listing
    worker.start()
    fleet.wait_delivered(fleet.put(10))
    odd, good = fleet.open_shards()
    (event,) = fleet.happened(HashRangeRefused)
    assert (event.shard, event.said) == (odd, "start to end")
    assert fleet.rows()[odd].hash_range is None
    assert fleet.rows()[good].hash_range is not None
