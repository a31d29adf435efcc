"""`JavaWorker`: a real worker of Amazon's Java KCL, as a process of a fleet; `train`: what makes it start fast."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from fleet_evidence import STREAM, TABLE
from fleet_processes import NAME_VARIABLE, WorkerProcess, environment
from fleet_reaper import Reaper
from fleet_recording import POLICY_VARIABLE, RECORDING_VARIABLE, WORK_VARIABLE, WORKER_VARIABLE
from java_jars import resolved

from pykcl.demo.java import archive_of, daemon_command, local_properties, locked, shared_classes
from pykcl.model.shard import HashRange

HERE = Path(__file__).parent
COMPATIBLE = "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"
PHASE_1 = "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"
"""Values of clientVersionConfig of 3.x. PHASE_1 is known to 3.5 and leaves the lease table to leases."""
STOP_SECONDS = 15.0
TRAINING_SECONDS = 120.0

_LINE = re.compile(r"^(?P<t>\S+) (?P<level>[A-Z]+) +(?P<logger>\S+) - (?P<text>.*)")


@dataclass(frozen=True, slots=True)
class LogLine:
    """logger: its class, without the package. text: of the line, and of the first one of a stack trace below it."""

    level: str
    logger: str
    text: str


@dataclass(frozen=True, slots=True)
class Timing:
    """What the properties say about time, in seconds. Java looks for leases to take every 2 x failover_time."""

    failover_time: float = 5.0
    idle_time_between_reads: float = 0.5
    shard_sync: float = 3.0
    cleanup: float = 5.0

    def properties(self) -> dict[str, object]:
        return {
            "failoverTimeMillis": round(self.failover_time * 1000),
            "idleTimeBetweenReadsInMillis": round(self.idle_time_between_reads * 1000),
            "shardSyncIntervalMillis": round(self.shard_sync * 1000),
            "parentShardPollIntervalMillis": 1000,
            "leaseCleanupIntervalMillis": round(self.cleanup * 1000),
            "completedLeaseCleanupIntervalMillis": round(self.cleanup * 1000),
            "garbageLeaseCleanupIntervalMillis": round(self.cleanup * 2000),
        }


class JavaWorker(WorkerProcess):
    """A MultiLangDaemon with a `record_processor.py` per shard, in a process group of its own.

    url: of all of AWS; kinesis_url: of a Kinesis elsewhere. mode: clientVersionConfig, needed by 3.x. policy: see
    `fleet_recording.Policy`. work: seconds per record. properties: any others, by Java's names. flags: of the JVM.
    Raises java.Unavailable.
    """

    STARTED = "Initialization complete. Starting worker loop."

    def __init__(
        self,
        folder: Path,
        url: str,
        worker: str,
        version: str,
        *,
        reaper: Reaper,
        mode: str | None = None,
        policy: str = "each",
        work: float = 0.0,
        timing: Timing | None = None,
        kinesis_url: str | None = None,
        properties: Mapping[str, object] | None = None,
        flags: Sequence[str] | None = None,
    ) -> None:
        super().__init__(folder, worker)
        self.version, self.mode = version, mode
        self._reaper = reaper
        jars = resolved(version)
        if flags is None:
            flags = shared_classes(jars)
        executable = f"{sys.executable} -I -S {HERE / 'record_processor.py'}"
        asked = {
            **local_properties(application=TABLE, stream=STREAM, worker=worker, url=url, executable=executable),
            **({"kinesisEndpoint": kinesis_url} if kinesis_url else {}),
            **({"clientVersionConfig": mode} if mode else {}),
            **(timing or Timing()).properties(), **(properties or {}),
        }  # fmt: skip
        command = daemon_command(jars, folder, worker, properties=asked, log=self.log, flags=flags)
        more = {
            "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true", RECORDING_VARIABLE: str(self.recording), WORKER_VARIABLE: worker,
            POLICY_VARIABLE: policy, WORK_VARIABLE: str(work), NAME_VARIABLE: worker,
        }  # fmt: skip
        with (folder / f"{worker}.out").open("wb") as out:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment(**more), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        reaper.watch(self.process.pid)

    # -- what it says --------------------------------------------------------------------------------------------

    def lines(self, *levels: str) -> list[LogLine]:
        """Of its log, of those levels."""
        found: list[LogLine] = []
        continued = False
        text = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
        for line in text.splitlines():
            if match := _LINE.match(line):
                found.append(LogLine(match["level"], match["logger"], match["text"]))
                continued = False
            elif found and not continued:
                last = found[-1]
                found[-1] = LogLine(last.level, last.logger, f"{last.text} | {line.strip()}")
                continued = True
        return [line for line in found if line.level in levels]

    @property
    def cpu_seconds(self) -> float:
        """Of the JVM, as far as it has got; 0.0 where there is no /proc, or no JVM any more."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # -- what is done to it --------------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL to the daemon and its record processors, as when a machine dies."""
        self._send_all(signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP to all of them, as when a machine stands still."""
        self._send_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send_all(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM to the daemon, then wait; SIGKILL if it does not go. It gives no lease back."""
        self.send(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        self.end()

    def end(self) -> None:
        """Whatever state it is in; nothing of it is left."""
        if self.process.poll() is None:
            self._send_all(signal.SIGKILL)
            self.process.wait(60)
        self._reaper.forget(self.process.pid)

    def _send_all(self, number: signal.Signals) -> None:
        """Nothing when it has been waited for: from then on its number may be another group's."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


# -- a fast start --------------------------------------------------------------------------------------------------


def train(version: str, folder: Path, mode: str | None = None) -> bool:
    """Make the archive if there is none: have a daemon consume one shard, and keep the classes it needed.

    Starts take a third of the time and of the processor with it, and there are many on two cores. folder: for its
    files. Returns whether there is one; a Java that cannot make it only starts slower. Raises java.Unavailable.
    """
    jars = resolved(version)
    archive = archive_of(jars)
    with locked(jars[0].parent):
        if archive.exists():
            return True
        aside = archive.with_suffix(".new")
        aside.unlink(missing_ok=True)
        _consume_one_shard(version, folder, mode, aside)
        with contextlib.suppress(OSError):
            aside.rename(archive)
        return archive.exists()


def _consume_one_shard(version: str, folder: Path, mode: str | None, archive: Path) -> None:
    from pykcl.local.server import LocalAws

    with LocalAws() as aws, Reaper() as reaper:
        aws.kinesis.create_stream(STREAM, 1)
        keys = {"aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": "us-east-1"}
        with contextlib.closing(boto3.client("kinesis", endpoint_url=aws.url, **keys)) as kinesis:
            kinesis.put_record(StreamName=STREAM, PartitionKey="k", Data=b'{"id": 1}')
        with contextlib.closing(boto3.client("dynamodb", endpoint_url=aws.url, **keys)) as dynamodb:
            make_leases(dynamodb, TABLE, {"shardId-000000000000": HashRange(0, (1 << 128) - 1)})
        worker = JavaWorker(
            folder, aws.url, f"train-{version}", version, reaper=reaper, mode=mode,
            flags=(f"-XX:ArchiveClassesAtExit={archive}",),
        )  # fmt: skip
        try:
            deadline = time.monotonic() + TRAINING_SECONDS
            while not worker.finished and worker.runs and time.monotonic() < deadline:
                worker.poll()
                time.sleep(0.1)
            worker.send(signal.SIGTERM)  # Java writes the archive when it goes in order
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(TRAINING_SECONDS)
        finally:
            worker.end()


def make_leases(dynamodb: Any, table: str, shards: Mapping[str, HashRange]) -> None:
    """The table with a lease for each shard, as Java makes them. It waits up to 30 s, drawn by lot, before it does that,
    and with stock settings for another minute; never where there are some."""
    dynamodb.create_table(
        TableName=table, BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
    )  # fmt: skip
    zero = {"N": "0"}
    for key, keys in shards.items():
        row = {
            "leaseKey": {"S": key}, "leaseCounter": zero, "ownerSwitchesSinceCheckpoint": zero,
            "checkpoint": {"S": "TRIM_HORIZON"}, "checkpointSubSequenceNumber": zero,
            "startingHashKey": {"S": str(keys.first)}, "endingHashKey": {"S": str(keys.last)},
        }  # fmt: skip
        dynamodb.put_item(TableName=table, Item=row)
