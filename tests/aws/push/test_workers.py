"""Whole workers that read by enhanced fan-out from the local AWS, over real sockets."""

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
