"""`ports.LeaseTable` over DynamoDB: scans, reads and the conditional writes of `model.lease_writes`.

The client is handed in, makes one attempt per call and gives up after `request_timeout` (see `clients`);
retrying is done here, through the Runtime, so that it ends at the deadline of the lease and not when botocore
has had enough. With botocore's own retries a write of ours whose answer was lost comes back as
ConditionalCheckFailed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

from pykcl.aws.errors import (
    MALFORMED,
    answer_of,
    aws_errors,
    error_code,
    sort_failure,
    unreadable,
)
from pykcl.aws.renewed_credentials import trouble_of
from pykcl.aws.table_admin import (
    METRICS_SUFFIX,
    NewTable,
    Table,
    items_of,
    last_key_of,
    read_state,
    read_units_of,
    refuse_foreign,
    state_table_of,
    table_of,
)
from pykcl.aws.transport.table_requests import RowCache, ScannedRows, TableRequests
from pykcl.config import HttpTransport
from pykcl.errors import (
    AnswerRefused,
    FatalError,
    PyKclError,
    SetupError,
    TableGone,
    TableNotActive,
    TemporaryError,
    WrongTable,
)
from pykcl.interfaces import Applied, Rejected, TableScan, Unknown, WriteAnswer
from pykcl.model.absence import GONE_AFTER, Absence
from pykcl.model.fleet_rows import FleetWrite
from pykcl.model.lease import ForeignRow, JavaState, Lease, Row, UnreadableRow
from pykcl.model.lease_item import LEADER_KEY, LEASE_KEY, LEASE_OWNER, OWNER_INDEX, parse_row
from pykcl.model.lease_writes import LeaseWrite, resolve_conflict
from pykcl.runtime import Event, Runtime

T = TypeVar("T")

_FEW = 4
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_USABLE = ("ACTIVE", "UPDATING")
_ASK_EVERY = 1.0
"""Seconds between two questions whether the table is there, while requests of many leases do not find it."""
_MAX_ADOPTIONS = 4
_STALE_WRITES = 20
"""More writes than an owner sends in the moment by which an eventually consistent answer may lag."""


class DynamoDBLeaseTable:
    """One lease table. May be used by any number of threads at once; one write per lease at a time is up to
    them.

    client: a boto3 DynamoDB client of one attempt per call. table_name: the table. runtime: time and chance.
    request_timeout: seconds after which the client gives one request up; a write may end this much after its
    deadline. stop: once set, nothing is tried a second time (for the forced stop: an orderly one still
    releases). coordinator_state_table, worker_metrics_table: where KCL 3.0-3.4 keeps its state and the reports of its
    workers; by default named after the lease table.
    new_table: how a table is made that is missing. http_transport: as in Config. gone_after: as in `Absence`.
    """

    def __init__(
        self,
        client: Any,
        table_name: str,
        runtime: Runtime,
        *,
        request_timeout: float = 2.0,
        stop: Event | None = None,
        coordinator_state_table: str | None = None,
        worker_metrics_table: str | None = None,
        new_table: NewTable | None = None,
        http_transport: HttpTransport = "auto",
        gone_after: float = GONE_AFTER,
    ) -> None:
        self._client = client
        self._absence, self._another = Absence(gone_after), Absence(gone_after)
        self._asked_at, self._is_there = -math.inf, False
        self._new_table = new_table or NewTable()
        self._name = table_name
        self._metrics_table = worker_metrics_table or table_name + METRICS_SUFFIX
        self._state_table = coordinator_state_table or state_table_of(table_name)
        self._has_owner_index = False
        self._runtime = runtime
        self._request_timeout = request_timeout
        self._stop = stop or runtime.event()
        self._created = False
        self._row_cache = RowCache()
        self._table_id = ""
        requests = TableRequests(client, table_name, runtime, http_transport)
        self._requests, self._calling = requests, requests.clock.calling

    @property
    def name(self) -> str:
        return self._name

    def credentials_trouble(self) -> PyKclError | None:
        """See `interfaces.HasCredentials`."""
        return trouble_of(self._client)

    def prepare(self, *, create: bool) -> bool:
        """See `ports.LeaseTable`. Does not wait: TemporaryError says that the table is not usable yet; call again."""
        description = self._describe()
        if description is None:
            if not create:
                if not self._absence.is_proven(self._runtime.monotonic()):
                    raise self._not_found("describing it")
                raise SetupError(
                    f"Lease table {self._name!r} does not exist and create_table is off. "
                    f"Create it with the partition key {LEASE_KEY} (string), allow creating it, "
                    "or check the name and the region."
                )
            self._create()
            description = self._describe()
        if description is not None and description.status in _USABLE:
            self._check_schema(description)
            if self._created:
                self._new_table.finish(self._client, self._name)
            self._table_id = self._table_id or description.table_id
            self._has_owner_index = OWNER_INDEX in description.indexes
            return self._created
        status = "missing" if description is None else description.status
        raise TableNotActive(f"Lease table {self._name!r} is {status}; waiting until it is ACTIVE.")

    def scan(self, *, consistent: bool = False) -> TableScan:
        """See `ports.LeaseTable`; page by page. Raises rather than returning a part.

        Raises TableGone, too, where the table is another one of the same name than that which was prepared.
        """
        known = self._row_cache
        seen, read_units = self._read_all(known, {"ConsistentRead": True} if consistent else {})
        now = seen.to_cache()
        if _went_back(known.by_key, now.rows) or _have_vanished(known.by_key, now.by_key):
            self._refuse_another_table()
        self._row_cache = now
        return TableScan(tuple(now.rows), read_units)

    def scan_part(self, segment: int, segments: int) -> TableScan:
        """See `interfaces.LeaseTable`. Only a scan of the whole table can show that the table was replaced."""
        seen, read_units = self._read_all(self._row_cache, {"Segment": segment, "TotalSegments": segments})
        return TableScan(tuple(seen.rows), read_units)

    def _read_all(self, known: RowCache, how: Mapping[str, Any]) -> tuple[ScannedRows, float]:
        """Every page of a scan, and the read units of all of them."""
        seen = ScannedRows(known)
        read_units = 0.0
        for answer in self._pages(how, seen):
            seen.add(answer)
            read_units += read_units_of(answer)
        return seen, read_units

    def _refuse_another_table(self) -> None:
        """Raise TableGone if the table was deleted and made again since `prepare`.

        Asked only when a scan shows what the fleet itself never does. 1) A deploy makes the table anew; 2) the leases
        of this worker are gone, and every shard seems to be one that nobody ever read; 3) it would be begun at the
        start position: at LATEST all that was put meanwhile would be skipped.
        """
        seems_another = TemporaryError(
            f"Lease table {self._name!r} seems to be another one of that name. It is asked again, as the endpoint "
            "or the credentials may have been others for a moment."
        )
        if self._another.is_fresh(self._runtime.monotonic()):
            # Every shard that ends scans, and tries again: all of them together ask once.
            raise seems_another
        description = self._describe()
        if description is None:
            raise self._missing("scanning it")
        if description.table_id == self._table_id:
            self._another.found()
            return
        if not self._another.is_proven(self._runtime.monotonic()):
            raise seems_another
        raise TableGone(
            f"Lease table {self._name!r} was deleted, and the present one is another one of that name. The "
            "positions this worker read from are gone, so nothing is delivered. Restore it from a backup, "
            "or start again to go on with what the present table says."
        )

    def read(self, key: str) -> Row | None:
        """One row, strongly consistent; None where there is none."""
        return self._few_times(lambda: self._read_once(key))

    def owned_by(self, worker: str) -> frozenset[str]:
        """See `interfaces.LeaseTable`; page by page."""
        keys: set[str] = set()
        start: dict[str, Any] = {}
        while True:
            answer = self._query_owner(worker, start)
            rows = answer.get("Items")
            if not isinstance(rows, list):
                raise AnswerRefused(f"The index {OWNER_INDEX} was read and no rows came. It is read again.")
            keys.update(filter(None, map(_key_in, rows)))
            last = answer.get("LastEvaluatedKey")
            if not last or last == start.get("ExclusiveStartKey"):
                return frozenset(keys)
            start = {"ExclusiveStartKey": last}

    def _query_owner(self, worker: str, start: Mapping[str, Any]) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            try:
                answer: dict[str, Any] = self._calling(self._client.query)(
                    TableName=self._name,
                    IndexName=OWNER_INDEX,
                    KeyConditionExpression=f"{LEASE_OWNER} = :owner",
                    ExpressionAttributeValues={":owner": {"S": worker}},
                    **start,
                )
                return answer
            except aws_errors() as error:
                if error_code(error) != "ValidationException":
                    raise
            # 1) A scan shows a fleet with a leader; 2) an operator rolls it back to 2.x, which deletes the index, or
            # upgrades it once more, which builds it; 3) the next scan shows that.
            raise TemporaryError(
                f"The index {OWNER_INDEX} of lease table {self._name!r} is missing or being built. It is read again."
            )

        return self._patiently(f"looking up the leases of {worker!r} in the index {OWNER_INDEX}", ask)

    def write_fleet_row(self, write: FleetWrite, *, until: float) -> bool:
        """See `interfaces.LeaseTable`."""
        doing = f"writing the row of {write.key!r} to lease table {self._name!r}"

        def send() -> dict[str, Any]:
            try:
                if write.is_in_lease_table:
                    return self._requests.write(write.method, write.request)
                method = self._calling(getattr(self._client, write.method))
                answer: dict[str, Any] = method(TableName=self._metrics_table, **write.request)
                return answer
            except aws_errors() as error:
                if error_code(error) != "ConditionalCheckFailedException":
                    raise
                return {"Refused": True}

        # Another table that is missing is no loss of positions.
        call = (
            partial(self._call, doing, send)
            if write.is_in_lease_table
            else partial(answer_of, doing, send, {})
        )
        return "Refused" not in self._few_times(call, until)

    def old_lock(self) -> ForeignRow | None:
        """See `interfaces.LeaseTable`."""
        doing = "reading the leader's lock of KCL 3.0-3.4"
        request = {
            "TableName": self._state_table,
            "Key": {"key": {"S": LEADER_KEY}},
            "ConsistentRead": True,
        }
        answer = self._few_times(lambda: answer_of(doing, self._calling(self._client.get_item), request))
        refuse_foreign(answer, doing)
        row = parse_row(answer["Item"]) if answer.get("Item") else None
        return row if isinstance(row, ForeignRow) else None

    def old_metrics(self) -> Sequence[Row]:
        """See `interfaces.LeaseTable`; page by page."""
        doing = f"reading the metrics table {self._metrics_table!r} of KCL 3.0-3.4"
        rows: list[Row] = []
        request: dict[str, Any] = {"TableName": self._metrics_table}
        while True:
            answer = self._few_times(partial(answer_of, doing, self._calling(self._client.scan), request))
            refuse_foreign(answer, doing)
            rows += map(parse_row, items_of(answer))
            last = answer.get("LastEvaluatedKey")
            if not last or last == request.get("ExclusiveStartKey"):
                return rows
            request = {**request, "ExclusiveStartKey": last}

    @property
    def has_owner_index(self) -> bool:
        """See `interfaces.LeaseTable`."""
        return self._has_owner_index

    def java_state(self) -> JavaState:
        """See `ports.LeaseTable`. The index is that of the last `prepare`."""
        try:
            found = self._few_times(lambda: read_state(self._client, self._state_table, self._calling))
        except TemporaryError:
            found = JavaState(unread="AWS did not answer")
        return replace(found, has_owner_index=self._has_owner_index)

    def _read_once(self, key: str) -> Row | None:
        answer = self._call(
            f"reading a row of lease table {self._name!r}",
            lambda: self._requests.get_item(Key={LEASE_KEY: {"S": key}}, ConsistentRead=True),
        )
        return _row_in(answer.get("Item"), key)

    def write(self, write: LeaseWrite, *, until: float) -> WriteAnswer:
        """See `ports.LeaseTable`. Ends at most one request time-out after `until`; two if our clock is wrong."""
        sending = _Sending(write)
        for attempt in count(1):
            try:
                if self._runtime.monotonic() >= until:
                    raise TemporaryError(sending.trouble)
                return self._send(sending)
            except TemporaryError as error:
                sending.unanswered(str(error))
            except SetupError as error:
                # 1) It is applied, and the answer is lost; 2) the next attempt is refused, for its credentials perhaps;
                # 3) the caller's next write finds what the first one left, which is nobody else's.
                if isinstance(error, FatalError) or not sending.may_have_landed:
                    raise
                sending.trouble = str(error)
                break
            if not self._pause(attempt, until):
                break
        return Unknown(sending.trouble, sending.adopted, sending.overwritten)

    def _send(self, sending: _Sending) -> WriteAnswer:
        """Send once, and again at once on each row that turns out to be our own earlier write's."""
        for _ in range(_MAX_ADOPTIONS):
            write = sending.write
            operation, params = write.request()
            doing = f"writing {write.kind!r} to lease table {self._name!r}"
            try:
                answer = self._requests.write(operation, params)
            except aws_errors() as error:
                refusal = error
            except MALFORMED as error:
                raise unreadable(error, doing=doing) from None
            else:
                self._absence.found()
                return Applied(_row_after(write, answer, doing), overwritten=sending.overwritten)
            # Not inside the except block: no error of ours may have one of botocore's in its chain.
            try:
                found = self._after_failure(sending, refusal, doing)
            finally:
                del refusal  # its traceback holds this frame: no cycle
            if found is not None:
                return found
        raise TemporaryError(
            f"{sending.write.key!r} keeps changing under our own name. Is this worker identifier unique?"
        )

    def _after_failure(self, sending: _Sending, error: Exception, doing: str) -> WriteAnswer | None:
        """Return what a failed attempt proves; None: the write was changed, and is to be sent at once.

        Raises TemporaryError where it proves nothing.
        """
        write = sending.write
        code = error_code(error)
        if code == "ConditionalCheckFailedException":
            row = self._row_of(error, write.key)
        elif code == "ValidationException":
            # DynamoDB will not update this row at all. Seen where a foreign library wrote an owner of the
            # wrong type and KCL 3.x then indexed the owners. One such row must not stop the other leases.
            row = self._read_once(write.key)
            if resolve_conflict(write, row) != "applied":
                return Rejected(
                    UnreadableRow(write.key, "DynamoDB refuses to change it (ValidationException)")
                )
        else:
            raise self._sorted(error, doing)
        outcome = resolve_conflict(write, row)
        if outcome == "applied":
            found = row if isinstance(row, Lease) else None
            return Applied(found, confirmed_by_read=True, overwritten=sending.overwritten)
        if outcome == "restate":
            sending.restate(row)
        elif outcome == "adopt" and isinstance(row, Lease):
            sending.rebase(row)
        else:
            return Rejected(row)
        return None

    def _row_of(self, error: Exception, key: str) -> Row | None:
        # The refusal carries the row as the condition saw it. Without one the row was missing, or the endpoint does
        # not know ALL_OLD; only a read can show which.
        row = _row_in(getattr(error, "response", {}).get("Item"), key)
        return row if row is not None else self._read_once(key)

    def _describe(self) -> Table | None:
        found = self._few_times(self._ask_for_table)
        if found is None:
            return None
        if found.status not in (*_USABLE, "CREATING"):
            raise SetupError(
                f"Lease table {self._name!r} is {found.status} and cannot be used. "
                "Wait until that is over or restore it, then start again."
            )
        return found

    def _ask_for_table(self) -> Table | None:
        """Ask DynamoDB once what the table is; None: it knows none. Raises TemporaryError, SetupError."""
        doing = f"describing lease table {self._name!r}"
        try:
            answer = self._calling(self._client.describe_table)(TableName=self._name)
        except aws_errors() as error:
            if error_code(error) == "ResourceNotFoundException":
                return None
            failure: Exception = sort_failure(error, doing=doing)
        except MALFORMED as error:
            failure = unreadable(error, doing=doing)
        else:
            refuse_foreign(answer, doing)
            found = table_of(answer)
            if found.status in _USABLE:
                self._absence.found()
            return found
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: no cycle

    def _missing(self, doing: str) -> PyKclError:
        """Return what it means that a request did not find the table.

        Where that goes on, DescribeTable is asked, once a second at most. 1) A table was just made, and DescribeTable
        shows it as ACTIVE; 2) the host of DynamoDB that is asked for a row has not heard of it. So while DescribeTable
        shows it, it is there.
        """
        now = self._runtime.monotonic()
        if not self._absence.is_proven(now):
            return self._not_found(doing)
        if now - self._asked_at >= _ASK_EVERY:
            self._asked_at = now
            try:
                found = self._ask_for_table()
            except TemporaryError:
                # Unanswered, it may well be there. Where the question is not permitted, others have to do.
                self._is_there = True
            except SetupError:
                self._is_there = False
            else:
                self._is_there = found is not None and found.status in _USABLE
        if self._is_there:
            return self._not_found(doing)
        return TableGone(
            f"Lease table {self._name!r} does not exist (any more). Without it no position is known, so "
            "nothing is delivered. Restore it from a backup, "
            "or start again to begin at the configured start position."
        )

    def _not_found(self, doing: str) -> TemporaryError:
        return TemporaryError(
            f"Lease table {self._name!r} was not found ({doing}). It is asked for again, as one such answer proves "
            "nothing: an endpoint or credentials may be others for a moment, and a new table unknown for some seconds."
        )

    def _create(self) -> None:
        doing = f"creating lease table {self._name!r}"
        try:
            self._calling(self._client.create_table)(
                TableName=self._name,
                KeySchema=[{"AttributeName": LEASE_KEY, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": LEASE_KEY, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
                **self._new_table.parameters,
            )
        except aws_errors() as error:
            # ResourceInUse: a peer was faster, or our own request landed and its answer was lost.
            if error_code(error) == "ResourceInUseException":
                return
            failure: Exception = sort_failure(error, doing=doing)
        except MALFORMED as error:
            failure = unreadable(error, doing=doing)
        else:
            self._created = True
            return
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: no cycle

    def _check_schema(self, table: Table) -> None:
        if table.key_schema != ((LEASE_KEY, "HASH"),) or table.types.get(LEASE_KEY) != "S":
            found = ", ".join(
                f"{name} ({kind}, {table.types.get(name, '?')})" for name, kind in table.key_schema
            )
            raise WrongTable(
                f"Table {self._name!r} is not a lease table: its key is {found}, a lease table's is "
                f"{LEASE_KEY} (HASH, S). Nothing was changed in it. "
                "Choose another application name, or set table_name."
            )

    def _pages(self, how: Mapping[str, Any], seen: ScannedRows) -> Iterator[dict[str, Any]]:
        """The answers to a scan, to the last one."""
        start: dict[str, Any] = {}
        passed: set[str] = set()
        while True:
            answer = self._patiently(
                f"scanning lease table {self._name!r}",
                partial(self._requests.scan, seen, ReturnConsumedCapacity="TOTAL", **how, **start),
            )
            yield answer
            after = last_key_of(answer)
            if after is None:
                return
            if after in passed:
                raise AnswerRefused(f"Scanning lease table {self._name!r} does not get past one of its keys.")
            passed.add(after)
            start = {"ExclusiveStartKey": {LEASE_KEY: {"S": after}}}

    def _few_times(self, call: Callable[[], T], until: float | None = None) -> T:
        """Return `call()`, tried while it raises TemporaryError: four times, or until then; the last one is raised."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return call()
            except TemporaryError:
                few = math.inf if attempt < _FEW else 0.0
                if not self._pause(attempt, few if until is None else until):
                    raise

    def _pause(self, attempt: int, until: float) -> bool:
        """Wait before the next attempt, at most until then. Return False if there is to be none."""
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt, 10))
        seconds = self._runtime.random().uniform(longest / 2, longest)
        left = until - self._runtime.monotonic()
        if self._stop.is_set() or left <= 0:
            return False
        self._stop.wait(min(seconds, left))
        return True

    def _patiently(self, doing: str, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """`call()`, a few times while it fails for a time. Raises TableGone, SetupError, TemporaryError."""
        return self._few_times(lambda: self._call(doing, call))

    def _call(self, doing: str, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            answer = call()
        except aws_errors() as error:
            failure = self._sorted(error, doing)
        except MALFORMED as error:
            failure = unreadable(error, doing=doing)
        else:
            refuse_foreign(answer, doing)
            self._absence.found()
            return answer
        # Raised outside the except blocks: botocore's errors may quote a request or the credentials' canonical
        # string, and a traceback prints the whole chain.
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: no cycle

    def _sorted(self, error: Exception, doing: str) -> Exception:
        if error_code(error) == "ResourceNotFoundException":
            return self._missing(doing)
        return sort_failure(error, doing=doing)


class _Sending:
    """The write as it is to be sent next: the first one, or that rebased on a row of our own."""

    def __init__(self, write: LeaseWrite) -> None:
        self.write = write
        self.adopted: Lease | None = None
        self.overwritten = ""
        self.trouble = "its deadline had passed before it was sent"
        self._is_unanswered = False

    @property
    def may_have_landed(self) -> bool:
        return self._is_unanswered or self.adopted is not None or bool(self.overwritten)

    def unanswered(self, trouble: str) -> None:
        self.write, self.trouble, self._is_unanswered = self.write.after_no_answer(), trouble, True

    def rebase(self, seen: Lease) -> None:
        self.write = self.write.rebased(seen)
        self.adopted = seen

    def restate(self, row: Row | None) -> None:
        """Go on with a write over the checkpoint of somebody else, which is in the row."""
        if isinstance(row, Lease):
            self.overwritten = str(row.checkpoint)
        elif isinstance(row, UnreadableRow):
            self.overwritten = f"unreadable ({row.problem})"
        self.write = self.write.restating(row)
        self.adopted = self.write.seen


def _went_back(known: Mapping[str, Row], rows: Iterable[Row]) -> bool:
    """Return whether a counter, which only grows, has fallen by more than an eventually consistent answer explains."""
    for row in rows:
        before = known.get(row.key)
        if before is row or not isinstance(row, Lease) or not isinstance(before, Lease):
            continue
        if row.counter <= 1 < before.counter or row.counter < before.counter - _STALE_WRITES:
            return True
    return False


def _have_vanished(known: Mapping[str, Row], seen: Mapping[str, Row]) -> bool:
    """Return whether leases are missing that had not ended: only those of shards that Kinesis forgot are deleted so.

    One that nobody has held for long may be so young that an answer a moment old lacks it; but half of all rows at once
    are worth a question, even if they had ended.
    """
    gone = [known[key] for key in known.keys() - seen.keys()]
    leases = [row for row in gone if isinstance(row, Lease) and not row.is_ended]
    return any(lease.counter > 1 for lease in leases) or (bool(gone) and 2 * len(gone) >= len(known))


def _key_in(item: object) -> str | None:
    value = item.get(LEASE_KEY) if isinstance(item, Mapping) else None
    text = value.get("S") if isinstance(value, Mapping) else None
    return text if isinstance(text, str) else None


def _row_in(item: Any, key: str) -> Row | None:
    """Raises AnswerRefused for another row than the one asked for: believed, the next write would go to that row, with
    a condition that holds. 1) A process is forked and shares our connections; 2) each is given the other's answer.
    """
    row = parse_row(item) if item and isinstance(item, Mapping) else None
    if row is not None and row.key != key:
        raise AnswerRefused(
            f"A question about the row {key!r} of the lease table was answered with another row. Nothing of it was "
            "believed; asking again. If this goes on, look for what shares or mixes up this process' connections "
            "(a fork, a proxy)."
        )
    return row


def _row_after(write: LeaseWrite, answer: Mapping[str, Any], doing: str) -> Lease | None:
    """The row as DynamoDB says it is now (ALL_NEW); what we made of it where that cannot be read.

    Raises AnswerRefused for an answer that does not prove that the write took effect.
    """
    refuse_foreign(answer, doing)
    if write.kind in ("create", "delete"):
        return write.after
    row = _row_in(answer.get("Attributes"), write.key)
    if row is None:
        raise AnswerRefused(
            f"{doing} was answered without the row. Sending it again shows what became of it."
        )
    return row if isinstance(row, Lease) else write.after
