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
from pykcl.model.lease import AttributeValue, Row
from pykcl.model.lease_parse import parse_row

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
        return {row.key: row for row in self.rows}

    @cached_property
    def places(self) -> Mapping[str, int]:
        """By text."""
        return {text: place for place, text in enumerate(self.texts)}

    def answer_of(self, body: bytes, place: int) -> dict[str, Any] | None:
        """What is in a Scan's answer, with its rows as a ReadPage. None: ask botocore.

        place: where the first of them is looked for, among those that are known.
        """
        try:
            text = body.decode()
            begin = _list_begins(text)
            if begin is None:
                return None
            page, end = self._rows_at(text, begin.end(), place)
            answer = decoded_around(text[: begin.start()], text[end:])
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None
        return None if answer is None else {**answer, "Items": page}

    def _rows_at(self, text: str, at: int, place: int) -> tuple[ReadPage, int]:
        """And where the list of them ends. Raises ValueError."""
        known, rows_known, count = self.texts, self.rows, len(self.texts)
        page = ReadPage([], [], place)
        rows, texts = page.rows, page.texts
        more = not text.startswith("]", at)
        while more:
            if place < count and text.startswith(known[place], at):
                found: int | None = place
                end = at + len(known[place])
            else:
                item, end = _decode(text, at)
                one = text[at:end]
                found = self.places.get(one)
            if found is not None:
                rows.append(rows_known[found])
                texts.append(known[found])
                place = found + 1
            else:
                rows.append(_parsed_text(one, item))
                texts.append(one)
                place += 1
            if (gap := _goes_on(text, end)) is None:
                at, more = end, False
            else:
                at = gap.end()
        if (close := _ends(text, at)) is None:
            raise ValueError("no end of the list of rows")
        return page._replace(place=place), close.end()

    def row_of(self, item: Mapping[str, AttributeValue]) -> Row:
        """Of an item that botocore has read. Comparing it costs a tenth of parsing it."""
        before = self.items.get(lease_key_of(item))
        return before[1] if before is not None and before[0] == item else parse_row(item)


def _parsed_text(text: str, item: object) -> Row:
    """Raises ValueError, TypeError."""
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
