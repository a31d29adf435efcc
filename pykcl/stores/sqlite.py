"""A lease table in an SQLite file, for the workers of one machine.

It has the methods of boto3's DynamoDB client that pykcl calls, and makes of each request what DynamoDB makes of it. So
the conditions, what a write without an answer means, and what shows that a table is another one are the same code for
both. A request is one transaction; SQLite locks the file against all other processes for as long as it takes.

The file is opened for each request. It has a rollback journal, and no write-ahead log: 1) a process copies the file, or
ends, and its locks on the log are gone; 2) the next one that closes the file takes nobody to be left, and deletes the
log; 3) a worker goes on writing into the log that has no name any more, and others take its leases. A journal is of one
transaction.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pykcl.aws.transport.table_requests import ITEM_JSON, with_bytes
from pykcl.errors import SetupError, TemporaryError
from pykcl.model.metered_json import read_json
from pykcl.runtime import NoForks, SystemRuntime
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
        self._place: tuple[int, int] | None = None
        # Most rows are as the scan before found them, and need not be parsed again.
        self._known: dict[str, dict[str, tuple[str, Item]]] = {}

    def __str__(self) -> str:
        return f"sqlite:{self.path}"

    # -- boto3's methods -----------------------------------------------------------------------------------------

    def create_table(self, **params: Any) -> dict[str, Any]:
        name = params["TableName"]
        with self._transaction("CreateTable", writes=True, may_make=True) as file:
            if self._found(file, name) is not None:
                raise aws_error("ResourceInUseException", f"Table already exists: {name}", "CreateTable")
            file.ask(
                "INSERT INTO tables VALUES (?, ?, ?)", name, self._runtime.token(), ITEM_JSON.encode(params)
            )
            found = self._found(file, name)
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
            table.rows = self._rows(file, table.name)
            return {**table.scan(params), **_ANSWERED}

    def query(self, **params: Any) -> dict[str, Any]:
        with self._table("Query", params) as (file, table):
            table.rows = self._rows(file, table.name)
            return {**table.query(params), **_ANSWERED}

    def get_item(self, **params: Any) -> dict[str, Any]:
        with self._table("GetItem", params) as (file, table):
            table.rows = self._row(file, table.name, _key_in(params, table))
            return {**table.get(params), **_ANSWERED}

    def put_item(self, **params: Any) -> dict[str, Any]:
        return self._write("PutItem", params)

    def update_item(self, **params: Any) -> dict[str, Any]:
        return self._write("UpdateItem", params)

    def delete_item(self, **params: Any) -> dict[str, Any]:
        return self._write("DeleteItem", params)

    # -- requests ------------------------------------------------------------------------------------------------

    def _write(self, operation: str, params: Params) -> dict[str, Any]:
        with self._table(operation, params, writes=True) as (file, table):
            key = _key_in(params, table)
            table.rows = self._row(file, table.name, key)
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
            table = self._found(file, params["TableName"])
            if table is None:
                raise aws_error("ResourceNotFoundException", "Requested resource not found", operation)
            yield file, table

    @contextmanager
    def _transaction(self, operation: str, *, writes: bool, may_make: bool = False) -> Iterator[_File]:
        """Do all or nothing of what is within. Raises SetupError, and TemporaryError, after which it may be both.

        Other threads have their turn while this one waits for another process: each waits as long as it may, and not
        for the others, too.
        """
        until = self._runtime.monotonic() + self.timeout
        has_begun = False
        try:
            while True:
                try:
                    with _UNFORKED.held(), self._opened(operation, may_make=may_make) as file:
                        file.begin(writes=writes)
                        has_begun = True
                        yield file
                        file.commit()
                        return
                except sqlite3.OperationalError as error:
                    if has_begun or _code_of(error) not in _LOCKED or self._runtime.monotonic() >= until:
                        raise
                self._runtime.event().wait(self._runtime.random().uniform(0.001, 0.01))
        except sqlite3.Error as error:
            failure = self._sorted(error)
        except OSError as error:
            failure = SetupError(f"The lease table {self.path} cannot be used: {error.strerror}. {_CHECK}")
        except InvalidRequestError as refusal:
            failure = aws_error("ValidationException", str(refusal), operation)
        raise failure

    @contextmanager
    def _opened(self, operation: str, *, may_make: bool) -> Iterator[_File]:
        """The file, opened for one request.

        One that another has taken the place of is gone: whoever goes on there knows of nothing that was done in this
        one. Only a start, which may make the table, uses what is there now.
        """
        found = _found_at(self.path)
        there = found and _place_of(found)
        if not may_make and (there is None or self._place not in (None, there)):
            raise aws_error("ResourceNotFoundException", "Requested resource not found", operation)
        if there is None or there != self._place:
            self._refuse_shared_files()
        file = _File(self.path, may_make=may_make)
        self._place = file.place
        try:
            yield file
        finally:
            file.close()

    def _refuse_shared_files(self) -> None:
        place, kind = _mount_of(self.path)
        if kind in _REMOTE:
            raise SetupError(
                f"The lease table {self.path} lies on a file system of another machine ({kind}), where the locks of "
                "SQLite do not hold: two workers could hold one lease. Do: name a file on a disk of this machine."
            )
        if place == os.path.realpath(self.path):
            raise SetupError(
                f"The lease table {self.path} is mounted by itself. Another container would keep another journal of "
                "it, and take half a write for whole. Do: mount its folder."
            )

    def _sorted(self, error: sqlite3.Error) -> Exception:
        code = _code_of(error)
        if code in _LOCKED:
            return TemporaryError(
                f"The lease table {self.path} is locked by another process. It is tried again. If that goes on: does "
                "one of them stand still, or has a tool the file open?"
            )
        said = f"The lease table {self.path} cannot be used: {error}."
        # As when the process has no descriptor left.
        may_open = code == sqlite3.SQLITE_CANTOPEN and all(
            os.access(path, os.R_OK | os.W_OK) for path in (self.path, self.path.parent)
        )
        if code in _NEVER and not may_open:
            return SetupError(f"{said} {_CHECK}")
        return TemporaryError(f"{said} It is tried again. If that goes on: is its disk full?")

    # -- rows ----------------------------------------------------------------------------------------------------

    def _found(self, file: _File, name: str) -> Table | None:
        """The table without its rows. One that was copied from another file has another identity."""
        found = file.ask("SELECT id, made_by FROM tables WHERE name = ?", name).fetchone()
        if found is None:
            return None
        device, number = file.place
        return Table(json.loads(found[1]), 0, f"{found[0]}-{device:x}-{number:x}")

    def _rows(self, file: _File, name: str) -> dict[str, Item]:
        """All rows of a table by key."""
        found = file.ask("SELECT key, item FROM leases WHERE name = ?", name).fetchall()
        items = {key: self._item(name, key, text) for key, text in found}
        self._known[name] = {key: (text, items[key]) for key, text in found}
        return items

    def _row(self, file: _File, name: str, key: str) -> dict[str, Item]:
        """The one row of that key; empty if there is none."""
        found = file.ask("SELECT item FROM leases WHERE name = ? AND key = ?", name, key).fetchone()
        return {} if found is None else {key: self._item(name, key, found[0])}

    def _item(self, name: str, key: str, text: str) -> Item:
        known = self._known.get(name, {}).get(key)
        if known is not None and known[0] == text:
            return known[1]
        item = read_json(text.encode())
        return with_bytes(item) if '"B' in text else item


_UNFORKED: Final = NoForks()
"""Held for each request: SQLite has locks of its own, which a process that is forked meanwhile would never get."""
_of_others: Final[list[sqlite3.Connection]] = []
"""Connections of the process that this one was forked from, in the middle of a request."""


class _File:
    """The file, opened for one request. place: device and number of the file that it is.

    SQLite keeps nothing of it from one request to the next. What a process knows of a file and of its locks is worth
    nothing after a fork, after `cp` has put a backup into the file, or after its program has closed the file elsewhere.

    Raises sqlite3.Error, OSError and SetupError.
    """

    def __init__(self, path: Path, *, may_make: bool) -> None:
        mode = "rwc" if may_make else "rw"
        self._process = os.getpid()
        self._connection = sqlite3.connect(
            f"{path.as_uri()}?mode={mode}", 0.0, isolation_level=None, uri=True
        )
        try:
            found = _found_at(path)
            if found is not None and found.st_nlink > 1:
                raise SetupError(
                    f"The lease table {path} is a file with {found.st_nlink} names (hard links). Each would have a "
                    "journal of its own. Do: keep one name."
                )
            self.place = _place_of(found) if found is not None else (0, 0)
            _prepare(self._connection, path)
        except BaseException:
            self._connection.close()
            raise

    def begin(self, *, writes: bool) -> None:
        # Whoever may begin to write may also commit: nobody reads meanwhile.
        self.ask("BEGIN EXCLUSIVE" if writes else "BEGIN")
        # A reading transaction has its lock from its first question on.
        self.ask("SELECT 1 FROM tables").fetchone()

    def commit(self) -> None:
        self.ask("COMMIT")

    def ask(self, statement: str, *values: str) -> sqlite3.Cursor:
        if self._process != os.getpid():
            raise TemporaryError(
                "The handler of a signal forked this process in the middle of a request to the lease table. The other "
                "process goes on with it; this one may not. Do: start a new program in the fork (subprocess)."
            )
        return self._connection.execute(statement, values)

    def close(self) -> None:
        """Close the file, and undo what was not committed."""
        if self._process == os.getpid():
            self._connection.close()
        else:
            # To undo it is up to the process that began it.
            _of_others.append(self._connection)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables in a file that is new. Raises sqlite3.Error, and SetupError for what is no lease table."""
    is_new = _is_new(connection, path)
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    if journal == "wal":
        raise SetupError(
            f"A tool has switched the lease table {path} to a write-ahead log. With one, two workers could hold one "
            f"lease. Do: stop the workers and the tool, and: sqlite3 {path} 'PRAGMA journal_mode = DELETE'"
        )
    # No power failure damages the file. It may undo the last write, and then ends all that rely on it, too.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    (journal,) = connection.execute("PRAGMA journal_mode = TRUNCATE").fetchone()
    if journal != "truncate":
        raise SetupError(
            f"The lease table {path} keeps a journal of the kind {journal!r}. Do: name another file."
        )
    if is_new:
        with connection:
            connection.execute("BEGIN EXCLUSIVE")
            # Of two processes that begin at once one waits, and finds the tables.
            if _is_new(connection, path):
                for statement in _SCHEMA:
                    connection.execute(statement)


