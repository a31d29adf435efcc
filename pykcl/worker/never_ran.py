"""Functions whose call runs nothing: `async def`, and those with a `yield`. No record is processed by such a call."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

from pykcl.errors import NotAProcessor, PyKclError


class NeverRan(PyKclError):
    """A method of a processor returned what somebody else has to run. where: of that code, "file.py:12" or "-"."""

    DO = "write a plain def without yield; run a coroutine in it by asyncio.run(...)"

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


def why_it_runs_nothing(function: Any) -> str | None:
    """Which kind of function it is, as far as that can be known without a call; None for any other.

    Through functools.partial and an own `__call__`. Not through functools.wraps: the wrapper may run what it wraps.
    """
    call = getattr(type(function), "__call__", None)  # noqa: B004 - the method of an instance, not whether there is one
    for found in (function, *([call] if call is not None else [])):
        if inspect.iscoroutinefunction(found):
            return "async def"
        if inspect.isasyncgenfunction(found):
            return "async def with a yield"
        if inspect.isgeneratorfunction(found):
            return "a function with a yield"
    return None


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
