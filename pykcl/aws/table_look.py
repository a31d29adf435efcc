"""Looking at a lease table from outside: what it is, and all its rows, without taking reads from those who work on it.

A scan of an on-demand table may be read by several threads. One of a PROVISIONED table is one slow walk in small pages:
its read units are what the fleet's own scans live on, and a page of 1 MiB costs 128 of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from pykcl.aws.errors import MALFORMED, OPERATOR, aws_errors, calling, error_code, sort_failure
from pykcl.aws.table_admin import (
    items_of,
    last_key_of,
    read_units_of,
    refuse_foreign,
    table_of,
)
from pykcl.aws.transport.table_rows import decode_scans
from pykcl.errors import AnswerRefused, PyKclError, SetupError, TemporaryError, WrongTable
from pykcl.model.lease import AttributeValue
from pykcl.model.lease_item import LEASE_KEY, OWNER_INDEX
from pykcl.runtime import Runtime

Item = Mapping[str, AttributeValue]

SHARE_OF_PROVISIONED = 0.25
"""Of a PROVISIONED table's read units; the rest is left to the fleet."""
UNITS_WHERE_UNKNOWN = 16.0
_FEWEST_UNITS = 1.0
_ROWS_PER_UNIT = 16
"""A read unit is 8 KiB of an eventually consistent scan, a lease some 500 bytes. Corrected by what the pages cost."""
_BYTES_PER_SEGMENT = 4 * 1024 * 1024
MOST_SEGMENTS = 8
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What DescribeTable says. provisioned: None where it could not be asked, and why_not says why.

    read_units: provisioned ones per second. size_bytes: some hours old. has_owner_index: of KCL 3.x.
    """

    name: str
    provisioned: bool | None
    read_units: float = 0.0
    size_bytes: int = 0
    has_owner_index: bool = False
    why_not: str = ""

    @property
    def segments(self) -> int:
        """How many threads may scan side by side."""
        if self.provisioned is not False:
            return 1
        return max(1, min(MOST_SEGMENTS, self.size_bytes // _BYTES_PER_SEGMENT))

    @property
    def units_per_second(self) -> float | None:
        """The most read units a look may take per second; None: as many as it likes."""
        if self.provisioned is None:
            return UNITS_WHERE_UNKNOWN
        if not self.provisioned:
            return None
        return max(_FEWEST_UNITS, self.read_units * SHARE_OF_PROVISIONED)


def describe(client: Any, table: str, runtime: Runtime) -> TableFacts:
    """Ask what the table is. Where DescribeTable is not permitted, the answer says so and nothing is raised.

    Raises WrongTable for a table that is no lease table, SetupError where there is none, TemporaryError.
    """
    doing = f"describing lease table {table!r}"
    try:
        answer = _patiently(
            lambda: _call(doing, lambda: calling(client.describe_table)(TableName=table), table), runtime
        )
    except _Denied as error:
        return TableFacts(table, None, why_not=str(error))
    found = table_of(answer)
    if found.key_schema != ((LEASE_KEY, "HASH"),) or found.types.get(LEASE_KEY) != "S":
        keys = ", ".join(f"{name} ({kind}, {found.types.get(name, '?')})" for name, kind in found.key_schema)
        raise WrongTable(
            f"Table {table!r} is not a lease table: its key is {keys}, a lease table's is {LEASE_KEY} (HASH, S). "
            "Nothing was read or changed. Do: name the application, or --table."
        )
    told = answer["Table"]
    mode = (told.get("BillingModeSummary") or {}).get("BillingMode", "PROVISIONED")
    units = (told.get("ProvisionedThroughput") or {}).get("ReadCapacityUnits", 0)
    size = told.get("TableSizeBytes", 0)
    return TableFacts(
        table,
        provisioned=mode != "PAY_PER_REQUEST",
        read_units=float(units) if isinstance(units, int | float) else 0.0,
        size_bytes=size if isinstance(size, int) else 0,
        has_owner_index=OWNER_INDEX in found.indexes,
    )


def scan_items(client: Any, facts: TableFacts, runtime: Runtime) -> tuple[list[Item], float]:
    """Every row in wire form, eventually consistent, and the read units it cost.

    Raises rather than returning a part: TemporaryError, SetupError.
    """
    decode_scans(client)
    segments = facts.segments
    walks = [_Walk(client, facts, runtime, segment, segments) for segment in range(segments)]
    if segments == 1:
        walks[0].run()
    else:
        tasks = [runtime.spawn(f"scan-{number}", walk.run_guarded) for number, walk in enumerate(walks)]
        for task in tasks:
            task.join()
    for walk in walks:
        if walk.failure is not None:
            raise walk.failure
    return [item for walk in walks for item in walk.items], sum(walk.units for walk in walks)


class _Walk:
    """One segment, page by page. failure: what ended it early, for whoever waits for its thread."""

    def __init__(self, client: Any, facts: TableFacts, runtime: Runtime, segment: int, segments: int) -> None:
        self._client, self._facts, self._runtime = client, facts, runtime
        self._part = {"Segment": segment, "TotalSegments": segments} if segments > 1 else {}
        self.items: list[Item] = []
        self.units = 0.0
        self.failure: Exception | None = None

    def run_guarded(self) -> None:
        try:
            self.run()
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits for this thread
            self.failure = error

    def run(self) -> None:
        rate = self._facts.units_per_second
        after: Mapping[str, AttributeValue] | None = None
        while True:
            began = self._runtime.monotonic()
            answer = _patiently(partial(self._page, after, rate), self._runtime)
            self.items += items_of(answer)
            units = read_units_of(answer)
            self.units += units
            last = last_key_of(answer)
            if last is None:
                return
            if after is not None and after[LEASE_KEY] == {"S": last}:
                raise AnswerRefused(f"Scanning {self._facts.name!r} does not get past one of its keys.")
            after = {LEASE_KEY: {"S": last}}
            if rate is not None:
                spent = self._runtime.monotonic() - began
                self._runtime.event().wait(max(0.0, units / rate - spent))

    def _page(self, after: Mapping[str, AttributeValue] | None, rate: float | None) -> dict[str, Any]:
        request: dict[str, Any] = {"TableName": self._facts.name, "ReturnConsumedCapacity": "TOTAL"}
        request |= self._part
        if after is not None:
            request["ExclusiveStartKey"] = after
        if rate is not None:
            per_unit = len(self.items) / self.units if self.units and self.items else _ROWS_PER_UNIT
            request["Limit"] = max(1, min(1000, int(rate * min(per_unit, 4 * _ROWS_PER_UNIT))))
        doing = f"scanning lease table {self._facts.name!r}"
        return _call(doing, lambda: calling(self._client.scan)(**request), self._facts.name)


class _Denied(SetupError):
    """Not permitted; what else can be done without is up to the caller."""


def _call(doing: str, call: Callable[[], Any], table: str) -> dict[str, Any]:
    failure: PyKclError
    try:
        answer = call()
    except aws_errors() as error:
        failure = sort_failure(error, doing=doing, who=OPERATOR)
        code = error_code(error)
        if code == "ResourceNotFoundException":
            failure = SetupError(
                f"There is no lease table {table!r} in that region and account. Check --application (or --table), "
                "--region, and whose credentials these are."
            )
        elif code in ("AccessDeniedException", "AccessDenied"):
            failure = _Denied(str(failure))
    except MALFORMED as error:
        failure = AnswerRefused(f"{doing} got an answer that cannot be read ({type(error).__name__}).")
    else:
        refuse_foreign(answer, doing)
        return dict(answer)
    # Outside the except blocks: botocore's errors may quote a request.
    raise failure


def _patiently(call: Callable[[], dict[str, Any]], runtime: Runtime) -> dict[str, Any]:
    return Retrying(
        retry=retry_if_exception_type(TemporaryError),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_random_exponential(0.2, 5.0),
        sleep=lambda seconds: _sleep(runtime, seconds),
        reraise=True,
    )(call)


def _sleep(runtime: Runtime, seconds: float) -> None:
    runtime.event().wait(seconds)
