"""`lambda_processor`: an unmodified Lambda function for Kinesis as a record processor.

The handler gets the event that an event source mapping sends, and a context with every attribute that is documented for
Python. Its response is read by the rules of `ReportBatchItemFailures`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType
from typing import Any
from uuid import UUID

from pykcl.errors import ConfigError, NotAProcessor, shown
from pykcl.handlers.filters import criteria_of
from pykcl.handlers.functions import written
from pykcl.handlers.lanes import LaneProcessor, checked_concurrency
from pykcl.handlers.windows import JSON, ShardWindows, checked_seconds, fields_of_event
from pykcl.model.lambda_event import EventSource, event_of
from pykcl.model.record import Record
from pykcl.processor import (
    Batch,
    FailedAt,
    InitializationInput,
    ProcessorFactory,
    RecordProcessor,
    why_it_runs_nothing,
)
from pykcl.runtime import Runtime, SystemRuntime
from pykcl.worker.processor_factory import NeverRan, must_have_run
from pykcl.worker.signals import OwnProcess
from pykcl.worker.turns import Turn, Turns

FUNCTION_TIMEOUT = 900.0
"""Seconds; the longest of Lambda."""
_FAILURES, _IDENTIFIER, _STATE = "batchItemFailures", "itemIdentifier", "state"
_SYSTEM = SystemRuntime()
_TURNS = Turns()
"""Of the whole process: an environment of Lambda runs one call at a time, in the thread that imported the module."""

Handler = Callable[[Any, Any], object]
"""Called with the event, a dict, and a LambdaContext."""


def lambda_processor(
    handler: Callable[[Any, Any], object],
    *,
    report_batch_item_failures: bool = False,
    handler_is_thread_safe: bool = False,
    concurrency: int = 1,
    function_timeout: float = FUNCTION_TIMEOUT,
    filter: Callable[[Record], bool] | None = None,
    filter_criteria: Mapping[str, Any] | None = None,
    window: int | None = None,
    invoke_identity_arn: str = "",
    function_name: str = "",
) -> ProcessorFactory:
    """Return what `Worker(processor=…)` takes, for a handler that is called as `handler(event, context)`.

    report_batch_item_failures: read the response, as with `FunctionResponseTypes` of a mapping; else it is ignored.
    handler_is_thread_safe: shards call the handler at the same time, in their threads; else there is one call at a time
    in this process, in the thread that calls `Worker.run`, or in one that gets the context variables of now.
    concurrency: with a thread-safe handler, so many calls for each shard at the same time, each with the records of
    other partition keys. Unlike with `ParallelizationFactor` they share one module.
    function_timeout: seconds from which the context counts down. A call that takes longer is not ended.
    filter: returns False for a record that is done without the handler. filter_criteria: the same as `FilterCriteria`
    of a mapping. window: `TumblingWindowInSeconds` of a mapping, 1 to 900: events have a window and a state, and a
    response has a state. invoke_identity_arn: of every record of an event.
    function_name: of the context, or its ARN, as in Lambda: NAME, NAME:VERSION or arn:…:function:NAME; by default the
    name of the application.

    Raises ConfigError.
    """
    _refuse_handler(handler, is_thread_safe=handler_is_thread_safe)
    _refuse_timeout(function_timeout)
    if checked_concurrency(concurrency) > 1 and not handler_is_thread_safe:
        raise ConfigError(
            f"concurrency={concurrency} makes several calls at once, and handler_is_thread_safe=False allows one "
            "call at a time. Do: drop concurrency= and use --processes N, where each has a copy of the module; or "
            "handler_is_thread_safe=True if calls share nothing that they change, in module globals or libraries."
        )
    if window is not None and concurrency > 1:
        raise ConfigError(
            f"window={window} hands a state from each call to the next one, and concurrency={concurrency} makes "
            "several at once. Do: drop one of them."
        )
    _refuse_filter(filter)
    name = FunctionName.parse(function_name) if function_name else None
    criteria = criteria_of(filter_criteria)

    def is_wanted(record: Record, source: EventSource) -> bool:
        return (criteria is None or criteria(record, source)) and (filter is None or bool(filter(record)))

    function = _Function(
        handler=handler,
        reports_failures=report_batch_item_failures,
        timeout=float(function_timeout),
        window=checked_seconds(window),
        is_wanted=None if criteria is None and filter is None else is_wanted,
        invoke_identity_arn=invoke_identity_arn,
        name=name,
        turns=None if handler_is_thread_safe else _TURNS,
    )
    return functools.partial(LaneProcessor, function, concurrency) if concurrency > 1 else function


def _refuse_timeout(function_timeout: object) -> None:
    if isinstance(function_timeout, bool) or not isinstance(function_timeout, int | float):
        raise ConfigError(f"function_timeout takes a number of seconds, not {function_timeout!r}")
    if not 0 < function_timeout <= 86_400:
        raise ConfigError(
            f"function_timeout={function_timeout:g} is out of range. Write more than 0, up to 86400."
        )


def _refuse_filter(filter: object) -> None:
    if filter is not None and (not callable(filter) or why_it_runs_nothing(filter)):
        raise ConfigError("filter takes a plain function of a Record that returns True or False.")


_UNSAFE = ("aws_lambda_powertools.utilities.batch.base", "BasePartialProcessor")
"""Module and name of a class whose objects serve one call at a time: each call begins by emptying the failures of the
one before, also of one that still runs, whose answer then says that nothing has failed."""


def _refuse_shared_state(handler: object) -> None:
    """Raise ConfigError for a handler whose calls share an object of a class in _UNSAFE."""
    for place, value in _shared_by_calls(handler):
        if any((kind.__module__, kind.__qualname__) == _UNSAFE for kind in type(value).__mro__):
            name = type(value).__name__
            raise ConfigError(
                f"The Lambda handler is not thread-safe: its calls share the {name} {place}, and each one empties the "
                "failures of the others, whose records would be lost. Do: drop handler_is_thread_safe and concurrency, "
                f"and use --processes N, where each has a copy of the module; or make a {name} in each call."
            )


def _shared_by_calls(handler: object) -> Iterator[tuple[str, object]]:
    """Yield what the calls of a handler have in common, and where: globals that the handler names, or a function of its
    package that it names, and what its decorators keep."""
    package, left, seen = None, [handler], set[int]()
    while left:
        function: Any = left.pop()
        while getattr(function, "__wrapped__", None) is not None:
            yield from (("of its decorator", kept) for kept in _kept_by(function))
            function = function.__wrapped__
        function = written(function)
        code = getattr(function, "__code__", None)
        if code is None or id(code) in seen:
            continue
        seen.add(id(code))
        yield from (("of its closure", kept) for kept in _kept_by(function))
        package = package or (function.__module__ or "").partition(".")[0]
        for name in _names_in(code):
            value = function.__globals__.get(name)
            yield name, value
            if isinstance(value, FunctionType) and (value.__module__ or "").partition(".")[0] == package:
                left.append(value)


def _kept_by(function: Any) -> Iterator[object]:
    """Yield the objects in the closure of a function, and in dicts there, the keywords of a decorator say."""
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # it is empty
            kept = cell.cell_contents
            yield kept
            if isinstance(kept, dict):
                yield from kept.values()


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


def _refuse_handler(handler: object, *, is_thread_safe: bool) -> None:
    """Raise NotAProcessor for what cannot be called with an event and a context, or runs nothing when it is called, and
    ConfigError for what cannot be thread-safe."""
    if not callable(handler):
        raise NotAProcessor(f"The Lambda handler is {type(handler).__name__}, not a function.").about("E23")
    name = getattr(handler, "__qualname__", type(handler).__name__)
    kind = why_it_runs_nothing(handler)
    if kind is not None:
        raise NotAProcessor(
            f"The Lambda handler {name} is {kind}: a call of it runs nothing, here as in Lambda."
        ).about("E23")
    if is_thread_safe:
        _refuse_shared_state(handler)
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return  # of a callable in C, say: its first call shows it
    try:
        signature.bind({}, None)
    except TypeError:
        raise NotAProcessor(
            f"The Lambda handler {name} cannot be called with an event and a context: its parameters are {signature}."
        ).about("E23") from None


_FUNCTION = re.compile(
    r"(arn:[a-z0-9-]+:lambda:[a-z0-9-]+:[0-9]{12}:function:)?([A-Za-z0-9_-]{1,140})(?::(\$LATEST|[A-Za-z0-9_-]{1,128}))?\Z"
)


@dataclass(frozen=True, slots=True)
class FunctionName:
    """A Lambda function. version: "$LATEST" without one, and for an alias, which does not say it. arn: "" if not
    given."""

    name: str
    version: str = "$LATEST"
    arn: str = ""

    @classmethod
    def parse(cls, text: object) -> FunctionName:
        """Raises ConfigError for what is neither the name nor the ARN of a function."""
        found = _FUNCTION.match(text) if isinstance(text, str) else None
        if found is None:
            raise ConfigError(
                f"{shown(text)} is neither the name nor the ARN of a Lambda function. Write NAME, NAME:VERSION or "
                "arn:aws:lambda:REGION:ACCOUNT:function:NAME."
            )
        prefix, name, qualifier = found.groups()
        version = qualifier if qualifier and qualifier.isdigit() else "$LATEST"
        return cls(name, version, found[0] if prefix else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Function:
    """The arguments of lambda_processor; called, it makes a processor.

    is_wanted: both filters in one; None: no filter. name: None: that of the application. context: of the thread that
    called lambda_processor.
    """

    handler: Handler
    reports_failures: bool
    timeout: float
    window: int | None
    is_wanted: Callable[[Record, EventSource], bool] | None
    invoke_identity_arn: str
    name: FunctionName | None
    turns: Turns | None
    context: Context = field(default_factory=copy_context)
    runtime: Runtime = _SYSTEM

    def __call__(self) -> LambdaProcessor:
        return LambdaProcessor(self)


class HandlerRanNothing(NeverRan):
    """The handler returned a coroutine or a generator, which Lambda does not run either."""

    code = "E23"


class LambdaProcessor(RecordProcessor):
    """Calls the handler with each batch, as a Lambda function is invoked.

    records_filtered: number of records that were settled by a filter. turn: what a call waits for; None: nothing.
    handler_name: MODULE:NAME, for dead letters. windows: None without windows. takes_each, is_async: as of a
    `pykcl.handlers.lanes.Caller`.
    """

    takes_each = is_async = False

    def __init__(self, function: _Function) -> None:
        self._function = function
        self.windows = None if function.window is None else ShardWindows(function.window, JSON)
        self._application = self._shard_id = ""
        self._source = EventSource("")
        self.records_filtered = 0
        self.turn = None if function.turns is None else Turn(function.turns)
        handler: Any = function.handler
        kind = handler if hasattr(handler, "__qualname__") else type(handler)
        self.handler_name = f"{kind.__module__}:{kind.__qualname__}"

    def initialize(self, init: InitializationInput) -> None:
        self._application, self._shard_id = init.application, init.shard_id
        self._source = EventSource(init.stream_arn, self._function.invoke_identity_arn)

    def process_records(self, batch: Batch) -> None:
        """Raises what the handler raises, FailedAt as its response says, and ResponseRefused."""
        if self.turn is None:
            self.call_all(batch)
            return
        with self.turn.taken(_SYSTEM):
            self.turn.call(functools.partial(self._call_here, batch), self._function.context)

    def _call_here(self, batch: Batch) -> None:
        """Call the handler in this thread. A process that it forks ends here, as in the thread of its shard."""
        with OwnProcess().alone_leaves("process_records", self._shard_id):
            self.call_all(batch)

    def call_all(self, batch: Batch) -> None:
        """Call the handler with a batch. Raises as process_records."""
        if self.windows is not None and not batch:
            self._close(self.windows)
            return
        records = self._wanted(batch.records)
        if records:
            failed = self._failed(records)
            if failed is not None:
                first = failed.position
                self.records_filtered += sum(record.position < first for record in batch) - sum(
                    record.position < first for record in records
                )
                raise FailedAt(failed)
        self.records_filtered += len(batch) - len(records)

    def call_one(self, record: Record, batch: Batch) -> None:
        self.call_all(replace(batch, records=(record,)))

    def failed(self, records: Sequence[Record]) -> None:
        """Do nothing: a handler is not given the number of its attempt."""

    def _failed(self, records: Sequence[Record]) -> Record | None:
        """Call the handler, and return the first record that failed."""
        response = self._call(records)
        failed = first_failed(response, records) if self._function.reports_failures else None
        if self.windows is not None and (failed is None or failed.position != records[0].position):
            # Of the records before the one that failed.
            self.windows.keep(response.get(_STATE) if isinstance(response, Mapping) else None)
        return failed

    def _close(self, windows: ShardWindows) -> None:
        """Make the final call of the open window, whose response needs no state: there is no call that would get it."""
        if windows.has_calls:
            response = self._call((), is_final=True)
            if self._function.reports_failures:
                first_failed(response, ())
        windows.closed()

    def _call(self, records: Sequence[Record], *, is_final: bool = False) -> object:
        """Call the handler, and return its response."""
        event = event_of(records, self._source)
        if self.windows is not None:
            window = self.windows.window(self._shard_id, is_final=is_final)
            event.update(fields_of_event(window, self._source.stream_arn))
        response = self._function.handler(event, self._context())
        try:
            must_have_run("The Lambda handler", response)
        except NeverRan as error:
            raise HandlerRanNothing(str(error), error.where) from None
        return response

    def _wanted(self, records: Sequence[Record]) -> Sequence[Record]:
        is_wanted = self._function.is_wanted
        if is_wanted is None:
            return records
        return [record for record in records if is_wanted(record, self._source)]

    def _context(self) -> LambdaContext:
        function = self._function
        name = function.name or FunctionName(self._application)
        return LambdaContext(
            name, self._shard_id, self._source.stream_arn, function.timeout, function.runtime
        )


# -- the context -----------------------------------------------------------------------------------------------


class CognitoIdentity:
    """An identity of a mobile client: none, as with every stream."""

    cognito_identity_id: str | None = None
    cognito_identity_pool_id: str | None = None


class LambdaContext:
    """The context of one call. The log stream is named like the shard."""

    def __init__(
        self, function: FunctionName, shard_id: str, stream_arn: str, timeout: float, runtime: Runtime
    ) -> None:
        # arn:PARTITION:kinesis:REGION:ACCOUNT:stream/NAME
        parts = [*stream_arn.split(":"), *[""] * 5]
        self.function_name, self.function_version = function.name, function.version
        self.invoked_function_arn = (
            function.arn or f"arn:{parts[1]}:lambda:{parts[3]}:{parts[4]}:function:{function.name}"
        )
        # Text, as in Lambda's own runtime.
        self.memory_limit_in_mb = os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128")
        self.aws_request_id = str(UUID(int=runtime.random().getrandbits(128), version=4))
        self.log_group_name = f"/aws/lambda/{function.name}"
        self.log_stream_name = shard_id
        self.identity = CognitoIdentity()
        self.client_context: None = None
        self.tenant_id: None = None
        self._ends_at = runtime.monotonic() + timeout
        self._runtime = runtime

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the function's timeout; 0 when it is over."""
        return max(0, int((self._ends_at - self._runtime.monotonic()) * 1000))

    def log(self, msg: object) -> None:
        """Write to standard output, as in Lambda without a line end."""
        sys.stdout.write(str(msg))

    def w3c(self) -> dict[str, str]:
        """Return the trace context of the invoker, which a stream has not: {}, as in Lambda."""
        return {}

    def __repr__(self) -> str:
        return f"LambdaContext(function_name={self.function_name!r}, aws_request_id={self.aws_request_id!r})"


