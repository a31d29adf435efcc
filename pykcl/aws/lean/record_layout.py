"""How one record of a CBOR page is laid out, learned from the first and expected of the others.

All records of a page have the same members in the same order, so nearly all bytes but the values are the same: a look
at one record tells where the values of the next ones are. A record then costs three `struct` reads, each checking its
fixed bytes; a record of another layout is noticed, never misread.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pykcl.aws.lean.cbor import decode, decode_name, head, is_break

_BYTES, _TEXT, _MAP = 2, 3, 5
_TIME: Final = b"\xc1\x1b"  # tag 1, and an unsigned number of eight bytes
_LENGTHS: Final = {24: "B", 25: "H", 26: "I"}
_FOLLOWED: Final = {"Data": _BYTES, "PartitionKey": _TEXT}
_NAMES: Final = frozenset({*_FOLLOWED, "SequenceNumber", "ApproximateArrivalTimestamp"})
_MOST_LAYOUTS: Final = 16


class Run(NamedTuple):
    """Fixed bytes and values in turn, and last the length of what follows: between least and least + span.

    codes: for `struct`. values: their names; value i is number 2 i + 1 of what `struct` gives.
    """

    codes: str
    fixed: tuple[bytes, ...]
    values: tuple[str, ...]
    least: int = 0
    span: int = 0


class Columns:
    """What the records of a page hold, kind by kind, as it stands in the body."""

    __slots__ = ("data", "keys", "millis", "numbers")

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.keys: list[bytes] = []
        self.numbers: list[bytes] = []
        self.millis: list[int] = []


def read_records(body: bytes, position: int, count: int | None, columns: Columns) -> int:
    """Into `columns`, from `position` on; the position after them. count: None up to a break.

    Raises ValueError where a record has not the four members and what else stands there can be passed over.
    """
    layouts: list[Layout] = []
    missing = count
    while missing != 0:
        if missing is None and is_break(body, position):
            return position + 1
        read = 0
        for number, layout in enumerate(layouts):
            read, position = layout.read(body, position, missing, columns)
            if read:
                layouts.insert(0, layouts.pop(number))
                break
        if not read:
            if len(layouts) == _MOST_LAYOUTS:
                raise ValueError("records of too many layouts")
            layouts.insert(0, _layout_at(body, position))
            read, position = layouts[0].read(body, position, missing, columns)
            if not read:
                raise ValueError("a record that is not as it looks")
        if missing is not None:
            missing -= read
    return position


class Layout:
    """Three runs. The first two end in the length of what follows them: the data and the key, in either order."""

    __slots__ = ("_data_first", "_millis", "_number", "_runs", "_structs")

    def __init__(self, runs: tuple[Run, Run, Run], data_first: bool) -> None:
        self._runs = runs
        self._structs = [struct.Struct(">" + run.codes) for run in runs]
        self._data_first = data_first
        self._number, self._millis = (_place(runs, name) for name in ("number", "millis"))

    def read(self, body: bytes, position: int, most: int | None, columns: Columns) -> tuple[int, int]:
        """So many records as are of this layout, one after the other: their number, and the position after them."""
        one, two, three = self._structs
        (_, fixed_1, _, least_1, span_1), (_, fixed_2, _, least_2, span_2), (_, fixed_3, *_) = self._runs
        unpack_1, unpack_2, unpack_3 = one.unpack_from, two.unpack_from, three.unpack_from
        size_1, size_2, size_3 = one.size, two.size, three.size
        first, second = (columns.data, columns.keys) if self._data_first else (columns.keys, columns.data)
        add_first, add_second = first.append, second.append
        seen: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        see_1, see_2, see_3 = (values.extend for values in seen)
        read = 0
        # struct itself sees where a record is cut off.
        with suppress(struct.error):
            while read != most:
                run_1 = unpack_1(body, position)
                length_1 = run_1[-1] - least_1
                if run_1[::2] != fixed_1 or not 0 <= length_1 <= span_1:
                    break
                begin_1 = position + size_1
                end_1 = begin_1 + length_1
                run_2 = unpack_2(body, end_1)
                length_2 = run_2[-1] - least_2
                if run_2[::2] != fixed_2 or not 0 <= length_2 <= span_2:
                    break
                begin_2 = end_1 + size_2
                end_2 = begin_2 + length_2
                run_3 = unpack_3(body, end_2)
                if run_3[::2] != fixed_3:
                    break
                add_first(body[begin_1:end_1])
                add_second(body[begin_2:end_2])
                see_1(run_1)
                see_2(run_2)
                see_3(run_3)
                position = end_2 + size_3
                read += 1
        if read:
            (run, number), (another, millis) = self._number, self._millis
            columns.numbers += seen[run][number :: len(seen[run]) // read]
            columns.millis += seen[another][millis :: len(seen[another]) // read]
        return read, position


def _place(runs: tuple[Run, ...], name: str) -> tuple[int, int]:
    """Of that value: which run, and which of what `struct` gives for it."""
    ((number, run),) = [(number, run) for number, run in enumerate(runs) if name in run.values]
    return number, 2 * run.values.index(name) + 1


@lru_cache(maxsize=32)
def _layout(runs: tuple[Run, Run, Run], data_first: bool) -> Layout:
    return Layout(runs, data_first)


def _layout_at(body: bytes, start: int) -> Layout:
    """Of the record there. Raises ValueError."""
    major, _, size, position = head(body, start)
    if major != _MAP:
        raise ValueError("a record that is no map")
    runs: list[Run] = []
    names: list[str] = []
    fixed_from, codes = start, ""
    fixed: tuple[bytes, ...] = ()
    values: tuple[str, ...] = ()
    while len(names) != size and not (size is None and is_break(body, position)):
        name, value_at = decode_name(body, position)
        names.append(name)
        if name in _FOLLOWED:
            run, position = _run_to_length(body, fixed_from, value_at, _FOLLOWED[name])
            runs.append(Run(codes + run.codes, fixed + run.fixed, values, run.least, run.span))
            fixed_from, codes, fixed, values = position, "", (), ()
        elif name in _NAMES:
            kind, code, begin, position = _value(body, name, value_at)
            codes += f"{begin - fixed_from}s{code}"
            fixed, values, fixed_from = (*fixed, body[fixed_from:begin]), (*values, kind), position
        else:
            _, position = decode(body, value_at)
    if len(names) != len(set(names)) or not _NAMES.issubset(names):
        raise ValueError("a record that lacks a member, or has one twice")
    position += size is None
    runs.append(Run(f"{codes}{position - fixed_from}s", (*fixed, body[fixed_from:position]), values))
    one, two, three = runs
    return _layout((one, two, three), names.index("Data") < names.index("PartitionKey"))


def _run_to_length(body: bytes, fixed_from: int, value_at: int, expected: int) -> tuple[Run, int]:
    """The end of a run, up to the length at `value_at`, and the position after what is so long."""
    major, info, length, begin = head(body, value_at)
    if major != expected or length is None or (info >= 24 and info not in _LENGTHS):
        raise ValueError("data or a key of another form")
    if info < 24:
        # Type and length share a byte.
        return Run(
            f"{value_at - fixed_from}sB", (body[fixed_from:value_at],), (), major << 5, 23
        ), begin + length
    fixed = body[fixed_from : value_at + 1]
    span = (1 << 8 * (begin - value_at - 1)) - 1
    return Run(f"{len(fixed)}s{_LENGTHS[info]}", (fixed,), (), 0, span), begin + length


def _value(body: bytes, name: str, value_at: int) -> tuple[str, str, int, int]:
    """(name in a run, `struct` code, position of the value, position after it)."""
    if name == "SequenceNumber":
        major, _, length, begin = head(body, value_at)
        if major != _TEXT or length is None:
            raise ValueError("a sequence number of another form")
        return "number", f"{length}s", begin, begin + length
    begin = value_at + len(_TIME)
    if body[value_at:begin] != _TIME:
        raise ValueError("a time of another form")
    return "millis", "Q", begin, begin + 8
