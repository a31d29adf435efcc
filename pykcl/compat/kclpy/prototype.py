"""One instance of the program's processor for each shard, though the program hands over one for all.

Under a MultiLangDaemon every shard has its own process, and so its own instance.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from pykcl.errors import ConfigError, NotAProcessor


def is_factory(given: Any) -> bool:
    """Return True for what makes processors, a class or a function, and False for a processor."""
    return isinstance(given, type) or (callable(given) and not hasattr(given, "process_records"))


def one_of(given: Any) -> Any:
    """Return a processor: `given`, or the one that it makes."""
    return given() if is_factory(given) else given


def factory_of(given: Any) -> Callable[[], Any]:
    """Return a function that makes processors: copies of `given` as it is now, else new ones of its class.

    Raises ConfigError, with the reason, where neither can be had; and so does the function, where the program makes the
    same object again.
    """
    name = getattr(given, "__qualname__", type(given).__name__)
    if is_factory(given):
        return _OneForEach(given, name)
    try:
        # Copied once more for each shard: the program may go on changing its own.
        pristine = copy.deepcopy(given)
    except Exception as error:  # noqa: BLE001 - what copying runs into is up to the program's attributes
        problem = _why_not_anew(given)
        if problem is None:
            return _OneForEach(type(given), name, given)
        uncopied = ", ".join(_uncopied(given)) or type(error).__name__
        raise ConfigError(
            f"Each shard needs a {name} of its own, and the one given to KCLProcess can be neither copied ({uncopied}) "
            f"nor made again ({problem}). Do: make what cannot be copied in initialize(), or hand over a function that "
            f"makes one: KCLProcess(lambda: {name}(...)). Or run the program by `pykcl multilangd`, which starts a "
            "process for each shard."
        ) from None
    if hasattr(given, "process_records"):
        # Else it is no processor, which the caller tells better.
        _refuse_the_same(pristine, given, name)
    return _OneForEach(lambda: copy.deepcopy(pristine), name, given)


class _OneForEach:
    """Makes processors with `make`. Raises NotAProcessor for one that it has made before."""

    def __init__(self, make: Callable[[], Any], name: str, given: Any = None) -> None:
        self._make, self._name, self._before = make, name, given

    def __call__(self) -> Any:
        made = self._make()
        before, self._before = self._before, made
        _refuse_the_same(made, before, self._name)
        return made


def _refuse_the_same(made: Any, before: Any, name: str) -> None:
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
    """Return the reason why `type(given)()` is no substitute for `given`; None if their attributes agree."""
    kind = type(given)
    try:
        new, another = kind(), kind()
    except Exception as error:  # noqa: BLE001 - a constructor may raise anything
        return f"its constructor without arguments raises {type(error).__name__}"
    _refuse_the_same(new, given, kind.__name__)
    mine, news, others = map(_attributes, (given, new, another))
    if mine.keys() != news.keys():
        return f"a new one has other attributes: {', '.join(sorted(mine.keys() ^ news.keys()))}"
    told, new_told, other_told = map(_plain, (mine, news, others))
    # Not of what differs at each time, such as a start time or a random id.
    changed = [
        name
        for name in mine
        if told.get(name) != new_told.get(name) and new_told.get(name) == other_told.get(name)
    ]
    return f"a new one has another value of {', '.join(changed)}" if changed else None


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in attributes.items()
        if value is None or isinstance(value, str | bytes | int | float)
    }


def _attributes(given: Any) -> dict[str, Any]:
    """Return the attributes by name, with those of __slots__ that are set."""
    members = {name: member for kind in type(given).__mro__ for name, member in vars(kind).items()}
    slots = [name for name, member in members.items() if inspect.ismemberdescriptor(member)]
    found = {name: getattr(given, name) for name in slots if hasattr(given, name)}
    return {**found, **getattr(given, "__dict__", {})}
