"""`pykcl leases`, `lag` and `streams describe --tree` against a local AWS: what they print, refuse and write."""

import csv
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pytest
from click.testing import CliRunner
from service_kit import create_lease_table, lead_to

from pykcl.cli.main import main
from pykcl.cli.target import complete_applications, complete_shards
from pykcl.local.server import LocalAws
from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, PykclMetadata, Standstill
from pykcl.model.lease_item import to_item
from tests.java_compat.scenarios import java_3x

APP = "orders-app"
EVIL = "=1+1\x1b]0;owned\x07"


def shard(number):
    return f"shardId-{number:012d}"


@pytest.fixture(scope="module")
def server():
    # A reshard is listed at once, however soon a command asks.
    with LocalAws(listing_lag=0) as aws:
        yield aws


@pytest.fixture
def aws(server, monkeypatch):
    """An empty local AWS with the stream orders of two shards and the lease table orders-app."""
    server._parts.forget()
    for view in server.kinesis.list_streams():
        server.kinesis.delete_stream(view.name)
    lead_to(monkeypatch, server)
    server.kinesis.create_stream("orders", 2)
    boto3.setup_default_session()
    client = boto3.client("dynamodb")
    create_lease_table(client)
    return client


def put(client, *leases):
    for lease in leases:
        client.put_item(TableName=APP, Item=to_item(lease))


def row(client, number):
    return client.get_item(TableName=APP, Key={"leaseKey": {"S": shard(number)}}).get("Item")


def pykcl(*arguments, code=0, **environment):
    found = CliRunner().invoke(main, list(arguments), env=environment)
    assert found.exit_code == code, found.output
    assert "Traceback" not in found.output
    return found.output


def listed(*arguments, **more):
    return pykcl("leases", "list", "--app", APP, "--no-sample", *arguments, **more)


FLEET = (
    Lease(
        shard(0),
        Checkpoint("4917", 3),
        owner="w1",
        counter=7,
        metadata=PykclMetadata(owner="w1", version="9"),
    ),
    Lease(shard(1), AT_TRIM_HORIZON),
)


def test_the_list_names_owner_kind_state_and_checkpoint(aws):
    put(aws, *FLEET)
    lines = listed().splitlines()
    assert lines[0].startswith(f"APPLICATION {APP}")
    assert lines[1].split() == ["SHARD", "STATE", "OWNER", "KIND", "CHECKPOINT", "COUNTER", "MOVED", "SWITCHES", "PARENTS"]  # fmt: skip
    assert lines[2].split() == ["000", "UNKNOWN", "w1", "pykcl", "4917:3", "7", "-", "0", "-"]
    assert lines[3].split()[:4] == ["001", "UNOWNED", "-", "-"]


def test_a_shard_that_is_read_by_enhanced_fan_out_has_its_consumer_and_a_silent_subscription_is_a_hint(aws):
    silent = Standstill(AT_TRIM_HORIZON, 0, cause="subscriptions say nothing")
    note = PykclMetadata(owner="w1", version="9", consumer="my-consumer", standstill=silent)
    put(aws, Lease(shard(0), AT_TRIM_HORIZON, owner="w1", metadata=note), FLEET[1])
    shown = listed()
    assert "CONSUMER" in shown.splitlines()[1]
    assert "my-consumer" in shown.splitlines()[2]
    assert "hint: 000 stands since 1970-01-01T00:00:00Z: subscriptions say nothing" in shown
    assert "my-consumer" in pykcl("leases", "describe", "0", "--app", APP, "--no-sample")
    # Another worker has it since, of which nothing is known.
    put(aws, Lease(shard(0), AT_TRIM_HORIZON, owner="java", metadata=note))
    assert "CONSUMER" not in listed()


def test_a_lease_that_stands_still_for_the_failover_time_is_stale(aws):
    put(aws, *FLEET)
    told = pykcl("leases", "list", "--app", APP, "--failover", "1s")
    assert re.search(r"^000 +STALE +w1", told, re.MULTILINE)
    assert "hint: 000 did not move for the failover time (1 s)" in told


