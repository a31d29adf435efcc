"""What is planned for families of shards that a simulated fleet seldom has."""

import pytest

from pykcl.errors import ConfigError, Refused
from pykcl.model.checkpoint import AT_LATEST, AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import ForeignRow, Lease, PendingCheckpoint, PykclMetadata, UnreadableRow
from pykcl.model.shard import Shard, ShardListing, StreamDescription
from pykcl.operate.checkpoints.backup import Backup, backup_lines, plan_restore, read_backup
from pykcl.operate.checkpoints.plan import Destination, ResumePoint, SearchResult, Situation, effect_of
from pykcl.operate.checkpoints.reset import plan_reset, plan_reset_to, stream_of_rows
from pykcl.planning.run_end import range_of

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
STREAM = StreamDescription("orders", ARN, 1_000, "ACTIVE")
NOW = 10_000_000
AT_5 = Checkpoint("5")


def shard(key, *parents, closed=False):
    return Shard(key, parents, None, "1", "9" if closed else None)


def situation(shards, *rows, complete=True):
    return Situation(STREAM, ShardListing(tuple(shards), complete), rows, NOW)


def later(at=AT_5):
    """Records from the time on are in the shard."""
    return SearchResult(ResumePoint(at, 7_000.0, has_later=True), 2_000.0, 9_000.0)


def earlier(at=AT_5):
    return SearchResult(ResumePoint(at, None, has_later=False), 2_000.0, 3_000.0)


EMPTY = SearchResult(ResumePoint())


def told(plan):
    return [(step.key, step.action, str(step.new.checkpoint) if step.new else None) for step in plan.steps]


def test_below_what_is_read_again_everything_begins_anew_whatever_its_own_records_say():
    shards = [shard("a", closed=True), shard("b", "a", closed=True), shard("c", "b")]
    around = situation(shards, Lease("c", Checkpoint("8"), counter=3, owner="w"))
    looks = {"a": later(), "b": earlier(Checkpoint("6")), "c": earlier(Checkpoint("7"))}
    assert told(plan_reset(around, looks, whole=True)) == [
        ("a", "create", "5:0"),
        ("b", "create", "TRIM_HORIZON"),
        ("c", "reset", "TRIM_HORIZON"),
    ]


def test_what_ended_before_the_time_stays_ended_and_what_has_no_row_gets_none():
    shards = [shard("a", closed=True), shard("b", "a", closed=True), shard("c", "b")]
    around = situation(shards, Lease("b", AT_SHARD_END), Lease("c", Checkpoint("8")))
    looks = {"a": earlier(), "b": earlier(), "c": later()}
    assert told(plan_reset(around, looks, whole=True)) == [("b", "keep", None), ("c", "reset", "5:0")]


def test_below_an_unfinished_shard_rows_are_made_although_nothing_of_theirs_is_wanted():
    shards = [shard("a", closed=True), shard("b", "a", closed=True), shard("c", "b")]
    around = situation(shards, Lease("a", Checkpoint("2")))
    looks = {"a": earlier(), "b": earlier(Checkpoint("6")), "c": earlier(Checkpoint("7"))}
    # Else the reader of a, at its end, would begin b at its oldest record.
    assert told(plan_reset(around, looks, whole=True)) == [
        ("a", "reset", "5:0"),
        ("b", "create", "6:0"),
        ("c", "create", "7:0"),
    ]


def test_both_parents_of_a_merge_have_a_row_or_neither():
    shards = [shard("a", closed=True), shard("b", closed=True), shard("c", "a", "b")]
    around = situation(shards, Lease("c", Checkpoint("8")))
    plan = plan_reset(around, {"a": later(), "b": earlier(), "c": EMPTY}, whole=True)
    assert told(plan) == [
        ("b", "create", "SHARD_END"),
        ("a", "create", "5:0"),
        ("c", "reset", "TRIM_HORIZON"),
    ]
    assert plan.steps[0].new.children == ("c",)
    # Also when the tool died after the first row.
    half = situation(shards, Lease("a", AT_5), Lease("c", AT_TRIM_HORIZON))
    again = plan_reset(half, {"a": later(), "b": earlier(), "c": EMPTY}, whole=True)
    assert told(again)[0] == ("b", "create", "SHARD_END")


def test_rows_that_are_put_back_carry_the_range_of_the_run_that_the_others_belong_to():
    """Else its workers would refuse the table, as one that it shares with an application."""
    shards = [shard("a", closed=True), shard("b", closed=True), shard("c", "a", "b")]
    note = PykclMetadata(
        stream_arn=ARN, stream_created_at=1_000, until=9_000, begin="TRIM_HORIZON", shards="a,b"
    )
    around = situation(shards, Lease("c", AT_SHARD_END, metadata=note))
    plan = plan_reset(around, {"a": later(), "b": earlier(), "c": EMPTY}, whole=True)
    assert [(step.action, range_of(step.new)) for step in plan.steps] == [
        ("create", ("TRIM_HORIZON", 9_000, "a,b")),
        ("create", ("TRIM_HORIZON", 9_000, "a,b")),
        ("reset", ("TRIM_HORIZON", 9_000, "a,b")),
    ]


