"""checkpoint_mode="ack" over the unmodified worker in simulated time: acks of other threads, in any order, late, never."""

import pytest

from pykcl import (
    CheckpointRefused,
    ConfigError,
    FailedAt,
    Record,
    Reject,
    RestartShard,
    StopTimedOut,
    TemporaryError,
)
from pykcl.errors import LeaseLostError, ProcessorFailed
from pykcl.events import (
    Checkpointed,
    LeaseLost,
    LeaseReleased,
    LossReason,
    ProcessorSlow,
    RecordNotAcked,
    RecordsDeadLettered,
    RecordsDiscarded,
    RetriesExhausted,
)
from pykcl.handlers.lambda_processor import lambda_processor
from pykcl.model.kpl import aggregate
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.worker import signals
from pykcl.worker.held_leases import Loss
from pykcl.worker.watermark import Watermark

SHARD = "shardId-000000000000"


class Acking(RecordingProcessor):
    """Keeps (batch, record) of all that it was given, and acks nothing by itself."""

    def __init__(self, worker, fleet, behaviour=None):
        super().__init__(worker, fleet.ledger, behaviour)
        self.fleet, self.given = fleet, []
        fleet.processors.append(self)

    def process_records(self, batch):
        self.given += [(batch, record) for record in batch]
        super().process_records(batch)

    def shutdown_requested(self, request):
        super().shutdown_requested(request)
        self.request = request

    def ack(self, *numbers):
        return [self.given[number][0].ack(self.given[number][1]) for number in numbers]


@pytest.fixture
def acking(new_fleet):
    """acking(shards=1, **options): a fleet with one worker that acks nothing, started."""

    def start(shards=1, behaviour=None, **options):
        fleet = new_fleet(shards=shards)
        fleet.processors = []
        fleet.begin = lambda name, **more: fleet.start(
            name,
            processor=lambda: Acking(name, fleet, behaviour),
            **{"checkpoint_mode": "ack", **options, **more},
        )
        fleet.begin("w1")
        return fleet

    return start


def checkpoint(fleet, shard=SHARD):
    return fleet.rows()[shard].checkpoint


def given(fleet):
    return fleet.processors[-1].given if fleet.processors else []


def position(fleet, number):
    return given(fleet)[number][1].position


def test_a_checkpoint_follows_the_records_that_are_acked_without_a_gap_once_a_second(acking):
    fleet = acking()
    fleet.wait_delivered(fleet.put(6))
    fleet.simulation.sleep(5)
    assert checkpoint(fleet).is_start, "that process_records has returned settles nothing"
    (processor,) = fleet.processors
    assert processor.ack(1, 2, 4) == [True] * 3
    fleet.simulation.sleep(5)
    assert checkpoint(fleet).is_start
    assert processor.ack(0) == [True]
    fleet.simulation.sleep(2.1)
    assert checkpoint(fleet) == position(fleet, 2)
    assert processor.ack(3, 5) == [True] * 2
    fleet.simulation.sleep(2.1)
    assert checkpoint(fleet) == position(fleet, 5)
    assert len(fleet.happened(Checkpointed)) == 2
    assert processor.ack(*range(6)) == [False] * 6


def test_between_rare_reads_the_checkpoint_is_written_all_the_same(acking):
    fleet = acking(idle_time_between_reads=60.0)
    fleet.wait_delivered(fleet.put(3))
    fleet.simulation.sleep(3)
    fleet.processors[0].ack(0, 1)
    fleet.simulation.sleep(2.1)
    assert checkpoint(fleet) == position(fleet, 1)


def test_many_acks_are_few_checkpoints(acking):
    fleet = acking()
    fleet.wait_delivered(fleet.put(200))
    for number in range(200):
        fleet.processors[0].ack(number)
        fleet.simulation.sleep(0.05)
    assert 8 <= len(fleet.happened(Checkpointed)) <= 12


def test_no_more_records_than_max_unacked_are_above_the_checkpoint_and_other_shards_go_on(acking):
    fleet = acking(shards=2, max_unacked=5)
    fleet.wait(lambda: len(fleet.processors) == 2, what="both shards")
    fleet.put(60)
    fleet.wait(lambda: all(len(each.given) == 5 for each in fleet.processors), what="five of each")
    slow, other = fleet.processors
    # All but the first one of this shard are acked: it is read no further.
    assert slow.ack(1, 2, 3, 4) == [True] * 4
    for done in range(15):
        fleet.wait(lambda: len(other.given) > done, 10, "the next one")  # noqa: B023 - called at once
        assert other.ack(done) == [True]
    fleet.simulation.sleep(5)
    assert len(slow.given) == 5
    assert len(other.given) > 15
    slow.ack(0)
    fleet.wait(lambda: len(slow.given) == 10, 10, "five more")
    assert max(len(batch) for batch, _ in slow.given + other.given) <= 5


