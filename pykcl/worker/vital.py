"""Threads a worker cannot do without: when one dies, the worker stops instead of living on by half."""

from __future__ import annotations

from collections.abc import Callable

from pykcl.errors import InternalError


def vital(body: Callable[[], None], name: str, on_fatal: Callable[[Exception], None]) -> Callable[[], None]:
    """`body`, telling `on_fatal` of whatever ends it unexpectedly; the exception then goes on its way."""

    def run() -> None:
        try:
            body()
        except BaseException as error:
            failure = InternalError(
                f"Thread {name} died of {type(error).__name__}, which is a bug in pykcl. The worker stops; its leases "
                "are released. Do: start it again, and report the traceback."
            )
            failure.__cause__ = error
            on_fatal(failure)
            raise

    return run
