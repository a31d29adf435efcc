"""When to begin."""

import pytest

from pykcl.errors import ConfigError
from pykcl.model.checkpoint import ReadFrom
from pykcl.operate.streams.moments import since

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("2026-11-20T09:00:00Z", 1_795_165_200_000),
        ("2026-11-20T09:00Z", 1_795_165_200_000),
        ("2026-11-20 11:00:00+02:00", 1_795_165_200_000),
        ("2026-11-20T11:00:00+02", 1_795_165_200_000),
        ("2026-11-20T09:00:00.5Z", 1_795_165_200_500),
        ("2026-11-20T09:00:00.312456789Z", 1_795_165_200_312),
        ("1795165200000", 1_795_165_200_000),
    ],
)
def test_a_time_is_understood_with_its_zone(text, millis):
    assert since(text, NOW) == ReadFrom("AT_TIMESTAMP", at_millis=millis)


def test_a_duration_counts_back_from_the_clock_of_kinesis():
    assert since("10m", NOW, ago_seconds=600) == ReadFrom("AT_TIMESTAMP", at_millis=NOW - 600_000)


@pytest.mark.parametrize(
    ("word", "kind"),
    [("earliest", "TRIM_HORIZON"), ("TRIM_HORIZON", "TRIM_HORIZON"), ("latest", "LATEST"), ("now", "LATEST")],
)
def test_the_two_ends_have_words(word, kind):
    assert since(word, NOW) == ReadFrom(kind)


def test_longer_ago_than_there_are_records_is_the_oldest_one():
    assert since("x", NOW, ago_seconds=1e10) == ReadFrom("TRIM_HORIZON")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2026-11-20T09:00:00", "no time zone"),
        ("2026-11-20", "no time zone"),
        ("2026-13-20T09:00:00Z", "no time of the calendar"),
        ("0001-01-01T00:00:00+14:00x", "no time of the calendar"),
        ("yesterday", "neither a time nor a duration"),
        ("", "neither a time nor a duration"),
        ("2199-01-01T00:00:00Z", "has not come"),
        ("9" * 14, "has not come"),
    ],
)
def test_what_is_no_moment_is_refused_with_what_would_be_one(text, told):
    with pytest.raises(ConfigError, match=told):
        since(text, NOW)
