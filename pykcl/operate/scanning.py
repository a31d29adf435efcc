"""Scans of a lease table that never take from the fleet what it needs."""

from __future__ import annotations

from typing import Any

from pykcl.aws.table_look import TableFacts, describe, scan_items
from pykcl.operate.table_view import ParsedRows, TableView, view_of
from pykcl.runtime import Runtime


class TableScanner:
    """Scans one lease table as often as asked. client: of DynamoDB, one attempt per call. Sends nothing when made."""

    def __init__(self, client: Any, table: str, runtime: Runtime) -> None:
        self._client, self._table, self._runtime = client, table, runtime
        self._facts: TableFacts | None = None
        self._rows = ParsedRows()

    @property
    def facts(self) -> TableFacts:
        """Asked once. Raises WrongTable, SetupError, TemporaryError."""
        if self._facts is None:
            self._facts = describe(self._client, self._table, self._runtime)
        return self._facts

    def scan(self) -> TableView:
        """Every row. Raises WrongTable for a table of another shape, before it is read; SetupError, TemporaryError."""
        items, units = scan_items(self._client, self.facts, self._runtime)
        return view_of(items, units, self._rows.parse)

    @property
    def pace(self) -> str:
        """Why a scan is slow, for people; "" where it is not."""
        facts = self.facts
        if facts.provisioned is None:
            return f"The table is scanned slowly, as its capacity cannot be asked for: {facts.why_not}"
        if facts.provisioned:
            return (
                f"The table is PROVISIONED ({facts.read_units:g} read units/s); scans take at most "
                f"{facts.units_per_second:g} of them, so that nobody who works on it is throttled."
            )
        return ""
