"""What a key of the file makes a running worker do, or a running `pykcl multilangd`: seen in its calls, not in the Config."""

import os
import sys
import time
from contextlib import nullcontext
from itertools import pairwise
from threading import Event

import pytest
from properties_files import meaning, written

from pykcl.aws.credentials import open_specified_clients
from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.cli.local import local_environment
from pykcl.config import Config
from pykcl.errors import StopTimedOut
from pykcl.events import ProcessorSlow, WaitingForParents
from pykcl.local.server import LocalAws
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor
from pykcl.testing.runtime import EPOCH_MILLIS
from pykcl.worker.worker import Worker
from tests.program import Program

SHARD = "shardId-000000000000"


def options(entry_point="native", **keys):
    """The options of the worker that the keys change."""
    plain, found = meaning(entry_point).config, meaning(entry_point, **keys).config
    names = Config.__dataclass_fields__
    return {name: getattr(found, name) for name in names if getattr(found, name) != getattr(plain, name)}


def times_of(fleet, operation):
    """A list to which the time of every call of the operation is added."""
    times = []

    def note(called, stream, shard):
        if called == operation:
            times.append(fleet.simulation.now)

    fleet.kinesis.fault = note
    return times


class Behaving(RecordingProcessor):
    """Writes down when it begins each shard, and does as it is told with each batch."""

    def __init__(self, fleet, name, behaviour=None, begun=None):
        super().__init__(name, fleet.ledger, behaviour)
        self._simulation, self._begun = fleet.simulation, begun

    def initialize(self, init):
        super().initialize(init)
        if self._begun is not None:
            self._begun.append((self._simulation.now, init.shard_id))


def test_a_shard_that_is_caught_up_is_read_at_the_pace_of_the_file(new_fleet):
    for keys, longest in (({}, 1.0), ({"idleTimeBetweenReadsInMillis": "5000"}, 5.0)):
        fleet = new_fleet(shards=1)
        reads = times_of(fleet, "GetRecords")
        fleet.start("w1", **options(**keys))
        fleet.simulation.sleep(100)
        gaps = [after - before for before, after in pairwise(reads[-10:])]
        assert min(gaps) > longest * 0.8
        assert max(gaps) < longest * 1.3


def test_shards_are_listed_as_often_as_the_file_says(new_fleet):
    for keys, least, most in (({}, 3, 8), ({"shardSyncIntervalMillis": "10000"}, 25, 40)):
        fleet = new_fleet(shards=1)
        listings = times_of(fleet, "ListShards")
        fleet.start("w1", **options(**keys))
        fleet.simulation.sleep(300)
        assert least <= len(listings) <= most


def test_the_lease_of_a_dead_worker_is_taken_after_the_fail_over_time_of_the_file(new_fleet):
    for keys, least, most in (({}, 10, 25), ({"failoverTimeMillis": "40000"}, 40, 70)):
        fleet = new_fleet(shards=1)
        for name in ("w1", "w2"):
            fleet.start(name, **options(**keys))
            fleet.wait_delivered(fleet.put(1))
        (owner,) = fleet.load()
        fleet.simulation.kill(owner)
        began = fleet.simulation.now
        fleet.wait(
            lambda fleet=fleet, owner=owner: fleet.owners()[SHARD] not in (owner, None), 100, "the take-over"
        )
        assert least * 0.6 <= fleet.simulation.now - began <= most


def test_as_many_leases_are_stolen_in_one_pass_as_the_file_allows(new_fleet):
    for keys, at_once in (({}, 1), ({"maxLeasesToStealAtOneTime": "4"}, 4)):
        fleet, begun = new_fleet(shards=12), []
        fleet.start("w1")
        fleet.wait(lambda fleet=fleet: fleet.load()["w1"] == 12)
        fleet.start("w2", processor=lambda f=fleet, b=begun: Behaving(f, "w2", begun=b), **options(**keys))
        fleet.wait(lambda begun=begun: len(begun) >= 4, what="four stolen leases")
        first = begun[0][0]
        assert sum(at - first < 1.0 for at, _ in begun) == at_once


