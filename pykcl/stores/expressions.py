"""DynamoDB's values and its expression language, parsed into functions of an item: conditions and updates.

Grammar and refusals follow the developer guide (Expressions.OperatorsAndFunctions,
Expressions.UpdateExpressions). A name or value that is used but not given, or given but not used, is refused
as AWS does. Values are in wire form ({"S": "text"}); binary is bytes, as at a boto3 client. Their limits and
messages follow the guide, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from botocore.exceptions import ClientError

Value = Mapping[str, Any]
Item = dict[str, Value]

MAX_ITEM_BYTES = 400 * 1024
_SETS = ("SS", "NS", "BS")
_NESTED = frozenset({"M", "L", *_SETS})
_DIGITS = 38
_LARGEST_EXPONENT, _SMALLEST_EXPONENT = 125, -130
_EXACT = Context(prec=300)  # Python's own 28 digits are fewer than DynamoDB's
_ORDERED = ("S", "N", "B")


def aws_error(code: str, message: str, operation: str, status: int = 400, **extra: Any) -> ClientError:
    """The exception a boto3 client raises for an error answer; `extra` goes beside `Error`, as ALL_OLD's Item
    does.
    """
    response: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "RequestId": "in-memory", "RetryAttempts": 0},
        **extra,
    }
    return ClientError(response, operation)


class InvalidRequestError(Exception):
    """Becomes a ValidationException once the operation's name is known."""


def check_value(value: Value) -> Value:
    """`value` copied and normalised (numbers lose leading and trailing zeros). Raises InvalidRequestError."""
    if len(value) != 1:
        raise InvalidRequestError(
            "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes"
            if not value
            else "Supplied AttributeValue has more than one datatypes set, "
            "must contain exactly one of the supported datatypes"
        )
    ((kind, content),) = value.items()
    if kind == "N":
        return {"N": number_text(to_number(content))}
    if kind in _SETS:
        return {kind: _check_set(kind, content)}
    if kind == "M":
        return {"M": {name: check_value(inner) for name, inner in content.items()}}
    if kind == "L":
        return {"L": [check_value(inner) for inner in content]}
    if kind == "NULL" and content is not True:
        raise InvalidRequestError(
            "One or more parameter values were invalid: "
            "Null attribute value types must have the value of true"
        )
    if kind == "B":
        return {"B": bytes(content)}
    return {kind: content}


def _check_set(kind: str, content: Any) -> list[Any]:
    if not content:
        word = {"SS": "string", "NS": "number", "BS": "binary"}[kind]
        raise InvalidRequestError(
            f"One or more parameter values were invalid: An {word} set may not be empty"
        )
    members = [number_text(to_number(member)) for member in content] if kind == "NS" else list(content)
    if len(set(members)) != len(members):
        raise InvalidRequestError(
            "One or more parameter values were invalid: Input collection contains duplicates."
        )
    return members


def to_number(text: Any) -> Decimal:
    """The number, up to 38 digits. Raises InvalidRequestError."""
    try:
        number = Decimal(text)
    except (InvalidOperation, TypeError, ValueError):
        raise InvalidRequestError(
            "The parameter cannot be converted to a numeric value: " + str(text)[:40]
        ) from None
    if not number.is_finite():
        raise InvalidRequestError("The parameter cannot be converted to a numeric value")
    if len(number.normalize(_EXACT).as_tuple().digits) > _DIGITS:
        raise InvalidRequestError("Attempting to store more than 38 significant digits in a Number")
    if number and not _SMALLEST_EXPONENT <= number.adjusted() <= _LARGEST_EXPONENT:
        side = "overflow" if number.adjusted() > 0 else "underflow"
        raise InvalidRequestError(f"Number {side}. Attempting to store a number out of the supported range")
    return number


def number_text(number: Decimal) -> str:
    return "0" if number == 0 else format(number.normalize(_EXACT), "f")


