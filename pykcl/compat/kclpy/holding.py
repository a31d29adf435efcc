"""Whether copies of a program's processor still work on what they were copied from."""

from __future__ import annotations

import gc
import logging
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import date, time, timedelta, tzinfo
from enum import Enum
from functools import cached_property
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any
from uuid import UUID
from weakref import ProxyTypes, ReferenceType

_SHARED_BY_ALL = (ModuleType, CodeType, FrameType, logging.Logger, logging.Handler, Enum)
"""What is global, as the program sees it, or leads there."""
_NEVER_COPIED = ("boto3", "botocore")
"""Clients, sessions: who has one in a copy shares it on purpose, with the options that it was made with."""
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, CellType)
_WORKING = (FunctionType, MethodType, BuiltinFunctionType, ReferenceType, *ProxyTypes, type)
"""What can change something for whoever has it. What is mere data was left as it is by who said how to copy it."""
_UNCHANGEABLE = (tuple, frozenset, date, time, timedelta, tzinfo, PurePath, UUID)
"""deepcopy copies some of these, and who has the original is none the worse for it."""


def held_by_copies(copied: dict[int, Any], given: Any) -> list[str]:
    """The first function, class or reference that copies have and that works on what was copied: as deepcopy copies
    neither those nor tuples of them, they work on the original of all shards, and what they put there the copies never
    see.

    copied: by the id of each original, its copy, as deepcopy leaves it. given: the processor that was copied.
    """
    # What a copy has directly was put there by a __deepcopy__ of the program, which may share what it wants to.
    starts = [one for copy in list(copied.values()) for one in _parts(copy) if not _is_original(one, copied)]
    pending = [(one, one, False) for one in starts]
    # Its own class was there before it: what its methods hold is for all shards, as the globals of a module are.
    seen: dict[tuple[int, bool], Any] = {
        (id(kind), works): kind for kind in type(given).__mro__ for works in (False, True)
    }
    while pending:
        # works: whether a function or the like is on the way to it.
        one, holder, works = pending.pop()
        if (id(one), works) in seen:
            continue
        # Kept, as some are made by looking: no other may get the id of one of them.
        seen[id(one), works] = one
        is_worked_on = works or one is given
        if is_worked_on and _is_original(one, copied) and not issubclass(type(one), _UNCHANGEABLE):
            return [f"{_name_of(holder)} that holds on to {type(one).__name__}"]
        holder = holder if issubclass(type(one), _CONTAINERS) else one
        works = works or issubclass(type(one), _WORKING)
        pending += [(part, holder, works) for part in _parts(one)]
    return []


def _is_original(one: Any, copied: dict[int, Any]) -> bool:
    """Not of what is its own copy, such as a logger."""
    return id(one) in copied and copied[id(one)] is not one


def _name_of(holder: Any) -> str:
    if type(holder) in ProxyTypes or isinstance(holder, ReferenceType):
        return f"{type(holder).__name__}: a weak reference"
    if isinstance(holder, type):
        return f"{holder.__qualname__}: a class"
    what = "a function" if callable(holder) else "an object"
    name = getattr(holder, "__qualname__", None)
    return f"{name if isinstance(name, str) else type(holder).__name__}: {what}"


def _parts(one: Any) -> Iterable[Any]:
    """What can be reached from it without going through a module, the globals of a function, or a class of a module."""
    if type(one) in ProxyTypes:
        return _behind(one)
    if isinstance(one, _SHARED_BY_ALL) or type(one).__module__.partition(".")[0] in _NEVER_COPIED:
        return ()
    if isinstance(one, FunctionType):
        cells = one.__closure__ or ()
        return (*cells, one.__defaults__, one.__kwdefaults__, one.__dict__)
    if isinstance(one, MethodType | BuiltinFunctionType):
        return (one.__self__, getattr(one, "__func__", None))
    if isinstance(one, ReferenceType):
        return (one(), *gc.get_referents(one))
    return _functions_of(one) if isinstance(one, type) else _without_its_dict(one)


def _behind(proxy: Any) -> tuple[Any, ...]:
    """What a weak proxy leads to, as it answers to nothing itself."""
    try:
        return (proxy.__init__.__self__,)
    except ReferenceError:
        return ()


def _without_its_dict(one: Any) -> Iterator[Any]:
    """Before Python 3.11 an instance has a dict that has its attributes."""
    own: Any = None if isinstance(one, _CONTAINERS) else getattr(one, "__dict__", None)
    for part in gc.get_referents(one):
        if part is own and isinstance(own, dict):
            yield from part.values()
        else:
            yield part


def _functions_of(kind: type) -> Iterator[Any]:
    """Of a class that was made by a function, such as a constructor: its methods may be closures. Not its attributes,
    which are for all shards, as those of any class."""
    if _is_of_a_module(kind):
        return
    yield from kind.__bases__
    for member in list(vars(kind).values()):
        if isinstance(member, FunctionType | type):
            yield member
        elif isinstance(member, staticmethod | classmethod):
            yield member.__func__
        elif isinstance(member, property):
            yield from (member.fget, member.fset, member.fdel)
        elif isinstance(member, cached_property):
            yield member.func


def _is_of_a_module(kind: type) -> bool:
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        # Not by getattr: a module or a class may answer to that with anything.
        found = getattr(found, "__dict__", {}).get(name)
    return found is kind
