"""How a program runs and ends: its start, exits, signals, and exceptions it keeps to itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from pykcl.compat.migrate.findings import Finding
from pykcl.compat.migrate.names import PROCESS
from pykcl.compat.migrate.program import Program, lines

_EXITS = ("sys.exit", "exit", "quit", "SystemExit")
_AT_ONCE = ("os._exit", "os.abort")


def started(programs: Sequence[Program]) -> Iterator[Finding]:
    """Whether any of the files is one that `pykcl run --kclpy` can run."""
    for program in programs:
        made = [node for node in ast.walk(program.tree) if program.called(node) == PROCESS]
        runs = [
            node
            for node in ast.walk(program.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "run"
        ]
        if made and runs:
            yield _start(program, made)
            break
    else:
        yield _no_start(programs)
    if not any(program.processors for program in programs):
        yield Finding(
            "look",
            "no class with process_records was found",
            "it stands in another file, or is made while the program runs. Name that file with --code, too: "
            "until then nothing is said of it here.",
            ", ".join(program.name for program in programs),
        )


def _no_start(programs: Sequence[Program]) -> Finding:
    """Said for sure only where no name is left that could be KCLProcess, or nothing that is called run."""
    maybe = [(program, nodes) for program in programs if (nodes := program.may_be_process())]
    runs = any(
        isinstance(node, ast.Attribute) and node.attr == "run"
        for program in programs
        for node in ast.walk(program.tree)
    )
    if maybe and runs:
        program, nodes = maybe[0]
        return Finding(
            "look",
            "whether a file calls KCLProcess(...).run() cannot be seen",
            "here KCLProcess may come, or go on, by a way that is not followed: a star import, an assignment, "
            "another file. `pykcl run --kclpy` needs the file that calls it: if this one does not, name it with "
            "--code.",
            program.name,
            lines(nodes),
        )
    return Finding(
        "must",
        "no file calls KCLProcess(...).run()",
        "`pykcl run --kclpy` needs the one that does: name it with --code.",
        ", ".join(program.name for program in programs),
    )


def _start(program: Program, made: list[ast.AST]) -> Finding:
    is_guarded = any(
        isinstance(inner, ast.Name) and inner.id == "__name__"
        for node in program.tree.body
        if isinstance(node, ast.If)
        for inner in ast.walk(node.test)
    )
    return Finding(
        "fine",
        "KCLProcess(...).run() starts the worker",
        "under `pykcl run --kclpy` it reads the stream in this process until the worker is stopped; the file is "
        "run as its main module" + (", as the `if __name__` of it expects." if is_guarded else "."),
        program.name,
        lines(made),
    )


def exits(program: Program) -> Iterator[Finding]:
    """sys.exit() and its kin where processors reach it."""
    reached = program.reached()
    polite = [node for function in reached for node in ast.walk(function) if _leaves(program, node, _EXITS)]
    at_once = [
        node for function in reached for node in ast.walk(function) if _leaves(program, node, _AT_ONCE)
    ]
    if polite:
        yield Finding(
            "changes",
            "sys.exit() in a method of the processor",
            "under Java it ends the child, and with it the daemon. Here the worker stops in order: the other shards "
            "checkpoint and are released, and the exit code is kept. The batch in hand comes again.",
            program.name,
            lines(polite),
        )
    if at_once:
        yield Finding(
            "must",
            "the process is ended without a word",
            "os._exit() and os.abort() end every shard of the worker, and release no lease: others take them only "
            "after the fail-over time. Raise an exception, or call sys.exit().",
            program.name,
            lines(at_once),
        )


def signals(program: Program) -> Iterator[Finding]:
    """signal.signal(), which only a main thread may call."""
    inside = {
        node
        for function in program.reached()
        for node in ast.walk(function)
        if program.called(node) == "signal.signal"
    }
    outside = [
        node
        for node in ast.walk(program.tree)
        if program.called(node) == "signal.signal" and node not in inside
    ]
    if inside:
        yield Finding(
            "must",
            "signal.signal() in a method of the processor",
            "the methods run in threads, where Python refuses it with ValueError. Do what the handler did in "
            "shutdown_requested.",
            program.name,
            lines(inside),
        )
    if outside:
        yield Finding(
            "changes",
            "signal.signal()",
            "while the worker runs, SIGTERM and SIGINT are its own: it stops in order and calls "
            "shutdown_requested for each shard. Do there what the handler did.",
            program.name,
            lines(outside),
        )


def swallowed(program: Program) -> Iterator[Finding]:
    """Everything that process_records may raise, caught and forgotten."""
    found = [
        node
        for function in program.reached("process_records")
        for node in ast.walk(function)
        if isinstance(node, ast.ExceptHandler) and _catches_all(program, node) and not _goes_on_raising(node)
    ]
    if found:
        yield Finding(
            "look",
            "exceptions are swallowed",
            "what is caught here is as good as done: the next checkpoint passes over the record. That was so under "
            "Java, and there letting it out would have skipped the whole batch. Here a batch that raises comes "
            "again, so let it out unless the record is really to be dropped.",
            program.name,
            lines(found),
        )


def _leaves(program: Program, node: ast.AST, ways: tuple[str, ...]) -> bool:
    if isinstance(node, ast.Raise) and node.exc is not None and not isinstance(node.exc, ast.Call):
        return program.dotted(node.exc) in ways
    return program.called(node) in ways


def _catches_all(program: Program, handler: ast.ExceptHandler) -> bool:
    kind = handler.type
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(one is None or program.dotted(one) in ("Exception", "BaseException") for one in kinds)


def _goes_on_raising(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))
