"""When to begin: a time, how long ago, or one of two words."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from pykcl.errors import ConfigError
from pykcl.model.checkpoint import ReadFrom

_EPOCH_MILLIS = re.compile(r"[0-9]{12,14}\Z")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ].*)?\Z")
_FORMS = (
    "Say how long ago (10m, 2h30m, 1d, PT2H), a time with its zone (2026-11-20T09:00:00Z), earliest or latest"
)


def since(text: str, now_millis: int, *, ago_seconds: float | None = None) -> ReadFrom:
    """Where to open every shard.

    now_millis: Kinesis' clock, epoch milliseconds. ago_seconds: what `text` means where it is a duration.
    Raises ConfigError for what is neither a time nor a word, and for a time that has not come.
    """
    word = text.strip().lower()
    if word in ("earliest", "trim_horizon"):
        return ReadFrom("TRIM_HORIZON")
    if word in ("latest", "now"):
        return ReadFrom("LATEST")
    at = _time_millis(text) if ago_seconds is None else now_millis - round(ago_seconds * 1000)
    if at > now_millis:
        raise ConfigError(
            f"--since {text[:80]!r} has not come: Kinesis' clock says {_shown(now_millis)}. Name an earlier time; "
            "what comes from now on is read with --since latest."
        )
    return ReadFrom("TRIM_HORIZON") if at <= 0 else ReadFrom("AT_TIMESTAMP", at_millis=at)


def _time_millis(text: str) -> int:
    word = text.strip()
    if _EPOCH_MILLIS.match(word):
        return int(word)
    if not _DAY.match(word):
        raise ConfigError(f"--since {text[:80]!r} is neither a time nor a duration. {_FORMS}.")
    try:
        moment = datetime.fromisoformat(_for_older_pythons(word))
    except ValueError:
        raise ConfigError(f"--since {text[:80]!r} is no time of the calendar. {_FORMS}.") from None
    if moment.tzinfo is None:
        raise ConfigError(
            f"--since {text[:80]!r} has no time zone. Say which: add Z for UTC, or an offset (+02:00)."
        )
    try:
        return int(moment.timestamp() * 1000)
    except OverflowError:
        return 0


def _for_older_pythons(word: str) -> str:
    """Python 3.10 knows neither Z, nor an offset of hours only, nor fractions but of three or six digits."""
    plain = re.sub(r"[Zz]\Z", "+00:00", word)
    plain = re.sub(r"(:[0-9]{2}(?:\.[0-9]+)?)([+-][0-9]{2})\Z", r"\1\2:00", plain)
    return re.sub(r"\.([0-9]+)", lambda found: f".{found[1][:6]:0<6}", plain)


def _shown(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
