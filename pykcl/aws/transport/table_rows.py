"""Decodes DynamoDB's answers with rows in one pass, around botocore's own parser.

botocore walks the service model for every attribute of every row: 38 ms of CPU for a scan of 1,000 leases. `decoded`
reads the JSON itself. What it does not understand it leaves alone, and botocore parses as always. Over botocore a
`before-parse` handler uses it for Scan, puts the result where botocore merges it in, and empties the body; a botocore
without that event parses all itself.

Most of a scan is as the one before it. DynamoDB gives the rows of a table in the order of their keys' hashes, so a row
is expected where it was; and a row's text, from its first brace to its last, is all of it. A row whose text is as
before is neither decoded nor parsed again: comparing it costs a fiftieth.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from pykcl.aws.table_admin import items_of, lease_key_of
from pykcl.model.lease import AttributeValue, Lease, Row
from pykcl.model.lease_item import parse_row

_ROWS: Final = {"scan": "Items", "get_item": "Item", "update_item": "Attributes"}
"""Method of the client -> where its answer has the row or rows."""
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
    """The handler."""
    if response_dict.get("status_code") != 200:
        return
    answer = decoded(response_dict.get("body", b""), "scan")
    if answer is not None:
        customized_response_dict.update(answer)
        response_dict["body"] = b"{}"


def decoded(body: bytes, method: str) -> dict[str, Any] | None:
    """What the client's method gives for the body of a good answer, without ResponseMetadata. None: ask botocore.

    An answer to get_item may be without a row, as there may be none.
    """
    part = _ROWS[method]
    try:
        answer: dict[str, Any] = json.loads(body)
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
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    return answer


def decoded_around(before: str, after: str) -> dict[str, Any] | None:
    """The answer to a scan, by what stands before its list of rows and behind it. Raises ValueError.

    None where that is not the answer's own list, but one inside of something else, or one of two; or where something is
    in the answer that none has.
    """
    # Longer than all the rest, so that it is nowhere else.
    here = "-" * (len(before) + len(after))
    answer = json.loads(f'{before}"Items":"{here}"{after}')
    is_known = isinstance(answer, dict) and answer.keys() <= _BESIDE["scan"]
    return answer if is_known and answer.get("Items") == here else None


def with_bytes(item: Mapping[str, Any]) -> dict[str, Any]:
    """The item with what is binary in it as bytes. Raises ValueError, TypeError, AttributeError."""
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


class ReadPage(NamedTuple):
    """Rows of a Scan answer that was read as text. texts: of each. place: where the next page is looked for."""

    rows: list[Row]
    texts: list[str]
    place: int


@dataclass(frozen=True, eq=False)
class KnownRows:
    """What a scan has shown, in its order. Never changed; may be read by any thread.

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
    def places(self) -> Mapping[str, int]:
        """By text."""
        return {text: place for place, text in enumerate(self.texts)}

    def answer_of(self, body: bytes, place: int) -> dict[str, Any] | None:
        """What is in a Scan's answer, with its rows as a ReadPage. None: ask botocore.

        place: where the first of them is looked for, among those that are known.
        """
        try:
            # As json.loads reads bytes: one row with half a character in it must not cost the whole table.
            text = body.decode(json.detect_encoding(body), "surrogatepass")
            begin = _list_begins(text)
            if begin is None:
                return None
            page, end = self._rows_at(text, begin.end(), place)
            answer = decoded_around(text[: begin.start()], text[end:])
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None
        return None if answer is None else {**answer, "Items": page}

    def _rows_at(self, text: str, at: int, place: int) -> tuple[ReadPage, int]:
        """The rows of the list that begins at `at`, and where it ends. Raises ValueError, TypeError, AttributeError."""
        known, count = self.texts, len(self.texts)
        rows: list[Row] = []
        texts: list[str] = []
        more = not text.startswith("]", at)
        while more:
            # A text that begins so is so: none of a JSON object is the beginning of another one's.
            if place < count and text.startswith(known[place], at):
                one, row, end = known[place], self.rows[place], at + len(known[place])
            else:
                item, end = _decode(text, at)
                one = text[at:end]
                if (found := self.places.get(one)) is None:
                    row = _parsed_text(one, item)
                else:
                    place, one, row = found, known[found], self.rows[found]
            rows.append(row)
            texts.append(one)
            place += 1
            gap = _goes_on(text, end)
            at, more = (end, False) if gap is None else (gap.end(), True)
        if (close := _ends(text, at)) is None:
            raise ValueError("no end of the list of rows")
        return ReadPage(rows, texts, place), close.end()

    def row_of(self, item: Mapping[str, AttributeValue]) -> Row:
        """Of an item that botocore has read. Comparing it costs a tenth of parsing it."""
        before = self.items.get(lease_key_of(item))
        return before[1] if before is not None and before[0] == item else parse_row(item)


def _is_lease(row: Row) -> bool:
    return isinstance(row, Lease)


def _parsed_text(text: str, item: object) -> Row:
    """Raises ValueError, TypeError, AttributeError."""
    if not isinstance(item, dict):
        raise TypeError("a row that is none")
    return parse_row(with_bytes(item) if '"B"' in text or '"BS"' in text else item)


class Seen:
    """Collects the rows of the pages of one scan."""

    def __init__(self, known: KnownRows) -> None:
        self.known = known
        self.place = 0
        self.rows: list[Row] = []
        self._texts: list[str] = []
        self._items: dict[str, tuple[Mapping[str, AttributeValue], Row]] = {}

    def add(self, answer: Mapping[str, Any]) -> None:
        """Raises AnswerRefused."""
        page = answer.get("Items")
        if isinstance(page, ReadPage):
            self.rows += page.rows
            self._texts += page.texts
            self.place = page.place
            return
        for item in items_of(answer):
            row = self.known.row_of(item)
            self.rows.append(row)
            self._items[lease_key_of(item)] = (item, row)

    def all_known(self) -> KnownRows:
        # Pages of one scan may come in both ways, if the transport changes meanwhile: then the next one parses all.
        if len(self._texts) == len(self.rows):
            return KnownRows(self.rows, self._texts)
        return KnownRows(self.rows, items=self._items if not self._texts else {})
