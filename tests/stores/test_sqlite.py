"""The lease table in an SQLite file: what the file, its lock and its processes do. Its requests: tests/conformance."""

import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pykcl import ConfigError, SetupError, SQLiteLeaseTable, TableGone, TemporaryError
from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.interfaces import Applied, Rejected, Unknown
from pykcl.model import lease_writes
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease
from pykcl.runtime import SystemRuntime
from pykcl.stores import lease_store_at, open_client, sqlite

KEY = "shardId-000000000000"
SOON = 300.0


def table_in(store, name="orders-app", **options):
    table = DynamoDBLeaseTable(store, name, SystemRuntime(), **options)
    table.prepare(create=True)
    return table


def written(table, write, seconds=SOON):
    return table.write(write, until=SystemRuntime().monotonic() + seconds)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "orders.db"


@pytest.fixture
def store(path):
    return open_client(SQLiteLeaseTable(path))


@pytest.fixture
def table(store):
    return table_in(store)


# -- the file --------------------------------------------------------------------------------------------------


def test_applications_in_one_file_do_not_see_each_other(store, table):
    other = table_in(store, "billing-app")
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    assert [row.key for row in table.scan().rows] == [KEY]
    assert other.scan().rows == ()
    assert other.read(KEY) is None


def test_what_was_written_is_there_for_the_next_process(path, table):
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"), pending=None)))
    again = DynamoDBLeaseTable(open_client(SQLiteLeaseTable(path)), "orders-app", SystemRuntime())
    assert again.prepare(create=False) is False
    assert again.read(KEY).checkpoint == Checkpoint("1")


def test_a_table_that_is_not_to_be_created_is_no_file_either(path, store):
    table = DynamoDBLeaseTable(store, "orders-app", SystemRuntime(), gone_after=0.0)
    with pytest.raises(SetupError, match="does not exist and create_table is off"):
        table.prepare(create=False)
    assert not path.exists()


def test_a_file_that_is_deleted_is_a_lost_table_and_no_write_goes_on_in_it(path, store):
    table = table_in(store, gone_after=0.0)
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    path.unlink()
    with pytest.raises(TableGone):
        table.scan()
    with pytest.raises(TableGone):
        written(table, lease_writes.take(Lease(KEY, Checkpoint("1")), "w1"))
    assert not path.exists()


def test_a_file_that_is_put_in_its_place_is_another_table(path, store, tmp_path):
    table = table_in(store, gone_after=0.0)
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    assert len(table.scan().rows) == 1
    other = open_client(SQLiteLeaseTable(tmp_path / "other.db"))
    written(table_in(other), lease_writes.create(Lease(KEY, Checkpoint("7"))))
    os.replace(tmp_path / "other.db", path)
    with pytest.raises(TableGone):
        table.scan()
    # Whoever starts again goes on with what is there now.
    assert table_in(open_client(SQLiteLeaseTable(path))).read(KEY).checkpoint == Checkpoint("7")


@pytest.mark.parametrize("make", [
    lambda path: sqlite3.connect(path).execute("CREATE TABLE customers (name TEXT)"),
    lambda path: path.write_text("Dear diary, " * 100),
    lambda path: sqlite3.connect(path).execute("PRAGMA application_id = 7"),
    lambda path: (
        table_in(open_client(SQLiteLeaseTable(path))),
        sqlite3.connect(path).execute("PRAGMA user_version = 2"),
    ),
], ids=["another database", "no database", "another program's", "a newer one"])  # fmt: skip
def test_the_file_of_somebody_else_is_refused_and_left_as_it_is(path, make):
    make(path)
    before = path.read_bytes()
    with pytest.raises(SetupError, match=r"orders\.db"):
        table_in(open_client(SQLiteLeaseTable(path)))
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(
        SetupError, match=r"nowhere/orders\.db cannot be used: unable to open .*Do: check the file"
    ):
        table_in(open_client(SQLiteLeaseTable(tmp_path / "nowhere" / "orders.db")))


@pytest.mark.parametrize("given", ["", ":memory:", "."])
def test_what_is_no_file_is_refused(given):
    with pytest.raises(ConfigError, match="is no file in which leases could stay"):
        SQLiteLeaseTable(given)


