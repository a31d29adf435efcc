"""`pykcl checkpoints`, as typed, against a local AWS."""

import csv
import io
import json
import logging
import re
import shlex
from pathlib import Path

import boto3
import pytest
from click.testing import CliRunner
from service_kit import create_lease_table

from pykcl.cli.local import local_environment
from pykcl.cli.main import main
from pykcl.cli.target import Target
from pykcl.errors import TemporaryError
from pykcl.local.server import LocalAws
from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.model.lease_item import parse_row, to_item
from pykcl.operate.aws.clients import OperatorClients
from pykcl.operate.checkpoints import search
from pykcl.worker.worker import Worker
from tests.java_compat.scenarios import java_3x

APP = "orders-app"
A, B = "shardId-000000000000", "shardId-000000000001"
START = 1_795_165_200_000
"""2026-11-20T09:00Z"""


class Clock:
    millis = START

    def __call__(self):
        return self.millis


@pytest.fixture(scope="module")
def clock():
    return Clock()


@pytest.fixture(scope="module")
def shared(clock):
    with LocalAws(now_millis=clock) as aws:
        yield aws


class Bench:
    """One application with a lease table and a stream of its own. records: by shard, (sequence number, arrival)."""

    def __init__(self, aws, clock, dynamodb, stream):
        self.aws, self.clock, self.dynamodb, self.stream = aws, clock, dynamodb, stream
        self.app = f"{stream}-app"
        aws.kinesis.create_stream(stream, 2)
        self.arn = aws.kinesis.describe(stream).arn
        create_lease_table(dynamodb, self.app)
        self.records = {A: [], B: []}

    def put(self, count, pause=1000):
        for number in range(count):
            self.clock.millis += pause
            key = 0 if number % 2 == 0 else 2**127
            put = self.aws.kinesis.put_record(self.stream, f"r{number}".encode(), "k", key)
            self.records[put.shard_id].append((put.sequence_number, self.clock.millis))

    def row(self, lease):
        self.dynamodb.put_item(TableName=self.app, Item=to_item(lease))

    def at(self, shard, index, **more):
        self.row(Lease(shard, Checkpoint(self.records[shard][index][0]), counter=5, **more))

    def leases(self):
        items = self.dynamodb.scan(TableName=self.app, ConsistentRead=True)["Items"]
        return {row.key: row for row in map(parse_row, items)}

    def run(self, *arguments):
        told = ("--application", self.app, "--stream", self.stream, "--failover", "1s")
        return CliRunner().invoke(main, ["checkpoints", arguments[0], *told, *arguments[1:]])


@pytest.fixture(scope="module")
def clients(shared):
    found = {
        service: boto3.client(
            service,
            endpoint_url=shared.url,
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )
        for service in ("dynamodb", "kinesis")
    }
    yield found
    for client in found.values():
        client.close()


