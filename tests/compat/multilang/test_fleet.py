"""Workers whose processors are real child processes, over a stream in simulated time: what a failing child may cost."""

from collections import Counter

import pytest
from multilang_kit import is_running

from pykcl.compat.multilang import protocol
from pykcl.compat.multilang.child import ChildEnded, ChildFailed, ChildStarted
from pykcl.compat.multilang.processor import ChildProcessor
from pykcl.errors import ProcessorFailed, RestartShard
from pykcl.events import (
    LeaseReleased,
    LeaseTaken,
    ProcessorRaised,
    RetriesExhausted,
    ShardEnded,
    ShardStarted,
)
from pykcl.model.checkpoint import AT_SHARD_END
from pykcl.testing.fleet import STREAM

KEY = "shardId-000000000000"


@pytest.fixture
def start(new_children):
    """start(fleet, name, children, …): a worker of that fleet with these children, as multilangd makes it."""

    def make(fleet, name, children, processor=ChildProcessor, **options):
        options = {"checkpoint_mode": "manual", "max_records": 2, **options}
        return fleet.start(name, processor=lambda: processor(children, 30.0), **options)

    return make


def finished(journal):
    return Counter(payload for group in journal.of("finished") for payload in group)


def given(journal):
    return {payload for group in journal.of("given") for payload in group}


def texts(payloads):
    return {payload.decode() for payload in payloads}


def starts(fleet):
    return Counter(worker for worker, event in fleet.events if isinstance(event, ShardStarted))


class RedeliversOnlyTheBatch(ChildProcessor):
    """What a daemon must not do: a new child is given the batch its predecessor died in, and nothing before."""

    def process_records(self, batch):
        try:
            super().process_records(batch)
        except RestartShard:
            self._child = self._children.start(self._shard)
            self._act(
                "initialize", [protocol.initialize(self._shard, batch.records[0].position)], self._checkpoints
            )
            super().process_records(batch)


def run_to_the_end(fleet, start, journal, children, **options):
    """Two workers, 60 records, a split under way; until the first shards are at their end, and a stop. What was put."""
    workers = [start(fleet, name, children, **options) for name in ("w1", "w2")]
    # The row of a lease that was stolen names its new owner before the old one has noticed and let go.
    fleet.wait(lambda: starts(fleet).keys() == {"w1", "w2"}, what="both to have started a shard")
    put = fleet.put(30)
    fleet.wait(lambda: finished(journal), what="the first records to be finished")
    fleet.kinesis.split(STREAM, KEY)
    put += fleet.put(30)
    fleet.wait(
        lambda: fleet.rows().get(KEY) is not None and fleet.rows()[KEY].is_ended, what="the end of the parent"
    )
    fleet.wait(lambda: texts(put) <= given(journal), what="every record to be given to some child")
    for worker in workers:
        worker.stop()
    return put


def test_a_child_killed_in_a_batch_loses_nothing_it_held_from_earlier_batches_and_a_split_changes_nothing(
    new_fleet, new_children, start, journal, heard
):
    fleet = new_fleet(shards=2)
    children = new_children("hoarder", "dies")
    put = run_to_the_end(fleet, start, journal, children)
    assert texts(put) - finished(journal).keys() == set(), "lost"
    (failed,) = heard.of(ChildFailed)
    assert failed.why == "was ended by SIGKILL"
    assert fleet.rows()[KEY].checkpoint == AT_SHARD_END
    assert {event.shard for event in fleet.happened(ShardEnded)} == {KEY}
    assert fleet.happened(RetriesExhausted) == [], "it cost its lease nothing but a moment"
    # One child for each lease that was taken, and one more for the one that died.
    assert len(heard.of(ChildStarted)) == len(fleet.happened(LeaseTaken)) + 1


def test_that_would_be_seen_to_lose_records_if_only_the_running_batch_came_again(
    new_fleet, new_children, start, journal
):
    fleet = new_fleet(shards=2)
    children = new_children("hoarder", "dies")
    put = run_to_the_end(fleet, start, journal, children, processor=RedeliversOnlyTheBatch)
    assert texts(put) - finished(journal).keys() != set()