@pytest.mark.parametrize(
    "command", [["leases", "list"], ["leases", "describe", "0"], ["streams", "describe", "orders", "--tree"]]
)
def test_a_command_that_waits_says_so_on_standard_error(aws, command):
    put(aws, *FLEET)
    done = CliRunner().invoke(main, [*command, "--app", APP, "--failover", "1s"])
    assert done.exit_code == 0
    told = "pykcl: scanning again in 0.6s to see which counters move; --no-sample does not wait"
    assert done.stderr.count(told) == 1
    assert "scanning again" not in done.stdout
    done = CliRunner().invoke(main, [*command, "--app", APP, "--no-sample"])
    assert done.stderr == ""


def test_where_nobody_owns_a_lease_nothing_is_waited_for(aws):
    put(aws, Lease(shard(1), AT_TRIM_HORIZON))
    assert CliRunner().invoke(main, ["leases", "list", "--app", APP]).stderr == ""


def test_json_jsonl_and_csv_hold_the_same_rows(aws):
    put(aws, *FLEET)
    rows = json.loads(listed("-o", "json"))["rows"]
    assert [json.loads(line) for line in listed("-o", "jsonl").splitlines()] == rows
    table = list(csv.DictReader(io.StringIO(listed("-o", "csv"))))
    assert [one["lease_key"] for one in table] == [one["lease_key"] for one in rows] == [shard(0), shard(1)]


@pytest.mark.parametrize("form", ["table", "wide", "json", "jsonl", "csv"])
def test_a_hostile_owner_is_inert_everywhere(aws, form):
    put(aws, Lease(shard(0), AT_TRIM_HORIZON, owner=EVIL))
    for told in (
        listed("-o", form),
        pykcl("streams", "describe", "--tree", "--app", APP, "--no-sample", "-o", form),
    ):
        assert "\x1b" not in told
        assert "\x07" not in told
        assert "owned" in told
    if form == "csv":
        (found,) = csv.DictReader(io.StringIO(listed("-o", "csv")))
        assert found["owner"].startswith("'=")


def test_a_hostile_owner_is_inert_where_one_lease_is_shown(aws):
    put(aws, Lease(shard(0), AT_TRIM_HORIZON, owner=EVIL))
    assert "\x1b" not in pykcl("leases", "describe", "0", "--app", APP, "--no-sample")
    assert "\x1b" not in pykcl("leases", "release", "0", "--app", APP)


def test_forty_columns_are_enough(aws):
    put(aws, *FLEET, Lease(shard(2), AT_TRIM_HORIZON, owner="w" * 200))
    told = [line for line in listed(COLUMNS="40").splitlines() if not line.startswith("hint:")]
    assert max(map(len, told)) <= 40
    tree = pykcl(
        "streams", "describe", "orders", "--tree", "--app", APP, "--no-sample", COLUMNS="40"
    ).splitlines()
    assert max(len(line) for line in tree if not line.startswith("hint:")) <= 40


def put_native_fleet(client):
    """A leader, a pykcl worker, a hand-over between the two, and a guest."""
    note = PykclMetadata(owner="p1", version="9")
    put(
        client,
        Lease(shard(0), AT_TRIM_HORIZON, owner="j1", throughput="120.5"),
        Lease(shard(1), AT_TRIM_HORIZON, owner="j1", checkpoint_owner="p1", metadata=note),
        Lease(shard(2), AT_TRIM_HORIZON, owner="guest"),
    )
    now = int(time.time())
    for item in (java_3x.migration_row(java_3x.NATIVE, "j1", now * 1000), java_3x.leader_lock("j1", "v1")):
        client.put_item(TableName=APP, Item=item)
    for worker in ("j1", "p1"):
        client.update_item(**java_3x.worker_metrics(APP, worker, now))