@pytest.fixture
def dynamodb(shared, clients, monkeypatch, tmp_path):
    for name, value in {**local_environment(shared.url), "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    # This Kinesis has no limits; that the pace is kept is tested with a clock that jumps.
    monkeypatch.setattr(search, "SHARD_READ_INTERVAL", 0.0)
    # Opening a client takes longer than all that these commands ask it.
    monkeypatch.setattr(OperatorClients, "client", lambda _, service: clients[service])
    return clients["dynamodb"]


@pytest.fixture
def bench(shared, clock, dynamodb, request):
    found = Bench(shared, clock, dynamodb, f"s{abs(hash(request.node.name)) % 10**8}")
    found.put(10)
    found.at(A, 4)
    found.at(B, 4)
    clock.millis += 60_000
    return found


def iso(millis):
    from pykcl.times import format_time

    return format_time(millis)


def saved_files():
    return sorted(Path().glob("*.checkpoints.jsonl"))


def test_a_reset_shows_its_plan_and_writes_nothing(bench):
    before = bench.leases()
    at = bench.records[A][2][1]
    result = bench.run("reset", "--to-datetime", iso(at))
    assert result.exit_code == 0, result.output
    assert "Nothing was written. Do it with --execute" in result.output
    line = next(line for line in result.output.splitlines() if line.startswith("000 "))
    assert iso(at) in line
    assert "≈" in line
    current, new = line.split()[1:3]
    assert current != new, "neighbours are told apart"
    wide = bench.run("reset", "--to-datetime", iso(at), "-o", "wide").output
    assert f"{bench.records[A][4][0]}:0  {bench.records[A][1][0]}:0" in wide
    assert bench.run("reset", "--to-datetime", str(at), "-o", "wide").output == wide, "epoch milliseconds"
    assert bench.leases() == before
    assert saved_files() == []


def test_what_undoes_it_can_be_copied_whatever_the_backup_is_called(bench):
    options = ["--to-datetime", iso(bench.records[A][2][1]), "--execute", "--backup", "of today; 1.jsonl"]
    result = bench.run("reset", *options)
    assert result.exit_code == 0, result.output
    (undo,) = re.findall("^undo with: pykcl (.*)$", result.output, re.MULTILINE)
    words = shlex.split(undo)
    assert words == [
        "checkpoints",
        "reset",
        "--from-file",
        "of today; 1.jsonl",
        "--table",
        bench.app,
        "--execute",
    ]


def test_with_execute_it_saves_writes_and_can_be_undone_by_what_it_says(bench):
    before = bench.leases()
    result = bench.run("reset", "--to-datetime", iso(bench.records[A][2][1]), "--execute")
    assert result.exit_code == 0, result.output
    after = bench.leases()
    assert str(after[A].checkpoint) == f"{bench.records[A][1][0]}:0"
    assert (after[A].counter, after[A].owner) == (6, None)
    (saved,) = saved_files()
    assert saved.stat().st_mode & 0o077 == 0
    who = "arn:aws:iam::000000000000:user/local"
    moved = f"from={before[A].checkpoint} to={after[A].checkpoint} by={who} backup={saved}"
    assert re.search(
        rf"^20.* WARNING checkpoint moved: table={bench.app} shard={A} action=reset {re.escape(moved)}$",
        result.output,
        re.MULTILINE,
    )
    assert f"written: {A} (reset) {before[A].checkpoint} → {after[A].checkpoint}\n" in result.output
    assert f"done: 2 rows written and read again, by {who}\n" in result.output
    assert (
        f"undo with: pykcl checkpoints reset --from-file {saved} --table {bench.app} --execute"
        in result.output
    )
    undone = bench.run("reset", "--from-file", str(saved), "--execute")
    assert undone.exit_code == 0, undone.output
    assert {key: row.checkpoint for key, row in bench.leases().items()} == {
        key: row.checkpoint for key, row in before.items()
    }
    assert bench.leases()[A].counter == 7
    assert len(saved_files()) == 2, "what undoes it saves what it replaces, too"
    again = bench.run("reset", "--from-file", str(saved), "--execute")
    assert "nothing to do" in again.output


def test_a_caller_whom_nobody_can_tell_moves_checkpoints_all_the_same(bench, monkeypatch):
    def cannot(clients, service):
        raise TemporaryError("STS does not answer")

    monkeypatch.setattr("pykcl.operate.aws.iam.identity_of", cannot)
    result = bench.run("reset", "--to-earliest", "--execute")
    assert result.exit_code == 0, result.output
    assert f"by=unknown caller backup={saved_files()[0]}" in result.output
    assert "read again, by unknown caller" in result.output
    assert logging.getLogger("pykcl.audit").handlers == []


def test_it_is_refused_with_5_while_a_worker_renews_and_a_dry_run_says_so(bench, monkeypatch):
    bench.at(A, 4, owner="w1")
    scanner = Target.scanner

    def lively(target):
        """Before each scan the worker renews."""
        found = scanner(target)
        scan = found.scan

        def moving():
            bench.dynamodb.update_item(
                TableName=bench.app, Key={"leaseKey": {"S": A}}, UpdateExpression="ADD leaseCounter :one",
                ExpressionAttributeValues={":one": {"N": "1"}},
            )  # fmt: skip
            return scan()

        found.scan = moving
        return found

    monkeypatch.setattr(Target, "scanner", lively)
    refused = bench.run("reset", "--to-earliest", "--execute")
    assert refused.exit_code == 5
    assert "pykcl: refused: The fleet has not stopped" in refused.output
    assert "active: w1" in refused.output
    assert "--wait-idle" in refused.output
    assert saved_files() == []
    dry = bench.run("reset", "--to-earliest")
    assert dry.exit_code == 0
    assert "--execute would be refused now" in dry.output


def put_fleet_rows(bench, ago):
    """The rows of a fleet of KCL 3.x whose only worker reported so many seconds ago, by AWS' clock."""
    now = bench.clock.millis // 1000
    for item in (java_3x.migration_row(java_3x.NATIVE, "j1", 1), java_3x.leader_lock("j1", "v1")):
        bench.dynamodb.put_item(TableName=bench.app, Item=item)
    bench.dynamodb.update_item(**java_3x.worker_metrics(bench.app, "j1", now - ago))


def test_a_worker_that_reports_metrics_and_holds_no_lease_keeps_the_fleet_from_counting_as_stopped(bench):
    put_fleet_rows(bench, ago=30)
    refused = bench.run("reset", "--to-earliest", "--execute")
    assert refused.exit_code == 5
    assert "The fleet has not stopped: metrics reported by j1 (30s ago)" in refused.output
    dry = bench.run("reset", "--to-earliest")
    assert "--execute would be refused now: metrics reported by j1" in dry.output
    assert saved_files() == []


def test_export_reset_and_restore_leave_rows_of_kcl_3x_as_they_are(bench):
    put_fleet_rows(bench, ago=100)
    bench.at(B, 4, owner="j1", checkpoint_owner="p1", throughput="12.5", entity_type="LEASE")
    others = {key: row for key, row in bench.leases().items() if key not in (A, B)}
    assert set(others) == {"Leader", "Migration3.0", "j1"}
    exported = bench.run("export", "--file", "-")
    assert exported.exit_code == 0, exported.output
    assert not [key for key in others if key in exported.output]
    before = bench.leases()
    done = bench.run("reset", "--to-earliest", "--execute", "--backup", "saved")
    assert done.exit_code == 0, done.output
    after = bench.leases()
    assert (after[B].owner, after[B].checkpoint_owner) == (None, None)
    assert (after[B].throughput, after[B].entity_type) == ("12.5", "LEASE")
    restored = bench.run("reset", "--from-file", "saved", "--execute")
    assert restored.exit_code == 0, restored.output
    assert bench.leases()[B].checkpoint == before[B].checkpoint
    assert {key: row for key, row in bench.leases().items() if key not in (A, B)} == others


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["reset"], "No destination. Do: one of"),
        (["reset", "--to-earliest", "--to-latest"], "No destination. Do: one of"),
        (["reset", "--to-datetime", "2026-11-20T09:00"], "no time zone"),
        (["reset", "--to-datetime", "tomorrow"], "Write it like 2026-11-20T09:00Z"),
        (["reset", "--by-duration", "soon"], "is not a duration"),
        (["reset", "--to-sequence", "0"], "is not SHARD=NUMBER[:SUB]"),
        (["reset", "--to-sequence", "0=x"], "is not a position"),
        (["reset", "--to-sequence", "0=5", "--to-sequence", "0=6"], "one shard twice"),
        (["reset", "--to-sequence", "0=5", "--shard", "0"], "--shard goes with"),
        (["reset", "--from-file", __file__, "--shard", "0"], "--shard goes with"),
        (["reset", "--to-earliest", "--wait-idle", "5m"], "--wait-idle goes with --execute"),
        (["reset", "--to-earliest", "--shift-by", "1", "--shard", "0"], "No destination. Do: one of"),
        (["reset", "--shift-by", "1"], "--shard SHARD, once"),
        (["reset", "--shift-by", "1", "--shard", "0", "--shard", "1"], "--shard SHARD, once"),
        (["reset", "--shift-by", "0", "--shard", "0"], "--shift-by"),
        (["reset", "--to-earliest", "--show-data"], "--show-data goes with"),
        (["reset", "--to-earliest", "--positions-only"], "--positions-only goes with"),
        (["reset", "--from-file", "nowhere.jsonl"], "does not exist"),
    ],
)
def test_wrong_words_are_usage_errors(bench, arguments, told):
    result = bench.run(*arguments)
    assert result.exit_code == 2
    assert told in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["reset", "--to-datetime", "2036-01-01T00:00Z"], "is in the future"),
        (["reset", "--to-earliest", "--shard", "77"], "lists no shard shardId-000000000077"),
        (["reset", "--to-sequence", "0=5"], "5 is not a position of shardId-000000000000"),
    ],
)
def test_what_is_not_there_is_an_error(bench, arguments, told):
    result = bench.run(*arguments)
    assert result.exit_code == 1, result.output
    assert told in result.output


