"""Every finding of the catalogue, made to happen against the local AWS; and a healthy set-up that has none of them."""

from __future__ import annotations

import sys
from dataclasses import replace

import click
import pytest
from doctor_world import APPLICATION, FAILOVER, KEY, OWNER, STREAM, Iam, World, check_command, shard

from pykcl.aws.credentials import ClientSpec
from pykcl.compat.properties.parsing import FANOUT_NOTICE
from pykcl.local.errors import AwsError
from pykcl.local.faults import FaultRule
from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Standstill
from pykcl.model.lease_item import to_item
from pykcl.operate.doctor.bundle import bundle_of, redactor_of
from pykcl.operate.doctor.checks import diagnose
from pykcl.operate.doctor.facts import FileFacts
from pykcl.operate.doctor.findings import CATALOGUE
from tests.java_compat.scenarios import java_3x

HEALTHY = {
    "process-ok", "credentials-ok", "region-ok", "clock-ok", "stream-ok", "lag-ok", "table-ok", "permissions-ok",
    "permissions-unproven", "peers-ok", "hosts-asked",
}  # fmt: skip
QUICK = {"table-missing", "stream-missing", "records-trimmed", "permission-denied"}
"""One of each kind of set-up; the others are slow tests."""
HOURS = 3600.0

MADE = {}


def makes(id, text):
    """What the decorated function does to a healthy set-up has this finding; text: a part of what is said then."""

    def register(break_it):
        MADE[id] = (break_it, text)
        return break_it

    return register


def test_a_healthy_setup_has_nothing_to_complain_about(world):
    findings = world.findings()
    assert findings.keys() == HEALTHY
    assert {one.level for one in findings.values()} == {"ok", "info"}
    assert "1 live worker: 1 pykcl" in findings["peers-ok"].text
    assert "2 open shards, kept 24h" in findings["stream-ok"].text
    assert (
        "2 leases (KCL 2.x" in findings["table-ok"].text or "2 leases (KCL 1.x" in findings["table-ok"].text
    )
    assert "arn:aws:iam::000000000000:user/local (env)" in findings["credentials-ok"].text


def test_every_finding_is_made_to_happen():
    assert HEALTHY | MADE.keys() == CATALOGUE.keys()


@pytest.mark.parametrize(
    "id",
    [
        pytest.param(id, marks=() if id in QUICK else pytest.mark.slow)
        for id in sorted(CATALOGUE.keys() - HEALTHY)
    ],
)
def test_the_finding_is_told_when_it_is_so(id, world, iam):
    break_it, text = MADE[id]
    break_it(world)
    findings = world.findings()
    assert id in findings, {one.id: one.text for one in findings.values() if one.level != "ok"}
    one = findings[id]
    assert text in one.text
    assert (one.level, one.topic, one.code) == (CATALOGUE[id].level, CATALOGUE[id].topic, CATALOGUE[id].code)
    assert one.fix or one.level in ("ok", "info"), "what is wrong has what mends it"
    if one.fix:
        check_command(one.fix)


@pytest.mark.parametrize(
    "fix",
    [
        "pykcl fly",
        "pykcl leases list --fly",
        "pykcl run … --option fly=1",
        "aws kinesis list-streams --fly 1",
        "aws kinesis fly",
    ],
)
def test_a_command_that_does_not_exist_would_be_found(fix):
    with pytest.raises((click.ClickException, AssertionError, KeyError)):
        check_command(fix)


def test_looking_writes_nothing(world):
    world.beats_every = None
    before, asked = world.rows(), len(list(world.aws.requests))
    world.findings()
    called = [one.operation for one in list(world.aws.requests)[asked:]]
    assert world.rows() == before
    assert called.count("ListShards") == 1
    assert set(called) == {
        "GetCallerIdentity", "DescribeTable", "DescribeTimeToLive", "Scan", "GetItem", "DescribeStreamSummary", "ListShards",
        "GetShardIterator", "GetRecords",
    }  # fmt: skip


def unused(world):
    return world.facts().consumers.unused


