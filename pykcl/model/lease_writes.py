"""The fourteen conditional writes of a lease row, as values, and the outcome of one whose condition failed.

Every write but three is fenced by the counter and the owner its writer believes in, and moves the counter by
exactly one: the counter is the only fence Java workers honour, and Java's recovery from an ambiguous renewal
accepts exactly +1. Of the exceptions `fill_hash_range` says nothing about who works on the lease. `assign` and
`begin_hand_over` are written by the leader of a KCL 3.x fleet, which knows the counter of a living owner only
from a scan: they are fenced by both owners, and one of them moves the counter by one from wherever it is. No write can
create a row but `create`, none leaves an owner that is empty or NULL, and none touches an attribute it does
not name. Rows are read by `parse_row` and written whole by `to_item`, both of `lease_item`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pykcl.model.checkpoint import AT_SHARD_END, Checkpoint
from pykcl.model.lease import (
    AttributeValue,
    Lease,
    PendingCheckpoint,
    PykclMetadata,
    Row,
    UnreadableRow,
)
from pykcl.model.lease_item import (
    CHECKPOINT,
    CHECKPOINT_OWNER,
    ENTITY_LEASE,
    ENTITY_TYPE,
    FIELD_ATTRIBUTES,
    LEASE_COUNTER,
    LEASE_KEY,
    LEASE_OWNER,
    MAX_NAME,
    field_item,
    parse_row,
    to_item,
)
from pykcl.model.shard import HashRange

__all__ = [
    "LeaseWrite",
    "WriteKind",
    "adopt",
    "assign",
    "begin_hand_over",
    "checkpoint",
    "create",
    "delete",
    "end_shard",
    "fill_hash_range",
    "hand_over",
    "parse_row",
    "prepare",
    "release",
    "renew",
    "reset",
    "take",
    "to_item",
]

WriteKind = Literal[
    "create",
    "take",
    "adopt",
    "assign",
    "begin-hand-over",
    "renew",
    "checkpoint",
    "prepare",
    "end",
    "release",
    "hand-over",
    "delete",
    "fill",
    "reset",
]

_ADDED: Mapping[str, tuple[str, ...]] = {"take": ("owner_switches",), "assign": ("counter", "owner_switches")}
"""Fields to which a write adds one, whatever their value is by then."""

_BY_THE_LEADER = ("assign", "begin-hand-over")
"""Writes of the leader of a KCL 3.x fleet, which need not work on the lease."""

_OF_THE_OWNER = ("renew", "checkpoint", "prepare", "end", "release", "hand-over")
"""Writes of whoever works on the lease. They are fenced by the checkpoint, too: see `LeaseWrite.restating`."""

MAX_PENDING_STATE = 256 * 1024
"""Bytes of application state in a pending checkpoint: DynamoDB allows 400 KB for the whole row."""


@dataclass(frozen=True, slots=True)
class LeaseWrite:
    """One conditional write.

    seen: the row as the writer believes it is (for a creation: the new row). after: the row once the write
    took effect; None after a delete. written: the fields of the lease that this write sets or removes. ended:
    for a delete, whether the row must still be at SHARD_END. is_fenced: False where the counter may have moved on.
    unanswered: the checkpoints that the row may have by earlier writes of this writer to which no answer came.
    restates: it puts back the checkpoint of its writer, over that of somebody else.
    Make one with the functions of this module.
    """

    kind: WriteKind
    seen: Lease
    after: Lease | None
    written: tuple[str, ...] = ()
    ended: bool = False
    is_fenced: bool = True
    unanswered: frozenset[Checkpoint] = frozenset()
    restates: bool = False

    @property
    def key(self) -> str:
        return self.seen.key

    @property
    def writer(self) -> str | None:
        """The worker of the lease while this writer holds it; None for a creation. A fill is anybody's, a reset an
        operator's, an assignment the leader's: no write of the owner is one's own earlier one.
        """
        if self.kind == "reset" or self.kind in _BY_THE_LEADER:
            return None
        if self.kind == "take":
            return self.after.owner if self.after else None
        return self.seen.actual_owner

    def request(self) -> tuple[str, dict[str, Any]]:
        """The boto3 client's method and its parameters, without TableName."""
        if self.kind == "create":
            return "put_item", {
                "Item": to_item(self.seen),
                "ConditionExpression": f"attribute_not_exists({LEASE_KEY})",
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        condition, values = self._condition()
        params: dict[str, Any] = {
            "Key": {LEASE_KEY: {"S": self.seen.key}},
            "ConditionExpression": condition,
            "ExpressionAttributeValues": values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        if self.kind == "delete":
            return "delete_item", params
        update, new_values = self._update()
        values.update(new_values)
        return "update_item", {**params, "UpdateExpression": update, "ReturnValues": "ALL_NEW"}

    def after_no_answer(self) -> LeaseWrite:
        """The same write, to be sent again although it may have landed."""
        landed = self.after.checkpoint if self.after is not None else self.seen.checkpoint
        return replace(self, unanswered=self.unanswered | {landed})

    @property
    def own_checkpoint(self) -> Checkpoint:
        """The furthest one that the row may have had from this writer: what it wrote was settled, answered or not."""
        return max((self.seen.checkpoint, *self.unanswered))

    def restating(self, row: Row | None = None) -> LeaseWrite:
        """The same write, which also puts back the checkpoint that its writer has: somebody else has changed it.

        row: as it stands there; by default, and where it cannot be read, as this writer believes it is.

        1) A worker works on a lease at 100; 2) an operator writes 200 into its row and leaves the counter, which fences
        nothing; 3) a heartbeat that only compares the counter is applied, and its answer says 200; 4) believed, every
        record up to 200 counts as done, and a release leaves 200 to the next owner: nobody has read them. Java keeps
        its own checkpoint, and its next one overwrites what was written. So does this worker, before it does anything
        else with the row; whoever moves the counter, too, ends the ownership, and the lease begins anew at what
        the row says then.
        """
        base = row if isinstance(row, Lease) else self.seen
        return replace(self, restates=True).rebased(base.with_(checkpoint=self.own_checkpoint))

    def rebased(self, seen: Lease) -> LeaseWrite:
        """The same write on a newer row of the same writer: an earlier one turned out to have landed.

        A checkpoint never moves backwards: if that earlier write got further, its position stays.
        A release becomes a hand-over on a row that names the next owner, and the end of a shard is one, too.
        Raises ValueError for a creation, a delete, a fill, a reset or a write of the leader, which are never sent again
        on another row.
        """
        if self.after is None or self.kind in ("create", "fill", "reset", *_BY_THE_LEADER):
            raise ValueError(f"a {self.kind} cannot be rebased")
        if self.kind == "take":
            return take(
                seen, str(self.after.owner), self.after.metadata if "metadata" in self.written else None
            )
        if self.kind == "release" and seen.checkpoint_owner is not None:
            again = hand_over(seen, self.after.metadata if "metadata" in self.written else None)
        else:
            changes = {field: getattr(self.after, field) for field in self.written if field != "counter"}
            if "checkpoint" in changes:
                changes["checkpoint"] = max(self.after.checkpoint, seen.checkpoint)
            if self.kind == "end" and seen.checkpoint_owner is not None:
                changes["checkpoint_owner"] = None
            again = _update_of(self.kind, seen, **changes)
        written = {*again.written, "checkpoint"} if self.restates else again.written
        return replace(
            again, written=tuple(sorted(written)), unanswered=self.unanswered, restates=self.restates
        )

    def _condition(self) -> tuple[str, dict[str, AttributeValue]]:
        seen = self.seen
        if self.kind == "fill":
            return _range_as_seen(seen)
        values: dict[str, AttributeValue] = (
            {":seenCounter": {"N": str(seen.counter)}} if self.is_fenced else {}
        )
        # Compare the owner too: a KCL 3.x leader starts a hand-off by moving leaseOwner, not the counter.
        clauses = [
            f"{LEASE_COUNTER} = :seenCounter" if self.is_fenced else f"attribute_exists({LEASE_COUNTER})",
            _as_seen(seen, "owner", LEASE_OWNER, ":seenOwner", values),
        ]
        if self.kind in ("take", "reset", *_BY_THE_LEADER) or seen.checkpoint_owner is not None:
            clauses.append(
                _as_seen(seen, "checkpoint_owner", CHECKPOINT_OWNER, ":seenCheckpointOwner", values)
            )
        elif self.kind in ("renew", "adopt"):
            clauses.append(f"attribute_not_exists({CHECKPOINT_OWNER})")
        if self.kind in ("delete", "reset"):
            clauses.append(_is_lease(values))
        if self.kind in _OF_THE_OWNER and not self.restates:
            values[":seenCheckpoint"] = {"S": seen.checkpoint.sequence_number}
            clauses.append(f"{CHECKPOINT} = :seenCheckpoint")
        if self.ended:
            values[":shardEnd"] = {"S": AT_SHARD_END.sequence_number}
            clauses.append(f"{CHECKPOINT} = :shardEnd")
        return " AND ".join(clauses), values

    def _update(self) -> tuple[str, dict[str, AttributeValue]]:
        if self.after is None:
            raise ValueError(f"a {self.kind} has no update")
        settings, removals, values = [], [], {}
        additions: list[str] = []
        for field in self.written:
            if field in _ADDED.get(self.kind, ()):
                additions += FIELD_ATTRIBUTES[field]
                continue
            for name, value in field_item(self.after, field).items():
                if value is None:
                    removals.append(name)
                else:
                    # Otherwise a heartbeat with a note would be the same request as an adoption.
                    is_note = field == "metadata" and self.kind in ("renew", "release", "hand-over")
                    placeholder = ":noted" if is_note else f":{name}"
                    settings.append(f"{name} = {placeholder}")
                    values[placeholder] = value
        update = "SET " + ", ".join(settings)
        if removals:
            update += " REMOVE " + ", ".join(removals)
        if additions:
            update += " ADD " + ", ".join(f"{name} :one" for name in additions)
            values[":one"] = {"N": "1"}
        return update, values


def create(lease: Lease) -> LeaseWrite:
    """Put a new row if its key is free. The row gets entityType LEASE and the private map.

    The counter is 0, except for a row that is put back after somebody deleted it: that goes on above the last one
    known, so that no write from before finds its condition fulfilled again.
    Raises ValueError for a lease that is owned, or starts at a sentinel with a sub-sequence number (which would end as
    (SHARD_END, sub) and block Java's children for ever).
    """
    if lease.owner is not None or lease.counter < 0 or lease.owner_switches != 0:
        raise ValueError(f"a new lease is unowned and untouched; {lease.key!r} is not")
    _check_position(lease.checkpoint)
    new = lease.with_(entity_type=ENTITY_LEASE, metadata=lease.metadata or PykclMetadata())
    return LeaseWrite("create", seen=new, after=new, written=tuple(FIELD_ATTRIBUTES))


def take(seen: Lease, me: str, metadata: PykclMetadata | None = None) -> LeaseWrite:
    """Become the owner, provided that counter, owner and checkpoint owner are still as seen.

    Works alike for unowned, expired, own orphaned and live (stolen) leases. Start from the checkpoint of the
    row that the answer carries, not from `seen`. Raises ValueError for an empty or overlong name.
    """
    _check_worker(me)
    changes: dict[str, Any] = {"owner": me, "checkpoint_owner": None}
    if metadata is not None:
        changes["metadata"] = metadata
    if seen.owner is not None and seen.owner != me:
        changes["owner_switches"] = seen.owner_switches + 1
    return _update_of("take", seen, **changes)


def adopt(seen: Lease, metadata: PykclMetadata) -> LeaseWrite:
    """Begin to work on a lease that a leader of KCL 3.x has assigned to the worker its row names: the first heartbeat.

    Java adopts without a write, and its next heartbeat is the fence. Start from the checkpoint of the row that the
    answer carries. Raises ValueError for a row that nobody owns, or that another worker still works on.
    """
    _check_held(seen)
    if seen.checkpoint_owner is not None:
        raise ValueError(f"{seen.checkpoint_owner!r} still works on {seen.key!r}")
    return _update_of("adopt", seen, metadata=metadata)


def assign(seen: Lease, new_owner: str, *, stands_still: bool) -> LeaseWrite:
    """Name the owner of a lease, as the leader of a KCL 3.x fleet. Whoever works on it loses it at its next write.

    Source: LeaseAssignmentManager, assignLease. stands_still: nobody works on the lease, so its counter must be as
    seen. Java does not ask for that: 1) an owner is slow, and its lease expires; 2) it renews; 3) the leader, which has
    not seen that, gives the lease away under a worker that lives.
    Raises ValueError for an empty or overlong name.
    """
    _check_worker(new_owner)
    changes: dict[str, Any] = {"owner": new_owner, "checkpoint_owner": None}
    if seen.checkpoint_owner == new_owner or seen.owner not in (None, new_owner):
        changes["owner_switches"] = seen.owner_switches + 1
    return replace(_update_of("assign", seen, **changes), is_fenced=stands_still)


def begin_hand_over(seen: Lease, new_owner: str) -> LeaseWrite:
    """Name the next owner of a lease, as the leader of a KCL 3.x fleet. The present one goes on until it has finished.

    Source: LeaseAssignmentManager, initiateGracefulLeaseHandoff. The counter stays, so that no heartbeat of the present
    owner is refused for it. Raises ValueError for a bad name, and for a lease of which nobody could hand over.
    """
    _check_worker(new_owner)
    _check_held(seen)
    if seen.checkpoint_owner is not None or seen.owner == new_owner:
        raise ValueError(f"{seen.key!r} is with {seen.actual_owner!r} and goes to {seen.owner!r}")
    changed = _update_of("begin-hand-over", seen, owner=new_owner, checkpoint_owner=seen.owner)
    after = None if changed.after is None else changed.after.with_(counter=seen.counter)
    return replace(changed, after=after, written=("checkpoint_owner", "owner"), is_fenced=False)


def renew(held: Lease, throughput: str | None = None, metadata: PykclMetadata | None = None) -> LeaseWrite:
    """The heartbeat. throughput: in a fleet of KCL 3.x, KiB a second, as the text of a number. None: it stays, and
    so does the private map.
    """
    _check_held(held)
    measured = {} if throughput is None else {"throughput": throughput}
    return _update_of("renew", held, **measured, **_noted(metadata))


def checkpoint(held: Lease, at: Checkpoint) -> LeaseWrite:
    """Everything up to and including `at` is done. Clears a pending checkpoint and the owner switches.

    Raises ValueError when it would move backwards, or to a sentinel (the end of a shard is `end_shard`).
    """
    _check_held(held)
    if at < held.checkpoint:
        raise ValueError(f"checkpoint {at} of {held.key!r} lies behind {held.checkpoint}")
    if at.is_sentinel and (at != held.checkpoint or at.is_shard_end):
        raise ValueError(f"{at} is not a position a checkpoint of {held.key!r} can move to")
    noted = held.metadata.after(at) if held.metadata is not None else None
    # With the first number after a start at LATEST, the time of that start is over: see `metadata_for`.
    changes = {} if noted == held.metadata else {"metadata": noted}
    return _update_of("checkpoint", held, checkpoint=at, owner_switches=0, pending=None, **changes)


def prepare(held: Lease, pending: PendingCheckpoint) -> LeaseWrite:
    """The first half of a two-phase checkpoint. Raises ValueError when it lies behind the checkpoint."""
    _check_held(held)
    at = pending.checkpoint
    _check_position(at)
    if at < held.checkpoint:
        raise ValueError(f"pending checkpoint {at} of {held.key!r} lies behind {held.checkpoint}")
    if at.is_start and at != held.checkpoint:
        raise ValueError(f"{at} is not a position a checkpoint of {held.key!r} can move to")
    if pending.state is not None and len(pending.state) > MAX_PENDING_STATE:
        raise ValueError(
            f"pending state of {len(pending.state)} bytes; at most {MAX_PENDING_STATE} fit into a row"
        )
    return _update_of("prepare", held, pending=pending)


def end_shard(held: Lease, children: Sequence[str], *, keeps_owner: bool = False) -> LeaseWrite:
    """SHARD_END, the child shards and the removal of the owner, in one write. The children's rows exist.

    keeps_owner: in a fleet of KCL 3.x, whose leader assigns a lease without an owner again, ended or not. The owner is
    then the next one, where a hand-off is under way.
    Raises ValueError for a child name no row could have.
    """
    _check_held(held)
    for child in children:
        if not 0 < len(child) <= MAX_NAME:
            raise ValueError(f"a child shard of {held.key!r} has a name of {len(child)} characters")
    changes: dict[str, Any] = {"children": tuple(children)} if children else {}
    if held.checkpoint_owner is not None or not keeps_owner:
        changes["checkpoint_owner"] = None
    if not keeps_owner:
        changes["owner"] = None
    return _update_of("end", held, checkpoint=AT_SHARD_END, owner_switches=0, pending=None, **changes)


def release(held: Lease, metadata: PykclMetadata | None = None) -> LeaseWrite:
    """Give the lease up: nobody owns it afterwards, its checkpoint and a pending one stay. metadata: None: as it is."""
    _check_held(held)
    return _update_of("release", held, owner=None, checkpoint_owner=None, **_noted(metadata))


def hand_over(held: Lease, metadata: PykclMetadata | None = None) -> LeaseWrite:
    """The end of a graceful hand-off that a KCL 3.x leader began: the next owner, whom the row names, may begin.

    Source: finish hand-off (KCL 3.x LeaseGracefulShutdownHandler, assignLease). Raises ValueError for a row in which
    no hand-off is under way.
    """
    _check_held(held)
    if held.checkpoint_owner is None or held.owner is None:
        raise ValueError(f"nobody asked for {held.key!r}")
    switches = held.owner_switches + 1
    return _update_of("hand-over", held, checkpoint_owner=None, owner_switches=switches, **_noted(metadata))


def _noted(metadata: PykclMetadata | None) -> dict[str, PykclMetadata]:
    """Return the change of the private map; None: it stays as it is."""
    return {} if metadata is None else {"metadata": metadata}


def delete(seen: Lease, *, ended: bool) -> LeaseWrite:
    """Delete the row, provided that it is still as seen; with `ended`, only at SHARD_END.

    Raises ValueError for `ended` when the seen row has not ended.
    """
    if ended and not seen.is_ended:
        raise ValueError(f"{seen.key!r} has not ended, its checkpoint is {seen.checkpoint}")
    return LeaseWrite("delete", seen=seen, after=None, ended=ended)


def fill_hash_range(seen: Lease, found: HashRange) -> LeaseWrite:
    """Write the hash range of the shard into a row that lacks it, as rows of KCL before 2.3 do. Nothing else.

    Not fenced, and the counter stays (Java: the same, `updateLeaseWithMetaInfo`): 1) an owner in Java holds the
    lease at counter 7; 2) a write of somebody else moves it to 8; 3) its next checkpoint expects 7, is refused,
    and Java gives the lease up. A shard keeps its range for ever, so nothing newer can be written over. What Java
    does not ask for: the row is still a lease, and its two attributes are as they were seen, be it absent, NULL,
    or one of them there. Raises ValueError for a row that has its range.
    """
    if seen.hash_range is not None:
        raise ValueError(f"{seen.key!r} has its hash range")
    extra = {name: raw for name, raw in seen.extra.items() if name not in FIELD_ATTRIBUTES["hash_range"]}
    return LeaseWrite(
        "fill", seen=seen, after=seen.with_(hash_range=found, extra=extra), written=("hash_range",)
    )


def reset(
    seen: Lease, at: Checkpoint, *, children: Sequence[str] = (), pending: PendingCheckpoint | None = None
) -> LeaseWrite:
    """Put the checkpoint of a lease that nobody moves any more somewhere else, backwards too: for an operator.

    The only write that may move a checkpoint backwards, and the only one that is not its owner's own. Why it removes
    the owner: 1) a Java worker froze at counter 7, and 7 is what was seen; 2) the reset makes it 8; 3) the worker wakes
    up, its renewal is refused, and it reads the row: with its own name and 7 + 1 it would take the reset for an earlier
    renewal of its own (Java: `DynamoDBLeaseRefresher.renewLease`), go on, and checkpoint over it. Without its name it
    gives the lease up. For the others an unowned lease is free at once. What belongs to the place that is left goes,
    too: a pending checkpoint, the owner switches, a hand-off, and, where the shard has not ended any more, its
    children, which its next reader writes again; children and pending are for who puts back what a backup holds.
    Raises ValueError for a sentinel with a sub-sequence number, and for children of what has not ended.
    """
    _check_position(at)
    if children and not at.is_shard_end:
        raise ValueError(f"{seen.key!r} is not at its end, so it has no children to name")
    return _update_of(
        "reset",
        seen,
        checkpoint=at,
        owner=None,
        checkpoint_owner=None,
        owner_switches=0,
        pending=pending,
        children=tuple(children),
    )


def _update_of(kind: WriteKind, seen: Lease, **changes: Any) -> LeaseWrite:
    changes = {**changes, "counter": seen.counter + 1}
    # REMOVE and SET also take away what only `extra` knows of these attributes, such as a NULL-typed owner.
    touched = {name for field in changes for name in FIELD_ATTRIBUTES[field]}
    extra = {name: value for name, value in seen.extra.items() if name not in touched}
    return LeaseWrite(
        kind, seen=seen, after=seen.with_(**changes, extra=extra), written=tuple(sorted(changes))
    )


def _as_seen(seen: Lease, field: str, name: str, placeholder: str, values: dict[str, AttributeValue]) -> str:
    """A condition that the attribute is as the writer saw it, be it absent or of type NULL. field: text or None."""
    text = getattr(seen, field)
    if text is None and seen.extra.get(name) == {"NULL": True}:
        values[placeholder] = {"S": "NULL"}
        return f"attribute_type({name}, {placeholder})"
    if text is None and name not in seen.extra:
        return f"attribute_not_exists({name})"
    values[placeholder] = seen.extra[name] if text is None else {"S": text}
    return f"{name} = {placeholder}"


def _is_lease(values: dict[str, AttributeValue]) -> str:
    """A condition that the row, if there is one, is that of a lease."""
    values[":lease"] = {"S": ENTITY_LEASE}
    return f"(attribute_not_exists({ENTITY_TYPE}) OR {ENTITY_TYPE} = :lease)"


def _range_as_seen(seen: Lease) -> tuple[str, dict[str, AttributeValue]]:
    """A condition that the row is there, is that of a lease, and lacks its hash range as it did."""
    values: dict[str, AttributeValue] = {}
    clauses = [f"attribute_exists({LEASE_COUNTER})", _is_lease(values)]
    for name in FIELD_ATTRIBUTES["hash_range"]:
        placeholder = f":seen{name[0].upper()}{name[1:]}"
        clauses.append(_as_seen(seen, "hash_range", name, placeholder, values))
    return " AND ".join(clauses), values


def _check_worker(name: str) -> None:
    if not 0 < len(name) <= MAX_NAME:
        raise ValueError(f"a worker identifier has 1 to {MAX_NAME} characters, not {len(name)}")


def _check_held(held: Lease) -> None:
    if not held.owner:
        raise ValueError(f"{held.key!r} has no owner, so nobody holds it")


def _check_position(position: Checkpoint) -> None:
    if position.is_sentinel and position.sub_sequence_number != 0:
        raise ValueError(f"{position.sequence_number} goes with sub-sequence number 0, always")


Outcome = Literal["applied", "adopt", "restate", "rejected"]


def resolve_conflict(write: LeaseWrite, row: Row | None) -> Outcome:
    """Return whose write made the condition fail, by the row that stands there now (None: no row).

    "applied": the row is what this write makes, so an earlier attempt of it was applied. "adopt": an earlier,
    different write of the same writer landed (right owner, counter + 1); send this one again, rebased on that
    row. "restate": somebody else changed its checkpoint; send `write.restating(row)`. "rejected": the row is someone
    else's now, or gone. For a creation an identical row by someone else is as good as ours, and so is for a fill the
    same hash range. What a leader assigns is applied if the owners are as it wants them.
    """
    if write.kind == "delete":
        return "applied" if row is None else "rejected"
    if write.after is None or not isinstance(row, Lease):
        return "restate" if _may_have_junk_for_checkpoint(write, row) else "rejected"
    if write.kind in ("create", "fill"):
        return "applied" if _serves_as_well(write.kind, write.after, row) else "rejected"
    if write.kind in _BY_THE_LEADER:
        return "applied" if _same(("owner", "checkpoint_owner"), row, write.after) else "rejected"
    return _outcome_for_owner(write, row, write.after)


def _outcome_for_owner(write: LeaseWrite, row: Lease, after: Lease) -> Outcome:
    if is_checkpoint_of_others(write, row):
        return "restate" if _is_to_be_restated(write, row) else "rejected"
    return "adopt" if _asks_for(row, write) else _outcome_on(row, write, after)


def _may_have_junk_for_checkpoint(write: LeaseWrite, row: Row | None) -> bool:
    """Return whether a row that cannot be read may lack no more than a checkpoint."""
    is_unread = isinstance(row, UnreadableRow) and row.owner == write.seen.owner
    return is_unread and write.kind in _OF_THE_OWNER and not write.restates


def is_checkpoint_of_others(write: LeaseWrite, row: Lease) -> bool:
    """Return whether the row is still that of this writer, and has a checkpoint that it never wrote."""
    if write.kind not in _OF_THE_OWNER or write.after is None:
        return False
    if row.actual_owner is None or row.actual_owner != write.writer or _other_process(row, write.after):
        return False
    return row.checkpoint not in {write.seen.checkpoint, write.after.checkpoint, *write.unanswered}


def _is_to_be_restated(write: LeaseWrite, row: Lease) -> bool:
    """Return whether the checkpoint of others in the row of a worker is overwritten. Else the ownership ends.

    So it is while the counter is where this worker left it, or may have: 1) a heartbeat lands, its answer is lost;
    2) somebody changes the checkpoint alone; 3) the heartbeat is refused. And whatever the counter, a shard has not
    ended of which its reader knows more records: believed, they would be nobody's, for ended leases are not taken.
    """
    step = row.counter - write.seen.counter
    return step == 0 or (step == 1 and bool(write.unanswered)) or row.checkpoint.is_shard_end


def _outcome_on(row: Lease, write: LeaseWrite, after: Lease) -> Outcome:
    if row.counter != after.counter or _other_process(row, after):
        return "rejected"
    # Owner, counter + 1 and every attribute we wrote. The counter alone would not do: 1) our renewal is
    # delayed in the network, we give up waiting; 2) our checkpoint, with the same counter, is sent; 3) the
    # renewal lands first. The row then has our owner and counter + 1, yet not our checkpoint.
    if _same(("owner", *write.written), row, after):
        return "applied"
    return "adopt" if row.actual_owner is not None and row.actual_owner == write.writer else "rejected"


def _asks_for(row: Lease, write: LeaseWrite) -> bool:
    """Return whether a leader of KCL 3.x has started to hand the lease over: it names the next owner and moves no
    counter, and the one that works on the lease goes on writing until it has finished."""
    begun = row.checkpoint_owner is not None and write.seen.checkpoint_owner is None
    held = write.kind in ("renew", "checkpoint", "prepare", "end", "release")
    return held and begun and row.checkpoint_owner == write.writer and row.counter == write.seen.counter


def _serves_as_well(kind: WriteKind, ours: Lease, row: Lease) -> bool:
    """Return whether the row is as good as ours, whoever wrote it."""
    if kind == "fill":
        return row.hash_range == ours.hash_range
    return row.counter == ours.counter and _same(tuple(FIELD_ATTRIBUTES), _anonymous(row), _anonymous(ours))


def _other_process(row: Lease, ours: Lease) -> bool:
    """Return whether another process wrote the row: two of them with one worker identifier both pass for its owner."""
    mine, theirs = ours.metadata, row.metadata
    if mine is None or theirs is None or mine.process_token is None or theirs.process_token is None:
        return False
    return mine.process_token != theirs.process_token


def _same(fields: tuple[str, ...], one: Lease, other: Lease) -> bool:
    return all(_comparable(getattr(one, field)) == _comparable(getattr(other, field)) for field in fields)


def _comparable(value: object) -> object:
    return frozenset(value) if isinstance(value, tuple) else value  # DynamoDB's sets have no order


def _anonymous(lease: Lease) -> Lease:
    """Return the lease without the writer of the private map: two workers that create the same lease create equal
    ones.
    """
    metadata = lease.metadata
    if metadata is None:
        return lease
    return lease.with_(
        metadata=PykclMetadata(
            metadata.stream_arn,
            metadata.stream_created_at,
            latest_from=metadata.latest_from,
            extra=metadata.extra,
        )
    )
