"""Lambda functions as the documentation of Powertools for AWS Lambda writes them: nothing in them knows pykcl.

A record whose data has `"bad": true` fails. `seen` has the identifiers that a handler has worked off.
"""

import asyncio

from aws_lambda_powertools.utilities.batch import (
    AsyncBatchProcessor,
    BatchProcessor,
    EventType,
    async_process_partial_response,
    process_partial_response,
)
from aws_lambda_powertools.utilities.data_classes import KinesisStreamEvent, event_source
from aws_lambda_powertools.utilities.data_classes.kinesis_stream_event import KinesisStreamRecord
from aws_lambda_powertools.utilities.parser import event_parser
from aws_lambda_powertools.utilities.parser.models import KinesisDataStreamModel
from aws_lambda_powertools.utilities.typing import LambdaContext

seen: list[int] = []


def work_off(order: dict) -> None:
    if order.get("bad"):
        raise ValueError("no such order")
    seen.append(order["id"])


@event_source(data_class=KinesisStreamEvent)
def with_event_source(event: KinesisStreamEvent, context: LambdaContext) -> None:
    for record in event.records:
        work_off(record.kinesis.data_as_json())


@event_parser(model=KinesisDataStreamModel)
def with_event_parser(event: KinesisDataStreamModel, context: LambdaContext) -> None:
    import json

    for record in event.Records:
        work_off(json.loads(record.kinesis.data))


def record_handler(record: KinesisStreamRecord) -> None:
    work_off(record.kinesis.data_as_json())


async def async_record_handler(record: KinesisStreamRecord) -> None:
    await asyncio.sleep(0)
    record_handler(record)


processor = BatchProcessor(event_type=EventType.KinesisDataStreams)
async_processor = AsyncBatchProcessor(event_type=EventType.KinesisDataStreams)
lenient_processor = BatchProcessor(
    event_type=EventType.KinesisDataStreams, raise_on_entire_batch_failure=False
)


def with_batch_processor(event: dict, context: LambdaContext) -> dict:
    return process_partial_response(
        event=event, record_handler=record_handler, processor=processor, context=context
    )


def with_lenient_batch_processor(event: dict, context: LambdaContext) -> dict:
    return process_partial_response(
        event=event, record_handler=record_handler, processor=lenient_processor, context=context
    )


def with_async_batch_processor(event: dict, context: LambdaContext) -> dict:
    return async_process_partial_response(
        event=event, record_handler=async_record_handler, processor=async_processor, context=context
    )
