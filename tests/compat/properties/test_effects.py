"""What each honoured or mapped key does, not what the table says of it: to the Config, the clients, the table, the worker."""

from datetime import UTC, datetime

import pytest
from properties_files import ALL_KEYS, LEAST, meaning

from pykcl.aws.clients import connect
from pykcl.aws.credentials import open_specified_clients
from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.aws.table_admin import NewTable
from pykcl.compat.properties import interpret, load, read_properties
from pykcl.config import Config
from pykcl.errors import SetupError, TemporaryError
from pykcl.events import LeaseDeleted, ShardEnded
from pykcl.local.server import LocalAws
from pykcl.operate.aws.iam import actions_of, worker_policy
from pykcl.runtime import SystemRuntime
from pykcl.testing.fleet import STREAM, RecordingProcessor
from pykcl.testing.memory.dynamodb import MemoryDynamoDB, denied
from pykcl.worker.worker import Worker

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
ROLE = "arn:aws:iam::123456789012:role/reader"


def of_config(name, expected):
    return lambda found: (getattr(found.config, name), expected)


def of_client(service, name, expected):
    return lambda found: (getattr(found.clients[service], name), expected)


def of_sources(service, *expected):
    return lambda found: (tuple(source.kind for source in found.clients[service].credentials), expected)


EFFECTS = {
    "executableName": ("node  app.js -v", lambda found: (found.executable, ("node", "app.js", "-v"))),
    "applicationName": ("billing", of_config("application", "billing")),
    "streamName": ("invoices", of_config("stream", "invoices")),
    "streamArn": (ARN, of_config("stream_arn", ARN)),
    "regionName": ("ap-south-1", of_config("effective_region", "ap-south-1")),
    "AwsCredentialsProvider": ("ContainerCredentialsProvider", of_sources("dynamodb", "container")),
    "AwsCredentialsProviderDynamoDB": ("EnvironmentVariableCredentialsProvider", of_sources("dynamodb", "environment")),
    "AwsCredentialsProviderCloudWatch": ("EnvironmentVariableCredentialsProvider", of_sources("cloudwatch", "environment")),
    "metricsBufferTimeMillis": ("5000", of_config("metrics_buffer_time", 5.0)),
    "metricsMaxQueueSize": ("500", of_config("metrics_queue_size", 500)),
    "metricsLevel": ("SUMMARY", of_config("metrics_level", "SUMMARY")),
    "metricsEnabledDimensions": ("Operation,ShardId", of_config("metrics_dimensions", "Operation,ShardId")),
    "kinesisEndpoint": ("http://127.0.0.1:1", of_client("kinesis", "endpoint", "http://127.0.0.1:1")),
    "dynamoDBEndpoint": ("dynamodb.local", of_client("dynamodb", "endpoint", "https://dynamodb.local")),
    "tableName": ("leases", of_config("table", "leases")),
    "workerId": ("host-7", of_config("worker_id", "host-7")),
    "initialPositionInStream": ("trim_horizon", of_config("initial_position", "TRIM_HORIZON")),
    "initialPositionInStreamExtended": (
        "1767225600", of_config("initial_position", datetime(2026, 1, 1, tzinfo=UTC)),
    ),
    "retrievalMode": ("POLLING", of_config("retrieval", "polling")),
    "maxRecords": ("25", of_config("max_records", 25)),
    "idleTimeBetweenReadsInMillis": ("750", of_config("idle_time_between_reads", 0.75)),
    "failoverTimeMillis": ("4000", of_config("failover_time", 4.0)),
    "shardSyncIntervalMillis": ("30000", of_config("shard_sync_interval", 30.0)),
    "cleanupLeasesUponShardCompletion": ("false", of_config("cleanup_interval", 0.0)),
    "maxLeasesForWorker": ("3", of_config("max_leases", 3)),
    "maxLeasesToStealAtOneTime": ("4", of_config("max_leases_to_steal_at_one_time", 4)),
    "leaseTableDeletionProtectionEnabled": ("TRUE", of_config("table_deletion_protection", True)),
    "leaseTablePitrEnabled": ("yes", of_config("point_in_time_recovery", True)),
    "callProcessRecordsEvenForEmptyRecordList": ("on", of_config("call_with_empty_batches", True)),
    "parentShardPollIntervalMillis": ("1500", of_config("parent_shard_poll_interval", 1.5)),
    "logWarningForTaskAfterMillis": ("2500", of_config("processor_warn_after", 2.5)),
    "coordinatorStateTableName": ("orders-state", of_config("coordinator_state_table", "orders-state")),
    "workerMetricsTableName": ("orders-metrics", of_config("worker_metrics_table", "orders-metrics")),
    "workerMetricsReporterFreqInMillis": ("5000", of_config("worker_metrics_interval", 5.0)),
    "disableWorkerMetrics": ("true", of_config("worker_metrics", "throughput")),
    "gracefulLeaseHandoffTimeoutMillis": ("9000", of_config("graceful_handoff_timeout", 9.0)),
    "shutdownGraceMillis": ("1500", of_config("shutdown_grace", 1.5)),
    "timeoutInSeconds": ("90", lambda found: (found.timeout, 90.0)),
}  # fmt: skip


