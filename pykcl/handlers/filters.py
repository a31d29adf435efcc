"""Lambda's `FilterCriteria`: patterns for the data and the metadata of a record, as a predicate.

The rules are those of Lambda's page on event filtering. A pattern that Lambda refuses when the mapping is made is
refused here too, with its path. Patterns are compiled once: a record then costs the parsing of its JSON, and a little.
Data with more levels or values than `metered_json` reads is not valid JSON here.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pykcl.errors import ConfigError
from pykcl.model.lambda_event import EventSource
from pykcl.model.metered_json import MAX_RECORD_VALUES, NotJson, read_json, refuse_constant
from pykcl.model.record import Record

Criteria = Callable[[Record, EventSource], bool]
"""Returns True for a record that the handler is to get."""
_Test = Callable[[Any], bool]
"""Of one value of JSON, or `_ABSENT`."""

_ABSENT = object()
"""Value of a field that is missing, or is no leaf: an object, or an empty list."""
_NO_JSON = object()
"""Stands for data that is not JSON: no pattern for data matches it."""
_NUMERIC: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_METADATA: dict[str, Callable[[Record, EventSource], Any]] = {
    "partitionKey": lambda record, _: record.partition_key,
    "sequenceNumber": lambda record, _: record.sequence_number,
    "kinesisSchemaVersion": lambda *_: "1.0",
    "approximateArrivalTimestamp": lambda record, _: round(record.arrived_at_millis) / 1000,
    "eventID": lambda record, _: f"{record.shard_id}:{record.sequence_number}",
    "eventName": lambda *_: "aws:kinesis:record",
    "eventSource": lambda *_: "aws:kinesis",
    "eventVersion": lambda *_: "1.0",
    "eventSourceARN": lambda _, source: source.stream_arn,
    "awsRegion": lambda _, source: source.region,
    "invokeIdentityArn": lambda _, source: source.invoke_identity_arn,
}
"""Fields of a record in Lambda's event, besides `data`."""


def criteria_of(filter_criteria: object) -> Criteria | None:
    """Compile `{"Filters": [{"Pattern": "…"}, …]}`: a record passes if any of the patterns matches. None: no filter.

    Raises ConfigError with the path of what is wrong.
    """
    path = "FilterCriteria"
    if filter_criteria is None:
        return None
    if not isinstance(filter_criteria, Mapping) or not filter_criteria.keys() <= {"Filters"}:
        raise _wrong(path, 'must be {"Filters": [{"Pattern": "…"}]}')
    filters = filter_criteria.get("Filters")
    filters = [] if filters is None else filters
    if not isinstance(filters, list):
        raise _wrong(f"{path}.Filters", "must be a list")
    patterns = [_parsed(one, f"{path}.Filters[{number}]") for number, one in enumerate(filters)]
    if not patterns:
        return None
    tests = [_record_test(pattern, where) for pattern, where in patterns]
    getters = {name: _METADATA.get(name, _data_of) for pattern, _ in patterns for name in _fields_of(pattern)}
    if getters.keys() == {"data"} and len(tests) == 1:
        # As nearly every mapping has it.
        only = tests[0]
        return lambda record, source: only({"data": _data_of(record, source)})

    def matches(record: Record, source: EventSource) -> bool:
        fields = {name: get(record, source) for name, get in getters.items()}
        return any(test(fields) for test in tests)

    return matches


def _parsed(entry: object, path: str) -> tuple[Mapping[str, Any], str]:
    if not isinstance(entry, Mapping) or entry.keys() != {"Pattern"}:
        raise _wrong(path, 'must be {"Pattern": "…"}')
    pattern, path = entry["Pattern"], f"{path}.Pattern"
    if isinstance(pattern, str):
        try:
            pattern = read_json(pattern)
        except NotJson:
            raise _wrong(path, "is not JSON") from None
    if not isinstance(pattern, Mapping):
        raise _wrong(path, "must be a JSON object")
    return pattern, path


