"""Tumbling windows of functions and Lambda handlers: assignment, state, final calls, crashes, and what is refused."""

import json
import random
from base64 import b64decode
from collections import defaultdict
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lambda_kit import SHARD, record

from pykcl import (
    App,
    Batch,
    Context,
    FailedAt,
    RecordProcessor,
    Reject,
    Window,
    Worker,
    handler,
    lambda_processor,
)
from pykcl.errors import CheckpointRefused, ConfigError, NotAProcessor
from pykcl.events import Checkpointed, ProcessorRaised, RetriesExhausted
from pykcl.handlers.functions import processor_of
from pykcl.handlers.windows import GRACE_MILLIS, MOST_STATE, Run, is_over, runs_of, start_of
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.record import Record
from pykcl.processor import InitializationInput
from pykcl.testing import RunFailed, records, run_processor
from pykcl.testing.runtime import EPOCH_MILLIS
from pykcl.worker.window_delivery import WindowDelivery

DOCUMENTED = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "lambda_kinesis_window_event.json").read_text("utf-8")
)
T = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def at(second, *values):
    """Records of one key that arrive so many seconds after T."""
    return records(*values, arrived=T + timedelta(seconds=second), partition_key="k")


SOME = [*at(1, 1, 2), *at(30, 3), *at(70, 4), *at(80, 5), *at(300, 6)]
SUMS = {0: [1, 2, 3], 60: [4, 5], 300: [6]}
"""By the start of the window, in seconds after T, of windows of a minute."""


class Sums:
    """A function with windows. finals: what its final calls were given, by the start of the window.

    calls: (values, state, is_final) of every call. fails: called first, with the values and the window.
    """

    def __init__(self, fails=lambda values, window: None):
        self.finals = defaultdict(list)
        self.calls = []
        self.fails = fails

    def __call__(self, values: list[Any], window: Window) -> Any:
        self.calls.append((values, deepcopy(window.state), window.is_final))
        self.fails(values, window)
        if window.is_final:
            self.finals[seconds(window.start)].append(window.state)
            return None
        state = window.state or []
        # In place, as many would write it.
        state.extend(values)
        return state

    @property
    def last(self):
        return {start: states[-1] for start, states in self.finals.items()}


def seconds(moment):
    return int((moment - T).total_seconds())


def run(function, given=SOME, *, window=60, **options):
    return run_processor(handler(function, window=window), given, **options)


# -- assignment ------------------------------------------------------------------------------------------------


def naive(arrivals, length, opened):
    """The window of each record: its own, or the one before it if that is later."""
    windows, start = [], opened
    for arrived in arrivals:
        own = arrived - arrived % length
        start = own if start is None or own > start else start
        windows.append(start)
    return windows


@given(
    arrivals=st.lists(st.integers(0, 5_000)),
    length=st.sampled_from([1000, 7, 60]),
    opened=st.none() | st.integers(0, 100).map(lambda n: n * 7),
)
def test_each_record_is_in_one_run_of_its_window(arrivals, length, opened):
    if opened is not None:
        opened -= opened % length
    runs = list(runs_of(arrivals, length, opened))
    assert [run.start for run in runs for _ in range(run.first, run.stop)] == naive(arrivals, length, opened)
    # In order, without a gap, none empty, and no two of one window.
    assert [n for run in runs for n in range(run.first, run.stop)] == list(range(len(arrivals)))
    assert all(run.first < run.stop for run in runs)
    assert len({run.start for run in runs}) == len(runs)


@given(arrivals=st.lists(st.integers(0, 5_000)), cut=st.integers(0, 40), length=st.sampled_from([1000, 60]))
def test_it_does_not_matter_where_batches_end(arrivals, cut, length):
    whole = naive(arrivals, length, None)
    opened = whole[cut - 1] if 0 < cut <= len(whole) else None
    rest = runs_of(arrivals[cut:], length, opened) if cut <= len(whole) else ()
    assert [run.start for run in rest for _ in range(run.first, run.stop)] == whole[cut:]


def test_windows_are_aligned_to_the_epoch_and_begin_with_their_start():
    assert [start_of(millis, 60_000) for millis in (0, 59_999.9, 60_000, 179_000)] == [0, 0, 60_000, 120_000]
    assert list(runs_of([59_999, 60_000, 60_001], 60_000, None)) == [Run(0, 0, 1), Run(60_000, 1, 3)]
    assert not is_over(60_000, 60_000, 120_000 + GRACE_MILLIS - 1)
    assert is_over(60_000, 60_000, 120_000 + GRACE_MILLIS)


# -- calls -----------------------------------------------------------------------------------------------------


def test_calls_hand_on_their_state_and_the_final_one_has_no_records():
    function = Sums()
    result = run(function, max_records=2)
    assert function.finals == {start: [values] for start, values in SUMS.items()}
    assert function.calls[:4] == [
        ([1, 2], None, False),
        ([3], [1, 2], False),
        ([], [1, 2, 3], True),
        ([4], None, False),
    ]
    assert result.lost == 0


