"""What migrate tells of properties and of a lease table, and what it writes: report, plan and pykcl.toml."""

import pytest
from migrate_programs import program

from pykcl.aws.credentials import ClientSpec
from pykcl.cli.settings import settings_of
from pykcl.compat.migrate import (
    Migration,
    Move,
    Program,
    TableSnapshot,
    code_findings,
    consumer_of,
    plan,
    properties_findings,
    report,
    summary,
    table_findings,
    toml_text,
)
from pykcl.compat.properties import interpret, read_properties
from pykcl.compat.properties.keys import KEYS_OF_FIELD
from pykcl.config import Config
from pykcl.model.lease import JavaState
from pykcl.model.lease_item import parse_row

LEAST = "applicationName=orders-app\nstreamName=orders\nmetricsLevel=NONE\nretrievalMode=POLLING\nregionName=eu-west-1\n"
ROLE = "StsAssumeRoleCredentialsProvider|arn:aws:iam::123456789012:role/reader|orders|externalId=sesame"


@pytest.fixture
def read(tmp_path):
    def reader(text=LEAST):
        path = tmp_path / "app.properties"
        path.write_text(text, "latin-1")
        return read_properties(path)

    return reader


def whats(findings):
    return {found.what for found in findings}


def differences(properties):
    return properties_findings(properties, interpret(properties, entry_point="kclpy"))


# -- properties ------------------------------------------------------------------------------------------------

ALWAYS = {
    "a batch whose processor raises is delivered again",
    "an exception in initialize is a failure",
    "a stop waits",
    "shards are polled at other intervals",
}


def test_of_the_least_file_only_what_is_always_so_is_told(read):
    assert whats(differences(read())) == ALWAYS


@pytest.mark.parametrize(
    ("line", "what", "number"),
    [
        ("retrievalMode=FANOUT", "enhanced fan-out stays", 6),
        ("cleanupLeasesUponShardCompletion=false", "leases of ended shards are kept", 6),
        ("streamArn=arn:aws:kinesis:eu-west-1:123456789012:stream/orders", "the whole streamArn is used", 6),
        ("timeoutInSeconds=30", "a call that takes too long costs its shard only", 6),
        ("metricsLevel=DETAILED", "CloudWatch metrics count samples differently", 6),
        ("timestampAtInitialPositionInStream=1767225600", "timestampAtInitialPositionInStream is read", 6),
        ("failoverTime=3", "failoverTime is not a key", 6),
        ("workerId=${HOSTNAME}", "workerId is taken as it stands", 6),
    ],
)
def test_what_java_did_otherwise_is_told_with_its_line(read, line, what, number):
    (found,) = [found for found in differences(read(LEAST + line)) if found.what == what]
    assert found.place == f"app.properties:{number}"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("shutdownGraceMillis=5000", "a stop waits"),
        ("idleTimeBetweenReadsInMillis=900", "shards are polled at other intervals"),
    ],
)
def test_what_the_file_decides_is_no_difference(read, line, what):
    assert whats(differences(read(LEAST + line))) == ALWAYS - {what}


def test_a_pause_of_0_is_none_to_java_and_so_the_same_difference(read):
    assert whats(differences(read(LEAST + "idleTimeBetweenReadsInMillis=0"))) == ALWAYS


def test_a_grace_of_0_is_java_s_default_and_so_the_same_difference(read):
    assert whats(differences(read(LEAST + "shutdownGraceMillis=0"))) == ALWAYS


def test_of_children_it_is_told_what_concerns_children(read):
    properties = read("executableName=node app.js\n" + LEAST + "timeoutInSeconds=30\n")
    found = properties_findings(properties, interpret(properties, entry_point="multilang"), in_process=False)
    assert whats(found) == {
        "a child that dies, hangs or answers nonsense costs its shard only", "what a child prints goes to the log",
        "a stop waits", "shards are polled at other intervals",
    }  # fmt: skip
    assert found[0].place == "app.properties:7"
    assert "hangs is ended only with timeoutInSeconds" in found[0].text
    (stop,) = [one for one in found if one.what == "a stop waits"]
    assert "A checkpoint is written only if that method writes one" in stop.text


