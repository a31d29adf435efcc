"""Whole workers that read by enhanced fan-out from the local AWS, over real sockets."""

import threading
from functools import partial

import pytest

from pykcl import ConfigError
from pykcl.aws.push import h2_link, h2_links, stream
from pykcl.aws.push.h2_links import of_process
from pykcl.aws.push.stream import FanOutStream
from pykcl.aws.push.subscription import MAX_FULL, PushedEvents
from pykcl.errors import SetupError
from pykcl.events import FanOutUnavailable
from pykcl.local import consumers
from pykcl.local.errors import AwsError
from pykcl.runtime import SystemRuntime
from pykcl.testing import FaultRule, assert_at_least_once, assert_in_order
from pykcl.worker.prefetch import MemoryBudget

GOAWAY = bytes.fromhex("000008 07 00 00000000 00000000 00000000")
"""The frame by which a server ends a connection."""
LONG = 60
"""Seconds after which a test fails that waits for what does not come."""


def nothing(record):
    """Process a record without doing anything."""


def test_every_record_is_pushed_in_order_through_a_split_and_a_merge(kinesis, worker):
    kinesis.create_stream("orders", 4)
    kinesis.throttle("GetRecords")
    kinesis.put("orders", *range(500))
    running = worker(nothing, "orders", retrieval="fanout")
    running.wait_delivered(LONG)
    kinesis.split("orders")
    kinesis.put("orders", *range(500, 800))
    running.wait_delivered(LONG)
    kinesis.merge("orders")
    kinesis.put("orders", *range(800, 1000), aggregated=True)
    result = running.wait_checkpointed()
    running.stop()
    assert_at_least_once(result)
    assert_in_order(result)
    assert (result.lost, result.duplicates) == (0, 0)


def test_the_next_worker_goes_on_at_the_checkpoint(kinesis, worker):
    kinesis.create_stream("orders", 2)
    for numbers in (range(100), range(100, 200)):
        kinesis.put("orders", *numbers)
        running = worker(nothing, "orders", application="orders-app", retrieval="fanout")
        result = running.wait_checkpointed()
        running.stop()
    assert (len(result.records), result.lost, result.duplicates) == (200, 0, 0)


def noted(monkeypatch, owner, name, note):
    """Call `note` after each call of a method, with what it was called with."""
    called = getattr(owner, name)

    def call(self, *args):
        found = called(self, *args)
        note(self, *args)
        return found

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("transport", ["h2", "http1"])
def test_a_processor_that_works_for_long_holds_no_more_than_the_limit_and_reads_on_by_one_new_subscription(
    kinesis, worker, monkeypatch, transport
):
    if transport == "http1":
        monkeypatch.setattr(stream, "find_spec", lambda name: None)
    monkeypatch.setattr(consumers, "TAKEOVER_MILLIS", 0)
    for module in (h2_link, stream):
        monkeypatch.setattr(module, "MAX_FULL", 0.0)
    works, may_return, given_up = threading.Event(), threading.Event(), threading.Event()
    subscribed, free = [], []
    noted(monkeypatch, PushedEvents, "give_up", lambda self: given_up.set())
    noted(monkeypatch, FanOutStream, "subscribe", lambda self, shard, *_: subscribed.append(shard))
    noted(monkeypatch, MemoryBudget, "release", lambda self, size: free.append(self._free))

    def slow(record):
        works.set()
        assert may_return.wait(LONG)

    kinesis.create_stream("orders", 1)
    kinesis.put("orders", "first")
    running = worker(slow, "orders", retrieval="fanout")
    assert works.wait(LONG)
    limit = running.worker.config.max_buffered_bytes
    kinesis.put("orders", *(f"{number} " + "x" * 100_000 for number in range(40)))
    assert given_up.wait(LONG)
    for module in (h2_link, stream):
        monkeypatch.setattr(module, "MAX_FULL", MAX_FULL)
    assert min(free) < limit - 500_000, "what nobody has read counts"
    assert free[-1] > limit - 4096, "and is given back"
    may_return.set()
    result = running.wait_delivered(LONG)
    running.stop()
    assert_at_least_once(result)
    assert_in_order(result)
    assert (len(result.records), result.lost, result.duplicates) == (41, 0, 0)
    assert len(subscribed) == 2
    assert min(free) >= 0
    assert free[-1] == limit


def threads_of_pykcl():
    return [one.name for one in threading.enumerate() if one.name.startswith("pykcl")]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hundred_shards_take_two_connections_and_two_threads_more_than_polling(kinesis, worker):
    kinesis.create_stream("orders", 100)
    counts = []
    for retrieval in ("polling", "fanout"):
        running = worker(nothing, "orders", retrieval=retrieval)
        kinesis.put("orders", *range(2000))
        running.wait_delivered(10 * LONG)
        deadline, pause = SystemRuntime().monotonic() + LONG, threading.Event()
        while not all(lease.has_answered for lease in running.worker.status().leases):
            assert SystemRuntime().monotonic() < deadline
            pause.wait(0.1)
        counts.append(len(threads_of_pykcl()))
        loads = [link.load for found in of_process(SystemRuntime())._links.values() for link in found]
        running.stop()
    assert counts[1] <= counts[0] + 2
    assert len(loads) == 2
    assert sum(loads) == 100


@pytest.mark.parametrize(("transport", "threads"), [("auto", 1), ("h2", 1), ("http1", 2)])
def test_the_transport_is_chosen_by_an_option(kinesis, worker, transport, threads):
    kinesis.create_stream("orders", 2)
    kinesis.put("orders", *range(20))
    running = worker(nothing, "orders", retrieval="fanout", fanout_transport=transport)
    running.wait_delivered(LONG)
    assert sum(one.name.startswith("pykcl-push") for one in threading.enumerate()) == threads


