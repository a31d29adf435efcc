"""A program of amazon_kclpy as its source shows it: what it imports, its record processors, and what these reach.

Only `ast` reads it: nothing of it is imported or run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pykcl.compat.kclpy.versions import Version, looks_like
from pykcl.compat.migrate.names import PROCESS, Names
from pykcl.errors import ConfigError

HANDLERS = (
    "initialize", "process_records", "lease_lost", "shard_ended", "shutdown", "shutdown_requested",
)  # fmt: skip
_BASES: dict[str, Version] = {
    "amazon_kclpy.kcl.RecordProcessorBase": 1,
    "amazon_kclpy.v2.processor.RecordProcessorBase": 2,
    "amazon_kclpy.v3.processor.RecordProcessorBase": 3,
    "amazon_kclpy.kcl.v2processor.RecordProcessorBase": 2,
    "amazon_kclpy.kcl.v3processor.RecordProcessorBase": 3,
}
_EMPTY_BASES = frozenset({"object", "abc.ABC"})
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Processor:
    """A class with a process_records. methods: its own and those of its bases in the same file.

    declared: by its base class, or its `version`; None: by neither. version: how it is called. can_be_called: whether
    process_records takes what any version hands over. is_whole: whether every base is known; else what is missing here
    may stand in another file.
    """

    node: ast.ClassDef
    methods: dict[str, Function]
    declared: Version | None
    version: Version
    can_be_called: bool
    is_whole: bool

    @property
    def name(self) -> str:
        return self.node.name


class Program:
    """name: of the file, for people. Raises ConfigError with the line for what is no Python 3."""

    def __init__(self, name: str, source: bytes) -> None:
        self.name = name
        self.tree = _parsed(name, source)
        at_module = tuple(_of_the_module(self.tree.body))
        self._names = Names(self.tree, at_module)
        self.imports = self._names.imports
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, Function)}
        self.classes = {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}
        self.globals = frozenset(
            node.id for node in at_module if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        self._methods = {name: _methods(node) for name, node in self.classes.items()}
        self.processors = tuple(self._processors())

    def dotted(self, node: ast.AST) -> str:
        """The whole name of what an expression looks up, such as "boto3.client", where imports and assignments of the
        module tell it; "" for what is no dotted name. The names of pykcl's stand-in are those of amazon_kclpy."""
        return self._names.dotted(node)

    def called(self, node: ast.AST) -> str:
        """`dotted` of what a call calls; "" for what is no call."""
        return self.dotted(node.func) if isinstance(node, ast.Call) else ""

    def may_be_process(self) -> list[ast.AST]:
        """Where KCLProcess may come from, or go to, by ways that are not followed."""
        own = PROCESS.rpartition(".")[2]
        named = [
            node
            for node in ast.walk(self.tree)
            if (isinstance(node, ast.Name) and self.dotted(node).rpartition(".")[2] == own)
            or (isinstance(node, ast.Attribute) and node.attr == own)
            or (isinstance(node, ast.Constant) and node.value == own)
        ]
        return [*named, *self._names.foreign_stars]

    def reached(self, *methods: str) -> list[Function]:
        """Functions that run when one of these methods of a processor is called (by default any that pykcl calls),
        as far as their names tell it. In the order in which they stand in the file."""
        wanted = methods or HANDLERS
        found: dict[Function, None] = {}
        waiting = [
            (processor.methods, processor.methods[name])
            for processor in self.processors
            for name in wanted
            if name in processor.methods
        ]
        while waiting:
            own, function = waiting.pop()
            if function not in found:
                found[function] = None
                waiting += self._callees(function, own)
        return sorted(found, key=lambda function: function.lineno)

    def _callees(
        self, function: Function, own: dict[str, Function]
    ) -> list[tuple[dict[str, Function], Function]]:
        """With the methods that `self` has in each of them."""
        found = []
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Name) and node.func.id in self.functions:
                found.append((own, self.functions[node.func.id]))
            elif isinstance(node.func, ast.Attribute):
                name = node.func.attr
                if name in own and _is_self(node.func.value):
                    found.append((own, own[name]))
                    continue
                # Whose method it is nobody can tell; of a class of the file it is most likely that one.
                others = (methods for methods in self._methods.values() if methods is not own)
                found += [
                    (methods, methods[name]) for methods in others if name in methods and name not in HANDLERS
                ]
        return found

    def _processors(self) -> Iterator[Processor]:
        bases = {self._class_name(base) for node in self.classes.values() for base in node.bases}
        for name, node in self.classes.items():
            methods = self._inherited(name)
            if "process_records" in methods and name not in bases:
                declared = self._declared(name)
                can_be_called = any(_takes(methods["process_records"], count) for count in (1, 2))
                is_whole = all(
                    isinstance(one, ast.ClassDef) or one in _BASES or one in _EMPTY_BASES
                    for one in self._lineage(name)
                )
                yield Processor(node, methods, declared, _version(methods, declared), can_be_called, is_whole)

    def _class_name(self, base: ast.expr) -> str:
        """Of a class of the file as it is written there; of any other as `dotted` has it."""
        own = getattr(base, "id", "")
        return own if own in self.classes else self.dotted(base)

    def _lineage(self, name: str) -> Iterator[ast.ClassDef | str]:
        """The class and its bases, each before its own bases; those of other files by their names."""
        waiting = [name]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            node = self.classes.get(name)
            if node is None:
                yield name
            elif name not in seen:
                seen.add(name)
                yield node
                for base in reversed(node.bases):
                    own = self._class_name(base)
                    # A class may be called like its base: `class Base(Base)`.
                    waiting.append(self.dotted(base) if own in seen else own)

    def _inherited(self, name: str) -> dict[str, Function]:
        found: dict[str, Function] = {}
        for one in self._lineage(name):
            if isinstance(one, ast.ClassDef):
                found = self._methods[one.name] | found
        return found

    def _declared(self, name: str) -> Version | None:
        for one in self._lineage(name):
            known = _says(one) if isinstance(one, ast.ClassDef) else _BASES.get(one)
            if known is not None:
                return known
        return None


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Everything in it, but not what is in functions and classes that are written in it."""
    # A stack of our own: a sum of 1500 terms is 1500 deep, and deeper than Python calls.
    waiting = [ast.iter_child_nodes(function)]
    while waiting:
        child = next(waiting[-1], None)
        if child is None:
            waiting.pop()
            continue
        yield child
        if not isinstance(child, Function | ast.ClassDef | ast.Lambda):
            waiting.append(ast.iter_child_nodes(child))


def root_of(node: ast.AST) -> str:
    """The name that an attribute or an element is of in the end: "a" of `a.b[c].d`; "" where that is no name."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def lines(nodes: Iterable[ast.AST]) -> tuple[int, ...]:
    """The numbers of the lines they stand in, each once, in order."""
    return tuple(sorted({getattr(node, "lineno", 0) for node in nodes}))


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _parsed(name: str, source: bytes) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        line, what = error.lineno, error.msg
    except (ValueError, RecursionError, MemoryError) as error:
        line, what = None, type(error).__name__
    # Without the line's text, which may hold anything.
    place = name if line is None else f"{name}, line {line}"
    raise ConfigError(
        f"{place}: this is no Python 3 ({what}). Programs of Python 2 have to be brought to 3 first."
    )


