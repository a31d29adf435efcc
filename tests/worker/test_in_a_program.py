"""A worker in a program that does other things, too: started in a thread, waited for, stopped, started again."""

from itertools import chain, repeat

import pytest

from pykcl import ProcessorFailed, PyKclError, SetupError, StopTimedOut
from pykcl.events import FailureResolved, FailureStarted, StillStarting, WorkerStarted, WorkerStopped
from pykcl.testing.fleet import STREAM, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault, denied


def raises(batch):
    raise KeyError("no such order")


# -- start again -----------------------------------------------------------------------------------------------


def test_a_worker_that_has_stopped_can_be_started_again_and_goes_on_at_its_checkpoints(new_fleet):
    fleet = new_fleet()
    worker = fleet.worker("w1")
    for _ in range(3):
        worker.start()
        assert worker.wait_ready(60)
        fleet.wait_delivered(fleet.put(10))
        assert worker.status().state == "running"
        worker.stop()
        assert worker.status().state == "stopped"
        assert set(fleet.owners().values()) == {None}
    assert fleet.ledger.duplicates == 0
    assert len(fleet.happened(WorkerStarted)) == len(fleet.happened(WorkerStopped)) == 3


def test_a_worker_that_runs_cannot_be_started_a_second_time(new_fleet):
    worker = new_fleet().start("w1")
    with pytest.raises(PyKclError, match=r"still runs.*stop\(\)"):
        worker.start()
    worker.stop()


def test_a_failure_and_its_signals_are_forgotten_by_the_next_start(new_fleet):
    fleet = new_fleet(shards=1)
    failing = [True]

    def behaviour(batch):
        if failing:
            raises(batch)

    processor = lambda: RecordingProcessor("w1", fleet.ledger, behaviour)  # noqa: E731
    worker = fleet.worker("w1", processor=processor, on_error="raise")
    put = fleet.put(3)
    with pytest.raises(ProcessorFailed):
        worker.run()
    worker._signals.ask(2)
    failing.clear()
    worker.start()
    fleet.wait_delivered(put)
    assert worker.failure is None
    assert worker._signals.count == 0
    worker.stop()


def test_a_start_that_a_stop_came_before_starts_nothing_and_the_next_one_does(new_fleet):
    fleet = new_fleet()
    worker = fleet.worker("w1")
    worker.stop()
    worker.start()
    assert worker.leases == ()
    assert not fleet.happened(WorkerStarted)
    worker.start()
    assert worker.wait_ready(60)
    worker.stop()


def names_of_threads(fleet, group):
    return sorted(task.name for task in fleet.simulation._tasks if task.is_alive() and task.group == group)


def test_a_start_that_fails_at_any_request_is_followed_by_a_whole_one(new_fleet):
    """In Java KCL before 3.5.2 the second start found half of the parts initialized, left them out, or made them twice."""
    reference = new_fleet()
    requests = []
    reference.dynamodb.fault = lambda operation, params: requests.append(operation)
    worker = reference.start("w1")
    assert worker.wait_ready(60)
    threads = names_of_threads(reference, "w1")
    reference.dynamodb.fault = None
    worker.stop()
    before_it_runs = requests[: requests.index("PutItem")]
    assert {"DescribeTable", "CreateTable", "Scan"} <= set(before_it_runs)
    failed = 0
    for number in range(len(before_it_runs)):
        fleet = new_fleet()
        worker = fleet.worker("w1")
        faults = chain(repeat(None, number), [Fault(before=denied())], repeat(None))
        fleet.dynamodb.fault = lambda operation, params, faults=faults: next(faults)
        try:
            worker.start()
        except SetupError:
            failed += 1
            assert names_of_threads(fleet, "w1") == []
            worker.start()
        fleet.dynamodb.fault = None
        assert worker.wait_ready(60)
        fleet.wait_delivered(fleet.put(10))
        assert names_of_threads(fleet, "w1") == threads
        worker.stop()
    assert failed >= 3


def test_a_worker_with_a_processor_that_never_returned_is_not_started_again(new_fleet):
    fleet = new_fleet(shards=1)
    go = fleet.simulation.runtime("w1").event()
    processor = lambda: RecordingProcessor("w1", fleet.ledger, lambda _: go.wait())  # noqa: E731
    worker = fleet.worker("w1", processor=processor)
    fleet.put(1)
    worker.start()
    fleet.wait(lambda: worker.activities.get("shardId-000000000000") == "process_records")
    with pytest.raises(StopTimedOut):
        worker.stop(grace=1.0)
    with pytest.raises(PyKclError, match=r"still busy.*make a new Worker"):
        worker.start()
    go.set()


# -- wait_ready ------------------------------------------------------------------------------------------------


def test_wait_ready_waits_for_a_start_in_another_thread_also_after_a_stop(new_fleet):
    fleet = new_fleet()
    worker = fleet.worker("w1")
    runtime = fleet.simulation.runtime("w1")

    def later():
        fleet.simulation.sleep(2.0)
        worker.start()

    for _ in range(2):
        runtime.spawn("starter", later)
        assert worker.wait_ready(60)
        worker.stop()


