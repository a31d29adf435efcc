"""Positions and shard ids as operators write them."""

import pytest

from pykcl.errors import ConfigError
from pykcl.model.shard import full_shard_id
from pykcl.operate.checkpoints.backup import read_positions
from pykcl.operate.checkpoints.plan import parse_position


def test_positions_and_shards():
    assert parse_position("4968") == ("4968", None)
    assert parse_position("4968:17") == ("4968", 17)
    for bad in ("TRIM_HORIZON", "4968:", "04968", "4968:-1", "4968:99999999999999999999", ""):
        with pytest.raises(ConfigError):
            parse_position(bad)
    assert full_shard_id("7") == full_shard_id("007") == "shardId-000000000007"
    assert full_shard_id("shardId-000000000007") == "shardId-000000000007"


def test_a_file_of_positions():
    text = "shard,sequence\n# comment\n\n0,5\nshardId-000000000001, 6 ,3\n2,7,\n"
    assert read_positions(text, "f") == {
        "shardId-000000000000": ("5", None),
        "shardId-000000000001": ("6", 3),
        "shardId-000000000002": ("7", None),
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no shard"),
        ("0,5\n0,6", "line 2: 'shardId-000000000000' is repeated"),
        ("0,5\n1", "line 2: write shard,sequence"),
        ("0,LATEST", "line 1: 'LATEST' is not a position"),
        ("0;5", "line 1: write"),
        ("x" * 200_000, "f has a line that is no list of fields: field larger"),
    ],
)
def test_a_bad_file_of_positions_is_refused_with_its_line(text, why):
    with pytest.raises(ConfigError, match=why):
        read_positions(text, "f")
