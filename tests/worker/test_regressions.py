"""Ways to lose records, found by attacking the worker; each was reproduced here before it was mended."""

from itertools import pairwise

import pytest

from pykcl.errors import TableGone, TemporaryError
from pykcl.events import BatchSkipped, DataLost, ShardEndNotCheckpointed, TroubleBegan
from pykcl.local.errors import AwsError
from pykcl.model.checkpoint import ReadFrom
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault
from pykcl.testing.memory.values import aws_error
from pykcl.worker.shard_reader import ShardReader


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


def test_nothing_put_after_a_latest_application_was_called_ready_is_skipped_though_reading_begins_late(
    new_fleet,
):
    fleet = new_fleet(shards=2)
    old = fleet.put(4, prefix="old")
    fleet.simulation.sleep(3)

    class SlowToStart(RecordingProcessor):
        def initialize(self, init):
            super().initialize(init)
            fleet.simulation.sleep(10)

    fleet.start("w1", start="LATEST", processor=lambda: SlowToStart("w1", fleet.ledger))
    fleet.wait(lambda: set(fleet.owners().values()) == {"w1"} and len(fleet.owners()) == 2)
    new = fleet.put(10, prefix="new")
    fleet.wait_delivered(new)
    assert not set(old) & set(fleet.ledger.payloads)


def test_a_latest_start_whose_processor_first_fails_loses_nothing(new_fleet):
    fleet = new_fleet(shards=1)
    attempts = []

    class Shy(RecordingProcessor):
        def initialize(self, init):
            attempts.append(1)
            if len(attempts) < 5:
                raise ValueError
            super().initialize(init)

    fleet.start("w1", start="LATEST", processor=lambda: Shy("w1", fleet.ledger))
    fleet.wait(lambda: attempts)
    fleet.wait_delivered(fleet.put(10))


def test_by_hand_without_an_own_shard_ended_a_shard_ends_only_when_all_of_it_is_checkpointed(new_fleet):
    fleet = new_fleet(shards=1)
    batches = []

    class Asynchronous(RecordingProcessor):
        shard_ended = RecordingProcessor.__mro__[1].shard_ended

        def process_records(self, batch):
            super().process_records(batch)
            batches.append(batch)

    put = fleet.put(5)
    fleet.start("w1", checkpoint="manual", processor=lambda: Asynchronous("w1", fleet.ledger))
    fleet.wait_delivered(put)
    parent = fleet.open_shards()[0]
    fleet.kinesis.split(STREAM, parent)
    fleet.wait(lambda: fleet.happened(ShardEndNotCheckpointed), what="the report")
    assert not fleet.rows()[parent].is_ended
    batches[-1].checkpointer.checkpoint()
    fleet.wait(lambda: parent not in fleet.rows() or fleet.rows()[parent].is_ended, 60)


