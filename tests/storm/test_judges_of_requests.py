"""I10: every kind of request has its budget; a worker that asks five times as often as it should is seen."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from judging import broken_by, storm_verdict

from pykcl.config import Config
from pykcl.errors import IteratorExpired, TemporaryError
from pykcl.model import lease_writes
from pykcl.planning.lifecycle import Signal
from pykcl.testing.simulation.scheduler import ThreadStruck
from pykcl.testing.storm import Promise
from pykcl.testing.storm.budget_judge import BudgetJudge, Rule, rules_for
from pykcl.testing.storm.judge import Verdict
from pykcl.testing.storm.metering import MeteredClient, MeteredStream
from pykcl.worker import shard_reader, table_scanner
from pykcl.worker.checkpointer import Progress
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.shard_reader import ShardReader
from pykcl.worker.shard_sync import ShardSync

OPTIONS = {
    "shard_sync_interval": 5.0,
    "parent_poll_interval": 0.5,
    "cleanup_interval": 20.0,
    "audit_interval": 20.0,
}


@pytest.fixture
def budgets():
    """A judge with one rule: three requests in ten seconds, and one more for each reason; `now` can be set."""
    judge = BudgetJudge(Verdict(), {"ask": Rule(10, 3, ("reason", "cause*"), tries=6)}, lambda: judge.now)
    judge.now = 0.0
    return judge


def _asks(judge, times, *, key="s", failed=False):
    for _ in range(times):
        judge.spent("w1", "ask", key, failed=failed)
    return broken_by(judge._verdict)


def test_a_budget_counts_answered_requests_of_one_host_about_one_key_in_its_window(budgets):
    assert _asks(budgets, 3) is None
    assert _asks(budgets, 3, key="t") is None
    budgets.spent("w2", "ask", "s")
    budgets.now = 10.5
    assert _asks(budgets, 3) is None
    assert _asks(budgets, 1) is Promise.BUDGETS


def test_a_request_may_follow_from_a_reason_of_the_same_key_or_of_any(budgets):
    budgets.spent("w1", "reason", "t")
    budgets.spent("w1", "reason", "s")
    budgets.spent("w1", "cause", "t")
    assert _asks(budgets, 5) is None
    assert _asks(budgets, 1) is Promise.BUDGETS


def test_failed_requests_are_tried_again_but_not_in_a_spin(budgets):
    assert _asks(budgets, 6, failed=True) is None
    assert _asks(budgets, 1, failed=True) is Promise.BUDGETS


@pytest.mark.parametrize(("kind", "pause"), [
    ("renew", 10 / 3), ("Scan", 1.0), ("list", 5.0), ("idle read", 1.0), ("GetItem", 0.25),
])  # fmt: skip
@pytest.mark.parametrize(("times_too_often", "expected"), [(1.1, None), (5, Promise.BUDGETS)])
def test_who_asks_five_times_as_often_as_it_should_is_seen_and_whose_clock_is_fast_is_not(
    kind, pause, times_too_often, expected
):
    judge = BudgetJudge(Verdict(), rules_for(OPTIONS, 10.0), lambda: judge.now)
    judge.now = 0.0
    while judge.now < 240:
        judge.spent("w1", kind)
        judge.now += pause / times_too_often
    assert broken_by(judge._verdict) is expected


def test_a_worker_whose_heartbeats_come_every_tenth_of_a_second(monkeypatch):
    monkeypatch.setattr(Config, "renew_interval", property(lambda self: 0.1))
    # Its thieves wait a tenth of a second too, and are seen for that, if they come first.
    assert storm_verdict() in (Promise.BUDGETS, Promise.ONE_OWNER)
    monkeypatch.setattr(LeaseWorker, "_wait_for_old_owner", _settled_as_before)
    assert storm_verdict() is Promise.BUDGETS


def _settled_as_before(self):
    return Signal.STOP if self.scope.pause(6.2) else Signal.SETTLED


def test_a_worker_that_scans_without_a_pause(monkeypatch):
    monkeypatch.setattr(table_scanner, "jittered", lambda *_: 0.1)
    assert storm_verdict() is Promise.BUDGETS


def test_a_worker_that_lists_the_shards_without_a_pause(monkeypatch):
    monkeypatch.setattr(ShardSync, "_listing_done", lambda self: setattr(self, "next_listing", 0.0))
    assert storm_verdict() is Promise.BUDGETS


def test_a_worker_that_opens_a_shard_anew_for_each_page(monkeypatch):
    finish = ShardReader.finish

    def forget(self, page):
        pause = finish(self, page)
        self._iterator = None
        return pause

    monkeypatch.setattr(ShardReader, "finish", forget)
    assert storm_verdict() is Promise.BUDGETS


def test_a_worker_that_opens_a_shard_in_a_loop(monkeypatch):
    opened = ShardReader._open

    def again(self):
        for _ in range(25):
            opened(self)

    monkeypatch.setattr(ShardReader, "_open", again)
    assert storm_verdict() is Promise.BUDGETS


def test_a_worker_that_asks_which_stream_it_reads_before_each_page(monkeypatch):
    def asking_first(method):
        def ask_first(self, argument):
            self._context.identity.confirm()
            return method(self, argument)

        return ask_first

    monkeypatch.setattr(ShardReader, "read", asking_first(ShardReader.read))
    monkeypatch.setattr(ShardReader, "accept_empty_page", asking_first(ShardReader.accept_empty_page))
    assert storm_verdict() is Promise.BUDGETS


def test_a_worker_that_polls_idle_shards_as_fast_as_busy_ones(monkeypatch):
    pace = shard_reader.after_page
    busy = {"pause": 0.21, "least": 0.21, "most": 0.21}
    monkeypatch.setattr(shard_reader, "after_page", lambda *a, **o: replace(pace(*a, **o), **busy))
    assert storm_verdict() is Promise.BUDGETS


def test_a_worker_that_writes_the_same_checkpoint_at_each_heartbeat_and_read(monkeypatch):
    def flush(self):
        if self.done is not None and not self.is_prepared:
            self._held.write(lambda lease: lease_writes.checkpoint(lease, max(self.done, lease.checkpoint)))

    monkeypatch.setattr(Progress, "flush", flush)
    assert storm_verdict() is Promise.BUDGETS


@pytest.mark.parametrize("error", [IteratorExpired("x"), TemporaryError("x"), None])
def test_only_a_page_shows_that_a_host_may_read(error):
    given = []
    observer = SimpleNamespace(asked_kinesis=lambda *a, **o: None, was_given_a_page=given.append)
    page = SimpleNamespace(records=(), millis_behind_latest=0)

    def fetch(shard_id, iterator, limit):
        if error:
            raise error
        return page

    stream = MeteredStream(SimpleNamespace(fetch=fetch), "w1", observer)
    with pytest.raises(type(error)) if error else nullcontext():
        stream.fetch("shard", "iterator", 10)
    assert given == ([] if error else ["w1"])


@pytest.mark.parametrize(("error", "told"), [(None, 1), (ValueError("x"), 1), (ThreadStruck(), 0)])
def test_who_is_struck_down_while_it_waits_is_told_nothing(error, told):
    answers = []
    observer = SimpleNamespace(asked_dynamodb=lambda *a, **o: answers.append(a))

    def get_item(**params):
        if error:
            raise error
        return {}

    client = MeteredClient(SimpleNamespace(get_item=get_item), lambda: None, None, "w1", observer)
    with pytest.raises(type(error)) if error else nullcontext():
        client.get_item(Key={"leaseKey": {"S": "shard"}})
    assert len(answers) == told


def test_the_parts_of_a_table_are_scanned_each_at_its_own_rate():
    """Seed 41616: who answers for two of four parts sends two requests a second, each for a quarter of the rows."""
    asked = []
    observer = SimpleNamespace(asked_dynamodb=lambda host, kind, key, code, **_: asked.append(key))
    client = MeteredClient(SimpleNamespace(), lambda: None, lambda **params: {}, "w1", observer)
    for part in ({}, {"Segment": 2, "TotalSegments": 4}, {"Segment": 3, "TotalSegments": 4}):
        client.scan(**part)
        client.scan(**part, ExclusiveStartKey={"leaseKey": {"S": "s"}})
    assert len(set(asked)) == 6
