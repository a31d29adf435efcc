"""Attempts, bisect, partial failure, age and dead letters, over the unmodified worker in simulated time.

The numbers in the names are those of the acceptance list of attempts (a1) and of dead letters (a3).
"""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pykcl import (
    Batch,
    CheckpointRefused,
    Config,
    ConfigError,
    DeadLettersUnsent,
    FailedAt,
    Record,
    RecordProcessor,
    Reject,
    RestartShard,
    SetupError,
    TemporaryError,
    Window,
    Worker,
    handler,
    lambda_processor,
)
from pykcl.event_dispatch import line_of
from pykcl.events import (
    BatchSkipped,
    BatchSplit,
    Checkpointed,
    FailureResolved,
    FailureStarted,
    LeaseLost,
    LeaseReleased,
    LeaseTaken,
    ProcessorRaised,
    RecordsDeadLettered,
    RecordsDiscarded,
    RetriesExhausted,
    WholeBatchesAreGivenUp,
)
from pykcl.model.dead_letter import Condition
from pykcl.processor import NotDecoded, StoppedAt
from pykcl.testing import assert_in_order, records, run_processor
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.testing.memory.stream import MemoryStream
from pykcl.testing.runtime import EPOCH_MILLIS

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
SHARD = "shardId-000000000000"


def processor(behaviour, **methods):
    """A class whose process_records is `behaviour(batch)`."""
    body = {"process_records": lambda self, batch: behaviour(batch), **methods}
    return type("Scripted", (RecordProcessor,), body)


def poisoned_by(*poison):
    def process(batch):
        for record in batch:
            if record.text() in poison:
                raise ValueError(record.text())

    return processor(process)


def numbered(count, **more):
    return records(*map(str, range(count)), partition_key="k", **more)


def texts(found):
    return [record.text() for record in found]


def letters_of(result):
    return [(letter.condition, texts(letter.records), letter.attempts) for letter in result.dead_letters]


EXHAUSTED, EXPIRED, REJECTED = (
    Condition.RETRY_ATTEMPTS_EXHAUSTED,
    Condition.RECORD_AGE_EXPIRED,
    Condition.REJECTED,
)


# -- a1: attempts, bisect, partial failure, age ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "index"),
    [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (100, 0), (100, 57), (100, 99), (10_000, 6_789)],
)
def test_a1_1_one_poison_record_is_the_only_dead_letter(size, index):
    result = run_processor(poisoned_by(str(index)), numbered(size), max_attempts=3, bisect=True)
    assert letters_of(result) == [(EXHAUSTED, [str(index)], 3)]
    assert result.lost == 0
    assert sorted(map(int, texts(result.delivered))) == [each for each in range(size) if each != index]
    assert len(result.batches) <= 2 * math.ceil(math.log2(size)) + 3
    assert result.checkpoints[-1] == "SHARD_END"
    assert_in_order(result)


def test_a1_2_a_shard_of_nothing_but_poison_is_dead_lettered_record_by_record():
    everything = list(map(str, range(100)))
    result = run_processor(
        poisoned_by(*everything), numbered(100), max_attempts=3, bisect=True, dead_letters_in_a_row=0
    )
    assert [texts(letter.records) for letter in result.dead_letters] == [[each] for each in everything]
    assert len(result.batches) == 99 + 3 * 100


@pytest.mark.parametrize(
    "error",
    [lambda record: ValueError(), NotDecoded],
    ids=["each raises", "none decodes"],
)
def test_a1_2_so_many_in_a_row_hand_the_lease_back_with_the_checkpoint_at_the_last(new_fleet, error):
    fleet = new_fleet(shards=1)
    fleet.put(100)
    kept = []

    def fail(batch):
        raise error(batch[0])

    fleet.start(
        "w1",
        processor=lambda: RecordingProcessor("w1", fleet.ledger, fail),
        max_attempts=1,
        bisect=True,
        dead_letters_in_a_row=10,
        dead_letters=kept.extend,
    )
    fleet.wait(lambda: fleet.happened(LeaseReleased), what="the lease to be handed back")
    assert len(kept) == 10
    assert fleet.rows()[SHARD].checkpoint == kept[-1].records[-1].position
    (back,) = fleet.happened(RetriesExhausted)
    assert "dead_letters_in_a_row=10" in back.cause
    assert back.checkpoint == str(kept[-1].records[-1].position)


