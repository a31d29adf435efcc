"""`pykcl run --shadow`: it counts what is there under a table of its own, and leaves the application's alone."""

import re
import signal
from dataclasses import replace

import pytest
from service_kit import Service, create_lease_table

from pykcl.cli.settings import Settings
from pykcl.cli.shadow import Count, Shadow, shadow_config, table_of
from pykcl.config import Config
from pykcl.errors import ConfigError

PROCESSOR = """
import os
from pykcl import RecordProcessor

class Orders(RecordProcessor):
    def process_records(self, batch):
        for record in batch:
            os.write(1, b"processed " + record.data + b"\\n")
"""
KCLPY = """
import os
from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor
os.write(1, b"the program ran\\n")
class Orders(processor.RecordProcessorBase):
    def initialize(self, i): pass
    def process_records(self, i):
        for record in i.records:
            os.write(1, b"processed " + record.binary_data + b"\\n")
    def lease_lost(self, i): pass
    def shard_ended(self, i): i.checkpointer.checkpoint()
    def shutdown_requested(self, i): i.checkpointer.checkpoint()
kcl.KCLProcess(Orders()).run()
"""
PROPERTIES = "applicationName=orders-app\nstreamName=orders\ninitialPositionInStream=TRIM_HORIZON\nretrievalMode=POLLING\n"
TOML = 'application = "orders-app"\nstream = "orders"\ninitial_position = "TRIM_HORIZON"\n'
FLAGS = ("--app", "orders-app", "--stream", "orders", "--start", "TRIM_HORIZON")
WAYS = {
    "class": (*FLAGS, "program:Orders"),
    "kclpy": ("--properties", "app.properties", "--kclpy", "app.py"),
    "properties": ("--properties", "app.properties"),
    "properties and class": ("--properties", "app.properties", "program:Orders"),
    "config": ("--config", "pykcl.toml"),
}
ALL = 20
RECORDS = [f"order {number}".encode() for number in range(ALL)]


@pytest.fixture
def aws(aws):
    for data in RECORDS:
        aws.kinesis.put_record("orders", data, data.decode())
    return aws


class Run(Service):
    def __init__(self, folder, aws, *arguments):
        (folder / "app.py").write_text(KCLPY)
        (folder / "app.properties").write_text(PROPERTIES)
        (folder / "pykcl.toml").write_text(TOML)
        super().__init__(folder, aws, "run", *arguments, program=PROCESSOR)

    def counted(self):
        """What its log told last of each shard: records and bytes."""
        found = re.findall(r"shadow counted shard=(\S+) records=(\d+) bytes=(\d+)", self.text)
        return {shard: (int(records), int(size)) for shard, records, size in found}

    def wait_until_all_is_counted(self, count=ALL):
        self.until(lambda: sum(records for records, _ in self.counted().values()) >= count, "the counts", 60)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)


@pytest.fixture
def shadow(aws, tmp_path):
    runs = []

    def start(*arguments, name="orders-shadow"):
        runs.append(Run(tmp_path, aws, "--shadow", name, "--shadow-interval", "0.2", *arguments))
        return runs[-1]

    yield start
    for run in runs:
        run.end()


def tables_asked(aws):
    return {request.parameters.get("TableName") for request in aws.requests.of("dynamodb")}


@pytest.mark.parametrize("way", WAYS)
def test_a_shadow_counts_everything_calls_nobody_and_never_asks_for_the_applications_table(shadow, aws, way):
    run = shadow(*WAYS[way])
    run.wait_until_all_is_counted()
    assert run.stop() == 0
    assert tables_asked(aws) == {"orders-shadow", "orders-shadow-CoordinatorState"}
    log, out = run.text, run.output.read_text()
    assert "shares the five reads and 2 MB a second" in log
    assert log.index("shares the five reads") < log.index("worker started")
    assert re.search(rf"^all +{len(RECORDS)} +{sum(map(len, RECORDS))} +0 +0$", out, re.MULTILINE), out
    assert sum(records for records, _ in run.counted().values()) == len(RECORDS)
    assert "processed" not in out
    assert "the program ran" not in out
    assert "aws dynamodb delete-table --table-name orders-shadow" in log


@pytest.mark.parametrize("way", ["class", "kclpy", "properties and class"])
def test_with_the_processor_it_is_called_on_every_record_and_still_in_the_other_table(shadow, aws, way):
    run = shadow("--shadow-call-processor", *WAYS[way])
    run.wait_until_all_is_counted()
    assert run.stop() == 0
    assert sorted(re.findall(r"^processed (.*)$", run.output.read_text(), re.MULTILINE)) == sorted(
        map(bytes.decode, RECORDS)
    )
    assert tables_asked(aws) == {"orders-shadow", "orders-shadow-CoordinatorState"}


def test_a_shadow_that_starts_again_goes_on_where_it_was(shadow, aws):
    run = shadow(*WAYS["config"])
    run.wait_until_all_is_counted()
    assert run.stop() == 0
    aws.kinesis.put_record("orders", b"one more", "x")
    again = shadow(*WAYS["config"])
    again.wait_until_all_is_counted(1)
    assert again.stop() == 0
    assert re.search(r"^all +1 +8 ", again.output.read_text(), re.MULTILINE), again.output.read_text()