def test_the_pace_is_compared_with_java_s_only_where_java_polled(read):
    pace = "shards are polled at other intervals"
    (polled,) = [found for found in differences(read()) if found.what == pace]
    assert "Java polls every 1.5 s" in polled.text
    least = "applicationName=orders-app\nstreamName=orders\n"
    assert not any("polled" in what for what in whats(differences(read(least))))
    fanned = differences(read(least + "RetrievalMode=POLLING\n"))
    assert pace not in whats(fanned)
    (adaptive,) = [found for found in fanned if found.what == "shards are polled at adaptive intervals"]
    assert "Java" not in adaptive.text


def test_fan_out_by_default_is_named_though_no_line_says_it(read):
    text = LEAST.replace("retrievalMode=POLLING\n", "")
    (found,) = [found for found in differences(read(text)) if "fan-out" in found.what]
    assert (found.what, found.weight, found.place) == ("enhanced fan-out stays", "fine", "")
    capital = differences(read(text + "RetrievalMode=POLLING"))
    assert {"RetrievalMode is read", "enhanced fan-out becomes polling"} <= whats(capital)


# -- the table -------------------------------------------------------------------------------------------------


def lease(number, owner=None, checkpoint="TRIM_HORIZON", **more):
    item = {
        "leaseKey": {"S": f"shardId-00000000000{number}"},
        "leaseCounter": {"N": "7"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": checkpoint},
        "checkpointSubSequenceNumber": {"N": "0"},
        **({"leaseOwner": {"S": owner}} if owner else {}),
        **more,
    }
    return parse_row(item)


def version_row(version):
    return parse_row(
        {
            "leaseKey": {"S": "Migration3.0"},
            "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
            "cv": {"S": version},
        }
    )


METRICS = parse_row({"leaseKey": {"S": "j1"}, "entityType": {"S": "WORKER_METRIC_STATS"}, "lut": {"N": "1"}})
MOVING = parse_row(
    {
        "leaseKey": {"S": "TableMigration3.5"},
        "entityType": {"S": "TABLE_MIGRATION"},
        "tm": {"S": "TABLE_MIGRATION_PENDING"},
    }
)
MULTI = parse_row({"leaseKey": {"S": "123456789012:a:1:shardId-000000000000"}, "leaseCounter": {"N": "1"}})
BROKEN = parse_row({"leaseKey": {"S": "shardId-000000000009"}, "leaseCounter": {"S": "many"}})


def snapshot(*rows, has_owner_index=False, **more):
    return TableSnapshot("orders-app", rows, JavaState(has_owner_index), **more)


def told(a_snapshot):
    return {(found.weight, found.what) for found in table_findings(a_snapshot)}


def test_a_fleet_of_2x_is_told_and_hinders_nobody():
    found = table_findings(
        snapshot(lease(0, "java-1", "49600000000000000000000000000000000000000000000000000001"), lease(1))
    )
    assert {one.weight for one in found} == {"fine"}
    assert whats(found) == {"owners of leases: 1 Java worker (KCL 2.x)", "2 leases"}
    assert "1 with a checkpoint inside the shard, 0 ended, 1 without an owner" in found[1].text
    assert "No evidence of KCL 3.x" in found[0].text


def test_rows_of_3x_are_told_and_its_mode():
    found = table_findings(snapshot(lease(0, "j1"), version_row("CLIENT_VERSION_2X"), METRICS))
    assert "owners of leases: 1 Java worker (KCL 3.x in the mode of 2.x, or 2.x beside it)" in whats(found)
    assert "CLIENT_VERSION_2X in the lease table" in found[0].text
    assert "rows that are not leases" in whats(found)
    assert "must" not in {one.weight for one in found}


@pytest.mark.parametrize("version", ["CLIENT_VERSION_3X", "CLIENT_VERSION_3X_WITH_ROLLBACK"])
def test_a_native_fleet_is_told_and_no_blocker(version):
    found = told(snapshot(lease(0, "j1"), version_row(version), has_owner_index=True))
    assert ("review", "the fleet is KCL 3.x in its own mode") in found
    assert not [what for weight, what in found if weight == "must"]


@pytest.mark.parametrize(
    ("rows", "index", "why"),
    [
        ([version_row("CLIENT_VERSION_3X")], False, "has no index of owners yet"),
        ([version_row("CLIENT_VERSION_3X"), MOVING], True, "is moving its state into the lease table"),
        ([version_row("CLIENT_VERSION_4X")], True, "is later than the versions that pykcl knows"),
    ],
)
def test_a_native_fleet_that_pykcl_cannot_join_is_a_blocker_with_the_reason(rows, index, why):
    found = table_findings(snapshot(lease(0, "j1"), *rows, has_owner_index=index))
    (must,) = [one for one in found if one.weight == "must"]
    assert must.what == "pykcl cannot join this fleet of KCL 3.x as it is"
    assert why in must.text


def test_leases_of_several_streams_are_a_blocker_and_broken_rows_are_told():
    assert ("must", "the table holds leases of several streams") in told(snapshot(MULTI))
    assert ("review", "row 'shardId-000000000009' cannot be read") in told(snapshot(lease(0), BROKEN))
    assert ("review", "table orders-app has no leases") in told(snapshot())


def test_a_table_that_nobody_works_on_is_told_so():
    assert ("fine", "owners of leases: none") in told(snapshot(lease(0)))


def test_that_nobody_could_look_is_told_with_the_reason():
    (found,) = table_findings(TableSnapshot("orders-app", why_not="No AWS region."))
    assert found.what == "table orders-app was not read"
    assert found.text.startswith("No AWS region. So it is unknown")


# -- the plan --------------------------------------------------------------------------------------------------


def move(program_file="app.py", **more):
    config = Config(application="orders-app", stream="orders", region="eu-west-1")
    return Move(
        config, "app.properties", "pykcl.toml", program_file, leaves_fanout=more.get("leaves_fanout", False)
    )


def test_every_step_has_a_command_and_a_way_back():
    for the_move in (move(), move(None)):
        for a_snapshot in (snapshot(lease(0, "j1")), snapshot(version_row("CLIENT_VERSION_3X"))):
            steps = plan(the_move, a_snapshot)
            assert all(step.commands and step.back for step in steps)
    assert [step.title for step in plan(move(), snapshot(lease(0, "j1")))] == [
        "Review", "Shadow", "One host", "All hosts", "Remove Java",
    ]  # fmt: skip


def test_the_commands_name_the_files_and_quote_them():
    text = "\n".join(command for step in plan(move("my app.py"), snapshot()) for command in step.commands)
    assert "pykcl run --config pykcl.toml --kclpy 'my app.py'" in text
    assert (
        "--shadow orders-app-shadow --config pykcl.toml --kclpy 'my app.py' --shadow-call-processor" in text
    )
    assert "multilangd" not in text
    text = "\n".join(command for step in plan(move(None), snapshot()) for command in step.commands)
    assert "pykcl multilangd --properties-file app.properties" in text
    assert "--kclpy" not in text


def test_in_a_native_fleet_the_leader_assigns_what_a_stopped_daemon_had():
    steps = plan(move(), snapshot(version_row("CLIENT_VERSION_3X")))
    assert steps[2].title == "One host"
    assert "leader of KCL 3.x assigns leases" in steps[2].text
    assert "failover time" in plan(move(), snapshot())[2].text


def test_in_a_native_fleet_the_plan_names_permissions_and_the_host_that_leads():
    steps = {step.title: step for step in plan(move(), snapshot(version_row("CLIENT_VERSION_3X")))}
    assert steps["Review"].commands[1] == "pykcl iam --properties app.properties --follow-leader"
    assert steps["All hosts"].commands[0] == "pykcl leases list --properties app.properties"
    assert "Move the host that leads last" in steps["All hosts"].text
    assert "takes the lock" in steps["All hosts"].back
    others = {step.title: step for step in plan(move(), snapshot())}
    assert len(others["Review"].commands) == len(others["All hosts"].commands) == 1


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "--stream-arn STREAM_ARN --consumer-name orders-app"),
        ("fanoutConfig.consumerName=fast\n", "--stream-arn STREAM_ARN --consumer-name fast"),
        ("fanoutConfig.consumerName=fast; reboot\n", "--consumer-name 'fast; reboot'"),
        (
            "streamArn=arn:aws:kinesis:eu-west-1:123456789012:stream/orders\n",
            "--stream-arn arn:aws:kinesis:eu-west-1:123456789012:stream/orders --consumer-name orders-app",
        ),
        (
            "fanoutConfig.consumerName=fast\nfanoutConfig.consumerArn=arn:aws:kinesis:eu-west-1:123456789012:stream/orders/consumer/c:1\n",
            "--consumer-arn arn:aws:kinesis:eu-west-1:123456789012:stream/orders/consumer/c:1",
        ),
    ],
)
def test_the_consumer_that_is_deregistered_is_the_one_of_the_file(read, lines, words):
    properties = read("applicationName=orders-app\nstreamName=orders\n" + lines)
    config = interpret(properties, entry_point="kclpy", accepts_polling=True).config
    the_move = Move(
        config,
        "app.properties",
        "pykcl.toml",
        None,
        leaves_fanout=True,
        consumer=consumer_of(properties, config),
    )
    (command,) = [one for one in plan(the_move, snapshot())[-1].commands if "deregister" in one]
    assert command == f"aws kinesis deregister-stream-consumer {words}" or command.endswith(words)


