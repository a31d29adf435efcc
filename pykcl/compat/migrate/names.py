"""What the names of a file stand for: its imports, star imports too, and what its module calls by another name."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping

from pykcl.compat.kclpy.launch import stand_ins

PROCESS = "amazon_kclpy.kcl.KCLProcess"
_OURS = "pykcl.compat.kclpy"
_THEIRS = "amazon_kclpy"


class Names:
    """at_module: the nodes of the module itself, not those of its functions and classes.

    imports: name -> whole name of what was imported, as amazon_kclpy calls it. foreign_stars: star imports of modules
    that were not read, which may bring anything.
    """

    def __init__(self, tree: ast.Module, at_module: Iterable[ast.AST]) -> None:
        self.imports: Mapping[str, str] = dict(_imports(tree))
        self.foreign_stars = tuple(node for node in ast.walk(tree) if _is_foreign_star(node))
        self._others = _other_names(at_module)

    def dotted(self, node: ast.AST) -> str:
        """The whole name of what an expression looks up, such as "boto3.client"; "" for what is no dotted name."""
        parts: list[str] = []
        followed: set[str] = set()
        while True:
            while isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            if not isinstance(node, ast.Name):
                return ""
            name = node.id
            # An import goes before an assignment, which is most often the way out where the import fails.
            if name in self.imports or name not in self._others or name in followed:
                return ".".join([self.imports.get(name, name), *reversed(parts)])
            followed.add(name)
            node = self._others[name]


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import os.path` binds os.
                name = alias.name if alias.asname else alias.name.split(".")[0]
                yield alias.asname or name, _theirs(name)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names = _public(_theirs(node.module or "")) if alias.name == "*" else (alias.name,)
                yield from ((alias.asname or name, _theirs(f"{node.module}.{name}")) for name in names)


def _public(module: str) -> tuple[str, ...]:
    """What a star import of a stand-in brings; nothing of any other module, which is not opened."""
    if module.partition(".")[0] != _THEIRS or module not in (ours := stand_ins()):
        return ()
    found = vars(ours[module])
    return tuple(found.get("__all__") or (name for name in found if not name.startswith("_")))


def _is_foreign_star(node: ast.AST) -> bool:
    if not isinstance(node, ast.ImportFrom) or node.names[0].name != "*":
        return False
    root = _theirs(node.module or "").partition(".")[0]
    return bool(node.level) or (root != _THEIRS and root not in sys.stdlib_module_names)


def _other_names(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """What `Process = kcl.KCLProcess` and its like say: of several for one name the first."""
    found: dict[str, ast.expr] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        for target in targets:
            for one, value in _pairs(target, node.value):
                if isinstance(one, ast.Name) and isinstance(value, ast.Name | ast.Attribute):
                    found.setdefault(one.id, value)
    return found


def _pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """`A, B = a, b` as two assignments."""
    both = (target, value)
    if all(isinstance(one, ast.Tuple) for one in both):
        elements = [one.elts for one in both if isinstance(one, ast.Tuple)]
        if len(elements[0]) == len(elements[1]):
            yield from zip(*elements, strict=True)
    else:
        yield both


def _theirs(name: str) -> str:
    """The names of pykcl's stand-in are those of amazon_kclpy."""
    is_ours = name == _OURS or name.startswith(_OURS + ".")
    return _THEIRS + name.removeprefix(_OURS) if is_ours else name