def _is_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether nothing is in the file. Raises SetupError for what another program has made."""
    kind = _kind_of(connection)
    if kind == (_APPLICATION_ID, _VERSION):
        return False
    if kind == (0, 0) and connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
        return True
    whose = f"a newer pykcl (form {kind[1]})" if kind[0] == _APPLICATION_ID else "another program"
    raise SetupError(
        f"The file {path} is of {whose}, and no lease table that this pykcl can use. Nothing was changed in it. "
        "Do: name another file."
    )


def _kind_of(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the program that made the file, and the form that it has; two zeros for a new file."""
    kind, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    return kind, version


def _code_of(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _found_at(path: Path) -> os.stat_result | None:
    """Return the facts of a file; None: there is none. Raises OSError, and SetupError for what is no file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise SetupError(f"The lease table {path} is no file. Do: name one, such as {path / 'orders.db'}.")
    return found


def _place_of(found: os.stat_result) -> tuple[int, int]:
    """Return device and number of a file."""
    return found.st_dev, found.st_ino


def _key_in(params: Params, table: Table) -> str:
    is_whole = "Item" in params
    return key_of(params["Item" if is_whole else "Key"], table.key_name, whole_item=is_whole)


def _mount_of(path: Path) -> tuple[str | None, str | None]:
    """Return the place and the kind of the file system that a path lies on; None where this system does not say it."""
    try:
        lines = _MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None, None
    real = Path(os.path.realpath(path))
    above = {str(real), *map(str, real.parents)}
    mounted = [line.split(" ")[1:3] for line in lines]
    named = [(_OCTAL.sub(lambda code: chr(int(code[1], 8)), place), kind) for place, kind in mounted]
    # The last one of a folder hides those before it.
    found = [(len(place), at, place, kind) for at, (place, kind) in enumerate(named) if place in above]
    return max(found)[2:] if found else (None, None)