def test_the_end_of_a_shard_does_not_erase_a_prepared_checkpoint(new_fleet):
    fleet = new_fleet(shards=1)
    prepared = []

    class TwoPhase(RecordingProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            prepared.append(batch.checkpointer.prepare_checkpoint(state=b"txn"))

    put = fleet.put(5)
    fleet.start("w1", processor=lambda: TwoPhase("w1", fleet.ledger))
    fleet.wait_delivered(put)
    parent = fleet.open_shards()[0]
    fleet.kinesis.split(STREAM, parent)
    fleet.wait(lambda: fleet.happened(ShardEndNotCheckpointed), what="the report")
    assert fleet.rows()[parent].pending.state == b"txn"
    prepared[-1].checkpoint()
    fleet.wait(lambda: parent not in fleet.rows() or fleet.rows()[parent].is_ended, 60)


def test_skip_never_skips_for_a_checkpoint_that_could_not_be_written(new_fleet):
    fleet = new_fleet(shards=1)
    failures = []

    class Checkpointing(RecordingProcessor):
        def process_records(self, batch):
            if len(failures) < 2:
                failures.append(1)
                raise TemporaryError("as the checkpointer does when DynamoDB is away")
            super().process_records(batch)

    put = fleet.put(3)
    fleet.start("w1", on_error="skip", processor=lambda: Checkpointing("w1", fleet.ledger))
    fleet.wait_delivered(put)
    assert not fleet.happened(BatchSkipped)


def test_a_reader_that_retention_overtakes_while_it_runs_reports_what_it_could_not_read(new_fleet):
    fleet = new_fleet(shards=1)
    for _ in range(40):
        fleet.put(10)
        fleet.simulation.sleep(3600 / 2)
    # 20 hours of records, and a reader that needs three hours for a page of ten: after two pages it is 25 hours behind.
    context = fleet.worker("w1", max_records=10)._connect()
    reader = ShardReader(context, fleet.open_shards()[0], None, ReadFrom("TRIM_HORIZON"), None)
    read = []
    for _ in range(6):
        while (page := reader.read(lambda: False)) is None:
            pass  # the iterator had expired
        read += [record.data for chunk in page.chunks(100) for record in chunk]
        fleet.simulation.sleep(3 * 3600)
        reader.finish(page)
    numbers = [int(data[1:]) for data in read]
    gaps = [later - earlier - 1 for earlier, later in pairwise(numbers) if later != earlier + 1]
    assert gaps
    assert len(fleet.happened(DataLost)) == len(gaps), "one report for each gap"


def test_a_refused_permission_that_comes_back_stops_no_worker_that_has_worked(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(6))
    denied = []

    def fault(operation, params):
        if len(denied) < 6:
            denied.append(operation)
            return Fault(before=aws_error("AccessDeniedException", "no", operation))
        return None

    fleet.dynamodb.fault = fault
    fleet.wait_delivered(fleet.put(6))
    fleet.simulation.sleep(30)
    assert worker.failure is None
    assert len(denied) == 6
    assert fleet.happened(TroubleBegan)


def test_a_stop_that_comes_while_the_worker_starts_is_kept(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.worker("w1")
    started = []
    fleet.simulation.spawn("starter", "main", lambda: (worker.start(), started.append(1)))
    worker.stop()
    fleet.wait(lambda: started)
    put = fleet.put(4)
    fleet.simulation.sleep(30)
    assert worker.leases == ()
    assert not set(put) & set(fleet.ledger.payloads)


def test_a_processor_may_ask_its_own_worker_to_stop(new_fleet):
    fleet = new_fleet(shards=2)
    workers = []

    class LastOne(RecordingProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            workers[0].stop()

    put = fleet.put(4)
    workers.append(fleet.worker("w1", processor=lambda: LastOne("w1", fleet.ledger)))
    began = fleet.simulation.now
    workers[0].run()
    assert fleet.simulation.now - began < 10
    assert set(fleet.owners().values()) == {None}
    assert set(fleet.ledger.payloads) <= set(put)


def test_a_processor_whose_lease_is_handed_back_hears_of_it(new_fleet):
    fleet = new_fleet(shards=1)

    def fail(batch):
        raise ValueError

    fleet.put(3)
    fleet.start("w1", retry_for=10.0, processor=lambda: RecordingProcessor("w1", fleet.ledger, fail))
    fleet.wait(lambda: ("w1", "shutdown_requested", "shardId-000000000000") in fleet.ledger.calls)


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


def test_two_processes_with_one_worker_identifier_do_not_both_believe_in_a_lease(new_fleet):
    fleet = new_fleet(shards=2)
    put = fleet.put(10)
    workers = [fleet.worker("twin"), fleet.worker("twin")]
    for worker in workers:
        worker.start()
    fleet.wait_delivered(put)
    fleet.simulation.sleep(60)
    before = len(fleet.ledger.delivered)
    more = fleet.put(20)
    fleet.wait_delivered(more)
    fleet.simulation.sleep(30)
    assert len(fleet.ledger.delivered) == before + len(more), (
        "each record once: one of the twins holds each lease"
    )


def test_one_stray_resource_not_found_during_a_start_at_latest_does_not_stop_the_worker(new_fleet):
    fleet = new_fleet(shards=2)
    hit = []

    def fault(operation, stream, shard):
        if operation == "GetShardIterator" and not hit:
            hit.append(shard)
            raise AwsError("ResourceNotFoundException", "a blip")

    fleet.kinesis.fault = fault
    worker = fleet.start("w1", start="LATEST")
    assert worker.wait_ready(60)
    assert hit
    fleet.wait_delivered(fleet.put(6))
    assert worker.failure is None


def test_a_refused_permission_at_the_end_of_a_shard_is_waited_out_with_the_lease_held(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(3))
    parent = fleet.open_shards()[0]
    fleet.dynamodb.fault = lambda operation, params: (
        Fault(before=aws_error("AccessDeniedException", "no", operation)) if operation == "PutItem" else None
    )
    fleet.kinesis.split(STREAM, parent)
    fleet.simulation.sleep(60)
    assert fleet.ledger.calls.count(("w1", "shard_ended", parent)) == 1
    assert fleet.owners()[parent] == "w1"
    fleet.dynamodb.fault = None
    fleet.wait_delivered(fleet.put(6))


def test_a_with_block_raises_what_stopped_its_worker_and_readiness_ends_with_it(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.worker("w1")

    def body():
        with worker:
            assert worker.wait_ready(30)
            fleet.dynamodb.delete_table(TableName=TABLE)
            fleet.wait(lambda: worker.failure is not None, 30)
            began = fleet.simulation.now
            assert not worker.wait_ready(600)
            assert fleet.simulation.now - began < 5

    with pytest.raises(TableGone):
        body()
    assert not worker.wait_ready(1)