def test_a_consumer_of_fan_out_is_deregistered_at_the_end():
    assert any("deregister" in command for command in plan(move(leaves_fanout=True), snapshot())[-1].commands)
    assert not any("deregister" in command for command in plan(move(), snapshot())[-1].commands)


# -- pykcl.toml ------------------------------------------------------------------------------------------------

EVERY_OPTION = (
    'applicationName=orders-app\nstreamName=orders\nregionName=eu-west-1\ntableName=orders-leases\nworkerId=w\\u00e9 "1\\\\\n'
    "initialPositionInStreamExtended=1767225600\nmaxRecords=500\nidleTimeBetweenReadsInMillis=700\n"
    "callProcessRecordsEvenForEmptyRecordList=true\nfailoverTimeMillis=8000\nshardSyncIntervalMillis=30000\n"
    "cleanupLeasesUponShardCompletion=false\nmaxLeasesForWorker=7\nmaxLeasesToStealAtOneTime=3\n"
    "leaseTableDeletionProtectionEnabled=true\nleaseTablePitrEnabled=true\nparentShardPollIntervalMillis=900\n"
    "logWarningForTaskAfterMillis=5000\nshutdownGraceMillis=7000\ntimeoutInSeconds=60\ncoordinatorStateTableName=state-of-java\n"
    "metricsLevel=DETAILED\nmetricsEnabledDimensions=Operation,ShardId\nmetricsBufferTimeMillis=20000\n"
    "metricsMaxQueueSize=500\n"
)
WITHOUT_REGION = "applicationName=orders-app\nstreamName=orders\n"
CLIENTS = [
    "",
    "kinesisEndpoint=https://kinesis.example\ndynamoDBEndpoint=https://dynamodb.example\n",
    f"AwsCredentialsProvider={ROLE}\nAwsCredentialsProviderDynamoDB=ProfileCredentialsProvider|dev,DefaultCredentialsProvider\n",
    "AwsCredentialsProviderCloudWatch=ProfileCredentialsProvider|metrics\n",
    "kinesisClient.region=us-east-1\nAwsCredentialsProvider=DefaultCredentialsProvider\n",
]


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("options", [LEAST, WITHOUT_REGION, EVERY_OPTION])
def test_pykcl_toml_says_exactly_what_the_properties_say(read, tmp_path, monkeypatch, options, clients):
    for name in ("PYKCL_APPLICATION", "PYKCL_STREAM"):
        monkeypatch.delenv(name, raising=False)
    properties = read(options + clients)
    found = interpret(properties, entry_point="kclpy")
    path = tmp_path / "pykcl.toml"
    path.write_text(toml_text(properties, found), "utf-8")
    settings = settings_of(
        entry_point="kclpy", properties=None, config_file=path, overrides={}, accept_polling=False
    )
    assert settings.config == found.config
    for service, spec in found.clients.items():
        ours = (settings.specs or {}).get(service, ClientSpec())
        assert (ours.region or settings.config.effective_region) == (
            spec.region or found.config.effective_region
        )
        assert ours.endpoint == spec.endpoint
        assert (ours.credentials or spec.credentials) == spec.credentials
        if any(source.kind != "default" for source in spec.credentials):
            assert ours.credentials == spec.credentials


