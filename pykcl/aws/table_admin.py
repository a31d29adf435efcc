"""The tables of an application: checked descriptions, a lease table that has to be made, Java's state table.

botocore checks no types, and where a body is not JSON at all (the page of a proxy, with status 200) it makes an empty
answer of it. To GetItem that means "no such row" and to a write "done", so it must not pass for DynamoDB's word.

The state of KCL 3.0-3.4 is in a table of its own: `<application>-CoordinatorState`, keyed by `key`. Java KCL 3.1.3
`coordinator/CoordinatorConfig.java` (CoordinatorStateTableConfig) names the table after the application, not after the
lease table. Most fleets have no such table, and the permission to read it is optional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pykcl.aws.errors import MALFORMED, aws_errors, calling, error_code, sort_failure, unreadable
from pykcl.aws.server_clock import REQUEST_ID, date_of, millis_of_date
from pykcl.errors import AnswerRefused, PyKclError, SetupError, TemporaryError
from pykcl.model.lease import AttributeValue, ForeignRow, JavaState
from pykcl.model.lease_item import LEASE_KEY, MIGRATION_KEY, parse_row

_CONTENT_TYPE = "x-amz-json"


def refuse_foreign(answer: Mapping[str, Any], doing: str) -> None:
    """Raise AnswerRefused for an answer whose content type says that DynamoDB did not write it.

    An answer without HTTP headers (a stubbed or in-memory client) passes, and one without a content type that has the
    id which AWS gives to each request.
    """
    metadata = answer.get("ResponseMetadata")
    headers = metadata.get("HTTPHeaders") if isinstance(metadata, Mapping) else None
    if not headers or not isinstance(headers, Mapping):
        return
    content_type = headers.get("content-type", _CONTENT_TYPE if REQUEST_ID in headers else "none")
    if _CONTENT_TYPE not in str(content_type):
        raise AnswerRefused(
            f"{doing} was answered by something that is not DynamoDB (content type {str(content_type)[:64]!r}). "
            "Nothing of it was believed. If this goes on, check what stands between this process and AWS."
        )


def server_time_of(answer: Any) -> float | None:
    """Return the epoch seconds at which AWS answered; None if the answer does not say."""
    date = date_of(answer)
    millis = None if date is None else millis_of_date(date)
    # A Date is truncated to the second: the middle of it is the better estimate.
    return None if millis is None else millis / 1000 + 0.5


def items_of(answer: Mapping[str, Any]) -> Sequence[Mapping[str, AttributeValue]]:
    """The rows of one Scan page. Raises AnswerRefused."""
    items = answer.get("Items")
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise AnswerRefused("A Scan was answered without a list of rows. It is asked for again.")
    return items


def lease_key_of(item: Mapping[str, AttributeValue]) -> str:
    """The text of the row's key, "" where there is none."""
    value = item.get(LEASE_KEY)
    text = value.get("S") if isinstance(value, Mapping) else None
    return text if isinstance(text, str) else ""


def last_key_of(answer: Mapping[str, Any]) -> str | None:
    """Return the key after which the next page starts; None after the last page. Raises AnswerRefused."""
    last = answer.get("LastEvaluatedKey")
    if not last:
        return None
    key = lease_key_of(last) if isinstance(last, Mapping) else ""
    if not key:
        # Not "no further page": rows would be taken for deleted.
        raise AnswerRefused("A Scan says it is not complete and not where it goes on. It is asked for again.")
    return key


def read_units_of(answer: Mapping[str, Any]) -> float:
    """Return the read units of the page; 0.0 where it does not say."""
    consumed = answer.get("ConsumedCapacity")
    units = consumed.get("CapacityUnits") if isinstance(consumed, Mapping) else None
    return float(units) if isinstance(units, int | float) and 0 <= units < 1e9 else 0.0


class Table(NamedTuple):
    """status: such as "ACTIVE". key_schema: (attribute, "HASH" or "RANGE"). types: attribute -> "S", "N" or "B".

    table_id: given anew to each table of the same name; "" where an endpoint lacks it. indexes: their names.
    """

    status: str
    key_schema: tuple[tuple[str, str], ...]
    types: Mapping[str, str]
    table_id: str = ""
    indexes: frozenset[str] = frozenset()


