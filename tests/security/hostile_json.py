"""JSON as a stranger would send it: of any shape, and good documents with something put out of joint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st


class Long(str):
    """Text too long for the pages Hypothesis writes about a failure."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} x {self[0]!r}>"


class LongBytes(bytes):
    """Likewise."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes {self[:10]!r}>"


ABSURD = [
    None,
    True,
    "",
    0,
    -1,
    0.5,
    2**63,
    -(10**30),
    1e308,
    Long("0" * 5000),
    Long("9" * 5000),
    "٤٩",
    "\n\x1b[2Jforged",
    Long("x" * 300),
    "////",
    "=",
    [],
    {},
    [None],
    [[]],
    {"S": "x"},
    {"N": "1"},
]
scalars = st.one_of(
    st.sampled_from(ABSURD),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in the document but itself."""
    inner = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for name, value in inner:
        yield (*path, name)
        yield from places(value, (*path, name))


@st.composite
def disjointed(draw: st.DrawFn, good: Any) -> Any:
    """`good` with up to three values replaced, removed or doubled."""
    document = deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(document))
        if not found:
            break
        *path, last = draw(st.sampled_from(found))
        holder = document
        for name in path:
            holder = holder[name]
        change = draw(st.sampled_from(["replace", "replace", "replace", "remove", "double"]))
        if change == "replace":
            holder[last] = deepcopy(draw(st.sampled_from(ABSURD) | anything))
        elif change == "remove":
            del holder[last]
        elif isinstance(holder, list):
            holder.append(deepcopy(holder[last]))
        else:
            holder[draw(st.text(max_size=5))] = deepcopy(holder[last])
    return document


DEEP = LongBytes(b"[" * 100_000)
NESTED = LongBytes(b'{"Records":' + b'{"Data":' * 50_000)
bodies = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"",
            b"null",
            b"[]",
            b"{",
            b"{}",
            b"<html>\n</html>",
            DEEP,
            NESTED,
            b"\xff\xfe{}",
            b'{"Records":[NaN]}',
        ]
    ),
    anything.map(lambda value: json.dumps(value).encode()),
)
"""Bodies without any idea of what was asked for."""


def cut(document: Any, at: int) -> bytes:
    """The document's JSON, broken off."""
    body = json.dumps(document).encode()
    return body[: at % (len(body) + 1)]