def test_a_child_that_dies_again_and_again_costs_its_own_lease_and_no_other(
    new_fleet, new_children, start, journal, heard
):
    fleet = new_fleet(shards=3)
    fleet.put(30)
    script = f"""
if message['action'] == 'initialize':
    globals()['shard'] = message['shardId']
elif message['action'] == 'processRecords':
    if shard == '{KEY}':
        sys.exit(7)
    note(given=payloads(message)); checkpoint()
"""
    children = new_children("scripted", script)
    start(fleet, "w1", children, retry_timeout=20.0)
    of_others = [r.data for s in fleet.open_shards() if s != KEY for r in records_of(fleet, s)]
    fleet.wait(lambda: texts(of_others) <= given(journal), what="the records of the other shards")
    fleet.wait(lambda: fleet.happened(RetriesExhausted), 60, "the lease to be handed back")
    (handed,) = fleet.happened(RetriesExhausted)
    assert handed.shard == KEY
    assert {event.shard for event in heard.of(ChildFailed)} == {KEY}
    assert {event.why for event in heard.of(ChildFailed)} == {"ended with exit code 7"}
    assert children.failures == {KEY: len(heard.of(ChildFailed))}
    assert 3 <= children.failures[KEY] <= 12, "with a back-off"
    put_later = fleet.put(30, "later")
    of_others = texts(put_later) - texts(r.data for r in records_of(fleet, KEY))
    fleet.wait(lambda: of_others <= given(journal), what="the other shards' next records")
    assert set(fleet.owners().values()) == {"w1", None}


def records_of(fleet, shard):
    iterator = fleet.kinesis.get_shard_iterator(
        STREAM, shard, "TRIM_HORIZON", sequence_number=None, at_millis=None
    )
    return fleet.kinesis.get_records(iterator, 10_000).records


def test_a_child_that_exits_at_once_hands_the_lease_back(new_fleet, new_children, start, heard):
    fleet = new_fleet(shards=1)
    children = new_children("exits", "0")
    start(fleet, "w1", children, retry_timeout=10.0)
    fleet.wait(lambda: fleet.happened(RetriesExhausted), 60, "the lease to be handed back")
    assert {(e.shard, e.doing, e.why) for e in heard.of(ChildFailed)} == {
        (KEY, "initialize", "ended with exit code 0")
    }


def test_with_on_error_raise_the_first_failing_child_stops_the_worker_as_java_does(
    new_fleet, new_children, start, heard
):
    fleet = new_fleet(shards=2)
    fleet.put(20)
    worker = start(
        fleet, "w1", new_children("scripted", "if 'records' in message: sys.exit(1)"), on_error="raise"
    )
    fleet.wait(lambda: worker.failure, what="the worker to stop")
    assert isinstance(worker.failure, ProcessorFailed)
    assert isinstance(worker.failure.__cause__, RestartShard)
    worker.stop()
    assert heard.of(ChildFailed)
    assert {event.where for event in fleet.happened(ProcessorRaised)} == {"-"}, "no line of pykcl is to blame"
    assert "raised RestartShard for shardId-" in str(worker.failure)


def test_a_stop_asks_every_child_and_releases_what_it_checkpointed(
    new_fleet, new_children, start, journal, heard
):
    fleet = new_fleet(shards=2)
    put = fleet.put(20)
    worker = start(fleet, "w1", new_children("good"))
    fleet.wait(lambda: texts(put) <= given(journal), what="all records")
    worker.stop()
    for pid in journal.pids:
        told = [note["told"] for note in journal.notes if note["pid"] == pid and "told" in note]
        assert told[-2:] == ["shutdownRequested", "leaseLost"]
        assert not is_running(pid)
    assert len(fleet.happened(LeaseReleased)) == 2
    assert {(e.exit, e.forced) for e in heard.of(ChildEnded)} == {(0, None)}
    last = {s: records_of(fleet, s)[-1].sequence_number for s in fleet.open_shards()}
    assert {key: row.checkpoint.sequence_number for key, row in fleet.rows().items()} == last


def test_what_a_child_did_not_confirm_is_not_checkpointed_when_the_worker_stops(
    new_fleet, new_children, start, journal
):
    fleet = new_fleet(shards=1)
    put = fleet.put(8)
    worker = start(
        fleet, "w1", new_children("scripted", "if 'records' in message: note(given=payloads(message))")
    )
    fleet.wait(lambda: texts(put) <= given(journal), what="all records")
    worker.stop()
    assert fleet.rows()[KEY].checkpoint.is_sentinel