def test_a_consumer_is_in_use_while_a_live_worker_reads_by_it_and_a_java_worker_by_that_of_its_application(
    world,
):
    for name in (APPLICATION, "mine"):
        world.aws.kinesis.register_consumer(STREAM, name)
    world.change(metadata=world.note(consumer="mine"))
    assert unused(world) == (APPLICATION,)
    world.change(owner="java", metadata=None)
    assert unused(world) == ("mine",)
    world.beats_every = None
    assert unused(world) == ("mine", APPLICATION)
    world.asked["watch"] = False
    assert unused(world) == ()


def test_the_lease_table_of_a_consumers_name_is_watched_too(world):
    world.aws.kinesis.register_consumer(STREAM, "others-app")
    world.dynamodb.create_table(TableName="others-app", KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
                                AttributeDefinitions=[KEY], BillingMode="PAY_PER_REQUEST")  # fmt: skip
    counter = iter(range(1, 10_000))

    def beat():
        lease = world.lease(0, owner="java", metadata=None, counter=next(counter))
        world.dynamodb.put_item(TableName="others-app", Item=to_item(lease))

    beat()
    world.beat = beat
    assert unused(world) == ()
    world.beats_every = None
    assert unused(world) == ("others-app",)
    world.refuse("AccessDeniedException", "Scan")
    assert unused(world) == ()


def test_fan_out_is_asked_for_by_the_name_of_its_consumer_and_granted_with_it(world):
    world.change(metadata=world.note(consumer="mine"))
    asked = len(list(world.aws.requests))
    findings = world.findings()
    called = {one.operation for one in list(world.aws.requests)[asked:]}
    assert "DescribeStreamConsumer" in called
    assert not called & {"SubscribeToShard", "RegisterStreamConsumer"}
    assert "kinesis:SubscribeToShard" in findings["permissions-unproven"].text
    world.refuse("AccessDeniedException", "DescribeStreamConsumer")
    denied = world.findings()["permission-denied"]
    assert "kinesis:DescribeStreamConsumer" in denied.text
    assert denied.fix.endswith("--fan-out mine")


# -- credentials, region, clock, reach -------------------------------------------------------------------------


@makes("credentials-missing", "No AWS credentials")
def _(world):
    world.monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    world.monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")


@makes("credentials-refused", "UnrecognizedClientException")
def _(world):
    world.refuse("UnrecognizedClientException", service="dynamodb")


@makes("credentials-temporary", "nothing renews")
def _(world):
    world.monkeypatch.setenv("AWS_SESSION_TOKEN", "local")


@makes("identity-unknown", "not permitted")
def _(world):
    world.refuse("AccessDenied", service="sts")


@makes("region-missing", "No AWS region")
def _(world):
    world.monkeypatch.delenv("AWS_REGION")
    world.monkeypatch.delenv("AWS_DEFAULT_REGION")


@makes("region-differs", "AWS_REGION says eu-west-1")
def _(world):
    world.monkeypatch.setenv("AWS_REGION", "eu-west-1")
    world.in_region("us-east-1")


@makes("regions-two", "dynamodb in eu-west-1, kinesis in us-east-1")
def _(world):
    world.clients = replace(world.clients, specs={"dynamodb": ClientSpec(region="eu-west-1")})


@makes("clock-off", "s behind AWS'")
def _(world):
    world.skew = 60.0


@makes("clock-wrong", "s ahead of AWS'")
def _(world):
    world.skew = -300.0


@makes("aws-unreachable", "kinesis:")
def _(world):
    world.aws.faults.replace([FaultRule("error", "kinesis", "ListShards")])


@makes("hosts-asked", "kinesis.GetRecords")
def _(world):
    """Those of a healthy set-up."""


@makes("aws-throttles", "kinesis:GetRecords")
def _(world):
    world.aws.faults.replace([FaultRule("throttle", "kinesis", "GetRecords")])


# -- a program that puts records ---------------------------------------------------------------------------------


def _of_producer(world):
    world.asked |= {"program": "producer", "application": None, "table": None}


@makes("puts-ok", "2 open shards for 2 MiB")
def _(world):
    _of_producer(world)


@makes("puts-throttled", "refused 7 records within 15 minutes")
def _(world):
    _of_producer(world)
    world.throttle_puts(7, minutes_ago=1)


