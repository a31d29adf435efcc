"""The frequent calls on a lease table: over the direct transport when nothing stands against it, else over botocore.

Each call takes and gives what the boto3 client's method of that name takes and gives, and raises what it raises. A
write is sent once: what became of one that got no answer is for the caller to find out, as over botocore. One whose
signature was refused was not carried out, and is sent once more.

Answers with rows are decoded in one pass, around botocore's own parser, which walks the service model for every
attribute of every row: 38 ms of CPU for a scan of 1,000 leases. `decoded` reads the JSON itself. What it does not
understand it leaves alone, and botocore parses as always. Over botocore a `before-parse` handler uses it for Scan, puts
the result where botocore merges it in, and empties the body; a botocore without that event parses all itself.

Most of a scan is as the one before it. DynamoDB gives the rows of a table in the order of their keys' hashes, so a row
is expected where it was; and a row's text, from its first brace to its last, is all of it. A row whose text is as
before is neither decoded nor parsed again: comparing it costs a fiftieth.
"""

from __future__ import annotations

import binascii
import json
import logging
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from pykcl.aws.table_admin import items_of, lease_key_of
from pykcl.aws.transport.connection import Answer
from pykcl.aws.transport.transport import (
    SigningClock,
    TransportSelector,
    metadata_of,
    parsed_by_botocore,
    refuse_corrupt,
)
from pykcl.config import HttpTransport
from pykcl.model.lease import AttributeValue, Lease, Row
from pykcl.model.lease_item import parse_row
from pykcl.model.metered_json import read_json, refuse_excess
from pykcl.runtime import Runtime

log = logging.getLogger("pykcl.dynamodb")

_ROWS: Final = {"scan": "Items", "get_item": "Item", "update_item": "Attributes"}
"""Method of the client -> the key of its answer that holds the row or rows."""
_BESIDE: Final = {
    "scan": frozenset({"Items", "Count", "ScannedCount", "LastEvaluatedKey", "ConsumedCapacity"}),
    "get_item": frozenset({"Item", "ConsumedCapacity"}),
    "update_item": frozenset({"Attributes", "ConsumedCapacity"}),
}
METHODS: Final = tuple(_ROWS)


def decode_scans(client: Any) -> None:
    """Register the handler on a boto3 DynamoDB client; a client without events is left as it is."""
    events = getattr(getattr(client, "meta", None), "events", None)
    if events is not None:
        events.register("before-parse.dynamodb.Scan", use_for_scans, unique_id="pykcl-decode-scans")


