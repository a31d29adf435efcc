"""Plain lines and the live picture, from the state of a demo."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pykcl.demo.live_view import LiveView, picture
from pykcl.demo.verdict import Verdict
from pykcl.demo.view import DemoState, Entry, PlainView, ShardLine, WorkerLine, grouped

PASS = Verdict(9852, 6208, 9852, 202, 0, 0, (), dead_letters=1, redriven=1)
FAIL = Verdict(9852, 6208, 9804, 202, 48, 1, tuple(f"reason {number} " + "x" * 60 for number in range(9)))


def full_state(verdict: Verdict | None = None) -> DemoState:
    """The busiest picture there is: seven shards, three workers, eight entries with the longest texts."""
    states = ["open", "ended", "closed", "open", "open", "open", "open"]
    owners = ["py-1", None, "py-2", "py-3", "py-1", None, "py-1"]
    shards = [
        ShardLine(
            f"shardId-{number:012d}",
            ("shardId-000000000001",) * (number // 3),
            states[number],
            owners[number],
            put=1300,
            delivered=1250,
            checkpointed=900,
        )
        for number in range(7)
    ]
    workers = [
        WorkerLine("py-1", "running", 5, 123456),
        WorkerLine("py-2", "stopped", 0, 9),
        WorkerLine("py-3", "killed", 2, 9),
    ]
    texts = ("merge 002+003", "2 leases, 1 178 undelivered", "py-1 py-2 deliver after 13.3s")
    return DemoState(
        "http://127.0.0.1:1",
        9999,
        4,
        elapsed=62.3,
        phase="SIGTERM py-2: it finishes, checkpoints and releases",
        shards=shards,
        workers=workers,
        entries=[Entry(10.0 * number, *texts) for number in range(8)],
        produced=48000,
        processed=47000,
        duplicates=212,
        steals=2,
        verdict=verdict,
    )


def drawn(state: DemoState, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(picture(state, height))
    return console.file.getvalue().rstrip("\n").split("\n")


def state_with_java(verdict: Verdict | None = None) -> DemoState:
    """One worker, one joining and one kill more."""
    state = full_state(verdict)
    state.java = "2.7.2"
    state.workers.append(WorkerLine("java", "running", 5, 123456))
    state.entries += state.entries[:2]
    return state


@pytest.mark.parametrize("verdict", [None, PASS])
@pytest.mark.parametrize("state", [full_state, state_with_java])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 32), (200, 60)])
def test_the_picture_fits_into_the_terminal(state, verdict, width, height):
    lines = drawn(state(verdict), width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    # Cut texts end in an ellipsis; only the tail of the next steps may be cut.
    assert not [line for line in lines if "…" in line]


def test_the_last_picture_counts_dead_letters_and_leaves_out_the_first_entries_in_a_low_terminal():
    text = "\n".join(drawn(state_with_java(PASS)))
    assert "dead letters 1, redriven 1" in text
    assert (text.count("merge 002+003"), text.count("t+ 70.0s")) == (7, 1)
    assert "\n".join(drawn(state_with_java(PASS), height=30)).count("merge 002+003") == 10


def test_the_picture_shows_shards_lineage_owners_and_progress():
    text = "\n".join(drawn(full_state()))
    for wanted in (
        "001+001",
        "closed",
        "py-3 ✗",
        "● py-1 5 leases",
        "○ py-2 stopped",
        "produced 48 000",
        "1 300",
    ):
        assert wanted in text
    row = next(line for line in text.split("\n") if line.startswith("000 "))
    assert row.count("█") == 900 * 20 // 1300
    assert row.count("▓") == 1250 * 20 // 1300 - 900 * 20 // 1300


def test_the_last_picture_shows_the_reasons_of_a_failure():
    text = "\n".join(drawn(full_state(FAIL), 100, 50))
    assert "FAIL" in text
    assert "lost 48" in text
    assert "because reason 0" in text
    assert "PASS" not in text


def test_the_live_view_keeps_its_last_picture():
    out = io.StringIO()
    view = LiveView(Console(file=out, width=80, height=24, force_terminal=True, color_system=None))
    state = full_state()
    view.start(state)
    view.entry(state.entries[0])
    state.verdict = PASS
    view.end(state)
    view.say("export A=[b]")
    assert "PASS" in out.getvalue()
    assert out.getvalue().endswith("export A=[b]\n")


def test_the_plain_view_prints_the_start_each_entry_and_the_verdict():
    out = io.StringIO()
    view, state = PlainView(out), full_state(PASS)
    view.start(state)
    view.refresh(state)
    view.entry(Entry(8.04, "kill -9 py-3", "2 leases, 178 undelivered", "py-1 delivers after 3.3s"))
    view.end(state)
    first, entry, _, totals, letters, last = out.getvalue().splitlines()
    assert first.endswith("endpoint http://127.0.0.1:1 (local)")
    assert entry == " t+  8.0s  kill -9 py-3     2 leases, 178 undelivered      → py-1 delivers after 3.3s"
    assert totals.endswith("duplicates 202 (at-least-once: 1 kill, 2 steals) · lost 0 · out of order 0")
    assert letters == "dead letters 1, redriven 1"
    assert last.startswith("PASS")


def test_the_plain_view_says_fail_and_every_reason():
    out = io.StringIO()
    PlainView(out).end(full_state(FAIL))
    lines = out.getvalue().splitlines()
    assert lines[-1] == "FAIL"
    assert len([line for line in lines if line.startswith("  because reason")]) == 9


def test_the_plain_view_survives_an_ascii_terminal():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
    PlainView(out).say("a · b → c ─ é")
    assert raw.getvalue() == b"a - b > c - ?\n"


def test_nothing_is_printed_without_a_verdict():
    out = io.StringIO()
    PlainView(out).end(full_state())
    assert out.getvalue() == ""


def test_thousands_are_grouped_by_spaces():
    assert [grouped(number) for number in (7, 1234, 48000)] == ["7", "1 234", "48 000"]