def test_a_late_record_goes_into_the_open_window():
    """Its arrival is before the start; a stream stamps records in several places, so this happens at a boundary."""
    windows = handler(Sums(), window=60)().windows
    early = Record(b"1", "k", "1", 59_999.0)
    later = Record(b"2", "k", "2", 60_000.0)
    late = Record(b"3", "k", "3", 59_000.0)
    assert [[r.data for r in run] for run in windows.runs([early, later, late])] == [[b"1"], [b"2", b"3"]]
    windows.open_for(later)
    assert not windows.ends_before(late)
    assert [len(run) for run in windows.runs([late])] == [1]


@pytest.mark.parametrize(("state", "is_early", "opened"), [
    # As after two minutes, say.
    ([1], False, 120),
    ("x" * MOST_STATE, True, 60),
])  # fmt: skip
def test_a_window_that_was_closed_does_not_come_back_for_a_late_record(state, is_early, opened):
    """Its final call would overwrite what the one of the whole window has written by its start."""
    windows = handler(Sums(), window=60)().windows
    windows.open_for(Record(b"1", "k", "1", 60_000.0))
    windows.keep(state)
    assert windows.is_full is is_early
    windows.closed()
    late, next_one = Record(b"2", "k", "2", 59_000.0), Record(b"3", "k", "3", 181_000.0)
    assert [len(run) for run in windows.runs([late, next_one])] == [1, 1]
    windows.open_for(late)
    assert windows.window(SHARD).start.timestamp() == opened
    assert windows.ends_before(next_one)


def test_the_next_owner_knows_no_closed_window_and_a_late_record_that_comes_first_has_one_for_itself():
    """As the guide says: which windows are closed stands in no row. Only what arrived two minutes late can do so."""
    windows = handler(Sums(), window=60)().windows
    late, next_one = Record(b"2", "k", "2", 59_000.0), Record(b"3", "k", "3", 181_000.0)
    windows.open_for(late)
    assert windows.window(SHARD).start.timestamp() == 0
    assert windows.ends_before(next_one)


def test_a7_empty_windows_make_no_call():
    function = Sums()
    run(function, [*at(0, 1), *at(600, 2)], end="idle")
    assert function.finals == {0: [[1]], 600: [[2]]}
    assert len(function.calls) == 4


def test_a_window_of_filtered_records_makes_no_call_and_its_checkpoint_moves():
    function = Sums()
    what = handler(function, window=60, filter=lambda record: record.json() > 4)
    result = run_processor(what, SOME, end="idle")
    assert function.finals == {60: [[5]], 300: [[6]]}
    assert len(function.calls) == 4
    assert len(result.checkpoints) == 3
    assert result.unsettled == []


def test_a_window_closes_when_nothing_came_for_two_minutes_after_its_end():
    function = Sums()
    result = run(function, at(10, 1), end="idle")
    assert function.finals == {0: [[1]]}
    # From second 10 on, when the clock of Kinesis shows the arrival of the last record.
    assert 170 <= result.seconds <= 180


def test_batches_that_are_gathered_belong_to_their_windows_too():
    function = Sums()
    result = run(function, batch_window=30.0, batch_size=100)
    assert function.last == SUMS
    assert result.lost == 0


def test_a_function_may_take_a_batch_and_a_context_and_name_its_parameters_as_it_likes():
    found = []

    def count(batch: Batch, context: Context, span: Window) -> int:
        found.append((len(batch), context.shard_id == span.shard_id, span.is_final, seconds(span.end)))
        return (span.state or 0) + len(batch)

    run(count, at(1, 1, 2))
    assert found == [(2, True, False, 60), (0, True, True, 60)]


# -- state -----------------------------------------------------------------------------------------------------


def test_a_call_that_fails_has_not_changed_the_state():
    failures = [ValueError, ValueError]

    def fail(values, window):
        if failures and not window.is_final and window.state:
            window.state.append("half")
            raise failures.pop()

    function = Sums(fail)
    run(function, max_records=2)
    assert function.last == SUMS


