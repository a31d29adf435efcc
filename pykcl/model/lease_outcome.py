"""What became of a write whose condition failed, told from the row that stands there now."""

from __future__ import annotations

from typing import Literal

from pykcl.model.lease import Lease, PrivateNote, Row
from pykcl.model.lease_parse import FIELD_ATTRIBUTES
from pykcl.model.lease_row import LeaseWrite, WriteKind

Outcome = Literal["kept", "adopt", "lost"]


def settle(write: LeaseWrite, row: Row | None) -> Outcome:
    """Whose doing is it that the condition failed, judged by the row that stands there now (None: no row)?

    "kept": the row is what this write makes, so an earlier attempt of it was applied. "adopt": an earlier,
    different write of the same writer landed (right owner, counter + 1); send this one again, rebased on that
    row. "lost": the row is someone else's now, or gone. For a creation an identical row by someone else is as
    good as ours, and so is for a fill the same hash range.
    """
    if write.kind == "delete":
        return "kept" if row is None else "lost"
    if write.after is None or not isinstance(row, Lease):
        return "lost"
    if write.kind in ("create", "fill"):
        return "kept" if _serves_as_well(write.kind, write.after, row) else "lost"
    return "adopt" if _asks_for(row, write) else _outcome_on(row, write, write.after)


def _outcome_on(row: Lease, write: LeaseWrite, after: Lease) -> Outcome:
    if row.counter != after.counter or _other_process(row, after):
        return "lost"
    # Owner, counter + 1 and every attribute we wrote. The counter alone would not do: 1) our renewal is
    # delayed in the network, we give up waiting; 2) our checkpoint, with the same counter, is sent; 3) the
    # renewal lands first. The row then has our owner and counter + 1, yet not our checkpoint.
    if _same(("owner", *write.written), row, after):
        return "kept"
    return "adopt" if row.actual_owner is not None and row.actual_owner == write.writer else "lost"


def _asks_for(row: Lease, write: LeaseWrite) -> bool:
    """Whether a leader of KCL 3.x has begun to hand the lease over: it names the next owner and moves no counter, and
    the one that works on the lease goes on writing until it has finished."""
    begun = row.checkpoint_owner is not None and write.seen.checkpoint_owner is None
    held = write.kind in ("renew", "checkpoint", "prepare", "end", "release")
    return held and begun and row.checkpoint_owner == write.writer and row.counter == write.seen.counter


def _serves_as_well(kind: WriteKind, ours: Lease, row: Lease) -> bool:
    """Whether the row is as good as ours, whoever wrote it."""
    if kind == "fill":
        return row.hash_range == ours.hash_range
    return row.counter == ours.counter and _same(tuple(FIELD_ATTRIBUTES), _anonymous(row), _anonymous(ours))


def _other_process(row: Lease, ours: Lease) -> bool:
    """Whether another process wrote the row: two of them with one worker identifier both pass for its owner."""
    mine, theirs = ours.note, row.note
    if mine is None or theirs is None or mine.process_token is None or theirs.process_token is None:
        return False
    return mine.process_token != theirs.process_token


def _same(fields: tuple[str, ...], one: Lease, other: Lease) -> bool:
    return all(_comparable(getattr(one, field)) == _comparable(getattr(other, field)) for field in fields)


def _comparable(value: object) -> object:
    return frozenset(value) if isinstance(value, tuple) else value  # DynamoDB's sets have no order


def _anonymous(lease: Lease) -> Lease:
    """Without who wrote the private map: two workers that create the same lease create equal ones."""
    note = lease.note
    if note is None:
        return lease
    return lease.with_(
        note=PrivateNote(
            note.stream_arn, note.stream_created_at, latest_from=note.latest_from, extra=note.extra
        )
    )
