"""Settings of a process that reads streams, once for its memory: the garbage collector, and the allocator of glibc.

Both are of the whole process, so that only `Worker.run` and `run_together` set them, which a program calls for nothing
else but to read. A program that calls `Worker.start` decides by itself.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

_YOUNG: Final = 50_000
_is_tuned = False


def tune_collector() -> None:
    """Exclude all objects that exist from garbage collection, once in a process, and collect less often.

    75,000 objects of modules and of boto3's models live as long as the process, and every full collection walks them
    all, with the interpreter's lock held. Records are freed with their batch, without a collection; but a program that
    keeps the 10,000 records of a batch would cause fourteen collections, each a walk over records that are in use.
    """
    global _is_tuned  # noqa: PLW0603 - the collector is the process's
    if _is_tuned:
        return
    _is_tuned = True
    gc.collect()
    gc.freeze()
    gc.set_threshold(max(_YOUNG, gc.get_threshold()[0]), *gc.get_threshold()[1:])


_M_MMAP_THRESHOLD: Final = -3
_LARGE_BLOCK: Final = 4 * 1024 * 1024


def return_large_blocks() -> bool:
    """Let glibc return each block of 4 MiB or more to the system as soon as it is freed; return whether it does.

    glibc raises that bound by itself, to the size of the largest block that was freed, at most 32 MiB. So the blocks of
    pages of 10 MiB would stay in the heap of each thread that read one. Smaller pages are not affected.
    """
    if sys.platform != "linux" or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    try:
        # Some builds of Python are without it.
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, AttributeError):
        # musl, for example, has no such option.
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK))


def tune_process() -> None:
    """Tune both. Called once a worker has started, so that what it is made of is excluded, too."""
    tune_collector()
    return_large_blocks()
