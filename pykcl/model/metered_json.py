"""JSON from outside, read within limits: its values and levels are counted before the first of them is created.

An empty list takes three bytes of text and sixty of memory, and a hundred kilobytes of gzip hold millions of them.
Nesting of a thousand levels raises RecursionError, in the parser or in whatever walks over the values afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

MAX_VALUES: Final = 250_000
"""Values of one text: with the most expensive ones about 50 MiB of memory."""
MAX_RECORD_VALUES: Final = 1_000_000
"""Values in the data of one record: more than a megabyte of JSON can have. A record of 10 MiB may be real, too."""
MAX_DEPTH: Final = 200
"""Levels of lists and objects. Parsers of other languages have similar limits, and Python ends at 1,000 calls."""

_CHUNK: Final = 128 * 1024
_SPARSE: Final = 1024
_USUAL_DEPTH: Final = 32
_OPEN: Final = b"[{"
_NO_BRACKETS: Final = bytes(sign for sign in range(256) if sign not in b"[]{}")
_NO_SIGNS: Final = bytes(sign for sign in range(256) if sign not in b'[]{},"')


class NotJson(ValueError):
    """A text that is not JSON, or more of it than is read. The message shows nothing of the text."""


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which JSON does not have and Python's decoder takes."""
    raise ValueError(f"{name} is not JSON")


_decode: Final = json.JSONDecoder(parse_constant=refuse_constant).decode


def read_json(
    text: str | bytes,
    *,
    max_values: int = MAX_VALUES,
    max_depth: int | None = MAX_DEPTH,
    decode: Callable[[str], Any] = _decode,
) -> Any:
    """Return the value of a text. bytes: in UTF-8, UTF-16 or UTF-32.

    max_depth: None where nothing walks over the value; Python's parser has a limit of its own. decode: a decoder for
    other values than usual; the usual one refuses NaN and Infinity, which JSON does not have.
    Raises NotJson.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        refuse_excess(text, max_values=max_values, max_depth=max_depth)
        return decode(text)
    except NotJson:
        raise
    except json.JSONDecodeError as error:
        problem = f"it is not JSON ({error.msg} at character {error.pos + 1})"
    except UnicodeDecodeError:
        problem = "it is not JSON (no text)"
    except ValueError:
        problem = "it is not JSON (NaN, or a number with too many digits)"
    except RecursionError:
        problem = _too_deep(max_depth)
    # Outside the except blocks: what json raises has the whole text.
    raise NotJson(problem)


def refuse_excess(
    text: str | bytes,
    *,
    max_values: int = MAX_VALUES,
    max_depth: int | None = MAX_DEPTH,
    opened_weighs: int = 1,
) -> None:
    """Raise NotJson for more values or levels than that. bytes: in UTF-8.

    A value is counted by the sign before it: a comma or an opening bracket. opened_weighs: the number of values that
    each list or object counts for.
    """
    length = len(text)
    # Two signs of three at most are counted: `[],[],`. Levels take two signs each.
    may_be_many = length * opened_weighs > max_values + max_values // 2
    if not may_be_many and (max_depth is None or length <= 2 * max_depth):
        return
    opened = _count(text, "[") + _count(text, "{")
    if (max_depth is None or opened <= max_depth) and (
        not may_be_many or opened * opened_weighs + _count(text, ",") <= max_values
    ):
        return
    values = quotes = depth = 0
    for outside, found in _outside_strings(text):
        values += outside.count(b",") + opened_weighs * (outside.count(b"[") + outside.count(b"{"))
        quotes += found
        # A value has a name and a text at most. Where there are more, the text is not JSON, and need not be read on.
        if values > max_values or quotes > 4 * (max_values + 1):
            each = f", of which each list and object counts as {opened_weighs}" if opened_weighs > 1 else ""
            raise NotJson(f"it has more than {max_values:,} values{each}")
        if max_depth is not None:
            depth = _depth_after(outside.translate(None, _NO_BRACKETS), depth, max_depth)


def _count(text: str | bytes, sign: str) -> int:
    one: Any = sign if isinstance(text, str) else sign.encode()
    if len(text) < _SPARSE:
        return text.count(one)
    at, sparse = 0, len(text) // _SPARSE
    # Where a sign is rare, as in the base64 of a page of Kinesis, finding is ten times as quick as counting.
    for found in range(sparse):
        at = text.find(one, at) + 1
        if at == 0:
            return found
    return sparse + text.count(one, at)


def _outside_strings(text: str | bytes) -> Iterator[tuple[bytes, int]]:
    """Return the signs that stand outside of strings, a part at a time, and the number of quotation marks of each part.

    Right up to the first sign that is not JSON: behind that nothing is created.
    """
    is_inside, rest = False, b""
    for begin in range(0, len(text), _CHUNK):
        part = text[begin : begin + _CHUNK]
        raw = rest + (part.encode("ascii", "replace") if isinstance(part, str) else part)
        if b"\\" in raw:
            # An escaped mark may lie on the border.
            is_odd = (len(raw) - len(raw.rstrip(b"\\"))) % 2
            raw, rest = (raw[:-1], b"\\") if is_odd else (raw, b"")
            raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
        signs = raw.translate(None, _NO_SIGNS)
        # A sign within a string has an odd number of marks before it, one of which is left here without its pair.
        outside = (b'"' + signs if is_inside else signs).replace(b'""', b"")
        if b'"' not in outside[:-1]:
            is_inside = outside.endswith(b'"')
            yield outside, signs.count(b'"')
            continue
        pieces = signs.split(b'"')
        yield b"".join(pieces[is_inside::2]), len(pieces) - 1
        is_inside ^= len(pieces) % 2 == 0


def _depth_after(brackets: bytes, depth: int, max_depth: int) -> int:
    """Return the depth behind these brackets. Raises NotJson."""
    rest = brackets
    for levels in range(0, _USUAL_DEPTH, 2):
        # Two levels at most: a list within an object.
        before, rest = rest, rest.replace(b"[]", b"").replace(b"{}", b"")
        if len(before) == len(rest):
            opened = rest.count(b"[") + rest.count(b"{")
            if depth + levels + opened <= max_depth:
                return depth + 2 * opened - len(rest)
            break
    for sign in brackets:
        depth += 1 if sign in _OPEN else -1
        if depth > max_depth:
            raise NotJson(_too_deep(max_depth))
    return depth


def _too_deep(max_depth: int | None) -> str:
    return (
        "it is nested too deeply" if max_depth is None else f"it is nested more than {max_depth} levels deep"
    )
