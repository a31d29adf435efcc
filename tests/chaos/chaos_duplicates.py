"""Records that were finished more than once, and why."""

from __future__ import annotations

from dataclasses import dataclass

from chaos_evidence import Evidence, Item, Life
from chaos_ownership import ownerships


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
    ended = {(own.shard, own.token): own.how for own in ownerships(evidence)}
    by_shard: dict[str, list[Life]] = {}
    for life in sorted(evidence.lives, key=lambda life: life.token):
        by_shard.setdefault(life.shard, []).append(life)
    found = []
    for lives in by_shard.values():
        finished = [{item for _, item in life.done} for life in lives]
        for later in range(len(lives)):
            for earlier in range(later):
                both = finished[earlier] & finished[later]
                if both:
                    kind = ended.get((lives[earlier].shard, lives[earlier].token), "D2")
                    items = tuple(sorted(both, key=lambda item: item.at))
                    found.append(Repeat(kind, lives[earlier], lives[later], items))
    return found
