"""Checks of a program of amazon_kclpy that moves from a process per shard to a thread per shard.

Only `ast` reads the program: nothing is imported or run, and imported files are not followed.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from pykcl.compat.migrate.findings import WEIGHTS, Finding
from pykcl.errors import ConfigError

HANDLERS = (
    "initialize", "process_records", "lease_lost", "shard_ended", "shutdown", "shutdown_requested",
)  # fmt: skip
_EXITS = ("sys.exit", "exit", "quit", "SystemExit")
_AT_ONCE = ("os._exit", "os.abort")
_COUNTERS = ("range", "itertools.count", "itertools.repeat")
_CHANGING = frozenset(
    {"append", "appendleft", "add", "update", "extend", "insert", "pop", "popitem", "popleft", "remove", "discard",
     "clear", "setdefault", "sort", "reverse", "subtract", "rotate"}
)  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef
Methods = Mapping[str, Function]


class Program:
    """One source file. name: for messages. Raises ConfigError with the line for code that is not Python 3.

    imports: name -> qualified name of an import. processors: the methods, own and inherited within the file, of each
    class with process_records.
    """

    def __init__(self, name: str, source: bytes) -> None:
        self.name = name
        self.tree = _parsed(name, source)
        self.imports = dict(_imports(self.tree))
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, Function)}
        self.classes = {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}
        self.globals = frozenset(
            node.id
            for statement in self.tree.body
            if not isinstance(statement, Function | ast.ClassDef)
            for node in own_nodes(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        self._methods = {name: _methods(node) for name, node in self.classes.items()}
        inherited = [self._inherited(name) for name in self.classes]
        self.processors = [methods for methods in inherited if "process_records" in methods]

    def called(self, node: ast.AST) -> str:
        """Return the qualified name of the called function, such as "sys.exit"; "" if the node is not such a call."""
        return self.dotted(node.func) if isinstance(node, ast.Call) else ""

    def dotted(self, node: ast.AST) -> str:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.imports.get(node.id, node.id), *reversed(parts)])

    def reached(self, *handlers: str) -> list[Function]:
        """Return the functions of the file that these methods of a processor call, as far as names show it, in the
        order of the file."""
        found: dict[Function, None] = {}
        waiting = [
            (methods, methods[name])
            for methods in self.processors
            for name in handlers or HANDLERS
            if name in methods
        ]
        while waiting:
            own, function = waiting.pop()
            if function not in found:
                found[function] = None
                waiting += self._callees(function, own)
        return sorted(found, key=lambda function: function.lineno)

    def _callees(self, function: Function, own: Methods) -> Iterator[tuple[Methods, Function]]:
        """Yield the called functions, with the methods that `self` has in each of them."""
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Name) and node.func.id in self.functions:
                yield own, self.functions[node.func.id]
            elif isinstance(node.func, ast.Attribute):
                name = node.func.attr
                if name in own and _is_self(node.func.value):
                    yield own, own[name]
                    continue
                # The object is unknown; its class is probably one of the file with such a method.
                for methods in self._methods.values():
                    if methods is not own and name in methods and name not in HANDLERS:
                        yield methods, methods[name]

    def _inherited(self, name: str) -> Methods:
        waiting, seen, found = [name], set[str](), dict[str, Function]()
        while waiting:
            one = waiting.pop()
            if one in self.classes and one not in seen:
                seen.add(one)
                found = self._methods[one] | found
                waiting += [
                    base.id for base in reversed(self.classes[one].bases) if isinstance(base, ast.Name)
                ]
        return found


def code_findings(programs: Iterable[Program]) -> list[Finding]:
    """Return the findings in all files of one program, the heaviest first."""
    found = [finding for program in programs for check in _CHECKS for finding in check(program)]
    return sorted(found, key=lambda finding: WEIGHTS.index(finding.weight))


# -- the checks ------------------------------------------------------------------------------------------------


def _module_globals(program: Program) -> Iterator[Finding]:
    """Find module globals that methods of processors write, or functions that these call."""
    written: dict[str, list[ast.AST]] = defaultdict(list)
    for function in program.reached("__init__", *HANDLERS):
        for name, node in _written_outside(program, function):
            written[name].append(node)
    for name, nodes in sorted(written.items(), key=lambda item: _lines(item[1])):
        yield Finding(
            "changes",
            f"the global {name} is written from a processor",
            f"in Java each shard had its own process, and its own {name}; now all shards of a worker share one. Make "
            "it an attribute of self in initialize, or guard it with a lock.",
            program.name,
            _lines(nodes),
        )


def _swallowed(program: Program) -> Iterator[Finding]:
    """Find handlers below process_records that catch every exception and raise none."""
    found = [
        node
        for function in program.reached("process_records")
        for node in ast.walk(function)
        if isinstance(node, ast.ExceptHandler) and _catches_all(program, node) and not _raises(node)
    ]
    if found:
        yield Finding(
            "review",
            "exceptions are swallowed",
            "a record whose exception is caught here counts as processed: the next checkpoint passes over it. In Java "
            "raising it would have skipped the whole batch. Here a batch that raises is delivered again, so raise it "
            "unless the record is to be dropped.",
            program.name,
            _lines(found),
        )


def _exits(program: Program) -> Iterator[Finding]:
    """Find calls that end the process, in functions that processors call."""
    nodes = [node for function in program.reached() for node in ast.walk(function)]
    polite = [node for node in nodes if _leaves(program, node, _EXITS)]
    at_once = [node for node in nodes if _leaves(program, node, _AT_ONCE)]
    if polite:
        yield Finding(
            "changes",
            "sys.exit() in a method of the processor",
            "in Java it ends the child, and with it the daemon. Here the worker stops gracefully: the other shards "
            "checkpoint and are released, and the exit code is kept. The running batch is delivered again.",
            program.name,
            _lines(polite),
        )
    if at_once:
        yield Finding(
            "must",
            "the process is ended abruptly",
            "os._exit() and os.abort() end every shard of the worker, and release no lease: others take them only "
            "after the failover time. Raise an exception, or call sys.exit().",
            program.name,
            _lines(at_once),
        )


def _retries_of_checkpoints(program: Program) -> Iterator[Finding]:
    """Find loops that retry checkpoint(), and sleeps in them."""
    loops = [node for node in ast.walk(program.tree) if _is_retry(program, node)]
    sleeps = [node for loop in loops for node in own_nodes(loop) if program.called(node) == "time.sleep"]
    if loops:
        yield Finding(
            "can go",
            "a retry loop around checkpoint()",
            "it does no harm. checkpoint() itself retries temporary errors of DynamoDB as long as the lease is held; "
            "the same worker need not retry other errors.",
            program.name,
            _lines(loops),
        )
    if sleeps:
        yield Finding(
            "can go",
            "time.sleep() in a retry loop around checkpoint()",
            "checkpoint() pauses by itself, and stops when the worker stops; a time.sleep() does not, and may use up "
            "shutdown_grace.",
            program.name,
            _lines(sleeps),
        )


_CHECKS: tuple[Callable[[Program], Iterator[Finding]], ...] = (
    _module_globals,
    _swallowed,
    _exits,
    _retries_of_checkpoints,
)


# -- writes to the module --------------------------------------------------------------------------------------


def _written_outside(program: Program, function: Function) -> Iterator[tuple[str, ast.AST]]:
    """Yield writes to objects of the module: the name as in the source, and the node."""
    declared = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
    local = _locals(function) - declared
    known = program.globals | program.imports.keys() | program.classes.keys()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in declared and not isinstance(node.ctx, ast.Load):
            yield node.id, node
            continue
        target = _changed(node)
        root = _root_of(target) if target is not None else ""
        if target is None or not root or root in local or root not in known | declared:
            continue
        is_only_called = isinstance(node, ast.Call) and root not in program.globals | declared
        # Such a method of an imported module, or of a class, is probably not that of a list.
        if not is_only_called:
            yield (root if root in program.globals else _shown(target)), node


def _changed(node: ast.AST) -> ast.AST | None:
    """Return the object that the node changes: `a` of `a[0] = 1`, `del a[0]` and `a.append(1)`, `a.b` of `a.b = 1`."""
    if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
        return node.value if isinstance(node, ast.Subscript) else node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
        return node.func.value
    return None


def _root_of(node: ast.AST) -> str:
    """Return the name at the root of an expression: "a" of `a.b[c].d`; "" if that is not a name."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _shown(node: ast.AST) -> str:
    try:
        return ast.unparse(node)[:60]
    except RecursionError:
        # It calls itself for each element of a long chain.
        return f"{_root_of(node)}…"


