"""I10: every kind of request has its budget; a worker that asks five times as often as it should is seen."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pykcl.config import Config
from pykcl.errors import IteratorExpired, TemporaryError
from pykcl.events import BatchSkipped
from pykcl.model import lease_writes
from pykcl.planning.lifecycle import Signal
from pykcl.testing.runtime.scheduler import ThreadStruck
from pykcl.testing.simulation import Guarantee
from pykcl.testing.simulation.guarantees import Violations
from pykcl.worker import shard_reader, table_scanner
from pykcl.worker.checkpointer import Progress
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.shard_reader import ShardReader
from pykcl.worker.shard_sync import ShardSync
from tests.simulation.checkers.observer import Observer
from tests.simulation.checkers.request_budget import RequestBudgetChecker, Rule, rules_for
from tests.simulation.checking import broken_by, broken_in_simulation
from tests.simulation.clients import InstrumentedClient, InstrumentedStream

OPTIONS = {
    "shard_sync_interval": 5.0,
    "parent_shard_poll_interval": 0.5,
    "cleanup_interval": 20.0,
    "audit_interval": 20.0,
}


@pytest.fixture
def budgets():
    """A checker with one rule: three requests in ten seconds, and one more for each reason; `now` can be set."""
    checker = RequestBudgetChecker(
        Violations(), {"ask": Rule(10, 3, ("reason", "cause*"), tries=6)}, lambda: checker.now
    )
    checker.now = 0.0
    return checker


def _asks(checker, times, *, key="s", failed=False):
    for _ in range(times):
        checker.spent("w1", "ask", key, failed=failed)
    return broken_by(checker._violations)


def test_a_budget_counts_answered_requests_of_one_host_about_one_key_in_its_window(budgets):
    assert _asks(budgets, 3) is None
    assert _asks(budgets, 3, key="t") is None
    budgets.spent("w2", "ask", "s")
    budgets.now = 10.5
    assert _asks(budgets, 3) is None
    assert _asks(budgets, 1) is Guarantee.BUDGETS


def test_a_request_may_follow_from_a_reason_of_the_same_key_or_of_any(budgets):
    budgets.spent("w1", "reason", "t")
    budgets.spent("w1", "reason", "s")
    budgets.spent("w1", "cause", "t")
    assert _asks(budgets, 5) is None
    assert _asks(budgets, 1) is Guarantee.BUDGETS


def test_failed_requests_are_tried_again_but_not_in_a_spin(budgets):
    assert _asks(budgets, 6, failed=True) is None
    assert _asks(budgets, 1, failed=True) is Guarantee.BUDGETS


@pytest.mark.parametrize(("kind", "pause"), [
    ("renew", 10 / 3), ("Scan", 1.0), ("list", 5.0), ("idle read", 1.0), ("GetItem", 0.25),
])  # fmt: skip
@pytest.mark.parametrize(("times_too_often", "expected"), [(1.1, None), (5, Guarantee.BUDGETS)])
def test_who_asks_five_times_as_often_as_it_should_is_seen_and_whose_clock_is_fast_is_not(
    kind, pause, times_too_often, expected
):
    checker = RequestBudgetChecker(Violations(), rules_for(OPTIONS, 10.0), lambda: checker.now)
    checker.now = 0.0
    while checker.now < 240:
        checker.spent("w1", kind)
        checker.now += pause / times_too_often
    assert broken_by(checker._violations) is expected


@pytest.mark.parametrize(("is_skipped", "expected"), [(True, None), (False, Guarantee.BUDGETS)])
def test_a_skipped_batch_has_a_checkpoint_that_its_processor_wrote_before_it_raised_and_one_behind_it(
    is_skipped, expected
):
    """Seed 134493102122 without F6.checkpoint: eight batches in three seconds, half of them skipped."""
    checker = RequestBudgetChecker(Violations(), rules_for(OPTIONS, 10.0), lambda: 0.0)
    deaf = SimpleNamespace(heard=lambda host, event: None)
    observer = SimpleNamespace(budgets=checker, fleet=deaf, ownership=deaf, debts=deaf)
    for _ in range(20):
        checker.spent("w1", "batch", "s")
        checker.spent("w1", "checkpoint", "s")
        if is_skipped:
            Observer.heard(observer, "w1", BatchSkipped(shard="s", records=1, first="1:0", last="1:0"))
        checker.spent("w1", "checkpoint", "s")
    assert broken_by(checker._violations) is expected


def test_a_worker_whose_heartbeats_come_every_tenth_of_a_second(monkeypatch):
    monkeypatch.setattr(Config, "renew_interval", property(lambda self: 0.1))
    # Its thieves wait a tenth of a second too, and are seen for that, if they come first.
    assert broken_in_simulation() in (Guarantee.BUDGETS, Guarantee.ONE_OWNER)
    monkeypatch.setattr(LeaseWorker, "_wait_for_old_owner", _settled_as_before)
    assert broken_in_simulation() is Guarantee.BUDGETS


def _settled_as_before(self):
    return Signal.STOP if self.scope.pause(6.2, outlasts_stop=True) else Signal.SETTLED


def test_a_worker_that_scans_without_a_pause(monkeypatch):
    monkeypatch.setattr(table_scanner, "jittered", lambda *_: 0.1)
    assert broken_in_simulation() is Guarantee.BUDGETS


def test_a_worker_that_lists_the_shards_without_a_pause(monkeypatch):
    monkeypatch.setattr(ShardSync, "_listing_done", lambda self: setattr(self, "next_listing", 0.0))
    assert broken_in_simulation() is Guarantee.BUDGETS


def test_a_worker_that_opens_a_shard_anew_for_each_page(monkeypatch):
    finish = ShardReader.finish

    def forget(self, *arguments):
        pause = finish(self, *arguments)
        self._iterator = None
        return pause

    monkeypatch.setattr(ShardReader, "finish", forget)
    assert broken_in_simulation() is Guarantee.BUDGETS


def test_a_worker_that_opens_a_shard_in_a_loop(monkeypatch):
    opened = ShardReader._open

    def again(self):
        for _ in range(25):
            opened(self)

    monkeypatch.setattr(ShardReader, "_open", again)
    assert broken_in_simulation() is Guarantee.BUDGETS


def test_a_worker_that_asks_which_stream_it_reads_before_each_page(monkeypatch):
    def asking_first(method):
        def ask_first(self, argument):
            self._context.identity.confirm()
            return method(self, argument)

        return ask_first

    monkeypatch.setattr(ShardReader, "read", asking_first(ShardReader.read))
    monkeypatch.setattr(ShardReader, "accept_empty_page", asking_first(ShardReader.accept_empty_page))
    assert broken_in_simulation() is Guarantee.BUDGETS


def test_a_worker_that_polls_idle_shards_as_fast_as_busy_ones(monkeypatch):
    pace = shard_reader.after_page
    busy = {"pause": 0.21, "min_pause": 0.21, "max_pause": 0.21}
    monkeypatch.setattr(shard_reader, "after_page", lambda *a, **o: replace(pace(*a, **o), **busy))
    assert broken_in_simulation() is Guarantee.BUDGETS


def test_a_worker_that_writes_the_same_checkpoint_at_each_heartbeat_and_read(monkeypatch):
    def flush(self):
        if self.done is not None and not self.is_prepared:
            self._held.write(lambda lease: lease_writes.checkpoint(lease, max(self.done, lease.checkpoint)))

    monkeypatch.setattr(Progress, "flush", flush)
    assert broken_in_simulation() is Guarantee.BUDGETS


@pytest.mark.parametrize("error", [IteratorExpired("x"), TemporaryError("x"), None])
def test_only_a_page_shows_that_a_host_may_read(error):
    given = []
    observer = SimpleNamespace(asked_kinesis=lambda *a, **o: None, was_given_a_page=given.append)
    page = SimpleNamespace(records=(), millis_behind_latest=0)

    def fetch(shard_id, iterator, limit):
        if error:
            raise error
        return page

    stream = InstrumentedStream(SimpleNamespace(fetch=fetch), "w1", observer)
    with pytest.raises(type(error)) if error else nullcontext():
        stream.fetch("shard", "iterator", 10)
    assert given == ([] if error else ["w1"])


@pytest.mark.parametrize(("error", "reported"), [(None, 1), (ValueError("x"), 1), (ThreadStruck(), 0)])
def test_who_is_struck_down_while_it_waits_reports_nothing(error, reported):
    answers = []
    observer = SimpleNamespace(asked_dynamodb=lambda *a, **o: answers.append(a))

    def get_item(**params):
        if error:
            raise error
        return {}

    client = InstrumentedClient(SimpleNamespace(get_item=get_item), lambda: None, None, "w1", observer)
    with pytest.raises(type(error)) if error else nullcontext():
        client.get_item(Key={"leaseKey": {"S": "shard"}})
    assert len(answers) == reported


def test_the_parts_of_a_table_are_scanned_each_at_its_own_rate():
    """Seed 41616: who answers for two of four parts sends two requests a second, each for a quarter of the rows."""
    asked = []
    observer = SimpleNamespace(asked_dynamodb=lambda host, kind, key, code, **_: asked.append(key))
    client = InstrumentedClient(SimpleNamespace(), lambda: None, lambda **params: {}, "w1", observer)
    for part in ({}, {"Segment": 2, "TotalSegments": 4}, {"Segment": 3, "TotalSegments": 4}):
        client.scan(**part)
        client.scan(**part, ExclusiveStartKey={"leaseKey": {"S": "s"}})
    assert len(set(asked)) == 6
