"""A5.1: unmodified functions with the real Powertools for AWS Lambda, with no, some and all records failing."""

import functools
import threading

import pytest
from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    batch_processor,
    process_partial_response,
)
from aws_lambda_powertools.utilities.batch.exceptions import BatchProcessingError
from lambda_kit import call, orders, started
from powertools_functions import (
    record_handler,
    seen,
    with_async_batch_processor,
    with_batch_processor,
    with_event_parser,
    with_event_source,
    with_lenient_batch_processor,
)

from pykcl import lambda_processor
from pykcl.errors import ConfigError
from pykcl.processor import FailedAt

PLAIN = [with_event_source, with_event_parser]
REPORTING = [with_batch_processor, with_lenient_batch_processor, with_async_batch_processor]


@pytest.fixture(autouse=True)
def _empty():
    seen.clear()


def outcome(handler, records, **options):
    """Return the index of the first record that is not done; None if all are. Raises what else the call raises."""
    try:
        call(started(handler, **options), records)
    except FailedAt as failure:
        return records.index(failure.record)
    return None


@pytest.mark.parametrize("handler", [*PLAIN, *REPORTING], ids=lambda handler: handler.__name__)
@pytest.mark.parametrize("reports", [False, True])
def test_a5_1_no_record_fails(handler, reports):
    assert outcome(handler, orders(5), report_batch_item_failures=reports) is None
    assert sorted(seen) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("handler", PLAIN, ids=lambda handler: handler.__name__)
def test_a5_1_a_function_that_raises_fails_the_batch(handler):
    with pytest.raises(ValueError, match="no such order"):
        outcome(handler, orders(5, bad={2}), report_batch_item_failures=True)
    assert seen == [0, 1]


@pytest.mark.parametrize("handler", REPORTING, ids=lambda handler: handler.__name__)
def test_a5_1_some_records_fail_and_the_lowest_is_where_it_goes_on(handler):
    assert outcome(handler, orders(5, bad={4, 2}), report_batch_item_failures=True) == 2
    assert sorted(seen) == [0, 1, 3]


@pytest.mark.parametrize("handler", REPORTING, ids=lambda handler: handler.__name__)
def test_a5_1_without_report_batch_item_failures_the_response_is_ignored(handler):
    assert outcome(handler, orders(5, bad={4, 2})) is None


@pytest.mark.parametrize("handler", [with_batch_processor, with_async_batch_processor])
def test_a5_1_all_records_fail_and_the_processor_raises(handler):
    with pytest.raises(BatchProcessingError):
        outcome(handler, orders(5, bad=range(5)), report_batch_item_failures=True)


@pytest.mark.parametrize("handler", REPORTING, ids=lambda handler: handler.__name__)
def test_calls_that_share_a_processor_are_not_thread_safe_whatever_is_said(handler):
    with pytest.raises(
        ConfigError, match=r"its calls share the \w*BatchProcessor \w*processor, .*--processes N"
    ):
        lambda_processor(handler, handler_is_thread_safe=True, concurrency=10)


@batch_processor(record_handler=record_handler, processor=BatchProcessor(EventType.KinesisDataStreams))
def of_a_decorator(event, context):
    return {}


@pytest.mark.parametrize("handler", [of_a_decorator, functools.partial(with_batch_processor)])
def test_a_shared_processor_is_found_in_a_decorator_and_in_a_partial(handler):
    with pytest.raises(ConfigError, match="its calls share the BatchProcessor"):
        lambda_processor(handler, handler_is_thread_safe=True)


def one_for_each_call(event, context):
    own = BatchProcessor(EventType.KinesisDataStreams)
    return process_partial_response(event, record_handler, own, context)


@pytest.mark.parametrize("handler", [*PLAIN, one_for_each_call], ids=lambda handler: handler.__name__)
def test_a_handler_that_uses_no_shared_processor_of_its_module_may_be_thread_safe(handler):
    lambda_processor(handler, handler_is_thread_safe=True)


def test_a_handler_that_belongs_to_no_module_may_be_thread_safe():
    made = {"__name__": None}
    exec("def helper():\n    pass\ndef handler(event, context):\n    helper()", made)
    lambda_processor(made["handler"], handler_is_thread_safe=True)


def test_ten_calls_at_once_that_share_nothing_lose_no_record_of_six_hundred(kinesis, worker):
    failed, lock = set(), threading.Lock()

    def fails_once(record):
        number = record.kinesis.data_as_json()
        with lock:
            is_new = number % 7 == 0 and number not in failed
            failed.add(number)
        if is_new:
            raise ValueError(number)
        done.add(number)

    def handler(event, context):
        own = BatchProcessor(EventType.KinesisDataStreams, raise_on_entire_batch_failure=False)
        return process_partial_response(event, fails_once, own, context)

    done = set()
    kinesis.create_stream("orders", 3)
    kinesis.put("orders", *range(600), partition_key=str)
    processor = lambda_processor(
        handler, handler_is_thread_safe=True, concurrency=10, report_batch_item_failures=True
    )
    worker(processor, "orders").wait_checkpointed()
    assert done == set(range(600))


def test_a5_1_all_records_fail_and_raise_on_entire_batch_failure_is_off():
    failed = outcome(with_lenient_batch_processor, orders(5, bad=range(5)), report_batch_item_failures=True)
    assert failed == 0
