"""`pykcl dashboards`: JSON for CloudWatch and Grafana."""

from __future__ import annotations

import os
from typing import Any

import click

from pykcl.cli.fleet_options import Target, fleet_options
from pykcl.cli.output import json_text, say


@click.group()
def dashboards() -> None:
    """Print a dashboard of a fleet's metrics, by KCL's own names: lag, throughput, leases, trouble.

    Nothing is sent anywhere.
    """


@dashboards.command()
@fleet_options("application")
def cloudwatch(target: Target) -> None:
    """Print a dashboard body for CloudWatch. It also shows Java workers of the same application.

    \b
    pykcl dashboards cloudwatch -a orders-app > orders.json
    aws cloudwatch put-dashboard --dashboard-name orders-app --dashboard-body file://orders.json
    """
    from pykcl.operate.dashboards.cloudwatch import cloudwatch_dashboard

    say(json_text(cloudwatch_dashboard(target.config.application, **_of(target)), indent=2))


@dashboards.command()
@fleet_options("application")
@click.option(
    "--datasource",
    type=click.Choice(["prometheus", "cloudwatch"]),
    default="prometheus",
    show_default=True,
    help="Where Grafana finds the metrics.",
)
def grafana(target: Target, datasource: Any) -> None:
    """Print a dashboard for Grafana: in Dashboards, New, Import, paste it and choose the data source."""
    from pykcl.operate.dashboards.grafana import grafana_dashboard

    say(json_text(grafana_dashboard(target.config.application, datasource, **_of(target)), indent=2))


def _of(target: Target) -> dict[str, Any]:
    from pykcl.metrics.metering import dimensions_of

    config, access = target.config, target.clients.access
    spec = access.specs.get("cloudwatch")
    region = (
        access.region
        or (spec.region if spec is not None else None)
        or config.effective_region
        or os.environ.get("AWS_DEFAULT_REGION")
        or os.environ.get("AWS_REGION")
    )
    return {
        "namespace": config.metrics_namespace or config.application,
        "region": region or "us-east-1",
        "dimensions": dimensions_of(config),
    }
