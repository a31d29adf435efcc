"""The one write that may move a checkpoint backwards: what it asks for, what it leaves, and what a refusal proves."""

import pytest

from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, PendingCheckpoint
from pykcl.model.lease_item import parse_row, to_item
from pykcl.model.lease_writes import resolve_conflict

SEEN = Lease(
    "a",
    Checkpoint("10", 3),
    counter=7,
    owner="me",
    owner_switches=2,
    pending=PendingCheckpoint(Checkpoint("11"), b"s"),
    extra={"throughputKBps": {"N": "1"}},
)
RESET = lease_writes.reset(SEEN, Checkpoint("5", 2))


def test_it_moves_backwards_and_takes_owner_switches_pending_and_children_away():
    ended = SEEN.with_(checkpoint=AT_SHARD_END, children=("b", "c"), pending=None)
    after = lease_writes.reset(ended, AT_TRIM_HORIZON).after
    assert (after.checkpoint, after.owner, after.counter, after.owner_switches) == (
        AT_TRIM_HORIZON,
        None,
        8,
        0,
    )
    assert (after.children, after.pending, after.extra) == ((), None, SEEN.extra)
    removed = RESET.request()[1]["UpdateExpression"].partition(" REMOVE ")[2].split(", ")
    assert sorted(removed) == [
        "checkpointOwner",
        "childShardIds",
        "leaseOwner",
        "pendingCheckpoint",
        "pendingCheckpointState",
        "pendingCheckpointSubSequenceNumber",
    ]


def test_it_asks_for_counter_owner_and_hand_off_as_seen_and_for_a_lease():
    assert RESET.request()[1]["ConditionExpression"] == (
        "leaseCounter = :seenCounter AND leaseOwner = :seenOwner AND attribute_not_exists(checkpointOwner) "
        "AND (attribute_not_exists(entityType) OR entityType = :lease)"
    )
    handed = lease_writes.reset(SEEN.with_(owner="next", checkpoint_owner="me"), AT_TRIM_HORIZON)
    assert "checkpointOwner = :seenCheckpointOwner" in handed.request()[1]["ConditionExpression"]


def test_an_owner_of_type_null_is_matched_and_goes():
    row = parse_row({**to_item(SEEN.with_(owner=None)), "leaseOwner": {"NULL": True}})
    write = lease_writes.reset(row, AT_TRIM_HORIZON)
    assert "attribute_type(leaseOwner, :seenOwner)" in write.request()[1]["ConditionExpression"]
    assert "leaseOwner" not in to_item(write.after)


def test_a_renewal_of_the_owner_that_came_first_is_not_taken_for_an_earlier_reset():
    assert resolve_conflict(RESET, SEEN.with_(counter=8)) == "rejected"
    assert resolve_conflict(RESET, SEEN.with_(counter=8, owner="you")) == "rejected"
    assert resolve_conflict(RESET, None) == "rejected"


def test_its_own_earlier_attempt_is_kept():
    assert resolve_conflict(RESET, RESET.after) == "applied"


def test_the_owners_renewal_after_it_is_lost_and_not_taken_for_one_of_its_own():
    assert resolve_conflict(lease_writes.renew(SEEN), RESET.after) == "rejected"
    assert resolve_conflict(lease_writes.checkpoint(SEEN, Checkpoint("12")), RESET.after) == "rejected"


def test_what_java_does_with_a_refused_renewal_is_to_give_up():
    # DynamoDBLeaseRefresher.renewLease: one's own name and the counter + 1 pass for an earlier renewal.
    assert not (RESET.after.owner == SEEN.owner and RESET.after.counter == SEEN.counter + 1)


def test_it_is_never_sent_again_on_another_row():
    with pytest.raises(ValueError, match="rebased"):
        RESET.rebased(SEEN.with_(counter=8))


def test_sentinels_go_with_sub_sequence_number_0_and_children_with_the_end():
    with pytest.raises(ValueError, match="sub-sequence number 0"):
        lease_writes.reset(SEEN, Checkpoint("TRIM_HORIZON", 1))
    with pytest.raises(ValueError, match="not at its end"):
        lease_writes.reset(SEEN, Checkpoint("5"), children=("b",))
    back = lease_writes.reset(SEEN, AT_SHARD_END, children=("b",), pending=None)
    assert back.after.children == ("b",)
