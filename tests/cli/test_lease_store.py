"""`--lease-store`: workers whose leases are in an SQLite file, and the commands that read it."""

import os
import re
import signal
from pathlib import Path

import pytest
from service_kit import WRITES, Service, command, written_by

from pykcl.local.server import LocalAws

ORDERS = [f"order {number}" for number in range(60)]
SHARDS = ["000", "001", "002", "003"]
GUARD = 300


@pytest.fixture
def aws():
    with LocalAws() as found:
        found.kinesis.create_stream("orders", 4)
        for data in ORDERS:
            found.kinesis.put_record("orders", data.encode(), data)
        yield found


@pytest.fixture
def address(tmp_path):
    return f"sqlite:{tmp_path / 'orders.db'}"


@pytest.fixture
def start(tmp_path, aws, address):
    runs = []

    def start(*arguments):
        folder = tmp_path / str(len(runs))
        folder.mkdir()
        flags = ("--app", "orders-app", "--stream", "orders", "--start", "TRIM_HORIZON", "program:Orders")
        runs.append(
            Service(folder, aws, "run", *flags, *arguments, program=WRITES, PYKCL_LEASE_STORE=address)
        )
        return runs[-1]

    yield start
    for run in runs:
        run.end()


def asked(aws, address, *words):
    """(exit code, all output) with that lease store. A backup stays beside the file."""
    return command(
        aws, *words, folder=Path(address.removeprefix("sqlite:")).parent, PYKCL_LEASE_STORE=address
    )


def test_processes_share_the_leases_of_the_file_and_a_killed_one_is_replaced(start, aws, address, dynamodb):
    first, second = start("--option", "failover_time=1"), start("--option", "failover_time=1")
    for run in (first, second):
        run.until(lambda run=run: "fleet joined" in run.text, "the fleet")
        assert "leases are in a file: the workers of this machine share them, and no others" in run.text
    first.until(lambda: set(written_by(first, second)) == set(ORDERS), "all records")
    os.kill(first.process.pid, signal.SIGKILL)
    for data in ("late 1", "late 2", "late 3", "late 4"):
        aws.kinesis.put_record("orders", data.encode(), data)
    late = {"late 1", "late 2", "late 3", "late 4"}
    second.until(lambda: late <= set(written_by(first, second)), "the late records")
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(GUARD) == 0, second.text
    assert "orders-app" not in dynamodb.list_tables()["TableNames"]
    code, text = asked(aws, address, "leases", "list", "--app", "orders-app", "--stream", "orders")
    assert code == 0, text
    # The last lease of the killed one may not be taken yet.
    assert [
        word[:3] for word in re.findall(r"^(\d{3}) +(?:UNOWNED|STALE|EXPIRED)", text, re.MULTILINE)
    ] == SHARDS, text
    code, text = asked(aws, address, "lag", "--app", "orders-app", "--max-behind", "1h")
    assert code == 0, text
    assert re.findall(r"^(\d{3}) +\S+ +read ", text, re.MULTILINE) == SHARDS, text


def test_positions_move_from_one_store_to_another(start, aws, address, tmp_path):
    run = start()
    run.until(lambda: set(written_by(run)) == set(ORDERS), "all records")
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(GUARD) == 0
    export = tmp_path / "positions.json"
    code, text = asked(aws, address, "checkpoints", "export", "--app", "orders-app", "--file", str(export))
    assert code == 0, text
    other = f"sqlite:{tmp_path / 'other.db'}"
    # It makes the leases, which `reset` does not.
    new = start("--lease-store", other)
    new.until(lambda: new.text.count("lease taken") == len(SHARDS), "the leases")
    new.process.send_signal(signal.SIGTERM)
    assert new.process.wait(GUARD) == 0
    words = (
        "reset",
        "--app",
        "orders-app",
        "--from-file",
        str(export),
        "--positions-only",
        "--execute",
    )
    code, text = asked(aws, other, "checkpoints", *words)
    assert code == 0, text
    code, text = asked(aws, other, "checkpoints", "export", "--app", "orders-app")
    positions = re.findall(r'"checkpoint": "([^"]*)"', text)
    assert positions == re.findall(r'"checkpoint": "([^"]*)"', export.read_text())
    assert len(positions) == 4


@pytest.mark.parametrize("words", [
    ("doctor", "--app", "orders-app"),
    ("ui", "--app", "orders-app"),
    ("replay", "--app", "orders-b", "--stream", "orders", "--from", "TRIM_HORIZON", "--until", "now", "program:Orders"),
    ("run", "--app", "orders-b", "--stream", "orders", "--shadow", "orders-c"),
])  # fmt: skip
def test_what_needs_a_table_in_dynamodb_refuses_the_file(aws, address, words):
    code, text = asked(aws, address, *words)
    assert code == 2, text
    assert (
        f"reads no lease table but one in DynamoDB, and the lease store is {address}. Do: leave out --lease-store"
        in text
    )


def test_a_file_without_the_table_is_named(aws, tmp_path):
    code, text = asked(aws, f"sqlite:{tmp_path / 'nope.db'}", "leases", "list", "--app", "orders-app")
    assert code != 0
    assert f"There is no lease table 'orders-app' in the file {tmp_path / 'nope.db'}" in text
    assert not (tmp_path / "nope.db").exists()


def test_a_command_that_reads_no_lease_table_does_not_mind_the_variable(aws, address):
    code, text = asked(aws, address, "streams", "describe", "orders")
    assert code == 0, text


def test_an_address_of_no_store_is_refused_at_once(start):
    run = start("--lease-store", "postgresql://orders")
    assert run.process.wait(GUARD) == 78
    assert "The lease store 'postgresql://orders' is no address of one. Do: name an SQLite file" in run.text


def test_a_file_that_says_how_to_reach_dynamodb_is_refused_beside_a_lease_store(aws, address, tmp_path):
    file = tmp_path / "pykcl.toml"
    file.write_text('application = "orders-b"\nstream = "orders"\n[clients.dynamodb]\nregion = "eu-west-1"\n')
    code, text = asked(aws, address, "run", "--config", str(file), "program:Orders")
    assert code == 78, text
    assert f"[clients.dynamodb] and the lease store {address} both say where the leases are" in text
