"""How far behind every lease is, and the family tree."""

import re

import pytest
from fleet_table import ended, lease, shard

from pykcl.errors import Throttled
from pykcl.local.stream import LocalKinesis
from pykcl.model.checkpoint import AT_LATEST, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.kpl import UserRecord, aggregate
from pykcl.model.shard import Shard
from pykcl.operate.family_tree import CLEANED_UP, NO_LEASE, tree_lines
from pykcl.operate.lag import SIDE_BY_SIDE, KinesisLag, ShardLag, total_of
from pykcl.operate.lease_states import states_of
from pykcl.operate.sampling import Observation
from pykcl.operate.table_view import TableView
from pykcl.testing.memory.stream import MemoryStream


class Stream(MemoryStream):
    """Counts what is asked, and fails when told to."""

    def __init__(self, *args):
        super().__init__(*args)
        self.calls = []
        self.failures = []

    def open(self, shard_id, start):
        self.calls.append("open")
        if self.failures:
            raise self.failures.pop()
        return super().open(shard_id, start)

    def fetch(self, shard_id, iterator, limit):
        self.calls.append("fetch")
        return super().fetch(shard_id, iterator, limit)


@pytest.fixture
def kinesis(clock):
    clock.utcnow_millis = lambda: 1_790_000_000_000 + int(clock.now * 1000)
    found = LocalKinesis(clock.utcnow_millis)
    found.create_stream("orders", 1)
    return found


@pytest.fixture
def stream(kinesis, clock):
    return Stream(kinesis, "orders", clock)


def put(kinesis, data=b"x"):
    return kinesis.put_record("orders", data, "key").sequence_number


def lag_of(stream, clock, checkpoint, **more):
    return asked(KinesisLag(stream, clock), checkpoint, **more)


def asked(source, checkpoint, **more):
    (found,) = source.lags([lease(0, "w1", checkpoint, **more)]).values()
    return found


def test_what_lies_behind_the_checkpoint_has_been_waiting_since_it_arrived(kinesis, stream, clock):
    first = put(kinesis)
    clock.now += 30
    put(kinesis)
    clock.now += 60
    assert lag_of(stream, clock, Checkpoint(first)).behind == pytest.approx(60, abs=1)
    assert lag_of(stream, clock, AT_TRIM_HORIZON).behind == pytest.approx(90, abs=1)
    assert stream.calls == ["open", "fetch"] * 2


def test_one_record_left_is_a_lag_although_kinesis_says_zero_behind_it(kinesis, stream, clock):
    first = put(kinesis)
    put(kinesis)
    clock.now += 3600
    assert lag_of(stream, clock, Checkpoint(first)).behind == pytest.approx(3600, abs=1)


def test_at_the_tip_nothing_is_behind(kinesis, stream, clock):
    last = put(kinesis)
    clock.now += 3600
    assert lag_of(stream, clock, Checkpoint(last)).behind == 0
    assert lag_of(stream, clock, AT_LATEST).behind == 0


def test_a_half_done_aggregate_is_unread_and_a_done_one_is_not(kinesis, stream, clock):
    (blob,) = aggregate([UserRecord(f"key-{number}", None, b"x") for number in range(3)])
    number = put(kinesis, blob.data)
    clock.now += 50
    assert lag_of(stream, clock, Checkpoint(number, 1)).behind == pytest.approx(50, abs=1)
    assert lag_of(stream, clock, Checkpoint(number, 2)).behind == 0


def test_a_checkpoint_older_than_the_oldest_record_is_told_to_be_trimmed(kinesis, stream, clock):
    first = put(kinesis)
    clock.now += 23 * 3600
    put(kinesis)
    put_at = clock.now
    clock.now += 2 * 3600
    found = lag_of(stream, clock, Checkpoint(first))
    assert found.verdict == "trimmed"
    assert found.behind == pytest.approx(clock.now - put_at, abs=1)
    # One that can only read a little for each answer comes to the same in the end, also about the record it began at.
    patient = KinesisLag(stream, clock, most_reads=3)
    found = [one for one in (asked(patient, Checkpoint(first)) for _ in range(150)) if one.behind is not None]
    assert found[0].verdict == "trimmed"
    assert found[-1].behind == pytest.approx(clock.now - put_at, abs=1)


def test_a_day_without_records_is_followed_to_the_record_behind_it(kinesis, stream, clock):
    first = put(kinesis)
    clock.now += 20 * 3600
    assert lag_of(stream, clock, Checkpoint(first)).behind == 0
    put(kinesis)
    clock.now += 60
    stream.calls.clear()
    found = lag_of(stream, clock, Checkpoint(first))
    assert (found.verdict, found.reads) == ("read", stream.calls.count("fetch"))
    assert 60 <= found.behind < 60 + found.reads
    assert 100 < found.reads < 300
    assert set(clock.waits) == {0.25}, "no more than four of a shard's five reads a second"