def test_a_fleet_of_3x_has_its_leader_and_members_below_the_leases(aws):
    put_native_fleet(aws)
    leases, _, fleet = listed().partition("\n\n")
    assert leases.splitlines()[1].split()[-3:] == ["NEXT", "OWNER", "KIB/S"]
    assert [line.split()[-2:] for line in leases.splitlines()[2:]] == [
        ["-", "120.5"],
        ["j1", "-"],
        ["-", "-"],
    ]
    lines = fleet.splitlines()
    assert lines[0] == "CLIENT VERSION CLIENT_VERSION_3X  LEADER j1  MEMBERS 2"
    assert lines[1].split() == [
        "WORKER",
        "KIND",
        "LEASES",
        "KIB/S",
        "REPORTED",
        "METRICS",
        "STANDING",
        "LEADS",
    ]
    assert lines[2].split() == ["guest", "unknown", "1", "-", "never", "-", "no", "report", "-"]
    assert lines[3].split()[:4] == ["j1", "Java", "1", "120.5"]
    assert lines[3].split()[-4:] == ["none", "reported", "member", "yes"]
    assert lines[4].split()[:3] == ["p1", "pykcl", "1"]
    assert "FOREIGN" not in leases.partition("\n")[2]


def test_rows_of_3x_are_listed_where_they_are_asked_for_and_in_every_other_format(aws):
    put_native_fleet(aws)
    keys = {"Leader", "Migration3.0", "j1", "p1"}
    assert {line.split()[0] for line in listed("--state", "FOREIGN").splitlines()[2:6]} == keys
    found = json.loads(listed("-o", "json"))
    assert {one["lease_key"] for one in found["rows"] if one["state"] == "FOREIGN"} == keys
    assert found["fleet"]["leader"]["owner"] == "j1"
    assert [one["worker"] for one in found["fleet"]["members"]] == ["guest", "j1", "p1"]
    assert "LEADER" in listed("-o", "wide")
    assert "members" not in listed("-o", "csv")


def test_without_any_row_of_3x_there_is_no_fleet_section(aws):
    put(aws, *FLEET)
    assert "fleet" not in json.loads(listed("-o", "json"))
    assert "CLIENT VERSION" not in listed()


def test_filters_by_owner_and_state(aws):
    put(aws, *FLEET)
    assert [one["shard"] for one in json.loads(listed("-o", "json", "--owner", "w"))["rows"]] == [shard(0)]
    assert [one["shard"] for one in json.loads(listed("-o", "json", "--state", "unowned"))["rows"]] == [
        shard(1)
    ]
    assert "none of ACTIVE" in listed("--state", "BUSY", code=2)


def test_an_empty_table_says_so(aws):
    assert "hint: The table has no rows" in listed()


def test_describe_takes_a_number_the_end_of_a_key_or_the_key(aws):
    put(aws, *FLEET)
    for name in ("0", "000", "000000000000", shard(0)):
        told = pykcl("leases", "describe", name, "--app", APP, "--no-sample")
        assert re.search(r"checkpoint +4917:3", told)
        assert re.search(r"owner's kind +pykcl: its note", told)
    assert "There is no lease '7'" in pykcl("leases", "describe", "7", "--app", APP, code=2)
    put(aws, Lease("other-shardId-000000000000", AT_TRIM_HORIZON))
    assert "end of 2 lease keys" in pykcl("leases", "describe", "0", "--app", APP, code=2)


# -- what is refused -------------------------------------------------------------------------------------------


def test_without_an_application_it_says_how_to_name_one(aws):
    assert "--application NAME" in pykcl("leases", "list", code=2)
    assert "--stream NAME" in pykcl("leases", "prune", "--app", APP, code=2)
    assert "--application NAME" in pykcl("streams", "describe", "--tree", code=2)
    assert "streams describe NAME" in pykcl("streams", "describe", code=2)