def total(one: Value, other: Value, *, minus: bool = False) -> Value:
    """The sum or difference of two numbers. Raises InvalidRequestError where it is none DynamoDB can store."""
    add = _EXACT.subtract if minus else _EXACT.add
    return {"N": number_text(to_number(format(add(to_number(one["N"]), to_number(other["N"])), "f")))}


def equal(one: Value, other: Value) -> bool:
    """Equality as in a condition: types must match, numbers compare by value, sets without order."""
    return next(iter(one)) in other and _comparable(one) == _comparable(other)


def _comparable(value: Value) -> Any:
    ((kind, content),) = value.items()
    if kind == "N":
        return to_number(content)
    if kind == "NS":
        return {to_number(text) for text in content}
    if kind in _SETS:
        return set(content)
    if kind == "M":
        return {name: (next(iter(inner)), _comparable(inner)) for name, inner in content.items()}
    return [(next(iter(inner)), _comparable(inner)) for inner in content] if kind == "L" else content


def order(one: Value, other: Value) -> int | None:
    """-1, 0 or 1; None where the two cannot be ordered. Text is ordered by its UTF-8 bytes."""
    ((kind, content),) = one.items()
    if kind not in _ORDERED or kind not in other:
        return None
    left, right = _sort_key(kind, content), _sort_key(kind, other[kind])
    return int(left > right) - int(left < right)


def _sort_key(kind: str, content: Any) -> Any:
    if kind == "N":
        return to_number(content)
    return content.encode() if kind == "S" else content


def size_of(value: Value) -> int:
    """Return the answer of size(). Raises InvalidRequestError for a number or a boolean."""
    ((kind, content),) = value.items()
    if kind in ("N", "BOOL", "NULL"):
        raise InvalidRequestError(
            "Invalid ConditionExpression: Incorrect operand type for operator or function; "
            f"operator or function: size, operand type: {kind}"
        )
    return len(content)


def item_bytes(item: Mapping[str, Value]) -> int:
    """Roughly what DynamoDB charges and limits: names plus contents."""
    size = 0
    for name, value in item.items():
        size += _text_bytes(name) + _value_bytes(value)
    return size


def _value_bytes(value: Value) -> int:
    ((kind, content),) = value.items()
    if kind == "S":
        return _text_bytes(content)
    if kind == "N":
        return len(content) // 2 + 1
    if kind == "M":
        return 3 + item_bytes(content)
    if kind == "L":
        return 3 + sum(map(_value_bytes, content))
    if kind in _SETS:
        return sum(len(member) for member in content)
    return len(content) if kind == "B" else 1


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def copy_item(item: Mapping[str, Value]) -> Item:
    # Most values hold one immutable thing: those are copied without a call of their own.
    return {
        name: dict(value) if _NESTED.isdisjoint(value) else copy_value(value) for name, value in item.items()
    }


def copy_value(value: Value) -> Value:
    ((kind, content),) = value.items()
    if kind == "M":
        return {"M": copy_item(content)}
    if kind == "L":
        return {"L": [copy_value(inner) for inner in content]}
    return {kind: list(content) if kind in _SETS else content}


Condition = Callable[[Item], bool]
Operand = Callable[[Item], "Value | None"]
Path = tuple["str | int", ...]

_TOKEN = re.compile(r"\s*(?:(<>|<=|>=|[=<>(),.+\-\[\]])|([:#]?[A-Za-z0-9_]+))")
_COMPARISONS: Mapping[str, Callable[[int], bool]] = {
    "<": lambda way: way < 0,
    "<=": lambda way: way <= 0,
    ">": lambda way: way > 0,
    ">=": lambda way: way >= 0,
}
_TYPES = frozenset({"S", "SS", "N", "NS", "B", "BS", "BOOL", "NULL", "L", "M"})


