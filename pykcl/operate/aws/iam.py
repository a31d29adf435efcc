"""IAM: minimal policies of workers, operators and producers, and permissions of an identity, proven by calls that only
read or simulated by IAM.

Nothing here writes. GetCallerIdentity of STS needs no permission; every other call is a read. SimulatePrincipalPolicy
covers the policies of the user or role, permission boundaries and service control policies; it covers neither policies
of resources nor conditions on keys that are not passed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlsplit

from pykcl.aws.clients import client_config, create_client
from pykcl.aws.errors import (
    BAD_CREDENTIALS,
    DENIED,
    EXPIRED_CREDENTIALS,
    MALFORMED,
    aws_errors,
    calling,
    error_code,
    sort_failure,
)
from pykcl.aws.table_admin import METRICS_SUFFIX, server_time_of, state_table_of
from pykcl.errors import AnswerRefused, PyKclError, SetupError, Throttled
from pykcl.metrics.catalog import PRODUCER_NAMESPACE
from pykcl.model.dead_letter import Address
from pykcl.model.lease_item import OWNER_INDEX
from pykcl.operate.aws.clients import OperatorClients
from pykcl.runtime import Runtime
from pykcl.times import format_time

_LABEL = re.compile(r"[^A-Za-z0-9_-]")

STREAM_ACTIONS = (
    "kinesis:DescribeStreamSummary",
    "kinesis:GetRecords",
    "kinesis:GetShardIterator",
    "kinesis:ListShards",
)
TABLE_ACTIONS = (
    "dynamodb:DeleteItem",
    "dynamodb:DescribeTable",
    "dynamodb:GetItem",
    "dynamodb:PutItem",
    "dynamodb:Scan",
    "dynamodb:UpdateItem",
)
CREATE_ACTIONS = ("dynamodb:CreateTable",)
"""Needed only if pykcl creates the lease table (`create_table`), by the first worker that starts."""
RECOVERY_ACTIONS = ("dynamodb:UpdateContinuousBackups",)
"""Needed to create the lease table with `point_in_time_recovery`."""
METRICS_ACTIONS = ("cloudwatch:PutMetricData",)
"""Needed only if `metrics` names cloudwatch. The action has no resources, but a condition on the namespace."""
STATE_ACTIONS = ("dynamodb:GetItem",)
"""On the state table of Java KCL 3.0-3.4, which most applications do not have. Optional: without it pykcl cannot
see whether such a fleet has left the mode of 2.x."""
FOLLOW_ACTIONS = ("dynamodb:Query",)
"""On KCL 3.x's index of the lease table: a member of its fleet queries its leases there."""
FAN_OUT_ACTIONS = ("kinesis:DescribeStreamConsumer", "kinesis:RegisterStreamConsumer")
"""On the stream and its consumer, with enhanced fan-out. AWS checks the one or the other, by what the call names."""
SUBSCRIBE_ACTIONS = ("kinesis:SubscribeToShard",)
"""On the consumer."""
REPORT_ACTIONS = ("dynamodb:DeleteItem", "dynamodb:Scan", "dynamodb:UpdateItem")
"""On the metrics table of Java KCL 3.0-3.4; later versions have the metrics in the lease table. Scan shows which metric
the other workers report; without it pykcl reports none."""
READ_REPORTS_ACTIONS = ("dynamodb:Scan",)
"""On the same table, of an operator: for the members that `leases list`, `doctor` and the web page show. Optional."""

