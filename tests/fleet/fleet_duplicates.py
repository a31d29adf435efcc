"""Records that were finished more than once, and why."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_evidence import Evidence, Item, Life
from fleet_ownership import ownership_of, ownerships


@dataclass(frozen=True, slots=True)
class Repeat:
    """Records that were finished in two lives of one shard. kind: D0 to D3, by how the earlier ownership ended."""

    kind: str
    first: Life
    second: Life
    items: tuple[Item, ...]


DUPLICATES = {
    "D0": "after a release or the end of a shard",
    "D1": "after a crash",
    "D2": "after a lease was taken from a live worker, or ran out",
    "D3": "after a freeze",
}


def repeats(evidence: Evidence) -> list[Repeat]:
    """Every pair of lives that share finished records."""
    owned = ownerships(evidence)
    by_shard: dict[str, list[tuple[int, Life, str]]] = {}
    for life in evidence.lives:
        own = ownership_of(life, owned)
        since, how = (own.since, own.how) if own else (life.t, "D2")
        by_shard.setdefault(life.shard, []).append((since, life, how))
    found = []
    for told in by_shard.values():
        told.sort(key=lambda one: (one[0], one[1].t))
        lives = [life for _, life, _ in told]
        finished = [{item for _, item in life.done} for life in lives]
        for later in range(len(lives)):
            for earlier in range(later):
                both = finished[earlier] & finished[later]
                if both:
                    kind = told[earlier][2]
                    items = tuple(sorted(both, key=lambda item: item.at))
                    found.append(Repeat(kind, lives[earlier], lives[later], items))
    return found


def unexplained(evidence: Evidence) -> list[tuple[Life, Item]]:
    """Repeats that were not in the un-checkpointed tail: the row told their second processor that they were done."""
    owned = ownerships(evidence)
    found = []
    for repeat in repeats(evidence):
        own = ownership_of(repeat.second, owned)
        durable = own.checkpoint if own else repeat.second.start
        found += [(repeat.second, item) for item in repeat.items if item.at <= durable]
    return found
