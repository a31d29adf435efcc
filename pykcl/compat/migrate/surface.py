"""Of amazon_kclpy's interface: which version a class is written for, what the stand-in has, what can be deleted."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pykcl.compat.migrate.findings import Finding
from pykcl.compat.migrate.program import Function, Processor, Program, lines, own_nodes

_STAND_IN = frozenset(
    f"amazon_kclpy{name}"
    for name in (
        "", ".kcl", ".messages", ".dispatch", ".checkpoint_error", ".v2", ".v3", ".v2.processor", ".v3.processor",
    )
)  # fmt: skip
_B64 = frozenset({"base64.b64decode", "base64.standard_b64decode", "base64.decodebytes"})


def versions(program: Program) -> Iterator[Finding]:
    """Of each record processor."""
    for processor in program.processors:
        if not processor.can_be_called:
            yield Finding(
                "must",
                f"{processor.name} cannot be called",
                "its process_records takes neither (records, checkpointer), of version 1, nor "
                "(process_records_input), of versions 2 and 3.",
                program.name,
                lines([processor.methods["process_records"]]),
            )
            continue
        yield _version(program, processor)


def _version(program: Program, processor: Processor) -> Finding:
    here = program.name, lines([processor.node])
    name, version = processor.name, processor.version
    if processor.declared == version:
        return Finding(
            "fine", f"{name} is of version {version}", "it is recognised, and runs as it is.", *here
        )
    if processor.declared is None and not processor.is_whole:
        return Finding(
            "look",
            f"{name} has the methods of version {version}, and a base class that was not read",
            f"it is called as version {version}; with a warning at the start, unless that class is, or comes from, "
            "the RecordProcessorBase of that version.",
            *here,
        )
    told = "no version" if processor.declared is None else f"version {processor.declared}"
    return Finding(
        "changes",
        f"{name} says {told} and has the methods of version {version}",
        f"it is called as version {version}, with a warning at the start"
        + (
            ". The class in amazon_kclpy's README is such a one: called as its base class says, every call of it "
            "fails, and under Java every record was lost"
            if (processor.declared, version) == (1, 3)
            else ""
        )
        + ". Derive it from RecordProcessorBase of "
        + ("amazon_kclpy.kcl." if version == 1 else f"amazon_kclpy.v{version}.processor."),
        *here,
    )


def stand_in(program: Program) -> Iterator[Finding]:
    """Modules of amazon_kclpy that pykcl does not stand in for."""
    for node in ast.walk(program.tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
            if node.module in ("amazon_kclpy", "amazon_kclpy.v2", "amazon_kclpy.v3"):
                modules = [f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*"]
        for module in modules:
            if module.split(".")[0] == "amazon_kclpy" and module not in _STAND_IN:
                yield Finding(
                    "must",
                    f"{module} is imported",
                    "pykcl stands in for amazon_kclpy's kcl, messages, dispatch, checkpoint_error, v2.processor and "
                    "v3.processor only.",
                    program.name,
                    lines([node]),
                )


def decoded(program: Program) -> Iterator[Finding]:
    """base64.b64decode of a record's data."""
    found = []
    for function in _functions(program):
        data = {
            target.id
            for node in own_nodes(function)
            if isinstance(node, ast.Assign) and _is_data(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in own_nodes(function):
            if isinstance(node, ast.Call) and program.called(node) in _B64 and node.args:
                argument = node.args[0]
                if _is_data(argument) or (isinstance(argument, ast.Name) and argument.id in data):
                    found.append(node)
    if found:
        yield Finding(
            "can go",
            "base64.b64decode() of a record's data",
            "keep it while the program runs by --kclpy, where record.data is base64 as under Java; "
            "record.binary_data is the same without the detour. Delete it when the class becomes a pykcl "
            "RecordProcessor: there record.data is bytes.",
            program.name,
            lines(found),
        )


def printed(program: Program) -> Iterator[Finding]:
    """print() and sys.stdout, the protocol's pipe under Java."""
    found = [
        node
        for node in ast.walk(program.tree)
        if program.called(node) in ("print", "sys.stdout.write", "sys.stdout.buffer.write")
    ]
    if found:
        yield Finding(
            "fine",
            "print() is fine now",
            "standard output is no protocol any more when the program runs by --kclpy: what is printed goes to the "
            "terminal. What kept it out of the way (sys.stdout = sys.stderr) can go.",
            program.name,
            lines(found),
        )


def _functions(program: Program) -> list[ast.AST]:
    return [program.tree, *(node for node in ast.walk(program.tree) if isinstance(node, Function))]


def _is_data(node: ast.AST) -> bool:
    """record.data, record.get("data") or record["data"], whatever the record is called."""
    if isinstance(node, ast.Attribute):
        return node.attr == "data"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return bool(node.args) and _is_word(node.args[0], "data")
    return isinstance(node, ast.Subscript) and _is_word(node.slice, "data")


def _is_word(node: ast.AST, word: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == word
