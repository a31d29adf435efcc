"""The part of CBOR (RFC 8949) that AWS' protocols use: decoding anything of it, encoding a request.

AWS puts milliseconds behind the tag for times (1), where the RFC has seconds; `decode` gives seconds, as AWS' JSON.
Raises ValueError for what is cut off, follows no rule, or no answer of AWS has (other tags, keys that are no text).

Records of a GetRecords page are read in one pass. All of them have the same members in the same order, so between the
data of one record and the data of the next one nearly all bytes are known: the first record shows which. A record then
costs one `struct` read, which gives the values and the bytes around them, to be compared. Whatever is not as expected
is decoded member by member: it is noticed, never misread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, NamedTuple

CBOR_TYPE: Final = "application/x-amz-cbor-1.1"
TIME_TAG: Final = 1
BREAK: Final = 0xFF
MOST_VALUES: Final = 200_000
"""In lists and maps of one answer. A page of 10,000 records, the most Kinesis gives, has 60,000."""
_MOST_DEPTH: Final = 16
_FLOATS: Final = {25: struct.Struct(">e"), 26: struct.Struct(">f"), 27: struct.Struct(">d")}
_SIMPLE: Final[dict[int, bool | None]] = {20: False, 21: True, 22: None}
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _LIST, _MAP, _TAG, _OTHER = range(8)


class Allowance:
    """Number of values that may still come in one answer: an empty list is one byte of it, and sixty in memory."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MOST_VALUES

    def take(self, count: int) -> None:
        """Raises ValueError where there are more, before the first of them is made."""
        self._left -= count
        if self._left < 0:
            raise ValueError("more values than an answer has")


def decode(
    body: bytes, position: int = 0, depth: int = 0, allowance: Allowance | None = None
) -> tuple[Any, int]:
    """The value at `position`, and the position after it. allowance: None for a whole answer's."""
    allowance = allowance or Allowance()
    major, info, size, position = head(body, position)
    if major in (_BYTES, _TEXT):
        content, position = _string(body, major, size, position, allowance)
        return (content if major == _BYTES else content.decode()), position
    if major == _OTHER:
        return _other(body, info, position)
    if major in (_UNSIGNED, _NEGATIVE):
        if size is None:
            raise ValueError("a number without end")
        return (size if major == _UNSIGNED else -1 - size), position
    if depth >= _MOST_DEPTH:
        raise ValueError("nested too deep")
    if major == _LIST:
        return _list(body, size, position, depth, allowance)
    if major == _MAP:
        return _map(body, size, position, depth, allowance)
    value, position = decode(body, position, depth + 1, allowance)
    if size != TIME_TAG or type(value) is not int:
        raise ValueError("a tag that is no time in milliseconds")
    return value / 1000, position


def head(body: bytes, position: int) -> tuple[int, int, int | None, int]:
    """(major type, its five further bits, length or number, position after the head). None: of indefinite length."""
    try:
        first = body[position]
    except IndexError:
        raise ValueError("cut off") from None
    major, info = first >> 5, first & 0x1F
    position += 1
    if info < 24:
        return major, info, info, position
    if info == 31:
        return major, info, None, position
    width = 1 << (info - 24)
    end = position + width
    if info > 27 or end > len(body):
        raise ValueError("cut off, or no head")
    return major, info, int.from_bytes(body[position:end], "big"), end


def decode_name(body: bytes, position: int, allowance: Allowance) -> tuple[str, int]:
    """The name of a member of a map, and the position after it."""
    major, _, size, position = head(body, position)
    if major != _TEXT:
        raise ValueError("a name that is no text")
    content, position = _string(body, major, size, position, allowance)
    return content.decode(), position


def text_and_numbers(members: Mapping[str, Any]) -> bytes:
    """A map of texts, of numbers from 0 on, and of such maps."""
    parts = [_head(_MAP, len(members))]
    for name, value in members.items():
        parts.append(_text(name))
        if isinstance(value, Mapping):
            parts.append(text_and_numbers(value))
        else:
            parts.append(_text(value) if isinstance(value, str) else _head(_UNSIGNED, value))
    return b"".join(parts)


def _string(
    body: bytes, major: int, size: int | None, position: int, allowance: Allowance
) -> tuple[bytes, int]:
    if size is not None:
        end = position + size
        if end > len(body):
            raise ValueError("cut off")
        return body[position:end], end
    parts = []
    while not is_break(body, position):
        of, _, size, position = head(body, position)
        if of != major or size is None:
            raise ValueError("a string of something else")
        allowance.take(1)
        part, position = _string(body, major, size, position, allowance)
        parts.append(part)
    return b"".join(parts), position + 1


