"""Measures of the tree, as `python -m tests.measure` prints them: files, lines, cycles, docstrings, words.

`--walks` also runs a worker on a local AWS and counts the frames and files that a page, a checkpoint and a heartbeat
pass. tests/test_measure.py keeps the measures that must not grow.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = {"model", "planning", "worker", "aws", "metrics", "health"}
"""And what lies in pykcl/ itself."""
SMALL = 60
CLAUSE = re.compile(
    r"(What|Whether|How|Whose|Who|Why|Where|Which|When|If|That|Of|And|Once|Around|By|In|With|Without|For|As|After|Before"
    r"|Behind|From|To|Into|Until|Unless|While|During|Only|At|So|Such|Between|About|Up)\b"
)
"""First words of a docstring that is neither an imperative nor a noun phrase."""
WORDS = re.compile(
    r"(?<![a-z])(told|tells?|look(?:s|ed)?|storms?|museum|judges?|excuses?|twins?|glances?|sights?|doors?)(?![a-z])",
    re.IGNORECASE,
)
ENTRY_POINTS = {"pykcl/cli/__main__.py", "pykcl/testing/plugin.py"}


def sources(folder: Path = ROOT / "pykcl") -> dict[str, str]:
    """Text by path from the root, of all modules that are not generated."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for path in sorted(folder.rglob("*.py"))
        if not path.name.endswith("_pb2.py")
    }


def lines_of(texts: Iterable[str]) -> int:
    return sum(text.count("\n") for text in texts)


def is_core(path: str) -> bool:
    parts = path.split("/")
    return len(parts) == 2 or parts[1] in CORE


def imports(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """The files that each file imports anywhere in it, in a function or for a type checker alone, too."""
    homes = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in modules}
    return {path: set(_imported(text, homes)) - {path} for path, text in modules.items()}


def _imported(text: str, homes: Mapping[str, str]) -> Iterator[str]:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (homes[alias.name] for alias in node.names if alias.name in homes)
        elif isinstance(node, ast.ImportFrom) and node.module in homes:
            for alias in node.names:
                # The version stands in the package itself, and brings nothing else with it.
                if alias.name != "__version__":
                    yield homes.get(f"{node.module}.{alias.name}", homes[node.module])


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of files of which each reaches each other one (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for after in sorted(graph[node]):
            if after not in number:
                visit(after)
                lowest[node] = min(lowest[node], lowest[after])
            elif after in stack:
                lowest[node] = min(lowest[node], number[after])
        if lowest[node] == number[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return found


def lonely(modules: Mapping[str, str], graph: Mapping[str, set[str]], most: int = SMALL) -> list[str]:
    """Files of fewer than `most` lines that exactly one other file imports."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for path, imported in graph.items():
        for other in imported:
            importers[other].add(path)
    return [
        path
        for path, text in modules.items()
        if text.count("\n") < most
        and len(importers[path]) == 1
        and path not in ENTRY_POINTS
        and not path.endswith(("__init__.py", "__main__.py"))
    ]


def docstrings(modules: Mapping[str, str]) -> list[tuple[str, str]]:
    """(path and line, first line) of each docstring."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        (f"{path}:{getattr(node, 'lineno', 1)}", text.split("\n")[0])
        for path, source in modules.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, kinds) and (text := ast.get_docstring(node))
    ]


def clauses(modules: Mapping[str, str]) -> list[str]:
    """Docstrings that are clauses or fragments, by their first words."""
    return [f"{place}: {text}" for place, text in docstrings(modules) if CLAUSE.match(text)]


def prose() -> dict[str, str]:
    """Modules, docs and the files beside them that people read."""
    beside = ("README.md", "CHANGELOG.md", "SECURITY.md", "Makefile", "tox.ini")
    pages = [*(ROOT / name for name in beside), *sorted((ROOT / "docs").rglob("*.md"))]
    return sources() | {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in pages}


def words(texts: Mapping[str, str]) -> dict[str, int]:
    """Uses of the words that pykcl has given up, by word."""
    counts: defaultdict[str, int] = defaultdict(int)
    for path, text in texts.items():
        for word in (*WORDS.findall(text), *WORDS.findall(path)):
            counts[word.lower()] += 1
    return dict(sorted(counts.items()))


def table() -> list[tuple[str, str, str]]:
    """(measure, value, goal)."""
    modules, tests = sources(), sources(ROOT / "tests")
    graph = imports(modules)
    core = {path: text for path, text in modules.items() if is_core(path)}
    every, bad = docstrings(modules), clauses(modules)
    return [
        ("Python files in pykcl/", f"{len(modules)}", "240"),
        ("lines in pykcl/", f"{lines_of(modules.values()):,}", "44,000"),
        ("files of the core", f"{len(core)}", "95"),
        ("lines of the core", f"{lines_of(core.values()):,}", "17,500"),
        (f"files under {SMALL} lines with one importer", f"{len(lonely(modules, graph))}", "0"),
        ("import cycles between files", f"{len(cycles(graph))}", "0"),
        ("lines of tests", f"{lines_of(tests.values()):,}", "60,000"),
        (
            "docstrings that begin with What, Whether, Of, …",
            f"{len(bad)} of {len(every):,} ({len(bad) / len(every):.0%})",
            "3 %",
        ),
        ("words given up, in names and prose", f"{sum(words(prose()).values()):,}", "150"),
    ]


def main() -> None:
    rows = [("measure", "now", "goal"), *table()]
    if "--walks" in sys.argv[1:]:
        from tests.walks import walks

        rows += walks()
    for row in rows:
        print(f"{row[0]:<56} {row[1]:>22} {row[2]:>8}")


if __name__ == "__main__":
    main()