OPERATOR_STREAM_ACTIONS = (*STREAM_ACTIONS, "kinesis:DescribeStreamConsumer", "kinesis:ListStreamConsumers")
OPERATOR_FAN_OUT_ACTIONS = (*FAN_OUT_ACTIONS, "kinesis:DeregisterStreamConsumer")
"""For `fanout register` and `fanout deregister`."""
OPERATOR_TABLE_ACTIONS = (
    "dynamodb:DescribeTable",
    "dynamodb:DescribeTimeToLive",
    "dynamodb:GetItem",
    "dynamodb:Scan",
)
LISTING_ACTIONS = ("dynamodb:ListTables", "kinesis:ListStreams")
"""For completion of names, `streams list`, and "did you mean"; the actions have no resources."""
STEERING_ACTIONS = ("dynamodb:DeleteItem", "dynamodb:PutItem", "dynamodb:UpdateItem")
"""For `checkpoints reset --execute`, `leases release` and `leases prune`."""
READ_METRICS_ACTIONS = ("cloudwatch:GetMetricData",)
"""For `lag --source cloudwatch`; the action has no resources."""
PUT_ACTIONS = ("kinesis:PutRecords",)
"""For `put`."""
PRODUCER_ACTIONS = ("kinesis:DescribeStreamSummary", "kinesis:ListShards", *PUT_ACTIONS)
SEND_ACTIONS = {
    "sqs": ("sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"),
    "sns": ("sns:Publish",),
    "s3": ("s3:PutObject",),
    "kinesis": ("kinesis:PutRecords",),
}
"""Of a worker, by the kind of the destination of its dead letters. One that is encrypted with a customer managed key
also needs `kms:GenerateDataKey` and `kms:Decrypt` on that key."""
REDRIVE_ACTIONS = {
    "sqs": (
        "sqs:ChangeMessageVisibility",
        "sqs:DeleteMessage",
        "sqs:GetQueueAttributes",
        "sqs:GetQueueUrl",
        "sqs:ReceiveMessage",
    ),
    "s3": ("s3:DeleteObject", "s3:GetObject", "s3:PutObject"),
}
"""For `dead-letters redrive`; `list` and `show` delete and put nothing."""
LIST_LETTERS_ACTIONS = ("s3:ListBucket",)
SIMULATE_ACTIONS = ("iam:GetRole", "iam:SimulatePrincipalPolicy")
"""For `doctor --simulate-iam`."""


def worker_policy(
    *,
    stream: str,
    table: str,
    region: str = "REGION",
    account: str = "ACCOUNT",
    partition: str = "aws",
    create_table: bool = True,
    point_in_time_recovery: bool = False,
    application: str | None = None,
    coordinator_state_table: str | None = None,
    worker_metrics_table: str | None = None,
    metrics_namespace: str | None = None,
    dead_letters: Address | None = None,
    follow_leader: bool = False,
    consumer: str | None = None,
) -> dict[str, Any]:
    """Return the IAM policy of a worker as AWS' JSON document.

    stream, table: names. create_table: include the statement to create the lease table, and with
    point_in_time_recovery to enable its point-in-time recovery. application: its name, if the lease table has another
    one. coordinator_state_table, worker_metrics_table: as in `Config`. metrics_namespace: of CloudWatch; None without
    metrics there.
    dead_letters: the destination of dead letters, if they go to AWS. follow_leader: may join a fleet of KCL 3.x in its
    own mode. consumer: name of the consumer, if it reads by enhanced fan-out.
    A stream encrypted with a customer managed key also needs `kms:Decrypt` on that key.
    """
    tables = f"arn:{partition}:dynamodb:{region}:{account}:table/"
    lease_table = tables + table
    state_table = tables + (coordinator_state_table or state_table_of(application or table))
    streams = f"arn:{partition}:kinesis:{region}:{account}:stream/{stream}"
    statements = [_statement("Read", STREAM_ACTIONS, streams)]
    if consumer is not None:
        statements += _fan_out(FAN_OUT_ACTIONS, streams, consumer)
        statements.append(_statement("Subscribe", SUBSCRIBE_ACTIONS, f"{streams}/consumer/{consumer}:*"))
    statements.append(_statement("Leases", TABLE_ACTIONS, lease_table))
    if create_table:
        actions = CREATE_ACTIONS + (RECOVERY_ACTIONS if point_in_time_recovery else ())
        statements.append(_statement("CreateLeaseTable", actions, lease_table))
    statements.append(_statement("ReadJavaState", STATE_ACTIONS, state_table))
    if follow_leader:
        statements.append(_statement("FollowLeader", FOLLOW_ACTIONS, f"{lease_table}/index/{OWNER_INDEX}"))
        reports = tables + (worker_metrics_table or (application or table) + METRICS_SUFFIX)
        statements.append(_statement("ReportToLeader", REPORT_ACTIONS, reports))
    statements += _metrics(metrics_namespace)
    if dead_letters is not None and dead_letters.kind in SEND_ACTIONS:
        resource = _letters_in(dead_letters, partition)
        statements.append(_statement("SendDeadLetters", SEND_ACTIONS[dead_letters.kind], resource))
    return {"Version": "2012-10-17", "Statement": statements}


