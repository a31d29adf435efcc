"""What a stream is: coverage of the hash keys, rows, and hints on what is odd."""

import pytest

from pykcl.model.shard import HashRange, Shard
from pykcl.operate.aws.streams import Consumer, StreamSummary
from pykcl.operate.streams.describe import HASH_KEYS, coverage, hints, shard_rows, stream_facts

LAST = HASH_KEYS - 1
HALF = HASH_KEYS // 2
ACTIVE = StreamSummary("orders", status="ACTIVE", created_at=1_795_165_200_000)


def shard(number, first=None, last=None, *, closed=False, parents=()):
    keys = None if first is None else HashRange(first, last)
    return Shard(
        f"shard-{number}", tuple(f"shard-{one}" for one in parents), keys, "1", "2" if closed else None
    )


@pytest.mark.parametrize(
    ("shards", "gaps", "overlaps"),
    [
        ([shard(0, 0, LAST)], [], []),
        ([shard(1, HALF, LAST), shard(0, 0, HALF - 1)], [], []),
        ([shard(0, 0, HALF), shard(1, HALF, LAST)], [], [(HALF, HALF)]),
        ([shard(0, 0, LAST), shard(1, 5, 9)], [], [(5, 9)]),
        ([shard(0, 0, 5), shard(1, 9, LAST)], [(6, 8)], []),
        ([shard(0, 1, LAST - 1)], [(0, 0), (LAST, LAST)], []),
        ([shard(0, 0, LAST, closed=True), shard(1, 0, HALF - 1)], [(HALF, LAST)], []),
        ([], [(0, LAST)], []),
    ],
)
def test_every_hash_key_is_to_have_exactly_one_open_shard(shards, gaps, overlaps):
    found = coverage(shards)
    assert (list(found.gaps), list(found.overlaps)) == (gaps, overlaps)
    assert found.is_complete == (not gaps and not overlaps)


def test_a_shard_without_a_range_cannot_be_judged():
    found = coverage([shard(0), shard(1, 0, HALF)])
    assert found.unknown == ("shard-0",)
    assert found.is_complete is False


def test_rows_tell_family_and_share():
    rows = shard_rows([shard(1, 0, HALF - 1, parents=[0]), shard(0, 0, LAST, closed=True)])
    assert [(row["shard"], row["state"], row["share"]) for row in rows] == [
        ("shard-0", "closed", 1.0),
        ("shard-1", "open", 0.5),
    ]
    assert rows[0]["children"] == ["shard-1"]
    assert rows[1]["parents"] == ["shard-0"]


def test_facts_count_what_is_open_and_name_the_consumers():
    consumer = Consumer("c", "arn:c", "ACTIVE", 1_795_165_200_000)
    facts = stream_facts(ACTIVE, [shard(0, 0, LAST), shard(1, closed=True)], [consumer])
    assert (facts["open_shards"], facts["closed_shards"], facts["hash_keys"]) == (1, 1, "covered")
    assert facts["consumers"][0]["name"] == "c"
    assert facts["created"] == "2026-11-20T09:00:00Z"
    assert stream_facts(ACTIVE, [], None)["consumers"] is None


@pytest.mark.parametrize(
    ("shards", "status", "told"),
    [
        ([shard(0, 0, 5), shard(1, 9, LAST)], "ACTIVE", "hash keys 6 to 8"),
        ([shard(0, 0, LAST), shard(1, 0, LAST)], "ACTIVE", "more than one open shard"),
        ([shard(0, 0, HALF * 3 // 2), shard(1, HALF * 3 // 2 + 1, LAST - 5), shard(2, LAST - 4, LAST)], "ACTIVE", "Split it"),
        ([shard(0, 0, LAST, closed=True)], "ACTIVE", "children of shard-0 are not listed"),
        ([shard(0, 0, LAST)], "UPDATING", "is UPDATING"),
    ],
)  # fmt: skip
def test_what_is_odd_gets_a_hint(shards, status, told):
    found = hints(StreamSummary("s", status=status), shards, "")
    assert any(told in one for one in found), found


def test_a_sound_stream_gets_none():
    assert hints(ACTIVE, [shard(0, 0, HALF - 1), shard(1, HALF, LAST)], "") == []
    assert "not permitted" in hints(ACTIVE, [shard(0, 0, LAST)], "not permitted")[0]
