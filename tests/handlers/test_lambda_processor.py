"""lambda_processor: event, context, every form of response, one call at a time, filters, and handlers that misbehave."""

import asyncio
import functools
import json
import uuid
from pathlib import Path

import pytest
from lambda_kit import ROLE, SHARD, STREAM_ARN, call, orders, record, started

from pykcl import lambda_processor
from pykcl.errors import ConfigError, NotAProcessor
from pykcl.handlers.lambda_processor import HandlerRanNothing, ResponseRefused
from pykcl.model.record import Record
from pykcl.processor import FailedAt

DOCUMENTED = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "lambda_kinesis_event.json").read_text("utf-8")
)


def answering(response):
    return lambda event, context: response


def calls_of(**options):
    """A handler that keeps its events, and the processor of it."""
    events = []
    return events, started(lambda event, context: events.append((event, context)), **options)


# -- event and context -----------------------------------------------------------------------------------------


def test_the_event_is_the_documented_one():
    events, processor = calls_of()
    numbers = [one["kinesis"]["sequenceNumber"] for one in DOCUMENTED["Records"]]
    call(
        processor,
        [
            Record(b"Hello, this is a test.", "1", numbers[0], 1545084650987.0, SHARD, "lambda-stream"),
            Record(b"This is only a test.", "1", numbers[1], 1545084711166.0, SHARD, "lambda-stream"),
        ][: len(numbers)],
    )
    assert events[0][0] == DOCUMENTED


def test_the_context_has_every_documented_attribute():
    events, processor = calls_of(function_timeout=5.0)
    call(processor, orders(1))
    call(processor, orders(1))
    context, other = events[0][1], events[1][1]
    assert context.function_name == "orders-app"
    assert context.function_version == "$LATEST"
    assert context.invoked_function_arn == "arn:aws:lambda:us-east-2:123456789012:function:orders-app"
    assert context.memory_limit_in_mb == "128"
    assert uuid.UUID(context.aws_request_id).version == 4
    assert context.aws_request_id != other.aws_request_id
    assert context.log_group_name == "/aws/lambda/orders-app"
    assert context.log_stream_name == SHARD
    assert context.identity.cognito_identity_id is None
    assert context.identity.cognito_identity_pool_id is None
    assert context.client_context is None
    assert context.tenant_id is None
    assert 0 < context.get_remaining_time_in_millis() <= 5000
    assert started(print)._context().get_remaining_time_in_millis() > 800_000
    assert started(print, function_timeout=1e-9)._context().get_remaining_time_in_millis() == 0


def test_the_context_logs_and_has_no_trace_as_in_lambda(capsys):
    events, processor = calls_of()
    call(processor, orders(1))
    context = events[0][1]
    context.log("one ")
    context.log(2)
    assert capsys.readouterr().out == "one 2"
    assert context.w3c() == {}


@pytest.mark.parametrize(
    ("given", "name", "version", "arn"),
    [
        ("shipping", "shipping", "$LATEST", "arn:aws:lambda:us-east-2:123456789012:function:shipping"),
        ("shipping:7", "shipping", "7", "arn:aws:lambda:us-east-2:123456789012:function:shipping"),
        ("arn:aws:lambda:eu-west-1:1" + "0" * 11 + ":function:s", "s", "$LATEST", "arn:aws:lambda:eu-west-1:100000000000:function:s"),
        ("arn:aws:lambda:eu-west-1:1" + "0" * 11 + ":function:s:live", "s", "$LATEST", "arn:aws:lambda:eu-west-1:100000000000:function:s:live"),
    ],
)  # fmt: skip
def test_the_context_names_the_function_that_was_given(given, name, version, arn):
    events, processor = calls_of(function_name=given)
    call(processor, orders(1))
    context = events[0][1]
    assert (context.function_name, context.function_version, context.invoked_function_arn) == (
        name,
        version,
        arn,
    )
    assert context.log_group_name == f"/aws/lambda/{name}"