def operator_policy(
    *,
    stream: str,
    table: str,
    region: str = "REGION",
    account: str = "ACCOUNT",
    partition: str = "aws",
    application: str | None = None,
    coordinator_state_table: str | None = None,
    worker_metrics_table: str | None = None,
    steer: bool = False,
    put: bool = False,
    simulate: bool = False,
    read_metrics: bool = False,
    dead_letters: Address | None = None,
    consumer: str | None = None,
) -> dict[str, Any]:
    """Return the IAM policy of an operator, which only reads by default; arguments as in `worker_policy`.

    steer: may move checkpoints, release and delete leases, too. put: may put records. simulate: may simulate policies
    with the doctor. read_metrics: may read the lag from CloudWatch. dead_letters: may list and redrive those of this
    queue or bucket. consumer: may register and deregister this consumer of enhanced fan-out.
    """
    tables = f"arn:{partition}:dynamodb:{region}:{account}:table/"
    streams = f"arn:{partition}:kinesis:{region}:{account}:stream/{stream}"
    state = tables + (coordinator_state_table or state_table_of(application or table))
    reports = tables + (worker_metrics_table or (application or table) + METRICS_SUFFIX)
    statements = [
        _statement("LookAtStream", OPERATOR_STREAM_ACTIONS, streams),
        _statement("LookAtLeases", OPERATOR_TABLE_ACTIONS, tables + table),
        _statement("ReadJavaState", STATE_ACTIONS, state),
        _statement("ReadJavaMetrics", READ_REPORTS_ACTIONS, reports),
        _statement("ListNames", LISTING_ACTIONS, "*"),
    ]
    if steer:
        statements.append(_statement("SteerLeases", STEERING_ACTIONS, tables + table))
    if consumer is not None:
        statements += _fan_out(OPERATOR_FAN_OUT_ACTIONS, streams, consumer)
    if put:
        statements.append(_statement("PutRecords", PUT_ACTIONS, streams))
    if read_metrics:
        statements.append(_statement("ReadMetrics", READ_METRICS_ACTIONS, "*"))
    if simulate:
        statements.append(_statement("SimulatePolicies", SIMULATE_ACTIONS, "*"))
    if dead_letters is not None and dead_letters.kind in REDRIVE_ACTIONS:
        resource = _letters_in(dead_letters, partition)
        statements.append(_statement("RedriveDeadLetters", REDRIVE_ACTIONS[dead_letters.kind], resource))
        if dead_letters.kind == "s3":
            bucket = f"arn:{partition}:s3:::{dead_letters.name}"
            statements.append(_statement("ListDeadLetters", LIST_LETTERS_ACTIONS, bucket))
    return {"Version": "2012-10-17", "Statement": statements}


def producer_policy(
    *,
    stream: str,
    region: str = "REGION",
    account: str = "ACCOUNT",
    partition: str = "aws",
    metrics: bool = False,
) -> dict[str, Any]:
    """Return the IAM policy of a program that puts records with `Producer`; arguments as in `worker_policy`.

    metrics: may send them to CloudWatch, in the namespace that they have by default.

    A stream encrypted with a customer managed key also needs `kms:GenerateDataKey` on that key.
    """
    streams = f"arn:{partition}:kinesis:{region}:{account}:stream/{stream}"
    statements = [
        _statement("Put", PRODUCER_ACTIONS, streams),
        *_metrics(PRODUCER_NAMESPACE if metrics else None),
    ]
    return {"Version": "2012-10-17", "Statement": statements}