def test_a_crash_repeats_what_is_above_the_mark_and_no_more_than_max_unacked(acking):
    fleet = acking(max_unacked=8)
    put = fleet.put(30)
    fleet.wait(lambda: len(given(fleet)) == 8, what="eight")
    fleet.processors[0].ack(0, 1, 2, 4, 5)
    fleet.wait(lambda: len(given(fleet)) == 11, what="as many as were passed")
    fleet.simulation.sleep(2.5)
    at = position(fleet, 2)
    assert checkpoint(fleet) == at
    fleet.simulation.kill("w1")
    fleet.begin("w2", max_unacked=30)
    fleet.wait(lambda: len(fleet.processors) == 2 and len(given(fleet)) == 27, 120, "the rest")
    assert [record.data for _, record in given(fleet)] == put[3:]
    assert fleet.ledger.duplicates == 8


def test_a_checkpointer_goes_as_far_as_everything_is_acked(acking):
    fleet = acking()
    fleet.wait_delivered(fleet.put(20))
    (processor,) = fleet.processors
    checkpointer = processor.given[0][0].checkpointer
    with pytest.raises(CheckpointRefused, match="20 records up to it are not acked"):
        checkpointer.checkpoint()
    processor.ack(0, 1, 3)
    with pytest.raises(CheckpointRefused, match="1 record up to it is not acked"):
        checkpointer.checkpoint(processor.given[3][1])
    with pytest.raises(CheckpointRefused, match="1 record up to it is not acked"):
        checkpointer.prepare_checkpoint(processor.given[3][1])
    with pytest.raises(CheckpointRefused, match="the last record"):
        checkpointer.checkpoint(str(int(processor.given[-1][1].sequence_number) + 1))
    checkpointer.checkpoint(processor.given[1][1])
    assert checkpoint(fleet) == position(fleet, 1)


def test_automatic_checkpoints_rest_while_one_is_prepared(acking):
    fleet = acking()
    fleet.wait_delivered(fleet.put(4))
    (processor,) = fleet.processors
    processor.ack(0, 1)
    prepared = processor.given[0][0].checkpointer.prepare_checkpoint(processor.given[0][1], state=b"s")
    processor.ack(2)
    fleet.simulation.sleep(5)
    assert checkpoint(fleet).is_start
    prepared.checkpoint()
    fleet.simulation.sleep(5)
    assert checkpoint(fleet) == position(fleet, 2)


# -- refused acks ----------------------------------------------------------------------------------------------


def test_a_record_of_another_shard_or_never_delivered_is_refused(acking):
    fleet = acking(shards=2, max_unacked=3)
    fleet.put(40)
    fleet.wait(lambda: sum(len(each.given) for each in fleet.processors) == 6, what="three of each")
    one, other = fleet.processors
    with pytest.raises(ValueError, match="was acked in a batch of"):
        one.given[0][0].ack(other.given[0][1])
    last = one.given[-1][1]
    later = Record(b"", "k", str(int(last.sequence_number) + 1), shard_id=last.shard_id)
    with pytest.raises(ValueError, match="never delivered"):
        one.given[0][0].ack(later)
    one.ack(0)
    before = Record(b"", "k", str(int(one.given[0][1].sequence_number) - 1), shard_id=last.shard_id)
    assert one.given[0][0].ack(before) is False, "nobody knows any more"


@pytest.mark.parametrize("mode", ["auto", "interval", "manual"])
def test_in_other_modes_the_error_says_what_to_set(acking, mode):
    fleet = acking(checkpoint_mode=mode)
    fleet.wait_delivered(fleet.put(1))
    for call in (given(fleet)[0][0].ack, given(fleet)[0][0].reject):
        with pytest.raises(ConfigError, match="checkpoint_mode='ack'"):
            call(given(fleet)[0][1])