def test_a_network_file_system_is_refused(path, store, monkeypatch, tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/a / ext4 rw 0 0\nserver:/x {tmp_path.parent} nfs4 rw 0 0\n/dev/b {tmp_path} ext4 rw 0 0\n"
    )
    monkeypatch.setattr(sqlite, "_MOUNTS", mounts)
    table_in(store)
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n")
    with pytest.raises(SetupError, match=r"file system of another machine \(nfs4\)"):
        table_in(open_client(SQLiteLeaseTable(path)))
    mounts.unlink()
    table_in(open_client(SQLiteLeaseTable(path)))


@pytest.mark.parametrize(
    "text",
    [
        "orders.db",
        "sqlite:",
        "postgresql://u:p@h/db",
        "redis://h",
        "",
        "sqlite:///x.db",
        "sqlite:~/x.db",
        "sqlite:file:x",
    ],
)
def test_an_address_of_no_store_is_refused(text):
    with pytest.raises(
        ConfigError, match=r"is no address of one\. Do: name an SQLite file, such as sqlite:orders\.db"
    ):
        lease_store_at(text)


# -- its lock --------------------------------------------------------------------------------------------------


def test_a_file_that_another_process_has_locked_makes_a_write_unknown_and_then_goes_on(path):
    table = table_in(open_client(SQLiteLeaseTable(path, timeout=0.01)))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    create = lease_writes.create(Lease(KEY, Checkpoint("1")))
    answer = written(table, create, seconds=0.1)
    assert isinstance(answer, Unknown)
    assert "orders.db is locked by another process" in answer.cause
    # Who only reads is not stopped before it commits.
    assert table.read(KEY) is None
    other.execute("ROLLBACK")
    assert isinstance(written(table, create), Applied)


def test_a_full_disk_is_temporary_and_changes_nothing(path, store, table, monkeypatch):
    whole = sqlite._prepare

    def prepare(connection, path):
        whole(connection, path)
        connection.execute("PRAGMA max_page_count = 1")

    monkeypatch.setattr(sqlite, "_prepare", prepare)
    state = lease_writes.PendingCheckpoint(Checkpoint("2"), bytes(100_000))
    answer = written(table, lease_writes.create(Lease(KEY, Checkpoint("1"), pending=state)), seconds=0.1)
    assert isinstance(answer, Unknown)
    assert "is its disk full?" in answer.cause
    assert table.scan().rows == ()
    monkeypatch.undo()
    assert isinstance(written(table, lease_writes.create(Lease(KEY, Checkpoint("1")))), Applied)


def test_a_file_that_may_only_be_read_is_said(path, table, monkeypatch):
    whole = sqlite._prepare

    def prepare(connection, path):
        whole(connection, path)
        connection.execute("PRAGMA query_only = 1")

    monkeypatch.setattr(sqlite, "_prepare", prepare)
    with pytest.raises(SetupError, match="attempt to write a readonly database"):
        written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))


def test_threads_share_one_store(table):
    """Each adds one a hundred times, by a condition: none is lost, and none counts twice."""
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    taken, start = [], threading.Barrier(4)

    def work(worker):
        start.wait()
        for _ in range(25):
            row = table.read(KEY)
            taken.append(isinstance(written(table, lease_writes.take(row, worker)), Applied))

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.read(KEY).counter == sum(taken) > 0


# -- its processes ---------------------------------------------------------------------------------------------


def test_a_process_that_is_forked_opens_the_file_anew(table):
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    def child():
        answers.put(type(written(table, lease_writes.take(table.read(KEY), "child"))).__name__)

    process = context.Process(target=child)
    process.start()
    assert answers.get(timeout=SOON) == "Applied"
    process.join(SOON)
    assert isinstance(written(table, lease_writes.take(Lease(KEY, Checkpoint("1")), "parent")), Rejected)
    assert table.read(KEY).owner == "child"


