"""DynamoDB attribute values: checking, comparing and measuring them, and failing as AWS does.

Values are in wire form ({"S": "text"}); binary is bytes, as at a boto3 client. Limits and messages follow the
DynamoDB developer guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Context, Decimal, InvalidOperation
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
