"""Whole workers that read by enhanced fan-out from the local AWS, over real sockets."""

import threading

import pytest

from pykcl import ConfigError
from pykcl.testing import assert_at_least_once, assert_in_order


def nothing(record):
    """Process a record without doing anything."""


def test_every_record_is_pushed_in_order_through_a_split_and_a_merge(kinesis, worker):
    kinesis.create_stream("orders", 4)
    kinesis.throttle("GetRecords")
    kinesis.put("orders", *range(500))
    running = worker(nothing, "orders", retrieval="fanout")
    running.wait_delivered()
    kinesis.split("orders")
    kinesis.put("orders", *range(500, 800))
    running.wait_delivered()
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


@pytest.mark.parametrize(("transport", "threads"), [("auto", 1), ("h2", 1), ("http1", 2)])
def test_the_transport_is_chosen_by_an_option(kinesis, worker, transport, threads):
    kinesis.create_stream("orders", 2)
    kinesis.put("orders", *range(20))
    running = worker(nothing, "orders", retrieval="fanout", fanout_transport=transport)
    running.wait_delivered()
    assert sum(one.name.startswith("pykcl-push") for one in threading.enumerate()) == threads


def test_a_worker_without_the_extra_is_refused_http2_and_reads_over_http1(kinesis, worker, monkeypatch):
    monkeypatch.setattr("pykcl.aws.push.stream.find_spec", lambda name: None)
    kinesis.create_stream("orders", 1)
    kinesis.put("orders", *range(20))
    with pytest.raises(ConfigError, match=r"fanout_transport='h2' .* pip install 'pykcl\[fanout\]'"):
        worker(nothing, "orders", retrieval="fanout", fanout_transport="h2")
    worker(nothing, "orders", retrieval="fanout").wait_delivered()
