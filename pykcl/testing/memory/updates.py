"""DynamoDB's update expressions, parsed into functions of an item.

Grammar and refusals follow the developer guide (Expressions.UpdateExpressions).
"""

from __future__ import annotations

from dataclasses import dataclass

from pykcl.testing.memory.expressions import Operand, Parser, Path, Placeholders, read_path
from pykcl.testing.memory.values import (
    InvalidRequestError,
    Item,
    Value,
    copy_item,
    total,
)


def write_path(item: Item, path: Path, value: Value | None) -> None:
    """Put `value` at `path` (None: remove it). Raises InvalidRequestError where its parent is not there."""
    if len(path) > 1:
        parent = read_path(item, path[:-1])
        if parent is None or "M" not in parent or isinstance(path[-1], int):
            raise InvalidRequestError(
                "The document path provided in the update expression is invalid for update"
            )
        inner = copy_item(parent["M"])
        write_path(inner, path[-1:], value)
        write_path(item, path[:-1], {"M": inner})
    elif value is None:
        item.pop(str(path[0]), None)
    else:
        item[str(path[0])] = value


@dataclass(frozen=True, slots=True)
class Update:
    """A parsed UpdateExpression: (path, what to put there given the item before; None: remove)."""

    actions: tuple[tuple[Path, Operand], ...]

    @property
    def touched(self) -> frozenset[str]:
        return frozenset(str(path[0]) for path, _ in self.actions)

    def apply(self, item: Item) -> Item:
        """A new item. Every operand is read from the item as it was before the update."""
        after = copy_item(item)
        for path, value in [(path, operand(item)) for path, operand in self.actions]:
            write_path(after, path, value)
        return after


def parse_update(text: str, placeholders: Placeholders) -> Update:
    """An UpdateExpression: SET, REMOVE, ADD and DELETE, each at most once. Raises InvalidRequestError."""
    parser = Parser("UpdateExpression", text, placeholders)
    actions: list[tuple[Path, Operand]] = []
    seen: set[str] = set()
    while parser.next:
        clause = parser.accept("SET", "REMOVE", "ADD", "DELETE")
        if clause is None:
            raise parser.refuse(f'Syntax error; token: "{parser.next}"')
        if clause in seen:
            raise parser.refuse(f'The "{clause}" section can only be used once in an update expression;')
        seen.add(clause)
        actions.append(_action(parser, clause))
        while parser.accept(","):
            actions.append(_action(parser, clause))
    paths = [path for path, _ in actions]
    for index, path in enumerate(paths):
        for other in paths[index + 1 :]:
            if path[: len(other)] == other[: len(path)]:
                raise parser.refuse(
                    "Two document paths overlap with each other; must remove or rewrite one of these paths; "
                    f"path one: {list(path)}, path two: {list(other)}"
                )
    return Update(tuple(actions))


def _action(parser: Parser, clause: str) -> tuple[Path, Operand]:
    path = parser.operand_path()
    if clause == "REMOVE":
        return path, lambda item: None
    if clause == "SET":
        parser.expect("=")
        return path, _set_value(parser)
    amount = parser.operand()({})
    if amount is None:
        raise parser.refuse(f"{clause} needs an expression attribute value")
    kind = next(iter(amount))
    if kind not in ("N", "SS", "NS", "BS") or (clause == "DELETE" and kind == "N"):
        raise parser.refuse(
            "Incorrect operand type for operator or function; "
            f"operator: {clause}, operand type: {'STRING' if kind == 'S' else kind}"
        )
    combine = add_values if clause == "ADD" else delete_values
    return path, lambda item: combine(read_path(item, path), amount)


def _set_value(parser: Parser) -> Operand:
    left = _set_operand(parser)
    sign = parser.accept("+", "-")
    if sign is None:
        return _must_exist(left)
    right = _set_operand(parser)

    def computed(item: Item) -> Value:
        one, other = _must_exist(left)(item), _must_exist(right)(item)
        if one is None or other is None or "N" not in one or "N" not in other:
            raise InvalidRequestError("An operand in the update expression has an incorrect data type")
        return total(one, other, minus=sign == "-")

    return computed


def _set_operand(parser: Parser) -> Operand:
    if parser.next != "if_not_exists":
        return parser.operand()
    parser.take()
    parser.expect("(")
    path = parser.operand_path()
    parser.expect(",")
    otherwise = _set_operand(parser)
    parser.expect(")")
    return lambda item: read_path(item, path) or otherwise(item)


def _must_exist(operand: Operand) -> Operand:
    def found(item: Item) -> Value:
        value = operand(item)
        if value is None:
            raise InvalidRequestError(
                "The provided expression refers to an attribute that does not exist in the item"
            )
        return value

    return found


def add_values(old: Value | None, amount: Value) -> Value:
    """ADD: the sum of two numbers or the union of two sets; nothing counts as 0 or empty."""
    if old is None:
        return amount
    kind = next(iter(amount))
    if kind not in old:
        raise InvalidRequestError("An operand in the update expression has an incorrect data type")
    if kind == "N":
        return total(old, amount)
    return {kind: [*old[kind], *(member for member in amount[kind] if member not in old[kind])]}


def delete_values(old: Value | None, amount: Value) -> Value | None:
    """DELETE: the set without these members; an emptied set disappears."""
    if old is None:
        return None
    kind = next(iter(amount))
    if kind not in old:
        raise InvalidRequestError("An operand in the update expression has an incorrect data type")
    left = [member for member in old[kind] if member not in amount[kind]]
    return {kind: left} if left else None
