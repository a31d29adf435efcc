"""A program of amazon_kclpy at three doors: the real MultiLangDaemon of Java KCL 3.1.3, `pykcl multilangd`, and in
process. Same program, same records, same local stream. Needs Java, Maven and pip.

    python -m benchmarks.kclpy_doors [--records 40000] [--rounds 3] [--window 30] [--idle 60] [--doors java,multilangd,kclpy]

One door at a time, in processes of their own; the local AWS is another one, and its CPU does not count. Java reads over
HTTP/2 and CBOR, as it does by default. CPU is that of the door's process and all its children.

CPU per record: in windows of the same length N and 4 N records are put at once, in turn, after a warm-up; what the median
of those with 4 N cost more, by 3 N. So what the door does anyway in that time is in neither. Idle: a window without records, all leases held.
Memory: proportional set size (pages that processes share are counted once), after the windows. First record: from the
start of the command, without a lease table, as on the first day; and once more with the leases there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.processes import tree
from benchmarks.server_process import server_process
from pykcl.demo import java
from pykcl.demo.java import local_properties
from pykcl.local.server import LocalAws
from pykcl.local.stream import Entry

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "interop"))
import kclpy_package  # noqa: E402 - the one that installs the real amazon_kclpy

STREAM, SHARDS = "doors", 8
JAVA, MULTILANGD, IN_PROCESS = "java", "multilangd", "kclpy"
TITLES = {JAVA: "MultiLangDaemon 3.1.3", MULTILANGD: "pykcl multilangd", IN_PROCESS: "pykcl run --kclpy"}
NOT_RUN = 77
"""Exit code where Java or the package is missing."""
PATIENCE = 180.0

PROPERTIES = {
    "clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X", "idleTimeBetweenReadsInMillis": 500,
    "shutdownGraceMillis": 10000,
}  # fmt: skip
JVM_FLAGS = ("-Xmx400m",)
"""Less memory than it would take by itself; enough here."""
LOGBACK = """<configuration><appender name="e" class="ch.qos.logback.core.ConsoleAppender"><target>System.err</target>
<encoder><pattern>%d %-5level %logger{0} - %msg%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="e"/></root></configuration>
"""


@dataclass(frozen=True)
class Figures:
    """cpu: microseconds per record. idle: cores. memory: MB. first, again: seconds to the first record, without and with
    leases. children: processes beside the door's own."""

    cpu: float
    idle: float
    memory: float
    first: float
    again: float
    children: int


@dataclass(frozen=True)
class Goal:
    """less: how many times less than Java's."""

    title: str
    of: Callable[[Figures], float]
    unit: str
    less: dict[str, float]


GOALS = (
    Goal("CPU per record", lambda one: one.cpu, "us", {MULTILANGD: 1.0, IN_PROCESS: 4.0}),
    Goal("idle CPU", lambda one: one.idle * 100, "% of a core", {MULTILANGD: 10.0, IN_PROCESS: 10.0}),
    Goal("memory", lambda one: one.memory, "MB", {MULTILANGD: 2.0, IN_PROCESS: 4.0}),
    Goal("start to first record", lambda one: one.first, "s", {MULTILANGD: 5.0, IN_PROCESS: 5.0}),
    Goal("the same, leases there", lambda one: one.again, "s", {}),
)


# -- the local AWS, in a process of its own ------------------------------------------------------------------------


def serve(pipe: Connection) -> None:
    """Tells its URL; puts what it is told: how many records over all shards, and of how many bytes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with LocalAws() as aws:
        aws.kinesis.create_stream(STREAM, SHARDS)
        pipe.send(aws.url)
        with contextlib.suppress(EOFError):
            while True:
                count, size = pipe.recv()
                step = (1 << 128) // SHARDS
                entries = [
                    Entry(os.urandom(size), f"key-{number % 512}", number % SHARDS * step)
                    for number in range(count)
                ]
                aws.kinesis.put_records(STREAM, entries)
                pipe.send(len(entries))


@contextlib.contextmanager
def local_aws() -> Iterator[tuple[str, Callable[[int, int], None]]]:
    """Its URL, and put(count, size)."""
    with server_process(serve) as pipe:

        def put(count: int, size: int) -> None:
            pipe.send((count, size))
            assert pipe.recv() == count

        yield pipe.recv(), put


# -- processes -----------------------------------------------------------------------------------------------------


def cpu_seconds(root: int) -> float:
    """Of the tree, those included that have ended and were waited for."""
    ticks = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_megabytes(root: int) -> float:
    kilobytes = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    kilobytes += int(line.split()[1])
    return kilobytes / 1024


class Door:
    """One running door, reading the stream from its beginning unless its lease table says more."""

    def __init__(self, name: str, folder: Path, url: str, run: int) -> None:
        self.name = name
        self.notes = folder / f"notes-{run}"
        self._log = folder / f"log-{run}"
        words = [str(ROOT / "benchmarks" / "kclpy_program.py"), str(self.notes)]
        settings = folder / "app.properties"
        properties = {
            **local_properties(
                application=f"app-{name}", stream=STREAM, worker="w", url=url,
                executable=" ".join([sys.executable, *words]),
            ),
            **PROPERTIES,
        }  # fmt: skip
        settings.write_text("".join(f"{key} = {value}\n" for key, value in properties.items()), "utf-8")
        self.began = time.time()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command_of(name, folder, settings, words), cwd=folder, env=surroundings(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def batches(self) -> list[tuple[float, int]]:
        text = self.notes.read_text() if self.notes.exists() else ""
        return [tuple(json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, records: int) -> float:
        """Until so many have been processed. Seconds since then, from its start to the first batch."""
        deadline = time.monotonic() + PATIENCE
        while sum(count for _, count in self.batches()) < records:
            if time.monotonic() > deadline or self.process.poll() is not None:
                sys.exit(f"{self.name} did not process {records} records:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.02)
        return min(at for at, _ in self.batches()) - self.began

    def end(self) -> None:
        """In order, so that its leases are free; by force if it does not go."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)


