"""What the unmodified worker measures, in simulated time: each metric says what it is said to say."""

import pytest
from metric_sinks import Recorder

from pykcl import handler, lambda_processor
from pykcl.errors import IteratorExpired, LeaseLostError
from pykcl.event_dispatch import line_of
from pykcl.events import DataLost, LeaseDoubted, LeaseLost, LossReason, ReleaseUnacknowledged
from pykcl.metrics import catalog
from pykcl.metrics.catalog import CATALOGUE
from pykcl.metrics.meter import measured
from pykcl.processor import RecordProcessor
from pykcl.testing.fleet import TABLE, Fleet, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault, unreachable
from pykcl.testing.memory.stream import MemorySubscription
from pykcl.testing.runtime import Simulation

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def started(fleet, name, **options):
    sink = Recorder()
    worker = fleet.start(name, **{"metrics_sinks": [sink], "metrics_level": "DETAILED", **options})
    return worker, sink


def whole_life(fleet):
    """Reading, a split, children, a second worker, a clean stop; the sinks of both."""
    simulation = fleet.simulation
    first, one = started(fleet, "w1")
    fleet.wait_delivered(fleet.put(40))
    fleet.kinesis.split("orders", FIRST)
    fleet.wait_delivered(fleet.put(40))
    simulation.sleep(130)
    _, two = started(fleet, "w2")
    fleet.wait(lambda: fleet.load()["w2"] >= 1, what="a lease for w2")
    fleet.wait_delivered(fleet.put(20))
    simulation.sleep(10)
    first.stop()
    fleet.wait(lambda: fleet.load()["w2"] == 3, what="all leases at w2")
    simulation.sleep(10)
    return one, two


def test_every_record_and_every_byte_is_counted_once_and_under_its_shard(fleet):
    one, two = whole_life(fleet)
    delivered = [record for _, record in fleet.ledger.delivered]
    for shard in {record.shard_id for record in delivered}:
        mine = [record for record in delivered if record.shard_id == shard]
        for measure, expected in (
            (catalog.RECORDS_PROCESSED, len(mine)),
            (catalog.DATA_BYTES_PROCESSED, sum(len(record.data) for record in mine)),
        ):
            assert sum(one.of(measure, shard)) + sum(two.of(measure, shard)) == expected
    # A shard without records has data, too.
    assert one.of(catalog.RECORDS_PROCESSED, SECOND).count(0.0) > 10


def test_what_an_ordinary_life_measures(fleet):
    one, two = whole_life(fleet)
    assert set(one.of(catalog.NUM_WORKERS)) == {1.0, 2.0}
    assert max(one.of(catalog.CURRENT_LEASES)) == 3.0
    assert two.of(catalog.CURRENT_LEASES)[-1] == 3.0
    assert max(one.of(catalog.TOTAL_LEASES)) == 4.0
    assert sum(one.of(catalog.TAKEN_LEASES)) == 4.0
    assert len(one.of(catalog.TAKE_LEASE.time)) == 4
    assert one.of(catalog.NEEDED_LEASES)[0] == 2.0
    assert two.of(catalog.NEEDED_LEASES)[-1] == 0.0
    assert sum(one.of(catalog.CREATE_LEASE.success)) == 2.0
    assert sum(one.of(catalog.CREATE_LEASE_AT_END.success)) == 2.0
    assert set(one.of(catalog.RENEW_ALL_LEASES.success)) == {1.0}
    assert one.of(catalog.UPDATE_LEASE_AT_END.success, FIRST) == [1.0]
    assert len(one.of(catalog.INITIALIZE_TIME)) == 4
    assert one.of(catalog.NUM_STREAMS_TO_SYNC)[0] == 0.0
    # A steal: the lease of the one is the other's without a gap.
    assert sum(one.of(catalog.LEASES_LOST_BY_CAUSE, "Taken")) == sum(one.of(catalog.LOST_LEASES)) == 1.0
    assert len(two.of(catalog.HAND_OVER_TIME)) == 3
    # A stop releases: nobody waits for the failover time.
    assert max(two.of(catalog.HAND_OVER_TIME)) < 7_000
    rare = {
        catalog.EXPIRED_ITERATOR, catalog.PROCESSOR_RETRIES, catalog.SKIPPED_RECORDS, catalog.PROCESSOR_STALLED,
        catalog.DATA_LOST, catalog.DROPPED_METRICS, catalog.BATCH_SPLITS, catalog.RECORDS_DEAD_LETTERED,
        catalog.RECORDS_DISCARDED, catalog.RECORDS_FILTERED, catalog.LANE_SHARE,
        catalog.SUBSCRIBE_TO_SHARD.time, catalog.SUBSCRIBE_TO_SHARD.success, catalog.SUBSCRIPTIONS,
        catalog.SUBSCRIPTION_SILENT, catalog.EVENT_DELAY, catalog.SHARD_PAUSED,
    }  # fmt: skip
    assert one.seen() | two.seen() == set(CATALOGUE) - rare


