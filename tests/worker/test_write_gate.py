"""Very many leases at once on a table that answers only so many writes a second: they pass one gate."""

from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
from botocore import xform_name
from botocore.exceptions import ClientError, ReadTimeoutError

from pykcl.errors import TemporaryError
from pykcl.events import LeaseLost, LeaseTaken, ShardStarted
from pykcl.testing.fleet import STREAM
from pykcl.testing.memory.dynamodb import Fault
from pykcl.testing.runtime import Simulation
from pykcl.worker.write_gate import Rank, WriteGate, WriteWindow

TIMEOUT = 1.2


class BusyTable:
    """A fault: the table carries out so many writes a second, one after the other, whoever still waits for the answer.

    writes: the number that came. unanswered: those of them whose sender had given up by then.
    """

    def __init__(self, fleet, a_second):
        self._fleet, self._seconds = fleet, 1 / a_second
        self._free_at, self._carries_out_late = 0.0, False
        self.writes = self.unanswered = 0
        fleet.dynamodb.fault = self

    def __call__(self, operation, params):
        if operation not in ("PutItem", "UpdateItem", "DeleteItem") or self._carries_out_late:
            return None
        self.writes += 1
        now = self._fleet.simulation.now
        self._free_at = max(now, self._free_at) + self._seconds
        left = self._free_at - now
        if left <= TIMEOUT:
            return Fault(delay=left)
        self.unanswered += 1
        runtime = self._fleet.simulation.runtime("dynamodb")
        runtime.spawn(f"late-{self.writes}", partial(self._carry_out, runtime, operation, params, left))
        return Fault(delay=TIMEOUT, before=ReadTimeoutError(endpoint_url="-"))

    def _carry_out(self, runtime, operation, params, left):
        runtime.event().wait(left)
        self._carries_out_late = True
        with suppress(ClientError):
            getattr(self._fleet.dynamodb, xform_name(operation))(**params)
        self._carries_out_late = False


def test_leases_are_taken_as_fast_as_the_table_carries_out_writes(new_fleet):
    """Row 1: all takes left at the same moment, and most of them got no answer."""
    fleet = new_fleet(shards=150)
    table = BusyTable(fleet, 60)
    fleet.start("w1")
    began = fleet.simulation.now
    fleet.wait(lambda: len({event.shard for event in fleet.happened(ShardStarted)}) == 150, 60)
    needed = 2 * 150 / 60
    assert fleet.simulation.now - began <= 1.5 * needed
    assert not fleet.happened(LeaseLost)
    assert table.unanswered == 0


def test_many_shards_that_end_at_once_are_followed_as_fast_as_the_table_carries_out_writes(new_fleet):
    fleet = new_fleet(shards=60)
    fleet.start("w1")
    fleet.wait(lambda: len({event.shard for event in fleet.happened(ShardStarted)}) == 60, 60)
    BusyTable(fleet, 60)
    fleet.simulation.sleep(5)
    began, requests = fleet.simulation.now, len(fleet.dynamodb.requests)
    fleet.kinesis.update_shard_count(STREAM, 120)
    fleet.wait(lambda: len({event.shard for event in fleet.happened(ShardStarted)}) == 180, 60)
    # The children's rows, the ends, the takes.
    needed = (120 + 60 + 120) / 60
    assert fleet.simulation.now - began <= 1.5 * needed
    assert not fleet.happened(LeaseLost)
    reads = [operation for operation, _ in fleet.dynamodb.requests[requests:] if operation == "GetItem"]
    assert len(reads) <= 4 * 120


def test_workers_that_start_together_do_not_reach_for_the_same_leases_one_after_the_other(new_fleet):
    """In one order, all but the first worker would be refused each of them, and have next to none in the end."""
    fleet = new_fleet(shards=60)
    BusyTable(fleet, 40)
    for name in ("w1", "w2"):
        fleet.start(name)
    fleet.wait(lambda: len({event.shard for event in fleet.happened(ShardStarted)}) == 60, 60)
    assert min(fleet.load().values()) >= 8


