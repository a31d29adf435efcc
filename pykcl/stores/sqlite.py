"""A lease table in an SQLite file, for the workers of one machine.

It has the methods of boto3's DynamoDB client that pykcl calls, and makes of each request what DynamoDB makes of it. So
the conditions, what a write without an answer means, and what shows that a table is another one are the same code for
both. A request is one transaction; SQLite locks the file against all other processes for as long as it takes.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pykcl.aws.transport.table_requests import ITEM_JSON, with_bytes
from pykcl.errors import ConfigError, SetupError, TemporaryError
from pykcl.model.metered_json import read_json
from pykcl.runtime import Lock, SystemRuntime
from pykcl.stores.expressions import InvalidRequestError, Item, aws_error
from pykcl.stores.requests import Params, Table, key_of

_APPLICATION_ID: Final = 0x70796B6C
_VERSION: Final = 1
_SCHEMA: Final = (
    "CREATE TABLE tables (name TEXT PRIMARY KEY, id TEXT NOT NULL, made_by TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE leases (name TEXT, key TEXT, item TEXT NOT NULL, PRIMARY KEY (name, key)) WITHOUT ROWID",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_VERSION}",
)
_NEVER: Final = frozenset(
    {
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)
"""Codes of errors that no repetition helps against."""
_LOCKED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_REMOTE: Final = frozenset({
    "9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "smb3", "smbfs",
})  # fmt: skip
"""Names by which Linux mounts file systems of other machines; SQLite's locks do not hold there."""
_ANSWERED: Final[Mapping[str, Any]] = {
    "ResponseMetadata": {"HTTPStatusCode": 200, "RequestId": "sqlite", "RetryAttempts": 0}
}
_MOUNTS: Final = Path("/proc/self/mounts")


