"""What texts of pykcl advise, out of its source, and the commands and names in it."""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from messages import all_texts, modules, texts_of, written

ADVICE = re.compile(r"(?:\w*_)?(do|fix|remedy|hint|with_records?)", re.IGNORECASE)
"""Names of variables, parameters and fields that hold what is advised."""
_DO = "Do:"
_SENTENCE = re.compile(
    r"(?:^|[.;:] )((?:Use|Write|Set|Drop|Choose|Check|Leave|Put|Remove|Raise|Pass|Run|Correct|Say|Call) .*?)(?=\.(?:\s|$)|$)",
    re.DOTALL,
)
"""An advice without "Do:"."""


class Hint(NamedTuple):
    module: str
    text: str


@cache
def all_hints() -> tuple[Hint, ...]:
    """Return what stands behind "Do:", sentences that advise, and what is assigned or passed to a name of `ADVICE`."""
    nodes = {module: list(ast.walk(tree)) for module, tree in modules().items()}
    parameters = _parameters(itertools.chain(*nodes.values()))
    found = [Hint(module, text) for module, whole in all_texts() for text in _advices(whole)]
    for module, each in nodes.items():
        found += (Hint(module, _advice(text)) for text in _Source(module, each, parameters).hints())
    return tuple(one for one in dict.fromkeys(found) if re.search("[a-z]{2}", one.text))


def hints_in(source: str, module: str = "pykcl.config") -> list[Hint]:
    """Return the hints of a source that is no module of pykcl."""
    nodes = list(ast.walk(tree := ast.parse(source)))
    texts = [_advice(text) for text in _Source(module, nodes, _parameters(nodes)).hints()]
    texts += (text for whole in texts_of(tree, module) for text in _advices(whole))
    return [Hint(module, text) for text in texts]


def _advices(text: str) -> list[str]:
    return [_advice(text)] if _DO in text else _SENTENCE.findall(text)


def _advice(text: str) -> str:
    return (text.partition(_DO)[2] if _DO in text else text).strip()


def _parameters(nodes: Iterable[ast.AST]) -> dict[str, list[list[str]]]:
    """Return the positional parameters of functions, and the fields of classes, by their names."""
    found: dict[str, list[list[str]]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            found[node.name].append([one.arg for one in node.args.args if one.arg not in ("self", "cls")])
        elif isinstance(node, ast.ClassDef):
            init = next((one for one in node.body if getattr(one, "name", "") == "__init__"), None)
            fields = [_name(one.target) for one in node.body if isinstance(one, ast.AnnAssign)]
            given = [one.arg for one in init.args.args[1:]] if isinstance(init, ast.FunctionDef) else fields
            found[node.name].append(given)
    return {name: each for name, each in found.items() if any(map(ADVICE.fullmatch, itertools.chain(*each)))}


class _Source:
    def __init__(self, module: str, nodes: list[ast.AST], parameters: dict[str, list[list[str]]]) -> None:
        """nodes: all, the module first."""
        self._module, self._nodes, self._parameters = module, nodes, parameters
        self._constants = {
            _name(target): node.value
            for node in ast.iter_child_nodes(nodes[0])
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        }
        self._names: set[str] = set()
        self._functions: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                self._see_names_behind_do(node)

    def _see_names_behind_do(self, node: ast.JoinedStr) -> None:
        for before, part in zip(node.values, node.values[1:], strict=False):
            if str(getattr(before, "value", "")).endswith(f"{_DO} ") and isinstance(part, ast.FormattedValue):
                value = part.value.value if isinstance(part.value, ast.Subscript) else part.value
                if isinstance(value, ast.Name):
                    self._names.add(value.id)
                elif isinstance(value, ast.Call):
                    self._functions.add(_name(value.func))

    def hints(self) -> Iterator[str]:
        for node in self._nodes:
            for value in self._advised(node):
                yield from self._texts(value)

    def _is_advice(self, name: str) -> bool:
        return bool(ADVICE.fullmatch(name)) or name in self._names

    def _advised(self, node: ast.AST) -> Iterator[ast.expr]:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from self._assigned(target, node.value)
        elif isinstance(node, ast.Call):
            yield from (one.value for one in node.keywords if one.arg and self._is_advice(one.arg))
            for names in self._parameters.get(_name(node.func), ()):
                yield from (arg for arg, name in zip(node.args, names, strict=False) if self._is_advice(name))
        elif isinstance(node, ast.FunctionDef):
            if node.name in self._functions or self._is_advice(node.name):
                returns = (one for one in ast.walk(node) if isinstance(one, ast.Return | ast.Yield))
                yield from (one.value for one in returns if one.value is not None)
            given = [*zip(reversed(node.args.args), reversed(node.args.defaults), strict=False)]
            given += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d]
            yield from (default for arg, default in given if self._is_advice(arg.arg))

    def _assigned(self, target: ast.expr, value: ast.expr) -> Iterator[ast.expr]:
        if isinstance(target, ast.Tuple):
            values = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
            for one, part in zip(target.elts, values, strict=True):
                yield from self._assigned(one, part)
        elif self._is_advice(_name(target)):
            yield value

    def _texts(self, node: ast.AST, depth: int = 0) -> Iterator[str]:
        """Yield the texts that the value may be, with those of the constants of the module that it names."""
        if isinstance(node, ast.Name):
            if node.id in self._constants and depth < 4:
                yield from self._texts(self._constants[node.id], depth + 1)
        elif isinstance(node, ast.Call):
            if _name(node.func) == "command":
                yield " ".join(written(arg, self._module) for arg in node.args)
                return
            # CONSTANT.get(…), too.
            owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            for arg in (*owner, *node.args, *(one.value for one in node.keywords)):
                yield from self._texts(arg, depth)
        elif isinstance(node, ast.IfExp):
            yield from (*self._texts(node.body, depth), *self._texts(node.orelse, depth))
        elif isinstance(node, ast.Dict):
            for each in node.values:
                yield from self._texts(each, depth)
        elif isinstance(node, ast.BinOp):
            yield written(node.left, self._module) + written(node.right, self._module)
            yield from (*self._texts(node.left, depth), *self._texts(node.right, depth))
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield node.value
        else:
            if isinstance(node, ast.JoinedStr):
                yield written(node, self._module)
            # A piece of a text is none by itself, and what is compared is not advised.
            left_out = (ast.Compare, ast.Constant) if isinstance(node, ast.JoinedStr) else ast.Compare
            for inner in ast.iter_child_nodes(node):
                if not isinstance(inner, left_out):
                    yield from self._texts(inner, depth)


