"""A mutant: a known bug, put into the real code while a simulation runs, and taken out again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Any

from pykcl.testing.simulation import Guarantee
from tests.simulation.course import Mode
from tests.simulation.faults import KINDS, ProducerFaults

Function = Callable[..., Any]


class NothingToPatch(AssertionError):
    """The code has changed: what a mutant breaks is no longer there under that name."""


class NoSuchTest(AssertionError):
    """The tests have changed: one that is to catch a mutant cannot be run under that name."""


class Patch:
    """Replaces functions, methods and properties, counts the calls of what it put there, and restores everything.

    called: by "owner.name". Use as a context manager.
    """

    def __init__(self) -> None:
        self.called: Counter[str] = Counter()
        self._before: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        """Put `make(original)` where `owner.name` is. Raises NothingToPatch where nothing callable is, or nothing new."""
        before = vars(owner).get(name)
        is_property = isinstance(before, property)
        function = before.fget if is_property else before
        if not callable(function):
            raise NothingToPatch(
                f"{_name(owner)} has no function, method or property {name!r} (any more). Do: bring the mutant in line."
            )
        made = make(function)
        if made is function:
            raise NothingToPatch(f"{_name(owner)}.{name} was to be replaced by itself: that breaks nothing.")
        counted = self._counted(f"{_name(owner)}.{name}", function, made)
        self._before.append((owner, name, before))
        setattr(owner, name, property(counted) if is_property else counted)

    def _counted(self, name: str, original: Function, replacement: Function) -> Function:
        self.called[name] = 0

        @wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            self.called[name] += 1
            return replacement(*args, **options)

        return call

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._before:
            owner, name, before = self._before.pop()
            setattr(owner, name, before)


@dataclass(frozen=True, slots=True)
class Mutant:
    """name: B1 to B14 are known from other libraries, M15 and up are ours. seen_in: a library, "here" or "-".

    caught_by: the guarantees that it may break; the first is the one that it breaks by its nature. full: it runs in
    simulations with four workers, eight shards and every kind of fault; only: with no other kinds than these. Both are
    for what chance seldom brings. mode: of its simulations. tests: names as pytest takes them, of the tests that
    must fail, for what simulations do not come by; then caught_by is empty.
    """

    name: str
    what: str
    seen_in: str
    caught_by: tuple[Guarantee, ...]
    apply: Callable[[Patch], None]
    full: bool = False
    only: frozenset[str] = frozenset()
    mode: Mode = Mode.PLAIN
    tests: tuple[str, ...] = ()

    @property
    def off(self) -> frozenset[str]:
        kinds = ProducerFaults.kinds if self.mode is Mode.PRODUCED else KINDS
        return frozenset(kinds) - self.only if self.only else frozenset()


def _name(owner: Any) -> str:
    return str(getattr(owner, "__qualname__", None) or owner.__name__)