def test_enhanced_fan_out_is_measured_by_its_subscriptions_and_the_delay_of_its_events(fleet):
    simulation = fleet.simulation
    _, sink = started(fleet, "w1", retrieval="fanout")
    fleet.wait_delivered(fleet.put(10))
    simulation.sleep(10)
    assert sink.of(catalog.SUBSCRIPTIONS)[-1] == 2.0
    assert sink.of(catalog.SUBSCRIBE_TO_SHARD.success, FIRST) == [1.0]
    assert max(sink.of(catalog.EVENT_DELAY)) < 1000, "records are pushed as they come"
    for _ in range(2):
        # Within a minute it is not registered for a second time.
        fleet.kinesis.deregister_consumer("orders", name=TABLE)
        simulation.sleep(15)
    fleet.wait(lambda: sink.of(catalog.SUBSCRIPTIONS)[-1] < 2.0, what="a lost subscription")
    assert sink.of(catalog.SUBSCRIPTION_SILENT) == []


def test_a_silent_subscription_is_counted(fleet, monkeypatch):
    monkeypatch.setattr(MemorySubscription, "poll", lambda self: None)
    _, sink = started(fleet, "w1", retrieval="fanout")
    fleet.simulation.sleep(80)
    assert sink.of(catalog.SUBSCRIPTION_SILENT, FIRST) == [1.0, 1.0]


def test_records_that_a_filter_refuses_are_counted_once_whatever_is_tried_again(fleet):
    calls = []

    def handler(event, context):
        calls.append(event)
        if len(calls) < 3:
            raise ValueError
        (first, *others) = event["Records"]
        failed = [first] if len(calls) < 5 and not others else others[-1:]
        return {"batchItemFailures": [{"itemIdentifier": one["kinesis"]["sequenceNumber"]} for one in failed]}

    processor = lambda_processor(
        handler, report_batch_item_failures=True, filter=lambda record: not record.data.endswith(b"7")
    )
    _, sink = started(fleet, "w1", processor=processor)
    fleet.put(40)
    fleet.wait(
        lambda: sum(
            map(len, (sink.of(catalog.RECORDS_FILTERED, FIRST), sink.of(catalog.RECORDS_FILTERED, SECOND)))
        ),
        what="a count",
    )
    fleet.simulation.sleep(30)
    assert sum(sink.of(catalog.RECORDS_FILTERED, FIRST)) + sum(sink.of(catalog.RECORDS_FILTERED, SECOND)) == 4


def test_the_part_of_a_batch_in_its_largest_lane_says_which_shard_has_a_hot_key(fleet):
    def on_record(record):
        pass

    for number in range(40):
        fleet.kinesis.put_record("orders", b"1", "hot" if number < 20 else f"key-{number}")
    _, sink = started(fleet, "w1", processor=handler(on_record, concurrency=16))
    fleet.wait(lambda: sink.of(catalog.LANE_SHARE, FIRST) and sink.of(catalog.LANE_SHARE, SECOND))
    low, high = sorted(sink.of(catalog.LANE_SHARE, shard)[0] for shard in (FIRST, SECOND))
    assert low < 50 < high < 100