def _metrics(namespace: str | None) -> list[dict[str, Any]]:
    if namespace is None:
        return []
    condition = {"StringEquals": {"cloudwatch:namespace": namespace}}
    return [{**_statement("PublishMetrics", METRICS_ACTIONS, "*"), "Condition": condition}]


def _fan_out(actions: tuple[str, ...], streams: str, consumer: str) -> list[dict[str, Any]]:
    return [
        _statement("FanOut", actions, streams),
        _statement("FanOutConsumer", actions, f"{streams}/consumer/{consumer}:*"),
    ]


def _letters_in(address: Address, partition: str) -> str:
    """Return the ARN of what a destination's actions are about."""
    return f"arn:{partition}:s3:::{address.name}/{address.prefix}*" if address.kind == "s3" else address.text


def terraform_of(policy: dict[str, Any], name: str) -> str:
    """Return the policy as a data source and a policy resource of Terraform's AWS provider. name: of both."""
    label = _LABEL.sub("_", name)
    label = label if label[:1].isalpha() else f"_{label}"
    lines = [f'data "aws_iam_policy_document" "{label}" {{']
    for statement in policy["Statement"]:
        lines += ["  statement {", f"    sid       = {_hcl(statement['Sid'])}", '    effect    = "Allow"']
        lines += [f"    actions   = [{', '.join(map(_hcl, statement['Action']))}]"]
        lines += [f"    resources = [{_hcl(statement['Resource'])}]"]
        for test, compared in statement.get("Condition", {}).items():
            for variable, value in compared.items():
                lines += ["    condition {", f"      test     = {_hcl(test)}"]
                lines += [f"      variable = {_hcl(variable)}", f"      values   = [{_hcl(value)}]", "    }"]
        lines += ["  }", ""]
    lines[-1] = "}"
    lines += ["", f'resource "aws_iam_policy" "{label}" {{', f"  name   = {_hcl(name)}"]
    lines += [f"  policy = data.aws_iam_policy_document.{label}.json", "}"]
    return "\n".join(lines)


def _hcl(text: str) -> str:
    """Return a string of HCL: JSON's, with template signs doubled."""
    return json.dumps(text).replace("${", "$${").replace("%{", "%%{")


def actions_of(policy: dict[str, Any]) -> set[str]:
    """Return every action that the policy allows, such as "kinesis:GetRecords"."""
    return {action for statement in policy["Statement"] for action in statement["Action"]}


def _statement(name: str, actions: tuple[str, ...], resource: str) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": resource}


TroubleKind = Literal["denied", "key", "credentials", "missing", "throttled", "unreachable", "refused"]

