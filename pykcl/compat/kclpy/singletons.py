"""A program that makes one and the same processor again, where each shard needs one of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import ref

from pykcl.errors import NotAProcessor


def refuse_the_same(made: Any, before: Any, name: str) -> None:
    """Raises NotAProcessor where these are one object, or have all their attributes in common.

    name: of the class or function of the program that made them.
    """
    if made is before:
        what = "always returns one and the same object"
    elif hasattr(made, "__dict__") and made.__dict__ is getattr(before, "__dict__", None):
        what = "makes objects that have one and the same __dict__"
    else:
        return
    raise NotAProcessor(
        f"Each shard needs a processor of its own, and {name} {what}: all shards would write into it at the same "
        f"time. Do: let {name} make a new one at each call, without a singleton."
    ).about("E15", f"let {name} make a new processor at each call, without a singleton")


class EachItsOwn:
    """Makes processors with `make`. Raises NotAProcessor when one comes that is still alive, or whose attributes are.

    name: of the class or function of the program that makes them. given: a processor that none of them may be.
    """

    def __init__(self, make: Callable[[], Any], name: str, given: Any = None) -> None:
        self._make = make
        self._name = name
        # By the id of a processor, and of its __dict__. Shards begin in threads of their own: an entry is written by
        # setdefault, which is one step, and it goes before another object can get that id.
        self._alive: dict[int, ref[Any]] = {}
        self._last: Any = None
        if given is not None:
            self._refuse_again(given)

    def __call__(self) -> Any:
        made = self._make()
        self._refuse_again(made)
        return made

    def _refuse_again(self, made: Any) -> None:
        for one in (made, *([made.__dict__] if hasattr(made, "__dict__") else [])):
            key = id(one)
            try:
                mine = ref(made, functools.partial(self._forget, key))
            except TypeError:
                # It has __slots__: the last one is kept alive instead, and compared with the next.
                before, self._last = self._last, made
                refuse_the_same(made, before, self._name)
                return
            there = self._alive.setdefault(key, mine)
            if there is mine:
                continue
            refuse_the_same(made, there(), self._name)
            # That one has been given another __dict__ since.
            self._alive[key] = mine

    def _forget(self, key: int, gone: ref[Any]) -> None:
        if self._alive.get(key) is gone:
            self._alive.pop(key, None)