class SQLiteLeaseTable:
    """The lease tables of any number of applications, in one file, for all workers of this machine.

    path: of the file, which a worker makes if it is missing; not on a network file system. timeout: seconds for which a
    request waits while another process has the file locked. Any number of threads and processes may use one at once;
    in a process that was forked it opens the file anew.

    Raises ConfigError for a path that names no file. Requests raise SetupError for a file that is not such a table or
    may not be written, TemporaryError while it is locked or its disk is full, and botocore's ClientError as DynamoDB
    answers.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 2.0) -> None:
        self.path = Path(path)
        if os.fspath(path) in ("", ":memory:") or self.path.is_dir():
            raise ConfigError(
                f"SQLiteLeaseTable({os.fspath(path)!r}): that is no file in which leases could stay. "
                "Do: name a file, such as SQLiteLeaseTable('orders.db')."
            )
        if not timeout > 0:
            raise ConfigError(f"SQLiteLeaseTable(timeout={timeout!r}): write seconds, more than 0.")
        self._timeout = timeout
        self._file: _File | None = None
        self._left: list[_File] = []

    def __str__(self) -> str:
        return f"sqlite:{self.path}"

    def __repr__(self) -> str:
        return f"SQLiteLeaseTable({os.fspath(self.path)!r})"

    # -- boto3's methods -----------------------------------------------------------------------------------------

    def create_table(self, **params: Any) -> dict[str, Any]:
        name, table_id = params["TableName"], SystemRuntime().token()
        with self._transaction("CreateTable", may_make=True) as file:
            if file.table(name) is not None:
                raise aws_error("ResourceInUseException", f"Table already exists: {name}", "CreateTable")
            file.ask("INSERT INTO tables VALUES (?, ?, ?)", name, table_id, ITEM_JSON.encode(params))
        return {"TableDescription": Table(params, 0, table_id).description(), **_ANSWERED}

    def describe_table(self, **params: Any) -> dict[str, Any]:
        with self._table("DescribeTable", params) as (_, table):
            return {"Table": table.description(), **_ANSWERED}

    def delete_table(self, **params: Any) -> dict[str, Any]:
        with self._table("DeleteTable", params, writes=True) as (file, table):
            file.ask("DELETE FROM leases WHERE name = ?", table.name)
            file.ask("DELETE FROM tables WHERE name = ?", table.name)
            return {"TableDescription": table.description(), **_ANSWERED}

    def scan(self, **params: Any) -> dict[str, Any]:
        with self._table("Scan", params) as (file, table):
            table.rows = file.rows(table.name)
            return {**table.scan(params), **_ANSWERED}

    def query(self, **params: Any) -> dict[str, Any]:
        with self._table("Query", params) as (file, table):
            table.rows = file.rows(table.name)
            return {**table.query(params), **_ANSWERED}

    def get_item(self, **params: Any) -> dict[str, Any]:
        with self._table("GetItem", params) as (file, table):
            table.rows = file.rows(table.name, _key_in(params, table))
            return {**table.get(params), **_ANSWERED}

    def put_item(self, **params: Any) -> dict[str, Any]:
        return self._write("PutItem", params)

    def update_item(self, **params: Any) -> dict[str, Any]:
        return self._write("UpdateItem", params)

    def delete_item(self, **params: Any) -> dict[str, Any]:
        return self._write("DeleteItem", params)

    def close(self) -> None:
        """Close the file, which the next request opens again."""
        file, self._file = self._file, None
        if file is not None and file.is_ours:
            with file.lock:
                file.connection.close()

    # -- requests ------------------------------------------------------------------------------------------------

    def _write(self, operation: str, params: Params) -> dict[str, Any]:
        with self._table(operation, params, writes=True) as (file, table):
            key = _key_in(params, table)
            table.rows = file.rows(table.name, key)
            answer, written = table.write(operation, params)
            if written.after is None:
                file.ask("DELETE FROM leases WHERE name = ? AND key = ?", table.name, key)
            else:
                text = ITEM_JSON.encode(written.after)
                file.ask("INSERT OR REPLACE INTO leases VALUES (?, ?, ?)", table.name, key, text)
        return {**answer, **_ANSWERED}

    @contextmanager
    def _table(
        self, operation: str, params: Params, *, writes: bool = False
    ) -> Iterator[tuple[_File, Table]]:
        with self._transaction(operation, writes=writes) as file:
            table = file.table(params["TableName"])
            if table is None:
                raise aws_error("ResourceNotFoundException", "Requested resource not found", operation)
            yield file, table

    @contextmanager
    def _transaction(self, operation: str, *, writes: bool = True, may_make: bool = False) -> Iterator[_File]:
        """All or nothing of what is done within. Raises SetupError, and TemporaryError, after which it may be both."""
        try:
            file = self._opened(operation, may_make=may_make)
            with file.lock:
                file.ask("BEGIN IMMEDIATE" if writes else "BEGIN")
                try:
                    yield file
                    file.ask("COMMIT")
                finally:
                    if file.connection.in_transaction:
                        file.connection.rollback()
        except sqlite3.Error as error:
            failure = self._sorted(error)
        except InvalidRequestError as refusal:
            failure = aws_error("ValidationException", str(refusal), operation)
        else:
            return
        raise failure

    def _opened(self, operation: str, *, may_make: bool) -> _File:
        """The file as this process has opened it.

        One that another has taken the place of is gone: SQLite would go on in a file that has no name any more, and
        whoever comes next would begin in another one. Only a start, which may make the table, opens what is there now.
        """
        try:
            found = os.stat(self.path)
            there: tuple[int, int] | None = (found.st_dev, found.st_ino)
        except FileNotFoundError:
            there = None
        if self._file is not None and self._file.is_ours and self._file.place == there:
            return self._file
        is_replaced = self._file is not None and self._file.is_ours
        if (there is None or is_replaced) and not may_make:
            raise aws_error("ResourceNotFoundException", "Requested resource not found", operation)
        self._refuse_remote()
        if self._file is not None:
            # Neither used nor closed: it may be that of the process which this one was forked from.
            self._left.append(self._file)
        self._file = _File.opened(self.path, self._timeout, may_make=may_make)
        return self._file

    def _refuse_remote(self) -> None:
        kind = _file_system_of(self.path)
        if kind in _REMOTE:
            raise SetupError(
                f"The lease table {self.path} lies on a file system of another machine ({kind}), where the locks of "
                "SQLite do not hold: two workers could hold one lease. Do: name a file on a disk of this machine."
            )

    def _sorted(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _LOCKED:
            return TemporaryError(
                f"The lease table {self.path} was locked by another process for {self._timeout:g} s. It is tried again."
            )
        said = f"The lease table {self.path} cannot be used: {error}."
        if code in _NEVER:
            return SetupError(f"{said} Do: check the file, its folder, and that this process may write both.")
        return TemporaryError(f"{said} It is tried again. If that goes on: is its disk full?")


@dataclass(slots=True)
class _File:
    """The file, as one process has opened it. place: device and number of the file that it was."""

    connection: sqlite3.Connection
    process: int
    place: tuple[int, int]
    lock: Lock

    @classmethod
    def opened(cls, path: Path, timeout: float, *, may_make: bool) -> _File:
        """Raises sqlite3.Error and SetupError."""
        mode = "rwc" if may_make else "rw"
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            timeout,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        try:
            _prepare(connection, path)
            found = os.stat(path)
        except BaseException:
            connection.close()
            raise
        return cls(connection, os.getpid(), (found.st_dev, found.st_ino), SystemRuntime().lock())

    @property
    def is_ours(self) -> bool:
        """False in a process that was forked from the one that opened it."""
        return self.process == os.getpid()

    def ask(self, statement: str, *values: str) -> sqlite3.Cursor:
        return self.connection.execute(statement, values)

    def table(self, name: str) -> Table | None:
        """The table without its rows."""
        found = self.ask("SELECT id, made_by FROM tables WHERE name = ?", name).fetchone()
        return None if found is None else Table(json.loads(found[1]), 0, found[0])

    def rows(self, name: str, key: str | None = None) -> dict[str, Item]:
        """The rows of a table by key, or that one."""
        if key is None:
            found = self.ask("SELECT key, item FROM leases WHERE name = ?", name)
        else:
            found = self.ask("SELECT key, item FROM leases WHERE name = ? AND key = ?", name, key)
        return {str(own): _item_of(text) for own, text in found}


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables in a file that is new. Raises sqlite3.Error, and SetupError for the file of another program."""
    # A write is on the disk before it is answered: others rely on a counter that a power failure would take back.
    connection.execute("PRAGMA synchronous = FULL")
    if _kind_of(connection) != (_APPLICATION_ID, _VERSION):
        with connection:
            # Of two processes that begin at once the second one waits here, and finds the tables.
            connection.execute("BEGIN IMMEDIATE")
            kind = _kind_of(connection)
            if kind == (0, 0) and connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                for statement in _SCHEMA:
                    connection.execute(statement)
            elif kind != (_APPLICATION_ID, _VERSION):
                whose = f"a newer pykcl (form {kind[1]})" if kind[0] == _APPLICATION_ID else "another program"
                raise SetupError(
                    f"The file {path} is of {whose}, and no lease table that this pykcl can use. Nothing was "
                    "changed in it. Do: name another file."
                )
    connection.execute("PRAGMA journal_mode = WAL")


def _kind_of(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the program that made the file, and the form that it has; two zeros for a new file."""
    kind, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    return kind, version


def _item_of(text: str) -> Item:
    item = read_json(text.encode())
    return with_bytes(item) if '"B' in text else item


def _key_in(params: Params, table: Table) -> str:
    is_whole = "Item" in params
    return key_of(params["Item" if is_whole else "Key"], table.key_name, whole_item=is_whole)


def _file_system_of(path: Path) -> str | None:
    """Return the kind of file system that a path lies on; None where this system does not say it."""
    try:
        lines = _MOUNTS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    mounted = [line.split()[1:3] for line in lines]
    above = {str(folder) for folder in path.absolute().parents}
    # The last one of a folder hides those before it.
    found = [(len(place), at, kind) for at, (place, kind) in enumerate(mounted) if place in above]
    return max(found)[2] if found else None
