"""Very many leases at once on a table that answers only so many writes a second: they pass one gate."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from botocore import xform_name
from botocore.exceptions import ClientError, ReadTimeoutError

from pykcl.errors import TemporaryError
from pykcl.events import LeaseDoubted, LeaseLost, LeaseTaken, ShardStarted
from pykcl.testing.fleet import STREAM, TABLE, Fleet
from pykcl.testing.memory.dynamodb import Fault
from pykcl.testing.runtime import Simulation
from pykcl.worker.write_gate import Rank, WriteGate, WriteWindow

TIMEOUT = 1.2


class BusyTable:
    """A fault: the table carries out so many writes a second, one after the other, whoever still waits for the answer.

    timeout: seconds that a sender waits for it. late: seconds by which one answer in 200 comes later still, at most.
    writes: the number that came. unanswered: those of them whose sender had given up by then.
    """

    def __init__(self, fleet, a_second, *, timeout=TIMEOUT):
        self._fleet, self._seconds, self._timeout = fleet, 1 / a_second, timeout
        self._free_at, self._carries_out_late = 0.0, False
        self._random, self.late = Random(fleet.simulation.seed), 0.0
        self.writes = self.unanswered = 0
        fleet.dynamodb.fault = self

    def __call__(self, operation, params):
        if operation not in ("PutItem", "UpdateItem", "DeleteItem") or self._carries_out_late:
            return None
        self.writes += 1
        now = self._fleet.simulation.now
        self._free_at = max(now, self._free_at) + self._seconds
        left = self._free_at - now
        if left <= self._timeout:
            late = self._random.uniform(0, self.late) if self._random.random() < 1 / 200 else 0.0
            return Fault(delay=left, late_answer=late)
        self.unanswered += 1
        runtime = self._fleet.simulation.runtime("dynamodb")
        runtime.spawn(f"late-{self.writes}", partial(self._carry_out, runtime, operation, params, left))
        return Fault(delay=self._timeout, before=ReadTimeoutError(endpoint_url="-"))

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


def test_the_leases_of_a_dead_worker_are_taken_as_fast_as_the_table_carries_out_writes(new_fleet):
    fleet, failover = new_fleet(shards=200), 30.0
    for name, most in (("w1", 100), ("w2", 200)):
        worker = fleet.start(name, failover_time=failover, max_leases=most)
        fleet.wait(lambda worker=worker: len(worker._held) == 100, 60, "half of the leases")
    # Their heartbeats come together, so that all of them are seen to stand still by the same scan.
    fleet.simulation.sleep(2 * failover)
    table = BusyTable(fleet, 60)
    fleet.simulation.kill("w1")
    began, heard = fleet.simulation.now, len(fleet.events)
    fleet.wait(
        lambda: len({e.shard for _, e in fleet.events[heard:] if isinstance(e, ShardStarted)}) == 100,
        2 * failover,
        "w2 to read all shards",
    )
    needed = 100 / (60 - 200 / worker.config.renew_interval)
    between_scans = 2.0
    assert fleet.simulation.now - began <= failover + 2 * between_scans + 1.5 * needed
    fleet.simulation.sleep(2 * failover)
    assert not fleet.happened(LeaseLost)
    assert not fleet.happened(LeaseDoubted)
    assert table.unanswered == 0
    assert fleet.load() == {"w2": 200}


def test_heartbeats_that_all_fall_due_together_on_a_slow_table_lose_no_lease(new_fleet):
    fleet = new_fleet(shards=100)
    worker = fleet.start("w1")
    fleet.wait(lambda: len(worker._held) == 100, 60, "all leases")
    table = BusyTable(fleet, 50)
    # It stands still while each of them falls due.
    fleet.simulation.freeze("w1", worker.config.renew_interval + 1.0)
    fleet.simulation.sleep(worker.config.renew_interval + 1.0)
    written, began = table.writes, fleet.simulation.now
    fleet.wait(lambda: table.writes - written >= 100, 10, "the heartbeats")
    assert fleet.simulation.now - began >= 100 / 50 - 1, "they came all together"
    fleet.simulation.sleep(worker.config.failover_time)
    assert table.unanswered == 0
    assert len(worker._held) == 100
    assert not fleet.happened(LeaseLost)
    assert not fleet.happened(LeaseDoubted)


def test_takes_that_wait_for_leases_that_others_have_by_now_are_not_sent(new_fleet):
    """Each of five workers that start together plans to take every lease, as it sees no other."""
    fleet, read = new_fleet(shards=150, on_event=lambda event: started(event, read)), set()
    BusyTable(fleet, 25, timeout=10.0)
    began = fleet.simulation.now
    start_where_rows_are(fleet, 5, failover_time=60.0)
    fleet.wait(lambda: len(read) == 150, 60, "all shards to be read")
    assert fleet.simulation.now - began <= 1.5 * 2 * 150 / 25
    assert not fleet.happened(LeaseLost)


def started(event, read):
    if isinstance(event, ShardStarted):
        read.add(event.shard)


def start_where_rows_are(fleet, workers, **options):
    """Start the first worker, and the others once it has made the rows: each that starts before makes them, too."""
    shards = len(fleet.open_shards())
    for number in range(workers):
        fleet.start(f"w{number}", **options)
        fleet.wait(lambda: len(fleet.dynamodb.rows(TABLE)) == shards, 600, "the rows")


LEASES = 1500
"""With 3,000 a case takes three minutes and more, most of it for threads that wait at the gate."""
BETWEEN_SCANS = 11.0
"""Seconds, by the read units that a worker spends on scans of so many rows."""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3, 10])
@pytest.mark.parametrize("a_second", [50, 500])
def test_a_fleet_takes_very_many_leases_as_fast_as_the_table_carries_out_writes_and_loses_none(
    a_second, workers
):
    """The heartbeats need a quarter of the writes; with shorter failover times they would not fit in at all. Where the
    table is faster than the scans, workers hear late of what the others have taken."""
    failover = 8 * LEASES / a_second
    read, lost = set(), []

    def hear(event):
        started(event, read)
        if isinstance(event, LeaseLost | LeaseDoubted) and not getattr(event, "is_planned", False):
            lost.append(event)

    with Simulation(seed=0) as simulation:
        fleet = Fleet(simulation, LEASES, on_event=hear)
        table = BusyTable(fleet, a_second, timeout=10.0)
        began, needed = simulation.now, 2 * LEASES / a_second
        most = 3 * LEASES // (workers + 2)
        start_where_rows_are(
            fleet, workers, failover_time=failover, max_leases=most, idle_time_between_reads=60.0
        )
        fleet.wait(lambda: len(read) == LEASES, 5 * needed, "all shards to be read")
        took = simulation.now - began
        table.late = 10.0
        simulation.sleep(failover)
        assert not lost
        assert took <= 1.5 * needed + (2 * BETWEEN_SCANS if a_second == 500 and workers > 1 else 0.0)
        assert table.unanswered == 0


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


def test_takes_without_answers_are_settled_by_their_rows_also_where_many_more_wait(new_fleet):
    """A scan shows that their rows have changed, as those of leases that others have taken: they are this worker's."""
    fleet, landed = new_fleet(shards=40), set()
    lost, began = ReadTimeoutError(endpoint_url="-"), fleet.simulation.now

    def lose_answers(operation, params):
        key = params.get("Key", {}).get("leaseKey", {}).get("S")
        if operation != "UpdateItem" or fleet.simulation.now > began + 5:
            return None
        is_first = key not in landed
        landed.add(key)
        return Fault(delay=TIMEOUT, after=lost) if is_first else Fault(delay=TIMEOUT, before=lost)

    fleet.dynamodb.fault = lose_answers
    fleet.start("w1")
    fleet.wait(lambda: len({event.shard for event in fleet.happened(ShardStarted)}) == 40, 9)
    assert len(landed) >= 16


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