def test_one_shard_is_moved_and_shift_by_steps_over_what_it_lists(bench):
    number = bench.records[A][1][0]
    assert bench.run("reset", "--to-sequence", f"0={number}", "--execute").exit_code == 0
    assert bench.leases()[A].checkpoint == Checkpoint(number)
    assert bench.leases()[B].counter == 5, "not touched"
    result = bench.run("reset", "--shard", "0", "--shift-by", "2")
    listed = [line.split()[1] for line in result.output.splitlines() if line.startswith("skipped: ")]
    assert listed == [f"{bench.records[A][index][0]}:0" for index in (2, 3)]
    assert "b'r" not in result.output, "what records hold is shown only when asked for"
    assert "b'r4'" in bench.run("reset", "--shard", "0", "--shift-by", "2", "--show-data").output
    assert bench.run("reset", "--shard", "0", "--shift-by", "2", "--execute").exit_code == 0
    assert bench.leases()[A].checkpoint == Checkpoint(bench.records[A][3][0])
    refused = bench.run("reset", "--shard", "0", "--shift-by", "2")
    assert refused.exit_code == 5
    assert "only 1 of 2 records" in refused.output


def test_by_duration_to_earliest_and_shard(bench):
    at = bench.records[B][3][1]
    # Just after the record before it, so that a slow command still names this one.
    ago = (bench.clock.millis // 1000 * 1000 - at) / 1000 + 1.9
    plan = json.loads(bench.run("reset", "--by-duration", f"{ago:g}s", "--shard", "1", "-o", "json").stdout)
    (row,) = plan["rows"]
    assert (row["shard"], row["resumes_at"]) == (B, iso(at))
    assert row["new"] == f"{bench.records[B][2][0]}:0"
    assert bench.run("reset", "--to-earliest", "--execute").exit_code == 0
    assert {row.checkpoint for row in bench.leases().values()} == {AT_TRIM_HORIZON}


def test_to_latest_never_writes_the_word(bench):
    bench.at(A, 0)
    result = bench.run("reset", "--to-latest", "--execute")
    assert result.exit_code == 0, result.output
    assert "skips ≈" in result.output
    assert bench.leases()[A].checkpoint == Checkpoint(bench.records[A][4][0])


def test_positions_from_a_file(bench):
    number = bench.records[A][1][0]
    Path("positions.csv").write_text(f"0,{number}\n", "utf-8")
    assert bench.run("reset", "--from-file", "positions.csv", "--execute").exit_code == 0
    assert bench.leases()[A].checkpoint == Checkpoint(number)
    Path("bad.csv").write_text("0,LATEST\n", "utf-8")
    bad = bench.run("reset", "--from-file", "bad.csv")
    assert bad.exit_code == 1
    assert "bad.csv, line 1" in bad.output


def test_export_goes_to_standard_output_or_a_new_file_and_another_table_refuses_it(
    bench, shared, clock, dynamodb
):
    out = bench.run("export")
    assert [json.loads(line).get("shard") for line in out.stdout.splitlines()] == [None, A, B, None]
    assert bench.run("export", "--file", "now.jsonl").exit_code == 0
    assert Path("now.jsonl").read_text("utf-8").splitlines()[1:] == out.stdout.splitlines()[1:]
    again = bench.run("export", "--file", "now.jsonl")
    assert again.exit_code == 1
    assert "File exists" in again.output
    other = Bench(shared, clock, dynamodb, f"{bench.stream}x")
    other.row(Lease(A, AT_TRIM_HORIZON))
    refused = other.run("reset", "--from-file", "now.jsonl")
    assert refused.exit_code == 5
    assert "not of" in refused.output
    same_stream = ["--stream", bench.stream, "--from-file", "now.jsonl", "--positions-only"]
    taken = CliRunner().invoke(
        main, ["checkpoints", "reset", "--table", other.app, *same_stream, "-o", "json"]
    )
    assert {row["new"] for row in json.loads(taken.stdout)["rows"]} == {
        f"{bench.records[key][4][0]}:0" for key in (A, B)
    }
    Path("cut.jsonl").write_text("\n".join(out.stdout.splitlines()[:-1]), "utf-8")
    assert "truncated" in bench.run("reset", "--from-file", "cut.jsonl").output


def test_a_backup_of_an_earlier_stream_of_the_name_is_refused(bench, dynamodb):
    bench.run("export", "--file", "now.jsonl")
    bench.aws.kinesis.delete_stream(bench.stream)
    bench.clock.millis += 60_000
    bench.aws.kinesis.create_stream(bench.stream, 2)
    refused = bench.run("reset", "--from-file", "now.jsonl", "--execute")
    assert refused.exit_code == 5
    assert "an earlier stream of that name" in refused.output


def test_a_reset_is_not_begun_if_its_backup_cannot_be_written(bench):
    before = bench.leases()
    Path("there.jsonl").write_text("precious", "utf-8")
    for path in ("there.jsonl", "no-such-folder/x.jsonl"):
        result = bench.run("reset", "--to-earliest", "--execute", "--backup", path)
        assert result.exit_code == 1
        assert "Nothing was changed" in result.output
    assert Path("there.jsonl").read_text("utf-8") == "precious"
    assert bench.leases() == before


def test_show_tells_positions_owners_and_on_request_times(bench):
    bench.at(A, 2, owner="w\x1b[31m=1+1")
    result = bench.run("show", "--times")
    line = next(line for line in result.output.splitlines() if line.startswith("000 "))
    assert iso(bench.records[A][2][1]) in line
    assert "\x1b" not in result.output
    rows = list(csv.DictReader(io.StringIO(bench.run("show", "-o", "csv").stdout)))
    assert [row["checkpoint"] for row in rows] == [
        f"{bench.records[A][2][0]}:0",
        f"{bench.records[B][4][0]}:0",
    ]


def test_the_stream_is_known_from_the_rows_where_they_name_it(bench):
    arguments = ["checkpoints", "reset", "--application", bench.app, "--to-earliest"]
    bare = CliRunner().invoke(main, arguments)
    assert bare.exit_code == 2
    assert "Do: --stream NAME" in bare.output
    bench.row(Lease(A, AT_SHARD_END, metadata=PykclMetadata(stream_arn=bench.arn)))
    assert CliRunner().invoke(main, arguments).exit_code == 0


def test_a_missing_table_and_one_that_is_no_lease_table_are_told(bench):
    missing = CliRunner().invoke(main, ["checkpoints", "show", "--application", "nobody"])
    assert missing.exit_code == 1
    assert "'nobody' does not exist" in missing.output


def test_a_worker_resumes_exactly_there(bench):
    from pykcl.testing.fleet import Ledger, RecordingProcessor

    at = bench.records[A][3][1]
    assert bench.run("reset", "--to-datetime", iso(at), "--execute").exit_code == 0
    ledger = Ledger()
    worker = Worker(
        bench.app,
        stream=bench.stream,
        processor=lambda: RecordingProcessor("w", ledger),
        region="us-east-1",
        initial_position="TRIM_HORIZON",
        failover_time=2.0,
    )
    wanted = {number for records in bench.records.values() for number, arrived in records if arrived >= at}
    import time

    with worker:
        deadline = time.monotonic() + 300
        while len(ledger.delivered) < len(wanted) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert {record.sequence_number for _, record in ledger.delivered} == wanted
    first = next(record for _, record in ledger.delivered if record.shard_id == A)
    assert first.sequence_number == bench.records[A][3][0]


def test_the_page_names_every_way_to_say_where_to():
    from pykcl.cli.checkpoints import checkpoints

    page = (Path(__file__).parents[2] / "docs" / "concepts" / "checkpoints.md").read_text("utf-8")
    told = {line.split("`")[1].split()[0] for line in page.splitlines() if line.startswith("| `--")}
    options = {name for parameter in checkpoints.commands["reset"].params for name in parameter.opts}
    assert told == {
        name for name in options if name.startswith(("--to-", "--by-", "--from-", "--shift-", "--shard"))
    }
    assert all(f"pykcl checkpoints {name}" in page for name in checkpoints.commands)
