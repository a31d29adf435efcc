"""A process that user code forks has a copy of the worker in its memory, which must never go on working.

The copy would write under the same worker identifier, with conditions that still hold: it would release the leases of
its parent, or checkpoint what it alone has done, over connections that both share.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

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
                _end_the_fork(_code_of(error))
            raise
        if not self.is_this:
            log.error(
                "a process that was forked by the processor returned, and is ended; end it with os._exit() method=%s "
                "shard=%s",
                method,
                shard,
            )
            _end_the_fork(1)


def _code_of(error: BaseException) -> int:
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def _end_the_fork(code: int) -> NoReturn:
    """At once: what waits for the end of a process belongs to the worker's, such as its threads and its sockets."""
    try:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # it may be closed, or anything that the program has put there
                stream.flush()
    finally:
        os._exit(code)
