"""`pykcl doctor` with its bundle, and `iam`: what they print, what they refuse, and how they end."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner
from service_kit import create_lease_table, lead_nowhere, lead_to

from pykcl import RecordProcessor, Worker, __version__
from pykcl.cli.main import main
from pykcl.operate.aws.iam import actions_of, operator_policy, worker_policy

ROOT = Path(__file__).parents[2]
CLEAN = {name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "PYKCL_"))}
FLEET = ("--application", "orders-app", "--stream", "orders")
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
HOSTILE = "\x1b[2J<script>alert(1)</script>\x1b]0;owned\x07"


def pykcl(*arguments, **more):
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False, **more)


@pytest.fixture
def aws(aws, monkeypatch):
    lead_to(monkeypatch, aws)
    return aws


@pytest.fixture
def dynamodb(dynamodb):
    create_lease_table(dynamodb)
    return dynamodb


def put_lease(dynamodb, number, **more):
    dynamodb.put_item(
        TableName="orders-app",
        Item={
            "leaseKey": {"S": f"shardId-{number:012d}"},
            "checkpoint": {"S": "TRIM_HORIZON"},
            "checkpointSubSequenceNumber": {"N": "0"},
            "leaseCounter": {"N": "5"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            **more,
        },
    )


# -- doctor ----------------------------------------------------------------------------------------------------


class Orders(RecordProcessor):
    def process_records(self, batch):
        list(batch)


def test_beside_a_living_worker_all_is_well_and_the_exit_code_0(aws):
    with Worker(
        "orders-app", stream="orders", processor=Orders, failover_time=2.0, initial_position="TRIM_HORIZON"
    ) as worker:
        assert until_leases(worker)
        done = pykcl("doctor", *FLEET, "--failover", "4s", "-o", "json")
    told = json.loads(done.output)
    assert (done.exit_code, told["errors"]) == (0, 0)
    by_id = {one["id"]: one for one in told["findings"]}
    assert f"1 live worker: 1 pykcl ({__version__})" in by_id["peers-ok"]["text"]
    assert {"lag-ok", "table-ok", "stream-ok", "credentials-ok"} <= by_id.keys()
    assert by_id.keys() & {"records-trimmed", "permission-denied", "leases-stale"} == set()


def until_leases(worker):
    import threading

    for _ in range(1200):
        if len(worker.leases) == 2:
            return True
        threading.Event().wait(0.05)
    return False


def test_an_error_found_is_exit_code_4_and_comes_with_its_code_and_its_command(aws):
    done = pykcl("doctor", "--application", "orders-app", "--stream", "ordes")
    assert done.exit_code == 3
    assert "✗ stream      Stream 'ordes' does not exist in us-east-1" in done.output
    assert "→ E03" in done.output
    assert "Do: pykcl streams list --region us-east-1" in done.output
    assert done.output.rstrip().endswith("1 error  (exit 3)")


def test_without_region_or_credentials_that_is_a_finding_and_no_crash(monkeypatch):
    lead_nowhere(monkeypatch)
    done = pykcl("doctor", *FLEET, "--region", "us-east-1", "-o", "jsonl")
    assert done.exit_code == 3
    told = [one["id"] for one in map(json.loads, done.output.splitlines()) if one["level"] == "error"]
    assert told == ["credentials-missing"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    done = pykcl("doctor", *FLEET, "-o", "csv")
    assert done.exit_code == 3
    rows = list(csv.DictReader(io.StringIO(done.output)))
    assert [row["id"] for row in rows if row["level"] == "error"] == ["region-missing"]


@pytest.mark.parametrize(
    ("name", "value"), [("AWS_CA_BUNDLE", "missing.pem"), ("AWS_ACCOUNT_ID_ENDPOINT_MODE", "requierd")]
)
def test_a_setting_with_which_nothing_can_be_asked_lacks_no_region_and_no_credentials(
    monkeypatch, name, value
):
    lead_nowhere(monkeypatch)
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(variable, "local")
    monkeypatch.setenv(name, value)
    done = pykcl("doctor", *FLEET, "--region", "us-east-1", "-o", "jsonl")
    errors = [one for one in map(json.loads, done.output.splitlines()) if one["level"] == "error"]
    assert [one["id"] for one in errors] == ["aws-unreachable"]
    assert value in done.output


@pytest.mark.parametrize("provider", [None, "WebIdentityTokenFileCredentialsProvider"])
def test_a_token_file_that_is_missing_is_named_with_its_variable(monkeypatch, tmp_path, provider):
    lead_nowhere(monkeypatch)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/orders")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/no/such/token")
    file = properties_file(tmp_path, **({"AwsCredentialsProvider": provider} if provider else {}))
    done = pykcl("doctor", "-p", file, "-o", "jsonl")
    (found,) = [one for one in map(json.loads, done.output.splitlines()) if one["level"] == "error"]
    assert found["id"] == "credentials-missing"
    assert "Not readable: '/no/such/token' (AWS_WEB_IDENTITY_TOKEN_FILE)" in found["text"]
    assert found["fix"].startswith("aws sts get-caller-identity")


def properties_file(folder, **keys):
    file = folder / "app.properties"
    given = {
        "applicationName": "orders-app",
        "streamName": "orders",
        "regionName": "us-east-1",
        "AwsCredentialsProvider": "DefaultCredentialsProvider",
        "retrievalMode": "POLLING",
        **keys,
    }
    file.write_text("".join(f"{key} = {text}\n" for key, text in given.items()))
    return str(file)


def test_a_properties_file_is_looked_over_as_multilangd_does_at_its_start(aws, tmp_path):
    file = properties_file(tmp_path, executableName="no-such-program", workersId="x", retrievalMode="FANOUT")
    done = pykcl("doctor", "-p", file, "--no-sample", "-o", "jsonl")
    found = {one["id"]: one for one in map(json.loads, done.output.splitlines()) if one["topic"] == "file"}
    assert done.exit_code == 3
    assert {id: one["level"] for id, one in found.items()} == {
        "program-unfit": "error", "key-unknown": "warning", "fan-out-used": "info",
    }  # fmt: skip
    assert "there is no program 'no-such-program' in PATH" in found["program-unfit"]["text"]
    assert "app.properties, line 7: workersId has no effect" in found["key-unknown"]["text"]
    assert "Did you mean workerId?" in found["key-unknown"]["text"]
    assert found["fan-out-used"]["fix"].startswith(f"pykcl multilangd -p {file} --accept-polling")


def test_a_value_that_no_shell_replaces_is_found_before_two_daemons_have_one_name(aws, tmp_path):
    file = properties_file(tmp_path, workerId="${HOSTNAME}")
    done = pykcl("doctor", "-p", file, "--no-sample", "-o", "jsonl")
    (found,) = [one for one in map(json.loads, done.output.splitlines()) if one["topic"] == "file"]
    assert (found["id"], found["level"]) == ("value-literal", "warning")
    assert found["text"].startswith("app.properties, line 6: workerId: the $ in it stands for no variable")


@pytest.mark.parametrize("program", [{"executableName": f"{sys.executable} app.py"}, {}])
def test_a_properties_file_that_multilangd_would_take_is_not_mentioned(aws, tmp_path, program):
    done = pykcl("doctor", "-p", properties_file(tmp_path, **program), "--no-sample")
    assert done.exit_code == 0
    assert done.output.rstrip().endswith("Nothing is wrong.")


def test_a_program_that_puts_needs_a_stream_alone(aws, tmp_path):
    done = pykcl("doctor", "--for", "producer", "--stream", "orders", "--compression", "gzip", "-o", "json")
    told = json.loads(done.output)
    assert (done.exit_code, told["stream"], told["errors"]) == (0, "orders", 0)
    assert "application" not in told
    topics = {one["topic"] for one in told["findings"]}
    assert topics == {"process", "credentials", "region", "clock", "reach", "stream", "puts", "permissions"}
    assert {one.service for one in aws.requests} == {"sts", "kinesis", "cloudwatch"}


def test_what_a_file_says_of_workers_is_nothing_to_a_program_that_puts(aws, tmp_path):
    path = tmp_path / "pykcl.toml"
    path.write_text('application = "orders-app"\nstream = "orders"\nmetrics = "prometheus"\n')
    bundle = tmp_path / "report.zip"
    done = pykcl("doctor", "--for", "producer", "-c", str(path), "--bundle", str(bundle))
    assert done.exit_code == 0
    assert "2 open shards for 2 MiB" in " ".join(done.output.split())
    with zipfile.ZipFile(bundle) as opened:
        report = json.loads(opened.read("pykcl-report/doctor.json"))
        assert opened.read("pykcl-report/leases.jsonl") == b""
    assert "puts-ok" in {one["id"] for one in report}
    assert "orders" not in json.dumps(report)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--for", "producer"], "No stream"),
        (["--compression", "zstd"], "--compression: only with --for producer."),
        (["--for", "producer", "--stream", "s", "--no-lag"], "--no-lag: only with --for worker."),
        (["--for", "producer", *FLEET, "--failover", "4s"], "--application, --failover: only with"),
        (["--for", "producer", "--stream", "s", "--table", "leases", "--no-sample"], "--table, --no-sample"),
    ],
)
def test_the_doctor_refuses_options_of_another_program(arguments, told):
    done = pykcl("doctor", *arguments)
    assert done.exit_code == 2
    assert told in done.output


def test_the_file_of_a_daemon_is_none_of_a_program_that_puts(tmp_path):
    done = pykcl("doctor", "--for", "producer", "-p", properties_file(tmp_path))
    assert (done.exit_code, "--properties: only with --for worker." in done.output) == (2, True)


@pytest.mark.parametrize("output", ["table", "wide", "json", "jsonl", "csv"])
def test_names_out_of_the_table_drive_no_terminal(output, dynamodb):
    put_lease(dynamodb, 0, leaseOwner={"S": HOSTILE})
    put_lease(dynamodb, 1, leaseCounter={"S": HOSTILE})
    done = pykcl("doctor", *FLEET, "--no-sample", "-o", output)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.output)
    assert "rows-unreadable" in done.output or output == "table"


def test_forty_columns_are_enough(aws, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    done = pykcl("doctor", *FLEET)
    lines = [line for line in done.output.splitlines() if "Do: " not in line]
    assert max(map(len, lines)) <= 40, "commands are kept whole, to be copied"
    assert len(lines) > 15


def test_what_is_told_in_a_file_is_looked_at(aws, tmp_path):
    path = tmp_path / "pykcl.toml"
    path.write_text(
        'application = "orders-app"\nstream = "orders"\ncreate_table = false\nmetrics = "cloudwatch"\n'
    )
    told = json.loads(pykcl("doctor", "-c", str(path), "-o", "json").output)
    ids = {one["id"] for one in told["findings"]}
    assert "table-missing" in ids
    assert not {"metrics-off", "table-to-be-made"} & ids


# -- iam -------------------------------------------------------------------------------------------------------


def iam(*arguments):
    done = pykcl("iam", "--application", "orders-app", "--stream", ARN, *arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_policy_of_a_worker_is_the_documented_one(monkeypatch):
    monkeypatch.delenv("AWS_REGION", raising=False)
    expected = worker_policy(stream="orders", table="orders-app", region="us-east-1", account="123456789012")
    assert json.loads(iam()) == expected
    assert "dynamodb:CreateTable" not in actions_of(json.loads(iam("--no-create-table")))
    with_metrics = json.loads(iam("--metrics"))
    assert actions_of(with_metrics) - actions_of(expected) == {"cloudwatch:PutMetricData"}


def test_the_policy_of_a_producer_needs_no_application():
    done = pykcl("iam", "--stream", ARN, "--for", "producer")
    (statement,) = json.loads(done.output)["Statement"]
    assert statement["Action"] == [
        "kinesis:DescribeStreamSummary",
        "kinesis:ListShards",
        "kinesis:PutRecords",
    ]
    assert statement["Resource"] == ARN
    assert (
        'name   = "orders-producer"'
        in pykcl("iam", "--stream", ARN, "--for", "producer", "-o", "terraform").output
    )
    _, metrics = json.loads(pykcl("iam", "--stream", ARN, "--for", "producer", "--metrics").output)[
        "Statement"
    ]
    assert metrics["Action"] == ["cloudwatch:PutMetricData"]
    assert metrics["Condition"] == {"StringEquals": {"cloudwatch:namespace": "KinesisProducerLibrary"}}


def test_a_file_decides_what_flags_do_not(tmp_path):
    path = tmp_path / "pykcl.toml"
    path.write_text(
        'application = "a-b"\nstream = "s"\nregion = "eu-west-1"\ncreate_table = false\nmetrics = "cloudwatch"\n'
    )
    done = pykcl("iam", "-c", str(path), "--account", "123456789012")
    policy = json.loads(done.stdout)
    assert "cloudwatch:PutMetricData" in actions_of(policy)
    assert "dynamodb:CreateTable" not in actions_of(policy)
    assert "arn:aws:dynamodb:eu-west-1:123456789012:table/a-b" in done.output


@pytest.mark.parametrize(
    ("consumer", "name"),
    [
        ("", "a-b"),
        ("mine", "mine"),
        ("arn:aws:kinesis:eu-west-1:123456789012:stream/s/consumer/mine:1", "mine"),
    ],
)
def test_the_policy_of_a_worker_that_reads_by_enhanced_fan_out_names_its_consumer(tmp_path, consumer, name):
    path = tmp_path / "pykcl.toml"
    named = f'consumer = "{consumer}"\n' if consumer else ""
    path.write_text(f'application = "a-b"\nstream = "s"\nregion = "eu-west-1"\nretrieval = "fanout"\n{named}')
    policy = json.loads(pykcl("iam", "-c", str(path), "--account", "123456789012").stdout)
    (subscribe,) = [one for one in policy["Statement"] if "kinesis:SubscribeToShard" in one["Action"]]
    assert subscribe["Resource"].endswith(f":stream/s/consumer/{name}:*")


@pytest.mark.parametrize(
    ("keys", "consumer"),
    [
        ({"retrievalMode": "DEFAULT"}, "orders-app"),
        ({"retrievalMode": "FANOUT", "fanoutConfig.consumerName": "mine"}, "mine"),
        ({"retrievalMode": "FANOUT", "fanoutConfig.consumerArn": f"{ARN}/consumer/given:17"}, "given"),
        ({}, None),
    ],
)
def test_the_policy_allows_the_fan_out_of_a_properties_file(tmp_path, keys, consumer):
    policy = pykcl("iam", "-p", properties_file(tmp_path, streamArn=ARN, **keys)).stdout
    assert re.findall(r"/consumer/([a-z-]+):\*", policy) == ([consumer] * 2 if consumer else [])
    assert ("kinesis:SubscribeToShard" in policy) is (consumer is not None)


@pytest.fixture
def nothing_of_aws(monkeypatch, tmp_path):
    lead_nowhere(monkeypatch)
    config = tmp_path / "config"
    config.write_text("[default]\n\n[profile shop]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    return monkeypatch


@pytest.mark.parametrize(
    ("environment", "flags", "region"),
    [
        ({"AWS_REGION": "eu-west-1"}, (), "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-2"}, (), "eu-west-2"),
        ({"AWS_PROFILE": "shop"}, (), "eu-north-1"),
        ({}, ("--profile", "shop"), "eu-north-1"),
        ({"AWS_REGION": "eu-west-1"}, ("--region", "us-east-2"), "us-east-2"),
    ],
)
def test_the_region_is_the_one_that_boto3_would_use(nothing_of_aws, environment, flags, region):
    for name, text in environment.items():
        nothing_of_aws.setenv(name, text)
    done = pykcl("iam", "--application", "a-b", "--stream", "s", *flags)
    assert f"arn:aws:kinesis:{region}:ACCOUNT:stream/s" in done.stdout
    assert "put in ACCOUNT," in done.stderr


@pytest.mark.parametrize("profile", [None, "nobody"])
def test_without_account_and_region_it_says_what_to_put_in(nothing_of_aws, profile):
    if profile is not None:
        nothing_of_aws.setenv("AWS_PROFILE", profile)
    done = pykcl("iam", "--application", "a-b", "--stream", "s")
    assert done.exit_code == 0
    assert "arn:aws:kinesis:REGION:ACCOUNT:stream/s" in done.stdout
    assert "put in REGION and ACCOUNT" in done.stderr


def test_terraform_says_the_same_as_json():
    text = iam("-o", "terraform", "--metrics", "--name", 'x"${y}')
    policy = json.loads(iam("--metrics"))
    assert set(re.findall(r'"([a-z]+:[A-Za-z]+)"', text)) - {"cloudwatch:namespace"} == actions_of(policy)
    assert re.findall(r"resources = \[(.*)\]", text) == [
        json.dumps(one["Resource"]) for one in policy["Statement"]
    ]
    assert text.count("{") == text.count("}")
    assert r'name   = "x\"$${y}"' in text
    assert 'variable = "cloudwatch:namespace"' in text


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--stream", "s"], 2, "No application"),
        (["--application", "a-b"], 2, "No stream"),
        (["--stream", "s", "--for", "operator"], 2, "No application"),
        (
            ["--stream", "s", "--for", "producer", "--create-table"],
            2,
            "--create-table: only with --for worker.",
        ),
        (["--stream", "s", "--for", "producer", "--put"], 2, "--put: only with --for operator"),
        (["--stream", "s", "--for", "producer", "--fan-out", "c"], 2, "--fan-out: only with --for worker or"),
        (
            ["--stream", "s", "--for", "producer", "--dead-letters", "sqs://l"],
            2,
            "--dead-letters: only with --for",
        ),
        *(
            (["--application", "a-b", "--stream", "s", flag], 2, f"{flag}: only with --for operator.")
            for flag in ("--steer", "--simulate", "--read-metrics")
        ),
        (
            ["--application", "a-b", "--stream", "s", "--for", "operator", "--follow-leader"],
            2,
            "--follow-leader: only with --for worker.",
        ),
        (
            ["--application", "a-b", "--stream", "s", "--for", "operator", "--no-metrics"],
            2,
            "--metrics: only with --for worker or producer.",
        ),
        (["--application", "a-b", "--stream", "s", "--account", "12"], 1, "twelve digits"),
        (["--application", "a-b", "--stream", ARN, "--account", "000000000000"], 1, "contradicts"),
    ],
)
def test_iam_refuses_what_makes_no_sense(arguments, code, told):
    done = pykcl("iam", *arguments)
    assert done.exit_code == code
    assert told in done.output


def test_an_operator_needs_no_more_than_the_policy_for_looking(aws, dynamodb):
    put_lease(dynamodb, 0)
    put_lease(dynamodb, 1)
    before = len(list(aws.requests))
    for command in (
        ["leases", "list", "--no-sample"],
        ["leases", "describe", "0", "--no-sample"],
        ["lag", "--stream", "orders"],
        ["streams", "describe", "orders", "--tree"],
        ["doctor", "--stream", "orders", "--no-sample"],
    ):
        assert pykcl(*command, "--application", "orders-app").exit_code == 0, command
    assert pykcl("streams", "list").exit_code == 0
    assert pykcl("streams", "describe", "orders").exit_code == 0
    assert pykcl("tail", "orders", "-e").exit_code == 0
    # Without any metrics: it was allowed to look.
    assert pykcl("lag", "--source", "cloudwatch", "--application", "orders-app").exit_code == 1
    called = {f"{one.service}:{one.operation}" for one in list(aws.requests)[before:]} - {
        "sts:GetCallerIdentity"
    }
    reads_metrics = {"cloudwatch:GetMetricData"}
    common = {"stream": "orders", "table": "orders-app"}
    assert (
        actions_of(operator_policy(**common, read_metrics=True)) - actions_of(operator_policy(**common))
        == reads_metrics
    )
    assert reads_metrics <= {one.replace("monitoring:", "cloudwatch:") for one in called}
    called = {one for one in called if not one.endswith(":GetMetricData")}
    policy = actions_of(operator_policy(stream="orders", table="orders-app"))
    assert called <= policy
    # What is left: completion of names, and consumers, which the local stream has none of.
    consumers = {"kinesis:DescribeStreamConsumer", "kinesis:ListStreamConsumers"}
    assert policy - called == {"dynamodb:ListTables", *consumers}


def test_an_operator_who_steers_needs_no_more_than_that_policy(aws, dynamodb):
    put_lease(dynamodb, 0, leaseOwner={"S": "gone"})
    before = len(list(aws.requests))
    assert pykcl("leases", "release", "0", "--application", "orders-app", "--execute").exit_code == 0
    assert pykcl("put", "orders", input="x\n").exit_code == 0
    called = {f"{one.service}:{one.operation}" for one in list(aws.requests)[before:]}
    assert {"dynamodb:UpdateItem", "kinesis:PutRecords"} <= called
    assert called <= actions_of(operator_policy(stream="orders", table="orders-app", steer=True, put=True))


# -- versions --------------------------------------------------------------------------------------------------


def test_the_version_is_short_and_the_doctor_has_those_of_the_packages(aws):
    assert pykcl("--version").output == f"pykcl, version {__version__}\n"
    found = json.loads(pykcl("doctor", *FLEET, "--no-sample", "--no-lag", "-o", "json").output)["findings"]
    (text,) = [one["text"] for one in found if one["id"] == "process-ok"]
    for name in ("boto3", "protobuf", "moto", "prometheus-client"):
        assert f" · {name} {metadata.version(name)}" in text


@pytest.mark.parametrize("arguments", [["--version"], ["iam", *FLEET]])
def test_what_needs_no_aws_loads_no_boto3(arguments):
    code = (
        "import sys\nfrom pykcl.cli.main import main\n"
        f"main({arguments!r}, standalone_mode=False)\n"
        "print([name for name in ('boto3', 'botocore', 'moto') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**CLEAN, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=True
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == "[]"


# -- the bundle ------------------------------------------------------------------------------------------------

SECRETS = ("payments-reader", "ip-10-9-8-7", "123123123123", "hush-hush", "s3cr3t", "127.0.0.1", "orders")


@pytest.fixture
def named(aws, dynamodb):
    put_lease(dynamodb, 0, leaseOwner={"S": "ip-10-9-8-7:abc"}, secretNote={"S": "s3cr3t"})
    put_lease(dynamodb, 1, pendingCheckpoint={"S": "TRIM_HORIZON"}, pendingCheckpointSubSequenceNumber={"N": "0"},
              pendingCheckpointState={"B": b"hush-hush"}, leaseOwner={"S": "payments-reader"})  # fmt: skip


def bundle(path):
    with zipfile.ZipFile(path) as found:
        return {Path(name).name: found.read(name).decode() for name in found.namelist()}


def test_a_report_holds_what_it_says_and_no_name(named, tmp_path, monkeypatch):
    monkeypatch.setenv("PYKCL_WORKER_ID", "payments-reader")
    path = tmp_path / "report.zip"
    properties = tmp_path / "hush-hush.properties"
    properties.write_text(
        "applicationName = orders-app\nstreamName = orders\nexecutableName = hush-hush --s3cr3t\n"
    )
    done = pykcl("doctor", "-p", str(properties), "--no-sample", "--bundle", str(path))
    assert "hush-hush" in done.output, "the doctor itself tells of the file"
    texts = bundle(path)
    assert set(texts) == {
        "README.txt",
        "versions.json",
        "config.json",
        "leases.jsonl",
        "table.json",
        "doctor.json",
    }
    for name in set(texts) - {"README.txt"}:
        assert name in texts["README.txt"]
        assert name in done.output
    whole = "\n".join(texts.values())
    assert not [secret for secret in SECRETS if secret in whole]
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    leases = [json.loads(line) for line in texts["leases.jsonl"].splitlines()]
    assert [one["key"] for one in leases] == ["shardId-000000000000", "shardId-000000000001"]
    assert leases[0]["other_attributes"] == ["secretNote"]
    assert leases[1]["has_pending"]
    assert leases[0]["owner"] != leases[1]["owner"]
    assert json.loads(texts["config.json"])["worker_id"] == leases[1]["owner"], "the same name, the same hash"
    assert {"table-ok", "stream-ok"} <= {one["id"] for one in json.loads(texts["doctor.json"])}


def test_names_may_be_kept_and_the_text_says_so(named, tmp_path):
    path = tmp_path / "report.zip"
    pykcl("doctor", *FLEET, "--no-sample", "--bundle", str(path), "--keep-names")
    whole = "\n".join(bundle(path).values())
    assert "ip-10-9-8-7:abc" in whole
    assert "are included" in whole
    for secret in ("hush-hush", "s3cr3t", "127.0.0.1"):
        assert secret not in whole
    assert pykcl("doctor", *FLEET, "--keep-names").exit_code == 2


def test_a_bundle_overwrites_nothing_and_says_so(aws, tmp_path):
    path = tmp_path / "report.zip"
    path.write_text("mine")
    done = pykcl("doctor", *FLEET, "--no-sample", "--bundle", str(path))
    assert (done.exit_code, path.read_text()) == (1, "mine")
    assert "is not overwritten" in done.output
    assert pykcl("doctor", *FLEET, "--no-sample", "--bundle", str(tmp_path / "no" / "x.zip")).exit_code == 1


def test_a_bundle_is_made_even_where_nothing_works(monkeypatch, tmp_path):
    lead_nowhere(monkeypatch)
    path = tmp_path / "report.zip"
    assert pykcl("doctor", "--bundle", str(path)).exit_code == 3
    assert "credentials-missing" in bundle(path)["doctor.json"]
