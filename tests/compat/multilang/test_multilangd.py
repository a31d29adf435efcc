"""The command itself, as a process beside a local AWS: the file, the flags, signals, and how it ends."""

import os
import signal
import subprocess
import sys
import time

import boto3
import pytest
from multilang_kit import DEADLINE, TALKATIVE, eventually, is_running

from pykcl.cli.local import local_environment
from pykcl.local.errors import AwsError
from pykcl.local.server import LocalAws
from pykcl.worker.signals import REPEAT_SECONDS
from tests.security.bad_rows import HOSTILE_KEYS, rows_of_hostile_keys

FILE = """
executableName = {python} -I -S {talkative} {behaviour}
applicationName = orders-app
streamName = orders
regionName = us-east-1
initialPositionInStream = TRIM_HORIZON
AwsCredentialsProvider = EnvironmentVariableCredentialsProvider
kinesisEndpoint = {url}
dynamoDBEndpoint = {url}
failoverTimeMillis = 2000
idleTimeBetweenReadsInMillis = 500
metricsLevel = NONE
{more}
"""


@pytest.fixture(scope="module")
def aws():
    with LocalAws() as aws:
        yield aws


@pytest.fixture
def stream(aws):
    aws.kinesis.create_stream("orders", 2)
    environment = local_environment(aws.url)
    dynamodb = boto3.client(
        "dynamodb", endpoint_url=aws.url, region_name="us-east-1",
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"], aws_secret_access_key="x",
    )  # fmt: skip
    yield dynamodb
    aws.kinesis.delete_stream("orders")
    if "orders-app" in dynamodb.list_tables()["TableNames"]:
        dynamodb.delete_table(TableName="orders-app")


class Daemon:
    def __init__(self, folder, journal, aws, behaviour, *flags, more="", file=None):
        self.journal = journal
        self.log = folder / "log"
        properties = folder / "app.properties"
        properties.write_text(
            FILE.format(
                python=sys.executable, talkative=TALKATIVE, behaviour=behaviour, url=aws.url, more=more
            )
        )
        environment = {**os.environ, **local_environment(aws.url)}
        for name in [name for name in environment if name.startswith("AWS_ENDPOINT")]:
            del environment[name]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pykcl.cli", "multilangd", *(file or ["-p", str(properties)]), *flags],
                stderr=log, env=environment, cwd=folder, start_new_session=True,
            )  # fmt: skip

    def ends(self):
        return self.process.wait(DEADLINE)

    def text(self):
        return self.log.read_text()


