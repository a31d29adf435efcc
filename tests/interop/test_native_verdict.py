"""The verdict over a fleet of KCL 3.x notices: a small one, recorded rightly, and then with one fact changed."""

from collections import Counter
from dataclasses import replace

import pytest
from fleet_evidence import Evidence, Item, Life, Process
from fleet_rows import START, RowState, RowWrite
from kclpy_worker import with_names
from native_verdict import (
    BEGIN,
    END,
    NativeFigures,
    duplicates,
    figures_of,
    moves,
    problems_of,
    report,
    summary,
    written_into,
)

SHARD = "shardId-000000000000"
KINDS = {"j1": "Java 3.5.1", "p1": "pykcl", "p2": "pykcl"}


def item(number):
    return Item((number, 0), number)


def life(worker, t, start, numbers, *, ended_at=None):
    at = START if start is None else (start, 0)
    done = [(t + 10 * n, item(number)) for n, number in enumerate(numbers, 1)]
    ends = [] if ended_at is None else ["shutdown"]
    given = [(t + 1, [one for _, one in done])]
    return Life(worker, SHARD, -t, at, t, given=given, done=done, ends=ends, ended_at=ended_at)


def write(t, checkpoint, owner):
    return RowWrite(0, t, SHARD, "checkpoint", owner, True, False, None, RowState(owner, t, checkpoint), "x")


@pytest.fixture
def evidence():
    """j1 hands over to p1 at 1 000 in order; p1 is killed at 3 000 with two records behind its checkpoint; p2 follows."""
    return Evidence(
        records={SHARD: [item(number) for number in range(1, 9)]},
        parents={SHARD: ()},
        lives=[
            life("j1", 100, None, [1, 2, 3], ended_at=1000),
            life("p1", 2500, 3, [4, 5, 6]),
            life("p2", 9000, 4, [5, 6, 7, 8], ended_at=20_000),
        ],
        processes={
            "j1": Process("j1", 0, terminated=20_000), "p1": Process("p1", 0, killed=3000), "p2": Process("p2", 0),
        },
        writes=[write(50, START, "j1"), write(900, (3, 0), "j1"), write(2600, (4, 0), "p1"), write(9100, (8, 0), "p2")],
        actions=Counter(),
        faults={},
    )  # fmt: skip


def test_a_hand_over_and_a_death_are_measured_from_what_ended_the_old_owner(evidence):
    assert problems_of(evidence) == []
    handed, died = moves(evidence)
    assert (handed.cause, handed.worker, handed.successor, handed.seconds, handed.repeated) == (
        "assigned", "j1", "p1", 1.5, 0,
    )  # fmt: skip
    assert (died.cause, died.worker, died.successor, died.seconds, died.repeated) == (
        "killed", "p1", "p2", 6.0, 2,
    )  # fmt: skip
    assert duplicates(evidence) == 2


def test_a_lease_that_was_handed_over_before_the_signal_counts_as_handed_over(evidence):
    evidence.processes["j1"].terminated = 1100
    assert moves(evidence)[0].cause == "assigned"
    evidence.processes["j1"].terminated = 990
    assert moves(evidence)[0] == replace(moves(evidence)[0], cause="terminated", seconds=1.51)
    evidence.processes["j1"].terminated = None
    evidence.processes["j1"].freezes = [(980, 4000)]
    assert moves(evidence)[0] == replace(moves(evidence)[0], cause="frozen", seconds=1.52)


def test_a_start_behind_a_checkpoint_is_a_problem(evidence):
    evidence.lives[2].start = (3, 0)
    evidence.lives[2].given[0][1].insert(0, item(4))
    evidence.lives[2].done.insert(0, (9005, item(4)))
    assert problems_of(evidence) == [
        f"start at the checkpoint: p2 on {SHARD} under token -9000 began at 3:0, its row stood at 4:0"
    ]


def test_a_record_that_nobody_finished_is_lost(evidence):
    del evidence.lives[2].done[-1]
    assert problems_of(evidence) == [
        f"nothing lost: record 8 (8:0) of {SHARD} was put and never finished; p2 checkpointed 8:0; given to p2"
    ]


def test_figures_say_who_followed_whom_and_what_moved_at_rest(evidence):
    figures = figures_of(evidence, "three", KINDS, leaders=["p1"], rest=(2000, 62_000))
    assert figures == NativeFigures(
        "three", 8, 0, 0, 2, [("assigned", "Java → pykcl", 1.5, 0), ("killed", "pykcl leader → pykcl", 6.0, 2)], (2, 60.0)
    )  # fmt: skip
    assert NativeFigures(**figures.as_json()) == figures
    assert "kill -9, pykcl leader → pykcl: unread for 6.0 s, 2 records repeated" in report(evidence, figures)
    assert "2 in 60 s" in summary([figures])


def test_a_page_gets_the_tables_in_its_place(evidence):
    figures = figures_of(evidence, "three", KINDS)
    page = written_into(f"before\n{BEGIN}\nold\n{END}\nafter", [figures, figures])
    assert page.startswith(f"before\n{BEGIN}\n| fleet | records |")
    assert "| kill -9 | pykcl → pykcl | 2 | 6.0 s | 6.0 s | 4 |" in page
    assert page.endswith(f"\n{END}\nafter")
    with pytest.raises(ValueError, match="has no"):
        written_into("before\nafter", [figures])


def test_names_replace_a_setting_or_the_comment_that_offers_it():
    assert (
        with_names("a = 1\n#workerId =\nb = 2\n", {"a": "x", "workerId": "w"})
        == "a = x\nworkerId = w\nb = 2\n"
    )
    with pytest.raises(AssertionError, match="other"):
        with_names("a = 1\n", {"other": "x"})
