"""A lease table whose scans leave the fleet what it needs: see `operate.scanning`."""

from __future__ import annotations

from pykcl.interfaces import LeaseTable, TableScan, WriteAnswer
from pykcl.model.lease import JavaState, Row
from pykcl.model.lease_writes import LeaseWrite
from pykcl.operate.scanning import TableScanner


class PacedTable:
    """`ports.LeaseTable`: everything but scans as `table` does it."""

    def __init__(self, table: LeaseTable, scanner: TableScanner) -> None:
        self._table, self._scanner = table, scanner

    def prepare(self, *, create: bool) -> bool:
        return self._table.prepare(create=create)

    def scan(self, *, consistent: bool = False) -> TableScan:
        if consistent:
            return self._table.scan(consistent=True)
        found = self._scanner.scan()
        return TableScan(found.rows, found.read_units)

    def scan_part(self, segment: int, segments: int) -> TableScan:
        return self._table.scan_part(segment, segments)

    def read(self, key: str) -> Row | None:
        return self._table.read(key)

    def java_state(self) -> JavaState:
        return self._table.java_state()

    def write(self, write: LeaseWrite, *, until: float) -> WriteAnswer:
        return self._table.write(write, until=until)
