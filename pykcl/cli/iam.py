"""`pykcl iam`: the least policy of a worker, or of a person who operates a fleet."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from pykcl.cli.output import say
from pykcl.cli.target import Target, fleet_options
from pykcl.errors import ConfigError

_ARN = re.compile(
    r"arn:(?P<partition>[a-z0-9-]+):kinesis:(?P<region>[a-z0-9-]+):(?P<account>[0-9]{12}):stream/"
)


@click.command()
@fleet_options("application", "stream")
@click.option("--account", metavar="DIGITS", help="AWS account; by default the one of the stream's ARN.")
@click.option("--partition", metavar="NAME", help="Such as aws-cn; by default the one of the ARN, else aws.")
@click.option(
    "--format",
    "as_format",
    type=click.Choice(["json", "terraform"]),
    default="json",
    show_default=True,
    help="What is printed.",
)
@click.option(
    "--for",
    "whose",
    type=click.Choice(["worker", "operator"]),
    default="worker",
    show_default=True,
    help="Whose policy: of what runs, or of who looks at it.",
)
@click.option(
    "--create-table/--no-create-table", default=None, help="Worker: whether it makes the lease table."
)
@click.option("--metrics/--no-metrics", default=None, help="Worker: whether it sends metrics to CloudWatch.")
@click.option("--steer", is_flag=True, help="Operator: may also move checkpoints, release and prune leases.")
@click.option("--put", is_flag=True, help="Operator: may also put records.")
@click.option("--simulate", is_flag=True, help="Operator: may also use doctor --simulate-iam.")
@click.option(
    "--read-metrics", is_flag=True, help="Operator: may also ask CloudWatch, for lag --source cloudwatch."
)
@click.option("--name", metavar="NAME", help="Of the policy, for Terraform.")
def iam(
    target: Target,
    account: str | None,
    partition: str | None,
    as_format: str,
    whose: str,
    create_table: bool | None,
    metrics: bool | None,
    steer: bool,
    put: bool,
    simulate: bool,
    read_metrics: bool,
    name: str | None,
) -> None:
    """Print the least that a worker, or an operator, must be allowed at AWS. Asks nobody.

    Metrics, table creation and the state table are as the file of -c or -p says, unless told here. Without an ARN, an
    account, ACCOUNT stands in its place, and REGION where neither the environment nor the AWS profile names a region.
    """
    from pykcl.operate.aws.iam_policy import operator_policy, terraform_of, worker_policy

    _refuse_mixture(
        whose, create_table, metrics, steer=steer, put=put, simulate=simulate, read_metrics=read_metrics
    )
    config = target.config
    places = _places(target, account, partition)
    common: dict[str, Any] = {
        "stream": config.stream_name,
        "table": config.table,
        "application": config.application,
        "coordinator_state_table": config.coordinator_state_table,
        **places,
    }
    if whose == "operator":
        policy = operator_policy(**common, steer=steer, put=put, simulate=simulate, read_metrics=read_metrics)
    else:
        sends = "cloudwatch" in config.metrics_sinks if metrics is None else metrics
        policy = worker_policy(
            **common,
            create_table=config.create_table if create_table is None else create_table,
            point_in_time_recovery=config.point_in_time_recovery,
            metrics_namespace=(config.metrics_namespace or config.application) if sends else None,
        )
    if as_format == "terraform":
        say(terraform_of(policy, name or f"{config.application}-{whose}"))
    else:
        say(json.dumps(policy, indent=2))
    missing = [word for word in ("REGION", "ACCOUNT") if word in places.values()]
    if missing:
        say(
            f"pykcl: put in {' and '.join(missing)}, or give the stream as ARN (or --region, --account).",
            err=True,
        )


def _places(target: Target, account: str | None, partition: str | None) -> dict[str, str]:
    """Region, account and partition, from what was told; nothing is asked."""
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


def _refuse_mixture(whose: str, create_table: bool | None, metrics: bool | None, **of_operator: bool) -> None:
    if whose == "operator" and not (create_table is None and metrics is None):
        raise click.UsageError("--create-table and --metrics are of workers. Drop them, or --for operator.")
    told = [f"--{name.replace('_', '-')}" for name, given in of_operator.items() if given]
    if whose == "worker" and told:
        raise click.UsageError(f"{', '.join(told)}: only with --for operator.")