def fails_always(*_):
    raise ValueError("all is broken")


def of_batches(batch: Batch):
    fails_always()


def of_lists(values: list[Any]):
    fails_always()


def of_windows(values: list[Any], window: Window):
    fails_always()


def of_records(record: Record):
    fails_always()


async def async_of_lists(values: list[Any]):
    fails_always()


FORMS = {
    "class": (processor(fails_always), 50),
    "Batch": (handler(of_batches), 50),
    "list": (handler(of_lists), 50),
    "async list": (handler(async_of_lists), 50),
    "Lambda": (lambda_processor(fails_always), 50),
    "windows": (handler(of_windows, window=60), 50),
    "windows of Lambda": (lambda_processor(fails_always, window=60), 50),
    "each record": (handler(of_records), 1),
    # All lanes fail at once, with one record each.
    "lanes": (handler(of_records, concurrency=4), 4),
    "lists in lanes": (handler(of_lists, concurrency=4), 50),
}


@pytest.mark.parametrize("limit", [5, 120])
@pytest.mark.parametrize("form", FORMS)
def test_a1_2_dead_letters_in_a_row_counts_records_whatever_a_call_is_given(new_fleet, form, limit):
    made, at_once = FORMS[form]
    fleet = new_fleet(shards=1)
    for number in range(300):
        fleet.kinesis.put_record(STREAM, b"%d" % number, f"key-{number}")
    letters = []
    fleet.start(
        "w1",
        processor=made,
        batch_size=50,
        max_attempts=2,
        dead_letters_in_a_row=limit,
        dead_letters=letters.extend,
    )
    fleet.wait(lambda: fleet.happened(LeaseReleased), what="the lease to be handed back")
    given_up = sum(len(letter.records) for letter in letters)
    assert given_up == math.ceil(limit / at_once) * at_once
    (back,) = fleet.happened(RetriesExhausted)
    assert f"{given_up} records" in back.cause


