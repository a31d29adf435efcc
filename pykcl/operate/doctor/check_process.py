"""This machine, the connections a worker needs, and the metrics. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pykcl.operate.doctor.facts import Facts
from pykcl.operate.doctor.findings import Finding, found, many

SPARE_CONNECTIONS = 12
_SPARE_FILES = 64
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
    python = f"Python {process.python}{' free-threaded' if process.free_threaded else ''}"
    parts = [python, f"pykcl {process.pykcl}"]
    parts += [f"{name} {version}" for name, version in process.versions.items()]
    yield found("process-ok", " · ".join([*parts, *([process.platform] if process.platform else [])]))
    if not facts.config.metrics_sinks:
        yield found(
            "metrics-off",
            "No metrics are configured: nobody is told when this fleet falls behind or stands still.",
            "pykcl run … --option metrics=cloudwatch   (or prometheus, otel)",
        )