@pytest.mark.parametrize("key", EFFECTS)
def test_a_key_has_its_effect_and_without_it_there_is_none(key):
    value, effect = EFFECTS[key]
    besides = {"streamName": None} if key == "streamArn" else {}
    found, expected = effect(meaning(**{**besides, key: value}))
    assert (found, type(found)) == (expected, type(expected))
    if key in LEAST:
        assert effect(meaning())[0] != expected
    else:
        without, _ = effect(meaning())
        assert without != expected


def test_every_key_that_is_honoured_or_mapped_has_its_effect_shown():
    everything = interpret(read_properties(ALL_KEYS), entry_point="multilang")
    has_effect = {row.key for row in everything.verdicts if row.verdict in ("honoured", "mapped")}
    assert {key.lower() for key in has_effect} | {"initialpositioninstream"} == {
        key.lower() for key in EFFECTS
    }


def test_the_file_with_all_keys_becomes_this_config_and_these_clients():
    found = interpret(read_properties(ALL_KEYS), entry_point="multilang")
    assert found.config == Config(
        application="orders-app", stream=ARN, table_name="orders-leases", worker_id="w1",
        initial_position=datetime(2026, 1, 1, tzinfo=UTC), checkpoint_mode="manual", max_records=500, idle_time_between_reads=0.75,
        failover_time=5.0, shard_sync_interval=30.0, cleanup_interval=0.0, max_leases=7,
        max_leases_to_steal_at_one_time=2, table_deletion_protection=True, point_in_time_recovery=True, call_with_empty_batches=True,
        parent_shard_poll_interval=4.0, processor_warn_after=30.0, shutdown_grace=20.0, coordinator_state_table="orders-state",
        worker_metrics_table="orders-metrics", worker_metrics="throughput", graceful_handoff_timeout=10.0,
        metrics="cloudwatch", metrics_level="SUMMARY", metrics_dimensions="Operation,ShardId", metrics_buffer_time=5.0,
        metrics_queue_size=500,
    )  # fmt: skip
    assert (found.executable, found.timeout) == (("python3", "app.py", "--color"), 120.0)
    kinesis, dynamodb = found.clients["kinesis"], found.clients["dynamodb"]
    assert (kinesis.region, kinesis.endpoint) == ("eu-west-1", "http://127.0.0.1:4567")
    assert [source.role_arn for source in kinesis.credentials] == [ROLE]
    assert [source.kind for source in dynamodb.credentials] == ["profile", "default"]
    assert [source.external_id for source in found.clients["cloudwatch"].credentials] == ["CANARY-2"]


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("idleTimeBetweenReadsInMillis", "20", "idle_time_between_reads", 0.2),
        ("maxLeasesForWorker", "2147483647", "max_leases", 1_000_000),
        ("shardSyncIntervalMillis", "9223372036854775807", "shard_sync_interval", 1_000_000.0),
        ("parentShardPollIntervalMillis", "1", "parent_shard_poll_interval", 0.1),
        ("logWarningForTaskAfterMillis", "0", "processor_warn_after", 0.1),
    ],
)
def test_a_value_that_pykcl_cannot_take_becomes_the_nearest_one_and_the_table_says_so(
    key, value, field, expected
):
    found = meaning(**{key: value})
    assert getattr(found.config, field) == expected
    (told,) = [row for row in found.verdicts if row.key == key]
    assert told.verdict == "mapped"
    assert "the nearest value that pykcl accepts" in told.text


