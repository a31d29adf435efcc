"""Waits in the event loop of a program for threads of pykcl. The loop goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

from pykcl.runtime import Runtime, outcome_of

Result = TypeVar("Result")


class LoopEvent:
    """A flag that any thread sets, and for which a task of the running event loop waits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Future[None] = self._loop.create_future()

    def set(self) -> None:
        # RuntimeError: the loop has ended, and nobody waits in it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(resolve, self._news)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until set, or for `timeout` seconds; return whether it is set."""
        await asyncio.wait((self._news,), timeout=timeout)
        return self._news.done()


async def in_a_thread(runtime: Runtime, name: str, call: Callable[[], Result]) -> Result:
    """Wait for a call in a thread of its own. A cancellation is raised once it has returned."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    outcomes: list[tuple[Result | None, BaseException | None]] = []

    def work() -> None:
        outcomes.append(outcome_of(call))
        loop.call_soon_threadsafe(resolve, done)

    task = runtime.spawn(name, work)
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError as error:
            cancelled = error
    # It has nothing left to do, and is not to be found by who counts threads.
    task.join(1.0)
    ((result, raised),) = outcomes
    if cancelled is not None:
        raise cancelled from raised
    if raised is not None:
        raise raised
    return cast(Result, result)


def resolve(news: asyncio.Future[None]) -> None:
    """Let those go on who wait for a future."""
    if not news.done():
        news.set_result(None)
