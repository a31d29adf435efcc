"""Reading by enhanced fan-out where that can be, and by polls where it cannot."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from pykcl.errors import SetupError, TemporaryError
from pykcl.events import DataLost, FanOutRestored, FanOutUnavailable
from pykcl.interfaces import Fetched
from pykcl.local import consumers
from pykcl.local.errors import AwsError
from pykcl.model.checkpoint import ReadFrom
from pykcl.testing.fleet import TABLE
from pykcl.worker.fallback_reader import FallbackReader
from pykcl.worker.reading_place import Page, ReadingPlace
from tests.worker.reading import SHARD, Reading

DAY = 24 * 3600


class Kinesis:
    """The calls of one worker, with their times. refused: raises an error for a call of `prepare` or `subscribe`."""

    def __init__(self, fleet, worker):
        self.fleet, self.calls, self.starts = fleet, [], []
        self.refused = lambda operation: None
        stream = worker._adapters[1]
        self._originals = {name: getattr(stream, name) for name in ("prepare_consumer", "subscribe", "open")}
        for name in self._originals:
            setattr(stream, name, lambda *given, name=name: self._call(name, given))

    def _call(self, name, given):
        self.calls.append((name, self.fleet.simulation.now))
        if name != "prepare_consumer":
            self.starts.append((name, given[1].kind))
        error = self.refused(name)
        if error is not None:
            raise error
        return self._originals[name](*given)

    def times(self, name):
        return [at for called, at in self.calls if called == name]


def started(fleet, refused=lambda operation: None, **options):
    """Start a worker; return its calls to Kinesis."""
    worker = fleet.worker("w1", retrieval="fanout-or-polling", **options)
    kinesis = Kinesis(fleet, worker)
    kinesis.refused = refused
    worker.start()
    return kinesis


def fails(operation, error=TemporaryError):
    return lambda called: error(f"{operation} fails") if called == operation else None


def polls(fleet):
    """Count the reads by polls from now on; return the counter."""
    count = []
    fleet.kinesis.fault = lambda operation, *_: operation == "GetRecords" and count.append(1)
    return count


def put_until(fleet, condition, pause=3.0, timeout=2000.0):
    """Put a record now and then until the condition holds; return the payloads."""
    put, until = [], fleet.simulation.now + timeout
    while not condition():
        assert fleet.simulation.now < until
        put += fleet.put(1)
        fleet.simulation.sleep(fleet.simulation.rng.uniform(0.0, 2 * pause))
    return put


def in_order(fleet, payloads):
    """Return True if each record was delivered once, and all in the order in which they were put."""
    return [record.data for _, record in fleet.ledger.delivered] == payloads


def test_records_are_pushed_where_they_can_be(new_fleet):
    fleet = new_fleet(shards=2)
    count = polls(fleet)
    started(fleet)
    fleet.wait_delivered(fleet.put(20))
    assert not count
    assert not fleet.happened(FanOutUnavailable)
    assert not fleet.happened(FanOutRestored)


@pytest.mark.parametrize(("error", "tried_after"), [(SetupError, 600), (TemporaryError, 60)])
def test_a_consumer_that_cannot_be_registered_is_asked_for_again_and_the_shards_are_polled(
    new_fleet, error, tried_after
):
    fleet = new_fleet(shards=3)
    kinesis = started(fleet, fails("prepare_consumer", error))
    put = put_until(fleet, lambda: len(kinesis.times("prepare_consumer")) == 3)
    fleet.wait_delivered(put)
    tried = kinesis.times("prepare_consumer")
    assert all(tried_after <= later - earlier < tried_after + 15 for earlier, later in pairwise(tried))
    (event,) = fleet.happened(FanOutUnavailable)
    assert (event.shard, event.cause) == (None, "prepare_consumer fails")
    assert not fleet.happened(FanOutRestored)
    kinesis.refused = lambda operation: None
    count = polls(fleet)
    put += put_until(fleet, lambda: len(kinesis.times("subscribe")) == 3)
    fleet.wait_delivered(put)
    fleet.simulation.sleep(5)
    count.clear()
    put += fleet.put(9)
    fleet.wait_delivered(put)
    assert not count
    assert fleet.ledger.duplicates == 0
    assert fleet.happened(FanOutRestored) == [FanOutRestored(shard=None)]


def test_a_shard_whose_subscriptions_fail_for_a_minute_is_polled_from_where_it_stood(new_fleet):
    fleet = new_fleet(shards=1, subscription_seconds=20)
    kinesis = started(fleet)
    put = fleet.put(5)
    fleet.wait_delivered(put)
    fleet.simulation.sleep(10)
    kinesis.starts.clear()
    kinesis.refused = fails("subscribe")
    began = fleet.simulation.now
    put += put_until(fleet, lambda: fleet.happened(FanOutUnavailable))
    assert 60 <= fleet.simulation.now - began <= 100
    fleet.wait(lambda: kinesis.starts[-1][0] == "open")
    assert kinesis.starts[-1] == ("open", "AFTER_SEQUENCE_NUMBER")
    fleet.wait_delivered(put)
    assert in_order(fleet, put)
    (event,) = fleet.happened(FanOutUnavailable)
    assert (event.shard, event.cause) == (SHARD, "subscribe fails")


def test_it_is_subscribed_to_again_every_five_minutes_and_reported_once(new_fleet):
    fleet = new_fleet(shards=1, subscription_seconds=20)
    kinesis = started(fleet)
    put = put_until(fleet, lambda: fleet.simulation.now > 30)
    kinesis.refused = fails("subscribe")
    put += put_until(fleet, lambda: fleet.happened(FanOutUnavailable))
    kinesis.calls.clear()
    put += put_until(fleet, lambda: len(kinesis.times("subscribe")) == 3)
    tried = kinesis.times("subscribe")
    assert all(300 <= later - earlier <= 345 for earlier, later in pairwise(tried))
    assert len(fleet.happened(FanOutUnavailable)) == 1
    assert not fleet.happened(FanOutRestored)
    kinesis.refused = lambda operation: None
    put += put_until(fleet, lambda: len(kinesis.times("subscribe")) == 6)
    fleet.wait_delivered(put)
    assert in_order(fleet, put)
    assert fleet.happened(FanOutRestored) == [FanOutRestored(shard=SHARD)]
    tried = kinesis.times("subscribe")[-2:]
    assert tried[1] - tried[0] < 25, "it is pushed again"


def test_a_shard_to_which_somebody_always_writes_is_subscribed_to_again_as_well(new_fleet):
    """It is written to once in 0.8 s, and polled once a second: no page of it is empty."""
    fleet = new_fleet(shards=1)
    kinesis = started(fleet)
    kinesis.refused = fails("subscribe")
    put = put_until(fleet, lambda: fleet.happened(FanOutUnavailable), pause=0.4)
    kinesis.refused, kinesis.calls[:] = lambda operation: None, []
    put += put_until(fleet, lambda: kinesis.times("subscribe"), pause=0.4, timeout=400)
    assert kinesis.starts[-1] == ("subscribe", "AT_SEQUENCE_NUMBER")
    count, until = polls(fleet), fleet.simulation.now + 20
    put += put_until(fleet, lambda: fleet.simulation.now > until, pause=0.4)
    fleet.wait_delivered(put)
    assert not count
    assert in_order(fleet, put)


@pytest.mark.parametrize(("behind", "is_pushed"), [(5000, False), (0, True)])
def test_empty_pages_on_the_way_to_the_tip_are_crossed_before_the_shard_is_subscribed_to_again(
    new_fleet, behind, is_pushed
):
    fleet = new_fleet(shards=1)
    context = fleet.worker("w1", retrieval="fanout-or-polling")._connect()
    place = ReadingPlace(context, SHARD, None, ReadFrom("TRIM_HORIZON"), None)
    pushing, polling = (SimpleNamespace(finish=lambda *_: 1.0, close=lambda: None) for _ in range(2))
    reader = FallbackReader(context, context.consumer, SHARD, place, lambda: pushing, lambda: polling)
    reader._push, reader._reader = None, polling
    reader.finish(Page(Fetched([], "iterator", behind, (), 0), 0.0, iter(())))
    assert (reader._reader is pushing) == is_pushed


def test_a_subscription_that_is_not_permitted_does_not_stop_the_worker(new_fleet):
    fleet = new_fleet(shards=2)
    started(fleet, fails("subscribe", SetupError))
    put = fleet.put(20)
    fleet.wait_delivered(put, 10)
    assert {event.shard for event in fleet.happened(FanOutUnavailable)} == set(fleet.open_shards())


def test_subscriptions_that_say_nothing_fail_too(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.worker("w1", retrieval="fanout-or-polling")
    stream = worker._adapters[1]
    subscribe = stream.subscribe

    def silent(shard_id, start, on_ready):
        subscription = subscribe(shard_id, start, lambda: None)
        subscription.poll = lambda: None
        return subscription

    stream.subscribe = silent
    worker.start()
    put = fleet.put(10)
    fleet.wait_delivered(put, 70)
    (event,) = fleet.happened(FanOutUnavailable)
    assert "said nothing for 30 s" in event.cause


def test_a_consumer_that_is_deleted_is_registered_once_a_minute_and_the_shards_are_polled_meanwhile(
    new_fleet,
):
    fleet = new_fleet(shards=3)
    put = fleet.put(9)
    started(fleet)
    fleet.wait_delivered(put)
    registered = []
    fleet.kinesis.fault = lambda operation, *_: (
        operation == "RegisterStreamConsumer" and registered.append(fleet.simulation.now)
    )
    for times in (1, 2):
        fleet.kinesis.deregister_consumer("orders", name=TABLE)
        began = fleet.simulation.now
        put += fleet.put(9)
        fleet.wait_delivered(put)
        assert fleet.simulation.now - began < 3, "polled"
        put += put_until(fleet, lambda times=times: len(registered) == times)
        fleet.simulation.sleep(70)
    assert registered[1] - registered[0] >= 60
    count = polls(fleet)
    put += fleet.put(9)
    fleet.wait_delivered(put)
    assert not count
    assert fleet.ledger.duplicates == 0
    assert [event.shard for event in fleet.happened(FanOutUnavailable)] == [None, None]
    assert [event.shard for event in fleet.happened(FanOutRestored)] == [None, None]


def test_a_continuation_that_kinesis_refuses_to_poll_from_is_replaced_by_the_last_record(new_fleet):
    fleet = new_fleet(shards=1)
    kinesis = started(fleet)
    put = fleet.put(5)
    fleet.wait_delivered(put)

    def refuse(operation, stream, shard, kind="", *_):
        if operation == "GetShardIterator" and kinesis.starts[-1][1] == "AFTER_SEQUENCE_NUMBER":
            raise AwsError("InvalidArgumentException", "no record has that number")

    fleet.kinesis.fault = refuse
    kinesis.refused = fails("subscribe", SetupError)
    put += put_until(fleet, lambda: fleet.happened(FanOutUnavailable))
    fleet.wait_delivered(put)
    assert kinesis.starts[-2:] == [("open", "AFTER_SEQUENCE_NUMBER"), ("open", "AT_SEQUENCE_NUMBER")]
    assert in_order(fleet, put)


def test_an_idle_shard_whose_last_record_is_older_than_the_retention_goes_to_and_fro_without_an_alarm(
    new_fleet, monkeypatch
):
    monkeypatch.setattr(consumers, "SILENCE_MILLIS", 25_000)
    fleet = new_fleet(shards=1)
    reading = Reading(fleet, "fanout-or-polling")
    kinesis = Kinesis(fleet, reading.worker)
    put = fleet.put(3)
    assert reading.records(DAY + 3600, pause=5) == put
    kinesis.refused = fails("subscribe")
    assert reading.records(1000, pause=5) == []
    assert kinesis.starts[-2:] == [("subscribe", "AFTER_SEQUENCE_NUMBER"), ("open", "AFTER_SEQUENCE_NUMBER")]
    kinesis.refused = lambda operation: None
    put = fleet.put(3)
    assert reading.records(1000, pause=5) == put
    assert not fleet.happened(DataLost)
    reading.reader.close()


def test_a_shard_that_cannot_be_polled_either_is_pushed_as_soon_as_it_can_be(new_fleet):
    fleet = new_fleet(shards=1, subscription_seconds=20)
    kinesis = started(fleet)
    put = fleet.put(5)
    fleet.wait_delivered(put)
    kinesis.refused = lambda operation: SetupError(f"{operation} is denied")
    fleet.wait(lambda: fleet.happened(FanOutUnavailable))
    put += fleet.put(5)
    kinesis.refused = fails("open", SetupError)
    fleet.wait_delivered(put, 400)
    assert in_order(fleet, put)


def test_a_shard_that_ends_while_it_is_polled_is_followed_by_its_children(new_fleet):
    fleet = new_fleet(shards=1)
    started(fleet, fails("subscribe", SetupError))
    put = fleet.put(10)
    fleet.wait_delivered(put)
    fleet.kinesis.split("orders", SHARD)
    put += fleet.put(10)
    fleet.wait_delivered(put)
    assert fleet.ledger.duplicates == 0


def test_a_stop_gives_the_buffer_back_whichever_way_a_shard_is_read(new_fleet):
    fleet = new_fleet(shards=2)
    kinesis = started(fleet, batch_window=1.0, batch_size=10)
    kinesis.refused = fails("subscribe")
    put = put_until(fleet, lambda: fleet.happened(FanOutUnavailable), timeout=600)
    fleet.wait_delivered(put)
    worker = fleet.workers["w1"]
    memory = worker._manager._context.memory
    worker.stop()
    assert memory._free == worker.config.max_buffered_bytes
    assert not any(task.name.startswith("pykcl") for task in fleet.simulation.unfinished("w1"))
