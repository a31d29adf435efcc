"""Backups of leases: as lines of JSON, as positions of a file, and the plan that restores them.

The first line names table and stream, the last one counts the lines between them: a truncated file is refused. Rows
that are not leases are neither saved nor restored.
"""

from __future__ import annotations

import base64
import binascii
import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pykcl.errors import ConfigError, Refused
from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import AttributeValue, Lease, PendingCheckpoint
from pykcl.model.lease_item import CHECKPOINT_OWNER, LEASE_OWNER, parse_row, to_item
from pykcl.model.metered_json import NotJson, read_json
from pykcl.model.shard import StreamDescription, full_shard_id
from pykcl.operate.checkpoints.plan import (
    Plan,
    Situation,
    Step,
    parents_first,
    parse_position,
    refuse_unplannable,
    reset_step,
    step_to,
)
from pykcl.times import format_time

FORMAT = "pykcl checkpoints 1"
MAX_BACKUP_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Backup:
    """leases: by key. absent: keys without a row then that the next change created.

    stream_created_at: epoch milliseconds.
    """

    table: str
    stream_arn: str
    stream_created_at: int
    leases: Mapping[str, Lease]
    absent: frozenset[str] = frozenset()
    written_at: str = ""
    before: str = ""

    def refuse_mismatch(self, table: str, stream: StreamDescription) -> None:
        """Raise Refused for a backup of another table or stream, or of an earlier stream of that name."""
        if self.table != table:
            raise Refused(
                f"This is a backup of table {self.table!r}, not of {table!r}. Nothing was written. Do: name that "
                "table, or the right file."
            )
        if (self.stream_arn, self.stream_created_at) != (stream.arn, stream.created_at):
            other = (
                "an earlier stream of that name, created"
                if self.stream_arn == stream.arn
                else f"{self.stream_arn}, created"
            )
            raise Refused(
                f"This is a backup of {other} {format_time(self.stream_created_at)}; {stream.arn} was created "
                f"{format_time(stream.created_at)}. A position of one stream means nothing in another. Nothing was "
                "written."
            )


def backup_lines(
    leases: Iterable[Lease],
    *,
    table: str,
    stream: StreamDescription,
    now_millis: int,
    before: str = "",
    absent: Iterable[str] = (),
) -> list[str]:
    """Return the lines, without newlines. before: the command that follows. absent: as in Backup."""
    head = {
        "format": FORMAT,
        "table": table,
        "stream_arn": stream.arn,
        "stream_created_at": stream.created_at,
        "written_at": format_time(now_millis),
        "before": before,
    }
    rows = [_row_line(lease) for lease in sorted(leases, key=lambda lease: lease.key)]
    missing: list[dict[str, Any]] = [{"shard": key, "checkpoint": None} for key in sorted(absent)]
    body = [*rows, *missing]
    return [json.dumps(line) for line in (head, *body, {"lines": len(body)})]


def is_backup(text: str) -> bool:
    """Return True for the text of a backup or an export, whole or cut off, and False for lines of positions."""
    return text.lstrip().startswith("{")


def read_backup(text: str, source: str) -> Backup:
    """Parse a backup. Raises ConfigError, with source and line, for any other text, and for a truncated one."""
    lines = [_object(line, f"{source}, line {number}") for number, line in enumerate(text.splitlines(), 1)]
    if not lines or lines[0].get("format") != FORMAT:
        raise ConfigError(
            f"{source} is not a backup: its first line is not one of {FORMAT!r}. Do: name a file that `checkpoints "
            "export`, or a reset, has written."
        )
    head, body, foot = lines[0], lines[1:-1], lines[-1]
    if foot.get("lines") != len(body):
        raise ConfigError(
            f"{source} is truncated or was changed: its last line does not match the number of lines."
        )
    leases: dict[str, Lease] = {}
    absent = set()
    for number, line in enumerate(body, 2):
        key = line.get("shard")
        if not isinstance(key, str) or key in leases or key in absent:
            raise ConfigError(f"{source}, line {number}: has no shard, or repeats one.")
        if "item" in line:
            leases[key] = _lease(line["item"], key, f"{source}, line {number}")
        else:
            absent.add(key)
    table, arn, created = head.get("table"), head.get("stream_arn"), head.get("stream_created_at")
    if not isinstance(table, str) or not isinstance(arn, str) or not isinstance(created, int):
        raise ConfigError(f"{source}, line 1: lacks the table, or the stream and its creation time.")
    notes = [str(head.get(name, ""))[:200] for name in ("written_at", "before")]
    return Backup(table, arn, created, leases, frozenset(absent), *notes)


def positions_in(backup: Backup) -> dict[str, tuple[str, int | None]]:
    """Return the positions alone, of shards with a sequence number."""
    return {
        key: (lease.checkpoint.sequence_number, lease.checkpoint.sub_sequence_number)
        for key, lease in backup.leases.items()
        if not lease.checkpoint.is_sentinel
    }


def _row_line(lease: Lease) -> dict[str, Any]:
    # The fields for people come first; the item is what is restored.
    return {
        "shard": lease.key,
        "checkpoint": lease.checkpoint.sequence_number,
        "sub_sequence_number": lease.checkpoint.sub_sequence_number,
        "owner": lease.owner,
        "counter": lease.counter,
        "item": _textual(to_item(lease)),
    }


def _lease(item: Any, key: str, place: str) -> Lease:
    try:
        row = parse_row(_wire(item))
    except (TypeError, ValueError, AttributeError, binascii.Error):
        raise ConfigError(f"{place}: its item is not a row.") from None
    if not isinstance(row, Lease) or row.key != key:
        raise ConfigError(f"{place}: its item is not a lease of {key[:80]!r}.")
    return row


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        found = read_json(line)
    except NotJson:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{place}: not a JSON object.")
    return found


