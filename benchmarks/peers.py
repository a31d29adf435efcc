"""CPU per user record of everything that reads Kinesis from Python, side by side in one run.

    python -m benchmarks.peers [--rounds 4] [--window 1.0] [--shards 8] [--without-tls] [--without-jvm] [--without-rust]
                               [--shapes 0,1,2,3] [--idle-window 8] [--jvm-window 5]

What is measured: the CPU of the reader's whole process by the kernel's clock (user and system, all threads), divided by the
user records its application was given. pykcl is THE WORKER AS A USER RUNS IT, with threads, heartbeats, scans of its lease
table, events and checkpoints (every second; "each batch": after every batch), on as many shards as --shards, each read five
times a second, which Kinesis allows. Lease table and stream are behind TLS.

The others do less: raw boto3 has no leases and no checkpoints and reads one shard flat out, with hot caches, which Kinesis
does not allow ("paced": as often as pykcl; goals are for flat out); async-kinesis checkpoints in
memory; the kclpy child is fed by a pipe, and its JVM is not counted. MultiLangDaemon 2.7.2 is measured with its JVM and all
its children, against a worker of pykcl on the same local stream (see `jvm_peer`); so is kcl-rs, the Rust port (`rust_peer`).

Servers run in processes of their own and answer what is prepared. Rounds are interleaved; a ratio is between neighbours of
one round, with the 95 % interval of a bootstrap over the rounds. What is not there is skipped, and said so.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import jvm_peer, kclpy_child, peer_environment, peer_goals, rust_peer
from benchmarks.canned import Shape, certificate_in
from benchmarks.figures import Ratio, Spread, paired_ratio
from benchmarks.idle_peers import measure_idle
from benchmarks.live_shards import Control, bodies_of, live_server
from benchmarks.machine import busy, described, machine
from benchmarks.readers import (
    ASYNC,
    BOTO3,
    DIRECT_CBOR,
    KCLPY,
    PACED_BOTO3,
    PYKCL,
    AsyncKinesisReader,
    Boto3Reader,
    KclpyReader,
    PacedBoto3Reader,
    PykclReader,
    Reader,
)
from benchmarks.results import Results

SHAPES = (
    Shape("1,000 x 100 B", 1000, 100),
    Shape("1,000 x 1 KB", 1000, 1024),
    Shape("KPL 100x100x100 B", 100, 100, 100),
    Shape("KPL 40x50x1 KB", 40, 1024, 50),
)
EMPTY = Shape("empty, behind", 0, 0)
"""Pages without records for a reader that is behind: Kinesis sends such, and the worker asks on as fast as it may."""
OTHERS = (BOTO3, PACED_BOTO3, ASYNC, KCLPY)


class Run:
    """All readers of a run, started, with a server each."""

    def __init__(self, stack: ExitStack, shapes: Sequence[Shape], shards: int, tls: bool) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._stack, self._folder = stack, folder
        self.certificate = Path(certificate_in(folder)) if tls else None
        self._shapes = (*shapes, EMPTY)
        self._bodies = bodies_of(self._shapes, shards)
        self._shards = shards
        self.versions = machine()
        self.missing: dict[str, str] = {}
        self.boto3 = self._kept(Boto3Reader(self._server(), self.certificate, folder, shards))
        self.async_kinesis = self._async_kinesis()
        self.kclpy = self._kclpy()
        self.pykcl = {
            name: self._kept(PykclReader(name, options, self._server(), self.certificate, folder))
            for name, options in PYKCL.items()
        }
        for reader in self.pykcl.values():
            reader.warm_up(shapes[0])

    @property
    def readers(self) -> list[Reader]:
        others = [self.boto3, PacedBoto3Reader(self.boto3), self.async_kinesis, self.kclpy]
        found = [reader for reader in (*others, *self.pykcl.values()) if reader is not None]
        return [reader for reader in found if reader.name not in self.missing]

    def _server(self) -> Control:
        return self._stack.enter_context(
            live_server(self._bodies, self._shapes, self._shards, self.certificate)
        )

    def _kept(self, reader: Any) -> Any:
        self._stack.callback(reader.end)
        return reader

    def _async_kinesis(self) -> AsyncKinesisReader | None:
        try:
            python = peer_environment.python_of("async-kinesis", peer_environment.ASYNC_KINESIS)
        except peer_environment.Unavailable as reason:
            self.missing[ASYNC] = str(reason)
            return None
        found = peer_environment.versions(python, ("async-kinesis", "aiobotocore", "botocore", "aiohttp"))
        self.versions |= {f"{name} ({ASYNC})" * (name != ASYNC) or name: text for name, text in found.items()}
        reader: AsyncKinesisReader = self._kept(
            AsyncKinesisReader(python, self._server(), self.certificate, self._folder)
        )
        return reader

    def _kclpy(self) -> KclpyReader | None:
        try:
            reader: KclpyReader = self._kept(KclpyReader())
        except kclpy_child.Unavailable as reason:
            self.missing[KCLPY] = str(reason)
            return None
        self.versions["kclpy-ext"] = "3.1.3.post4"
        return reader


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=4)
    options.add_argument("--window", type=float, default=1.0, help="seconds of one reader in one round")
    options.add_argument("--shards", type=int, default=8)
    options.add_argument("--shapes", default="0,1,2,3", help="which, by number")
    options.add_argument("--idle-window", type=float, default=8.0, help="seconds of a round of empty polls")
    options.add_argument("--without-tls", action="store_true")
    options.add_argument("--without-jvm", action="store_true")
    options.add_argument("--without-rust", action="store_true")
    options.add_argument(
        "--jvm-window", type=float, default=5.0, help="seconds; longer where 4 N records need it"
    )
    options.add_argument("--jvm-rounds", type=int, default=3)
    chosen = options.parse_args()
    shapes = [SHAPES[int(number)] for number in chosen.shapes.split(",")]
    with ExitStack() as stack:
        run = Run(stack, shapes, chosen.shards, not chosen.without_tls)
        results = Results("peers", run.versions)
        print(described(run.versions))
        print(
            f"{'no TLS' if chosen.without_tls else 'TLS'}, {chosen.shards} shards for each worker. {busy()}".strip()
        )
        for name, reason in run.missing.items():
            print(f"*** {name} is NOT MEASURED: {reason}", flush=True)
        print("CPU of the reader's process per user record; pykcl is a real worker with leases and events")
        for shape in shapes:
            measure(results, run, shape, chosen.rounds, chosen.window)
        measure_idle(results, run, EMPTY, chosen.rounds, chosen.idle_window)
    if not chosen.without_jvm:
        try:
            jvm_peer.measure(results, shapes, chosen.jvm_rounds, chosen.jvm_window)
        except jvm_peer.Unavailable as reason:
            print(f"*** MultiLangDaemon is NOT MEASURED: {reason}", flush=True)
    if not chosen.without_rust:
        try:
            rust_peer.measure(results, shapes, chosen.jvm_rounds)
        except rust_peer.Unavailable as reason:
            print(f"*** kcl-rs is NOT MEASURED: {reason}", flush=True)
    peer_goals.judge(
        results,
        [shape.name for shape in shapes],
        with_jvm=not chosen.without_jvm,
        with_rust=not chosen.without_rust,
    )
    results.print_goals()
    results.save()
    return results.exit_code


def measure(results: Results, run: Run, shape: Shape, rounds: int, window: float) -> None:
    """One shape: rounds in which every reader has its turn."""
    began = time.monotonic()
    times: dict[str, list[float]] = {reader.name: [] for reader in run.readers}
    for _ in range(rounds):
        for reader in run.readers:
            try:
                times[reader.name].append(reader.sample(shape, window) * 1e6)
            except RuntimeError as problem:
                # The others go on: a quarter of an hour of them is not thrown away for one.
                run.missing[reader.name] = str(problem)
                del times[reader.name]
                print(f"*** {reader.name} is NOT MEASURED any more: {problem}", flush=True)
    print(f"\n{shape.name}, {rounds} rounds, {time.monotonic() - began:.0f} s", flush=True)
    show(results, shape.name, times, "us")
    draw(results, shape.name, times)


def show(results: Results, what: str, times: dict[str, list[float]], unit: str) -> None:
    """Print the table, and keep the ratios."""
    others = [name for name in OTHERS if name in times]
    print(f"  {'':32}{'median':>10}{'quartiles':>18}" + "".join(f"{'than ' + name:>26}" for name in others))
    for name, found in times.items():
        spread = Spread.of(found)
        line = f"  {name:32}{spread.median:8.2f}{unit}{spread.low:10.2f}-{spread.high:.2f}"
        line = f"{line:<62}"
        for other in others if name in PYKCL else ():
            ratio = paired_ratio(times[other], found)
            results.ratios[peer_goals.key(what, name, other)] = ratio
            line += f"{text(ratio):>26}"
        print(line, flush=True)


def text(ratio: Ratio) -> str:
    return f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"


def draw(results: Results, what: str, times: dict[str, list[float]]) -> None:
    picture = results.pictures.setdefault(
        "peers",
        {
            "title": "CPU per user record", "unit": " us", "groups": {},
            "note": "whole process of each reader; median of interleaved rounds",
        },
    )  # fmt: skip
    chosen = [name for name in (*OTHERS, DIRECT_CBOR) if name in times]
    picture["groups"][what] = [
        {"label": name, "value": statistics.median(times[name]), "is_ours": name in PYKCL} for name in chosen
    ]


if __name__ == "__main__":
    sys.exit(main())
