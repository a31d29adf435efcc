"""What tells two objects of a program apart, as far as one can see."""

from __future__ import annotations

import inspect
import re
import sys
from collections import deque
from io import IOBase
from operator import attrgetter
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import Any
from weakref import ReferenceType

Path = tuple[Any, ...]
"""Names and keys that lead from what was compared to something in it."""

_WHOLE = (str, bytes, bytearray, int, float, bool, type(None), set, frozenset, type, ModuleType)
"""What is compared as a whole. Classes and modules are what they are."""
_SCALARS = (str, bytes, int, float, type(None))
_SEQUENCES = (list, tuple, deque)
_FOR_THREADS = (
    "_thread",
    "threading",
    "queue",
    "_queue",
    "concurrent",
    "multiprocessing",
    "_multiprocessing",
)
"""Locks and such: what they hide is who holds them."""
_OF_FILES = ("name", "mode", "encoding")
_OF_BOTO = (
    "meta.endpoint_url",
    "meta.region_name",
    "meta.service_model.service_name",
    "_request_signer._credentials.method",
    "meta.identifiers",
    "meta.client",
    "region_name",
    "profile_name",
    "profile",
    "_session_instance_vars",
)
"""What the program says to clients, resources and sessions. What else they keep changes by use."""
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_MISSING = object()


class Comparison:
    """differing: paths at which the two say something different. unsure: at which they may, and nobody can tell."""

    def __init__(self, one: Any, other: Any, same: tuple[Any, Any] | None = None) -> None:
        """same: two that are known to correspond to one another, such as those that these are attributes of."""
        self.differing: set[Path] = set()
        self.unsure: dict[Path, str] = {}
        # Also keeps alive what is made by looking: no other object may get the id of one that was met.
        self._met: dict[tuple[int, int], tuple[Any, Any]] = {}
        if same is not None:
            self._met[id(same[0]), id(same[1])] = same
        self._pending: list[tuple[Path, Any, Any]] = [((), one, other)]
        while self._pending:
            path, mine, others = self._pending.pop()
            if mine is not others and (id(mine), id(others)) not in self._met:
                self._met[id(mine), id(others)] = mine, others
                self._compare(path, mine, others)

    def beyond(self, usual: Comparison) -> bool:
        """Whether there are differences here other than those, such as in a start time or a random id."""
        return any(
            not any(path[:length] in usual.differing for length in range(len(path) + 1))
            for path in self.differing
        )

    def _compare(self, path: Path, one: Any, other: Any) -> None:
        # By name, as boto3 makes a class anew for each client, and a constructor may make one, too.
        if _name_of(one) != _name_of(other):
            self.differing.add(path)
        elif isinstance(one, _WHOLE):
            self._differ_if(path, _is_equal(one, other) is False)
        elif isinstance(one, FunctionType):
            self._differ_if(path, one.__code__ != other.__code__)
            self._go_on(path, _of_function(one), _of_function(other))
        elif isinstance(one, MethodType | BuiltinFunctionType | MethodWrapperType):
            self._differ_if(path, one.__name__ != other.__name__)
            for name in ("__self__", "__func__"):
                self._pending.append(((*path, name), getattr(one, name, None), getattr(other, name, None)))
        elif isinstance(one, ReferenceType):
            self._pending.append(((*path, "()"), one(), other()))
        elif type(one).__module__.partition(".")[0] in ("boto3", "botocore"):
            self._differ_if(path, _has_own(one, "__eq__") and _is_equal(one, other) is False)
            self._go_on(path, _of_boto(one), _of_boto(other))
        elif isinstance(one, dict):
            self._go_on(
                path,
                {("[]", key): value for key, value in one.items()} | attributes(one),
                {("[]", key): value for key, value in other.items()} | attributes(other),
            )
        elif isinstance(one, _SEQUENCES):
            # All under one path: where one that is drawn by lot differs each time, another may be equal by chance.
            self._differ_if(path, (len(one), _said(one, "maxlen")) != (len(other), _said(other, "maxlen")))
            self._pending += [(path, mine, others) for mine, others in zip(one, other, strict=False)]
            self._go_on(path, attributes(one), attributes(other))
        else:
            self._compare_objects(path, one, other)

    def _differ_if(self, path: Path, is_so: bool) -> None:
        if is_so:
            self.differing.add(path)

    def _go_on(self, path: Path, mine: dict[Any, Any], others: dict[Any, Any]) -> None:
        self._differ_if(path, mine.keys() != others.keys())
        self._pending += [((*path, key), mine[key], others[key]) for key in mine if key in others]

    def _compare_objects(self, path: Path, one: Any, other: Any) -> None:
        kind = type(one)
        equal = _is_equal(one, other) if _has_own(one, "__eq__") else None
        if equal and kind.__module__.partition(".")[0] in sys.stdlib_module_names:
            # Some keep their hash or their text once they were asked, as paths do.
            return
        mine, others = attributes(one), attributes(other)
        self._go_on(path, mine, others)
        if equal is not None and (
            not mine
            or (isinstance(kind.__eq__, WrapperDescriptorType) and not isinstance(one, SimpleNamespace))
        ):
            # Of a class with attributes only where it is written in C, and so may know more than they say: it may
            # look at no more than a name, or find two locks different.
            self._differ_if(path, not equal)
            return
        if isinstance(one, IOBase) and _said(one, "name") is not _MISSING:
            self._go_on(path, _all_said(one, _OF_FILES), _all_said(other, _OF_FILES))
        elif kind.__module__.partition(".")[0] not in _FOR_THREADS:
            self._compare_what_is_hidden(path, one, other)

    def _compare_what_is_hidden(self, path: Path, one: Any, other: Any) -> None:
        """Where a class is written in C it may have told nothing yet."""
        mine, others = _reduced(one), _reduced(other)
        if mine is not None and others is not None:
            if _has_own(one, "__reduce_ex__", "__reduce__", "__getstate__"):
                self._pending.append(((*path, "reduced"), mine, others))
            return
        texts = [_ADDRESS.sub("", _text(each)) for each in (one, other)]
        self._differ_if(path, (mine is None) != (others is None) or texts[0] != texts[1])
        self.unsure[path] = type(one).__name__