def test_wait_ready_without_a_timeout_does_not_wait_for_another_start(new_fleet):
    """A thread that asks only after a signal has stopped the worker would never end."""
    worker = new_fleet().start("w1")
    worker.stop()
    assert worker.wait_ready() is False


def test_wait_ready_ends_with_a_start_that_fails(new_fleet):
    fleet = new_fleet()
    worker = fleet.worker("w1")
    fleet.kinesis.delete_stream(STREAM)

    def starting():
        fleet.simulation.sleep(2.0)
        with pytest.raises(SetupError):
            worker.start()

    fleet.simulation.runtime("w1").spawn("starter", starting)
    began = fleet.simulation.now
    assert not worker.wait_ready(600)
    assert fleet.simulation.now - began < 10


# -- join ------------------------------------------------------------------------------------------------------


def test_join_raises_what_stopped_a_worker_in_the_background(new_fleet):
    fleet = new_fleet(shards=1)
    processor = lambda: RecordingProcessor("w1", fleet.ledger, raises)  # noqa: E731
    worker = fleet.start("w1", processor=processor, on_error="raise")
    assert worker.join(5.0) is False
    fleet.put(1)
    with pytest.raises(ProcessorFailed, match="KeyError"):
        worker.join(60.0)
    assert worker.status().state == "stopped"
    assert set(fleet.owners().values()) == {None}


def test_join_returns_when_another_thread_stops_the_worker(new_fleet):
    fleet = new_fleet()
    worker = fleet.start("w1")
    assert worker.wait_ready(60)

    def later():
        fleet.simulation.sleep(2.0)
        worker.stop()

    fleet.simulation.runtime("w1").spawn("stopper", later)
    assert worker.join() is True
    assert worker.status().state == "stopped"


class LateToWake:
    """The event of a run that was stopped: who waits for it goes on only once `meanwhile` has returned."""

    def __init__(self, asked, meanwhile):
        self.asked, self.meanwhile = asked, meanwhile
        self.set, self.is_set = asked.set, asked.is_set

    def wait(self, timeout=None):
        woken = self.asked.wait(timeout)
        if woken and timeout is None:
            self.meanwhile()
        return woken


def test_join_does_not_stop_the_run_that_another_thread_has_started_since(new_fleet):
    """1) One thread waits in join; 2) another one stops the worker and starts it again; 3) the first one wakes up."""
    fleet = new_fleet()
    worker = fleet.start("w1")
    runs_again = fleet.simulation.runtime("w1").event()
    worker._stop_asked = LateToWake(worker._stop_asked, runs_again.wait)
    joining = fleet.simulation.runtime("w1").spawn("joining", worker.join)
    fleet.wait_delivered(fleet.put(5))
    worker.stop()
    worker.start()
    runs_again.set()
    joining.join()
    fleet.wait_delivered(fleet.put(5))
    assert worker.status().state == "running"
    worker.stop()
    assert worker.status().state == "stopped"


def test_a_stop_that_waits_for_another_one_returns_when_the_worker_can_be_started_again(new_fleet):
    fleet = new_fleet()
    worker = fleet.start("w1")
    busy = fleet.simulation.runtime("w1").event()
    worker._events._listeners.append(lambda event: busy.wait(2.0) if type(event) is WorkerStopped else None)
    assert worker.wait_ready(60)
    first = fleet.simulation.runtime("w1").spawn("first", worker.stop)
    fleet.wait(lambda: worker._stopping, 10)
    worker.stop()
    worker.start()
    fleet.wait_delivered(fleet.put(5))
    first.join()
    assert worker.status().state == "running"
    worker.stop()


def test_two_threads_that_start_a_worker_at_once_start_it_once(new_fleet):
    fleet = new_fleet()
    worker = fleet.worker("w1")
    refused = []

    def start():
        try:
            worker.start()
        except PyKclError as error:
            refused.append(str(error))

    tasks = [fleet.simulation.runtime("w1").spawn(f"starter-{number}", start) for number in range(2)]
    for task in tasks:
        task.join()
    assert len(refused) == 1
    assert len(fleet.happened(WorkerStarted)) == 1
    fleet.wait_delivered(fleet.put(5))
    worker.stop()
    assert not [task.name for task in worker._parts.all_tasks if task.is_alive()]


# -- a start that AWS does not answer --------------------------------------------------------------------------


def test_a_start_that_is_not_answered_is_reported_every_thirty_seconds_with_the_cause(new_fleet):
    fleet = new_fleet(state_seconds=100.0)
    fleet.start("w1").stop()
    reminders = fleet.happened(StillStarting)
    assert {reminder.what for reminder in reminders} == {"finding the stream"}
    assert [round(reminder.seconds / 30) for reminder in reminders] == [1, 2, 3]
    assert all("is CREATING" in reminder.cause for reminder in reminders)
    assert len(fleet.happened(FailureStarted)) == 1


def test_a_start_that_is_answered_soon_is_reported_once(new_fleet):
    fleet = new_fleet(state_seconds=25.0)
    fleet.start("w1").stop()
    assert not fleet.happened(StillStarting)
    assert len(fleet.happened(FailureStarted)) == len(fleet.happened(FailureResolved)) == 1