def test_a_forked_process_acks_nothing(acking, monkeypatch):
    fleet = acking(dead_letters="discard")
    fleet.wait_delivered(fleet.put(2))
    with monkeypatch.context() as patch:
        patch.setattr(signals, "FORKS", [*signals.FORKS, None])
        assert fleet.processors[0].ack(0) == [False]
        assert given(fleet)[0][0].reject(given(fleet)[0][1]) is False
    assert fleet.processors[0].ack(0) == [True]
    assert not fleet.happened(RecordsDiscarded)


def test_after_a_stop_and_after_a_loss_acks_have_no_effect(acking):
    fleet = acking(shutdown_grace=2.0)
    fleet.wait_delivered(fleet.put(3))
    fleet.processors[0].ack(0)
    fleet.workers["w1"].stop()
    at = checkpoint(fleet)
    assert at == position(fleet, 0)
    assert fleet.processors[0].ack(1) == [False]
    fleet.begin("w2")
    fleet.wait(lambda: len(fleet.processors) == 2 and len(given(fleet)) == 2, what="the others")
    fleet.simulation.freeze("w2", 25.0)
    (row,) = fleet.items().values()
    taken = str(int(row["leaseCounter"]["N"]) + 1)
    fleet.dynamodb.put_raw(TABLE, {**row, "leaseOwner": {"S": "java"}, "leaseCounter": {"N": taken}})
    fleet.simulation.sleep(1.0)
    fleet.wait(lambda: fleet.happened(LeaseLost), 60, "the loss")
    assert fleet.processors[1].ack(0) == [False]
    assert checkpoint(fleet) == at


def test_acks_of_an_instance_that_was_replaced_count_for_nothing(acking):
    restarts = []

    def behaviour(batch):
        if not restarts:
            restarts.append(batch)
            raise RestartShard("once")

    fleet = acking(behaviour=behaviour)
    fleet.wait_delivered(fleet.put(3))
    old, new = fleet.processors
    assert old.ack(0, 1, 2) == [False] * 3
    fleet.simulation.sleep(3)
    assert checkpoint(fleet).is_start
    assert new.ack(0) == [True]
    fleet.simulation.sleep(3)
    assert checkpoint(fleet) == position(fleet, 0)


def test_without_closing_the_old_instance_its_acks_would_seem_to_count(acking, monkeypatch):
    monkeypatch.setattr(Watermark, "close", lambda self: None)
    with pytest.raises(AssertionError, match="True"):
        test_acks_of_an_instance_that_was_replaced_count_for_nothing(acking)


# -- process_records raises ------------------------------------------------------------------------------------


def test_after_an_error_the_records_of_the_batch_that_are_not_acked_come_again(acking):
    calls = []

    def behaviour(batch):
        calls.append([record.text() for record in batch])
        if len(calls) == 1:
            batch.ack(batch[1])
            raise ValueError("a queue was full")

    fleet = acking(behaviour=behaviour)
    put = [data.decode() for data in fleet.put(4)]
    fleet.wait(lambda: len(calls) == 2, what="the second attempt")
    assert calls == [put, [put[0], put[2], put[3]]]
    fleet.simulation.sleep(1)
    assert all(batch.ack(record) for batch, record in given(fleet)[4:])
    fleet.simulation.sleep(2.1)
    assert checkpoint(fleet) == position(fleet, 3)


def test_failed_at_acks_what_is_before_its_record(acking):
    calls = []

    def behaviour(batch):
        calls.append(len(batch))
        if len(calls) == 1:
            raise FailedAt(batch[2])

    fleet = acking(behaviour=behaviour)
    fleet.put(5)
    fleet.wait(lambda: len(calls) == 2, what="the second attempt")
    assert calls == [5, 3]
    fleet.simulation.sleep(2.1)
    assert checkpoint(fleet) == position(fleet, 1)


def test_reject_keeps_its_record_and_delivers_the_others_again(acking):
    calls, kept = [], []

    def keep(letters):
        if not kept:
            kept.append(None)
            raise TemporaryError("down")
        kept.extend(letters)

    def behaviour(batch):
        calls.append(len(batch))
        if len(calls) < 3:
            raise Reject(batch[2], "no such product")

    fleet = acking(behaviour=behaviour, dead_letters=keep)
    fleet.put(5)
    fleet.wait(lambda: len(calls) == 3, what="the third attempt")
    assert calls == [5, 5, 4]
    assert [(letter.reason, letter.records) for letter in kept[1:]] == [
        ("no such product", (given(fleet)[2][1],))
    ]
    fleet.processors[0].ack(0, 1)
    fleet.simulation.sleep(2.1)
    assert checkpoint(fleet) == position(fleet, 2)


