"""A start at LATEST: nothing is skipped that is put once the application is ready."""

import pytest

from pykcl.local.errors import AwsError
from pykcl.model.checkpoint import AT_LATEST, AT_TRIM_HORIZON, Checkpoint, StartPosition
from pykcl.model.lease import Lease, PykclMetadata, metadata_for
from pykcl.model.shard import Shard, StreamDescription
from pykcl.planning.lease_creation import create_new_leases
from pykcl.testing.fleet import TABLE, RecordingProcessor


def test_nothing_put_after_a_latest_application_was_called_ready_is_skipped_though_reading_begins_late(
    new_fleet,
):
    fleet = new_fleet(shards=2)
    old = fleet.put(4, prefix="old")
    fleet.simulation.sleep(3)

    class SlowToStart(RecordingProcessor):
        def initialize(self, init):
            super().initialize(init)
            fleet.simulation.sleep(10)

    fleet.start("w1", initial_position="LATEST", processor=lambda: SlowToStart("w1", fleet.ledger))
    fleet.wait(lambda: set(fleet.owners().values()) == {"w1"} and len(fleet.owners()) == 2)
    new = fleet.put(10, prefix="new")
    fleet.wait_delivered(new)
    assert not set(old) & set(fleet.ledger.payloads)


def test_a_latest_start_whose_processor_first_fails_loses_nothing(new_fleet):
    fleet = new_fleet(shards=1)
    attempts = []

    class Shy(RecordingProcessor):
        def initialize(self, init):
            attempts.append(1)
            if len(attempts) < 5:
                raise ValueError
            super().initialize(init)

    fleet.start("w1", initial_position="LATEST", processor=lambda: Shy("w1", fleet.ledger))
    fleet.wait(lambda: attempts)
    fleet.wait_delivered(fleet.put(10))


def test_one_stray_resource_not_found_during_a_start_at_latest_does_not_stop_the_worker(new_fleet):
    fleet = new_fleet(shards=2)
    hit = []

    def fault(operation, stream, shard):
        if operation == "GetShardIterator" and not hit:
            hit.append(shard)
            raise AwsError("ResourceNotFoundException", "a blip")

    fleet.kinesis.fault = fault
    worker = fleet.start("w1", initial_position="LATEST")
    assert worker.wait_ready(60)
    assert hit
    fleet.wait_delivered(fleet.put(6))
    assert worker.failure is None