@makes("key-untried", "kms:GenerateDataKey")
def _(world):
    _of_producer(world)
    world.encrypt("arn:aws:kms:us-east-1:000000000000:key/1")


# -- stream and lag --------------------------------------------------------------------------------------------


@makes("stream-unnamed", "does not say which")
def _(world):
    world.asked["stream"] = None
    world.change(metadata=None)


@makes("stream-missing", "'ordes' does not exist in us-east-1 (account 000000000000). There are here: orders")
def _(world):
    world.asked["stream"] = "ordes"


@makes("stream-deleting", "being deleted")
def _(world):
    _stay(world)
    world.aws.kinesis.delete_stream(STREAM)


@makes("keys-ignored", "whatever their partition key")
def _(world):
    world.aws.kinesis.delete_stream(STREAM)
    world.aws.kinesis.create_stream(STREAM, 2, mode="ON_DEMAND", distribution="AUTO")


@makes("consumers-billed", "AWS bills 1 x 2 = 2 consumer-shard-hours an hour")
def _(world):
    world.aws.kinesis.register_consumer(STREAM, APPLICATION)


@makes("consumer-unused", "reads by the consumer 'orders-app'")
def _(world):
    world.aws.kinesis.register_consumer(STREAM, APPLICATION)


@makes("consumer-missing", "has no consumer 'mine', and register_consumer is off")
def _(world):
    world.config |= {"retrieval": "fanout", "consumer": "mine", "register_consumer": False}


@makes("stream-changing", "UPDATING")
def _(world):
    _stay(world)
    world.aws.kinesis.split(STREAM, shard(0))


def _stay(world):
    """From now on a stream stays in a state for a minute."""
    world.monkeypatch.setattr(world.aws.kinesis, "_state_millis", 60_000)


@makes("lag-near-retention", "13h")
def _(world):
    world.put_record()
    world.later += 13 * HOURS + 60


@makes("lag-at-retention", "dropped in 1h")
def _(world):
    world.put_record()
    world.later += 22.5 * HOURS


@makes("records-trimmed", "000: Kinesis no longer has")
def _(world):
    place = world.put_record()
    world.later += 25 * HOURS
    world.put_record()
    world.put(world.lease(0, place))


@makes(
    "shards-without-lease", "002, 003 cannot be read yet, without a lease: 002 waits for the end of shardId-"
)
def _(world):
    world.aws.kinesis.split(STREAM, shard(0))
    world.later += 60.0


@makes("lag-unknown", "001: unknown lag")
def _(world):
    world.put(world.lease(1, Checkpoint("12345", 0)))


# -- the table -------------------------------------------------------------------------------------------------


@makes("table-to-be-made", "no lease table 'orders-app' yet")
def _(world):
    world.drop_table()


@makes("table-missing", "create_table is off")
def _(world):
    world.drop_table()
    world.config["create_table"] = False


@makes("table-foreign", "its key is id")
def _(world):
    world.drop_table()
    world.make_table({"AttributeName": "id", "AttributeType": "S"})


@makes("table-changing", "is UPDATING")
def _(world):
    from moto.dynamodb.models.table import Table

    described = Table.describe

    def updating(self, *args, **more):
        told = described(self, *args, **more)
        for part in (told, told.get("Table", {}), told.get("TableDescription", {})):
            if "TableStatus" in part:
                part["TableStatus"] = "UPDATING"
        return told

    world.monkeypatch.setattr(Table, "describe", updating)


@makes("table-small", "the table has 1 write units")
def _(world):
    world.config["failover_time"] = world.asked["failover"] = 3.0
    world.beats_every = 1.0
    world.drop_table()
    world.make_table(
        BillingMode="PROVISIONED", ProvisionedThroughput={"ReadCapacityUnits": 50, "WriteCapacityUnits": 1}
    )
    world.put(world.lease(0), world.lease(1))


@makes("table-expires", "deletes rows of 'orders-app' by the time in their attribute 'expires'")
def _(world):
    world.dynamodb.update_time_to_live(
        TableName=APPLICATION, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires"}
    )


@makes("table-of-another-stream", "payments")
def _(world):
    world.change(metadata=world.note(stream_arn="arn:aws:kinesis:us-east-1:000000000000:stream/payments"))