def test_a1_3_killed_after_the_left_half_a_worker_leaves_its_checkpoint_behind_it(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(4)

    def die(batch):
        if len(batch) == 4:
            raise ValueError
        if batch[0].data == put[2]:
            fleet.simulation.kill("w1")
            fleet.simulation.switch()

    fleet.start(
        "w1",
        processor=lambda: RecordingProcessor("w1", fleet.ledger, die),
        max_attempts=3,
        bisect=True,
        dead_letters="discard",
    )
    fleet.wait_delivered(put[:2])
    fleet.start("w2")
    fleet.wait_delivered(put)
    assert fleet.ledger.by("w2") == put[2:]


@pytest.mark.parametrize(
    "options",
    [{}, {"max_attempts": 3}, {"max_attempts": 3, "bisect": True}],
    ids=["none", "attempts", "bisect"],
)
@pytest.mark.parametrize("k", [0, 1, 4])
def test_a1_4_failed_at_goes_on_at_the_record_and_the_row_says_the_one_before(options, k):
    failed = []

    def process(batch):
        if not failed:
            failed.append(batch[k])
            raise FailedAt(batch[k])

    result = run_processor(processor(process), numbered(5), **options)
    again = result.batches[1]
    assert texts(again)[0] == str(k)
    assert texts(again) == ([str(k)] if options.get("bisect") else list(map(str, range(k, 5))))
    assert result.dead_letters == []
    before = [str(result.records[k - 1].position)] if k else []
    assert result.checkpoints[: len(before)] == before
    assert result.checkpoints[-1] == "SHARD_END"


def test_a1_4_failed_at_a_record_that_is_not_in_the_batch_is_an_ordinary_failure():
    seen = []

    def process(batch):
        seen.extend(batch)
        if len(batch) > 1 or len(seen) > 6:
            raise FailedAt(seen[0] if batch[0].text() != "0" else seen[-1].__class__(b"", "", "1"))

    result = run_processor(processor(process), numbered(3), max_attempts=2)
    assert letters_of(result) == [(EXHAUSTED, ["0", "1", "2"], 2)]


def test_a_checkpoint_of_a_part_passes_no_record_behind_it():
    """The processor was given all of the records by its first call, which failed, and then the left half alone."""
    refused = []

    def process(batch):
        if len(batch) == 6:
            process.all = list(batch)
            raise ValueError("all")
        if not refused:
            with pytest.raises(CheckpointRefused) as found:
                batch.checkpointer.checkpoint(process.all[-1])
            refused.append(found.value)

    result = run_processor(processor(process), numbered(6), bisect=True, max_attempts=2)
    assert refused
    assert [len(batch) for batch in result.batches] == [6, 3, 3]
    assert result.checkpoints[-1] == "SHARD_END"


def test_a1_5_an_error_of_aws_hands_the_lease_back_without_a_letter_or_a_split(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(4)
    kept = []

    def fail(batch):
        raise TemporaryError("the table is throttled")

    fleet.start(
        "w1",
        processor=lambda: RecordingProcessor("w1", fleet.ledger, fail),
        max_attempts=1,
        bisect=True,
        retry_timeout=20.0,
        dead_letters=kept.extend,
    )
    fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the lease to be handed back")
    assert kept == []
    assert fleet.happened(BatchSplit) == []
    assert {event.records for event in fleet.happened(ProcessorRaised)} == {4}
    assert fleet.rows()[SHARD].checkpoint.is_sentinel


@pytest.mark.parametrize("hours", [-5, 5])
def test_a1_6_a_clock_of_the_host_that_jumps_changes_nothing_about_the_age(new_fleet, hours, monkeypatch):
    fleet = new_fleet(shards=1)
    # As in the answers of Kinesis: not the clock of the host, which is that of the simulated worker.
    monkeypatch.setattr(
        MemoryStream, "server_time_millis", lambda self: EPOCH_MILLIS + int(fleet.simulation.now) * 1000
    )
    old = fleet.put(2, "old")
    fleet.simulation.sleep(90)
    young = fleet.put(2, "young")
    fleet.simulation.clock("w1").wall_offset = hours * 3_600_000
    kept = []
    fleet.start("w1", max_record_age=60.0, dead_letters=kept.extend)
    fleet.wait_delivered(young)
    assert [(letter.condition, [each.data for each in letter.records]) for letter in kept] == [(EXPIRED, old)]
    assert fleet.ledger.by("w1") == young


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_attempts": 0, "dead_letters": "discard"}, ["max_attempts", "1 to"]),
        ({"max_attempts": -1, "dead_letters": "discard"}, ["max_attempts", "1 to"]),
        ({"max_attempts": True, "dead_letters": "discard"}, ["max_attempts", "whole number"]),
        ({"max_attempts": "3", "dead_letters": "discard"}, ["max_attempts", "whole number"]),
        ({"bisect": True, "on_error": "skip"}, ["bisect=True", "on_error='skip'"]),
        ({"max_attempts": 3, "dead_letters": "discard", "on_error": "raise"}, ["max_attempts=3", "on_error='raise'"]),
        ({"dead_letters": "discard", "on_error": "skip"}, ["dead_letters='discard'", "on_error='skip'"]),
        ({"max_record_age": 60}, ["max_record_age=60", 'dead_letters="discard"']),
        ({"max_attempts": 3}, ["max_attempts=3", 'dead_letters="discard"']),
        ({"max_record_age": 0, "dead_letters": "discard"}, ["max_record_age", "1 to"]),
        ({"bisect": "yes"}, ["bisect", "True or False"]),
        ({"batch_size": 0}, ["batch_size", "1 to"]),
        ({"batch_size": 10_001}, ["batch_size", "10000"]),
        ({"dead_letters_in_a_row": -1}, ["dead_letters_in_a_row", "0 to"]),
        ({"dead_letters": "letters"}, ["dead_letters='letters'", "file:DIRECTORY"]),
        ({"dead_letters": ""}, ["dead_letters=''", "discard"]),
        ({"dead_letters": "arn:aws:lambda:eu-west-1:1:function:x"}, ["no destination"]),
    ],
)  # fmt: skip
def test_a1_7_what_contradicts_is_refused_with_both_names(options, words):
    with pytest.raises(ConfigError) as raised:
        Config(application="orders-app", stream="orders", **options)
    for word in words:
        assert word in str(raised.value)


def test_a1_8_an_aggregate_is_cut_between_its_records_and_one_of_them_is_given_up():
    result = run_processor(
        poisoned_by("5"), numbered(8, aggregated=True), max_attempts=2, bisect=True, batch_size=3
    )
    assert letters_of(result) == [(EXHAUSTED, ["5"], 2)]
    (record,) = result.dead_letters[0].records
    assert (record.sub_sequence_number, record.aggregated) == (5, True)
    assert all(len(batch) <= 3 for batch in result.batches)
    assert result.checkpoints[:3] == [f"{record.sequence_number}:{sub}" for sub in (2, 4, 5)]
    assert result.lost == 0


