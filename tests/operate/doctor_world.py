"""A set-up as the doctor meets it: the local AWS over the wire, rows as a worker writes them, a clock that only waiting moves."""

from __future__ import annotations

import os
import shlex
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from urllib.parse import parse_qs

import boto3
import click
from botocore import xform_name
from botocore.session import Session

from pykcl import __version__
from pykcl.cli.doctor import _regions_of_environment
from pykcl.cli.local import local_environment
from pykcl.cli.main import main
from pykcl.config import Config
from pykcl.local.errors import AwsError
from pykcl.local.iterators import ReadSpan
from pykcl.local.server import LocalAws
from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.model.lease_item import parse_row, to_item
from pykcl.operate.aws.clients import OperatorClients
from pykcl.operate.aws.streams import StreamAdmin
from pykcl.operate.doctor.checks import diagnose
from pykcl.operate.doctor.gather import Question, gather
from pykcl.runtime import SystemRuntime

APPLICATION, STREAM, OWNER = "orders-app", "orders", "py-worker-1"
FAILOVER = 10.0
KEY = {"AttributeName": "leaseKey", "AttributeType": "S"}


def shard(number: int) -> str:
    return f"shardId-{number:012d}"


class Heart(SystemRuntime):
    """Waiting costs nothing, moves the clock on, and lets the fleet's heartbeats happen."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world, self._now, self._lock = world, 100.0, threading.Lock()

    def monotonic(self) -> float:
        return self._now

    def utcnow_millis(self) -> int:
        return self._world.now_millis() - round(self._world.skew * 1000)

    def event(self):
        return self

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        with self._lock:
            end, every = self._now + timeout, self._world.beats_every
            for _ in range(int(end / every + 1e-9) - int(self._now / every + 1e-9) if every else 0):
                self._world.beat()
            self._now = end
        return False


class World:
    """Change it, then ask `findings()`. skew: seconds AWS' clock is ahead; beats_every: seconds, None: nobody lives."""

    def __init__(self, monkeypatch, *, shards: int = 2, state_seconds: float = 0.0) -> None:
        self.monkeypatch = monkeypatch
        self.later = 0.0
        self.skew = 0.0
        self.beats_every: float | None = FAILOVER / 3
        self.config = {
            "application": APPLICATION,
            "stream": STREAM,
            "failover_time": FAILOVER,
            "metrics": "cloudwatch",
        }
        self.clients = OperatorClients()
        self.asked: dict = {"stream": STREAM, "failover": FAILOVER}
        # A day without records takes 96 calls, always. Drawn spans could make it more than the doctor is willing to ask.
        self.aws = LocalAws(
            now_millis=self.now_millis, state_seconds=state_seconds, read_span=ReadSpan(900.0, 900.0)
        )
        self._shards = shards

    def __enter__(self) -> World:
        self.aws.start()
        for name in [name for name in os.environ if name.startswith(("AWS_", "PYKCL_"))]:
            self.monkeypatch.delenv(name)
        environment = local_environment(self.aws.url)
        nowhere = {
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        for name, text in {**environment, **nowhere}.items():
            self.monkeypatch.setenv(name, text)
        self.dynamodb = boto3.Session("local", "local").client(
            "dynamodb", region_name="us-east-1", endpoint_url=self.aws.url
        )
        self.aws.kinesis.create_stream(STREAM, self._shards)
        self.later += 60.0
        self.make_table()
        self.put(*(self.lease(number) for number in range(self._shards)))
        return self

    def __exit__(self, *_: object) -> None:
        self.dynamodb.close()
        self.aws.stop()

    def now_millis(self) -> int:
        return time.time_ns() // 1_000_000 + round(self.later * 1000)

    # -- the table ---------------------------------------------------------------------------------------------

    def make_table(self, key=KEY, **more) -> None:
        self.dynamodb.create_table(
            TableName=APPLICATION,
            KeySchema=[{"AttributeName": key["AttributeName"], "KeyType": "HASH"}],
            AttributeDefinitions=[key],
            **(more or {"BillingMode": "PAY_PER_REQUEST"}),
        )

    def drop_table(self) -> None:
        self.dynamodb.delete_table(TableName=APPLICATION)

    def note(self, **more) -> PykclMetadata:
        stream = self.aws.kinesis.describe(STREAM)
        return PykclMetadata(
            **{
                "stream_arn": stream.arn,
                "stream_created_at": stream.created_at,
                "owner": OWNER,
                "version": __version__,
                **more,
            }
        )

    def lease(self, number: int, checkpoint: Checkpoint = AT_TRIM_HORIZON, **more) -> Lease:
        return Lease(
            shard(number), checkpoint, **{"owner": OWNER, "counter": 5, "metadata": self.note(), **more}
        )

    def put(self, *leases: Lease) -> None:
        for one in leases:
            self.put_item(to_item(one))

    def put_item(self, item) -> None:
        self.dynamodb.put_item(TableName=APPLICATION, Item=item)

    def rows(self) -> list:
        return [parse_row(item) for item in self.dynamodb.scan(TableName=APPLICATION)["Items"]]

    def change(self, **changes) -> None:
        """Every lease."""
        self.put(*(row.with_(**changes) for row in self.rows() if isinstance(row, Lease)))

    def forget_leases(self) -> None:
        for row in self.rows():
            self.dynamodb.delete_item(TableName=APPLICATION, Key={"leaseKey": {"S": row.key}})

    def beat(self) -> None:
        for row in self.rows():
            if isinstance(row, Lease) and row.owner is not None:
                self.put(row.with_(counter=row.counter + 1))

    # -- the stream --------------------------------------------------------------------------------------------

    def put_record(self, data: bytes = b"x") -> Checkpoint:
        """Into the first shard; where it is."""
        return Checkpoint(self.aws.kinesis.put_record(STREAM, data, "key", 0).sequence_number, 0)

    def refuse(self, code: str, operation: str | None = None, service: str | None = None) -> None:
        def fault(its_service, its_operation, _):
            if operation in (None, its_operation) and service in (None, its_service):
                raise AwsError(code, "User: x is not authorized")

        self.aws.fault = fault

    def records(self) -> list:
        return [one for found in self.aws.kinesis._streams[STREAM].shards.values() for one in found.records]

    def encrypt(self, key: str | None) -> None:
        """Let the stream be described as encrypted with this key, which the local Kinesis has not."""
        summary = StreamAdmin.summary
        self.monkeypatch.setattr(
            StreamAdmin,
            "summary",
            lambda admin, stream: replace(summary(admin, stream), encryption="KMS", key_id=key),
        )

    def throttle_puts(self, count: int, *, minutes_ago: int) -> None:
        """Let CloudWatch know of records that the stream has refused."""
        datum = {
            "MetricName": "WriteProvisionedThroughputExceeded",
            "Dimensions": [{"Name": "StreamName", "Value": STREAM}],
            "Timestamp": datetime.fromtimestamp(self.now_millis() / 1000 - 60 * minutes_ago, tz=UTC),
            "Value": count,
        }
        client = boto3.Session("local", "local").client(
            "cloudwatch", region_name="us-east-1", endpoint_url=self.aws.url
        )
        client.put_metric_data(Namespace="AWS/Kinesis", MetricData=[datum])
        client.close()

    # -- the doctor --------------------------------------------------------------------------------------------

    def facts(self):
        question = Question(
            config=Config.from_options(self.config),
            clients=replace(self.clients),
            named_regions=_regions_of_environment(),
            **{"application": APPLICATION, "table": APPLICATION, **self.asked},
        )
        return gather(question, Heart(self))

    def findings(self) -> dict:
        """By id; the last of each."""
        return {one.id: one for one in diagnose(self.facts())}

    def in_region(self, region: str) -> None:
        self.clients = replace(self.clients, region=region)


def check_command(fix):
    """A command of ours is one that our command line takes; one of AWS' CLI names an operation and its parameters."""
    words = shlex.split(fix.partition("   (")[0].replace("…", "pykcl.examples.orders:Orders"))
    if words[0] == "pykcl":
        command, rest = main, words[1:]
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), rest.pop(0))
            assert command is not None, fix
        with command.make_context(words[1], [*rest]):
            options = [text.partition("=")[0] for before, text in pairwise(rest) if before == "--option"]
        assert set(options) <= set(Config.__dataclass_fields__)
    elif words[0] == "aws" and words[1] in ("kinesis", "dynamodb", "sts") and words[2] != "wait":
        model = Session().get_service_model(words[1])
        operations = {xform_name(name, "-"): name for name in model.operation_names}
        shape = model.operation_model(operations[words[2]]).input_shape
        members = {xform_name(name, "-") for name in (shape.members if shape else ())}
        assert {word[2:] for word in words if word.startswith("--")} <= members, fix


class Iam(BaseHTTPRequestHandler):
    """SimulatePrincipalPolicy as IAM words it; who is denied what is in `denied`."""

    denied: frozenset = frozenset()
    asked: list = []  # noqa: RUF012 - of one test

    def do_POST(self):
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        self.asked.append(form)
        members = [
            f"<member><EvalActionName>{name}</EvalActionName><EvalDecision>"
            f"{'implicitDeny' if name in self.denied else 'allowed'}</EvalDecision></member>"
            for key, (name,) in form.items()
            if key.startswith("ActionNames.member.")
        ]
        body = (
            '<SimulatePrincipalPolicyResponse xmlns="https://iam.amazonaws.com/doc/2010-05-08/"><SimulatePrincipalPolicyResult>'
            f"<IsTruncated>false</IsTruncated><EvaluationResults>{''.join(members)}</EvaluationResults>"
            "</SimulatePrincipalPolicyResult></SimulatePrincipalPolicyResponse>"
        ).encode()
        self.send_response(200)
        self.send_header("content-type", "text/xml")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing: pytest's output is not its log."""
