"""How a program checkpoints: retry loops that nobody needs any more, and ends of shards that never come."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pykcl.compat.migrate.findings import Finding
from pykcl.compat.migrate.program import Program, lines, own_nodes


def retries_of_checkpoints(program: Program) -> Iterator[Finding]:
    """Loops that try checkpoint() again, and the sleeping in them."""
    loops = [node for node in ast.walk(program.tree) if _is_retry(program, node)]
    sleeps = [node for loop in loops for node in own_nodes(loop) if program.called(node) == "time.sleep"]
    if loops:
        yield Finding(
            "can go",
            "a retry loop around checkpoint()",
            "it does no harm. checkpoint() itself repeats what DynamoDB refuses for a moment, for as long as the "
            "lease is held; what it still raises is worth no second try by the same worker.",
            program.name,
            lines(loops),
        )
    if sleeps:
        yield Finding(
            "can go",
            "time.sleep() in a retry loop around checkpoint()",
            "the pauses are built in, too, and end when the worker stops; a time.sleep() does not, and may use up "
            "shutdown_grace.",
            program.name,
            lines(sleeps),
        )


def ends_without_checkpoint(program: Program) -> Iterator[Finding]:
    """Processors whose shard_ended (of versions 1 and 2: shutdown) never checkpoints."""
    for processor in program.processors:
        name = "shard_ended" if processor.version == 3 else "shutdown"
        method = processor.methods.get(name)
        if method is not None and _checkpoints(program, name):
            continue
        what = "has no" if method is None else "does not checkpoint in its"
        yield Finding(
            # A base class in a file that was not read may have it.
            "must" if method is not None or processor.is_whole else "look",
            f"{processor.name} {what} {name}",
            "as under Java, the children of a shard that was split or merged start only after its end was "
            "checkpointed: "
            + (
                "call checkpoint() of the checkpointer that shard_ended is handed."
                if processor.version == 3
                else "call checkpoint() of the checkpointer where the reason is TERMINATE."
            ),
            program.name,
            lines([processor.node if method is None else method]),
        )


def stops_without_checkpoint(program: Program) -> Iterator[Finding]:
    """Processors that let a stop pass without a checkpoint."""
    for processor in program.processors:
        method = processor.methods.get("shutdown_requested")
        if method is not None and _checkpoints(program, "shutdown_requested"):
            continue
        what = "has no" if method is None else "does not checkpoint in its"
        yield Finding(
            "look",
            f"{processor.name} {what} shutdown_requested",
            "what was not checkpointed comes again after each stop, as under Java: a stop writes no checkpoint of its "
            "own. Where that is too much, call checkpoint() of the checkpointer that shutdown_requested is handed.",
            program.name,
            lines([processor.node if method is None else method]),
        )


def _checkpoints(program: Program, method: str) -> bool:
    return any(_is_checkpoint(node) for function in program.reached(method) for node in ast.walk(function))


def _is_retry(program: Program, node: ast.AST) -> bool:
    """A loop that counts, or has no end, around a try around checkpoint(); not one over records."""
    if isinstance(node, ast.For):
        counts = program.called(node.iter) in ("range", "itertools.count", "itertools.repeat")
        if not counts:
            return False
    elif not isinstance(node, ast.While):
        return False
    return any(
        isinstance(tried, ast.Try)
        and any(
            _is_checkpoint(inner) for statement in tried.body for inner in (statement, *own_nodes(statement))
        )
        for tried in own_nodes(node)
    )


def _is_checkpoint(node: ast.AST) -> bool:
    """A call of somebody's checkpoint(); one's own method of that name is followed instead."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    owner = node.func.value
    is_own = isinstance(owner, ast.Name) and owner.id == "self"
    return node.func.attr == "checkpoint" and not is_own
