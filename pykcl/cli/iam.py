"""`pykcl iam`: the minimal policy of a worker, of a person who operates a fleet, or of a program that puts records."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from pykcl.cli.console import say
from pykcl.cli.errors import usage
from pykcl.cli.options import Verb, refuse_of_others
from pykcl.cli.target import Target, fleet_options
from pykcl.errors import ConfigError
from pykcl.model.dead_letter import Address
from pykcl.model.shard import consumer_name

_ARN = re.compile(
    r"arn:(?P<partition>[a-z0-9-]+):kinesis:(?P<region>[a-z0-9-]+):(?P<account>[0-9]{12}):stream/"
)
_OF = {
    "create_table": ("worker",),
    "follow_leader": ("worker",),
    "metrics": ("worker", "producer"),
    "consumer": ("worker", "operator"),
    "dead_letters": ("worker", "operator"),
    **dict.fromkeys(("steer", "put", "simulate", "read_metrics"), ("operator",)),
}


@click.command(cls=Verb)
@fleet_options("stream")
@click.option("--account", metavar="DIGITS", help="AWS account (default: the one of the stream's ARN).")
@click.option(
    "--partition",
    metavar="NAME",
    help="AWS partition, such as aws-cn (default: the one of the ARN, else aws).",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "terraform"]),
    default="json",
    show_default=True,
    help="Output format.",
)
@click.option(
    "--for",
    "whose",
    type=click.Choice(["worker", "operator", "producer"]),
    default="worker",
    show_default=True,
    help="Print the policy of a worker, of a person who operates the fleet, or of a program that puts records.",
)
@click.option(
    "--create-table/--no-create-table",
    default=None,
    help="With --for worker: include permission to create the lease table.",
)
@click.option(
    "--metrics/--no-metrics",
    default=None,
    help="With --for worker or producer: include permission to publish metrics in CloudWatch.",
)
@click.option(
    "--follow-leader/--no-follow-leader",
    default=None,
    help="With --for worker: include permission to join a fleet of KCL 3.x in its own mode.",
)
@click.option(
    "--steer",
    is_flag=True,
    help="With --for operator: also allow changes of leases and checkpoints.",
)
@click.option(
    "--fan-out",
    "consumer",
    metavar="CONSUMER",
    help="Allow enhanced fan-out by this consumer (default: as in the file), or with --for operator to register and "
    "deregister it.",
)
@click.option("--put", is_flag=True, help="With --for operator: also allow putting records.")
@click.option("--simulate", is_flag=True, help="With --for operator: also allow `doctor --simulate-iam`.")
@click.option(
    "--read-metrics", is_flag=True, help="With --for operator: also allow `lag --source cloudwatch`."
)
@click.option(
    "--dead-letters",
    metavar="DESTINATION",
    help="Allow to send dead letters there, or with --for operator to redrive them (default: as in the file).",
)
@click.option("--name", metavar="NAME", help="Name of the policy in Terraform.")
def iam(
    target: Target,
    account: str | None,
    partition: str | None,
    output: str,
    whose: str,
    create_table: bool | None,
    metrics: bool | None,
    follow_leader: bool | None,
    steer: bool,
    consumer: str | None,
    put: bool,
    simulate: bool,
    read_metrics: bool,
    dead_letters: str | None,
    name: str | None,
) -> None:
    """Print the minimal IAM policy of a worker, operator or producer.

    Needs --stream, and --application unless it is for a producer. Nothing is sent to AWS. Metrics, table creation,
    enhanced fan-out and the state table are as in the file of -c or -p. If account or region are unknown, the policy
    contains the placeholders ACCOUNT and REGION.
    """
    from pykcl.operate.aws.iam import operator_policy, producer_policy, worker_policy

    granted: dict[str, Any] = {"steer": steer, "put": put, "simulate": simulate, "read_metrics": read_metrics}
    refuse_of_others(whose, _OF)
    config = target.config
    places = _places(target, account, partition)
    if whose == "producer":
        policy = producer_policy(stream=config.stream_name, metrics=bool(metrics), **places)
        _show(policy, output, name or f"{config.stream_name}-producer", places)
        return
    target.refuse_without("application")
    common: dict[str, Any] = {
        "stream": config.stream_name,
        "table": config.table,
        "application": config.application,
        "coordinator_state_table": config.coordinator_state_table,
        "worker_metrics_table": config.worker_metrics_table,
        "dead_letters": _letters_to(dead_letters or config.dead_letters),
        "consumer": consumer,
        **places,
    }
    if whose == "operator":
        policy = operator_policy(**common, **granted)
    else:
        sends = "cloudwatch" in config.metrics_sinks if metrics is None else metrics
        if consumer is None and config.retrieval != "polling":
            common["consumer"] = consumer_name(config.consumer, config.application)
        policy = worker_policy(
            **common,
            create_table=config.create_table if create_table is None else create_table,
            point_in_time_recovery=config.point_in_time_recovery,
            follow_leader=config.fleet_mode == "3x" if follow_leader is None else follow_leader,
            metrics_namespace=(config.metrics_namespace or config.application) if sends else None,
        )
    _show(policy, output, name or f"{config.application}-{whose}", places)


def _show(policy: dict[str, Any], output: str, name: str, places: dict[str, str]) -> None:
    from pykcl.operate.aws.iam import terraform_of

    say(terraform_of(policy, name) if output == "terraform" else json.dumps(policy, indent=2))
    missing = [word for word in ("REGION", "ACCOUNT") if word in places.values()]
    if missing:
        say(
            f"pykcl: put in {' and '.join(missing)}, or give the stream as ARN (or --region, --account).",
            err=True,
        )


def _letters_to(text: str | None) -> Address | None:
    with usage():
        return None if text in (None, "callable") else Address.parse(text)


def _places(target: Target, account: str | None, partition: str | None) -> dict[str, str]:
    """Return region, account and partition without asking AWS."""
    if account is not None and not re.fullmatch(r"[0-9]{12}", account):
        raise ConfigError("--account is twelve digits, such as 123456789012.")
    found = _ARN.match(target.config.stream)
    if found is not None and account not in (None, found["account"]):
        raise ConfigError(
            f"--account {account} contradicts the stream's ARN, which is of {found['account']}."
        )
    return {
        "region": target.clients.known_region() or "REGION",
        "account": account or (found["account"] if found is not None else "ACCOUNT"),
        "partition": partition or (found["partition"] if found is not None else "aws"),
    }