def test_the_environment_and_files_name_it_too(aws, tmp_path):
    put(aws, *FLEET)
    assert APP in pykcl("leases", "list", "--no-sample", PYKCL_APPLICATION=APP)
    toml = tmp_path / "pykcl.toml"
    toml.write_text(f'application = "{APP}"\nstream = "orders"\nfailover_time = 1.0\n')
    told = pykcl("leases", "list", "-c", str(toml))
    assert "failover time (1 s)" in told
    assert "STREAM orders" in told
    properties = tmp_path / "app.properties"
    properties.write_text(
        f"applicationName = {APP}\nstreamName = orders\nexecutableName = x\nAWSCredentialsProvider = DefaultCredentialsProvider\n"
        "failoverTimeMillis = 1000\nregionName = us-east-1\n"
    )
    assert "failover time (1 s)" in pykcl("leases", "list", "-p", str(properties))
    assert "Use one of them" in pykcl("leases", "list", "-p", str(properties), "-c", str(toml), code=2)


def test_a_missing_table_and_one_of_another_shape_are_told_apart(aws):
    assert "There is no lease table 'nowhere'" in pykcl("leases", "list", "--app", "nowhere", code=1)
    create_lease_table(aws, "invoices", key="id")
    for verb in (
        ["leases", "list"],
        ["lag", "--stream", "orders"],
        ["streams", "describe", "--tree"],
        ["leases", "release", "0"],
    ):
        assert "is not a lease table" in pykcl(*verb, "--app", "invoices", code=1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["leases", "list", "--failover", "soon"],
        ["leases", "list", "--failover", "0.1s"],
        ["leases", "list", "--watch=never"],
        ["leases", "list", "--sample", "5s", "--no-sample"],
        ["leases", "list", "-o", "xml"],
        ["streams", "describe", "orders", "--hide-ended"],
        ["streams", "describe", "orders", "--stream", "orders", "--tree"],
        ["lag", "--max-behind", "-5s"],
        ["lag", "--source", "guesses"],
        ["lag", "--source", "status"],
        ["lag", "--status-url", "http://127.0.0.1:9"],
        ["lag", "--source", "cloudwatch", "--status-token-file", "token"],
        ["lag", "--source", "status", "--status-url", "http://127.0.0.1:9", "--namespace", "orders"],
    ],
)
def test_bad_options_are_usage_errors(aws, arguments):
    pykcl(*arguments, "--app", APP, code=2)


def test_an_unknown_pykcl_variable_is_told(aws):
    assert "names no option" in pykcl("leases", "list", "--app", APP, PYKCL_STREEM="orders", code=1)


# -- release and prune -----------------------------------------------------------------------------------------


def test_release_shows_first_and_writes_only_with_execute(aws):
    put(aws, *FLEET)
    before = row(aws, 0)
    told = pykcl("leases", "release", "0", "--app", APP)
    assert "PLAN (nothing written)" in told
    assert "only if     counter is 7 and owner is w1" in told
    assert row(aws, 0) == before
    told = pykcl("leases", "release", "0", "--app", APP, "--execute")
    assert "RELEASED  read again: no owner, counter 8" in told
    after = row(aws, 0)
    assert after.pop("leaseCounter") == {"N": "8"}
    assert {**after, "leaseOwner": {"S": "w1"}, "leaseCounter": {"N": "7"}} == before
    assert "has no owner" in pykcl("leases", "release", "0", "--app", APP, "--execute", code=5)


def test_prune_shows_first_and_deletes_only_with_execute(aws, server):
    server.kinesis.split("orders", shard(0))
    put(
        aws,
        Lease(shard(0), AT_SHARD_END, counter=9, children=(shard(2), shard(3))),
        Lease(shard(1), AT_TRIM_HORIZON, owner="w1"),
        *(Lease(shard(number), Checkpoint("5000"), owner="w1", parents=(shard(0),)) for number in (2, 3)),
    )
    told = pykcl("leases", "prune", "--app", APP, "--stream", "orders")
    assert re.search(r"^000 .*every child has been started", told, re.MULTILINE)
    assert "DELETE 1  KEEP 3  WRITTEN nothing" in told
    assert row(aws, 0) is not None
    assert "deleted    shardId-000000000000" in pykcl(
        "leases", "prune", "--app", APP, "--stream", "orders", "--execute"
    )
    assert row(aws, 0) is None
    assert row(aws, 1) is not None
    assert "nothing to delete" in pykcl("leases", "prune", "--app", APP, "--stream", "orders", "--execute")


