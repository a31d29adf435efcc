"""Pause and resume: a paused shard keeps its lease, is neither read nor delivered, and goes on where it was."""

import pytest

from pykcl import Batch, ConfigError
from pykcl.errors import TemporaryError
from pykcl.events import (
    DataLost,
    FailureStarted,
    LeaseLost,
    LeaseStateChanged,
    ProcessorRaised,
    RecordNotAcked,
)
from pykcl.handlers.functions import handler
from pykcl.handlers.windows import Window
from pykcl.model.kpl import aggregate
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.testing.runtime import EPOCH_MILLIS

SHARD = "shardId-000000000000"
RETRIEVALS = ["polling", "fanout", "fanout-or-polling"]


def state_of(worker, shard=SHARD):
    return worker.activities.get(shard)


def wait_until_paused(fleet, worker, *shards):
    fleet.wait(lambda: all(state_of(worker, shard) == "paused" for shard in shards or (SHARD,)))


def in_order(fleet, payloads):
    return [record.data for _, record in fleet.ledger.delivered] == payloads


def reserved(worker):
    return worker.config.max_buffered_bytes - worker._manager._context.memory._free


def reads(worker):
    """Count the requests that a worker makes for records from now on."""
    stream, seen = worker._adapters[1], []

    def counted(call):
        def counting(shard_id, *rest):
            seen.append(shard_id)
            return call(shard_id, *rest)

        return counting

    for name in ("fetch", "request_page", "subscribe", "open"):
        setattr(stream, name, counted(getattr(stream, name)))
    return seen


class Pausing(RecordingProcessor):
    """Pauses its own shard in the batch with this payload, and raises there if it is to."""

    def __init__(self, worker, fleet, at, *, raises=False):
        super().__init__(worker, fleet.ledger)
        self.fleet, self.at, self.raises = fleet, at, raises

    def process_records(self, batch):
        if any(record.data == self.at for record in batch):
            self.fleet.workers[self.worker].pause([batch.shard_id])
            if self.raises and state_of(self.fleet.workers[self.worker]) and not self.fleet.is_mended:
                raise OSError
        super().process_records(batch)


# -- in every way of reading and delivering --------------------------------------------------------------------------


@pytest.mark.parametrize("retrieval", RETRIEVALS)
def test_a_paused_shard_is_not_read_keeps_its_lease_and_goes_on_in_order(new_fleet, retrieval):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1", retrieval=retrieval)
    put = fleet.put(20)
    fleet.wait_delivered(put)
    worker.pause()
    wait_until_paused(fleet, worker, *worker.leases)
    seen, counters = reads(worker), {key: row.counter for key, row in fleet.rows().items()}
    more = fleet.put(20)
    fleet.simulation.sleep(60)
    assert seen == [], "neither read nor subscribed to"
    assert set(fleet.ledger.payloads) == set(put)
    assert all(row.counter > counters[key] + 3 for key, row in fleet.rows().items()), "heartbeats go on"
    assert worker.paused == set(worker.leases)
    assert reserved(worker) == 0
    worker.resume()
    began = fleet.simulation.now
    fleet.wait_delivered(more)
    assert fleet.simulation.now - began < (3.0 if retrieval == "polling" else 8.0)
    assert worker.paused == frozenset()
    assert fleet.ledger.duplicates == 0
    assert not fleet.happened(LeaseLost)
    assert not fleet.happened(FailureStarted)


MODES = {
    "auto": {},
    "interval": {"checkpoint_mode": "interval", "checkpoint_interval": 5.0},
    "gathered": {"batch_window": 3.0, "batch_size": 4},
    "policies": {"max_attempts": 3, "bisect": True, "dead_letters": "discard"},
    "paced": {"max_records_per_second": 4.0},
    "empty batches": {"call_with_empty_batches": True},
}