def _name(node: ast.AST) -> str:
    return str(getattr(node, "id", None) or getattr(node, "attr", ""))


# -- what a hint names ---------------------------------------------------------------------------------------------

_VALUE = r"""(?:\w+\([^()]*\)|'[^']*'|"[^"]*"|\[[^\]]*\]|\{[^}]*\}|lambda:\ \w+\([^)]*\)|(?!lambda)[^\s,;()'"`]*[^\s,;()'"`.:])"""
_PROGRAMS = "aws|sqlite3|chronyc|timedatectl|chmod|sed|ulimit"
NAMES = re.compile(
    rf"""
      (?P<command>(?<![\w/.\[-])(?<!from\ )pykcl(?=\ [a-z…]))
    | (?P<install>pip\ install\ [^.;,)]+|pykcl\[\w+\])
    | (?P<program>(?<![\w-])(?:{_PROGRAMS})\ (?=\S)[^;`()]*?(?=[;`()]|,\ |\.$|$|\ shows|\ renews|\ \ ))
    | (?P<function>\bdef\ \w+\([^)]*\))
    | (?P<python>(?:@|\b)(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*\((?=\S))
    | (?P<variable>\b(?:AWS|PYKCL|HTTPS?|NO|DD|OTEL)_[A-Z_]*[A-Z]\b)
    | (?P<value>(?<![\w.\-/?&])[a-z]\w*={_VALUE}?)
    | (?P<option>(?<![\w-])(?:--[a-z][a-z-]*[a-z]|-[a-z])\b)
    | (?P<key>(?<![\w.\\])[a-z]+(?:[A-Z][a-z0-9]+)+\b)
    | (?P<class>(?<![\w.])(?:[A-Z]+[a-z0-9]+){{2,}}\b)
    | (?P<name>(?<![\w./:\\])[a-z]+_[a-z_]*[a-z]\b)
    """,
    re.VERBOSE,
)


class Named(NamedTuple):
    """kind: the group of `NAMES`. text: with its arguments or its value. after: the command of pykcl before it."""

    kind: str
    text: str
    hint: Hint
    after: str


def names_in(hint: Hint) -> Iterator[Named]:
    at, after = 0, ""
    while found := NAMES.search(hint.text, at):
        kind, end = str(found.lastgroup), found.end()
        if kind == "command":
            end = _end_of_phrase(hint.text, end)
        elif kind == "python":
            end = _end_of_call(hint.text, end)
        text = hint.text[found.start() : end].strip()
        yield Named(kind, text, hint, after)
        after = text if kind == "command" else after
        at = max(end, found.end())


def _end_of_phrase(text: str, start: int) -> int:
    found = re.compile(
        r"[;`()]|\. |\.$|, |: |   | (?=(?:shows?|prints|checks|in|with|once|or|which)\b)|$"
    ).search(text, start)
    assert found
    return found.start()


def _end_of_call(text: str, start: int) -> int:
    """start: behind the first parenthesis. The end of the call, or of what there is of it."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return at + 1
    return len(text)
