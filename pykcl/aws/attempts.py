"""Trying again what failed for a time, through the Runtime: it ends at a deadline, and when the worker is to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type

from pykcl.errors import TemporaryError
from pykcl.runtime import Event, Runtime

T = TypeVar("T")

_FEW = 4
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class Attempts:
    """May be used by any number of threads at once. stop: once set, nothing is tried a second time."""

    def __init__(self, runtime: Runtime, stop: Event) -> None:
        self._runtime = runtime
        self._stop = stop

    def few(self, call: Callable[[], T]) -> T:
        """What `call` gives; four times while it raises TemporaryError, whose last one is raised."""
        return self._again(call, lambda state: state.attempt_number >= _FEW, float("inf"))

    def until(self, deadline: float, call: Callable[[], T]) -> T:
        """What `call` gives, again and again until `deadline` (monotonic seconds) while it raises TemporaryError."""
        return self._again(call, lambda state: self._runtime.monotonic() >= deadline, deadline)

    def _again(self, call: Callable[[], T], enough: Callable[[RetryCallState], bool], until: float) -> T:
        # Nearly all succeed at once, and to ask tenacity costs as much as to sign a request: it is shown failures only.
        try:
            return call()
        except TemporaryError as error:
            failed = [error]

        def next_attempt() -> T:
            if failed:
                raise failed.pop()
            return call()

        attempts = Retrying(
            retry=retry_if_exception_type(TemporaryError),
            stop=lambda state: self._stop.is_set() or enough(state),
            wait=self._pause_after,
            sleep=lambda seconds: self._sleep(min(seconds, until - self._runtime.monotonic())),
            reraise=True,
        )
        return attempts(next_attempt)

    def _pause_after(self, state: RetryCallState) -> float:
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(state.attempt_number, 10))
        return self._runtime.random().uniform(longest / 2, longest)

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._stop.wait(seconds)
