"""A GetRecords answer in AWS CBOR as a page: the same Records, and the same refusals, as from JSON.

The quick way takes records that are laid out as usual (`lean.record_layout`); a page with any other is decoded value by
value.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import repeat
from typing import Any

from pykcl.aws.decode import LAST_MILLIS, careful_records, items_of, page_of, refused
from pykcl.aws.lean.cbor import Allowance, decode, decode_name, head, is_break
from pykcl.aws.lean.record_layout import Columns, read_records
from pykcl.model.checkpoint import are_sequence_numbers
from pykcl.model.record import Record
from pykcl.ports import Fetched

_LIST, _MAP = 4, 5


def page_of_cbor(body: bytes, shard_id: str, stream: str) -> Fetched:
    """Raises AnswerRefused for anything Kinesis cannot have meant."""
    found: tuple[Mapping[str, Any], list[Record]] | None = None
    with suppress(ValueError, OverflowError):
        found = _quick(body, shard_id, stream)
    document, records = _careful(body, shard_id, stream) if found is None else found
    return page_of(document, records, len(body), shard_id)


def _quick(body: bytes, shard_id: str, stream: str) -> tuple[Mapping[str, Any], list[Record]]:
    """All but the records, and the records. Raises ValueError or OverflowError for whatever is not as usual."""
    major, _, size, position = head(body, 0)
    if major != _MAP:
        raise ValueError("no map")
    document: dict[str, Any] = {}
    columns: Columns | None = None
    allowance = Allowance()
    seen = 0
    while seen != size and not (size is None and is_break(body, position)):
        allowance.take(1)
        name, position = decode_name(body, position, allowance)
        if name == "Records":
            major, _, count, position = head(body, position)
            if major != _LIST or columns is not None:
                raise ValueError("no list, or a second one")
            columns = Columns(allowance)
            position = read_records(body, position, count, columns)
        elif name in document:
            raise ValueError("a name twice")
        else:
            document[name], position = decode(body, position, 1, allowance)
        seen += 1
    if columns is None or position + (size is None) != len(body):
        raise ValueError("no records, or more than a page")
    return document, _records(columns, shard_id, stream)


def _records(columns: Columns, shard_id: str, stream: str) -> list[Record]:
    numbers = list(map(bytes.decode, columns.numbers))
    if not are_sequence_numbers(numbers) or max(columns.millis, default=0) > LAST_MILLIS:
        raise ValueError("a number that cannot be")
    keys = map(bytes.decode, columns.keys)
    times = map(float, columns.millis)
    return list(map(Record, columns.data, keys, numbers, times, repeat(shard_id), repeat(stream)))


def _careful(body: bytes, shard_id: str, stream: str) -> tuple[Mapping[str, Any], list[Record]]:
    trouble = ""
    try:
        document, end = decode(body)
    except (ValueError, OverflowError, RecursionError) as error:
        trouble = f"it is not CBOR that can be read ({type(error).__name__})"
    # Raised outside the except block: an error of decoding text keeps the text.
    if trouble:
        raise refused(shard_id, trouble)
    if not isinstance(document, dict) or end != len(body):
        raise refused(shard_id, "it is not one CBOR map")
    items = items_of(document, shard_id)
    for index, item in enumerate(items):
        # In JSON text is base64; in CBOR it would be something else altogether.
        if isinstance(item, dict) and isinstance(item.get("Data"), str):
            raise refused(shard_id, f"record {index} has Data of type str")
    return document, careful_records(items, shard_id, stream)