def _number(digits: str) -> int | float:
    """Return a whole number; infinity for one of more digits than Python converts: it is JSON all the same."""
    try:
        return int(digits)
    except ValueError:
        return float(digits)


_decode = json.JSONDecoder(parse_int=_number, parse_constant=refuse_constant).decode


def _data_of(record: Record, _: EventSource) -> Any:
    try:
        return read_json(record.data.decode(), max_values=MAX_RECORD_VALUES, decode=_decode)
    except ValueError:
        return _NO_JSON


# -- objects ---------------------------------------------------------------------------------------------------


def _record_test(pattern: Mapping[str, Any], path: str) -> _Test:
    """Compile the outermost object of a pattern."""
    for name in _fields_of(pattern):
        if name == "data" or name in _METADATA:
            continue
        hint = " Write data, without kinesis around it." if name == "kinesis" else ""
        raise _wrong(
            f"{path}.{name}", f"is no field of a record: data, {', '.join(_METADATA)}.{hint}", end=""
        )
    return _object_test(pattern, path)


def _fields_of(pattern: Mapping[str, Any]) -> Iterable[str]:
    """Return the outermost fields that a pattern names, also within $or."""
    for name, rules in pattern.items():
        if name != "$or":
            yield name
        elif isinstance(rules, list):
            for one in rules:
                yield from _fields_of(one) if isinstance(one, Mapping) else ()


def _object_test(pattern: Mapping[str, Any], path: str) -> _Test:
    """Compile the pattern of an object: every field of it must match. Of a list, one of its objects must."""
    fields: list[tuple[str, _Test]] = []
    alternatives: list[_Test] = []
    for name, rules in pattern.items():
        where = f"{path}.{name}"
        if name == "$or":
            alternatives.append(_or_test(rules, where))
        elif isinstance(rules, Mapping):
            fields.append((name, _object_test(rules, where)))
        elif where.endswith(".Pattern.data"):
            raise _wrong(where, "must be an object: Lambda takes JSON patterns only for the data of Kinesis")
        else:
            fields.append((name, _leaf_test(rules, where)))

    def matches(value: Any) -> bool:
        if type(value) is not dict:
            if value is _NO_JSON:
                return False
            if type(value) is list and value:
                return any(map(matches, value))
            value = {}
        for name, test in fields:
            if not test(value.get(name, _ABSENT)):
                return False
        return all(test(value) for test in alternatives) if alternatives else True

    return matches


def _or_test(rules: object, path: str) -> _Test:
    if not isinstance(rules, list) or len(rules) < 2 or not all(isinstance(one, Mapping) for one in rules):
        raise _wrong(path, "must be a list of two objects or more")
    tests = [_object_test(one, f"{path}[{number}]") for number, one in enumerate(rules)]
    return lambda value: any(test(value) for test in tests)


# -- leaves ----------------------------------------------------------------------------------------------------


def _leaf_test(rules: object, path: str) -> _Test:
    """Compile a list of rules: one of them must match. Of a list as value, one of its elements must."""
    if not isinstance(rules, list) or not rules:
        raise _wrong(path, "must be an object, or a list of one rule or more")
    plain = [one for one in rules if not isinstance(one, Mapping)]
    tests = [_exact_test(plain, path)] if plain else []
    tests += [_named_test(one, f"{path}[{n}]") for n, one in enumerate(rules) if isinstance(one, Mapping)]
    first, others = tests[0], tests[1:]

    def matches(value: Any) -> bool:
        kind = type(value)
        if kind is list and value:
            return any(map(matches, value))
        if kind is dict or kind is list or value is _NO_JSON:
            value = _ABSENT
        if first(value):
            return True
        return any(test(value) for test in others) if others else False

    return matches


