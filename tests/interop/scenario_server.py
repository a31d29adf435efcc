"""`ScenarioServer`: the local AWS in this process, which refuses what a scenario wants refused, and nothing else.

The fault rules of a server in a process of its own go by operation; a scenario means one write of one side.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fleet_clock import now_millis
from fleet_evidence import REQUESTS, STREAM
from fleet_rows import by_java, sender

from pykcl.local.errors import AwsError
from pykcl.local.iterators import read_iterator
from pykcl.local.server import LocalAws

Refused = Callable[[str, dict[str, Any]], bool]
"""Of an operation and its parameters: whether it fails."""
TROUBLE = AwsError("InternalServerError", "Refused for a scenario.", 500)
BUSY = AwsError("ProvisionedThroughputExceededException", "Refused for a scenario.")
"""Clients repeat either soon."""
OUTRUN = AwsError("ConditionalCheckFailedException", "Refused for a scenario.")
"""As if another had been quicker. Java looks again in its own time."""


class ScenarioServer:
    """In the place of `fleet_processes.Server`."""

    def __init__(self, folder: Path, shards: int) -> None:
        self._refused: list[tuple[Refused, AwsError, list[str]]] = []
        self._aws = LocalAws(request_log=folder / REQUESTS, now_millis=now_millis, fault=self._asked)
        self._aws.kinesis.create_stream(STREAM, shards)
        self.url = self._aws.start().url

    def end(self) -> None:
        self._aws.stop()

    @contextlib.contextmanager
    def refusing(self, refused: Refused, error: AwsError = TROUBLE) -> Iterator[list[str]]:
        """Within the block such requests are answered with that error, and are not done. Yields a list that grows: the
        operation of each that was refused."""
        entry: tuple[Refused, AwsError, list[str]] = (refused, error, [])
        self._refused.append(entry)
        try:
            yield entry[2]
        finally:
            self._refused.remove(entry)

    def tried(self, operation: str) -> dict[str, set[str]]:
        """Who asked for it so far, done or not: worker identifiers, by "java" and "pykcl"."""
        found: dict[str, set[str]] = {"java": set(), "pykcl": set()}
        for request in self._aws.requests.of("dynamodb", operation):
            agent = {"user_agent": request.user_agent}
            found["java" if by_java(agent) else "pykcl"].add(sender(agent))
        return {kind: names - {""} for kind, names in found.items()}

    def _asked(self, service: str, operation: str, params: dict[str, Any]) -> bool:
        for refused, error, so_far in tuple(self._refused):
            if refused(operation, params):
                so_far.append(operation)
                raise error
        return False


def creates_table(operation: str, params: dict[str, Any]) -> bool:
    return operation == "CreateTable"


def creates_row(operation: str, params: dict[str, Any]) -> bool:
    return operation == "PutItem"


def java_takes(operation: str, params: dict[str, Any]) -> bool:
    return operation == "UpdateItem" and "leaseOwner" in params.get("AttributeUpdates", {})


def pykcl_ends(operation: str, params: dict[str, Any]) -> bool:
    return (
        operation == "UpdateItem"
        and {"S": "SHARD_END"} in params.get("ExpressionAttributeValues", {}).values()
    )


def reads(shard: str) -> Refused:
    """Whoever it is that reads it."""

    def refused(operation: str, params: dict[str, Any]) -> bool:
        return (
            operation == "GetRecords"
            and read_iterator(params["ShardIterator"], now_millis()).shard_id == shard
        )

    return refused
