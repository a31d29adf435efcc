"""The part of CBOR (RFC 8949) that AWS' protocols use: decoding anything of it, encoding a request.

AWS puts milliseconds behind the tag for times (1), where the RFC has seconds; `decode` gives seconds, as AWS' JSON.
Raises ValueError for what is cut off, follows no rule, or no answer of AWS has (other tags, keys that are no text).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

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
    """So many values more may be in one answer: an empty list is one byte of it, and sixty in memory."""

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


def text_and_numbers(members: Mapping[str, str | int]) -> bytes:
    """A map of texts and of numbers from 0 on."""
    parts = [_head(_MAP, len(members))]
    for name, value in members.items():
        parts.append(_text(name))
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
    """Whether what has no length ends here."""
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
    # `head` has looked that it is all there.
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
