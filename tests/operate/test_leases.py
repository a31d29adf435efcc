"""Release of a lease by an operator, and deletion of leases of shards that are gone."""

import pytest
from fleet_table import ARN, NAME, at, ended, lease, note, shard

from pykcl.errors import Refused, SetupError, TemporaryError
from pykcl.local.stream import LocalKinesis
from pykcl.model.checkpoint import AT_LATEST
from pykcl.model.lease import ForeignRow, PendingCheckpoint, UnreadableRow
from pykcl.model.shard import ShardListing
from pykcl.operate.leases import end_of_run, plan_prune, plan_release, prune, release
from pykcl.operate.snapshot import TableSnapshot
from pykcl.stores.expressions import aws_error
from pykcl.testing.memory.dynamodb import Fault
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


def planned(table, number):
    return plan_release(shard(number), table.rows.read(shard(number)))


def of_a_run(number, until):
    return lease(number, None, at(7), metadata=note("w1", until=until))


def test_a_table_of_a_run_is_known_by_the_end_that_all_of_its_leases_have():
    first, second = of_a_run(0, 1000), of_a_run(1, 1000)
    assert end_of_run(TableSnapshot({one.key: one for one in (first, second)})) == 1000


@pytest.mark.parametrize("view", [
    TableSnapshot(), TableSnapshot({shard(0): lease(0, None, at(7))}),
    TableSnapshot({shard(0): of_a_run(0, 1000), shard(1): of_a_run(1, 2000)}),
    TableSnapshot({shard(0): of_a_run(0, 1000), shard(1): lease(1, None, at(7))}),
    TableSnapshot({shard(0): of_a_run(0, 1000)}, foreign=(ForeignRow("Leader", "leader"),)),
    TableSnapshot({shard(0): of_a_run(0, 1000)}, unreadable={shard(1): UnreadableRow(shard(1), "odd")}),
], ids=["empty", "an application", "two ends", "a lease without", "a row of others", "an unreadable row"])  # fmt: skip
def test_a_table_of_anything_else_is_refused(view):
    with pytest.raises(Refused, match="This table is not of a run that ends"):
        end_of_run(view)


def test_a_plan_writes_nothing_and_shows_the_counter_and_owner_it_depends_on(table):
    table.put(lease(0, "w1", at(7, 3), counter=41))
    plan = planned(table, 0)
    assert (plan.owner, plan.seen.counter, plan.write.after.counter) == ("w1", 41, 42)
    assert table.writes() == []


def test_a_released_lease_has_no_owner_one_more_on_its_counter_and_its_checkpoint(table):
    before = lease(
        0, "w1", at(7, 3), counter=41, pending=PendingCheckpoint(at(9)), extra={"other": {"S": "kept"}}
    )
    table.put(before)
    result = release(table.rows, planned(table, 0), lambda plan: pytest.fail("shown again"))
    assert result.outcome == "released"
    assert table.row(0) == before.with_(owner=None, counter=42)
    assert table.writes() == ["UpdateItem"]
    assert table.operations()[-1] == "GetItem"


@pytest.mark.parametrize("renewals", [1, 2])
def test_an_owner_that_renewed_meanwhile_is_shown_again_and_only_then_released(table, renewals):
    """Nor is a renewal by exactly one taken for our own write. An owner may take it so: the row has its own name."""
    table.put(lease(0, "w1", counter=5))
    plan = planned(table, 0)
    table.renew(*[0] * renewals)
    shown = []
    result = release(table.rows, plan, shown.append)
    assert [one.seen.counter for one in shown] == [5 + renewals]
    assert result.plan is shown[0]
    assert table.row(0).counter == 6 + renewals


def test_an_owner_that_is_always_faster_is_left_alone_after_three_tries(table):
    table.put(lease(0, "w1", counter=5))
    table.client.fault = lambda operation, params: table.renew(0) if operation == "UpdateItem" else None
    with pytest.raises(Refused, match="faster 3 times"):
        release(table.rows, planned(table, 0), lambda plan: None)
    assert table.row(0).owner == "w1"
    assert table.writes() == []


def test_a_lease_that_has_another_owner_by_now_is_not_written(table):
    table.put(lease(0, "w1", counter=5))
    plan = planned(table, 0)
    table.put(lease(0, "w2", counter=5))
    with pytest.raises(Refused, match="now owned by 'w2'"):
        release(table.rows, plan, lambda plan: pytest.fail("shown again"))
    assert table.writes() == []