@dataclass(slots=True)
class Placeholders:
    """ExpressionAttributeNames and -Values of one request, and which of them its expressions used."""

    names: Mapping[str, str]
    values: Mapping[str, Value]
    used: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Placeholders:
        values = params.get("ExpressionAttributeValues", {})
        return cls(
            params.get("ExpressionAttributeNames", {}), {name: check_value(values[name]) for name in values}
        )

    def value(self, name: str) -> Value:
        if name not in self.values:
            raise InvalidRequestError(
                f"An expression attribute value used in expression is not defined; attribute value: {name}"
            )
        self.used.add(name)
        return self.values[name]

    def name(self, name: str) -> str:
        if not name.startswith("#"):
            return name
        if name not in self.names:
            raise InvalidRequestError(
                "An expression attribute name used in the document path is not defined; "
                f"attribute name: {name}"
            )
        self.used.add(name)
        return self.names[name]

    def refuse_unused(self) -> None:
        for what, given in (
            ("ExpressionAttributeNames", self.names),
            ("ExpressionAttributeValues", self.values),
        ):
            unused = sorted(set(given) - self.used)
            if unused:
                raise InvalidRequestError(
                    f"Value provided in {what} unused in expressions: keys: {{{', '.join(unused)}}}"
                )


@lru_cache(maxsize=1000)
def _split(text: str) -> tuple[tuple[str, ...], str]:
    """Its tokens, and the character where no token begins, if there is one."""
    tokens: list[str] = []
    at, text = 0, text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            return tuple(tokens), text[at]
        tokens.append(found.group(1) or found.group(2))
        at = found.end()
    return tuple(tokens), ""