def test_a_worker_without_the_extra_is_refused_http2_and_reads_over_http1(kinesis, worker, monkeypatch):
    monkeypatch.setattr("pykcl.aws.push.stream.find_spec", lambda name: None)
    kinesis.create_stream("orders", 1)
    kinesis.put("orders", *range(20))
    with pytest.raises(ConfigError, match=r"fanout_transport='h2' .* pip install 'pykcl\[fanout\]'"):
        worker(nothing, "orders", retrieval="fanout", fanout_transport="h2")
    worker(nothing, "orders", retrieval="fanout").wait_delivered(LONG)


@pytest.fixture
def quick_takeovers(monkeypatch):
    """Let Kinesis accept the next subscription sooner than five seconds after the last."""
    monkeypatch.setattr(consumers, "TAKEOVER_MILLIS", 500)
    monkeypatch.setattr(consumers, "MIN_CALL_MILLIS", 500)


def wait_for(condition, seconds=60):
    deadline, pause = SystemRuntime().monotonic() + seconds, threading.Event()
    while not condition():
        assert SystemRuntime().monotonic() < deadline
        pause.wait(0.01)


def is_whole_and_in_order(result):
    assert_at_least_once(result)
    assert_in_order(result)
    return (result.lost, result.duplicates) == (0, 0)


@pytest.mark.parametrize("transport", ["h2", "http1"])
@pytest.mark.parametrize("kind", ["push-error", "push-garbage", "push-cut"])
def test_a_subscription_that_breaks_in_an_event_is_followed_by_one_after_the_last_that_was_delivered(
    kinesis, worker, quick_takeovers, kind, transport
):
    kinesis.create_stream("orders", 1)
    kinesis.aws.kinesis.subscription_seconds = 2.0
    kinesis.put("orders", *range(20))
    running = worker(nothing, "orders", retrieval="fanout", fanout_transport=transport)
    running.wait_delivered(LONG)
    kinesis.fault(FaultRule(kind, operation="SubscribeToShard", times=1))
    wait_for(lambda: kinesis.aws.faults.counts.get(kind))
    kinesis.put("orders", *range(20, 40))
    assert is_whole_and_in_order(running.wait_delivered(LONG))


def test_shards_are_read_on_over_another_connection_when_the_server_ends_one(
    kinesis, worker, quick_takeovers
):
    kinesis.create_stream("orders", 2)
    kinesis.put("orders", *range(20))
    running = worker(nothing, "orders", retrieval="fanout", fanout_transport="h2")
    running.wait_delivered(LONG)
    ours = h2_links.of_process(SystemRuntime())
    ended = [link for found in ours._links.values() for link in found]
    for link in ended:
        ours._order(link, partial(link._take, GOAWAY, SystemRuntime().monotonic()))
    wait_for(lambda: all(link.is_closed for link in ended))
    kinesis.put("orders", *range(20, 40))
    assert is_whole_and_in_order(running.wait_delivered(LONG))


@pytest.mark.parametrize("retrieval", ["fanout", "fanout-or-polling"])
@pytest.mark.parametrize("obstacle", ["limit", "denied", "missing"])
def test_a_consumer_that_cannot_be_had_stops_the_start_or_lets_the_worker_poll(
    kinesis, worker, monkeypatch, retrieval, obstacle
):
    kinesis.create_stream("orders", 1)
    kinesis.put("orders", *range(20))
    options, words = {}, "pykcl fanout"
    if obstacle == "limit":
        monkeypatch.setattr(consumers, "MAX_CONSUMERS", 20)
        monkeypatch.setattr(consumers, "MAX_CREATING", 20)
        for number in range(20):
            kinesis.aws.kinesis.register_consumer("orders", f"c{number}")
        words = "has 20 consumers"
    elif obstacle == "denied":
        monkeypatch.setattr(kinesis.aws.kinesis, "fault", deny("RegisterStreamConsumer"))
        words = "not permitted"
    else:
        options, words = {"register_consumer": False}, "pykcl fanout register orders"
    if retrieval == "fanout":
        with pytest.raises(SetupError, match=words):
            worker(nothing, "orders", retrieval=retrieval, **options)
        return
    running = worker(nothing, "orders", retrieval=retrieval, **options)
    assert is_whole_and_in_order(running.wait_delivered(LONG))
    (event,) = [one for one in running.result.events if isinstance(one, FanOutUnavailable)]
    assert words in event.cause


def deny(denied):
    def fault(operation, *_):
        if operation == denied:
            raise AwsError("AccessDeniedException", f"not authorized to perform: kinesis:{denied}")

    return fault


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["h2", "http1"])
def test_a_hundred_thousand_records_come_once_and_in_order_through_a_split_and_a_merge(
    kinesis, worker, transport
):
    kinesis.create_stream("orders", 4)
    seen = []
    running = worker(
        lambda record: seen.append(1),
        "orders",
        retrieval="fanout",
        fanout_transport=transport,
        checkpoint_mode="interval",
    )
    for part in range(10):
        kinesis.put("orders", *range(part * 10_000, (part + 1) * 10_000))
        if part == 3:
            kinesis.split("orders")
        if part == 6:
            kinesis.merge("orders")
    wait_for(lambda: len(seen) >= 100_000, 600)
    result = running.wait_delivered(600)
    assert is_whole_and_in_order(result)
    assert len(seen) == 100_000
