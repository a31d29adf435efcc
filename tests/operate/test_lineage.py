"""Shards as a forest, with their states."""

from fleet_table import ended, lease, shard

from pykcl.model.shard import Shard
from pykcl.operate.snapshot import Observation, TableSnapshot
from pykcl.operate.states import states_of
from pykcl.operate.streams.describe import CLEANED_UP, NO_LEASE, tree_lines


def lines(leases, shards=()):
    found = Observation(TableSnapshot({one.key: one for one in leases}))
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
