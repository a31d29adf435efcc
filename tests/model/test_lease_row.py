"""model.lease_writes and model.lease_item: what real Java rows become, and what every write asks of DynamoDB."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_LATEST, AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import ForeignRow, Lease, PendingCheckpoint, PykclMetadata, UnreadableRow
from pykcl.model.lease_writes import parse_row, resolve_conflict, to_item
from pykcl.model.shard import HashRange

FIXTURES = Path(__file__).parents[1] / "fixtures"
GOLDEN = [
    pytest.param(entry["table"], entry["item"], id=f"{path.stem}-{number}")
    for path in sorted(FIXTURES.glob("java-*.jsonl"))
    for number, entry in enumerate(map(json.loads, path.read_text().splitlines()))
]

KEYS_OF_FOREIGN_ROWS = {
    *("Migration3.0", "Leader", "w1", "w2", "w3", "py1", "py2", "pyL"),
    *("w1-k351", "w2-k351", "w1-k313", "w2-k313"),
}
KEY = "shardId-000000000000"
AT_10, AT_9 = Checkpoint("10", 3), Checkpoint("9")
METADATA = PykclMetadata(
    stream_arn="arn:aws:kinesis:us-east-1:123456789012:stream/s", owner="me", version="0.1.0"
)
HELD = Lease(
    KEY,
    AT_10,
    counter=7,
    owner="me",
    owner_switches=2,
    hash_range=HashRange(0, 9),
    throughput="3.35E-4",
    extra={"later": {"N": "1"}},
)


BARE = HELD.with_(hash_range=None)


def row(**changes):
    item = {
        "leaseKey": {"S": KEY},
        "leaseCounter": {"N": "4"},
        "leaseOwner": {"S": "w1"},
        "ownerSwitchesSinceCheckpoint": {"N": "1"},
        "checkpoint": {"S": "10"},
        "checkpointSubSequenceNumber": {"N": "3"},
        "startingHashKey": {"S": "0"},
        "endingHashKey": {"S": "340282366920938463463374607431768211455"},
        **changes,
    }
    return {name: value for name, value in item.items() if value is not None}


def problem(**changes):
    found = parse_row(row(**changes))
    assert isinstance(found, UnreadableRow), found
    assert found.key == KEY
    return found.problem


# -- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "item"), GOLDEN)
def test_every_row_of_real_java_workers_is_a_lease_that_round_trips_or_foreign(table, item):
    found = parse_row(item)
    kind = item.get("entityType", {}).get("S")
    if kind in (None, "LEASE") and "-" not in table:
        assert isinstance(found, Lease)
        assert to_item(found) == item
        assert found.owner == item.get("leaseOwner", {}).get("S")
        assert found.counter == int(item["leaseCounter"]["N"])
    else:
        assert isinstance(found, ForeignRow)
        assert found.key in KEYS_OF_FOREIGN_ROWS


def test_the_golden_files_hold_leases_of_every_kind_and_foreign_rows():
    found = [parse_row(parameter.values[1]) for parameter in GOLDEN]
    leases = [one for one in found if isinstance(one, Lease)]
    assert len(leases) == 284
    assert sum(isinstance(one, ForeignRow) for one in found) == 16
    assert any(len(one.parents) == 2 for one in leases)
    assert any(one.children for one in leases)
    assert any(one.entity_type == "LEASE" for one in leases)
    assert any(one.throughput for one in leases)


def test_a_full_row_of_ours_round_trips():
    lease = Lease(
        KEY,
        AT_10,
        counter=5,
        owner="me",
        owner_switches=1,
        parents=("a", "b"),
        children=("c",),
        hash_range=HashRange(0, 7),
        pending=PendingCheckpoint(Checkpoint("11", 2), b"state"),
        checkpoint_owner="other",
        entity_type="LEASE",
        metadata=PykclMetadata(
            "arn",
            1_700_000_000_000,
            "me",
            "0.1.0",
            1_700_000_000_001,
            {"later": {"BOOL": True}},
            "3f2a",
            10_000,
            until=1_700_000_000_002,
            begin="TRIM_HORIZON",
            shards="001,007",
        ),
        throughput="1.5",
    )
    assert parse_row(to_item(lease)) == lease


@pytest.mark.parametrize("owner", [None, {"NULL": True}, {"S": ""}])
def test_an_absent_a_null_typed_and_an_empty_owner_read_as_unowned(owner):
    found = parse_row(row(leaseOwner=owner))
    assert isinstance(found, Lease)
    assert found.owner is None
    assert to_item(found) == row(leaseOwner=owner)


def test_an_ended_row_with_a_stale_sub_sequence_number_is_ended():
    found = parse_row(row(checkpoint={"S": "SHARD_END"}, checkpointSubSequenceNumber={"N": "1700000000000"}))
    assert isinstance(found, Lease)
    assert found.is_ended


def test_a_missing_sub_sequence_number_reads_as_zero_like_java():
    found = parse_row(row(checkpointSubSequenceNumber=None))
    assert isinstance(found, Lease)
    assert found.checkpoint == Checkpoint("10", 0)


def test_one_end_of_a_hash_range_alone_is_no_range_but_is_kept():
    found = parse_row(row(endingHashKey=None))
    assert isinstance(found, Lease)
    assert found.hash_range is None
    assert to_item(found) == row(endingHashKey=None)


def test_a_pending_checkpoint_with_its_state_is_read():
    found = parse_row(
        row(
            pendingCheckpoint={"S": "12"},
            pendingCheckpointSubSequenceNumber={"N": "1"},
            pendingCheckpointState={"B": b"\x00x"},
        )
    )
    assert isinstance(found, Lease)
    assert found.pending == PendingCheckpoint(Checkpoint("12", 1), b"\x00x")


def test_a_private_note_that_is_junk_costs_nothing_and_is_kept():
    junk = {
        "M": {"streamArn": {"N": "1"}, "latestFrom": {"N": "1e9"}, "owner": {"S": "me"}, "new": {"L": []}}
    }
    found = parse_row(row(pykcl=junk))
    assert isinstance(found, Lease)
    assert found.metadata is not None
    assert (found.metadata.owner, found.metadata.stream_arn, found.metadata.latest_from) == ("me", None, None)
    assert to_item(found) == row(pykcl=junk)
    other = parse_row(row(pykcl={"S": "junk"}))
    assert isinstance(other, Lease)
    assert other.metadata is None
    assert other.extra["pykcl"] == {"S": "junk"}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"entityType": {"S": "LEADER"}}, "LEADER"),
        ({"entityType": {"S": "x" * 500}}, "x" * 64),
        ({"entityType": {"N": "1"}}, "unknown"),
        ({"streamName": {"S": "123456789012:s:1"}, "shardId": {"S": KEY}}, "multi-stream lease"),
        ({"leaseKey": {"S": f"123456789012:orders:1700000000:{KEY}"}}, "multi-stream lease"),
    ],
)
def test_rows_that_are_not_single_stream_leases_are_foreign(changes, kind):
    found = parse_row(row(**changes))
    assert isinstance(found, ForeignRow)
    assert found.kind == kind


@pytest.mark.parametrize(
    "item",
    [
        {"leaseKey": {"S": "Leader"}, "recordVersionNumber": {"S": "x"}, "leaseDuration": {"S": "20000"}},
        {"leaseKey": {"S": "Migration3.0"}, "cv": {"S": "CLIENT_VERSION_2X"}},
        {"leaseKey": {"S": "TableMigration3.5"}, "tm": {"S": "INIT"}},
        {"leaseKey": {"S": "w1"}, "lut": {"N": "1795226979"}, "sts": {"M": {}}},
        {"wid": {"S": "w1"}, "lut": {"N": "1795226979"}},
    ],
)
def test_auxiliary_rows_without_an_entity_type_are_foreign(item):
    assert isinstance(parse_row(item), ForeignRow)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"leaseCounter": None}, "leaseCounter"),
        ({"leaseCounter": {"S": "4"}}, "leaseCounter"),
        ({"leaseCounter": {"N": "-1"}}, "leaseCounter"),
        ({"leaseCounter": {"N": "1.5"}}, "leaseCounter"),
        ({"leaseCounter": {"N": "9" * 5000}}, "leaseCounter"),
        ({"leaseCounter": {"N": str(2**63)}}, "leaseCounter"),
        ({"ownerSwitchesSinceCheckpoint": None}, "ownerSwitches"),
        ({"checkpoint": None}, "checkpoint"),
        ({"checkpoint": {"S": "HORIZON"}}, "checkpoint"),
        ({"checkpoint": {"S": "9" * 5000}}, "checkpoint"),
        ({"checkpoint": {"N": "10"}}, "checkpoint"),
        ({"checkpointSubSequenceNumber": {"N": "-2"}}, "checkpointSub"),
        ({"leaseOwner": {"S": "x" * 257}}, "leaseOwner"),
        ({"leaseOwner": {"N": "1"}}, "leaseOwner"),
        ({"startingHashKey": {"S": "junk"}}, "HashKey"),
        ({"startingHashKey": {"S": "5"}, "endingHashKey": {"S": "5"}}, "HashKey"),
        ({"endingHashKey": {"S": str(2**128)}}, "HashKey"),
        ({"parentShardId": {"S": "shardId-1"}}, "parentShardId"),
        ({"parentShardId": {"SS": ["a", "b", "c"]}}, "parentShardId"),
        ({"parentShardId": {"SS": ["x" * 257]}}, "parentShardId"),
        ({"childShardIds": {"L": []}}, "childShardIds"),
        ({"pendingCheckpoint": {"S": "junk"}}, "pendingCheckpoint"),
        ({"pendingCheckpoint": {"S": "1"}, "pendingCheckpointState": {"S": "x"}}, "pendingCheckpointState"),
    ],
)
def test_a_lease_that_cannot_be_understood_is_unreadable_and_says_why(changes, word):
    assert word in problem(**changes)


def test_a_row_without_a_usable_key_is_unreadable():
    assert isinstance(parse_row(row(leaseKey={"S": "x" * 257})), UnreadableRow)
    assert isinstance(parse_row(row(leaseKey=None)), UnreadableRow)


# -- writing ------------------------------------------------------------------------------------------------------


OF_THE_OWNER = "leaseCounter = :seenCounter AND leaseOwner = :seenOwner AND checkpoint = :seenCheckpoint"


def request(write):
    operation, params = write.request()
    assert params["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"
    if operation == "update_item":
        assert params["ReturnValues"] == "ALL_NEW"
        assert params["Key"] == {"leaseKey": {"S": write.key}}
        assert write.after.counter == write.seen.counter + 1
        assert params["ExpressionAttributeValues"][":leaseCounter"] == {"N": str(write.seen.counter + 1)}
        assert ":leaseOwner" not in params["ExpressionAttributeValues"] or write.kind == "take"
    return (
        params["ConditionExpression"],
        params.get("UpdateExpression"),
        params.get("ExpressionAttributeValues"),
    )


def test_create_puts_the_whole_row_only_where_none_is():
    write = lease_writes.create(
        Lease(KEY, AT_LATEST, parents=("p",), hash_range=HashRange(0, 7), metadata=METADATA)
    )
    operation, params = write.request()
    assert operation == "put_item"
    assert params["ConditionExpression"] == "attribute_not_exists(leaseKey)"
    assert params["Item"] == {
        "leaseKey": {"S": KEY},
        "leaseCounter": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "LATEST"},
        "checkpointSubSequenceNumber": {"N": "0"},
        "parentShardId": {"SS": ["p"]},
        "startingHashKey": {"S": "0"},
        "endingHashKey": {"S": "7"},
        "entityType": {"S": "LEASE"},
        "pykcl": {
            "M": {"streamArn": {"S": METADATA.stream_arn}, "owner": {"S": "me"}, "version": {"S": "0.1.0"}}
        },
    }


def test_stealing_is_fenced_by_counter_owner_and_checkpoint_owner_and_counts_a_switch():
    seen = HELD.with_(owner="you", checkpoint_owner="old")
    condition, update, values = request(lease_writes.take(seen, "me", METADATA))
    assert condition == (
        "leaseCounter = :seenCounter AND leaseOwner = :seenOwner AND checkpointOwner = :seenCheckpointOwner"
    )
    assert update == (
        "SET leaseCounter = :leaseCounter, pykcl = :pykcl, leaseOwner = :leaseOwner "
        "REMOVE checkpointOwner ADD ownerSwitchesSinceCheckpoint :one"
    )
    assert values[":seenOwner"] == {"S": "you"}
    assert values[":seenCheckpointOwner"] == {"S": "old"}
    assert values[":leaseOwner"] == {"S": "me"}
    assert values[":one"] == {"N": "1"}


def test_taking_an_unowned_or_an_own_lease_counts_no_switch():
    unowned = lease_writes.take(HELD.with_(owner=None), "me", METADATA)
    condition, update, _ = request(unowned)
    assert condition == (
        "leaseCounter = :seenCounter AND attribute_not_exists(leaseOwner) AND attribute_not_exists(checkpointOwner)"
    )
    assert "ADD" not in update
    own = lease_writes.take(HELD, "me", METADATA)
    assert "ADD" not in request(own)[1]
    assert own.after.owner_switches == HELD.owner_switches


def test_taking_matches_a_null_typed_and_an_empty_owner_as_they_are():
    null = parse_row(row(leaseOwner={"NULL": True}))
    condition, _, values = request(lease_writes.take(null, "me"))
    assert "attribute_type(leaseOwner, :seenOwner)" in condition
    assert values[":seenOwner"] == {"S": "NULL"}
    empty = parse_row(row(leaseOwner={"S": ""}))
    write = lease_writes.take(empty, "me")
    assert request(write)[2][":seenOwner"] == {"S": ""}
    assert to_item(write.after)["leaseOwner"] == {"S": "me"}


def test_taking_keeps_pending_children_and_throughput():
    seen = HELD.with_(owner=None, pending=PendingCheckpoint(Checkpoint("11"), b"s"), children=("c",))
    after = lease_writes.take(seen, "me", METADATA).after
    assert (after.pending, after.children, after.extra) == (seen.pending, seen.children, seen.extra)


def test_renewing_moves_only_the_counter():
    condition, update, values = request(lease_writes.renew(HELD))
    assert condition == (
        "leaseCounter = :seenCounter AND leaseOwner = :seenOwner AND attribute_not_exists(checkpointOwner) "
        "AND checkpoint = :seenCheckpoint"
    )
    assert update == "SET leaseCounter = :leaseCounter"
    assert values == {
        ":seenCounter": {"N": "7"},
        ":seenOwner": {"S": "me"},
        ":seenCheckpoint": {"S": "10"},
        ":leaseCounter": {"N": "8"},
    }


def test_a_checkpoint_writes_both_numbers_resets_switches_and_clears_pending():
    condition, update, values = request(lease_writes.checkpoint(HELD, Checkpoint("11", 5)))
    assert condition == OF_THE_OWNER
    assert update == (
        "SET checkpoint = :checkpoint, checkpointSubSequenceNumber = :checkpointSubSequenceNumber, "
        "leaseCounter = :leaseCounter, ownerSwitchesSinceCheckpoint = :ownerSwitchesSinceCheckpoint "
        "REMOVE pendingCheckpoint, pendingCheckpointSubSequenceNumber, pendingCheckpointState"
    )
    assert values[":checkpoint"] == {"S": "11"}
    assert values[":checkpointSubSequenceNumber"] == {"N": "5"}
    assert values[":ownerSwitchesSinceCheckpoint"] == {"N": "0"}


def test_preparing_writes_the_pending_position_and_a_missing_state_removes_an_old_one():
    condition, update, values = request(
        lease_writes.prepare(HELD, PendingCheckpoint(Checkpoint("11", 5), b"s"))
    )
    assert condition == OF_THE_OWNER
    assert "REMOVE" not in update
    assert values[":pendingCheckpoint"] == {"S": "11"}
    assert values[":pendingCheckpointSubSequenceNumber"] == {"N": "5"}
    assert values[":pendingCheckpointState"] == {"B": b"s"}
    assert request(lease_writes.prepare(HELD, PendingCheckpoint(AT_10)))[1].endswith(
        "REMOVE pendingCheckpointState"
    )


def test_the_end_of_a_shard_is_one_write_of_position_children_and_release():
    condition, update, values = request(lease_writes.end_shard(HELD, ["a", "b"]))
    assert condition == OF_THE_OWNER
    assert update == (
        "SET checkpoint = :checkpoint, checkpointSubSequenceNumber = :checkpointSubSequenceNumber, "
        "childShardIds = :childShardIds, leaseCounter = :leaseCounter, "
        "ownerSwitchesSinceCheckpoint = :ownerSwitchesSinceCheckpoint "
        "REMOVE checkpointOwner, leaseOwner, pendingCheckpoint, pendingCheckpointSubSequenceNumber, "
        "pendingCheckpointState"
    )
    assert values[":checkpoint"] == {"S": "SHARD_END"}
    assert values[":checkpointSubSequenceNumber"] == {"N": "0"}
    assert values[":childShardIds"] == {"SS": ["a", "b"]}


def test_releasing_removes_the_owners_and_keeps_the_checkpoint():
    condition, update, _ = request(lease_writes.release(HELD))
    assert condition == OF_THE_OWNER
    assert update == "SET leaseCounter = :leaseCounter REMOVE checkpointOwner, leaseOwner"
    assert lease_writes.release(HELD).after.checkpoint == AT_10


def test_deleting_asks_for_the_row_as_seen_a_lease_and_where_told_its_end():
    ended = HELD.with_(owner=None, checkpoint=AT_SHARD_END)
    condition, update, values = request(lease_writes.delete(ended, ended=True))
    assert condition == (
        "leaseCounter = :seenCounter AND attribute_not_exists(leaseOwner) AND "
        "(attribute_not_exists(entityType) OR entityType = :lease) AND checkpoint = :shardEnd"
    )
    assert update is None
    assert values[":shardEnd"] == {"S": "SHARD_END"}
    assert "checkpoint" not in request(lease_writes.delete(HELD, ended=False))[0]


def test_filling_asks_for_no_owner_and_no_counter_and_names_nothing_but_the_hash_range():
    seen = parse_row(row(leaseOwner={"S": "they"}, startingHashKey=None, endingHashKey={"NULL": True}))
    operation, params = lease_writes.fill_hash_range(seen, HashRange(0, 9)).request()
    assert operation == "update_item"
    assert params["ConditionExpression"] == (
        "attribute_exists(leaseCounter) AND (attribute_not_exists(entityType) OR entityType = :lease) AND "
        "attribute_not_exists(startingHashKey) AND attribute_type(endingHashKey, :seenEndingHashKey)"
    )
    assert (
        params["UpdateExpression"] == "SET startingHashKey = :startingHashKey, endingHashKey = :endingHashKey"
    )
    assert params["ExpressionAttributeValues"] == {
        ":lease": {"S": "LEASE"},
        ":seenEndingHashKey": {"S": "NULL"},
        ":startingHashKey": {"S": "0"},
        ":endingHashKey": {"S": "9"},
    }


def test_a_filled_row_knows_its_hash_range_once_and_keeps_its_counter():
    seen = parse_row(row(startingHashKey={"S": "0"}, endingHashKey=None))
    after = lease_writes.fill_hash_range(seen, HashRange(0, 9)).after
    assert (after.counter, after.hash_range, after.extra) == (seen.counter, HashRange(0, 9), {})


def test_a_take_writes_the_private_note_with_what_later_versions_put_there_and_no_other_update_does():
    metadata = PykclMetadata(owner="me", extra={"later": {"S": "x"}})
    taken = lease_writes.take(HELD, "you", metadata)
    assert request(taken)[2][":pykcl"] == {"M": {"later": {"S": "x"}, "owner": {"S": "me"}}}
    held = taken.after
    for write in (
        lease_writes.renew(held),
        lease_writes.checkpoint(held, AT_10),
        lease_writes.prepare(held, PendingCheckpoint(AT_10)),
        lease_writes.end_shard(held, ["c"]),
        lease_writes.release(held),
    ):
        assert ":pykcl" not in request(write)[2]
        assert write.after.metadata == metadata


@pytest.mark.parametrize(
    "build",
    [
        lambda: lease_writes.checkpoint(HELD, AT_9),
        lambda: lease_writes.checkpoint(HELD, Checkpoint("10", 2)),
        lambda: lease_writes.checkpoint(HELD, AT_SHARD_END),
        lambda: lease_writes.checkpoint(HELD.with_(checkpoint=AT_TRIM_HORIZON), AT_LATEST),
        lambda: lease_writes.checkpoint(HELD.with_(checkpoint=AT_SHARD_END), Checkpoint("11")),
        lambda: lease_writes.checkpoint(HELD.with_(owner=None), Checkpoint("11")),
        lambda: lease_writes.prepare(HELD, PendingCheckpoint(AT_9)),
        lambda: lease_writes.prepare(HELD, PendingCheckpoint(Checkpoint("SHARD_END", 1))),
        lambda: lease_writes.prepare(HELD, PendingCheckpoint(Checkpoint("11"), b"x" * 300_000)),
        lambda: lease_writes.create(HELD),
        lambda: lease_writes.create(Lease(KEY, Checkpoint("AT_TIMESTAMP", 1_700_000_000_000))),
        lambda: lease_writes.renew(HELD.with_(owner=None)),
        lambda: lease_writes.release(HELD.with_(owner=None)),
        lambda: lease_writes.end_shard(HELD, [""]),
        lambda: lease_writes.take(HELD, ""),
        lambda: lease_writes.take(HELD, "x" * 257),
        lambda: lease_writes.delete(HELD, ended=True),
        lambda: lease_writes.delete(HELD, ended=False).rebased(HELD),
        lambda: lease_writes.fill_hash_range(HELD, HashRange(0, 9)),
        lambda: lease_writes.fill_hash_range(BARE, HashRange(0, 9)).rebased(BARE),
    ],
)
def test_writes_that_would_harm_the_row_cannot_be_built(build):
    with pytest.raises(ValueError, match=r"\w"):
        build()


# -- settling -----------------------------------------------------------------------------------------------------

ENDED = HELD.with_(owner=None, checkpoint=AT_SHARD_END)
WRITES = {
    "take": lease_writes.take(HELD.with_(owner="you"), "me", METADATA),
    "renew": lease_writes.renew(HELD),
    "checkpoint": lease_writes.checkpoint(HELD, Checkpoint("11")),
    "prepare": lease_writes.prepare(HELD, PendingCheckpoint(Checkpoint("11"), b"s")),
    "end": lease_writes.end_shard(HELD, ["a", "b"]),
    "release": lease_writes.release(HELD),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_row_as_the_write_makes_it_settles_as_kept(write):
    assert resolve_conflict(write, write.after) == "applied"
    assert resolve_conflict(write, write.after.with_(extra={"foreign": {"S": "x"}})) == "applied"


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_row_of_anyone_else_or_of_another_counter_settles_as_lost(write):
    assert resolve_conflict(write, None) == "rejected"
    assert resolve_conflict(write, ForeignRow(KEY, "LEADER")) == "rejected"
    assert resolve_conflict(write, UnreadableRow(KEY, "junk")) == "rejected"
    assert resolve_conflict(write, write.after.with_(owner="they")) == "rejected"
    assert resolve_conflict(write, write.after.with_(counter=write.after.counter + 1)) == "rejected"
    assert resolve_conflict(write, write.seen) == "rejected"


@pytest.mark.parametrize("kind", ["checkpoint", "prepare", "end", "release"])
def test_another_write_of_ours_that_landed_late_is_adopted(kind):
    landed = lease_writes.renew(HELD).after
    assert resolve_conflict(WRITES[kind], landed) == "adopt"
    again = WRITES[kind].rebased(landed)
    assert again.seen == landed
    assert again.after.counter == HELD.counter + 2
    assert again.written == WRITES[kind].written


def test_the_end_of_a_shard_that_was_asked_for_is_its_hand_over():
    """The leader asks 1) after the last heartbeat, 2) before SHARD_END, which then finds another owner in the row."""
    write = lease_writes.end_shard(HELD, ("a",), keeps_owner=True)
    ended = write.rebased(HELD.with_(owner="you", checkpoint_owner=HELD.owner)).after
    assert (ended.is_ended, ended.owner, ended.checkpoint_owner) == (True, "you", None)


def test_a_take_by_an_earlier_attempt_with_another_note_is_adopted():
    landed = lease_writes.take(HELD.with_(owner="you"), "me", PykclMetadata(version="old")).after
    assert resolve_conflict(WRITES["take"], landed) == "adopt"
    assert WRITES["take"].rebased(landed).after.owner_switches == landed.owner_switches


def after_no_answer_to(earlier, write):
    return replace(write, unanswered=earlier.after_no_answer().unanswered)


def test_a_renewal_is_content_with_any_own_write_that_moved_the_counter():
    renewal = after_no_answer_to(WRITES["checkpoint"], WRITES["renew"])
    assert resolve_conflict(renewal, WRITES["checkpoint"].after) == "applied"


def test_a_rebased_checkpoint_never_moves_backwards():
    early = lease_writes.checkpoint(HELD, Checkpoint("20"))
    late = after_no_answer_to(early, lease_writes.checkpoint(HELD, Checkpoint("15")))
    assert resolve_conflict(late, early.after) == "adopt"
    assert late.rebased(early.after).after.checkpoint == Checkpoint("20")


# -- a checkpoint that somebody else wrote -----------------------------------------------------------------------

OF_AN_OWNER = {kind: write for kind, write in WRITES.items() if kind != "take"}
ELSEWHERE = [AT_9, Checkpoint("500"), Checkpoint("10", 4), AT_TRIM_HORIZON, AT_LATEST, AT_SHARD_END]


@pytest.mark.parametrize("write", OF_AN_OWNER.values(), ids=OF_AN_OWNER)
@pytest.mark.parametrize("found", ELSEWHERE, ids=str)
def test_a_checkpoint_of_others_is_overwritten_where_the_counter_stands_still(write, found):
    there = write.seen.with_(checkpoint=found)
    if write.kind == "end" and found == AT_SHARD_END:
        found, there = AT_9, write.seen.with_(checkpoint=AT_9)
    assert resolve_conflict(write, there) == "restate"
    again = write.restating(there)
    assert again.after.checkpoint == write.after.checkpoint
    assert again.after.counter == there.counter + 1
    condition, update, values = request(again)
    assert ":seenCheckpoint" not in values
    assert "checkpoint = :checkpoint, checkpointSubSequenceNumber = :checkpointSubSequenceNumber" in update
    assert values[":checkpoint"] == {"S": write.after.checkpoint.sequence_number}
    assert "leaseCounter = :seenCounter AND leaseOwner = :seenOwner" in condition
    assert resolve_conflict(again, again.after) == "applied"


@pytest.mark.parametrize("write", OF_AN_OWNER.values(), ids=OF_AN_OWNER)
@pytest.mark.parametrize("step", [1, 2, 50])
def test_who_moves_the_counter_too_ends_the_ownership(write, step):
    there = write.seen.with_(checkpoint=AT_9, counter=write.seen.counter + step)
    assert resolve_conflict(write, there) == "rejected"


@pytest.mark.parametrize("write", OF_AN_OWNER.values(), ids=OF_AN_OWNER)
def test_a_counter_that_our_own_unanswered_write_may_have_moved_proves_nothing(write):
    """1) A heartbeat lands, its answer is lost; 2) somebody changes the checkpoint alone; 3) the next one is refused."""
    there = write.seen.with_(checkpoint=Checkpoint("500"), counter=write.seen.counter + 1)
    write = write.after_no_answer()
    assert resolve_conflict(write, there) == "restate"
    assert write.restating(there).after.counter == there.counter + 1


@pytest.mark.parametrize("kind", ["renew", "checkpoint", "prepare", "release"])
@pytest.mark.parametrize("step", [0, 1, 7])
def test_an_end_that_others_wrote_is_refused_whatever_the_counter(kind, step):
    write = WRITES[kind]
    there = write.seen.with_(checkpoint=AT_SHARD_END, counter=write.seen.counter + step)
    assert resolve_conflict(write, there) == "restate"
    assert not write.restating(there).after.is_ended


@pytest.mark.parametrize("kind", ["renew", "checkpoint", "release"])
def test_what_is_put_back_is_the_furthest_checkpoint_that_the_row_may_have_had_from_this_writer(kind):
    """1) A checkpoint lands, its answer is lost; 2) somebody changes it alone; 3) a heartbeat puts back its writer's."""
    checkpointed = lease_writes.checkpoint(HELD, Checkpoint("30"))
    write = after_no_answer_to(checkpointed, WRITES[kind])
    there = checkpointed.after.with_(checkpoint=AT_9)
    assert resolve_conflict(write, there) == "restate"
    assert write.restating(there).after.checkpoint == Checkpoint("30")
    assert write.restating().after.checkpoint == Checkpoint("30")


