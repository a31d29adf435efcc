"""The codes that probes get of an unmodified worker: working, cut off from AWS, with a hung processor, half dead, draining."""

import dataclasses

import pytest
from health_kit import CODES, Outage, ask, codes, is_as_documented, status_of

from pykcl.events import ProcessorReturned, ProcessorSlow, StopReason, WorkerStopped, WorkerStopping
from pykcl.testing.fleet import RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault, denied


def _working(fleet, **options):
    worker = fleet.start("w1", **options)
    fleet.wait_delivered(fleet.put(10))
    fleet.wait(lambda: codes(worker) == (200, 200), what="a good start")
    # The first heartbeats have been sent: the renewer has its helpers.
    fleet.simulation.sleep(5)
    return worker


def _task(fleet, name):
    (task,) = [task for task in fleet.simulation._tasks if task.name == name and task.group == "w1"]
    return task


def test_a_worker_is_not_ready_before_it_works_and_not_alive_after_its_end(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.worker("w1")
    assert worker.status().state == "new"
    assert is_as_documented(worker, "is starting")
    worker.start()
    fleet.wait(lambda: is_as_documented(worker, "works"))
    assert worker.status().state == "running"
    worker.stop()
    assert worker.status().state == "stopped"
    assert is_as_documented(worker, "has stopped")


def test_a_worker_whose_first_processor_does_not_come_to_its_work_is_not_ready(new_fleet):
    fleet = new_fleet(shards=2)
    go_on = fleet.simulation.runtime("w1").event()

    class Waits(RecordingProcessor):
        def initialize(self, init):
            go_on.wait()

    worker = fleet.start("w1", processor=lambda: Waits("w1", fleet.ledger))
    fleet.simulation.sleep(30)
    assert codes(worker) == (200, 503)
    assert ask(worker, "/readyz")[1] == "the first leases are not being read yet\n"
    go_on.set()
    fleet.wait(lambda: codes(worker) == (200, 200), 10)


def test_the_loops_of_a_worker_at_work_begin_in_time_and_often(new_fleet):
    fleet = new_fleet(shards=4)
    worker = _working(fleet)
    fleet.simulation.sleep(10)
    for _ in range(200):
        fleet.simulation.sleep(0.1)
        for loop in worker.status().loops:
            assert loop.state == "running"
            assert loop.overdue < 0.2, loop
            assert loop.attempted_ago < (2.0 if "renewer-" not in loop.name else 6.0), loop


def test_a_spare_worker_without_a_lease_is_ready(new_fleet):
    fleet = new_fleet(shards=1)
    _working(fleet)
    spare = fleet.start("w2")
    fleet.wait(lambda: codes(spare) == (200, 200), 30)
    assert spare.leases == ()


def test_while_aws_is_out_of_reach_nobody_restarts_the_worker_but_it_is_not_ready(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.worker("w1")
    outage = Outage(fleet, worker)
    worker.start()
    fleet.wait(lambda: codes(worker) == (200, 200))
    outage.on = True
    fleet.wait(lambda: codes(worker) == (200, 503), 60, "not ready")
    before = outage.requests
    for _ in range(300):
        fleet.simulation.sleep(1.0)
        situation = "cannot reach AWS for longer than the failover time"
        assert is_as_documented(worker, situation), ask(worker, "/livez")[1]
    assert outage.requests > before + 20, "it went on trying"
    assert "managing leases" in ask(worker, "/readyz")[1]
    outage.on = False
    fleet.wait(lambda: codes(worker) == (200, 200), 60, "ready again")


def test_while_only_kinesis_is_out_of_reach_it_is_not_ready_either(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.worker("w1")
    outage = Outage(fleet, worker, dynamodb=False)
    worker.start()
    fleet.wait(lambda: codes(worker) == (200, 200))
    outage.on = True
    fleet.wait(lambda: codes(worker) == (200, 503), 90, "not ready")
    assert "can be read" in ask(worker, "/readyz")[1]
    for _ in range(120):
        fleet.simulation.sleep(1.0)
        assert codes(worker)[0] == 200, ask(worker, "/livez")[1]


def test_while_only_heartbeats_are_refused_it_is_not_ready_either(new_fleet):
    fleet = new_fleet(shards=2)
    worker = _working(fleet)
    fleet.dynamodb.fault = lambda operation, params: (
        Fault(before=denied(operation)) if operation == "UpdateItem" else None
    )
    fleet.wait(lambda: codes(worker) == (200, 503), 60, "not ready")
    assert ask(worker, "/readyz")[1].startswith("2 of 2 leases have been in doubt for up to ")
    fleet.wait(
        lambda: "renewing leases has been failing for " in ask(worker, "/readyz")[1], 60, "the trouble"
    )
    (told,) = [one for one in status_of(worker)["worker"]["troubles"] if one["shard"] is None]
    assert told["what"] == "renewing leases"
    fleet.dynamodb.fault = None
    fleet.wait(lambda: codes(worker) == (200, 200), 60, "ready again")


def test_a_worker_that_starts_while_aws_is_out_of_reach_is_left_alone(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.worker("w1")
    outage = Outage(fleet, worker)
    outage.on = True
    fleet.simulation.runtime("w1").spawn("main", worker.start)
    for _ in range(200):
        fleet.simulation.sleep(1.0)
        assert is_as_documented(worker, "is starting"), ask(worker, "/livez")[1]
    assert status_of(worker)["worker"]["state"] == "starting"
    assert status_of(worker)["worker"]["troubles"][0]["what"] == "finding the stream"
    outage.on = False
    fleet.wait(lambda: codes(worker) == (200, 200), 60, "ready")


def test_a_hung_processor_is_told_of_with_shard_and_stack_and_restarts_nobody(new_fleet):
    fleet = new_fleet(shards=2)
    hang = fleet.simulation.runtime("w1").event()

    def never_returns(batch):
        if b"poison" in [record.data for record in batch]:
            hang.wait()

    worker = _working(
        fleet,
        processor=lambda: RecordingProcessor("w1", fleet.ledger, never_returns),
        processor_warn_after=20.0,
    )
    fleet.kinesis.put_record("orders", b"poison", "key")
    fleet.wait(lambda: fleet.happened(ProcessorSlow), 60, "the watchdog")
    (slow,) = fleet.happened(ProcessorSlow)
    assert slow.thread == f"pykcl-{slow.shard}"
    assert any("in never_returns" in frame for frame in slow.stack), slow.stack
    assert slow.stack[0].startswith("fleet.py:"), "it begins with the processor's own frame"
    assert is_as_documented(worker, "has a processor that hangs")
    told = status_of(worker)
    assert told["stalled"] == [slow.shard]
    (lease,) = [lease for lease in told["worker"]["leases"] if lease["call"]]
    assert lease["call"]["method"] == "process_records"
    assert lease["last_error"]["event"] == "ProcessorSlow"
    hang.set()
    fleet.wait(lambda: fleet.happened(ProcessorReturned), 10, "the end of it")
    (returned,) = fleet.happened(ProcessorReturned)
    assert returned.shard == slow.shard
    assert returned.seconds >= slow.seconds
    assert status_of(worker)["stalled"] == []


def test_the_watchdog_can_give_the_lease_up_and_the_worker_goes_on(new_fleet):
    fleet = new_fleet(shards=2)
    hang = fleet.simulation.runtime("w1").event()
    worker = _working(
        fleet,
        processor=lambda: RecordingProcessor(
            "w1", fleet.ledger, lambda batch: hang.wait() if b"poison" in [r.data for r in batch] else None
        ),
        processor_warn_after=5.0,
        processor_timeout=10.0,
    )
    fleet.kinesis.put_record("orders", b"poison", "key")
    fleet.wait(lambda: fleet.happened(ProcessorSlow), 60)
    shard = fleet.happened(ProcessorSlow)[0].shard
    fleet.start("w2")
    fleet.wait(lambda: fleet.owners()[shard] == "w2", 60, "the other one")
    assert codes(worker)[0] == 200
    hang.set()


@pytest.mark.parametrize("name", ["pykcl-manager", "pykcl-renewer", "pykcl-renewer-1"])
def test_a_dead_thread_makes_the_worker_not_live(new_fleet, name):
    fleet = new_fleet(shards=2)
    worker = _working(fleet)
    fleet.simulation.strike(_task(fleet, name))
    fleet.wait(lambda: is_as_documented(worker, "has lost a thread of its own"), 10, "the verdict")
    assert f"thread {name} died of ThreadStruck" in ask(worker, "/livez")[1]
    assert status_of(worker)["worker"]["failure"] == "InternalError"
    assert fleet.happened(WorkerStopping)[0].cause == "InternalError"
    assert fleet.happened(WorkerStopping)[0].reason is StopReason.FAILED


def test_a_loop_that_does_not_come_to_its_work_makes_the_worker_not_live(new_fleet):
    """As when a request never ends in spite of its time-out."""
    fleet = new_fleet(shards=2)
    worker = _working(fleet)
    stuck = fleet.simulation.runtime("w1").event()
    worker._adapters[0].scan = lambda **_: stuck.wait()
    fleet.simulation.sleep(30)
    assert codes(worker)[0] == 200
    fleet.simulation.sleep(20)
    assert is_as_documented(worker, "has a loop that does not come to its work")
    assert "thread pykcl-manager should have begun its work" in ask(worker, "/livez")[1]


def test_a_worker_that_is_draining_is_live_and_not_ready(new_fleet):
    fleet = new_fleet(shards=2)
    go_on = fleet.simulation.runtime("w1").event()
    worker = _working(
        fleet, processor=lambda: RecordingProcessor("w1", fleet.ledger, lambda batch: go_on.wait(8.0))
    )
    fleet.put(10)
    fleet.wait(lambda: "process_records" in worker.activities.values())
    stopping = fleet.simulation.runtime("w1").spawn("stop", worker.stop)
    seen = set()
    while stopping.is_alive():
        if worker.status().state == "draining":
            seen.add(codes(worker))
        fleet.simulation.sleep(0.1)
    assert seen == {CODES["is draining after SIGTERM"]}
    assert codes(worker) == (503, 503)
    assert [
        type(event) for _, event in fleet.events if isinstance(event, WorkerStopping | WorkerStopped)
    ] == [
        WorkerStopping,
        WorkerStopped,
    ]


def test_an_embedder_who_never_stops_a_worker_that_failed_is_told_to_restart(new_fleet):
    fleet = new_fleet(shards=1)

    def fail(batch):
        raise ValueError("x")

    worker = fleet.start(
        "w1",
        on_error="raise",
        processor=lambda: RecordingProcessor("w1", fleet.ledger, fail),
        shutdown_grace=5.0,
    )
    fleet.put(1)
    fleet.wait(lambda: worker.failure is not None, 30)
    assert codes(worker) == (200, 503)
    fleet.simulation.sleep(40)
    assert is_as_documented(worker, "has not come to an end long after its grace")
    assert "has been stopping for" in ask(worker, "/livez")[1]


def test_the_status_tells_every_lease_and_is_frozen(new_fleet):
    fleet = new_fleet(shards=3)
    worker = _working(fleet)
    status = worker.status()
    assert [lease.shard for lease in status.leases] == sorted(fleet.rows())
    assert {lease.state for lease in status.leases} == {"reading"}
    for lease in status.leases:
        row = fleet.rows()[lease.shard]
        assert lease.counter in (row.counter, row.counter - 1)
        assert lease.millis_behind_latest == 0
        assert 0 < lease.lease_valid_for <= worker.config.belief_time
        assert lease.alive
    assert {loop.name for loop in status.loops} >= {"pykcl-manager", "pykcl-renewer", "pykcl-renewer-1"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        status.state = "new"


def test_the_status_says_when_the_first_record_of_a_lease_arrived(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1")
    fleet.wait(lambda: worker.status().leases, 30)
    (lease,) = worker.status().leases
    assert lease.first_arrival_millis is None
    began = fleet.kinesis.now_millis()
    fleet.wait_delivered(fleet.put(1))
    first = worker.status().leases[0].first_arrival_millis
    assert began <= first <= fleet.kinesis.now_millis()
    fleet.simulation.sleep(5)
    fleet.wait_delivered(fleet.put(1))
    assert worker.status().leases[0].first_arrival_millis == first


def test_the_last_error_of_a_shard_is_kept_without_a_word_of_the_application(new_fleet):
    fleet = new_fleet(shards=1)

    def fail_once(batch):
        if (
            not fleet.ledger.delivered
            and fleet.ledger.calls.count(("w1", "process_records", batch.shard_id)) < 2
        ):
            raise ValueError("CANARY")

    worker = fleet.start("w1", processor=lambda: RecordingProcessor("w1", fleet.ledger, fail_once))
    fleet.wait_delivered(fleet.put(3))
    body = ask(worker, "/status")[1]
    assert "CANARY" not in body
    (lease,) = status_of(worker)["worker"]["leases"]
    assert lease["last_error"]["event"] == "ProcessorRaised"
    assert "ValueError" in lease["last_error"]["text"]


def test_a_paused_shard_is_named_and_neither_unready_nor_a_trouble(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.worker("w1")
    worker.pause()
    worker.start()
    fleet.wait(lambda: worker.initialized, 30, "the worker")
    fleet.wait(lambda: set(worker.activities.values()) == {"paused"}, 30, "the pause")
    told = status_of(worker)
    assert told["ready"]
    assert told["paused"] == sorted(worker.leases)
    worker.resume()
    assert status_of(worker)["paused"] == []