def test_a_child_shard_looks_for_the_end_of_its_parents_as_often_as_the_file_says(new_fleet):
    for keys, least, most in (({}, 0, 3), ({"parentShardPollIntervalMillis": "60000"}, 20, 62)):
        fleet, begun = new_fleet(shards=1), []
        fleet.put(1)
        fleet.kinesis.split(STREAM, SHARD)
        DynamoDBLeaseTable(fleet.dynamodb, TABLE, fleet.simulation.runtime("java")).prepare(create=True)
        for child in fleet.open_shards():
            fleet.dynamodb.put_item(TableName=TABLE, Item=_row(child, parentShardId={"SS": [SHARD]}))
        update = fleet.dynamodb.update_item

        def taking(fleet=fleet, update=update, **request):
            # A Java worker has the parent listed, and is at it, just after this one saw the children alone.
            if SHARD not in fleet.items():
                fleet.dynamodb.put_item(TableName=TABLE, Item=_row(SHARD, leaseOwner={"S": "java"}))
            return update(**request)

        fleet.dynamodb.update_item = taking
        fleet.start(
            "w1",
            processor=lambda f=fleet, b=begun: Behaving(f, "w1", begun=b),
            failover_time=1000.0,
            **options(**keys),
        )
        fleet.wait(lambda fleet=fleet: fleet.happened(WaitingForParents), what="a child that waits")
        fleet.simulation.sleep(20)
        assert not begun
        fleet.dynamodb.put_item(TableName=TABLE, Item=_row(SHARD, checkpoint={"S": "SHARD_END"}))
        ended = fleet.simulation.now
        fleet.wait(lambda begun=begun: begun, what="its begin")
        assert least <= begun[0][0] - ended <= most


def _row(key, **more):
    numbers = ("leaseCounter", "checkpointSubSequenceNumber", "ownerSwitchesSinceCheckpoint")
    row = {"leaseKey": {"S": key}, "checkpoint": {"S": "TRIM_HORIZON"}, **more}
    return {**row, **{name: {"N": "0"} for name in numbers}}


def test_a_call_that_takes_longer_than_the_file_says_is_reported(new_fleet):
    for keys, reported in (({}, []), ({"logWarningForTaskAfterMillis": "2500"}, [2.5])):
        fleet = new_fleet(shards=1)
        put = fleet.put(1)
        slow = lambda batch, fleet=fleet: fleet.simulation.sleep(10)  # noqa: E731
        fleet.start("w1", processor=lambda f=fleet, s=slow: Behaving(f, "w1", s), **options(**keys))
        fleet.wait_delivered(put)
        assert [event.seconds for event in fleet.happened(ProcessorSlow)] == pytest.approx(reported, abs=1.5)


def test_a_stop_waits_as_long_as_the_file_says(new_fleet):
    for keys, delivered in (({}, True), ({"shutdownGraceMillis": "3000"}, False)):
        fleet = new_fleet(shards=1)
        put = fleet.put(1)
        slow = lambda batch, fleet=fleet: fleet.simulation.sleep(15)  # noqa: E731
        fleet.start("w1", processor=lambda f=fleet, s=slow: Behaving(f, "w1", s), **options(**keys))
        fleet.wait(lambda fleet=fleet: ("w1", "process_records", SHARD) in fleet.ledger.calls)
        began = fleet.simulation.now
        with nullcontext() if delivered else pytest.raises(StopTimedOut):
            fleet.workers["w1"].stop()
        assert (fleet.simulation.now - began < 6) is not delivered
        assert (set(put) <= fleet.ledger.payloads.keys()) is delivered


def test_in_process_a_call_that_takes_longer_than_the_time_out_of_the_file_costs_its_lease(new_fleet):
    fleet = new_fleet(shards=1)
    hang = fleet.simulation.runtime("w1").event()
    fleet.start(
        "w1", processor=lambda: Behaving(fleet, "w1", lambda batch: hang.wait()),
        **options("kclpy", timeoutInSeconds="20"),
    )  # fmt: skip
    fleet.wait(lambda: fleet.load()["w1"] == 1)
    put = fleet.put(2)
    fleet.start("w2")
    fleet.wait_delivered(put, 90)
    assert fleet.ledger.by("w2") == put
    hang.set()


def test_an_application_without_leases_starts_at_the_time_of_the_file(new_fleet):
    fleet = new_fleet(shards=1)
    old = fleet.put(3, "old")
    fleet.simulation.sleep(100)
    between = (EPOCH_MILLIS + int(fleet.simulation.now * 1000)) // 1000
    fleet.simulation.sleep(100)
    new = fleet.put(3, "new")
    fleet.start("w1", **options(initialPositionInStreamExtended=str(between)))
    fleet.wait_delivered(new)
    fleet.simulation.sleep(20)
    assert not set(old) & fleet.ledger.payloads.keys()


@pytest.fixture(scope="module")
def aws():
    with LocalAws() as aws:
        aws.kinesis.create_stream("orders", 1)
        aws.kinesis.put_record("orders", b"payload", "key")
        yield aws