@pytest.fixture
def daemon(tmp_path, journal, aws, stream):
    started = []

    def start(*args, **options):
        started.append(Daemon(tmp_path, journal, aws, *args, **options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()
    for pid in journal.pids:
        eventually(lambda pid=pid: not is_running(pid), "the end of a child whose daemon is gone")


def put(aws, count):
    for number in range(count):
        aws.kinesis.put_record("orders", b"r%d" % number, f"key-{number}")
    return {f"r{number}" for number in range(count)}


def given(journal):
    return {payload for group in journal.of("given") for payload in group}


def rows(dynamodb):
    items = dynamodb.scan(TableName="orders-app", ConsistentRead=True)["Items"]
    return {item["leaseKey"]["S"]: item for item in items}


def test_the_program_of_a_properties_file_gets_every_record_and_a_drain_ends_it_by_ctrl_c(
    daemon, journal, aws, stream
):
    records = put(aws, 40)
    running = daemon(f"polite {journal.path}", "-l", "logback.xml", more="notAKey = 1")
    eventually(lambda: given(journal) == records, "every record")
    # As a terminal does: to the whole process group of the daemon.
    os.killpg(running.process.pid, signal.SIGINT)
    assert running.ends() == 0
    assert journal.of("signal") == [], "the children heard nothing of it, but for the protocol"
    for pid in journal.pids:
        told = [note["told"] for note in journal.notes if note["pid"] == pid and "told" in note]
        assert told[0] == "initialize"
        assert told[-2:] == ["shutdownRequested", "leaseLost"]
        assert not is_running(pid)
    assert [answer["error"] for answer in journal.of("checkpoint")] == [None] * len(journal.of("checkpoint"))
    assert {"leaseOwner" in row for row in rows(stream).values()} == {False}
    text = running.text()
    assert "--log-configuration is not used" in text
    assert "notAKey" in text
    assert "enhanced fan-out" not in text
    assert "children started=2 failed=0" in text


def test_signals_that_come_together_drain_an_idle_daemon(daemon, journal, aws, stream):
    put(aws, 2)
    running = daemon(f"polite {journal.path}")
    eventually(lambda: len(given(journal)) == 2, "every record")
    running.process.send_signal(signal.SIGTERM)
    running.process.send_signal(signal.SIGINT)
    assert running.ends() == 0
    assert {"leaseOwner" in row for row in rows(stream).values()} == {False}
    assert "still busy" not in running.text()


def test_sigterm_drains_and_checkpoints_nothing_that_no_child_confirmed(daemon, journal, aws, stream):
    put(aws, 10)
    running = daemon(
        f"mute {journal.path} processRecords", more="shutdownGraceMillis = 1000\ntimeoutInSeconds = 600"
    )
    eventually(lambda: journal.of("told").count("processRecords") == 2, "a batch for each child")
    running.process.send_signal(signal.SIGTERM)
    assert running.ends() == 70, "the batches did not end within the grace"
    assert "still busy" in running.text()
    assert {row["checkpoint"]["S"] for row in rows(stream).values()} == {"TRIM_HORIZON"}
    assert not any(map(is_running, journal.pids)), "the daemon ended them before it ended itself"


def test_what_a_child_held_that_dies_while_nothing_comes_is_given_to_another_one(
    daemon, journal, aws, stream
):
    put(aws, 1)
    daemon(f"scripted {journal.path} pass")
    batches = lambda: [note["pid"] for note in journal.notes if note.get("told") == "processRecords"]  # noqa: E731
    (first,) = eventually(batches, "the batch")
    os.kill(first, signal.SIGKILL)
    _, second = eventually(lambda: len(batches()) == 2 and batches(), "the same batch for another one")
    assert second != first


@pytest.mark.parametrize("flags", [(), ("--processes", "1")], ids=["one process", "one under a parent"])
def test_signals_while_children_are_ended_leave_none_behind(daemon, journal, aws, stream, flags):
    put(aws, 10)
    running = daemon(f"hung {journal.path}", *flags)
    eventually(lambda: journal.of("told").count("processRecords") >= 1, "a batch")
    running.process.send_signal(signal.SIGTERM)
    eventually(lambda: "worker stops" in running.text(), "the drain")
    heard_at = time.monotonic()
    eventually(lambda: time.monotonic() - heard_at >= REPEAT_SECONDS, "the end of one request")
    running.process.send_signal(signal.SIGTERM)
    eventually(lambda: journal.of("signal"), "the first word to the children, whose time is up")
    for _ in range(3):
        running.process.send_signal(signal.SIGTERM)
    # The last of them may come when the daemon is done, and end it as SIGTERM ends any process.
    assert running.ends() != 0
    eventually(lambda: not any(map(is_running, journal.pids)), "the end of the children")


def test_a_program_that_only_prints_does_not_keep_the_daemon_from_stopping(daemon, tmp_path, aws, stream):
    text = FILE.format(
        python="yes", talkative="", behaviour="", url=aws.url, more="shutdownGraceMillis = 1000"
    )
    (tmp_path / "yes.properties").write_text(text.replace("yes -I -S", "yes"))
    running = daemon("good", file=["yes.properties"])
    eventually(lambda: "pykcl.child.shardId" in running.text(), "what it prints")
    running.process.send_signal(signal.SIGTERM)
    assert running.ends() == 70, "it never answered, and was still busy after the grace"
    assert running.text().count("child ended") == running.text().count("child started") > 0


@pytest.mark.parametrize("flags", [(), ("--exit-on-child-failure",)])
def test_a_program_that_lacks_amazon_kclpy_stops_the_daemon_with_both_cures(
    daemon, journal, aws, stream, flags
):
    """No child could ever work; each of them said so seven times a shard."""
    running = daemon(f"without_kclpy {journal.path}", *flags)
    assert running.ends() == 78
    assert (
        running.text().count("needs the package amazon_kclpy, which its Python does not have. Do: install it")
        == 1
    )
    assert "pykcl run --properties FILE --kclpy APP.py" in running.text()
    assert {"leaseOwner" in row for row in rows(stream).values()} == {False}


def test_no_lease_key_forges_a_line_of_the_log_or_drives_a_terminal(daemon, journal, aws, stream):
    stream.create_table(
        TableName="orders-app",
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    for row in rows_of_hostile_keys().values():
        stream.put_item(TableName="orders-app", Item=row)
    running = daemon(f"complains {journal.path}")
    written = lambda: [line for line in running.log.read_bytes().split(b"\n") if b"complained" in line]  # noqa: E731
    # Each line has the name of its logger: the five keys, and the two shards of the stream.
    eventually(
        lambda: len({line.split()[3] for line in written()}) == len(HOSTILE_KEYS) + 2, "all their lines"
    )
    running.process.send_signal(signal.SIGTERM)
    running.ends()
    lines = running.text().split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    assert [line for line in lines if line.startswith("ERROR")] == []
    assert max(map(len, written())) < 300


def test_exit_on_child_failure_is_javas_behaviour(daemon, journal, aws, stream):
    put(aws, 10)
    running = daemon(f"exits {journal.path} 5", "--exit-on-child-failure")
    assert running.ends() == 70
    assert "ended with exit code 5 in initialize. --exit-on-child-failure stops the daemon." in running.text()
    assert "pykcl: E12. Do: correct the processor; it had no record in hand" in running.text()


def test_a_killed_daemon_leaves_no_children(daemon, journal, aws, stream):
    running = daemon(f"polite {journal.path}")
    # A child that still answers to initialize dies of the broken pipe, and notes nothing.
    eventually(lambda: running.text().count("shard started") == 2, "two children that wait for records")
    running.process.kill()
    running.process.wait()
    eventually(lambda: not any(map(is_running, journal.pids)), "the end of the children")
    assert journal.of("end") == ["of input"] * 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "--properties FILE"),
        (["missing.properties"], 78, "missing.properties"),
        (["-p", "missing.properties"], 78, "missing.properties"),
    ],
)
def test_a_file_that_is_not_there_is_told(daemon, journal, arguments, code, says):
    running = daemon("good", file=arguments or ["-v"])
    assert running.ends() == code
    assert says in running.text()


