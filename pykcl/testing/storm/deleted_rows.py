"""Rows that an operator deletes: what is known of them no more, once somebody who never saw them makes them anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pykcl.testing.memory.dynamodb import Change
from pykcl.testing.memory.values import Item
from pykcl.testing.storm.places import FIRST, Place, checkpoint_place


class DeletedRows:
    """must_be_reported: what retention took of each lease behind its checkpoint; what nobody can know goes from it.

    now: virtual seconds. scanned: when each host saw the lease table first.

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
        scanned: Mapping[str, float],
    ) -> None:
        self._must_be_reported, self._now, self._scanned = must_be_reported, now, scanned
        self._deleted: dict[str, tuple[Place, float]] = {}

    def deleted(self, key: str, row: Item) -> None:
        """By an operator, just now."""
        self._deleted[key] = (checkpoint_place(row), self._now())

    def put_back(self, key: str) -> None:
        """By the operator who deleted it."""
        self._deleted.pop(key, None)

    @property
    def missing(self) -> frozenset[str]:
        """Keys of the rows that nobody has put back."""
        return frozenset(self._deleted)

    def row_changed(self, change: Change) -> None:
        """Also a row that is there again."""
        if change.before is not None or change.after is None or change.key not in self._deleted:
            return
        read, at = self._deleted.pop(change.key)
        is_at_the_start = checkpoint_place(change.after) < FIRST
        never_saw_it = self._scanned.get(change.author, float("-inf")) >= at
        if is_at_the_start and never_saw_it:
            lost = self._must_be_reported.get(change.key, set())
            lost.difference_update({place for place in lost if place > read})
