"""Somebody else writes a checkpoint into the row of a lease that is held: an operator by hand, another library."""

import json
from pathlib import Path

import pytest
from botocore.exceptions import ReadTimeoutError

from pykcl.events import (
    CheckpointOverwritten,
    FailureStarted,
    LeaseLost,
    LeaseReleased,
    LeaseTaken,
    LossReason,
    ShardStarted,
)
from pykcl.testing.fleet import STREAM, TABLE
from pykcl.testing.memory.dynamodb import Fault, denied

SHARD = "shardId-000000000000"
FIXTURES = Path(__file__).parents[1] / "fixtures"


def _row_of(file):
    """The first row that a real Java worker wrote for the shard."""
    for line in (FIXTURES / file).read_text().splitlines():
        item = json.loads(line)["item"]
        if item["leaseKey"] == {"S": SHARD} and item["checkpoint"] == {"S": "TRIM_HORIZON"}:
            return {name: value for name, value in item.items() if name != "leaseOwner"}
    raise AssertionError(f"{file} has no such row")


ROWS = {
    "pykcl": None,
    "Java 2.x": _row_of("java-2.7.2.jsonl"),
    "Java 3.x": _row_of("java-3.5.1-compatible-with-2x.jsonl"),
}


@pytest.fixture(params=ROWS)
def held(request, new_fleet):
    """A worker that has read five records, and holds the lease: (fleet, worker, its checkpoint as the row has it)."""
    fleet = new_fleet(shards=1)
    row = ROWS[request.param]
    if row is not None:
        fleet.dynamodb.create_table(
            TableName=TABLE,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        fleet.dynamodb.put_raw(TABLE, row)
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    fleet.wait(lambda: not fleet.rows()[SHARD].checkpoint.is_sentinel and worker.leases)
    fleet.simulation.sleep(2.0)
    return fleet, worker, fleet.items()[SHARD]["checkpoint"]["S"]


def _edit(fleet, text, *, counter=0):
    row = fleet.items()[SHARD]
    moved = {"leaseCounter": {"N": str(int(row["leaseCounter"]["N"]) + counter)}}
    fleet.dynamodb.put_raw(TABLE, {**row, "checkpoint": {"S": text}, **moved})


def _later(number):
    return str(int(number) + 10**30)


PLACES = {
    "forward": _later,
    "back": lambda number: "TRIM_HORIZON",
    "LATEST": lambda number: "LATEST",
    "its end": lambda number: "SHARD_END",
    "junk": lambda number: "12ab",
}


@pytest.mark.parametrize("place", PLACES)
def test_what_leaves_the_counter_is_reported_and_overwritten_and_no_record_is_skipped(held, place):
    """As in Java, whose owner keeps its own checkpoint; believed, the ten records would count as done."""
    fleet, worker, ours = held
    _edit(fleet, PLACES[place](ours))
    fleet.wait(lambda: fleet.happened(CheckpointOverwritten), 15.0, "the report")
    (event,) = fleet.happened(CheckpointOverwritten)
    assert (event.shard, event.checkpoint, event.code) == (SHARD, f"{ours}:0", "E29")
    assert PLACES[place](ours) in event.found or "unreadable" in event.found
    assert fleet.items()[SHARD]["checkpoint"] == {"S": ours}
    fleet.wait_delivered(fleet.put(10, "later"))
    worker.stop()
    fleet.start("w2")
    fleet.wait_delivered(fleet.put(3, "last"))
    assert fleet.ledger.duplicates == 0
    assert not fleet.happened(LeaseLost)
    assert len(fleet.happened(CheckpointOverwritten)) == 1


@pytest.mark.parametrize("place", PLACES)
def test_a_lease_is_released_at_the_checkpoint_of_its_owner(held, place):
    """1) An operator writes; 2) the worker stops before its next heartbeat."""
    fleet, worker, ours = held
    _edit(fleet, PLACES[place](ours))
    worker.stop()
    row = fleet.items()[SHARD]
    assert (row["checkpoint"], "leaseOwner" in row) == ({"S": ours}, False)
    assert len(fleet.happened(CheckpointOverwritten)) == 1


@pytest.mark.parametrize("place", PLACES)
def test_a_checkpoint_does_not_overwrite_it_without_a_word(held, place):
    fleet, _worker, ours = held
    _edit(fleet, PLACES[place](ours))
    fleet.wait_delivered(fleet.put(1, "next"))
    fleet.wait(lambda: fleet.items()[SHARD]["checkpoint"]["S"] != PLACES[place](ours))
    (event,) = fleet.happened(CheckpointOverwritten)
    assert event.checkpoint == f"{ours}:0"


def _restore(fleet, *, counter=-1, **others):
    row = fleet.items()[SHARD]
    older = {"N": str(int(row["leaseCounter"]["N"]) + counter)}
    fleet.dynamodb.put_raw(TABLE, {**row, "leaseCounter": older, **others})


@pytest.mark.parametrize(
    "others", [{}, {"checkpoint": {"S": "TRIM_HORIZON"}}, {"leaseOwner": {"S": "w2"}}], ids=str
)
def test_a_row_of_a_restored_table_went_back_and_is_no_work_of_another_process(held, others):
    fleet, worker, _ = held
    before = fleet.rows()[SHARD].counter
    _restore(fleet, **others)
    fleet.wait(lambda: fleet.happened(LeaseLost), 15.0, "the loss")
    (lost,) = fleet.happened(LeaseLost)
    assert (lost.reason, lost.code, lost.is_planned) == (LossReason.ROW_WENT_BACK, "E29", False)
    assert lost.cause == (
        f"its row is an older or another one (counter {before - 1}, {before} before): was the table restored, swapped or "
        "edited?"
    )
    fleet.wait(lambda: worker.leases, 60.0, "the lease")
    assert len(fleet.happened(LeaseLost)) == 1


@pytest.mark.parametrize(("step", "reason"), [(0, "RowWentBack"), (1, "WorkerIdentifierInUse")])
def test_another_process_of_the_name_is_one_whose_counter_moves_on(held, step, reason):
    fleet, _, _ = held
    row = fleet.items()[SHARD]
    if "pykcl" not in row:
        pytest.skip("a row of Java says nothing about the process that wrote it")
    others = {"M": {**row["pykcl"]["M"], "session": {"S": "another"}}}
    _restore(fleet, counter=step, pykcl=others, checkpoint={"S": "TRIM_HORIZON"})
    fleet.wait(lambda: fleet.happened(LeaseLost), 15.0, "the loss")
    assert [event.reason for event in fleet.happened(LeaseLost)] == [reason]


@pytest.mark.parametrize("step", [1, 5])
@pytest.mark.parametrize(("place", "again"), [("forward", 0), ("back", 5)])
def test_who_moves_the_counter_too_lets_the_shard_begin_anew_there(held, place, again, step):
    fleet, worker, ours = held
    _edit(fleet, PLACES[place](ours), counter=step)
    fleet.wait(lambda: fleet.happened(LeaseLost), 15.0, "the loss")
    (lost,) = fleet.happened(LeaseLost)
    assert (lost.reason, lost.code) == (LossReason.CHECKPOINT_CHANGED, "E29")
    assert ours in lost.cause
    assert PLACES[place](ours) in lost.cause
    fleet.wait(lambda: worker.leases, 60.0, "the lease")
    fleet.simulation.sleep(10.0)
    assert fleet.ledger.duplicates == again
    assert not fleet.happened(CheckpointOverwritten)


@pytest.mark.parametrize("step", [1, 5])
def test_a_shard_with_an_open_iterator_has_not_ended_whoever_says_so(held, step):
    fleet, worker, ours = held
    _edit(fleet, "SHARD_END", counter=step)
    fleet.wait_delivered(fleet.put(10, "later"))
    (event,) = fleet.happened(CheckpointOverwritten)
    assert (event.checkpoint, event.found) == (f"{ours}:0", "SHARD_END")
    worker.stop()
    assert fleet.rows()[SHARD].checkpoint > fleet.rows()[SHARD].checkpoint.__class__(ours)
    assert not fleet.happened(LeaseLost)


def test_a_sub_sequence_number_alone_is_put_back_by_the_next_write(held):
    fleet, worker, ours = held
    row = fleet.items()[SHARD]
    fleet.dynamodb.put_raw(TABLE, {**row, "checkpointSubSequenceNumber": {"N": "99"}})
    fleet.wait(lambda: fleet.happened(CheckpointOverwritten), 15.0, "the report")
    worker.stop()
    assert fleet.items()[SHARD]["checkpointSubSequenceNumber"] == {"N": "0"}
    assert [event.found for event in fleet.happened(CheckpointOverwritten)] == [f"{ours}:99"]


def test_a_heartbeat_without_an_answer_is_not_taken_for_the_write_of_others(held):
    """1) A heartbeat lands, and its answer is lost; 2) somebody changes the checkpoint, and the counter not; 3) the
    heartbeat is sent again: by the counter the row seems to be of who wrote the checkpoint."""
    fleet, worker, ours = held
    came = []

    def landed(operation, params):
        if operation == "UpdateItem" and not came:
            came.append(params)
            return Fault(after=ReadTimeoutError(endpoint_url="-"))
        if len(came) == 1 and operation == "UpdateItem":
            came.append(params)
            _edit(fleet, _later(ours))
        return None

    fleet.dynamodb.fault = landed
    fleet.wait(lambda: len(came) == 2, 15.0, "the second attempt")
    fleet.wait(lambda: fleet.happened(CheckpointOverwritten), 15.0, "the report")
    fleet.dynamodb.fault = None
    fleet.wait_delivered(fleet.put(10, "later"))
    worker.stop()
    assert not fleet.happened(LeaseLost)
    assert fleet.workers["w1"].config.stream == STREAM


def _answer_updates(fleet, *faults):
    """Give the next updates of the lease table these faults; return what is left of them."""
    left = list(faults)
    fleet.dynamodb.fault = lambda operation, params: (
        left.pop(0) if operation == "UpdateItem" and left else None
    )
    return left


def _lost():
    return Fault(after=ReadTimeoutError(endpoint_url="-"))


def _denied():
    return Fault(before=denied("UpdateItem"))


def test_a_heartbeat_that_is_refused_leaves_no_doubt_about_who_wrote_next(held):
    """It has not landed. So who moves the checkpoint back, and the counter by one, ends the ownership as ever."""
    fleet, _, _ = held
    left = _answer_updates(fleet, _denied())
    fleet.wait(lambda: not left, 15.0, "the refusal")
    _edit(fleet, "TRIM_HORIZON", counter=1)
    fleet.wait(lambda: fleet.happened(LeaseLost), 15.0, "the loss")
    assert [event.reason for event in fleet.happened(LeaseLost)] == [LossReason.CHECKPOINT_CHANGED]


def test_writes_that_land_without_an_answer_before_a_refusal_are_known_to_be_our_own(held):
    """1) A heartbeat lands, its answer is lost, and its next attempt is refused for its credentials; 2) so does the next
    one, on the row that the first has left: two steps on from the last answer."""
    fleet, worker, _ = held
    left = _answer_updates(fleet, _lost(), _denied(), Fault(), _lost(), _denied())
    fleet.wait(lambda: not left, 15.0, "the refusals")
    fleet.wait_delivered(fleet.put(10, "later"))
    fleet.simulation.sleep(10.0)
    worker.stop()
    assert not fleet.happened(LeaseLost)
    assert not fleet.happened(CheckpointOverwritten)


def test_what_is_overwritten_without_an_answer_before_a_refusal_is_reported(held):
    fleet, worker, ours = held
    left = _answer_updates(fleet, Fault(), _lost(), _denied())
    _edit(fleet, _later(ours))
    fleet.wait(lambda: not left, 15.0, "the refusal")
    fleet.wait(lambda: fleet.happened(CheckpointOverwritten), 15.0, "the report")
    fleet.wait_delivered(fleet.put(10, "later"))
    worker.stop()
    assert not fleet.happened(LeaseLost)


def test_what_is_put_back_is_a_checkpoint_that_landed_without_an_answer(held):
    """Simulation 106400973127: the next attempt was refused, and a heartbeat put back the checkpoint before."""
    fleet, worker, ours = held
    landed = []

    def lose_answers(operation, params):
        written = (
            params["ExpressionAttributeValues"].get(":checkpoint") if operation == "UpdateItem" else None
        )
        if not landed and written is not None:
            landed.append(written["S"])
            return _lost()
        if len(landed) == 1 and operation == "UpdateItem":
            landed.append(ours)
            _edit(fleet, "TRIM_HORIZON")
            return _denied()
        return None

    fleet.dynamodb.fault = lose_answers
    fleet.put(3, "later")
    fleet.wait(lambda: fleet.happened(CheckpointOverwritten), 30.0, "the report")
    assert fleet.happened(CheckpointOverwritten)[0].checkpoint == f"{landed[0]}:0"
    assert fleet.items()[SHARD]["checkpoint"]["S"] == landed[0]
    worker.stop()
    assert not fleet.happened(LeaseLost)


def test_a_heartbeat_puts_back_the_end_of_a_shard_that_may_have_landed_without_an_answer(held):
    """1) The end is sent, and no answer comes; 2) somebody changes the checkpoint; 3) while every further end is refused,
    a heartbeat finds that."""
    fleet, worker, _ = held
    ends = []

    def no_end(operation, params):
        if operation != "UpdateItem" or "childShardIds" not in params["UpdateExpression"]:
            return None
        ends.append(params)
        if len(ends) > 1:
            return _denied()
        _edit(fleet, "TRIM_HORIZON")
        return Fault(before=ReadTimeoutError(endpoint_url="-"))

    put = fleet.put(3, "later")
    fleet.kinesis.split(STREAM, SHARD)
    fleet.dynamodb.fault = no_end
    fleet.wait(lambda: fleet.happened(CheckpointOverwritten), 60.0, "the report")
    (event,) = fleet.happened(CheckpointOverwritten)
    assert (event.checkpoint, event.found) == ("SHARD_END", "TRIM_HORIZON")
    row = fleet.rows()[SHARD]
    assert (row.is_ended, row.owner, row.children) == (True, "w1", ())
    fleet.dynamodb.fault = None
    fleet.wait_delivered(put + fleet.put(10, "of children"))
    fleet.wait(lambda: fleet.rows()[SHARD].children, 30.0, "the end")
    worker.stop()
    assert fleet.ledger.duplicates == 0
    assert not fleet.happened(LeaseLost)


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_lease_that_was_ended_by_hand_while_it_was_taken_is_released_unread(new_fleet, is_answered):
    """Simulation 47810107159: the shard was opened at SHARD_END, which Kinesis refuses, for ever."""
    fleet = new_fleet(shards=1)
    fleet.put(5)

    def end_it(operation, params):
        if operation != "UpdateItem" or fleet.happened(LeaseTaken) or fleet.rows()[SHARD].is_ended:
            return None
        if is_answered:
            _edit(fleet, "SHARD_END")
            return None
        fleet.simulation.spawn("operator", "operator", lambda: _edit(fleet, "SHARD_END"))
        return _lost()

    fleet.dynamodb.fault = end_it
    fleet.start("w1")
    fleet.wait(lambda: fleet.happened(LeaseReleased), 30.0, "the release")
    fleet.simulation.sleep(30.0)
    assert (fleet.rows()[SHARD].owner, fleet.rows()[SHARD].is_ended) == (None, True)
    assert len(fleet.happened(LeaseTaken)) == 1
    assert not fleet.happened(ShardStarted)
    assert not fleet.happened(FailureStarted)