CLAIMS = """
import os, sys
from pykcl import SQLiteLeaseTable
from pykcl.stores import open_client
from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.interfaces import Applied
from pykcl.model import lease_writes
from pykcl.runtime import SystemRuntime
path, me, mark = sys.argv[1:4]
runtime = SystemRuntime()
table = DynamoDBLeaseTable(open_client(SQLiteLeaseTable(path)), "orders-app", runtime)
until = runtime.monotonic() + 300
won = 0
while won < 20:
    row = table.read("shardId-000000000000")
    if row.owner is not None:
        continue
    answer = table.write(lease_writes.take(row, me), until=until)
    if isinstance(answer, Applied):
        # Fails if anybody else believes to have it.
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        os.unlink(mark)
        assert isinstance(table.write(lease_writes.release(answer.lease), until=until), Applied)
        won += 1
print(won)
"""


def test_of_several_processes_one_at_a_time_has_a_lease(path, table, tmp_path):
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMS, path, f"w{number}", tmp_path / "mark"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(3)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=SOON) for process in processes]
    assert [out.strip() for out, _ in outputs] == ["20"] * 3, outputs
    assert table.read(KEY).counter == 2 * 20 * 3


WRITES = """
import sys
from pykcl import SQLiteLeaseTable
from pykcl.stores import open_client
from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.model import lease_writes
from pykcl.model.checkpoint import Checkpoint
from pykcl.runtime import SystemRuntime
runtime = SystemRuntime()
table = DynamoDBLeaseTable(open_client(SQLiteLeaseTable(sys.argv[1])), "orders-app", runtime)
lease = table.write(lease_writes.take(table.read("shardId-000000000000"), "w"), until=runtime.monotonic() + 300).lease
while True:
    at = Checkpoint(str(int(lease.checkpoint.sequence_number) + 1))
    lease = table.write(lease_writes.checkpoint(lease, at), until=runtime.monotonic() + 300).lease
    print(lease.counter, at.sequence_number, flush=True)
"""


@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_a_process_that_is_killed_loses_no_write_that_was_answered(path, table, kills):
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    for number in range(kills):
        process = subprocess.Popen([sys.executable, "-c", WRITES, path], stdout=subprocess.PIPE, text=True)
        lines = [process.stdout.readline() for _ in range(3 + number % 7)]
        os.kill(process.pid, signal.SIGKILL)
        # The last one may be cut off.
        lines += process.stdout.read().splitlines(keepends=True)
        counter, checkpoint = map(int, next(line for line in reversed(lines) if line.endswith("\n")).split())
        process.wait(SOON)
        process.stdout.close()
        row = table.read(KEY)
        assert row.counter - counter in (0, 1)
        assert int(row.checkpoint.sequence_number) - checkpoint == row.counter - counter
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


# -- what would let two workers have one lease -----------------------------------------------------------------


def taken_by(path, worker):
    """Take the lease as a process of its own would, from the row as it is now; return the answer."""
    script = (
        "import sys; from pykcl import SQLiteLeaseTable; from pykcl.stores import open_client;"
        "from pykcl.aws.lease_table import DynamoDBLeaseTable;"
        "from pykcl.model import lease_writes; from pykcl.runtime import SystemRuntime; r = SystemRuntime();"
        "t = DynamoDBLeaseTable(open_client(SQLiteLeaseTable(sys.argv[1])), 'orders-app', r);"
        f"a = t.write(lease_writes.take(t.read('{KEY}'), sys.argv[2]), until=r.monotonic() + 300);"
        "print(type(a).__name__, a.lease.counter)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path, worker], capture_output=True, text=True, timeout=SOON, check=True
    )
    return done.stdout.strip()


def test_a_forked_process_and_those_beside_it_see_each_other_s_writes(path, table):
    """1) A process that has the file open is forked; 2) it ends; 3) another one opens and closes the file."""
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    context = multiprocessing.get_context("fork")
    go_on, answers = context.Event(), context.Queue()

    def child():
        answers.put(written(table, lease_writes.take(table.read(KEY), "child")).lease.counter)
        go_on.wait(SOON)
        answers.put(table.read(KEY).owner)

    process = context.Process(target=child)
    process.start()
    assert answers.get(timeout=SOON) == 1
    assert taken_by(path, "other") == "Applied 2"
    go_on.set()
    assert answers.get(timeout=SOON) == "other"
    process.join(SOON)