def test_a_row_that_is_there_already_is_kept_unless_something_is_pending():
    kept = plan_reset(situation([shard("a")], Lease("a", AT_5)), {"a": later()}, whole=True)
    assert kept.changes == ()
    pending = Lease("a", AT_5, pending=PendingCheckpoint(Checkpoint("6")))
    assert told(plan_reset(situation([shard("a")], pending), {"a": later()}, whole=True))[0][1] == "reset"


def test_one_shard_alone_leaves_the_others_where_they_are_and_says_so():
    shards = [shard("a", closed=True), shard("b", "a")]
    around = situation(shards, Lease("a", AT_SHARD_END, children=("b",)), Lease("b", Checkpoint("8")))
    plan = plan_reset(around, {"a": later()}, whole=False)
    assert told(plan) == [("a", "reset", "5:0")]
    assert plan.steps[0].new.children == ()
    assert plan.hints[0].startswith("b: children of shards that are read again")


def test_a_shard_whose_turn_has_not_come_is_not_given_a_row_alone():
    shards = [shard("a", closed=True), shard("b", "a")]
    around = situation(shards, Lease("a", AT_5))
    with pytest.raises(Refused, match="b has no row yet: a, which comes before it"):
        plan_reset(around, {"b": later()}, whole=False)


def test_positions_that_were_told_win_over_what_lies_above():
    shards = [shard("a", closed=True), shard("b", "a")]
    around = situation(shards, Lease("a", AT_SHARD_END), Lease("b", Checkpoint("8")))
    looks = {"a": later(), "b": later(Checkpoint("6"))}
    assert told(plan_reset(around, looks, whole=False, as_given=True))[1] == ("b", "reset", "6:0")


