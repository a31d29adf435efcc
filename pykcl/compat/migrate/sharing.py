"""What shards share now that they are threads of one process, and did not share while each was a process."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from pykcl.compat.migrate.findings import Finding
from pykcl.compat.migrate.names import PROCESS
from pykcl.compat.migrate.program import (
    HANDLERS,
    Function,
    Processor,
    Program,
    lines,
    own_nodes,
    root_of,
)

_CHANGING = frozenset(
    {"append", "appendleft", "add", "update", "extend", "insert", "pop", "popitem", "popleft", "remove", "discard",
     "clear", "setdefault", "sort", "reverse", "subtract", "rotate"}
)  # fmt: skip
_MUTABLE = frozenset(
    {"dict", "list", "set", "bytearray", "collections.defaultdict", "collections.Counter", "collections.deque",
     "collections.OrderedDict"}
)  # fmt: skip
_SESSIONS = frozenset({"boto3.Session", "boto3.session.Session"})
_AWS = frozenset({"boto3.client", "boto3.resource"}) | _SESSIONS
_UNCOPIED = frozenset(
    {"boto3.client", "boto3.resource", "boto3.Session", "boto3.session.Session", "open", "sqlite3.connect",
     "socket.socket", "threading.Lock", "threading.RLock", "threading.Event", "threading.Condition",
     "threading.Thread", "queue.Queue", "concurrent.futures.ThreadPoolExecutor", "asyncio.new_event_loop"}
)  # fmt: skip
_SHARED = (
    "under Java every shard had a process of its own, and so its own {what}; now all shards of a worker share one. "
    "Make it an attribute of self in initialize, or guard it with a lock."
)


def module_globals(program: Program) -> Iterator[Finding]:
    """Module globals that methods of processors write, or functions that these call."""
    written: dict[str, list[ast.AST]] = defaultdict(list)
    for function in program.reached("__init__", *HANDLERS):
        for name, node in _written_outside(program, function):
            written[name].append(node)
    for name, nodes in sorted(written.items(), key=lambda item: lines(item[1])):
        yield Finding(
            "changes",
            f"the global {name} is written from a processor",
            _SHARED.format(what=name),
            program.name,
            lines(nodes),
        )


def class_attributes(program: Program) -> Iterator[Finding]:
    """Values that stand in the class and are changed through self."""
    for processor in program.processors:
        for name, value in _class_values(program, processor):
            changes = [
                node
                for function in processor.methods.values()
                for node in own_nodes(function)
                if _changed(node) is not None and _is_of_self(_changed(node), name)
            ]
            own = any(
                _is_of_self(node, name) and isinstance(getattr(node, "ctx", None), ast.Store)
                for function in processor.methods.values()
                for node in own_nodes(function)
                if isinstance(node, ast.Attribute)
            )
            if changes and not own:
                yield Finding(
                    "changes",
                    f"{processor.name}.{name} belongs to the class, and is changed",
                    _SHARED.format(what=name),
                    program.name,
                    lines([value, *changes]),
                )


def aws_at_import(program: Program) -> Iterator[Finding]:
    """boto3 clients and resources that are made when the module is imported."""
    run = [node for statement in _at_import(program.tree.body) for node in (statement, *own_nodes(statement))]
    sessions = {
        target.id
        for node in run
        if isinstance(node, ast.Assign) and program.called(node.value) in _SESSIONS
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    nodes = [node for node in run if isinstance(node, ast.Call) and _is_aws(program, node, sessions)]
    if nodes:
        yield Finding(
            "changes",
            "a boto3 client, resource or session at module level",
            "it is shared by the threads of all shards. A client stands that, a resource or a Session does not. "
            "Make it in initialize() and keep it in self.",
            program.name,
            lines(nodes),
        )


def one_for_all_shards(program: Program) -> Iterator[Finding]:
    """Processors that can be neither copied for each shard nor made anew."""
    if _is_made_for_each_shard(program):
        return
    for processor in program.processors:
        make = processor.methods.get("__init__")
        if make is None or not _has_parameters(make) or _has_its_defaults(program, processor, make):
            continue
        nodes = [
            node.value
            for node in own_nodes(make)
            if isinstance(node, ast.Assign)
            and program.called(node.value) in _UNCOPIED
            and any(root_of(target) == "self" for target in node.targets)
        ]
        if nodes:
            yield Finding(
                "must",
                f"{processor.name} cannot be copied, nor made again",
                "each shard needs one of its own. What __init__ keeps here cannot be copied, and its arguments "
                "are not known. Make it in initialize(), or write __deepcopy__, or hand over a function: "
                f"KCLProcess(lambda: {processor.name}(...)). If another file does that already, this is settled.",
                program.name,
                lines(nodes),
            )


def _written_outside(program: Program, function: Function) -> Iterator[tuple[str, ast.AST]]:
    """What it writes that is the module's: the name as a person would write it, and where."""
    declared = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
    local = _locals(function) - declared
    known = program.globals | program.imports.keys() | program.classes.keys()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in declared and not isinstance(node.ctx, ast.Load):
            yield node.id, node
            continue
        target = _changed(node)
        root = root_of(target) if target is not None else ""
        if not root or root in local or root not in known | declared:
            continue
        is_only_called = isinstance(node, ast.Call) and root not in program.globals | declared
        # A method of an imported module, or of a class, is most likely no list's.
        if not is_only_called:
            yield (root if root in program.globals else _shown(target)), node