def test_a_process_may_copy_the_file_between_two_requests(path, table, tmp_path):
    """To close any descriptor of a file ends all locks that the process has on it, those of a request under way, too."""
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    shutil.copy(path, tmp_path / "copy.db")
    assert taken_by(path, "other") == "Applied 1"
    answer = written(table, lease_writes.take(Lease(KEY, Checkpoint("1")), "w1"))
    assert isinstance(answer, Rejected)
    assert answer.row.owner == "other"


def test_a_fork_in_the_middle_of_a_request_leaves_no_lock_behind(table):
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    over = threading.Event()

    def busy():
        while not over.is_set():
            written(table, lease_writes.take(table.read(KEY), "parent"))

    thread = threading.Thread(target=busy)
    thread.start()
    context = multiprocessing.get_context("fork")
    try:
        for _ in range(5):
            answers = context.Queue()
            process = context.Process(target=lambda answers=answers: answers.put(table.read(KEY).owner))
            process.start()
            assert answers.get(timeout=SOON) in (None, "parent")
            process.join(SOON)
    finally:
        over.set()
        thread.join()


def test_a_file_with_two_names_is_refused(path, store, tmp_path):
    table_in(store)
    os.link(path, tmp_path / "again.db")
    with pytest.raises(SetupError, match=r"is a file with 2 names \(hard links\)"):
        table_in(open_client(SQLiteLeaseTable(tmp_path / "again.db")))


def test_a_copy_that_takes_the_place_of_the_file_is_another_table(path, store, table, tmp_path):
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"), counter=7)))
    first = store.describe_table(TableName="orders-app")["Table"]["TableId"]
    shutil.copy(path, tmp_path / "copy.db")
    os.replace(tmp_path / "copy.db", path)
    again = open_client(SQLiteLeaseTable(path))
    assert again.describe_table(TableName="orders-app")["Table"]["TableId"] != first


def test_the_folder_of_the_program_may_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = table_in(open_client(SQLiteLeaseTable("orders.db")))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert table.scan().rows == ()
    assert not (tmp_path / "other" / "orders.db").exists()


def test_a_thread_that_waits_for_another_process_holds_up_no_other_thread(path, tmp_path):
    waits = open_client(SQLiteLeaseTable(path, timeout=SOON))
    table, key = table_in(waits), {"TableName": "orders-app", "Key": {"leaseKey": {"S": KEY}}}
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(waits.get_item(**key))) for _ in range(20)]
    for thread in threads:
        thread.start()
    beside = open_client(SQLiteLeaseTable(tmp_path / "other.db"))
    for _ in range(100):
        table_in(beside).read(KEY)
    assert answers == []
    other.execute("ROLLBACK")
    for thread in threads:
        thread.join(SOON)
    assert [answer["Item"]["leaseKey"] for answer in answers] == [{"S": KEY}] * 20


