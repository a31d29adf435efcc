"""A plan for a lease table: the change of each row, in order, and its effect on the readers of each shard.

Nothing here reads or writes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal

from pykcl.errors import ConfigError, Refused
from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_TRIM_HORIZON, TRIM_HORIZON, Checkpoint, is_sequence_number
from pykcl.model.lease import ForeignRow, Lease, PykclMetadata, Row, UnreadableRow
from pykcl.model.lease_writes import LeaseWrite
from pykcl.model.shard import Shard, ShardListing, StreamDescription
from pykcl.planning.fleet_protocol import MULTI_STREAM_LEASE
from pykcl.planning.run_end import NO_END, range_of
from pykcl.planning.shard_graph import FamilyTree
from pykcl.times import format_time

_SUB_SEQUENCE_NUMBER = re.compile(r"[0-9]{1,19}\Z")

DestinationKind = Literal["earliest", "latest", "time", "positions"]


@dataclass(frozen=True, slots=True)
class Destination:
    """The target of a reset.

    at_millis: epoch milliseconds, for "time". positions: shard id -> (sequence number, sub-sequence number; None: all
    of that record), for "positions": everything up to and including it counts as processed.
    """

    kind: DestinationKind
    at_millis: int | None = None
    positions: dict[str, tuple[str, int | None]] = field(default_factory=dict)


def parse_position(text: str) -> tuple[str, int | None]:
    """Return the sequence number and the sub-sequence number, if any, of "4968…:17". Raises ConfigError."""
    number, colon, sub = text.strip().partition(":")
    if not is_sequence_number(number) or (colon and not _SUB_SEQUENCE_NUMBER.match(sub)):
        raise ConfigError(
            f"{text[:80]!r} is not a position. Write a sequence number, as `checkpoints show -o wide` shows them, and "
            "after a colon the sub-sequence number if only a part of an aggregated record was processed: 4968…1642 or "
            "4968…1642:17."
        )
    return number, Checkpoint(number, _sub(sub, text)).sub_sequence_number if colon else None


def _sub(sub: str, text: str) -> int:
    if int(sub) > 2**63 - 1:
        raise ConfigError(f"{text[:80]!r} has a sub-sequence number beyond 2^63-1.")
    return int(sub)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The position where a shard's readers go on.

    checkpoint: for the row: TRIM_HORIZON or a record, never another sentinel. resumes_at: arrival, epoch milliseconds,
    of the first record delivered from there; None without one yet. has_later: True if such a record is retained.
    """

    checkpoint: Checkpoint = AT_TRIM_HORIZON
    resumes_at: float | None = None
    has_later: bool = False


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search in one shard.

    oldest: arrival of the oldest retained record, epoch milliseconds. current_at: arrival of the record of the present
    checkpoint, None without one or where it is gone.
    """

    resume: ResumePoint
    oldest: float | None = None
    current_at: float | None = None


Action = Literal["create", "reset", "delete", "keep"]


@dataclass(frozen=True, slots=True)
class Situation:
    """The state before planning. rows: of one scan. now_millis: Kinesis' clock, to the second, rounded down."""

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
    """The change of one row. key: its shard. seen: the row as it is, None without one.

    new: the row as it will be; None if it stays or is deleted. found: the search in the shard. why: in a few words.
    """

    key: str
    action: Action
    seen: Lease | None
    new: Lease | None = None
    found: SearchResult | None = None
    why: str = ""

    @property
    def after(self) -> Lease | None:
        """The row afterwards; None without one."""
        return None if self.action == "delete" else (self.new or self.seen)

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
    """steps: parents before their children, deletions last. hints: notes for the operator."""

    steps: tuple[Step, ...]
    hints: tuple[str, ...] = field(default=())

    @property
    def changes(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.action != "keep")


def parents_first(keys: Collection[str], tree: FamilyTree) -> list[str]:
    """Return the keys, parents before their children, else sorted. Raises Refused for rows that are each other's
    parents."""
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
        raise Refused(f"The rows of {names} name each other as parents. Do: correct them first.") from None


def reset_step(seen: Lease, to: Checkpoint, found: SearchResult | None, why: str = "") -> Step:
    """Return the step that moves a row, or keeps it if it is there already."""
    return step_to(seen, seen.with_(checkpoint=to, pending=None, children=()), found, why)


