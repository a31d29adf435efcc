"""This machine, the connections a worker needs, the metrics, and what all of it costs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pykcl.operate.doctor.costs import PRICES_OF, Costs, costs_of
from pykcl.operate.doctor.facts import Facts
from pykcl.operate.doctor.findings import Finding, found, many

SPARE_CONNECTIONS = 12
_SPARE_FILES = 64
DEAR_METRICS = 50.0
"""Dollars a month."""
_EXTRAS = {"prometheus_client": "prometheus", "opentelemetry": "otel"}


def check_process(facts: Facts) -> Iterator[Finding]:
    process = facts.process
    leases = min(facts.config.max_leases, facts.shards_to_read)
    if facts.connections and leases + SPARE_CONNECTIONS > facts.connections:
        yield found(
            "connections-few",
            f"One worker may come to hold {leases} leases, and its pool has {facts.connections} "
            "connections: threads wait "
            "for one another.",
            f"pykcl run … --option max_leases={facts.connections - SPARE_CONNECTIONS}   (and more workers)",
        )
    # One connection to Kinesis and one to DynamoDB for each lease's thread.
    files = 2 * (leases + SPARE_CONNECTIONS) + _SPARE_FILES
    if process.open_files is not None and files > process.open_files:
        yield found(
            "files-few",
            f"A worker with {many(leases, 'lease')} opens up to {files} files and connections, and "
            f"{process.open_files} are "
            "allowed.",
            f"ulimit -n {max(4096, files)}",
        )
    for package in process.missing:
        yield found(
            "package-missing",
            f"metrics={facts.config.metrics!r} needs the package {package!r}, which is not installed: a "
            "worker would not start.",
            f"pip install 'pykcl[{_EXTRAS.get(package, package)}]'",
        )
    told = " · ".join(f"{name} {version}" for name, version in process.versions.items())
    yield found(
        "process-ok", f"Python {process.python} · pykcl {process.pykcl}" + (f" · {told}" if told else "")
    )
    if not facts.config.metrics_sinks:
        yield found(
            "metrics-off",
            "No metrics are configured: nobody is told when this fleet falls behind or stands still.",
            "pykcl run … --option metrics=cloudwatch   (or prometheus, otel)",
        )


def check_cost(facts: Facts) -> Iterator[Finding]:
    costs = monthly_costs(facts)
    if costs is None:
        return
    config = facts.config
    table = f"lease table {_dollars(costs.table_quiet)}"
    if costs.table_busy - costs.table_quiet >= 0.5:
        table += f" quiet, up to {_dollars(costs.table_busy)} if every shard always has records"
    parts = [
        table,
        f"CloudWatch {_dollars(costs.cloudwatch)} ({many(costs.metrics, 'metric')})",
        f"fan-out {_dollars(costs.fan_out)}",
    ]
    yield found("cost", f"a month, about: {'; '.join(parts)} (list prices, {PRICES_OF})")
    if costs.cloudwatch > max(DEAR_METRICS, costs.table_busy):
        fix = (
            "pykcl run … --option metrics_level=SUMMARY"
            if config.metrics_level == "DETAILED"
            else "pykcl run … --option metrics_dimensions=Operation,WorkerIdentifier   (not per shard)"
        )
        yield found(
            "cost-metrics-high",
            f"{many(costs.metrics, 'metric')} in CloudWatch cost about {_dollars(costs.cloudwatch)} a "
            "month, more than the lease "
            "table.",
            fix,
        )


def monthly_costs(facts: Facts) -> Costs | None:
    """None where nobody knows how many shards are read."""
    shards = facts.shards_to_read
    if not shards:
        return None
    table, watch = facts.table, facts.watch
    units = None
    if table is not None and table.provisioned:
        units = (table.read_units, table.write_units)
    return costs_of(
        facts.config,
        shards=shards,
        workers=max(1, len(watch.live_owners)) if watch is not None else 1,
        consumers=facts.stream.consumers if facts.stream is not None else 0,
        provisioned=units,
    )


def _dollars(amount: float) -> str:
    return f"{amount:,.2f} $" if amount < 10 else f"{amount:,.0f} $"