def test_what_java_takes_without_a_key_is_said_as_such(read):
    properties = read("applicationName=orders-app\nstreamName=orders\n")
    text = toml_text(properties, interpret(properties, entry_point="kclpy"))
    assert "max_leases = 1000000  # no limit, as in Java without maxLeasesForWorker\n" in text


def test_each_line_names_the_key_it_comes_from(read):
    properties = read(EVERY_OPTION)
    text = toml_text(properties, interpret(properties, entry_point="kclpy"))
    lines = {line.split(" = ")[0]: line for line in text.splitlines() if " = " in line}
    decided = {field: keys for field, keys in KEYS_OF_FIELD.items() if any(key in properties for key in keys)}
    # That there are metrics is what a file says by not saying NONE.
    assert decided.keys() == lines.keys() - {"checkpoint_mode", "metrics"}
    for field, keys in decided.items():
        assert lines[field].partition("  # ")[2] in keys


def test_a_line_names_the_key_as_the_file_spells_it(read):
    properties = read(LEAST + "timestampAtInitialPositionInStream=1767225600\nworkerIdentifier=w1\n")
    text = toml_text(properties, interpret(properties, entry_point="kclpy"))
    assert 'worker_id = "w1"  # workerIdentifier\n' in text
    assert "+00:00  # timestampAtInitialPositionInStream\n" in text


