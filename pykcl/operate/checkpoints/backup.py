"""A lease table's leases as text, one JSON object a line: enough to put every row back as it was.

The first line says which table and stream they are of, the last how many lines there are between them: a file that was
cut off is refused. Rows that are no leases are neither saved nor touched.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pykcl.errors import ConfigError, Refused
from pykcl.model.lease import AttributeValue, Lease
from pykcl.model.lease_item import parse_row, to_item
from pykcl.model.shard import StreamDescription
from pykcl.operate.checkpoints.times import time_text

FORMAT = "pykcl checkpoints 1"
MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Backup:
    """leases: by key. absent: keys that had no row then, and got one by what was done next.

    stream_created_at: epoch milliseconds.
    """

    table: str
    stream_arn: str
    stream_created_at: int
    leases: Mapping[str, Lease]
    absent: frozenset[str] = frozenset()
    written_at: str = ""
    before: str = ""

    def refuse_another(self, table: str, stream: StreamDescription) -> None:
        """Raises Refused for a backup of another table or stream, or of an earlier stream of that name."""
        if self.table != table:
            raise Refused(
                f"This is a backup of table {self.table!r}, not of {table!r}. Nothing was written. Do: name that "
                "table, or the right file."
            )
        if (self.stream_arn, self.stream_created_at) != (stream.arn, stream.created_at):
            other = (
                "an earlier stream of that name, made"
                if self.stream_arn == stream.arn
                else f"{self.stream_arn}, made"
            )
            raise Refused(
                f"This is a backup of {other} {time_text(self.stream_created_at)}; {stream.arn} was made "
                f"{time_text(stream.created_at)}. A position of one stream means nothing in another. "
                "Nothing was written."
            )


def lines_of(
    leases: Iterable[Lease],
    *,
    table: str,
    stream: StreamDescription,
    now_millis: int,
    before: str = "",
    absent: Iterable[str] = (),
) -> list[str]:
    """The lines, without newlines. before: what was about to be done. absent: as in Backup."""
    head = {
        "format": FORMAT,
        "table": table,
        "stream_arn": stream.arn,
        "stream_created_at": stream.created_at,
        "written_at": time_text(now_millis),
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
    """Raises ConfigError, with source and line, for what is no backup, or not all of one."""
    lines = [_object(line, f"{source}, line {number}") for number, line in enumerate(text.splitlines(), 1)]
    if not lines or lines[0].get("format") != FORMAT:
        raise ConfigError(
            f"{source} is no backup: its first line is not one of {FORMAT!r}. Do: name a file that `checkpoints "
            "export`, or a reset, has written."
        )
    head, body, foot = lines[0], lines[1:-1], lines[-1]
    if foot.get("lines") != len(body):
        raise ConfigError(f"{source} is cut off or was changed: its last line does not count the others.")
    leases: dict[str, Lease] = {}
    absent = set()
    for number, line in enumerate(body, 2):
        key = line.get("shard")
        if not isinstance(key, str) or key in leases or key in absent:
            raise ConfigError(f"{source}, line {number}: names no shard, or one twice.")
        if "item" in line:
            leases[key] = _lease(line["item"], key, f"{source}, line {number}")
        else:
            absent.add(key)
    table, arn, created = head.get("table"), head.get("stream_arn"), head.get("stream_created_at")
    if not isinstance(table, str) or not isinstance(arn, str) or not isinstance(created, int):
        raise ConfigError(f"{source}, line 1: lacks the table, or the stream and when it was made.")
    told = [str(head.get(name, ""))[:200] for name in ("written_at", "before")]
    return Backup(table, arn, created, leases, frozenset(absent), *told)


def positions_in(backup: Backup) -> dict[str, tuple[str, int | None]]:
    """The positions alone, of the shards that have one that is a number."""
    return {
        key: (lease.checkpoint.sequence_number, lease.checkpoint.sub_sequence_number)
        for key, lease in backup.leases.items()
        if not lease.checkpoint.is_sentinel
    }


def _row_line(lease: Lease) -> dict[str, Any]:
    # What a person looks for comes first; what is put back is the item.
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
    except (TypeError, ValueError, AttributeError, binascii.Error, RecursionError):
        raise ConfigError(f"{place}: its item is no row.") from None
    if not isinstance(row, Lease) or row.key != key:
        raise ConfigError(f"{place}: its item is no lease of {key[:80]!r}.")
    return row


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{place}: no JSON object.")
    return found


def _textual(item: Mapping[str, AttributeValue]) -> dict[str, Any]:
    """As JSON can hold it: binary as base64, as in DynamoDB's own JSON."""
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
        return {kind: _sorted(content)}
    return {kind: content}


def _sorted(names: Sequence[str]) -> list[str]:
    return sorted(names)