def step_to(seen: Lease, new: Lease, found: SearchResult | None, why: str = "") -> Step:
    """Return the step that sets checkpoint, pending checkpoint and, at the end of a shard, children to those of
    `new`."""
    same = seen.checkpoint == new.checkpoint and seen.pending == new.pending
    if same and (not new.is_ended or set(seen.children) == set(new.children)):
        return Step(seen.key, "keep", seen, None, found, "is there already")
    return Step(seen.key, "reset", seen, new, found, why)


def creation_step(
    shard: Shard,
    to: Checkpoint,
    situation: Situation,
    found: SearchResult | None,
    why: str,
    *,
    children: tuple[str, ...] = (),
) -> Step:
    """Return the step that creates a row for a shard without one, in the run that the other rows belong to."""
    stream, leases = situation.stream, situation.leases.values()
    begin, until, shards = next(map(range_of, leases), NO_END)
    row = Lease(
        shard.shard_id,
        to,
        parents=shard.parents,
        children=children,
        hash_range=shard.hash_range,
        metadata=PykclMetadata(
            stream_arn=stream.arn,
            stream_created_at=stream.created_at,
            until=until,
            begin=begin,
            shards=shards,
        ),
    )
    return Step(shard.shard_id, "create", None, row, found, why)


def refuse_unplannable(situation: Situation, keys: Collection[str]) -> None:
    """Raise Refused for a situation in which no plan is safe. keys: of the rows to be moved."""
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
            "Do: correct it, or select other shards with --shard."
        )
    if not leases:
        many = any(row.kind == MULTI_STREAM_LEASE for row in situation.foreign)
        raise Refused(
            "The leases of this table are those of a multi-stream application, which pykcl does not change."
            if many
            else "The table has no leases yet, so there is nothing to move: the application will start at its "
            "initial position."
        )


def unfinished_ancestors(key: str, tree: FamilyTree, is_unfinished: Mapping[str, bool]) -> set[str]:
    """Return the ancestors with a row that has not ended."""
    return {parent for parent in tree.ancestors_of([key]) if is_unfinished.get(parent, False)}


def _is_of_another(lease: Lease, stream: StreamDescription) -> bool:
    return lease.metadata is not None and lease.metadata.conflicts_with(stream)


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a step on the shard's readers.

    resumes_at: epoch milliseconds; None for new records only, or if unknown. replays, skips: seconds between the
    arrivals of the first and the last record that is delivered again, or never; None for none, or if unknown.
    to_end: the replay reaches to the end of a closed shard.
    """

    resumes_at: float | None = None
    replays: float | None = None
    skips: float | None = None
    to_end: bool = False


def effect_of(step: Step, now_millis: int) -> Effect:
    """Return the effect of a step."""
    found = step.found
    if found is None or step.action == "delete":
        return Effect()
    row = step.new or step.seen
    to = row.checkpoint if row is not None else None
    if to is None or to.is_shard_end:
        return Effect()
    start = found.oldest if to.sequence_number == TRIM_HORIZON else found.resume.resumes_at
    if step.action == "keep":
        return Effect(start)
    before = step.seen.checkpoint if step.seen is not None else None
    if before is None or before.is_shard_end:
        return Effect(start, replays=_seconds(start, now_millis), to_end=before is not None)
    if to < before:
        return Effect(start, replays=_seconds(start, found.current_at))
    since = found.oldest if before.sequence_number == TRIM_HORIZON else found.current_at
    return Effect(start, skips=_seconds(since, start if start is not None else now_millis))


def rows_of(plan: Plan, now_millis: int) -> list[dict[str, Any]]:
    """Return one row of output for each step, in order; times as text."""
    return [_row(step, effect_of(step, now_millis)) for step in plan.steps]


def _row(step: Step, effect: Effect) -> dict[str, Any]:
    after = step.after
    return {
        "shard": step.key,
        "action": step.action,
        "current": _text(step.seen.checkpoint if step.seen is not None else None),
        "new": _text(after.checkpoint if after is not None else None),
        "resumes_at": None if effect.resumes_at is None else format_time(effect.resumes_at),
        "replays_seconds": effect.replays,
        "skips_seconds": effect.skips,
        "to_end": effect.to_end,
        "why": step.why,
    }


def _text(checkpoint: Checkpoint | None) -> str | None:
    return None if checkpoint is None else str(checkpoint)


def _seconds(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None else round(max(0.0, last - first) / 1000, 3)
