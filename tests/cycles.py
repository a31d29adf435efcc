"""Objects that only the garbage collector frees. An exception in a cycle keeps all that its traceback came through."""

from __future__ import annotations

import gc
from collections.abc import Callable
from traceback import walk_tb


def _is_of_pykcl(one: object) -> bool:
    """Return True for an exception that came through pykcl. Servers of other tests may end meanwhile, and leave cycles."""
    frames = walk_tb(one.__traceback__) if isinstance(one, BaseException) else ()
    return any("/pykcl/" in frame.f_code.co_filename for frame, _ in frames)


def types_in_cycles(act: Callable[[], object]) -> list[str]:
    """Call `act`, which may raise, with the garbage collector off; return the types of what this leaves to it."""
    gc.collect()
    gc.disable()
    try:
        try:
            act()
        except Exception:  # noqa: BLE001 - whatever it is, nothing of it may stay
            act = list
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return sorted({type(one).__name__ for one in gc.garbage if _is_of_pykcl(one)})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