@pytest.mark.parametrize("given", ["a b", "arn:aws:sqs:eu-west-1:123456789012:q", "x" * 200, 7])
def test_what_is_no_name_of_a_function_is_refused(given):
    with pytest.raises(ConfigError, match="neither the name nor the ARN of a Lambda function"):
        lambda_processor(print, function_name=given)


def test_a_handler_that_changes_its_event_gets_a_new_one_next_time():
    def handler(event, context):
        taken.append(len(event["Records"]))
        event["Records"].clear()

    taken = []
    processor, records = started(handler), orders(3)
    call(processor, records)
    call(processor, records)
    assert taken == [3, 3]


# -- responses -------------------------------------------------------------------------------------------------


def failed(response, records):
    processor = started(answering(response), report_batch_item_failures=True)
    try:
        call(processor, records)
    except FailedAt as failure:
        return records.index(failure.record)
    return None


def failures(*identifiers):
    return {"batchItemFailures": [{"itemIdentifier": identifier} for identifier in identifiers]}


@pytest.mark.parametrize(
    "response",
    [
        None,
        {},
        {"batchItemFailures": []},
        {"batchItemFailures": None},
        {"statusCode": 200},
        {"batchItemFailures": [], "x": "y" * 10_000_000},
        "",
        [],
        (),
        {"batchItemFailures": ()},
    ],
    ids=range(10),
)
def test_responses_that_settle_the_batch(response):
    assert failed(response, orders(3)) is None


def test_the_lowest_position_is_where_it_failed_in_whatever_order_they_are_named():
    assert failed(failures("1002"), orders(4)) == 2
    assert failed(failures("1003", "1001", "1003"), orders(4)) == 1
    # By position, not as text.
    records = [record(number) for number in (8998, 9001, 9002)]
    assert [one.sequence_number for one in records] == ["9998", "10001", "10002"]
    assert failed(failures("10002", "9998"), records) == 0


def test_a_sequence_number_of_an_aggregate_is_its_first_record_in_the_batch_and_one_with_sub_is_exact():
    records = [record(1), *(record(2, sub=sub) for sub in (5, 6, 7)), record(3)]
    assert failed(failures("1002"), records) == 1
    assert failed(failures("1002:7"), records) == 3
    assert failed(failures("1003", "1002:6"), records) == 2


@pytest.mark.parametrize(
    "response",
    [
        failures(""),
        failures(None),
        failures(1001),
        failures("1001", "unknown"),
        failures("1001:0"),
        {"batchItemFailures": [{"itemIdentifer": "1001"}]},
        {"batchItemFailures": ["1001"]},
        {"batchItemFailures": {"itemIdentifier": "1001"}},
        {"batchItemFailures": "1001"},
        {"BatchItemFailures": [{"itemIdentifier": "1001"}]},
        {"batchItemFailure": [{"itemIdentifier": "1001"}]},
        {"batch_item_failures": [{"itemIdentifier": "1001"}]},
        [{"itemIdentifier": "1001"}],
        "ok",
        " ",
        200,
        0,
        True,
        False,
    ],
    ids=repr,
)
def test_responses_that_fail_the_whole_batch(response):
    with pytest.raises(ResponseRefused) as raised:
        failed(response, orders(3))
    assert "1001" not in str(raised.value)


@pytest.mark.parametrize("response", [failures("unknown"), [], "ok", b"x" * 10_000_000], ids=range(4))
def test_without_report_batch_item_failures_any_response_settles(response):
    call(started(answering(response)), orders(3))


async def coroutine(event, context):
    pass


def generator(event, context):
    yield


@pytest.mark.parametrize("returned", [coroutine, generator])
@pytest.mark.parametrize("reports", [False, True])
def test_a_coroutine_or_a_generator_is_no_response(returned, reports):
    processor = started(lambda *arguments: returned(*arguments), report_batch_item_failures=reports)  # noqa: PLW0108
    with pytest.raises(HandlerRanNothing, match="Lambda handler returned") as raised:
        call(processor, orders(1))
    assert raised.value.code == "E23"
    assert raised.value.where.startswith("test_lambda_processor.py:")


