"""The lease table of an operator: scans that leave the fleet the read units that it needs, and writes of single rows.

Several threads may scan an on-demand table. A PROVISIONED table is scanned slowly and in small pages by one thread: the
fleet's own scans need its read units, and a page of 1 MiB costs 128 of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from pykcl.aws.errors import MALFORMED, OPERATOR, answer_of, aws_errors, calling, error_code, sort_failure
from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.aws.table_admin import (
    METRICS_SUFFIX,
    items_of,
    last_key_of,
    read_units_of,
    refuse_foreign,
    server_time_of,
    state_table_of,
    table_of,
)
from pykcl.aws.transport.table_requests import decode_scans
from pykcl.errors import AnswerRefused, PyKclError, SetupError, TemporaryError, WrongTable
from pykcl.interfaces import Applied, Rejected, TableScan, Unknown, WriteAnswer
from pykcl.model.lease import AttributeValue, ForeignRow, Lease, Row
from pykcl.model.lease_item import (
    LEADER_KEY,
    LEASE_KEY,
    MIGRATION_KEY,
    MIGRATION_KIND,
    OWNER_INDEX,
    parse_row,
)
from pykcl.model.lease_writes import LeaseWrite
from pykcl.operate.snapshot import NO_OWN_TABLES, OwnTables, RowCache, TableSnapshot, snapshot_of
from pykcl.runtime import Runtime, parallel_map

Item = Mapping[str, AttributeValue]

SHARE_OF_PROVISIONED = 0.25
"""Of a PROVISIONED table's read units; the rest is left to the fleet."""
UNITS_WHERE_UNKNOWN = 16.0
_MIN_UNITS = 1.0
_ROWS_PER_UNIT = 16
"""A read unit is 8 KiB of an eventually consistent scan, a lease some 500 bytes. Corrected by what the pages cost."""
_BYTES_PER_SEGMENT = 4 * 1024 * 1024
MAX_SEGMENTS = 8
_ATTEMPTS = 5
_OWN_TABLES_PAUSE, _OWN_TABLES_PAUSE_WITHOUT = 5.0, 60.0
"""Seconds between two reads of the tables of KCL 3.0-3.4, whose rows change every 30 s; and where there are none."""
_MAX_METRICS_PAGES = 20


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The answer of DescribeTable. provisioned: None where it was not permitted; why_not says why.

    read_units: provisioned ones per second. size_bytes: some hours old. index_status: of KCL 3.x's index of owners,
    such as "ACTIVE"; None without one.
    """

    name: str
    provisioned: bool | None
    read_units: float = 0.0
    size_bytes: int = 0
    index_status: str | None = None
    why_not: str = ""

    @property
    def has_owner_index(self) -> bool:
        """True if the index of owners can be queried."""
        return self.index_status == "ACTIVE"

    @property
    def segments(self) -> int:
        """Number of threads that may scan in parallel."""
        if self.provisioned is not False:
            return 1
        return max(1, min(MAX_SEGMENTS, self.size_bytes // _BYTES_PER_SEGMENT))

    @property
    def units_per_second(self) -> float | None:
        """Max read units per second of a scan; None: no limit."""
        if self.provisioned is None:
            return UNITS_WHERE_UNKNOWN
        if not self.provisioned:
            return None
        return max(_MIN_UNITS, self.read_units * SHARE_OF_PROVISIONED)


def describe(client: Any, table: str, runtime: Runtime) -> TableFacts:
    """Call DescribeTable. Where that is not permitted, the result says so and nothing is raised.

    Raises WrongTable for a table that is not a lease table, SetupError where there is none, TemporaryError.
    """
    try:
        answer = _call(
            f"describing lease table {table!r}", client, client.describe_table, {"TableName": table}, runtime
        )
    except _Denied as error:
        return TableFacts(table, None, why_not=str(error))
    found = table_of(answer)
    if found.key_schema != ((LEASE_KEY, "HASH"),) or found.types.get(LEASE_KEY) != "S":
        keys = ", ".join(f"{name} ({kind}, {found.types.get(name, '?')})" for name, kind in found.key_schema)
        do = "name the application of a fleet, or its table: --table NAME"
        raise WrongTable(
            f"Table {table!r} is not a lease table: its key is {keys}, a lease table's is {LEASE_KEY} (HASH, S). "
            f"Nothing was read or changed. Do: {do}."
        ).about("E05", do)
    table_answer = answer["Table"]
    mode = (table_answer.get("BillingModeSummary") or {}).get("BillingMode", "PROVISIONED")
    units = (table_answer.get("ProvisionedThroughput") or {}).get("ReadCapacityUnits", 0)
    size = table_answer.get("TableSizeBytes", 0)
    return TableFacts(
        table,
        provisioned=mode != "PAY_PER_REQUEST",
        read_units=float(units) if isinstance(units, int | float) else 0.0,
        size_bytes=size if isinstance(size, int) else 0,
        index_status=_index_status(table_answer),
    )


def _index_status(table: Mapping[str, Any]) -> str | None:
    indexes = table.get("GlobalSecondaryIndexes")
    for index in indexes if isinstance(indexes, list) else ():
        if isinstance(index, Mapping) and index.get("IndexName") == OWNER_INDEX:
            # An endpoint that does not say has no index that is still being made.
            return str(index.get("IndexStatus", "ACTIVE"))
    return None


@dataclass(frozen=True, slots=True)
class Scanned:
    """The answers to one scan. items: every row in wire form. server_time: epoch seconds of the last answer."""

    items: list[Item]
    read_units: float = 0.0
    server_time: float | None = None


def scan_items(client: Any, facts: TableFacts, runtime: Runtime) -> Scanned:
    """Every row, eventually consistent.

    Raises rather than returning a part: TemporaryError, SetupError.
    """
    decode_scans(client)
    segments = [_Segment(client, facts, runtime, number) for number in range(facts.segments)]
    if len(segments) == 1:
        segments[0].scan()
    else:
        parallel_map(_Segment.scan, segments, runtime, max_threads=len(segments), name="scan")
    times = [one.server_time for one in segments if one.server_time is not None]
    items = [item for one in segments for item in one.items]
    return Scanned(items, sum(one.units for one in segments), max(times, default=None))


class _Segment:
    """One segment of a scan, page by page."""

    def __init__(self, client: Any, facts: TableFacts, runtime: Runtime, number: int) -> None:
        self._client, self._facts, self._runtime = client, facts, runtime
        total = facts.segments
        self._part = {"Segment": number, "TotalSegments": total} if total > 1 else {}
        self.items: list[Item] = []
        self.units = 0.0
        self.server_time: float | None = None

    def scan(self) -> None:
        rate = self._facts.units_per_second
        after: Mapping[str, AttributeValue] | None = None
        while True:
            started = self._runtime.monotonic()
            answer = _call(
                f"scanning lease table {self._facts.name!r}",
                self._client,
                self._client.scan,
                self._request(after, rate),
                self._runtime,
            )
            self.items += items_of(answer)
            self.server_time = server_time_of(answer) or self.server_time
            units = read_units_of(answer)
            self.units += units
            last = last_key_of(answer)
            if last is None:
                return
            if after is not None and after[LEASE_KEY] == {"S": last}:
                raise AnswerRefused(f"Scanning {self._facts.name!r} does not get past one of its keys.")
            after = {LEASE_KEY: {"S": last}}
            if rate is not None:
                spent = self._runtime.monotonic() - started
                self._runtime.event().wait(max(0.0, units / rate - spent))

    def _request(self, after: Mapping[str, AttributeValue] | None, rate: float | None) -> dict[str, Any]:
        request: dict[str, Any] = {"TableName": self._facts.name, "ReturnConsumedCapacity": "TOTAL"}
        request |= self._part
        if after is not None:
            request["ExclusiveStartKey"] = after
        if rate is not None:
            per_unit = len(self.items) / self.units if self.units and self.items else _ROWS_PER_UNIT
            request["Limit"] = max(1, min(1000, int(rate * min(per_unit, 4 * _ROWS_PER_UNIT))))
        return request


def delete_table(client: Any, table: str, runtime: Runtime) -> None:
    """Delete a lease table with all of its rows. Raises TableMissing, SetupError, TemporaryError.

    An attempt without an answer may have deleted it: after one, a table that is missing is a success.
    """
    attempts = 0

    def delete(**request: Any) -> Any:
        nonlocal attempts
        attempts += 1
        return client.delete_table(**request)

    try:
        _call(f"deleting table {table!r}", client, delete, {"TableName": table}, runtime)
    except TableMissing:
        if attempts == 1:
            raise


class TableMissing(SetupError):
    """There is no table of that name."""


def _sought_in(client: Any) -> str:
    """Return the end of a sentence: where that client seeks a table, and what to check."""
    # A lease file names itself; boto3's client has no such attribute.
    path = getattr(client, "path", None)
    if path is not None:
        return f"in the file {path}. Check --application (or --table), --lease-store, and that the file is there."
    return "in that region and account. Check --application (or --table), --region, and whose credentials these are."


class _Denied(SetupError):
    """DescribeTable or Scan is not permitted."""


def _call(
    doing: str,
    client: Any,
    method: Callable[..., Mapping[str, Any]],
    request: Mapping[str, Any],
    runtime: Runtime,
) -> dict[str, Any]:
    """Call a method of the client for a table, several times if needed. Raises _Denied, SetupError, TemporaryError."""

    def refusal(code: str | None, failure: PyKclError) -> PyKclError:
        if code == "ResourceNotFoundException":
            return TableMissing(f"There is no lease table {request['TableName']!r} {_sought_in(client)}")
        return _Denied(str(failure)) if code in ("AccessDeniedException", "AccessDenied") else failure

    def call() -> dict[str, Any]:
        answer = answer_of(doing, method, request, refusal=refusal, who=OPERATOR)
        refuse_foreign(answer, doing)
        return dict(answer)

    def sleep(seconds: float) -> None:
        runtime.event().wait(seconds)

    return Retrying(
        retry=retry_if_exception_type(TemporaryError),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_random_exponential(0.2, 5.0),
        sleep=sleep,
        reraise=True,
    )(call)


class TableScanner:
    """Scans one lease table repeatedly. client: of DynamoDB, one attempt per call. Creating it sends no request.

    own_tables: of KCL 3.0-3.4, if their names are known; they are read only beside a lease table of KCL 3.x that has
    no client version.
    """

    def __init__(
        self, client: Any, table: str, runtime: Runtime, own_tables: OwnTableNames | None = None
    ) -> None:
        self._client, self._table, self._runtime = client, table, runtime
        self._facts: TableFacts | None = None
        self._rows = RowCache()
        self._own = _OwnTableReader(client, own_tables, runtime) if own_tables is not None else None

    @property
    def facts(self) -> TableFacts:
        """The description of the table, requested once. Raises WrongTable, SetupError, TemporaryError."""
        if self._facts is None:
            self._facts = describe(self._client, self._table, self._runtime)
        return self._facts

    def scan(self) -> TableSnapshot:
        """Return every row. Raises WrongTable before reading a table with another key; SetupError, TemporaryError."""
        found = scan_items(self._client, self.facts, self._runtime)
        snapshot = snapshot_of(found.items, found.read_units, self._rows.parse, found.server_time)
        if self._own is None or not _may_have_own_tables(snapshot, self.facts):
            return snapshot
        return replace(snapshot, own_tables=self._own.read())

    @property
    def pace(self) -> str:
        """The reason why a scan is slow, as text; "" where it is not."""
        facts = self.facts
        if facts.provisioned is None:
            return f"The table is scanned slowly, as its capacity is unknown: {facts.why_not}"
        if facts.provisioned:
            return (
                f"The table is PROVISIONED ({facts.read_units:g} read units/s); scans take at most "
                f"{facts.units_per_second:g} of them, so that the fleet is not throttled."
            )
        return ""


@dataclass(frozen=True, slots=True)
class OwnTableNames:
    """The names of the tables of KCL 3.0-3.4."""

    state: str
    metrics: str

    @classmethod
    def of(
        cls, application: str, state_table: str | None = None, metrics_table: str | None = None
    ) -> OwnTableNames:
        """Return the given names; by default they are named after the application."""
        return cls(state_table or state_table_of(application), metrics_table or application + METRICS_SUFFIX)


def _may_have_own_tables(snapshot: TableSnapshot, facts: TableFacts) -> bool:
    """Return True for a lease table of KCL 3.x whose client version must be somewhere else."""
    if any(row.client_version is not None for row in snapshot.foreign if row.kind == MIGRATION_KIND):
        return False
    is_of_3x = any(lease.throughput is not None for lease in snapshot.leases.values())
    return is_of_3x or facts.index_status is not None


class _OwnTableReader:
    """Reads the tables of KCL 3.0-3.4, at most every few seconds. Never raises for what AWS answers."""

    def __init__(self, client: Any, names: OwnTableNames, runtime: Runtime) -> None:
        self._client, self._names, self._runtime = client, names, runtime
        self._next_read = 0.0
        self._known = NO_OWN_TABLES

    def read(self) -> OwnTables:
        if self._runtime.monotonic() >= self._next_read:
            self._known = known = self._read()
            pause = _OWN_TABLES_PAUSE if known.rows else _OWN_TABLES_PAUSE_WITHOUT
            self._next_read = self._runtime.monotonic() + pause
        return self._known

    def _read(self) -> OwnTables:
        rows: list[ForeignRow] = []
        unread = ""
        for part in (self._state_rows, self._metrics_rows):
            try:
                rows += part()
            except _NoSuchTable:
                continue
            except (SetupError, TemporaryError) as error:
                unread = unread or str(error)
        return OwnTables(tuple(rows), unread)

    def _state_rows(self) -> list[ForeignRow]:
        rows = []
        for key in (MIGRATION_KEY, LEADER_KEY):
            request = {"TableName": self._names.state, "Key": {"key": {"S": key}}, "ConsistentRead": True}
            item = self._answer("reading the state of KCL 3.0-3.4", self._client.get_item, request).get(
                "Item"
            )
            rows += _foreign(item)
        return rows

    def _metrics_rows(self) -> list[ForeignRow]:
        return [row for page in self._metrics_pages() for item in items_of(page) for row in _foreign(item)]

    def _metrics_pages(self) -> Iterator[Mapping[str, Any]]:
        after: dict[str, Any] = {}
        for _ in range(_MAX_METRICS_PAGES):
            request = {"TableName": self._names.metrics, **after}
            answer = self._answer("reading the metrics of KCL 3.0-3.4", self._client.scan, request)
            yield answer
            last = answer.get("LastEvaluatedKey")
            if not last:
                return
            after = {"ExclusiveStartKey": last}

    def _answer(
        self, doing: str, method: Callable[..., Mapping[str, Any]], request: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        def refusal(code: str | None, failure: PyKclError) -> PyKclError:
            return _NoSuchTable(doing) if code == "ResourceNotFoundException" else failure

        answer = answer_of(doing, method, request, refusal=refusal, who=OPERATOR)
        refuse_foreign(answer, doing)
        return answer


class _NoSuchTable(SetupError):
    """There is no table of that name: KCL 3.5 and later need none."""


def _foreign(item: Any) -> list[ForeignRow]:
    row = parse_row(item) if isinstance(item, Mapping) and item else None
    return [row] if isinstance(row, ForeignRow) else []


class PacedTable(DynamoDBLeaseTable):
    """A lease table that scans with a `TableScanner`. A person asks: one answer that it is missing is believed."""

    def __init__(self, client: Any, table: str, runtime: Runtime, **options: Any) -> None:
        super().__init__(client, table, runtime, gone_after=0.0, **options)
        self._scanner = TableScanner(client, table, runtime)

    def scan(self, *, consistent: bool = False) -> TableScan:
        if consistent:
            return super().scan(consistent=True)
        found = self._scanner.scan()
        return TableScan(found.rows, found.read_units)


_TRIES = 4
_PAUSE = 0.5


class RowWriter:
    """One lease table. client: of DynamoDB, one attempt per call. Used by one thread."""

    def __init__(self, client: Any, table: str, runtime: Runtime) -> None:
        self._client, self._name, self._runtime = client, table, runtime
        self._rows = DynamoDBLeaseTable(client, table, runtime, gone_after=0.0)

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
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: no cycle


def _is_as_written(row: Row | None, write: LeaseWrite) -> bool:
    """Return True if the row is exactly the result of this write on the row it saw."""
    if write.after is None:
        return row is None
    return isinstance(row, Lease) and row == write.after
