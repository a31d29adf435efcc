"""Lease tables outside of DynamoDB, by the requests that DynamoDB gets: evaluated here, and kept in a file.

`expressions` and `requests` evaluate a request over rows; the testing kit uses them, too. `sqlite` keeps rows in a
file. A store has the methods of boto3's client, so that `aws.lease_table` runs over it. May import `aws.transport`,
`errors`, `model` and `runtime`; what is public is here, and imports no SQLite.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from pykcl.errors import ConfigError


class SQLiteLeaseTable:
    """The lease tables of any number of applications, in one SQLite file, for all workers of this machine.

    path: of the file, which a worker makes if it is missing; not on a network file system. timeout: seconds for which a
    request waits at most while another process has the file locked; a worker waits no longer than for DynamoDB.

    Raises ConfigError for a path that names no file.
    """

    __slots__ = ("path", "timeout")

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 2.0) -> None:
        text: Any = os.fspath(path)
        if not isinstance(text, str) or text in ("", ":memory:") or "\0" in text or os.path.isdir(text):
            raise ConfigError(
                f"SQLiteLeaseTable({text!r}): that is no file in which leases could stay. "
                "Do: name a file, such as SQLiteLeaseTable('orders.db')."
            )
        seconds: Any = timeout
        if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise ConfigError(f"SQLiteLeaseTable(timeout={timeout!r}): write seconds, more than 0.")
        # A program may change its folder meanwhile.
        self.path = Path(os.path.abspath(text))
        self.timeout = float(timeout)

    def __str__(self) -> str:
        return f"sqlite:{self.path}"

    def __repr__(self) -> str:
        return f"SQLiteLeaseTable({os.fspath(self.path)!r})"


def lease_store_at(text: str) -> SQLiteLeaseTable:
    """Return the store of an address such as sqlite:orders.db. Raises ConfigError for any other."""
    kind, colon, path = text.partition(":")
    if kind != "sqlite" or not colon or not path or path.startswith(("//", "~", "file:")):
        raise ConfigError(
            f"The lease store {text!r} is no address of one. Do: name an SQLite file, such as sqlite:orders.db, which "
            "the workers of one machine share; or leave it out, for a table in DynamoDB."
        )
    return SQLiteLeaseTable(path)


def open_client(table: SQLiteLeaseTable, timeout: float = math.inf) -> Any:
    """Return a client of DynamoDB over that table, which waits for the file at most so many seconds."""
    from pykcl.stores.sqlite import SQLiteClient

    return SQLiteClient(table.path, min(table.timeout, timeout))
