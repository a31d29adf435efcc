"""Whatever is split, merged and scaled in between: walking the lineage reads every record exactly once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykcl.local.errors import AwsError
from pykcl.local.stream import LocalKinesis, ShardFilter

# What happens to a stream: (action, a number that chooses the shard or the key)
actions = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "tick", "split", "merge", "scale"]), st.integers(0, 2**128 - 1)
    ),
    max_size=40,
)


_MOST_SCALED = 32
"""Each scaling may double the shards, and the walks take the square of their number."""


class History:
    """Does the actions and remembers what was put, when."""

    def __init__(self, shards: int) -> None:
        self.now = 1_700_000_000_000
        self.kinesis = LocalKinesis(lambda: self.now, listing_lag=0)
        self.kinesis.create_stream("s", shards)
        self.put: list[tuple[bytes, int]] = []

    def act(self, action: str, number: int) -> None:
        opened = sorted(
            (shard for shard in self.kinesis.list_shards("s") if shard.is_open),
            key=lambda shard: shard.hash_range.first,
        )
        chosen = number % len(opened)
        if action == "put":
            data = b"%d" % len(self.put)
            self.kinesis.put_record("s", data, "k", number)
            self.put.append((data, self.now))
        elif action == "tick":
            self.now += number % 3000
        elif action == "split":
            self.kinesis.split("s", opened[chosen].shard_id)
        elif action == "merge" and chosen + 1 < len(opened):
            self.kinesis.merge("s", opened[chosen].shard_id, opened[chosen + 1].shard_id)
        elif action == "scale" and len(opened) <= _MOST_SCALED:
            least, most = (len(opened) + 1) // 2, len(opened) * 2
            self.kinesis.update_shard_count("s", least + number % (most - least + 1))

    def walk(self, roots: list[str], kind: str, at_millis: int | None, limit: int) -> list[bytes]:
        """Read the roots to their ends, then the children that ChildShards names; open shards to the tip."""
        seen: list[bytes] = []
        waiting, known = list(roots), set(roots)
        while waiting:
            shard_id = waiting.pop(0)
            start = kind if shard_id in roots else "TRIM_HORIZON"
            iterator = self.kinesis.get_shard_iterator("s", shard_id, start, at_millis=at_millis)
            while True:
                page = self.kinesis.get_records(iterator, limit)
                seen += [record.data for record in page.records]
                if page.next_iterator is None:
                    fresh = [child.shard_id for child in page.children if child.shard_id not in known]
                    assert page.children
                    waiting += fresh
                    known.update(fresh)
                    break
                if page.millis_behind_latest == 0 and not page.records:
                    break
                iterator = page.next_iterator
        return seen


@settings(max_examples=120)
@given(shards=st.integers(1, 4), todo=actions, limit=st.integers(1, 5))
def test_every_record_is_read_exactly_once_from_the_trim_horizon(shards, todo, limit):
    history = History(shards)
    for action, number in todo:
        history.act(action, number)
    roots = [shard.shard_id for shard in history.kinesis.list_shards("s", ShardFilter("AT_TRIM_HORIZON"))]
    seen = history.walk(roots, "TRIM_HORIZON", None, limit)
    assert sorted(seen) == sorted(data for data, _ in history.put)


@settings(max_examples=120)
@given(shards=st.integers(1, 4), before=actions, after=actions, limit=st.integers(1, 5))
def test_every_record_from_a_moment_on_is_read_exactly_once(shards, before, after, limit):
    history = History(shards)
    for action, number in before:
        history.act(action, number)
    moment = history.now
    for action, number in after:
        history.act(action, number)
    roots = [
        shard.shard_id
        for shard in history.kinesis.list_shards("s", ShardFilter("AT_TIMESTAMP", at_millis=moment))
    ]
    seen = history.walk(roots, "AT_TIMESTAMP", moment, limit)
    assert len(seen) == len(set(seen))
    assert {data for data, at in history.put if at >= moment} <= set(seen)


@settings(max_examples=60)
@given(shards=st.integers(1, 4), todo=actions, later=st.integers(0, 9000))
def test_every_moment_is_covered_by_shards_that_divide_the_hash_space(shards, todo, later):
    history = History(shards)
    start = history.now
    for action, number in todo:
        history.act(action, number)
    for wanted in (
        ShardFilter("AT_LATEST"),
        ShardFilter("AT_TRIM_HORIZON"),
        ShardFilter("AT_TIMESTAMP", at_millis=start + later),
    ):
        shards_then = history.kinesis.list_shards("s", wanted)
        ranges = sorted((s.hash_range.first, s.hash_range.last) for s in shards_then)
        assert ranges[0][0] == 0
        assert ranges[-1][1] == 2**128 - 1
        assert all(left[1] + 1 == right[0] for left, right in itertools.pairwise(ranges))


def ids(kinesis: LocalKinesis, shard_filter: ShardFilter | None = None) -> list[int]:
    return [int(shard.shard_id[-12:]) for shard in kinesis.list_shards("s", shard_filter)]


def test_each_shard_filter_selects_its_shards(kinesis, clock):
    created = clock.millis
    clock.advance(seconds=10)
    kinesis.split("s", "shardId-000000000000")  # 1, 2
    clock.advance(seconds=10)
    kinesis.split("s", "shardId-000000000001")  # 3, 4
    clock.advance(seconds=10)
    assert ids(kinesis) == [0, 1, 2, 3, 4]
    assert ids(kinesis, ShardFilter("AT_LATEST")) == [2, 3, 4]
    assert ids(kinesis, ShardFilter("AT_TRIM_HORIZON")) == [0]
    assert ids(kinesis, ShardFilter("FROM_TRIM_HORIZON")) == [0, 1, 2, 3, 4]
    assert ids(kinesis, ShardFilter("AFTER_SHARD_ID", shard_id="shardId-000000000002")) == [3, 4]
    assert ids(kinesis, ShardFilter("AT_TIMESTAMP", at_millis=created + 15_000)) == [1, 2]
    assert ids(kinesis, ShardFilter("FROM_TIMESTAMP", at_millis=created + 15_000)) == [1, 2, 3, 4]
    assert ids(kinesis, ShardFilter("AT_TIMESTAMP", at_millis=0)) == [0]
    assert ids(kinesis, ShardFilter("AT_TIMESTAMP", at_millis=clock.millis)) == [2, 3, 4]
    clock.millis = created + 15_000 + 24 * 3_600_000
    assert ids(kinesis, ShardFilter("AT_TRIM_HORIZON")) == [1, 2]
    assert ids(kinesis) == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["AFTER_SHARD_ID", "AT_TIMESTAMP", "FROM_TIMESTAMP", "NONSENSE"])
def test_a_filter_without_its_value_is_refused(kinesis, kind):
    with pytest.raises(AwsError, match="InvalidArgumentException"):
        kinesis.list_shards("s", ShardFilter(kind))