_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """code: AWS' error code, such as "AccessDeniedException"; None without one. text: for people."""

    kind: TroubleKind
    text: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """action: IAM's name, such as "kinesis:ListShards". trouble: None if it was answered."""

    action: str
    trouble: Trouble | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity behind the credentials of a client.

    arn, account: None if STS did not answer; why_not is the reason. source: of the credentials, in botocore's words
    ("env", "iam-role"). expires_at: text, UTC. is_fixed: a session token that nothing renews.
    """

    source: str
    arn: str | None = None
    account: str | None = None
    expires_at: str | None = None
    is_fixed: bool = False
    why_not: str = ""


class Prober:
    """Sends probes and records their outcomes. Used by one thread.

    skew: seconds by which AWS' clock is ahead of ours, from the last answer with a date.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.probes: list[Probe] = []
        self.skew: float | None = None

    def ask(self, action: str, call: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """Return the answer; None for an error, which is then the last of `probes`. Raises no error of AWS."""
        answer, trouble = self._once(action, call)
        if trouble is not None and trouble.kind == "throttled":
            # Once more: all readers of a shard share five reads a second, so one throttled call means little.
            self._runtime.event().wait(_PAUSE)
            answer, trouble = self._once(action, call)
        self.probes.append(Probe(action, trouble))
        return answer

    def note(self, action: str, error: PyKclError | None) -> None:
        """Record the failure of a call by one of pykcl's adapters; None: it was answered."""
        self.probes.append(Probe(action, None if error is None else trouble_from(error, action)))

    def trouble_of(self, action: str) -> Trouble | None:
        return next((probe.trouble for probe in reversed(self.probes) if probe.action == action), None)

    def _once(
        self, action: str, call: Callable[[], Mapping[str, Any]]
    ) -> tuple[Mapping[str, Any] | None, Trouble | None]:
        try:
            answer = calling(call)()
            self._note_clock(answer)
            return dict(answer), None
        except aws_errors() as error:
            self._note_clock(getattr(error, "response", None))
            return None, trouble_from(error, action)
        except MALFORMED as error:
            failure = AnswerRefused(f"{action} got an answer that cannot be read ({type(error).__name__}).")
            return None, Trouble("refused", str(failure))

    def _note_clock(self, answer: Any) -> None:
        there = server_time_of(answer)
        if there is not None:
            self.skew = there - self._runtime.utcnow_millis() / 1000


def trouble_from(error: Exception, action: str) -> Trouble:
    """Return the meaning of an error of botocore, or of pykcl, for the caller."""
    code = error_code(error)
    failure = sort_failure(error, doing=action, who="whoever runs this")
    # A refusal by STS is of the role, and lacks no permission of this action.
    kind = "credentials" if failure.code == "E04" and code in DENIED else _kind(code, failure)
    return Trouble(kind, str(failure), code)


def _kind(code: str | None, failure: PyKclError) -> TroubleKind:
    if code is not None:
        # Before DENIED, in which one of these is.
        if code.startswith("KMS") and "Throttling" not in code:
            return "key"
        for codes, kind in _KINDS:
            if code in codes:
                return kind
    if isinstance(failure, Throttled):
        return "throttled"
    return "refused" if isinstance(failure, SetupError) else "unreachable"


_KINDS: tuple[tuple[frozenset[str], TroubleKind], ...] = (
    (DENIED, "denied"),
    (frozenset({"ResourceNotFoundException"}), "missing"),
    (BAD_CREDENTIALS | EXPIRED_CREDENTIALS, "credentials"),
)


def identity_of(clients: OperatorClients, service: str) -> Identity:
    """Return the identity whose credentials the clients of this service have.

    Asks STS unless only one of the two is AWS itself.
    Raises ConfigError, SetupError and TemporaryError as `OperatorClients.client`; what STS says is in the answer.
    """
    endpoint = str(clients.client(service).meta.endpoint_url)
    session = clients.session(service)
    credentials = session.get_credentials()
    known = _known(credentials)
    sts = create_client(
        session,
        "sts",
        region_name=clients.region_of(service),
        endpoint_url=clients.endpoint,
        config=client_config(connect_timeout=3.0, read_timeout=5.0, connections=1),
    )
    clients.note_hosts(sts)
    if is_aws(endpoint) != is_aws(str(sts.meta.endpoint_url)):
        return Identity(**known, why_not=f"{service} has an endpoint of its own, and STS has not")
    try:
        answer = sts.get_caller_identity()
        return Identity(**known, arn=str(answer["Arn"]), account=str(answer["Account"]))
    except aws_errors() as error:
        return Identity(**known, why_not=trouble_from(error, "sts:GetCallerIdentity").text)
    except (*MALFORMED, unreadable_xml()) as error:
        return Identity(**known, why_not=f"STS' answer cannot be read ({type(error).__name__})")


def unreadable_xml() -> type[Exception]:
    """Return the error of botocore for an answer of STS or IAM that is not XML, such as a proxy's."""
    from botocore.parsers import ResponseParserError

    found: type[Exception] = ResponseParserError
    return found


def _known(credentials: Any) -> dict[str, Any]:
    """Return the facts about botocore's credentials that are not secret. Fetches them if needed. Raises PyKclError."""
    failure: PyKclError
    try:
        has_token = bool(calling(credentials.get_frozen_credentials)().token)
    except aws_errors() as error:
        failure = sort_failure(error, doing="getting AWS credentials")
    except MALFORMED as error:
        failure = SetupError(
            f"Getting AWS credentials failed ({type(error).__name__}). Check their source."
        ).about("E04")
    else:
        # What stands in for botocore's has those.
        found = getattr(credentials, "found", credentials)
        return {
            "source": str(getattr(found, "method", None) or "given"),
            "expires_at": _time(getattr(found, "_expiry_time", None)),
            "is_fixed": has_token and not hasattr(found, "refresh_needed"),
        }
    # Outside the except blocks: boto3's message may quote a line of a credentials file.
    try:
        raise failure
    finally:
        del failure  # its traceback holds this frame: no cycle


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment.timestamp() * 1000, milliseconds=False)