def _changed(node: ast.AST) -> ast.AST | None:
    """What the node changes from inside: `a` of `a[0] = 1`, `a.b = 1`, `del a[0]` and `a.append(1)`."""
    if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
        return node.value if isinstance(node, ast.Subscript) else node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
        return node.func.value
    return None


def _shown(node: ast.AST | None) -> str:
    if node is None:
        return ""
    try:
        return ast.unparse(node)[:60]
    except RecursionError:
        # It calls itself for each element of a long chain.
        return f"{root_of(node)}…"


def _locals(function: Function) -> set[str]:
    arguments = function.args
    named = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]
    stored = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return stored | {one.arg for one in named if one is not None}


def _class_values(program: Program, processor: Processor) -> Iterator[tuple[str, ast.AST]]:
    for node in processor.node.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        literal = isinstance(
            node.value, ast.Dict | ast.List | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
        )
        if literal or program.called(node.value) in _MUTABLE:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node) for target in targets if isinstance(target, ast.Name))


def _is_of_self(node: ast.AST | None, name: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def _at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported, or started; those of classes too."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _at_import(statement.body)
        elif not isinstance(statement, Function):
            yield statement


def _is_aws(program: Program, call: ast.Call, sessions: set[str]) -> bool:
    if program.called(call) in _AWS:
        return True
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("client", "resource"):
        return False
    made_by = call.func.value
    return program.called(made_by) in _SESSIONS or (isinstance(made_by, ast.Name) and made_by.id in sessions)


def _is_made_for_each_shard(program: Program) -> bool:
    """Whether every KCLProcess of the file is handed a class or a function that makes processors."""
    calls = [node for node in ast.walk(program.tree) if program.called(node) == PROCESS]
    return bool(calls) and all(isinstance(call, ast.Call) and _is_factory(program, call) for call in calls)


def _is_factory(program: Program, call: ast.Call) -> bool:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "record_processor"]
    given = next(iter([*call.args, *named]), None)
    if isinstance(given, ast.Name):
        return given.id in program.classes or given.id in program.functions
    return isinstance(given, ast.Lambda)


def _has_its_defaults(program: Program, processor: Processor, make: Function) -> bool:
    """Whether the file makes it without arguments, and it keeps under their names what it may be given."""
    arguments = make.args
    named = [*arguments.posonlyargs, *arguments.args][1:]
    has_defaults = len(arguments.defaults) >= len(named) and None not in arguments.kw_defaults
    if not has_defaults or arguments.vararg or arguments.kwarg:
        return False
    made = [node for node in ast.walk(program.tree) if program.called(node) == processor.name]
    kept = {
        node.attr
        for node in own_nodes(make)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and root_of(node) == "self"
    }
    is_kept = all({one.arg, f"_{one.arg}"} & kept for one in (*named, *arguments.kwonlyargs))
    is_bare = all(isinstance(call, ast.Call) and not call.args and not call.keywords for call in made)
    return bool(made) and is_bare and is_kept


def _has_parameters(make: Function) -> bool:
    arguments = make.args
    named = [*arguments.posonlyargs, *arguments.args][1:]
    return bool(named or arguments.kwonlyargs or arguments.vararg or arguments.kwarg)
