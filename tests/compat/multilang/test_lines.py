"""What children print: cut into lines, bounded, and harmless in the log."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykcl.compat.multilang.lines import MOST_LINE_BYTES, MOST_LOGGED, ChildLog, LineCutter, level_of


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(0, 40)))
def test_however_the_bytes_arrive_the_lines_are_the_same(lines, cuts):
    text = b"\n".join(lines) + b"\n"
    cutter, found = LineCutter(), []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True):
        found += cutter.feed(text[start:end])
    assert found == [(line, True) for line in text.replace(b"\r", b"\n").split(b"\n") if line]
    assert cutter.rest() == b""


def test_megabytes_without_a_line_end_are_cut_once_and_not_kept():
    cutter = LineCutter()
    found = [line for _ in range(200) for line in cutter.feed(b"x" * 65536)]
    assert found == [(b"x" * MOST_LINE_BYTES, False)]
    assert len(cutter.rest()) == 0
    assert list(cutter.feed(b"rest of it\nnext\nbegun")) == [(b"next", True)]
    assert cutter.rest() == b"begun"


def test_a_long_line_that_comes_with_its_end_is_no_message_either():
    assert list(LineCutter().feed(b"y" * (MOST_LINE_BYTES + 1) + b"\n")) == [(b"y" * MOST_LINE_BYTES, False)]


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2026-11-21 10:00:00,123 INFO app: all well", logging.INFO),
        ("DEBUG:root:x", logging.DEBUG),
        ("[WARN] slow", logging.WARNING),
        ("ERROR could not", logging.ERROR),
        ("app FATAL: gone", logging.CRITICAL),
        ("Traceback (most recent call last):", logging.WARNING),
        ("INFORMATION is no level", logging.WARNING),
        ("x" * 200 + " INFO", logging.WARNING),
    ],
)
def test_standard_error_is_logged_at_the_level_the_line_names(line, level):
    assert level_of(line) == level


def test_a_line_cannot_forge_others_nor_fill_the_log(caplog):
    with caplog.at_level(logging.INFO):
        ChildLog("shardId-1").printed(b"a\x1b[2Jb\xffc\x0bd\xe2\x80\xa8e", True)
        ChildLog("shardId-1").complained(b"z" * 60_000, False)
    first, second = caplog.records
    assert (first.name, first.levelno) == ("pykcl.child.shardId-1", logging.INFO)
    assert first.getMessage() == r"a\x1b[2Jb\xffc\x0bd\u2028e"
    assert (second.name, second.levelno) == ("pykcl.child.shardId-1.stderr", logging.WARNING)
    assert second.getMessage() == "z" * MOST_LOGGED + "… (cut)"