class AwaitedCall:
    async def __call__(self, event, context):
        pass


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (coroutine, "async def"),
        (generator, "yield"),
        (functools.partial(coroutine), "async def"),
        (AwaitedCall(), "async def"),
        (None, "NoneType, not a function"),
        ("shop.app.handler", "str, not a function"),
        (lambda event: None, "its parameters are"),
        (lambda: None, "its parameters are"),
        (lambda event, context, more: None, "its parameters are"),
    ],
)
def test_a_handler_that_cannot_be_called_is_refused(handler, problem):
    with pytest.raises(NotAProcessor, match=problem) as raised:
        lambda_processor(handler)
    assert raised.value.code == "E23"


def test_a_handler_may_have_more_parameters_than_two_with_defaults_and_may_run_a_coroutine():
    done = []

    def handler(event, context, table="orders"):
        asyncio.run(coroutine(event, context))
        done.append(table)

    call(started(handler), orders(1))
    call(started(lambda *arguments: done.append(len(arguments))), orders(1))
    assert done == ["orders", 2]


@pytest.mark.parametrize("timeout", [0, -1, True, "3", float("nan"), 86_401])
def test_a_function_timeout_that_is_none_is_refused(timeout):
    with pytest.raises(ConfigError, match="function_timeout"):
        lambda_processor(print, function_timeout=timeout)


@pytest.mark.parametrize("filter", ["x", coroutine, generator])
def test_a_filter_that_is_no_function_is_refused(filter):
    with pytest.raises(ConfigError, match="filter takes"):
        lambda_processor(print, filter=filter)


# -- filters ---------------------------------------------------------------------------------------------------

PAID = {"Filters": [{"Pattern": '{"data": {"paid": [true]}}'}]}


def ids(event):
    return [one["kinesis"]["sequenceNumber"] for one in event["Records"]]


def test_a_filter_decides_what_the_handler_gets_and_a_page_of_nothing_else_is_no_call():
    events, processor = calls_of(filter_criteria=PAID, filter=lambda found: found.partition_key == "1")
    batch = [
        record(1, {"paid": True}),
        record(2, {"paid": False}),
        record(3, b"no json"),
        record(4, {"paid": True}, partition_key="2"),
    ]
    call(processor, batch)
    call(processor, batch[1:])
    assert [ids(event) for event, _ in events] == [["1001"]]
    assert processor.records_filtered == 6


def test_a_record_that_was_filtered_cannot_be_named_and_those_before_a_failure_are_settled():
    processor = started(answering(failures("1003")), report_batch_item_failures=True, filter_criteria=PAID)
    batch = [record(1, b"no json"), record(2, {"paid": False}), record(3, {"paid": True}), record(4, b"")]
    with pytest.raises(FailedAt) as raised:
        call(processor, batch)
    assert raised.value.record == batch[2]
    with pytest.raises(ResponseRefused):
        call(processor, [batch[1], record(5, {"paid": True})])


def test_a_filter_that_raises_is_a_handler_that_raised():
    events, processor = calls_of(filter=lambda found: found.json()["paid"])
    with pytest.raises(ValueError, match="Expecting value"):
        call(processor, [record(1, {"paid": True}), record(2, b"no json")])
    assert events == []


def test_a_bad_pattern_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"FilterCriteria\.Filters\[0\]\.Pattern\.data\.a "):
        lambda_processor(print, filter_criteria={"Filters": [{"Pattern": '{"data": {"a": 1}}'}]})


def test_an_empty_batch_is_no_call():
    events, processor = calls_of()
    call(processor, [])
    assert events == []


def test_the_identity_and_the_stream_are_in_the_event():
    events, processor = calls_of()
    call(processor, orders(1))
    (one,) = events[0][0]["Records"]
    assert (one["invokeIdentityArn"], one["eventSourceARN"]) == (ROLE, STREAM_ARN)