# -- the report ------------------------------------------------------------------------------------------------


def migration(properties, text=None, a_snapshot=None):
    found = interpret(properties, entry_point="kclpy")
    programs = [Program("app.py", text.encode())] if text else []
    a_snapshot = a_snapshot or snapshot(lease(0, "j1"))
    the_move = Move(
        found.config,
        "app.properties",
        "pykcl.toml",
        "app.py" if text else None,
        False,
    )
    return Migration(
        the_move, found.verdicts, properties_findings(properties, found), tuple(one.name for one in programs),
        code_findings(programs), a_snapshot, table_findings(a_snapshot), plan(the_move, a_snapshot), toml_text(properties, found),
    )  # fmt: skip


def test_the_report_has_every_key_once_and_every_finding_and_step(read):
    whole = migration(read(EVERY_OPTION), program(globals="import os", process="os._exit(2)"))
    text = report(whole)
    for row in whole.verdicts:
        assert text.count(f"| `{row.key}` |") == 1
    for found in (*whole.properties, *whole.program, *whole.table):
        assert text.count(f"* **{found.what}**") == 1, found.what
    for step in whole.steps:
        assert f". {step.title}\n" in text
        assert all(f"$ {command}\n" in text for command in step.commands)
    assert text.index("ended abruptly") < text.index("## The properties")
    assert "Nothing has to be changed" not in text
    assert "Nothing has to be changed" in report(migration(read(), program()))


def test_secrets_and_unknown_values_are_neither_in_the_report_nor_in_the_summary(read):
    properties = read(LEAST + f"AwsCredentialsProvider={ROLE}\nmyPassword=opensesame\n")
    whole = migration(properties, "password = 'hunter2'\n" + program())
    for text in (report(whole), summary(whole)):
        assert not [secret for secret in ("sesame", "hunter2") if secret in text]


def test_foreign_text_cannot_break_the_table_or_start_a_line(read):
    properties = read(LEAST + "evil\\n\\#|key=1\nworkerId=a|b\n")
    lines = report(migration(properties)).splitlines()
    assert not [line for line in lines if line.startswith(("#|", "|key"))]
    rows = [line for line in lines if line.startswith("| `")]
    assert {len(line.replace("\\|", "").split("|")) for line in rows} == {6}


def test_foreign_text_is_no_markup(read):
    text = report(migration(read(LEAST + "<img/>[x](y)`*=1\n")))
    assert "* **\\<img/\\>\\[x\\](y)'\\* is not a key**" in text


def test_the_summary_tells_of_each_part(read):
    text = summary(migration(read(), program(), TableSnapshot("orders-app", why_not="No region.")))
    assert [line.split()[0] for line in text.splitlines() if not line.startswith(" ")] == [
        "PROPERTIES", "CODE", "TABLE", "FIRST",
    ]  # fmt: skip
    assert "5 keys" in text
    assert "app.py" in text
    assert "orders-app was not read" in text
    assert "not read: name the program with --code" in summary(migration(read()))
    (child,) = plan(move(None), snapshot(version_row("CLIENT_VERSION_3X")))[2].commands
    assert child == "pykcl multilangd --properties-file app.properties"
