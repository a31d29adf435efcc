"""How a MultiLangDaemon of Java KCL is started: files it reads, flags of its JVM, and what makes it start fast."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pykcl.cli.java.jars import java_version

CHEAP = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Several of them share few cores: one thread that collects garbage, and only the compiler that is quick."""

_LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{log}</file>
    <encoder><pattern>%d{{HH:mm:ss.SSS}} %-5level %logger{{0}} - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="file"/></root>
</configuration>
"""


def daemon_command(
    jars: Sequence[Path], folder: Path, name: str, *, properties: Mapping[str, object], log: Path,
    flags: Sequence[str],
) -> list[str]:  # fmt: skip
    """Writes `NAME.properties` and `NAME.logback.xml` into folder; the command of the daemon that reads them.

    properties: by Java's names, beside `local_properties`. log: the file it writes. flags: of the JVM, beside CHEAP.
    """
    settings, logback = folder / f"{name}.properties", folder / f"{name}.logback.xml"
    settings.write_text("".join(f"{key} = {value}\n" for key, value in properties.items()), "utf-8")
    logback.write_text(_LOGBACK.format(log=log), "utf-8")
    return [
        "java", *CHEAP, *flags, f"-Dlogback.configurationFile={logback}", "-cp", os.pathsep.join(map(str, jars)),
        "software.amazon.kinesis.multilang.MultiLangDaemon",
        "--properties-file", str(settings), "--log-configuration", str(logback),
    ]  # fmt: skip


def local_properties(
    *, application: str, stream: str, worker: str, url: str, executable: str
) -> dict[str, object]:
    """What a daemon is told that reads a stream of the local AWS at `url`, from TRIM_HORIZON, by GetRecords."""
    return {
        "executableName": executable, "applicationName": application, "streamName": stream, "workerId": worker,
        "regionName": "us-east-1", "initialPositionInStream": "TRIM_HORIZON", "retrievalMode": "POLLING",
        "metricsLevel": "NONE", "AwsCredentialsProvider": "EnvironmentVariableCredentialsProvider",
        "kinesisEndpoint": url, "dynamoDBEndpoint": url,
    }  # fmt: skip


def archive_of(jars: Sequence[Path]) -> Path:
    """Where the classes of these jars are kept as this Java wants them; it may not be there yet.

    Raises jars.Unavailable without Java.
    """
    return jars[0].parent / f"classes-{hashlib.sha256(java_version().encode()).hexdigest()[:12]}.jsa"


def shared_classes(jars: Sequence[Path]) -> tuple[str, ...]:
    """The flags that make Java load its classes from the archive, if there is one."""
    archive = archive_of(jars)
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto") if archive.exists() else ()