def use_for_scans(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Decode a good answer to Scan in the place of botocore."""
    if response_dict.get("status_code") != 200:
        return
    answer = decoded(response_dict.get("body", b""), "scan")
    if answer is not None:
        customized_response_dict.update(answer)
        response_dict["body"] = b"{}"


def decoded(body: bytes, method: str) -> dict[str, Any] | None:
    """Return what the client's method returns for this body, without ResponseMetadata. None: leave it to botocore.

    An answer to get_item may lack a row, as there may be none.
    """
    part = _ROWS[method]
    try:
        answer: dict[str, Any] = read_json(body)
        if not answer.keys() <= _BESIDE[method]:
            return None
        if method == "scan":
            if not isinstance(answer[part], list):
                return None
        elif not isinstance(answer.get(part, {}), dict):
            return None
        if b'"B"' in body or b'"BS"' in body:
            rows = answer.get(part, {})
            answer[part] = [with_bytes(row) for row in rows] if method == "scan" else with_bytes(rows)
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
    return answer


def decoded_around(before: str, after: str) -> dict[str, Any] | None:
    """Return the answer to a scan from the text before and after its list of rows. Raises ValueError.

    None where that is not the answer's own list, but one inside of something else, or one of two; or where the answer
    has a key that none has.
    """
    # Longer than all the rest, so that it is nowhere else.
    here = "-" * (len(before) + len(after))
    answer = read_json(f'{before}"Items":"{here}"{after}')
    is_known = isinstance(answer, dict) and answer.keys() <= _BESIDE["scan"]
    return answer if is_known and answer.get("Items") == here else None


def with_bytes(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the item with its binary values as bytes. Raises ValueError, TypeError, AttributeError."""
    return {name: _value_with_bytes(value) for name, value in item.items()}


def _value_with_bytes(value: Mapping[str, Any]) -> Mapping[str, Any]:
    ((kind, content),) = value.items()
    if kind == "B":
        return {"B": binascii.a2b_base64(content)}
    if kind == "BS":
        return {"BS": [binascii.a2b_base64(member) for member in content]}
    if kind == "M":
        return {"M": with_bytes(content)}
    if kind == "L":
        return {"L": [_value_with_bytes(member) for member in content]}
    return value


_list_begins = re.compile(r'"Items"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*').search
_goes_on = re.compile(r"[ \t\r\n]*,[ \t\r\n]*").match
_ends = re.compile(r"[ \t\r\n]*\]").match
_decode: Final = json.JSONDecoder().raw_decode


class ParsedPage(NamedTuple):
    """Rows of a Scan answer that was read as text.

    texts: of each row. next_index: of the cached row that is expected first in the next page.
    """

    rows: list[Row]
    texts: list[str]
    next_index: int


@dataclass(frozen=True, eq=False)
class RowCache:
    """The rows of a scan, in its order. Immutable; may be read by any thread.

    rows: as parsed. texts: of the same rows, as they were sent; empty where the scan went over botocore, which keeps no
    text. items: of the same rows, by lease key; empty where there are texts.
    """

    rows: Sequence[Row] = ()
    texts: Sequence[str] = ()
    items: Mapping[str, tuple[Mapping[str, AttributeValue], Row]] = field(default_factory=dict)

    @cached_property
    def by_key(self) -> Mapping[str, Row]:
        # Leases last: the key of a row that is none may be cut short, and must not hide one.
        return {row.key: row for row in sorted(self.rows, key=_is_lease)}

    @cached_property
    def index_by_text(self) -> Mapping[str, int]:
        """The index of each row, by its text."""
        return {text: index for index, text in enumerate(self.texts)}

    def answer_of(self, body: bytes, index: int) -> dict[str, Any] | None:
        """Return a Scan's answer with its rows as a ParsedPage. None: leave it to botocore.

        index: of the cached row that is expected first.
        """
        try:
            # As json.loads reads bytes: one row with half a character in it must not cost the whole table.
            text = body.decode(json.detect_encoding(body), "surrogatepass")
            # The parser has a limit of levels, and so has a row.
            refuse_excess(text, max_depth=None)
            begin = _list_begins(text)
            if begin is None:
                return None
            page, end = self._rows_at(text, begin.end(), index)
            answer = decoded_around(text[: begin.start()], text[end:])
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None
        return None if answer is None else {**answer, "Items": page}

    def _rows_at(self, text: str, at: int, index: int) -> tuple[ParsedPage, int]:
        """Return the rows of the list that starts at `at`, and its end. Raises what a bad row does."""
        known, count = self.texts, len(self.texts)
        rows: list[Row] = []
        texts: list[str] = []
        more = not text.startswith("]", at)
        while more:
            # A text that begins so is so: none of a JSON object is the beginning of another one's.
            if index < count and text.startswith(known[index], at):
                one, row, end = known[index], self.rows[index], at + len(known[index])
            else:
                item, end = _decode(text, at)
                one = text[at:end]
                if (found := self.index_by_text.get(one)) is None:
                    row = _parsed_text(one, item)
                else:
                    index, one, row = found, known[found], self.rows[found]
            rows.append(row)
            texts.append(one)
            index += 1
            gap = _goes_on(text, end)
            at, more = (end, False) if gap is None else (gap.end(), True)
        if (close := _ends(text, at)) is None:
            raise ValueError("no end of the list of rows")
        return ParsedPage(rows, texts, index), close.end()

    def row_of(self, item: Mapping[str, AttributeValue]) -> Row:
        """Return the row of an item that botocore has read. Comparing it costs a tenth of parsing it."""
        before = self.items.get(lease_key_of(item))
        return before[1] if before is not None and before[0] == item else parse_row(item)


def _is_lease(row: Row) -> bool:
    return isinstance(row, Lease)


def _parsed_text(text: str, item: object) -> Row:
    """Raises ValueError, TypeError, AttributeError."""
    if not isinstance(item, dict):
        raise TypeError("not a row")
    return parse_row(with_bytes(item) if '"B"' in text or '"BS"' in text else item)


class ScannedRows:
    """Collects the rows of the pages of one scan."""

    def __init__(self, row_cache: RowCache) -> None:
        self.row_cache = row_cache
        self.next_index = 0
        self.rows: list[Row] = []
        self._texts: list[str] = []
        self._items: dict[str, tuple[Mapping[str, AttributeValue], Row]] = {}

    def add(self, answer: Mapping[str, Any]) -> None:
        """Raises AnswerRefused."""
        page = answer.get("Items")
        if isinstance(page, ParsedPage):
            self.rows += page.rows
            self._texts += page.texts
            self.next_index = page.next_index
            return
        for item in items_of(answer):
            row = self.row_cache.row_of(item)
            self.rows.append(row)
            self._items[lease_key_of(item)] = (item, row)

    def to_cache(self) -> RowCache:
        # Pages of one scan may come both ways, if the transport changes meanwhile: then the next scan parses all.
        if len(self._texts) == len(self.rows):
            return RowCache(self.rows, self._texts)
        return RowCache(self.rows, items=self._items if not self._texts else {})


class TableRequests:
    """Calls of one client on one table. May be used by any number of threads at once.

    clock: what all requests of the client are to be signed with.
    """

    def __init__(self, client: Any, table: str, runtime: Runtime, transport: HttpTransport) -> None:
        self._client = client
        self._table = table
        self.clock = SigningClock(client, runtime, log=log, service="DynamoDB")
        self._selector = TransportSelector(
            client,
            runtime,
            transport,
            METHODS,
            self.clock,
            handlers=(use_for_scans,),
            log=log,
            doing="using the lease table",
        )
        decode_scans(client)

    def scan(self, seen: ScannedRows | None = None, **request: Any) -> dict[str, Any]:
        """seen: then its rows may be a ParsedPage. Raises `aws_errors`, what botocore's parser raises; SetupError where
        the direct transport is insisted on and cannot be."""
        answer = self._call("scan", request, may_repeat=True, seen=seen)
        self._selector.require_direct("scan")
        return answer

    def get_item(self, **request: Any) -> dict[str, Any]:
        """Raises `aws_errors`, what botocore's parser raises."""
        return self._call("get_item", request, may_repeat=True)

    def write(self, method: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """method: "put_item", "update_item" or "delete_item". Raises as `get_item`; never because of the transport
        that was chosen, for the write may have been carried out."""
        if method in METHODS:
            return self._call(method, request, may_repeat=False)
        named = {"TableName": self._table, **request}
        answer: dict[str, Any] = self.clock.calling(getattr(self._client, method))(**named)
        return answer

    def _call(
        self, method: str, request: Mapping[str, Any], *, may_repeat: bool, seen: ScannedRows | None = None
    ) -> dict[str, Any]:
        named = {"TableName": self._table, **request}
        transport = self._selector.direct(method, self._table)
        if transport is None:
            return self._selector.over_botocore(method, self._table, named)
        answer = self._selector.post(
            transport,
            method,
            ITEM_JSON.encode(named).encode(),
            may_repeat=may_repeat,
            is_page=method == "scan",
            check=refuse_corrupt,
        )
        return self._parsed(method, answer, seen)

    def _parsed(self, method: str, answer: Answer, seen: ScannedRows | None) -> dict[str, Any]:
        found = None
        if answer.status == 200:
            found = (
                decoded(answer.body, method)
                if seen is None
                else seen.row_cache.answer_of(answer.body, seen.next_index)
            )
        if found is None:
            return parsed_by_botocore(self._client, self._selector.operation(method), answer)
        found["ResponseMetadata"] = metadata_of(answer)
        return found


def _as_base64(value: object) -> str:
    """Values of the types B and BS are bytes; nothing else that JSON does not know is in a request."""
    if isinstance(value, bytes | bytearray):
        return b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} in a request")


ITEM_JSON: Final = json.JSONEncoder(separators=(",", ":"), default=_as_base64)
