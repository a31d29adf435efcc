"""Places inside shards: what a search through a stream brings home, and what a plan is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint

DestinationKind = Literal["earliest", "latest", "time", "positions"]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where checkpoints are to go.

    at_millis: epoch milliseconds, for "time". positions: shard id -> (sequence number, sub-sequence number; None: all
    of that record), for "positions": everything up to and including it counts as done.
    """

    kind: DestinationKind
    at_millis: int | None = None
    positions: dict[str, tuple[str, int | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """checkpoint: what the row is to say: TRIM_HORIZON or a record, never another sentinel.

    resumes_at: arrival, epoch milliseconds, of the first record delivered from there; None: of none that is there yet.
    has_later: whether a record is retained that is to be delivered from there.
    """

    checkpoint: Checkpoint = AT_TRIM_HORIZON
    resumes_at: float | None = None
    has_later: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """What was found in one shard.

    place: where it is to go on. oldest: arrival of the oldest record that is retained, epoch milliseconds.
    current_at: arrival of the record that the present checkpoint names, None where there is none or it is gone.
    """

    place: Place
    oldest: float | None = None
    current_at: float | None = None