class Parser:
    """One expression. `kind` is the parameter's name, for error texts."""

    def __init__(self, kind: str, text: str, placeholders: Placeholders) -> None:
        self.kind = kind
        self.placeholders = placeholders
        self._tokens, unknown = _split(text)
        self._at = 0
        if unknown:
            raise self.refuse(f'Syntax error; token: "{unknown}"')
        if not self._tokens:
            raise self.refuse("The expression can not be empty;")

    def refuse(self, problem: str) -> InvalidRequestError:
        return InvalidRequestError(f"Invalid {self.kind}: {problem}")

    @property
    def next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def take(self) -> str:
        token = self.next
        self._at += 1
        return token

    def accept(self, *tokens: str) -> str | None:
        """The next token if it is one of `tokens` (keywords in any case), in upper case."""
        if self.next.upper() in tokens:
            return self.take().upper()
        return None

    def expect(self, token: str) -> None:
        if self.accept(token) is None:
            raise self.refuse(f'Syntax error; token: "{self.next or "<EOF>"}", expected: "{token}"')

    def end(self) -> None:
        if self.next:
            raise self.refuse(f'Syntax error; token: "{self.next}"')

    def condition(self) -> Condition:
        found = self._any_of()
        self.end()
        return found

    def _any_of(self) -> Condition:
        terms = [self._all_of()]
        while self.accept("OR"):
            terms.append(self._all_of())
        return terms[0] if len(terms) == 1 else lambda item: any(term(item) for term in terms)

    def _all_of(self) -> Condition:
        terms = [self._negation()]
        while self.accept("AND"):
            terms.append(self._negation())
        return terms[0] if len(terms) == 1 else lambda item: all(term(item) for term in terms)

    def _negation(self) -> Condition:
        if self.accept("NOT"):
            term = self._negation()
            return lambda item: not term(item)
        if self.accept("("):
            inner = self._any_of()
            self.expect(")")
            return inner
        return self._function() or self._comparison()

    def _function(self) -> Condition | None:
        name = self.next
        if name not in (
            "attribute_exists",
            "attribute_not_exists",
            "attribute_type",
            "begins_with",
            "contains",
        ):
            return None
        self.take()
        self.expect("(")
        path = self.operand_path()
        if name == "attribute_exists":
            self.expect(")")
            return lambda item: read_path(item, path) is not None
        if name == "attribute_not_exists":
            self.expect(")")
            return lambda item: read_path(item, path) is None
        self.expect(",")
        against = self.operand()
        self.expect(")")
        if name == "attribute_type":
            return self._type_test(path, against)
        test = _begins_with if name == "begins_with" else _contains
        return lambda item: _both(read_path(item, path), against(item), test)

    def _type_test(self, path: Path, against: Operand) -> Condition:
        wanted = (against({}) or {}).get("S")
        if wanted not in _TYPES:
            raise self.refuse(
                f"Invalid attribute type name found; type: {wanted}, valid types: {sorted(_TYPES)}"
            )
        return lambda item: wanted in (read_path(item, path) or {})

    def _comparison(self) -> Condition:
        first = self._at
        left = self.operand()
        left_text = self._tokens[first : self._at]
        if self.accept("BETWEEN"):
            low = self.operand()
            self.expect("AND")
            high = self.operand()
            return lambda item: (
                _ordered(left(item), low(item), ">=") and _ordered(left(item), high(item), "<=")
            )
        if self.accept("IN"):
            self.expect("(")
            choices = [self.operand()]
            while self.accept(","):
                choices.append(self.operand())
            self.expect(")")
            return lambda item: any(_both(left(item), choice(item), equal) for choice in choices)
        operator = self.accept("=", "<>", *_COMPARISONS)
        if operator is None:
            raise self.refuse(f'Syntax error; token: "{self.next or "<EOF>"}"')
        second = self._at
        right = self.operand()
        if self._tokens[second : self._at] == left_text:
            raise self.refuse(
                "The first operand must be distinct from the remaining operands for this operator or function; "
                f"operator: {operator}"
            )
        if operator == "=":
            return lambda item: _both(left(item), right(item), equal)
        if operator == "<>":
            return lambda item: not _both(left(item), right(item), equal)
        return lambda item: _ordered(left(item), right(item), str(operator))

    def operand(self) -> Operand:
        if self.next == "size":
            self.take()
            self.expect("(")
            path = self.operand_path()
            self.expect(")")
            return lambda item: _size(read_path(item, path))
        if self.next.startswith(":"):
            value = self.placeholders.value(self.take())
            return lambda item: value
        path = self.operand_path()
        return lambda item: read_path(item, path)

    def operand_path(self) -> Path:
        """A document path, such as a.b[1]. A value placeholder is no path, as for AWS."""
        if not re.fullmatch(r"#?[A-Za-z0-9_]+", self.next):
            raise self.refuse(f'Syntax error; token: "{self.next or "<EOF>"}"')
        path: list[str | int] = [self.placeholders.name(self.take())]
        while True:
            if self.accept("."):
                path.append(self.placeholders.name(self.take()))
            elif self.accept("["):
                path.append(int(self.take()))
                self.expect("]")
            else:
                return tuple(path)


def _both(one: Value | None, other: Value | None, test: Callable[[Value, Value], bool]) -> bool:
    return one is not None and other is not None and test(one, other)


def _ordered(one: Value | None, other: Value | None, operator: str) -> bool:
    if one is None or other is None:
        return False
    way = order(one, other)
    return way is not None and _COMPARISONS[operator](way)


def _begins_with(one: Value, other: Value) -> bool:
    return any(kind in one and kind in other and one[kind].startswith(other[kind]) for kind in ("S", "B"))


def _contains(one: Value, other: Value) -> bool:
    if "S" in one:
        return "S" in other and other["S"] in one["S"]
    if "L" in one:
        return any(equal(member, other) for member in one["L"])
    return any(
        f"{kind}S" in one and kind in other and other[kind] in one[f"{kind}S"] for kind in ("S", "N", "B")
    )


def _size(value: Value | None) -> Value | None:
    return None if value is None else {"N": str(size_of(value))}


def read_path(item: Mapping[str, Value], path: Path) -> Value | None:
    """The value at `path`, or None where there is nothing."""
    here: Value | None = item.get(str(path[0]))
    for step in path[1:]:
        if here is None:
            return None
        if isinstance(step, int):
            members = here.get("L", [])
            here = members[step] if step < len(members) else None
        else:
            here = here.get("M", {}).get(step)
    return here


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
