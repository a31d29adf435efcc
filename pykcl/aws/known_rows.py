"""Rows of a table's scans, of which those that are as they were when last seen are neither decoded nor parsed again.

Most of a scan is as the one before it. DynamoDB gives the rows of a table in the order of their keys' hashes, so a row
is looked for where it was; and a row's text, from its first brace to its last, is all of it. Comparing a text costs a
fiftieth of decoding it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from pykcl.aws.fast_items import decoded_around, with_bytes
from pykcl.aws.table_answers import items_of, lease_key_of
from pykcl.model.lease import AttributeValue, Lease, Row
from pykcl.model.lease_item import parse_row

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
