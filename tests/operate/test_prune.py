"""Deletion of leases of shards that are gone."""

import pytest
from fleet_table import ARN, NAME, at, ended, lease, note, shard

from pykcl.errors import Refused
from pykcl.local.stream import LocalKinesis
from pykcl.model.checkpoint import AT_LATEST
from pykcl.model.shard import ShardListing
from pykcl.operate.prune import plan_prune, prune
from pykcl.testing.memory.dynamodb import Fault
from pykcl.testing.memory.expressions import aws_error
from pykcl.testing.memory.stream import MemoryStream


def failing(*, before=None, after=None, operation="UpdateItem", times=1):
    left = [times]

    def fault(name, params):
        if name != operation or not left[0]:
            return None
        left[0] -= 1
        error = aws_error("InternalServerError", "sorry", name, status=500)
        return Fault(before=error if before else None, after=error if after else None)

    return fault


@pytest.fixture
def kinesis(clock):
    # A listing that lags behind a split keeps rows; what goes is asked here.
    found = LocalKinesis(lambda: 1_790_000_000_000 + int(clock.now * 1000), listing_lag=0)
    found.create_stream("orders", 1)
    return found


@pytest.fixture
def stream(kinesis, clock):
    """shard 0 was split into 1 and 2."""
    kinesis.split("orders", shard(0))
    return MemoryStream(kinesis, "orders", clock)


def noted(stream, one):
    told = stream.describe()
    return one.with_(metadata=note("w1").__class__(stream_arn=told.arn, stream_created_at=told.created_at))


def keys(plan):
    return [one.seen.key for one in plan.deletions]


def test_an_ended_lease_goes_once_all_its_children_have_been_started(table, stream):
    table.put(ended(0, 1, 2), lease(1, "w1", at(5), parents=(shard(0),)), lease(2, "w1", parents=(shard(0),)))
    assert keys(plan_prune(table.view(), stream)) == []
    table.put(lease(2, "w1", AT_LATEST, parents=(shard(0),)))
    plan = plan_prune(table.view(), stream)
    assert (keys(plan), plan.kept) == ([shard(0)], 2)
    assert table.writes() == []
    assert [one.outcome for one in prune(table.rows, plan)] == ["deleted"]
    assert table.row(0) is None
    assert table.row(1) is not None


def test_generations_go_in_one_run_parents_first(table, kinesis, stream):
    kinesis.split("orders", shard(1))
    table.put(
        ended(0, 1, 2),
        ended(1, 3, 4, parents=(shard(0),)),
        lease(2, "w1", at(5), parents=(shard(0),)),
        lease(3, "w1", at(6), parents=(shard(1),)),
        lease(4, "w1", at(7), parents=(shard(1),)),
    )
    plan = plan_prune(table.view(), stream)
    assert keys(plan) == [shard(0), shard(1)]
    assert [one.outcome for one in prune(table.rows, plan)] == ["deleted", "deleted"]


def test_a_row_that_changed_since_it_was_shown_stays_and_holds_its_descendants_back(table, kinesis, stream):
    kinesis.split("orders", shard(1))
    table.put(
        ended(0, 1, 2, owner="java"),
        ended(1, 3, 4, parents=(shard(0),)),
        lease(2, "w1", at(5), parents=(shard(0),)),
        lease(3, "w1", at(6), parents=(shard(1),)),
        lease(4, "w1", at(7), parents=(shard(1),)),
    )
    plan = plan_prune(table.view(), stream)
    table.renew(0)
    assert [one.outcome for one in prune(table.rows, plan)] == ["changed", "held back"]
    assert table.row(0) is not None
    assert table.row(1) is not None


def test_a_shard_kinesis_has_dropped_goes_and_one_it_only_does_not_list_stays(table, stream, monkeypatch):
    table.put(lease(1, "w1", at(5)), lease(2, "w1", at(5)), lease(77, None, at(5)))
    assert keys(plan_prune(table.view(), stream)) == [shard(77)]
    whole = stream.list_shards()
    lacking = ShardListing(tuple(one for one in whole.shards if one.shard_id != shard(2)))
    monkeypatch.setattr(stream, "list_shards", lambda: lacking)
    assert keys(plan_prune(table.view(), stream)) == [shard(77)]


def test_nothing_is_concluded_from_a_listing_that_is_incomplete(table, stream, monkeypatch):
    whole = stream.list_shards()
    monkeypatch.setattr(stream, "list_shards", lambda: ShardListing(whole.shards, complete=False))
    table.put(lease(77, "w1", at(5)), lease(1, "w1", at(5)))
    with pytest.raises(Refused, match="listed completely"):
        plan_prune(table.view(), stream)


def test_leases_of_another_stream_are_refused_altogether(table, stream):
    table.put(noted(stream, lease(1, "w1", at(5))), lease(2, "w1", metadata=note("w1")))
    with pytest.raises(Refused, match=ARN):
        plan_prune(table.view(), stream)


def test_a_table_of_several_streams_is_refused(table, stream):
    table.put_item(leaseKey={"S": f"123456789012:orders:1:{shard(0)}"}, streamName={"S": "x"}, shardId={"S": shard(0)}, leaseCounter={"N": "1"}, ownerSwitchesSinceCheckpoint={"N": "0"}, checkpoint={"S": "SHARD_END"})  # fmt: skip
    with pytest.raises(Refused, match="several streams"):
        plan_prune(table.view(), stream)


def test_a_deletion_whose_answer_was_lost_counts_when_the_row_is_gone(table, stream):
    table.put(
        ended(0, 1, 2), lease(1, "w1", at(5), parents=(shard(0),)), lease(2, "w1", at(5), parents=(shard(0),))
    )
    plan = plan_prune(table.view(), stream)
    table.client.fault = failing(after=True, operation="DeleteItem")
    assert [one.outcome for one in prune(table.rows, plan)] == ["deleted"]
    assert shard(0) not in table.client.rows(NAME)
