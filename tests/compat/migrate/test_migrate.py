"""`pykcl migrate` as a command: what it writes, what it refuses, and that what it writes starts a worker."""

import os
import subprocess
import sys

import boto3
import pytest
from migrate_programs import program

from pykcl import Config
from pykcl.cli.local import local_environment
from pykcl.config import read_toml
from pykcl.local.server import LocalAws
from pykcl.model.lease_item import MIGRATION_KEY, OWNER_INDEX
from tests.program import Program

PROPERTIES = """
executableName = app.py
streamName = orders
applicationName = orders-app
initialPositionInStream = TRIM_HORIZON
AwsCredentialsProvider = DefaultCredentialsProvider
regionName = us-east-1
failoverTimeMillis = 2000
idleTimeBetweenReadsInMillis = 200
"""
NOWHERE = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "PYKCL_"))} | {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "app.properties").write_text(PROPERTIES)
    (tmp_path / "app.py").write_text(
        program(globals="import sys", process="print('got', record.binary_data); sys.stdout.flush()")
    )
    return tmp_path


def pykcl(folder, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "pykcl.cli", *arguments], cwd=folder, env={**NOWHERE, **environment},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_without_aws_it_writes_both_files_and_says_that_it_did_not_look(folder):
    done = pykcl(folder, "migrate", "app.properties", "--code", "app.py")
    assert done.returncode == 0, done.stderr
    assert "table orders-app was not read" in done.stdout
    assert "No AWS credentials" in (folder / "migrate-report.md").read_text()
    assert 'stream = "orders"' in (folder / "pykcl.toml").read_text()


def test_without_a_program_the_report_is_that_of_a_daemon_with_children(folder):
    assert pykcl(folder, "migrate", "app.properties", "--no-check-table").returncode == 0
    text = (folder / "migrate-report.md").read_text()
    assert "| `executableName` | `app.py` | honoured |" in text
    assert "$ pykcl multilangd --properties-file app.properties" in text
    assert "--kclpy" not in text
    assert "comes again" not in text


def test_a_program_that_cannot_be_started_here_is_told_of_children_only(folder):
    word = "executableName cannot be started on this host"
    assert pykcl(folder, "migrate", "app.properties", "--no-check-table").returncode == 0
    text = (folder / "migrate-report.md").read_text()
    assert word in text
    assert "executableName: there is no program 'app.py' in PATH" in text
    assert "on the host that is to run the children" in text
    assert (
        pykcl(
            folder, "migrate", "app.properties", "--no-check-table", "--force", "--code", "app.py"
        ).returncode
        == 0
    )
    assert word not in (folder / "migrate-report.md").read_text()
    (folder / "app.properties").write_text(PROPERTIES.replace("app.py", f"{sys.executable} app.py"))
    assert pykcl(folder, "migrate", "app.properties", "--no-check-table", "--force").returncode == 0
    assert word not in (folder / "migrate-report.md").read_text()


def test_whoever_may_not_read_the_properties_may_not_read_what_was_made_from_them(folder):
    (folder / "app.properties").chmod(0o600)
    assert pykcl(folder, "migrate", "app.properties", "--no-check-table").returncode == 0
    assert {(folder / name).stat().st_mode & 0o777 for name in ("pykcl.toml", "migrate-report.md")} == {0o600}


def test_a_file_that_was_there_before_is_replaced_with_the_mode_of_the_properties(folder):
    (folder / "app.properties").chmod(0o600)
    (folder / "pykcl.toml").write_text("old")
    (folder / "pykcl.toml").chmod(0o644)
    assert pykcl(folder, "migrate", "app.properties", "--no-check-table", "--force").returncode == 0
    assert (folder / "pykcl.toml").stat().st_mode & 0o777 == 0o600


