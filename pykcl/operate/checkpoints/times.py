"""Times and positions as an operator writes them, and as they are shown."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from pykcl.errors import ConfigError
from pykcl.model.checkpoint import Checkpoint, is_sequence_number

EXAMPLE = "2026-11-20T09:00Z or 2026-11-20T10:00:00.250+01:00"
_LAST_MILLIS = 253_402_300_799_000
_DIGITS = re.compile(r"[0-9]{1,19}\Z")


def millis_of(text: str) -> int:
    """Epoch milliseconds of an ISO 8601 time with a time zone. Raises ConfigError with an example."""
    try:
        # Python 3.10 does not know the Z suffix.
        found = datetime.fromisoformat(re.sub(r"[Zz]\Z", "+00:00", text.strip()))
    except ValueError:
        hint = " Epoch seconds are not taken." if text.strip().isdigit() else ""
        raise ConfigError(f"{text[:60]!r} is no time.{hint} Write it like {EXAMPLE}.") from None
    if found.tzinfo is None:
        raise ConfigError(
            f"{text[:60]!r} has no time zone, and a wrong guess would move every checkpoint by hours. "
            f"Add Z for UTC or an offset, as in {EXAMPLE}."
        )
    try:
        millis = int(found.timestamp() * 1000)
    except (OverflowError, ValueError):
        millis = -1
    if not 0 <= millis <= _LAST_MILLIS:
        raise ConfigError(f"{text[:60]!r} is before 1970 or beyond the calendar. Write it like {EXAMPLE}.")
    return millis


def time_text(millis: float | None) -> str:
    """UTC, to the millisecond: "2026-11-20T09:00:00.312Z"; "-" for None."""
    if millis is None:
        return "-"
    found = datetime.fromtimestamp(int(millis) / 1000, tz=timezone.utc)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def position_of(text: str) -> tuple[str, int | None]:
    """A sequence number, and a sub-sequence number if one is written behind a colon: "4968…:17". Raises ConfigError."""
    number, colon, sub = text.strip().partition(":")
    if not is_sequence_number(number) or (colon and not _DIGITS.match(sub)):
        raise ConfigError(
            f"{text[:80]!r} is no position. Write a sequence number, as `checkpoints show -o wide` shows them, and "
            "behind a colon the sub-sequence number if only a part of an aggregated record is done: 4968…1642 or "
            "4968…1642:17."
        )
    return number, Checkpoint(number, _sub(sub, text)).sub_sequence_number if colon else None


def _sub(sub: str, text: str) -> int:
    if int(sub) > 2**63 - 1:
        raise ConfigError(f"{text[:80]!r} has a sub-sequence number beyond 2^63-1.")
    return int(sub)


def full_shard_id(text: str) -> str:
    """A shard id; "7" and "007" are short for shardId-000000000007."""
    name = text.strip()
    return f"shardId-{int(name):012d}" if name.isascii() and name.isdigit() and len(name) <= 12 else name