# -- lag and lineage -------------------------------------------------------------------------------------------


def test_prune_deletes_no_row_of_kcl_3x_not_even_one_with_the_key_of_a_shard(aws, server):
    put_native_fleet(aws)
    # A Java worker called like a shard that Kinesis has dropped: its metrics are where a lease would be.
    aws.update_item(**java_3x.worker_metrics(APP, shard(77), 1))
    # An ended lease that keeps its owner, as in this fleet, and whose children have started.
    server.kinesis.split("orders", shard(0))
    put(
        aws,
        Lease(shard(0), AT_SHARD_END, owner="j1", counter=9, children=(shard(2), shard(3))),
        *(Lease(shard(number), Checkpoint("5000"), owner="j1", parents=(shard(0),)) for number in (2, 3)),
    )
    before = {row["leaseKey"]["S"] for row in aws.scan(TableName=APP)["Items"]}
    pykcl("leases", "prune", "--app", APP, "--stream", "orders", "--execute")
    assert before - {row["leaseKey"]["S"] for row in aws.scan(TableName=APP)["Items"]} == {shard(0)}
    assert "is a row of WORKER_METRIC_STATS" in pykcl(
        "leases", "release", shard(77), "--app", APP, "--execute", code=5
    )


def test_lag_is_zero_at_the_tip_and_a_breach_exits_with_3(aws, server):
    put(aws, *(Lease(shard(number), AT_TRIM_HORIZON, owner="w1") for number in (0, 1)))
    told = pykcl("lag", "--app", APP, "--stream", "orders", "--max-behind", "60s")
    assert "BEHIND 0.0s" in told
    assert "1 of the 5 GetRecords calls a second" in told
    server.kinesis.put_record("orders", b"x", "key")
    assert "1 of 2 shards are more than 0.0s behind" in lag_beyond_zero()


def lag_beyond_zero():
    """The output of `lag --max-behind 0s` once that is exceeded."""
    deadline = time.monotonic() + 300
    while True:
        # Kinesis says its time in whole seconds, so the record may seem to have arrived just now.
        found = CliRunner().invoke(main, ["lag", "--app", APP, "--stream", "orders", "--max-behind", "0s"])
        if found.exit_code == 3 or time.monotonic() > deadline:
            break
    assert found.exit_code == 3
    return found.output


def test_a_shard_without_a_lease_is_behind_and_listed(aws, server):
    """Its parent was read, and the end of that cannot be written: all the rows look healthy."""
    last = server.kinesis.put_record("orders", b"x", "key", 0).sequence_number
    server.kinesis.split("orders", shard(0))
    server.kinesis.put_record("orders", b"x", "key", 0)
    put(aws, Lease(shard(0), Checkpoint(last), owner="w1"), Lease(shard(1), AT_TRIM_HORIZON, owner="w1"))
    asked = ("--app", APP, "--stream", "orders")
    found = CliRunner().invoke(main, ["lag", *asked, "-o", "json"])
    assert found.exit_code == 0
    rows = {row["shard"]: row for row in json.loads(found.output)["rows"]}
    assert [rows[shard(number)]["verdict"] for number in (0, 1, 2, 3)] == [
        "read",
        "read",
        "no lease",
        "no lease",
    ]
    assert "its end is not written" in rows[shard(2)]["why"]
    assert "1 of 4 shards are more than 0.0s behind" in lag_beyond_zero()
    assert f"002 has no lease: waits for the end of {shard(0)}" in pykcl("lag", *asked)
    told = pykcl("leases", "list", *asked, "--no-sample")
    assert "2 UNKNOWN, 2 NO LEASE" in told
    assert re.search(r"^002 +NO LEASE .* 000$", told, re.MULTILINE)
    assert "hint: 002, 003 have no lease. Nobody can read that before 000 has ended." in told