def test_a_batch_that_fails_for_good_hands_the_lease_back_at_the_mark(acking):
    def behaviour(batch):
        if b"r5" in [record.data for record in batch]:
            for record in batch:
                if record.data == b"r3":
                    batch.ack(record)
            raise ValueError("always")

    fleet = acking(behaviour=behaviour, retry_timeout=20.0)
    fleet.put(3)
    fleet.wait(lambda: len(given(fleet)) == 3, what="the first ones")
    fleet.put(3)
    fleet.wait(lambda: len(fleet.processors[0].given) > 6, what="the second attempt")
    fleet.processors[0].ack(0, 1, 2)
    fleet.wait(lambda: fleet.happened(RetriesExhausted), 60, "the hand-back")
    assert checkpoint(fleet) == position(fleet, 3)


def test_on_error_raise_stops_the_worker_without_a_wait_for_the_batch_that_failed(acking):
    def behaviour(batch):
        raise ValueError("at once")

    fleet = acking(behaviour=behaviour, on_error="raise")
    fleet.put(3)
    began = fleet.simulation.now
    with pytest.raises(ProcessorFailed):
        fleet.workers["w1"].join()
    assert fleet.simulation.now - began < 10


# -- reject ----------------------------------------------------------------------------------------------------


def test_reject_keeps_the_record_before_it_settles_it(acking):
    kept, errors = [], [TemporaryError("down"), ValueError("bad")]

    def keep(letters):
        if errors:
            raise errors.pop(0)
        kept.extend(letters)

    fleet = acking(dead_letters=keep)
    fleet.wait_delivered(fleet.put(3))
    batch, record = given(fleet)[0]
    for error in (TemporaryError, ValueError):
        with pytest.raises(error):
            batch.reject(record, "no such product")
    fleet.simulation.sleep(2.1)
    assert checkpoint(fleet).is_start
    assert batch.reject(record, "no such product") is True
    assert batch.reject(record, "no such product") is False
    assert [(letter.reason, letter.condition.value, letter.records) for letter in kept] == [
        ("no such product", "Rejected", (record,))
    ]
    (event,) = fleet.happened(RecordsDeadLettered)
    assert (event.first, event.letter) == (str(record.position), kept[0].id)
    fleet.simulation.sleep(2.1)
    assert checkpoint(fleet) == record.position


def test_reject_needs_a_destination(acking):
    fleet = acking()
    fleet.wait_delivered(fleet.put(1))
    batch, record = given(fleet)[0]
    with pytest.raises(ConfigError, match="dead_letters=None"):
        batch.reject(record)


# -- never acked -----------------------------------------------------------------------------------------------


def test_a_record_that_is_never_acked_is_named_once_and_costs_the_lease(acking):
    fleet = acking(processor_warn_after=20.0, processor_timeout=40.0, max_unacked=10)
    fleet.put(5)
    fleet.wait(lambda: len(given(fleet)) == 5, what="them")
    fleet.processors[0].ack(0, 1, 3)
    fleet.wait(lambda: fleet.happened(RecordNotAcked), 60, "the warning")
    fleet.wait(lambda: fleet.happened(LeaseLost), 60, "the loss")
    (warning,) = fleet.happened(RecordNotAcked)
    assert (warning.position, warning.unacked) == (str(position(fleet, 2)), 2)
    assert 20 <= warning.seconds <= 22
    (lost,) = fleet.happened(LeaseLost)
    assert lost.reason is LossReason.NOT_ACKED
    assert lost.cause == (f"the record at {position(fleet, 2)} was not acked within processor_timeout=40 s")
    assert ("w1", "lease_lost", SHARD) in fleet.ledger.calls
    assert fleet.happened(ProcessorSlow) == []
    assert checkpoint(fleet) == position(fleet, 1)
    # Another worker goes first.
    fleet.begin("w2")
    fleet.wait(lambda: len(fleet.processors) == 2, 60, "the next owner")
    assert fleet.processors[1].worker == "w2"
    fleet.wait(lambda: len(given(fleet)) == 3, 60, "what is not acked")


# -- the end ---------------------------------------------------------------------------------------------------


