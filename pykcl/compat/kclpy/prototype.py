"""One instance of the program's processor for each shard, though the program hands over one for all.

Under a MultiLangDaemon every shard has its own process, and so its own instance.
"""

from __future__ import annotations

import copy
import gc
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from pykcl.errors import ConfigError

_WHOLE = (str, bytes, bytearray, int, float, bool, type(None), set, frozenset, type, ModuleType)
"""What is compared as a whole. Classes and modules are what they are."""
_CHANGED_BY_USE = ("boto3", "botocore")
"""Of what they keep for themselves nothing was set by the program."""
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, type(lru_cache(len)))


def is_factory(given: Any) -> bool:
    """Whether this makes processors instead of being one: a class, or a function."""
    return isinstance(given, type) or (callable(given) and not hasattr(given, "process_records"))


def one_of(given: Any) -> Any:
    """A processor: `given`, or what it makes."""
    return given() if is_factory(given) else given


def factory_of(given: Any) -> Callable[[], Any]:
    """Makes processors that share nothing: copies of `given` as it is now, else new ones of its class.

    Raises ConfigError, with the reason, where neither is as good as what was given.
    """
    if is_factory(given):
        made: Callable[[], Any] = given
        return made
    copied: dict[int, Any] = {}
    try:
        # Copied once more for each shard: the program may go on changing its own.
        pristine = copy.deepcopy(given, copied)
    except Exception as error:  # noqa: BLE001 - what copying runs into is up to the program's attributes
        uncopied = _uncopied(given) or [type(error).__name__]
    else:
        # deepcopy keeps the originals it met alive in there, so that no other object gets the id of one of them.
        originals = copied.pop(id(copied), None)
        uncopied = _held_by_functions(copied)
        del originals
        if not uncopied:
            return lambda: copy.deepcopy(pristine)
    problem = _why_not_anew(given)
    if problem is None:
        anew: Callable[[], Any] = type(given)
        return anew
    name = type(given).__name__
    raise ConfigError(
        f"Each shard needs a {name} of its own, and the one given to KCLProcess can be neither copied "
        f"({', '.join(uncopied)}) nor made again ({problem}). Do: make what cannot be copied in initialize(), or write "
        f"{name}.__deepcopy__, or hand over a function that makes one: KCLProcess(lambda: {name}(...))."
    )


def _uncopied(given: Any) -> list[str]:
    """Names and types of the attributes that cannot be copied; never their values."""
    found = []
    for name, value in _attributes(given).items():
        try:
            copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - see above
            found.append(f"{name}: {type(value).__name__}")
    return found


def _why_not_anew(given: Any) -> str | None:
    """Why `type(given)()` would not be what was given; None: it would."""
    kind = type(given)
    try:
        parameters = inspect.signature(kind).parameters
    except ValueError:
        return "nobody can tell what its constructor takes"
    if any(_is_required(parameter) for parameter in parameters.values()):
        return f"its constructor takes {', '.join(parameters)}"
    try:
        new, another = kind(), kind()
    except Exception as error:  # noqa: BLE001 - a constructor may raise anything
        return f"its constructor raises {type(error).__name__}"
    mine, others, thirds = map(_attributes, (given, new, another))
    for name in parameters:
        problem = _why_not_the_default(name, mine, others)
        if problem is not None:
            return problem
    # Not of what differs at each time, such as a start time or a random id.
    changed = [
        name
        for name, value in mine.items()
        if name not in others
        or (_differ(value, others[name]) and not _differ(others[name], thirds.get(name)))
    ]
    return f"set after it was made: {', '.join(changed)}" if changed else None


def _is_required(parameter: inspect.Parameter) -> bool:
    is_any = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and not is_any


def _why_not_the_default(parameter: str, mine: dict[str, Any], others: dict[str, Any]) -> str | None:
    """Why an instance with the attributes `mine` may have been given another value than its default; None: it was not.

    others: attributes of one that has all defaults. A value that is not kept under the parameter's name may have gone
    into what tells nothing of it, such as a client or a compiled pattern.
    """
    kept = next((name for name in (parameter, f"_{parameter}") if name in mine and name in others), None)
    if kept is None:
        return f"nobody can tell whether {parameter} has its default"
    if _differ(mine[kept], others[kept]):
        return f"it was not made with the default of {parameter}"
    try:
        is_equal = bool(mine[kept] == others[kept])
    except Exception:  # noqa: BLE001 - a comparison may raise anything
        is_equal = False
    return None if is_equal else f"nobody can tell whether {parameter} has its default"


def _held_by_functions(copied: dict[int, Any]) -> list[str]:
    """Functions that a copy has and that work on what was copied: as functions are not, they work on the original of
    all shards, and what they put there the copies never see.

    copied: by the id of each original, its copy, as deepcopy leaves it.
    """
    held = [one for each in copied.values() for one in gc.get_referents(each) if isinstance(one, _FUNCTIONS)]
    seen: set[int] = set()
    while held:
        function = held.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        for one in _held_by(function):
            if id(one) in copied:
                return [f"{function.__qualname__}: a function that holds on to {type(one).__name__}"]
            if isinstance(one, _FUNCTIONS):
                held.append(one)
    return []


def _held_by(function: Any) -> Iterator[Any]:
    yield getattr(function, "__self__", None)
    yield getattr(function, "__wrapped__", None)
    yield from getattr(function, "__defaults__", None) or ()
    for cell in getattr(function, "__closure__", None) or ():
        # An empty one has no contents: a name that is bound later, or never.
        yield getattr(cell, "cell_contents", None)


def _differ(one: Any, other: Any, met: set[tuple[int, int]] | None = None) -> bool:
    """Whether these are of different kinds or say something different, as far as one can see. met: on the way here."""
    met = set() if met is None else met
    if one is other or (id(one), id(other)) in met:
        return False
    met.add((id(one), id(other)))
    package = type(one).__module__.partition(".")[0]
    if type(one) is not type(other) or package in _CHANGED_BY_USE:
        # By name, as boto3 makes a class anew for each client.
        return _name_of(one) != _name_of(other)
    if isinstance(one, _WHOLE):
        return bool(one != other)
    if isinstance(one, FunctionType | MethodType):
        return one.__code__ is not other.__code__
    mine, others = _parts(one), _parts(other)
    return mine.keys() != others.keys() or any(_differ(mine[key], others[key], met) for key in mine)


def _parts(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    return dict(enumerate(value)) if isinstance(value, list | tuple | deque) else _attributes(value)


def _name_of(value: Any) -> tuple[str, str]:
    return type(value).__module__, type(value).__qualname__


def _attributes(instance: Any) -> dict[str, Any]:
    found: dict[str, Any] = dict(getattr(instance, "__dict__", {}))
    for kind in type(instance).__mro__:
        for name, member in vars(kind).items():
            # Of __slots__, and it may hold nothing yet.
            if inspect.ismemberdescriptor(member) and hasattr(instance, name):
                found[name] = getattr(instance, name)
    return found