def test_what_a_link_points_to_is_left_alone(folder):
    (folder / "victim").write_text("mine")
    (folder / "migrate-report.md").symlink_to("victim")
    (folder / "pykcl.toml").symlink_to("made-by-it")
    done = pykcl(folder, "migrate", "app.properties", "--no-check-table")
    assert done.returncode == 1
    assert "pykcl.toml and migrate-report.md would be overwritten" in done.stderr
    assert pykcl(folder, "migrate", "app.properties", "--no-check-table", "--force").returncode == 0
    assert (folder / "victim").read_text() == "mine"
    names = {"app.properties", "app.py", "victim", "pykcl.toml", "migrate-report.md"}
    assert {path.name for path in folder.iterdir()} == names
    assert not any(path.is_symlink() for path in folder.iterdir())


def test_a_file_that_cannot_be_replaced_is_one_clear_line_and_leaves_nothing_behind(folder):
    (folder / "pykcl.toml").mkdir()
    done = pykcl(folder, "migrate", "app.properties", "--no-check-table", "--force")
    assert done.returncode == 1
    assert "'pykcl.toml' cannot be written: Is a directory" in done.stderr
    assert {path.name for path in folder.iterdir()} == {"app.properties", "app.py", "pykcl.toml"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("https://user:canary@kinesis.test:8443/x", "https://kinesis.test:8443/x"),
        ("https://us@er:canary@kinesis.test", "https://kinesis.test"),
    ],
)
def test_a_password_of_an_endpoint_is_copied_nowhere(folder, written, read):
    more = f"kinesisEndpoint = {written}\ndynamoDBEndpoint = http://x:canary@127.0.0.1:1\n"
    (folder / "app.properties").write_text(PROPERTIES + more)
    done = pykcl(folder, "migrate", "app.properties", "--no-check-table")
    assert done.returncode == 0, done.stderr
    text = (folder / "pykcl.toml").read_text()
    assert f'endpoint = "{read}"  # its user and password are left out' in text
    assert 'endpoint = "http://127.0.0.1:1"' in text
    assert read_toml(folder / "pykcl.toml").clients["kinesis"]["endpoint"] == read
    for told in (text, done.stdout, done.stderr, (folder / "migrate-report.md").read_text()):
        assert "canary" not in told


@pytest.mark.parametrize("code", [(), ("--code", os.fsdecode(b"caf\xe9.py"))])
def test_names_of_files_that_are_no_utf_8_are_written_and_told(folder, code):
    name = os.fsdecode(b"caf\xe9.properties")
    try:
        (folder / name).write_text(PROPERTIES)
        (folder / os.fsdecode(b"caf\xe9.py")).write_text(
            program(process="print(1); sys.exit()", globals="import sys")
        )
    except OSError:
        pytest.skip("file names are text here")
    done = pykcl(folder, "migrate", name, "--no-check-table", *code, PYTHONUTF8="1")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "caf\\udce9.properties as it is" in (folder / "migrate-report.md").read_text("utf-8")
    assert Config.from_toml(folder / "pykcl.toml").stream == "orders"
    assert ("caf\\udce9.py" in done.stdout) == bool(code)


def test_it_overwrites_nothing_unless_it_is_told_to(folder):
    (folder / "pykcl.toml").write_text("mine")
    done = pykcl(folder, "migrate", "app.properties", "--no-check-table")
    assert done.returncode == 1
    assert "pykcl.toml would be overwritten" in done.stderr
    assert "--force" in done.stderr
    assert (folder / "pykcl.toml").read_text() == "mine"
    assert not (folder / "migrate-report.md").exists()
    assert pykcl(folder, "migrate", "app.properties", "--no-check-table", "--force").returncode == 0
    assert "orders-app" in (folder / "pykcl.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["missing.properties"], "There is no properties file 'missing.properties'"),
        (["app.properties", "--code", "missing.py"], "--code 'missing.py' cannot be read: No such file"),
        (["app.properties", "--code", "broken.py"], "broken.py, line 2: this is no Python 3"),
        (["wrong.properties"], "wrong.properties, line 3: failoverTimeMillis is not a number"),
        (["."], "is a folder"),
    ],
)
def test_bad_input_is_one_clear_line_and_nothing_is_written(folder, arguments, told):
    (folder / "broken.py").write_text("x = 1\nprint 'x'\n")
    (folder / "wrong.properties").write_text(
        "applicationName=orders-app\nstreamName=orders\nfailoverTimeMillis=soon\n"
    )
    done = pykcl(folder, "migrate", "--no-check-table", *arguments)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "pykcl.toml").exists()


