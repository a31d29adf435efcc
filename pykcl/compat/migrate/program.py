"""A program of amazon_kclpy as its source shows it: what it imports, its record processors, and what these reach.

Only `ast` reads it: nothing of it is imported or run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pykcl.compat.kclpy.versions import Version, looks_like
from pykcl.errors import ConfigError

HANDLERS = (
    "initialize", "process_records", "lease_lost", "shard_ended", "shutdown", "shutdown_requested",
)  # fmt: skip
PROCESS = "amazon_kclpy.kcl.KCLProcess"
_OURS = "pykcl.compat.kclpy"
_THEIRS = "amazon_kclpy"
_BASES: dict[str, Version] = {
    f"{_THEIRS}.kcl.RecordProcessorBase": 1,
    f"{_THEIRS}.v2.processor.RecordProcessorBase": 2,
    f"{_THEIRS}.v3.processor.RecordProcessorBase": 3,
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Processor:
    """A class with a process_records. methods: its own and those of its bases in the same file.

    declared: by its base class, or its `version`; None: by neither. version: how it is called. can_be_called: whether
    process_records takes what any version hands over.
    """

    node: ast.ClassDef
    methods: dict[str, Function]
    declared: Version | None
    version: Version
    can_be_called: bool

    @property
    def name(self) -> str:
        return self.node.name


class Program:
    """name: of the file, for people. Raises ConfigError with the line for what is no Python 3."""

    def __init__(self, name: str, source: bytes) -> None:
        self.name = name
        self.tree = _parsed(name, source)
        self.imports = dict(_imports(self.tree))
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, Function)}
        self.classes = {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}
        self.globals = frozenset(_assigned(self.tree.body))
        self._methods = {name: _methods(node) for name, node in self.classes.items()}
        self.processors = tuple(self._processors())

    def dotted(self, node: ast.AST) -> str:
        """The whole name of what an expression looks up in an import, such as "boto3.client"; "" for all others.

        The names of pykcl's stand-in are those of amazon_kclpy.
        """
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        root = self.imports.get(node.id, node.id)
        return ".".join([root, *reversed(parts)])

    def called(self, node: ast.AST) -> str:
        """`dotted` of what a call calls; "" for what is no call."""
        return self.dotted(node.func) if isinstance(node, ast.Call) else ""

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
        bases = {
            base.id for node in self.classes.values() for base in node.bases if isinstance(base, ast.Name)
        }
        for name, node in self.classes.items():
            methods = self._inherited(name)
            if "process_records" in methods and name not in bases:
                declared = self._declared(name)
                can_be_called = any(_takes(methods["process_records"], count) for count in (1, 2))
                yield Processor(node, methods, declared, _version(methods, declared), can_be_called)

    def _inherited(self, name: str, below: tuple[str, ...] = ()) -> dict[str, Function]:
        if name not in self.classes or name in below:
            return {}
        found: dict[str, Function] = {}
        for base in reversed(self.classes[name].bases):
            found |= self._inherited(getattr(base, "id", ""), (*below, name))
        return found | self._methods[name]

    def _declared(self, name: str, below: tuple[str, ...] = ()) -> Version | None:
        if name not in self.classes or name in below:
            return None
        for node in self.classes[name].body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                names = [getattr(target, "id", "") for target in node.targets]
                if "version" in names and node.value.value in (1, 2, 3):
                    return node.value.value  # type: ignore[return-value]
        for base in self.classes[name].bases:
            known = _BASES.get(self.dotted(base)) or self._declared(getattr(base, "id", ""), (*below, name))
            if known is not None:
                return known
        return None


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Everything in it, but not what is in functions and classes that are written in it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, Function | ast.ClassDef | ast.Lambda):
            yield from own_nodes(child)


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


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import os.path` binds os.
                name = alias.name if alias.asname else alias.name.split(".")[0]
                yield alias.asname or name, _theirs(name)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, _theirs(f"{node.module}.{alias.name}")


def _theirs(name: str) -> str:
    is_ours = name == _OURS or name.startswith(_OURS + ".")
    return _THEIRS + name.removeprefix(_OURS) if is_ours else name


def _assigned(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Names that statements of the module itself give a value."""
    for statement in body:
        if isinstance(statement, Function | ast.ClassDef):
            continue
        for node in (statement, *own_nodes(statement)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


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
