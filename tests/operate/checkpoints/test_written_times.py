"""Times, positions and shard ids as operators write them."""

import pytest

from pykcl.errors import ConfigError
from pykcl.operate.checkpoints.position_files import read_positions
from pykcl.operate.checkpoints.times import full_shard_id, millis_of, position_of, time_text


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("1970-01-01T00:00Z", 0),
        ("2026-11-20T09:00Z", 1_795_165_200_000),
        ("2026-11-20T10:00:00.250+01:00", 1_795_165_200_250),
        (" 2026-11-20 09:00:00z ", 1_795_165_200_000),
    ],
)
def test_a_time_with_a_zone_is_taken(text, millis):
    assert millis_of(text) == millis


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-11-20T09:00", "no time zone"),
        ("2026-11-20", "no time zone"),
        ("yesterday", "is no time. Write it like 2026-11-20T09:00Z"),
        ("1795165200", "Epoch seconds are not taken"),
        ("20/11/2026 09:00Z", "is no time"),
        ("1960-01-01T00:00Z", "before 1970"),
        ("", "is no time"),
    ],
)
def test_any_other_is_refused_with_an_example(text, why):
    with pytest.raises(ConfigError, match=why) as refused:
        millis_of(text)
    assert "2026-11-20T09:00Z" in str(refused.value)


def test_times_are_shown_in_utc_to_the_millisecond():
    assert time_text(1_795_165_200_250.7) == "2026-11-20T09:00:00.250Z"
    assert time_text(None) == "-"


def test_positions_and_shards():
    assert position_of("4968") == ("4968", None)
    assert position_of("4968:17") == ("4968", 17)
    for bad in ("TRIM_HORIZON", "4968:", "04968", "4968:-1", "4968:99999999999999999999", ""):
        with pytest.raises(ConfigError):
            position_of(bad)
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
        ("0,5\n0,6", "line 2: 'shardId-000000000000' is there twice"),
        ("0,5\n1", "line 2: write shard,sequence"),
        ("0,LATEST", "line 1: 'LATEST' is no position"),
        ("0;5", "line 1: write"),
    ],
)
def test_a_bad_file_of_positions_is_refused_with_its_line(text, why):
    with pytest.raises(ConfigError, match=why):
        read_positions(text, "f")
