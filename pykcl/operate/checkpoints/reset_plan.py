"""Which rows a reset moves, creates and leaves alone, so that every record from its time on is delivered, in order.

A shard with records from the time on is read again from there, and whatever descends from it from its beginning: its
records come later than the parent's. Rows that cleaning up deleted are put back where their shard is to be read again,
because a child without its parent's row does not wait for it. Parents come first: if the tool dies between two rows,
the table is one that a fleet reads without skipping, and the same reset, run again, does the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pykcl.errors import Refused
from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.shard import Shard
from pykcl.operate.checkpoints.places import Look
from pykcl.operate.checkpoints.plan import (
    Plan,
    Situation,
    Step,
    creation_step,
    in_order,
    refuse_what_cannot_be_planned,
    reset_step,
    unfinished_ancestors,
)
from pykcl.planning.shard_graph import FamilyTree


def plan_reset(
    situation: Situation, looks: Mapping[str, Look], *, whole: bool, as_told: bool = False
) -> Plan:
    """looks: of every shard that is to be moved. whole: these are all the shards that are listed. as_told: each place
    was named by the operator, so none of them gives way to what is read again above it.

    Raises Refused: the listing is incomplete, rows are of another stream or unreadable, there are no leases, or a shard
    was named that cannot be moved without others.
    """
    refuse_what_cannot_be_planned(situation, looks)
    return _Reset(situation, looks, whole, as_told).plan()


def again(tree: FamilyTree, looks: Mapping[str, Look], shards: Mapping[str, Shard]) -> set[str]:
    """Shards below one that is closed and read again: they are read from their beginning."""
    reread = {key for key, look in looks.items() if look.place.has_later and not shards[key].is_open}
    return tree.descendants_of(reread)


class _Reset:
    def __init__(self, situation: Situation, looks: Mapping[str, Look], whole: bool, as_told: bool) -> None:
        self._situation, self._looks, self._whole, self._as_told = situation, looks, whole, as_told
        self._shards = situation.listing.by_id
        self._leases = situation.leases
        self._tree = situation.tree
        self._again = again(self._tree, looks, self._shards)
        self._unfinished = {key: not lease.is_ended for key, lease in self._leases.items()}
        self._unfinished.update(dict.fromkeys(situation.unreadable, True))

    def plan(self) -> Plan:
        steps: dict[str, Step] = {}
        for key in in_order(self._looks, self._tree):
            step = self._step(self._shards[key], self._looks[key])
            if step is not None:
                steps[key] = step
                row = step.new or step.seen
                self._unfinished[key] = row is not None and not row.is_ended
        ordered = [steps[key] for key in in_order(steps, self._tree)]
        # First: ended rows harm nobody, and without them the tool could die where Java's readers wait for ever.
        return Plan((*self._siblings(steps), *ordered), tuple(self._hints(steps)))

    def _step(self, shard: Shard, look: Look) -> Step | None:
        """None: the shard has no row and needs none."""
        key, seen = shard.shard_id, self._leases.get(shard.shard_id)
        below = key in self._again and not self._as_told
        to = AT_TRIM_HORIZON if below else look.place.checkpoint
        is_read_again = below or look.place.has_later
        if seen is not None:
            if seen.is_ended and not is_read_again and not shard.is_open and self._whole:
                return Step(key, "keep", seen, None, look, "ended before that")
            return reset_step(seen, to, look, "again from its beginning" if below else "")
        above = unfinished_ancestors(key, self._tree, self._unfinished)
        if not self._whole:
            self._refuse_before_its_turn(key, above)
        if not (is_read_again or shard.is_open or above or not self._whole):
            return None
        return creation_step(shard, to, self._situation.stream, look, "its row is put back")

    def _refuse_before_its_turn(self, key: str, above: Collection[str]) -> None:
        """A shard whose turn has not come has no row yet. One for it alone would look to workers as if what lies
        between it and what is being read had been read already."""
        left = sorted(one for one in above if one not in self._looks)
        if left:
            raise Refused(
                f"{key} has no row yet: {left[0]}, which comes before it, is not read to its end. Nothing was written. "
                "Do: move both, or leave --shard out."
            )

    def _siblings(self, steps: Mapping[str, Step]) -> list[Step]:
        """The other parent of a merge, where only one of the two would have a row.

        Java's reader of that one waits at its end until both rows are there, or neither (v3.5.1 `ShutdownTask`): it
        would wait for ever. The other one was read and cleaned up, so it is put back as ended.
        """
        found: dict[str, Step] = {}
        for key in steps:
            # Also of a row that is kept: the tool may have died after it the last time.
            if not self._unfinished[key]:
                continue
            for child in self._tree.children_of(key):
                for other in self._parents_without_row(child, steps):
                    found[other] = creation_step(
                        self._shards.get(other, Shard(other)),
                        AT_SHARD_END,
                        self._situation.stream,
                        None,
                        "the other half of a merge",
                        children=(child,),
                    )
        return [found[key] for key in sorted(found)]

    def _parents_without_row(self, child: str, steps: Mapping[str, Step]) -> list[str]:
        return [
            parent
            for parent in self._tree.parents_of(child)
            if parent not in steps
            and parent not in self._leases
            and parent not in self._situation.unreadable
            and not unfinished_ancestors(parent, self._tree, self._unfinished)
        ]

    def _hints(self, steps: Mapping[str, Step]) -> list[str]:
        hints = []
        left = sorted(
            key
            for key in self._again - self._looks.keys()
            if key in self._leases and any(parent in steps for parent in self._tree.ancestors_of([key]))
        )
        if left:
            hints.append(
                f"{', '.join(left)}: below what is read again, and not moved: they wait, and go on where they are. "
                "Name them with --shard, too, to read them again."
            )
        gone = sorted(
            key
            for key, lease in self._leases.items()
            if key not in self._shards and not lease.is_ended and self._whole
        )
        if gone:
            hints.append(f"{', '.join(gone)}: Kinesis lists them no more, so their rows stay as they are.")
        return hints


def moved_to(step: Step) -> Checkpoint | None:
    """What the row says afterwards; None: there is none then."""
    if step.action == "delete":
        return None
    row = step.new or step.seen
    return row.checkpoint if row is not None else None