@pytest.mark.parametrize("keys", [{}, {"maxLeasesForWorker": ""}, {"maxLeasesForWorker": "0"}])
@pytest.mark.parametrize("entry_point", ["multilang", "kclpy", "native"])
def test_without_a_number_of_leases_there_is_no_limit_as_in_java(entry_point, keys):
    """With pykcl's own default a worker of a large stream would leave shards unread that Java's reads."""
    found = meaning(entry_point, **keys)
    assert found.config.max_leases == 1_000_000
    for told in found.verdicts:
        if told.key == "maxLeasesForWorker" and told.value == "0":
            assert told.text.endswith("here max_leases=1000000")


def test_numbers_are_told_in_digits():
    (told,) = [
        row for row in meaning(maxLeasesForWorker="2147483647").verdicts if row.key == "maxLeasesForWorker"
    ]
    assert told.text.startswith("max_leases=1000000, the nearest")


def test_a_time_out_ends_the_child_or_costs_the_lease_depending_on_the_entry_point():
    child, program = meaning("multilang", timeoutInSeconds="30"), meaning("kclpy", timeoutInSeconds="30")
    assert (child.timeout, child.config.processor_timeout) == (30.0, None)
    assert (program.timeout, program.config.processor_timeout) == (30.0, 30.0)
    assert program.config.processor_warn_after == 30.0


def test_processors_of_our_own_checkpoint_automatically_and_the_others_by_hand(tmp_path):
    path = tmp_path / "app.properties"
    path.write_text("applicationName=orders-app\nstreamName=orders\nmaxRecords=5\n")
    assert load(path) == Config(
        application="orders-app",
        stream="orders",
        max_records=5,
        max_leases=1_000_000,
        metrics="cloudwatch",
        metrics_level="DETAILED",
        metrics_buffer_time=10.0,
    )
    assert meaning("kclpy").config.checkpoint_mode == "manual"


# -- clients -------------------------------------------------------------------------------------------------------