def _locals(function: Function) -> set[str]:
    nodes = list(ast.walk(function))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}


# -- kinds of nodes --------------------------------------------------------------------------------------------


def _leaves(program: Program, node: ast.AST, ways: tuple[str, ...]) -> bool:
    if isinstance(node, ast.Raise) and node.exc is not None and not isinstance(node.exc, ast.Call):
        return program.dotted(node.exc) in ways
    return program.called(node) in ways


def _catches_all(program: Program, handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(one is None or program.dotted(one) in ("Exception", "BaseException") for one in kinds)


def _raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def _is_retry(program: Program, node: ast.AST) -> bool:
    """Return True for a loop that counts, or has no end, around a try around checkpoint()."""
    if isinstance(node, ast.For):
        if program.called(node.iter) not in _COUNTERS:
            return False
    elif not isinstance(node, ast.While):
        return False
    tries = [one for one in own_nodes(node) if isinstance(one, ast.Try)]
    return any(
        _is_checkpoint(inner)
        for one in tries
        for statement in one.body
        for inner in (statement, *own_nodes(statement))
    )


def _is_checkpoint(node: ast.AST) -> bool:
    """Return True for a call of checkpoint(), unless it is the processor's own method of that name."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return node.func.attr == "checkpoint" and not _is_self(node.func.value)


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


# -- parsing ---------------------------------------------------------------------------------------------------


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes in it, except those in nested functions and classes."""
    # An explicit stack: a sum of 1500 terms is 1500 levels deep, more than Python's recursion limit.
    waiting = [ast.iter_child_nodes(function)]
    while waiting:
        child = next(waiting[-1], None)
        if child is None:
            waiting.pop()
            continue
        yield child
        if not isinstance(child, Function | ast.ClassDef | ast.Lambda):
            waiting.append(ast.iter_child_nodes(child))


def _lines(nodes: Iterable[ast.AST]) -> tuple[int, ...]:
    """The numbers of the lines they stand in, each once, in order."""
    return tuple(sorted({getattr(node, "lineno", 0) for node in nodes}))


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
                yield alias.asname or name, name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _methods(node: ast.ClassDef) -> dict[str, Function]:
    return {child.name: child for child in node.body if isinstance(child, Function)}
