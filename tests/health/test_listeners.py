"""Listeners of the application: whatever they do, the worker goes on, and they hear of everything in order."""

import asyncio
import threading

import pytest

from pykcl.errors import TemporaryError
from pykcl.event_dispatch import EventFan, EventsDropped, Relay
from pykcl.events import (
    Checkpointed,
    LeaseLost,
    LeaseReleased,
    LeaseStateChanged,
    LeaseTaken,
    ShardEnded,
    ShardStarted,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from pykcl.processor import RecordProcessor
from pykcl.runtime import SystemRuntime
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.testing.runtime import Simulation
from pykcl.worker.options import WorkerSeams
from pykcl.worker.worker import Worker


def _event(number=0):
    return LeaseReleased(shard=f"shardId-{number}", checkpoint="5:0", counter=number)


def _worker(fleet, on_event, name="w1", **options):
    plain = fleet.worker(name)
    worker = Worker._with(
        WorkerSeams(adapters=plain._adapters, runtime=plain._runtime),
        TABLE,
        stream=STREAM,
        processor=lambda: RecordingProcessor(name, fleet.ledger),
        worker_id=name,
        initial_position="TRIM_HORIZON",
        on_event=on_event,
        **options,
    )
    fleet.workers[name] = worker
    return worker


def test_an_embedder_hears_the_life_of_worker_and_leases_in_order(new_fleet):
    fleet = new_fleet(shards=1)
    heard = []
    worker = _worker(fleet, heard.append)
    worker.start()
    fleet.wait_delivered(fleet.put(5))
    parent = fleet.open_shards()[0]
    fleet.kinesis.split(STREAM, parent)
    fleet.wait_delivered(fleet.put(5))
    fleet.wait(lambda: any(isinstance(event, ShardEnded) for event in heard))
    worker.stop()
    kinds = [type(event) for event in heard]
    assert kinds[-1] is WorkerStopped
    assert kinds.count(WorkerStarted) == kinds.count(WorkerStopping) == kinds.count(WorkerStopped) == 1
    mine = [type(event) for event in heard if getattr(event, "shard", None) == parent]
    lively = [kind for kind in mine if kind in (LeaseTaken, ShardStarted, Checkpointed, ShardEnded)]
    assert lively[:3] == [LeaseTaken, ShardStarted, Checkpointed]
    assert lively[-1] is ShardEnded
    states = [event for event in heard if isinstance(event, LeaseStateChanged) and event.shard == parent]
    assert states[0].before == "acquiring"
    assert [event.before for event in states[1:]] == [event.after for event in states[:-1]], (
        "no state is left out"
    )
    assert states[-1].after == "ended"
    released = [event for event in heard if isinstance(event, LeaseReleased)]
    assert len(released) == 2


def test_a_checkpoint_is_told_as_it_stands_in_the_row(new_fleet):
    fleet = new_fleet(shards=1)
    heard = []
    worker = _worker(fleet, heard.append)
    worker.start()
    fleet.wait_delivered(fleet.put(3))
    fleet.wait(lambda: any(isinstance(event, Checkpointed) for event in heard))
    fleet.simulation.sleep(2)
    last = [event for event in heard if isinstance(event, Checkpointed)][-1]
    row = fleet.rows()[last.shard]
    assert last.checkpoint == str(row.checkpoint)
    assert last.counter <= row.counter
    worker.stop()


def test_why_a_lease_was_lost_is_told(new_fleet):
    fleet = new_fleet(shards=1)
    heard = []
    worker = _worker(fleet, heard.append)
    worker.start()
    fleet.wait_delivered(fleet.put(3))
    fleet.dynamodb.delete_item(TableName=TABLE, Key={"leaseKey": {"S": fleet.open_shards()[0]}})
    fleet.wait(lambda: any(isinstance(event, LeaseLost) for event in heard), 60)
    (lost,) = [event for event in heard if isinstance(event, LeaseLost)]
    assert lost.cause == "its row is gone"
    worker.stop()


def test_a_listener_that_never_returns_costs_the_worker_nothing(new_fleet):
    fleet = new_fleet(shards=2)
    stuck = fleet.simulation.runtime("w1").event()
    others = []
    worker = _worker(fleet, [lambda event: stuck.wait(), others.append])
    worker.start()
    fleet.wait_delivered(fleet.put(20))
    assert len(others) > 5, "the other listener is not kept waiting"
    began = fleet.simulation.now
    worker.stop()
    assert fleet.simulation.now - began < 5.0
    assert set(fleet.owners().values()) == {None}
    assert fleet.ledger.duplicates == 0
    stuck.set()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_listener_that_raises_is_reported_and_goes_on_being_called(new_fleet, caplog, error):
    fleet = new_fleet(shards=2)
    heard = []

    def raises(event):
        heard.append(event)
        raise error("CANARY")

    worker = _worker(fleet, raises)
    worker.start()
    fleet.wait_delivered(fleet.put(20))
    worker.stop()
    assert len(heard) > 10
    assert isinstance(heard[-1], WorkerStopped)
    assert caplog.text.count("event listener raised") == 1
    assert error.__name__ in caplog.text
    assert "CANARY" not in caplog.text


def test_a_listener_that_stops_the_worker_does_not_wait_for_itself(new_fleet):
    fleet = new_fleet(shards=1)
    took = []

    def stops(event):
        if isinstance(event, ShardStarted):
            began = fleet.simulation.now
            worker.stop()
            took.append(fleet.simulation.now - began)

    worker = _worker(fleet, stops)
    worker.start()
    fleet.wait(lambda: took, 30)
    assert worker.status().state == "stopped"
    assert took[0] < 1.9


@pytest.mark.parametrize("seed", range(20))
def test_every_event_comes_once_and_in_order_whoever_goes_first(seed):
    with Simulation(seed=seed) as simulation:
        runtime, heard = simulation.runtime("w1"), []
        relay = Relay(heard.append, runtime)

        def emit():
            for number in range(20):
                relay.hear(_event(number))
                # At the very moment at which its thread has been idle for long enough to go.
                runtime.event().wait(0.01 if number % 3 else 5.0)
                assert relay.drain(1.0), number

        simulation.sleep(0.1)
        task = runtime.spawn("emitter", emit)
        simulation.run_until(lambda: not task.is_alive(), 60)
        assert relay.drain(10.0)
        assert [event.counter for event in heard] == list(range(20))


@pytest.mark.parametrize("seed", range(10))
def test_its_thread_goes_when_nothing_comes_and_returns_when_something_does(seed):
    with Simulation(seed=seed) as simulation:
        runtime, heard = simulation.runtime("w1"), []
        relay = Relay(heard.append, runtime)
        relay.hear(_event(1))
        simulation.sleep(20.0)
        assert not relay._task.is_alive()
        relay.hear(_event(2))
        assert relay.drain(5.0)
        assert len(heard) == 2


def test_what_does_not_fit_is_counted_and_told_to_that_listener(caplog):
    with Simulation() as simulation:
        runtime, heard = simulation.runtime("w1"), []
        go_on = runtime.event()

        def slow(event):
            go_on.wait()
            heard.append(event)

        relay = Relay(slow, runtime, most=3)
        for number in range(10):
            relay.hear(_event(number))
            simulation.sleep(0.01)
        go_on.set()
        assert relay.drain(5.0)
        assert [event.counter for event in heard[:-1]] == [0, 1, 2, 3]
        assert heard[-1] == EventsDropped(events=6)
    assert caplog.text.count("events are dropped") == 1


def test_a_listener_has_a_real_thread_of_its_own():
    threads = []
    relay = Relay(lambda event: threads.append(threading.current_thread().name), SystemRuntime())
    relay.hear(_event())
    assert relay.drain(10.0)
    assert threads == ["pykcl-listener"]


def test_no_thread_to_be_had_is_told_and_the_next_event_tries_again(caplog):
    class Exhausted(SystemRuntime):
        tries = 0

        def spawn(self, name, body):
            self.tries += 1
            if self.tries == 1:
                raise TemporaryError("can't start new thread")
            return super().spawn(name, body)

    heard = []
    relay = Relay(heard.append, Exhausted())
    relay.hear(_event(1))
    relay.hear(_event(2))
    assert relay.drain(10.0)
    assert [event.counter for event in heard] == [1, 2]
    assert "no thread for an event listener" in caplog.text


def test_a_quick_listener_that_calls_sys_exit_is_left_out_like_one_that_raises(caplog):
    def leaves(event):
        raise SystemExit(1)

    heard = []
    fan = EventFan([leaves, heard.append])
    fan.emit(_event())
    fan.emit(_event())
    assert len(heard) == 2
    assert caplog.text.count("is left out from now on") == 1


def test_one_listener_needs_no_list():
    class P(RecordProcessor):
        def process_records(self, batch): ...

    assert len(Worker(TABLE, stream=STREAM, processor=P, on_event=print)._relays) == 1
    assert len(Worker(TABLE, stream=STREAM, processor=P, on_event=[print, repr])._relays) == 2