def test_a_lease_taken_over_from_a_dead_worker_tells_how_long_nobody_read(fleet):
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(10))
    _, sink = started(fleet, "w2")
    fleet.wait(lambda: fleet.load()["w2"] == 1, what="a lease stolen by w2")
    fleet.simulation.sleep(20)
    (stolen,) = sink.of(catalog.HAND_OVER_TIME)
    # It waits until the owner before must have noticed, and no longer.
    assert stolen < 7_000
    fleet.simulation.kill("w1")
    fleet.wait(lambda: fleet.load()["w2"] == 2, what="both leases at w2")
    fleet.simulation.sleep(2)
    _, taken_over = sink.of(catalog.HAND_OVER_TIME)
    assert 10_000 <= taken_over <= 25_000
    assert max(sink.of(catalog.EXPIRED_LEASES)) == 1.0


def test_leases_that_nobody_had_before_are_no_hand_over(fleet):
    _, sink = started(fleet, "w1")
    fleet.wait_delivered(fleet.put(10))
    assert sink.of(catalog.HAND_OVER_TIME) == []


def test_lag_is_told_with_the_page_and_for_the_application(fleet):
    seen = {FIRST: [], SECOND: []}

    def look(batch):
        seen[batch.shard_id].append(float(batch.millis_behind_latest))

    early = fleet.put(6)
    fleet.simulation.sleep(60)
    late = fleet.put(6)
    _, sink = started(
        fleet, "w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, look), max_records=1
    )
    fleet.wait_delivered(early + late)
    for shard, lags in seen.items():
        assert sink.of(catalog.MILLIS_BEHIND_LATEST, shard)[: len(lags)] == lags
    assert max(sink.of(catalog.MILLIS_BEHIND_LATEST)) >= 60_000
    assert sorted(sink.of(catalog.APPLICATION_BEHIND_LATEST)) == sorted(sink.of(catalog.MILLIS_BEHIND_LATEST))


def test_retries_and_skipped_records_are_counted_under_their_shard(fleet):
    def fails_twice(batch):
        if len([call for call in fleet.ledger.calls if call[1:] == ("process_records", batch.shard_id)]) <= 2:
            raise ValueError

    def made():
        return RecordingProcessor("w1", fleet.ledger, fails_twice)

    _, sink = started(fleet, "w1", processor=made)
    fleet.wait_delivered(fleet.put(10))
    for shard in (FIRST, SECOND):
        assert sum(sink.of(catalog.PROCESSOR_RETRIES, shard)) == 2.0
        assert len(sink.of(catalog.PROCESS_RECORDS_TIME, shard)) == 3
    assert sink.of(catalog.SKIPPED_RECORDS) == []
    assert sum(sink.of(catalog.RECORDS_PROCESSED)) == 10.0


def test_records_that_were_skipped_do_not_count_as_processed(fleet):
    class Broken(RecordProcessor):
        def process_records(self, batch):
            raise ValueError

    _, sink = started(fleet, "w1", processor=Broken, on_error="skip")
    fleet.put(10)
    fleet.wait(lambda: sum(sink.of(catalog.SKIPPED_RECORDS)) == 10.0, what="ten skipped records")
    fleet.simulation.sleep(5)
    assert sum(sink.of(catalog.RECORDS_PROCESSED)) == 0.0
    assert sink.of(catalog.PROCESSOR_RETRIES) == []


@pytest.mark.parametrize("keeps", [True, False])
def test_records_that_were_given_up_count_as_such_and_not_as_processed(fleet, keeps):
    class Broken(RecordProcessor):
        def process_records(self, batch):
            if any(record.data == b"r3" for record in batch):
                raise ValueError

    kept = []
    options = {"max_attempts": 2, "bisect": True, "dead_letters": kept.extend if keeps else "discard"}
    fleet.put(10)
    _, sink = started(fleet, "w1", processor=Broken, **options)
    measure = catalog.RECORDS_DEAD_LETTERED if keeps else catalog.RECORDS_DISCARDED
    fleet.wait(lambda: sum(sink.of(catalog.RECORDS_PROCESSED)) == 9.0, what="nine processed records")
    fleet.wait(lambda: sum(sink.of(measure)) == 1.0, what="a record given up")
    assert sum(sink.of(catalog.BATCH_SPLITS)) >= 1.0
    assert len(kept) == keeps


