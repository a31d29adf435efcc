"""Until when a lease is believed: from before the request was sent that moved its row, whichever request that was."""

import time

import pytest
from botocore.exceptions import ReadTimeoutError

from pykcl.config import Config
from pykcl.errors import LeaseInDoubt, TemporaryError
from pykcl.event_dispatch import EventFan
from pykcl.events import LeaseDoubted, LeaseLost, LeaseTakeFailed, LeaseTaken, LossReason
from pykcl.interfaces import Applied, Unknown
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease
from pykcl.model.lease_writes import renew
from pykcl.runtime import SystemRuntime
from pykcl.testing.fleet import RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault
from pykcl.testing.runtime import Simulation
from pykcl.worker.held_leases import HeldLease

CONFIG = Config(application="orders-app", stream="orders", failover_time=10.0)


class _Table:
    """Answers writes with what is in `answers`: how long that takes, and the answer; None: the row as it should be."""

    def __init__(self, simulation, answers):
        self._simulation, self._answers = simulation, list(answers)

    def write(self, write, *, until):
        seconds, answer = self._answers.pop(0)
        self._simulation.sleep(seconds)
        return answer or Applied(write.after)


@pytest.mark.parametrize(
    ("answers", "believed_from"),
    [
        ([(1.0, None)], 0.0),
        ([(2.0, Unknown("lost", None)), (1.0, None)], 2.0),
        ([(2.0, Unknown("lost", None)), (1.0, "settled")], 0.0),
        ([(2.0, Unknown("lost", None)), (2.0, Unknown("lost", None)), (1.0, "settled")], 0.0),
        ([(2.0, Unknown("lost", None)), (1.0, "settled"), (1.0, "settled")], 3.0),
    ],
)
def test_a_heartbeat_that_only_the_row_tells_of_may_be_the_first_one_without_an_answer(
    answers, believed_from
):
    with Simulation(seed=0) as simulation:
        runtime, began = simulation.runtime("w1"), simulation.now
        lease = Lease("shard", Checkpoint("7"), owner="w1", counter=3)
        settled = Applied(lease.with_(counter=4), confirmed_by_read=True)
        table = _Table(simulation, [(s, settled if a == "settled" else a) for s, a in answers])
        held = HeldLease(
            lease, began, table=table, runtime=runtime, config=CONFIG, wake=runtime.event(), events=None
        )
        for _, answer in answers:
            if isinstance(answer, Unknown):
                with pytest.raises(TemporaryError):
                    held.write(renew)
            else:
                held.write(renew)
        assert held.deadline - CONFIG.belief_time == pytest.approx(began + believed_from)


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock here goes on during a suspend")
def test_a_belief_grows_old_while_the_machine_is_suspended(monkeypatch):
    """1) A machine is suspended with records in hand; 2) another worker has the lease by then; 3) the machine goes on,
    and time.monotonic() has stood still: this worker would begin one more batch."""
    runtime = SystemRuntime()
    lease = Lease("shard", Checkpoint("7"), owner="w1", counter=3)
    wake = runtime.event()
    events = EventFan(())
    held = HeldLease(
        lease, runtime.monotonic(), table=None, runtime=runtime, config=CONFIG, wake=wake, events=events
    )
    held.check()
    assert held.is_valid_unlocked()

    def after_a_suspend(clock, gettime=time.clock_gettime):
        return gettime(clock) + (CONFIG.failover_time if clock == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", after_a_suspend)
    assert not held.is_valid_unlocked()
    with pytest.raises(LeaseInDoubt, match="no heartbeat was answered in time"):
        held.check()
    held.check(may_be_in_doubt=True)


def test_the_clock_is_that_of_python_where_there_is_no_better_one(monkeypatch):
    monkeypatch.setattr("pykcl.runtime._BOOT_CLOCK", None)
    before = time.monotonic()
    assert before <= SystemRuntime().monotonic() <= time.monotonic()


def test_a_take_that_only_the_row_tells_of_may_be_the_first_one_without_an_answer(new_fleet):
    """1) w1 takes a lease, and no answer comes; 2) it tries again, planned by a scan that shows the row as it was, and
    finds it as it would make it; 3) all heartbeats fail. To the others the lease stands still since 1, so they may have
    it before w1 would stop, counted from 2."""
    fleet = new_fleet(shards=1)
    sent, stale, scan = [], {}, fleet.dynamodb.scan

    def stale_scan(**params):
        answer = scan(**params)
        if answer["Items"] and not fleet.happened(LeaseTaken):
            return stale.setdefault("answer", answer)
        return answer

    def lose_answers(operation, params):
        if operation != "UpdateItem":
            return None
        sent.append(fleet.simulation.now)
        lost = ReadTimeoutError(endpoint_url="-")
        if len(sent) == 1:
            return Fault(after=lost, delay=1.0)
        # Once a take was refused, and so found to have taken effect, nothing gets through any more.
        is_second_take = (
            not fleet.happened(LeaseTaken) and fleet.simulation.now > sent[0] + CONFIG.write_timeout
        )
        return None if is_second_take else Fault(before=lost, delay=0.5)

    fleet.dynamodb.fault, fleet.dynamodb.scan = lose_answers, stale_scan
    fleet.start("w1")
    fleet.wait(lambda: fleet.happened(LeaseTaken), 30, "the lease to be taken")
    assert fleet.happened(LeaseTaken)[0].counter == 1
    assert fleet.simulation.now > sent[0] + CONFIG.write_timeout
    fleet.wait(lambda: fleet.happened(LeaseDoubted), 30, "the belief to end")
    assert fleet.simulation.now <= sent[0] + CONFIG.belief_time + 0.5


def test_what_a_lost_lease_left_in_its_row_is_not_taken_for_a_new_take(new_fleet):
    """1) The last write under a lease lands, and no answer comes until the lease is revoked, as its processor hangs; 2) a
    scan that shows the row as it was before leads to a take, which is refused: the row is as it would make it. To the
    others the lease stands still since 1, so nothing was taken: it is left until it has expired."""
    fleet = new_fleet(shards=1)
    lost = ReadTimeoutError(endpoint_url="-")
    updates, before, scan = [], [], fleet.dynamodb.scan

    def lagging_scan(**params):
        return scan(**params) if fleet.happened(LeaseTakeFailed) or not before else before[0]

    def lose_answers(operation, params):
        if operation != "UpdateItem" or fleet.happened(LeaseLost):
            return None
        updates.append(operation)
        if len(updates) < 3:
            return None
        if not before:
            before.append(scan(TableName=params["TableName"]))
            return Fault(after=lost, delay=1.0)
        return Fault(before=lost, delay=1.0)

    def hangs(batch):
        if not fleet.happened(LeaseLost):
            fleet.simulation.sleep(14.0)

    fleet.dynamodb.fault, fleet.dynamodb.scan = lose_answers, lagging_scan
    fleet.start(
        "w1",
        processor=lambda: RecordingProcessor("w1", fleet.ledger, hangs),
        processor_warn_after=5.0,
        processor_timeout=11.0,
    )
    fleet.put(1)
    fleet.wait(lambda: fleet.happened(LeaseTakeFailed), 120, "a take to be refused")
    assert len(fleet.happened(LeaseTaken)) == 1
    assert [event.reason for event in fleet.happened(LeaseLost)] == [LossReason.STALLED]
    fleet.wait(lambda: len(fleet.happened(LeaseTaken)) == 2, 60, "the lease to be taken once more")
    assert [taken.counter for taken in fleet.happened(LeaseTaken)] == [1, 4]
