"""What the scenario form cannot say: which stream a row belongs to, and what a deletion carries."""

from __future__ import annotations

import pytest

from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.model.shard import Shard, ShardListing, StreamDescription
from pykcl.planning.lease_deletion import garbage_candidates, plan_deletions

STREAM = StreamDescription("orders", "arn:aws:kinesis:eu-west-1:123456789012:stream/orders", 1_000, "ACTIVE")
LISTING = ShardListing((Shard("p"), Shard("a", ("p",))))


@pytest.mark.parametrize("metadata", [{"stream_created_at": 999}, {"stream_arn": "arn:other"}])
def test_a_row_of_a_stream_that_was_deleted_and_created_again_is_never_deleted(metadata):
    rows = {
        "p": Lease("p", AT_SHARD_END, metadata=PykclMetadata(**metadata)),
        "a": Lease("a", Checkpoint("7")),
        "old": Lease("old", Checkpoint("7"), metadata=PykclMetadata(**metadata)),
    }
    assert plan_deletions(rows, listing=LISTING, gone=["old"], stream=STREAM) == []
    assert garbage_candidates(rows, LISTING, STREAM) == []


def test_a_row_of_this_stream_is_deleted_with_the_condition_that_it_is_still_as_seen():
    metadata = PykclMetadata(stream_arn=STREAM.arn, stream_created_at=STREAM.created_at)
    rows = {
        "p": Lease("p", AT_SHARD_END, counter=9, metadata=metadata),
        "a": Lease("a", Checkpoint("7")),
        "old": Lease("old", Checkpoint("7"), counter=3, metadata=metadata),
    }
    deletions = plan_deletions(rows, listing=LISTING, gone=["old"], stream=STREAM)
    assert [(plan.seen, plan.reason) for plan in deletions] == [
        (rows["old"], "Kinesis no longer knows the shard"),
        (rows["p"], "every child has been started"),
    ]
    assert garbage_candidates(rows, LISTING, STREAM) == ["old"]


def test_an_incomplete_listing_names_no_candidates():
    rows = {"old": Lease("old", Checkpoint("7"))}
    assert garbage_candidates(rows, ShardListing(LISTING.shards, complete=False)) == []


def test_the_youngest_shard_is_no_candidate_while_it_has_an_owner_or_nobody_has_read_it():
    listing = ShardListing((Shard("shardId-000000000003"), Shard("shardId-000000000004")))
    read = Checkpoint("7")
    rows = {
        "shardId-000000000002": Lease("shardId-000000000002", read, owner="w1"),
        "shardId-000000000005": Lease("shardId-000000000005", read, owner="w1"),
        "shardId-000000000006": Lease("shardId-000000000006", AT_TRIM_HORIZON),
        "shardId-000000000007": Lease("shardId-000000000007", read),
    }
    assert garbage_candidates(rows, listing) == ["shardId-000000000002", "shardId-000000000007"]