def test_threads_that_fork_at_once_wait_for_nobody_in_the_end(table):
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    context = multiprocessing.get_context("fork")

    def fork():
        for _ in range(20):
            process = context.Process(target=table.read, args=(KEY,))
            process.start()
            process.join(SOON)
            codes.append(process.exitcode)

    codes = []
    threads = [threading.Thread(target=fork, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert codes == [0] * 60
    assert table.read(KEY).counter == 0


def test_a_fork_by_the_handler_of_a_signal_within_a_request_leaves_it_to_the_parent(path, table, monkeypatch):
    """The child has a copy of the connection, and must neither use nor close it: it would undo the parent's write."""
    client = open_client(SQLiteLeaseTable(path, timeout=0.05))
    put = {"TableName": "orders-app", "Item": {"leaseKey": {"S": KEY}}}
    whole, children = sqlite.SQLiteClient._row, []

    def fork(*args):
        if not children:
            children.append(os.fork())
        return whole(*args)

    monkeypatch.setattr(sqlite.SQLiteClient, "_row", fork)
    failed = 0
    try:
        for _ in range(2):
            try:
                client.put_item(**put)
            except TemporaryError:
                failed += 1
    finally:
        if children == [0]:
            os._exit(failed)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 2, "to the child the file stays locked"
    assert failed == 0
    assert client.get_item(TableName="orders-app", Key=put["Item"])["Item"] == put["Item"]


def test_a_request_by_the_handler_of_a_signal_within_another_one_leaves_that_as_it_is(
    store, table, monkeypatch
):
    for key in (KEY, "shardId-000000000001"):
        written(table, lease_writes.create(Lease(key, Checkpoint("1"))))
    whole, within = sqlite.Table.get, []

    def ask(table, params):
        if not within:
            within.append(table)
            within.append(
                store.get_item(TableName="orders-app", Key={"leaseKey": {"S": "shardId-000000000001"}})
            )
        return whole(table, params)

    monkeypatch.setattr(sqlite.Table, "get", ask)
    answer = store.get_item(TableName="orders-app", Key={"leaseKey": {"S": KEY}})
    assert answer["Item"]["leaseKey"] == {"S": KEY}
    assert within[1]["Item"]["leaseKey"] == {"S": "shardId-000000000001"}


def test_a_file_that_a_tool_switches_to_a_write_ahead_log_is_refused(path, table):
    tool = sqlite3.connect(path)
    assert tool.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    with pytest.raises(SetupError, match="has switched the lease table"):
        written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    tool.execute("PRAGMA journal_mode = DELETE")
    assert isinstance(written(table, lease_writes.create(Lease(KEY, Checkpoint("1")))), Applied)


def test_a_backup_that_is_copied_into_the_file_is_seen(path, store, table, tmp_path):
    written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    shutil.copyfile(path, tmp_path / "backup.db")
    # Each has seen one write more than the other one knows of.
    other = open_client(SQLiteLeaseTable(tmp_path / "backup.db"))
    written(
        DynamoDBLeaseTable(other, "orders-app", SystemRuntime()), lease_writes.take(table.read(KEY), "backup")
    )
    written(table, lease_writes.take(table.read(KEY), "w1"))
    shutil.copyfile(tmp_path / "backup.db", path)
    assert table.read(KEY).owner == "backup"


def test_a_file_that_is_mounted_by_itself_is_refused(path, monkeypatch, tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\n/dev/b {path} ext4 rw 0 0\n")
    monkeypatch.setattr(sqlite, "_MOUNTS", mounts)
    with pytest.raises(SetupError, match="is mounted by itself"):
        table_in(open_client(SQLiteLeaseTable(path)))


def test_a_process_without_a_free_descriptor_tries_again(table, monkeypatch):
    def refuse(*_, **__):
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", refuse)
        answer = written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))), seconds=0.1)
    assert isinstance(answer, Unknown)
    assert isinstance(written(table, lease_writes.create(Lease(KEY, Checkpoint("1")))), Applied)


def test_what_breaks_a_request_off_breaks_no_later_one(store, table, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sqlite.SQLiteClient, "_row", interrupted)
        written(table, lease_writes.create(Lease(KEY, Checkpoint("1"))))
    assert isinstance(written(table, lease_writes.create(Lease(KEY, Checkpoint("1")))), Applied)


@pytest.mark.parametrize(("mounted", "path", "kind"), [
    ("/mnt/my\\040share", "/mnt/my share/orders.db", "nfs4"),
    ("/mnt/nfs", "/local/../mnt/nfs/orders.db", "nfs4"),
    ("/mnt/nfs/orders.db", "/mnt/nfs/orders.db", "nfs4"),
    ("/mnt/nfs", "/mnt/nfsother/orders.db", "ext4"),
])  # fmt: skip
def test_the_file_system_is_that_of_the_real_path(tmp_path, monkeypatch, mounted, path, kind):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/x {mounted} nfs4 rw 0 0\n")
    monkeypatch.setattr(sqlite, "_MOUNTS", mounts)
    assert sqlite._mount_of(Path(path))[1] == kind


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"file/orders\.db cannot be used: Not a directory"):
        table_in(open_client(SQLiteLeaseTable(tmp_path / "file" / "orders.db")))