def test_a_take_without_an_answer_is_settled_by_the_row(new_fleet):
    """It has landed: the row names this worker, and nobody else would read the shard before it has expired."""
    fleet = new_fleet(shards=1)
    lost = ReadTimeoutError(endpoint_url="-")
    # The first one lands, those that follow do not even arrive.
    faults = iter([Fault(delay=TIMEOUT, after=lost), *[Fault(delay=TIMEOUT, before=lost)] * 5])

    def lose_answers(operation, params):
        is_take = operation == "UpdateItem" and not fleet.happened(LeaseTaken)
        return next(faults, None) if is_take else None

    fleet.dynamodb.fault = lose_answers
    began = fleet.simulation.now
    worker = fleet.start("w1")
    fleet.wait(lambda: fleet.happened(ShardStarted), 6, "the shard to be read")
    (held,) = worker._held.all()
    assert held.deadline <= began + 2 + worker.config.belief_time, "believed since the take was sent"


def test_a_take_that_the_row_does_not_show_is_not_believed(new_fleet):
    fleet = new_fleet(shards=1)

    def swallow(operation, params):
        return (
            Fault(delay=TIMEOUT, before=ReadTimeoutError(endpoint_url="-"))
            if operation == "UpdateItem"
            else None
        )

    fleet.dynamodb.fault = swallow
    worker = fleet.start("w1")
    fleet.simulation.sleep(12)
    assert not fleet.happened(LeaseTaken)
    assert len(worker._held) == 0
    fleet.dynamodb.fault = None
    fleet.wait(lambda: fleet.happened(ShardStarted), 6, "the shard to be read")


def test_a_stop_does_not_wait_for_takes_that_wait_at_the_gate(new_fleet):
    fleet = new_fleet(shards=100)
    BusyTable(fleet, 20)
    worker = fleet.start("w1")
    fleet.wait(lambda: len(fleet.happened(LeaseTaken)) >= 10, 60, "some of the leases")
    taken = len(fleet.happened(LeaseTaken))
    began = fleet.simulation.now
    worker.stop()
    assert fleet.simulation.now - began < 5
    assert len(fleet.happened(LeaseTaken)) - taken <= 30, "those in flight"
    fleet.dynamodb.fault = None
    assert set(fleet.owners().values()) == {None}


def test_writes_go_in_the_order_of_their_ranks_and_heartbeats_never_wait():
    with Simulation(seed=0) as simulation:
        runtime = simulation.runtime("w1")
        gate, gone, may_end = WriteGate(runtime, 0.6), [], runtime.event()
        gate.window = replace(gate.window, size=1.0)

        def write(rank, name):
            with gate.passed(rank):
                gone.append(name)
                may_end.wait(0.1)

        runtime.spawn("first", lambda: write(Rank.TAKE, "first"))
        simulation.sleep(0.01)
        for rank in (Rank.RELEASE, Rank.TAKE, Rank.CHECKPOINT):
            runtime.spawn(rank.name, partial(write, rank, rank.name))
            simulation.sleep(0.001)
        runtime.spawn("beat", lambda: write(Rank.HEARTBEAT, "heartbeat"))
        simulation.sleep(0.001)
        assert gone == ["first", "heartbeat"]
        simulation.sleep(2)
        assert gone == ["first", "heartbeat", "CHECKPOINT", "TAKE", "RELEASE"]


def test_takes_give_way_to_heartbeats_that_are_due():
    """Few threads send heartbeats: with the table full of takes, each would wait for its answer behind all of those."""
    with Simulation(seed=0) as simulation:
        runtime = simulation.runtime("w1")
        gate, gone = WriteGate(runtime, 0.6), []
        gate.heartbeats_due = 100

        def take(name):
            with gate.passed(Rank.TAKE):
                gone.append(name)

        for number in range(20):
            runtime.spawn(f"take-{number}", partial(take, number))
        simulation.sleep(1.0)
        assert len(gone) <= 5
        gate.heartbeats_due = 0
        with gate.passed(Rank.HEARTBEAT):
            pass
        simulation.sleep(0.1)
        assert sorted(gone) == list(range(20))