# -- the response ----------------------------------------------------------------------------------------------


class ResponseRefused(Exception):
    """The handler's response says that records failed, and not which: so all of its batch count as failed."""


def first_failed(response: object, records: Sequence[Record]) -> Record | None:
    """Return the first record that a response names as failed; None: the whole batch is done.

    An identifier is a sequence number, which stands for the first record of an aggregate, or
    "<sequence number>:<sub-sequence number>". Raises ResponseRefused.
    """
    failures = _failures_in(response)
    if not failures:
        return None
    indexes: dict[str, int] = {}
    for index, record in enumerate(records):
        indexes.setdefault(record.sequence_number, index)
        if record.aggregated:
            indexes[f"{record.sequence_number}:{record.sub_sequence_number}"] = index
    found = []
    for number, failure in enumerate(failures):
        identifier = failure.get(_IDENTIFIER) if isinstance(failure, Mapping) else None
        place = f"{_FAILURES}[{number}]"
        if not isinstance(identifier, str) or not identifier:
            raise ResponseRefused(f"{place} has no {_IDENTIFIER}")
        if identifier not in indexes:
            raise ResponseRefused(f"{place} names no record of the batch")
        found.append(indexes[identifier])
    return records[min(found)]


def _failures_in(response: object) -> Sequence[Any]:
    # An empty EventResponse is a success in Lambda, in whatever form Python has it.
    if response is None or (isinstance(response, str | list | tuple) and not response):
        return ()
    if not isinstance(response, Mapping):
        raise ResponseRefused(f"the response is {type(response).__name__}, not a dict")
    failures = response.get(_FAILURES)
    if failures is None:
        # Other keys alone mean success, as in Lambda; but not a misspelt list of failures.
        meant = [
            key
            for key in response
            if isinstance(key, str) and key != _FAILURES and _is_near(key) and response[key]
        ]
        if meant:
            raise ResponseRefused(f"the response has a key that is nearly, and not quite, {_FAILURES}")
        return ()
    if not isinstance(failures, list | tuple):
        raise ResponseRefused(f"{_FAILURES} is {type(failures).__name__}, not a list")
    return failures


def _is_near(key: str) -> bool:
    return bool(difflib.get_close_matches(key[:50].lower(), [_FAILURES.lower()], cutoff=0.8))
