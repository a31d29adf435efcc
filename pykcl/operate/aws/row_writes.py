"""Reads and conditional writes of single rows by an operator.

`DynamoDBLeaseTable.write` serves an owner: if the row moved on under the owner's name, it takes that for its own
earlier write and goes on from there. An operator has no such name: the write that was shown is applied, or nothing.
"""

from __future__ import annotations

from typing import Any

from pykcl.aws.errors import MALFORMED, OPERATOR, aws_errors, calling, error_code, sort_failure
from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.errors import PyKclError, TemporaryError
from pykcl.interfaces import Applied, Rejected, Unknown, WriteAnswer
from pykcl.model.lease import Lease, Row
from pykcl.model.lease_item import parse_row
from pykcl.model.lease_writes import LeaseWrite
from pykcl.runtime import Runtime

_TRIES = 4
_PAUSE = 0.5


class RowWriter:
    """One lease table. client: of DynamoDB, one attempt per call. Used by one thread."""

    def __init__(self, client: Any, table: str, runtime: Runtime) -> None:
        self._client, self._name, self._runtime = client, table, runtime
        self._rows = DynamoDBLeaseTable(client, table, runtime)

    def read(self, key: str) -> Row | None:
        """Return a row, strongly consistent; None without one. Raises TemporaryError, TableGone, SetupError."""
        return self._rows.read(key)

    def write(self, write: LeaseWrite) -> WriteAnswer:
        """Send the write under its own condition. Only a write that certainly did not happen is sent again.

        Applied(confirmed_by_read=True): no answer confirmed it, but the row is exactly as this write leaves it.
        Unknown: the outcome is unknown. Raises SetupError for a write that is not permitted or invalid.
        """
        trouble = ""
        for attempt in range(_TRIES):
            if attempt:
                self._runtime.event().wait(_PAUSE * 2**attempt)
            try:
                return self._send(write)
            except TemporaryError as error:
                trouble = str(error)
            try:
                found = self.read(write.key)
            except TemporaryError as error:
                trouble = str(error)
                continue
            if found != write.seen:
                return (
                    Applied(write.after, confirmed_by_read=True)
                    if _is_as_written(found, write)
                    else Rejected(found)
                )
        return Unknown(trouble)

    def _send(self, write: LeaseWrite) -> WriteAnswer:
        """Send the write once. Raises TemporaryError if the outcome is unknown."""
        operation, params = write.request()
        doing = f"writing {write.kind!r} to lease table {self._name!r}"
        failure: PyKclError
        try:
            answer = calling(getattr(self._client, operation))(TableName=self._name, **params)
        except aws_errors() as error:
            if error_code(error) == "ConditionalCheckFailedException":
                item = getattr(error, "response", {}).get("Item")
                refusal: Row | None = parse_row(item) if item else self.read(write.key)
                # An earlier attempt of this call may have landed without an answer.
                return (
                    Applied(write.after, confirmed_by_read=True)
                    if _is_as_written(refusal, write)
                    else Rejected(refusal)
                )
            failure = sort_failure(error, doing=doing, who=OPERATOR)
        except MALFORMED as error:
            failure = TemporaryError(f"{doing} got an answer that cannot be read ({type(error).__name__}).")
        else:
            row = parse_row(answer["Attributes"]) if answer.get("Attributes") else None
            return Applied(row if isinstance(row, Lease) else write.after)
        # Outside the except blocks: botocore's errors may quote the request.
        raise failure


def _is_as_written(row: Row | None, write: LeaseWrite) -> bool:
    """Return True if the row is exactly the result of this write on the row it saw."""
    if write.after is None:
        return row is None
    return isinstance(row, Lease) and row == write.after
