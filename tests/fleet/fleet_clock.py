"""One clock for all processes of a run, and the end of every process with the harness that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

OFFSET_VARIABLE = "FLEET_CLOCK_OFFSET_MS"
PARENT_VARIABLE = "FLEET_PARENT"
_PR_SET_PDEATHSIG = 1


OFFSET = int(os.environ.get(OFFSET_VARIABLE) or (time.time_ns() - time.monotonic_ns()) // 1_000_000)
"""Of the harness; handed on to its children in the environment, so that times of different files can be compared."""


def now_millis() -> int:
    """Epoch milliseconds that never jump: the monotonic clock, which all processes of a machine share, plus OFFSET."""
    return time.monotonic_ns() // 1_000_000 + OFFSET


def die_with_the_harness() -> None:
    """End this process when the harness is gone, however it went. A frozen process can only be ended by the kernel."""
    parent = int(os.environ[PARENT_VARIABLE])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_watch, args=(parent,), name="fleet-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
