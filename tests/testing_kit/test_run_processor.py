"""run_processor: every end, faults, options, arguments; and that a run is quick, repeatable and leaves nothing."""

import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kit_processors import ByHand, ChecksTooEarlyAndRaises, Fails, Orders, Raises

from pykcl import ConfigError, ProcessorFailed, RecordProcessor
from pykcl.events import LeaseDoubted
from pykcl.testing import (
    RunFailed,
    assert_at_least_once,
    assert_in_order,
    assert_no_loss,
    records,
    run_processor,
)
from pykcl.testing.processor_run import FAULTS

ROOT = Path(__file__).parents[2]
LETTERS = [chr(ord("a") + number) for number in range(10)]
TEN = records(*LETTERS, partition_key="k")

pytestmark = pytest.mark.usefixtures("empty", "leaves_nothing")


@pytest.fixture
def empty():
    Orders.done.clear()


def methods(result):
    return [call.method for call in result.calls]


# -- ends ------------------------------------------------------------------------------------------------------


def test_a_shard_is_read_to_its_end():
    result = run_processor(Orders, records({"id": 1}, "two", b"three"))
    assert methods(result) == ["initialize", "process_records", "shard_ended"]
    assert [record.data for record in result.delivered] == [b'{"id": 1}', b"two", b"three"]
    assert result.records == result.delivered == result.checkpointed
    assert result.checkpoints == [str(result.records[-1].position), "SHARD_END"]
    assert (result.lost, result.duplicates, result.error, result.skipped) == (0, 0, None, [])
    assert 0 < result.seconds < 10
    assert repr(result) == (
        f"<Result of 3 records: 3 delivered in 1 batches, 3 checkpointed, 0 lost, 0 duplicates, 0 skipped, "
        f"{result.seconds:.1f} s, seed=0>"
    )


def test_a_worker_is_stopped_when_all_is_processed():
    result = run_processor(Orders, TEN, end="stop", max_records=5)
    assert methods(result) == ["initialize", "process_records", "process_records", "shutdown_requested"]
    assert "SHARD_END" not in result.checkpoints
    assert result.checkpointed == result.records


def test_an_idle_worker_has_written_what_it_owes():
    result = run_processor(Orders, TEN, end="idle", checkpoint_mode="interval", checkpoint_interval=20.0)
    assert methods(result) == ["initialize", "process_records"]
    assert result.checkpointed == result.records
    assert result.seconds > 20


def test_workers_that_are_stopped_one_after_the_other_share_the_records():
    result = run_processor(Orders, TEN, end="stop", times=3, max_records=1)
    assert methods(result).count("shutdown_requested") == 3
    assert {call.worker for call in result.calls} == {"worker-1", "worker-2", "worker-3"}
    assert_at_least_once(result, Orders.done, by=lambda record: record.text())
    assert result.duplicates == 0


@pytest.mark.parametrize("times", [1, 2])
def test_a_lease_is_lost_in_the_middle_and_its_records_come_again(times):
    result = run_processor(Orders, TEN, end="lease_lost", max_records=2, times=times)
    assert methods(result).count("lease_lost") == times
    assert methods(result).count("initialize") == times + 1
    assert result.duplicates == 2 * times
    assert_at_least_once(result)
    assert_in_order(result)


@pytest.mark.parametrize("times", [1, 3])
def test_a_crash_in_the_middle_brings_the_batch_again_to_another_worker(times):
    result = run_processor(Orders, TEN, end="crash", max_records=2, times=times)
    assert "lease_lost" not in methods(result)
    assert len({call.worker for call in result.calls}) == times + 1
    assert result.duplicates == 2 * times
    assert_at_least_once(result, Orders.done, by=lambda record: record.text())


def test_a_process_that_checkpoints_by_itself_dies_right_after_a_checkpoint():
    result = run_processor(ByHand, TEN, end="crash", checkpoint_mode="manual")
    assert Orders.done == LETTERS, "the first record of the batch was checkpointed, and comes no second time"
    assert result.calls[1].returned is False
    assert_no_loss(result)


def test_shards_each_have_a_processor_and_their_children_none():
    result = run_processor(Orders, records(*range(40)), shards=4)
    assert methods(result).count("initialize") == methods(result).count("shard_ended") == 4
    assert result.checkpoints.count("SHARD_END") == 4
    assert_at_least_once(result)


@pytest.mark.parametrize("end", ["shard_end", "stop", "idle", "lease_lost", "crash"])
def test_no_records_are_no_failure(end):
    assert run_processor(Orders, [], end=end).records == []


