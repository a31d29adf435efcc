"""A5.1: unmodified functions with the real Powertools for AWS Lambda, with no, some and all records failing."""

import pytest
from aws_lambda_powertools.utilities.batch.exceptions import BatchProcessingError
from lambda_kit import call, orders, started
from powertools_functions import (
    seen,
    with_async_batch_processor,
    with_batch_processor,
    with_event_parser,
    with_event_source,
    with_lenient_batch_processor,
)

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


def test_a5_1_all_records_fail_and_raise_on_entire_batch_failure_is_off():
    failed = outcome(with_lenient_batch_processor, orders(5, bad=range(5)), report_batch_item_failures=True)
    assert failed == 0