def test_the_open_iterator_of_a_lease_that_a_peer_took_is_let_go(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1", initial_position="LATEST", max_leases=1)
    fleet.wait(lambda: len(worker._manager._sync._latest.opened) == 1, what="the iterator of the other lease")
    fleet.start("w2", initial_position="LATEST")
    fleet.wait(lambda: set(fleet.owners().values()) == {"w1", "w2"})
    fleet.wait(lambda: not worker._manager._sync._latest.opened, 10, "letting it go")


def _set_to_latest(fleet):
    later = {"checkpoint": {"S": "LATEST"}, "checkpointSubSequenceNumber": {"N": "0"}}
    for row in fleet.items().values():
        fleet.dynamodb.put_raw(TABLE, {**row, **later})


def test_latest_that_an_operator_sets_later_means_now(new_fleet):
    """The note in the row has the time of the application's first start: all since then would come again."""
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1", initial_position="LATEST")
    fleet.wait(lambda: worker.wait_ready(0.0))
    fleet.simulation.sleep(5)
    first = fleet.put(20, "first")
    fleet.wait_delivered(first)
    worker.stop()
    assert all("latestDone" in row["pykcl"]["M"] for row in fleet.items().values())
    backlog = fleet.put(20, "backlog")
    fleet.simulation.sleep(60)
    _set_to_latest(fleet)
    again = fleet.start("w2", initial_position="LATEST")
    fleet.wait(lambda: len(again.leases) == 2 and again.wait_ready(0.0))
    fleet.simulation.sleep(5)
    fleet.wait_delivered(fleet.put(20, "later"))
    assert fleet.ledger.duplicates == 0
    assert not set(backlog) & fleet.ledger.payloads.keys()


def test_a_worker_that_dies_before_its_first_checkpoint_after_that_loses_nothing(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", initial_position="LATEST")
    fleet.wait(lambda: worker.wait_ready(0.0))
    fleet.simulation.sleep(5)
    fleet.wait_delivered(fleet.put(5, "first"))
    worker.stop()
    _set_to_latest(fleet)
    fleet.simulation.sleep(60)
    second = fleet.start("w2", checkpoint_mode="manual", initial_position="LATEST")
    fleet.wait(lambda: second.leases and second.wait_ready(0.0))
    fleet.simulation.sleep(5)
    put = fleet.put(5, "unread")
    fleet.simulation.kill("w2")
    fleet.start("w3", initial_position="LATEST")
    fleet.wait_delivered(put, 120)


def _noted(lease, now_millis=99):
    return metadata_for(
        lease, stream=StreamDescription("s", "arn:s", 1, "ACTIVE", 24), owner="w", version="1", process_token="t",
        now_millis=now_millis, failover_time=10.0,
    )  # fmt: skip


def test_a_number_that_java_wrote_is_noted_when_the_lease_is_taken():
    started = Lease("shardId-0", Checkpoint("77"), metadata=PykclMetadata(latest_from=5))
    note = _noted(started)
    assert (note.latest_from, note.latest_done, note.latest_since) == (5, "77", None)
    set_back = started.with_(checkpoint=Checkpoint("LATEST"), metadata=note)
    later = _noted(set_back)
    assert (later.latest_from, later.latest_done, later.latest_since) == (5, "77", 99)
    again = _noted(set_back.with_(metadata=later), now_millis=200)
    assert again.latest_since == 99, (
        "nothing was checkpointed since: the next worker begins where this one did"
    )
    moved = later.after(Checkpoint("80"))
    assert (moved.latest_from, moved.latest_done, moved.latest_since) == (5, "77", None)


@pytest.mark.parametrize(
    ("row", "is_start"),
    [
        (Lease("old", AT_LATEST), True),
        (Lease("old", AT_LATEST, counter=7), False),
        (Lease("old", AT_LATEST, metadata=PykclMetadata()), False),
    ],
    ids=["of Java, never taken", "of Java, set back", "of pykcl, set back"],
)
def test_only_a_row_that_nobody_has_worked_on_shows_when_the_application_started(row, is_start):
    """Seed 5301527 of the simulations with policies. 1) An operator sets one row to LATEST; 2) a shard that nobody has
    read, and whose parents are trimmed, gets its lease: from the time of step 1 it would skip what is older."""
    taken = row.with_(metadata=_noted(row), owner="w", counter=row.counter + 1)
    assert taken.latest_since == 99
    orphan = Shard("new", parents=("trimmed",))
    (creation,) = create_new_leases(StartPosition("LATEST"), [orphan, Shard("old")], {"old": taken})
    begins = (creation.lease.checkpoint, creation.lease.latest_from)
    assert begins == ((AT_LATEST, 99) if is_start else (AT_TRIM_HORIZON, None))


def test_an_unread_child_of_a_parent_that_was_read_begins_at_its_first_record_though_its_sibling_was_set_to_latest():
    sibling = Lease("a", AT_LATEST, counter=7, metadata=PykclMetadata(), parents=("p",))
    rows = {"a": sibling.with_(metadata=_noted(sibling), owner="w", counter=8)}
    shards = [Shard("p"), Shard("a", parents=("p",)), Shard("b", parents=("p",))]
    (creation,) = create_new_leases(StartPosition("LATEST"), shards, rows)
    assert (creation.lease.key, creation.lease.checkpoint) == ("b", AT_TRIM_HORIZON)