# -- records and options ---------------------------------------------------------------------------------------


def test_aggregated_records_are_grouped_by_shard_and_delivered_one_by_one():
    result = run_processor(Orders, [*records(*LETTERS, aggregated=True), "last"], shards=2)
    assert sorted(Orders.done) == sorted([*LETTERS, "last"])
    assert sum(record.aggregated for record in result.delivered) == 10
    assert sorted(result.records, key=id) == sorted(result.delivered, key=id)


def test_records_arrive_when_they_are_told_to():
    first = datetime(2024, 2, 29, 12, tzinfo=UTC)
    later = first + timedelta(days=3)
    given = [*records("a", arrived=first), *records("b", "c", arrived=later), *records("d")]
    result = run_processor(Orders, given)
    assert [record.arrived_at for record in result.delivered] == [first, later, later, later]
    with pytest.raises(ConfigError, match="go back"):
        run_processor(Orders, [*records("a", arrived=later), *records("b", arrived=first)])
    with pytest.raises(ConfigError, match="aware datetime"):
        records("a", arrived=datetime(2024, 1, 1))  # noqa: DTZ001


def test_partition_keys_are_one_for_all_or_one_by_the_value():
    by_customer = records({"c": "x"}, {"c": "y"}, partition_key=lambda order: order["c"])
    assert [each.parts[0][1] for each in by_customer] == ["x", "y"]
    assert [each.parts[0][1] for each in records("a", "b")] == ["key-0", "key-1"]
    assert {each.parts[0][1] for each in TEN} == {"k"}


def test_options_go_to_the_worker():
    result = run_processor(Raises, records(1, "no json", 3), on_error="skip", max_records=1)
    assert [record.data for record in result.skipped] == [b"no json"]
    assert (result.lost, result.checkpoints[-1]) == (0, "SHARD_END")


def test_a_worker_that_stops_at_an_error_is_a_result():
    result = run_processor(Raises, records(1, "no json", 3), on_error="raise", max_records=1)
    assert isinstance(result.error, ProcessorFailed)
    assert [record.data for record in result.checkpointed] == [b"1"]
    assert "error=ProcessorFailed" in repr(result)


def test_a_batch_that_raises_once_comes_again():
    result = run_processor(Fails, TEN)
    assert [call.returned for call in result.calls if call.method == "process_records"] == [False, True]
    assert isinstance(result.calls[1].error, ConnectionError)
    assert result.duplicates == 0


def test_a_factory_makes_processors_as_a_class_does():
    made = []
    assert run_processor(lambda: made.append(1) or Orders(), TEN, shards=2).lost == 0
    assert len(made) == 2


def test_without_a_shard_ended_of_its_own_a_manual_processor_ends_with_its_last_checkpoint():
    class Minimal(RecordProcessor):
        def process_records(self, batch):
            batch.checkpointer.checkpoint()

    assert run_processor(Minimal, TEN, checkpoint_mode="manual").checkpoints[-1] == "SHARD_END"


def test_what_the_user_does_in_other_methods_is_done():
    seen = []

    class Whole(Orders):
        def initialize(self, init):
            seen.append((init.shard_id, init.position.sequence_number))

        def lease_lost(self, loss):
            seen.append("lost")

        def shutdown_requested(self, request):
            seen.append("stop")
            request.checkpointer.checkpoint()

    run_processor(Whole, TEN, end="stop", checkpoint_mode="manual")
    assert seen == [("shardId-000000000000", "TRIM_HORIZON"), "stop"]


# -- faults ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("end", ["shard_end", "crash"])
def test_a_good_processor_loses_nothing_to_any_fault(fault, end):
    result = run_processor(
        ByHand, TEN, end=end, faults=[fault], checkpoint_mode="manual", max_records=3, seed=5
    )
    assert_at_least_once(result, Orders.done, by=lambda record: record.text())
    assert_no_loss(result)


def test_a_lease_table_that_is_down_brings_the_lease_in_doubt_and_costs_nothing():
    result = run_processor(Orders, TEN, faults=["lease_table_down"])
    assert [event for event in result.events if isinstance(event, LeaseDoubted)]
    assert methods(result) == ["initialize", "process_records", "shard_ended"]
    assert result.duplicates == 0


def test_throttled_reads_take_longer():
    quick, slow = (
        run_processor(Orders, TEN, max_records=1, faults=faults) for faults in ((), ["throttled_reads"])
    )
    assert slow.seconds > quick.seconds


# -- failures --------------------------------------------------------------------------------------------------