@pytest.mark.parametrize("retrieval", RETRIEVALS)
@pytest.mark.parametrize("mode", MODES)
def test_pauses_lose_and_repeat_nothing(new_fleet, mode, retrieval):
    fleet = new_fleet(shards=1)
    rng, put = fleet.simulation.rng, []
    worker = fleet.start("w1", retrieval=retrieval, **{"max_records": 5, "batch_size": 2, **MODES[mode]})
    for _ in range(30):
        put += fleet.put(rng.randint(0, 8))
        if rng.random() < 0.2:
            texts = [b"%d.%d" % (len(put), part) for part in range(5)]
            for blob in aggregate([("k", None, text) for text in texts]):
                fleet.kinesis.put_record(STREAM, blob.data, "k")
            put += texts
        fleet.simulation.sleep(rng.choice([0.0, 0.3, 2.0]))
        worker.pause([SHARD])
        fleet.simulation.sleep(rng.choice([0.0, 0.5, 3.0, 10.0]))
        worker.resume()
        fleet.simulation.sleep(rng.choice([0.0, 1.5, 4.0]))
    fleet.wait_delivered(put)
    assert in_order(fleet, put)
    assert sum(event.after == "paused" for event in fleet.happened(LeaseStateChanged)) > 2
    worker.stop()
    assert reserved(worker) == 0


