"""What children print: cut into lines, bounded, and harmless in the log."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykcl.compat.multilang.child import MAX_LINE_BYTES, MAX_LOGGED, ChildLog, LineCutter, level_of, pieces


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
    assert found == [(b"x" * MAX_LINE_BYTES, False)]
    assert not cutter._started
    assert list(cutter.feed(b"rest of it\nnext\nbegun")) == [(b"next", True)]
    assert cutter.rest() == b"begun"


def test_a_long_line_that_comes_with_its_end_is_no_message_either():
    assert list(LineCutter().feed(b"y" * (MAX_LINE_BYTES + 1) + b"\n")) == [(b"y" * MAX_LINE_BYTES, False)]


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
    assert second.getMessage() == "z" * MAX_LOGGED + "… (cut)"


def test_a_line_without_an_end_is_taken_in_pieces_that_split_no_character():
    cutter = LineCutter()
    assert list(cutter.feed("\u00e4".encode() * 1001)) == []
    assert [len(piece) for piece in pieces(cutter.rest())] == [2000, 2]
    assert [piece.decode() for piece in pieces(b"x" + "\u00e4".encode() * 1000)] == [
        "x" + "\u00e4" * 999,
        "\u00e4",
    ]


def test_after_a_piece_was_taken_what_follows_is_kept_again():
    cutter = LineCutter()
    list(cutter.feed(b"x" * (MAX_LINE_BYTES + 1)))
    assert cutter.rest() == b""
    assert list(cutter.feed(b"more\n")) == [(b"more", True)]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("shardId-000000000007", "shardId-000000000007"),
        ("123456789012:orders:1790000000:shardId-1", "123456789012:orders:1790000000:shardId-1"),
        ("a.b.c", "a_b_c"),
        ("a\x1b]0;x\x07\nERROR b", "a__0_x__ERROR_b"),
        ("\u202e" * 256, "_" * 128),
    ],
)
def test_a_lease_key_makes_one_inert_name_of_a_logger(caplog, key, name):
    with caplog.at_level(logging.INFO):
        ChildLog(key).printed(b"x", True)
        ChildLog(key).complained(b"x", True)
    assert [record.name for record in caplog.records] == [f"pykcl.child.{name}", f"pykcl.child.{name}.stderr"]