def _exact_test(values: Sequence[Any], path: str) -> _Test:
    """Compile the rule that the value is one of these. `true` is not 1, and "1" is neither."""
    for value in values:
        if value is not None and not isinstance(value, str | int | float):
            raise _wrong(path, 'may hold texts, numbers, true, false, null and rules such as {"prefix": "A"}')
    # A type each, because True == 1 in Python; 1 and 1.0 are one number in JSON.
    known = {(_kind(value), value) for value in values}
    texts = frozenset(value for kind, value in known if kind is str)
    if len(texts) == len(known):
        return lambda value: type(value) is str and value in texts
    return lambda value: value is not _ABSENT and (_kind(value), value) in known


def _kind(value: Any) -> type:
    return float if type(value) is int else type(value)


def _named_test(rule: Mapping[str, Any], path: str) -> _Test:
    if len(rule) != 1:
        raise _wrong(path, "must have one operator")
    ((name, operand),) = rule.items()
    path = f"{path}.{name}"
    if name == "exists":
        if not isinstance(operand, bool):
            raise _wrong(path, "must be true or false")
        return lambda value: (value is not _ABSENT) is operand
    if name == "anything-but":
        return _anything_but(operand, path)
    if name == "numeric":
        return _numeric_test(operand, path)
    if name in _TEXT_TESTS:
        if not isinstance(operand, str):
            raise _wrong(path, "must be a text")
        return _TEXT_TESTS[name](operand)
    raise _wrong(path, f"is no operator of Lambda: {', '.join(_OPERATORS)}, $or")


def _prefix(text: str) -> _Test:
    return lambda value: type(value) is str and value.startswith(text)


def _suffix(text: str) -> _Test:
    return lambda value: type(value) is str and value.endswith(text)


def _ignoring_case(text: str) -> _Test:
    lower = text.lower()
    return lambda value: type(value) is str and value.lower() == lower


_TEXT_TESTS: dict[str, Callable[[str], _Test]] = {
    "prefix": _prefix,
    "suffix": _suffix,
    "equals-ignore-case": _ignoring_case,
}
_OPERATORS = (*_TEXT_TESTS, "anything-but", "numeric", "exists")


def _anything_but(operand: Any, path: str) -> _Test:
    """Compile the rule that there is a value and it is none of these, or does not match a rule for texts."""
    if isinstance(operand, Mapping):
        if len(operand) != 1 or not operand.keys() <= _TEXT_TESTS.keys():
            raise _wrong(path, f"may hold one of {', '.join(_TEXT_TESTS)}")
        refused = _named_test(operand, path)
    else:
        values = operand if isinstance(operand, list) else [operand]
        if not values or not all(isinstance(one, str) or _is_number(one) for one in values):
            raise _wrong(path, "must be a text or a number, or a list of them")
        refused = _exact_test(values, path)
    return lambda value: value is not _ABSENT and not refused(value)


def _numeric_test(operand: Any, path: str) -> _Test:
    """Compile ["=", 5] or [">", 0, "<=", 5]."""
    problem = 'must be like ["=", 5], [">", 0] or [">", 0, "<=", 5]'
    if not isinstance(operand, list) or len(operand) not in (2, 4):
        raise _wrong(path, problem)
    names, numbers = operand[::2], operand[1::2]
    if not all(isinstance(name, str) and name in _NUMERIC for name in names) or not all(
        map(_is_number, numbers)
    ):
        raise _wrong(path, problem)
    if len(names) == 2 and {name[0] for name in names} != {"<", ">"}:
        raise _wrong(path, problem)
    limits = [(_NUMERIC[name], number) for name, number in zip(names, numbers, strict=True)]

    def matches(value: Any) -> bool:
        if type(value) is not int and type(value) is not float:
            return False
        for holds, number in limits:  # noqa: SIM110 - all() costs as much as the rest
            if not holds(value, number):
                return False
        return True

    return matches


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


def _wrong(path: str, problem: str, *, end: str = ".") -> ConfigError:
    return ConfigError(f"{path} {problem}{end}")