def test_what_was_not_read_to_an_end_is_unknown_and_the_next_answer_goes_on_there(kinesis, stream, clock):
    first = put(kinesis)
    clock.now += 5 * 3600
    source = KinesisLag(stream, clock, most_reads=3)
    found = asked(source, Checkpoint(first))
    assert (found.behind, found.verdict, found.reads) == (None, "unknown", 3)
    assert re.search(r"3 reads found no record .* at most [34]\.\d hours behind", found.why)
    answers = [asked(source, Checkpoint(first)) for _ in range(40)]
    assert [one.behind for one in answers[-10:]] == [0.0] * 10
    assert [one.reads for one in answers[-10:]] == [1] * 10
    unread = put(kinesis)
    clock.now += 30
    found = asked(source, Checkpoint(first))
    assert (found.verdict, found.reads) == ("read", 1)
    assert found.behind == pytest.approx(30, abs=1)
    assert asked(source, Checkpoint(unread)).behind == 0
    # Set back, it is another place, of which nothing is known.
    found = asked(KinesisLag(stream, clock), AT_TRIM_HORIZON)
    assert found.behind > 5 * 3600
    assert asked(source, AT_TRIM_HORIZON).behind == pytest.approx(found.behind, abs=1)


def test_an_ended_lease_is_not_asked_for_and_a_shard_that_is_gone_is_told(stream, clock):
    found = KinesisLag(stream, clock).lags([ended(0, 1), lease(7, "w1")])
    assert found[shard(0)] == ShardLag(0.0, "ended")
    assert (found[shard(7)].behind, found[shard(7)].verdict) == (None, "gone")
    assert stream.calls.count("fetch") == 0


def test_a_throttled_shard_is_asked_once_more_after_a_second_and_then_left_alone(kinesis, stream, clock):
    put(kinesis)
    stream.failures = [Throttled("slow down")]
    assert lag_of(stream, clock, AT_TRIM_HORIZON).behind is not None
    assert clock.waits == [1.0]
    stream.failures = [Throttled("slow down")] * 2
    found = lag_of(stream, clock, AT_TRIM_HORIZON)
    assert (found.behind, found.verdict, found.why) == (None, "unknown", "slow down")


def test_no_more_shards_are_asked_at_once_than_it_says(clock):
    now, most = [0], [0]

    class Slow:
        def open(self, shard_id, start):
            now[0] += 1
            most[0] = max(most[0], now[0])
            now[0] -= 1
            raise Throttled("no")

    found = KinesisLag(Slow(), clock).lags([lease(number, "w1") for number in range(100)])
    assert len(found) == 100
    assert most[0] <= SIDE_BY_SIDE


def test_the_total_is_the_worst_and_counts_who_is_late_or_unknown():
    lags = {"a": ShardLag(3.0), "b": ShardLag(70.0), "c": ShardLag(None, "unknown"), "d": ShardLag(60.0)}
    total = total_of(lags, 60.0)
    assert (total.behind, total.shard, total.late, total.unknown) == (70.0, "b", 1, 1)
    assert total_of({}).behind is None
    assert total_of({"c": ShardLag(None, "unknown")}).behind is None


# -- lineage ---------------------------------------------------------------------------------------------------


def lines(leases, shards=()):
    found = Observation(TableView({one.key: one for one in leases}))
    return tree_lines(states_of(found, 10), shards)


def drawn(found):
    return [f"{line.branches}{int(line.key[-12:])}{' again' if line.again else ''}" for line in found]


def test_a_split_and_a_merge_are_drawn_parents_above_children():
    found = lines(
        [
            ended(0, 1, 2),
            ended(1, 3, parents=(shard(0),)),
            ended(2, 3, parents=(shard(0),)),
            lease(3, "w1", parents=(shard(1), shard(2))),
            lease(9, "w1"),
        ]
    )
    assert drawn(found) == ["0", "├─ 1", "│  └─ 3", "└─ 2", "   └─ 3 again", "9"]


def test_listed_shards_without_a_row_are_told_apart():
    shards = [
        Shard(shard(0), ending_sequence_number="9"),
        Shard(shard(1), parents=(shard(0),)),
        Shard(shard(2), parents=(shard(0),)),
    ]
    found = {line.key: line.state for line in lines([lease(1, "w1", parents=(shard(0),))], shards)}
    assert found == {shard(0): CLEANED_UP, shard(1): "UNKNOWN", shard(2): NO_LEASE}


def test_without_a_table_shards_are_open_or_closed():
    shards = [Shard(shard(0), ending_sequence_number="9"), Shard(shard(1), parents=(shard(0),))]
    assert [line.state for line in tree_lines(None, shards)] == ["CLOSED", "OPEN"]


def test_rows_that_name_each_other_as_parents_are_drawn_once():
    found = lines(
        [lease(0, parents=(shard(1),)), lease(1, parents=(shard(0),)), lease(2, parents=(shard(2),))]
    )
    assert drawn(found) == ["2", "0", "└─ 1", "   └─ 0 again"]


def test_thousands_of_generations_are_drawn():
    leases = [lease(number, parents=(shard(number - 1),) if number else ()) for number in range(5000)]
    found = lines(leases)
    assert len(found) == 5000
    assert found[-1].depth == 4999
    assert max(len(line.branches) for line in found) < 100
