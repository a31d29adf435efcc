"""A plan for a lease table: what happens to which row, in which order. Nothing here is written yet."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from pykcl.errors import Refused
from pykcl.model import lease_writes
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import ForeignRow, Lease, PykclMetadata, Row, UnreadableRow
from pykcl.model.lease_writes import LeaseWrite
from pykcl.model.shard import Shard, ShardListing, StreamDescription
from pykcl.operate.checkpoints.places import Look
from pykcl.planning.shard_graph import FamilyTree

Action = Literal["create", "reset", "delete", "keep"]


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known before planning. rows: of one scan. now_millis: Kinesis' clock, to the second, rounded down."""

    stream: StreamDescription
    listing: ShardListing
    rows: tuple[Row, ...]
    now_millis: int

    @property
    def leases(self) -> dict[str, Lease]:
        return {row.key: row for row in self.rows if isinstance(row, Lease)}

    @property
    def unreadable(self) -> dict[str, UnreadableRow]:
        return {row.key: row for row in self.rows if isinstance(row, UnreadableRow)}

    @property
    def foreign(self) -> tuple[ForeignRow, ...]:
        return tuple(row for row in self.rows if isinstance(row, ForeignRow))

    @property
    def tree(self) -> FamilyTree:
        return FamilyTree.of(self.listing.shards, self.leases)


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to one row. key: its shard. seen: the row as it is, None where there is none.

    new: what it will say; for a creation the whole row. look: what was found in the shard. why: in a few words.
    """

    key: str
    action: Action
    seen: Lease | None
    new: Lease | None = None
    look: Look | None = None
    why: str = ""

    def write(self) -> LeaseWrite:
        """The conditional write. Raises ValueError for a step that writes nothing."""
        if self.action == "create" and self.new is not None:
            return lease_writes.create(self.new)
        if self.action == "reset" and self.seen is not None and self.new is not None:
            new = self.new
            return lease_writes.reset(self.seen, new.checkpoint, children=new.children, pending=new.pending)
        if self.action == "delete" and self.seen is not None:
            return lease_writes.delete(self.seen, ended=False)
        raise ValueError(f"nothing is written for {self.key!r}")


@dataclass(frozen=True, slots=True)
class Plan:
    """steps: parents before their children, deletions last. hints: what the operator should know besides."""

    steps: tuple[Step, ...]
    hints: tuple[str, ...] = field(default=())

    @property
    def changes(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.action != "keep")


def in_order(keys: Collection[str], tree: FamilyTree) -> list[str]:
    """Parents before their children, else sorted. Raises Refused where rows name each other as parents."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for key in sorted(keys):
        order.add(key)
    above = tree.ancestors_of(keys) | set(keys)
    for key in sorted(above):
        order.add(key, *sorted(parent for parent in tree.parents_of(key) if parent in above))
    try:
        return [key for key in order.static_order() if key in keys]
    except CycleError as error:
        names = ", ".join(dict.fromkeys(map(str, error.args[1])))
        raise Refused(f"The rows of {names} name each other as parents. Do: mend them first.") from None


def reset_step(seen: Lease, to: Checkpoint, look: Look | None, why: str = "") -> Step:
    """Move a row, or keep it where it says that already."""
    return step_to(seen, seen.with_(checkpoint=to, pending=None, children=()), look, why)


def step_to(seen: Lease, new: Lease, look: Look | None, why: str = "") -> Step:
    """Bring checkpoint, pending checkpoint and, at the end of a shard, children of `seen` to those of `new`."""
    same = seen.checkpoint == new.checkpoint and seen.pending == new.pending
    if same and (not new.is_ended or set(seen.children) == set(new.children)):
        return Step(seen.key, "keep", seen, None, look, "is there already")
    return Step(seen.key, "reset", seen, new, look, why)


def creation_step(
    shard: Shard,
    to: Checkpoint,
    stream: StreamDescription,
    look: Look | None,
    why: str,
    *,
    children: tuple[str, ...] = (),
) -> Step:
    """Put a row for a shard that has none."""
    row = Lease(
        shard.shard_id,
        to,
        parents=shard.parents,
        children=children,
        hash_range=shard.hash_range,
        metadata=PykclMetadata(stream_arn=stream.arn, stream_created_at=stream.created_at),
    )
    return Step(shard.shard_id, "create", None, row, look, why)


def refuse_what_cannot_be_planned(situation: Situation, keys: Collection[str]) -> None:
    """Raises Refused. keys: of the rows that are to be moved."""
    leases = situation.leases
    if not situation.listing.complete or not situation.listing.shards:
        raise Refused("The shards could not be listed completely. Nothing was written. Do: try again.")
    others = sorted(key for key, lease in leases.items() if _is_of_another(lease, situation.stream))
    if others:
        raise Refused(
            f"The row of {others[0]} says that it belongs to another stream than {situation.stream.arn}, or to an "
            "earlier one of that name. Nothing was written. Do: name the stream that the table belongs to."
        )
    bad = sorted(set(situation.unreadable) & set(keys))
    if bad:
        raise Refused(
            f"The row of {bad[0]} cannot be understood ({situation.unreadable[bad[0]].problem}). Nothing was written. "
            "Do: mend it, or leave it out with --shard."
        )
    if not leases:
        many = any(row.kind == "multi-stream lease" for row in situation.foreign)
        raise Refused(
            "The leases of this table are those of a multi-stream application, which pykcl does not change."
            if many
            else "The table has no leases yet, so there is nothing to move: the application begins where it is told to."
        )


def unfinished_ancestors(key: str, tree: FamilyTree, is_unfinished: Mapping[str, bool]) -> set[str]:
    """Ancestors with a row that has not ended."""
    return {parent for parent in tree.ancestors_of([key]) if is_unfinished.get(parent, False)}


def _is_of_another(lease: Lease, stream: StreamDescription) -> bool:
    return lease.metadata is not None and lease.metadata.conflicts_with(stream)