def test_a_shard_that_stands_on_a_bad_record_has_that_verdict_and_the_cause(aws, server):
    first = Checkpoint(server.kinesis.put_record("orders", b"x", "key", 0).sequence_number)
    server.kinesis.put_record("orders", b"bad", "key", 0)
    cause = {"handed_back": 2, "records": 1, "code": "E12", "cause": "process_records raised KeyError"}
    notes = [
        PykclMetadata(owner="w1", version="9", standstill=Standstill(at, 1_790_000_000_000, **cause))
        for at in (first, Checkpoint("4917"))
    ]
    # The note of the other row is of a place that was left since.
    put(aws, Lease(shard(0), first, owner="w1", metadata=notes[0]))
    put(aws, Lease(shard(1), AT_TRIM_HORIZON, owner="w1", metadata=notes[1]))
    asked = ("lag", "--app", APP, "--stream", "orders")
    rows = {row["shard"]: row for row in json.loads(pykcl(*asked, "-o", "json"))["rows"]}
    assert [rows[shard(number)]["verdict"] for number in (0, 1)] == ["standing", "read"]
    assert rows[shard(0)]["behind_seconds"] is not None, "it is read from Kinesis all the same"
    why = (
        "stands since 2026-09-21T14:13:20Z: process_records raised KeyError over 1 record (E12), "
        "handed back 2 times"
    )
    assert rows[shard(0)]["why"] == why
    told = pykcl(*asked)
    assert re.search(r"^000 .* standing +w1", told, re.MULTILINE)
    assert f"hint: 000 {why}" in told


def test_leases_are_listed_where_the_shards_cannot_be(aws):
    put(aws, *FLEET)
    told = pykcl("leases", "list", "--app", APP, "--stream", "nowhere", "--no-sample")
    assert "Shards without a lease are not shown: " in told
    assert re.search(r"^000 +UNKNOWN +w1", told, re.MULTILINE)


def test_lag_asks_for_the_stream_where_the_table_does_not_tell(aws):
    put(aws, *FLEET)
    assert "Do: --stream NAME" in pykcl("lag", "--app", APP, code=1)


def test_a_lag_nobody_can_tell_is_no_success(aws):
    put(aws, Lease(shard(77), AT_TRIM_HORIZON, owner="w1"))
    told = pykcl("lag", "--app", APP, "--stream", "orders", "--max-behind", "1h", code=1)
    assert "077: unknown. Kinesis does not know the shard" in told


TOKEN = "a-token-of-some-length"


@pytest.fixture
def status_of_w1():
    """A worker w1 that says how far behind two shards are, to who has the token."""
    leases = [
        {"shard": shard(0), "millis_behind_latest": 4000, "lag_age": 0.0},
        {"shard": shard(1), "millis_behind_latest": 90_000, "lag_age": 0.0},
    ]
    body = json.dumps({"ready": True, "worker": {"worker_id": "w1", "state": "running", "leases": leases}})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            known = self.headers.get("Authorization") == f"Bearer {TOKEN}" and self.path == "/status"
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(body.encode() if known else b"")

        def log_message(self, *args):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_lag_is_told_by_the_workers_to_who_has_their_token(aws, server, status_of_w1, tmp_path):
    put(aws, *(Lease(shard(number), AT_TRIM_HORIZON, owner="w1") for number in (0, 1)))
    before = len(list(server.requests))
    asked = ("lag", "--app", APP, "--source", "status", "--status-url", status_of_w1)
    told = pykcl(*asked, "--max-behind", "60s", code=3, PYKCL_HTTP_TOKEN=TOKEN)
    assert "BEHIND 1m30s" in told
    assert "SOURCE status" in told
    assert "1 of 2 shards are more than 1m00s behind" in told
    assert "nothing at AWS" in told
    (tmp_path / "token").write_text(TOKEN)
    os.chmod(tmp_path / "token", 0o600)
    found = json.loads(pykcl(*asked, "-o", "json", "--status-token-file", str(tmp_path / "token")))
    assert [(row["behind_seconds"], row["verdict"]) for row in found["rows"]] == [
        (4.0, "reported"),
        (90.0, "reported"),
    ]
    assert found["source"] == "status"
    assert {one.service for one in list(server.requests)[before:]} == {"dynamodb"}, "Kinesis is not asked"
    refused = pykcl(*asked, code=1)
    assert "its token is another one" in refused
    put(aws, Lease(shard(1), AT_TRIM_HORIZON, owner="w2"))
    assert "001: unknown. its owner is not among the workers that answer" in pykcl(
        *asked, "--max-behind", "60s", code=1, PYKCL_HTTP_TOKEN=TOKEN
    )


