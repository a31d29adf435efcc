"""Whether the shards that a shard came from have been read to their end."""

from __future__ import annotations

from pykcl.model.lease import Lease
from pykcl.ports import LeaseTable


def unfinished_parents(table: LeaseTable, lease: Lease) -> tuple[str, ...]:
    """Parents that have a row which is not at SHARD_END; a parent without a row was cleaned up: it has ended."""
    rows = {parent: table.read(parent) for parent in lease.parents}
    return tuple(
        key for key, row in rows.items() if row is not None and not (isinstance(row, Lease) and row.is_ended)
    )
