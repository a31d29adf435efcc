"""The step that plays the scenario of `pykcl demo` in the account: three workers, a kill, a split, a merge, a SIGTERM."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from verify_run import HORIZON, Page, Run, follow, records_of

from pykcl.aws.clients import connect
from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.demo.producer import Producer
from pykcl.demo.scenario import FAST, SHARDS, FleetObserver, Scenario
from pykcl.demo.view import DemoState, PlainView
from pykcl.demo.workers import WorkerProcess, config
from pykcl.model.shard import Shard
from pykcl.runtime import SystemRuntime

SEED = 7
LISTING_SECONDS = 1.0


class FleetStream:
    """Stands for the local Kinesis of the demo, over the account; the name that the demo gives its stream is not used."""

    def __init__(self, run: Run, name: str, producer: Producer) -> None:
        self._run, self._name, self._producer = run, name, producer
        self._reader = run.account.reader(name)
        self._listed: tuple[float, list[Shard]] = (float("-inf"), [])

    def put_counts(self, _: str) -> dict[str, int]:
        """As PutRecords confirmed them: Kinesis has no such count."""
        return {shard: len(numbers) for shard, numbers in dict(self._producer.sequences).items()}

    def list_shards(self, _: str, operation: str | None = None) -> list[Shard]:
        """At most a second old. operation: of the local Kinesis only."""
        at, shards = self._listed
        if time.monotonic() > at + LISTING_SECONDS:
            shards = list(self._reader.list_shards().shards)
            self._listed = (time.monotonic(), shards)
        return shards

    def split(self, _: str, shard_id: str) -> None:
        """Returns once its children are there, as the local Kinesis does."""
        (shard,) = [one for one in self.list_shards("") if one.shard_id == shard_id]
        first, last = shard.hash_range.first, shard.hash_range.last
        middle = str((first + last + 1) // 2)
        self._run.account.kinesis.split_shard(
            StreamName=self._name, ShardToSplit=shard_id, NewStartingHashKey=middle
        )
        self._await_children(shard_id)

    def merge(self, _: str, shard_id: str, adjacent: str) -> None:
        self._run.account.kinesis.merge_shards(
            StreamName=self._name, ShardToMerge=shard_id, AdjacentShardToMerge=adjacent
        )
        self._await_children(shard_id)

    def _await_children(self, of: str) -> None:
        def are_listed() -> bool:
            self._listed = (float("-inf"), [])
            return any(of in shard.parents for shard in self.list_shards(""))

        self._run.account.await_active(self._name)
        self._run.account.wait_for(are_listed, f"the children of {of} to be listed", 60)

    def read_all(self) -> dict[str, int]:
        """Kinesis records of each shard, counted by reading all of them once more."""
        counts = {}
        for shard in self.list_shards(""):
            pages = follow(self._run, self._reader, shard.shard_id, HORIZON, _at_the_tip)
            counts[shard.shard_id] = len(records_of(pages))
        return counts


def _at_the_tip(pages: list[Page]) -> bool:
    return not pages[-1].fetched.records and not pages[-1].behind


class NotedView(PlainView):
    """Plain lines; each event of the scenario is kept, too."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self.events: list[str] = []

    def entry(self, entry: Any) -> None:
        super().entry(entry)
        self.events.append(f"{entry.what}: {entry.outcome}")
        self._run.findings.note("fleet", at=round(entry.at, 1), event=entry.what, outcome=entry.outcome)


def fleet(run: Run) -> None:
    account = run.account
    name, application = account.stream("fleet", SHARDS), f"{account.prefix}-fleet"
    runtime = SystemRuntime()
    # Made here, and not by the first worker, so that it carries the tag.
    table = DynamoDBLeaseTable(account.dynamodb, application, runtime)
    account.wait_for(lambda: table.prepare(create=True) or True, "the lease table", 120)
    view = NotedView(run)
    state = DemoState("AWS" if account.is_aws else "a local AWS", SEED, SHARDS)
    producer = Producer(account.once, name, seed=SEED, rate=FAST.rate)
    kinesis = FleetStream(run, name, producer)
    options = {"stream": name, "application": application}
    observed, _ = connect(config(**options), runtime)
    observer = FleetObserver(kinesis, observed, producer, view, state)
    scenario = Scenario(
        observer,
        start_worker=lambda worker: _start_worker(worker, run.folder, options),
        state=state,
        pace=FAST,
    )
    try:
        verdict = scenario.play(keep=False)
        view.end(state)
    finally:
        scenario.clean_up()
    found = run.findings
    found.check("nothing was lost", verdict.lost == 0, verdict.lost)
    found.check("nothing was out of order", verdict.out_of_order == 0, verdict.out_of_order)
    found.check("the verdict is PASS", verdict.passed, "; ".join(verdict.reasons))
    counts, put = kinesis.read_all(), kinesis.put_counts("")
    same = {shard: count for shard, count in counts.items() if count} == put
    found.check(
        "Kinesis holds what PutRecords confirmed", same, f"{sum(counts.values())} of {sum(put.values())}"
    )
    found.answer(
        "Q24",
        f"{'PASS' if verdict.passed else 'FAIL'}: {verdict.produced} user records put, {verdict.lost} lost, "
        f"{verdict.out_of_order} out of order, {verdict.duplicates} came twice; {'; '.join(view.events)}.",
    )


def _start_worker(worker: str, folder: Path, options: dict[str, str]) -> WorkerProcess:
    process = WorkerProcess(worker, folder)
    more = [word for option, text in options.items() for word in (f"--{option}", text)]
    command = [sys.executable, "-m", "pykcl.demo.workers", "--worker-id", worker, *more]
    process.start([*command, "--record-log", str(process.record_log)], os.environ)
    return process
