"""Check `processor=`: it must be able to make record processors whose methods do their work when they are called."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterable
from pathlib import PurePath
from types import FunctionType, MethodType
from typing import Any

from pykcl.errors import NotAProcessor, PyKclError
from pykcl.processor import ProcessorFactory, RecordProcessor, behind_partials, why_it_runs_nothing


class NeverRan(PyKclError):
    """A method of a processor returned what somebody else has to run. where: of that code, "file.py:12" or "-"."""

    DO = "write a plain def without yield; run a coroutine in it by asyncio.run(...)"

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


def refuse_what_runs_nothing(processor: Any, name: str, methods: Iterable[str]) -> None:
    """Raise NotAProcessor for such a method of a class or of an instance. name: what to call that."""
    for method in methods:
        kind = why_it_runs_nothing(getattr(processor, method, None))
        if kind is not None:
            raise NotAProcessor(
                f"{name}.{method} is {kind}: a call of it runs nothing, and its records would count as processed. "
                f"Do: {NeverRan.DO}."
            ).about("E15", NeverRan.DO)


def must_have_run(method: str, returned: object) -> None:
    """Raise NeverRan where a call returned a coroutine, a generator or another awaitable instead of doing its work."""
    if returned is None:
        return
    if not (inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned)):
        return
    codes = [getattr(returned, name, None) for name in ("cr_code", "gi_code", "ag_code")]
    where = [f"{PurePath(code.co_filename).name}:{code.co_firstlineno}" for code in codes if code is not None]
    if inspect.iscoroutine(returned) and inspect.getcoroutinestate(returned) == inspect.CORO_CREATED:
        # Else Python says that it was never awaited, at some later line of somebody else.
        returned.close()
    raise NeverRan(
        f"{method} returned {type(returned).__name__}, which nobody runs,", where[0] if where else "-"
    )


def refuse_what_acks_nothing(processor: Any) -> None:
    """Raise NotAProcessor for an adapter of a function or of a program, with checkpoint_mode="ack".

    Its code is done with a batch when it returns, and acks no record: the checkpoint would never move.
    """
    if hasattr(processor, "handler_name") or getattr(processor, "settles_on_return", False):
        name = getattr(processor, "handler_name", type(processor).__name__)
        raise NotAProcessor(
            f"checkpoint_mode='ack' waits for batch.ack(record), and {name} acks nothing: it is done with a batch when "
            "it returns. Do: checkpoint_mode='auto', or write a RecordProcessor."
        ).about("E15", "use checkpoint_mode='auto', or write a RecordProcessor")


def refuse_what_settles_by_itself(processor: Any, checkpoint_mode: str) -> None:
    """Raise NotAProcessor for a handler with lanes, with checkpoint_mode="manual".

    It has several records at a time, and a checkpoint of one of them would pass the others.
    """
    settles = getattr(processor, "settles_because", None)
    if settles is not None and checkpoint_mode == "manual":
        do = "checkpoint_mode='auto' or 'interval'"
        raise NotAProcessor(
            f"checkpoint_mode='manual' leaves checkpoints to {processor.handler_name}, which has {settles}: each "
            f"of its records is done when its call has returned, and the checkpoint follows by itself. Do: {do}."
        ).about("E15", do)


METHODS = ("initialize", "process_records", "lease_lost", "shard_ended", "shutdown_requested")
"""Of a record processor."""


def checked_processor(processor: Any) -> ProcessorFactory:
    """Return a factory of processors. Raises NotAProcessor."""
    if isinstance(processor, RecordProcessor):
        name = type(processor).__name__
        raise NotAProcessor(
            f"processor= wants a class or a zero-argument factory, one instance per shard; it got an instance of "
            f"{name}. Do: processor={name}, or processor=lambda: {name}(...)."
        ).about("E15", f"processor={name} (the class), or processor=lambda: {name}(...)")
    if isinstance(processor, type) and not issubclass(processor, RecordProcessor):
        do = f"class {processor.__name__}(RecordProcessor)"
        raise NotAProcessor(f"processor={processor.__name__} is not a RecordProcessor. Do: {do}.").about(
            "E15", do
        )
    if isinstance(processor, str):
        do = "import the class and pass it, processor=Orders"
        raise NotAProcessor(f"processor={processor!r} is text. Do: {do}.").about("E15", do)
    if not callable(processor):
        raise NotAProcessor(
            f"processor={type(processor).__name__} is neither a class nor a zero-argument factory."
        )
    made_of = behind_partials(processor)
    _refuse_what_is_unfinished(made_of)
    _refuse_what_needs_arguments(processor, made_of)
    if isinstance(made_of, type):
        refuse_what_runs_nothing(made_of, made_of.__name__, METHODS)
    elif why_it_runs_nothing(made_of):
        raise NotAProcessor(
            f"The factory that processor= names is {why_it_runs_nothing(made_of)}: its call makes no processor."
        )
    factory: ProcessorFactory = processor
    return factory if isinstance(factory, type) else functools.partial(_made_by, factory)


def _made_by(factory: ProcessorFactory) -> RecordProcessor:
    """Return what the factory makes. Raises NotAProcessor: no later call would make a better one."""
    made: Any = factory()
    missing = [name for name in ("process_records", "initialize") if not callable(getattr(made, name, None))]
    if isinstance(made, type) or missing:
        what = f"the class {made.__name__}" if isinstance(made, type) else type(made).__name__
        near = None if isinstance(made, type) else _nearest(type(made), missing[0])
        why = (
            f"it has {near}, and no {missing[0]}"
            if near
            else "was the `return` forgotten, or the class not called"
        )
        raise NotAProcessor(f"The factory that processor= names returned {what}, not a processor: {why}?")
    refuse_what_runs_nothing(made, type(made).__name__, METHODS)
    processor: RecordProcessor = made
    return processor


def _refuse_what_is_unfinished(kind: Any) -> None:
    """Raise NotAProcessor for a class with a method that is still to be written: no instance of it can be made."""
    if not (isinstance(kind, type) and _is_made_plainly(kind) and inspect.isabstract(kind)):
        return
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    problem, do = f"{kind.__name__} has no {' and no '.join(missing)}.", f"write {missing[0]}(self, ...)"
    if missing == ["process_records"]:
        near = _nearest(kind, missing[0])
        problem += f" It has {near}: did you mean that?" if near else ""
        do = f"rename {near} to process_records" if near else "write process_records(self, batch)"
    raise NotAProcessor(f"{problem} No instance can be made. Do: {do}.").about("E15", do)


def _nearest(kind: type, name: str) -> str | None:
    """The method that may have been meant."""
    own = [found for found in dir(kind) if not found.startswith("__") and found not in METHODS]
    return next(iter(difflib.get_close_matches(name, own, n=1)), None)


def _refuse_what_needs_arguments(factory: Any, made_of: Any) -> None:
    """Raise NotAProcessor for a constructor or a function that needs arguments, where that can be known."""
    needed = _needed(factory, made_of)
    if not needed:
        return
    name = made_of.__name__
    given = ", ".join(
        f"{each.name}={each.name}" if each.kind is each.KEYWORD_ONLY else each.name for each in needed
    )
    do = (
        f"pass lambda: {name}({given}), or functools.partial({name}, {given}); for pykcl run name a function that "
        "returns it"
    )
    if not isinstance(made_of, type):
        do = f"pass handler({name}) if it is to be called with records (from pykcl import handler); else {do}"
    names = ", ".join(each.name for each in needed)
    raise NotAProcessor(
        f"{name} needs {names}, and is called without arguments for each shard. Do: {do}."
    ).about("E15", do)


def _needed(factory: Any, made_of: Any) -> list[inspect.Parameter]:
    """Parameters without a default. None where nobody can know them before a call: of what wraps another function, has
    a signature that somebody gave it, is made by a metaclass, or is written in C."""
    if isinstance(made_of, type):
        init: Any = getattr(made_of, "__init__", None)
        is_known = _is_made_plainly(made_of) and isinstance(init, FunctionType)
    else:
        is_known = isinstance(made_of, FunctionType | MethodType)
    if not is_known or hasattr(made_of, "__signature__"):
        return []
    try:
        parameters = inspect.signature(factory, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return []
    any_number = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in parameters if each.default is each.empty and each.kind not in any_number]


def _is_made_plainly(kind: type) -> bool:
    new: Any = kind.__new__
    return type(kind).__call__ is type.__call__ and new is object.__new__