def test_a_processor_that_always_raises_fails_with_its_own_error_as_the_cause():
    with pytest.raises(RunFailed) as caught:
        run_processor(Raises, records(1, 2, "no json"), seed=4)
    text = str(caught.value)
    assert "did not end within 600 simulated seconds. The same run again: seed=4." in text
    assert re.search(
        r"process_records raised \d+ times, last NotJson at kit_processors.py:\d+: .* at character 1", text
    )
    assert "record 1 of 3 (b'1', key 'key-0', shardId-000000000000) and 2 more: in the batch" in text
    assert "Do: correct the processor" in text
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.__cause__.__traceback__.tb_frame.f_code.co_filename.endswith("kit_processors.py")
    assert caught.value.result.checkpointed == []


def test_a_checkpoint_of_what_then_raises_is_a_loss():
    result = run_processor(ChecksTooEarlyAndRaises, TEN, end="idle", checkpoint_mode="manual")
    assert result.lost == 10


def test_a_manual_processor_that_does_not_confirm_the_end_is_told_how():
    class Forgets(ByHand):
        def shard_ended(self, end):
            return None

    with pytest.raises(RunFailed, match=r"Do: call end.checkpointer.checkpoint\(\) in it"):
        run_processor(Forgets, TEN, checkpoint_mode="manual", timeout=60)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"end": "shardend"}, "Do: write 'shard_end'"),
        ({"end": None}, "is none of"),
        ({"shards": 0}, "shards=0 is not a whole number from 1 to 100"),
        ({"shards": True}, "shards=True is not a whole number"),
        ({"times": 2}, "times=2 has no meaning with end='shard_end'"),
        ({"times": 0, "end": "stop"}, "times=0 is not"),
        ({"seed": "x"}, "seed='x' is not a whole number"),
        ({"timeout": 0}, "timeout=0 is not a positive number"),
        ({"faults": "lease_table_down"}, r"Do: write faults=\('lease_table_down',\)"),
        ({"faults": ["leasetable_down"]}, "Do: write 'lease_table_down'"),
        ({"records": b"one"}, "not a list"),
        ({"records": 3}, "not a list"),
        ({"records": [object()]}, "Value 1 cannot be a record"),
        ({"records": records("a") and [b"x" * 2_000_000]}, "Record 1 cannot be put"),
        ({"stream": "other"}, "stream= is decided by run_processor"),
        ({"initial_position": "LATEST"}, "initial_position= is decided by run_processor"),
        ({"max_record": 5}, "Did you mean 'max_records'"),
        ({"max_records": 0}, "max_records is out of range"),
        ({"what": Orders()}, "one instance per shard"),
        ({"what": "orders:Orders"}, "is text"),
        ({"what": lambda: 5}, "returned int, not a processor"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, text):
    with pytest.raises(ConfigError, match=text):
        run_processor(**{"what": Orders, "records": TEN, **arguments})


@pytest.mark.parametrize("key", ["", "x" * 257, 5])
def test_a_key_that_kinesis_would_refuse_is_refused(key):
    with pytest.raises(ConfigError, match="is not text of 1 to 256 characters"):
        records("a", partition_key=lambda value: key)


# -- the same again, and quickly -------------------------------------------------------------------------------

COURSE = """
import sys
sys.path.insert(0, {here!r})
from kit_processors import ByHand
from pykcl.testing import records, run_processor
result = run_processor(
    ByHand, records(*range(30)), shards=3, seed=11, end="crash", faults=["lost_answers", "throttled_reads"],
    checkpoint_mode="manual", max_records=2,
)
print([(c.worker, c.shard, c.method, len(c.records), c.returned) for c in result.calls], result.checkpoints, result.seconds)
"""


def test_a_seed_takes_the_same_course_in_every_process():
    program = COURSE.format(here=str(Path(__file__).parent))
    courses = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-W", "error::ResourceWarning", "-c", program]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        courses.add(done.stdout)
    assert len(courses) == 1


def test_seeds_take_different_courses():
    given = records(*range(30))
    courses = {
        tuple((call.shard, call.method) for call in run_processor(Orders, given, shards=3, seed=seed).calls)
        for seed in range(8)
    }
    assert len(courses) > 1


def test_a_run_is_short(record_property):
    """Reported, and bounded only by what must be a hang: 10 ms is usual."""
    given = records(*range(100))
    run_processor(Orders, given)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        run_processor(Orders, given)
        took.append((time.perf_counter() - began) * 1000)
    record_property("milliseconds", min(took))
    assert min(took) < 60_000
