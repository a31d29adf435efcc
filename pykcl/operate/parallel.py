"""Calls that wait for AWS or for workers, a few at a time, each in a thread of the Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from pykcl.runtime import Runtime

Key = TypeVar("Key")
Result = TypeVar("Result")


def parallel_map(
    call: Callable[[Key], Result], keys: Iterable[Key], runtime: Runtime, *, max_threads: int, name: str
) -> dict[Key, Result]:
    """Return `call(key)` by key, called in their order, at most `max_threads` at a time. name: prefix of the threads.

    Raises the first exception of a call; no further call is made then.
    """
    waiting = list(keys)[::-1]
    results: dict[Key, Result] = {}
    failures: list[Exception] = []
    lock = runtime.lock()

    def work() -> None:
        while True:
            with lock:
                if failures or not waiting:
                    return
                key = waiting.pop()
            try:
                result = call(key)
            except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
                with lock:
                    failures.append(error)
                return
            with lock:
                results[key] = result

    tasks = [runtime.spawn(f"{name}-{number}", work) for number in range(min(max_threads, len(waiting)))]
    for task in tasks:
        task.join()
    if failures:
        raise failures[0]
    return results