def test_a_table_that_never_answers_in_time_gets_a_few_writes_a_second_all_the_same():
    with Simulation(seed=0) as simulation:
        runtime = simulation.runtime("w1")
        gate, gone = WriteGate(runtime, 0.6), []

        def write():
            with gate.passed(Rank.TAKE):
                gone.append(simulation.now)
                runtime.event().wait(100.0)

        for number in range(60):
            runtime.spawn(f"take-{number}", write)
        simulation.sleep(20)
        assert 60 <= len(gone) <= 120


def test_a_write_that_is_not_wanted_any_more_leaves_the_gate_without_being_sent():
    with Simulation(seed=0) as simulation:
        runtime = simulation.runtime("w1")
        gate, found, wanted = WriteGate(runtime, 0.6), [], [True]
        gate.window = replace(gate.window, size=0.0, sent_at=simulation.now + 100.0)

        def write():
            with gate.passed(Rank.TAKE, is_wanted=lambda: wanted[0]) as may_send:
                found.append(may_send)

        runtime.spawn("take", write)
        simulation.sleep(3)
        assert found == []
        wanted[0] = False
        gate.check_again()
        simulation.sleep(0.1)
        assert found == [False]


def test_the_table_is_silent_while_no_write_is_answered_that_went_after_one_without_an_answer():
    with Simulation(seed=0) as simulation:
        runtime = simulation.runtime("w1")
        gate = WriteGate(runtime, 0.6)

        def write(seconds, error=None):
            with suppress(TemporaryError), gate.passed(Rank.HEARTBEAT):
                runtime.event().wait(seconds)
                if error is not None:
                    raise error

        for number, (seconds, error) in enumerate([(0.1, None), (4.0, TemporaryError("no answer"))]):
            runtime.spawn(f"write-{number}", partial(write, seconds, error))
            simulation.sleep(1.0)
        assert not gate.is_silent(), "one request may take as long"
        simulation.sleep(1.0)
        assert gate.is_silent(), "it waits"
        simulation.sleep(5.0)
        assert gate.is_silent(), "it got no answer"
        write(0.0, TemporaryError("not sent"))
        assert gate.is_silent()
        write(0.1)
        assert not gate.is_silent()


def test_a_worker_that_writes_no_more_does_not_take_the_table_for_silent_for_ever():
    """Seed 115603937242: a leader had lost its only lease, and gave away none of a dead worker."""
    with Simulation(seed=0) as simulation:
        runtime = simulation.runtime("w1")
        gate = WriteGate(runtime, 0.6)
        with suppress(TemporaryError), gate.passed(Rank.HEARTBEAT):
            runtime.event().wait(1.2)
            raise TemporaryError("no answer")
        simulation.sleep(5.9)
        assert gate.is_silent()
        simulation.sleep(0.2)
        assert not gate.is_silent()


@pytest.mark.parametrize(("took", "size"), [(0.3, 17.0), (0.5, 16.0625), (0.7, 8.0)])
def test_the_window_grows_with_answers_in_time_and_is_halved_by_one_that_is_late(took, size):
    window = WriteWindow(0.6)
    assert window.answered(10.0, 10.0 + took - 0.001, was_full=True).size == size


def test_a_window_that_is_not_used_does_not_grow():
    window = WriteWindow(0.6)
    assert window.answered(10.0, 10.1, was_full=False) == window


def test_a_whole_window_that_is_late_halves_it_once():
    window = WriteWindow(0.6, size=32.0)
    for _ in range(32):
        window = window.late(10.0, 11.2)
    assert window.size == 16.0
    assert window.late(11.3, 12.5).size == 8.0


def test_after_a_late_answer_the_window_grows_by_one_for_each_round():
    window = WriteWindow(0.6, size=32.0).late(10.0, 11.2)
    for _ in range(16):
        window = window.answered(12.0, 12.1, was_full=True)
    assert window.size == pytest.approx(17.0, abs=0.1)
