"""Lag as somebody else tells it, so that Kinesis need not be read: workers themselves, or their metrics in CloudWatch.

Both tell how far from the tip a worker *reads*, as Kinesis says with each page; Kinesis itself is asked for what lies
behind the *checkpoint* (`KinesisLag`), which is more while records are worked on. Neither is believed for long: who has
told nothing lately may stand still.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pykcl.aws.metric_reads import BehindTold
from pykcl.errors import SetupError, TemporaryError
from pykcl.model.lease import Lease
from pykcl.operate.lag import ShardLag
from pykcl.operate.worker_pages import WorkerPage
from pykcl.runtime import Runtime

METRIC_PATIENCE = 180.0
"""Seconds. A datapoint carries the beginning of its minute, is sent some ten seconds later and seen a minute on."""
_DOLLARS_PER_METRIC = 0.01 / 1000
_MOST_TOLD = 5


class ReadsMetrics(Protocol):
    """CloudWatch: `aws.metric_reads.MetricReader` is one."""

    @property
    def namespace(self) -> str: ...

    def behind(self, shards: Sequence[str], now_millis: int) -> Mapping[str, BehindTold]: ...


class StatusLag:
    """What workers say at /status. ask: asks all of them."""

    def __init__(self, ask: Callable[[], Sequence[WorkerPage]]) -> None:
        self._ask = ask
        self._problems: tuple[str, ...] = ()

    @property
    def cost(self) -> str:
        silent = f" Not told by {_some(self._problems)}." if self._problems else ""
        return (
            "The workers told how far from the tip they read, which may be ahead of their checkpoints. It costs "
            f"nothing at AWS but the look at the lease table.{silent}"
        )

    def lags(self, leases: Sequence[Lease]) -> Mapping[str, ShardLag]:
        pages = self._ask()
        self._problems = tuple(f"{page.url}: {page.problem}" for page in pages if page.worker is None)
        if len(self._problems) == len(pages):
            raise SetupError(f"No worker told its status. {_some(self._problems)}.")
        return {lease.key: _told_by_owner(lease, pages) for lease in leases}


def _told_by_owner(lease: Lease, pages: Sequence[WorkerPage]) -> ShardLag:
    """Only what the owner itself says: a worker that has lost a lease may not know it yet."""
    if lease.is_ended:
        return ShardLag(0.0, "ended")
    if lease.actual_owner is None:
        return ShardLag(None, "unknown", "nobody owns it, so nobody reads it")
    mine = [page for page in pages if page.worker == lease.actual_owner]
    if not mine:
        return ShardLag(None, "unknown", "its owner is none of the workers that answer")
    told = [page.behind[lease.key] for page in mine if lease.key in page.behind]
    if not told:
        return ShardLag(None, "unknown", "its owner has read nothing of it yet")
    # Counted on from when it was told: a reader that does not read falls further behind with every second.
    return ShardLag(min(behind + ago for behind, ago in told), "told")


class CloudWatchLag:
    """What the workers' metrics say, under KCL's names: of Java workers as well as pykcl's."""

    def __init__(self, reader: ReadsMetrics, runtime: Runtime) -> None:
        self._reader, self._runtime = reader, runtime
        self._asked = 0

    @property
    def cost(self) -> str:
        return (
            f"CloudWatch was asked for {self._asked} metrics, at about $0.01 per 1,000 "
            f"(${self._asked * _DOLLARS_PER_METRIC:.5f}). It is some one to three minutes late, and tells how far from "
            "the tip workers read, which may be ahead of their checkpoints."
        )

    def lags(self, leases: Sequence[Lease]) -> Mapping[str, ShardLag]:
        open_ones = [lease.key for lease in leases if not lease.is_ended]
        self._asked = len(open_ones)
        now = self._runtime.utcnow_millis()
        told = self._reader.behind(open_ones, now) if open_ones else {}
        if open_ones and not told:
            raise TemporaryError(
                f"CloudWatch has no MillisBehindLatest of the last ten minutes in the namespace "
                f"{self._reader.namespace!r}. No worker runs, or metrics are off, without the dimension ShardId, or go "
                "elsewhere. Do: name their namespace with --namespace, look at --region, or ask --source kinesis."
            )
        return {
            lease.key: ShardLag(0.0, "ended") if lease.is_ended else _told_lately(told.get(lease.key), now)
            for lease in leases
        }


def _told_lately(told: BehindTold | None, now_millis: int) -> ShardLag:
    if told is None:
        return ShardLag(None, "unknown", "CloudWatch was told nothing of it for ten minutes")
    age = (now_millis - told.at_millis) / 1000
    if age > METRIC_PATIENCE:
        return ShardLag(
            None, "unknown", f"CloudWatch was last told of it {age / 60:.0f} min ago: does anybody read it?"
        )
    return ShardLag(told.millis / 1000, "told")


def _some(problems: Sequence[str]) -> str:
    more = f"; and {len(problems) - _MOST_TOLD} more" if len(problems) > _MOST_TOLD else ""
    return "; ".join(problems[:_MOST_TOLD]) + more