def command_of(name: str, folder: Path, settings: Path, words: Sequence[str]) -> list[str]:
    if name == JAVA:
        logback = folder / "logback.xml"
        logback.write_text(LOGBACK, "utf-8")
        return [
            "java", *JVM_FLAGS, f"-Dlogback.configurationFile={logback}",
            "-cp", os.pathsep.join(map(str, java_jars())), "software.amazon.kinesis.multilang.MultiLangDaemon",
            "--properties-file", str(settings), "--log-configuration", str(logback),
        ]  # fmt: skip
    pykcl = [sys.executable, "-m", "pykcl.cli"]
    if name == MULTILANGD:
        return [*pykcl, "multilangd", "-p", str(settings)]
    return [*pykcl, "run", "--kclpy", words[0], "-p", str(settings), "--", words[1]]


def java_jars() -> tuple[Path, ...]:
    return java.resolved(ROOT / "tests" / "interop" / "java" / "3.1.3" / "pom.xml", ROOT / ".cache" / "java")


def surroundings() -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    paths = os.pathsep.join([str(ROOT), str(kclpy_package.installed())])
    return {
        **kept, "PYTHONPATH": paths, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip


# -- measuring -----------------------------------------------------------------------------------------------------


def measure(name: str, records: int, size: int, rounds: int, window: float, idle: float) -> Figures:
    with tempfile.TemporaryDirectory() as aside, local_aws() as (url, put), contextlib.ExitStack() as stack:
        folder = Path(aside)
        put(SHARDS, size)
        door = Door(name, folder, url, 1)
        stack.callback(door.end)
        first = door.wait_for(1)
        door.wait_for(SHARDS)
        total = SHARDS

        def cost(count: int) -> float:
            """CPU of a window in which so many are put at its beginning."""
            nonlocal total
            before, until = cpu_seconds(door.process.pid), time.monotonic() + window
            put(count, size)
            total += count
            door.wait_for(total)
            left = until - time.monotonic()
            if left < 0:
                sys.exit(
                    f"{name} needed {-left:.1f} s more than the window for {count} records. Give a longer --window."
                )
            time.sleep(left)
            return cpu_seconds(door.process.pid) - before

        for _ in range(2):
            cost(4 * records)
        costs = [(cost(records), cost(4 * records)) for _ in range(rounds)]
        few, many = (statistics.median(column) for column in zip(*costs, strict=True))
        before = cpu_seconds(door.process.pid)
        time.sleep(idle)
        resting = (cpu_seconds(door.process.pid) - before) / idle
        memory, children = memory_megabytes(door.process.pid), len(tree(door.process.pid)) - 1
        door.end()

        put(SHARDS, size)
        again = Door(name, folder, url, 2)
        stack.callback(again.end)
        second = again.wait_for(1)
    return Figures((many - few) / (3 * records) * 1e6, resting, memory, first, second, children)


def table(found: dict[str, Figures]) -> bool:
    """Print it; whether every goal was met that could be looked at."""
    print()
    print(f"{'':26}" + "".join(f"{TITLES[name]:>46}" for name in found))
    met = True
    for goal in GOALS:
        line = f"{goal.title:26}"
        for name in found:
            cell, is_met = cell_of(goal, name, found)
            line += f"{cell:>46}"
            met = met and is_met
        print(line)
    print(f"{'processes':26}" + "".join(f"{1 + figures.children:>46}" for figures in found.values()))
    return met


def cell_of(goal: Goal, name: str, found: dict[str, Figures]) -> tuple[str, bool]:
    """Its text, and whether it meets its goal, as far as it has one."""
    ours = goal.of(found[name])
    cell = f"{ours:.1f} {goal.unit}"
    if name == JAVA or JAVA not in found:
        return cell, True
    java, wanted = goal.of(found[JAVA]), goal.less.get(name)
    if min(java, ours) <= 0:
        return f"{cell}, no ratio: too few records", False
    is_met = wanted is None or java / ours >= wanted
    cell += f", {java / ours:.1f}x less"
    return cell if wanted is None else f"{cell} (goal {wanted:g}x{'' if is_met else ' MISSED'})", is_met


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--records", type=int, default=40_000, help="N of the slope")
    options.add_argument("--size", type=int, default=100, help="bytes of a record")
    options.add_argument("--rounds", type=int, default=3, help="of a window with N and one with 4 N records")
    options.add_argument("--window", type=float, default=30.0, help="seconds; 4 N records must fit")
    options.add_argument("--idle", type=float, default=60.0, help="seconds")
    options.add_argument("--doors", default=",".join(TITLES))
    chosen = options.parse_args()
    try:
        version = java.java_version()
        java_jars()
        kclpy_package.installed()
    except (java.Unavailable, kclpy_package.Unavailable) as reason:
        print(f"NOT RUN: {reason}")
        return NOT_RUN
    print(
        f"Python {platform.python_version()}, {version}, JVM flags {' '.join(JVM_FLAGS)}, {os.cpu_count()} cores"
    )
    print(
        f"{SHARDS} shards, N = {chosen.records}, records of {chosen.size} bytes, windows of {chosen.window:g} s"
    )
    found = {}
    for name in chosen.doors.split(","):
        found[name] = measure(name, chosen.records, chosen.size, chosen.rounds, chosen.window, chosen.idle)
        print(f"  {TITLES[name]}: {found[name]}", flush=True)
    return 0 if table(found) else 1


if __name__ == "__main__":
    sys.exit(main())
