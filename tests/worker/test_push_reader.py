"""Reading by enhanced fan-out: pushed records, subscriptions that end, are taken over or say nothing, and hand-overs."""

from contextlib import suppress
from itertools import pairwise

import pytest

from pykcl import ConfigError
from pykcl.errors import PositionRefused, SetupError, SubscriptionOver, TemporaryError
from pykcl.events import (
    DataLost,
    FailureLasted,
    FailureStarted,
    LeaseLost,
    LeaseReleased,
    SubscriptionContested,
)
from pykcl.interfaces import Fetched
from pykcl.local.errors import AwsError
from pykcl.model.kpl import UserRecord, aggregate
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.testing.runtime import EPOCH_MILLIS
from pykcl.worker.push_reader import PushReader

SHARD = "shardId-000000000000"
DAY = 24 * 3600


class Subscriptions:
    """Every subscription of one worker: (when it was asked for, its start). alter: makes another one of each."""

    def __init__(self, fleet, worker, alter=lambda subscription: subscription):
        self.fleet, self.seen, self.alter = fleet, [], alter
        self.stream = worker._adapters[1]
        self._subscribe, self.stream.subscribe = self.stream.subscribe, self

    def __call__(self, shard_id, start, on_ready):
        self.seen.append((self.fleet.simulation.now, start))
        return self.alter(self._subscribe(shard_id, start, on_ready))

    @property
    def times(self):
        return [at for at, _ in self.seen]

    @property
    def kinds(self):
        return [start.kind for _, start in self.seen]


class Silent:
    """A half-open subscription."""

    def __init__(self, inner):
        self.inner, self.is_closed = inner, False
        inner._inner.on_change = lambda: None

    def poll(self):
        return None

    def close(self):
        self.is_closed = True
        self.inner.close()


class Broken(Silent):
    def poll(self):
        raise TemporaryError("the connection was reset")


def started(fleet, name="w1", alter=lambda subscription: subscription, **options):
    """Start a worker; return it and its subscriptions."""
    worker = fleet.worker(name, retrieval="fanout", **options)
    subscriptions = Subscriptions(fleet, worker, alter)
    worker.start()
    return worker, subscriptions


def in_order(fleet, payloads):
    """Return True if each record was delivered once, and all in the order in which they were put."""
    return [record.data for _, record in fleet.ledger.delivered] == payloads


def test_records_are_delivered_as_they_are_pushed(new_fleet):
    fleet = new_fleet(shards=2)
    put = fleet.put(20)
    started(fleet)
    fleet.wait_delivered(put)
    for _ in range(20):
        began = fleet.simulation.now
        fleet.wait_delivered(fleet.put(1))
        assert fleet.simulation.now - began < 0.05
        fleet.simulation.sleep(1)
    assert fleet.ledger.duplicates == 0


