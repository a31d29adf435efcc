"""How rows are printed, and that nothing out of a table can drive a terminal, forge a line or be a formula."""

import csv
import io
import json
import sys

import click
import pytest

from pykcl.cli import output
from pykcl.cli.console import say
from pykcl.cli.errors import exit_codes
from pykcl.cli.options import Duration
from pykcl.cli.output import FORMATS, Column, clipped, render, text_width
from pykcl.errors import ConfigError, Refused, SetupError, TemporaryError

HOSTILE = [
    "=cmd|' /C calc'!A0",
    "  +1+1",
    "@SUM(A1)",
    "\x1b]0;title\x07\x1b[31mred",
    "a\nb\rc",
    "\u202etxt.exe",
    "[bold red]rich[/]",
    "<script>alert(1)</script>",
    "\x9b31m",
    "\ud800",
    "\x7f",
]
COLUMNS = (
    Column("name", weight=9),
    Column("state", weight=9),
    Column("count", right=True, weight=3),
    Column("note", weight=1),
    Column("extra", wide=True),
    Column("told", text=lambda value: f"<{value}>", short=lambda value: f"~{value}", weight=0),
)
ROWS = [
    {"name": "a", "state": "ACTIVE", "count": 5, "note": "x" * 30, "extra": [1, 2]},
    {"name": "b" * 60, "state": None, "count": 12345, "note": "", "extra": {"k": "v"}},
]


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("form", FORMATS)
def test_hostile_text_is_inert_in_every_format(hostile, form):
    told = render(
        [{"name": hostile, "state": "x", "told": hostile}],
        COLUMNS,
        form,
        facts={"application": hostile},
        hints=[hostile],
    )
    assert all(line.isprintable() for line in told.split("\n"))
    assert told.count("\n") <= 15
    if form == "csv":
        (_, row) = csv.reader(io.StringIO(told))
        assert not row[0].lstrip().startswith(("=", "+", "-", "@"))
    if form in ("json", "jsonl"):
        found = json.loads(told)
        assert (found["rows"][0] if form == "json" else found)["name"] == hostile


def test_a_table_has_a_heading_dashes_for_nothing_and_numbers_to_the_right():
    assert render(ROWS[:1], COLUMNS[:5], "table").splitlines() == [
        "NAME  STATE   COUNT  NOTE",
        "a     ACTIVE      5  " + "x" * 30,
    ]
    assert render([{"name": "a"}], COLUMNS[:5], "table").splitlines()[1].split() == ["a", "-", "-", "-"]


def test_in_forty_columns_the_least_important_go_first_and_it_says_so(narrow):
    lines = render(ROWS, COLUMNS, "table", facts={"application": "a" * 90}).splitlines()
    assert max(map(text_width, lines)) <= 40
    assert "NOTE" not in lines[1]
    assert "STATE" in lines[1]
    assert "…" in lines[3]
    assert lines[-1].startswith("(-o wide also shows")


def test_wide_shows_everything_in_full_whatever_the_terminal(narrow):
    told = render(ROWS, COLUMNS, "wide")
    assert "b" * 60 in told
    assert "EXTRA" in told
    assert "<None>" in told
    assert "also shows" not in told


def test_json_has_the_facts_beside_the_rows_and_jsonl_has_a_row_a_line():
    whole = json.loads(render(ROWS, COLUMNS, "json", facts={"application": "x"}, hints=["h"]))
    assert (whole["application"], whole["hints"], whole["rows"][1]["count"]) == ("x", ["h"], 12345)
    assert whole["rows"][0]["extra"] == [1, 2]
    lines = render(ROWS, COLUMNS, "jsonl").splitlines()
    assert [json.loads(line)["count"] for line in lines] == [5, 12345]


def test_csv_keeps_numbers_as_numbers_and_text_that_looks_like_a_formula_as_text():
    told = render([{"name": "-5", "state": "ok", "count": -5}], COLUMNS, "csv")
    assert told.splitlines() == ["name,state,count,note,extra,told", "'-5,ok,-5,,,"]


def test_hints_of_csv_and_jsonl_go_beside_the_rows(capsys):
    output.show(ROWS, COLUMNS, "csv", hints=["mind this"])
    found = capsys.readouterr()
    assert "mind this" not in found.out
    assert "hint: mind this" in found.err


def test_colours_are_for_terminals_that_want_them(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert output.painted("x", "red") == "x"
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    assert output.painted("x", "red") == click.style("x", fg="red")
    assert output.painted("x", (1, 2, 3)) == click.style("x", fg=(1, 2, 3))
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.painted("x", "red") == "x"


def test_characters_of_two_cells_count_as_two_and_marks_as_none():
    assert (text_width("漢字"), text_width("e\u0301"), text_width("ab")) == (4, 1, 2)
    assert clipped("漢字漢字", 5) == "漢字…"
    assert clipped("abcdef", 3) == "ab…"
    assert clipped("abc", 3) == "abc"


def test_what_the_encoding_of_the_terminal_lacks_is_shown_as_python_would(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    say("├─ ● 漢")
    sys.stdout.flush()
    assert raw.getvalue() == b"\\u251c\\u2500 \\u25cf \\u6f22\n"


# -- durations -------------------------------------------------------------------------------------------------


def test_a_duration_out_of_range_says_the_range():
    with pytest.raises(click.BadParameter, match=r"from 1\.0s to 1m00s"):
        Duration(minimum=1, maximum=60).convert("2m", None, None)


# -- exit codes and --watch ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (Refused("it moves"), 5, "refused: it moves"),
        (SetupError("no table"), 1, "no table"),
        (ConfigError("bad\nfile"), 1, "bad\\nfile"),
        (RuntimeError("boom"), 1, "crashed"),
    ],
)
def test_errors_become_one_line_and_their_code(error, code, told, capsys, caplog):
    with pytest.raises(SystemExit) as ended, exit_codes():
        raise error
    assert ended.value.code == code
    assert told in capsys.readouterr().err + caplog.text


@pytest.mark.parametrize(
    "error", [click.UsageError("x"), click.exceptions.Exit(3), BrokenPipeError(), SystemExit(3)]
)
def test_what_click_knows_better_passes(error):
    with pytest.raises(type(error)), exit_codes():
        raise error


def test_watching_goes_on_after_a_temporary_error_and_ends_with_the_last_code(monkeypatch, capsys):
    answers = iter([("one", 0), TemporaryError("AWS sleeps."), ("three", 3)])

    def look():
        found = next(answers, None)
        if found is None:
            raise KeyboardInterrupt
        if isinstance(found, Exception):
            raise found
        return found

    pauses = []
    monkeypatch.setattr(output.time, "sleep", pauses.append)
    assert output.repeat(2.0, look) == 3
    found = capsys.readouterr()
    assert found.out.split() == ["one", "three"]
    assert "AWS sleeps. Trying again in 2.0s" in found.err
    assert pauses == [2.0] * 3


def test_without_watching_there_is_one_look_and_its_code(capsys):
    assert output.repeat(None, lambda: ("one", 3)) == 3
    assert capsys.readouterr().out == "one\n"