def test_shard_ended_is_called_when_nothing_is_open(acking):
    fleet = acking()
    fleet.wait_delivered(fleet.put(3))
    fleet.kinesis.split(STREAM, SHARD)
    fleet.simulation.sleep(10)
    assert ("w1", "shard_ended", SHARD) not in fleet.ledger.calls
    fleet.processors[0].ack(2, 1)
    fleet.simulation.sleep(5)
    assert ("w1", "shard_ended", SHARD) not in fleet.ledger.calls
    assert not fleet.rows()[SHARD].is_ended
    fleet.processors[0].ack(0)
    fleet.wait(lambda: ("w1", "shard_ended", SHARD) in fleet.ledger.calls, 2, "the end")
    fleet.wait(lambda: SHARD not in fleet.rows() or fleet.rows()[SHARD].is_ended, 60)


def test_a_stop_waits_for_acks_and_writes_what_they_come_to(acking):
    fleet = acking()
    fleet.wait_delivered(fleet.put(3))

    def late():
        fleet.simulation.sleep(5)
        assert ("w1", "shutdown_requested", SHARD) in fleet.ledger.calls
        assert fleet.processors[0].ack(2, 0) == [True] * 2
        fleet.simulation.sleep(5)
        assert fleet.processors[0].ack(1) == [True]

    fleet.simulation.runtime("pool").spawn("late", late)
    began = fleet.simulation.now
    fleet.workers["w1"].stop()
    assert 10 <= fleet.simulation.now - began < 11.5
    assert checkpoint(fleet) == position(fleet, 2)
    assert fleet.owners()[SHARD] is None


@pytest.mark.parametrize(
    ("grace", "options"), [(None, {}), (4.0, {}), (None, {"shutdown_grace": 3.0}), (0.0, {})]
)
def test_a_stop_that_gets_no_acks_ends_in_time_at_the_mark(acking, grace, options):
    fleet = acking(**options)
    fleet.wait_delivered(fleet.put(3))
    fleet.processors[0].ack(0)
    began = fleet.simulation.now
    try:
        fleet.workers["w1"].stop(grace)
    except StopTimedOut:
        assert grace == 0.0
        return
    seconds = options.get("shutdown_grace", 25.0) if grace is None else grace
    assert fleet.simulation.now - began <= seconds
    assert checkpoint(fleet) == position(fleet, 0)
    assert fleet.owners()[SHARD] is None
    assert len(fleet.happened(LeaseReleased)) == 1


def test_a_second_signal_ends_the_wait_for_acks(acking):
    fleet = acking()
    fleet.wait_delivered(fleet.put(3))
    worker = fleet.workers["w1"]

    def twice():
        fleet.simulation.sleep(3)
        assert worker.activities == {SHARD: "acks"}
        worker._signals.ask(2)

    fleet.simulation.runtime("pool").spawn("twice", twice)
    began = fleet.simulation.now
    with pytest.raises(StopTimedOut, match="a second signal came"):
        worker.stop()
    assert fleet.simulation.now - began < 8


def test_a_stop_while_max_unacked_are_open_does_not_deliver_the_rest(acking):
    fleet = acking(max_unacked=4)
    fleet.put(20)
    fleet.wait(lambda: len(given(fleet)) == 4, what="four")

    def late():
        fleet.simulation.sleep(3)
        assert fleet.processors[0].ack(0, 1, 2, 3) == [True] * 4

    fleet.simulation.runtime("pool").spawn("late", late)
    fleet.workers["w1"].stop()
    assert len(given(fleet)) == 4
    assert checkpoint(fleet) == position(fleet, 3)


def test_shutdown_requested_may_checkpoint_what_is_acked(acking):
    fleet = acking(shutdown_grace=3.0)
    fleet.wait_delivered(fleet.put(3))
    fleet.processors[0].ack(0, 1)
    fleet.workers["w1"].stop()
    with pytest.raises(LeaseLostError):
        fleet.processors[0].request.checkpointer.checkpoint()
    assert checkpoint(fleet) == position(fleet, 1)


# -- refused configurations ------------------------------------------------------------------------------------


