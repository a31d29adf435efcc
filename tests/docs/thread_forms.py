"""A program of each form, which notes where it is called. Tests run them, and `pykcl run` imports this module, too.

Notes are lines of JSON in the file that the variable NOTES names.
"""

import asyncio
import itertools
import json
import os
import threading
from contextvars import ContextVar
from pathlib import Path

from pykcl import App, AsyncConsumer, Consumer, Record, RecordProcessor

TENANT = ContextVar("tenant", default="nobody")
STARTS = {"initial_position": "TRIM_HORIZON", "idle_time_between_reads": 0.2}
_own, _numbers, _lock = threading.local(), itertools.count(1), threading.Lock()


def here():
    """Return the place of the caller. thread: a number that no other thread of the process ever has."""
    if not hasattr(_own, "number"):
        _own.number = next(_numbers)
    try:
        loop = id(asyncio.get_running_loop())
    except RuntimeError:
        loop = None
    return {
        "process": os.getpid(),
        "thread": _own.number,
        "loop": loop,
        "is_main": threading.current_thread() is threading.main_thread(),
        "tenant": TENANT.get(),
    }


def note(phase, shard="", place=None):
    line = json.dumps({"phase": phase, "shard": shard, **(place or here())}) + "\n"
    # In one piece: several threads and processes write.
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(line)


if "NOTES" in os.environ:
    note("import")


class Orders(RecordProcessor):
    """A class."""

    def __init__(self):
        self._made = here()

    def initialize(self, init):
        # In the thread of the shard are both, or neither.
        note("start", init.shard_id, self._made)
        note("start", init.shard_id)

    def process_records(self, batch):
        note("call", batch.shard_id)

    def shutdown_requested(self, request):
        note("end", request.shard_id)


class Over(Exception):
    """Enough calls were noted."""


class Meetings:
    """The first two calls for a shard wait for each other: they are made in two threads."""

    def __init__(self):
        self._barriers, self._calls = {}, {}

    def wait(self, shard):
        with _lock:
            barrier = self._barriers.setdefault(shard, threading.Barrier(2))
            number = self._calls[shard] = self._calls.get(shard, 0) + 1
        if number <= 2:
            barrier.wait(120)


def app_of(function, on_start, on_stop, *, concurrency=1, is_over=bool):
    """is_over: asked after each call; the App is stopped by a failure where it says so."""
    made = App("app-app", **STARTS, on_error="raise")
    made.on_start(on_start)
    made.on_stop(on_stop)

    def end():
        if is_over():
            raise Over

    made.stream("orders", concurrency=concurrency)(function(end))
    return made


def plain_app(**options):
    def function(end):
        def on_record(record: Record):
            note("call", record.shard_id)
            end()

        return on_record

    return app_of(function, lambda: note("start"), lambda: note("end"), **options)


def app_of_lanes(**options):
    def function(end):
        meetings = Meetings()

        def in_two(record: Record):
            note("call", record.shard_id)
            meetings.wait(record.shard_id)
            end()

        return in_two

    return app_of(function, lambda: note("start"), lambda: note("end"), concurrency=2, **options)


def async_app(**options):
    async def on_start():
        note("start")

    async def on_stop():
        note("end")

    def function(end):
        async def awaited(record: Record):
            note("call", record.shard_id)
            end()

        return awaited

    return app_of(function, on_start, on_stop, **options)


app = plain_app()


def lambda_handler(event, context):
    note("call", f"{context.function_name}/{context.log_stream_name}")


def lambda_handler_in_two():
    meetings = Meetings()

    def in_two(event, context):
        note("call", context.log_stream_name)
        meetings.wait(context.log_stream_name)

    return in_two


def consume(is_over):
    with Consumer("consumer-app", stream="orders", **STARTS) as consumer:
        note("start")
        for record in consumer:
            note("call", record.shard_id)
            if is_over():
                break
    note("end")


async def consume_async(is_over):
    note("caller")
    async with AsyncConsumer("async-app", stream="orders", **STARTS) as consumer:
        note("start")
        async for record in consumer:
            note("call", record.shard_id)
            if is_over():
                break
    note("end")
