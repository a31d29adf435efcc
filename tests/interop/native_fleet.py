"""Fleets that a leader of KCL 3.x runs: who is started how, an even load with hot shards, and what is waited for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from fleet_clock import now_millis
from fleet_evidence import REQUESTS, TABLE
from fleet_recording import complete_lines
from fleet_rows import SHARD_END
from interop_fleet import Fleet
from java_worker import make_leases
from native_verdict import terms
from scenario_stories import table_of

VERSION = "3.5.1"
MODE = "CLIENT_VERSION_CONFIG_3X"
REPORTS = 5.0
"""Seconds between two reports of a worker: the same for all, Java takes a worker for dead after two of them."""
LEADER_ROUND = 10.0
"""Seconds between two rounds of assignments: twice the failover time. Every third one balances, too."""


def native(run: Fleet, worker: str, version: str = VERSION, *, grace: float = 0.0, **more: Any) -> Any:
    """A Java worker of 3.x in its own mode. grace: seconds for which a stop may take; with 0 it does not release the lock."""
    return run.java(
        worker,
        version,
        mode=MODE,
        properties={
            "workerMetricsReporterFreqInMillis": round(REPORTS * 1000),
            "shutdownGraceMillis": round(grace * 1000),
        },
        **more,
    )


def follower(run: Fleet, worker: str, **options: Any) -> Any:
    return run.pykcl(worker, worker_metrics_interval=REPORTS, **options)


def leader_of_all(run: Fleet, version: str = VERSION, **more: Any) -> Any:
    """A Java leader that has all leases, of a table that it makes native."""
    with table_of(run) as dynamodb:
        make_leases(dynamodb, TABLE, run.open_ranges())
    leader = native(run, "j1", version, **more)
    run.wait_until_started(leader)
    run.wait_for("all leases with j1", run.all_begun)
    return leader


def everybody_works(run: Fleet, *workers: Any) -> float:
    """Wait until each of these works on a lease, and every lease is worked on. Seconds until then."""
    return run.wait_for(
        "a lease with everybody",
        lambda: run.all_begun() and all(run.leases_of(worker) for worker in workers),
        300,
    )


def shares(run: Fleet) -> dict[str, int]:
    """Leases of unfinished shards that each living worker works on."""
    return {
        worker.worker: len(run.leases_of(worker))
        for worker in run.workers.values()
        if worker.runs and not worker.leaving
    }


def has_ended(run: Fleet) -> bool:
    return any(row.checkpoint == SHARD_END for row in run.rows.rows.values())


def rest(run: Fleet, seconds: float) -> tuple[int, int]:
    """Do nothing to anybody for so long. From when to when."""
    since = now_millis()
    with contextlib.suppress(AssertionError):
        run.wait_for("a rest", lambda: now_millis() - since >= seconds * 1000, seconds + 1)
    return since, now_millis()


def leader(run: Fleet) -> str | None:
    """The holder of the lock, by the log of the local AWS; None while it is released."""
    found = terms(dynamodb_requests(run))
    return found[-1].owner if found and found[-1].released is None else None


def dynamodb_requests(run: Fleet) -> list[dict[str, Any]]:
    return [line for line in complete_lines(run.folder / REQUESTS) if line["service"] == "dynamodb"]


def errors_of(*workers: Any) -> list[str]:
    """ERROR lines of Java workers, without those that each writes when it is stopped, alone or not."""
    return [
        f"{worker.worker} {line.logger}: {line.text}"
        for worker in workers
        for line in worker.lines("ERROR")
        if not line.text.startswith("Encountered an error during shutdown")
    ]


class Load:
    """As many records a second for each open shard, and more for hot ones. Use as a context manager.

    hot: by shard, how many times as many.
    """

    SECONDS = 0.5

    def __init__(self, run: Fleet, rate: int) -> None:
        self.hot: dict[str, int] = {}
        self._run, self._rate = run, rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="fleet-load", daemon=True)
        self._failure: Exception | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _produce(self) -> None:
        try:
            while not self._stop.wait(self.SECONDS):
                count = round(self._rate * self.SECONDS)
                counts = [
                    (keys, count * self.hot.get(shard, 1)) for shard, keys in self._run.open_ranges().items()
                ]
                self._run.producer.spread(counts)
        except Exception as error:  # noqa: BLE001 - raised by stop
            self._failure = error


@contextlib.contextmanager
def hot(load: Load, shard: str, factor: int = 10) -> Iterator[None]:
    """That shard gets so many times as many records within the block."""
    load.hot[shard] = factor
    try:
        yield
    finally:
        del load.hot[shard]