@pytest.mark.parametrize(
    ("around", "why"),
    [
        (situation([shard("a")]), "no leases yet"),
        (situation([shard("a")], Lease("a", AT_5), complete=False), "listed completely"),
        (situation([], Lease("a", AT_5)), "listed completely"),
        (situation([shard("a")], Lease("b", AT_5), UnreadableRow("a", "no counter")), "cannot be understood"),
        (situation([shard("a")], ForeignRow("1:s:2:a", "multi-stream lease")), "multi-stream"),
        (
            situation(
                [shard("a")], Lease("a", AT_5, metadata=PykclMetadata(stream_arn=ARN, stream_created_at=9))
            ),
            "another stream",
        ),
        (
            situation([shard("a")], Lease("a", AT_5, parents=("b",)), Lease("b", AT_5, parents=("a",))),
            "name each other",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(around, why):
    with pytest.raises(Refused, match=why):
        plan_reset(around, {"a": later()}, whole=True)


def test_a_shard_that_is_not_there_and_a_time_that_has_not_come_are_told():
    around = situation([shard("a")], Lease("a", AT_5))
    with pytest.raises(ConfigError, match=r"no shard z in stream 'orders'.*It lists 1: a"):
        plan_reset_to(around, Destination("earliest"), ["z"], None, None)
    with pytest.raises(ConfigError, match="is in the future"):
        plan_reset_to(around, Destination("time", at_millis=NOW + 1001), None, None, None)


def test_the_rows_name_the_stream_if_they_agree():
    def row(key, arn):
        return Lease(key, AT_5, metadata=PykclMetadata(stream_arn=arn))

    assert stream_of_rows([row("a", ARN), Lease("b", AT_5)]) == ARN
    assert stream_of_rows([row("a", ARN), row("b", "arn:other")]) is None
    assert stream_of_rows([Lease("b", AT_5)]) is None


# -- back to a backup ------------------------------------------------------------------------------------------


def backup(*leases, absent=()):
    return Backup("orders-app", ARN, 1_000, {lease.key: lease for lease in leases}, frozenset(absent))


def test_rows_that_the_reset_made_are_deleted_last_and_oldest_first():
    shards = [shard("a", closed=True), shard("b", "a", closed=True), shard("c", "b")]
    around = situation(shards, Lease("a", AT_5), Lease("b", AT_TRIM_HORIZON), Lease("c", AT_TRIM_HORIZON))
    plan = plan_restore(around, backup(Lease("c", Checkpoint("8")), absent=("a", "b")))
    assert told(plan) == [("c", "reset", "8:0"), ("a", "delete", None), ("b", "delete", None)]


def test_rows_that_came_later_begin_anew_below_what_goes_back_and_stay_elsewhere():
    shards = [shard("a", closed=True), shard("b", "a"), shard("z")]
    around = situation(
        shards, Lease("a", AT_SHARD_END), Lease("b", Checkpoint("8")), Lease("z", Checkpoint("4"))
    )
    plan = plan_restore(around, backup(Lease("a", Checkpoint("3"))))
    assert sorted(told(plan)) == [("a", "reset", "3:0"), ("b", "reset", "TRIM_HORIZON"), ("z", "keep", None)]


def test_a_row_that_is_missing_is_put_back_above_its_counter_and_one_of_a_gone_shard_is_not():
    around = situation([shard("a")], Lease("z", AT_5))
    saved = Lease(
        "a", Checkpoint("SHARD_END", 7), counter=41, owner="w", owner_switches=2, children=("b",),
        extra={"leaseOwner": {"NULL": True}, "throughputKBps": {"N": "1"}},
    )  # fmt: skip
    plan = plan_restore(around, backup(saved, Lease("gone", AT_5)))
    (step,) = plan.changes
    assert (step.new.owner, step.new.counter, step.new.checkpoint) == (None, 1041, AT_SHARD_END)
    assert step.new.extra == {"throughputKBps": {"N": "1"}}
    assert step.write().kind == "create"
    assert plan.hints[0].startswith("gone: Kinesis no longer lists this shard")


def test_latest_goes_back_to_latest_with_a_word_about_it():
    plan = plan_restore(situation([shard("a")], Lease("a", AT_5)), backup(Lease("a", AT_LATEST)))
    assert told(plan) == [("a", "reset", "LATEST")]
    assert "a: at LATEST" in plan.hints[0]


def test_another_table_another_stream_and_an_earlier_stream_of_the_name_are_refused():
    saved = backup()
    with pytest.raises(Refused, match="of table 'orders-app', not of 'other'"):
        saved.refuse_mismatch("other", STREAM)
    with pytest.raises(Refused, match="means nothing in another"):
        saved.refuse_mismatch("orders-app", StreamDescription("p", ARN + "2", 1_000, "ACTIVE"))
    with pytest.raises(Refused, match="an earlier stream of that name"):
        saved.refuse_mismatch("orders-app", StreamDescription("orders", ARN, 2_000, "ACTIVE"))
    saved.refuse_mismatch("orders-app", STREAM)


def lines(*leases, absent=()):
    return backup_lines(leases, table="orders-app", stream=STREAM, now_millis=NOW, absent=absent)


def test_a_backup_brings_every_row_back_as_it_was():
    rows = [
        Lease("a", Checkpoint("5", 3), counter=9, owner="w\x1b[31m", parents=("p", "q"), metadata=PykclMetadata(stream_arn=ARN),
              pending=PendingCheckpoint(Checkpoint("6"), b"\x00\xff"), extra={"x": {"M": {"y": {"L": [{"B": b"\x01"}]}}}}),
        Lease("b", AT_SHARD_END, children=("c", "d")),
    ]  # fmt: skip
    found = read_backup("\n".join(lines(*rows, absent=["z"])), "f")
    assert dict(found.leases) == {row.key: row for row in rows}
    assert found.absent == {"z"}
    found.refuse_mismatch("orders-app", STREAM)


GOOD = lines(Lease("a", AT_5), Lease("b", AT_5))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ([], "is not a backup"),
        (["shard,5"], "line 1: not a JSON object"),
        (["{}"], "is not a backup"),
        (GOOD[:-1], "truncated"),
        ([GOOD[0], GOOD[1], GOOD[3]], "truncated"),
        ([GOOD[0], GOOD[1], GOOD[1], GOOD[3]], "line 3: has no shard, or repeats one"),
        (
            [GOOD[0], GOOD[1].replace('"item"', '"item": 5, "was"'), GOOD[2], GOOD[3]],
            "line 2: its item is not a row",
        ),
        (
            [GOOD[0], GOOD[1].replace('"leaseKey": {"S": "a"}', '"leaseKey": {"S": "x"}'), GOOD[2], GOOD[3]],
            "not a lease of 'a'",
        ),
        ([GOOD[0].replace('"table"', '"tabel"'), *GOOD[1:]], "line 1: lacks the table"),
    ],
)
def test_a_file_that_is_no_backup_or_not_all_of_one_is_refused_with_its_line(content, why):
    with pytest.raises(ConfigError, match=why):
        read_backup("\n".join(content), "f.jsonl")


# -- what it means ---------------------------------------------------------------------------------------------


def effect(row, look, *, closed=False):
    around = situation([shard("a", closed=closed)], row)
    return effect_of(plan_reset(around, {"a": look}, whole=True).steps[0], NOW)


def test_what_comes_again_and_what_nobody_will_be_given_is_told_apart():
    back = effect(Lease("a", Checkpoint("8")), later())
    assert (back.resumes_at, back.replays, back.skips) == (7_000.0, 2.0, None)
    forth = effect(
        Lease("a", Checkpoint("2")), SearchResult(ResumePoint(AT_5, 7_000.0, True), 1_000.0, 4_000.0)
    )
    assert (forth.resumes_at, forth.replays, forth.skips) == (7_000.0, None, 3.0)
    tip = effect(Lease("a", AT_TRIM_HORIZON), earlier())
    assert (tip.resumes_at, tip.skips) == (None, NOW / 1000 - 2.0)
    oldest = effect(
        Lease("a", Checkpoint("8")),
        SearchResult(ResumePoint(AT_TRIM_HORIZON, 1_000.0, True), 1_000.0, 4_000.0),
    )
    assert (oldest.resumes_at, oldest.replays) == (1_000.0, 3.0)
    opened = effect(Lease("a", AT_SHARD_END), later(), closed=True)
    assert (opened.replays, opened.to_end) == (NOW / 1000 - 7.0, True)