def is_break(body: bytes, position: int) -> bool:
    """Return whether an item of indefinite length ends here."""
    if position >= len(body):
        raise ValueError("cut off")
    return body[position] == BREAK


def _list(
    body: bytes, size: int | None, position: int, depth: int, allowance: Allowance
) -> tuple[list[Any], int]:
    found: list[Any] = []
    allowance.take(size or 0)
    while len(found) != size:
        if size is None and is_break(body, position):
            return found, position + 1
        allowance.take(size is None)
        value, position = decode(body, position, depth + 1, allowance)
        found.append(value)
    return found, position


def _map(
    body: bytes, size: int | None, position: int, depth: int, allowance: Allowance
) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    seen = 0
    allowance.take(size or 0)
    while seen != size:
        if size is None and is_break(body, position):
            return found, position + 1
        allowance.take(size is None)
        key, position = decode_name(body, position, allowance)
        if key in found:
            raise ValueError("a name twice")  # no valid CBOR, and of two lists of records one would be lost
        found[key], position = decode(body, position, depth + 1, allowance)
        seen += 1
    return found, position


def _other(body: bytes, info: int, position: int) -> tuple[Any, int]:
    if info in _SIMPLE:
        return _SIMPLE[info], position
    if info not in _FLOATS:
        raise ValueError("a value of no known kind")
    kind = _FLOATS[info]
    # `head` has checked that it is all there.
    return kind.unpack_from(body, position - kind.size)[0], position


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _head(_TEXT, len(encoded)) + encoded


def _head(major: int, length: int) -> bytes:
    if length < 24:
        return bytes((major << 5 | length,))
    for info, width in ((24, 1), (25, 2), (26, 4)):
        if length < 1 << (8 * width):
            return bytes((major << 5 | info,)) + length.to_bytes(width, "big")
    return bytes((major << 5 | 27,)) + length.to_bytes(8, "big")


_BYTES, _TEXT, _MAP = 2, 3, 5
_TIME: Final = b"\xc1\x1b"  # tag 1, and an unsigned number of eight bytes
_DATA, _KEY, _NUMBER, _MILLIS = "Data", "PartitionKey", "SequenceNumber", "ApproximateArrivalTimestamp"
_NAMES: Final = frozenset({_DATA, _KEY, _NUMBER, _MILLIS})
_DEPTH: Final = 3
"""Of a record's members: within the page, its records and the record."""

# The first byte of what has a length: the type with the length, or with how many bytes the length takes.
_SHORT_BYTES, _BYTES_1, _BYTES_2, _BYTES_4 = 0x40, 0x58, 0x59, 0x5A
_SHORT_TEXT, _TEXT_1, _TEXT_2 = 0x60, 0x78, 0x79
_MOST_KEY: Final = 1024
"""Bytes of a partition key, which has 256 characters at most."""
_MOST_MEMBERS: Final = 32
"""Of a record that is read here; Kinesis sends five."""
_MOST_RUNS: Final = 64
"""Of records that are alike; more only where there are four records to each: else value by value is quicker."""
_MOST_KEPT: Final = 1024
"""Bytes of a gap that is remembered for other pages. Usual ones have 150; what is longer holds a stranger's values."""


class Member(NamedTuple):
    """A member of a record. at: where its value begins; begin, end: its content; value: raw; None if passed over."""

    name: str
    at: int
    begin: int
    end: int
    value: Any


class Columns:
    """The values of a page's records, one column for each field, as they stand in the body. allowance: of the whole
    page, for the values that are passed over."""

    __slots__ = ("_by_name", "allowance", "data", "keys", "millis", "numbers")

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self.data: list[bytes] = []
        self.keys: list[bytes] = []
        self.numbers: list[bytes] = []
        self.millis: list[int] = []
        self._by_name: dict[str, list[Any]] = {
            _DATA: self.data, _KEY: self.keys, _NUMBER: self.numbers, _MILLIS: self.millis
        }  # fmt: skip

    def take(self, members: Sequence[Member]) -> None:
        for member in members:
            if member.name in _NAMES:
                self._by_name[member.name].append(member.value)

    def take_all(self, names: Sequence[str], values: Sequence[Sequence[Any]]) -> None:
        for name, found in zip(names, values, strict=True):
            self._by_name[name] += found


