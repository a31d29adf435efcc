"""A process that user code forks has a copy of the worker in its memory, which must never go on working.

The copy would write under the same worker identifier, with conditions that still hold: it would release the leases of
its parent, or checkpoint what it alone has done, over connections that both share.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NoReturn

from pykcl.runtime import SystemRuntime

_LAST_WORDS = 2.0
"""Seconds."""

log = logging.getLogger("pykcl.worker")


class OwnProcess:
    """The process in which this was made."""

    __slots__ = ("_id",)

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_this(self) -> bool:
        return os.getpid() == self._id

    @contextmanager
    def alone_leaves(self, method: str, shard: str) -> Iterator[None]:
        """Around a call of user code: a process that was forked in there ends where it would leave it.

        As it would end without a worker: sys.exit() with its code, an exception with its traceback.
        """
        try:
            yield
        except BaseException as error:
            if not self.is_this:
                _end_the_fork(_code_of(error), partial(_tell, error))
            raise
        if not self.is_this:
            _end_the_fork(
                1,
                lambda: log.error(
                    "a process that was forked by the processor returned, and is ended; end it with os._exit() "
                    "method=%s shard=%s",
                    method,
                    shard,
                ),
            )


def _code_of(error: BaseException) -> int:
    code = error.code if isinstance(error, SystemExit) else 1
    return (code or 0) & 0xFF if code is None or isinstance(code, int) else 1


def _tell(error: BaseException) -> None:
    """As Python does."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    elif error.code is not None and not isinstance(error.code, int):
        sys.stderr.write(f"{error.code}\n")


def _end_the_fork(code: int, tell: Callable[[], object]) -> NoReturn:
    """At once: what waits for the end of a process belongs to the worker's, such as its threads and its sockets.

    What is told or written out may run into anything: a stream that is closed, or whose lock another thread had when
    the process was forked, and that thread is not there to give it back. So it has a moment for that, and no more.
    """

    def last_words() -> None:
        with suppress(BaseException):
            tell()
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()

    try:
        SystemRuntime().spawn("pykcl-fork", last_words).join(_LAST_WORDS)
    finally:
        os._exit(code)