def table_of(answer: Mapping[str, Any]) -> Table:
    """Return the table of a DescribeTable answer. Raises AnswerRefused."""
    table = answer.get("Table")
    if not isinstance(table, Mapping) or not isinstance(table.get("TableStatus"), str):
        raise AnswerRefused("DescribeTable was answered without a table. It is asked for again.")
    schema = tuple(_pairs(table.get("KeySchema"), "AttributeName", "KeyType"))
    types = dict(_pairs(table.get("AttributeDefinitions"), "AttributeName", "AttributeType"))
    if not schema:
        raise AnswerRefused("DescribeTable was answered without the table's key. It is asked for again.")
    table_id = table.get("TableId")
    return Table(
        table["TableStatus"],
        schema,
        types,
        table_id if isinstance(table_id, str) else "",
        frozenset(_names(table.get("GlobalSecondaryIndexes"))),
    )


def _names(indexes: Any) -> Iterator[str]:
    for index in indexes if isinstance(indexes, list) else ():
        # One that is being made cannot be queried yet.
        if isinstance(index, Mapping) and index.get("IndexStatus", "ACTIVE") == "ACTIVE":
            yield str(index.get("IndexName"))


def _pairs(parts: Any, first: str, second: str) -> Iterator[tuple[str, str]]:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, Mapping):
            yield str(part.get(first)), str(part.get(second))


@dataclass(frozen=True, slots=True)
class NewTable:
    """deletion_protection, recovery (point in time): as in `Config`. A table that exists is never changed."""

    deletion_protection: bool = False
    recovery: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Further parameters of CreateTable."""
        # Left out rather than false: DynamoDB's stand-ins do not all know it.
        return {"DeletionProtectionEnabled": True} if self.deletion_protection else {}

    def finish(self, client: Any, table: str) -> None:
        """Set what can be set only once the table is ACTIVE. May be repeated.

        Raises TemporaryError (call again), SetupError when it is not permitted.
        """
        if not self.recovery:
            return
        doing = f"switching on point-in-time recovery of lease table {table!r}"
        try:
            calling(client.update_continuous_backups)(
                TableName=table, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
            )
            return
        except aws_errors() as error:
            failure = sort_failure(error, doing=doing)
            # DynamoDB says so for some moments after a table was made.
            if error_code(error) == "ContinuousBackupsUnavailableException":
                failure = TemporaryError(f"{doing} is not possible yet. Asking again.")
        except MALFORMED as error:
            failure = unreadable(error, doing=doing)
        if isinstance(failure, SetupError):
            # The table is there now: the next start would find it and never ask again.
            failure = SetupError(
                f"{failure} The table exists now, without recovery. Do: switch it on by hand, or grant "
                "dynamodb:UpdateContinuousBackups, delete the empty table and start again."
            )
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: no cycle


STATE_SUFFIX = "-CoordinatorState"
METRICS_SUFFIX = "-WorkerMetricStats"
_DOING = "reading the state of KCL 3.0-3.4"


def state_table_of(application: str) -> str:
    """The name of the table."""
    return application + STATE_SUFFIX


def read_state(
    client: Any, table: str, calling: Callable[[Callable[..., Any]], Callable[..., Any]] = calling
) -> JavaState:
    """One GetItem. Raises TemporaryError for what may work a moment later; other failures go to `unread`."""
    failure: PyKclError | None = None
    answer: Any = {}
    try:
        answer = calling(client.get_item)(
            TableName=table, Key={"key": {"S": MIGRATION_KEY}}, ConsistentRead=True
        )
        refuse_foreign(answer, _DOING)
    except aws_errors() as error:
        if error_code(error) == "ResourceNotFoundException":
            return JavaState()
        failure = sort_failure(error, doing=_DOING)
    except MALFORMED:
        return JavaState(unread="its answer cannot be read")
    if isinstance(failure, TemporaryError):
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: no cycle
    if failure is not None:
        return JavaState(unread="not permitted, or no table of that kind")
    item = answer.get("Item")
    row = parse_row(item) if item else None
    return JavaState(migration=row if isinstance(row, ForeignRow) else None)
