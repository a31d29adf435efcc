"""The lease table as the log of the local AWS tells it: every write, in the order it was applied, and what it made.

Nothing is asked of the table itself and nothing is imported from pykcl: the rules of lease writes are judged by what
went over the wire.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Position = tuple[int, int]
"""(sequence number, sub-sequence number); the words below and above all numbers are mapped to such."""
START: Position = (-1, 0)
SHARD_END: Position = (1 << 200, 0)

_WRITES = ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems", "ExecuteStatement")
_REFUSED = "ConditionalCheckFailedException"


def position(text: str, sub: int = 0) -> Position:
    """Of "TRIM_HORIZON", "SHARD_END", a sequence number, or "sequence:sub"."""
    sequence, _, after = text.partition(":")
    if sequence in ("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"):
        return START
    if sequence == "SHARD_END":
        return SHARD_END
    return int(sequence), int(after or sub)


def shown(at: Position) -> str:
    return "the start" if at == START else "SHARD_END" if at == SHARD_END else f"{at[0]}:{at[1]}"


@dataclass(frozen=True, slots=True)
class RowState:
    owner: str | None
    counter: int
    checkpoint: Position


@dataclass(frozen=True, slots=True)
class RowWrite:
    """One write that reached the table. index: its place in the log. t: when it was answered, milliseconds.

    kind: create, take, renew, checkpoint, end, release, delete, or other. writer: who sent it, as far as it says.
    before, after: the row; None where there is none. condition: as sent, empty for none. by_java: as its sender says.
    """

    index: int
    t: int
    key: str
    kind: str
    writer: str | None
    applied: bool
    refused: bool
    before: RowState | None
    after: RowState | None
    condition: str
    by_java: bool = False


class LeaseRows:
    """Reads the log while it grows. `writes`: all so far; `rows`: the table as it is now.

    elsewhere: the table of each write into another table, but for those by Java.
    """

    def __init__(self, log: Path, table: str) -> None:
        self._log = log
        self._table = table
        self._offset = 0
        self._rest = b""
        self.writes: list[RowWrite] = []
        self.rows: dict[str, RowState] = {}
        self.elsewhere: list[str] = []

    def poll(self) -> None:
        """Read what was logged since the last call."""
        if not self._log.exists():
            return
        with self._log.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        self._offset += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            if b'"service":"dynamodb"' in line:
                self.take(json.loads(line))

    def take(self, request: Mapping[str, Any]) -> None:
        """Fold in one line of the log."""
        params = request["parameters"]
        if request["operation"] not in _WRITES:
            return
        table = params.get("TableName", self._table)
        row = params.get("Key") or params.get("Item") or {}
        key = row.get("leaseKey", {}).get("S", "?")
        if table != self._table:
            self.elsewhere += [] if by_java(request) else [table]
            return
        before = self.rows.get(key)
        applied = request["status"] == 200
        kind, writer, after = _effect(request["operation"], params, before)
        if not applied:
            after = before
        self._keep(key, after)
        self.writes.append(
            RowWrite(
                len(self.writes), request["at_millis"], key, kind, writer, applied,
                request["error_code"] == _REFUSED, before, after, params.get("ConditionExpression", ""), by_java(request),
            )
        )  # fmt: skip

    def _keep(self, key: str, row: RowState | None) -> None:
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row

    def owned_by(self, worker: str) -> list[str]:
        return sorted(key for key, row in self.rows.items() if row.owner == worker)


def by_java(request: Mapping[str, Any]) -> bool:
    """Whether a client in Java sent a line of the log."""
    return "aws-sdk-java" in request.get("user_agent", "")


def sender(request: Mapping[str, Any]) -> str:
    """Which worker sent a line of the log; empty for anybody else. Each has its identifier in AWS_SDK_UA_APP_ID."""
    found = re.search(r"\bapp/(\S+)", request.get("user_agent", ""))
    return found[1] if found else ""


def _effect(
    operation: str, params: Mapping[str, Any], before: RowState | None
) -> tuple[str, str | None, RowState | None]:
    """Kind, writer and the row afterwards, if it is applied."""
    if any("AMZN_MAPPED" in name for name in params.get("ExpressionAttributeNames", {})):
        return "other", None, before  # in the newer form, Java writes what is no lease
    if operation == "PutItem":
        if params["Item"].get("entityType", {"S": "LEASE"})["S"] != "LEASE":
            return "other", None, before  # a row of Java 3.x that is no lease
        return "create", None, _state(params["Item"], RowState(None, 0, START))
    if operation == "DeleteItem":
        return "delete", None, None
    if operation != "UpdateItem":
        return "other", None, before
    if "AttributeUpdates" in params:
        return _effect_of_java(params["AttributeUpdates"], before)
    values = params.get("ExpressionAttributeValues", {})
    expression = params.get("UpdateExpression", "")
    changes = {name: values[placeholder] for name, placeholder in _sets(expression) if placeholder in values}
    removed = _removes(expression)
    if before is None and "leaseCounter" not in changes:
        return "other", None, None  # a row of 3.x that is no lease, and that an update makes
    after = _state(changes, before or RowState(None, 0, START))
    if "leaseOwner" in removed:
        after = RowState(None, after.counter, after.checkpoint)
    writer = values.get(":seenOwner", {}).get("S")
    if "leaseOwner" in changes:
        return "take", after.owner, after
    return _kind(changes, removed), writer, after


def _effect_of_java(
    updates: Mapping[str, Any], before: RowState | None
) -> tuple[str, str | None, RowState | None]:
    """Of the older request form, the only one Java workers use. They name the counter they believe in, never
    themselves: who renews or checkpoints is whom the row names."""
    if before is None:
        return "other", None, None
    changes = {name: update["Value"] for name, update in updates.items() if update.get("Action") == "PUT"}
    removed = {name for name, update in updates.items() if update.get("Action") == "DELETE"}
    after = _state(changes, before)
    if "leaseOwner" in changes:
        return "take", after.owner, after
    if "leaseOwner" in removed:
        after = RowState(None, after.counter, after.checkpoint)
    # 3.x tells the throughput of a shard with its renewals. Children are added by anybody, and the counter stays.
    kind = _kind({name: value for name, value in changes.items() if name != "throughputKBps"}, removed)
    return kind, before.owner if "leaseCounter" in changes else None, after


def _kind(changes: Mapping[str, Any], removed: set[str]) -> str:
    if changes.get("checkpoint", {}).get("S") == "SHARD_END":
        return "end"
    if "leaseOwner" in removed:
        return "release"
    if "checkpoint" in changes:
        return "checkpoint"
    return "renew" if changes.keys() == {"leaseCounter"} else "other"


def _state(item: Mapping[str, Any], base: RowState) -> RowState:
    checkpoint = base.checkpoint
    if "checkpoint" in item:
        sub = int(item.get("checkpointSubSequenceNumber", {}).get("N", 0))
        checkpoint = position(item["checkpoint"]["S"], sub)
    counter = int(item["leaseCounter"]["N"]) if "leaseCounter" in item else base.counter
    owner = item["leaseOwner"]["S"] if "leaseOwner" in item else base.owner
    return RowState(owner, counter, checkpoint)


def _sets(expression: str) -> Iterator[tuple[str, str]]:
    yield from re.findall(r"(\w+) = (:\w+)", expression)


def _removes(expression: str) -> set[str]:
    found = re.search(r"\bREMOVE ([\w, ]+?)(?: (?:SET|ADD|DELETE) |$)", expression)
    return {name.strip() for name in found[1].split(",")} if found else set()
