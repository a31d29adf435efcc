"""The goals of `benchmarks.peers`: how many times less CPU pykcl takes than each of the others. Pure."""

from __future__ import annotations

from benchmarks.readers import ASYNC, BOTO3, DIRECT_CBOR, EACH_BATCH, KCLPY
from benchmarks.results import Results

SHAPE_NAMES = ("1,000 x 100 B", "1,000 x 1 KB", "KPL 100x100x100 B", "KPL 40x50x1 KB")
DAEMON, PYKCL_LOCAL = "MultiLangDaemon", "pykcl, local stream"
KCL_RS, EMBEDDED, RUN = "kcl-rs", "pykcl, embedded", "pykcl run"
AT_REST, BEHIND = "empty poll at rest", "empty poll behind"
EVERY_SECOND: dict[str, tuple[float, ...]] = {
    BOTO3: (7, 8, 2.5, 3.5),
    ASYNC: (18, 16, 20, 8),
    KCLPY: (1.3, 2.5, 2.3, 2.2),
}
AFTER_EACH_BATCH: dict[str, tuple[float, ...]] = {
    BOTO3: (5, 6, 2.2, 3),
    ASYNC: (12, 12, 15, 7),
    KCLPY: (1, 2, 2, 2),
}
JVM = (6.0, 6.0, 6.0, 6.0)
EMPTY = {BOTO3: 4.0, ASYNC: 8.0}
JVM_EMPTY = 20.0
RUST = (1.25, 1.0, 1.25, 1.0)
RUST_EMPTY = 2.0
RUST_MEMORY, MEMORY = 2.0, "highest RSS"
RUST_FIRST_RECORD, FIRST_RECORD = 20.0, "first record, no lease table"
PACED_CALLS, WORKER_BESIDE_PACED_CALLS = "paced calls", 1.15
FIRST_RECORD_AGAIN = "first record, with leases"


def key(what: str, ours: str, other: str) -> str:
    """The name of a ratio: the same from run to run."""
    return f"{what} | {ours} | {other}"


def judge(results: Results, shapes: list[str], *, with_jvm: bool, with_rust: bool) -> None:
    """Add every goal to `results`, from its ratios; what is not there was not measured."""
    chosen = [(number, name) for number, name in enumerate(SHAPE_NAMES) if name in shapes]
    for variant, goals in ((DIRECT_CBOR, EVERY_SECOND), (DIRECT_CBOR + EACH_BATCH, AFTER_EACH_BATCH)):
        for other, wanted in goals.items():
            for number, name in chosen:
                _judge(results, name, variant, other, wanted[number])
    for what in (AT_REST, BEHIND):
        for other, least in EMPTY.items():
            if what == BEHIND and other == ASYNC:
                continue  # it never asks faster than once a second
            _judge(results, what, DIRECT_CBOR, other, least)
    if with_jvm:
        for number, name in chosen:
            _judge(results, name, PYKCL_LOCAL, DAEMON, JVM[number])
        _judge(results, AT_REST, PYKCL_LOCAL, DAEMON, JVM_EMPTY)
    if with_rust:
        judge_rust(results, shapes)


def judge_rust(results: Results, shapes: list[str]) -> None:
    """Add the goals beside kcl-rs."""
    for name, wanted in zip(SHAPE_NAMES, RUST, strict=True):
        if name in shapes:
            _judge(results, name, EMBEDDED, KCL_RS, wanted)
    for what, wanted in ((AT_REST, RUST_EMPTY), (MEMORY, RUST_MEMORY), (FIRST_RECORD, RUST_FIRST_RECORD)):
        _judge(results, what, EMBEDDED, KCL_RS, wanted)


def _judge(results: Results, what: str, ours: str, other: str, wanted: float) -> None:
    results.at_least(f"{what}: {ours}, less than {other}", wanted, results.ratios.get(key(what, ours, other)))
