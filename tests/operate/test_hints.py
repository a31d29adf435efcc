"""Hints on problems of a lease table."""

import pytest
from fleet_table import ARN, at, ended, lease, note, shard

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import PendingCheckpoint
from pykcl.operate.hints import hints_of
from pykcl.operate.states import (
    states_of,
)


def hints(table, *, failover=10.0):
    found = table.sampler().poll_until_moved(failover)
    return "\n".join(hints_of(found, states_of(found, failover), failover, is_known=True))


ODD = [
    ([lease(0, "w1")], "000 did not move for the failover time"),
    ([lease(0)], None),
    ([lease(0), lease(1, "w1")], "Nobody owns 000"),
    ([lease(0, "w1"), lease(1, parents=(shard(0),))], "001 cannot start before 000 has ended"),
    ([ended(0, 1).with_(checkpoint=Checkpoint("SHARD_END", 2))], "Java workers do not see the end"),
    ([lease(0), lease(1, checkpoint=at(1), parents=(shard(0),))], "although a parent has not ended"),
    ([lease(0, "w2", checkpoint_owner="w1")], "handed over"),
    ([lease(0, extra={"leaseOwner": {"NULL": True}})], "present and empty"),
    ([lease(0, owner_switches=5)], "changed hands"),
    ([lease(0, pending=PendingCheckpoint(at(3)))], "never completed"),
    (
        [lease(0, metadata=note("w1")), lease(1, metadata=note("w1").__class__(stream_arn=ARN + "2"))],
        "has leases of 2 streams",
    ),
]


@pytest.mark.parametrize(("leases", "told"), ODD, ids=[str(told) for _, told in ODD])
def test_what_is_odd_is_said_and_what_is_not_is_not(table, leases, told):
    table.put(*leases)
    found = hints(table)
    if told is None:
        assert found == ""
    else:
        assert told in found


def test_an_ordinary_fleet_gives_no_hint(table, clock):
    table.put(ended(0, 1, 2), lease(1, "w1", at(1), parents=(shard(0),)), lease(2, "w2", parents=(shard(0),)))
    clock.meanwhile = lambda: table.renew(1, 2)
    assert hints(table) == ""
