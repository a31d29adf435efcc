"""MultiLangDaemon of Java KCL 2.7.2, with its JVM and all its Python children, beside a pykcl worker on the same local AWS.

Each has a stream of its own there, with the same shards, and records are put to one, then to the other, so rounds are interleaved.
CPU per user record is a slope, as in `kclpy_doors`: what a window with 4 N records costs more than one with N, by 3 N, so what
a reader does anyway is in neither. The JVM is warmed up with windows of 4 N until its figure stops falling. Java reads as it
does by default: HTTP/2 without TLS, CBOR; so does pykcl: HTTP/1.1 without TLS, CBOR. Both checkpoint every second.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import kclpy_doors, peer_goals
from benchmarks.canned import Shape
from benchmarks.figures import Spread, paired_ratio
from benchmarks.kclpy_child import PROGRAM
from benchmarks.local_stream import Server, Side, local_aws
from benchmarks.peer_goals import DAEMON, PYKCL_LOCAL
from benchmarks.processes import Child, tree_cpu_seconds
from benchmarks.readers import EVERY_SECOND, surroundings
from benchmarks.results import Results
from pykcl.demo import java as java_kcl
from pykcl.demo.java import local_properties

SHARDS = 8
RECORDS = {
    "1,000 x 100 B": 20_000,
    "1,000 x 1 KB": 6_000,
    "KPL 100x100x100 B": 60_000,
    "KPL 40x50x1 KB": 10_000,
}
"""N of the slope, user records."""
OUR_FACTOR = 3
MOST_WARM_UPS = 6
STILL_FALLING = 0.95
IDLE_SECONDS = 15.0
_JAVA_STREAM, _OUR_STREAM = "for-java", "for-pykcl"


class Unavailable(Exception):
    """Java, its jars or amazon_kclpy cannot be had here, for this reason."""


class Daemon:
    """The JVM and its children."""

    def __init__(self, folder: Path, url: str, found: Sequence[Path]) -> None:
        self._notes, self._log = folder / "notes", folder / "daemon.log"
        logback, settings = folder / "logback.xml", folder / "app.properties"
        logback.write_text(kclpy_doors.LOGBACK, "utf-8")
        properties = local_properties(
            application="bench-java", stream=_JAVA_STREAM, worker="w", url=url,
            executable=f"{sys.executable} {PROGRAM} {self._notes} 1",
        )  # fmt: skip
        settings.write_text("".join(f"{key} = {value}\n" for key, value in properties.items()), "utf-8")
        command = [
            "java", *kclpy_doors.JVM_FLAGS, f"-Dlogback.configurationFile={logback}",
            "-cp", os.pathsep.join(map(str, found)), "software.amazon.kinesis.multilang.MultiLangDaemon",
            "--properties-file", str(settings), "--log-configuration", str(logback),
        ]  # fmt: skip
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=kclpy_doors.surroundings(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def records(self) -> int:
        text = self._notes.read_bytes() if self._notes.exists() else b""
        return sum(map(int, text[: text.rfind(b"\n") + 1].split()))

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def cpu(self) -> float:
        return tree_cpu_seconds(self.process.pid)

    def story(self) -> str:
        return self._log.read_text("utf-8")[-2000:]

    def end(self) -> None:
        if self.is_alive:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        if self.is_alive:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


def measure(results: Results, shapes: Sequence[Shape], rounds: int, window: float) -> None:
    """Raises Unavailable. Prints its table and keeps its ratios."""
    try:
        results.versions["java"] = java_kcl.java_version()
        found = java_kcl.resolved(java_kcl.KCL_2, java_kcl.users_cache(os.environ))
        kclpy_doors.kclpy_package.installed()
    except (java_kcl.Unavailable, kclpy_doors.kclpy_package.Unavailable) as reason:
        raise Unavailable(str(reason)) from reason
    print(
        f"\n{DAEMON} {java_kcl.version_of(java_kcl.KCL_2)}, {results.versions['java']}, {' '.join(kclpy_doors.JVM_FLAGS)}"
    )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(local_aws((_JAVA_STREAM, _OUR_STREAM), SHARDS))
        daemon = Daemon(folder, server.url, found)
        stack.callback(daemon.end)
        options = {"stream": _OUR_STREAM, **EVERY_SECOND}
        child = Child(
            PYKCL_LOCAL, [sys.executable, "-m", "benchmarks.peer_programs.pykcl_worker", json.dumps(options)],
            surroundings(server.url, None), folder,
        )  # fmt: skip
        stack.callback(child.end)
        java = Side(DAEMON, _JAVA_STREAM, server, daemon.records, daemon.cpu)
        ours = Side(PYKCL_LOCAL, _OUR_STREAM, server, lambda: child.count()[0], lambda: child.cpu)
        try:
            for number, shape in enumerate(shapes):
                _measure_shape(results, java, ours, shape, rounds, window, first=number == 0)
            _measure_idle(results, java, ours, server, rounds)
        except RuntimeError as error:
            raise Unavailable(f"{error}\n{daemon.story()}") from error


def _measure_shape(
    results: Results, java: Side, ours: Side, shape: Shape, rounds: int, window: float, *, first: bool
) -> None:
    count = RECORDS[shape.name]
    warmed, longest = _warm_up(java, shape, count, most=MOST_WARM_UPS if first else 3)
    # More for us: what is cheap needs more of it to stand out from the polls around it.
    our_count = OUR_FACTOR * count
    _, ours_took = ours.spent_on(4 * our_count, shape)
    times: dict[str, list[float]] = {java.name: [], ours.name: []}
    for _ in range(rounds):
        times[java.name].append(java.slope(count, shape, max(window, 1.3 * longest)))
        # It is done within a second or two: less waiting, and the same difference.
        times[ours.name].append(ours.slope(our_count, shape, max(window / 2, 1.3 * ours_took)))
    _show(
        results,
        shape.name,
        times,
        f"N = {count:,}, for pykcl {our_count:,}; warm-up of the JVM: {warmed}",
        "us",
    )


def _warm_up(java: Side, shape: Shape, count: int, most: int) -> tuple[str, float]:
    """Until 4 N records are not clearly cheaper than ever before; what each time cost, as text, and how long the last one
    took."""
    costs: list[float] = []
    took = 0.0
    while len(costs) < most:
        cost, took = java.spent_on(4 * count, shape)
        costs.append(cost)
        if len(costs) > 2 and costs[-1] > STILL_FALLING * min(costs[:-1]):
            break
    return ", ".join(f"{cost:.1f} s" for cost in costs), took


def _measure_idle(results: Results, java: Side, ours: Side, server: Server, rounds: int) -> None:
    time.sleep(3.0)
    times: dict[str, list[float]] = {java.name: [], ours.name: []}
    for _ in range(rounds):
        before, cpu = server.polls(), (java.cpu(), ours.cpu())
        time.sleep(IDLE_SECONDS / rounds)
        after, spent = server.polls(), (java.cpu() - cpu[0], ours.cpu() - cpu[1])
        for number, side in enumerate((java, ours)):
            times[side.name].append(spent[number] / max(1, after[number] - before[number]) * 1e6)
    _show(results, peer_goals.AT_REST, times, "by GetRecords requests, each with its own pause", "us")


def _show(results: Results, what: str, times: dict[str, list[float]], note: str, unit: str) -> None:
    print(f"\n{what}, local stream ({note})")
    for name, found in times.items():
        spread = Spread.of(found)
        print(f"  {name:32}{spread.median:8.2f}{unit}{spread.low:10.2f}-{spread.high:.2f}", flush=True)
    try:
        ratio = paired_ratio(times[DAEMON], times[PYKCL_LOCAL])
    except ValueError as problem:
        print(f"  no ratio: {problem}")
        return
    results.ratios[peer_goals.key(what, PYKCL_LOCAL, DAEMON)] = ratio
    print(f"  {PYKCL_LOCAL} takes less: {ratio}")
    _draw(results, what, {name: Spread.of(found).median for name, found in times.items()})


def _draw(results: Results, what: str, medians: dict[str, float]) -> None:
    bars = [
        {"label": name, "value": value, "is_ours": name == PYKCL_LOCAL} for name, value in medians.items()
    ]
    picture: dict[str, Any] = results.pictures.setdefault(
        "daemon",
        {
            "title": "MultiLangDaemon with its JVM, and pykcl: CPU per user record", "unit": " us",
            "groups": {}, "note": "same local stream, JVM warmed up",
        },
    )  # fmt: skip
    if what != peer_goals.AT_REST:
        picture["groups"][what] = bars
    elif "idle" in results.pictures:
        # A poll costs a thousand times what a record does: it stands beside the other polls.
        results.pictures["idle"]["groups"]["local stream"] = bars