def test_lag_is_read_back_from_cloudwatch_under_the_names_of_kcl(aws):
    from pykcl.aws.cloudwatch import CloudWatchSender
    from pykcl.metrics.catalog import MILLIS_BEHIND_LATEST
    from pykcl.metrics.cloudwatch import StatisticSet

    put(aws, *(Lease(shard(number), AT_TRIM_HORIZON, owner="w1") for number in (0, 1)))
    asked = ("lag", "--app", APP, "--source", "cloudwatch")
    assert "no MillisBehindLatest of the last ten minutes in the namespace 'orders-app'" in pykcl(
        *asked, code=1
    )
    # Before anything was sent: the local CloudWatch does not tell namespaces apart.
    assert "namespace 'elsewhere'" in pykcl(*asked, "--namespace", "elsewhere", code=1)
    sender = CloudWatchSender(boto3.client("cloudwatch"), APP, "w1", ("Operation", "ShardId"))
    now = int(time.time() * 1000)
    for number, millis in ((0, 2500.0), (1, 61_000.0)):
        sender.send([StatisticSet(MILLIS_BEHIND_LATEST, shard(number), now, 1, millis, millis, millis)])
    told = pykcl(*asked, "--max-behind", "60s", code=3)
    assert "SOURCE cloudwatch" in told
    assert "asked for 2 metrics" in told
    found = json.loads(pykcl(*asked, "-o", "json"))
    assert [row["behind_seconds"] for row in found["rows"]] == [2.5, 61.0]
    assert "Which metrics?" in pykcl("lag", "--table", APP, "--source", "cloudwatch", code=1)


def test_the_tree_joins_the_stream_and_the_table(aws, server):
    server.kinesis.split("orders", shard(0))
    put(
        aws,
        Lease(shard(0), AT_SHARD_END, children=(shard(2), shard(3))),
        Lease(shard(2), AT_TRIM_HORIZON, owner="w1", parents=(shard(0),)),
    )
    told = pykcl("streams", "describe", "--tree", "--app", APP, "--stream", "orders", "--no-sample")
    lines = told.splitlines()
    assert lines[0] == "000  ENDED"
    assert lines[1].startswith("├─ 002  UNKNOWN  ")
    assert lines[1].endswith(" w1")
    assert lines[2] == "└─ 003  NO LEASE"
    assert lines[3] == "001  NO LEASE"
    assert "2 listed shard(s) have no lease" in told
    alone = pykcl("streams", "describe", "orders", "--tree")
    assert alone.splitlines() == ["000  CLOSED", "├─ 002  OPEN", "└─ 003  OPEN", "001  OPEN"]
    kept = pykcl("streams", "describe", "orders", "--tree", "--hide-ended").splitlines()
    assert [line.split()[-2] for line in kept] == ["002", "003", "001"]


# -- around ----------------------------------------------------------------------------------------------------


def test_applications_and_shards_are_completed_and_trouble_completes_to_nothing(aws, monkeypatch):
    put(aws, *FLEET)
    command = main.get_command(None, "leases").commands["describe"]
    context = command.make_context("describe", ["--app", APP], resilient_parsing=True)
    assert complete_applications(context, None, "ord") == [APP]
    assert complete_shards(context, None, "1") == [shard(1)]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert complete_applications(context, None, "ord") == []
    assert complete_shards(context, None, "1") == []


def test_a_reader_that_has_had_enough_is_no_crash(aws):
    put(aws, *(Lease(shard(number), AT_TRIM_HORIZON) for number in range(300)))
    command = f"{sys.executable} -m pykcl.cli leases list --app {APP} --no-sample | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
