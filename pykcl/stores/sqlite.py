"""A lease table in an SQLite file, for the workers of one machine.

It has the methods of boto3's DynamoDB client that pykcl calls, and makes of each request what DynamoDB makes of it. So
the conditions, what a write without an answer means, and what shows that a table is another one are the same code for
both. A request is one transaction; SQLite locks the file against all other processes for as long as it takes.

The rollback journal, not the write-ahead log: 1) a process is forked, copies the file, or ends, and its locks on the
log are gone; 2) the next one that closes the file takes nobody to be left, and deletes the log; 3) a worker goes on
writing into the log that has no name any more, and others take its leases. A journal is of one transaction.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from pykcl.aws.transport.table_requests import ITEM_JSON, with_bytes
from pykcl.errors import SetupError, TemporaryError
from pykcl.model.metered_json import read_json
from pykcl.runtime import SystemRuntime
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
_NEVER: Final = frozenset({
    sqlite3.SQLITE_AUTH, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
})  # fmt: skip
"""Codes of errors that no repetition helps against."""
_LOCKED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_SLICE: Final = 0.05
"""Seconds for which SQLite waits for the lock of another process, before other threads of this one have their turn."""
_REMOTE: Final = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fakeowner", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs",
    "fuse.mount-s3", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "smb3", "smbfs", "vboxsf", "virtiofs",
})  # fmt: skip
"""Names by which Linux mounts file systems of other machines; SQLite's locks do not hold there."""
_ANSWERED: Final[Mapping[str, Any]] = {
    "ResponseMetadata": {"HTTPStatusCode": 200, "RequestId": "sqlite", "RetryAttempts": 0}
}
_MOUNTS: Final = Path("/proc/self/mounts")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_CHECK: Final = "Do: check the file, its folder, and that this process may write both."