def _of_the_module(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """What statements of the module itself do."""
    for statement in body:
        if not isinstance(statement, Function | ast.ClassDef):
            yield statement
            yield from own_nodes(statement)


def _says(node: ast.ClassDef) -> Version | None:
    """The `version` that stands in the class."""
    for child in node.body:
        if isinstance(child, ast.Assign) and isinstance(child.value, ast.Constant):
            names = [getattr(target, "id", "") for target in child.targets]
            if "version" in names and child.value.value in (1, 2, 3):
                return child.value.value  # type: ignore[return-value]
    return None


def _methods(node: ast.ClassDef) -> dict[str, Function]:
    return {child.name: child for child in node.body if isinstance(child, Function)}


def _version(methods: dict[str, Function], declared: Version | None) -> Version:
    """As `versions.version_of` would say of an instance."""
    two, one = (_takes(methods["process_records"], count) for count in (2, 1))
    return looks_like(
        declared,
        one=one,
        two=two,
        new_end="shard_ended" in methods or "lease_lost" in methods,
        old_end="shutdown" in methods,
    )


def _takes(method: Function, count: int) -> bool:
    arguments = method.args
    names = [*arguments.posonlyargs, *arguments.args][1:]
    least = len(names) - min(len(names), len(arguments.defaults))
    return least <= count and (count <= len(names) or arguments.vararg is not None)