def test_a_processor_that_hangs_is_counted_once_and_its_lease_is_lost_as_stalled(fleet):
    def hangs(batch):
        fleet.simulation.sleep(500)

    _, sink = started(
        fleet, "w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, hangs),
        processor_warn_after=20.0, processor_timeout=60.0,
    )  # fmt: skip
    fleet.put(1)
    fleet.wait(lambda: sink.of(catalog.PROCESSOR_STALLED), what="the warning")
    fleet.wait(lambda: sink.labels(catalog.LEASES_LOST_BY_CAUSE), 600.0, what="the loss")
    assert sink.labels(catalog.LEASES_LOST_BY_CAUSE) == {"Stalled"}
    assert sum(sink.of(catalog.PROCESSOR_STALLED)) == 1.0


def test_an_expired_iterator_is_counted_and_its_call_failed(fleet, monkeypatch):
    worker = fleet.worker("w1", metrics_sinks=[sink := Recorder()], metrics_level="DETAILED")
    stream = worker._adapters[1]
    fetch, refused = stream.fetch, []

    def once_too_old(shard, iterator, limit):
        if not refused:
            refused.append(shard)
            raise IteratorExpired("too old")
        return fetch(shard, iterator, limit)

    monkeypatch.setattr(stream, "fetch", once_too_old)
    worker.start()
    fleet.wait_delivered(fleet.put(4))
    assert sink.of(catalog.EXPIRED_ITERATOR) == [1.0]
    assert sink.of(catalog.GET_RECORDS.success, refused[0])[:2] == [0.0, 1.0]
    assert sum(sink.of(catalog.GET_SHARD_ITERATOR.success, refused[0])) == 2.0


def test_heartbeats_that_fail_show_in_the_round(fleet):
    _, sink = started(fleet, "w1")
    fleet.wait_delivered(fleet.put(4))
    fleet.dynamodb.fault = lambda operation, params: (
        Fault(before=unreachable()) if operation == "UpdateItem" else None
    )
    fleet.wait(lambda: 0.0 in sink.of(catalog.RENEW_ALL_LEASES.success), what="a round that failed")
    assert 0.0 in sink.of(catalog.RENEW_LEASE.success)
    fleet.wait(lambda: 2.0 in sink.of(catalog.LEASES_IN_DOUBT), what="both doubts")
    assert not sink.labels(catalog.LEASES_LOST_BY_CAUSE)
    fleet.dynamodb.fault = None
    fleet.wait(lambda: sink.of(catalog.LEASES_IN_DOUBT)[-1] == 0.0, what="the end of both")


def test_nothing_is_measured_where_metrics_are_off(fleet):
    worker, sink = started(fleet, "w1", metrics_level="NONE")
    fleet.wait_delivered(fleet.put(10))
    fleet.simulation.sleep(10)
    assert sink.values == {}
    assert not worker._metering.meter.is_on
    plain = fleet.worker("w2")
    assert plain._metering.sinks == ()
    assert not plain._metering.meter.is_on


def test_the_level_summary_leaves_out_what_is_detailed(fleet):
    _, sink = started(fleet, "w1", metrics_level="SUMMARY")
    fleet.wait_delivered(fleet.put(10))
    fleet.simulation.sleep(10)
    assert {one.level for one in sink.seen()} == {"SUMMARY"}
    assert {catalog.RECORDS_PROCESSED, catalog.NUM_WORKERS, catalog.CURRENT_LEASES} <= sink.seen()


def test_values_are_put_together_under_dimensions_that_are_off(fleet):
    _, sink = started(fleet, "w1", metrics_dimensions="Operation,WorkerIdentifier")
    fleet.wait_delivered(fleet.put(10))
    assert sink.labels(catalog.RECORDS_PROCESSED) == {""}
    assert sum(sink.of(catalog.RECORDS_PROCESSED)) == 10.0


def test_a_sink_that_raises_is_left_out_and_no_lease_is_harmed(fleet, caplog):
    class Broken(Recorder):
        def take(self, label, values):
            raise RuntimeError("canary")

    _, sink = started(fleet, "w1", metrics_sinks=[Broken(), good := Recorder()])
    fleet.wait_delivered(fleet.put(10))
    fleet.simulation.sleep(20)
    assert fleet.load()["w1"] == 2
    assert sum(good.of(catalog.RECORDS_PROCESSED)) == 10.0
    assert "canary" not in caplog.text
    assert caplog.text.count("metrics sink raised and is left out") == 1
    assert sink.values == {}