def test_an_answer_that_was_lost_is_found_out_by_reading(table):
    table.put(lease(0, "w1", counter=5))
    table.client.fault = failing(after=True)
    result = release(table.rows, planned(table, 0), lambda plan: pytest.fail("shown again"))
    assert result.outcome == "released"
    assert table.row(0).counter == 6
    assert table.operations().count("UpdateItem") == 1


def test_a_request_that_lands_after_it_was_given_up_is_not_taken_for_somebody_elses(table):
    table.put(lease(0, "w1", counter=5))
    faults = [Fault(postponed=aws_error("InternalServerError", "sorry", "UpdateItem", status=500))]

    def fault(operation, params):
        if operation != "UpdateItem":
            return None
        if faults:
            return faults.pop()
        return table.client.deliver_postponed()

    table.client.fault = fault
    assert (
        release(table.rows, planned(table, 0), lambda plan: pytest.fail("shown again")).outcome == "released"
    )
    assert table.row(0).counter == 6


def test_a_request_that_never_arrived_is_sent_again(table):
    table.put(lease(0, "w1", counter=5))
    table.client.fault = failing(before=True, times=2)
    assert (
        release(table.rows, planned(table, 0), lambda plan: pytest.fail("shown again")).outcome == "released"
    )
    assert table.writes() == ["UpdateItem"]


def test_where_nobody_can_tell_it_says_so(table):
    table.put(lease(0, "w1", counter=5))
    table.client.fault = failing(before=True, times=99)
    with pytest.raises(TemporaryError, match="It is unknown whether"):
        release(table.rows, planned(table, 0), lambda plan: None)


def test_without_the_permission_to_write_it_says_whose_permission_lacks(table):
    table.put(lease(0, "w1"))
    error = aws_error("AccessDeniedException", "not authorized to perform: dynamodb:UpdateItem", "UpdateItem")
    table.client.fault = lambda operation, params: Fault(before=error) if operation == "UpdateItem" else None
    with pytest.raises(SetupError, match=r"dynamodb:UpdateItem.*whoever runs this command"):
        release(table.rows, planned(table, 0), lambda plan: None)


def test_a_lease_that_is_taken_at_once_is_told_to_be_taken(table):
    table.put(lease(0, "w1", counter=5))
    rows = table.rows
    read = rows.read

    def read_after_a_take(key):
        table.put(table.row(0).with_(owner="w2", counter=7))
        return read(key)

    plan = planned(table, 0)
    rows.read = read_after_a_take
    result = release(rows, plan, lambda plan: None)
    assert (result.outcome, result.row.owner) == ("taken", "w2")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (None, "There is no lease"),
        (lease(0), "has no owner"),
        (ended(0, 1, owner="java"), "has ended"),
        (lease(0, "next", checkpoint_owner="w1"), "handed over"),
    ],
)
def test_what_needs_no_release_or_must_not_have_one_is_refused(table, row, why):
    if row is not None:
        table.put(row)
    with pytest.raises(Refused, match=why):
        planned(table, 0)


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (
            {"leaseKey": {"S": shard(0)}, "entityType": {"S": "LEADER"}, "leaseOwner": {"S": "w1"}},
            "a row of LEADER",
        ),
        (
            {"leaseKey": {"S": shard(0)}, "streamName": {"S": "x"}, "leaseOwner": {"S": "w1"}},
            "several streams",
        ),
        (
            {"leaseKey": {"S": shard(0)}, "leaseCounter": {"S": "x"}, "leaseOwner": {"S": "w1"}},
            "cannot be understood",
        ),
    ],
)
def test_rows_that_are_no_leases_are_never_written(table, item, why):
    table.put_item(**item)
    with pytest.raises(Refused, match=why):
        planned(table, 0)


# -- prune -----------------------------------------------------------------------------------------------------


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


def test_generations_go_in_one_run_parents_first_and_a_row_that_changed_holds_its_descendants_back(
    table, kinesis, stream
):
    kinesis.split("orders", shard(1))
    rows = (
        ended(0, 1, 2, owner="java"),
        ended(1, 3, 4, parents=(shard(0),)),
        lease(2, "w1", at(5), parents=(shard(0),)),
        lease(3, "w1", at(6), parents=(shard(1),)),
        lease(4, "w1", at(7), parents=(shard(1),)),
    )
    table.put(*rows)
    plan = plan_prune(table.view(), stream)
    assert keys(plan) == [shard(0), shard(1)]
    table.renew(0)
    assert [one.outcome for one in prune(table.rows, plan)] == ["changed", "held back"]
    assert table.row(0) is not None
    assert table.row(1) is not None
    table.put(*rows)
    assert [one.outcome for one in prune(table.rows, plan)] == ["deleted", "deleted"]


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
