"""What doors made of one program: how they differ from Java, and what became of each record. Nothing here starts anything.

Of a door these are looked at: exit, exited_by_itself, notes(), records(), worked_on(), answers(), checkpoints(), rows()
and shards(); see `program_doors.Door`.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

JAVA = "java"


def differences(ran: Mapping[str, Any], count: int) -> list[str]:
    """How doors differ from Java, and Java from what was put: each user record once and in order, the same answers to
    checkpoints, the same checkpoints in the lease table all along. count: of user records.
    """
    found, java = [], ran[JAVA]
    if len(java.worked_on()) != count:
        found.append(f"java worked on {len(java.worked_on())} of {count} records")
    for name, door in ran.items():
        if any(times > 1 for times in Counter(door.worked_on()).values()):
            found.append(f"{name} worked on records twice")
        orders = [[(int(one[0]), one[1]) for one in records] for records in door.records().values()]
        if any(order != sorted(order) for order in orders):
            found.append(f"{name} worked on records out of order")
        if name != JAVA and door.exit != 0:
            found.append(f"{name} ended with {door.exit}")
        for what, of in _COMPARED.items():
            found += _difference(f"{name}: {what}", of(java), of(door))
    return found


_COMPARED = {
    "records": lambda door: door.records(),
    "answers to checkpoints": lambda door: door.answers(),
    "checkpoints in the table": lambda door: door.checkpoints(),
    "last checkpoints": lambda door: door.rows(),
    "starts": lambda door: {note["shard"]: note["at"] for note in door.notes("initialize")},
    "ends": lambda door: dict.fromkeys(door.shards("ended")),
}


def _difference(what: str, javas: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """The first one of each shard."""
    found = []
    for shard in sorted(javas.keys() | ours.keys()):
        left, right = javas.get(shard, "nothing"), ours.get(shard, "nothing")
        if left == right:
            continue
        if isinstance(left, list) and isinstance(right, list):
            place = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
            if place is None:
                left, right = f"{len(left)} of them", f"{len(right)}"
            else:
                left, right = left[place], right[place]
        found.append(f"{what} of {shard}: {str(left)[:300]} at java, {str(right)[:300]} here")
    return found


@dataclass(frozen=True)
class Outcome:
    """Of one program at one door. Numbers are those of the records in `misbehaving`.

    lost: behind a checkpoint, and nobody ever worked on them. again: worked on more than once. exit: code of whoever runs
    it, though nobody stopped it; None: it runs on. exits_at: what it exits after. waits: behind the last checkpoint when it
    exited, so whoever starts next gets them.
    """

    lost: frozenset[int] = frozenset()
    again: frozenset[int] = frozenset()
    exit: int | None = None
    exits_at: str = ""
    waits: frozenset[int] = frozenset()


def numbers(door: Any) -> Counter[int]:
    """How often each number was worked on."""
    found = [note["record"][3] for note in door.notes("record")]
    return Counter(json.loads(base64.b64decode(data))["n"] for data in found)


def outcome_of(door: Any, places: Mapping[int, tuple[str, int]], expected: Outcome) -> Outcome:
    """What happened. waits: of what is expected to wait, what indeed lies behind no checkpoint."""
    rows, done = door.rows(), numbers(door)
    passed = {
        number for number, (shard, sequence) in places.items() if rows.get(shard, (-1, 0)) >= (sequence, 0)
    }
    waits = places.keys() - passed
    return Outcome(
        lost=frozenset(passed - done.keys()),
        again=frozenset(number for number, count in done.items() if count > 1),
        exit=door.exited_by_itself,
        exits_at=expected.exits_at,
        waits=frozenset(waits),
    )