def test_that_a_lease_has_gone_is_told_to_the_sinks(fleet):
    worker, sink = started(fleet, "w1")
    fleet.wait_delivered(fleet.put(4))
    worker.stop()
    assert sorted(sink.forgotten) == [FIRST, SECOND]


def test_records_trimmed_unread_are_counted():
    event = DataLost(shard=FIRST, checkpoint="1:0", resumed_at=None)
    assert list(measured(event)) == [(FIRST, (catalog.DATA_LOST, 1.0))]


# -- leases lost, by cause -------------------------------------------------------------------------------------


def _taken(fleet):
    fleet.start("w2")


def _expired(fleet):
    fleet.dynamodb.fault = lambda operation, params: (
        Fault(before=unreachable()) if operation == "UpdateItem" else None
    )


def _stopped_in_doubt(fleet):
    _expired(fleet)
    fleet.wait(lambda: len(fleet.happened(LeaseDoubted)) == 2, what="the doubt")
    fleet.workers["w1"].stop()


def test_a_shard_whose_end_is_not_written_is_behind_by_the_time_since_it_was_read(fleet):
    """Nobody reads its children meanwhile, and no page says so."""
    goes_on = fleet.simulation.runtime("w1").event()

    class Hanging(RecordingProcessor):
        def shard_ended(self, end):
            goes_on.wait()

    _, sink = started(fleet, "w1", processor=lambda: Hanging("w1", fleet.ledger))
    fleet.wait_delivered(fleet.put(10))
    fleet.kinesis.split("orders", FIRST)
    fleet.wait(
        lambda: max(sink.of(catalog.MILLIS_BEHIND_LATEST, FIRST), default=0.0) > 30_000.0, what="the lag"
    )
    assert max(sink.of(catalog.APPLICATION_BEHIND_LATEST)) > 30_000.0
    goes_on.set()
    fleet.wait(lambda: fleet.rows()[FIRST].is_ended, what="the end")


def _stalled(fleet):
    fleet.kinesis.put_record("orders", b"hang", "key")


def _row_deleted(fleet):
    fleet.dynamodb.delete_item(TableName=TABLE, Key={"leaseKey": {"S": FIRST}})


def _identifier_in_use(fleet):
    # A Java worker of that name, which was suspended, goes on renewing.
    row = dict(fleet.items()[FIRST])
    row["leaseCounter"] = {"N": str(int(row["leaseCounter"]["N"]) + 5)}
    fleet.dynamodb.put_raw(TABLE, row)


def _row_unreadable(fleet):
    row = {name: value for name, value in fleet.items()[FIRST].items() if name != "leaseCounter"}
    fleet.dynamodb.put_raw(TABLE, row)


def _table_gone(fleet):
    fleet.kinesis.put_record("orders", b"no table", "key")


LOSSES = {
    "Taken": (_taken, "another worker took it", "w2"),
    "Expired": (_stopped_in_doubt, "no heartbeat was answered before the worker stopped", None),
    "Stalled": (_stalled, "process_records did not return within processor_timeout=60 s", None),
    "RowDeleted": (_row_deleted, "its row is gone", None),
    "RowUnreadable": (
        _row_unreadable,
        "its row is there and cannot be read: leaseCounter is missing or not a whole number from 0 to 2^63-1", "w1",
    ),
    "WorkerIdentifierInUse": (
        _identifier_in_use, "another process uses the worker identifier 'w1'; each needs its own", "w1",
    ),
    "TableGone": (_table_gone, "the lease table is gone", None),
}  # fmt: skip
"""What happens to a worker, and what it says of the leases that it loses by that; by the dimension Cause."""
NEVER_TOLD = {
    "ReleaseUnanswered": "a lease that is let go has not been taken away; see the test below",
    "CheckpointChanged": "tests/worker/test_checkpoints_of_others.py",
    "RowWentBack": "tests/worker/test_checkpoints_of_others.py",
    "NotAcked": "tests/worker/test_acks.py",
    "HandedOver": "tests/java_compat/scenarios/test_kcl_3x_followers.py",
    "Other": "of an event that somebody else has made",
}


def test_there_is_no_further_cause():
    assert LOSSES.keys() | NEVER_TOLD.keys() == {reason.value for reason in LossReason}