def read_records(body: bytes, position: int, count: int | None, columns: Columns) -> int:
    """Read records into `columns` from `position` on; return the position after them. count: None up to a break.

    Raises ValueError where a record has not the four members and what else stands there can be passed over, and where
    too few are alike for this to be quicker than looking at each value.
    """
    if count is not None and count > len(body):
        raise ValueError("cut off")
    in_all = runs = 0
    while in_all != count:
        if count is None and is_break(body, position):
            return position + 1
        read, position = _read_alike(body, position, None if count is None else count - in_all, columns)
        in_all += read
        runs += 1
        if runs > max(_MOST_RUNS, in_all // 4):
            raise ValueError("records that are not alike")
    return position


def _read_alike(body: bytes, position: int, most: int | None, columns: Columns) -> tuple[int, int]:
    """The record there, and those behind it that are laid out like it: their number, and the position after them.

    A loop runs from the data of the first to that of the last. What lies before and behind is read member by member.
    """
    major, _, size, inside = head(body, position)
    if major != _MAP:
        raise ValueError("a record that is no map")
    members, end = _members(body, inside, size, columns.allowance)
    names = [member.name for member in members]
    if len(names) != len(set(names)) or not _NAMES.issubset(names):
        raise ValueError("a record that lacks a member, or has one twice")
    data = names.index(_DATA)
    columns.take(members[: data + 1])
    rest = members[data + 1 :]
    gap = _gap_of(body, position, members[: data + 1], rest, end)
    read, data_end = gap.read_on(body, members[data].end, None if most is None else most - 1, columns)
    if read:
        rest, end = _members(body, data_end, None if size is None else len(rest), columns.allowance)
        if [member.name for member in rest] != names[data + 1 :]:
            raise ValueError("a record that does not end as it began")
    columns.take(rest)
    return read + 1, end


class _Gap:
    """The bytes between the data of a record and the head of the next one's: fixed bytes and values, in turn.

    Its size follows from the head of the key alone, and all of it but the values is compared: what stands at the border
    of the two records at once, since that goes wrong where another kind of record follows; the rest before anything is
    handed out. So nothing is misread.

    codes: for `struct`, up to the head of the key, and from the key on. key_at: where that head is.
    values: their names; value i is number 2 i + 1 of what `struct` gives, the rest is `fixed`.
    ended: so many of the values are of the record that ends; so behind them the next one begins.
    """

    def __init__(
        self,
        codes: tuple[str, str],
        fixed: tuple[bytes, ...],
        values: tuple[str, ...],
        key_at: int,
        ended: int,
    ) -> None:
        self._fixed, self._values, self._key_at, self._ended = fixed, values, key_at, ended
        self._structs = _Structs(codes)

    def read_on(self, body: bytes, end: int, most: int | None, columns: Columns) -> tuple[int, int]:
        """Read on after data that ends at `end`. Return the number of data read and the end of the last one.

        Raises ValueError where a gap is not as the others, though one record ends and another begins where they should.
        """
        key_at, structs, total = self._key_at, self._structs, len(body)
        border, expected = 2 * self._ended, self._fixed[self._ended]
        runs: list[tuple[Any, ...]] = []
        see, add = runs.append, columns.data.append
        # struct and the indexes themselves see where a record is cut off, `structs` what is no head of a key. All that
        # is before the three lines that take a record in: there are as many data as gaps.
        with suppress(struct.error, LookupError):
            for _ in repeat(None) if most is None else repeat(None, most):
                at = end + key_at
                kind = body[at]
                if kind == _TEXT_1:
                    kind = _TEXT_1 << 8 | body[at + 1]
                elif kind == _TEXT_2:
                    kind = _TEXT_2 << 16 | body[at + 1] << 8 | body[at + 2]
                unpack, size = structs[kind]
                run = unpack(body, end)
                if run[border] != expected:
                    break
                at = end + size
                kind = body[at]
                if kind == _BYTES_2:
                    begin = at + 3
                    data_end = begin + (body[at + 1] << 8 | body[at + 2])
                elif kind == _BYTES_1:
                    begin = at + 2
                    data_end = begin + body[at + 1]
                elif _SHORT_BYTES <= kind < _BYTES_1:
                    begin = at + 1
                    data_end = begin + kind - _SHORT_BYTES
                elif kind == _BYTES_4:
                    begin = at + 5
                    data_end = begin + int.from_bytes(body[at + 1 : begin], "big")
                else:
                    break
                if data_end > total:
                    break
                add(body[begin:data_end])
                see(run)
                end = data_end
        if runs:
            found = list(zip(*runs, strict=True))
            # All at once is quicker than with each gap.
            if any(seen.count(text) != len(runs) for seen, text in zip(found[::2], self._fixed, strict=True)):
                raise ValueError("a record of another form than expected")
            columns.take_all(self._values, found[1::2])
        return len(runs), end


class _Structs(dict[int, tuple[Callable[[bytes, int], tuple[Any, ...]], int]]):
    """Unpackers of gaps and their sizes, by the head of the key, its bytes as one number."""

    def __init__(self, codes: tuple[str, str]) -> None:
        super().__init__()
        self._codes = codes

    def __missing__(self, kind: int) -> tuple[Callable[[bytes, int], tuple[Any, ...]], int]:
        if _SHORT_TEXT <= kind < _TEXT_1:
            width, length = 1, kind - _SHORT_TEXT
        elif kind >> 8 == _TEXT_1:
            width, length = 2, kind & 0xFF
        elif kind >> 16 == _TEXT_2 and kind & 0xFFFF <= _MOST_KEY:
            width, length = 3, kind & 0xFFFF
        else:
            raise KeyError(kind)
        before, behind = self._codes
        made = struct.Struct(f">{before}{width}x{length}s{behind}")
        found = self[kind] = (made.unpack_from, made.size)
        return found


_remembered = lru_cache(maxsize=32)(_Gap)
"""The same gap for all pages that have it. No value of the four members is in it."""


def _gap_of(body: bytes, start: int, before: list[Member], behind: list[Member], end: int) -> _Gap:
    """Return the gap of a record from `start` to `end`, as if it followed itself.

    before: members up to the data; behind: the rest.
    """
    data = before[-1]
    text = body[data.end : end] + body[start : data.at]
    # What is to be added to a place in the body for that in the gap.
    to_front, to_back = -data.end, end - data.end - start
    ended = [(member, to_front) for member in behind if member.name in _NAMES]
    begun = [(member, to_back) for member in before[:-1] if member.name in _NAMES]
    codes, key_at, passed = [""], 0, 0
    fixed: list[bytes] = []
    values: list[str] = []
    for member, shift in ended + begun:
        begin = (member.at if member.name == _KEY else member.begin) + shift
        fixed.append(text[passed:begin])
        codes[-1] += f"{begin - passed}s"
        if member.name == _KEY:
            codes.append("")
            key_at = begin
        else:
            codes[-1] += "Q" if member.name == _MILLIS else f"{member.end - member.begin}s"
        values.append(member.name)
        passed = member.end + shift
    fixed.append(text[passed:])
    before_key, from_key = codes
    whole = (before_key, f"{from_key}{len(text) - passed}s")
    made = _remembered if len(text) <= _MOST_KEPT else _Gap
    return made(whole, tuple(fixed), tuple(values), key_at, len(ended))


def _members(body: bytes, position: int, count: int | None, allowance: Allowance) -> tuple[list[Member], int]:
    """Return `count` members, with None those up to a break, and the position after them.

    Raises ValueError, also for more than are usual.
    """
    found: list[Member] = []
    while len(found) != count:
        if count is None and is_break(body, position):
            return found, position + 1
        if len(found) == _MOST_MEMBERS:
            raise ValueError("a record of too many members")
        allowance.take(1)
        name, at = decode_name(body, position, allowance)
        found.append(_member(body, name, at, allowance))
        position = found[-1].end
    return found, position


def _member(body: bytes, name: str, at: int, allowance: Allowance) -> Member:
    if name not in _NAMES:
        return Member(name, at, at, decode(body, at, _DEPTH, allowance)[1], None)
    if name == _MILLIS:
        begin = at + len(_TIME)
        end = begin + 8
        if body[at:begin] != _TIME or end > len(body):
            raise ValueError("a time of another form")
        return Member(name, at, begin, end, int.from_bytes(body[begin:end], "big"))
    major, _, length, begin = head(body, at)
    if major != (_BYTES if name == _DATA else _TEXT) or length is None or begin + length > len(body):
        raise ValueError("data or a text of another form")
    return Member(name, at, begin, begin + length, body[begin : begin + length])