def test_an_arn_is_what_kinesis_is_asked_for_and_not_its_name(aws, no_aws, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    arn = aws.kinesis.describe("orders").arn
    found = meaning(
        "native", streamName=None, streamArn=arn, dynamoDBEndpoint=aws.url, kinesisEndpoint=aws.url,
        initialPositionInStream="TRIM_HORIZON",
    )  # fmt: skip
    arrived = Event()

    class Tells(RecordingProcessor):
        def __init__(self):
            """Needs no ledger."""

        def initialize(self, init):
            """Nothing to write down."""

        def process_records(self, batch):
            arrived.set()

        def shutdown_requested(self, request):
            """Nothing to write down."""

    before = len(list(aws.requests))
    clients = open_specified_clients(found.config, found.clients)
    with Worker(processor=Tells, config=found.config, clients=clients):
        assert arrived.wait(300)
    asked = [request for request in list(aws.requests)[before:] if request.operation == "ListShards"]
    assert asked
    for request in asked:
        assert request.parameters["StreamARN"] == arn
        assert "StreamName" not in request.parameters


def test_children_of_the_executable_of_the_file_have_the_time_it_says(aws, tmp_path):
    """executableName and timeoutInSeconds, through the command."""
    child = "import json,sys,time\nfor line in sys.stdin:\n action = json.loads(line)['action']\n"
    child += " if action == 'processRecords': time.sleep(600)\n"
    child += " print(json.dumps({'action': 'status', 'responseFor': action}), flush=True)\n"
    (tmp_path / "hanging_child.py").write_text(child)
    lines = {
        "executableName": f"{sys.executable} -I -S {tmp_path / 'hanging_child.py'}",
        "applicationName": "hanging-app", "streamName": "orders", "regionName": "us-east-1",
        "initialPositionInStream": "TRIM_HORIZON", "AwsCredentialsProvider": "EnvironmentVariableCredentialsProvider",
        "kinesisEndpoint": aws.url, "dynamoDBEndpoint": aws.url, "timeoutInSeconds": "1", "maxRecords": "10",
    }  # fmt: skip
    path = written(tmp_path, "\n".join(f"{key} = {value}" for key, value in lines.items()))
    arguments = ("-m", "pykcl.cli", "multilangd", "--exit-on-child-failure", "-p", path)
    daemon = Program(tmp_path, *arguments, environment={**os.environ, **local_environment(aws.url)})
    try:
        began = time.monotonic()
        assert daemon.process.wait(60) == 70
        assert time.monotonic() - began >= 1
    finally:
        daemon.end()
    assert "did not answer within timeoutInSeconds=1" in daemon.err.read_text()


JAVA = """executableName = {child}
streamName = orders
applicationName = peers-app
AwsCredentialsProvider=EnvironmentVariableCredentialsProvider
metricsLevel=NONE
retrievalMode=POLLING
initialPositionInStream=TRIM_HORIZON
failoverTimeMillis=5000
shardSyncIntervalMillis=3000
parentShardPollIntervalMillis=1000
idleTimeBetweenReadsInMillis=500
leaseCleanupIntervalMillis=5000
completedLeaseCleanupIntervalMillis=5000
garbageLeaseCleanupIntervalMillis=10000
kinesisEndpoint = {url}
dynamoDBEndpoint = {url}
workerId = java-1
clientVersionConfig = CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X
"""


def test_the_file_and_the_flags_of_a_java_daemon_start_ours_unchanged(aws, tmp_path):
    child = tmp_path / "child.py"
    child.write_text(
        "import json,sys\nfor line in sys.stdin:\n message = json.loads(line)\n"
        " if message['action'] == 'processRecords': print('GOT', len(message['records']), file=sys.stderr, flush=True)\n"
        " print(json.dumps({'action': 'status', 'responseFor': message['action']}), flush=True)\n"
    )
    path = written(tmp_path, JAVA.format(child=f"{sys.executable} -I -S {child}", url=aws.url))
    arguments = (
        "-m",
        "pykcl.cli",
        "multilangd",
        "--properties-file",
        path,
        "--log-configuration",
        "logback.xml",
    )
    daemon = Program(tmp_path, *arguments, environment={**os.environ, **local_environment(aws.url)})
    try:
        daemon.wait_for("GOT 1", daemon.err)
        assert daemon.stop() == 0
    finally:
        daemon.end()
    text = daemon.err.read_text()
    assert "worker started worker_id=java-1" in text
    assert "failover_time=5.0" in text
    # Once in the table at the start, each.
    for key in [line.partition("=")[0].strip() for line in JAVA.splitlines()]:
        assert len([line for line in text.splitlines() if line.startswith(f"{key} ")]) == 1, key
