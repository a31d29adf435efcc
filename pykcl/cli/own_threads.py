"""Threads that a program of amazon_kclpy begins by itself: the process ends after them, as a child of its own would."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pykcl.cli.exit_codes import EXIT_CRASH

log = logging.getLogger("pykcl.kclpy")


@contextmanager
def begun_as_by_a_main_thread() -> Iterator[None]:
    """A thread that is begun in the block is no daemon, unless it says so, although the one that begins it is.

    A new thread takes after the one that begins it. In a child that is the main thread, so Python waits for the new
    one before the process ends; a shard's thread here is a daemon. 1) A writer begun by it has records in hand that are
    checkpointed; 2) the worker stops, and the process ends; 3) they are thrown away in silence. Nothing else looks at
    the mark of a thread that runs (CPython 3.10 to 3.14: who is waited for is settled when a thread begins).
    """
    thread = threading.current_thread()
    was = thread.daemon
    thread._daemonic = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        thread._daemonic = was  # type: ignore[attr-defined]


@contextmanager
def waited_for(seconds: float) -> Iterator[None]:
    """Around all that a process does: threads begun in the block that are no daemons have so long behind it.

    Waiting for them is Python's own business, when the process ends: it also tells the idle ones of a
    ThreadPoolExecutor to go. But it waits for ever; so those that are left are then cut off with the whole process, and
    told of.
    """
    before = set(threading.enumerate())
    try:
        yield
    finally:
        own = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
        if own:
            log.info("waiting for threads of the program threads=%s", _names(own))
            threading.Thread(target=_cut_off, args=(own, seconds), name="pykcl-cut-off", daemon=True).start()


def _cut_off(own: list[threading.Thread], seconds: float) -> None:
    until = time.monotonic() + seconds
    for thread in own:
        thread.join(max(0.0, until - time.monotonic()))
    left = [thread for thread in own if thread.is_alive()]
    if left:
        log.error(
            "threads of the program have not ended within %g s and are cut off: what they had in hand is lost "
            "threads=%s. Do: end them in lease_lost, shard_ended and shutdown_requested; or let Thread(..., "
            "daemon=True) say that they need not end",
            seconds,
            _names(left),
        )
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_CRASH)


def _names(threads: list[threading.Thread]) -> str:
    return ",".join(sorted(thread.name for thread in threads))