@pytest.mark.parametrize("label", LOSSES)
def test_a_worker_that_loses_a_lease_says_why_in_words_and_in_the_metrics(fleet, label):
    def obeys(batch):
        payloads = [record.data for record in batch]
        if b"hang" in payloads:
            fleet.simulation.sleep(500)
        if b"no table" in payloads:
            # Before the checkpoint of this very batch, so that it is the lease's own thread that misses the table.
            fleet.dynamodb.delete_table(TableName=TABLE)

    happens, cause, new_owner = LOSSES[label]
    _, sink = started(
        fleet, "w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, obeys),
        processor_warn_after=20.0, processor_timeout=60.0,
    )  # fmt: skip
    fleet.wait_delivered(fleet.put(4))
    fleet.simulation.sleep(5)
    happens(fleet)
    fleet.wait(lambda: sink.labels(catalog.LEASES_LOST_BY_CAUSE), 600.0, what="the loss")
    lost = [event for name, event in fleet.events if name == "w1" and isinstance(event, LeaseLost)]
    assert sink.labels(catalog.LEASES_LOST_BY_CAUSE) == {label}
    assert sum(sink.of(catalog.LEASES_LOST_BY_CAUSE, label)) == len(lost)
    assert {(event.reason.value, event.cause, event.new_owner) for event in lost} == {
        (label, cause, new_owner)
    }
    line, _, hint = line_of(lost[0]).partition(" code=")
    assert line == f"lease lost shard={lost[0].shard} cause={cause!r} new_owner={new_owner or '-'}"
    assert hint[:3] == {"WorkerIdentifierInUse": "E08", "RowDeleted": "E29"}.get(label, "")


def test_a_lease_whose_release_got_no_answer_is_not_counted_as_lost_and_its_checkpointer_says_why(fleet):
    kept = {}

    def keep(batch):
        kept[batch.shard_id] = batch.checkpointer

    worker, sink = started(fleet, "w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, keep))
    fleet.wait_delivered(fleet.put(4))
    _expired(fleet)
    worker.stop()
    assert {event.shard for event in fleet.happened(ReleaseUnacknowledged)} == {FIRST, SECOND}
    assert {FIRST, SECOND} <= set(sink.forgotten)
    assert sink.labels(catalog.LEASES_LOST_BY_CAUSE) == set()
    with pytest.raises(
        LeaseLostError, match="no longer held by this worker: its release got no answer; its last"
    ):
        kept[FIRST].checkpoint()


def test_an_event_without_a_reason_is_of_another_cause():
    event = LeaseLost(shard=FIRST, cause="no heartbeat succeeded in time", new_owner=None)
    assert ("Other", (catalog.LEASES_LOST_BY_CAUSE, 1.0)) in list(measured(event))


def test_measuring_changes_nothing_of_what_the_worker_does():
    def course(**options):
        with Simulation(3) as simulation:
            fleet = Fleet(simulation, shards=2)
            fleet.start("w1", **options)
            fleet.wait_delivered(fleet.put(20))
            simulation.sleep(30)
            return [record.data for _, record in fleet.ledger.delivered], simulation.switches

    assert course() == course(metrics="none", metrics_level="DETAILED")
    assert course()[0] == course(metrics_sinks=[Recorder()])[0]


@pytest.mark.parametrize("mode", ["auto", "ack"])
def test_a_shard_is_shown_as_paused_from_the_pause_on_until_it_is_resumed(fleet, mode):
    class Down(RecordProcessor):
        def process_records(self, batch):
            worker.pause([FIRST])
            raise OSError

    worker, sink = started(fleet, "w1", processor=Down, checkpoint_mode=mode)
    fleet.put(40)
    fleet.simulation.sleep(30)
    assert set(sink.of(catalog.SHARD_PAUSED, FIRST)) == {1.0}
    assert sink.of(catalog.SHARD_PAUSED, SECOND) == []
    worker.pause([SECOND])
    fleet.simulation.sleep(30)
    worker.resume([SECOND])
    fleet.simulation.sleep(30)
    assert set(sink.of(catalog.SHARD_PAUSED, SECOND)) == {0.0, 1.0}
    assert sink.of(catalog.SHARD_PAUSED, SECOND)[-2:] == [1.0, 0.0]
