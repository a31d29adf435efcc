"""Many questions, a few at a time, each in a thread of the Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from pykcl.errors import PyKclError
from pykcl.runtime import Runtime

Key = TypeVar("Key")
Answer = TypeVar("Answer")


def side_by_side(
    keys: Iterable[Key], ask: Callable[[Key], Answer], runtime: Runtime, *, most: int, name: str
) -> dict[Key, Answer]:
    """`ask(key)` for each, in that order, at most `most` at the same moment. name: of the threads, before a number.

    Raises the first PyKclError that one of them raised; then nothing more is asked. A key whose thread died of
    anything else is missing in the answer.
    """
    waiting = list(keys)[::-1]
    answers: dict[Key, Answer] = {}
    failures: list[PyKclError] = []
    lock = runtime.lock()

    def work() -> None:
        while True:
            with lock:
                if failures or not waiting:
                    return
                key = waiting.pop()
            try:
                answer = ask(key)
            except PyKclError as error:
                with lock:
                    failures.append(error)
                return
            with lock:
                answers[key] = answer

    tasks = [runtime.spawn(f"{name}-{number}", work) for number in range(min(most, len(waiting)))]
    for task in tasks:
        task.join()
    if failures:
        raise failures[0]
    return answers