def test_nothing_is_delivered_behind_the_running_batch_and_the_rest_of_the_page_is_dropped(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(10)
    # No checkpoint tells which records of the page are done.
    options = {"batch_size": 2, "checkpoint_mode": "interval", "checkpoint_interval": 500.0}
    worker = fleet.start("w1", processor=lambda: Pausing("w1", fleet, put[3]), **options)
    wait_until_paused(fleet, worker)
    fleet.simulation.sleep(20)
    assert in_order(fleet, put[:4])
    assert reserved(worker) == 0
    worker.resume([SHARD])
    fleet.simulation.sleep(10)
    assert in_order(fleet, put)


def test_a_page_that_was_fetched_ahead_is_dropped(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(400)
    slow = lambda batch: fleet.simulation.sleep(3)  # noqa: E731
    worker = fleet.start("w1", max_records=20, processor=lambda: RecordingProcessor("w1", fleet.ledger, slow))
    fleet.wait(lambda: len(fleet.ledger.delivered) >= 60)
    assert reserved(worker) > 0
    worker.pause()
    wait_until_paused(fleet, worker)
    assert reserved(worker) == 0
    count = len(fleet.ledger.delivered)
    fleet.simulation.sleep(30)
    assert len(fleet.ledger.delivered) == count
    worker.resume()
    fleet.wait_delivered(put)
    assert in_order(fleet, put)


@pytest.mark.parametrize("mode", ["auto", "policies"])
def test_a_batch_that_raises_and_pauses_is_not_tried_again_before_it_is_resumed(new_fleet, mode):
    fleet = new_fleet(shards=1)
    fleet.is_mended, put = False, fleet.put(6)
    options = {**MODES[mode], "batch_size": 3, "retry_timeout": 30.0}
    worker = fleet.start("w1", processor=lambda: Pausing("w1", fleet, put[4], raises=True), **options)
    wait_until_paused(fleet, worker)
    raised = len(fleet.happened(ProcessorRaised))
    fleet.simulation.sleep(600)
    assert len(fleet.happened(ProcessorRaised)) == raised
    assert in_order(fleet, put[:3])
    assert fleet.rows()[SHARD].owner == "w1"
    assert fleet.rows()[SHARD].standstill is None, "a pause is no trouble"
    fleet.is_mended = True
    worker.resume()
    wait_until_paused(fleet, worker)
    worker.resume()
    fleet.wait_delivered(put)
    assert in_order(fleet, put)


class Acking(RecordingProcessor):
    """Acks nothing by itself."""

    def __init__(self, fleet, behaviour=None):
        super().__init__("w1", fleet.ledger, behaviour)
        self.given = fleet.given

    def process_records(self, batch):
        super().process_records(batch)
        self.given += [(batch, record) for record in batch]


def test_acks_that_come_while_a_shard_is_paused_are_settled_and_written(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.given, put = [], fleet.put(30)
    worker = fleet.start("w1", checkpoint_mode="ack", max_unacked=10, processor=lambda: Acking(fleet))
    fleet.wait(lambda: len(fleet.given) == 10)
    worker.pause()
    wait_until_paused(fleet, worker)
    for batch, record in fleet.given[:10]:
        assert batch.ack(record)
    position = fleet.given[9][1].position
    fleet.wait(lambda: fleet.rows()[SHARD].checkpoint == position, 5.0)
    fleet.simulation.sleep(30)
    assert len(fleet.given) == 10, "there is room, and the shard is paused"
    worker.resume()
    done = 10
    while done < 30:
        fleet.wait(lambda: len(fleet.given) > done)  # noqa: B023
        batch, record = fleet.given[done]
        batch.ack(record)
        done += 1
    assert in_order(fleet, put)


def test_an_unacked_record_of_a_paused_shard_costs_no_lease_neither_then_nor_at_once_behind_it(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.given, timeout = [], {"processor_warn_after": 10.0, "processor_timeout": 20.0}
    fleet.put(3)
    worker = fleet.start("w1", checkpoint_mode="ack", processor=lambda: Acking(fleet), **timeout)
    fleet.wait(lambda: fleet.given)
    worker.pause()
    fleet.simulation.sleep(300)
    worker.resume()
    fleet.simulation.sleep(8)
    assert not fleet.happened(RecordNotAcked)
    assert not fleet.happened(LeaseLost)
    fleet.wait(lambda: fleet.happened(LeaseLost), 30.0)
    assert len(fleet.happened(RecordNotAcked)) == 1


def test_a_batch_to_be_acked_that_raises_waits_for_the_end_of_the_pause(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.given, calls, is_down = [], [], True

    def work(batch):
        calls.append(fleet.simulation.now)
        if is_down:
            fleet.workers["w1"].pause()
            raise OSError

    put = fleet.put(3)
    worker = fleet.start(
        "w1",
        checkpoint_mode="ack",
        retry_timeout=30.0,
        processor_timeout=60.0,
        processor=lambda: Acking(fleet, work),
    )
    fleet.simulation.sleep(300)
    assert len(calls) == 1
    assert worker.status().leases[0].paused
    is_down = False
    worker.resume()
    fleet.wait(lambda: len(fleet.given) == 3)
    assert in_order(fleet, put)
    assert not fleet.happened(LeaseLost)
    worker.stop()


class PausingAcking(Acking):
    """Pauses its shard in the batch with this payload."""

    def __init__(self, fleet, at):
        super().__init__(fleet)
        self.fleet, self.at = fleet, at

    def process_records(self, batch):
        super().process_records(batch)
        if any(record.data == self.at for record in batch):
            self.fleet.workers["w1"].pause()


@pytest.mark.parametrize("gathered", [{}, {"batch_window": 2.0}])
@pytest.mark.parametrize("retrieval", RETRIEVALS)
def test_records_of_a_page_that_a_pause_breaks_off_keep_their_bytes_until_they_are_acked(
    new_fleet, retrieval, gathered
):
    fleet = new_fleet(shards=1)
    fleet.given, put = [], fleet.put(20)
    options = {"checkpoint_mode": "ack", "batch_size": 2, "retrieval": retrieval, **gathered}
    worker = fleet.start("w1", processor=lambda: PausingAcking(fleet, put[5]), **options)
    wait_until_paused(fleet, worker)
    assert len(fleet.given) == 6
    assert reserved(worker) == sum(len(record.data) for _, record in fleet.given), "and no others"
    for batch, record in fleet.given:
        batch.ack(record)
    assert reserved(worker) == 0
    worker.resume()
    while len(fleet.given) < 20 or reserved(worker):
        for batch, record in fleet.given:
            batch.ack(record)
        fleet.simulation.sleep(1)
    assert in_order(fleet, put)


def test_what_is_gathered_beside_records_that_are_not_acked_is_dropped_with_its_bytes(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.given = []
    options = {"checkpoint_mode": "ack", "batch_size": 4, "batch_window": 30.0}
    worker = fleet.start("w1", processor=lambda: Acking(fleet), **options)
    put = fleet.put(4)
    fleet.wait(lambda: len(fleet.given) == 4)
    more = fleet.put(3)
    fleet.simulation.sleep(5)
    before = reserved(worker)
    worker.pause()
    wait_until_paused(fleet, worker)
    assert before - reserved(worker) == sum(map(len, more))
    worker.resume()
    fleet.wait(lambda: len(fleet.given) == 7, 60.0)
    assert in_order(fleet, put + more)


def test_lanes_settle_the_rest_of_a_batch_behind_a_pause_and_repeat_none_of_it(new_fleet):
    fleet = new_fleet(shards=1)
    done, is_down = [], True

    def work(record):
        if record.data == b"r5" and is_down:
            fleet.workers["w1"].pause()
            raise OSError
        done.append(record.data)

    put = fleet.put(40)
    worker = fleet.start("w1", batch_size=20, retry_timeout=30.0, processor=handler(work, concurrency=4))
    wait_until_paused(fleet, worker)
    fleet.simulation.sleep(300)
    assert b"r5" not in done
    assert 10 < len(done) < 20
    is_down = False
    worker.resume()
    fleet.simulation.sleep(60)
    assert sorted(done) == sorted(put)
    assert not fleet.happened(LeaseLost)


@pytest.mark.parametrize("at", [4.0, 11.0, 31.0])
def test_windows_go_on_behind_a_pause_with_what_they_have_gathered(new_fleet, at):
    fleet, closed = new_fleet(shards=1), []

    def count(batch: Batch, window: Window):
        state = {"seen": [*(window.state or {}).get("seen", ()), *(one.data.decode() for one in batch)]}
        if window.is_final:
            closed.append(state["seen"])
        return state

    worker, put = fleet.start("w1", processor=handler(count, window=20)), []
    fleet.wait(lambda: state_of(worker) == "reading")
    for _ in range(30):
        put += fleet.put(1)
        fleet.simulation.sleep(1)
        at -= 1
        if at <= 0:
            worker.pause()
            fleet.simulation.sleep(7)
            worker.resume()
            at = 100
    fleet.wait(lambda: sum(map(len, closed)) == 30, 300.0)
    assert [one.encode() for window in closed for one in window] == put


# -- where a lease is in its life -------------------------------------------------------------------------------------


def test_a_worker_that_is_paused_before_its_start_takes_leases_is_ready_and_delivers_nothing(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.worker("w1")
    worker.pause()
    assert worker.paused == frozenset()
    worker.start()
    put = fleet.put(10)
    fleet.wait(lambda: worker.wait_ready(0.0))
    fleet.wait(lambda: worker.initialized)
    wait_until_paused(fleet, worker, *fleet.open_shards())
    fleet.simulation.sleep(30)
    assert worker.paused == set(fleet.open_shards())
    assert fleet.ledger.payloads == {}
    worker.resume()
    fleet.wait_delivered(put)


def test_a_pause_makes_no_worker_ready_whose_processor_cannot_begin(new_fleet):
    fleet = new_fleet(shards=1)

    class Broken(RecordingProcessor):
        def initialize(self, init):
            raise OSError

    worker = fleet.worker("w1", processor=lambda: Broken("w1", fleet.ledger), retry_timeout=300.0)
    worker.pause()
    worker.start()
    fleet.wait(lambda: fleet.happened(ProcessorRaised))
    fleet.simulation.sleep(30)
    assert not worker.wait_ready(0.0)
    assert not worker.initialized


def test_what_is_put_during_a_pause_before_the_first_read_is_not_behind_latest(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.worker("w1", initial_position="LATEST")
    worker.pause()
    worker.start()
    wait_until_paused(fleet, worker)
    put = fleet.put(10)
    fleet.simulation.sleep(400)
    worker.resume()
    fleet.wait_delivered(put)


def test_a_pause_in_initialize_holds_for_the_first_batch(new_fleet):
    fleet = new_fleet(shards=1)

    class First(RecordingProcessor):
        def initialize(self, init):
            fleet.workers["w1"].pause([init.shard_id])
            super().initialize(init)

    put = fleet.put(3)
    worker = fleet.start("w1", processor=lambda: First("w1", fleet.ledger))
    wait_until_paused(fleet, worker)
    assert fleet.ledger.payloads == {}
    worker.resume([SHARD])
    fleet.wait_delivered(put)


def test_a_child_that_waits_for_its_parents_is_paused_once_they_have_ended(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", shard_sync_interval=2.0)
    fleet.wait_delivered(fleet.put(5))
    worker.pause()
    wait_until_paused(fleet, worker)
    fleet.kinesis.split(STREAM, SHARD)
    fleet.simulation.sleep(10)
    put = fleet.put(10)
    fleet.simulation.sleep(30)
    assert not fleet.rows()[SHARD].is_ended
    worker.resume([SHARD])
    children = fleet.open_shards()
    wait_until_paused(fleet, worker, *children)
    assert worker.paused == set(children), "they came while the worker is paused"
    assert not set(put) & fleet.ledger.payloads.keys()
    worker.resume()
    fleet.wait_delivered(put)
    assert fleet.ledger.duplicates == 0


def test_the_end_of_a_shard_that_was_read_to_its_end_is_written_though_it_is_paused(new_fleet):
    fleet = new_fleet(shards=1)

    class Ending(RecordingProcessor):
        def shard_ended(self, end):
            fleet.workers["w1"].pause([end.shard_id])
            super().shard_ended(end)

    worker = fleet.start("w1", shard_sync_interval=2.0, processor=lambda: Ending("w1", fleet.ledger))
    fleet.wait_delivered(fleet.put(5))
    fleet.kinesis.split(STREAM, SHARD)
    fleet.simulation.sleep(10)
    fleet.wait_delivered(fleet.put(5))
    assert worker.paused == frozenset()


@pytest.mark.parametrize("steps", range(12))
def test_a_shard_that_is_resumed_before_the_pause_took_effect_goes_on(new_fleet, steps):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", max_records=4, batch_size=1)
    put = fleet.put(30)
    fleet.simulation.sleep(steps * 0.3)
    worker.pause()
    worker.resume()
    fleet.wait_delivered(put)
    assert in_order(fleet, put)


def test_a_shard_that_is_lost_and_taken_again_is_not_paused(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", failover_time=5.0)
    fleet.wait_delivered(fleet.put(3))
    worker.pause([SHARD])
    wait_until_paused(fleet, worker)
    lose(fleet, worker)
    put = fleet.put(3)
    fleet.wait_delivered(put)
    assert fleet.ledger.by("w1")[-3:] == put
    assert worker.paused == frozenset()


def test_a_shard_that_is_lost_and_taken_again_by_a_paused_worker_is_paused(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", failover_time=5.0)
    fleet.wait_delivered(fleet.put(3))
    worker.pause()
    wait_until_paused(fleet, worker)
    worker.resume([SHARD])
    fleet.wait(lambda: state_of(worker) == "reading")
    lose(fleet, worker)
    wait_until_paused(fleet, worker)
    put = fleet.put(3)
    fleet.simulation.sleep(20)
    assert not set(put) & fleet.ledger.payloads.keys()
    assert worker.paused == {SHARD}


def lose(fleet, worker):
    """Let another owner take the lease, and be gone."""
    item = fleet.items()[SHARD]
    counter = int(item["leaseCounter"]["N"])
    fleet.dynamodb.put_raw(
        "orders-app", {**item, "leaseOwner": {"S": "other"}, "leaseCounter": {"N": str(counter + 1)}}
    )
    fleet.wait(lambda: fleet.happened(LeaseLost))
    fleet.wait(lambda: fleet.owners()[SHARD] == worker.worker_id)


# -- leases go on --------------------------------------------------------------------------------------------------


def test_a_stop_while_paused_ends_in_time_writes_the_checkpoint_and_another_owner_reads(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", checkpoint_mode="interval", checkpoint_interval=500.0)
    fleet.wait_delivered(fleet.put(5))
    last = fleet.ledger.delivered[-1][1].position
    worker.pause()
    wait_until_paused(fleet, worker)
    put, began = fleet.put(5), fleet.simulation.now
    worker.stop()
    assert fleet.simulation.now - began < 1.0
    assert fleet.rows()[SHARD].checkpoint == last
    assert fleet.rows()[SHARD].owner is None
    fleet.start("w2")
    fleet.wait_delivered(put)
    assert fleet.ledger.duplicates == 0


def test_a_checkpoint_that_becomes_due_while_a_shard_is_paused_is_written(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", checkpoint_mode="interval", checkpoint_interval=30.0)
    fleet.wait_delivered(fleet.put(5))
    last = fleet.ledger.delivered[-1][1].position
    worker.pause()
    fleet.wait(lambda: fleet.rows()[SHARD].checkpoint == last, 40.0)


def test_a_paused_lease_is_stolen_by_a_worker_that_joins_and_read_there(new_fleet):
    fleet = new_fleet(shards=4)
    worker = fleet.start("w1", failover_time=5.0)
    fleet.wait(lambda: len(worker.leases) == 4)
    worker.pause()
    wait_until_paused(fleet, worker, *fleet.open_shards())
    fleet.start("w2", failover_time=5.0)
    fleet.wait(lambda: fleet.load() == {"w1": 2, "w2": 2})
    put = fleet.put(40)
    fleet.simulation.sleep(30)
    theirs = {key for key, owner in fleet.owners().items() if owner == "w2"}
    assert {record.shard_id for _, record in fleet.ledger.delivered} == theirs
    worker.resume()
    fleet.wait_delivered(put)


def test_a_paused_lease_that_its_next_owner_asks_for_is_handed_over(new_fleet):
    """As a leader of KCL 3.x does: the owner in the row is the next one, and this worker is the one of the checkpoint."""
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", checkpoint_mode="interval", checkpoint_interval=500.0)
    fleet.wait_delivered(fleet.put(5))
    last = fleet.ledger.delivered[-1][1].position
    worker.pause()
    wait_until_paused(fleet, worker)
    item = fleet.items()[SHARD]
    counter = {"N": str(int(item["leaseCounter"]["N"]) + 1)}
    asked = {**item, "leaseOwner": {"S": "next"}, "checkpointOwner": {"S": "w1"}, "leaseCounter": counter}
    fleet.dynamodb.put_raw(TABLE, asked)
    fleet.wait(lambda: "checkpointOwner" not in fleet.items()[SHARD], 15.0)
    row = fleet.rows()[SHARD]
    assert (row.owner, row.checkpoint) == ("next", last)


# -- positions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retrieval", RETRIEVALS)
def test_an_iterator_that_expires_in_a_pause_is_opened_again_at_its_place(new_fleet, retrieval):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", retrieval=retrieval)
    put = fleet.put(10)
    fleet.wait_delivered(put)
    worker.pause()
    more = fleet.put(10)
    fleet.simulation.sleep(600)
    worker.resume()
    fleet.wait_delivered(more)
    assert in_order(fleet, put + more)
    assert not fleet.happened(DataLost)


@pytest.mark.parametrize("retrieval", RETRIEVALS)
def test_records_that_retention_takes_in_a_pause_are_reported_as_lost(new_fleet, retrieval):
    ahead, fleets = [0], []

    def clock():
        seconds = fleets[0].simulation.now if fleets else 0.0
        return EPOCH_MILLIS + int((seconds + ahead[0]) * 1000)

    fleet = new_fleet(shards=1, clock=clock)
    fleets.append(fleet)
    worker = fleet.worker("w1", retrieval=retrieval)
    worker._adapters[1].server_time_millis = lambda: clock() // 1000 * 1000
    worker.start()
    fleet.wait_delivered(fleet.put(10))
    worker.pause()
    wait_until_paused(fleet, worker)
    fleet.put(10)
    fleet.simulation.sleep(10)
    ahead[0] = 25 * 3600
    put = fleet.put(10)
    worker.resume()
    fleet.wait_delivered(put)
    assert [event.shard for event in fleet.happened(DataLost)] == [SHARD]


# -- what is said of it -------------------------------------------------------------------------------------------------


def test_the_status_says_which_shards_are_paused(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1")
    fleet.wait(lambda: len(worker.leases) == 2)
    worker.pause([SHARD])
    wait_until_paused(fleet, worker)
    assert [(lease.paused, lease.state) for lease in worker.status().leases] == [
        (True, "paused"),
        (False, "reading"),
    ]


def test_a_shard_that_could_not_be_read_is_no_trouble_while_it_is_paused(new_fleet):
    fleet = new_fleet(shards=1)
    worker, is_down = fleet.worker("w1"), False
    stream = worker._adapters[1]
    fetch = stream.fetch

    def fails(*position):
        if is_down:
            raise TemporaryError("no answer")
        return fetch(*position)

    stream.fetch = fails
    worker.start()
    fleet.wait_delivered(fleet.put(1))
    is_down = True
    fleet.wait(lambda: worker.status().troubles)
    worker.pause()
    fleet.wait(lambda: not worker.status().troubles)
    assert worker.status().leases[0].state == "paused"


# -- arguments -----------------------------------------------------------------------------------------------------------


def test_shards_that_are_not_in_hand_are_left_out(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(1))
    worker.pause(["shardId-000000000077"])
    worker.pause([])
    assert worker.paused == frozenset()
    worker.pause({SHARD, "x"})
    assert worker.paused == {SHARD}
    worker.resume(iter([SHARD]))
    assert worker.paused == frozenset()


@pytest.mark.parametrize(
    ("shards", "words"),
    [
        (SHARD, r"is one text.*Do: \['shardId"),
        ([SHARD, 7], "not of type int"),
        (7, "A int is no collection"),
        ([[]], "no"),
    ],
)
def test_what_is_no_collection_of_texts_is_refused(new_fleet, shards, words):
    worker = new_fleet(shards=1).worker("w1")
    for call in (worker.pause, worker.resume):
        with pytest.raises(ConfigError, match=words):
            call(shards)