@pytest.fixture
def credentials(no_aws, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def clients_of(**keys):
    found = meaning(**keys)
    return open_specified_clients(found.config, found.clients)


def test_region_and_endpoint_of_each_service_arrive_at_its_client(credentials):
    clients = clients_of(
        regionName="eu-central-1",
        dynamoDbClient__region="eu-north-1",
        cloudWatchClient__region="eu-west-3",
        cloudWatchClient__endpointOverride="http://127.0.0.1:3",
        kinesisEndpoint="http://127.0.0.1:1",
        dynamoDbClient__endpointOverride="http://127.0.0.1:2",
    )
    assert {name: client.meta.region_name for name, client in clients.items()} == {
        "kinesis": "eu-central-1",
        "dynamodb": "eu-north-1",
        "cloudwatch": "eu-west-3",
    }
    assert clients["cloudwatch"].meta.endpoint_url == "http://127.0.0.1:3"
    assert clients["kinesis"].meta.endpoint_url == "http://127.0.0.1:1"
    assert clients["dynamodb"].meta.endpoint_url == "http://127.0.0.1:2"


def test_without_region_and_endpoint_boto3_finds_them_and_an_arn_decides_the_region(credentials, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert clients_of()["dynamodb"].meta.endpoint_url == "https://dynamodb.us-west-2.amazonaws.com"
    by_arn = clients_of(streamName=None, streamArn=ARN)
    assert {client.meta.region_name for client in by_arn.values()} == {"eu-west-1"}


def test_the_clients_are_those_pykcl_makes_itself(credentials):
    clients = clients_of(regionName="eu-west-1", failoverTimeMillis="5000", maxLeasesForWorker="30")
    dynamodb = clients["dynamodb"].meta.config
    assert (dynamodb.connect_timeout, dynamodb.read_timeout) == (0.6, 0.6)
    assert dynamodb.retries["total_max_attempts"] == 1
    assert dynamodb.max_pool_connections == 42


# -- the lease table -----------------------------------------------------------------------------------------------


class RememberingBackups(MemoryDynamoDB):
    """Knows one operation more. refusals: raised by the first calls."""

    def __init__(self, *refusals, **options):
        super().__init__(**options)
        self.recovery, self.refusals = [], list(refusals)

    def update_continuous_backups(self, **params):
        if self.refusals:
            raise self.refusals.pop(0)
        self.recovery.append(params)
        return {"ContinuousBackupsDescription": {"ContinuousBackupsStatus": "ENABLED"}}


def created(client):
    return [params for operation, params in client.requests if operation == "CreateTable"]


def table_of(client, **keys):
    config = meaning(**keys, retrievalMode="POLLING").config
    table, _ = connect(config, SystemRuntime(), clients={"dynamodb": client, "kinesis": _NoKinesis()})
    return table


class _NoKinesis:
    class meta:  # noqa: N801
        endpoint_url = "https://kinesis.eu-central-1.amazonaws.com"

        class events:  # noqa: N801
            @staticmethod
            def register(*_, **__):
                """Nothing listens."""


def test_a_table_is_made_with_protection_and_recovery_if_the_file_says_so():
    client = RememberingBackups()
    table_of(client, leaseTableDeletionProtectionEnabled="true", leaseTablePitrEnabled="true").prepare(
        create=True
    )
    assert created(client)[0]["DeletionProtectionEnabled"] is True
    assert client.recovery == [
        {"TableName": "orders-app", "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}}
    ]


def test_the_state_of_java_is_looked_for_in_the_table_the_file_names():
    client = RememberingBackups()
    for keys, asked in (
        ({"coordinatorStateTableName": "orders-state"}, "orders-state"),
        ({}, "orders-app-CoordinatorState"),
    ):
        table_of(client, **keys).java_state()
        assert client.requests[-1][1]["TableName"] == asked
    statements = worker_policy(stream="s", table="t", coordinator_state_table="orders-state")["Statement"]
    assert statements[-1]["Resource"].endswith("table/orders-state")


def test_otherwise_neither_is_mentioned():
    client = RememberingBackups()
    table_of(client).prepare(create=True)
    assert "DeletionProtectionEnabled" not in created(client)[0]
    assert client.recovery == []


def test_a_table_that_exists_is_left_as_it_is():
    client = RememberingBackups()
    table_of(client).prepare(create=True)
    table_of(client, leaseTablePitrEnabled="true").prepare(create=True)
    assert len(created(client)) == 1
    assert client.recovery == []


def test_recovery_is_asked_for_once_the_table_is_active_and_again_until_it_is_possible():
    from pykcl.stores.expressions import aws_error

    unavailable = aws_error("ContinuousBackupsUnavailableException", "CANARY", "UpdateContinuousBackups")
    client = RememberingBackups(unavailable, describes_until_active=1)
    table = table_of(client, leaseTablePitrEnabled="true")
    with pytest.raises(TemporaryError, match="CREATING"):
        table.prepare(create=True)
    assert len(client.refusals) == 1, "it was asked for while the table was being made"
    with pytest.raises(TemporaryError, match="not possible yet"):
        table.prepare(create=True)
    assert table.prepare(create=True) is True
    assert len(client.recovery) == 1


def test_recovery_that_is_not_permitted_is_told_with_what_to_do():
    client = RememberingBackups(denied("UpdateContinuousBackups"))
    with pytest.raises(SetupError, match=r"dynamodb:UpdateContinuousBackups.*exists now, without recovery"):
        table_of(client, leaseTablePitrEnabled="true").prepare(create=True)


def test_the_policy_allows_recovery_where_it_is_wanted():
    wanted = "dynamodb:UpdateContinuousBackups"
    assert wanted in actions_of(worker_policy(stream="s", table="t", point_in_time_recovery=True))
    assert wanted not in actions_of(worker_policy(stream="s", table="t"))


def test_dynamodb_itself_says_that_the_table_is_protected_and_recoverable(credentials):
    with LocalAws() as aws:
        found = meaning(
            regionName="us-east-1", dynamoDBEndpoint=aws.url, kinesisEndpoint=aws.url,
            leaseTableDeletionProtectionEnabled="true", leaseTablePitrEnabled="true",
        )  # fmt: skip
        aws.kinesis.create_stream("orders", 1)
        clients = open_specified_clients(found.config, found.clients)
        table, stream = connect(found.config, SystemRuntime(), clients=clients)
        assert stream.describe().name == "orders"
        assert table.prepare(create=True)
        described = clients["dynamodb"].describe_table(TableName="orders-app")["Table"]
        assert described["DeletionProtectionEnabled"] is True
        backups = clients["dynamodb"].describe_continuous_backups(TableName="orders-app")
        recovery = backups["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"]
        assert recovery["PointInTimeRecoveryStatus"] == "ENABLED"


def test_by_default_a_new_table_is_plain():
    client = RememberingBackups()
    DynamoDBLeaseTable(client, "leases", SystemRuntime()).prepare(create=True)
    assert NewTable().parameters == {}
    assert "DeletionProtectionEnabled" not in created(client)[0]


# -- the worker ----------------------------------------------------------------------------------------------------


def told_by(**keys):
    """The options of the worker that the keys change."""
    plain, found = meaning().config, meaning(**keys).config
    names = Config.__dataclass_fields__
    return {name: getattr(found, name) for name in names if getattr(found, name) != getattr(plain, name)}


class Sizes(RecordingProcessor):
    def process_records(self, batch):
        self.ledger.calls.append((self.worker, "size", len(batch)))
        super().process_records(batch)


def sized(fleet):
    return lambda: Sizes("w1", fleet.ledger)


def sizes(fleet):
    return [size for _, what, size in fleet.ledger.calls if what == "size"]


def test_a_processor_is_called_for_reads_that_brought_nothing_only_if_the_file_says_so(new_fleet):
    for keys in ({}, {"callProcessRecordsEvenForEmptyRecordList": "true"}):
        fleet = new_fleet(shards=1)
        put = fleet.put(3)
        fleet.start("w1", processor=sized(fleet), **told_by(**keys))
        fleet.wait_delivered(put)
        fleet.simulation.sleep(10)
        assert (0 in sizes(fleet)) is bool(keys)
        assert sum(sizes(fleet)) == 3


def test_an_empty_batch_checkpoints_what_the_batches_before_it_brought(new_fleet):
    """What the option is for: flushing what was kept, when nothing comes for a while."""

    class Keeps(RecordingProcessor):
        def process_records(self, batch):
            if not batch:
                batch.checkpointer.checkpoint()
            super().process_records(batch)

    fleet = new_fleet(shards=1)
    options = {"checkpoint_mode": "manual", **told_by(callProcessRecordsEvenForEmptyRecordList="true")}
    fleet.start("w1", processor=lambda: Keeps("w1", fleet.ledger), **options)
    # Before any record there is nothing to checkpoint, and nothing is refused.
    fleet.simulation.sleep(5)
    put = fleet.put(5)
    fleet.wait_delivered(put)
    last = fleet.ledger.delivered[-1][1].sequence_number
    fleet.wait(
        lambda: fleet.rows()["shardId-000000000000"].checkpoint.sequence_number == last, 30, "the checkpoint"
    )
    assert fleet.ledger.duplicates == 0


def test_the_end_of_a_shard_is_not_told_as_an_empty_batch(new_fleet):
    """As in Java; a last page that brings nothing is followed by shard_ended at once."""
    at = {}

    class Timed(RecordingProcessor):
        def process_records(self, batch):
            at[batch.shard_id, "batch"] = fleet.simulation.now
            super().process_records(batch)

        def shard_ended(self, end):
            at[end.shard_id, "end"] = fleet.simulation.now

    fleet = new_fleet(shards=1)
    options = told_by(callProcessRecordsEvenForEmptyRecordList="true")
    fleet.start("w1", processor=lambda: Timed("w1", fleet.ledger), **options)
    fleet.wait_delivered(fleet.put(2))
    fleet.simulation.sleep(10)
    (parent,) = fleet.open_shards()
    fleet.kinesis.split(STREAM, parent)
    fleet.wait(lambda: fleet.happened(ShardEnded), what="the end")
    # Between two reads there is a pause; between a batch of the last page and the end there would be none.
    assert at[parent, "end"] - at[parent, "batch"] > 0.1


def test_a_raising_empty_batch_costs_no_record(new_fleet):
    def raises(batch):
        if not batch:
            raise ValueError("CANARY")

    for on_error in ("retry", "skip"):
        fleet = new_fleet(shards=1)
        first = fleet.put(2, "a")
        fleet.start(
            "w1",
            processor=lambda fleet=fleet: RecordingProcessor("w1", fleet.ledger, raises),
            call_with_empty_batches=True,
            on_error=on_error,
            retry_timeout=20.0,
        )
        fleet.wait_delivered(first)
        fleet.simulation.sleep(5)
        second = fleet.put(2, "b")
        if on_error == "skip":
            fleet.wait_delivered(second, timeout=10)
        else:
            fleet.simulation.sleep(30)
            fleet.start("w2")
            fleet.wait_delivered(second)
        assert set(first + second) <= fleet.ledger.payloads.keys()


def test_batches_are_as_large_as_the_file_allows(new_fleet):
    fleet = new_fleet(shards=1)
    put = fleet.put(20)
    fleet.start("w1", processor=sized(fleet), **told_by(maxRecords="6"))
    fleet.wait_delivered(put)
    assert max(sizes(fleet)) == 6


def test_the_worker_holds_as_many_leases_as_the_file_allows_under_the_name_it_says(new_fleet):
    fleet = new_fleet(shards=4)
    options = told_by(maxLeasesForWorker="3", workerId="host-7")
    fleet.start("w1", **options)
    fleet.simulation.sleep(60)
    assert fleet.load() == {"host-7": 3, None: 1}


def test_leases_of_ended_shards_stay_in_the_table_only_if_the_file_says_so(new_fleet):
    for keys, stays in (({"cleanupLeasesUponShardCompletion": "false"}, True), ({}, False)):
        fleet = new_fleet(shards=1)
        fleet.put(2)
        fleet.start("w1", **told_by(**keys))
        fleet.wait_delivered(fleet.put(1))
        fleet.kinesis.split(STREAM, "shardId-000000000000")
        fleet.wait(lambda fleet=fleet: fleet.happened(ShardEnded), what="the end")
        fleet.wait_delivered(fleet.put(10))
        fleet.simulation.sleep(400)
        assert ("shardId-000000000000" in fleet.rows()) is stays
        assert bool(fleet.happened(LeaseDeleted)) is not stays


def test_an_application_without_leases_starts_where_the_file_says(new_fleet):
    for position, comes in (("TRIM_HORIZON", True), ("LATEST", False)):
        fleet = new_fleet(shards=1)
        old = fleet.put(3, "old")
        # Of the test bench's own: its start is TRIM_HORIZON unless it is told.
        fleet.start("w1", initial_position=meaning(initialPositionInStream=position).config.initial_position)
        assert fleet.workers["w1"].wait_ready(60)
        fleet.wait_delivered(fleet.put(3, "new"))
        assert (set(old) <= fleet.ledger.payloads.keys()) is comes


def test_a_worker_of_the_file_reads_the_stream_and_keeps_the_table_it_names(credentials):
    with LocalAws() as aws:
        aws.kinesis.create_stream("orders", 1)
        aws.kinesis.put_record("orders", b"payload", "key")
        found = meaning(
            "native", regionName="us-east-1", dynamoDBEndpoint=aws.url, kinesisEndpoint=aws.url, tableName="leases-7",
            initialPositionInStream="TRIM_HORIZON", workerId="w-7",
        )  # fmt: skip
        clients = open_specified_clients(found.config, found.clients)
        ledger = _Ledger()
        worker = Worker(processor=lambda: ledger, config=found.config, clients=clients)
        with worker:
            assert ledger.arrived.wait(300)
            (item,) = clients["dynamodb"].scan(TableName="leases-7")["Items"]
            assert item["leaseOwner"] == {"S": "w-7"}


class _Ledger(RecordingProcessor):
    def __init__(self):
        import threading

        self.arrived = threading.Event()

    def initialize(self, init):
        """Nothing to write down."""

    def process_records(self, batch):
        self.arrived.set()

    def shutdown_requested(self, request):
        """Nothing to write down."""
