"""DynamoDB's answers, looked at before anything is believed of them.

botocore checks no types, and where a body is no JSON at all (the page of a proxy, with status 200) it makes an empty
answer of it. To GetItem that means "no such row" and to a write "done", so it must not pass for DynamoDB's word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pykcl.errors import AnswerRefused
from pykcl.model.lease import AttributeValue
from pykcl.model.lease_item import LEASE_KEY

_CONTENT_TYPE = "x-amz-json"
_REQUEST_ID = "x-amzn-requestid"


def refuse_foreign(answer: Mapping[str, Any], doing: str) -> None:
    """Raise AnswerRefused for an answer whose content type says that DynamoDB did not write it.

    An answer without HTTP headers (a stubbed or in-memory client) passes, and one without a content type that has the
    id which AWS gives to each request.
    """
    metadata = answer.get("ResponseMetadata")
    headers = metadata.get("HTTPHeaders") if isinstance(metadata, Mapping) else None
    if not headers or not isinstance(headers, Mapping):
        return
    content_type = headers.get("content-type", _CONTENT_TYPE if _REQUEST_ID in headers else "none")
    if _CONTENT_TYPE not in str(content_type):
        raise AnswerRefused(
            f"{doing} was answered by something that is not DynamoDB (content type {str(content_type)[:64]!r}). "
            "Nothing of it was believed. If this goes on, look at what stands between this process and AWS."
        )


def items_of(answer: Mapping[str, Any]) -> Sequence[Mapping[str, AttributeValue]]:
    """The rows of one Scan page. Raises AnswerRefused."""
    items = answer.get("Items")
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise AnswerRefused("A Scan was answered without a list of rows. It is asked for again.")
    return items


def lease_key_of(item: Mapping[str, AttributeValue]) -> str:
    """The text of the row's key, "" where there is none."""
    value = item.get(LEASE_KEY)
    text = value.get("S") if isinstance(value, Mapping) else None
    return text if isinstance(text, str) else ""


def last_key_of(answer: Mapping[str, Any]) -> str | None:
    """Where the next page begins; None after the last one. Raises AnswerRefused."""
    last = answer.get("LastEvaluatedKey")
    if not last:
        return None
    key = lease_key_of(last) if isinstance(last, Mapping) else ""
    if not key:
        # Not "no further page": rows would be taken for deleted.
        raise AnswerRefused("A Scan says it is not complete and not where it goes on. It is asked for again.")
    return key


def read_units_of(answer: Mapping[str, Any]) -> float:
    """What the page cost, 0.0 where it does not say."""
    consumed = answer.get("ConsumedCapacity")
    units = consumed.get("CapacityUnits") if isinstance(consumed, Mapping) else None
    return float(units) if isinstance(units, int | float) and 0 <= units < 1e9 else 0.0


class Table(NamedTuple):
    """status: such as "ACTIVE". key_schema: (attribute, "HASH" or "RANGE"). types: attribute -> "S", "N" or "B".

    table_id: given anew to each table of the same name; "" where an endpoint does not tell. indexes: their names.
    """

    status: str
    key_schema: tuple[tuple[str, str], ...]
    types: Mapping[str, str]
    table_id: str = ""
    indexes: frozenset[str] = frozenset()


def table_of(answer: Mapping[str, Any]) -> Table:
    """What a DescribeTable answer says. Raises AnswerRefused."""
    table = answer.get("Table")
    if not isinstance(table, Mapping) or not isinstance(table.get("TableStatus"), str):
        raise AnswerRefused("DescribeTable was answered without a table. It is asked for again.")
    schema = tuple(_pairs(table.get("KeySchema"), "AttributeName", "KeyType"))
    types = dict(_pairs(table.get("AttributeDefinitions"), "AttributeName", "AttributeType"))
    if not schema:
        raise AnswerRefused("DescribeTable was answered without the table's key. It is asked for again.")
    table_id = table.get("TableId")
    return Table(
        table["TableStatus"],
        schema,
        types,
        table_id if isinstance(table_id, str) else "",
        frozenset(_names(table.get("GlobalSecondaryIndexes"))),
    )


def _names(indexes: Any) -> Iterator[str]:
    for index in indexes if isinstance(indexes, list) else ():
        if isinstance(index, Mapping):
            yield str(index.get("IndexName"))


def _pairs(parts: Any, first: str, second: str) -> Iterator[tuple[str, str]]:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, Mapping):
            yield str(part.get(first)), str(part.get(second))