def test_a1_9_a_lease_that_is_lost_in_a_half_done_batch_brings_no_call_and_no_letter(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(4)
    kept = []

    def fail(batch):
        if len(batch) == 1:
            fleet.dynamodb.tables[TABLE].rows[SHARD]["leaseOwner"] = {"S": "another"}
            fleet.dynamodb.tables[TABLE].rows[SHARD]["leaseCounter"] = {"N": "99999"}
            fleet.simulation.sleep(11)
        raise ValueError

    fleet.start(
        "w1",
        processor=lambda: RecordingProcessor("w1", fleet.ledger, fail),
        max_attempts=1,
        bisect=True,
        dead_letters=kept.extend,
    )
    fleet.wait(lambda: fleet.happened(LeaseLost), what="the loss")
    fleet.workers["w1"].stop()
    calls = [method for _, method, _ in fleet.ledger.calls]
    assert kept == []
    # The other owner never renews the lease, so the worker may have it again by then.
    assert calls[:5] == ["initialize", "process_records", "process_records", "process_records", "lease_lost"]
    assert put


def test_a1_10_a_stop_in_a_split_batch_ends_the_call_and_begins_nothing_more(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(4)

    def slow(batch):
        if len(batch) == 4:
            raise ValueError
        fleet.simulation.sleep(3)

    worker = fleet.start(
        "w1",
        processor=lambda: RecordingProcessor("w1", fleet.ledger, slow),
        max_attempts=3,
        bisect=True,
        dead_letters="discard",
    )
    fleet.wait(lambda: len(fleet.happened(BatchSplit)) == 1, what="the split")
    began = fleet.simulation.now
    worker.stop()
    assert fleet.simulation.now - began < worker.config.shutdown_grace
    assert fleet.ledger.by("w1") == put[:2]
    row = fleet.rows()[SHARD]
    delivered = [record for _, record in fleet.ledger.delivered]
    assert (row.owner, row.checkpoint) == (None, delivered[-1].position)


@pytest.mark.parametrize("method", ["initialize", "shard_ended"])
def test_a1_11_no_other_method_is_counted_split_or_dead_lettered(method):
    calls = []

    def fail_twice(self, argument):
        calls.append(argument)
        if len(calls) < 4:
            raise ValueError

    result = run_processor(
        processor(lambda batch: None, **{method: fail_twice}), numbered(3), max_attempts=1, bisect=True
    )
    assert len(calls) == 4
    assert result.dead_letters == []
    assert texts(result.delivered) == ["0", "1", "2"]
    assert result.checkpoints[-1] == "SHARD_END"


def test_a1_11_shutdown_requested_is_called_once_whatever_it_raises():
    def fail(self, request):
        raise ValueError

    result = run_processor(
        processor(lambda batch: None, shutdown_requested=fail),
        numbered(3),
        end="stop",
        max_attempts=1,
        bisect=True,
    )
    assert [call.method for call in result.calls].count("shutdown_requested") == 1
    assert result.dead_letters == []


# -- what else a call may do -----------------------------------------------------------------------------------


def test_without_bisect_the_whole_batch_is_given_up_and_the_start_says_so():
    result = run_processor(poisoned_by("1"), numbered(3), max_attempts=2)
    assert letters_of(result) == [(EXHAUSTED, ["0", "1", "2"], 2)]
    assert [event.max_attempts for event in result.events if isinstance(event, WholeBatchesAreGivenUp)] == [2]
    split = run_processor(poisoned_by("1"), numbered(3), max_attempts=2, bisect=True)
    assert not any(isinstance(event, WholeBatchesAreGivenUp) for event in split.events)


def test_a_rejected_record_is_given_up_at_once_and_the_others_come_again():
    def process(batch):
        for record in batch:
            if record.text() == "2":
                try:
                    int("no number")
                except ValueError as error:
                    raise Reject(record, "no such product") from error

    result = run_processor(processor(process), numbered(5), dead_letters=lambda letters: None)
    assert letters_of(result) == [(REJECTED, ["2"], 1)]
    (letter,) = result.dead_letters
    assert (letter.error, letter.reason) == ("ValueError", "no such product")
    assert letter.where.startswith("test_policies.py:")
    assert texts(result.delivered) == ["0", "1", "3", "4"]
    assert_in_order(result)


def test_a_letter_says_what_failed_where_and_since_when():
    result = run_processor(poisoned_by("0"), numbered(1), max_attempts=2)
    (letter,) = result.dead_letters
    assert (letter.error, letter.message) == ("ValueError", "0")
    assert letter.processor.endswith(":Scripted")
    assert (letter.application, letter.stream, letter.shard_id) == (TABLE, STREAM, SHARD)
    assert letter.stream_arn.endswith(":stream/orders")
    assert letter.first_failed_at <= letter.created_at
    (event,) = [each for each in result.events if isinstance(each, RecordsDeadLettered)]
    assert (event.letter, event.records, event.attempts) == (letter.id, 1, 2)


def test_restart_shard_is_as_ever():
    made = []

    def process(batch):
        made.append(batch)
        if len(made) == 1:
            raise RestartShard("its process has died")

    result = run_processor(processor(process), numbered(3), max_attempts=1, bisect=True)
    assert [call.method for call in result.calls].count("initialize") == 2
    assert texts(result.delivered) == ["0", "1", "2"]
    assert result.dead_letters == []


def test_system_exit_counts_for_nothing():
    calls = []

    def process(batch):
        calls.append(batch)
        if len(calls) < 3:
            raise SystemExit(1)

    result = run_processor(processor(process), numbered(3), max_attempts=1)
    assert result.dead_letters == []
    assert result.lost == 0


def test_records_that_the_processor_checkpointed_before_it_raised_are_no_part_of_the_failure():
    def process(batch):
        for record in batch:
            if record.text() == "3":
                raise ValueError
            batch.checkpointer.checkpoint(record)

    result = run_processor(
        processor(process), numbered(5), max_attempts=2, checkpoint_mode="manual", end="stop"
    )
    assert letters_of(result) == [(EXHAUSTED, ["3", "4"], 2)]


def test_manual_checkpoints_are_moved_by_nothing_else_and_may_pass_what_is_settled():
    def process(batch):
        if "1" in texts(batch):
            raise ValueError
        batch.checkpointer.checkpoint()

    result = run_processor(
        processor(process), numbered(4), max_attempts=1, bisect=True, checkpoint_mode="manual", end="stop"
    )
    first, *_, last = result.records
    assert letters_of(result) == [(EXHAUSTED, ["1"], 1)]
    assert result.checkpoints == [str(first.position), str(last.position)]


def test_a_shard_ends_by_hand_too_where_its_last_record_is_a_dead_letter():
    def process(batch):
        if "3" in texts(batch):
            raise ValueError
        batch.checkpointer.checkpoint()

    result = run_processor(
        processor(process), numbered(4), max_attempts=1, bisect=True, checkpoint_mode="manual"
    )
    assert letters_of(result) == [(EXHAUSTED, ["3"], 1)]
    assert result.checkpoints[-1] == "SHARD_END"


def test_interval_checkpoints_are_not_written_for_each_part():
    result = run_processor(
        poisoned_by("3"), numbered(8), max_attempts=1, bisect=True, checkpoint_mode="interval", checkpoint_interval=60.0
    )  # fmt: skip
    assert [event for event in result.events if isinstance(event, Checkpointed)] == []
    assert result.checkpoints == ["SHARD_END"]


def test_batch_size_cuts_pages():
    result = run_processor(processor(lambda batch: None), numbered(7), batch_size=3)
    assert [len(batch) for batch in result.batches] == [3, 3, 1]


def test_old_records_are_given_up_without_a_call():
    now = NOON
    inputs = [
        *records("a", "b", partition_key="k", arrived=now - timedelta(hours=2)),
        *records("c", partition_key="k", arrived=now),
    ]
    result = run_processor(processor(lambda batch: None), inputs, max_record_age=3600)
    assert letters_of(result) == [(EXPIRED, ["a", "b"], 0)]
    assert texts(result.delivered) == ["c"]
    assert result.dead_letters[0].first_failed_at is None


def skipped(result):
    return [event.records for event in result.events if isinstance(event, BatchSkipped)]


def test_skip_skips_what_names_its_record_too():
    def process(batch):
        raise FailedAt(batch[0])

    result = run_processor(processor(process), numbered(2), on_error="skip")
    assert texts(result.skipped) == ["0", "1"]
    assert skipped(result) == [1, 1]


def test_skip_gives_up_the_one_record_that_a_failure_names_and_those_after_it_are_tried():
    def process(batch):
        for record in batch:
            if record.text() in ("1", "4"):
                raise FailedAt(record)

    result = run_processor(processor(process), numbered(5), on_error="skip")
    assert [texts(batch) for batch in result.batches] == [list("01234"), list("234")]
    assert texts(result.skipped) == ["1", "4"]
    assert texts(result.delivered) == ["0", "2", "3"]
    assert result.checkpoints[-1] == "SHARD_END"
    assert result.lost == 0


def test_skip_gives_up_the_one_record_that_is_rejected_and_the_others_come_again():
    def process(batch):
        for record in batch:
            if record.text() in ("1", "2"):
                raise Reject(record)

    result = run_processor(processor(process), numbered(4), on_error="skip")
    assert [texts(batch) for batch in result.batches] == [list("0123"), list("023"), list("03")]
    assert texts(result.skipped) == ["1", "2"]
    assert result.lost == 0


def test_skip_goes_on_with_no_record_of_a_batch_once_the_worker_stops(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(4)
    stop = []

    def fail(batch):
        stop[0]()
        raise FailedAt(batch[0])

    worker = fleet.start(
        "w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, fail), on_error="skip"
    )
    stop.append(worker.stop)
    fleet.wait(lambda: fleet.happened(LeaseReleased), what="the lease to be released")
    assert [event.records for event in fleet.happened(BatchSkipped)] == [1]


def test_a_rejected_record_is_given_up_by_nobody_where_no_option_says_what_becomes_of_it(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(3)

    def reject(batch):
        if len(batch) == 1:
            raise Reject(batch[0])
        raise ValueError

    fleet.start(
        "w1",
        processor=lambda: RecordingProcessor("w1", fleet.ledger, reject),
        bisect=True,
        retry_timeout=5.0,
    )
    fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the lease to be handed back")
    assert fleet.happened(RecordsDiscarded) == []
    assert fleet.rows()[SHARD].checkpoint.is_sentinel


# -- handlers of single records ---------------------------------------------------------------------------------


def one_by_one(handle):
    """A processor that names the record at which a call ends, as the handlers that pykcl makes of functions."""

    def process(batch):
        for record in batch:
            try:
                handle(record)
            except Exception as error:
                raise StoppedAt(record, error) from error

    return processor(process)


def test_of_single_records_the_one_before_a_rejected_one_is_not_delivered_again():
    calls = []

    def handle(record):
        calls.append(record.text())
        if record.text() == "2":
            raise Reject("no such product")

    result = run_processor(one_by_one(handle), numbered(5), dead_letters=lambda letters: None)
    assert letters_of(result) == [(REJECTED, ["2"], 1)]
    assert calls == list("01234")
    assert texts(result.delivered) == ["0", "1", "3", "4"]


def test_of_single_records_what_cannot_be_decoded_costs_no_attempt():
    def handle(record):
        if record.text() in ("0", "3"):
            raise NotDecoded(record) from ValueError("no number")

    result = run_processor(one_by_one(handle), numbered(4), max_attempts=3)
    assert letters_of(result) == [
        (Condition.DECODE_FAILED, ["0"], 0),
        (Condition.DECODE_FAILED, ["3"], 0),
    ]
    assert {(letter.error, letter.message) for letter in result.dead_letters} == {("ValueError", "no number")}
    assert len(result.batches) == 2


@pytest.mark.parametrize("bisect", [False, True])
def test_of_single_records_the_failing_one_alone_costs_attempts(bisect):
    calls = []

    def handle(record):
        calls.append(record.text())
        if record.text() == "1":
            raise KeyError

    result = run_processor(one_by_one(handle), numbered(3), max_attempts=2, bisect=bisect)
    assert letters_of(result) == [(EXHAUSTED, ["1"], 2)]
    assert (calls.count("0"), calls.count("2")) == (1, 1)
    assert {event.error for event in result.events if isinstance(event, ProcessorRaised)} == {"KeyError"}


@pytest.mark.parametrize("options", [{"max_attempts": 1}, {}], ids=["policies", "none"])
def test_of_single_records_an_error_that_is_none_of_theirs_counts_nothing_and_repeats_nothing(options):
    calls = []

    def handle(record):
        calls.append(record.text())
        if record.text() == "1" and len(calls) < 5:
            raise TemporaryError("the database is away")

    result = run_processor(one_by_one(handle), numbered(3), **options)
    assert result.dead_letters == []
    assert calls == list("011112")


def test_of_single_records_one_that_was_checkpointed_before_it_failed_blames_no_other():
    def process(batch):
        for record in batch:
            batch.checkpointer.checkpoint(record)
            if record.text() == "1":
                raise StoppedAt(record, ValueError())

    for options in ({"max_attempts": 1}, {"on_error": "skip"}):
        result = run_processor(
            processor(process), numbered(4), checkpoint_mode="manual", end="stop", **options
        )
        assert result.dead_letters == []
        assert skipped(result) == []
        assert [texts(batch) for batch in result.batches] == [list("0123"), list("23")]


@pytest.mark.parametrize("error", [Reject("bad"), ValueError()], ids=["rejects", "raises"])
def test_of_single_records_skip_skips_one(error):
    def handle(record):
        if record.text() == "1":
            raise error

    result = run_processor(one_by_one(handle), numbered(3), on_error="skip")
    assert texts(result.skipped) == ["1"]
    assert texts(result.delivered) == ["0", "2"]


def test_of_single_records_one_that_names_another_is_an_ordinary_failure():
    others = []

    def handle(record):
        others.append(record)
        if record.text() == "1":
            raise Reject(others[0])

    result = run_processor(one_by_one(handle), numbered(3), max_attempts=1)
    assert letters_of(result) == [(EXHAUSTED, ["1"], 1)]


# -- a3: the destination ---------------------------------------------------------------------------------------


class Destination:
    """A destination that fails as often as it is said, before it keeps a letter or after that."""

    def __init__(self, *failures, after=False):
        self.failures, self.after, self.kept, self.sent = list(failures), after, [], 0

    def send(self, letters):
        self.sent += 1
        failure = self.failures.pop(0) if self.failures else None
        if failure is None or self.after:
            self.kept += letters
        if failure is not None:
            raise failure


@pytest.mark.parametrize("after", [False, True], ids=["down", "answer lost"])
@pytest.mark.parametrize("as_function", [False, True])
def test_a3_1_a_destination_that_fails_holds_up_the_shard_and_loses_nothing(after, as_function):
    destination = Destination(
        *[KeyError("payload") if as_function else TemporaryError("down")] * 5, after=after
    )
    result = run_processor(
        poisoned_by("1"),
        numbered(3),
        max_attempts=1,
        bisect=True,
        dead_letters=destination.send if as_function else destination,
    )
    assert letters_of(result) == [(EXHAUSTED, ["1"], 1)]
    assert result.lost == 0
    assert len({letter.id for letter in destination.kept}) == 1
    assert len(destination.kept) == (6 if after else 1)
    (began,) = [event for event in result.events if isinstance(event, FailureStarted)]
    assert (began.what, began.shard, began.code) == ("sending dead letters", SHARD, "E22")
    assert "payload" not in began.cause
    assert any(isinstance(event, FailureResolved) for event in result.events)


@pytest.mark.parametrize("failure", [TemporaryError("down"), SetupError("no such queue")])
def test_a3_1_a_destination_that_stays_down_costs_the_lease_and_no_record(new_fleet, failure):
    fleet = new_fleet(shards=1)
    put = fleet.put(3)
    destination = Destination(*[failure] * 1000)

    def fail(batch):
        if any(record.data == put[1] for record in batch):
            raise ValueError

    worker = fleet.start(
        "w1",
        processor=lambda: RecordingProcessor("w1", fleet.ledger, fail),
        max_attempts=1,
        bisect=True,
        retry_timeout=30.0,
        dead_letters=destination,
    )
    fleet.wait(lambda: fleet.happened(LeaseReleased), what="the lease to be handed back")
    (back,) = fleet.happened(RetriesExhausted)
    assert str(failure) in back.cause
    assert back.left_alone_for == 30.0
    assert (destination.sent == 1) == isinstance(failure, SetupError)
    assert fleet.rows()[SHARD].checkpoint == fleet.ledger.delivered[0][1].position, "before the record"
    assert worker.failure is None
    assert not fleet.happened(RecordsDeadLettered)
    destination.failures.clear()
    fleet.wait_delivered([put[0], put[2]])
    assert [each.data for letter in destination.kept for each in letter.records] == [put[1]]
    assert {letter.processor for letter in destination.kept} == {"pykcl.testing.fleet:RecordingProcessor"}
    assert len(fleet.happened(LeaseTaken)) == 2


def test_a3_1_heartbeats_go_on_while_the_destination_is_down_and_a_stop_ends_the_wait(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(1)

    def fail(batch):
        raise ValueError

    destination = Destination(*[TemporaryError("down")] * 1000)
    worker = fleet.start(
        "w1",
        processor=lambda: RecordingProcessor("w1", fleet.ledger, fail),
        max_attempts=1,
        dead_letters=destination,
    )
    fleet.wait(lambda: destination.sent > 3, what="attempts to send")
    before = fleet.rows()[SHARD].counter
    fleet.simulation.sleep(60)
    assert fleet.owners()[SHARD] == "w1"
    assert fleet.rows()[SHARD].counter > before
    assert [each.what.value for each in worker.status().troubles] == ["sending dead letters"]
    worker.stop()
    assert fleet.rows()[SHARD].checkpoint.is_sentinel
    assert destination.kept == []


def test_a3_1_no_checkpoint_passes_a_letter_before_the_destination_has_answered():
    checked = []

    def keep(letters):
        checked.append(len(checkpoints))

    checkpoints = []

    def process(batch):
        checkpoints.append(batch)
        raise ValueError

    result = run_processor(processor(process), numbered(2), max_attempts=1, dead_letters=keep)
    kinds = [type(event) for event in result.events]
    assert checked
    assert kinds.index(RecordsDeadLettered) < kinds.index(Checkpointed)


def test_discard_keeps_nothing_and_says_so_for_each_letter():
    result = run_processor(poisoned_by("1"), numbered(3), max_attempts=1, bisect=True, dead_letters="discard")
    assert result.dead_letters == []
    (event,) = [each for each in result.events if isinstance(each, RecordsDiscarded)]
    assert (event.condition, event.records, event.first) == (
        EXHAUSTED.value,
        1,
        str(result.records[1].position),
    )
    assert result.lost == 0


def test_no_event_quotes_a_record_or_what_was_raised_about_it():
    def process(batch):
        first = batch[0]
        if first.text() == "secret-a":
            raise Reject(first, f"no such {first.text()}") from ValueError(first.text())
        raise ValueError(first.text(), first.partition_key)

    def keep(letters):
        if not sent:
            sent.append(letters)
            raise KeyError(letters[0].records[0].text())

    sent = []
    inputs = records("secret-a", "secret-b", partition_key="secret-key")
    result = run_processor(processor(process), inputs, max_attempts=2, bisect=True, dead_letters=keep)
    assert len(result.dead_letters) == 2
    assert result.dead_letters[0].reason == "no such secret-a"
    lines = [line_of(event) for event in result.events] + [repr(event) for event in result.events]
    assert [line for line in lines if "secret" in line] == []


class Orders(RecordProcessor):
    def process_records(self, batch):
        raise DeadLettersUnsent("never called")


async def keep_later(letters):
    del letters


@pytest.mark.parametrize(
    ("given", "config", "words"),
    [
        (keep_later, {}, "async def"),
        (17, {}, "int is neither"),
        (None, {"dead_letters": "callable"}, "Worker\\(dead_letters=keep\\)"),
        (print, {"dead_letters": "discard"}, "config.dead_letters='discard' contradicts"),
    ],
)
def test_a_destination_that_cannot_be_is_refused(given, config, words):
    chosen = Config(application="orders-app", stream="orders", **config)
    with pytest.raises(ConfigError, match=words):
        Worker(processor=Orders, config=chosen, dead_letters=given)


def test_a_function_goes_with_options_and_with_a_whole_config():
    worker = Worker("orders-app", stream="orders", processor=Orders, max_attempts=3, dead_letters=print)
    assert worker.config.dead_letters == "callable"
    config = Config(application="orders-app", stream="orders")
    assert Worker(processor=Orders, config=config, dead_letters=print).config.has_policies
    assert not config.has_policies
    assert Worker(processor=Orders, config=worker.config, dead_letters=print).config == worker.config
