"""The goals of `benchmarks.producer`, and the figures that they are about. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import Ratio, paired_ratio, quantile
from benchmarks.peer_goals import key
from benchmarks.results import Results

PYKCL, BOTO3, PUT_RECORD = "pykcl", "boto3 put_records", "boto3 put_record"
AGG, ASYNC, AIOKPL = "aws-kinesis-agg + boto3", "async-kinesis", "aiokpl"
MIB = 1024 * 1024
RECORD_OVERHEAD = 1024
"""Bytes that max_pending_bytes counts for a record, besides payload and key."""
LINGER_MILLIS, SLACK_MILLIS = 100.0, 5.0
UNUSED_PERCENT, AGAIN_PERCENT = 5.0, 0.1
MOST_MEMORY = 128.0
"""MiB by which RSS may grow while nothing can be put."""


@dataclass(frozen=True, slots=True)
class Case:
    """goal: microseconds of CPU per user record. against: how many times less than which other."""

    name: str
    size: int
    is_aggregated: bool
    goal: float
    against: Mapping[str, float]


CASES = (
    Case("100 B plain", 100, False, 5.0, {BOTO3: 1.0, PUT_RECORD: 50.0}),
    Case("100 B aggregated", 100, True, 6.0, {AGG: 3.0, ASYNC: 5.0}),
    Case("1 KB plain", 1024, False, 9.0, {BOTO3: 1.5, ASYNC: 3.0}),
    Case("1 KB aggregated", 1024, True, 9.0, {AGG: 1.5, ASYNC: 3.0}),
)


@dataclass(frozen=True, slots=True)
class Rate:
    """Of one shard with its limits. bytes: payloads and keys of the Kinesis records. again: user records that were
    sent more than once."""

    seconds: float
    records: int
    bytes: int
    again: int

    @property
    def unused_percent(self) -> float:
        return max(0.0, 100 * (1 - self.bytes / self.seconds / MIB))

    @property
    def again_percent(self) -> float:
        return 100 * self.again / self.records


def judge_cpu(results: Results, case: Case, times: Mapping[str, Sequence[float]]) -> dict[str, Ratio]:
    """Keep the ratios of a case and its goals; return the ratios by the name of the other. times: us of each round."""
    ours = times.get(PYKCL, ())
    ratios = {other: paired_ratio(found, ours) for other, found in times.items() if other != PYKCL and ours}
    for other, ratio in ratios.items():
        results.ratios[key(case.name, PYKCL, other)] = ratio
    results.at_most(
        f"{case.name}: CPU per user record", case.goal, statistics.median(ours) if ours else None, " us"
    )
    for other, wanted in case.against.items():
        results.at_least(f"{case.name}: less than {other}", wanted, ratios.get(other))
    return ratios


def judge_rate(results: Results, rate: Rate) -> None:
    what = "one shard, 100 B"
    results.at_most(f"{what}: share of 1 MiB/s that is not used", UNUSED_PERCENT, rate.unused_percent, " %")
    results.at_most(f"{what}: share of records that were sent again", AGAIN_PERCENT, rate.again_percent, " %")


def judge_latency(results: Results, millis: Sequence[float], round_trip: float) -> None:
    """millis: from put to result, of records that are alone. round_trip: the median of a put_record of boto3."""
    beyond = quantile(millis, 0.5) - LINGER_MILLIS - round_trip
    results.at_most("put to result, p50, beyond linger and round trip", SLACK_MILLIS, beyond, " ms")


def judge_memory(results: Results, pending_bytes: int, bound: int, grown: int) -> None:
    """All in bytes. grown: by how much RSS was higher at most."""
    results.at_most("dead endpoint: max_pending_bytes is held", bound / MIB, pending_bytes / MIB, " MiB")
    results.at_most("dead endpoint: RSS grows", MOST_MEMORY, grown / MIB, " MiB")
