"""Real workers of Java KCL: their jars, brought by Maven, and the command and properties of a MultiLangDaemon.

The jars go into a cache: a folder per POM, with a list of its files, so that the second run starts no Maven and an
incomplete folder is noticed. No jar is part of pykcl.

`python -m pykcl.demo.java COMMAND …` runs a program that outlives its parent, as a JVM does, under a `Guard`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from pykcl.demo.workers import APPLICATION, FAILOVER_TIME, STREAM, WorkerProcess

KCL_2 = Path(__file__).parent / "maven" / "2.7.2" / "pom.xml"
"""POM of the last Java KCL 2.x."""
CACHE_VARIABLE = "JAVA_KCL_CACHE"
"""Not PYKCL_…: those are the options of Config, and `pykcl run` refuses any other."""
LIST = "jars.json"
PINS = "pinned.sha256"
DAEMON = "software/amazon/kinesis/multilang/MultiLangDaemon.class"
RESOLVE_SECONDS = 900.0
ASK_SECONDS = 60.0
_MAX_SHOWN = 400
"""Characters of an error of Maven."""


class Unavailable(Exception):
    """The reason why Java workers cannot run here."""


def version_of(pom: Path) -> str:
    """Return the version of the library in a POM: the name of its folder."""
    return pom.parent.name


def users_cache(environment: Mapping[str, str]) -> Path:
    """Return JAVA_KCL_CACHE, or a folder in the user's cache folder."""
    if chosen := environment.get(CACHE_VARIABLE):
        return Path(chosen)
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pykcl" / "java"


def resolved(pom: Path, cache: Path) -> tuple[Path, ...]:
    """Return the jars of a POM, sorted. Raises Unavailable without Java, Maven or a repository."""
    java_version()
    target = cache / f"{version_of(pom)}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    with locked(cache):
        found = _complete(target)
        if found is None:
            shutil.rmtree(target, ignore_errors=True)
            _resolve(pom, cache, target)
            found = _complete(target)
    if found is None:
        raise Unavailable(f"the jars in {target} are incomplete")
    return found


