"""Which shards are read, and from where."""

import pytest

from pykcl.errors import ConfigError, SetupError
from pykcl.model.checkpoint import AT_LATEST, AT_SHARD_END, Checkpoint, ReadFrom
from pykcl.model.lease import Lease
from pykcl.model.shard import Shard
from pykcl.operate.streams.choosing import (
    leases_of_stream,
    shards_named,
    starts_of_application,
    starts_since,
)
from pykcl.operate.table_view import TableView


def shard(number, *parents, closed=False):
    return Shard(name(number), tuple(map(name, parents)), None, "1", "9" if closed else None)


def name(number):
    return f"shardId-{number:012}"


SPLIT = [shard(0, closed=True), shard(1), shard(2, 0), shard(3, 0)]


def test_from_now_on_only_shards_without_children_are_read():
    starts = starts_since(SPLIT, ReadFrom("LATEST"))
    assert [one.shard.shard_id for one in starts] == [name(1), name(2), name(3)]


def test_from_a_time_on_the_closed_ones_are_read_too():
    starts = starts_since(SPLIT, ReadFrom("AT_TIMESTAMP", at_millis=5))
    assert [one.shard.shard_id for one in starts] == [name(number) for number in range(4)]
    assert {one.read_from.at_millis for one in starts} == {5}


def leases(**checkpoints):
    return {name(int(key[1:])): Lease(name(int(key[1:])), at) for key, at in checkpoints.items()}


def test_an_application_is_followed_from_its_checkpoints_on():
    at = Checkpoint("17", 3)
    starts = starts_of_application(SPLIT, leases(s0=at, s1=AT_SHARD_END), "app")
    assert [(one.shard.shard_id, one.read_from.kind, one.after) for one in starts] == [
        (name(0), "AT_SEQUENCE_NUMBER", at),
        # Not leased yet: the fleet will begin them at their oldest record when 0 has ended.
        (name(2), "TRIM_HORIZON", None),
        (name(3), "TRIM_HORIZON", None),
    ]


def test_a_parent_whose_row_was_cleaned_up_is_not_read_again():
    starts = starts_of_application(
        SPLIT, leases(s1=Checkpoint("5"), s2=Checkpoint("6"), s3=Checkpoint("7")), "app"
    )
    assert name(0) not in {one.shard.shard_id for one in starts}


def test_a_start_at_latest_is_where_the_worker_would_begin():
    (start, *_) = starts_of_application([shard(0)], leases(s0=AT_LATEST), "app")
    assert start.read_from.kind == "LATEST"


def test_an_application_of_another_stream_is_refused():
    with pytest.raises(SetupError, match="no lease of a shard of this stream"):
        starts_of_application(SPLIT, leases(s8=Checkpoint("5")), "app")


def test_in_a_table_of_several_streams_only_those_of_this_one_count():
    def key(stream, number):
        return f"123456789012:{stream}:1690000000:{name(number)}"

    rows = {
        key(of, 1): Lease(key(of, 1), Checkpoint(at), parents=(key(of, 0),))
        for of, at in (("orders", "5"), ("payments", "6"))
    }
    view = TableView(leases=rows, streams={one: one.rpartition(":")[0] for one in rows})
    (lease,) = leases_of_stream(view, "orders").values()
    assert (lease.key, lease.parents, lease.checkpoint) == (name(1), (name(0),), Checkpoint("5"))


@pytest.mark.parametrize("wanted", ["3", "003", name(3)])
def test_a_shard_may_be_named_by_its_number(wanted):
    assert [one.shard_id for one in shards_named([wanted, "1"], SPLIT)] == [name(1), name(3)]


@pytest.mark.parametrize("wanted", ["9", "shardId-9", "\x1b[2Jshard", ""])
def test_an_unknown_shard_is_refused_with_those_there_are(wanted):
    with pytest.raises(ConfigError, match="shardId-0000") as refused:
        shards_named([wanted], SPLIT)
    assert "\x1b" not in str(refused.value)
