"""One instance of the program's processor for each shard, though the program hands over one for all.

Under a MultiLangDaemon every shard has its own process, and so its own instance.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable
from typing import Any

from pykcl.compat.kclpy.holding import held_by_copies
from pykcl.compat.kclpy.sameness import Comparison, attributes, differ
from pykcl.compat.kclpy.singletons import EachItsOwn, refuse_the_same
from pykcl.errors import ConfigError

log = logging.getLogger("pykcl.kclpy")


def is_factory(given: Any) -> bool:
    """Whether this makes processors instead of being one: a class, or a function."""
    return isinstance(given, type) or (callable(given) and not hasattr(given, "process_records"))


def one_of(given: Any) -> Any:
    """A processor: `given`, or what it makes."""
    return given() if is_factory(given) else given


def factory_of(given: Any) -> Callable[[], Any]:
    """Makes processors that share nothing: copies of `given` as it is now, else new ones of its class.

    Raises ConfigError, with the reason, where neither is as good as what was given; and so does what it returns, when
    the program makes the same object a second time.
    """
    if is_factory(given):
        return EachItsOwn(given, getattr(given, "__qualname__", type(given).__name__))
    kind = type(given)
    copied: dict[int, Any] = {}
    try:
        # Copied once more for each shard: the program may go on changing its own.
        pristine = copy.deepcopy(given, copied)
    except Exception as error:  # noqa: BLE001 - what copying runs into is up to the program's attributes
        uncopied = _uncopied(given) or [type(error).__name__]
    else:
        # deepcopy keeps the originals it met alive in there, so that no other object gets the id of one of them.
        originals = copied.pop(id(copied), None)
        uncopied = held_by_copies(copied, given)
        del originals
        if hasattr(given, "process_records"):
            # Else it is no processor, which the caller tells better.
            refuse_the_same(pristine, given, kind.__name__)
        if not uncopied:
            return EachItsOwn(lambda: copy.deepcopy(pristine), kind.__name__, given)
    problem = _why_not_anew(given)
    if problem is None:
        return EachItsOwn(kind, kind.__name__, given)
    name = kind.__name__
    raise ConfigError(
        f"Each shard needs a {name} of its own, and the one given to KCLProcess can be neither copied "
        f"({', '.join(uncopied)}) nor made again ({problem}). Do: make what cannot be copied in initialize(), or write "
        f"{name}.__deepcopy__, or hand over a function that makes one: KCLProcess(lambda: {name}(...))."
    )


def _uncopied(given: Any) -> list[str]:
    """Names and types of the attributes that cannot be copied; never their values."""
    found = []
    for name, value in attributes(given).items():
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
    refuse_the_same(new, given, kind.__name__)
    refuse_the_same(another, new, kind.__name__)
    mine, others, thirds = map(attributes, (given, new, another))
    for name in parameters:
        problem = _why_not_the_default(name, mine, others)
        if problem is not None:
            return problem
    changed, unsure = [], []
    for name, value in mine.items():
        if name not in others:
            changed.append(name)
            continue
        seen = Comparison(value, others[name], (given, new))
        # Not of what differs at each time, such as a start time or a random id.
        if seen.beyond(Comparison(others[name], thirds.get(name), (new, another))):
            changed.append(name)
        elif seen.unsure:
            unsure.append(f"{name} ({', '.join(sorted(set(seen.unsure.values())))})")
    if changed:
        return f"set after it was made: {', '.join(changed)}"
    if unsure:
        log.warning(
            "%s cannot be copied, and is made again by its constructor for each shard. Whether the program had put "
            "anything else into %s after that nobody can tell, and the shards would not have it.",
            kind.__name__,
            ", ".join(unsure),
        )
    return None


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
    if differ(mine[kept], others[kept]):
        return f"it was not made with the default of {parameter}"
    try:
        is_equal = bool(mine[kept] == others[kept])
    except Exception:  # noqa: BLE001 - a comparison may raise anything
        is_equal = False
    return None if is_equal else f"nobody can tell whether {parameter} has its default"
