"""Rows that an operator deletes: what is known of them no more, once somebody who never saw them makes them anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.memory.values import Item
from pykcl.testing.storm.places import FIRST, Place, checkpoint_place


class DeletedRows:
    """must_be_reported: what retention took of each lease behind its checkpoint; what nobody can know goes from it.

    now: virtual seconds. joined: when each host had its first view of the lease table.

    1) Retention takes records behind the checkpoint; 2) before anybody reads on, an operator deletes the row; 3) before
    those who saw it put it back, as they do, at its checkpoint, a worker that has just started finds a shard without a
    lease and makes one at the start position. Whoever reads from there cannot tell that anything is missing before the
    first record it gets: docs/guarantees.md promises nothing for such a row. What lies up to the checkpoint was read
    across, and has to be told of all the same; so has everything else where the row comes back with its checkpoint, or
    is made anew by a worker that knew better.
    """

    def __init__(
        self,
        must_be_reported: Mapping[str, set[Place]],
        *,
        now: Callable[[], float],
        joined: Mapping[str, float],
    ) -> None:
        self._must_be_reported, self._now, self._joined = must_be_reported, now, joined
        self._deleted: dict[str, tuple[Item, float]] = {}

    def deleted(self, key: str, row: Item) -> None:
        """By an operator, just now."""
        self._deleted[key] = (row, self._now())

    def put_back(self, key: str) -> None:
        """By the operator who deleted it."""
        self._deleted.pop(key, None)

    @property
    def missing(self) -> dict[str, str | None]:
        """Keys of the rows that nobody has put back, with the owner of each."""
        return {key: row.get("leaseOwner", {}).get("S") for key, (row, _) in self._deleted.items()}

    def row_changed(self, change: Change) -> None:
        """Also a row that is there again."""
        if change.before is not None or change.after is None or change.key not in self._deleted:
            return
        row, at = self._deleted.pop(change.key)
        read = checkpoint_place(row)
        is_at_the_start = checkpoint_place(change.after) < FIRST
        never_saw_it = self._joined.get(change.author, float("-inf")) >= at
        if is_at_the_start and never_saw_it:
            lost = self._must_be_reported.get(change.key, set())
            lost.difference_update({place for place in lost if place > read})
