"""Which heartbeats are sent together: one right behind another costs a fraction of one for which a thread wakes up."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

_GIVE: Final = 0.1

Key = TypeVar("Key", bound=Hashable)


def heartbeat_give(interval: float) -> float:
    """Seconds by which a heartbeat may come too soon, to come together with others. Never too late.

    interval: from one heartbeat to the next. Leases that have theirs together keep them so: then none comes too soon.
    """
    return interval * _GIVE


def heartbeats_due(left: Mapping[Key, float], give: float) -> tuple[tuple[Key, ...], float]:
    """The leases to send heartbeats for now, and the seconds until the next one is due; infinity if there is none.

    left: seconds until each one's is due. Where one is due, those go along that will be within `give` seconds.
    """
    now = (
        [key for key, seconds in left.items() if seconds <= give]
        if min(left.values(), default=1.0) <= 0
        else []
    )
    chosen = set(now)
    later = [seconds for key, seconds in left.items() if key not in chosen]
    return tuple(sorted(now, key=lambda key: left[key])), min(later, default=float("inf"))