def test_the_row_of_another_process_or_owner_is_left_to_it_wherever_its_checkpoint_is():
    mine = HELD.with_(metadata=PykclMetadata(process_token="a"))
    renewal = lease_writes.renew(mine)
    there = mine.with_(checkpoint=AT_SHARD_END, counter=8)
    assert resolve_conflict(renewal, there.with_(owner="they")) == "rejected"
    assert resolve_conflict(renewal, there.with_(metadata=PykclMetadata(process_token="b"))) == "rejected"


def test_a_checkpoint_that_cannot_be_read_is_overwritten_once():
    junk = UnreadableRow(KEY, "junk", "me")
    assert resolve_conflict(WRITES["renew"], junk) == "restate"
    again = WRITES["renew"].restating(junk)
    assert again.seen == HELD
    assert resolve_conflict(again, junk) == "rejected"


def test_a_lease_that_a_leader_asks_for_and_an_operator_moves_keeps_its_own_checkpoint():
    asked = HELD.with_(owner="next", checkpoint_owner="me", checkpoint=Checkpoint("500"))
    assert resolve_conflict(WRITES["release"], asked) == "restate"
    again = WRITES["release"].restating(asked)
    assert (again.kind, again.after.owner, again.after.checkpoint) == ("hand-over", "next", AT_10)