@pytest.fixture
def aws():
    with LocalAws() as aws:
        aws.kinesis.create_stream("orders", 2)
        yield aws


def test_it_looks_at_the_table_and_changes_nothing_in_aws(folder, aws, monkeypatch):
    for name, value in local_environment(aws.url).items():
        monkeypatch.setenv(name, value)
    dynamodb = boto3.client("dynamodb")
    done = pykcl(folder, "migrate", "app.properties", **local_environment(aws.url))
    assert "There is no such table in us-east-1" in (folder / "migrate-report.md").read_text(), done.stderr
    dynamodb.create_table(
        TableName="orders-app", BillingMode="PAY_PER_REQUEST", KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("leaseKey", "leaseOwner")],
        GlobalSecondaryIndexes=[{
            "IndexName": OWNER_INDEX, "Projection": {"ProjectionType": "KEYS_ONLY"},
            "KeySchema": [{"AttributeName": "leaseOwner", "KeyType": "HASH"}, {"AttributeName": "leaseKey", "KeyType": "RANGE"}],
        }],
    )  # fmt: skip
    lease = {"leaseKey": {"S": "shardId-000000000000"}, "leaseCounter": {"N": "3"}, "leaseOwner": {"S": "java"},
             "checkpoint": {"S": "TRIM_HORIZON"}}  # fmt: skip
    state = {
        "leaseKey": {"S": MIGRATION_KEY},
        "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
        "cv": {"S": "CLIENT_VERSION_3X"},
    }
    for row in (lease, state):
        dynamodb.put_item(TableName="orders-app", Item=row)
    before = len(list(aws.requests))
    done = pykcl(folder, "migrate", "app.properties", "--force", **local_environment(aws.url))
    assert "the fleet is KCL 3.x in its own mode" in done.stdout, done.stderr
    assert "0 to be changed before anything runs" in done.stdout
    assert "the leader of KCL 3.x assigns leases to it" in (folder / "migrate-report.md").read_text()
    asked = {request.operation for request in list(aws.requests)[before:]}
    assert asked <= {"Scan", "DescribeTable", "GetItem"}


@pytest.fixture
def start(folder):
    runs = []

    def starter(*arguments, **environment):
        command = ("-m", "pykcl.cli", "run", *arguments)
        runs.append(Program(folder, *command, environment={**NOWHERE, **environment}))
        return runs[-1]

    yield starter
    for run in runs:
        run.end()


def test_the_generated_file_starts_a_worker_on_an_embedded_aws(folder, start):
    assert pykcl(folder, "migrate", "app.properties", "--code", "app.py", "--no-check-table").returncode == 0
    run = start("--config", "pykcl.toml", "--kclpy", "app.py", "--local")
    run.wait_for("worker started", run.err)
    run.wait_for("shard started shard=shardId-000000000003", run.err)
    assert run.stop() == 0
    assert "failover_time=2.0" in run.err.read_text()


def test_the_worker_of_the_generated_file_processes_and_checkpoints_as_the_program_does(folder, start, aws):
    environment = local_environment(aws.url)
    assert pykcl(folder, "migrate", "app.properties", "--code", "app.py", "--no-check-table").returncode == 0
    aws.kinesis.put_record("orders", b"hello", "alice")
    run = start("--config", "pykcl.toml", "--kclpy", "app.py", **environment)
    run.wait_for("got b'hello'", run.out)
    assert run.stop() == 0
    checkpoints = {
        write.parameters["Key"]["leaseKey"]["S"]
        for write in aws.requests.of("dynamodb", "UpdateItem")
        if any(
            value.get("S", "").isdigit() for value in write.parameters["ExpressionAttributeValues"].values()
        )
    }
    # The program checkpoints in shutdown_requested: the one shard that had a record.
    assert len(checkpoints) == 1
