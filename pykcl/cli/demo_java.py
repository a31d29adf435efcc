"""The demo's Java worker: a real MultiLangDaemon of Java KCL 2.7.2 beside the Python workers, on their lease table."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pykcl.cli.demo_crew import WorkerProcess
from pykcl.cli.demo_worker import APPLICATION, FAILOVER_TIME, STREAM
from pykcl.cli.java.daemon import daemon_command, local_properties, shared_classes
from pykcl.cli.java.jars import KCL_2, resolved, users_cache, version_of

NAME = "java"
VERSION = version_of(KCL_2)
_TIMES = {
    "failoverTimeMillis": round(FAILOVER_TIME * 1000),
    "idleTimeBetweenReadsInMillis": 500,
    "parentShardPollIntervalMillis": 500,
    "shardSyncIntervalMillis": 3000,
    "leaseCleanupIntervalMillis": 5000,
    "completedLeaseCleanupIntervalMillis": 60_000,
    "garbageLeaseCleanupIntervalMillis": 60_000,
}
"""The same patience as the Python workers', as far as Java has a word for it."""


def java_jars(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Of the Java worker, through Maven the first time. Raises java.jars.Unavailable."""
    return resolved(KCL_2, users_cache(environment))


def java_worker(
    jars: Sequence[Path], folder: Path, environment: Mapping[str, str], url: str
) -> WorkerProcess:
    """Starts it. folder: for its files. environment: see `demo_crew.worker_environment`. url: of the local AWS."""
    worker = WorkerProcess(NAME, folder)
    # Java cuts its executableName at each blank, and any of these paths may have one: so it is told of a script.
    program = [sys.executable, "-m", "pykcl.cli.demo_java_processor", str(worker.ledger), NAME]
    script = folder / "java-processor.sh"
    script.write_text(f"exec {shlex.join(program)}\n", "utf-8")
    properties = {
        **local_properties(
            application=APPLICATION, stream=STREAM, worker=NAME, url=url, executable=f"sh {script.name}"
        ),
        **_TIMES,
    }
    command = daemon_command(
        jars, folder, NAME, properties=properties, log=folder / "java-daemon.log", flags=shared_classes(jars)
    )
    worker.start([sys.executable, "-m", "pykcl.cli.java.guard", *command], environment, where=folder)
    return worker