def test_a_table_in_which_somebody_works_is_refused_and_left_as_it_is(shadow, dynamodb):
    create_lease_table(dynamodb, "payments-app")
    row = {"leaseKey": {"S": "shardId-000000000000"}, "leaseCounter": {"N": "3"}, "checkpoint": {"S": "TRIM_HORIZON"},
           "ownerSwitchesSinceCheckpoint": {"N": "0"}, "checkpointSubSequenceNumber": {"N": "0"}}  # fmt: skip
    for owner in ({}, {"leaseOwner": {"S": "java"}}):
        dynamodb.put_item(TableName="payments-app", Item={**row, **owner})
        run = shadow(*WAYS["config"], name="payments-app")
        assert run.process.wait(300) == 78
        assert "belongs to an application that works" in run.text
        assert dynamodb.scan(TableName="payments-app")["Items"] == [{**row, **owner}]


def test_the_rows_of_an_ordinary_pykcl_application_are_refused_too(shadow, aws, tmp_path):
    run = Run(tmp_path, aws, *WAYS["config"], "program:Orders")
    try:
        run.until(lambda: run.output.read_text().count("processed") == len(RECORDS), "the records", 60)
        assert run.stop() == 0
    finally:
        run.end()
    other = shadow("--app", "other-app", "--stream", "orders", name="orders-app")
    assert other.process.wait(300) == 78
    assert "belongs to an application that works" in other.text


# -- parts -----------------------------------------------------------------------------------------------------

ORIGINAL = Config(
    application="orders-app", stream="orders", table_name="orders-leases", coordinator_state_table="orders-state", worker_id="w1",
    checkpoint_mode="manual", table_deletion_protection=True, point_in_time_recovery=True, fleet_mode="3x", failover_time=5,
)  # fmt: skip


def test_nothing_in_the_shadows_config_leads_to_the_originals_tables():
    config = shadow_config(ORIGINAL, "other-app", calls=False)
    assert not re.search("orders-(app|leases|state)", repr(config))
    assert (config.table, config.coordinator_state_table, config.worker_id) == (
        "other-app",
        None,
        "shadow:w1",
    )
    assert (config.table_deletion_protection, config.point_in_time_recovery) == (False, False)
    assert config.fleet_mode == "auto"
    assert (config.checkpoint_mode, config.failover_time) == ("interval", 5)
    assert shadow_config(ORIGINAL, "other-app", calls=True).checkpoint_mode == "manual"


def test_a_shadow_polls_so_that_it_takes_no_subscription_of_the_fleet_over():
    pushed = replace(
        ORIGINAL, retrieval="fanout", consumer="orders", register_consumer=False, fanout_transport="h2"
    )
    assert shadow_config(pushed, "other-app", calls=False) == replace(
        shadow_config(ORIGINAL, "other-app", calls=False), retrieval="polling"
    )


@pytest.mark.parametrize(
    "name",
    [
        "orders-app",
        "orders-leases",
        "orders-state",
        "orders-app-CoordinatorState",
        "orders-app-WorkerMetricStats",
    ],
)
def test_no_name_of_the_application_itself_can_be_the_shadows(name):
    with pytest.raises(ConfigError, match="is a name of the application itself"):
        shadow_config(ORIGINAL, name, calls=False)


def test_what_is_no_factory_is_left_for_the_worker_to_refuse():
    shadow = Shadow(Settings(ORIGINAL), "other-app", calls=True, interval=1)
    processor = shadow.factory()
    assert shadow.watch(processor) is processor
    assert shadow.watch(5) == 5


def test_a_shadow_that_could_not_start_says_nothing_of_a_table_that_was_never_made(aws, tmp_path):
    run = Run(tmp_path, aws, "--shadow", "other-shadow", "--app", "other", "--stream", "missing")
    assert run.process.wait(300) == 78
    assert "There is no stream 'missing'" in run.text
    assert "stays" not in run.text


def test_the_table_adds_up_and_tells_the_shard_that_is_furthest_behind():
    text = table_of(
        {"shardId-0": Count(3, 30, 500, 0), "shardId-1": Count(4, 40, 20, 1), "shardId-2": Count()}
    )
    assert text.splitlines()[-1].split() == ["all", "7", "70", "500", "1"]
    assert text.splitlines()[3].split() == ["shardId-2", "0", "0", "-", "0"]
    assert len({len(line) for line in text.splitlines()}) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--shadow-call-processor", "a:B"], "goes with --shadow"),
        (["--shadow", "x-y", "--shadow-call-processor", "--config", "pykcl.toml"], "Missing argument"),
        (["--shadow", "x-y", "--config", "pykcl.toml", "--properties", "app.properties"], "Use one of them"),
        (["--shadow", "orders-app", "--config", "pykcl.toml"], "is a name of the application itself"),
        (
            ["--shadow", "x-y", "--config", "pykcl.toml", "--kclpy", "missing.py"],
            "There is no program missing.py",
        ),
        (["--shadow", "x-y", "--config", "pykcl.toml", "program:Missing"], "has no 'Missing'"),
    ],
)
def test_wrong_use_is_told(aws, tmp_path, arguments, told):
    run = Run(tmp_path, aws, *arguments)
    assert run.process.wait(300) in (2, 78)
    assert told in run.text
