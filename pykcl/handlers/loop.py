"""The event loop of the process, in a thread of its own, for handlers that are `async def`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import PurePath
from types import CodeType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pykcl.errors import InternalError
from pykcl.processor import why_it_runs_nothing
from pykcl.runtime import Coroutines, Runtime, error_of
from pykcl.worker.threads import Helpers

if TYPE_CHECKING:
    from pykcl.worker.turns import Standing

log = logging.getLogger("pykcl.handlers")

BLOCKED_AFTER = 1.0
"""Seconds without an answer of the loop after which a handler holds it up."""
_LEAKED_WITHIN = 1.0
"""Seconds in which tasks that handlers have left behind have to end once they are cancelled."""
_STEP = asyncio.Handle._run.__code__
_MAX_FRAMES = 30


class HandlerLoop:
    """Any thread calls it. Made by `LoopUser` alone.

    users: how many need it. on_death: called if its thread dies; each stops a worker.
    """

    def __init__(self, runtime: Runtime, loop: Any) -> None:
        self._runtime, self._loop = runtime, loop
        self._is_closing = False
        self._asked_at: float | None = None
        self._is_reported = False
        self._on_cancel: WeakKeyDictionary[Any, Callable[[], object]] = WeakKeyDictionary()
        self.users = 0
        self.on_death: list[Callable[[Exception], None]] = []
        self.task = runtime.spawn("pykcl-loop", self._run)

    @property
    def is_alive(self) -> bool:
        return self.task.is_alive()

    def call(self, callback: Callable[[], object]) -> None:
        """Call it in the loop."""
        # It is closed once its worker has stopped, and what a call left alone still has to say is of no use.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def start(
        self, coroutine: Coroutine[Any, Any, object], on_cancel: Callable[[], object] = lambda: None
    ) -> Any:
        """Start a task, in the loop's own thread. on_cancel: called if it is cancelled, before it goes on."""
        task = self._loop.create_task(coroutine)
        self._on_cancel[task] = on_cancel
        return task

    def cancel(self, tasks: Iterable[Any]) -> None:
        """Cancel those tasks that have not ended, in the loop's own thread, in which none goes on meanwhile."""
        for task in tasks:
            if task.cancel() and task in self._on_cancel:
                self._on_cancel[task]()

    def call_hook(self, function: Callable[[], Any]) -> None:
        """Call a function; in the loop, and until it has returned, if it is async. Raises what it raises."""
        if why_it_runs_nothing(function) is None:
            function()
            return
        ended = self._runtime.event()
        errors: list[BaseException] = []

        async def run() -> None:
            try:
                await function()
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                errors.append(error)
            finally:
                ended.set()

        self.call(lambda: self.start(run()))
        while not ended.wait(BLOCKED_AFTER) and self.is_alive:
            pass
        if errors:
            raise errors[0]

    def blocked(self) -> tuple[float, tuple[str, ...]] | None:
        """Return for how long the loop has not answered, and its stack; None if it does, or that was returned before.

        To be called about once a second while something runs in it.
        """
        now, asked_at = self._runtime.monotonic(), self._asked_at
        if asked_at is None:
            self._asked_at = now
            self.call(self._answer)
        elif now - asked_at >= BLOCKED_AFTER and not self._is_reported:
            self._is_reported = True
            return now - asked_at, self._runtime.stack(self.task, below=_STEP)[-_MAX_FRAMES:]
        return None

    def standing(self, task: Any, below: CodeType) -> Standing:
        """Return where a task stands; below: as in `Runtime.stack`.

        Called by another thread. A task that runs right now has the stack of that thread.
        """
        lines: list[str] = []
        waits: Any = task.get_coro()
        while isinstance(waits, CoroutineType | GeneratorType):
            if isinstance(waits, CoroutineType):
                frame, following = waits.cr_frame, waits.cr_await
            else:
                frame, following = waits.gi_frame, waits.gi_yieldfrom
            if frame is not None:
                code = frame.f_code
                lines.append(f"{PurePath(code.co_filename).name}:{frame.f_lineno} in {code.co_name}")
            waits = following
        # The first is of the lane. A call that has not waited yet has no other.
        return self.task.name, tuple(lines[1:]) or self._runtime.stack(self.task, below=below)

    def _answer(self) -> None:
        self._asked_at, self._is_reported = None, False

    def close(self) -> None:
        """Let the loop end: tasks that handlers have left behind are cancelled."""
        self._is_closing = True
        self.call(self._loop.stop)

    # -- in its own thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            while not self._is_closing:
                self._step(loop.run_forever)
            leaked = asyncio.all_tasks(loop)
            # Also those of lanes: 1) the thread of their shard waits for DynamoDB until the grace is over; 2) the
            # worker waits no longer, and closes this loop.
            self.cancel(leaked)
            if leaked:
                self._step(lambda: loop.run_until_complete(asyncio.wait(leaked, timeout=_LEAKED_WITHIN)))
            self._step(lambda: loop.run_until_complete(loop.shutdown_asyncgens()))
        finally:
            asyncio.set_event_loop(None)
            loop.close()
            if not self._is_closing:
                self._died()

    def _died(self) -> None:
        for stop_worker in list(self.on_death):
            stop_worker(
                InternalError("The event loop died, which is a bug in pykcl. Do: start the worker again.")
            )

    def _step(self, run: Callable[[], object]) -> None:
        error = error_of(run)
        if error is not None:
            # sys.exit of a task that a handler has left behind, say.
            log.error("a task in the event loop raised error=%s", type(error).__name__)


class LoopUser:
    """Holds the loop of the process: it begins with the first user, and ends with the last one. A `Helper`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._place: Coroutines = runtime.coroutines()
        self._stop_worker: Callable[[Exception], None] | None = None
        with self._place.lock:
            found = self._place.loop
            # In a process that was forked the thread is not there, and nobody who uses it.
            if found is None or not found.is_alive:
                new = self._place.new_loop or asyncio.new_event_loop
                found = self._place.loop = HandlerLoop(runtime, new())
            found.users += 1
        self.loop: HandlerLoop = found

    @classmethod
    def of(cls, helpers: Helpers) -> LoopUser:
        """Return a user for a worker."""
        user = cls(helpers.runtime)
        user._stop_worker = helpers.on_fatal
        user.loop.on_death.append(helpers.on_fatal)
        return user

    def close(self, until: float) -> list[str]:
        if self._stop_worker is not None:
            self.loop.on_death.remove(self._stop_worker)
        with self._place.lock:
            self.loop.users -= 1
            if self.loop.users:
                return []
            if self._place.loop is self.loop:
                self._place.loop = None
        self.loop.close()
        self.loop.task.join(max(0.0, until - self._runtime.monotonic()))
        return [self.loop.task.name] if self.loop.is_alive else []