def test_a_backlog_comes_without_a_pause_between_its_events(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(3000)
    started(fleet)
    fleet.wait(lambda: fleet.ledger.delivered)
    began = fleet.simulation.now
    fleet.wait_delivered(put)
    assert fleet.simulation.now - began < 0.05, "six events"
    assert in_order(fleet, put)


@pytest.mark.parametrize("options", [
    {"batch_window": 1.0, "batch_size": 100}, {"checkpoint_mode": "interval"}, {"max_attempts": 2, "dead_letters": "discard"},
    {"call_with_empty_batches": True},
])  # fmt: skip
def test_however_records_are_settled_each_comes_once_and_the_buffer_is_given_back(new_fleet, options):
    fleet = new_fleet(shards=1, subscription_seconds=7)
    worker, _ = started(fleet, **options)
    put = []
    for _ in range(10):
        put += fleet.put(5)
        fleet.simulation.sleep(2)
    fleet.wait_delivered(put)
    assert in_order(fleet, put)
    memory = worker._manager._context.memory
    worker.stop()
    assert memory._free == worker.config.max_buffered_bytes


def test_what_is_gathered_waits_for_more_and_no_longer_than_its_window(new_fleet):
    fleet = new_fleet(shards=1)
    started(fleet, batch_window=2.0, batch_size=100)
    fleet.wait_delivered(fleet.put(1))
    began, put = fleet.simulation.now, []
    for _ in range(3):
        put += fleet.put(1)
        fleet.simulation.sleep(0.5)
    fleet.wait_delivered(put)
    assert 1.9 <= fleet.simulation.now - began <= 2.1
    assert sum(call[1] == "process_records" for call in fleet.ledger.calls) == 2


def test_records_that_are_acked_late_hold_the_checkpoint_and_the_reading_goes_on(new_fleet):
    fleet = new_fleet(shards=1)
    batches = []

    class Keeps(RecordingProcessor):
        def process_records(self, batch):
            super().process_records(batch)
            batches.append(batch)

    started(fleet, checkpoint_mode="ack", processor=lambda: Keeps("w1", fleet.ledger))
    for _ in range(3):
        fleet.wait_delivered(fleet.put(1))
    for batch in batches[1:]:
        batch.ack(batch[0])
    fleet.simulation.sleep(3)
    assert fleet.rows()[SHARD].checkpoint.is_sentinel
    batches[0].ack(batches[0][0])
    last = batches[-1][-1].sequence_number
    fleet.wait(lambda: fleet.rows()[SHARD].checkpoint.sequence_number == last, 5)


def test_subscriptions_that_end_two_hundred_times_leave_no_gap_and_repeat_nothing(new_fleet):
    fleet = new_fleet(shards=1, subscription_seconds=3)
    _, subscriptions = started(fleet)
    put = []
    while len(subscriptions.seen) < 200:
        put += fleet.put(1)
        fleet.simulation.sleep(fleet.simulation.rng.uniform(0.0, 4.0))
    fleet.wait_delivered(put)
    assert in_order(fleet, put)
    assert min(later - earlier for earlier, later in pairwise(subscriptions.times)) >= 1
    assert set(subscriptions.kinds[1:]) == {"AFTER_SEQUENCE_NUMBER"}


def test_a_subscription_is_renewed_before_its_five_minutes_are_over_and_nothing_is_late(new_fleet):
    fleet = new_fleet(shards=4)
    _, subscriptions = started(fleet)
    fleet.simulation.sleep(300)
    renewed = subscriptions.times[4:]
    assert len(renewed) == 4
    assert all(270 <= at - subscriptions.times[0] <= 296 for at in renewed)
    assert len({round(at) for at in renewed}) > 1, "not all at once"
    began = fleet.simulation.now
    fleet.wait_delivered(fleet.put(4))
    assert fleet.simulation.now - began < 0.05


def test_a_silent_subscription_is_given_up_within_35_seconds_though_heartbeats_go_on(new_fleet):
    fleet = new_fleet(shards=1)
    made = []

    def silent_at_first(subscription):
        made.append(subscription if made else Silent(subscription))
        return made[-1]

    started(fleet, alter=silent_at_first)
    fleet.wait(lambda: made)
    put = fleet.put(5)
    began = fleet.simulation.now
    fleet.wait_delivered(put)
    assert 29 <= fleet.simulation.now - began <= 35
    assert made[0].is_closed
    assert not fleet.happened(LeaseLost)


def test_the_status_says_since_when_a_shard_is_subscribed_to_and_since_when_that_says_nothing(new_fleet):
    fleet = new_fleet(shards=1)
    says_nothing = []

    class Quiet(Silent):
        def poll(self):
            return None if says_nothing else self.inner.poll()

        def __init__(self, inner):
            self.inner = inner

    worker, _ = started(fleet, alter=Quiet)
    fleet.wait_delivered(fleet.put(1))
    fleet.simulation.sleep(100)
    (lease,) = worker.status().leases
    assert 99 <= lease.subscribed_for <= 102
    assert lease.silent_for is None
    says_nothing.append(True)
    fleet.simulation.sleep(75)
    (lease,) = worker.status().leases
    assert lease.subscribed_for < 20, "it is the third one"
    assert 70 <= lease.silent_for <= 80
    (failure,) = worker.status().troubles
    assert failure.cause.startswith(f"The subscription to {SHARD} said nothing for 30 s")
    (row,) = fleet.rows().values()
    assert row.consumer == TABLE
    assert row.standstill.cause == "subscriptions say nothing"
    says_nothing.clear()
    fleet.wait_delivered(fleet.put(1), 60)
    (lease,) = worker.status().leases
    assert lease.silent_for is None
    assert not worker.status().troubles
    fleet.simulation.sleep(20)
    (row,) = fleet.rows().values()
    assert row.standstill is None


def test_two_mib_a_second_while_a_processor_works_for_a_minute_lose_nothing_and_stay_within_the_limit(
    new_fleet,
):
    fleet = new_fleet(shards=1)
    lowest = []

    def works(batch):
        memory = worker._manager._context.memory
        lowest.append(memory._free)
        if len(lowest) == 2:
            fleet.simulation.sleep(60)

    worker, subscriptions = started(
        fleet,
        max_buffered_bytes=28 * 1024 * 1024,
        processor=lambda: RecordingProcessor("w1", fleet.ledger, works),
    )
    put = []
    for second in range(70):
        for part in range(4):
            data = f"{second}/{part}/".encode() + bytes(512 * 1024)
            fleet.kinesis.put_record(STREAM, data, "key")
            put.append(data)
        fleet.simulation.sleep(1)
    fleet.wait_delivered(put)
    assert in_order(fleet, put)
    assert min(lowest) >= 26 * 1024 * 1024, "one event at a time"
    assert len(subscriptions.seen) == 1
    assert not fleet.happened(FailureStarted)


def stopped_inside_an_aggregate(fleet):
    """Let a worker checkpoint the third of ten user records and stop; return the payloads of the others."""
    users = [UserRecord("key", None, f"u{number}".encode()) for number in range(10)]
    (blob,) = aggregate(users)
    fleet.kinesis.put_record(STREAM, blob.data, blob.partition_key)

    def stop_after_three(batch):
        batch.checkpointer.checkpoint(batch[2])
        raise RuntimeError

    worker, _ = started(
        fleet,
        checkpoint_mode="manual",
        retry_timeout=0.0,
        processor=lambda: RecordingProcessor("w1", fleet.ledger, stop_after_three),
    )
    fleet.wait(lambda: [row.checkpoint.sub_sequence_number for row in fleet.rows().values()] == [2])
    worker.stop()
    return [user.data for user in users[3:]]


@pytest.mark.parametrize("is_ended_there", [False, True])
def test_a_checkpoint_inside_an_aggregate_is_resumed_at_the_next_of_its_records(new_fleet, is_ended_there):
    """Also where an empty event ends at that record. A continuation is the place to go on after: the record is not
    delivered, and half of it is still to come."""
    fleet = new_fleet(shards=1)
    left = stopped_inside_an_aggregate(fleet)
    number = fleet.rows()[SHARD].checkpoint.sequence_number
    events = [Fetched([], number, 1000, (), 0)]

    class Ending(Silent):
        def poll(self):
            if events:
                return events.pop()
            raise SubscriptionOver

    endings = [Ending] * is_ended_there
    _, subscriptions = started(fleet, "w2", lambda inner: endings.pop()(inner) if endings else inner)
    fleet.wait_delivered(left)
    assert in_order(fleet, left)
    assert set(subscriptions.kinds) == {"AT_SEQUENCE_NUMBER"}
    assert bool(events) != is_ended_there
    assert not fleet.happened(DataLost)


def test_a_start_at_latest_whose_connection_breaks_before_the_first_event_loses_nothing(new_fleet):
    fleet = new_fleet(shards=1)
    first, _ = started(fleet)
    fleet.wait_delivered(fleet.put(1, "before"))
    first.stop()
    # As Java writes it: no note of the time.
    (row,) = fleet.items().values()
    del row["pykcl"]
    fleet.dynamodb.put_raw(TABLE, {**row, "checkpoint": {"S": "LATEST"}})
    old = fleet.put(3, "old")
    fleet.simulation.sleep(5)
    subscribed = []

    def broken_at_first(subscription):
        subscribed.append(subscription)
        return Broken(subscription) if len(subscribed) < 3 else subscription

    _, subscriptions = started(fleet, "w2", alter=broken_at_first, initial_position="LATEST")
    fleet.wait(lambda: subscribed)
    fleet.wait_delivered(fleet.put(10, "new"))
    assert not set(old) & fleet.ledger.payloads.keys()
    assert subscriptions.kinds[0] in ("LATEST", "AT_TIMESTAMP")
    assert set(subscriptions.kinds[1:]) == {"AT_TIMESTAMP"}


def test_a_call_that_failed_may_have_begun_so_a_second_one_starts_at_the_time_of_the_first(new_fleet):
    fleet = new_fleet(shards=1)
    began, starts = [], []
    worker = fleet.worker("w1", retrieval="fanout", initial_position="LATEST")
    stream = worker._adapters[1]
    subscribe = stream.subscribe

    def unanswered(shard_id, start, on_ready):
        began.append(fleet.simulation.now)
        starts.append(start)
        if len(began) < 4:
            raise TemporaryError("no answer")
        return subscribe(shard_id, start, on_ready)

    stream.subscribe = unanswered
    worker.start()
    fleet.wait(lambda: began)
    fleet.wait_delivered(fleet.put(3))
    assert len(set(starts)) == 1
    assert min(later - earlier for earlier, later in pairwise(began)) >= 1


def test_a_subscription_that_ends_before_its_first_event_is_a_failure_and_asked_for_again(new_fleet):
    """As over the wire: nobody takes it for the end of its five minutes."""
    fleet = new_fleet(shards=1, subscription_seconds=0)
    started(fleet)
    fleet.wait(lambda: fleet.happened(FailureStarted))
    fleet.kinesis.subscription_seconds = 300
    put = fleet.put(5)
    fleet.wait_delivered(put)
    assert in_order(fleet, put)


def test_a_continuation_that_kinesis_refuses_to_subscribe_to_is_replaced_by_the_last_record(new_fleet):
    fleet = new_fleet(shards=1, subscription_seconds=10)
    _, subscriptions = started(fleet)
    put = fleet.put(5)
    fleet.wait_delivered(put)
    subscribe = subscriptions._subscribe

    def refused(shard_id, start, on_ready):
        if start.kind == "AFTER_SEQUENCE_NUMBER":
            raise PositionRefused("no record has that number")
        return subscribe(shard_id, start, on_ready)

    subscriptions._subscribe = refused
    fleet.simulation.sleep(15)
    put += fleet.put(5)
    fleet.wait_delivered(put)
    assert subscriptions.kinds[1:3] == ["AFTER_SEQUENCE_NUMBER", "AT_SEQUENCE_NUMBER"]
    assert in_order(fleet, put)
    assert not fleet.happened(FailureStarted)
    assert not fleet.happened(DataLost)


def test_a_steal_ends_the_subscription_of_the_robbed_worker_at_once_and_the_thief_reads_in_order(new_fleet):
    fleet = new_fleet(shards=1)
    started(fleet)
    put = fleet.put(5)
    fleet.wait_delivered(put)
    fleet.simulation.sleep(20)
    started(fleet, "w2")
    (row,) = fleet.items().values()
    # Another worker takes the lease, and subscribes sooner than the next heartbeat of its last owner is due.
    counter = str(int(row["leaseCounter"]["N"]) + 1)
    fleet.dynamodb.put_raw(TABLE, {**row, "leaseOwner": {"S": "w3"}, "leaseCounter": {"N": counter}})
    began = fleet.simulation.now
    consumer = fleet.kinesis.list_consumers(STREAM)[0].arn
    fleet.kinesis.subscribe(consumer, SHARD, "LATEST")
    fleet.wait(lambda: fleet.happened(LeaseLost))
    assert fleet.simulation.now - began < 0.1
    more = fleet.put(5, "more")
    fleet.wait_delivered(more, 60)
    assert in_order(fleet, put + more)


def test_a_stopped_worker_hands_over_and_the_other_one_reads_within_six_seconds(new_fleet):
    fleet = new_fleet(shards=2)
    first, _ = started(fleet)
    put = fleet.put(10)
    fleet.wait_delivered(put)
    _, second = started(fleet, "w2")
    fleet.wait(lambda: len(set(fleet.owners().values())) == 2)
    fleet.simulation.sleep(20)
    first.stop()
    began = fleet.simulation.now
    fleet.wait_delivered(fleet.put(10, "more"))
    assert fleet.simulation.now - began < 6
    assert fleet.ledger.duplicates == 0
    assert second.kinds[0] == "AT_SEQUENCE_NUMBER"


def test_a_new_owner_asks_once_a_second_while_the_last_subscription_is_too_young(new_fleet):
    fleet = new_fleet(shards=1)
    worker, _ = started(fleet)
    fleet.wait_delivered(fleet.put(1))
    worker.stop()
    _, second = started(fleet, "w2")
    fleet.wait(lambda: second.seen)
    began = second.times[0]
    fleet.wait_delivered(fleet.put(1))
    assert fleet.simulation.now - began < 7
    assert min((later - earlier for earlier, later in pairwise(second.times)), default=1) >= 1
    assert not fleet.happened(SubscriptionContested)


def fought_over(fleet, seconds, pause):
    """Let another application subscribe to the shard with the same consumer; return what was put meanwhile."""
    consumer, put = fleet.kinesis.list_consumers(STREAM)[0].arn, []
    until = fleet.simulation.now + seconds
    while fleet.simulation.now < until:
        with suppress(AwsError):
            fleet.kinesis.subscribe(consumer, SHARD, "LATEST")
        put += fleet.put(1)
        fleet.simulation.sleep(pause)
    return put


@pytest.mark.parametrize("pause", [5.5, 1.1])
def test_another_application_with_the_same_consumer_is_not_fought_in_a_loop_and_nothing_is_lost(
    new_fleet, pause
):
    fleet = new_fleet(shards=1)
    _, subscriptions = started(fleet)
    put = fleet.put(1)
    fleet.wait_delivered(put)
    calls = len(subscriptions.seen)
    put += fought_over(fleet, 120, pause)
    assert len(subscriptions.seen) - calls <= 24
    fleet.wait_delivered(put)
    assert in_order(fleet, put)
    assert not fleet.happened(LeaseLost)


def test_another_application_with_the_same_consumer_is_reported_once(new_fleet):
    fleet = new_fleet(shards=1)
    started(fleet)
    fleet.wait_delivered(fleet.put(1))
    fought_over(fleet, 120, 5.5)
    assert len(fleet.happened(SubscriptionContested)) == 1


def test_a_split_and_a_merge_are_followed_parents_first(new_fleet):
    fleet = new_fleet(shards=1)
    started(fleet)
    put = fleet.put(20, "first")
    fleet.wait_delivered(put)
    fleet.kinesis.split(STREAM, SHARD)
    put += fleet.put(20, "split")
    fleet.kinesis.merge(STREAM, *fleet.open_shards())
    put += fleet.put(20, "merged")
    fleet.wait_delivered(put)
    assert fleet.ledger.duplicates == 0
    ended = [shard for _, method, shard in fleet.ledger.calls if method == "shard_ended"]
    assert ended[0] == SHARD
    assert len(ended) == 3
    first_of_merged = next(
        i for i, (_, r) in enumerate(fleet.ledger.delivered) if r.data.startswith(b"merged")
    )
    assert all(r.data.startswith(b"merged") for _, r in fleet.ledger.delivered[first_of_merged:])


def test_records_that_were_trimmed_before_a_restart_are_reported(new_fleet):
    fleet = new_fleet(shards=1)
    worker, _ = started(fleet)
    fleet.wait_delivered(fleet.put(3))
    worker.stop()
    lost = fleet.put(3, "lost")
    fleet.simulation.sleep(DAY + 60)
    put = fleet.put(3, "new")
    started(fleet, "w2")
    fleet.wait_delivered(put)
    (event,) = fleet.happened(DataLost)
    assert event.shard == SHARD
    assert not set(lost) & fleet.ledger.payloads.keys()


def started_before_a_gap(fleet, *, kept=False):
    """Start a worker whose first page takes it a day, in which the records behind it are trimmed, unless they are kept."""
    passed = [0]

    def clock():
        return EPOCH_MILLIS + int((fleet.simulation.now + passed[0]) * 1000)

    def slow(batch):
        if not fleet.ledger.delivered:
            fleet.put(5, "next")
            passed[0] += DAY - 3600
            fleet.put(5, "kept")
            passed[0] += 1800 if kept else 7200

    fleet.kinesis._now = clock
    fleet.put(600, "page")
    worker = fleet.worker(
        "w1", retrieval="fanout", processor=lambda: RecordingProcessor("w1", fleet.ledger, slow)
    )
    worker._adapters[1].server_time_millis = lambda *, as_seen=False: clock() // 1000 * 1000
    worker.start()


def are_read_to_the_end(fleet):
    return fleet.ledger.delivered and fleet.ledger.delivered[-1][1].data.startswith(b"kept")


@pytest.mark.parametrize("kept", [False, True])
def test_records_that_are_trimmed_while_a_processor_works_are_reported_once(new_fleet, kept):
    fleet = new_fleet(shards=1)
    started_before_a_gap(fleet, kept=kept)
    fleet.wait(lambda: are_read_to_the_end(fleet))
    kinds = {record.data.rstrip(b"0123456789") for _, record in fleet.ledger.delivered}
    assert len(fleet.happened(DataLost)) == (not kept)
    assert kinds == ({b"page", b"next", b"kept"} if kept else {b"page", b"kept"})
    assert fleet.ledger.duplicates == 0


def test_the_search_for_trimmed_records_is_not_sent_in_a_loop_while_others_use_up_the_shard(
    new_fleet,
):
    fleet, refused = new_fleet(shards=1), []

    def throttle(operation, *_):
        if operation == "GetRecords" and len(refused) < 10:
            refused.append(fleet.simulation.now)
            raise AwsError("ProvisionedThroughputExceededException", "slow down")

    fleet.kinesis.fault = throttle
    started_before_a_gap(fleet)
    fleet.wait(lambda: are_read_to_the_end(fleet))
    assert all(later - earlier >= 1.0 for earlier, later in pairwise(refused))
    assert len(refused) == 10


def test_a_stop_wakes_an_idle_shard_and_ends_its_subscription_before_the_lease_is_let_go(
    new_fleet, monkeypatch
):
    order = []
    fleet = new_fleet(
        shards=3, on_event=lambda event: isinstance(event, LeaseReleased) and order.append("released")
    )
    end = PushReader._end
    monkeypatch.setattr(PushReader, "_end", lambda self: (order.append("ended"), end(self))[1])
    worker, _ = started(fleet)
    fleet.wait_delivered(fleet.put(9))
    fleet.simulation.sleep(7)
    order.clear()
    began = fleet.simulation.now
    worker.stop()
    assert fleet.simulation.now - began < 1
    assert order.index("ended") < order.index("released")
    assert not any(task.name.startswith("pykcl") for task in fleet.simulation.unfinished("w1"))


def test_a_consumer_that_is_deleted_is_registered_again_once_a_minute_and_nothing_is_lost(new_fleet):
    fleet = new_fleet(shards=3)
    started(fleet)
    put = fleet.put(9)
    fleet.wait_delivered(put)
    calls = []
    fleet.kinesis.fault = lambda operation, *_: (
        operation == "RegisterStreamConsumer" and calls.append(fleet.simulation.now)
    )
    for _ in range(2):
        fleet.kinesis.deregister_consumer(STREAM, name=TABLE)
        put += fleet.put(9)
        fleet.wait_delivered(put)
    assert len(calls) == 2
    assert calls[1] - calls[0] >= 60
    assert fleet.ledger.duplicates == 0


def test_a_call_that_failed_while_a_deleted_consumer_was_made_again_is_repeated_at_once(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.worker("w1", retrieval="fanout")
    consumer, now = worker._connect().consumer, worker._runtime.monotonic
    made = []

    def takes_long():
        fleet.simulation.sleep(8)
        made.append(now())

    consumer.stream.prepare_consumer = takes_long
    first_failed = now()
    consumer.prepare_again(first_failed)
    second_failed = now() - 1
    assert first_failed < second_failed < made[0]
    consumer.prepare_again(second_failed)
    assert len(made) == 1
    with pytest.raises(TemporaryError, match="once a minute"):
        consumer.prepare_again(now() + 1)


def test_a_consumer_that_is_deleted_and_may_not_be_registered_needs_a_person_and_nothing_is_lost(new_fleet):
    fleet = new_fleet(shards=2)
    worker, _ = started(fleet)
    stream = worker._adapters[1]
    put = fleet.put(9)
    fleet.wait_delivered(put)
    prepare = stream.prepare_consumer

    def only_find():
        if not fleet.kinesis.list_consumers(STREAM, operation=None):
            raise SetupError("no consumer, and this worker may not register it")
        prepare()

    stream.prepare_consumer = only_find
    fleet.kinesis.deregister_consumer(STREAM, name=TABLE)
    put += fleet.put(9)
    fleet.wait(lambda: fleet.happened(FailureLasted))
    (event,) = fleet.happened(FailureLasted)
    assert (event.what, event.failing) == ("reading", 2)
    assert set(fleet.owners().values()) == {"w1"}, "its leases stay"
    fleet.kinesis.register_consumer(STREAM, TABLE)
    fleet.wait_delivered(put)
    assert fleet.ledger.duplicates == 0


@pytest.mark.parametrize("retrieval", ["fanout", "fanout-or-polling"])
def test_a_consumer_that_is_being_created_for_half_a_minute_is_waited_for_unless_records_may_be_polled(
    new_fleet, retrieval
):
    fleet = new_fleet(shards=2, state_seconds=30)
    fleet.simulation.sleep(31)
    put, began = fleet.put(9), fleet.simulation.now
    worker = fleet.worker("w1", retrieval=retrieval)
    subscriptions = Subscriptions(fleet, worker)
    worker.start()
    fleet.wait_delivered(put)
    took = fleet.simulation.now - began
    assert 30 <= took < 45 if retrieval == "fanout" else took < 15
    fleet.wait(lambda: len(subscriptions.seen) == 2)
    fleet.wait_delivered(fleet.put(9))
    assert fleet.ledger.duplicates == 0


def test_a_stream_that_only_answers_reads_is_refused_at_the_start(new_fleet):
    fleet = new_fleet()
    worker = fleet.worker("w1", retrieval="fanout")
    table, stream = worker._adapters

    class OnlyReads:
        name = stream.name
        describe, list_shards, open, fetch = stream.describe, stream.list_shards, stream.open, stream.fetch
        server_time_millis = stream.server_time_millis

    worker._adapters = table, OnlyReads()
    with pytest.raises(
        ConfigError, match=r"retrieval='fanout' needs a stream that pushes records, and OnlyReads only"
    ):
        worker.start()
