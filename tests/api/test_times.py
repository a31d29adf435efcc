"""One grammar for instants and durations: what is accepted, what is refused and why, and how they are shown."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from pykcl import Config
from pykcl.errors import ConfigError
from pykcl.model.checkpoint import ReadFrom
from pykcl.operate.streams.reader import parse_since
from pykcl.times import LAST_MILLIS, epoch_millis, format_duration, format_time, parse_duration, parse_time

NINE = 1_795_165_200_000
NOW = 1_800_000_000_000

INSTANTS = [
    ("2026-11-20T09:00:00Z", NINE),
    ("2026-11-20T09:00Z", NINE),
    ("2026-11-20T09Z", NINE),
    ("20261120T090000Z", NINE),
    ("2026-11-20 09:00:00z", NINE),
    ("2026-11-20T10:00:00+01:00", NINE),
    ("2026-11-20T11:00:00+02", NINE),
    ("2026-11-20T04:30:00-0430", NINE),
    ("2026-11-20T09:00:00.5Z", NINE + 500),
    ("2026-11-20T09:00:00,25Z", NINE + 250),
    ("2026-11-20T09:00:00.001Z", NINE + 1),
    ("2026-11-20T10:00:00.312456789+01:00", NINE + 312),
    ("1795165200000", NINE),
]


@pytest.mark.parametrize(
    ("text", "millis"), [*INSTANTS, (" 1970-01-01T00:00Z ", 0), ("9" * 14, 99_999_999_999_999)]
)
def test_an_instant_is_read(text, millis):
    assert parse_time(text) == millis


@pytest.mark.parametrize(("text", "millis"), INSTANTS)
def test_an_instant_is_one_wherever_it_is_written(text, millis):
    start = Config(application="orders-app", stream="orders", initial_position=text).start_position
    assert (start.kind, start.at_millis) == ("AT_TIMESTAMP", millis)
    assert parse_since(text, NOW) == ReadFrom("AT_TIMESTAMP", at_millis=millis)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-11-20T09:00", "has no time zone. Add Z"),
        ("2026-11-20", "has no time zone"),
        ("2026-13-20T09:00:00Z", "is not a time. Write it like 2026-11-20T09:00Z"),
        ("20/11/2026 09:00Z", "is not a time"),
        ("2026-11-20T09:00:00+24:00", "is not a time"),
        ("0001-01-01T00:00:00+14:00", "is before 1970 or after 9999"),
        ("1969-12-31T23:59:59.999Z", "is before 1970"),
        ("9999-12-31T23:59:59-01:00", "is before 1970 or after 9999"),
        ("1795165200", "is not a time: epoch seconds are not accepted"),
        ("20261120", "is not a time: epoch seconds are not accepted"),
    ],
)
def test_any_other_is_refused_wherever_it_is_written(text, why):
    with pytest.raises(ConfigError, match=why) as refused:
        parse_time(text)
    assert "2026-11-20T09:00Z" in str(refused.value)
    with pytest.raises(ConfigError, match=f"initial_position='{re.escape(text)}' {why}"):
        Config(application="orders-app", stream="orders", initial_position=text)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "Z", "٢٠٢٦-11-20T09:00Z", "2026-11-20T09:00Zulu", "1" * 5000]
)
def test_what_is_no_time_at_all_is_refused(text):
    with pytest.raises(ConfigError, match="is not a time"):
        parse_time(text)


def test_an_aware_time_becomes_milliseconds_without_rounding():
    eastern = timezone(timedelta(hours=-5))
    assert epoch_millis(datetime(2026, 11, 20, 4, 0, 0, 1_999, tzinfo=eastern)) == NINE + 1
    assert epoch_millis(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == LAST_MILLIS
    assert epoch_millis(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))) is None


def test_an_instant_is_shown_in_utc():
    assert format_time(NINE + 250.7) == "2026-11-20T09:00:00.250Z"
    assert format_time(NINE + 1, milliseconds=False) == "2026-11-20T09:00:00Z"
    assert [parse_time(format_time(at)) for at in (0, NINE + 999, LAST_MILLIS)] == [
        0,
        NINE + 999,
        LAST_MILLIS,
    ]


# -- durations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("500ms", 0.5), ("60s", 60), ("1m30s", 90), ("2h", 7200), ("1d", 86400), ("PT2H", 7200),
     ("P1DT30M", 88200), ("pt0.5s", 0.5), (" 2s ", 2)],
)  # fmt: skip
def test_durations_are_read(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)
    at_millis = NOW - round(seconds * 1000)
    assert parse_since(text, NOW) == ReadFrom("AT_TIMESTAMP", at_millis=at_millis)


@pytest.mark.parametrize(
    "text", ["", "s", "-5s", "5 minutes", "1m 30s", "P", "PT", "nan", "inf", "1e9", "5w", "٣s"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ConfigError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0.0s"), (9.94, "9.9s"), (9.96, "10s"), (59.6, "1m00s"), (127, "2m07s"), (3900, "1h05m"),
     (277200, "3d05h"), (-5, "-5.0s")],
)  # fmt: skip
def test_durations_are_shown_for_people(seconds, text):
    assert format_duration(seconds) == text


# -- --since ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "kind"),
    [("earliest", "TRIM_HORIZON"), ("TRIM_HORIZON", "TRIM_HORIZON"), ("latest", "LATEST"), ("now", "LATEST")],
)
def test_the_two_ends_of_a_stream_have_words(word, kind):
    assert parse_since(word, NOW) == ReadFrom(kind)


def test_longer_ago_than_there_are_records_is_the_oldest_one():
    assert parse_since("900000d", NOW) == ReadFrom("TRIM_HORIZON")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-11-20T09:00:00", "no time zone"),
        ("2026-13-20T09:00:00Z", "is not a time"),
        ("yesterday", "neither a time nor a duration"),
        ("", "neither a time nor a duration"),
        ("2199-01-01T00:00:00Z", "is in the future"),
        ("9" * 14, "is in the future"),
    ],
)
def test_what_is_no_place_to_begin_is_refused(text, why):
    with pytest.raises(ConfigError, match=why):
        parse_since(text, NOW)