@cache
def java_version() -> str:
    """Return the output of `java -version` as one line. Raises Unavailable."""
    java = shutil.which("java")
    if java is None:
        raise Unavailable("java not found")
    done = subprocess.run(  # noqa: S603 - the Java of the path, whichever the user has
        [java, "-version"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False
    )
    if done.returncode != 0:
        raise Unavailable(f"java -version ended with {done.returncode}")
    return " ".join(done.stderr.split())


@contextlib.contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Let one process in at a time: downloads and shared archives are big, and two would only wait for each other."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _complete(target: Path) -> tuple[Path, ...] | None:
    """Return the jars of the list, if each exists in its size."""
    try:
        sizes = json.loads((target / LIST).read_text("utf-8"))
        whole = all((target / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return None
    return tuple(target / name for name in sorted(sizes)) if whole and sizes else None


def _resolve(pom: Path, cache: Path, target: Path) -> None:
    if shutil.which("mvn") is None:
        raise Unavailable("mvn (Maven) not found")
    # Into another folder first, which is then renamed: an interrupted download never passes for a complete one.
    aside, pins = Path(tempfile.mkdtemp(dir=cache)), pinned(pom)
    copy = [
        "--strict-checksums", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime",
        f"-DoutputDirectory={aside}",
    ]  # fmt: skip
    try:
        done = _maven(aside, *copy)
        if done.returncode != 0 and pins:
            # A mirror may have a jar without its checksum. Then the pinned checksum decides.
            for artifact in pins:
                _maven(aside, "dependency:get", f"-Dartifact={artifact}", "-Dtransitive=false")
            done = _maven(aside, *copy)
        if done.returncode != 0:
            errors = [line for line in done.stdout.splitlines() if "ERROR" in line]
            raise Unavailable(
                f"Maven could not resolve it: {_shortened(errors[0]) if errors else 'no reason given'}"
            )
        _check_pins(aside, pins)
        _write_list(aside)
        os.rename(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _maven(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Maven. Raises Unavailable when it does not finish in time."""
    try:
        return subprocess.run(  # noqa: S603 - Maven, with a POM of ours
            ["mvn", "-B", "-q", *arguments], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,  # noqa: S607
            stderr=subprocess.STDOUT, text=True, timeout=RESOLVE_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven did not finish within {RESOLVE_SECONDS:g} s") from None


def _shortened(line: str) -> str:
    """Shorten an ERROR line in its middle: the cause is at its end."""
    return line if len(line) <= _MAX_SHOWN else f"{line[: _MAX_SHOWN // 2]}…{line[-_MAX_SHOWN // 2 :]}"


def pinned(pom: Path) -> dict[str, str]:
    """Return the content of `pinned.sha256` beside a POM: group:artifact:version -> SHA-256 of that jar."""
    file = pom.parent / PINS
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return {artifact: digest for digest, artifact in map(str.split, lines)}


def _check_pins(folder: Path, pins: Mapping[str, str]) -> None:
    for artifact, digest in pins.items():
        _, name, version = artifact.split(":")
        jar = folder / f"{name}-{version}.jar"
        if not jar.exists():
            raise Unavailable(f"Maven did not download {jar.name}")
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        if found != digest:
            raise Unavailable(f"{jar.name} is not the expected file: its SHA-256 is {found}, not {digest}")


def _write_list(folder: Path) -> None:
    """Write the list of jars. Raises Unavailable when a jar is broken or none has the daemon."""
    jars, daemon = sorted(folder.glob("*.jar")), False
    for jar in jars:
        try:
            with zipfile.ZipFile(jar) as opened:
                daemon = daemon or DAEMON in opened.namelist()
        except zipfile.BadZipFile:
            raise Unavailable(f"{jar.name} is not a valid archive") from None
    if not daemon:
        raise Unavailable(f"none of the {len(jars)} jars holds MultiLangDaemon")
    sizes = {jar.name: jar.stat().st_size for jar in jars}
    (folder / LIST).write_text(json.dumps(sizes, indent=1), "utf-8")


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
    """Write `NAME.properties` and `NAME.logback.xml` into folder; return the command of the daemon that reads them.

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
    """Properties of a daemon that reads a stream of the local AWS at `url`, from TRIM_HORIZON, by GetRecords."""
    return {
        "executableName": executable, "applicationName": application, "streamName": stream, "workerId": worker,
        "regionName": "us-east-1", "initialPositionInStream": "TRIM_HORIZON", "retrievalMode": "POLLING",
        "metricsLevel": "NONE", "AwsCredentialsProvider": "EnvironmentVariableCredentialsProvider",
        "kinesisEndpoint": url, "dynamoDBEndpoint": url,
    }  # fmt: skip


def archive_of(jars: Sequence[Path]) -> Path:
    """Path of the class-data archive of these jars for this Java; it may not exist yet.

    Raises Unavailable without Java.
    """
    return jars[0].parent / f"classes-{hashlib.sha256(java_version().encode()).hexdigest()[:12]}.jsa"


def shared_classes(jars: Sequence[Path]) -> tuple[str, ...]:
    """Return the flags that make Java load its classes from the archive, if there is one."""
    archive = archive_of(jars)
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto") if archive.exists() else ()


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
"""The same timeouts as those of the Python workers, as far as Java has them."""


def java_jars(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the jars of the demo's Java worker, through Maven the first time. Raises Unavailable."""
    return resolved(KCL_2, users_cache(environment))


def java_worker(
    jars: Sequence[Path], folder: Path, environment: Mapping[str, str], url: str
) -> WorkerProcess:
    """Start the Java worker. folder: for its files. environment: see `worker_environment`. url: of the local AWS."""
    worker = WorkerProcess(NAME, folder)
    # Java cuts its executableName at each blank, and any of these paths may have one: so it gets the name of a script.
    program = [sys.executable, "-m", "pykcl.demo.java_processor", str(worker.record_log), NAME]
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
    worker.start([sys.executable, "-m", "pykcl.demo.java", *command], environment, where=folder)
    return worker


class Guard:
    """Run one program. Use once.

    The guard must lead a process group, in which the program and all of its children stay. When standard input ends,
    because the process that started the guard is gone, even by kill -9, the whole group is killed. SIGTERM is passed to
    the program alone, so that it can end its children in order; the exit code is 0 then, else the program's.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._asked = False

    def run(self, command: Sequence[str]) -> int:
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        threading.Thread(target=_kill_with_the_parent, name="guard-parent", daemon=True).start()
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - given by who starts us
        if self._asked:  # the signal came before there was a child to pass it to
            self._child.terminate()
        code = self._child.wait()
        return 0 if self._asked else code

    def _end(self) -> None:
        self._asked = True
        if self._child is not None:
            self._child.terminate()


def _kill_with_the_parent() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(Guard().run(sys.argv[1:]))
