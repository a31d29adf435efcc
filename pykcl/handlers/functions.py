"""`handler`: a function as a record processor. The annotation of its first parameter says what it is called with."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import PurePath
from typing import Annotated, Any, NoReturn

from pykcl.errors import ConfigError, NotAProcessor, ProcessingError, RestartShard, TableGone
from pykcl.events import Event, OneRecordPerCall
from pykcl.handlers.decode import FORMS, SEVERAL, NoDecoder, decoder_of, is_collection, refuse
from pykcl.handlers.lanes import LaneProcessor, checked_concurrency
from pykcl.handlers.windows import PICKLED, ShardWindows, Window, checked_seconds
from pykcl.model.record import Record
from pykcl.processor import (
    ASYNC,
    Batch,
    FailedAt,
    InitializationInput,
    ProcessorFactory,
    RecordProcessor,
    StoppedAt,
    behind_partials,
    why_it_runs_nothing,
)
from pykcl.runtime import EndsThread
from pykcl.worker.processor_factory import must_have_run
from pykcl.worker.signals import OwnProcess

_MADE = "__pykcl_processor__"
"""Attribute of a function that an App has: itself, and the factory of its processors."""


class Context:
    """The surroundings of one call, for a function that has a second parameter for them.

    record: the record at hand; None if the function is called with a batch. batch: the whole batch that was delivered.
    attempt: 1, 2, … for the same record, the same batch, or the end of the same window, in this process. fencing_token:
    as in InitializationInput. is_replay: likewise.
    """

    __slots__ = ("attempt", "batch", "fencing_token", "is_replay", "record")

    def __init__(
        self, record: Record | Any, batch: Batch, attempt: int, fencing_token: int, is_replay: bool = False
    ) -> None:
        self.record = record
        self.batch = batch
        self.attempt = attempt
        self.fencing_token = fencing_token
        self.is_replay = is_replay

    @property
    def shard_id(self) -> str:
        """Name of the shard."""
        return self.batch.shard_id

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self.batch.stream

    @property
    def lost(self) -> bool:
        """True once this worker may no longer write for the shard: stop, another one goes on. Asked anew each time."""
        return bool(getattr(self.batch.checkpointer, "is_lost", False))

    def __repr__(self) -> str:
        return f"Context(shard_id={self.shard_id!r}, attempt={self.attempt}, record={self.record!r})"


def handler(
    function: Callable[..., object],
    *,
    decoder: Callable[[Record], object] | None = None,
    filter: Callable[[Record], bool] | None = None,
    window: int | None = None,
    concurrency: int = 1,
) -> ProcessorFactory:
    """Return what `Worker(processor=…)` takes, for a function of a record, a decoded record, or a batch.

    The annotation of the first parameter decides. None, or Record: it is called with each record. Batch: with each
    batch. list[T] or Sequence[T]: with the decoded records of each batch. Any other: with each record, decoded. A
    second parameter that is annotated Context, or named context, gets a Context.

    decoder: makes the value of a record, in place of the annotation; what it raises means that the record does not
    decode, except for OSError, MemoryError and errors of pykcl. filter: returns False for a record that is done without
    the function. concurrency: so many records of a shard, of different partition keys, at a time: in threads, or, with
    `async def`, in the event loop of the process. window: seconds of a tumbling window, 1 to 900, for a function of
    batches with a second parameter that is annotated Window, or named window; it returns the state that its next call
    gets.

    Raises NotAProcessor, a ConfigError, with the place of the function.
    """
    count = checked_concurrency(concurrency)
    made = Handler(function, decoder, filter, checked_seconds(window))
    made.refuse_lanes_of_a_window(count)
    make = functools.partial(FunctionProcessor, made)
    return functools.partial(LaneProcessor, make, count) if count > 1 or made.is_async else make


def processor_of(found: Any, window: int | None = None, concurrency: int | None = None) -> Any:
    """Return the factory of a function that takes records, or of one that an App has; anything else as it is.

    window, concurrency: as `handler` takes them. Raises ConfigError where that is said somewhere else.
    """
    made = getattr(found, _MADE, None)
    of_an_app = made[1] if made is not None and made[0] is found else None
    if window is not None:
        if of_an_app is not None or isinstance(behind_partials(found), type):
            name = getattr(found, "__name__", type(found).__name__)
            what, where = (
                ("makes processors", "handler") if of_an_app is None else ("belongs to an App", "@app.stream")
            )
            raise ConfigError(
                f"--window {window:g} is for a function or a Lambda handler, and {name} {what}. Do: drop it; a "
                f"function has its window in the program, {where}(..., window={window:g})."
            )
        return handler(found, window=window, concurrency=concurrency or 1)
    if of_an_app is None and takes_records(found):
        return handler(found, concurrency=concurrency or 1)
    if concurrency is not None:
        name = getattr(found, "__name__", type(found).__name__)
        where = "@app.stream" if of_an_app is not None or type(found).__name__ == "App" else "handler"
        raise ConfigError(
            f"--concurrency {concurrency} goes with a function of records or a Lambda handler, and {name} cannot get "
            f"one here. Do: {where}(..., concurrency={concurrency}) in the program; a class processes one record after "
            "the other."
        )
    return found if of_an_app is None else of_an_app


def belongs_to_an_app(function: Any, factory: ProcessorFactory) -> None:
    """Let `processor_of` return this factory for the function. Some callables have no room for that."""
    with suppress(AttributeError, TypeError):
        setattr(function, _MADE, (function, factory))


def takes_records(found: Any) -> bool:
    """Return True for a function, not a class, that has to be called with something and makes no record processor."""
    if not callable(found) or isinstance(found, RecordProcessor) or isinstance(behind_partials(found), type):
        return False
    if not any(each.kind in _POSITIONAL for each in required(found)):
        return False
    try:
        made = _evaluated(inspect.signature(found).return_annotation, found, {})
    except Exception:  # noqa: BLE001 - an annotation may be any expression, and for type checkers only
        return True
    return not (isinstance(made, type) and issubclass(made, RecordProcessor))


def required(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters that have no default; none of a callable in C, say, whose parameters nobody knows."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each for each in parameters if each.default is each.empty and each.kind not in _ANY_NUMBER]


# -- the signature ---------------------------------------------------------------------------------------------

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Form(Enum):
    """The argument of a call."""

    RECORD = "each record"
    BATCH = "the batch"
    LIST = "the decoded records of the batch"


@dataclass(frozen=True, slots=True)
class Plan:
    """The calls of a function. decode: makes a value, of the data or of the whole record; None: the record itself.

    context_as: name of the parameter for the Context; empty: the second one. None: it has none. window_as: the same for
    the Window.
    """

    form: Form
    decode: Callable[[Any], Any] | None = None
    takes_data: bool = True
    context_as: str | None = None
    window_as: str | None = None


class Handler:
    """A function with its decoder, its filter and its window.

    name: MODULE:NAME, for dead letters. is_async: it is `async def`.
    """

    def __init__(
        self,
        function: Callable[..., object],
        decoder: Callable[[Record], object] | None = None,
        filter: Callable[[Record], bool] | None = None,
        window: int | None = None,
    ) -> None:
        self.function, self.decoder, self.is_wanted, self.window = function, decoder, filter, window
        self.is_async = why_it_runs_nothing(function) == ASYNC
        self._refuse_what_is_no_function()
        named = behind_partials(function)
        named = named if hasattr(named, "__qualname__") else type(named)
        self.name = f"{named.__module__}:{named.__qualname__}"
        self._title = named.__qualname__.rpartition("<locals>.")[2]
        self._names: Mapping[str, Any] = _names_of_the_caller()
        self._plan: Plan | None = None
        self._remark: Event | None = None
        try:
            self._plan = self._planned()
        except NameError:
            # A class that is defined further down: asked again before the first call.
            return
        self._names = {}

    def plan(self) -> Plan:
        """Raises NotAProcessor."""
        if self._plan is None:
            try:
                self._plan = self._planned()
            except NameError as error:
                self._refuse(
                    f"its annotations name what is not defined: {error}",
                    "import that at run time, not for type checkers only",
                )
        return self._plan

    def remark(self) -> Event | None:
        """Return what is to be said when the first processor is at work; None for the others."""
        remark, self._remark = self._remark, None
        return remark

    def refuse_lanes_of_a_window(self, concurrency: int) -> None:
        """Raises NotAProcessor."""
        if self.window is not None and (concurrency > 1 or self.is_async):
            what = f"concurrency={concurrency}" if concurrency > 1 else "async def"
            self._refuse(
                f"window={self.window} hands a state from each call to the next one, and does not go with {what}",
                "write a plain def, with concurrency=1",
            )

    def _refuse(self, problem: str, do: str) -> NoReturn:
        raise NotAProcessor(f"{self._title} ({_place_of(self.function)}): {problem}. Do: {do}.").about(
            "E15", do
        )

    def _refuse_what_is_no_function(self) -> None:
        function: Any = self.function
        name = getattr(function, "__name__", type(function).__name__)
        if isinstance(function, type | RecordProcessor) or not callable(function):
            what = f"the class {name}" if isinstance(function, type) else f"{type(function).__name__}"
            is_one = isinstance(function, type) and issubclass(function, RecordProcessor)
            do = f"pass processor={name}" if is_one else "write def on_record(record)"
            raise NotAProcessor(f"handler takes a function; it got {what}. Do: {do}.").about("E15", do)
        if isinstance(behind_partials(function), type):
            do = "pass it to Worker as it is"
            raise NotAProcessor(f"handler takes a function; it got what makes objects. Do: {do}.").about(
                "E15", do
            )
        self._title = name
        kind = why_it_runs_nothing(function)
        if kind is not None and not self.is_async:
            self._refuse(
                f"it is {kind}: a call of it runs nothing, and its records would count as processed",
                "write a plain def or async def, without yield",
            )
        given: dict[str, Any] = {"decoder": self.decoder, "filter": self.is_wanted}
        for option, value in given.items():
            if value is not None and (not callable(value) or why_it_runs_nothing(value)):
                self._refuse(
                    f"{option}={getattr(value, '__name__', type(value).__name__)} is no plain function",
                    f"write a plain def of a Record without yield for {option}=",
                )

    def _planned(self) -> Plan:
        """Raises NotAProcessor, and NameError for an annotation that cannot be evaluated yet."""
        first, context_as, window_as = self._parameters()
        plan = self._argument(first)
        if self.window is not None and plan.form is Form.RECORD:
            self._refuse(
                f"window={self.window} is for a function of batches, and it is called with each record",
                "annotate its first parameter as list[T], or as Batch",
            )
        return replace(plan, context_as=context_as, window_as=window_as)

    def _argument(self, first: inspect.Parameter | None) -> Plan:
        """Return the plan of the first argument. Raises as `_planned`."""
        annotation: Any = Record if first is None else self._annotation(first)
        kind = _without_extras(annotation)
        item = _item_of(kind)
        is_open = annotation is kind and is_collection(kind) and not typing.get_args(kind)
        if is_open and self.decoder is None:
            self._refuse(
                f"its first parameter, {first!s:.100}, does not say if a call gets all records of a batch or one",
                SEVERAL,
            )
        if first is not None and (is_open or first.annotation is first.empty) and _means_several(first.name):
            self._remark = OneRecordPerCall(
                function=self._title, place=_place_of(self.function), parameter=first.name
            )
        if self.decoder is not None:
            if kind is Batch:
                self._refuse(
                    "decoder= makes a value of one record, and the function takes a Batch",
                    "annotate list[T], or drop decoder=",
                )
            return Plan(Form.RECORD if item is None else Form.LIST, self.decoder, False)
        if kind is Batch:
            return Plan(Form.BATCH)
        form, kind = (Form.RECORD, kind) if item is None else (Form.LIST, item)
        if kind is Record:
            return Plan(form)
        if kind in (Context, Window):
            self._refuse(
                f"its first parameter is a {kind.__name__}",
                f"take the record first, and the {kind.__name__} as the second one",
            )
        try:
            return Plan(form, decoder_of(kind))
        except NoDecoder as error:
            self._refuse(f"its first parameter: {error}", error.do)

    def _parameters(self) -> tuple[inspect.Parameter | None, str | None, str | None]:
        """Return the first parameter, if it is known, Plan.context_as and Plan.window_as."""
        try:
            parameters = list(inspect.signature(self.function).parameters.values())
        except (TypeError, ValueError):
            return None, None, None  # of a callable in C, say: its first call shows it
        positional = [each for each in parameters if each.kind in _POSITIONAL]
        if not positional and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
            self._refuse("it takes no record", "add a parameter: def on_record(record)")
        first = positional[0] if positional else None
        others = [each for each in parameters if each is not first and each.kind not in _ANY_NUMBER]
        context = next((each for each in others if self._is_for(each, Context, "context")), None)
        name = "" if self.window is None else "window"
        window = next((each for each in others if self._is_for(each, Window, name)), None)
        if [each.name for each in positional] == ["event", "context"] and _has_no_annotation(positional):
            self._refuse(
                "it has the parameters of a Lambda handler",
                "pass lambda_processor(...) of it, or pykcl run --lambda; for records annotate event: Record",
            )
        self._refuse_window(window)
        missing = [
            each.name for each in others if each.default is each.empty and each not in (context, window)
        ]
        if missing:
            names = ", ".join(missing)
            self._refuse(
                f"nothing is passed for {names}",
                f"bind it, functools.partial({self._title}, {missing[0]}=...), or give it a default; only a Context is "
                "passed besides the record",
            )
        second = positional[1:2]
        context_as, window_as = (
            None if each is None else "" if each in second else each.name for each in (context, window)
        )
        return first, context_as, window_as

    def _refuse_window(self, parameter: inspect.Parameter | None) -> None:
        """Raise NotAProcessor for windows without a Window, and the reverse."""
        if self.window is None and parameter is not None:
            self._refuse(
                f"it takes a Window ({parameter.name}), and has no windows",
                "give their length in seconds, handler(..., window=60), @app.stream(..., window=60) or --window 60",
            )
        if self.window is not None and parameter is None:
            self._refuse(
                f"window={self.window}, and it takes no Window",
                f"add a parameter: def {self._title}(records: list[dict], window: Window)",
            )

    def _annotation(self, parameter: inspect.Parameter) -> Any:
        """Return the annotation; Record where there is none."""
        if parameter.annotation is parameter.empty:
            return Record
        try:
            return _evaluated(parameter.annotation, self.function, self._names)
        except NameError:
            raise
        except Exception as error:  # noqa: BLE001 - an annotation may be any expression
            self._refuse(
                f"its annotation {parameter.annotation!s:.100} cannot be evaluated ({type(error).__name__})",
                f"use {FORMS}",
            )

    def _is_for(self, parameter: inspect.Parameter, kind: type, name: str) -> bool:
        """Return True for a parameter of this kind, or of this name."""
        if parameter.name == name:
            return True
        if parameter.annotation is parameter.empty:
            return False
        try:
            return _without_extras(self._annotation(parameter)) is kind
        except (NameError, NotAProcessor):
            # Imported for type checkers only, perhaps.
            return str(parameter.annotation).rpartition(".")[2] == kind.__name__


def _item_of(kind: Any) -> Any:
    """Return T of list[T] and Sequence[T]; None for anything else."""
    items = typing.get_args(kind) if typing.get_origin(kind) in (list, collections.abc.Sequence) else ()
    return _without_extras(items[0]) if items else None


def _without_extras(annotation: Any) -> Any:
    """Return what Annotated holds; anything else as it is."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation


def _means_several(name: str) -> bool:
    """Return True for a name such as records, orders or batch."""
    word = name.rpartition("_")[2]
    return word == "batch" or (len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")))


def _has_no_annotation(parameters: Sequence[inspect.Parameter]) -> bool:
    return all(each.annotation is each.empty for each in parameters)


def _evaluated(annotation: Any, function: Any, names: Mapping[str, Any]) -> Any:
    """Return the annotation that a text stands for. Raises what its evaluation raises, NameError above all."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    owner: Any = getattr(written(function), "__globals__", {})
    return typing.get_type_hints(holder, globalns=owner, localns=dict(names), include_extras=True)["it"]


def _names_of_the_caller() -> Mapping[str, Any]:
    """Return the local variables of the function that is calling pykcl: classes may be defined there."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("pykcl.handlers"):
        frame = frame.f_back
    return {} if frame is None or frame.f_locals is frame.f_globals else dict(frame.f_locals)


def written(function: Any) -> Any:
    """Return the function that somebody has written: behind partials, methods, wrappers and callable objects."""
    found = inspect.unwrap(behind_partials(function))
    if not isinstance(found, types.FunctionType | types.MethodType):
        found = getattr(type(found), "__call__", found)  # noqa: B004 - the method, not whether there is one
    return getattr(found, "__func__", found)


def _place_of(function: Any) -> str:
    code = getattr(written(function), "__code__", None)
    return "-" if code is None else f"{PurePath(code.co_filename).name}:{code.co_firstlineno}"


# -- the processor ---------------------------------------------------------------------------------------------

_Key = tuple[str, int, str, int]
"""Positions of the first and the last record of a call; of a final one the start of its window."""


class FunctionProcessor(RecordProcessor):
    """Calls the function of a Handler.

    records_filtered: number of records that were settled by the filter. handler_name: MODULE:NAME, for dead letters.
    remark: an event for the worker to emit, or None.
    """

    def __init__(self, made: Handler) -> None:
        self._function, self._is_wanted = made.function, made.is_wanted
        self._plan = made.plan()
        self.remark = made.remark()
        self.takes_each, self.is_async = self._plan.form is Form.RECORD, made.is_async
        self.handler_name = made.name
        self.windows = None if made.window is None else ShardWindows(made.window, PICKLED)
        self.records_filtered = 0
        self._fencing_token, self._is_replay = 0, False
        self._failed: _Key | None = None
        self._failures = 0

    def initialize(self, init: InitializationInput) -> None:
        self._fencing_token, self._is_replay = init.fencing_token, init.is_replay

    def process_records(self, batch: Batch) -> None:
        """Raises StoppedAt, or for a function of batches what it raises, and NotDecoded."""
        if self.windows is not None:
            self._call_in_window(batch, self.windows)
        elif self.takes_each:
            self._call_with_each(batch)
        else:
            self.call_all(batch)

    def _call_with_each(self, batch: Batch) -> None:
        call_one, own_process = self.call_one, OwnProcess()
        for record in batch.records:
            try:
                returned = call_one(record, batch)
                if returned is not None:
                    must_have_run(self.handler_name, returned)
            except (RestartShard, TableGone, NotAProcessor, EndsThread):
                raise
            except BaseException as error:
                # Of any kind, asyncio.CancelledError say: else the whole batch would have failed, and it might be given
                # up with records that the function was never called with.
                if not own_process.is_this:
                    raise
                self.failed((record,))
                raise StoppedAt(record, error) from error
            if not own_process.is_this:
                # Forked by the function, which has returned there, too: whoever called this ends the process.
                return

    # -- a `pykcl.handlers.lanes.Caller` -----------------------------------------------------------------------

    def call_one(self, record: Record, batch: Batch) -> object:
        """Return what the function has returned for a record; None for one that the filter refuses."""
        if self._is_wanted is not None and not self._is_wanted(record):
            self.records_filtered += 1
            return None
        value: Any = record
        plan = self._plan
        if plan.decode is not None:
            try:
                value = plan.decode(record.data if plan.takes_data else record)
            except Exception as error:  # noqa: BLE001 - a decoder may raise anything
                refuse(record, error)
        return self._function(value) if plan.context_as is None else self._with_context(value, record, batch)

    def call_all(self, batch: Batch) -> object:
        """Call a function of batches; return an awaitable if it is async."""
        if self.is_async:
            return self._await_all(batch)
        with self._calling_with_all(batch) as call:
            must_have_run(self.handler_name, call())
        return None

    def failed(self, records: Sequence[Record]) -> None:
        self._note(_key_of(records))

    async def _await_all(self, batch: Batch) -> None:
        with self._calling_with_all(batch) as call:
            returned = call()
            if returned is not None:
                must_have_run(self.handler_name, await returned)

    @contextmanager
    def _calling_with_all(self, batch: Batch) -> Iterator[Callable[[], Any]]:
        """Give a call of the function with the batch, to be made in the block; it does nothing if all is filtered."""
        records, value = batch.records, batch
        if self._is_wanted is not None:
            records = [record for record in records if self._is_wanted(record)]
            value = replace(batch, records=records)
        argument: Any = value if self._plan.form is Form.BATCH else self._decoded(records)
        has_context = self._plan.context_as is not None

        def call() -> Any:
            if batch and not records:
                return None
            return self._with_context(argument, None, batch) if has_context else self._function(argument)

        try:
            yield call
        except FailedAt as error:
            self.failed(batch.records)
            self._count_before(error.record, batch.records, records)
            raise
        except BaseException:
            self.failed(batch.records)
            raise
        self.records_filtered += len(batch) - len(records)

    def _call_in_window(self, batch: Batch, windows: ShardWindows) -> None:
        """Call the function with the records of a window, or, for an empty batch, with the end of it."""
        records: Sequence[Record] = batch.records
        if self._is_wanted is not None:
            records = [record for record in records if self._is_wanted(record)]
        is_final = not batch
        if records or (is_final and windows.has_calls):
            value = (
                replace(batch, records=records) if self._plan.form is Form.BATCH else self._decoded(records)
            )
            window = windows.window(batch.shard_id, is_final=is_final)
            key = _key_of(batch.records) or (window.start.isoformat(), 0, "", 0)
            try:
                returned = self._with_surroundings(value, window, batch, self._attempt(key))
                must_have_run(self.handler_name, returned)
                if not is_final:
                    windows.keep(returned)
            except FailedAt as error:
                self._note(key)
                # The state before that record is not known, so the ones before it cannot be done.
                raise ProcessingError("FailedAt in a window: the whole call counts as failed") from error
            except BaseException:
                self._note(key)
                raise
        if is_final:
            windows.closed()
        self.records_filtered += len(batch) - len(records)

    def _with_surroundings(self, value: Any, window: Window, batch: Batch, attempt: int) -> object:
        """Call the function with its Window, and with its Context if it takes one."""
        surroundings: list[tuple[str | None, Any]] = [(self._plan.window_as, window)]
        if self._plan.context_as is not None:
            context = Context(None, batch, attempt, self._fencing_token, self._is_replay)
            surroundings.append((self._plan.context_as, context))
        named = {name: each for name, each in surroundings if name}
        return self._function(value, *(each for name, each in surroundings if not name), **named)

    def _count_before(self, failed: Record, records: Sequence[Record], wanted: Sequence[Record]) -> None:
        """Count the filtered records before one that failed: those are settled, and do not come again."""
        if self._is_wanted is not None:
            before = [sum(each.position < failed.position for each in some) for some in (records, wanted)]
            self.records_filtered += before[0] - before[1]

    def _decoded(self, records: Sequence[Record]) -> list[Any]:
        """Decode all records, before the call. Raises NotDecoded for the first that cannot be."""
        decode, takes_data = self._plan.decode, self._plan.takes_data
        if decode is None:
            return list(records)
        values = []
        for record in records:
            try:
                values.append(decode(record.data if takes_data else record))
            except Exception as error:  # noqa: BLE001 - a decoder may raise anything
                refuse(record, error)
        return values

    # -- the context -------------------------------------------------------------------------------------------

    def _with_context(self, value: Any, record: Record | None, batch: Batch) -> object:
        attempt = 1
        if self._failed is not None:
            attempt = self._attempt(_key_of(batch.records if record is None else (record,)))
        context = Context(record, batch, attempt, self._fencing_token, self._is_replay)
        if self._plan.context_as:
            return self._function(value, **{self._plan.context_as: context})
        return self._function(value, context)

    def _attempt(self, key: _Key | None) -> int:
        return self._failures + 1 if key is not None and key == self._failed else 1

    def _note(self, key: _Key | None) -> None:
        self._failures = self._attempt(key)
        self._failed = key


def _key_of(records: Sequence[Record]) -> _Key | None:
    if not records:
        return None
    first, last = records[0], records[-1]
    return first.sequence_number, first.sub_sequence_number, last.sequence_number, last.sub_sequence_number
