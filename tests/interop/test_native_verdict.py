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
    Term,
    assigned_by_the_leader,
    duplicates,
    figures_of,
    moves,
    never_two_leaders,
    problems_of,
    report,
    summary,
    terms,
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
        writes=[
            write(50, START, "j1"), write(900, (3, 0), "j1"), write(1500, (3, 0), "p1"), write(2600, (4, 0), "p1"),
            write(8000, (4, 0), "p2"), write(9100, (8, 0), "p2"),
        ],
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


def test_a_lease_that_was_lost_is_none_that_was_handed_over(evidence):
    evidence.lives[0].ends = ["lost"]
    assert moves(evidence)[0].cause == "expired"
    assert moves(evidence, "stolen")[0].cause == "stolen"


def test_a_processor_that_starts_when_its_lease_has_gone_again_may_know_less(evidence):
    evidence.lives.append(life("j1", 960, None, []))
    assert len(problems_of(evidence)) == 1
    evidence.writes[1] = write(900, (3, 0), "p2")
    assert problems_of(evidence) == []


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


# -- the lock ------------------------------------------------------------------------------------------------------


def asked(t, by, operation, status=200, **params):
    return {
        "at_millis": t,
        "operation": operation,
        "status": status,
        "user_agent": f"x app/{by}",
        "parameters": params,
    }


def taken(t, by, seconds=120):
    item = {
        "leaseKey": {"S": "Leader"}, "ownerName": {"S": by}, "recordVersionNumber": {"S": "v"},
        "leaseDuration": {"S": str(seconds * 1000)},
    }  # fmt: skip
    return asked(t, by, "PutItem", Item=item)


def kept(t, by, seconds=120, *, names=None):
    """names: of attributes, as Java gives them."""
    update = "SET #ld = :ld, #rvn = :new" if names else "SET leaseDuration = :ld, recordVersionNumber = :new"
    values = {":ld": {"S": str(seconds * 1000)}, ":new": {"S": f"v{t}"}}
    more = {"ExpressionAttributeNames": names} if names else {}
    key = {"leaseKey": {"S": "Leader"}}
    return asked(
        t, by, "UpdateItem", Key=key, UpdateExpression=update, ExpressionAttributeValues=values, **more
    )


def released(t, by):
    values = {":released": {"S": "1"}}
    update = "SET isReleased = :released"
    return asked(t, by, "UpdateItem", Key={"leaseKey": {"S": "Leader"}}, UpdateExpression=update,
                 ExpressionAttributeValues=values)  # fmt: skip


JAVAS_NAMES = {"#ld": "leaseDuration", "#rvn": "recordVersionNumber"}


def test_terms_follow_each_other_and_never_overlap():
    log = [
        taken(0, "j1"), kept(30_000, "j1", names=JAVAS_NAMES), {**taken(40_000, "p1"), "status": 400},
        taken(150_000, "p1", 30), kept(160_000, "p1", 30), released(170_000, "p1"), taken(170_001, "j2"),
    ]  # fmt: skip
    found = terms(log)
    assert found == [
        Term("j1", 0, 30_000, 120.0), Term("p1", 150_000, 160_000, 30.0, 170_000), Term("j2", 170_001, 170_001, 120.0),
    ]  # fmt: skip
    assert never_two_leaders(found).problems == ()
    gone = asked(60_000, "j1", "DeleteItem", Key={"leaseKey": {"S": "Leader"}})
    assert terms([*log[:2], gone]) == [Term("j1", 0, 30_000, 120.0, 60_000)]
    early = terms([*log[:3], taken(149_000, "p1")])
    assert never_two_leaders(early).problems == ("p1 took the lock of j1 1.0 s too early",)


def test_only_the_holder_of_the_lock_gives_leases_to_others():
    key = {"leaseKey": {"S": SHARD}}
    by_java = {"AttributeUpdates": {"leaseOwner": {"Action": "PUT", "Value": {"S": "p1"}}}}
    by_pykcl = {
        "UpdateExpression": "SET leaseOwner = :new ADD leaseCounter :one",
        "ExpressionAttributeValues": {":new": {"S": "j2"}},
    }
    over = {"Expected": {"leaseOwner": {}, "checkpointOwner": {"Value": {"S": "j2"}}}}
    log = [
        taken(0, "j1"), asked(10, "j1", "UpdateItem", Key=key, **by_java), taken(130_000, "p1"),
        asked(130_010, "p1", "UpdateItem", Key=key, **by_pykcl),
        asked(130_020, "j2", "UpdateItem", Key=key, **by_java, **over),
    ]  # fmt: skip
    check = assigned_by_the_leader(log, terms(log))
    assert (check.problems, check.examined) == ((), "3 leases given to others")
    late = [*log, asked(130_030, "j1", "UpdateItem", Key=key, **by_java)]
    assert assigned_by_the_leader(late, terms(late)).problems == (f"j1 gave {SHARD} to p1 at 130030",)