def test_an_executable_that_does_not_exist_is_told_before_any_lease_is_taken(daemon, aws, stream, tmp_path):
    file = tmp_path / "other.properties"
    file.write_text(FILE.format(python="/no/such/python", talkative="", behaviour="", url=aws.url, more=""))
    running = daemon("good", file=[str(file)])
    assert running.ends() == 78
    assert "executableName: there is no program '/no/such/python'" in running.text()
    assert stream.list_tables()["TableNames"] == []


def test_fan_out_and_its_bill_are_named_at_the_start_unless_polling_is_accepted(daemon, tmp_path, aws):
    text = FILE.format(
        python="/no/such/python", talkative="", behaviour="", url=aws.url, more="retrievalMode = FANOUT"
    )
    (tmp_path / "fan.properties").write_text(text)
    notice = "The stream is read by enhanced fan-out, as Java reads it (retrievalMode=FANOUT)"
    pushed = daemon("good", file=["fan.properties"])
    assert pushed.ends() == 78
    assert pushed.text().count(notice) == 1
    accepted = daemon("good", "--accept-polling", file=["fan.properties"])
    assert accepted.ends() == 78
    assert "enhanced fan-out, as Java" not in accepted.text()


SAMPLE = """
executableName = {python} -I -S {talkative} polite {journal}
streamName = orders
applicationName = orders-app
AwsCredentialsProvider = DefaultCredentialsProvider
processingLanguage = python/3.8
initialPositionInStream = TRIM_HORIZON
regionName = us-east-1
kinesisEndpoint = {url}
dynamoDBEndpoint = {url}
metricsLevel = NONE
"""
"""The keys that samples/sample.properties of amazon_kclpy sets, and where the local AWS is."""


@pytest.mark.parametrize("denied", ["GetRecords", "RegisterStreamConsumer"])
def test_the_sample_of_kclpy_is_read_by_fan_out_as_under_java_or_by_polls_where_that_is_denied(
    daemon, journal, aws, stream, tmp_path, monkeypatch, denied
):
    asked = set()

    def deny(operation, *_):
        asked.add(operation)
        if operation == denied:
            raise AwsError("AccessDeniedException", f"not authorized to perform: kinesis:{operation}")

    monkeypatch.setattr(aws.kinesis, "fault", deny)
    records = put(aws, 20)
    (tmp_path / "sample.properties").write_text(
        SAMPLE.format(python=sys.executable, talkative=TALKATIVE, journal=journal.path, url=aws.url)
    )
    running = daemon("polite", file=["sample.properties"])
    eventually(lambda: given(journal) == records, "every record")
    running.process.send_signal(signal.SIGTERM)
    assert running.ends() == 0
    assert running.text().count("billed by shard and hour") == 1
    if denied == "GetRecords":
        assert asked >= {"RegisterStreamConsumer", "SubscribeToShard"}
        assert "GetRecords" not in asked
    else:
        assert "SubscribeToShard" not in asked
        assert running.text().count("enhanced fan-out cannot be had") == 1


def test_an_option_of_the_command_line_goes_before_the_file_and_the_environment(daemon, journal, aws, stream):
    records = put(aws, 5)
    running = daemon(f"polite {journal.path}", "--option", "worker_id=by-hand", more="workerId = of-the-file")
    eventually(lambda: given(journal) == records, "every record")
    assert {row["leaseOwner"]["S"] for row in rows(stream).values()} == {"by-hand"}
    running.process.send_signal(signal.SIGTERM)
    assert running.ends() == 0
    refused = daemon("good", "--option", "fleet_mod=auto")
    assert refused.ends() == 78
    assert "Did you mean 'fleet_mode'?" in refused.text()