def test_what_acks_nothing_is_refused(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", processor=lambda_processor(lambda event, context: None), checkpoint_mode="ack")
    with pytest.raises(ConfigError, match="acks nothing"):
        worker.join(60)


# -- memory ----------------------------------------------------------------------------------------------------


def budget(fleet, worker="w1"):
    return fleet.workers[worker]._manager._context.memory


def taken(fleet, worker="w1"):
    """Bytes that are taken from the budget of the process now."""
    return fleet.workers[worker].config.max_buffered_bytes - budget(fleet, worker)._free


@pytest.mark.parametrize("options", [{}, {"batch_window": 2.0}, {"batch_size": 3, "max_unacked": 7}])
def test_the_bytes_of_a_page_are_free_again_when_its_last_record_is_acked(acking, options):
    fleet = acking(**options)
    fleet.wait(lambda: fleet.processors, what="the start")
    for _ in range(4):
        fleet.kinesis.put_record(STREAM, bytes(1000), "k")
        fleet.simulation.sleep(1.5)
    fleet.wait(lambda: len(given(fleet)) == 4, 30, "four records")
    fleet.simulation.sleep(2)
    assert 4000 <= taken(fleet) < 6000
    assert fleet.processors[0].ack(1, 2) == [True] * 2
    assert taken(fleet) >= 4000
    assert fleet.processors[0].ack(0, 3) == [True] * 2
    fleet.simulation.sleep(2)
    assert taken(fleet) == 0


@pytest.mark.parametrize("options", [{}, {"batch_window": 2.0}])
@pytest.mark.parametrize("end", ["stop", "restart", "loss"])
def test_the_bytes_of_records_that_are_never_acked_are_free_when_their_owner_is_gone(acking, options, end):
    fleet = acking(shutdown_grace=2.0, **options)
    fleet.wait(lambda: fleet.processors, what="the start")
    fleet.kinesis.put_record(STREAM, bytes(1000), "k")
    fleet.wait(lambda: given(fleet), 30, "a record")
    fleet.simulation.sleep(2)
    assert taken(fleet) >= 1000
    if end == "stop":
        fleet.workers["w1"].stop()
    elif end == "loss":
        fleet.workers["w1"]._manager._context.held.all()[0].lose(Loss.of(LossReason.OTHER))
        fleet.wait(lambda: fleet.happened(LeaseLost), 30, "the loss")
    else:
        fleet.processors[0].behaviour = lambda batch: (_ for _ in ()).throw(RestartShard("once"))
        fleet.kinesis.put_record(STREAM, b"", "k")
        fleet.wait(lambda: len(fleet.processors) == 2, 30, "another instance")
        fleet.wait(lambda: len(given(fleet)) == 2, 30, "the same records")
        fleet.simulation.sleep(2)
        assert fleet.processors[0].ack(0) == [False]
        assert fleet.processors[1].ack(0, 1) == [True] * 2
    fleet.simulation.sleep(2)
    assert taken(fleet) == 0


def test_a_shard_whose_records_hold_the_memory_waits_and_the_others_go_on(acking):
    """With the smallest budget, and pages of megabytes: one record of the first shard is not acked."""
    fleet = acking(shards=3, max_buffered_bytes=28 * 1024 * 1024)
    fleet.wait(lambda: len(fleet.processors) == 3, what="all shards")
    shards = [fleet.kinesis.put_record(STREAM, bytes(900_000), f"k{number}").shard_id for number in range(60)]
    slow = fleet.processors[0]
    own = shards.count(slow.init.shard_id)
    peak = 0

    def goes_on():
        nonlocal peak
        peak = max(peak, taken(fleet))
        for processor in fleet.processors:
            for batch, record in processor.given[1 if processor is slow else 0 :]:
                batch.ack(record)
        return sum(len(each.given) for each in fleet.processors) - len(slow.given) == 60 - own

    fleet.wait(goes_on, 120, "the other shards")
    fleet.simulation.sleep(10)
    assert len(slow.given) < own, "its first page holds the bytes that it may"
    slow.ack(0)
    fleet.wait(lambda: goes_on() and len(slow.given) == own, 120, "the rest")
    assert peak <= 28 * 1024 * 1024


# -- aggregates ------------------------------------------------------------------------------------------------


def test_a_checkpoint_may_lie_inside_an_aggregate(acking):
    fleet = acking()
    (blob,) = aggregate([("k", None, str(number).encode()) for number in range(5)])
    fleet.kinesis.put_record(STREAM, blob.data, "k")
    fleet.wait(lambda: len(given(fleet)) == 5, 30, "five records")
    fleet.processors[0].ack(0, 1, 3)
    fleet.simulation.sleep(2.1)
    assert checkpoint(fleet).sub_sequence_number == 1
    fleet.simulation.kill("w1")
    fleet.begin("w2")
    fleet.wait(lambda: len(fleet.processors) == 2 and len(given(fleet)) == 3, 60, "what is not acked")
    assert [record.sub_sequence_number for _, record in given(fleet)] == [2, 3, 4]