def is_aws(endpoint: str) -> bool:
    """True if the URL is of a service of AWS itself, and not of a stand-in."""
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws", ".amazonwebservices.com.cn"))


_ROLE = re.compile(
    r"arn:(?P<partition>[a-z0-9-]+):sts::(?P<account>[0-9]{12}):assumed-role/(?P<role>[^/]+)/.*\Z"
)
_USER = re.compile(r"arn:[a-z0-9-]+:iam::[0-9]{12}:(?:user|role)/.+\Z")


@dataclass(frozen=True, slots=True)
class Simulation:
    """denied: (action, resource) that IAM would deny. asked: number of actions. why_not: the reason without a
    result."""

    denied: tuple[tuple[str, str], ...] = ()
    asked: int = 0
    why_not: str = ""


def simulate(iam: Any, arn: str, policy: Mapping[str, Any]) -> Simulation:
    """Simulate whether the identity `arn` (as GetCallerIdentity returns it) has the permissions of the policy.

    iam: a boto3 client. Needs iam:SimulatePrincipalPolicy, and for a role iam:GetRole.
    """
    try:
        principal = _principal(iam, arn)
        if principal is None:
            return Simulation(why_not=f"{arn} is neither a user nor a role, and IAM simulates only these")
        denied: list[tuple[str, str]] = []
        asked = 0
        for statement in policy["Statement"]:
            asked += len(statement["Action"])
            denied += _denied(iam, principal, statement)
    except aws_errors() as error:
        return Simulation(why_not=str(sort_failure(error, doing="iam:SimulatePrincipalPolicy")))
    except (*MALFORMED, unreadable_xml()) as error:
        return Simulation(why_not=f"IAM's answer cannot be read ({type(error).__name__})")
    return Simulation(tuple(denied), asked)


def _principal(iam: Any, arn: str) -> str | None:
    found = _ROLE.match(arn)
    if found is None:
        return arn if _USER.match(arn) else None
    try:
        # A session's ARN lacks the path of its role.
        return str(iam.get_role(RoleName=found["role"])["Role"]["Arn"])
    except aws_errors() as error:
        if error_code(error) not in ("AccessDenied", "AccessDeniedException"):
            raise
        return f"arn:{found['partition']}:iam::{found['account']}:role/{found['role']}"


def _denied(iam: Any, principal: str, statement: Mapping[str, Any]) -> list[tuple[str, str]]:
    resource = str(statement["Resource"])
    request: dict[str, Any] = {
        "PolicySourceArn": principal,
        "ActionNames": list(statement["Action"]),
        "ResourceArns": [resource],
        "ContextEntries": _context(statement.get("Condition")),
    }
    denied = []
    while True:
        answer = iam.simulate_principal_policy(**request)
        denied += [
            (str(one["EvalActionName"]), resource)
            for one in answer["EvaluationResults"]
            if one["EvalDecision"] != "allowed"
        ]
        if not answer.get("IsTruncated"):
            return denied
        request["Marker"] = answer["Marker"]


def _context(condition: Mapping[str, Mapping[str, str]] | None) -> list[dict[str, Any]]:
    """Return the keys and values of the policy's own conditions as IAM takes them."""
    return [
        {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
        for comparison in (condition or {}).values()
        for key, value in comparison.items()
    ]
