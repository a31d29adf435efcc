"""What is done to the fleet, and in which order: drawn from the seed, every kind once before any kind comes again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

Rule = dict[str, Any]

TROUBLES = ("kill", "freeze", "terminate", "force", "rolling restart")
RESHARDS = ("split", "merge", "update shard count")
WINDOWS = ("throttling", "errors", "resets", "slow answers", "late requests", "lost answers", "blackout")

_READS = ("GetRecords", "GetShardIterator", "ListShards", "DescribeStreamSummary")
"""What workers ask of Kinesis. The producer's and the harness's own requests never fail."""
_LEASE_WRITES = ("UpdateItem", "PutItem", "DeleteItem")


@dataclass(frozen=True, slots=True)
class Step:
    """what: of TROUBLES, RESHARDS or WINDOWS. pause: seconds before it. draw: for what the step itself decides."""

    what: str
    pause: float
    draw: int


def schedule(seed: int) -> Iterator[Step]:
    """Without end. Fault windows stay open while what follows them happens."""
    random = Random(seed)
    while True:
        deck = [*TROUBLES, *RESHARDS, *WINDOWS]
        random.shuffle(deck)
        for what in deck:
            yield Step(what, random.uniform(0.3, 2.0), random.getrandbits(32))


def rules_of(window: str, random: Random, failover_time: float) -> tuple[float, list[Rule]]:
    """How long a window is open, in seconds, and its rules."""
    chance = random.uniform(0.1, 0.4)
    seconds = random.uniform(2.0, 5.0)
    if window == "blackout":
        return failover_time * random.uniform(0.8, 1.6), [_rule("reset-before", "dynamodb")]
    if window == "throttling":
        return seconds, _everywhere("throttle", chance)
    if window == "errors":
        return seconds, [*_everywhere("error", chance / 2), *_everywhere("error-after", chance / 2)]
    if window == "resets":
        return seconds, [*_everywhere("reset-before", chance / 2), *_everywhere("reset-after", chance / 2)]
    if window == "slow answers":
        return seconds, _everywhere("slow", chance, seconds=round(random.uniform(0.2, failover_time / 2), 2))
    if window == "late requests":
        late = round(random.uniform(0.3, 1.2) * failover_time, 2)
        # Not PutItem: a child's row that is put when the child has been read and cleaned up is read again, as
        # docs/concepts/guarantees.md says, and would look like a broken promise here.
        return seconds, [
            _rule("late", "dynamodb", operation, chance / 2, seconds=late)
            for operation in ("UpdateItem", "DeleteItem")
        ]
    # A reader waits ten seconds for Kinesis, so few of its answers are lost.
    lost = [_rule("lost-answer", "dynamodb", operation, chance / 2) for operation in _LEASE_WRITES]
    return seconds, [*lost, _rule("lost-answer", "kinesis", "GetRecords", 0.02, times=2)]


def _everywhere(kind: str, chance: float, **more: Any) -> list[Rule]:
    kinesis = [_rule(kind, "kinesis", operation, chance, **more) for operation in _READS]
    return [_rule(kind, "dynamodb", "*", chance, **more), *kinesis]


def _rule(kind: str, service: str, operation: str = "*", probability: float = 1.0, **more: Any) -> Rule:
    return {
        "kind": kind,
        "service": service,
        "operation": operation,
        "probability": round(probability, 3),
        **more,
    }