class SQLiteClient:
    """A client of DynamoDB whose tables are in a file. timeout: seconds for which a request waits for the file at most.

    Requests raise SetupError for a file that is not such a table or may not be written, TemporaryError while it is
    locked or its disk is full, and botocore's ClientError as DynamoDB answers. For any number of threads.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self.path, self.timeout = path, timeout
        self._runtime = SystemRuntime()
        self._lock = self._runtime.lock()
        self._file: _File | None = None
        _clients.add(self)

    def __str__(self) -> str:
        return f"sqlite:{self.path}"

    # -- boto3's methods -----------------------------------------------------------------------------------------

    def create_table(self, **params: Any) -> dict[str, Any]:
        name = params["TableName"]
        with self._transaction("CreateTable", may_make=True) as file:
            if file.table(name) is not None:
                raise aws_error("ResourceInUseException", f"Table already exists: {name}", "CreateTable")
            file.ask(
                "INSERT INTO tables VALUES (?, ?, ?)", name, self._runtime.token(), ITEM_JSON.encode(params)
            )
            found = file.table(name)
        return {"TableDescription": found.description() if found else {}, **_ANSWERED}

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
            table.rows = file.row(table.name, _key_in(params, table))
            return {**table.get(params), **_ANSWERED}

    def put_item(self, **params: Any) -> dict[str, Any]:
        return self._write("PutItem", params)

    def update_item(self, **params: Any) -> dict[str, Any]:
        return self._write("UpdateItem", params)

    def delete_item(self, **params: Any) -> dict[str, Any]:
        return self._write("DeleteItem", params)

    def close(self) -> None:
        """Close the file, which the next request opens again."""
        with self._lock:
            self._drop()

    # -- requests ------------------------------------------------------------------------------------------------

    def _write(self, operation: str, params: Params) -> dict[str, Any]:
        with self._table(operation, params, writes=True) as (file, table):
            key = _key_in(params, table)
            table.rows = file.row(table.name, key)
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
        """All or nothing of what is done within. Raises SetupError, and TemporaryError, after which it may be both.

        Other threads have their turn while this one waits for another process: each waits as long as it may, and not
        for the others, too. A commit that has to wait for readers keeps new ones out, so it need not begin anew.
        """
        until = self._runtime.monotonic() + self.timeout
        begin = partial(self._begin, operation, writes=writes, may_make=may_make)
        try:
            while True:
                with self._lock:
                    try:
                        if self._is_free(begin, until) and self._file is not None:
                            yield self._file
                            while not self._is_free(self._file.commit, until):
                                pass
                            return
                    except sqlite3.Error as error:
                        if _code_of(error) not in _LOCKED:
                            # Nothing is known of the transaction: the next request begins with the file.
                            self._drop()
                        raise
                    finally:
                        if self._file is not None:
                            self._file.roll_back()
                self._runtime.event().wait(_SLICE / 10)
        except sqlite3.Error as error:
            failure = self._sorted(error)
        except OSError as error:
            failure = SetupError(f"The lease table {self.path} cannot be used: {error.strerror}. {_CHECK}")
        except InvalidRequestError as refusal:
            failure = aws_error("ValidationException", str(refusal), operation)
        raise failure

    def _begin(self, operation: str, *, writes: bool, may_make: bool) -> None:
        self._opened(operation, may_make=may_make).begin(writes=writes)

    def _is_free(self, step: Callable[[], object], until: float) -> bool:
        """Do that; return False if another process has the file locked and time is left."""
        try:
            step()
        except sqlite3.OperationalError as error:
            if _code_of(error) not in _LOCKED or self._runtime.monotonic() >= until:
                raise
            return False
        return True

    def _opened(self, operation: str, *, may_make: bool) -> _File:
        """The file as this process has opened it.

        One that another has taken the place of is gone: SQLite would go on in a file that has no name any more, and
        whoever comes next would begin in another one. Only a start, which may make the table, opens what is there now.
        """
        there = _place_of(self.path)
        if self._file is not None and self._file.place == there:
            return self._file
        if (there is None or self._file is not None) and not may_make:
            raise aws_error("ResourceNotFoundException", "Requested resource not found", operation)
        self._drop()
        self._refuse_remote()
        self._file = _File(self.path, may_make=may_make)
        return self._file

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.connection.close()

    def _refuse_remote(self) -> None:
        kind = _file_system_of(self.path)
        if kind in _REMOTE:
            raise SetupError(
                f"The lease table {self.path} lies on a file system of another machine ({kind}), where the locks of "
                "SQLite do not hold: two workers could hold one lease. Do: name a file on a disk of this machine."
            )

    def _sorted(self, error: sqlite3.Error) -> Exception:
        code = _code_of(error)
        if code in _LOCKED:
            return TemporaryError(
                f"The lease table {self.path} was locked by another process for {self.timeout:g} s. It is tried again. "
                "If that goes on: does one of them stand still?"
            )
        said = f"The lease table {self.path} cannot be used: {error}."
        if code in _NEVER:
            return SetupError(f"{said} {_CHECK}")
        return TemporaryError(f"{said} It is tried again. If that goes on: is its disk full?")

    # -- forks ---------------------------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        """Close the file, between two requests: what SQLite knows of its locks is of one process."""
        self._lock.__enter__()
        self._drop()

    def _after_fork(self) -> None:
        self._lock.__exit__(None, None, None)


_clients: Final[weakref.WeakSet[SQLiteClient]] = weakref.WeakSet()
_forking: Final[list[SQLiteClient]] = []


def _before_fork() -> None:
    _forking[:] = _clients
    for client in _forking:
        client._before_fork()


def _after_fork() -> None:
    for client in reversed(_forking):
        client._after_fork()
    _forking.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class _File:
    """The file, opened. place: device and number of the file that it is. Used by one thread at a time.

    Raises sqlite3.Error, OSError and SetupError.
    """

    def __init__(self, path: Path, *, may_make: bool) -> None:
        mode = "rwc" if may_make else "rw"
        self.connection = sqlite3.connect(
            f"{path.as_uri()}?mode={mode}", _SLICE, isolation_level=None, check_same_thread=False, uri=True
        )
        try:
            _prepare(self.connection, path)
            self.place = _place_of(path)
        except BaseException:
            self.connection.close()
            raise
        # Most rows are as the scan before found them, and need neither be parsed nor measured again.
        self._tables: dict[str, tuple[tuple[str, str], Table]] = {}
        self._known: dict[str, dict[str, tuple[str, Item]]] = {}

    def begin(self, *, writes: bool) -> None:
        self.ask("BEGIN IMMEDIATE" if writes else "BEGIN")
        # A reading transaction has its lock from its first question on.
        self.ask("SELECT 1 FROM tables").fetchone()

    def commit(self) -> None:
        self.ask("COMMIT")

    def roll_back(self) -> None:
        """End a transaction that was not committed."""
        if self.connection.in_transaction:
            self.connection.rollback()

    def ask(self, statement: str, *values: str) -> sqlite3.Cursor:
        return self.connection.execute(statement, values)

    def table(self, name: str) -> Table | None:
        """The table without its rows. One that was copied from another file has another identity."""
        found = self.ask("SELECT id, made_by FROM tables WHERE name = ?", name).fetchone()
        if found is None:
            return None
        known, table = self._tables.get(name, (None, None))
        if table is None or known != found:
            device, number = self.place or (0, 0)
            table = Table(json.loads(found[1]), 0, f"{found[0]}-{device:x}-{number:x}")
            self._tables[name] = found, table
        return table

    def rows(self, name: str) -> dict[str, Item]:
        """All rows of a table by key."""
        found = self.ask("SELECT key, item FROM leases WHERE name = ?", name).fetchall()
        items = {key: self._item(name, key, text) for key, text in found}
        self._known[name] = {key: (text, items[key]) for key, text in found}
        return items

    def row(self, name: str, key: str) -> dict[str, Item]:
        """The one row of that key; empty if there is none."""
        found = self.ask("SELECT item FROM leases WHERE name = ? AND key = ?", name, key).fetchone()
        return {} if found is None else {key: self._item(name, key, found[0])}

    def _item(self, name: str, key: str, text: str) -> Item:
        known = self._known.get(name, {}).get(key)
        if known is not None and known[0] == text:
            return known[1]
        item = read_json(text.encode())
        return with_bytes(item) if '"B' in text else item


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables in a file that is new. Raises sqlite3.Error, and SetupError for the file of another program."""
    if (names := os.stat(path).st_nlink) > 1:
        raise SetupError(
            f"The lease table {path} is a file with {names} names (hard links). Each would have a journal of its own. "
            "Do: keep one name."
        )
    # A write is on the disk before it is answered: others rely on a counter that a power failure would take back.
    connection.execute("PRAGMA synchronous = EXTRA")
    connection.execute("PRAGMA fullfsync = ON")
    (journal,) = connection.execute("PRAGMA journal_mode = TRUNCATE").fetchone()
    if journal != "truncate":
        raise SetupError(
            f"The lease table {path} keeps a journal of the kind {journal!r}. Do: name another file."
        )
    if _kind_of(connection) == (_APPLICATION_ID, _VERSION):
        return
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
                f"The file {path} is of {whose}, and no lease table that this pykcl can use. Nothing was changed in "
                "it. Do: name another file."
            )


def _kind_of(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the program that made the file, and the form that it has; two zeros for a new file."""
    kind, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    return kind, version


def _code_of(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _place_of(path: Path) -> tuple[int, int] | None:
    """Return device and number of a file; None: there is none. Raises OSError."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise SetupError(f"The lease table {path} is no file. Do: name one, such as {path / 'orders.db'}.")
    return found.st_dev, found.st_ino


def _key_in(params: Params, table: Table) -> str:
    is_whole = "Item" in params
    return key_of(params["Item" if is_whole else "Key"], table.key_name, whole_item=is_whole)


def _file_system_of(path: Path) -> str | None:
    """Return the kind of file system that a path lies on; None where this system does not say it."""
    try:
        lines = _MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    real = Path(os.path.realpath(path))
    above = {str(real), *map(str, real.parents)}
    mounted = [line.split(" ")[1:3] for line in lines]
    named = [(_OCTAL.sub(lambda code: chr(int(code[1], 8)), place), kind) for place, kind in mounted]
    # The last one of a folder hides those before it.
    found = [(len(place), at, kind) for at, (place, kind) in enumerate(named) if place in above]
    return max(found)[2] if found else None