def test_a_state_above_1_mb_ends_the_window_early_and_the_rest_begins_anew():
    finals = []

    def keep(values: list[Any], window: Window) -> Any:
        if window.is_final:
            finals.append((len(window.state), window.is_terminated_early, seconds(window.start)))
        return (window.state or "") + "x" * (MOST_STATE // 2)

    result = run(keep, at(1, *range(5)), max_records=1)
    half = MOST_STATE // 2
    assert finals == [(2 * half, True, 0), (2 * half, True, 0), (half, False, 0)]
    assert len(result.checkpoints) == 4


def test_no_state_is_a_failure():
    calls = []

    def forgets(values: list[Any], window: Window) -> Any:
        calls.append(values)
        return None if len(calls) < 3 else values

    result = run(forgets, at(1, 1))
    assert [(event.error, event.records) for event in raised(result)] == [("NoState", 1)] * 2
    assert calls == [[1], [1], [1], []]


def test_a_state_that_cannot_be_copied_is_a_failure():
    def closure(values: list[Any], window: Window) -> Any:
        return lambda: values

    with pytest.raises(RunFailed):
        run(closure, at(1, 1), timeout=30.0)


class Sealed(Exception):
    """Pickle dumps it, and cannot load it: its initializer has a parameter that its `args` have not."""

    def __init__(self, text, number):
        super().__init__(text)


def test_a_state_that_cannot_be_loaded_fails_the_call_that_returned_it():
    """Not the next one: its records would become dead letters, and no final call could be made."""
    calls = []

    def function(values: list[Any], window: Window) -> Any:
        calls.append((values, window.is_final))
        return Sealed("a", 1) if values == [2] else [*(window.state or []), *values]

    result = run(function, at(1, 1, 2, 3), max_records=1, max_attempts=1, dead_letters=[].extend)
    assert [(event.error, event.records) for event in raised(result)] == [("StateNotKept", 1)]
    assert [[each.json() for each in letter.records] for letter in result.dead_letters] == [[2]]
    assert calls == [([1], False), ([2], False), ([3], False), ([], True)]


def raised(result):
    return [event for event in result.events if isinstance(event, ProcessorRaised)]


# -- failures and checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["crash", "lease_lost"])
@pytest.mark.parametrize("seed", range(6))
def test_a7_a_crash_in_mid_window_gives_the_same_final_state(end, seed):
    function = Sums()
    result = run(function, max_records=1 + seed % 3, end=end, times=1 + seed % 2, seed=seed, timeout=3000.0)
    assert function.last == SUMS
    # A window may be closed twice, where its checkpoint was not written; then with the same state.
    assert all(state == SUMS[start] for start, states in function.finals.items() for state in states)
    assert result.lost == 0
    assert result.unsettled == []


@pytest.mark.parametrize(
    "fault", ["checkpoint_throttled", "lost_answers", "lease_table_down", "throttled_reads"]
)
def test_faults_change_no_final_state(fault):
    function = Sums()
    result = run(function, max_records=1, faults=[fault], end="idle", timeout=3000.0)
    assert function.last == SUMS
    assert all(state == SUMS[start] for start, states in function.finals.items() for state in states)
    assert result.unsettled == []


def test_a_stop_in_mid_window_makes_no_final_call_and_the_next_owner_reads_the_window_again():
    function = Sums()
    result = run(function, at(1, 1, 2, 3, 4), end="stop", times=2, max_records=1)
    assert function.finals == {}
    assert result.checkpoints == []
    assert [values for values, _, _ in function.calls[-4:]] == [[1], [2], [3], [4]]
    assert function.calls[-1][1] == [1, 2, 3]


def test_a7_a_final_call_that_fails_blocks_the_shard_and_nothing_is_given_up():
    attempts = []

    def fail(values, window):
        if window.is_final and seconds(window.start) == 0:
            attempts.append(window.state)
            if len(attempts) < 8:
                raise ConnectionError("the database is away")

    function = Sums(fail)
    result = run(function, max_attempts=2, bisect=True, dead_letters=[].extend)
    assert attempts == [[1, 2, 3]] * 8
    assert function.finals == {start: [values] for start, values in SUMS.items()}
    assert result.dead_letters == []
    assert [event.records for event in raised(result)] == [0] * 7
    first = function.calls.index(([], [1, 2, 3], True))
    assert function.calls[first : first + 8] == [([], [1, 2, 3], True)] * 8


def test_the_context_has_the_number_of_an_attempt_also_of_a_final_call():
    attempts, failures = [], [0, 2, 1, 3]

    def function(batch: Batch, window: Window, context: Context) -> Any:
        attempts.append((len(batch), context.attempt))
        if context.attempt <= failures[0]:
            raise ConnectionError
        del failures[0]
        return 1

    run(function, [*at(1, 1), *at(70, 2)])
    of_final_calls = [attempt for records, attempt in attempts if not records]
    assert of_final_calls == [1, 2, 3, 1, 2, 3, 4]
    assert [attempt for records, attempt in attempts if records] == [1, 1, 2]


@pytest.mark.parametrize("on_error", ["retry", "skip"])
def test_a_final_call_that_always_fails_hands_the_lease_back_with_the_checkpoint_before_the_window(on_error):
    def fail(values, window):
        if window.is_final and seconds(window.start) == 60:
            raise ConnectionError

    function = Sums(fail)
    with pytest.raises(RunFailed) as failed:
        run(function, on_error=on_error, retry_timeout=20.0, timeout=120.0)
    result = failed.value.result
    assert [event for event in result.events if isinstance(event, RetriesExhausted)]
    assert [json.loads(record.data) for record in result.checkpointed] == [1, 2, 3]
    assert result.lost == 0
    assert 300 not in function.finals


def test_a_call_with_records_that_always_fails_becomes_a_letter_and_the_window_goes_on_without_them():
    def fail(values, window):
        if 2 in values or 5 in values:
            raise ValueError

    function = Sums(fail)
    result = run(function, max_attempts=2, bisect=True, dead_letters=[].extend)
    assert [[each.json() for each in letter.records] for letter in result.dead_letters] == [[2], [5]]
    assert function.finals == {0: [[1, 3]], 60: [[4]], 300: [[6]]}
    assert result.lost == 0


def test_a_call_that_is_skipped_leaves_the_others_of_its_window():
    def fail(values, window):
        if 2 in values or 4 in values:
            raise ValueError

    function = Sums(fail)
    result = run(function, max_records=1, on_error="skip")
    assert function.finals == {0: [[1, 3]], 60: [[5]], 300: [[6]]}
    assert [each.json() for each in result.skipped] == [2, 4]
    assert result.lost == 0


def test_a_window_all_of_whose_records_are_given_up_is_closed_without_a_call():
    def fail(values, window):
        if 6 in values or 4 in values or 5 in values:
            raise ValueError

    function = Sums(fail)
    result = run(function, max_attempts=1, dead_letters=[].extend)
    assert function.finals == {0: [[1, 2, 3]]}
    assert result.unsettled == []
    assert len(result.checkpoints) == 4


def test_a_rejected_record_and_one_that_does_not_decode_cost_the_others_no_second_place_in_the_state():
    def count(values: list[dict], window: Window) -> Any:
        if window.is_final:
            finals.append(window.state)
        return (window.state or []) + [value["id"] for value in values]

    finals = []
    given = [*at(1, {"id": 1}), *at(2, b"no JSON"), *at(3, {"id": 3})]
    result = run(count, given, max_attempts=3, dead_letters=[].extend)
    assert finals == [[1, 3]]
    assert [letter.condition.value for letter in result.dead_letters] == ["DecodeFailed"]

    def reject(batch: Batch, window: Window) -> Any:
        if window.is_final:
            finals.append(window.state)
        bad = next((each for each in batch if each.data == b"2"), None)
        if bad is not None:
            raise Reject(bad, "no")
        return (window.state or []) + [each.json() for each in batch]

    run(reject, at(1, 1, 2, 3), max_attempts=3, dead_letters=[].extend)
    assert finals[1:] == [[1, 3]]


def test_failed_at_in_a_window_fails_the_whole_call_as_the_state_before_the_record_is_not_known():
    def fail(batch: Batch, window: Window) -> Any:
        calls.append([each.json() for each in batch])
        if len(calls) == 1:
            raise FailedAt(batch[1])
        return (window.state or []) + calls[-1]

    calls = []
    result = run(fail, at(1, 1, 2, 3))
    assert calls == [[1, 2, 3], [1, 2, 3], []]
    assert [event.error for event in raised(result)] == ["FailedAt"]


def test_a_checkpoint_of_the_function_itself_is_refused():
    errors = []

    def checkpoints(batch: Batch, window: Window) -> Any:
        if not window.is_final:
            try:
                batch.checkpointer.checkpoint()
            except CheckpointRefused as error:
                errors.append(str(error))
        return 1

    result = run(checkpoints, at(1, 1))
    assert "window is not closed" in errors[0]
    assert len(result.checkpoints) == 2


def test_checkpoints_move_at_the_end_of_windows_only():
    function = Sums()
    result = run(function, max_records=1, end="idle")
    positions = [str(each.position) for each in result.records]
    assert result.checkpoints == [positions[2], positions[4], positions[5]]


def test_with_checkpoint_mode_interval_several_windows_may_come_again():
    function = Sums()
    result = run(function, checkpoint_mode="interval", checkpoint_interval=5.0, end="idle", timeout=2000.0)
    assert function.last == SUMS
    assert len(result.checkpoints) < 3
    assert result.unsettled == []


def test_each_shard_has_windows_of_its_own():
    found = defaultdict(list)

    def count(values: list[Any], window: Window) -> Any:
        if window.is_final:
            found[window.shard_id].append(window.state)
        return (window.state or 0) + len(values)

    given = [
        each
        for second in (1, 70)
        for n in range(20)
        for each in records(n, arrived=T + timedelta(seconds=second), partition_key=str(n))
    ]
    run(count, given, shards=3)
    assert len(found) == 3
    assert all(len(states) == 2 for states in found.values())
    assert sum(state for states in found.values() for state in states) == 40


# -- a fleet ---------------------------------------------------------------------------------------------------


def test_a7_reshard_in_mid_window(new_fleet):
    """The window ends with the shard, and the children begin afresh, though they are in the same span of time."""
    fleet, finals = new_fleet(shards=1), []

    def collect(batch: Batch, window: Window) -> Any:
        if window.is_final:
            finals.append((window.shard_id, window.start, window.state))
        return (window.state or []) + [each.data for each in batch]

    fleet.start("w1", processor=handler(collect, window=900))
    parent = fleet.open_shards()[0]
    before = fleet.put(6)
    fleet.simulation.sleep(5)
    assert finals == []
    fleet.kinesis.split("orders", parent)
    fleet.wait(lambda: len(finals) == 1)
    after = fleet.put(20)
    fleet.wait(lambda: fleet.rows()[parent].is_ended)
    fleet.wait(lambda: len(finals) == 3, 1200.0)
    shards = [shard for shard, _, _ in finals]
    assert finals[0][0] == parent
    assert finals[0][2] == before
    assert sorted(finals[1][2] + finals[2][2]) == sorted(after)
    assert len(set(shards)) == 3
    assert len({start for _, start, _ in finals}) == 1


def test_a7_merge_in_mid_window(new_fleet):
    """Both windows end with their shards, and that of the child begins afresh."""
    fleet, finals = new_fleet(shards=2), []

    def collect(batch: Batch, window: Window) -> Any:
        if window.is_final:
            finals.append((window.shard_id, window.start, window.state))
        return (window.state or []) + [each.data for each in batch]

    fleet.start("w1", processor=handler(collect, window=900))
    parents = fleet.open_shards()
    before = fleet.put(20)
    fleet.simulation.sleep(5)
    fleet.kinesis.merge("orders", *parents)
    fleet.wait(lambda: len(finals) == 2)
    after = fleet.put(6)
    fleet.wait(lambda: len(finals) == 3, 1200.0)
    assert sorted(shard for shard, _, _ in finals[:2]) == sorted(parents)
    assert sorted(finals[0][2] + finals[1][2]) == sorted(before)
    assert finals[2][2] == after
    assert len({start for _, start, _ in finals}) == 1


def test_records_that_come_again_after_a_crash_are_too_old_for_a_short_max_record_age():
    """As the guide says: they become dead letters, and none is lost."""
    function = Sums()
    result = run(
        function, at(1, 1, 2, 3, 4), max_records=1, end="crash", max_record_age=5.0, dead_letters=[].extend
    )
    assert [letter.condition.value for letter in result.dead_letters] == ["RecordAgeExpired"] * 4
    assert result.lost == 0
    assert function.finals == {}


def test_a_shard_at_rest_is_read_by_the_shared_thread_and_its_window_closes_all_the_same(new_fleet):
    fleet, finals = new_fleet(shards=4), []

    def count(batch: Batch, window: Window) -> Any:
        if window.is_final:
            finals.append((fleet.simulation.now, window))
        return (window.state or 0) + len(batch)

    fleet.start("w1", processor=handler(count, window=60), idle_time_between_reads=1.0)
    fleet.put(40)
    fleet.wait(lambda: len(finals) == 4, 400.0)
    assert sum(window.state for _, window in finals) == 40
    now, window = finals[0]
    ended = window.end.timestamp() - EPOCH_MILLIS / 1000
    assert ended + 120 <= now <= ended + 125
    fleet.wait(lambda: all(lease.checkpoint.sequence_number.isdigit() for lease in fleet.rows().values()))


@pytest.mark.parametrize("seed", range(4))
def test_arrival_times_that_go_back_change_no_final_state_whoever_reads_them(new_fleet, monkeypatch, seed):
    """Kinesis does not promise that they never do. Late records are in the same windows after a crash."""
    rng, late, finals = random.Random(seed), {}, []

    def stamped(data, key, number, arrived, *others):
        return Record(data, key, number, arrived - late.setdefault(data, rng.choice([0, 0, 1500])), *others)

    monkeypatch.setattr("pykcl.testing.memory.stream.Record", stamped)
    fleet, arrivals = new_fleet(shards=1), []

    def collect(batch: Batch, window: Window) -> Any:
        if window.is_final:
            finals.append((window.start.timestamp() * 1000, window.state))
        return (window.state or []) + [each.data for each in batch]

    fleet.simulation.sleep(5)
    for number in range(60):
        if number % 20 == 0:
            fleet.simulation.kill(f"w{number - 20}")
            fleet.start(f"w{number}", processor=handler(collect, window=10), idle_time_between_reads=0.3)
        fleet.simulation.sleep(rng.choice([0.05, 0.3, 2, 6]))
        arrivals.append((*fleet.put(1), EPOCH_MILLIS + int(fleet.simulation.now * 1000)))
    fleet.simulation.sleep(200)
    expected = defaultdict(list)
    starts = naive([at - late[payload] for payload, at in arrivals], 10_000, None)
    for (payload, _), start in zip(arrivals, starts, strict=True):
        expected[start].append(payload)
    assert dict(finals) == expected
    assert all(state == expected[start] for start, state in finals)


@pytest.mark.parametrize("state", [1, "x" * (MOST_STATE + 1)])
@pytest.mark.parametrize("has_ended", [False, True])
def test_a_stop_during_a_call_makes_no_final_call_though_the_window_is_over(new_fleet, state, has_ended):
    """Whether a record of a later window is at hand, the state is too large, or the shard ends behind its records."""
    fleet, calls = new_fleet(shards=1), []

    def stops(batch: Batch, window: Window) -> Any:
        calls.append((len(batch), window.is_final))
        worker.stop()
        fleet.simulation.sleep(1)
        return state

    fleet.put(1)
    if has_ended:
        fleet.kinesis.split("orders", fleet.open_shards()[0])
    else:
        fleet.simulation.sleep(70)
        fleet.put(1)
    worker = fleet.start("w1", processor=handler(stops, window=60))
    fleet.simulation.sleep(60)
    assert calls == [(1, False)]
    assert not fleet.happened(Checkpointed)


@pytest.mark.parametrize(("answered_at", "millis_behind", "is_due"), [
    (1000.0, 0, True),
    # 1) The page came in second 990, and was empty; 2) it waited here; 3) a record came in second 995.
    (990.0, 0, False),
    # It is not at the tip of the shard: records of the window may follow, whatever the estimate.
    (1000.0, 1, False),
    (1000.0, None, False),
])  # fmt: skip
def test_a_page_says_nothing_about_the_time_after_it(answered_at, millis_behind, is_due):
    """The window ends in second 120 of Kinesis' clock; two minutes later it is second 1000 of ours."""
    windows = handler(Sums(), window=60)().windows
    windows.open_for(Record(b"", "k", "1", 60_000.0))
    context = SimpleNamespace(
        runtime=SimpleNamespace(monotonic=lambda: 1000.0),
        stream=SimpleNamespace(server_time_millis=lambda: 240_000),
    )
    progress = SimpleNamespace(hold_back=lambda: None)
    scope = SimpleNamespace(context=context, initialized=(None, progress))
    delivery = WindowDelivery(scope, windows, deliver=None, write=None)
    assert delivery.is_due(millis_behind, answered_at) is is_due


def test_a_lease_that_is_handed_over_in_mid_window_gives_the_same_final_state(new_fleet):
    fleet, finals = new_fleet(shards=2), []

    def collect(batch: Batch, window: Window) -> Any:
        if window.is_final:
            finals.append(window.state)
        return (window.state or []) + [each.data for each in batch]

    first = fleet.start("w1", processor=handler(collect, window=300))
    payloads = fleet.put(10)
    fleet.simulation.sleep(10)
    fleet.start("w2", processor=handler(collect, window=300))
    fleet.simulation.sleep(5)
    first.stop()
    assert not fleet.happened(Checkpointed)
    payloads += fleet.put(10)
    fleet.wait(lambda: len(finals) == 2, 900.0)
    assert sorted(finals[0] + finals[1]) == sorted(payloads)


# -- Lambda ----------------------------------------------------------------------------------------------------


def started(function, window=120, **options):
    processor = lambda_processor(
        function,
        window=window,
        invoke_identity_arn="arn:aws:iam::123456789012:role/lambda-kinesis-role",
        **options,
    )()
    arn = "arn:aws:kinesis:us-east-1:123456789012:stream/lambda-stream"
    at_start = Checkpoint("TRIM_HORIZON")
    processor.initialize(
        InitializationInput(SHARD, "lambda-stream", at_start, None, 1, None, "orders-app", arn)
    )
    return processor


def test_a7_golden_event():
    events = []

    def function(event, context):
        events.append(json.dumps(event))
        return {"state": {"1": 282, "2": 715}}

    number = DOCUMENTED["Records"][0]["kinesis"]["sequenceNumber"]
    one = Record(b"Hello, this is a test.", "1", number, 1607497475000.0, SHARD, "lambda-stream")
    processor = started(function)
    processor.windows.open_for(one)
    for batch in ((one,), (one,), ()):
        processor.process_records(Batch(batch, None, 0, SHARD, "lambda-stream"))
    # Its text, so that the order of the keys counts, too.
    assert events[1] == json.dumps(DOCUMENTED)
    assert json.loads(events[0]) == {**DOCUMENTED, "state": {}}
    assert events[2] == json.dumps({**DOCUMENTED, "Records": [], "isFinalInvokeForWindow": True})


def documented_handler(event, context):
    """The example of Lambda's developer guide."""
    state = event["state"]
    for each in event["Records"]:
        key = each["kinesis"]["partitionKey"]
        state[key] = state.get(key, 0) + 1
    return {"state": state}


def test_the_documented_handler_counts_by_key():
    finals = []

    def function(event, context):
        if event["isFinalInvokeForWindow"]:
            finals.append((event["window"]["start"], event["state"]))
        return documented_handler(event, context)

    run_processor(lambda_processor(function, window=60), SOME, max_records=2)
    assert finals == [
        ("2026-01-02T03:04:00Z", {"k": 3}),
        ("2026-01-02T03:05:00Z", {"k": 2}),
        ("2026-01-02T03:09:00Z", {"k": 1}),
    ]


@pytest.mark.parametrize("response", [None, {}, {"batchItemFailures": []}, {"state": None}, "ok", ["state"]])
def test_a7_no_state_in_the_answer_is_a_failure(response):
    calls = []

    def function(event, context):
        calls.append(event["isFinalInvokeForWindow"])
        return response if len(calls) < 3 else documented_handler(event, context)

    result = run_processor(lambda_processor(function, window=60), at(1, 1, 2))
    assert [(event.error, event.records) for event in raised(result)] == [("NoState", 2)] * 2
    assert calls == [False, False, False, True]
    assert result.lost == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("end", ["crash", "lease_lost"])
def test_a7_a_crash_in_mid_window_gives_the_same_final_state_of_a_lambda_handler(end, seed):
    """Handlers take turns in a process, and one that has died keeps nobody waiting."""
    finals = defaultdict(list)

    def function(event, context):
        if event["isFinalInvokeForWindow"]:
            finals[event["window"]["start"]].append(event["state"])
        return documented_handler(event, context)

    result = run_processor(
        lambda_processor(function, window=60), SOME, max_records=1, end=end, seed=seed, shards=2
    )
    assert {start: states[-1] for start, states in finals.items()} == {
        "2026-01-02T03:04:00Z": {"k": 3},
        "2026-01-02T03:05:00Z": {"k": 2},
        "2026-01-02T03:09:00Z": {"k": 1},
    }
    assert all(state == states[0] for states in finals.values() for state in states)
    assert result.lost == 0


def test_the_answer_to_the_final_call_needs_no_state():
    def function(event, context):
        return None if event["isFinalInvokeForWindow"] else documented_handler(event, context)

    result = run_processor(lambda_processor(function, window=60), SOME)
    assert raised(result) == []
    assert result.checkpoints[-1] == "SHARD_END"


def test_a_partial_failure_has_the_state_of_the_records_before_it():
    calls, finals = [], []

    def function(event, context):
        numbers = [each["kinesis"]["sequenceNumber"] for each in event["Records"]]
        calls.append(len(numbers))
        if event["isFinalInvokeForWindow"]:
            finals.append(event["state"])
            return {}
        state = event["state"].get("numbers", [])
        if len(calls) == 1:
            return {"state": {"numbers": numbers[:1]}, "batchItemFailures": [{"itemIdentifier": numbers[1]}]}
        if len(calls) == 2:
            # Nothing of this call is done, so its state does not count.
            return {"state": {"numbers": ["?"]}, "batchItemFailures": [{"itemIdentifier": numbers[0]}]}
        return {"state": {"numbers": state + numbers}, "batchItemFailures": []}

    what = lambda_processor(function, window=60, report_batch_item_failures=True)
    result = run_processor(what, at(1, 1, 2, 3))
    assert calls == [3, 2, 2, 0]
    assert finals == [{"numbers": [each.sequence_number for each in result.records]}]


def test_a_partial_failure_at_the_first_record_does_not_count_as_the_end_of_a_window():
    """The run would end, and say that nothing is lost, before the final call."""
    finals = []

    def function(event, context):
        if event["isFinalInvokeForWindow"]:
            finals.append(event["state"])
            return {}
        (one,) = [each["kinesis"] for each in event["Records"]]
        if b64decode(one["data"]) == b"2":
            return {"batchItemFailures": [{"itemIdentifier": one["sequenceNumber"]}]}
        return {"state": {"n": event["state"].get("n", 0) + 1}}

    what = lambda_processor(function, window=60, report_batch_item_failures=True)
    options = {"max_records": 1, "max_attempts": 1, "dead_letters": [].extend}
    result = run_processor(what, at(1, 1, 2), end="idle", **options)
    assert len(result.dead_letters) == 1
    assert finals == [{"n": 1}]


def test_a_failure_in_the_answer_to_the_final_call_blocks_the_shard():
    calls = []

    def function(event, context):
        calls.append(event["isFinalInvokeForWindow"])
        if calls.count(True) in (1, 2):
            return {"state": {}, "batchItemFailures": [{"itemIdentifier": "1"}]}
        return {"state": {"n": 1}}

    result = run_processor(lambda_processor(function, window=60, report_batch_item_failures=True), at(1, 1))
    assert calls == [False, True, True, True]
    assert [event.error for event in raised(result)] == ["ResponseRefused"] * 2


def test_the_state_of_a_lambda_handler_is_json_and_a_decimal_becomes_a_number():
    states = []

    def function(event, context):
        states.append(event["state"])
        return {"state": {1: Decimal("1.5"), "text": "ä"}}

    run_processor(lambda_processor(function, window=60), at(1, 1, 2), max_records=1)
    assert states == [{}, {"1": 1.5, "text": "ä"}, {"1": 1.5, "text": "ä"}]


def test_a_state_of_a_lambda_handler_above_1_mb_ends_the_window_early():
    events = []

    def function(event, context):
        events.append((event["isFinalInvokeForWindow"], event["isWindowTerminatedEarly"]))
        return {"state": {"x": "x" * MOST_STATE}}

    run_processor(lambda_processor(function, window=60), at(1, 1, 2), max_records=1)
    assert events == [(False, False), (True, True)] * 2


# -- what is refused -------------------------------------------------------------------------------------------


def each_record(order: dict, window: Window) -> None: ...


def without_a_window(orders: list[dict]) -> None: ...


def sums(orders: list[dict], window: Window) -> Any: ...


async def asynchronous(orders: list[dict], window: Window) -> Any: ...


class Orders(RecordProcessor):
    def process_records(self, batch): ...


@pytest.mark.parametrize(("function", "window", "words"), [
    (each_record, 60, ["each record", "list[T]", "Batch"]),
    (without_a_window, 60, ["no Window", "window: Window"]),
    (sums, None, ["has no windows", "window=60", "--window"]),
    (asynchronous, 60, ["window=60", "async def", "plain def"]),
    (Orders, 60, ["class Orders"]),
    (sums, 0, ["out of range", "900"]),
    (sums, 901, ["out of range", "900"]),
    (sums, 0.5, ["whole seconds"]),
    (sums, float("nan"), ["whole seconds"]),
    (sums, float("inf"), ["whole seconds"]),
    (sums, True, ["whole seconds"]),
    (sums, "60", ["whole seconds"]),
])  # fmt: skip
def test_what_contradicts_windows_is_refused_by_name(function, window, words):
    with pytest.raises(ConfigError) as refused:
        handler(function, window=window)
    assert all(word in str(refused.value) for word in words), refused.value


def test_windows_do_not_go_with_several_records_at_a_time():
    with pytest.raises(ConfigError, match=r"window=60 hands a state .* does not go with concurrency=4"):
        handler(sums, window=60, concurrency=4)
    with pytest.raises(ConfigError, match=r"window=60 hands a state .* concurrency=4 makes several at once"):
        lambda_processor(lambda event, context: None, window=60, concurrency=4, handler_is_thread_safe=True)


@pytest.mark.parametrize(("options", "words"), [
    ({"checkpoint_mode": "manual"}, ["checkpoint_mode='manual'", "'auto'"]),
    ({"checkpoint_mode": "ack"}, ["checkpoint_mode='ack'", "'auto'"]),
    ({"call_with_empty_batches": True}, ["call_with_empty_batches"]),
])  # fmt: skip
def test_options_that_contradict_windows_are_refused_by_an_app_and_by_a_worker(options, words):
    app = App("orders-app")
    with pytest.raises(NotAProcessor) as refused:
        app.stream("orders", window=60, **options)(sums)
    assert all(word in str(refused.value) for word in words)
    with pytest.raises(NotAProcessor) as refused:
        run_processor(handler(sums, window=60), at(1, {}), **options)
    assert all(word in str(refused.value) for word in words)


def test_a_function_of_an_app_keeps_its_window_and_its_filter():
    """Called in other windows, as by --window 60, it would get the records that its filter refuses."""
    app = App("orders-app")

    @app.stream("orders", window=30, filter=lambda record: record.json() > 4)
    def collect(values: list[Any], window: Window) -> Any:
        return values

    with pytest.raises(ConfigError, match=r"--window 60 .* collect .*@app.stream\(\.\.\., window=60\)"):
        processor_of(collect, 60)


@pytest.mark.parametrize("found", [Orders, handler(sums, window=30)])
def test_window_is_refused_for_what_makes_processors(found):
    with pytest.raises(ConfigError, match=r"--window 60 is for a function .*handler\(\.\.\., window=60\)"):
        processor_of(found, 60)


def test_an_app_reads_a_stream_in_windows():
    app = App("orders-app")

    @app.stream("orders", window=60)
    def collect(values: list[Any], window: Window) -> Any:
        if window.is_final:
            found.append(window.state)
        return (window.state or []) + values

    found = []
    run_processor(collect, SOME)
    assert found == list(SUMS.values())
    Worker("orders-app", stream="orders", processor=handler(collect, window=60))


class Named(RecordProcessor):
    """A processor whose attributes have names that the worker asks handlers of functions for."""

    def initialize(self, init):
        self.windows, self.turn = defaultdict(list), 0
        self.settle_by = self.records_filtered = self.lane_share = ["mine"]

    def process_records(self, batch):
        self.turn += 1
        self.windows[self.turn].extend(batch)


def test_attributes_of_a_class_are_its_own_though_they_are_named_like_those_of_handlers():
    result = run_processor(Named, SOME, max_records=2)
    assert result.lost == 0
    assert len(result.checkpoints) == 4


def test_records_outside_of_a_window_are_refused():
    processor = handler(sums, window=60)()
    with pytest.raises(ConfigError, match="outside of a window"):
        processor.process_records(Batch((record(1),), None, 0, SHARD, "orders"))