def test_an_earlier_stream_of_the_same_name_is_another_stream(world):
    world.change(metadata=world.note(stream_created_at=1_600_000_000_000))
    assert "an earlier stream of this name" in world.findings()["table-of-another-stream"].text


@makes("leases-of-no-shard", "None of the 2 leases")
def _(world):
    world.forget_leases()
    world.put(world.lease(98, metadata=None), world.lease(99, metadata=None))


@makes("several-streams", "Leases of 1 stream")
def _(world):
    stream = "000000000000:orders:1790000000000"
    item = to_item(world.lease(0, metadata=None))
    world.put_item(
        {
            **item,
            "leaseKey": {"S": f"{stream}:{shard(0)}"},
            "streamName": {"S": stream},
            "shardId": {"S": shard(0)},
        }
    )


@makes("fleet-native-3x", "CLIENT_VERSION_3X")
def _(world):
    world.put_item(
        {
            "leaseKey": {"S": "Migration3.0"},
            "cv": {"S": "CLIENT_VERSION_3X"},
            "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
        }
    )


def lead(world, *, owner=OWNER, ago=5, **more):
    """A native fleet of KCL 3.x whose leader is the only worker, and that lacks nothing."""
    world.drop_table()
    keys = [("leaseOwner", "HASH"), ("leaseKey", "RANGE")]
    world.dynamodb.create_table(
        TableName=APPLICATION,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name, _ in keys],
        BillingMode="PAY_PER_REQUEST",
        GlobalSecondaryIndexes=[
            {
                "IndexName": java_3x.OWNER_INDEX,
                "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in keys],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    )
    world.put(*(world.lease(number) for number in range(2)))
    world.put_item(java_3x.migration_row(java_3x.NATIVE, owner, 1))
    world.put_item(java_3x.leader_lock(owner, "v1", **more))
    report(world, OWNER, ago)


def report(world, worker, ago=5):
    world.dynamodb.update_item(
        **java_3x.worker_metrics(APPLICATION, worker, world.now_millis() // 1000 - ago)
    )


def test_a_healthy_fleet_of_kcl_3x_has_nothing_to_complain_about(world):
    lead(world)
    report(world, "stopped-java", ago=3600)
    findings = world.findings()
    assert findings.keys() == HEALTHY
    assert "1 live worker: 1 pykcl" in findings["peers-ok"].text


@makes("leader-absent", "leader: none")
def _(world):
    lead(world)
    world.dynamodb.delete_item(TableName=APPLICATION, Key={"leaseKey": {"S": "Leader"}})


def test_a_leader_whose_report_is_old_seems_to_be_dead_unless_its_lock_moves(world):
    lead(world, owner="java-1")
    report(world, "java-1", ago=300)
    assert (
        "java-1 holds the lock and seems to be dead: last report 5m" in world.findings()["leader-absent"].text
    )
    beat, numbers = world.beat, iter(range(100))

    def with_lock():
        beat()
        world.put_item(java_3x.leader_lock("java-1", f"v{next(numbers)}"))

    world.beat = with_lock
    assert "leader-absent" not in world.findings()


@makes("owner-without-metrics", "guest owns leases and reports no metrics")
def _(world):
    lead(world)
    world.put(world.lease(1, owner="guest"))


@makes("metrics-stale", "py-worker-1 last reported 5m")
def _(world):
    lead(world, ago=300)


@makes("metrics-ahead", "far last reported 1h")
def _(world):
    lead(world)
    report(world, "far", ago=-3700)


@makes("metrics-unfit", "half (its metrics cannot be understood)")
def _(world):
    lead(world)
    world.put_item({"leaseKey": {"S": "half"}, "entityType": {"S": "WORKER_METRIC_STATS"}, "lut": {"N": "5"}})


@makes("worker-id-of-a-shard", "001 is the identifier of a worker and of a shard")
def _(world):
    report(world, shard(1))


def test_a_worker_id_of_a_shard_is_found_before_the_worker_starts(world):
    world.config["worker_id"] = shard(7)
    assert "007 is the identifier" in world.findings()["worker-id-of-a-shard"].text


@makes("owner-index-missing", "is missing: a Java worker of 3.x creates it")
def _(world):
    world.put_item(java_3x.migration_row(java_3x.NATIVE, OWNER, 1))


def test_an_index_that_is_being_made_is_said_and_one_that_nobody_may_see_is_not(world):
    lead(world)
    facts = world.facts()

    def said(**changes):
        changed = replace(facts, table=replace(facts.table, **changes))
        return {one.id: one.text for one in diagnose(changed)}.get("owner-index-missing", "")

    assert "is CREATING" in said(index_status="CREATING")
    assert not said(index_status=None, provisioned=None)
    assert not said()


def test_a_report_has_no_name_of_a_fleet_of_kcl_3x(world):
    lead(world, owner="secret-leader")
    report(world, "secret-member", ago=-4000)
    facts = world.facts()
    files = bundle_of(facts, diagnose(facts), redactor_of(facts, "salt"), "now")
    assert "secret" not in "".join(files.values())
    assert '"standing": "ahead"' in files["table.json"]
    assert "secret-leader" in "".join(bundle_of(facts, diagnose(facts), None, "now").values())


@makes("table-migration-running", "TABLE_MIGRATION_PENDING")
def _(world):
    row = {"leaseKey": {"S": "TableMigration3.5"}, "entityType": {"S": "TABLE_MIGRATION"}}
    world.put_item({**row, "tm": {"S": "TABLE_MIGRATION_PENDING"}})


@makes("java-state-unread", "not permitted")
def _(world):
    lead(world)
    world.dynamodb.delete_item(TableName=APPLICATION, Key={"leaseKey": {"S": "Migration3.0"}})
    for name, key in (("CoordinatorState", "key"), ("WorkerMetricStats", "wid")):
        world.dynamodb.create_table(
            TableName=f"{APPLICATION}-{name}",
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )

    def fault(service, operation, request):
        if operation in ("GetItem", "Scan") and request.get("TableName") != APPLICATION:
            raise AwsError("AccessDeniedException", "User: x is not authorized")

    world.aws.fault = fault


@makes("rows-unreadable", "cannot be understood")
def _(world):
    world.put_item({**to_item(world.lease(1)), "leaseCounter": {"S": "many"}})


def test_a_row_without_a_counter_is_named_with_what_to_put_back(world):
    item = to_item(world.lease(1))
    del item["leaseCounter"]
    world.put_item(item)
    finding = world.findings()["rows-unreadable"]
    assert finding.text.startswith("001 cannot be understood (leaseCounter ")
    assert "no worker reads that shard, and whoever did gave it up" in finding.text
    assert "Put back what is missing; a leaseCounter above all that the row has had" in finding.text
    assert finding.fix == f"pykcl leases describe {shard(1)} --table orders-app"


# -- permissions -----------------------------------------------------------------------------------------------


@makes(
    "permission-denied",
    "Denied for arn:aws:iam::000000000000:user/local: dynamodb:GetItem, kinesis:GetShardIterator.",
)
def _(world):
    from pykcl.local.errors import AwsError

    def fault(service, operation, parameters):
        if operation in ("GetItem", "GetShardIterator"):
            raise AwsError("AccessDeniedException", "not authorized")

    world.aws.fault = fault


@makes("key-denied", "KMSAccessDeniedException")
def _(world):
    world.refuse("KMSAccessDeniedException", "GetRecords")


@makes("permissions-simulated", "all 12 actions")
def _(world):
    world.monkeypatch.setenv("AWS_ENDPOINT_URL_IAM", Iam.url)
    world.asked["simulate_iam"] = True


@makes("permission-would-be-denied", "dynamodb:UpdateItem on table/orders-app")
def _(world):
    Iam.denied = frozenset({"dynamodb:UpdateItem"})
    world.monkeypatch.setenv("AWS_ENDPOINT_URL_IAM", Iam.url)
    world.asked["simulate_iam"] = True


@makes("simulation-failed", "IAM could not simulate")
def _(world):
    # The local AWS has no IAM.
    world.asked["simulate_iam"] = True


def test_iam_is_told_the_resource_and_the_condition_of_every_statement(world, iam):
    MADE["permissions-simulated"][0](world)
    world.findings()
    resources = {form["ResourceArns.member.1"][0] for form in iam.asked}
    assert "arn:aws:dynamodb:us-east-1:000000000000:table/orders-app" in resources
    assert "arn:aws:kinesis:us-east-1:000000000000:stream/orders" in resources
    (metrics,) = [form for form in iam.asked if form["ActionNames.member.1"] == ["cloudwatch:PutMetricData"]]
    assert metrics["ContextEntries.member.1.ContextKeyValues.member.1"] == [APPLICATION]


# -- the fleet -------------------------------------------------------------------------------------------------


@makes("nobody-works", "No lease moved")
def _(world):
    world.beats_every = None


@makes("peers-other-version", "py-worker-1 runs pykcl 0.0.1")
def _(world):
    world.change(metadata=world.note(version="0.0.1"))


@makes("leases-stale", "000, 001 did not change")
def _(world):
    world.beats_every = None


@makes("failover-too-short", "py-worker-1 renewed once")
def _(world):
    world.beats_every = 9.0


@makes("failover-too-long", "renewed 30 times in 15.2 s")
def _(world):
    world.beats_every = 0.5


def test_checkpoints_do_not_pass_for_heartbeats(world):
    """A busy owner moves its counter with every checkpoint."""
    beat, count = world.beat, iter(range(1, 1000))

    def checkpoint():
        beat()
        world.change(checkpoint=Checkpoint(str(10**40 + next(count)), 0))

    world.asked["lag"] = False
    world.beat, world.beats_every = checkpoint, 0.5
    assert "failover-too-long" not in world.findings()


@makes("dead-letters-ok", "s3://letters, is not tried")
def _(world):
    world.config["dead_letters"] = "s3://letters"


@makes("dead-letters-unreachable", "the queue does not exist")
def _(world):
    world.config["dead_letters"] = "arn:aws:sqs:us-east-1:000000000000:nothing"


@makes("dead-letters-elsewhere", "is of account 123456789012, and these credentials are of 000000000000")
def _(world):
    world.config["dead_letters"] = "s3://letters?owner=123456789012"


def _standing(world, **more):
    note = {
        "since": 1_790_000_000_000,
        "handed_back": 3,
        "records": 1,
        "code": "E12",
        "cause": "x raised KeyError at o.py:1",
    }
    return world.note(standstill=Standstill(AT_TRIM_HORIZON, **{**note, **more}))


@makes(
    "shard-stands",
    "000 stands since 2026-09-21T14:13:20Z: x raised KeyError at o.py:1 over 1 record (E12), handed back 3 times",
)
def _(world):
    world.put(world.lease(0, metadata=_standing(world)))


def test_the_commands_for_a_shard_that_stands_can_be_copied(world):
    world.put(world.lease(0, metadata=_standing(world, records=500)))
    finding = world.findings()["shard-stands"]
    assert finding.fix == f"pykcl tail orders --shard {shard(0)} --from-app orders-app -n 10"
    step = f"pykcl checkpoints reset --application orders-app --stream orders --shard {shard(0)} --shift-by 1"
    assert step in finding.text
    assert "--option max_attempts=5 --option dead_letters=" in finding.text
    world.put(world.lease(0, metadata=_standing(world, records=0, code="E22")))
    assert world.findings()["shard-stands"].fix == "pykcl explain E22"


def test_a_note_of_a_place_that_was_left_since_says_nothing(world):
    """As a Java worker leaves it that took the lease and got on."""
    world.put(world.lease(0, world.put_record(), metadata=_standing(world), owner="java-1"))
    assert "shard-stands" not in world.findings()


@makes("owners-change", "000 changed hands up to 7 times")
def _(world):
    world.put(world.lease(0, owner_switches=7))


@makes("max-leases-small", "1 are not read")
def _(world):
    world.config["max_leases"] = 1


@makes("worker-id-taken", "'py-worker-1'")
def _(world):
    world.config["worker_id"] = OWNER


@makes("worker-id-shared", "as 'py-worker-1' within")
def _(world):
    world.put(*(world.lease(number, metadata=world.note(process_token=f"t{number}")) for number in range(2)))


def test_processes_that_do_not_renew_and_rows_that_java_took_show_no_second_process(world):
    """One was restarted under its name, and its former rows wait; of another row Java is the owner."""
    old, java = world.note(process_token="old"), world.note(process_token="older")
    world.put(
        world.lease(0, metadata=world.note(process_token="new"), owner="java-1"),
        world.lease(1, metadata=java),
    )
    assert "worker-id-shared" not in world.findings()
    world.put(world.lease(0, metadata=old), world.lease(1, metadata=java))
    world.beats_every = None
    assert "worker-id-shared" not in world.findings()


@makes("start-latest", "the start is LATEST")
def _(world):
    world.forget_leases()


@makes("start-ignored", "2 leases have a checkpoint")
def _(world):
    world.config["initial_position"] = "TRIM_HORIZON"
    world.change(checkpoint=world.put_record())


# -- this machine ----------------------------------------------------------------------------------------------


@makes("connections-few", "has 512 connections")
def _(world):
    _many_shards(world)


@makes("files-few", "and 900 are allowed")
def _(world):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == resource.RLIM_INFINITY or soft >= 900
    world.monkeypatch.setattr(resource, "getrlimit", lambda _: (900, hard))
    _many_shards(world)


def _many_shards(world):
    world.aws.kinesis.create_stream("wide", 501)
    world.asked["stream"] = "wide"


@makes("package-missing", "'prometheus_client'")
def _(world):
    world.monkeypatch.setitem(sys.modules, "prometheus_client", None)
    world.config["metrics"] = "prometheus"


@makes("metrics-off", "No metrics")
def _(world):
    world.config["metrics"] = "none"


@makes("program-unfit", "executableName: there is no program 'app'")
def _(world):
    unfit = (": there is no program 'app' in PATH that may be run", "name one that is")
    world.asked["file"] = FileFacts(name="app.properties", unfit=unfit)


@makes("key-unknown", "app.properties, line 7: workersId has no effect, in Java either.")
def _(world):
    unknown = (("app.properties, line 7", "workersId", "has no effect, in Java either."),)
    world.asked["file"] = FileFacts(name="app.properties", unknown=unknown)


@makes("value-literal", "app.properties, line 7: workerId: the $ in it stands for no variable")
def _(world):
    literal = (("app.properties, line 7", "workerId", "the $ in it stands for no variable, in Java either."),)
    world.asked["file"] = FileFacts(name="app.properties", literal=literal)


@makes("fan-out-used", "app.properties: The stream is read by enhanced fan-out, as Java reads it")
def _(world):
    world.asked["file"] = FileFacts(name="app.properties", notice=FANOUT_NOTICE)


def test_half_again_the_failover_time_is_watched_and_no_longer(world):
    facts = world.facts()
    assert facts.watch.span == pytest.approx(1.5 * FAILOVER, abs=1.0)
    assert facts.watch.heartbeats == {OWNER: 4}


def test_without_a_failover_time_nothing_is_said_of_it(world):
    world.asked["failover"], world.beats_every = None, None
    findings = world.findings()
    assert not {"leases-stale", "failover-too-short"} & findings.keys()
    assert "nobody-works" in findings


def test_when_one_thing_is_denied_the_rest_is_still_looked_at(world):
    world.refuse("AccessDeniedException", "DescribeTable")
    findings = world.findings()
    assert "dynamodb:DescribeTable" in findings["permission-denied"].text
    assert {"stream-ok", "lag-ok", "table-ok", "peers-ok"} <= findings.keys()


def test_when_nothing_is_permitted_everything_is_said_to_be_denied(world):
    world.refuse("AccessDeniedException")
    findings = world.findings()
    assert {"permission-denied", "identity-unknown"} <= findings.keys()
    assert findings["permission-denied"].fix == "pykcl iam --application orders-app --stream orders"
    assert not {"table-ok", "stream-ok", "permissions-ok"} & findings.keys()


def test_the_world_can_be_unhealthy_in_several_ways_at_once(monkeypatch):
    with World(monkeypatch, shards=1) as world:
        world.config["max_leases"], world.beats_every = 1, None
        world.skew = 100.0
        assert {"clock-off", "leases-stale", "nobody-works"} <= world.findings().keys()
