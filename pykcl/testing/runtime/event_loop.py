"""An event loop of asyncio in simulated time: its waits let the other threads of a simulation go on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

from pykcl.runtime import EndsThread, Runtime

Result = TypeVar("Result")


class SteppingLoop(asyncio.BaseEventLoop):
    """An event loop whose clock is the simulated one, and which waits through the scheduler.

    It has everything of asyncio that needs neither a socket, nor a thread, nor a process of the system."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._wake = runtime.event()
        # What BaseEventLoop waits in.
        self._selector = self

    def time(self) -> float:
        return self._runtime.monotonic()

    def select(self, timeout: float | None) -> list[Any]:
        """Wait until `call_soon_threadsafe` is called, or the time is over: a switch point also if it is over now."""
        self._wake.wait(timeout)
        # Only now: what is called from another thread is in the queue before it wakes this one.
        self._wake.clear()
        return []

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        name = getattr(func, "__qualname__", type(func).__name__)
        raise RuntimeError(
            f"{name} is to run in a thread, and a simulation does not decide when that runs. Do: give the handler a "
            "stand-in for it, or test in real time with the pytest fixture `worker`."
        )

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # A task of a process that was killed is left where it stands.
        is_over = isinstance(context.get("exception"), EndsThread)
        if not is_over and "was destroyed" not in context["message"]:
            super().call_exception_handler(context)

    def _process_events(self, event_list: list[Any]) -> None:
        del event_list

    def _write_to_self(self) -> None:
        self._wake.set()


def run_coroutine(runtime: Runtime, main: Coroutine[Any, Any, Result]) -> Result:
    """Do what `asyncio.run` does, in simulated time."""
    loop = SteppingLoop(runtime)
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