def test_children_compare_as_a_set():
    after = WRITES["end"].after
    assert resolve_conflict(WRITES["end"], after.with_(children=("b", "a"))) == "applied"


def test_an_identical_row_by_a_peer_is_as_good_as_our_own_creation():
    ours = lease_writes.create(Lease(KEY, AT_TRIM_HORIZON, metadata=METADATA))
    theirs = lease_writes.create(
        Lease(KEY, AT_TRIM_HORIZON, metadata=PykclMetadata(METADATA.stream_arn, owner="they"))
    )
    assert resolve_conflict(ours, theirs.after) == "applied"
    assert resolve_conflict(ours, theirs.after.with_(counter=1)) == "rejected"
    assert resolve_conflict(ours, theirs.after.with_(owner="they")) == "rejected"
    assert resolve_conflict(ours, theirs.after.with_(checkpoint=AT_LATEST)) == "rejected"
    assert resolve_conflict(ours, theirs.after.with_(metadata=PykclMetadata("arn:other"))) == "rejected"


def test_a_fill_is_kept_where_the_row_has_that_hash_range_whoever_wrote_it_and_whatever_else_is_there():
    fill = lease_writes.fill_hash_range(BARE, HashRange(0, 9))
    there = fill.after.with_(owner="they", counter=99, checkpoint=Checkpoint("77"))
    assert resolve_conflict(fill, there) == "applied"
    for row_now in (None, BARE, there.with_(hash_range=HashRange(0, 8)), UnreadableRow(KEY, "junk")):
        assert resolve_conflict(fill, row_now) == "rejected"


def test_a_delete_is_kept_only_when_the_row_is_gone():
    assert resolve_conflict(lease_writes.delete(ENDED, ended=True), None) == "applied"
    assert resolve_conflict(lease_writes.delete(ENDED, ended=True), ENDED) == "rejected"


def test_no_attribute_name_of_an_expression_is_a_reserved_word_of_dynamodb():
    words = pytest.importorskip(
        "moto.dynamodb.parsing.reserved_keywords"
    ).ReservedKeywords.get_reserved_keywords()
    from pykcl.model.lease_item import FIELD_ATTRIBUTES

    names = {name.upper() for names in FIELD_ATTRIBUTES.values() for name in names} | {"LEASEKEY"}
    assert len(words) > 500
    assert not names & set(words)