def _textual(item: Mapping[str, AttributeValue]) -> dict[str, Any]:
    """Encode for JSON: binary as base64, as in DynamoDB's own JSON."""
    return {name: _value(value, lambda raw: base64.b64encode(raw).decode()) for name, value in item.items()}


def _wire(item: Mapping[str, Any]) -> dict[str, AttributeValue]:
    return {
        name: _value(value, lambda text: base64.b64decode(text, validate=True))
        for name, value in item.items()
    }


def _value(value: Mapping[str, Any], binary: Any) -> dict[str, Any]:
    ((kind, content),) = value.items()
    if kind == "B":
        return {"B": binary(content)}
    if kind == "BS":
        return {"BS": [binary(one) for one in content]}
    if kind == "M":
        return {"M": {name: _value(one, binary) for name, one in content.items()}}
    if kind == "L":
        return {"L": [_value(one, binary) for one in content]}
    if kind in ("SS", "NS"):
        return {kind: sorted(content)}
    return {kind: content}


def _fields(text: str, source: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(text.splitlines())
    except csv.Error as error:
        raise ConfigError(f"{source} has a line that is no list of fields: {error}.") from None


Positions = dict[str, tuple[str, int | None]]
_HEADS = ("shard", "leasekey")


def read_positions(text: str, source: str) -> Positions:
    """Return positions by shard id, from a backup or from lines of "shard,sequence number[,sub-sequence number]".

    Raises ConfigError with source and line.
    """
    if is_backup(text):
        return positions_in(read_backup(text, source))
    found: Positions = {}
    for number, fields in enumerate(_fields(text, source), 1):
        cells = [cell.strip() for cell in fields]
        if not any(cells) or cells[0].startswith("#") or (number == 1 and cells[0].lower() in _HEADS):
            continue
        place = f"{source}, line {number}"
        if len(cells) not in (2, 3):
            raise ConfigError(f"{place}: write shard,sequence number[,sub-sequence number].")
        key = full_shard_id(cells[0])
        if key in found:
            raise ConfigError(f"{place}: {key[:80]!r} is repeated.")
        try:
            found[key] = parse_position(":".join(cells[1:]).rstrip(":"))
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None
    if not found:
        raise ConfigError(
            f"{source} names no shard. Write lines of shard,sequence number[,sub-sequence number]."
        )
    return found


def plan_restore(situation: Situation, backup: Backup) -> Plan:
    """Plan to make the table as it was in the backup: the way back from a reset, or from a bad deployment.

    Rows of the backup get its checkpoint, pending checkpoint and children, and no owner; a missing row is created. Rows
    that the reset after this backup created are deleted again, at the end and oldest first: a child waits for its
    parent's row until its own position is restored. Of other rows that are not in the backup, those below a shard that
    goes back to before its end start again at their beginning, as they did then; the rest stays.
    Raises Refused if rows are unreadable or of another stream, or if the listing is incomplete.
    """
    wanted = backup.leases.keys() | backup.absent
    if situation.leases or situation.unreadable:
        refuse_unplannable(situation, wanted)
    leases, listed = situation.leases, situation.listing.by_id
    tree = situation.tree
    reread = tree.descendants_of(key for key, lease in backup.leases.items() if not lease.is_ended)
    steps: list[Step] = []
    deletions: list[Step] = []
    hints: list[str] = []
    for key in parents_first(leases.keys() | backup.leases.keys(), tree):
        seen, saved = leases.get(key), backup.leases.get(key)
        if saved is not None and seen is not None:
            steps.append(step_to(seen, _as_saved(saved), None))
        elif saved is not None and key in listed:
            steps.append(Step(key, "create", None, _put_back(saved), None, "its row is put back"))
        elif saved is not None:
            hints.append(f"{key}: Kinesis no longer lists this shard, so its row is not put back.")
        elif seen is not None and key in backup.absent:
            deletions.append(Step(key, "delete", seen, None, None, "it had no row then"))
        elif seen is not None and key in reread:
            steps.append(reset_step(seen, AT_TRIM_HORIZON, None, "again from its beginning"))
        elif seen is not None:
            steps.append(Step(key, "keep", seen, None, None, "not in the backup"))
    bare = sorted(key for key, lease in backup.leases.items() if lease.checkpoint.sequence_number == "LATEST")
    if bare:
        hints.append(
            f"{', '.join(bare)}: at LATEST, as then: without a start time, that is when the lease is taken."
        )
    return Plan((*steps, *deletions), tuple(hints))


def _as_saved(saved: Lease) -> Lease:
    """Drop the sub-sequence number that other libraries leave beside a sentinel, and children before the end."""
    at, pending = saved.checkpoint, saved.pending
    plain = Checkpoint(at.sequence_number) if at.is_sentinel else at
    if pending is not None and pending.checkpoint.is_sentinel:
        pending = PendingCheckpoint(Checkpoint(pending.checkpoint.sequence_number), pending.state)
    return replace(
        saved, checkpoint=plain, pending=pending, children=saved.children if plain.is_shard_end else ()
    )


def _put_back(saved: Lease) -> Lease:
    """Return the row to create: without an owner, and with a higher counter, so that no earlier write matches."""
    extra = {
        name: value for name, value in saved.extra.items() if name not in (LEASE_OWNER, CHECKPOINT_OWNER)
    }
    row = _as_saved(saved)
    return row.with_(
        owner=None, checkpoint_owner=None, owner_switches=0, counter=row.counter + 1000, extra=extra
    )