def differ(one: Any, other: Any) -> bool:
    """Whether these are of different kinds or say something different, as far as one can see."""
    return bool(Comparison(one, other).differing)


def attributes(instance: Any) -> dict[Any, Any]:
    """By their names."""
    own = _said(instance, "__dict__")
    found: dict[Any, Any] = dict(own) if isinstance(own, dict) else {}
    for kind in type(instance).__mro__:
        for name, member in vars(kind).items():
            # Of __slots__, and it may hold nothing yet.
            if inspect.ismemberdescriptor(member) and hasattr(instance, name):
                found[name] = getattr(instance, name)
    return found


def _name_of(value: Any) -> tuple[str, str]:
    return type(value).__module__, type(value).__qualname__


def _is_equal(one: Any, other: Any) -> bool | None:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - a comparison may raise anything
        return None


def _of_function(function: FunctionType) -> dict[Any, Any]:
    found: dict[Any, Any] = {"defaults": function.__defaults__, "kwdefaults": function.__kwdefaults__}
    names = function.__code__.co_freevars
    found |= {
        ("cell", name): _content(cell) for name, cell in zip(names, function.__closure__ or (), strict=False)
    }
    return found | {("attribute", name): value for name, value in vars(function).items()}


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        # A name that is bound later, or never.
        return _MISSING


def _of_boto(one: Any) -> dict[Any, Any]:
    """What was said to a client, a resource or a session; of anything else of theirs what is plain to see."""
    found = _all_said(one, _OF_BOTO)
    options = _said(one, "meta.config._user_provided_options")
    if isinstance(options, dict):
        # What the agent says of itself grows with use.
        found["options"] = {name: value for name, value in options.items() if name != "user_agent"}
    credentials = _said(one, "_request_signer._credentials")
    if credentials is _MISSING:
        # A session looks for them when it first needs some, unless it was given any.
        given = [_said(one, name) for name in ("_credentials", "_session._credentials")]
        credentials = next((each for each in given if _said(each, "method") == "explicit"), None)
    # Not of those that are fetched and change with time.
    found["key"] = getattr(credentials, "__dict__", {}).get("access_key")
    identifiers = found.pop("meta.identifiers", ())
    found |= {("identifier", name): _said(one, name) for name in identifiers}
    if len(found) == 1:
        # Such as the bucket of a collection of objects, or the method of a client that a paginator calls.
        told = (*_SCALARS, MethodType)
        found |= {
            name: value
            for name, value in attributes(one).items()
            if isinstance(value, told) or _said(value, "meta") is not _MISSING
        }
    return found


def _all_said(one: Any, names: tuple[str, ...]) -> dict[Any, Any]:
    return {name: value for name in names if (value := _said(one, name)) is not _MISSING}


def _said(one: Any, name: str) -> Any:
    try:
        return attrgetter(name)(one)
    except Exception:  # noqa: BLE001 - a property may raise anything
        return _MISSING


def _reduced(one: Any) -> tuple[Any, ...] | None:
    """How it says it is made again, as for a copy; None: it cannot say, which is so of what is written in C and hides
    what it is."""
    try:
        told = one.__reduce_ex__(2)
    except Exception:  # noqa: BLE001 - see above
        return None
    # Without the iterators over what it contains.
    return told[:3] if isinstance(told, tuple) else (told,)


def _has_own(one: Any, *names: str) -> bool:
    """Whether its class writes one of these itself."""
    # Before Python 3.11 object has no __getstate__.
    return any(getattr(type(one), name, None) is not getattr(object, name, None) for name in names)


def _text(one: Any) -> str:
    try:
        return repr(one)
    except Exception:  # noqa: BLE001 - see above
        return ""
